// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of the status report, out of what the data path and the last sweep say.

use erb_abi as abi;
use erb_datapath::{Attached, Datapath, SweepReport};
use erb_redis::drain::RefusedWrite;
use erb_redis::{
    AsideState, CommandCount, Condition, HoldingState, Reports, UnseenConnections, UsageState,
    WritesState,
};
use erb_report::{
    AsideReport, AttachMode, CacheReport, CommandLine, CommandsReport, ConditionReport,
    ConnectionsReport, Counter, Device, DeviceReport, HeldLine, HeldReport, JournalReport,
    LatencyBucket, LatencyReport, MemoryReport, ProcessorReport, Unread, VlanOffload,
    WaitingReport, WritesReport,
};

/// Counters of GETs that reached the cache look-up, or would have, and were not answered from it.
const MISSES: [abi::erb_stat; 4] = [
    abi::STAT_REFUSE_MISS,
    abi::STAT_REFUSE_ASIDE,
    abi::STAT_REFUSE_MARKED,
    abi::STAT_REFUSE_EXPIRED,
];

/// A boosted device; `gone`: what has its name now is another.
#[must_use]
pub fn device(attached: &Attached, vlan: erb_datapath::VlanOffload, gone: bool) -> DeviceReport {
    DeviceReport {
        device: Device {
            name: attached.device.name.clone(),
            ifindex: attached.device.ifindex,
        },
        mode: match attached.mode {
            erb_datapath::AttachMode::Native => AttachMode::Native,
            erb_datapath::AttachMode::Tc => AttachMode::Tc,
        },
        why_not_native: attached.why_not_native.clone(),
        vlan: match vlan {
            erb_datapath::VlanOffload::WasOff => VlanOffload::WasOff,
            erb_datapath::VlanOffload::SwitchedOff(flags) => VlanOffload::SwitchedOff(flags),
            erb_datapath::VlanOffload::Fixed => VlanOffload::Fixed,
        },
        gone,
    }
}

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

/// How long requests took, by their way.
#[must_use]
pub fn latency(found: &abi::latency) -> Vec<LatencyReport> {
    let of = |(path, declared): (usize, &abi::LatencyPath)| {
        let counts = found.counts[path].iter().enumerate();
        let buckets = counts.filter(|(_, count)| **count > 0);
        let report = LatencyReport {
            path: declared.name.to_owned(),
            text: declared.text.to_owned(),
            samples: found.samples(path as abi::latency_path),
            sum_ns: found.sum_ns[path],
            p50_ns: None,
            p99_ns: None,
            buckets: buckets
                .map(|(bucket, count)| LatencyBucket {
                    from_ns: abi::bucket_starts_ns(bucket),
                    below_ns: (bucket + 1 < abi::LATENCY_BUCKETS as usize)
                        .then(|| abi::bucket_starts_ns(bucket + 1)),
                    count: *count,
                })
                .collect(),
        };
        report.with_quantiles()
    };
    abi::LATENCIES.iter().enumerate().map(of).collect()
}

/// What each processor did; `of` counts of a counter by processor.
///
/// # Errors
/// What `of` says.
pub fn processors<E>(
    of: impl Fn(abi::erb_stat) -> Result<Vec<u64>, E>,
) -> Result<Vec<ProcessorReport>, E> {
    let sum = |stats: &[abi::erb_stat]| -> Result<Vec<u64>, E> {
        let mut all = Vec::new();
        for stat in stats {
            let counts = of(*stat)?;
            all.resize(all.len().max(counts.len()), 0);
            all.iter_mut()
                .zip(counts)
                .for_each(|(all, count)| *all += count);
        }
        Ok(all)
    };
    let answered = sum(&[abi::STAT_FAST_PACKET, abi::STAT_FAST_PACKET_TC])?;
    let up = sum(&[abi::STAT_UP_TRANSLATED])?;
    let down = sum(&[abi::STAT_EGRESS_TRANSLATED, abi::STAT_EGRESS_PLAIN])?;
    let each = answered.into_iter().zip(up).zip(down).zip(0..);
    let each = each.map(|(((answered, up), down), cpu)| ProcessorReport {
        cpu,
        answered,
        up,
        down,
    });
    Ok(each
        .filter(|one| one.answered + one.up + one.down > 0)
        .collect())
}

