// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a shard does beside reads and writes: messages, its own records, checkpoints. Its invariants stand in
//! `shard.rs`.

use crate::checkpoint::{CheckpointWriter, Of};
use crate::entry::Entry;
use crate::history::Held;
use crate::key::Key;
use crate::log::WriteOf;
use crate::message::{PartWhat, Scope, ToControl, ToShard};
use crate::mistake::{Mistake, Rules};
use crate::record::{Change, Kind, encode_trimmed};
use crate::shard::{
    Frozen, NotWritten, Prepared, Queued, Shard, ShardWrite, ShardWriteOf, expiry_of, value_of,
};
use crate::space::Space;
use crate::version::Version;
use crate::view::Refused;

/// A checkpoint is due when replay of what is behind the last one costs this part of reading the index.
const CHECKPOINT_SHARE: usize = 2;
/// But not before it costs so many bytes.
const CHECKPOINT_BYTES_MIN: usize = 8 << 20;
/// Slices at a time while space is low: each of 512 keys or so.
const SLICES_LOW: usize = 3;

impl<R: Rules + Copy> Shard<R> {
    /// A message from the control log.
    pub fn message(&mut self, message: ToShard) {
        match message {
            ToShard::LogSegment(segment) if self.log.is_ending() => {
                self.outbox.push_back(ToControl::Left(segment.number));
            }
            ToShard::LogSegment(segment) => {
                (self.has_asked_segment, self.has_urged) = (false, false);
                self.collector.add(segment);
                self.log.give_segment(segment);
            }
            ToShard::CheckpointSegment(segment) => {
                if let Some(checkpoint) = &mut self.checkpoint {
                    checkpoint.give_segment(segment);
                }
            }
            ToShard::Freeze(scope) => self.freeze(scope),
            ToShard::RollBack(row) => {
                match self.frozen.as_ref().and_then(|it| it.changes) {
                    Some(changes) => self.versions.roll_back_counted(row, changes),
                    None => self.versions.roll_back(row),
                }
                self.outbox.push_back(ToControl::Taken);
            }
            ToShard::LogParts(version) => self.queue_parts(version),
            ToShard::Commit(version) => self.commit(version),
            ToShard::Release => self.frozen = None,
            ToShard::Retain(entry) => self.retain(&entry),
            ToShard::BeginCheckpoint(number) => self.begins_checkpoint = Some(number),
            ToShard::ForgetRows(up_to) => self.versions.forget_rows(up_to),
            ToShard::Leave(number) => self.leave(number),
            ToShard::Freed(number) => self.collector.freed(number),
            ToShard::Grown(layout) => {
                self.layout = layout;
                self.versions.usage.grow(layout);
            }
        }
        self.turn();
    }

    /// What it has to tell the control log next.
    pub fn take_message(&mut self) -> Option<ToControl> {
        self.turn();
        self.outbox.pop_front()
    }

    fn freeze(&mut self, scope: Scope) {
        self.note_time(0);
        let (mut verdict, mut prepared, mut counting) = (Ok(()), Vec::new(), None);
        match &scope {
            Scope::RollBack(row) => match self.versions.prepare_roll_back(row) {
                Err(Refused::Full) if !self.rules.makes(Mistake::RoomOfNamespace) => {
                    counting = Some(self.versions.begin_count());
                }
                checked => verdict = checked.map_err(|refused| (refused, Version::ZERO)),
            },
            Scope::Batch(parts) => {
                let wanted = parts.iter().map(|part| part.may_use_reserve);
                let refused = self.refused_for_space(wanted.min().unwrap_or(true));
                if let Some(refused) = refused {
                    verdict = Err((refused, Version::ZERO));
                }
                for part in parts {
                    let key = Key {
                        namespace: part.namespace,
                        bytes: &part.key,
                    };
                    match self.prepare(key, part.what.borrowed(), part.condition) {
                        Ok(change) => prepared.push(change),
                        Err((refused, seen)) => {
                            // Every head that was looked at has to be visible before this is said.
                            let before = verdict.map_or_else(|(_, seen)| seen, |()| Version::ZERO);
                            verdict = Err((refused, seen.max(before)));
                        }
                    }
                }
            }
        }
        if counting.is_none() {
            self.outbox.push_back(ToControl::Frozen(verdict));
        }
        self.frozen = Some(Frozen {
            scope,
            prepared,
            logged: Vec::new(),
            logs_parts: false,
            parts_lsn: None,
            are_parts_reported: false,
            counting,
            changes: None,
        });
    }

