// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shard: its keys, its log, its checkpoints, and its side of what concerns all shards.
//!
//! The driver passes [messages](Shard::message) to and fro, takes [writes](Shard::take_write), and says how each
//! [ended](Shard::written). One thread owns a shard; it shares the clock and the watermark.
//!
//! Invariants:
//! 1. A change goes into the log, then into the index, at once. It may be answered once the watermark has passed its
//!    version.
//! 2. Readers see what is at or below the watermark, or at or below a cut that was it. So they never wait, and see
//!    nothing that a crash takes back.
//! 3. From a freeze to its release nothing in its scope is accepted. Reads go on.
//! 4. What the shard itself has to log (parts, *done*, trims) comes before any other change.
//! 5. A slice of a checkpoint is taken only while no batch is open. A checkpoint begins only while no part waits for
//!    its commit.
//! 6. What collects segments stands in `collect.rs` and `spare.rs`, who writes while space is short in `pacing.rs`, what reads values
//!    in `reading.rs`.
//! 7. How far counts back are good rests on what is durable: a crash that takes versions back would leave a gap nearer
//!    to the head, and a roll back that is durable would leave such a key alone.
//! 8. A delete of what is not there makes no version: there is nothing that it could bring back, and a writer that
//!    deletes without end would take memory and space of all others.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cache::{Cache, CacheCounts, Cached};
use crate::checkpoint::CheckpointWriter;
use crate::collect::{Collector, Moving};
use crate::history::Held;
use crate::key::Key;
use crate::layout::Layout;
use crate::log::{Log, NotAdded, Start, WriteOf};
use crate::message::{Scope, ToControl, What};
use crate::mistake::{Mistake, Rules, Sound};
use crate::pacing::Pacing;
use crate::place::{Origin, Place};
use crate::record::{Change, Kind, record_bytes};
use crate::roll_backs::Counting;
use crate::scan::Logged;
use crate::scrub::{Rot, Scrub};
use crate::space::Space;
use crate::sweep::Trim;
use crate::version::Version;
use crate::versions::{Condition, Versions};
use crate::view::{Refused, Selector};
use crate::watermark::Shared;

/// Bytes of a record in memory of replay.
const RECORD_COST_BYTES: usize = 64;

const MILLISECOND_US: u64 = 1000;

/// What a write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// A version was made. It may be answered once the watermark has passed it.
    Version(Version),
    /// A delete found nothing. It may be answered once the watermark has passed what it saw.
    Absent(Version),
}

/// Why a write was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotWritten {
    /// It is refused, which may be said once the watermark has passed this version.
    #[error("{0}")]
    Refused(Refused, Version),
    /// A roll back or a batch holds the key: repeat it when that is over.
    #[error("the key is held for a moment: repeat it")]
    Frozen,
    /// Writes are under way, a segment or the ceiling is to come, or collecting makes room: repeat it.
    #[error("writes are under way: repeat it")]
    Busy,
    /// A write to the store has failed.
    #[error("a write to the store has failed: open it again")]
    Failed,
}

/// What a write of a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardWriteOf {
    /// A batch or a directory.
    Log(WriteOf),
    /// A chunk of a checkpoint.
    Chunk(u32),
}

/// A write that the driver shall do: direct, and durable when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardWrite {
    /// What it is.
    pub of: ShardWriteOf,
    /// Byte of the store.
    pub address: u64,
    /// Multiples of 4,096.
    pub bytes: Vec<u8>,
}

/// Who writes, and until when it is good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// See [`RecordHead::writer`](crate::record::RecordHead::writer).
    pub writer: u32,
    /// Milliseconds since 1970; 0: none.
    pub expiry_ms: u64,
    /// The reserve is for this writer.
    pub may_use_reserve: bool,
}

