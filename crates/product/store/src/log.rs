// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log of one shard: batches into segments, up to four at once, and what is durable of them.
//!
//! The driver gives segments, takes [writes](Log::write), and says how each [ended](Log::written).
//!
//! Invariants:
//! 1. Batches are numbered without holes, and each names the checksum of the head before it.
//! 2. What is durable is everything up to the first batch whose write is not done. Only that is acknowledged.
//! 3. After a write has failed nothing more is written, and nothing more becomes durable. It is not repeated:
//!    whoever opens the log again finds out what is there.
//! 4. A record's address is known when it is added, so its batch has its place by then. A batch that does not fit
//!    what is left of a segment goes to the next one.
//! 5. A log that is opened again begins a new segment: nothing is written behind an old end.
//! 6. A batch says how many before it were not known to be durable. So what vouches for a batch is any later one.
//! 7. A segment is [closed](Log::closed) once all its batches and its directory are durable. There is always room
//!    for the directory behind the batches.
//! 8. A log that [ends](Log::end) closes its last segment, so that all of its ends are recorded.
//! 9. The end of a segment says how much of it is [loose](LogEnd::loose_bytes): all but the records that versions can
//!    need, and what no copy of them would win.

use std::collections::VecDeque;

use crate::batch::{
    BATCH_ALIGN_BYTES, BATCH_BYTES_MAX, BATCH_HEAD_BYTES, BatchContext, BatchWriter,
};
use crate::directory::{DIRECTORY_SHARE, DirectoryWriter};
use crate::mistake::{Mistake, Rules, Sound};
use crate::place::sectors;
use crate::record::{Change, Seat, record_bytes};

/// Most writes of batches under way.
pub const IN_FLIGHT_MAX: usize = 4;

/// Where a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number in the store.
    pub number: u32,
    /// Its place in its log: each has a higher one than those before it.
    pub order: u64,
    /// Its first byte, and how often it was used before.
    pub seat: Seat,
    /// Its size, a multiple of 4,096.
    pub bytes: u64,
}

/// Whose log, and from where it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The shard's number.
    pub shard: u16,
    /// The store's.
    pub store_id: u64,
    /// How often the node had started; each start has a higher one.
    pub incarnation: u32,
    /// The next batch's number.
    pub lsn: u64,
    /// Checksum of the head before it; 0: it is the first.
    pub crc_before: u32,
}

/// Where a log, or a part of it, ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Bytes of the segment that batches have.
    pub bytes: u64,
    /// The first batch that is not there.
    pub lsn: u64,
    /// Checksum of the head before it.
    pub crc: u32,
    /// Sectors that records touch which versions can need; one that two of them touch counts twice.
    pub sectors: u32,
    /// Bytes of the segment that copies of all those records would leave free: heads of batches, padding, records that
    /// no version needs, and what lies after an end that came early. What no copy wins is none of it: the directory, and
    /// what was too short for the next record. None: a program has written it that did not count this.
    pub loose_bytes: Option<u32>,
    /// The segment's directory, behind the batches.
    pub directory: Option<DirectoryAt>,
}

/// A directory: it lies behind the batches of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryAt {
    /// Its length, without padding.
    pub bytes: u32,
    /// Checksum of that.
    pub crc: u32,
}

/// Why a record is not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// As many writes are under way as may be, and the next batch is full.
    #[error("writes are under way: wait until one ends")]
    Busy,
    /// The segment is full.
    #[error("the log needs another segment")]
    NeedsSegment,
    /// A write has failed.
    #[error("a write of the log has failed: open the store again")]
    Failed,
}

/// What a write of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOf {
    /// The batch with this number.
    Batch(u64),
    /// The directory of the segment with this number.
    Directory(u32),
}

/// A write that the driver shall do: direct, and durable when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWrite {
    /// What it is.
    pub of: WriteOf,
    /// Byte of the store.
    pub address: u64,
    /// Multiples of 4,096.
    pub bytes: Vec<u8>,
}

