// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a [scan](crate::scan) can read of batches that were durable once and are damaged.
//!
//! Invariants:
//! 1. Only who knows that it was durable may ask: a torn batch looks the same.
//! 2. Each record has a checksum of its own, for its place. So what is given was written there, in this use of the
//!    segment.
//! 3. Nothing is looked for within values, where a client could have put what looks like a record: behind a damaged
//!    head the next record is where that head says, or is not found.

use crate::batch::{BATCH_ALIGN_BYTES, BATCH_BYTES_MAX, BATCH_HEAD_BYTES, Batch, BatchHead};
use crate::bytes::{u16_at, u32_at};
use crate::key::Key;
use crate::log::LogEnd;
use crate::mistake::{Mistake, Rules};
use crate::place::sectors;
use crate::record::{
    RECORD_HEAD_BYTES, Record, RecordHead, Seat, decode_head, decode_record, record_bytes,
};
use crate::scan::{FoundAt, Logged, Scan};
use crate::version::Version;

/// Something of a log that a scan has found.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// A record.
    Record(&'a Record<'a>),
    /// A record whose value is damaged.
    Rotten(&'a RecordHead, Key<'a>),
    /// So many bytes, of which it is not known what they were; 0: nor how many they are.
    Lost(u64),
}

/// What lies between the last record before a rotten place and what is found next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Something of a batch is missing that counts as found.
    pub(crate) is_sure: bool,
}