#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) scope: Scope,
    /// By part of a batch: what it will be.
    pub(crate) prepared: Vec<Prepared>,
    /// Parts that are in the log, not in the index.
    pub(crate) logged: Vec<(usize, Held)>,
    /// Parts are to be logged.
    pub(crate) logs_parts: bool,
    /// Batches below it must be durable before the parts are; none: not all are in the log.
    pub(crate) parts_lsn: Option<u64>,
    pub(crate) are_parts_reported: bool,
    /// It is being counted what the roll back changes, which is answered then.
    pub(crate) counting: Option<Counting>,
    /// So much that is; none: it was not counted.
    pub(crate) changes: Option<usize>,
}

impl Frozen {
    fn holds(&self, key: Key<'_>) -> bool {
        match &self.scope {
            Scope::RollBack(row) => {
                row.namespace == key.namespace && key.bytes.starts_with(&row.prefix)
            }
            Scope::Batch(parts) => parts
                .iter()
                .any(|part| part.namespace == key.namespace && part.key == key.bytes),
        }
    }
}

/// What the shard itself has to log.
#[derive(Debug)]
pub(crate) enum Queued {
    /// A part of the frozen batch, with the batch's version.
    Part(usize, Version),
    Done(Version),
    Trim(Trim),
    Move(Box<Moving>),
}

/// A shard.
#[derive(Debug)]
pub struct Shard<R = Sound> {
    pub(crate) number: u16,
    pub(crate) store_id: u64,
    pub(crate) layout: Layout,
    pub(crate) shared: Arc<Shared>,
    pub(crate) versions: Versions<R>,
    pub(crate) log: Log<R>,
    pub(crate) has_asked_segment: bool,
    pub(crate) has_urged: bool,
    /// Batches that are not durable and have versions: the lowest of each.
    pub(crate) outstanding: VecDeque<(u64, Version)>,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) frozen: Option<Frozen>,
    /// Batches with a *done* that is not durable.
    pub(crate) dones: VecDeque<(u64, Version)>,
    pub(crate) checkpoint: Option<CheckpointWriter<R>>,
    pub(crate) begins_checkpoint: Option<u64>,
    /// Bytes of records since the last checkpoint began.
    pub(crate) since_checkpoint: usize,
    pub(crate) has_asked_checkpoint: bool,
    pub(crate) collector: Collector,
    pub(crate) pacing: Pacing,
    /// Batches below it must be durable, then counts back are good as far as a sweep has found.
    pub(crate) counting: Option<(u64, u32)>,
    pub(crate) scrub: Scrub,
    pub(crate) cache: Cache<R>,
    pub(crate) outbox: VecDeque<ToControl>,
    /// It takes nothing more, and its log ends.
    pub(crate) is_ending: bool,
    pub(crate) rules: R,
}

/// What recovery has found of a shard.
#[derive(Debug)]
pub struct Found<R> {
    /// Its keys.
    pub versions: Versions<R>,
    /// Where its log goes on.
    pub start: Start,
    /// Batches that it is to say *done* of.
    pub owed: Vec<Version>,
    /// Batches of which its log says so, and the control log does not know it.
    pub done: Vec<Version>,
    /// Segments of its log.
    pub logged: Vec<Logged>,
    /// The number of its last checkpoint; 0: it has none.
    pub last_checkpoint: u64,
    /// What of it is damaged.
    pub rot: Vec<Rot>,
}

