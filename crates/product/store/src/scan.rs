// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recovery of a log: directory by directory, then batch by batch until the first that is not valid.
//!
//! The driver takes [reads](Scan::read) and brings [bytes](Scan::take). When all is read it flushes the device,
//! records the end durably, and only then begins a new log.
//!
//! Invariants:
//! 1. A batch counts only if its checksums are right for its place, and it is the next one of this log: number,
//!    checksum of the head before it, and an incarnation that is not below the one before.
//! 2. What lies behind a recorded end never counts again, although it may become readable. The end is a place in a
//!    segment: whatever lies behind it there is not looked at, and a segment that had nothing is used anew.
//! 3. A recorded end is reached exactly, or something is damaged.
//! 4. A batch is written only when all but the last [`IN_FLIGHT_MAX`] less one before it are durable. So a valid
//!    batch as far behind the end proves that the end is no end, but damage. That is said, never passed over.
//! 5. A directory counts if the control log has its checksum. Else the segment's batches are read.
//!
//! The store's id is random and shown to nobody, so no value can hold what looks like a batch of this log.

use std::collections::VecDeque;

use crate::batch::{BATCH_ALIGN_BYTES, BATCH_BYTES_MAX, Batch};
use crate::directory::Directory;
use crate::log::{DirectoryAt, IN_FLIGHT_MAX, LogEnd, Segment, Start};
use crate::mistake::{Mistake, Rules, Sound};
use crate::place::sectors;
use crate::record::{Damage, Record};

/// Bytes of a read: the longest batch, wherever it begins, and then some.
const READ_BYTES: u64 = 4 << 20;
const _: () = assert!(READ_BYTES > 2 * BATCH_BYTES_MAX as u64);

/// A segment of a log, and its end if that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The segment.
    pub segment: Segment,
    /// Where its batches end; none: it may have been written to until the crash.
    pub end: Option<LogEnd>,
}

/// A read that the driver shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRead {
    /// Byte of the store.
    pub address: u64,
    /// Multiples of 4,096.
    pub bytes: u64,
}

/// Where a record was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundAt {
    /// Byte of the store.
    pub address: u64,
    /// Its batch.
    pub lsn: u64,
}

/// What a scan has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The number of the first batch that is not there.
    pub lsn: u64,
    /// Checksum of the head before it.
    pub crc_before: u32,
    /// Where it should lie: it was durable once, and is damaged.
    pub damaged_at: Option<u64>,
    /// Where batches end in each segment that has some and whose end was not recorded.
    pub ends: Vec<(u32, LogEnd)>,
}

/// A scan under way.
#[derive(Debug)]
pub struct Scan<R = Sound> {
    /// Number and checksum that the next batch must have; the incarnation is the last one's.
    next: Start,
    segments: VecDeque<Logged>,
    /// Bytes of the first segment that have been looked at.
    at: u64,
    /// The batch before this place was one of the log.
    is_following: bool,
    /// The first segment's directory is not good.
    lacks_directory: bool,
    /// Where the next batch should lie.
    expected_at: u64,
    damaged_at: Option<u64>,
    ends: Vec<(u32, LogEnd)>,
    rules: R,
}

impl<R: Rules> Scan<R> {
    /// Of the log whose next batch is this one, the lowest incarnation that may have written it, in these segments,
    /// oldest first.
    #[must_use]
    pub fn new(next: Start, segments: Vec<Logged>, rules: R) -> Self {
        let expected_at = segments.first().map_or(0, |it| it.segment.seat.address);
        Self {
            next,
            segments: segments.into(),
            at: 0,
            is_following: false,
            lacks_directory: false,
            expected_at,
            damaged_at: None,
            ends: Vec::new(),
            rules,
        }
    }

    /// The directory that is to be read next.
    fn directory(&self) -> Option<(Logged, LogEnd, DirectoryAt)> {
        let logged = *self.segments.front()?;
        let end = logged.end?;
        let directory = end.directory.filter(|_| !self.lacks_directory)?;
        Some((logged, end, directory))
    }

    /// Bytes of the first segment that may have batches.
    fn limit(&self, logged: &Logged) -> u64 {
        let end = logged
            .end
            .filter(|_| !self.rules.makes(Mistake::EndsIgnored));
        end.map_or(logged.segment.bytes, |end| end.bytes)
    }

    /// The next read; none: the scan is over.
    #[must_use]
    pub fn read(&self) -> Option<LogRead> {
        let logged = self.segments.front()?;
        if let Some((_, end, directory)) = self.directory() {
            let bytes = directory.bytes as usize;
            return Some(LogRead {
                address: logged.segment.seat.address + end.bytes,
                bytes: bytes.next_multiple_of(BATCH_ALIGN_BYTES) as u64,
            });
        }
        Some(LogRead {
            address: logged.segment.seat.address + self.at,
            bytes: READ_BYTES.min(self.limit(logged) - self.at),
        })
    }

    /// That read cannot be done.
    pub fn unreadable(&mut self) {
        if self.directory().is_some() {
            self.lacks_directory = true;
            return;
        }
        self.damaged_at = self.damaged_at.or(Some(self.expected_at));
        self.segments.clear();
    }

