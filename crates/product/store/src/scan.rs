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
//! 3. What is known to have been durable is not missing but rotten: what a recorded end has before it, what the control
//!    log says, and what a valid batch [says](crate::batch::BatchHead::durable_lsn), also one that does not count
//!    itself. What can be read of it counts, and all else is told.
//! 4. Behind rot the next batch that is valid counts if all that are missing before it were durable.
//! 5. Of the rest the first batch that is not valid is the end: a write that a crash has torn.
//! 6. What cannot be read ends the scan: another time it may be readable. Who [repairs](Scan::repairing) takes it for
//!    rot where it was durable, and tells of it where the log may have gone on.
//! 7. Who repairs may know with which number a later segment begins: nothing before it has that number or a higher one.
//! 8. A directory counts if the control log has its checksum. Else the segment's batches are read.
//!
//! The store's id is random and shown to nobody, so no value can hold what looks like a batch of this log.

use crate::batch::{BATCH_ALIGN_BYTES, BATCH_BYTES_MAX, Batch, BatchHead};
use crate::directory::Directory;
use crate::log::{DirectoryAt, LogEnd, Segment, Start};
use crate::mistake::{Mistake, Rules, Sound};
use crate::record::Damage;
use crate::salvage::{Found, Gap, Touched};
use crate::version::Version;

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

/// Where something was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundAt {
    /// Byte of the store.
    pub address: u64,
    /// Its batch.
    pub lsn: u64,
    /// Who wrote it; none: it is not known.
    pub incarnation: Option<u32>,
    /// Of something that is lost: no version of its batch is below it; [`Version::ZERO`]: it is not known.
    pub first_version: Version,
}

/// What a scan has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The number of the first batch that is not there.
    pub lsn: u64,
    /// Checksum of the head before it; 0: that is not known.
    pub crc_before: u32,
    /// What cannot be read, or cannot be.
    pub damaged_at: Option<u64>,
    /// Where batches end in each segment that has some and whose end was not recorded.
    pub ends: Vec<(u32, LogEnd)>,
}

/// A place of a log: which of its segments, and bytes behind its begin.
type At = (usize, u64);

/// A read that has failed: it is repeated in the smallest pieces.
#[derive(Debug)]
struct Patching {
    bytes: Vec<u8>,
    wanted: u64,
}

/// A scan under way.
#[derive(Debug)]
pub struct Scan<R = Sound> {
    /// Number and checksum that the next batch must have; the incarnation is the last one's.
    pub(crate) next: Start,
    /// The checksum before it is known.
    pub(crate) is_chained: bool,
    pub(crate) segments: Vec<Logged>,
    /// What is looked at.
    pub(crate) at: At,
    /// The batch before this place was one of the log.
    is_following: bool,
    /// The segment's directory is not good.
    lacks_directory: bool,
    /// Where the next batch should lie.
    pub(crate) expected: At,
    /// Batches below it were durable.
    pub(crate) durable_lsn: u64,
    /// What is missing is rotten: what can be read is taken.
    is_salvaging: bool,
    /// What lies between the last record and here, by segment.
    pub(crate) gaps: Vec<Gap>,
    patching: Option<Patching>,
    /// The last place that could not be read.
    unreadable: Option<At>,
    is_repairing: bool,
    /// By segment: batches from this number on are not in it. Those that are missing have none.
    stops: Vec<u64>,
    damaged_at: Option<u64>,
    pub(crate) ends: Vec<(u32, LogEnd)>,
    pub(crate) rules: R,
}

impl<R: Rules> Scan<R> {
    /// Of the log whose next batch is this one, the lowest incarnation that may have written it, in these segments,
    /// oldest first. Batches below `durable_lsn` are known to have been durable.
    #[must_use]
    pub fn new(next: Start, segments: Vec<Logged>, durable_lsn: u64, rules: R) -> Self {
        let ends = segments.iter().filter_map(|logged| logged.end);
        let ended_lsn = ends.map(|end| end.lsn).max().unwrap_or(0);
        let counts = !rules.makes(Mistake::EndsIgnored);
        Self {
            next,
            is_chained: true,
            segments,
            at: (0, 0),
            is_following: false,
            lacks_directory: false,
            expected: (0, 0),
            durable_lsn: durable_lsn.max(if counts { ended_lsn } else { 0 }),
            is_salvaging: false,
            gaps: Vec::new(),
            patching: None,
            unreadable: None,
            is_repairing: false,
            stops: Vec::new(),
            damaged_at: None,
            ends: Vec::new(),
            rules,
        }
    }

