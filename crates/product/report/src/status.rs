// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb status --json`, and what is said of single connections and keys.

use serde::{Deserialize, Serialize};

use crate::{CommandsReport, LatencyReport, ProcessorReport, WritesReport};

/// One counter with its description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name as in `reasons.def`.
    pub name: String,
    /// `answered`, `refused`, `passed`, `dropped` or `event`.
    pub kind: String,
    /// What it counts.
    pub text: String,
    /// The count since the data path was loaded.
    pub count: u64,
}

/// Tiers at work on a boosted device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    /// XDP in the driver, and TC.
    Native,
    /// The TC tier alone: the driver has no XDP, or XDP's answers would be late.
    Tc,
}

/// What was done about a device's VLAN offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VlanOffload {
    /// It was off before.
    WasOff,
    /// Switched off; the value is the flag word to restore.
    SwitchedOff(u32),
    /// The device does not let it be switched: tagged traffic is not accelerated there.
    Fixed,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Name as `ip link` shows it.
    pub name: String,
    /// Index in its namespace.
    pub ifindex: u32,
}

/// A boosted device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The device.
    pub device: Device,
    /// Tiers at work.
    pub mode: AttachMode,
    /// Why it is not native, empty otherwise.
    pub why_not_native: String,
    /// What was done about its VLAN offload.
    pub vlan: VlanOffload,
    /// It has gone since: what has its name now is another.
    #[serde(default)]
    pub gone: bool,
}

/// The programs at work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramsReport {
    /// Their build: a hash of the objects.
    pub build: String,
    /// Layout of what they share; programs of another layout cannot replace them.
    pub layout: String,
    /// False after a replacement that was killed half-way: some links run another build. Both are
    /// right; `erb boost` makes it one.
    pub whole: bool,
    /// `erb trace` is at work: traced programs stand in for them.
    #[serde(default)]
    pub traced: bool,
}

/// A listening socket on the port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenReport {
    /// Its address; 0.0.0.0 and ::: all.
    pub address: String,
    /// `redis`, `other` (left alone) or `unknown` (connections are answered late).
    pub whose: String,
    /// Why it is not known.
    pub why: Option<String>,
}

impl std::fmt::Display for ListenReport {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whose = match self.whose.as_str() {
            "redis" => "Redis",
            "other" => "another server: left alone",
            _ => "not known whose",
        };
        write!(out, "{} ({whose}", self.address)?;
        if let Some(why) = self.why.as_ref().filter(|_| self.whose == "unknown") {
            write!(out, ": {why}")?;
        }
        write!(out, ")")
    }
}

/// Redis as the daemon sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedisReport {
    /// Address of the feed.
    pub address: String,
    /// Port that is accelerated.
    pub port: u16,
    /// Whether the feed is up.
    pub feed_up: bool,
    /// Who listens on the port.
    #[serde(default)]
    pub listens: Vec<ListenReport>,
    /// Feeds made since the daemon began.
    pub feeds_made: u64,
    /// `redis_version`.
    pub version: String,
    /// `role`.
    pub role: String,
    /// `maxmemory`, bytes.
    pub maxmemory: u64,
    /// `maxmemory-policy`.
    pub maxmemory_policy: String,
    /// `timeout`, s.
    pub timeout_s: u64,
    /// Commands that Redis has under their own names.
    pub commands: usize,
    /// Fast commands that are left to Redis, each with the reason.
    pub fast_off: Vec<String>,
    /// Commands that only a new name reaches (`rename-command`).
    pub renamed: Vec<String>,
}

/// Tracked connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionsReport {
    /// Entries in the table.
    pub total: u32,
    /// First command not answered yet.
    pub new: u32,
    /// May be answered.
    pub fast: u32,
    /// Not answered any more, translated.
    pub bypass: u32,
    /// Older than ERB: never answered.
    pub old: u32,
    /// FIN or RST seen.
    pub closing: u32,
    /// Need translation.
    pub translated: u32,
    /// Have unacknowledged fast-path bytes.
    pub unacked: u32,
    /// Not seen, as there was no room in the table for them; counted each second at most.
    #[serde(default)]
    pub unseen: u32,
}

