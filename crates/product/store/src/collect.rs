// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collecting: a shard moves what is needed out of a segment of its log, so that the segment is free again.
//!
//! The driver does [reads](Shard::take_read) and brings [what came](Shard::read_done) of them. What is copied goes
//! into the log beside what users write; the log is one, so replay needs no other order.
//!
//! Invariants:
//! 1. A copy is a record of its own kind, with the version, the key and the value of what it is a copy of, and the
//!    address from which it comes. It adds no version.
//! 2. The index names a copy once that is durable, and not while a freeze rests on what it has seen of the index.
//! 3. A key is trimmed before its records are copied. What nobody needs is not copied.
//! 4. A segment is reported as unneeded when the log has left it, nothing in it is needed, and neither copies nor
//!    parts of a batch wait to be counted. It is left when no read of it is under way.
//! 5. A record that is damaged is not copied: its segment stays until the record is not needed.
//! 6. Which segment is collected, and whether one is, stands in `spare.rs`.
//! 7. What is read at once is one batch or little more, and the next piece waits until copies of no more than one
//!    batch are under way. A piece is begun only with the next segment at hand, so its copies never wait for space.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::batch::{BATCH_ALIGN_BYTES, BATCH_BYTES_MAX, BATCH_HEAD_BYTES, BatchHead};
use crate::key::Key;
use crate::log::{LogEnd, Segment};
use crate::message::ToControl;
use crate::mistake::{Mistake, Rules};
use crate::place::Place;
use crate::record::{Change, Damage, Kind, Record, Seat, decode_head, decode_record, record_bytes};
use crate::scan::Logged;
use crate::shard::{NotWritten, Queued, Shard};
use crate::space::Space;
use crate::version::Version;

/// A segment of the shard's log.
#[derive(Debug)]
pub(crate) struct LogSegment {
    pub(crate) segment: Segment,
    pub(crate) end: Option<LogEnd>,
    /// The log has left it.
    pub(crate) is_closed: bool,
    /// Reads of it that are under way.
    pub(crate) readers: u32,
    pub(crate) is_reported: bool,
    is_leaving: bool,
    pub(crate) is_damaged: bool,
}

impl LogSegment {
    pub(crate) fn limit(&self) -> u64 {
        self.end.map_or(self.segment.bytes, |end| end.bytes)
    }

    /// Where its batches end is known.
    pub(crate) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// All of it was written, and it stays for a while.
    pub(crate) fn is_scrubbed(&self) -> bool {
        self.is_closed && !self.is_leaving
    }
}

/// A record that is to be copied.
#[derive(Debug)]
pub(crate) struct Moving {
    namespace: u16,
    key: Vec<u8>,
    kind: Kind,
    version: Version,
    from: u64,
    writer: u32,
    expiry_ms: u64,
    value: Vec<u8>,
}

/// A copy that is in the log.
#[derive(Debug)]
struct Moved {
    lsn: u64,
    namespace: u16,
    key: Vec<u8>,
    from: u64,
    to: Place,
    bytes: usize,
}

/// A segment that is being collected.
#[derive(Debug)]
struct Collecting {
    number: u32,
    /// Bytes of it that have been looked at.
    at: u64,
    is_reading: bool,
    is_repeated: bool,
}

/// What a shard knows of its segments.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    pub(crate) segments: BTreeMap<u32, LogSegment>,
    collecting: Option<Collecting>,
    moved: VecDeque<Moved>,
    /// Bytes of those.
    moving_bytes: usize,
    leaving: BTreeSet<u32>,
    /// Segments that are left, and not known to be durably free.
    freeing: BTreeSet<u32>,
    /// What had ceased to be needed when nothing was worth collecting.
    pub(crate) looked: Option<(u64, Space)>,
    /// The last checkpoint that has begun.
    pub(crate) last_checkpoint: u64,
    /// Segments that were reported, and are not left.
    reported: usize,
    /// Bytes that were copied.
    pub(crate) copied: u64,
    /// Records that were damaged.
    pub(crate) damaged: u64,
}

/// A read that the driver shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRead {
    /// Byte of the store.
    pub address: u64,
    /// A multiple of 4,096.
    pub bytes: usize,
}