/// Reads that were answered from the cache, and those that were not.
#[must_use]
pub fn hits_and_misses(stats: &[u64]) -> (u64, u64) {
    let of = |stat: abi::erb_stat| stats.get(stat as usize).copied().unwrap_or(0);
    let hits: u64 = abi::FAST_COMMANDS
        .iter()
        .filter(|command| command.kind != abi::FAST_KIND_PING)
        .map(|command| of(command.stat))
        .sum();
    (hits, MISSES.iter().map(|stat| of(*stat)).sum())
}

/// Hits among the look-ups.
#[must_use]
pub fn hit_ratio(cache: &CacheReport) -> Option<f64> {
    let all = cache.hits + cache.misses;
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    (all > 0).then(|| cache.hits as f64 / all as f64)
}

/// Commands by name, as this daemon has counted them; none: it has not begun to.
#[must_use]
pub fn commands(state: &UsageState, now_ns: u64) -> Option<CommandsReport> {
    let since_ns = now_ns.saturating_sub(state.since_ns?);
    let row = |of: &CommandCount| CommandLine {
        command: of.name.to_owned(),
        answered: of.answered,
        to_redis: Some(of.to_redis),
    };
    Some(CommandsReport {
        since_s: Some(since_ns / 1_000_000_000),
        rows: state.commands.iter().map(row).collect(),
        overhead_ns: state.overhead_ns,
        cpu_saved_ms: state.saved_ns / 1_000_000,
    })
}

/// What the data path knows of it by itself.
#[must_use]
pub fn commands_answered(stats: &[u64]) -> CommandsReport {
    let fast = abi::FAST_COMMANDS.iter().map(|of| (of.name, of.stat));
    let row = |(name, stat): (&str, abi::erb_stat)| CommandLine {
        command: name.to_owned(),
        answered: stats.get(stat as usize).copied().unwrap_or(0),
        to_redis: None,
    };
    let rows = fast.chain([("set", abi::STAT_ABSORBED)]).map(row);
    CommandsReport {
        rows: rows.filter(|row| row.answered > 0).collect(),
        ..CommandsReport::default()
    }
}

/// What is left out, but for whose requests pass unread.
#[must_use]
pub fn aside(state: &AsideState, reports: Reports, now_ns: u64) -> AsideReport {
    let [to_0, to_1, to_2, to_3] = state.entered;
    AsideReport {
        level: state.level,
        why: state.why.to_owned(),
        // 0: nothing was entered yet.
        since_s: match state.since_ns {
            0 => 0,
            since_ns => now_ns.saturating_sub(since_ns) / 1_000_000_000,
        },
        sample_hit_ratio: state.sample_hit_ratio,
        to_0,
        to_1,
        to_2,
        to_3,
        tries: state.tries,
        reports_of_read: reports == Reports::OfRead,
        unread: Unread::None,
    }
}

