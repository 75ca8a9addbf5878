// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon reads of Redis each second, and whether ERB may answer in Redis's place.

use std::collections::BTreeMap;

use crate::calls::{Calls, calls, fields, word};
use crate::client_list::{self, ClientLine};
use crate::output_limit;
use crate::resp::{Frame, error, pairs, text};
use crate::rights::DEFAULT_USER;
use crate::usage::Usage;
use crate::users::{Users, hides_keys_from};
use crate::write_state::WriteState;

/// Oldest Redis: PEXPIRETIME and INFO with several sections came with it.
const VERSION_MIN: (u32, u32) = (7, 0);

/// Modules that are known not to hear of keys that were looked for and not there, which no setting can keep from a
/// module, and not to change what clients send: those that come with Redis 8, and Lua's of Valkey.
const DEAF_MODULES: [&str; 6] = ["vectorset", "search", "ReJSON", "timeseries", "bf", "lua"];

/// Of what no Valkey has.
const NO_VALKEY: (u32, u32) = (u32::MAX, 0);

/// The first two numbers of a version.
fn numbers(version: &str) -> (u32, u32) {
    let mut numbers = version
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Redis's state as far as it decides whether ERB may serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisState {
    /// `redis_version`.
    pub version: String,
    /// `redis_mode`: standalone, cluster or sentinel.
    pub mode: String,
    /// `role`.
    pub role: String,
    /// `loading`.
    pub loading: bool,
    /// What tells of SWAPDB.
    pub calls: Calls,
    /// Calls of MONITOR since the last CONFIG RESETSTAT.
    pub monitor_calls: u64,
    /// `maxclients`.
    pub maxclients: Option<u64>,
    /// MONITOR clients attached, as far as they were looked for.
    pub monitors: usize,
    /// `maxmemory`, bytes.
    pub maxmemory: u64,
    /// `maxmemory-policy`.
    pub maxmemory_policy: String,
    /// Whether `requirepass` is set.
    pub password: bool,
    /// Idle time after which Redis closes a client, s; 0 = never.
    pub timeout_s: u64,
    /// `io-threads`; 0: Redis has none.
    pub io_threads: u32,
    /// `valkey_version`, of a Valkey: it calls itself a Redis 7 too.
    pub valkey: Option<(u32, u32)>,
    /// Whether INFO was answered, so that version, role and mode are known.
    pub info_is_read: bool,
    /// `connected_clients`.
    pub clients: u64,
    /// Hard limit of a normal client's output, bytes; 0: none.
    pub output_limit: u64,
    /// Bytes of a line of CLIENT LIST, as last seen; 0: none was.
    pub line_bytes: u64,
    /// Whether Redis tells subscribers of keys that were looked for and not there (`m` of
    /// `notify-keyspace-events`, together with K or E); none: not known.
    pub tells_misses: Option<bool>,
    /// Classes of events that Redis publishes (`notify-keyspace-events`).
    pub events: String,
    /// What writes depend on.
    pub writes: WriteState,
    /// What it has executed, and what that took.
    pub usage: Usage,
    /// Names of the modules that are loaded.
    pub modules: Vec<String>,
    /// `port` and `tls-port`, those that are not 0.
    pub ports: Vec<u16>,
    /// Lines of ACL LIST.
    pub acl: Vec<String>,
    /// As whom the daemon asks, and hears of changes; none: the default user.
    pub user: Option<String>,
    /// Error replies to any of the questions.
    pub errors: Vec<String>,
}

impl RedisState {
    /// Nothing is known of it yet; this user asks.
    pub(crate) fn asked_as(user: Option<String>) -> Self {
        Self {
            user,
            ..Self::default()
        }
    }

