// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status report, as sent over the control socket and printed by `erb status`.

use erb_abi as abi;
use erb_core::UnseenConnections;
use erb_datapath::{Attached, Datapath, SweepReport, VlanOffload};
use serde::{Deserialize, Serialize};

/// One counter with its description.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// A boosted device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The device and its tiers.
    #[serde(flatten)]
    pub attached: Attached,
    /// What was done about its VLAN offload.
    pub vlan: VlanOffload,
    /// It has gone since: what has its name now is another.
    #[serde(default)]
    pub gone: bool,
}

/// The programs at work.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
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

/// The cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
}

/// Kernel memory, all of it allocated when boosting.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Share of the GETs on fast connections that the cache answered; none before the first.
    pub hit_ratio: Option<f64>,
    /// The cache.
    pub cache: CacheReport,
    /// Kernel memory.
    pub memory: MemoryReport,
    /// All counters.
    pub counters: Vec<Counter>,
}

/// Counters of GETs that reached the cache look-up and were not answered from it.
const MISSES: [abi::erb_stat; 3] = [
    abi::STAT_REFUSE_MISS,
    abi::STAT_REFUSE_MARKED,
    abi::STAT_REFUSE_EXPIRED,
];

/// Names the counters.
#[must_use]
pub fn counters(stats: &[u64]) -> Vec<Counter> {
    abi::REASONS
        .iter()
        .zip(stats)
        .map(|(reason, count)| Counter {
            name: reason.name.to_owned(),
            kind: reason.kind.word().to_owned(),
            text: reason.text.to_owned(),
            count: *count,
        })
        .collect()
}

/// Hits among the look-ups.
#[must_use]
pub fn hit_ratio(stats: &[u64]) -> Option<f64> {
    let of = |stat: abi::erb_stat| stats.get(stat as usize).copied().unwrap_or(0);
    let hits: u64 = abi::FAST_COMMANDS
        .iter()
        .filter(|command| command.kind != abi::FAST_KIND_PING)
        .map(|command| of(command.stat))
        .sum();
    let all = hits + MISSES.iter().map(|stat| of(*stat)).sum::<u64>();
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    (all > 0).then(|| hits as f64 / all as f64)
}

/// From the last sweep.
#[must_use]
pub fn connections(sweep: &SweepReport) -> ConnectionsReport {
    let of = |state: abi::erb_conn_state| sweep.by_state[state as usize];
    ConnectionsReport {
        total: sweep.conns,
        new: of(abi::CONN_NEW),
        fast: of(abi::CONN_FAST),
        bypass: of(abi::CONN_BYPASS),
        old: of(abi::CONN_OLD),
        closing: sweep.closing,
        translated: sweep.translated,
        unacked: sweep.unacked,
        unseen: 0,
    }
}

/// From the last sweep.
#[must_use]
pub fn held(sweep: &SweepReport) -> HeldReport {
    let line = |row: &abi::held_row| HeldLine {
        client: erb_core::addresses(&row.key).0.to_string(),
        held_ms: row.ms,
        all_keys: row.fence != 0,
        why: match abi::held_why::from(row.why) {
            abi::HELD_UNREAD => "Redis has not read it yet",
            abi::HELD_UNSENT => "the client does not read its replies",
            abi::HELD_UNANSWERED => {
                "Redis has read it and not answered: it runs, is blocked, or waits for the rest"
            }
            _ => "the connection is gone: proof is under way",
        }
        .to_owned(),
    };
    HeldReport {
        total: sweep.helds,
        clients: sweep.held.iter().map(line).collect(),
    }
}

