// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units of one size, many to an allocation.
//!
//! Invariants:
//! 1. A unit that is in use lies in a chunk that is there; a chunk of which none is in use is given back.
//! 2. The lowest free unit is given first. So what is freed at random gathers at the end, and
//!    [`Slab::settle`] can move what is left there.
//! 3. `open` has exactly the chunks with a free unit, also those that are not there.

use std::collections::BTreeSet;

/// Bytes of a chunk, if units are not larger: small, so that one of a rare size wastes little.
const CHUNK_BYTES: usize = 4096;
/// The same of units from [`LARGE_BYTES`] on: so many that what a chunk itself takes is little for each.
const LARGE_CHUNK_BYTES: usize = 16_384;
const LARGE_BYTES: usize = 256;
/// Units of a chunk, one bit each.
const CHUNK_UNITS_MAX: usize = 256;
/// Open chunks that are looked at for one that is there. Those that are not are taken first anyway.
const SETTLE_LOOKS: usize = 8;
const WORD_BITS: usize = 64;

/// Units of so many `T`.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    unit: usize,
    units_per_chunk: usize,
    chunks: Vec<Chunk<T>>,
    open: BTreeSet<u32>,
    present: usize,
}

#[derive(Debug)]
struct Chunk<T> {
    /// Of no length: not there.
    cells: Box<[T]>,
    used: [u64; CHUNK_UNITS_MAX / WORD_BITS],
    used_count: u16,
}

impl<T: Copy + Default> Slab<T> {
    pub(crate) fn new(unit: usize) -> Self {
        let unit_bytes = (unit * size_of::<T>()).max(1);
        let units_per_chunk = if unit_bytes < LARGE_BYTES {
            CHUNK_BYTES / unit_bytes
        } else {
            LARGE_CHUNK_BYTES / unit_bytes
        };
        Self {
            unit,
            units_per_chunk: units_per_chunk.clamp(1, CHUNK_UNITS_MAX),
            chunks: Vec::new(),
            open: BTreeSet::new(),
            present: 0,
        }
    }

    fn split(&self, index: u32) -> (usize, usize) {
        let index = index as usize;
        (index / self.units_per_chunk, index % self.units_per_chunk)
    }

    /// A unit; what is in it is anything.
    pub(crate) fn take(&mut self) -> u32 {
        let number = match self.open.first() {
            Some(number) => *number,
            None => self.add_chunk(),
        };
        self.take_of(number)
    }

    fn take_of(&mut self, number: u32) -> u32 {
        let chunk = &mut self.chunks[number as usize];
        if chunk.cells.is_empty() {
            chunk.cells = vec![T::default(); self.unit * self.units_per_chunk].into();
            self.present += 1;
        }
        let words = chunk.used.iter().enumerate();
        let free = words.filter(|(_, word)| **word != u64::MAX);
        let free = free.map(|(at, word)| at * WORD_BITS + word.trailing_ones() as usize);
        let unit = free.min().unwrap_or(0);
        assert!(unit < self.units_per_chunk, "an open chunk has a free unit");
        chunk.used[unit / WORD_BITS] |= 1 << (unit % WORD_BITS);
        chunk.used_count += 1;
        if usize::from(chunk.used_count) == self.units_per_chunk {
            self.open.remove(&number);
        }
        number * self.units_per_chunk as u32 + unit as u32
    }

    fn add_chunk(&mut self) -> u32 {
        let number = self.chunks.len() as u32;
        self.chunks.push(Chunk {
            cells: Box::default(),
            used: [0; CHUNK_UNITS_MAX / WORD_BITS],
            used_count: 0,
        });
        self.open.insert(number);
        number
    }

