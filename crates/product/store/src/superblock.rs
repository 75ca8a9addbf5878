// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The superblock, of which a store has four copies. All numbers are little endian.
//!
//! ```text
//!   0 u32 magic "ERBS"
//!   4 u32 version of the format: 3
//!   8 u64 id of the store
//!  16 u64 generation: how often superblocks were written
//!  24 u64 bytes of the store
//!  32 u64 bytes of a segment
//!  40 u64 bytes of a control area
//!  48 u16 shards
//!  50 u16 zero
//!  52 u32 incarnation: how often the node has started
//!  56 u32 area of the control log: how often one was begun
//!  60 u32 incarnation that began it
//!  64 u64 batches that it has at least: those of the snapshot that it begins with, at a clean stop all
//!  72 u64 2x secret of the hash
//!  88 u64 min-age of a new store, microseconds
//!  96 u64 keep-deleted
//! 104 u32 min-count
//! 108 zeros
//! 508 u32 CRC of bytes 0 to 508, seeded with its address
//! 512 zeros up to 4,096
//! ```
//!
//! Invariants:
//! 1. Everything is in one sector, so a torn copy is an old one or none.
//! 2. A generation counts when two copies are durable. All four are before the next one is begun, and the first two
//!    to be written are those that lag behind. So any one may be lost at any moment, and any two of those that lie there in peace.
//! 3. What a generation names is durable before its first copy is written. So the highest generation that is found
//!    may be taken, even from one copy.
//! 4. No incarnation is used twice: it is durable here before anything is written under it.

use crate::bytes::{put_at, u16_at, u32_at, u64_at};
use crate::layout::{ALIGN_BYTES, Layout, NoLayout, SUPERBLOCKS};
use crate::mistake::{Mistake, Rules};
use crate::record::Seat;
use crate::retention::Settings;

const MAGIC: u32 = u32::from_le_bytes(*b"ERBS");
/// The format that this program writes. A start writes a superblock before anything else, so an older program does not
/// open what it could not read.
pub const FORMAT: u32 = 3;
/// The oldest format that it reads: in format 2 ends of segments did not say how much of them is loose. In format 1
/// batches did not say what before them was durable.
pub const FORMAT_MIN: u32 = 2;
/// Bytes that have something in them.
const SECTOR: usize = 512;
/// Copies that must be durable.
const COUNTING: usize = 2;

/// What a store is, and where its control log is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// The store's id: random, and shown to nobody.
    pub store_id: u64,
    /// How often superblocks were written.
    pub generation: u64,
    /// What lies where.
    pub layout: Layout,
    /// How often the node has started.
    pub incarnation: u32,
    /// How often an area of the control log was begun.
    pub area: u32,
    /// The incarnation that began it.
    pub area_incarnation: u32,
    /// Batches that it has at least: those of the snapshot that it begins with, at a clean stop all.
    pub area_batches: u64,
    /// Secret of the keys' hash.
    pub hash_secret: [u64; 2],
    /// What is kept until the control log says otherwise.
    pub settings: Settings,
}

impl std::fmt::Debug for Superblock {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Superblock")
            .field("generation", &self.generation)
            .field("incarnation", &self.incarnation)
            .field("area", &self.area)
            .field("area_batches", &self.area_batches)
            .finish_non_exhaustive()
    }
}

/// Why no superblock is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuperblock {
    /// No copy is right.
    #[error("no superblock is readable: this is no store, or all four copies are damaged")]
    Absent,
    /// Another program's.
    #[error(
        "the store has format {0}, this program reads {FORMAT_MIN} to {FORMAT}: use the program that wrote it, or a newer one"
    )]
    Format(u32),
    /// Copies of different stores.
    #[error("superblocks of different stores lie in this one: it was overwritten in part")]
    Several,
    /// A size cannot be.
    #[error("the superblock says what cannot be: {0}")]
    Layout(NoLayout),
}

impl Superblock {
    /// Of a new store, before its first start.
    #[must_use]
    pub fn format(layout: Layout, store_id: u64, hash_secret: [u64; 2]) -> Self {
        Self {
            store_id,
            generation: 0,
            layout,
            incarnation: 0,
            area: 0,
            area_incarnation: 0,
            area_batches: 0,
            hash_secret,
            settings: Settings::NEW,
        }
    }

    /// The same, which keeps this from its first write on.
    #[must_use]
    pub fn keeping(self, settings: Settings) -> Self {
        let settings = settings.within(1);
        Self { settings, ..self }
    }

