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

use std::collections::VecDeque;

use crate::batch::{BATCH_BYTES_MAX, BATCH_HEAD_BYTES, BatchContext, BatchWriter};
use crate::mistake::{Mistake, Rules, Sound};
use crate::place::SEGMENT_BYTES;
use crate::record::{Change, Seat, record_bytes};

/// Most writes under way.
pub const IN_FLIGHT_MAX: usize = 4;

/// Where a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte, and how often it was used before.
    pub seat: Seat,
    /// Its size: [`SEGMENT_BYTES`], less in tests.
    pub bytes: u64,
}

impl Segment {
    /// One of the usual size.
    #[must_use]
    pub fn new(seat: Seat) -> Self {
        Self {
            seat,
            bytes: SEGMENT_BYTES,
        }
    }
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

/// A write that the driver shall do: direct, and durable when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWrite {
    /// Its batch.
    pub lsn: u64,
    /// Byte of the store.
    pub address: u64,
    /// Multiples of 4,096.
    pub bytes: Vec<u8>,
}

/// The log of one shard.
#[derive(Debug)]
pub struct Log<R = Sound> {
    start: Start,
    segment: Option<Segment>,
    /// Bytes of the segment that batches have.
    used: u64,
    next_segment: Option<Segment>,
    open: Option<BatchWriter>,
    /// Those that are not durable, oldest first: whether the write is done.
    in_flight: VecDeque<bool>,
    durable_lsn: u64,
    has_failed: bool,
    rules: R,
}

impl<R: Rules> Log<R> {
    /// A log without a segment.
    #[must_use]
    pub fn new(start: Start, rules: R) -> Self {
        Self {
            start,
            segment: None,
            used: 0,
            next_segment: None,
            open: None,
            in_flight: VecDeque::new(),
            durable_lsn: start.lsn,
            has_failed: false,
            rules,
        }
    }

    /// Whether it should be given a segment, ahead of need.
    #[must_use]
    pub fn wants_segment(&self) -> bool {
        self.next_segment.is_none()
    }

    /// The segment to go on with, once the control log has it.
    pub fn give_segment(&mut self, segment: Segment) {
        assert!(self.next_segment.is_none(), "one is waiting");
        self.next_segment = Some(segment);
    }

    /// Bytes that the batch to come may have here.
    fn room(&self) -> usize {
        let left = self.segment.map_or(0, |segment| segment.bytes - self.used);
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
        let is_full = |open: &BatchWriter| open.len() + bytes > self.room() || open.is_full();
        if self.open.as_ref().is_some_and(is_full) {
            return Err(NotAdded::Busy);
        }
        if self.open.is_none() {
            self.open(bytes)?;
        }
        let open = self.open.as_mut().ok_or(NotAdded::NeedsSegment)?;
        Ok((open.push(change), self.start.lsn))
    }

    fn open(&mut self, bytes: usize) -> Result<(), NotAdded> {
        if BATCH_HEAD_BYTES + bytes > self.room() {
            self.segment = Some(self.next_segment.take().ok_or(NotAdded::NeedsSegment)?);
            self.used = 0;
        }
        let segment = self.segment.ok_or(NotAdded::NeedsSegment)?;
        self.open = Some(BatchWriter::new(segment.seat.plus(self.used as usize)));
        Ok(())
    }

    /// The next write, if there is something to write and not too much under way.
    pub fn write(&mut self, retention_us: u64) -> Option<LogWrite> {
        if self.has_failed || self.in_flight.len() >= IN_FLIGHT_MAX {
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
        };
        let address = open.address();
        let (bytes, crc) = open.finish(&context);
        self.used += bytes.len() as u64;
        let lsn = self.start.lsn;
        self.start.lsn += 1;
        self.start.crc_before = crc;
        self.in_flight.push_back(false);
        Some(LogWrite {
            lsn,
            address,
            bytes,
        })
    }

    /// A write has ended.
    ///
    /// # Panics
    /// It is not under way.
    pub fn written(&mut self, lsn: u64, is_well: bool) {
        let at = lsn
            .checked_sub(self.durable_lsn)
            .and_then(|at| usize::try_from(at).ok());
        let done = at.and_then(|at| self.in_flight.get_mut(at));
        *done.expect("only what is under way can end") = true;
        if !is_well && !self.rules.makes(Mistake::FailureForgotten) {
            self.has_failed = true;
        }
        while !self.has_failed && self.in_flight.front() == Some(&true) {
            self.in_flight.pop_front();
            self.durable_lsn += 1;
        }
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

    /// A write has failed: nothing more becomes durable.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }
}