impl<R: Rules> Scan<R> {
    /// What was durable is missing, and nothing that is valid lies behind it. The log ends where it would have ended.
    pub(crate) fn lose_end(&mut self, each: &mut impl FnMut(FoundAt, Found<'_>)) {
        self.lost(self.durable_lsn, None, each);
        (self.next.lsn, self.next.crc_before) = (self.durable_lsn, 0);
        self.is_chained = false;
        if let Some((_, end)) = self.ends.last_mut() {
            (end.lsn, end.crc) = (self.next.lsn, 0);
        } else if let Some(logged) = self.segments.get(self.expected.0).copied() {
            // It has nothing that could be read, and is looked at again by the next start.
            let bytes = self.expected.1.max(BATCH_ALIGN_BYTES as u64);
            self.note_end(&logged, bytes, Touched::default());
        }
    }

    /// What lies from the expected place up to here is lost, if a batch below this number is missing or a part of one.
    pub(crate) fn lost(
        &mut self,
        up_to_lsn: u64,
        incarnation: Option<u32>,
        each: &mut impl FnMut(FoundAt, Found<'_>),
    ) {
        let missing = up_to_lsn.saturating_sub(self.next.lsn);
        let is_missing = missing > 0;
        // Batches have no more, whatever else lies there.
        let most = (missing + 1).saturating_mul(BATCH_BYTES_MAX as u64);
        let mut gaps = std::mem::take(&mut self.gaps);
        if is_missing && gaps.is_empty() {
            gaps.push(Gap {
                address: self.address(self.expected),
                bytes: 0,
                is_sure: true,
            });
        }
        for gap in gaps.into_iter().filter(|gap| is_missing || gap.is_sure) {
            let found = FoundAt {
                address: gap.address,
                lsn: self.next.lsn,
                incarnation,
                first_version: Version::ZERO,
            };
            each(found, Found::Lost(gap.bytes.min(most)));
        }
    }

    /// A segment begins with this batch, and what lies before it is lost: that is within the end of its own segment, so
    /// that the next start meets it at the same place.
    pub(crate) fn end_behind_lost(&mut self, head: &BatchHead) {
        if self.at.1 > 0 || self.next.lsn >= head.lsn {
            return;
        }
        for gap in self.gaps.clone() {
            let has_it = |it: &&Logged| {
                let begin = it.segment.seat.address;
                it.end.is_none() && (begin..begin + it.segment.bytes).contains(&gap.address)
            };
            let Some(logged) = self.segments.iter().find(has_it) else {
                continue;
            };
            let number = logged.segment.number;
            let end = LogEnd {
                bytes: gap.address + gap.bytes - logged.segment.seat.address,
                lsn: head.lsn,
                crc: head.crc_before,
                sectors: 0,
                loose_bytes: None,
                directory: None,
            };
            match self.ends.iter_mut().find(|(other, _)| *other == number) {
                Some((_, it)) => {
                    *it = LogEnd {
                        sectors: it.sectors,
                        loose_bytes: it.loose_bytes,
                        ..end
                    }
                }
                None => self.ends.push((number, end)),
            }
        }
    }

    /// Takes what can be read at a place where a batch is rotten, or may be: how many bytes that were.
    pub(crate) fn salvage(
        &mut self,
        logged: &Logged,
        rest: &[u8],
        each: &mut impl FnMut(FoundAt, Found<'_>),
    ) -> usize {
        let seat = logged.segment.seat.plus(self.at.1 as usize);
        let head = BatchHead::decode(rest, seat).ok().filter(|(head, _)| {
            let is_durable = head.lsn < self.durable_lsn;
            is_durable && self.is_of_this_log(head) && self.is_behind_gap(head)
        });
        if let Some((head, crc)) = head {
            return self.take_damaged(logged, (&head, crc), rest, each);
        }
        let bytes = self.take_headless(logged, rest, each);
        if bytes > 0 {
            return bytes;
        }
        self.widen_gap(seat.address);
        BATCH_ALIGN_BYTES
    }

    /// The next piece is not known what it was.
    fn widen_gap(&mut self, address: u64) {
        let bytes = BATCH_ALIGN_BYTES as u64;
        match self.gaps.last_mut() {
            Some(gap) if gap.address + gap.bytes == address => gap.bytes += bytes,
            _ => self.gaps.push(Gap {
                address,
                bytes,
                is_sure: false,
            }),
        }
    }

    /// Behind a batch without a head the next one of its segment lies at once, or something of it is missing.
    pub(crate) fn find_cut(&mut self) {
        let is_off = self.at.0 == self.expected.0 && self.at != self.expected;
        if !is_off || self.is_chained {
            return;
        }
        if self.gaps.is_empty() {
            self.gaps.push(Gap {
                address: self.address(self.expected),
                bytes: self.at.1 - self.expected.1,
                is_sure: true,
            });
        }
        self.gaps.iter_mut().for_each(|gap| gap.is_sure = true);
    }

    /// Takes a batch whose records are damaged, and whose head is not.
    fn take_damaged(
        &mut self,
        logged: &Logged,
        (head, crc): (&BatchHead, u32),
        rest: &[u8],
        each: &mut impl FnMut(FoundAt, Found<'_>),
    ) -> usize {
        let (lsn, incarnation) = (head.lsn, Some(head.incarnation));
        let first_version = head.first_version;
        self.find_cut();
        self.end_behind_lost(head);
        self.lost(lsn, incarnation, each);
        let length = (head.bytes as usize).min(rest.len());
        let seat = logged
            .segment
            .seat
            .plus(self.at.1 as usize + BATCH_HEAD_BYTES);
        let content = &rest[BATCH_HEAD_BYTES.min(length)..length];
        let takes_rest = !self.rules.makes(Mistake::RestAbandoned);
        let mut touched = Touched::default();
        let walked = walk(
            content,
            seat,
            Some(head.records),
            takes_rest,
            |address, it| {
                touched.add(address, &it);
                let found = FoundAt {
                    address,
                    lsn,
                    incarnation,
                    first_version,
                };
                each(found, it);
            },
        );
        if walked.is_cut {
            let found = FoundAt {
                address: seat.address + walked.bytes as u64,
                lsn,
                incarnation,
                first_version,
            };
            each(found, Found::Lost((content.len() - walked.bytes) as u64));
        }
        self.follow(logged, head, crc, touched);
        length
    }

    /// Takes the records of a batch whose head is damaged: how many bytes they are; 0: there are none.
    fn take_headless(
        &mut self,
        logged: &Logged,
        rest: &[u8],
        each: &mut impl FnMut(FoundAt, Found<'_>),
    ) -> usize {
        let is_expected = self.at == self.expected;
        if rest.len() <= BATCH_HEAD_BYTES || !is_expected && self.at.1 > 0 {
            return 0;
        }
        let seat = logged.segment.seat.plus(self.at.1 as usize);
        let place = seat.plus(BATCH_HEAD_BYTES);
        let content = &rest[BATCH_HEAD_BYTES..rest.len().min(BATCH_BYTES_MAX)];
        let takes_rest = !self.rules.makes(Mistake::RestAbandoned);
        let mut records = 0;
        let walked = walk(content, place, None, takes_rest, |_, it| {
            records += u32::from(!matches!(it, Found::Lost(_)));
        });
        let bytes = (BATCH_HEAD_BYTES + walked.bytes).next_multiple_of(BATCH_ALIGN_BYTES);
        let behind = rest.get(bytes..).unwrap_or_default();
        let lsn = self.before(behind, seat.plus(bytes));
        let Some(lsn) = lsn.or(is_expected.then_some(self.next.lsn)) else {
            return 0;
        };
        if records == 0 {
            return 0;
        }
        // Nobody says who has written what a segment begins with.
        let incarnation = (self.at.1 > 0).then_some(self.next.incarnation);
        self.lost(lsn, incarnation, each);
        let mut touched = Touched::default();
        walk(content, place, None, takes_rest, |address, it| {
            touched.add(address, &it);
            let found = FoundAt {
                address,
                lsn,
                incarnation,
                first_version: Version::ZERO,
            };
            each(found, it);
        });
        (self.next.lsn, self.next.crc_before) = (lsn + 1, 0);
        self.is_chained = false;
        self.expected = (self.at.0, self.at.1 + bytes as u64);
        self.note_end(logged, self.expected.1, touched);
        if walked.is_cut {
            self.gaps.push(Gap {
                address: place.address + walked.bytes as u64,
                bytes: (bytes - BATCH_HEAD_BYTES - walked.bytes) as u64,
                is_sure: true,
            });
        }
        bytes
    }

    /// The number before that of the batch that lies there, if that was durable and is missing.
    fn before(&self, bytes: &[u8], seat: Seat) -> Option<u64> {
        let behind = Batch::decode(bytes, seat).ok()?.head;
        let lsn = behind.lsn.checked_sub(1)?;
        let is_missing = (self.next.lsn..self.durable_lsn).contains(&lsn);
        (is_missing && self.is_of_this_log(&behind)).then_some(lsn)
    }
}

/// What records that versions can need take of a segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Touched {
    /// Sectors; one that two of them touch counts twice.
    pub(crate) sectors: u32,
    /// Bytes.
    pub(crate) bytes: u32,
}

impl Touched {
    /// One was found at this address.
    pub(crate) fn add(&mut self, address: u64, found: &Found<'_>) {
        let head = match found {
            Found::Record(record) => &record.head,
            Found::Rotten(head, _) => *head,
            Found::Lost(_) => return,
        };
        if head.kind.has_place() {
            self.sectors += sectors(address, head.bytes() as u64) as u32;
            self.bytes += head.bytes() as u32;
        }
    }
}

/// What came of a walk through a damaged batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Walked {
    /// Bytes up to the end of the last record that was found.
    bytes: usize,
    /// Behind them lies something that is not known.
    is_cut: bool,
}

/// Walks through the records of a batch, of which there are so many; none: its head does not say it. What is found is
/// given with its address. `takes_rest`: also behind a damaged head.
fn walk(
    content: &[u8],
    seat: Seat,
    count: Option<u16>,
    takes_rest: bool,
    mut each: impl FnMut(u64, Found<'_>),
) -> Walked {
    let (mut at, mut records) = (0, 0);
    let is_end = |at: usize, records: usize| match count {
        Some(count) => records >= usize::from(count),
        None => {
            let (rest, there) = (&content[at..], seat.plus(at));
            is_padding(rest, there) && decode_head(rest, there).is_err()
        }
    };
    while at < content.len() && !is_end(at, records) {
        let (rest, there) = (&content[at..], seat.plus(at));
        let bytes = match decode_head(rest, there) {
            Ok((head, _)) if head.bytes() > rest.len() => None,
            Ok((head, key)) => {
                match decode_record(rest, there) {
                    Ok(record) => each(there.address, Found::Record(&record)),
                    Err(_) => each(there.address, Found::Rotten(&head, key)),
                }
                Some(head.bytes())
            }
            Err(_) => {
                let is_last = count.is_some_and(|count| records + 1 == usize::from(count));
                let claimed = claimed(rest, there).filter(|_| takes_rest);
                let bytes = if is_last { Some(rest.len()) } else { claimed };
                if let Some(bytes) = bytes {
                    each(there.address, Found::Lost(bytes as u64));
                }
                bytes
            }
        };
        let Some(bytes) = bytes else {
            let is_cut = true;
            return Walked { bytes: at, is_cut };
        };
        at += bytes;
        records += 1;
    }
    Walked {
        bytes: at.min(content.len()),
        is_cut: false,
    }
}

/// How long a record with a damaged head says that it is, if another one follows there.
fn claimed(rest: &[u8], seat: Seat) -> Option<usize> {
    let head = rest.get(..RECORD_HEAD_BYTES)?;
    let bytes = record_bytes(usize::from(u16_at(head, 2)), u32_at(head, 4) as usize);
    let next = rest.get(bytes..)?;
    let follows = decode_head(next, seat.plus(bytes)).is_ok();
    follows.then_some(bytes)
}

/// Nothing but zeros up to where the next batch may begin.
fn is_padding(rest: &[u8], seat: Seat) -> bool {
    let left = seat.address.next_multiple_of(BATCH_ALIGN_BYTES as u64) - seat.address;
    let left = &rest[..rest.len().min(left as usize)];
    left.iter().all(|byte| *byte == 0)
}