    /// The same, which goes on where something cannot be read.
    #[must_use]
    pub fn repairing(self, is_repairing: bool) -> Self {
        Self {
            is_repairing,
            ..self
        }
    }

    /// The same, where each segment has batches below such a number alone.
    #[must_use]
    pub(crate) fn stopping(self, stops: Vec<u64>) -> Self {
        Self { stops, ..self }
    }

    fn stop(&self) -> u64 {
        self.stops.get(self.at.0).copied().unwrap_or(u64::MAX)
    }

    fn logged(&self) -> Option<Logged> {
        self.segments.get(self.at.0).copied()
    }

    /// The byte of the store at a place.
    pub(crate) fn address(&self, (segment, bytes): At) -> u64 {
        let logged = self.segments.get(segment).or(self.segments.last());
        logged.map_or(0, |it| it.segment.seat.address + bytes)
    }

    /// The directory that is to be read next.
    fn directory(&self) -> Option<(Logged, LogEnd, DirectoryAt)> {
        let logged = self.logged()?;
        let end = logged.end?;
        let directory = end.directory.filter(|_| !self.lacks_directory)?;
        Some((logged, end, directory))
    }

    /// Bytes of a segment that may have batches.
    fn limit(&self, logged: &Logged) -> u64 {
        let end = logged
            .end
            .filter(|_| !self.rules.makes(Mistake::EndsIgnored));
        end.map_or(logged.segment.bytes, |end| end.bytes)
    }

    /// The next read; none: the scan is over.
    #[must_use]
    pub fn read(&self) -> Option<LogRead> {
        let logged = self.logged()?;
        let begin = logged.segment.seat.address;
        if let Some((_, end, directory)) = self.directory() {
            let bytes = directory.bytes as usize;
            return Some(LogRead {
                address: begin + end.bytes,
                bytes: bytes.next_multiple_of(BATCH_ALIGN_BYTES) as u64,
            });
        }
        if let Some(patching) = &self.patching {
            return Some(LogRead {
                address: begin + self.at.1 + patching.bytes.len() as u64,
                bytes: BATCH_ALIGN_BYTES as u64,
            });
        }
        Some(LogRead {
            address: begin + self.at.1,
            bytes: READ_BYTES.min(self.limit(&logged) - self.at.1),
        })
    }

