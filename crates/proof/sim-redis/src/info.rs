// SPDX-License-Identifier: Apache-2.0 OR MIT
//! INFO: the sections and fields that matter to somebody in front of Redis.

use std::fmt::Write as _;

use crate::client::{Argv, Blocked};
use crate::dispatch::lower;
use crate::server::Redis;
use crate::types::{AppendFsync, ClientId};

/// Counters of `INFO stats`, zeroed by CONFIG RESETSTAT.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) connections: u64,
    pub(crate) commands: u64,
    pub(crate) rejected: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

const DEFAULT: [&str; 9] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "errorstats",
    "cluster",
    "keyspace",
];

impl Redis {
    fn section(&self, name: &str) -> Option<String> {
        let mut text = String::new();
        let now_s = self.now_ns / 1_000_000_000;
        match name {
            "server" => {
                let up = now_s.saturating_sub(self.started_ns / 1_000_000_000);
                let _ = write!(
                    text,
                    "# Server\r\nredis_version:{}\r\nredis_git_sha1:00000000\r\n\
                     redis_git_dirty:0\r\nredis_mode:standalone\r\nos:Linux\r\narch_bits:64\r\n\
                     process_id:1\r\nrun_id:{:040x}\r\ntcp_port:{}\r\nserver_time_usec:{}\r\n\
                     uptime_in_seconds:{up}\r\nuptime_in_days:{}\r\nhz:10\r\nconfigured_hz:10\r\n",
                    if self.config.field_expiry {
                        "7.4.0"
                    } else {
                        "7.0.15"
                    },
                    u128::from(self.config.seed) ^ u128::from(self.started_ns),
                    self.config.port,
                    self.now_ns / 1000,
                    up / 86_400
                );
            }
            "clients" => self.clients_section(&mut text),
            "memory" => {
                let _ = write!(
                    text,
                    "# Memory\r\nused_memory:{}\r\nmaxmemory:{}\r\nmaxmemory_policy:{}\r\n",
                    self.used_memory(),
                    self.config.maxmemory,
                    self.config.maxmemory_policy
                );
            }
            "persistence" => {
                let _ = write!(
                    text,
                    "# Persistence\r\nloading:{}\r\nasync_loading:0\r\naof_enabled:{}\r\n\
                     rdb_last_bgsave_status:ok\r\naof_last_write_status:{}\r\nrdb_bgsave_in_progress:0\r\n\
                     aof_rewrite_in_progress:0\r\nmodule_fork_in_progress:0\r\n",
                    u8::from(self.loading),
                    u8::from(self.config.appendfsync != AppendFsync::Off),
                    if self.aof.error().is_some() {
                        "err"
                    } else {
                        "ok"
                    }
                );
            }
            "stats" => self.stats_section(&mut text),
            "replication" => self.replication_section(&mut text),
            "commandstats" => {
                text.push_str("# Commandstats\r\n");
                for (name, stat) in &self.command_stats {
                    let calls = stat.calls;
                    let _ = write!(
                        text,
                        "cmdstat_{name}:calls={calls},usec={calls},usec_per_call=1.00,\
                         rejected_calls={},failed_calls={}\r\n",
                        stat.rejected, stat.failed
                    );
                }
            }
            "errorstats" => text.push_str("# Errorstats\r\n"),
            "cluster" => text.push_str("# Cluster\r\ncluster_enabled:0\r\n"),
            "keyspace" => self.keyspace_section(&mut text),
            _ => return None,
        }
        Some(text)
    }

    fn replication_section(&self, text: &mut String) {
        let role = if self.replica { "slave" } else { "master" };
        let _ = write!(
            text,
            "# Replication\r\nrole:{role}\r\nconnected_slaves:0\r\n\
             master_failover_state:no-failover\r\n"
        );
        if self.replica {
            let link = if self.link_up { "up" } else { "down" };
            let _ = write!(text, "master_link_status:{link}\r\n");
        }
    }

    fn stats_section(&self, text: &mut String) {
        let stats = &self.stats;
        let _ = write!(
            text,
            "# Stats\r\ntotal_connections_received:{}\r\ntotal_commands_processed:{}\r\n\
             rejected_connections:{}\r\nexpired_keys:{}\r\nevicted_keys:{}\r\n\
             keyspace_hits:{}\r\nkeyspace_misses:{}\r\n",
            stats.connections,
            stats.commands,
            stats.rejected,
            stats.expired,
            stats.evicted,
            stats.hits,
            stats.misses
        );
    }

    fn clients_section(&self, text: &mut String) {
        let blocked = |client: &&crate::client::Client| {
            matches!(
                client.blocked,
                Some(Blocked::List { .. } | Blocked::Postponed(_))
            )
        };
        let clients = self.clients.values().filter(|client| client.id != 0);
        let _ = write!(
            text,
            "# Clients\r\nconnected_clients:{}\r\ncluster_connections:0\r\nmaxclients:{}\r\n\
             blocked_clients:{}\r\ntracking_clients:{}\r\n",
            clients.clone().count(),
            self.config.maxclients,
            clients.clone().filter(blocked).count(),
            clients.filter(|client| client.tracking.on).count()
        );
    }

    fn keyspace_section(&self, text: &mut String) {
        text.push_str("# Keyspace\r\n");
        let dbs = (0_u32..).zip(&self.dbs);
        for (index, db) in dbs.filter(|(_, db)| !db.is_empty()) {
            let ends: Vec<i64> = db.values().filter_map(|entry| entry.expire_at_ms).collect();
            let _ = write!(
                text,
                "db{index}:keys={},expires={},avg_ttl=0",
                db.len(),
                ends.len()
            );
            if self.config.field_expiry {
                let _ = write!(text, ",subexpiry={}", self.keys_with_field_ends(index));
            }
            text.push_str("\r\n");
        }
    }
}

pub(crate) fn info(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let mut wanted: Vec<String> = argv[1..].iter().map(|name| lower(name)).collect();
    if wanted.is_empty() || wanted.iter().any(|name| name == "default") {
        wanted.extend(DEFAULT.map(str::to_owned));
    }
    let all = wanted
        .iter()
        .any(|name| name == "all" || name == "everything");
    let order = [
        "server",
        "clients",
        "memory",
        "persistence",
        "stats",
        "replication",
        "commandstats",
        "errorstats",
        "cluster",
        "keyspace",
    ];
    let sections: Vec<String> = order
        .iter()
        .filter(|name| all || wanted.iter().any(|one| one == *name))
        .filter_map(|name| redis.section(name))
        .collect();
    let text = sections.join("\r\n");
    redis.client(id).add_verbatim(&text);
}