    /// A copy's bytes.
    #[must_use]
    pub fn encode(&self, copy: usize) -> Vec<u8> {
        let mut out = vec![0; ALIGN_BYTES as usize];
        put_at(&mut out, 0, &MAGIC.to_le_bytes());
        put_at(&mut out, 4, &FORMAT.to_le_bytes());
        put_at(&mut out, 8, &self.store_id.to_le_bytes());
        put_at(&mut out, 16, &self.generation.to_le_bytes());
        put_at(&mut out, 24, &self.layout.store_bytes.to_le_bytes());
        put_at(&mut out, 32, &self.layout.segment_bytes.to_le_bytes());
        put_at(&mut out, 40, &self.layout.area_bytes.to_le_bytes());
        put_at(&mut out, 48, &self.layout.shards.to_le_bytes());
        put_at(&mut out, 52, &self.incarnation.to_le_bytes());
        put_at(&mut out, 56, &self.area.to_le_bytes());
        put_at(&mut out, 60, &self.area_incarnation.to_le_bytes());
        put_at(&mut out, 64, &self.area_batches.to_le_bytes());
        put_at(&mut out, 72, &self.hash_secret[0].to_le_bytes());
        put_at(&mut out, 80, &self.hash_secret[1].to_le_bytes());
        put_at(&mut out, 88, &self.settings.min_age_us.to_le_bytes());
        put_at(&mut out, 96, &self.settings.keep_deleted_us.to_le_bytes());
        put_at(&mut out, 104, &self.settings.min_count.to_le_bytes());
        let crc = sector_crc(&out, copy);
        put_at(&mut out, SECTOR - 4, &crc.to_le_bytes());
        out
    }

    /// Reads a copy. None: it is damaged, or none.
    fn decode(bytes: &[u8], copy: usize) -> Option<Result<Self, NoSuperblock>> {
        let bytes = bytes.get(..SECTOR)?;
        let is_right = sector_crc(bytes, copy) == u32_at(bytes, SECTOR - 4);
        if u32_at(bytes, 0) != MAGIC || !is_right {
            return None;
        }
        let format = u32_at(bytes, 4);
        if !(FORMAT_MIN..=FORMAT).contains(&format) {
            return Some(Err(NoSuperblock::Format(format)));
        }
        let layout = Layout {
            store_bytes: u64_at(bytes, 24),
            segment_bytes: u64_at(bytes, 32),
            area_bytes: u64_at(bytes, 40),
            shards: u16_at(bytes, 48),
        };
        if let Err(error) = layout.check() {
            return Some(Err(NoSuperblock::Layout(error)));
        }
        Some(Ok(Self {
            store_id: u64_at(bytes, 8),
            generation: u64_at(bytes, 16),
            layout,
            incarnation: u32_at(bytes, 52),
            area: u32_at(bytes, 56),
            area_incarnation: u32_at(bytes, 60),
            area_batches: u64_at(bytes, 64),
            hash_secret: [u64_at(bytes, 72), u64_at(bytes, 80)],
            settings: Settings {
                min_age_us: u64_at(bytes, 88),
                keep_deleted_us: u64_at(bytes, 96),
                min_count: u32_at(bytes, 104),
                counted: 1,
            },
        }))
    }

    /// The newest of what was read of all copies; none of a copy: it could not be read. And their order for the
    /// next write: those that lag behind first.
    ///
    /// # Errors
    /// There is none, or it is not this program's.
    pub fn choose(
        copies: &[Option<Vec<u8>>; SUPERBLOCKS],
    ) -> Result<(Self, [usize; SUPERBLOCKS]), NoSuperblock> {
        let mut found: Vec<(usize, Option<Self>)> = Vec::new();
        for (copy, bytes) in copies.iter().enumerate() {
            let decoded = bytes.as_ref().and_then(|bytes| Self::decode(bytes, copy));
            found.push((copy, decoded.transpose()?));
        }
        found.sort_by_key(|(_, block)| block.map(|block| block.generation));
        let mut order = [0; SUPERBLOCKS];
        for (at, (copy, _)) in found.iter().enumerate() {
            order[at] = *copy;
        }
        let newest = found.last().and_then(|(_, block)| *block);
        let newest = newest.ok_or(NoSuperblock::Absent)?;
        let is_of_it = |block: &Self| block.store_id == newest.store_id;
        if !found.iter().filter_map(|it| it.1.as_ref()).all(is_of_it) {
            return Err(NoSuperblock::Several);
        }
        Ok((newest, order))
    }
}

fn sector_crc(bytes: &[u8], copy: usize) -> u32 {
    let address = Layout::superblock_at(copy);
    crc32c::crc32c_append(Seat { address, uses: 0 }.seed(), &bytes[..SECTOR - 4])
}

/// A superblock on its way to all copies.
#[derive(Debug)]
pub(crate) struct SuperblockWrite {
    block: Superblock,
    order: [usize; SUPERBLOCKS],
    issued: usize,
    done: usize,
}

impl SuperblockWrite {
    pub(crate) fn new(block: Superblock, order: [usize; SUPERBLOCKS]) -> Self {
        Self {
            block,
            order,
            issued: 0,
            done: 0,
        }
    }

    pub(crate) fn block(&self) -> &Superblock {
        &self.block
    }

    /// The next copy to be written: two at a time.
    pub(crate) fn write(&mut self) -> Option<(usize, Vec<u8>)> {
        let may = if self.done >= COUNTING {
            SUPERBLOCKS
        } else {
            COUNTING
        };
        if self.issued >= may {
            return None;
        }
        let copy = self.order[self.issued];
        self.issued += 1;
        Some((copy, self.block.encode(copy)))
    }