    pub(crate) fn get(&self, index: u32) -> &[T] {
        let (chunk, unit) = self.split(index);
        &self.chunks[chunk].cells[unit * self.unit..][..self.unit]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut [T] {
        let (chunk, unit) = self.split(index);
        &mut self.chunks[chunk].cells[unit * self.unit..][..self.unit]
    }

    pub(crate) fn give_back(&mut self, index: u32) {
        let (number, unit) = self.split(index);
        let chunk = &mut self.chunks[number];
        let bit = 1 << (unit % WORD_BITS);
        assert!(
            chunk.used[unit / WORD_BITS] & bit != 0,
            "a unit is given back once"
        );
        chunk.used[unit / WORD_BITS] &= !bit;
        chunk.used_count -= 1;
        self.open.insert(number as u32);
        if chunk.used_count == 0 {
            chunk.cells = Box::default();
            self.present -= 1;
        }
        self.drop_the_end();
    }

    /// Chunks at the end that are not there need no number.
    fn drop_the_end(&mut self) {
        while self
            .chunks
            .last()
            .is_some_and(|chunk| chunk.cells.is_empty())
        {
            self.chunks.pop();
            self.open.remove(&(self.chunks.len() as u32));
        }
    }

    /// Moves a unit into a lower chunk that is there, if one has room.
    pub(crate) fn settle(&mut self, index: u32) -> u32 {
        let (number, _) = self.split(index);
        let lower = self.open.range(..number as u32).take(SETTLE_LOOKS);
        let mut there = lower.filter(|lower| !self.chunks[**lower as usize].cells.is_empty());
        let Some(lower) = there.next().copied() else {
            return index;
        };
        let new = self.take_of(lower);
        let old: Vec<T> = self.get(index).to_vec();
        self.get_mut(new).copy_from_slice(&old);
        self.give_back(index);
        new
    }

    /// Bytes that it has allocated, but for the allocator's own.
    pub(crate) fn bytes(&self) -> usize {
        // A node of a B-tree of u32 has 11 keys and is half full at least.
        const OPEN_BYTES: usize = 12;
        self.present * self.unit * self.units_per_chunk * size_of::<T>()
            + self.chunks.capacity() * size_of::<Chunk<T>>()
            + self.open.len() * OPEN_BYTES
    }

    #[cfg(test)]
    fn check(&self) {
        assert_eq!(
            self.present,
            self.chunks.iter().filter(|it| !it.cells.is_empty()).count()
        );
        for (number, chunk) in self.chunks.iter().enumerate() {
            let used: u32 = chunk.used.iter().map(|word| word.count_ones()).sum();
            assert_eq!(used, u32::from(chunk.used_count));
            assert_eq!(used == 0, chunk.cells.is_empty());
            let is_full = used as usize == self.units_per_chunk;
            assert_eq!(self.open.contains(&(number as u32)), !is_full);
        }
        assert!(
            self.open
                .last()
                .is_none_or(|last| (*last as usize) < self.chunks.len())
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn units_keep_their_content_and_empty_chunks_go(
            unit in 1usize..700, steps in prop::collection::vec((0u8..8, any::<u32>()), 0..900),
        ) {
            let mut slab: Slab<u64> = Slab::new(unit);
            let mut held: BTreeMap<u32, u64> = BTreeMap::new();
            for (number, (what, chosen)) in (1u64..).zip(steps) {
                let nth = held.keys().nth(chosen as usize % held.len().max(1)).copied();
                match (what, nth) {
                    (0..2, Some(index)) => {
                        prop_assert_eq!(slab.get(index), vec![held[&index]; unit]);
                        slab.give_back(index);
                        held.remove(&index);
                    }
                    (2..3, Some(index)) => {
                        let settled = slab.settle(index);
                        let content = held.remove(&index).unwrap();
                        prop_assert!(settled <= index);
                        prop_assert_eq!(held.insert(settled, content), None);
                    }
                    _ => {
                        let index = slab.take();
                        slab.get_mut(index).fill(number);
                        prop_assert_eq!(held.insert(index, number), None);
                    }
                }
                slab.check();
            }
            for (index, content) in &held {
                prop_assert_eq!(slab.get(*index), vec![*content; unit]);
            }
            for index in held.keys() {
                slab.give_back(*index);
                slab.check();
            }
            prop_assert_eq!(slab.chunks.len(), 0);
        }
    }

    #[test]
    fn settling_empties_chunks() {
        let mut slab: Slab<u64> = Slab::new(4);
        let all: Vec<u32> = (0..1280).map(|_| slab.take()).collect();
        let (kept, freed): (Vec<u32>, Vec<u32>) = all.iter().partition(|index| *index % 10 == 3);
        freed.into_iter().for_each(|index| slab.give_back(index));
        assert_eq!(slab.present, 10);
        kept.into_iter().rev().for_each(|index| {
            slab.settle(index);
        });
        assert_eq!(slab.present, 1);
    }
}