/// A segment that is written to.
#[derive(Debug)]
struct Current {
    segment: Segment,
    /// Bytes of it that batches have.
    used: u64,
    /// Number of its first batch, and checksum before it.
    begin: (u64, u32),
    /// See [`LogEnd::sectors`].
    sectors: u32,
    /// Bytes of those records.
    record_bytes: u64,
    /// None: it would be too large.
    directory: Option<DirectoryWriter>,
}

/// A segment that the log has left.
#[derive(Debug)]
struct Closing {
    segment: Segment,
    end: LogEnd,
    /// To be written, with its padding; none: it is, or there is none.
    directory: Option<Vec<u8>>,
    is_written: bool,
}

/// The log of one shard.
#[derive(Debug)]
pub struct Log<R = Sound> {
    start: Start,
    has_directories: bool,
    current: Option<Current>,
    next_segment: Option<Segment>,
    open: Option<BatchWriter>,
    /// Those that are not durable, oldest first: whether the write is done.
    in_flight: VecDeque<bool>,
    durable_lsn: u64,
    /// Oldest first.
    closing: VecDeque<Closing>,
    has_failed: bool,
    is_ending: bool,
    rules: R,
}

impl<R: Rules> Log<R> {
    /// A log without a segment. Its segments get directories.
    #[must_use]
    pub fn new(start: Start, rules: R) -> Self {
        Self {
            start,
            has_directories: true,
            current: None,
            next_segment: None,
            open: None,
            in_flight: VecDeque::new(),
            durable_lsn: start.lsn,
            closing: VecDeque::new(),
            has_failed: false,
            is_ending: false,
            rules,
        }
    }

    /// The same without directories.
    #[must_use]
    pub fn without_directories(start: Start, rules: R) -> Self {
        Self {
            has_directories: false,
            ..Self::new(start, rules)
        }
    }

    /// Whether it should be given a segment, ahead of need.
    #[must_use]
    pub fn wants_segment(&self) -> bool {
        self.next_segment.is_none() && !self.has_failed && !self.is_ending
    }

    /// The segment to go on with, once the control log has it.
    pub fn give_segment(&mut self, segment: Segment) {
        assert!(self.next_segment.is_none(), "one is waiting");
        self.next_segment = Some(segment);
    }

    /// Where the segment that is written to, or will be next, begins: its order, and what its first batch follows.
    /// None: it has none.
    #[must_use]
    pub fn segment_begin(&self) -> Option<(u64, Start)> {
        if let Some(current) = &self.current {
            let (lsn, crc_before) = current.begin;
            let start = Start {
                lsn,
                crc_before,
                ..self.start
            };
            return Some((current.segment.order, start));
        }
        self.next_segment.map(|next| (next.order, self.start))
    }

    /// Bytes that the batch to come may have here, with this change in the directory.
    fn room(&self, change: &Change<'_>) -> usize {
        let Some(current) = &self.current else {
            return 0;
        };
        let directory = current.directory.as_ref();
        let directory = directory.map_or(0, |it| it.len_with(change));
        let taken = current.used + directory.next_multiple_of(BATCH_ALIGN_BYTES) as u64;
        let left = current.segment.bytes.saturating_sub(taken);
        usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(BATCH_BYTES_MAX)
    }

