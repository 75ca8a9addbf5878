// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What those who watch a node are told. They ask from another thread; the loop answers between two turns.
//!
//! Invariants:
//! 1. The loop never waits for who asks: an answer that nobody takes is dropped.
//! 2. Of those who wait at most [`ASKING_MAX`] are answered; others are told at once that they are too many.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use erb_nvme::backend::{Backend, Operation, Refused};
use erb_report::{NodeCache, NodeHistory, NodeSpace, NodeStatus};
use erb_store::Version;
use erb_store::space::Space;

use crate::backend::Store;
use crate::wake::Wake;
use crate::words;

/// Who waits for an answer at one time.
const ASKING_MAX: usize = 8;

/// Requests as they are counted.
const REQUESTS: [&str; 16] = [
    "write",
    "batch",
    "get",
    "exist",
    "list",
    "versions",
    "keys",
    "moment",
    "roll_back",
    "dry_run",
    "snapshot",
    "release",
    "log",
    "retention",
    "set_retention",
    "lock",
];

/// Refusals as they are counted.
const REFUSALS: [&str; 12] = [
    "absent",
    "present",
    "mismatch",
    "trimmed",
    "no_such_version",
    "locked",
    "future",
    "busy",
    "full",
    "damaged",
    "invalid",
    "failed",
];

/// What was asked for and refused since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    requests: [u64; REQUESTS.len()],
    refused: [u64; REFUSALS.len()],
}

impl Counts {
    pub(crate) fn asked(&mut self, operation: &Operation) {
        let place = match operation {
            Operation::Write { .. } => 0,
            Operation::Batch(_) => 1,
            Operation::Get { .. } => 2,
            Operation::Exist(_) => 3,
            Operation::List { .. } => 4,
            Operation::Versions { .. } => 5,
            Operation::Keys { .. } => 6,
            Operation::Moment(_) => 7,
            Operation::RollBack(row) if row.is_dry_run => 9,
            Operation::RollBack(_) => 8,
            Operation::Snapshot(_) => 10,
            Operation::Release(_) => 11,
            Operation::Log(_) => 12,
            Operation::Retention => 13,
            Operation::SetRetention(_) => 14,
            Operation::Lock(_) => 15,
        };
        self.requests[place] += 1;
    }

    pub(crate) fn refused(&mut self, why: Refused) {
        let place = match why {
            Refused::Absent => 0,
            Refused::Present => 1,
            Refused::Mismatch(_) => 2,
            Refused::Trimmed => 3,
            Refused::NoSuchVersion => 4,
            Refused::Locked => 5,
            Refused::Future => 6,
            Refused::Busy => 7,
            Refused::Full => 8,
            Refused::Damaged => 9,
            Refused::Invalid => 10,
            Refused::Failed => 11,
        };
        self.refused[place] += 1;
    }
}

fn named(names: &[&str], counts: &[u64]) -> BTreeMap<String, u64> {
    let named = names.iter().zip(counts);
    named
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect()
}

fn level(space: Space) -> &'static str {
    match space {
        Space::Plenty => "plenty",
        Space::Low => "low",
        Space::Short => "short",
        Space::Full => "full",
        Space::Reserve => "reserve",
        Space::Last => "last",
    }
}

/// How the store is; what the loop alone knows is left as it is.
pub(crate) fn of_store(store: &Store) -> NodeStatus {
    let (health, opened) = (store.health(), &store.engine.store);
    let (control, state) = (&opened.control, opened.control.state());
    let kept = words::kept(control);
    let now_us = store.engine.now_us();
    let floor = Some(Version::new(health.floor)).filter(|floor| *floor > Version::ZERO);
    let ms = |us: u64| us / 1_000;
    NodeStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        keys: health.keys,
        index_bytes: opened
            .shards
            .iter()
            .map(|shard| shard.versions().memory_bytes() as u64)
            .sum(),
        space: NodeSpace {
            size_bytes: health.size_bytes,
            used_bytes: health.used_bytes,
            level: level(opened.shared.space()).to_owned(),
            is_full: health.is_full,
        },
        history: NodeHistory {
            whole_ms: floor.map(|floor| ms(now_us.saturating_sub(floor.micros()))),
            min_age_ms: ms(kept.retention.min_age_us),
            keep_deleted_ms: ms(kept.retention.keep_deleted_us),
            min_count: kept.retention.min_count.into(),
            locked_ms: ms(kept.locked_us),
            roll_backs: state.rows.len() as u64,
            snapshots: state.retention.snapshots().count() as u64,
        },
        cache: NodeCache {
            bytes: health.cached_bytes,
            hits: health.cache_hits,
            misses: health.cache_misses,
        },
        damaged: health.damaged,
        is_read_only: health.is_read_only,
        requests: named(&REQUESTS, &store.counts.requests),
        refused: named(&REFUSALS, &store.counts.refused),
        ..NodeStatus::default()
    }
}

/// Asks a node that runs, from any thread.
#[derive(Clone)]
pub struct Asking {
    ask: SyncSender<SyncSender<NodeStatus>>,
    wake: Wake,
}

/// The loop's end of it.
pub(crate) type Asked = Receiver<SyncSender<NodeStatus>>;

impl Asking {
    pub(crate) fn new(wake: Wake) -> (Self, Asked) {
        let (ask, asked) = sync_channel(ASKING_MAX);
        (Self { ask, wake }, asked)
    }

    /// How the node is; nothing if it does not say so in time, or has ended.
    #[must_use]
    pub fn status(&self, patience: Duration) -> Option<NodeStatus> {
        let (tell, told) = sync_channel(1);
        self.ask.try_send(tell).ok()?;
        self.wake.wake();
        told.recv_timeout(patience).ok()
    }
}