/// The part of the cache report that the data path knows.
#[must_use]
pub fn cache(datapath: &Datapath) -> CacheReport {
    let sets = datapath.control().set_mask() + 1;
    let set_bytes = erb_datapath::SET_BYTES;
    CacheReport {
        bytes: sets * set_bytes,
        sets,
        set_bytes,
        entries_max: sets * u64::from(abi::WAYS),
        entries_estimate: datapath.entries_estimate(),
        class_bytes: vec![
            abi::CLASS0_BYTES,
            abi::CLASS1_BYTES,
            abi::CLASS2_BYTES,
            abi::CLASS3_BYTES,
        ],
        class_ways: vec![
            abi::CLASS0_WAYS,
            abi::CLASS1_WAYS,
            abi::CLASS2_WAYS,
            abi::CLASS3_WAYS,
        ],
        fills: datapath.control().fills() == 1,
        ..CacheReport::default()
    }
}

/// What is said of connections for which the table had no room; empty: there are none.
#[must_use]
pub fn unseen(found: UnseenConnections, table: u32, share: u32) -> Option<String> {
    let most = found.most?;
    let (count, address) = (found.count, most.address);
    let why = if most.seen >= share {
        format!("{address} has its share, {share} of the table's {table} places")
    } else {
        format!("the table has {table} places, and most of those without are of {address}")
    };
    Some(format!(
        "{count} connections are not seen: {why}. Redis alone answers them, and what they write shows \
         in answers to others up to {} ms late. `erb detach`, then boost with more --connections",
        abi::LEASE_MS
    ))
}

/// What the maps take.
#[must_use]
pub fn memory(cache: &CacheReport, connections_max: u32) -> MemoryReport {
    let connection_bytes = erb_datapath::CONN_BYTES;
    let connections_max = u64::from(connections_max);
    MemoryReport {
        connection_bytes,
        connections_max,
        connections_total_bytes: connection_bytes * connections_max,
        cache_entry_bytes_mean: cache.set_bytes / u64::from(abi::WAYS),
        cache_total_bytes: cache.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_of_hits() {
        let mut stats = vec![0; abi::STAT_MAX as usize];
        assert_eq!(hit_ratio(&stats), None);
        stats[abi::STAT_FAST_GET as usize] = 9;
        stats[abi::STAT_REFUSE_MISS as usize] = 1;
        assert_eq!(hit_ratio(&stats), Some(0.9));
    }

    #[test]
    fn who_is_not_seen_is_said_with_the_reason() {
        let of = |count, seen| {
            let most = erb_core::UnseenClient {
                address: [10, 77, 0, 9].into(),
                unseen: count,
                seen,
            };
            let most = Some(most).filter(|_| count > 0);
            unseen(UnseenConnections { count, most }, 100, 50)
        };
        assert_eq!(of(0, 0), None);
        let shared = of(3, 50).expect("a sentence");
        assert!(
            shared.starts_with("3 connections are not seen: 10.77.0.9 has its share, 50 of"),
            "{shared}"
        );
        let full = of(3, 20).expect("a sentence");
        assert!(full.contains("the table has 100 places"), "{full}");
    }

    #[test]
    fn who_holds_keys_for_long_is_named_with_the_reason() {
        let mut row = abi::held_row {
            ms: 1_500,
            why: abi::HELD_UNSENT as u8,
            fence: 1,
            ..Default::default()
        };
        row.key.client_addr[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
        row.key.client_port_be = 40_000_u16.to_be();
        let sweep = SweepReport {
            held: vec![row],
            helds: 3,
            ..SweepReport::default()
        };
        let report = held(&sweep);
        assert_eq!(report.total, 3);
        let line = HeldLine {
            client: "10.0.0.2:40000".to_owned(),
            held_ms: 1_500,
            all_keys: true,
            why: "the client does not read its replies".to_owned(),
        };
        assert_eq!(report.clients, [line]);
    }

    #[test]
    fn every_counter_is_described() {
        let stats: Vec<u64> = (0..u64::from(abi::STAT_MAX)).collect();
        let counters = counters(&stats);
        assert_eq!(counters.len(), abi::STAT_MAX as usize);
        assert_eq!(counters[abi::STAT_FAST_PING as usize].name, "FAST_PING");
        assert_eq!(
            counters[abi::STAT_FAST_PING as usize].count,
            u64::from(abi::STAT_FAST_PING)
        );
    }
}
