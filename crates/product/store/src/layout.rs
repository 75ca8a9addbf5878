// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What lies where in a store.
//!
//! ```text
//! 0        superblocks, one each 64 KiB
//! 256 KiB  two areas of the control log
//!          segments
//! ```
//!
//! Invariants:
//! 1. Nothing overlaps, and all lies within the store. Everything begins at a multiple of 4,096.
//! 2. A control area holds the largest state twice, so there is always room to go on behind a snapshot of it.

use crate::batch::BATCH_BYTES_MAX;
use crate::log::Segment;
use crate::place::{ADDRESS_END_BYTES, SEGMENT_BYTES};
use crate::record::Seat;

/// Copies of the superblock.
pub const SUPERBLOCKS: usize = 4;
/// So far apart that no erase block or stripe has two.
const SUPERBLOCK_SPACING_BYTES: u64 = 64 << 10;
const AREAS_AT: u64 = SUPERBLOCKS as u64 * SUPERBLOCK_SPACING_BYTES;
/// Everything begins at a multiple of it.
pub const ALIGN_BYTES: u64 = 4096;
/// Rows, snapshots, samples and settings at their bounds, twice.
const AREA_BYTES: u64 = 16 << 20;
/// A segment's state and the record around it, twice.
const AREA_BYTES_PER_SEGMENT: u64 = 256;
/// What all but segments needs of an area, at its bounds and twice. The rest of [`AREA_BYTES`] is for segments that are
/// added later: 16,384.
const AREA_BYTES_NEEDED: u64 = 12 << 20;
/// Most shards.
pub const SHARDS_MAX: u16 = 64;
/// Bits of a hash that choose the shard, and the lowest of them.
const SHARD_BITS: u32 = 15;
const SHARD_LOWEST: u32 = 17;
/// The shard that a batch of the control log names.
pub const CONTROL_SHARD: u16 = u16::MAX;

/// What lies where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// All bytes.
    pub store_bytes: u64,
    /// Of a segment.
    pub segment_bytes: u64,
    /// Of each area of the control log.
    pub area_bytes: u64,
    /// Shards: fixed for ever.
    pub shards: u16,
}

/// A store cannot be laid out so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLayout {
    /// Too small.
    #[error("a store of {0} bytes is too small for so many shards: give it more, or fewer shards")]
    TooSmall(u64),
    /// Places cannot name its end.
    #[error("a store of {0} bytes is larger than half a pebibyte: make several")]
    TooLarge(u64),
    /// No shards, or too many.
    #[error("{0} shards are not possible: choose 1 to {SHARDS_MAX}")]
    Shards(u16),
    /// A field is not what this program writes.
    #[error("a size is no multiple of 4,096, or too small")]
    Sizes,
}

impl Layout {
    /// Of a store with so many bytes, with segments of the usual size.
    ///
    /// # Errors
    /// It cannot be.
    pub fn new(store_bytes: u64, shards: u16) -> Result<Self, NoLayout> {
        let store_bytes = store_bytes / ALIGN_BYTES * ALIGN_BYTES;
        let per_segment = (store_bytes / SEGMENT_BYTES).saturating_mul(AREA_BYTES_PER_SEGMENT);
        let layout = Self {
            store_bytes,
            segment_bytes: SEGMENT_BYTES,
            area_bytes: AREA_BYTES + per_segment.next_multiple_of(ALIGN_BYTES),
            shards,
        };
        layout.check().map(|()| layout)
    }