    /// A copy is durable.
    pub(crate) fn written(&mut self) {
        assert!(self.done < self.issued, "only what is under way can end");
        self.done += 1;
    }

    pub(crate) fn counts(&self, rules: &impl Rules) -> bool {
        let is_hasty = rules.makes(Mistake::SuperblockCountsAtOnce);
        self.done >= COUNTING || is_hasty
    }

    pub(crate) fn is_over(&self) -> bool {
        self.done == SUPERBLOCKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistake::Sound;

    fn block(generation: u64) -> Superblock {
        let layout = Layout::new(1 << 30, 2).unwrap();
        Superblock {
            generation,
            incarnation: 7,
            area: 9,
            area_incarnation: 6,
            area_batches: 3,
            ..Superblock::format(layout, 0x55, [1, 2])
        }
    }

    fn copies(generations: [u64; SUPERBLOCKS]) -> [Option<Vec<u8>>; SUPERBLOCKS] {
        std::array::from_fn(|copy| Some(block(generations[copy]).encode(copy)))
    }

    /// A copy as another program has written it.
    fn of_format(format: u32, copy: usize) -> Vec<u8> {
        let mut bytes = block(1).encode(copy);
        put_at(&mut bytes, 4, &format.to_le_bytes());
        let crc = sector_crc(&bytes, copy);
        put_at(&mut bytes, SECTOR - 4, &crc.to_le_bytes());
        bytes
    }

    #[test]
    fn an_older_format_is_read_and_what_is_written_next_is_of_this_one() {
        let older = std::array::from_fn(|copy| Some(of_format(FORMAT_MIN, copy)));
        let (found, order) = Superblock::choose(&older).unwrap();
        assert_eq!(found, block(1));
        let mut write = SuperblockWrite::new(found, order);
        let (copy, bytes) = write.write().unwrap();
        assert_eq!(u32_at(&bytes, 4), FORMAT);
        // A start whose superblock is on one copy so far: the older program does not open it any more, this one does.
        let mut both = older;
        both[copy] = Some(bytes);
        assert_eq!(Superblock::choose(&both).unwrap().0, block(1));
    }

    #[test]
    fn the_newest_is_chosen_and_those_that_lag_are_written_first() {
        let (chosen, order) = Superblock::choose(&copies([4, 5, 3, 5])).unwrap();
        assert_eq!(chosen, block(5));
        assert_eq!(order, [2, 0, 1, 3]);
        let mut damaged = copies([5, 4, 4, 4]);
        damaged[0].as_mut().unwrap()[20] ^= 1;
        damaged[3] = None;
        let (chosen, order) = Superblock::choose(&damaged).unwrap();
        assert_eq!((chosen.generation, order), (4, [0, 3, 1, 2]));
    }

    #[test]
    fn what_is_no_superblock_is_said() {
        let none = [None, Some(vec![0; 4096]), Some(vec![1; 40]), None];
        assert_eq!(Superblock::choose(&none), Err(NoSuperblock::Absent));
        let mut other = copies([1; SUPERBLOCKS]);
        other[2] = Some(
            Superblock {
                store_id: 1,
                ..block(1)
            }
            .encode(2),
        );
        assert_eq!(Superblock::choose(&other), Err(NoSuperblock::Several));
        for format in [FORMAT_MIN - 1, FORMAT + 1] {
            let refused = Superblock::choose(&[Some(of_format(format, 0)), None, None, None]);
            assert_eq!(refused, Err(NoSuperblock::Format(format)));
        }
        // A copy of another place counts for none.
        let moved = [Some(block(1).encode(1)), None, None, None];
        assert_eq!(Superblock::choose(&moved), Err(NoSuperblock::Absent));
        let odd = Layout {
            shards: 0,
            ..block(1).layout
        };
        let odd = Superblock {
            layout: odd,
            ..block(1)
        };
        let odd = [Some(odd.encode(0)), None, None, None];
        let found = Superblock::choose(&odd);
        assert_eq!(found, Err(NoSuperblock::Layout(NoLayout::Shards(0))));
    }

    #[test]
    fn a_generation_counts_on_two_copies_and_goes_to_all() {
        let mut write = SuperblockWrite::new(block(2), [3, 1, 0, 2]);
        assert_eq!(write.write().unwrap().0, 3);
        assert_eq!(write.write().unwrap().0, 1);
        assert!(write.write().is_none());
        write.written();
        assert!(write.write().is_none() && !write.counts(&Sound));
        write.written();
        assert!(write.counts(&Sound) && !write.is_over());
        assert_eq!(write.write().unwrap().0, 0);
        assert_eq!(write.write().unwrap().0, 2);
        write.written();
        write.written();
        assert!(write.is_over() && write.write().is_none());
    }

    #[test]
    fn any_two_copies_may_be_lost() {
        for (first, second) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            let mut left = copies([8; SUPERBLOCKS]);
            (left[first], left[second]) = (None, None);
            assert_eq!(Superblock::choose(&left).unwrap().0, block(8));
        }
    }
}