    /// Adds a record: its address, and the batch with which it becomes durable.
    ///
    /// # Errors
    /// Nothing was added.
    pub fn add(&mut self, change: &Change<'_>) -> Result<(u64, u64), NotAdded> {
        if self.has_failed {
            return Err(NotAdded::Failed);
        }
        let bytes = record_bytes(change.key.bytes.len(), change.value.len());
        self.give_up_directory(change);
        let is_full = |open: &BatchWriter| open.len() + bytes > self.room(change) || open.is_full();
        if self.open.as_ref().is_some_and(is_full) {
            return Err(NotAdded::Busy);
        }
        if self.open.is_none() {
            self.open(bytes, change)?;
        }
        let open = self.open.as_mut().ok_or(NotAdded::NeedsSegment)?;
        let address = open.push(change);
        if let Some(current) = &mut self.current {
            let offset = address - current.segment.seat.address;
            if change.kind.has_place() {
                current.sectors += sectors(address, bytes as u64) as u32;
                current.record_bytes += bytes as u64;
            }
            if let Some(directory) = &mut current.directory {
                directory.push(change, self.start.lsn, offset);
            }
        }
        Ok((address, self.start.lsn))
    }

    /// A directory that would be too large is none.
    fn give_up_directory(&mut self, change: &Change<'_>) {
        if let Some(current) = &mut self.current {
            let most = current.segment.bytes / DIRECTORY_SHARE;
            let is_large = |it: &DirectoryWriter| it.len_with(change) as u64 > most;
            if current.directory.as_ref().is_some_and(is_large) {
                current.directory = None;
            }
        }
    }

    fn open(&mut self, bytes: usize, change: &Change<'_>) -> Result<(), NotAdded> {
        if BATCH_HEAD_BYTES + bytes > self.room(change) {
            let next = self.next_segment.take().ok_or(NotAdded::NeedsSegment)?;
            self.leave_segment(false);
            let begin = (self.start.lsn, self.start.crc_before);
            let directory = self.has_directories;
            self.current = Some(Current {
                segment: next,
                used: 0,
                begin,
                sectors: 0,
                record_bytes: 0,
                directory: directory.then(|| DirectoryWriter::new(begin.0, begin.1)),
            });
            self.give_up_directory(change);
        }
        let current = self.current.as_ref().ok_or(NotAdded::NeedsSegment)?;
        let seat = current.segment.seat.plus(current.used as usize);
        self.open = Some(BatchWriter::new(seat));
        Ok(())
    }

    /// No batch is open: all of the segment's have their numbers and checksums. `is_early`: another record would fit.
    fn leave_segment(&mut self, is_early: bool) {
        let Some(current) = self.current.take() else {
            return;
        };
        let directory = current.directory.map(DirectoryWriter::finish);
        let at = directory.as_ref().map(|bytes| DirectoryAt {
            bytes: bytes.len() as u32,
            crc: crc32c::crc32c(bytes),
        });
        let padded = directory.map(|mut bytes| {
            bytes.resize(bytes.len().next_multiple_of(BATCH_ALIGN_BYTES), 0);
            bytes
        });
        let room = padded.as_ref().map_or(0, |bytes| bytes.len() as u64);
        assert!(
            current.used + room <= current.segment.bytes,
            "a directory has its room"
        );
        let rest = current.segment.bytes - current.used - room;
        let loose = current.used - current.record_bytes + if is_early { rest } else { 0 };
        let end = LogEnd {
            bytes: current.used,
            lsn: self.start.lsn,
            crc: self.start.crc_before,
            sectors: current.sectors,
            loose_bytes: u32::try_from(loose).ok(),
            directory: at,
        };
        self.closing.push_back(Closing {
            segment: current.segment,
            end,
            is_written: padded.is_none(),
            directory: padded,
        });
    }

    /// The next write, if there is something to write and not too much under way.
    pub fn write(&mut self, retention_us: u64) -> Option<LogWrite> {
        if self.has_failed {
            return None;
        }
        if let Some(write) = self.write_directory() {
            return Some(write);
        }
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let open = self.open.take()?;
        let context = BatchContext {
            shard: self.start.shard,
            crc_before: self.start.crc_before,
            store_id: self.start.store_id,
            lsn: self.start.lsn,
            incarnation: self.start.incarnation,
            retention_us,
            under_way: self.under_way(),
        };
        let address = open.address();
        let (bytes, crc) = open.finish(&context);
        if let Some(current) = &mut self.current {
            current.used += bytes.len() as u64;
        }
        let of = WriteOf::Batch(self.start.lsn);
        self.start.lsn += 1;
        self.start.crc_before = crc;
        self.in_flight.push_back(false);
        Some(LogWrite { of, address, bytes })
    }