/// A connection whose command keeps keys from everybody for longer than a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLine {
    /// The client's address.
    pub client: String,
    /// For how long at least, ms.
    pub held_ms: u32,
    /// Whether nothing at all is answered from the cache meanwhile; else only some keys are not.
    pub all_keys: bool,
    /// What its command waits for.
    pub why: String,
}

/// Such connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReport {
    /// How many there are.
    pub total: u32,
    /// The first of them.
    pub clients: Vec<HeldLine>,
}

/// Packets that wait until what was answered before them is in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingReport {
    /// Connections of which one waits.
    pub connections: usize,
    /// Copies that are kept of them.
    pub packets: usize,
    /// Bytes of these.
    pub bytes: usize,
    /// For how long the one that has waited longest does, ms.
    pub longest_ms: u64,
    /// Connections that this daemon has reset since one had waited too long.
    pub ended: u64,
    /// Copies for which this daemon had no room: their clients send them again.
    pub left_out: u64,
}

/// The cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Bytes of all sets.
    pub bytes: u64,
    /// Number of sets.
    pub sets: u64,
    /// Bytes of a set.
    pub set_bytes: u64,
    /// Entries that fit at most.
    pub entries_max: u64,
    /// Entries there, from a sample of sets.
    pub entries_estimate: u64,
    /// Bytes of a slot of each class, header and key included.
    pub class_bytes: Vec<u32>,
    /// Ways per set of each class.
    pub class_ways: Vec<u32>,
    /// Whether misses are filled.
    pub fills: bool,
    /// Keys waiting to be filled.
    pub fills_waiting: usize,
    /// Fill transactions under way.
    pub fills_in_flight: usize,
    /// Keys filled by this daemon.
    pub filled: u64,
    /// Reads on fast connections that were answered from the cache, since the data path was loaded.
    #[serde(default)]
    pub hits: u64,
    /// Those that reached the look-up, or would have, and were not.
    #[serde(default)]
    pub misses: u64,
}

/// Whose requests pass unread, as the cache is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unread {
    /// Nobody's: it is not closed, or is being closed.
    #[default]
    None,
    /// Those of connections that need no translation.
    Untranslated,
    /// All: no connection needs any.
    All,
}

/// What is left out, as it does not pay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AsideReport {
    /// 0: nothing. 1: reads look into a sample of the cache's sets only. 2: and keys outside of it are not
    /// read again when they were written. 3, by hand or where `--close-after` allows it: the cache is closed, and
    /// requests are not read.
    pub level: u8,
    /// Why.
    pub why: String,
    /// Since so many seconds.
    pub since_s: u64,
    /// Share of the sample's look-ups that found their key; none at level 0.
    pub sample_hit_ratio: Option<f64>,
    /// How often level 0 was entered again.
    pub to_0: u64,
    /// How often level 1 was.
    pub to_1: u64,
    /// How often level 2 was.
    pub to_2: u64,
    /// How often level 3 was.
    #[serde(default)]
    pub to_3: u64,
    /// Short tries of level 0.
    pub tries: u64,
    /// Whether Redis tells the daemon only of changes of keys that it has read, not of all.
    #[serde(default)]
    pub reports_of_read: bool,
    /// How far level 3 is.
    #[serde(default)]
    pub unread: Unread,
}

/// Kernel memory, all of it allocated when boosting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Bytes of one tracked connection.
    pub connection_bytes: u64,
    /// Tracked connections at most.
    pub connections_max: u64,
    /// Bytes of the connection table.
    pub connections_total_bytes: u64,
    /// Average bytes of one cache entry, its share of the set header included.
    pub cache_entry_bytes_mean: u64,
    /// Bytes of the cache.
    pub cache_total_bytes: u64,
}

