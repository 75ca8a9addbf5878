// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CONFIG, ACL, COMMAND, DEBUG, SHUTDOWN, REPLICAOF and others that concern the server itself.

use crate::cast::Signed;
use crate::client::Argv;
use crate::dispatch::{glob, lower};
use crate::resp::parse_i64;
use crate::server::Redis;
use crate::strings::SYNTAX;
use crate::types::{AppendFsync, Cause, ClientId};

/// Commands that exist only by their sub-commands.
pub(crate) fn container(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    redis.add_arity_error(id);
}

fn settings(redis: &Redis) -> Vec<(&'static str, String)> {
    let config = &redis.config;
    let fsync = match config.appendfsync {
        AppendFsync::Always => "always",
        AppendFsync::No => "no",
        _ => "everysec",
    };
    let on = if config.appendfsync == AppendFsync::Off {
        "no"
    } else {
        "yes"
    };
    let truncated = if config.load_truncated { "yes" } else { "no" };
    vec![
        ("aof-load-truncated", truncated.to_owned()),
        ("appendfsync", fsync.to_owned()),
        ("appendonly", on.to_owned()),
        ("databases", config.databases.to_string()),
        ("maxclients", config.maxclients.to_string()),
        ("min-replicas-to-write", "0".to_owned()),
        ("maxmemory", config.maxmemory.to_string()),
        ("maxmemory-policy", config.maxmemory_policy.clone()),
        ("notify-keyspace-events", config.notify.clone()),
        ("port", config.port.to_string()),
        (
            "replica-serve-stale-data",
            (if config.serve_stale { "yes" } else { "no" }).to_owned(),
        ),
        ("requirepass", config.requirepass.clone()),
        ("stop-writes-on-bgsave-error", "yes".to_owned()),
        ("timeout", config.timeout_s.to_string()),
        ("unixsocket", String::new()),
    ]
}

pub(crate) fn config_get(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let found: Vec<(&str, String)> = settings(redis)
        .into_iter()
        .filter(|(name, _)| {
            argv[2..]
                .iter()
                .any(|pattern| glob(lower(pattern).as_bytes(), name.as_bytes()))
        })
        .collect();
    redis.client(id).add_map(found.len());
    for (name, value) in found {
        redis.client(id).add_bulk(name.as_bytes());
        redis.client(id).add_bulk(value.as_bytes());
    }
}

fn set_one(redis: &mut Redis, name: &str, value: &str) -> Option<()> {
    const POLICIES: [&str; 8] = [
        "noeviction",
        "allkeys-random",
        "allkeys-lru",
        "allkeys-lfu",
        "volatile-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-ttl",
    ];
    let config = &mut redis.config;
    match name {
        "maxmemory" => config.maxmemory = memory(value)?,
        "maxmemory-policy" => {
            config.maxmemory_policy = POLICIES.contains(&value).then(|| value.to_owned())?;
        }
        "requirepass" => {
            value.clone_into(&mut config.requirepass);
            redis.set_password(value);
        }
        "replica-serve-stale-data" => {
            config.serve_stale = match value {
                "yes" => true,
                "no" => false,
                _ => return None,
            };
        }
        "notify-keyspace-events" => {
            let known = |flag: char| "AKEg$lshzxetdnm".contains(flag);
            config.notify = value.chars().all(known).then(|| value.to_owned())?;
        }
        "timeout" => config.timeout_s = value.parse().ok()?,
        "maxclients" => config.maxclients = value.parse().ok()?,
        "appendfsync" if config.appendfsync != AppendFsync::Off => {
            config.appendfsync = match value {
                "always" => AppendFsync::Always,
                "everysec" => AppendFsync::EverySec,
                "no" => AppendFsync::No,
                _ => return None,
            };
        }
        _ => return None,
    }
    Some(())
}

