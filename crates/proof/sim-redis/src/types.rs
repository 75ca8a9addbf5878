// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the model tells its user: clients, changes in their true order, configuration.

use std::net::SocketAddr;
use std::sync::Arc;

/// An immutable string: key, value or argument.
pub type Bytes = Arc<[u8]>;

/// Redis's number of a connection (CLIENT ID).
pub type ClientId = u64;

/// Where a client comes from, as CLIENT LIST shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP connection.
    Tcp {
        /// The client's end.
        peer: SocketAddr,
        /// Redis's end.
        local: SocketAddr,
    },
    /// A unix socket with its path: no packet of it passes the data path.
    Unix(String),
    /// A replica's link to its master, whose commands it obeys: no packet of a boosted device.
    Master(SocketAddr),
}

/// Why a key changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A command, a script's or a transaction's included.
    Command,
    /// FLUSHALL, FLUSHDB or the emptying before a full resynchronisation or reload.
    Flush,
    /// SWAPDB: no invalidation reports it.
    Swap,
    /// The time to live ran out and Redis noticed.
    Expired,
    /// `maxmemory` made Redis delete it.
    Evicted,
    /// Read from the log after a start, or from a master or a reloaded data set.
    Loaded,
}

/// A key's content after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// There is no such key.
    Gone,
    /// A string.
    String(Bytes),
    /// A hash: fields and values in the order of HGETALL.
    Hash(Arc<[(Bytes, Bytes)]>),
    /// Another type, by the name that TYPE answers.
    Other(&'static str),
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Database.
    pub db: u32,
    /// Key.
    pub key: Bytes,
    /// What it holds now.
    pub value: Stored,
    /// When it expires, ms since 1970.
    pub expire_at_ms: Option<u64>,
    /// Why it changed.
    pub cause: Cause,
}

/// One command that Redis has executed.
#[derive(Clone, Debug)]
pub struct Executed {
    /// Whose command it was.
    pub client: ClientId,
    /// Its arguments, the name first. Empty: a protocol error.
    pub argv: Vec<Bytes>,
    /// What it added to the client's output: its reply and pushes to the client itself. They leave
    /// at the end of the turn.
    pub reply: Vec<u8>,
    /// When it ran, ns since 1970.
    pub at_ns: u64,
    /// The database that was selected when it ran.
    pub db: u32,
    /// Changes of keys in the order in which they were made; a transaction's at its EXEC.
    pub changes: Vec<Change>,
    /// Replies that its changes produced for other, blocked clients (BLPOP).
    pub served: Vec<(ClientId, Vec<u8>)>,
}

/// `appendfsync`, or no log at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendFsync {
    /// `appendonly no`.
    Off,
    /// Before any reply of the turn leaves.
    Always,
    /// Once a second, in the background.
    EverySec,
    /// Never.
    No,
}

/// What redis.conf would say.
#[derive(Clone, Debug)]
pub struct Config {
    /// `port`.
    pub port: u16,
    /// `databases`.
    pub databases: u32,
    /// `appendonly` and `appendfsync`.
    pub appendfsync: AppendFsync,
    /// `aof-load-truncated`.
    pub load_truncated: bool,
    /// `maxmemory`, bytes; 0 = unlimited.
    pub maxmemory: u64,
    /// `maxmemory-policy`.
    pub maxmemory_policy: String,
    /// `requirepass`.
    pub requirepass: String,
    /// `timeout`, s; 0 = never.
    pub timeout_s: u64,
    /// `maxclients`.
    pub maxclients: usize,
    /// `enable-debug-command yes`.
    pub debug_command: bool,
    /// `notify-keyspace-events`; nothing is told: only who asks for what counts.
    pub notify: String,
    /// `replica-serve-stale-data yes`.
    pub serve_stale: bool,
    /// `rename-command`: declared name, name in use (empty: none).
    pub renamed: &'static [(&'static str, &'static str)],
    /// It is a Redis 7.4, where fields of hashes may expire by themselves.
    pub field_expiry: bool,
    /// Line ends stay in what errors repeat of arguments, as in Valkey 8.1.1.
    pub line_ends: bool,
    /// How long a background fsync may take at most, ns (seeded).
    pub fsync_ns_max: u64,
    /// Seed of everything that Redis leaves to chance: eviction, active expiry.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            port: 6379,
            databases: 16,
            appendfsync: AppendFsync::Off,
            load_truncated: true,
            maxmemory: 0,
            maxmemory_policy: "noeviction".to_owned(),
            requirepass: String::new(),
            timeout_s: 0,
            maxclients: 10_000,
            debug_command: false,
            notify: String::new(),
            serve_stale: true,
            renamed: &[],
            field_expiry: false,
            line_ends: false,
            fsync_ns_max: 0,
            seed: 0,
        }
    }
}

/// Why Redis did not start or goes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The log is cut in the middle and `aof-load-truncated` is no.
    Truncated,
    /// The log has garbage before its end, at this byte.
    BadFormat(usize),
}