/// Everything `erb status` shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// `running`, `detaching` or `dead` (programs at work, no daemon, no lease).
    pub daemon: String,
    /// Process id, 0 if dead.
    pub pid: u32,
    /// Run directory.
    pub run_dir: String,
    /// Boosted devices.
    pub devices: Vec<DeviceReport>,
    /// All devices whose replies are watched, by index.
    pub egress_devices: Vec<u32>,
    /// Mode of work.
    pub mode: String,
    /// The programs at work.
    pub programs: ProgramsReport,
    /// Whether fast answers are given.
    pub serving: bool,
    /// Why not; empty if serving.
    pub not_serving: Vec<String>,
    /// What else whoever runs it should know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// False while a command that may have changed Redis's configuration is looked at.
    pub gate_open: bool,
    /// Whether new connections are tracked from their first byte.
    pub admitting: bool,
    /// Lease still left, ms; negative: over for that long.
    pub lease_left_ms: i64,
    /// Commands with unknown keys on their way.
    pub fence: u64,
    /// Redis.
    pub redis: RedisReport,
    /// Connections.
    pub connections: ConnectionsReport,
    /// Whose commands keep keys from everybody for long.
    #[serde(default)]
    pub held: HeldReport,
    /// What waits until something is in Redis.
    #[serde(default)]
    pub waiting: WaitingReport,
    /// Writes that are answered in Redis's place.
    #[serde(default)]
    pub writes: WritesReport,
    /// Share of the reads on fast connections that the cache answered; none before the first.
    pub hit_ratio: Option<f64>,
    /// Commands by name, and the processor time that Redis was spared.
    #[serde(default)]
    pub commands: CommandsReport,
    /// What is left out, as it does not pay.
    #[serde(default)]
    pub aside: AsideReport,
    /// The cache.
    pub cache: CacheReport,
    /// Where metrics are served over HTTP.
    #[serde(default)]
    pub metrics_at: Option<String>,
    /// Where the dashboard is.
    #[serde(default)]
    pub dashboard_at: Option<String>,
    /// How long requests take, by their way.
    #[serde(default)]
    pub latency: Vec<LatencyReport>,
    /// What each processor did; those that did nothing are left out.
    #[serde(default)]
    pub processors: Vec<ProcessorReport>,
    /// Kernel memory.
    pub memory: MemoryReport,
    /// All counters.
    pub counters: Vec<Counter>,
}

impl Status {
    /// The count of this name, if there is one.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        let found = self.counters.iter().find(|counter| counter.name == name);
        found.map(|counter| counter.count)
    }

    /// Whether the cache is closed, and no packet is looked at.
    #[must_use]
    pub fn is_closed_to_all(&self) -> bool {
        self.aside.level == 3 && self.aside.unread == Unread::All
    }
}

/// One tracked connection as `erb status --conns` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnLine {
    /// Client's address.
    pub client: String,
    /// Server's address.
    pub server: String,
    /// `new`, `fast`, `bypass` or `old`.
    pub state: String,
    /// `CONN_F_*`.
    pub flags: u8,
    /// Request bytes answered without Redis.
    pub in_delta: u32,
    /// Reply bytes sent without Redis.
    pub out_delta: u32,
    /// Requests that went up to Redis.
    pub requests: u32,
    /// Replies of Redis.
    pub replies: u32,
    /// Why it is not answered, as one word; empty: it may be.
    #[serde(default)]
    pub reason: String,
    /// The same as a sentence.
    #[serde(default)]
    pub why: String,
}

/// What `erb fill` has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// Keys that are in the cache now.
    pub filled: u64,
    /// Keys that are not: there is no such key, or no room.
    pub refused: u64,
}

/// What `erb consumed` says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumed {
    /// Bytes of requests that were answered without Redis, modulo 2^32, counted before the answer leaves.
    pub bytes: u32,
    /// Nothing of it is answered before Redis has said how it stands.
    pub bypass: bool,
}