impl<R: Rules + Copy> Shard<R> {
    /// With what recovery has found.
    #[must_use]
    pub fn new(shared: Arc<Shared>, layout: Layout, found: Found<R>, rules: R) -> Self {
        let start = found.start;
        let mut versions = found.versions;
        let numbers = found.logged.iter().map(|it| it.segment.number);
        let unneeded: Vec<u32> = numbers
            .filter(|number| versions.needed(*number).records == 0)
            .collect();
        versions.usage.unneeded().extend(unneeded);
        Self {
            number: start.shard,
            store_id: start.store_id,
            layout,
            shared,
            versions,
            log: Log::new(start, rules),
            has_asked_segment: false,
            has_urged: false,
            outstanding: VecDeque::new(),
            queue: found.owed.into_iter().map(Queued::Done).collect(),
            collector: Collector::new(found.logged, found.last_checkpoint),
            pacing: Pacing::default(),
            counting: None,
            scrub: Scrub::new(found.rot),
            cache: Cache::new(rules),
            frozen: None,
            dones: VecDeque::new(),
            checkpoint: None,
            begins_checkpoint: None,
            since_checkpoint: 0,
            has_asked_checkpoint: false,
            outbox: found.done.into_iter().map(ToControl::Done).collect(),
            is_ending: false,
            rules,
        }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its keys: to look at.
    #[must_use]
    pub fn versions(&self) -> &Versions<R> {
        &self.versions
    }

    /// Bytes that checkpoints take in memory.
    #[must_use]
    pub fn checkpoint_bytes(&self) -> usize {
        self.checkpoint.as_ref().map_or(0, CheckpointWriter::bytes)
    }

    /// Keeps values of so many bytes in memory, costs included; 0: none.
    pub fn set_value_cache(&mut self, budget_bytes: usize) {
        self.cache.set_budget(budget_bytes);
    }

    /// What the cache of values has done.
    #[must_use]
    pub fn value_cache(&self) -> CacheCounts {
        self.cache.counts()
    }

    /// It counts what a roll back changes: it goes on each time that it is asked for anything.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        let frozen = self.frozen.as_ref();
        frozen.is_some_and(|frozen| frozen.counting.is_some())
    }

