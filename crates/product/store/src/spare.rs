// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What collecting a segment would win, and which one is best collected.
//!
//! Invariants:
//! 1. All of a segment is won but what copies of what is needed of it take. So heads of batches, padding, records that no
//!    version needs and what lies after an end that came early are garbage like records that are not needed any more.
//! 2. What copies would lose again is not won: the directory, what is too short for the next record, and some padding of
//!    their own batches. So what is copied densely is not copied once more, and collecting ends if users write nothing.
//! 3. What a log has counted of its segment is durable: a start knows it of segments that it does not read. Of one whose
//!    end is not known, or was written by a program that did not count, less is taken for won, never more: but what is
//!    not known is collected once where space is short, and is known then.

use crate::batch::{BATCH_ALIGN_BYTES, BATCH_BYTES_MAX, BATCH_HEAD_BYTES};
use crate::collect::LogSegment;
use crate::log::LogEnd;
use crate::mistake::{Mistake, Rules};
use crate::place::SECTOR_BYTES;
use crate::shard::Shard;
use crate::space::Space;
use crate::usage::Needed;

/// A segment is looked for again when so many records have ceased to be needed, for each sixteen segments.
const LOOK_SHARE: u64 = 16;
/// What a segment must have that is won to be collected, in thousandths: while there is plenty, when space is low, and
/// when it is short.
const SPARE_PLENTY: u64 = 875;
const SPARE_LOW: u64 = 333;
const SPARE_SHORT: u64 = 60;
/// Batches of copies beyond one for each piece that is read: segments end within them, at both ends of what is copied.
const BATCHES_CUT: u64 = 2;

/// Bytes of a segment that batches of copies lose at most to their heads and padding.
fn lost_by_copies(end: &LogEnd) -> u64 {
    let pieces = end.bytes.div_ceil(BATCH_BYTES_MAX as u64);
    (pieces + BATCHES_CUT) * (BATCH_ALIGN_BYTES + BATCH_HEAD_BYTES) as u64
}

/// Bytes of a segment that copies of all its records would take.
fn dense_bytes(segment_bytes: u64, end: &LogEnd) -> u64 {
    let loose = match end.loose_bytes {
        Some(loose) => u64::from(loose),
        // Records are no longer than the sectors that they touch. With a directory the log has gone on because the next
        // record was too long.
        None => {
            let records = end.bytes.min(u64::from(end.sectors) * SECTOR_BYTES);
            let is_whole = end.directory.is_some();
            let whole = if is_whole { end.bytes } else { segment_bytes };
            whole.saturating_sub(records)
        }
    };
    let won = loose.saturating_sub(lost_by_copies(end));
    segment_bytes.saturating_sub(won)
}

/// Thousandths of a segment that collecting would win, if so much of it is needed.
fn won(segment_bytes: u64, end: Option<&LogEnd>, needed: Needed) -> u64 {
    let sectors = u64::from(needed.sectors);
    let thousandths = |bytes: u64| 1000 - (bytes * 1000 / segment_bytes.max(1)).min(1000);
    match end {
        // Nothing else is known of it.
        None => thousandths(sectors * SECTOR_BYTES).max(SPARE_SHORT),
        Some(end) => {
            let all = u64::from(end.sectors).max(sectors).max(1);
            thousandths(dense_bytes(segment_bytes, end) * sectors / all)
        }
    }
}

impl<R: Rules + Copy> Shard<R> {
    /// Nothing was worth collecting when it was last looked for, and little has changed since.
    pub(crate) fn is_futile(&self) -> bool {
        let due = self.collector.segments.len() as u64 / LOOK_SHARE;
        let (space, ceased) = (self.shared.space(), self.versions.usage.ceased());
        let looked = self.collector.looked;
        looked.is_some_and(|(at, then)| then == space && ceased - at <= due)
    }