impl Collector {
    /// With the segments that recovery has found, and the number of the last checkpoint.
    pub(crate) fn new(logged: Vec<Logged>, last_checkpoint: u64) -> Self {
        let mut collector = Self {
            last_checkpoint,
            ..Self::default()
        };
        for logged in logged {
            collector.add(logged.segment);
            collector.close(logged.segment.number, logged.end);
        }
        collector
    }

    pub(crate) fn add(&mut self, segment: Segment) {
        let fresh = LogSegment {
            segment,
            end: None,
            is_closed: false,
            readers: 0,
            is_reported: false,
            is_leaving: false,
            is_damaged: false,
        };
        self.segments.insert(segment.number, fresh);
    }

    pub(crate) fn close(&mut self, number: u32, end: Option<LogEnd>) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.is_closed = true;
            segment.end = end;
        }
        self.looked = None;
    }

    /// How often a segment of the log had been taken into use when this use of it began; none: it is no segment of it.
    pub(crate) fn uses(&self, number: u32) -> Option<u32> {
        self.segments.get(&number).map(|it| it.segment.seat.uses)
    }

    /// Segments in which nothing is needed are not durably free.
    pub(crate) fn has_dead(&self) -> bool {
        self.reported > 0 || !self.freeing.is_empty()
    }

    /// A segment is durably free.
    pub(crate) fn freed(&mut self, number: u32) {
        self.freeing.remove(&number);
    }

    /// Copies wait to be counted.
    fn waits(&self) -> bool {
        !self.moved.is_empty()
    }
}

impl<R: Rules + Copy> Shard<R> {
    /// A segment is being collected.
    pub(crate) fn is_collecting(&self) -> bool {
        self.collector.collecting.is_some()
    }

    /// Bytes that collecting has copied, and records that it or readers have found damaged.
    #[must_use]
    pub fn collected(&self) -> (u64, u64) {
        (self.collector.copied, self.collector.damaged)
    }

    /// The next read for collecting, if there is one.
    pub fn take_read(&mut self) -> Option<ShardRead> {
        let is_still = self.queue.is_empty() && self.collector.moving_bytes <= BATCH_BYTES_MAX;
        let is_free =
            is_still && self.frozen.is_none() && !self.log.wants_segment() && !self.is_ending;
        if !is_free || self.log.has_failed() || !self.shared.is_open() {
            return None;
        }
        if self.collector.collecting.is_none() {
            let number = self.choose()?;
            self.collector.collecting = Some(Collecting {
                number,
                at: 0,
                is_reading: false,
                is_repeated: false,
            });
        }
        let collecting = self.collector.collecting.as_mut()?;
        if collecting.is_reading {
            return None;
        }
        let segment = self.collector.segments.get(&collecting.number)?;
        // All of it was looked at, and copies are under way.
        let left = segment.limit().checked_sub(collecting.at);
        let left = left.filter(|left| *left > 0)?;
        collecting.is_reading = true;
        Some(ShardRead {
            address: segment.segment.seat.address + collecting.at,
            bytes: left.min(BATCH_BYTES_MAX as u64) as usize,
        })
    }

    /// What came of a read for collecting; none: it failed. `below` is the lowest of the watermark and all cuts in
    /// flight.
    pub fn read_done(&mut self, bytes: Option<&[u8]>, below: Version) {
        let Some(mut collecting) = self.collector.collecting.take() else {
            return;
        };
        collecting.is_reading = false;
        match bytes {
            Some(bytes) => {
                collecting.is_repeated = false;
                let (looked_at, needed) = self.collect_piece(&collecting, bytes, below);
                collecting.at += looked_at as u64;
                self.pacing.collected(looked_at.saturating_sub(needed));
                self.collector.collecting = Some(collecting);
            }
            None if collecting.is_repeated => self.leave_damaged(collecting.number),
            None => {
                collecting.is_repeated = true;
                self.collector.collecting = Some(collecting);
            }
        }
        self.log_queue();
        self.turn_collect();
    }

    fn leave_damaged(&mut self, number: u32) {
        if let Some(segment) = self.collector.segments.get_mut(&number) {
            segment.is_damaged = true;
        }
        self.collector.damaged += 1;
    }