    /// Counts a slice on of what the roll back changes whose scope is frozen, and answers at the end.
    fn count_scope(&mut self) {
        let Some(frozen) = &mut self.frozen else {
            return;
        };
        let (Some(counting), Scope::RollBack(row)) = (&mut frozen.counting, &frozen.scope) else {
            return;
        };
        let Some(counted) = self.versions.count_changes(row, counting) else {
            return;
        };
        frozen.counting = None;
        frozen.changes = counted.ok();
        let verdict = counted
            .map(|_| ())
            .map_err(|refused| (refused, Version::ZERO));
        self.outbox.push_back(ToControl::Frozen(verdict));
    }

    fn queue_parts(&mut self, version: Version) {
        let Some(frozen) = &mut self.frozen else {
            return;
        };
        frozen.logs_parts = true;
        let changes = frozen.prepared.iter().enumerate();
        let changes = changes.filter(|(_, it)| matches!(it, Prepared::Change(..)));
        let parts = changes.map(|(at, _)| Queued::Part(at, version));
        self.queue.extend(parts);
        self.log_queue();
    }

    /// Puts what the shard itself has to log into the log, as far as there is room.
    pub(crate) fn log_queue(&mut self) {
        while let Some(queued) = self.queue.pop_front() {
            let logged = match &queued {
                Queued::Part(at, version) => self.log_part(*at, *version),
                Queued::Done(version) => self.log_done(*version),
                Queued::Trim(trim) => {
                    let value = encode_trimmed(&trim.versions);
                    let key = Key {
                        namespace: trim.namespace,
                        bytes: &trim.bytes,
                    };
                    let change = own(Kind::Trim, Version::ZERO, trim.epoch, key, &value);
                    self.add(&change).map(|_| ())
                }
                Queued::Move(moving) => self.log_move(moving),
            };
            if logged.is_err() {
                self.queue.push_front(queued);
                return;
            }
        }
        let next_lsn = self.log.next_lsn();
        if let Some(frozen) = &mut self.frozen {
            if frozen.logs_parts {
                frozen.parts_lsn = frozen.parts_lsn.or(Some(next_lsn));
            }
        }
    }

    fn log_part(&mut self, at: usize, version: Version) -> Result<(), NotWritten> {
        let Some(frozen) = self.frozen.take() else {
            return Ok(());
        };
        let logged = self.log_part_of(&frozen, at, version);
        let frozen = self.frozen.insert(frozen);
        frozen.logged.push((at, logged?));
        Ok(())
    }

    fn log_part_of(
        &mut self,
        frozen: &Frozen,
        at: usize,
        version: Version,
    ) -> Result<Held, NotWritten> {
        let (Scope::Batch(parts), Prepared::Change(kind, place, source)) =
            (&frozen.scope, frozen.prepared[at])
        else {
            unreachable!("only parts of a batch that are changes are queued");
        };
        let part = &parts[at];
        let key = Key {
            namespace: part.namespace,
            bytes: &part.key,
        };
        let change = Change {
            kind,
            is_part: true,
            version,
            source: source.unwrap_or(version),
            writer: part.writer,
            expiry_ms: expiry_of(kind, part.expiry_ms),
            key,
            value: value_of(part.what.borrowed()),
        };
        self.log_change(&change, place)
    }