    /// Takes the reply to INFO of what [`Self::QUESTIONS`] names.
    pub fn take_info(&mut self, reply: &Frame) {
        let Some(info) = text(reply) else {
            return self.take_error("INFO", reply);
        };
        self.info_is_read = true;
        for (name, value) in fields(&String::from_utf8_lossy(info)) {
            self.calls.take(name, value);
            self.usage.take(name, value);
            match name {
                "redis_version" => value.clone_into(&mut self.version),
                "valkey_version" => self.valkey = Some(numbers(value)),
                "redis_mode" => value.clone_into(&mut self.mode),
                "role" => value.clone_into(&mut self.role),
                "loading" | "async_loading" => self.loading |= value != "0",
                "maxclients" => self.maxclients = value.parse().ok(),
                "connected_clients" => self.clients = value.parse().unwrap_or(0),
                "cmdstat_monitor" => self.monitor_calls = calls(value),
                "module" => self.modules.extend(word(value, "name=").map(str::to_owned)),
                _ => self.writes.take_field(name, value),
            }
        }
    }

    /// Takes the reply to CONFIG GET of what [`Self::QUESTIONS`] names.
    pub(crate) fn take_config(&mut self, reply: &Frame) {
        let found = pairs(reply);
        if found.is_empty() {
            return self.take_error("CONFIG GET", reply);
        }
        for (name, value) in found {
            match name.as_str() {
                "maxmemory" => self.maxmemory = value.parse().unwrap_or(u64::MAX),
                "maxmemory-policy" => self.maxmemory_policy = value,
                "requirepass" => self.password = !value.is_empty(),
                "timeout" => self.timeout_s = value.parse().unwrap_or(0),
                "notify-keyspace-events" => {
                    self.tells_misses = Some(value.contains('m'));
                    self.events = value;
                }
                "client-output-buffer-limit" => {
                    self.output_limit = output_limit::hard_limit(&value);
                }
                "io-threads" => self.io_threads = value.parse().unwrap_or(u32::MAX),
                "port" | "tls-port" => {
                    let port: u16 = value.parse().unwrap_or(0);
                    self.ports.extend(Some(port).filter(|port| *port != 0));
                }
                _ => self.writes.take_setting(&name, value),
            }
        }
    }

    /// Takes the reply to `ACL LIST`.
    pub(crate) fn take_acl(&mut self, reply: &Frame) {
        let Frame::Array { data, .. } = reply else {
            return self.take_error("ACL LIST", reply);
        };
        self.acl = data
            .iter()
            .filter_map(text)
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect();
    }

    /// Whether a MONITOR client may be attached, so that CLIENT LIST must tell. CONFIG RESETSTAT
    /// forgets MONITOR's calls but counts itself, so without a call of either there is none.
    pub(crate) const fn may_be_monitored(&self) -> bool {
        self.monitor_calls > 0 || self.calls.resetstat > 0
    }

    /// Takes the reply to `CLIENT LIST`.
    pub(crate) fn take_clients(&mut self, reply: &Frame) {
        let Some(list) = text(reply) else {
            return self.take_error("CLIENT LIST", reply);
        };
        self.line_bytes = output_limit::line_bytes(list);
        self.monitors = client_list::parse(&String::from_utf8_lossy(list))
            .iter()
            .filter(|client| client.is_monitor())
            .count();
    }

    /// What is to be said where no user may do everything, so that no connection is answered.
    #[must_use]
    pub fn no_full_user(&self) -> Option<String> {
        Users::of(&self.acl).none_is_full()
    }

    /// Users of these clients that may not do everything, each with the first rule that is against it and how many
    /// connections are its. Not the daemon's own user, nor replicas, nor clients of unix sockets.
    #[must_use]
    pub fn limited_users(&self, clients: &[ClientLine]) -> BTreeMap<String, usize> {
        let own = self.user.as_deref().filter(|user| *user != DEFAULT_USER);
        let counts = |client: &&ClientLine| {
            let serves = client.flags.contains(['S', 'M']) || client.laddr.is_none();
            !serves && own != Some(client.user.as_str())
        };
        let users = clients.iter().filter(counts);
        Users::of(&self.acl).limited(users.map(|client| client.user.as_str()))
    }