    /// What that read has brought; none: it cannot be done. What is found of the log is given, in order.
    ///
    /// # Panics
    /// They are not as many bytes as were to be read.
    pub fn take(&mut self, bytes: Option<&[u8]>, mut each: impl FnMut(FoundAt, Found<'_>)) {
        let (Some(logged), Some(read)) = (self.logged(), self.read()) else {
            return;
        };
        let is_whole = bytes.is_none_or(|bytes| bytes.len() as u64 == read.bytes);
        assert!(is_whole, "a read is whole");
        if let Some((logged, end, directory)) = self.directory() {
            match bytes {
                Some(bytes) => {
                    let bytes = &bytes[..directory.bytes as usize];
                    self.take_directory(&logged, &end, bytes, &mut each);
                }
                None => self.lacks_directory = true,
            }
            return;
        }
        let Some(mut patching) = self.patching.take() else {
            match bytes {
                Some(bytes) => self.take_batches(&logged, bytes, &mut each),
                None => {
                    self.patching = Some(Patching {
                        bytes: Vec::new(),
                        wanted: read.bytes,
                    });
                }
            }
            return;
        };
        if bytes.is_none() {
            if !self.is_repairing {
                self.damaged_at = self.damaged_at.or(Some(read.address));
                self.at = (self.segments.len(), 0);
                return;
            }
            self.unreadable = Some((self.at.0, self.at.1 + patching.bytes.len() as u64));
        }
        let unread = [0; BATCH_ALIGN_BYTES];
        patching.bytes.extend_from_slice(bytes.unwrap_or(&unread));
        if (patching.bytes.len() as u64) < patching.wanted {
            self.patching = Some(patching);
        } else {
            self.take_batches(&logged, &patching.bytes, &mut each);
        }
    }

    fn take_batches(
        &mut self,
        logged: &Logged,
        bytes: &[u8],
        each: &mut impl FnMut(FoundAt, Found<'_>),
    ) {
        let limit = self.limit(logged);
        let is_last = self.at.1 + bytes.len() as u64 == limit;
        let mut rest = bytes;
        while !rest.is_empty() {
            let seat = logged.segment.seat.plus(self.at.1 as usize);
            let decoded = Batch::decode(rest, seat);
            let may_be_cut = rest.len() < BATCH_BYTES_MAX && !is_last;
            let is_cut = self.is_salvaging || decoded.as_ref().err() == Some(&Damage::Short);
            if may_be_cut && is_cut {
                return;
            }
            let Some(step) = self.step(logged, rest, decoded.ok(), each) else {
                return;
            };
            rest = &rest[step.min(rest.len())..];
            self.at.1 = (self.at.1 + step as u64).min(limit);
        }
        if self.at.1 == limit {
            self.finish_segment(logged, each);
        }
    }

    fn take_directory(
        &mut self,
        logged: &Logged,
        end: &LogEnd,
        bytes: &[u8],
        each: &mut impl FnMut(FoundAt, Found<'_>),
    ) {
        let wanted_crc = end.directory.map(|directory| directory.crc);
        let is_right = wanted_crc == Some(crc32c::crc32c(bytes));
        let directory = Directory::decode(bytes).ok().filter(|directory| {
            let is_next = directory.first_lsn == self.next.lsn;
            is_right && is_next && directory.crc_before == self.next.crc_before
        });
        let Some(directory) = directory else {
            self.lacks_directory = true;
            return;
        };
        for listing in directory.records().flatten() {
            let found = FoundAt {
                address: logged.segment.seat.address + listing.offset,
                lsn: listing.lsn,
                incarnation: None,
                first_version: Version::ZERO,
            };
            each(found, Found::Record(&listing.record));
        }
        (self.next.lsn, self.next.crc_before) = (end.lsn, end.crc);
        self.finish_segment(logged, each);
    }

    fn finish_segment(&mut self, logged: &Logged, each: &mut impl FnMut(FoundAt, Found<'_>)) {
        let end = logged
            .end
            .filter(|_| !self.rules.makes(Mistake::EndsIgnored));
        if let Some(end) = end {
            let is_reached = (self.next.lsn, self.next.crc_before) == (end.lsn, end.crc);
            if self.next.lsn > end.lsn || !is_reached && self.next.lsn == end.lsn && self.is_chained
            {
                let expected = self.address(self.expected);
                self.damaged_at = self.damaged_at.or(Some(expected));
            }
            if self.next.lsn < end.lsn || !self.gaps.is_empty() {
                self.lost(end.lsn, None, each);
            }
            (self.next.lsn, self.next.crc_before) = (end.lsn, end.crc);
            self.is_chained = true;
            self.is_salvaging = false;
        }
        self.at = (self.at.0 + 1, 0);
        if end.is_some() {
            self.expected = self.at;
        }
        self.is_following = false;
        self.lacks_directory = false;
        if self.at.0 == self.segments.len() {
            self.finish_last(each);
        }
    }

    /// Nothing is left to be looked at.
    fn finish_last(&mut self, each: &mut impl FnMut(FoundAt, Found<'_>)) {
        if self.next.lsn < self.durable_lsn {
            self.lose_end(each);
        } else if !self.gaps.is_empty() {
            self.lost(self.next.lsn, None, each);
        }
        let last = self.unreadable.filter(|at| *at >= self.expected);
        if let Some(at) = last.filter(|_| self.segments.iter().any(|it| it.end.is_none())) {
            // The log may have gone on there.
            let found = FoundAt {
                address: self.address(at),
                lsn: self.next.lsn,
                incarnation: None,
                first_version: Version::ZERO,
            };
            each(found, Found::Lost(BATCH_ALIGN_BYTES as u64));
        }
    }

    /// Looks at one place of a segment, and says how far the next one is. None: another one is to be read.
    fn step(
        &mut self,
        logged: &Logged,
        rest: &[u8],
        batch: Option<Batch<'_>>,
        each: &mut impl FnMut(FoundAt, Found<'_>),
    ) -> Option<usize> {
        let is_whole = |it: &Batch<'_>| it.records().all(|record| record.is_ok());
        let batch = batch.filter(|it| self.is_of_this_log(&it.head) && is_whole(it));
        if let Some(batch) = &batch {
            self.hear(&batch.head);
            let may_follow = self.is_following || self.at.1 == 0 || !self.is_chained;
            let is_next = may_follow && self.is_next(&batch.head);
            if is_next || self.is_salvaging && self.is_behind_gap(&batch.head) {
                self.accept(logged, batch, each);
                return Some(batch.head.bytes as usize);
            }
        }
        self.is_following = false;
        if self.next.lsn >= self.durable_lsn.min(self.stop()) {
            self.is_salvaging = false;
            return Some(BATCH_ALIGN_BYTES);
        }
        if self.is_salvaging {
            return Some(self.salvage(logged, rest, each));
        }
        // It was durable, so it is rotten: what can be read of it is.
        self.is_salvaging = true;
        self.lacks_directory = false;
        self.gaps.retain(|gap| gap.is_sure);
        self.at = self.expected;
        if self.logged().is_some_and(|it| self.at.1 == self.limit(&it)) {
            self.at = (self.at.0 + 1, 0);
            self.expected = self.at;
        }
        None
    }

    /// Takes a batch of the log.
    fn accept(
        &mut self,
        logged: &Logged,
        batch: &Batch<'_>,
        each: &mut impl FnMut(FoundAt, Found<'_>),
    ) {
        let (lsn, incarnation) = (batch.head.lsn, batch.head.incarnation);
        self.find_cut();
        self.end_behind_lost(&batch.head);
        self.lost(lsn, Some(incarnation), each);
        let mut touched = Touched::default();
        for (address, record) in batch.records().flatten() {
            touched.add(address, &Found::Record(&record));
            let found = FoundAt {
                address,
                lsn,
                incarnation: Some(incarnation),
                first_version: batch.head.first_version,
            };
            each(found, Found::Record(&record));
        }
        self.follow(logged, &batch.head, batch.crc, touched);
    }

    /// A batch was taken, as far as it could be read.
    pub(crate) fn follow(&mut self, logged: &Logged, head: &BatchHead, crc: u32, touched: Touched) {
        self.is_following = true;
        self.is_salvaging = false;
        self.next.lsn = head.lsn + 1;
        self.next.crc_before = crc;
        self.next.incarnation = head.incarnation;
        self.is_chained = true;
        self.expected = (self.at.0, self.at.1 + u64::from(head.bytes));
        self.note_end(logged, self.expected.1, touched);
    }

    pub(crate) fn note_end(&mut self, logged: &Logged, bytes: u64, touched: Touched) {
        if logged.end.is_some() {
            return;
        }
        let number = logged.segment.number;
        let before = self.ends.iter().find(|(other, _)| *other == number);
        let before = before.map(|(_, end)| *end);
        // All but those records: a log goes on in a segment of its own.
        let loose = match before {
            Some(before) => before.loose_bytes,
            None => u32::try_from(logged.segment.bytes).ok(),
        };
        self.ends.retain(|(other, _)| *other != number);
        let end = LogEnd {
            bytes,
            lsn: self.next.lsn,
            crc: self.next.crc_before,
            sectors: before.map_or(0, |end| end.sectors) + touched.sectors,
            loose_bytes: loose.map(|loose| loose.saturating_sub(touched.bytes)),
            directory: None,
        };
        self.ends.push((number, end));
    }

    /// What a batch says of those before it, whether it counts itself or not.
    fn hear(&mut self, head: &BatchHead) {
        let is_later = head.incarnation >= self.next.incarnation;
        if is_later && !self.rules.makes(Mistake::VouchersIgnored) {
            self.durable_lsn = self.durable_lsn.max(head.durable_lsn());
        }
    }

    /// Whether a batch was written by this log.
    pub(crate) fn is_of_this_log(&self, head: &BatchHead) -> bool {
        let is_its = head.shard == self.next.shard && head.store_id == self.next.store_id;
        is_its && head.lsn < self.stop()
    }

    fn is_next(&self, head: &BatchHead) -> bool {
        let is_later = head.incarnation >= self.next.incarnation;
        if self.rules.makes(Mistake::ChainUnchecked) {
            return is_later && head.lsn >= self.next.lsn;
        }
        let is_chained = !self.is_chained || head.crc_before == self.next.crc_before;
        head.lsn == self.next.lsn && is_chained && is_later
    }

    /// All that is missing before it was durable.
    pub(crate) fn is_behind_gap(&self, head: &BatchHead) -> bool {
        let is_later = head.incarnation >= self.next.incarnation;
        is_later && (self.next.lsn..=self.durable_lsn).contains(&head.lsn)
    }

    /// What was found, once nothing is left to be read.
    #[must_use]
    pub fn finish(self) -> Scanned {
        // No number is given twice, although no segment of the log may be known any more.
        let is_behind = self.next.lsn < self.durable_lsn;
        Scanned {
            lsn: self.next.lsn.max(self.durable_lsn),
            crc_before: if is_behind { 0 } else { self.next.crc_before },
            damaged_at: self.damaged_at,
            ends: self.ends,
        }
    }
}