fn memory(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let at = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let factor = match &text[at..] {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    text[..at].parse::<u64>().ok()?.checked_mul(factor)
}

pub(crate) fn config_set(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if argv.len() % 2 == 1 {
        return redis.add_arity_error(id);
    }
    for pair in argv[2..].chunks_exact(2) {
        let name = lower(&pair[0]);
        if !settings(redis).iter().any(|(known, _)| *known == name) {
            let shown = String::from_utf8_lossy(&pair[0]).into_owned();
            return redis.client(id).add_error(&format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{shown}'"
            ));
        }
    }
    for pair in argv[2..].chunks_exact(2) {
        let (name, value) = (
            lower(&pair[0]),
            String::from_utf8_lossy(&pair[1]).into_owned(),
        );
        if set_one(redis, &name, &value).is_none() {
            return redis.client(id).add_error(&format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - argument couldn't \
                 be parsed into an integer"
            ));
        }
    }
    redis.client(id).add_ok();
}

pub(crate) fn config_resetstat(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    redis.stats = crate::info::Stats::default();
    redis.command_stats.clear();
    redis.client(id).add_ok();
}

/// DEBUG RELOAD: the data set is emptied and read again; SLEEP is a no-operation in virtual time.
pub(crate) fn debug(redis: &mut Redis, id: ClientId, argv: &Argv) {
    match lower(&argv[1]).as_str() {
        "reload" => {
            let before = redis.dbs.clone();
            redis.flush(None);
            redis.dbs = before;
            for db in 0..redis.config.databases {
                let keys: Vec<_> = redis.db(db).keys().cloned().collect();
                for key in keys {
                    redis.record(db, &key, Cause::Loaded);
                }
            }
            redis.client(id).add_ok();
        }
        "sleep" | "set-active-expire" | "jmap" => redis.client(id).add_ok(),
        _ => {
            let sub = String::from_utf8_lossy(&argv[1]).into_owned();
            redis.client(id).add_error(&format!(
                "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try DEBUG HELP."
            ));
        }
    }
}

pub(crate) fn shutdown(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let known = |word: &crate::types::Bytes| {
        matches!(lower(word).as_str(), "nosave" | "save" | "now" | "force")
    };
    if !argv[1..].iter().all(known) {
        return redis.client(id).add_error(SYNTAX);
    }
    redis.flush_log(true);
    redis.down = true;
}

pub(crate) fn replicaof(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if lower(&argv[1]) == "no" && lower(&argv[2]) == "one" {
        redis.set_role(false, false);
        return redis.client(id).add_ok();
    }
    let port = parse_i64(&argv[2]).filter(|port| (0..=65_535).contains(port));
    if port.is_none() {
        return redis.client(id).add_error("ERR Invalid master port");
    }
    redis.set_role(true, false);
    redis.client(id).add_ok();
}

pub(crate) fn time(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let now = redis.now_ns;
    let client = redis.client(id);
    client.add_array(2);
    client.add_bulk((now / 1_000_000_000).to_string().as_bytes());
    client.add_bulk((now / 1000 % 1_000_000).to_string().as_bytes());
}

/// It has no replica, and no time is waited for one.
pub(crate) fn wait(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let is_number = |word: &crate::types::Bytes| lower(word).parse::<u32>().is_ok();
    if !argv[1..].iter().all(is_number) {
        return redis
            .client(id)
            .add_error("ERR value is not an integer or out of range");
    }
    redis.client(id).add_int(0);
}

/// Nothing is saved: it never starts from a snapshot.
pub(crate) fn bgsave(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    redis.client(id).add_status("Background saving started");
}

pub(crate) fn lastsave(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let started = redis.started_ns / 1_000_000_000;
    redis.client(id).add_int(started.signed());
}

pub(crate) fn role(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let replica = redis.replica;
    let client = redis.client(id);
    if replica {
        client.add_array(5);
        client.add_bulk(b"slave");
        client.add_bulk(b"127.0.0.1");
        client.add_int(1);
        client.add_bulk(b"connect");
        return client.add_int(-1);
    }
    client.add_array(3);
    client.add_bulk(b"master");
    client.add_int(0);
    client.add_array(0);
}
