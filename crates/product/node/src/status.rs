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

/// What is counted, by name: each name beside what it counts.
macro_rules! counted {
    ($names:ident, $place:ident: $of:ty, $($name:ident: $what:pat $(if $is:expr)?,)+) => {
        const $names: &[&str] = &[$(stringify!($name)),+];

        /// The place of its name.
        fn $place(of: $of) -> usize {
            #[allow(non_camel_case_types, reason = "they are names as they are told")]
            enum Place {
                $($name),+
            }
            let place = match of {
                $($what $(if $is)? => Place::$name,)+
            };
            place as usize
        }
    };
}

counted! { REQUESTS, request: &Operation,
    write: Operation::Write { .. },
    batch: Operation::Batch(_),
    get: Operation::Get { .. },
    exist: Operation::Exist(_),
    list: Operation::List { .. },
    versions: Operation::Versions { .. },
    keys: Operation::Keys { .. },
    moment: Operation::Moment(_),
    dry_run: Operation::RollBack(row) if row.is_dry_run,
    roll_back: Operation::RollBack(_),
    snapshot: Operation::Snapshot(_),
    release: Operation::Release(_),
    log: Operation::Log(_),
    retention: Operation::Retention,
    set_retention: Operation::SetRetention(_),
    lock: Operation::Lock(_),
}

counted! { REFUSALS, refusal: Refused,
    absent: Refused::Absent,
    present: Refused::Present,
    mismatch: Refused::Mismatch(_),
    trimmed: Refused::Trimmed,
    no_such_version: Refused::NoSuchVersion,
    locked: Refused::Locked,
    future: Refused::Future,
    busy: Refused::Busy,
    full: Refused::Full(_),
    damaged: Refused::Damaged,
    invalid: Refused::Invalid,
    failed: Refused::Failed,
}

/// What was asked for and refused since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    requests: [u64; REQUESTS.len()],
    refused: [u64; REFUSALS.len()],
}

impl Counts {
    pub(crate) fn asked(&mut self, operation: &Operation) {
        self.requests[request(operation)] += 1;
    }

    pub(crate) fn refused(&mut self, why: Refused) {
        self.refused[refusal(why)] += 1;
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
        requests: named(REQUESTS, &store.counts.requests),
        refused: named(REFUSALS, &store.counts.refused),
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