    /// Queues copies of what is needed: how many bytes it has looked at, and how many of them are needed.
    fn collect_piece(
        &mut self,
        collecting: &Collecting,
        bytes: &[u8],
        below: Version,
    ) -> (usize, usize) {
        let below = below.min(self.shared.watermark());
        let Some(segment) = self.collector.segments.get(&collecting.number) else {
            return (bytes.len(), 0);
        };
        let begin = segment.segment.seat.plus(collecting.at as usize);
        let (store_id, number) = (self.store_id, self.number);
        let mut needed = 0;
        let looked_at = batches(bytes, begin, store_id, number, |piece| {
            if let Piece::Batch(seat, content, records) = piece {
                // What lies behind a damaged head is not found, so its segment stays.
                let _ = walk(content, seat, records, |at, key, found| {
                    needed += self.collect_record(at, key, found, below);
                });
            }
        });
        (looked_at, needed)
    }

    /// Bytes of its copy; 0: there is none.
    fn collect_record(
        &mut self,
        address: u64,
        key: Key<'_>,
        found: Result<Record<'_>, Damage>,
        below: Version,
    ) -> usize {
        if !self.versions.needs(key, address) {
            return 0;
        }
        let trim = self.versions.trim(key, below);
        self.queue.extend(trim.map(Queued::Trim));
        if !self.versions.needs(key, address) {
            return 0;
        }
        let Ok(record) = found else {
            self.collector.damaged += 1;
            return 0;
        };
        let is_put = record.head.kind.has_value();
        self.queue.push_back(Queued::Move(Box::new(Moving {
            namespace: key.namespace,
            key: key.bytes.to_vec(),
            kind: if is_put {
                Kind::MovedPut
            } else {
                Kind::MovedDelete
            },
            version: record.head.version,
            from: address,
            writer: record.head.writer,
            expiry_ms: record.head.expiry_ms,
            value: record.value.to_vec(),
        })));
        record_bytes(key.bytes.len(), record.value.len())
    }

    /// Logs a copy.
    pub(crate) fn log_move(&mut self, moving: &Moving) -> Result<(), NotWritten> {
        let key = Key {
            namespace: moving.namespace,
            bytes: &moving.key,
        };
        let change = Change {
            kind: moving.kind,
            is_part: false,
            version: moving.version,
            source: Version::new(moving.from),
            writer: moving.writer,
            expiry_ms: moving.expiry_ms,
            key,
            value: &moving.value,
        };
        let (address, lsn) = self.add(&change)?;
        let bytes = record_bytes(key.bytes.len(), moving.value.len());
        self.collector.copied += bytes as u64;
        self.collector.moving_bytes += bytes;
        self.collector.moved.push_back(Moved {
            lsn,
            namespace: moving.namespace,
            key: moving.key.clone(),
            from: moving.from,
            to: Place::written(address, bytes as u64, moving.kind == Kind::MovedDelete),
            bytes,
        });
        Ok(())
    }

    /// What follows from copies that have become durable, and from what has ceased to be needed.
    pub(crate) fn turn_collect(&mut self) {
        let durable_lsn = self.log.durable_lsn();
        let is_hasty = self.rules.makes(Mistake::MoveNotDurable);
        while let Some(moved) = self.collector.moved.front() {
            let is_durable = moved.lsn < durable_lsn || is_hasty;
            if !is_durable || self.frozen.is_some() {
                break;
            }
            let key = Key {
                namespace: moved.namespace,
                bytes: &moved.key,
            };
            self.versions.move_place(key, moved.from, moved.to);
            if let Some(to) = moved.to.address() {
                let (from, to) = (self.seat(moved.from), self.seat(to));
                self.cache.moved(from, to);
            }
            self.collector.moving_bytes -= moved.bytes;
            self.collector.moved.pop_front();
        }
        // Parts of a batch are not counted before they are committed.
        if !self.queue.is_empty() || self.collector.waits() || self.frozen.is_some() {
            return;
        }
        self.finish_collecting();
        self.report_unneeded();
    }

    fn finish_collecting(&mut self) {
        let Some(collecting) = &self.collector.collecting else {
            return;
        };
        let number = collecting.number;
        let segment = self.collector.segments.get_mut(&number);
        let is_over = segment
            .as_ref()
            .is_none_or(|it| collecting.at >= it.limit());
        if !is_over || collecting.is_reading {
            return;
        }
        if let Some(segment) = segment {
            segment.is_damaged = self.versions.needed(number).records > 0;
        }
        self.collector.collecting = None;
    }