    /// Why Redis may keep changes of some keys from the daemon; none: it tells of all, or nothing is known of users.
    pub(crate) fn hides_changes(&self) -> Option<String> {
        let user = self.user.as_deref().unwrap_or(DEFAULT_USER);
        hides_keys_from(&self.acl, user).filter(|_| self.acl_is_read())
    }

    /// Whether pushes of changes leave out what their reader may not read.
    pub(crate) fn filters_pushes(&self) -> bool {
        !self.info_is_read || self.is_since((8, 10), NO_VALKEY)
    }

    /// Whether Redis looks at the use of keys when it evicts, so that answers of ERB would hide it. Not with
    /// `allkeys-lrm` and `volatile-lrm` (Redis 8.6): what was changed longest ago goes, and reads do not count.
    #[must_use]
    pub fn evicts_by_use(&self) -> bool {
        let policy = self.maxmemory_policy.as_str();
        self.maxmemory > 0 && (policy.ends_with("-lru") || policy.ends_with("-lfu"))
    }

    /// Whether nobody is told when a key is looked for that is not there: subscribers, or a module.
    #[must_use]
    pub fn hides_misses(&self) -> bool {
        self.tells_misses == Some(false) && self.runs_what_is_sent()
    }

    /// A policy of eviction that loses nothing by a boost, where Redis has such and another is set.
    #[must_use]
    pub fn better_policy(&self) -> Option<String> {
        if !self.evicts_by_use() || !self.is_since((8, 6), NO_VALKEY) {
            return None;
        }
        let policy = &self.maxmemory_policy;
        let (which, _) = policy.split_once('-')?;
        Some(format!(
            "maxmemory-policy is {policy}: the daemon tells Redis each second, by TOUCH, which keys ERB has answered; \
             {which}-lrm needs none of that, as it evicts what was changed longest ago and reads do not count"
        ))
    }

    /// Whether no module is known of that may make another command of what a client sends (command
    /// filters), or change what it has written before it is answered.
    #[must_use]
    pub fn runs_what_is_sent(&self) -> bool {
        let is_known = |name: &String| DEAF_MODULES.contains(&name.as_str());
        self.info_is_read && self.modules.iter().all(is_known)
    }

    /// Whether ACL LIST was answered: the default user is always there.
    pub(crate) fn acl_is_read(&self) -> bool {
        !self.acl.is_empty()
    }

    fn take_error(&mut self, command: &str, reply: &Frame) {
        let reason = error(reply).unwrap_or_else(|| "unexpected reply".to_owned());
        self.errors.push(format!("{command}: {reason}"));
    }