    /// The segment that is best collected now.
    pub(crate) fn choose(&mut self) -> Option<u32> {
        let space = self.shared.space();
        let least = match space {
            Space::Plenty => SPARE_PLENTY,
            Space::Low => SPARE_LOW,
            Space::Short | Space::Full | Space::Reserve => SPARE_SHORT,
            Space::Last => return None,
        };
        if self.is_futile() {
            return None;
        }
        let newest = self.collector.segments.values().map(|it| it.segment.order);
        let newest = newest.max().unwrap_or(0);
        let worth = self.collector.segments.values().filter_map(|segment| {
            let spare = self.spare(segment)?;
            // What is won, by what it costs, and for how long it will last. When space is full only what is won counts.
            let age = if space < Space::Full {
                newest - segment.segment.order + 1
            } else {
                1
            };
            let worth = u128::from(spare) * u128::from(age) * 1000 / u128::from(2000 - spare);
            (spare >= least).then_some((worth, segment.segment.number))
        });
        let best = worth.max().map(|(_, number)| number);
        let ceased = self.versions.usage.ceased();
        self.collector.looked = best.is_none().then_some((ceased, space));
        best
    }

    /// Thousandths of a segment that collecting would win. None: it is not to be collected.
    fn spare(&self, segment: &LogSegment) -> Option<u64> {
        let needed = self.versions.needed(segment.segment.number);
        let is_open = !segment.is_closed || segment.is_reported || segment.is_damaged;
        if is_open || needed.records == 0 {
            return None;
        }
        let mut end = segment.end;
        if self.rules.makes(Mistake::PaddingNeeded) {
            end = end.map(|end| LogEnd {
                loose_bytes: Some(0),
                ..end
            });
        }
        Some(won(segment.segment.bytes, end.as_ref(), needed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::DirectoryAt;

    const SEGMENT_BYTES: u64 = 4 << 20;

    fn end(bytes: u64, sectors: u32, loose_bytes: Option<u32>) -> LogEnd {
        LogEnd {
            bytes,
            lsn: 9,
            crc: 1,
            sectors,
            loose_bytes,
            directory: Some(DirectoryAt { bytes: 100, crc: 1 }),
        }
    }

    fn of(records: u32, sectors: u32) -> Needed {
        Needed { records, sectors }
    }

    #[test]
    fn padding_is_won_and_dense_records_are_not() {
        // A record of a sector in each 4,096 bytes.
        let bytes = SEGMENT_BYTES - 8192;
        let count = (bytes / 4096) as u32;
        let loose = Some(bytes as u32 - count * 200);
        let short = end(bytes, count, loose);
        let spare = won(SEGMENT_BYTES, Some(&short), of(count, count));
        assert!((930..960).contains(&spare), "{spare}");
        // A program that did not count has left what is sure: that each of them is within its sector.
        let uncounted = end(bytes, count, None);
        let spare = won(SEGMENT_BYTES, Some(&uncounted), of(count, count));
        assert!((850..880).contains(&spare), "{spare}");
        // As many records one after the other: each sector has several.
        let dense = end(bytes, 30_000, Some(9000));
        assert_eq!(won(SEGMENT_BYTES, Some(&dense), of(20_000, 30_000)), 0);
        let half = won(SEGMENT_BYTES, Some(&dense), of(10_000, 15_000));
        assert_eq!(half, 500);
    }

    #[test]
    fn what_copies_lose_again_is_not_won() {
        // Each piece that is read has as much padding as a batch can have.
        let bytes = SEGMENT_BYTES - 8192;
        let padded = end(bytes, 8000, Some(4 * 4160));
        assert_eq!(won(SEGMENT_BYTES, Some(&padded), of(4, 8000)), 0);
        // What was too short for the next record is no part of what is loose.
        let long = end(3 << 20, 6200, Some(4 * 4160));
        assert_eq!(won(SEGMENT_BYTES, Some(&long), of(3, 6200)), 0);
    }

    #[test]
    fn a_segment_whose_end_is_not_known_is_collected_where_space_is_short() {
        assert_eq!(won(SEGMENT_BYTES, None, of(20_000, 30_000)), SPARE_SHORT);
        assert!(won(SEGMENT_BYTES, None, of(1, 1)) > SPARE_PLENTY);
    }
}