    fn log_done(&mut self, version: Version) -> Result<(), NotWritten> {
        let key = Key {
            namespace: 0,
            bytes: &[],
        };
        let (_, lsn) = self.add(&own(Kind::Done, version, version, key, &[]))?;
        self.dones.push_back((lsn, version));
        Ok(())
    }

    /// The batch is committed: its parts go into the index.
    fn commit(&mut self, version: Version) {
        if let Some(frozen) = &mut self.frozen {
            let logged = std::mem::take(&mut frozen.logged);
            if let Scope::Batch(parts) = &frozen.scope {
                for (at, held) in logged {
                    assert_eq!(held.version, version, "one batch at a time");
                    let key = Key {
                        namespace: parts[at].namespace,
                        bytes: &parts[at].key,
                    };
                    let is_put = matches!(parts[at].what, PartWhat::Put(_));
                    let expiry_ms = if is_put { parts[at].expiry_ms } else { 0 };
                    let applied = self.versions.apply_expiring(key, held, expiry_ms);
                    assert!(applied.is_ok(), "what was prepared can be applied");
                }
            }
        }
        self.queue.push_back(Queued::Done(version));
        self.log_queue();
        self.outbox.push_back(ToControl::Taken);
    }

    fn retain(&mut self, entry: &Entry) {
        let retention = self.versions.retention_mut();
        match entry {
            Entry::Floors(floor, deleted) => retention.raise(*floor, *deleted),
            Entry::Settings(settings) => {
                retention.set(*settings);
                // That was found of what the former ones hold.
                self.counting = None;
            }
            // The coordinator's own.
            Entry::Locked(_) => {}
            Entry::Snapshot(moment, count) | Entry::Ending { moment, count, .. } => {
                let is_set = retention.set_snapshots(*moment, *count);
                assert!(is_set, "the control log has bounded them");
            }
            _ => unreachable!("only what concerns retention is sent so"),
        }
        self.outbox.push_back(ToControl::Taken);
    }

    /// What follows from what has become durable.
    fn turn(&mut self) {
        self.count_scope();
        self.log_queue();
        let durable_lsn = self.log.durable_lsn();
        if let Some(frozen) = &mut self.frozen {
            let is_hasty = self.rules.makes(Mistake::CommitBeforeParts);
            let is_durable = |lsn: u64| lsn <= durable_lsn || is_hasty;
            if !frozen.are_parts_reported && frozen.parts_lsn.is_some_and(is_durable) {
                frozen.are_parts_reported = true;
                self.outbox.push_back(ToControl::PartsDurable);
            }
        }
        while let Some((lsn, version)) = self.dones.front().copied() {
            let is_hasty = self.rules.makes(Mistake::DoneBeforeDurable);
            if lsn >= durable_lsn && !is_hasty {
                break;
            }
            self.dones.pop_front();
            self.outbox.push_back(ToControl::Done(version));
        }
        while let Some((number, end)) = self.log.closed() {
            self.collector.close(number, Some(end));
            self.outbox.push_back(ToControl::Closed(number, end));
        }
        if self.log.wants_segment() && !self.has_asked_segment {
            self.has_asked_segment = true;
            self.outbox.push_back(ToControl::WantsLogSegment);
        }
        if self.has_asked_segment && !self.has_urged && !self.queue.is_empty() {
            self.has_urged = true;
            self.outbox.push_back(ToControl::NeedsLogSegment);
        }
        self.count_back();
        self.turn_collect();
        self.turn_checkpoint(durable_lsn);
        self.turn_pacing();
    }

    fn turn_checkpoint(&mut self, durable_lsn: u64) {
        self.begin_checkpoint();
        let budget = self.versions.budget_bytes();
        let due = (budget / CHECKPOINT_SHARE).max(CHECKPOINT_BYTES_MIN);
        let is_under_way = self.checkpoint.is_some() || self.begins_checkpoint.is_some();
        if self.since_checkpoint >= due && !is_under_way && !self.has_asked_checkpoint {
            self.has_asked_checkpoint = true;
            self.outbox.push_back(ToControl::WantsCheckpoint);
        }
        let Some(checkpoint) = &mut self.checkpoint else {
            return;
        };
        if checkpoint.asks_segment() {
            self.outbox.push_back(ToControl::WantsCheckpointSegment);
        }
        if let Some(finished) = checkpoint.finished(durable_lsn) {
            self.checkpoint = None;
            self.outbox.push_back(ToControl::Checkpointed(finished));
        }
    }