    /// What is asked for the whole state at once.
    pub const QUESTIONS: [&'static [&'static [u8]]; 4] = [
        &[
            b"CONFIG",
            b"GET",
            b"maxmemory",
            b"maxmemory-policy",
            b"requirepass",
            b"timeout",
            b"io-threads",
            b"port",
            b"tls-port",
            b"client-output-buffer-limit",
            b"notify-keyspace-events",
            b"databases",
            b"appendfsync",
            b"min-replicas-to-write",
            b"stop-writes-on-bgsave-error",
            b"unixsocket",
        ],
        &[b"ACL", b"LIST"],
        // Behind ACL LIST: it tells what that has cost.
        &[
            b"INFO",
            b"server",
            b"clients",
            b"replication",
            b"persistence",
            b"stats",
            b"commandstats",
            b"modules",
            b"cpu",
        ],
        &[b"CLIENT", b"LIST"],
    ];

    /// The state that the replies to [`Self::QUESTIONS`] tell, or to the first three of them.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn of(replies: &[Frame]) -> Self {
        let mut state = Self::default();
        state.take_config(&replies[0]);
        state.take_acl(&replies[1]);
        state.take_info(&replies[2]);
        if let Some(list) = replies.get(3) {
            state.take_clients(list);
        }
        state
    }

    /// What is to be said where Redis's limit of output is less than CLIENT LIST takes.
    #[must_use]
    pub fn list_beyond_limit(&self) -> Option<String> {
        output_limit::warning(self.output_limit, self.clients, self.line_bytes)
    }

    /// Whether replies may leave before what is pushed of them is queued. Redis 7 writes in
    /// `beforeSleep`, behind the pushes, with or without threads; the threads of Redis 8 and Valkey
    /// are handed replies in the middle of a turn.
    #[must_use]
    pub fn may_reply_early(&self) -> bool {
        self.io_threads > 1 && (self.valkey.is_some() || self.version_numbers() >= (8, 0))
    }

    /// Whether more than one command of a client may be parsed and not run, to fetch the keys of a pipeline
    /// ahead: then CLIENT LIST does not show whether others wait behind one that blocks.
    #[must_use]
    pub fn parses_ahead(&self) -> bool {
        self.is_since((8, 3), (9, 0))
    }

    /// Whether fields of hashes may expire by themselves.
    #[must_use]
    pub fn fields_may_expire(&self) -> bool {
        !self.info_is_read || self.is_since((7, 4), (9, 0))
    }

    /// Whether it is at least this Redis, or this Valkey.
    fn is_since(&self, redis: (u32, u32), valkey: (u32, u32)) -> bool {
        let is_redis = self.version_numbers() >= redis;
        self.valkey.map_or(is_redis, |version| version >= valkey)
    }

    /// What is to be said of clients that ERB does not see, as this Redis listens on other ports.
    #[must_use]
    pub fn unseen_ports(&self, boosted: u16) -> Vec<String> {
        let others = self.ports.iter().filter(|port| **port != boosted);
        let sentence = |port: &u16| {
            format!(
                "Redis listens on port {port}{}: clients of port {port} are not seen, what they \
                 write is answered at most {} ms late",
                if self.ports.contains(&boosted) {
                    " too".to_owned()
                } else {
                    format!(", not on {boosted} that is boosted")
                },
                erb_abi::LEASE_MS
            )
        };
        others.map(sentence).collect()
    }

    /// Whether the version is one that ERB knows.
    #[must_use]
    pub fn is_new_enough(&self) -> bool {
        self.version_numbers() >= VERSION_MIN
    }

    fn version_numbers(&self) -> (u32, u32) {
        numbers(&self.version)
    }

    /// Why ERB will not answer in its place, however long it runs.
    #[must_use]
    pub fn is_never_served(&self) -> Option<String> {
        let what = match self.mode.as_str() {
            "cluster" => "a cluster node: ERB knows no slots",
            "sentinel" => "a Sentinel, which has no keys",
            _ => return None,
        };
        Some(format!("Redis is {what}; boost a Redis that is none"))
    }

    /// Why ERB must not answer in Redis's place; empty: it may.
    #[must_use]
    pub fn reasons_against_serving(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self
            .errors
            .iter()
            .map(|error| format!("Redis's state could not be read: {error}"))
            .collect();
        // What INFO did not say (-BUSY, -LOADING) is no reason.
        if self.info_is_read && !self.is_new_enough() {
            reasons.push(format!(
                "Redis {:?} is older than 7.0; install a newer one",
                self.version
            ));
        }
        reasons.extend(self.is_never_served());
        // A replica is as good: what its master sends is pushed like any other change, and while it
        // refuses to show stale data it refuses the lease's PING too (-MASTERDOWN, -LOADING).
        if self.info_is_read && self.role != "master" && self.role != "slave" {
            reasons.push(format!(
                "Redis's role is {:?}, neither master nor replica; boost one that is either",
                self.role
            ));
        }
        reasons.extend(self.hides_changes());
        if self.loading {
            reasons.push("Redis is loading its data; wait until it is done".to_owned());
        }
        if self.monitors > 0 {
            reasons.push(
                "a MONITOR client is attached and must see every command; end it, or wait"
                    .to_owned(),
            );
        }
        reasons
    }
}

#[cfg(test)]
#[path = "redis_state_tests.rs"]
mod tests;