    /// Whether a store can be laid out so.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self) -> Result<(), NoLayout> {
        let sizes = [self.store_bytes, self.segment_bytes, self.area_bytes];
        let is_aligned = sizes.iter().all(|bytes| bytes % ALIGN_BYTES == 0);
        if !is_aligned || self.segment_bytes < 4 * ALIGN_BYTES || self.area_bytes < 4 * ALIGN_BYTES
        {
            return Err(NoLayout::Sizes);
        }
        if self.store_bytes > ADDRESS_END_BYTES {
            return Err(NoLayout::TooLarge(self.store_bytes));
        }
        if self.shards == 0 || self.shards > SHARDS_MAX {
            return Err(NoLayout::Shards(self.shards));
        }
        let areas_end = self.area_bytes.saturating_mul(2).saturating_add(AREAS_AT);
        let needed = self
            .segment_bytes
            .saturating_mul(3 * u64::from(self.shards))
            .saturating_add(areas_end);
        if self.store_bytes < needed {
            return Err(NoLayout::TooSmall(self.store_bytes));
        }
        Ok(())
    }

    /// Where a copy of the superblock lies.
    #[must_use]
    pub fn superblock_at(copy: usize) -> u64 {
        copy as u64 * SUPERBLOCK_SPACING_BYTES
    }

    /// An area of the control log, used for this generation.
    #[must_use]
    pub fn area(&self, generation: u32) -> Segment {
        let which = u64::from(generation % 2);
        Segment {
            number: generation % 2,
            order: 0,
            seat: Seat {
                address: AREAS_AT + which * self.area_bytes,
                uses: generation,
            },
            bytes: self.area_bytes,
        }
    }

    /// How many segments there are.
    #[must_use]
    pub fn segments(&self) -> u32 {
        let room = self.store_bytes - self.segments_at();
        u32::try_from(room / self.segment_bytes).unwrap_or(u32::MAX)
    }

    fn segments_at(&self) -> u64 {
        AREAS_AT + 2 * self.area_bytes
    }

    /// Where the last segment ends.
    #[must_use]
    pub fn segments_end(&self) -> u64 {
        self.segment_at(self.segments())
    }

    /// Bytes of the largest store whose control areas are no larger than these.
    #[must_use]
    pub fn store_bytes_max(&self) -> u64 {
        let segments = self.area_bytes.saturating_sub(AREA_BYTES_NEEDED) / AREA_BYTES_PER_SEGMENT;
        // And what does not make a whole segment.
        let all = (segments + 1).saturating_mul(self.segment_bytes) - ALIGN_BYTES;
        self.segments_at()
            .saturating_add(all)
            .min(ADDRESS_END_BYTES)
    }

    /// Where a segment begins.
    #[must_use]
    pub fn segment_at(&self, number: u32) -> u64 {
        self.segments_at() + u64::from(number) * self.segment_bytes
    }

    /// The segment in which a byte of the store lies.
    #[must_use]
    pub fn segment_of(&self, address: u64) -> Option<u32> {
        let offset = address.checked_sub(self.segments_at())?;
        let number = u32::try_from(offset / self.segment_bytes).ok()?;
        (number < self.segments()).then_some(number)
    }

    /// The shard of a key with this hash. It takes bits that neither directory, tags nor groups of an index use.
    #[must_use]
    pub fn shard_of(&self, hash: u64) -> u16 {
        let bits = (hash >> SHARD_LOWEST) & ((1 << SHARD_BITS) - 1);
        ((bits * u64::from(self.shards)) >> SHARD_BITS) as u16
    }

    /// Where a listing of a shard goes on, by rising hash: no key of it lies between this hash and what is given,
    /// and what is given names the shard too.
    #[must_use]
    pub fn cursor(&self, shard: u16, hash: u64) -> u64 {
        if self.shard_of(hash) == shard {
            return hash;
        }
        // What is no key's hash is a boundary, in whose lower half nothing is set.
        let first = (u64::from(shard) << SHARD_BITS).div_ceil(u64::from(self.shards));
        hash | first << SHARD_LOWEST
    }

    /// The longest batch fits a segment.
    #[must_use]
    pub fn holds_longest_batch(&self) -> bool {
        self.segment_bytes >= 2 * BATCH_BYTES_MAX as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn nothing_overlaps_and_all_is_within() {
        for (bytes, shards) in [(GIB, 1), (GIB + 5000, 4), (1 << 44, 64)] {
            let layout = Layout::new(bytes, shards).unwrap();
            let (a, b) = (layout.area(2), layout.area(3));
            let last_copy = Layout::superblock_at(SUPERBLOCKS - 1) + ALIGN_BYTES;
            assert!(last_copy <= a.seat.address);
            assert_eq!(a.seat.address + a.bytes, b.seat.address);
            assert!(b.seat.address + b.bytes <= layout.segment_at(0));
            let count = layout.segments();
            let end = layout.segment_at(count);
            assert!(end <= layout.store_bytes && end + layout.segment_bytes > layout.store_bytes);
            for number in [0, count - 1] {
                let at = layout.segment_at(number);
                assert_eq!(at % ALIGN_BYTES, 0);
                assert_eq!(layout.segment_of(at), Some(number));
                assert_eq!(
                    layout.segment_of(at + layout.segment_bytes - 1),
                    Some(number)
                );
            }
            assert_eq!(layout.segment_of(end), None);
            assert_eq!(layout.segment_of(0), None);
            assert!(layout.holds_longest_batch());
        }
    }

    #[test]
    fn what_cannot_be_laid_out_is_refused() {
        assert_eq!(Layout::new(GIB, 0), Err(NoLayout::Shards(0)));
        assert_eq!(Layout::new(GIB, 65), Err(NoLayout::Shards(65)));
        assert_eq!(Layout::new(8192, 1), Err(NoLayout::TooSmall(8192)));
        let beyond = ADDRESS_END_BYTES + ALIGN_BYTES;
        assert_eq!(Layout::new(beyond, 1), Err(NoLayout::TooLarge(beyond)));
        let layout = Layout::new(GIB, 1).unwrap();
        let odd = Layout {
            segment_bytes: 70_000,
            ..layout
        };
        assert_eq!(odd.check(), Err(NoLayout::Sizes));
    }

    #[test]
    fn a_cursor_names_its_shard_and_passes_no_key_of_it() {
        for shards in [1, 2, 3, 7, 64] {
            let layout = Layout::new(1 << 36, shards).unwrap();
            for shard in 0..shards {
                for boundary in [0, 1 << 63, 0xabcd_ef01 << 32] {
                    let cursor = layout.cursor(shard, boundary);
                    assert_eq!(layout.shard_of(cursor), shard);
                    // The next lower hash of the same upper half is another shard's, or none.
                    let before = cursor - u64::from(cursor > boundary);
                    assert!(cursor == boundary || layout.shard_of(before) != shard);
                    assert_eq!(layout.cursor(shard, cursor), cursor);
                }
            }
        }
    }

    #[test]
    fn every_shard_has_its_share_of_hashes() {
        let layout = Layout::new(1 << 36, 7).unwrap();
        let mut counts = [0; 7];
        for number in 0..70_000u64 {
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            counts[usize::from(layout.shard_of(hash))] += 1;
        }
        assert!(
            counts.iter().all(|count| (9_000..11_000).contains(count)),
            "{counts:?}"
        );
        assert_eq!(layout.shard_of(u64::MAX), 6);
    }
}