    /// A write has failed: nothing more is acknowledged.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.log.has_failed()
    }

    /// Reads a key at a cut, which is the watermark or was it.
    ///
    /// # Errors
    /// As [`Versions::read`]; [`Refused::Starting`].
    pub fn read(
        &mut self,
        key: Key<'_>,
        selector: Selector,
        cut: Version,
    ) -> Result<Option<Held>, Refused> {
        if !self.shared.is_open() {
            return Err(Refused::Starting);
        }
        self.versions.read(key, selector, cut)
    }

    /// All keys, as they are: for listings, and for tests.
    pub fn versions_mut(&mut self) -> &mut Versions<R> {
        &mut self.versions
    }

    /// Changes a key, if the condition is met.
    ///
    /// # Errors
    /// Nothing was changed.
    pub fn write(
        &mut self,
        key: Key<'_>,
        what: What<'_>,
        condition: Condition,
        writer: Writer,
        now_us: u64,
    ) -> Result<Written, NotWritten> {
        if self.log.has_failed() {
            return Err(NotWritten::Failed);
        }
        if !self.shared.is_open() || !self.queue.is_empty() || self.is_ending {
            return Err(NotWritten::Busy);
        }
        self.check_space(writer.may_use_reserve)?;
        let is_held = self.frozen.as_ref().is_some_and(|it| it.holds(key));
        if is_held && !self.rules.makes(Mistake::FreezeIgnored) {
            return Err(NotWritten::Frozen);
        }
        self.note_time(now_us);
        let prepared = self.prepare(key, what, condition);
        let prepared = prepared.map_err(|(refused, seen)| NotWritten::Refused(refused, seen))?;
        let (kind, place, source) = match prepared {
            Prepared::Change(kind, place, source) => (kind, place, source),
            Prepared::Nothing(seen) => return Ok(Written::Absent(seen)),
        };
        self.shared.hold(usize::from(self.number));
        let version = self.shared.clock().next(now_us);
        let written = version.map_err(|_| NotWritten::Busy).and_then(|version| {
            let value = value_of(what);
            let change = Change {
                kind,
                is_part: false,
                version,
                source: source.unwrap_or(version),
                writer: writer.writer,
                expiry_ms: expiry_of(kind, writer.expiry_ms),
                key,
                value,
            };
            let held = self.log_change(&change, place)?;
            let applied = self.versions.apply_expiring(key, held, change.expiry_ms);
            assert!(applied.is_ok(), "what was prepared can be applied");
            Ok(Written::Version(version))
        });
        self.publish();
        written
    }

    /// What a change will be, and what it was decided by.
    pub(crate) fn prepare(
        &mut self,
        key: Key<'_>,
        what: What<'_>,
        condition: Condition,
    ) -> Result<Prepared, (Refused, Version)> {
        let head = self.versions.read(key, Selector::Head, Version::MAX);
        let seen = head.ok().flatten().map_or(Version::ZERO, |it| it.version);
        let refused = |refused| (refused, seen);
        let head = self.versions.prepare(key, condition).map_err(refused)?;
        let is_absent = self.versions.is_absent(head);
        let is_over = head.is_some_and(|it| !it.place.is_deleted()) && is_absent;
        match what {
            What::Expire if !is_over => Ok(Prepared::Nothing(seen)),
            What::Put(_) => Ok(Prepared::Change(Kind::Put, None, None)),
            What::Delete if is_absent => Ok(Prepared::Nothing(seen)),
            What::Delete | What::Expire => Ok(Prepared::Change(Kind::Delete, None, None)),
            What::Restore(from) => {
                let (place, from) = self.versions.restorable(key, from).map_err(refused)?;
                Ok(Prepared::Change(Kind::Restore, Some(place), Some(from)))
            }
        }
    }

    /// Adds a change to the log: the version that it makes.
    pub(crate) fn log_change(
        &mut self,
        change: &Change<'_>,
        place: Option<Place>,
    ) -> Result<Held, NotWritten> {
        let (address, lsn) = self.add(change)?;
        let bytes = record_bytes(change.key.bytes.len(), change.value.len());
        self.pacing.wrote(bytes);
        let is_delete = change.kind == Kind::Delete;
        if change.kind == Kind::Put {
            let content = Cached {
                version: change.version,
                writer: change.writer,
                expiry_ms: change.expiry_ms,
                value: change.value,
            };
            self.cache.insert(self.seat(address), content);
        }
        let place = place.map_or_else(
            || Place::written(address, bytes as u64, is_delete),
            |place| place.again(Origin::Restored),
        );
        let version = change.version;
        if self.outstanding.back().is_none_or(|(last, _)| *last < lsn) {
            self.outstanding.push_back((lsn, version));
        }
        Ok(Held { version, place })
    }

    pub(crate) fn add(&mut self, change: &Change<'_>) -> Result<(u64, u64), NotWritten> {
        let added = self.log.add(change).map_err(|error| match error {
            NotAdded::Busy | NotAdded::NeedsSegment => NotWritten::Busy,
            NotAdded::Failed => NotWritten::Failed,
        })?;
        self.since_checkpoint += RECORD_COST_BYTES;
        Ok(added)
    }

    /// Publishes up to where everything of the shard is durable.
    pub(crate) fn publish(&mut self) {
        let lowest = self.outstanding.front().map(|(_, version)| *version);
        let is_alone = self.rules.makes(Mistake::WatermarkPerShard);
        let up_to = lowest.map(Version::before).filter(|_| !is_alone);
        self.shared.publish(usize::from(self.number), up_to);
    }

    /// The node stops: nothing more is taken, and all ends of the log will be recorded. It is to be called again
    /// until it [has ended](Shard::has_ended).
    pub fn end_log(&mut self) {
        self.is_ending = true;
        let is_under_way = !self.queue.is_empty() || self.log.has_open();
        if is_under_way || self.log.is_ending() || self.rules.makes(Mistake::StopUnrecorded) {
            return;
        }
        if let Some(unused) = self.log.end() {
            self.collector.segments.remove(&unused.number);
            self.outbox.push_back(ToControl::Left(unused.number));
        }
    }

    /// Its log has ended, and the control log is told where.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // What has come into the queue since then is the next start's.
        let has_ended = self.log.has_ended() || self.rules.makes(Mistake::StopUnrecorded);
        has_ended && self.outbox.is_empty()
    }

    /// Trims never wait for space: what is queued holds checkpoints up, and those alone free any. So the next segment is
    /// at hand, or of the last space, where logs are given no next one, any.
    pub(crate) fn has_place_for_trims(&self) -> bool {
        match self.shared.space() {
            Space::Last => self.log.segment_begin().is_some(),
            _ => !self.log.wants_segment(),
        }
    }

    /// Of the last space trims take nothing while something can be free without them. It is so once it is durably: a kill
    /// before that ends the segment that they have begun, and brings nothing for it.
    fn may_trim(&self) -> bool {
        let is_hasty = self.rules.makes(Mistake::TrimsBeforeFreed);
        let has_dead = self.collector.has_dead() && !is_hasty;
        let can_free = self.checkpoint.is_some() || has_dead;
        let is_last = self.shared.space() == Space::Last;
        let is_held = !self.has_place_for_trims() || is_last && can_free;
        !is_held || self.rules.makes(Mistake::CheckpointsStarved)
    }

    /// Sweeps a part of the keys: trims what nothing holds. `below` is the lowest of the watermark and all cuts in
    /// flight. False: not now.
    pub fn sweep(&mut self, below: Version) -> bool {
        let is_free = self.queue.is_empty() && self.frozen.is_none();
        if !is_free || self.log.has_failed() || !self.shared.is_open() || self.is_ending {
            return false;
        }
        if !self.may_trim() {
            return false;
        }
        self.note_time(0);
        let below = below.min(self.shared.watermark());
        let floor = self.versions.retention().floor().min(below);
        let swept = self.versions.sweep(below);
        self.pacing.swept(floor, swept.done.is_some());
        let counted = swept.counted.map(|it| (self.log.next_lsn(), it));
        self.counting = counted.or(self.counting);
        self.queue.extend(swept.trims.into_iter().map(Queued::Trim));
        self.log_queue();
        self.count_back();
        for (namespace, bytes) in swept.expired {
            let key = Key {
                namespace,
                bytes: &bytes,
            };
            // What is refused now is met again by the next sweep.
            let writer = Writer::default();
            let now_us = self.shared.clock().last().micros();
            let written = self.write(key, What::Expire, Condition::Any, writer, now_us);
            if written.is_err() {
                break;
            }
        }
        true
    }

    /// Counts back are good as far as the last sweep has found, once that is durable.
    pub(crate) fn count_back(&mut self) {
        let durable_lsn = self.log.durable_lsn();
        let is_hasty = self.rules.makes(Mistake::CountNotDurable);
        let is_durable = |(lsn, _): &mut (u64, u32)| *lsn <= durable_lsn || is_hasty;
        if let Some((_, counted)) = self.counting.take_if(is_durable) {
            self.versions.retention_mut().set_counted(counted);
        }
    }

    /// Values are over by the version clock, which does not go back.
    pub(crate) fn note_time(&mut self, now_us: u64) {
        let now_us = now_us.max(self.shared.clock().last().micros());
        self.versions.set_now(now_us / MILLISECOND_US);
    }
}

/// Only what is put expires.
pub(crate) fn expiry_of(kind: Kind, expiry_ms: u64) -> u64 {
    if kind == Kind::Put { expiry_ms } else { 0 }
}

pub(crate) fn value_of(what: What<'_>) -> &[u8] {
    match what {
        What::Put(value) => value,
        What::Delete | What::Expire | What::Restore(_) => &[],
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Prepared {
    /// Kind, and of a restore the place and the version that it takes.
    Change(Kind, Option<Place>, Option<Version>),
    /// Nothing is to be done; what was seen.
    Nothing(Version),
}