    fn begin_checkpoint(&mut self) {
        let is_free = self.queue.is_empty() && self.frozen.is_none();
        let (Some(number), Some(begin)) = (self.begins_checkpoint, self.log.segment_begin()) else {
            return;
        };
        if !is_free || self.checkpoint.is_some() {
            return;
        }
        self.begins_checkpoint = None;
        self.collector.last_checkpoint = number;
        self.has_asked_checkpoint = false;
        self.since_checkpoint = 0;
        let of = Of {
            shard: self.number,
            store_id: self.store_id,
            number,
        };
        let rows_up_to = self.versions.newest_row();
        self.checkpoint = Some(CheckpointWriter::new(of, begin, rows_up_to, self.rules));
    }

    /// Takes slices, while no batch is open.
    fn save_slices(&mut self) {
        let is_between = !self.log.has_open() || self.rules.makes(Mistake::SliceInBatch);
        if !is_between || !self.queue.is_empty() {
            return;
        }
        let Some(checkpoint) = &mut self.checkpoint else {
            return;
        };
        // What waits for it waits shorter then.
        let slices = match self.shared.space() {
            Space::Plenty => 1,
            _ => SLICES_LOW,
        };
        for _ in 0..slices {
            let Some(hash) = checkpoint.wants_slice() else {
                return;
            };
            let (slice, next) = self.versions.save(hash);
            checkpoint.take(&slice, next, self.log.next_lsn());
        }
    }

    /// Bytes of the batch that waits to be written.
    #[must_use]
    pub fn open_bytes(&self) -> usize {
        self.log.open_bytes()
    }

    /// The next write, if there is one.
    pub fn take_write(&mut self, retention_us: u64) -> Option<ShardWrite> {
        self.turn();
        if self.log.has_failed() {
            return None;
        }
        let open_bytes = self.log.open_bytes();
        if let Some(write) = self.log.write(retention_us) {
            if matches!(write.of, WriteOf::Batch(_)) {
                self.pacing.padded(write.bytes.len() - open_bytes);
            }
            self.save_slices();
            return Some(ShardWrite {
                of: ShardWriteOf::Log(write.of),
                address: write.address,
                bytes: write.bytes,
            });
        }
        self.save_slices();
        let write = self.checkpoint.as_mut()?.write()?;
        Some(ShardWrite {
            of: ShardWriteOf::Chunk(write.chunk),
            address: write.address,
            bytes: write.bytes,
        })
    }

    /// A write has ended.
    pub fn written(&mut self, of: ShardWriteOf, is_well: bool) {
        match of {
            ShardWriteOf::Log(of) => self.log.written(of, is_well),
            ShardWriteOf::Chunk(_) if !is_well => self.log.fail(),
            ShardWriteOf::Chunk(_) => {
                if let Some(checkpoint) = &mut self.checkpoint {
                    checkpoint.written();
                }
            }
        }
        let durable_lsn = self.log.durable_lsn();
        while self
            .outstanding
            .front()
            .is_some_and(|(lsn, _)| *lsn < durable_lsn)
        {
            self.outstanding.pop_front();
        }
        self.publish();
        self.shared.publish_lsn(self.number, durable_lsn);
        self.turn();
    }
}

/// A record of the shard's own.
fn own<'a>(
    kind: Kind,
    version: Version,
    source: Version,
    key: Key<'a>,
    value: &'a [u8],
) -> Change<'a> {
    Change {
        kind,
        is_part: false,
        version,
        source,
        writer: 0,
        expiry_ms: 0,
        key,
        value,
    }
}
