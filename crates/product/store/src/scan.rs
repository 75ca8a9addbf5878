// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recovery of a shard's log: batch by batch until the first that is not valid.
//!
//! The driver takes [reads](Scan::read) and brings [bytes](Scan::take). When all is read it flushes the device,
//! records the end durably with the incarnation that ended there, and only then begins a new log.
//!
//! Invariants:
//! 1. A batch counts only if its checksums are right for its place, and it is the next one of this log: number,
//!    checksum of the head before it, and an incarnation that is not below the one before.
//! 2. What lies behind a recorded end never counts again, although it may become readable: of that incarnation and
//!    all before it.
//! 3. A batch is written only when all but the last [`IN_FLIGHT_MAX`] less one before it are durable. So a valid
//!    batch as far behind the end proves that the end is no end, but damage. That is said, never passed over.
//!
//! The store's id is random and shown to nobody, so no value can hold what looks like a batch of this log.

use std::collections::VecDeque;

use crate::batch::{BATCH_ALIGN_BYTES, BATCH_BYTES_MAX, Batch};
use crate::log::{IN_FLIGHT_MAX, Segment, Start};
use crate::mistake::{Mistake, Rules, Sound};
use crate::record::{Damage, Record};

/// Bytes of a read: the longest batch, wherever it begins, and then some.
const READ_BYTES: u64 = 4 << 20;
const _: () = assert!(READ_BYTES > 2 * BATCH_BYTES_MAX as u64);

/// An end that an earlier recovery recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The last incarnation whose batches end here.
    pub incarnation: u32,
    /// The first number that is not theirs.
    pub lsn: u64,
}

/// A read that the driver shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRead {
    /// Byte of the store.
    pub address: u64,
    /// Multiples of 4,096.
    pub bytes: u64,
}

/// What a scan has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The number of the first batch that is not there.
    pub lsn: u64,
    /// Checksum of the head before it.
    pub crc_before: u32,
    /// That batch was durable once: it is damaged, and more lies behind it.
    pub is_damaged: bool,
}

/// A scan under way.
#[derive(Debug)]
pub struct Scan<R = Sound> {
    /// Number and checksum that the next batch must have; the incarnation is the last one's.
    next: Start,
    segments: VecDeque<Segment>,
    /// Bytes of the first segment that have been looked at.
    at: u64,
    /// The batch before this place was one of the log.
    is_following: bool,
    is_damaged: bool,
    ends: Vec<End>,
    rules: R,
}

impl<R: Rules> Scan<R> {
    /// Of the log whose next batch is this one, the lowest incarnation that may have written it, in these segments,
    /// oldest first.
    #[must_use]
    pub fn new(next: Start, segments: Vec<Segment>, ends: Vec<End>, rules: R) -> Self {
        Self {
            next,
            segments: segments.into(),
            at: 0,
            is_following: false,
            is_damaged: false,
            ends,
            rules,
        }
    }

    /// The next read; none: the scan is over.
    #[must_use]
    pub fn read(&self) -> Option<LogRead> {
        let segment = self.segments.front()?;
        Some(LogRead {
            address: segment.seat.address + self.at,
            bytes: READ_BYTES.min(segment.bytes - self.at),
        })
    }

    /// What that read has brought. Each record of the log is given with its address, in order.
    ///
    /// # Panics
    /// They are not as many bytes as were to be read.
    pub fn take(&mut self, bytes: &[u8], mut each: impl FnMut(u64, &Record<'_>)) {
        let Some(segment) = self.segments.front().copied() else {
            return;
        };
        let wanted = READ_BYTES.min(segment.bytes - self.at);
        assert_eq!(bytes.len() as u64, wanted, "a read is whole");
        let is_last = self.at + wanted == segment.bytes;
        let mut rest = bytes;
        while !rest.is_empty() {
            let seat = segment.seat.plus(self.at as usize);
            let decoded = Batch::decode(rest, seat);
            let may_be_cut = rest.len() < BATCH_BYTES_MAX && !is_last;
            if may_be_cut && decoded.as_ref().err() == Some(&Damage::Short) {
                return;
            }
            let step = self.step(decoded.ok(), &mut each);
            rest = &rest[step..];
            self.at += step as u64;
        }
        if self.at == segment.bytes {
            self.segments.pop_front();
            self.at = 0;
            self.is_following = false;
        }
    }

    /// Looks at one place of a segment, and says how far the next one is.
    fn step(&mut self, batch: Option<Batch<'_>>, each: &mut impl FnMut(u64, &Record<'_>)) -> usize {
        let batch = batch.filter(|batch| self.is_of_this_log(batch));
        let Some(batch) = batch else {
            self.is_following = false;
            return BATCH_ALIGN_BYTES;
        };
        let may_follow = self.is_following || self.at == 0;
        if !(may_follow && self.is_next(&batch)) {
            self.is_following = false;
            let proves = self.next.lsn.saturating_add(IN_FLIGHT_MAX as u64);
            self.is_damaged |= batch.head.lsn >= proves;
            return BATCH_ALIGN_BYTES;
        }
        for (address, record) in batch.records().flatten() {
            each(address, &record);
        }
        self.is_following = true;
        self.next.lsn = batch.head.lsn + 1;
        self.next.crc_before = batch.crc;
        self.next.incarnation = batch.head.incarnation;
        batch.head.bytes as usize
    }

    /// Whether a batch was written by this log and lies behind no recorded end.
    fn is_of_this_log(&self, batch: &Batch<'_>) -> bool {
        let head = &batch.head;
        let is_behind = |end: &End| head.incarnation <= end.incarnation && head.lsn >= end.lsn;
        let ends_ignored = self.rules.makes(Mistake::EndsIgnored);
        head.shard == self.next.shard
            && head.store_id == self.next.store_id
            && (ends_ignored || !self.ends.iter().any(is_behind))
            && batch.records().all(|record| record.is_ok())
    }

    fn is_next(&self, batch: &Batch<'_>) -> bool {
        let head = &batch.head;
        let is_later = head.incarnation >= self.next.incarnation;
        if self.rules.makes(Mistake::ChainUnchecked) {
            return is_later && head.lsn >= self.next.lsn;
        }
        let is_chained = head.lsn == self.next.lsn && head.crc_before == self.next.crc_before;
        is_chained && is_later
    }

    /// What was found, once nothing is left to be read.
    #[must_use]
    pub fn finish(self) -> Scanned {
        Scanned {
            lsn: self.next.lsn,
            crc_before: self.next.crc_before,
            is_damaged: self.is_damaged,
        }
    }
}