    /// What that read has brought. Each record of the log is given, in order.
    ///
    /// # Panics
    /// They are not as many bytes as were to be read.
    pub fn take(&mut self, bytes: &[u8], mut each: impl FnMut(FoundAt, &Record<'_>)) {
        let Some(logged) = self.segments.front().copied() else {
            return;
        };
        let wanted = self.read().map_or(0, |read| read.bytes);
        assert_eq!(bytes.len() as u64, wanted, "a read is whole");
        if let Some((logged, end, directory)) = self.directory() {
            self.take_directory(&logged, &end, &bytes[..directory.bytes as usize], &mut each);
            return;
        }
        let limit = self.limit(&logged);
        let is_last = self.at + wanted == limit;
        let mut rest = bytes;
        while !rest.is_empty() {
            let seat = logged.segment.seat.plus(self.at as usize);
            let decoded = Batch::decode(rest, seat);
            let may_be_cut = rest.len() < BATCH_BYTES_MAX && !is_last;
            if may_be_cut && decoded.as_ref().err() == Some(&Damage::Short) {
                return;
            }
            let step = self.step(&logged, decoded.ok(), &mut each);
            rest = &rest[step..];
            self.at += step as u64;
        }
        if self.at == limit {
            self.finish_segment(&logged);
        }
    }

    fn take_directory(
        &mut self,
        logged: &Logged,
        end: &LogEnd,
        bytes: &[u8],
        each: &mut impl FnMut(FoundAt, &Record<'_>),
    ) {
        let wanted_crc = end.directory.map(|directory| directory.crc);
        let is_right = wanted_crc == Some(crc32c::crc32c(bytes));
        let directory = Directory::decode(bytes).ok().filter(|directory| {
            let next = (self.next.lsn, self.next.crc_before);
            is_right && (directory.first_lsn, directory.crc_before) == next
        });
        let Some(directory) = directory else {
            self.lacks_directory = true;
            return;
        };
        for listing in directory.records().flatten() {
            let found = FoundAt {
                address: logged.segment.seat.address + listing.offset,
                lsn: listing.lsn,
            };
            each(found, &listing.record);
        }
        (self.next.lsn, self.next.crc_before) = (end.lsn, end.crc);
        self.finish_segment(logged);
    }

    fn finish_segment(&mut self, logged: &Logged) {
        if let Some(end) = logged.end {
            let is_reached = (self.next.lsn, self.next.crc_before) == (end.lsn, end.crc);
            if !is_reached && !self.rules.makes(Mistake::EndsIgnored) {
                self.damaged_at = self.damaged_at.or(Some(self.expected_at));
            }
        }
        self.segments.pop_front();
        if let (Some(next), None) = (self.segments.front(), self.damaged_at) {
            self.expected_at = next.segment.seat.address;
        }
        self.at = 0;
        self.is_following = false;
        self.lacks_directory = false;
    }

    /// Looks at one place of a segment, and says how far the next one is.
    fn step(
        &mut self,
        logged: &Logged,
        batch: Option<Batch<'_>>,
        each: &mut impl FnMut(FoundAt, &Record<'_>),
    ) -> usize {
        let batch = batch.filter(|batch| self.is_of_this_log(batch));
        let Some(batch) = batch else {
            self.is_following = false;
            return BATCH_ALIGN_BYTES;
        };
        let may_follow = self.is_following || self.at == 0;
        if !(may_follow && self.is_next(&batch)) {
            self.is_following = false;
            let proves = self.next.lsn.saturating_add(IN_FLIGHT_MAX as u64);
            if batch.head.lsn >= proves {
                self.damaged_at = self.damaged_at.or(Some(self.expected_at));
            }
            return BATCH_ALIGN_BYTES;
        }
        let lsn = batch.head.lsn;
        let mut touched = 0;
        for (address, record) in batch.records().flatten() {
            if record.head.kind.has_place() {
                touched += sectors(address, record.head.bytes() as u64) as u32;
            }
            each(FoundAt { address, lsn }, &record);
        }
        self.is_following = true;
        self.next.lsn = lsn + 1;
        self.next.crc_before = batch.crc;
        self.next.incarnation = batch.head.incarnation;
        let bytes = self.at + u64::from(batch.head.bytes);
        self.expected_at = logged.segment.seat.address + bytes;
        if logged.end.is_none() {
            let number = logged.segment.number;
            let before = self.ends.iter().find(|(other, _)| *other == number);
            let before = before.map_or(0, |(_, end)| end.sectors);
            self.ends.retain(|(other, _)| *other != number);
            let end = LogEnd {
                bytes,
                lsn: lsn + 1,
                crc: batch.crc,
                sectors: before + touched,
                directory: None,
            };
            self.ends.push((number, end));
        }
        batch.head.bytes as usize
    }

    /// Whether a batch was written by this log.
    fn is_of_this_log(&self, batch: &Batch<'_>) -> bool {
        let head = &batch.head;
        head.shard == self.next.shard
            && head.store_id == self.next.store_id
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
            damaged_at: self.damaged_at,
            ends: self.ends,
        }
    }
}