/// Whose requests pass unread, by the word that the programs read.
#[must_use]
pub const fn unread(stopping: u32) -> Unread {
    match stopping {
        abi::STOPPING_UNREAD => Unread::Untranslated,
        abi::STOPPING_ALL_UNREAD => Unread::All,
        _ => Unread::None,
    }
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

/// What a dead daemon has left in the table, as far as entries tell by themselves.
#[must_use]
pub fn connections_left(views: &[abi::ConnView]) -> ConnectionsReport {
    let count = |is_such: &dyn Fn(&abi::ConnView) -> bool| {
        let count = views.iter().filter(|view| is_such(view)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    let of = |state: abi::erb_conn_state| count(&|view| u32::from(view.state) == state);
    ConnectionsReport {
        total: count(&|_| true),
        new: of(abi::CONN_NEW),
        fast: of(abi::CONN_FAST),
        bypass: of(abi::CONN_BYPASS),
        old: of(abi::CONN_OLD),
        closing: count(&|view| u32::from(view.flags) & abi::CONN_F_CLOSING != 0),
        translated: count(&|view| view.in_delta != 0 || view.out_delta != 0),
        unacked: 0,
        unseen: 0,
    }
}

/// What waits, at this time.
#[must_use]
pub const fn waiting(state: HoldingState, now: u64) -> WaitingReport {
    let since_ns = match state.since_ns {
        Some(since_ns) => since_ns,
        None => now,
    };
    WaitingReport {
        connections: state.connections,
        packets: state.packets,
        bytes: state.bytes,
        longest_ms: now.saturating_sub(since_ns) / 1_000_000,
        ended: state.ended,
        left_out: state.left_out,
    }
}

/// What is answered in Redis's place, and what became of it.
#[must_use]
pub fn writes(state: Option<WritesState>) -> WritesReport {
    let Some(state) = state else {
        return WritesReport::default();
    };
    let condition = |of: &Condition| {
        let against = state.against.iter().filter(|one| one.condition == *of);
        let why: Vec<&str> = against.map(|one| &one.text[..]).collect();
        ConditionReport {
            condition: of.name().to_owned(),
            met: why.is_empty(),
            means: of.means().to_owned(),
            why: why.join("; "),
        }
    };
    let refused = |write: &RefusedWrite| {
        let key = String::from_utf8_lossy(&write.key);
        format!("key {key:?} of database {}: {}", write.db, write.why)
    };
    WritesReport {
        open: state.is_open,
        opened: state.opened,
        conditions: Condition::ALL.iter().map(condition).collect(),
        waiting: state.backlog.records,
        waiting_ms: state.backlog.age_ns / 1_000_000,
        ring_bytes: state.backlog.ring_bytes,
        drained: state.drained.records,
        drained_keys: state.drained.keys,
        batches: state.drained.batches,
        refused_batches: state.drained.refused,
        refused_writes: state.drained.refused_writes,
        refused: state.refused.iter().map(refused).collect(),
        journal: JournalReport {
            keeps: "none".to_owned(),
            ..JournalReport::default()
        },
    }
}

/// From the last sweep.
#[must_use]
pub fn held(sweep: &SweepReport) -> HeldReport {
    let line = |row: &abi::held_row| HeldLine {
        client: erb_redis::addresses(&row.key).0.to_string(),
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
pub fn cache(datapath: &Datapath, stats: &[u64]) -> CacheReport {
    let (hits, misses) = hits_and_misses(stats);
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
        hits,
        misses,
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
        let ratio = |stats: &[u64]| {
            let (hits, misses) = hits_and_misses(stats);
            hit_ratio(&CacheReport {
                hits,
                misses,
                ..CacheReport::default()
            })
        };
        assert_eq!(ratio(&stats), None);
        stats[abi::STAT_FAST_GET as usize] = 9;
        stats[abi::STAT_REFUSE_MISS as usize] = 1;
        assert_eq!(ratio(&stats), Some(0.9));
    }

    #[test]
    fn who_is_not_seen_is_said_with_the_reason() {
        let of = |count, seen| {
            let most = erb_redis::UnseenClient {
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
    fn what_a_dead_daemon_left_is_counted_by_its_entries() {
        let view = |state: abi::erb_conn_state, flags, in_delta| abi::ConnView {
            key: abi::conn_key::default(),
            cookie: 1,
            state: state as u8,
            flags,
            in_delta,
            out_delta: 0,
            requests: 0,
            replies: 0,
            kept: 0,
            rights: 0,
            resp: 2,
            slow: 0,
        };
        let views = [
            view(abi::CONN_FAST, 0, 7),
            view(abi::CONN_FAST, abi::CONN_F_CLOSING as u8, 0),
            view(abi::CONN_OLD, 0, 0),
        ];
        let found = connections_left(&views);
        assert_eq!(
            (found.total, found.fast, found.old, found.new),
            (3, 2, 1, 0)
        );
        assert_eq!((found.closing, found.translated), (1, 1));
    }

    #[test]
    fn commands_are_told_as_counted_and_without_a_daemon_as_answered() {
        let state = UsageState {
            since_ns: Some(2_000_000_000),
            commands: vec![CommandCount {
                name: "get",
                answered: 3,
                to_redis: 4,
            }],
            overhead_ns: Some(5),
            saved_ns: 6_999_999,
        };
        let report = commands(&state, 5_500_000_000).expect("it has begun");
        assert_eq!((report.since_s, report.cpu_saved_ms), (Some(3), 6));
        assert_eq!(report.rows[0].to_redis, Some(4));
        assert_eq!(commands(&UsageState::default(), 5), None);
        let mut stats = vec![0; abi::STAT_MAX as usize];
        stats[abi::STAT_FAST_HGET as usize] = 7;
        stats[abi::STAT_ABSORBED as usize] = 8;
        let left = commands_answered(&stats);
        let rows = left.rows.iter();
        let rows: Vec<_> = rows
            .map(|row| (&row.command[..], row.answered, row.to_redis))
            .collect();
        assert_eq!(rows, [("hget", 7, None), ("set", 8, None)]);
        assert_eq!(left.since_s, None);
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