    fn write_directory(&mut self) -> Option<LogWrite> {
        let mut waiting = self.closing.iter_mut();
        let closing = waiting.find(|closing| closing.directory.is_some())?;
        let bytes = closing.directory.take()?;
        Some(LogWrite {
            of: WriteOf::Directory(closing.segment.number),
            address: closing.segment.seat.address + closing.end.bytes,
            bytes,
        })
    }

    /// A write has ended.
    ///
    /// # Panics
    /// It is not under way.
    pub fn written(&mut self, of: WriteOf, is_well: bool) {
        if !is_well && !self.rules.makes(Mistake::FailureForgotten) {
            self.has_failed = true;
        }
        match of {
            WriteOf::Directory(number) => {
                let mut waiting = self.closing.iter_mut();
                let closing = waiting.find(|closing| closing.segment.number == number);
                closing.expect("only what is under way can end").is_written = true;
            }
            WriteOf::Batch(lsn) => {
                let at = lsn
                    .checked_sub(self.durable_lsn)
                    .and_then(|at| usize::try_from(at).ok());
                let done = at.and_then(|at| self.in_flight.get_mut(at));
                *done.expect("only what is under way can end") = true;
            }
        }
        while !self.has_failed && self.in_flight.front() == Some(&true) {
            self.in_flight.pop_front();
            self.durable_lsn += 1;
        }
    }

    /// Batches before the next one that are not known to be durable.
    fn under_way(&self) -> u32 {
        if self.rules.makes(Mistake::VouchedTooEarly) {
            return 0;
        }
        self.in_flight.len() as u32
    }

    /// Nothing more is added: the last segment is closed. The segment that waits to be gone on with is given back.
    ///
    /// # Panics
    /// Something was added that no write has taken.
    pub fn end(&mut self) -> Option<Segment> {
        assert!(self.open.is_none(), "what was added is in batches");
        self.is_ending = true;
        self.leave_segment(true);
        self.next_segment.take()
    }

    /// Nothing more is added.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// It ends, and all that was added is durable and closed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.is_ending && self.in_flight.is_empty() && self.closing.is_empty()
    }

    /// The next segment that is closed, and where it ends.
    pub fn closed(&mut self) -> Option<(u32, LogEnd)> {
        let durable_lsn = self.durable_lsn;
        let is_closed = |it: &Closing| it.is_written && it.end.lsn <= durable_lsn;
        if self.has_failed || !self.closing.front().is_some_and(is_closed) {
            return None;
        }
        let closing = self.closing.pop_front()?;
        Some((closing.segment.number, closing.end))
    }

    /// Batches below it are durable.
    #[must_use]
    pub fn durable_lsn(&self) -> u64 {
        if self.rules.makes(Mistake::AcknowledgedBeforeOthers) {
            let last_done = self.in_flight.iter().rposition(|done| *done);
            return self.durable_lsn + last_done.map_or(0, |at| at as u64 + 1);
        }
        self.durable_lsn
    }

    /// The first batch that has nothing of what was added until now.
    #[must_use]
    pub fn next_lsn(&self) -> u64 {
        self.start.lsn + u64::from(self.open.is_some())
    }

    /// Bytes of the batch that waits to be written.
    #[must_use]
    pub fn open_bytes(&self) -> usize {
        self.open.as_ref().map_or(0, BatchWriter::len)
    }

    /// Records were added that no write has taken.
    #[must_use]
    pub fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// Another write of the shard has failed: nothing more is written.
    pub fn fail(&mut self) {
        self.has_failed = true;
    }

    /// A write has failed: nothing more becomes durable.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }
}