    fn report_unneeded(&mut self) {
        let behind = self.collector.last_checkpoint;
        let numbers: Vec<u32> = self.versions.usage.unneeded().iter().copied().collect();
        for number in numbers {
            let is_needed = self.versions.needed(number).records > 0;
            let collecting = self.collector.collecting.as_ref();
            if collecting.is_some_and(|it| it.number == number) {
                continue;
            }
            let segment = self.collector.segments.get_mut(&number);
            let Some(segment) = segment.filter(|_| !is_needed) else {
                self.versions.usage.unneeded().remove(&number);
                continue;
            };
            if segment.is_closed && !segment.is_reported {
                segment.is_reported = true;
                self.collector.reported += 1;
                self.versions.usage.unneeded().remove(&number);
                self.outbox.push_back(ToControl::Unneeded(number, behind));
            }
        }
    }

    /// Checkpoints do not need this segment any more.
    pub(crate) fn leave(&mut self, number: u32) {
        assert_eq!(
            self.versions.needed(number).records,
            0,
            "what is left is not needed"
        );
        if let Some(segment) = self.collector.segments.get_mut(&number) {
            segment.is_leaving = true;
            self.collector.leaving.insert(number);
        }
        self.leave_unread();
    }

    /// Leaves what nobody reads any more.
    pub(crate) fn leave_unread(&mut self) {
        let are_ignored = self.rules.makes(Mistake::ReadsIgnored);
        let segments = &self.collector.segments;
        let is_unread = |number: &&u32| {
            let readers = segments.get(*number).map_or(0, |it| it.readers);
            readers == 0 || are_ignored
        };
        let unread: Vec<u32> = self
            .collector
            .leaving
            .iter()
            .filter(is_unread)
            .copied()
            .collect();
        for number in unread {
            self.collector.leaving.remove(&number);
            self.collector.segments.remove(&number);
            self.collector.reported -= 1;
            self.collector.freeing.insert(number);
            self.outbox.push_back(ToControl::Left(number));
        }
    }
}

/// What lies in a part of a segment.
pub(crate) enum Piece<'a> {
    /// A batch: where its records begin, they, and how many there are.
    Batch(Seat, &'a [u8], u16),
    /// Where no batch of this shard begins although one should.
    Gap(u64),
}

/// What lies in these bytes, which begin where a batch should: how many of them were looked at. A batch that goes on
/// behind them is left for the next time.
pub(crate) fn batches(
    bytes: &[u8],
    begin: Seat,
    store_id: u64,
    shard: u16,
    mut each: impl FnMut(Piece<'_>),
) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        let seat = begin.plus(at);
        let head = BatchHead::decode(&bytes[at..], seat).ok();
        let is_ours = |it: &BatchHead| it.store_id == store_id && it.shard == shard;
        let Some(head) = head.map(|(head, _)| head).filter(is_ours) else {
            each(Piece::Gap(seat.address));
            at += BATCH_ALIGN_BYTES;
            continue;
        };
        let end = at + head.bytes as usize;
        if end > bytes.len() && at > 0 {
            break;
        }
        let content = &bytes[at + BATCH_HEAD_BYTES..end.min(bytes.len())];
        each(Piece::Batch(
            seat.plus(BATCH_HEAD_BYTES),
            content,
            head.records,
        ));
        at = end;
    }
    at.min(bytes.len())
}

/// The records of a batch, whose content may be damaged here and there.
///
/// # Errors
/// Where a head is damaged: what lies behind it is not found.
pub(crate) fn walk(
    mut content: &[u8],
    mut seat: Seat,
    records: u16,
    mut each: impl FnMut(u64, Key<'_>, Result<Record<'_>, Damage>),
) -> Result<(), u64> {
    for _ in 0..records {
        let Ok((head, key)) = decode_head(content, seat) else {
            return Err(seat.address);
        };
        if head.kind.has_place() {
            each(seat.address, key, decode_record(content, seat));
        }
        let rest = content.get(head.bytes()..);
        content = rest.unwrap_or_default();
        seat = seat.plus(head.bytes());
    }
    Ok(())
}
