// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The index of one shard: keys and their versions, in memory, with one owner and no locks.
//!
//! Invariants:
//! 1. A directory has a sub-table for each value of the hash's highest bits; neighbours may share one.
//! 2. Listing goes by rising hash. Keys of one hash are listed together, so a hash is a cursor that stays good
//!    when sub-tables split: a key that is there all the time is met exactly once.
//! 3. A key has one entry. Its versions rise strictly: older ones in their array, then the head.
//! 4. The memory is at most [`KEY_BYTES_BUDGET`] for each key, [`VERSION_BYTES_BUDGET`] for each further version,
//!    and a key above 16 bytes with at most 16 more. A test holds it.
//! 5. No call takes time that grows with the number of keys, but for a doubling of the directory: 4 bytes for
//!    each sub-table.

use crate::history::{Arrays, Held};
use crate::key::{INLINE_BYTES_MAX, KEY_BYTES_MAX, Key, KeyHasher, Name};
use crate::place::Place;
use crate::slab::Slab;
use crate::table::{Entry, Table};
use crate::version::Version;

/// Memory for each key, without further versions.
pub const KEY_BYTES_BUDGET: usize = 72;
/// Memory for each version of a key beyond its head.
pub const VERSION_BYTES_BUDGET: usize = 24;

/// Units of long keys are multiples of it.
const LONG_STEP_BYTES: usize = 16;
const LONG_CLASSES: usize = KEY_BYTES_MAX / LONG_STEP_BYTES + 1;
/// Keys that are visited at once, but for those of one hash: some 200 us.
const SLICE_KEYS: usize = 512;
/// Bits of the hash that may choose a sub-table: 2^32 of them would hold more than memory does.
const DEPTH_MAX: u8 = 32;

/// Where an entry is, until the next one is added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    table: u32,
    number: u16,
}

/// Why there is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Nobody has the key's name.
    Absent,
    /// Another long key has the same digest.
    DigestTaken,
}

/// Keys and their versions.
#[derive(Debug)]
pub(crate) struct Index {
    hasher: KeyHasher,
    /// By the highest `depth` bits of a hash: numbers in `tables`.
    directory: Vec<u32>,
    depth: u8,
    tables: Vec<Deep>,
    older: Arrays,
    /// By class less one.
    long_keys: Vec<Slab<u8>>,
    keys: usize,
}

#[derive(Debug)]
struct Deep {
    table: Table,
    /// Highest bits of the hash that all its keys have in common.
    depth: u8,
}

fn long_class(length: usize) -> u8 {
    (length / LONG_STEP_BYTES + 1) as u8
}

impl Index {
    pub(crate) fn new(hasher: KeyHasher) -> Self {
        let long_keys = (1..=LONG_CLASSES).map(|class| Slab::new(class * LONG_STEP_BYTES));
        Self {
            hasher,
            directory: vec![0],
            depth: 0,
            tables: vec![Deep {
                table: Table::new(),
                depth: 0,
            }],
            older: Arrays::new(),
            long_keys: long_keys.collect(),
            keys: 0,
        }
    }

    /// Keys in it.
    pub(crate) fn len(&self) -> usize {
        self.keys
    }

    pub(crate) fn hash_of(&self, key: Key<'_>) -> u64 {
        self.hasher.hash(&Name::of(key))
    }

    fn directory_at(&self, hash: u64) -> usize {
        // A shift by all 64 bits is none.
        hash.checked_shr(64 - u32::from(self.depth)).unwrap_or(0) as usize
    }

    /// The entry with this name, whatever its long key is.
    pub(crate) fn find_name(&self, name: &Name) -> Option<Spot> {
        let hash = self.hasher.hash(name);
        let table = self.directory[self.directory_at(hash)];
        let number = self.tables[table as usize].table.find(hash, name)?;
        Some(Spot { table, number })
    }

    /// The entry of this key.
    pub(crate) fn find(&self, key: Key<'_>) -> Result<Spot, Missing> {
        let spot = self.find_name(&Name::of(key)).ok_or(Missing::Absent)?;
        let is_long = key.bytes.len() > INLINE_BYTES_MAX;
        if is_long && self.long_key(self.get(spot)) != key.bytes {
            return Err(Missing::DigestTaken);
        }
        Ok(spot)
    }

    pub(crate) fn get(&self, spot: Spot) -> &Entry {
        self.tables[spot.table as usize].table.get(spot.number)
    }

    pub(crate) fn get_mut(&mut self, spot: Spot) -> &mut Entry {
        self.tables[spot.table as usize].table.get_mut(spot.number)
    }

    fn long_key(&self, entry: &Entry) -> &[u8] {
        let class = entry.key_class() - INLINE_BYTES_MAX as u8;
        let unit = self.long_keys[usize::from(class) - 1].get(entry.long_index);
        let spare = unit.last().copied().unwrap_or(0);
        &unit[..unit.len() - usize::from(spare)]
    }

    /// The key's bytes.
    pub(crate) fn key_bytes(&self, spot: Spot, out: &mut Vec<u8>) {
        let entry = self.get(spot);
        let name = entry.name();
        out.clear();
        match name.inline_bytes {
            Some(length) => out.extend_from_slice(&name.bytes[..usize::from(length)]),
            None => out.extend_from_slice(self.long_key(entry)),
        }
    }

    /// Adds a key that is not there, with its first version.
    pub(crate) fn insert(&mut self, key: Key<'_>, head: Held, epoch: Version) -> Spot {
        let name = Name::of(key);
        let long = name
            .inline_bytes
            .is_none()
            .then(|| self.store_long(key.bytes));
        let entry = Entry::new(&name, long, head, epoch);
        let hasher = self.hasher;
        let hash = hasher.hash(&name);
        let hash_of = |entry: &Entry| hasher.hash(&entry.name());
        self.keys += 1;
        loop {
            let table = self.directory[self.directory_at(hash)];
            let added = self.tables[table as usize]
                .table
                .insert(hash, entry, &hash_of);
            match added {
                Ok(number) => return Spot { table, number },
                Err(_full) => self.split(hash),
            }
        }
    }

    fn store_long(&mut self, bytes: &[u8]) -> (u8, u32) {
        let class = long_class(bytes.len());
        let slab = &mut self.long_keys[usize::from(class) - 1];
        let index = slab.take();
        let unit = slab.get_mut(index);
        unit[..bytes.len()].copy_from_slice(bytes);
        // What is left is 1 to 16 bytes; the last says how many.
        let spare = unit.len() - bytes.len();
        unit[bytes.len() + spare - 1] = spare as u8;
        (class + INLINE_BYTES_MAX as u8, index)
    }

    /// Splits the sub-table of this hash.
    fn split(&mut self, hash: u64) {
        let number = self.directory[self.directory_at(hash)];
        let depth = self.tables[number as usize].depth;
        assert!(depth < DEPTH_MAX, "so many keys of one hash are no chance");
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|it| [*it; 2]).collect();
            self.depth += 1;
        }
        let hasher = self.hasher;
        let hash_of = |entry: &Entry| hasher.hash(&entry.name());
        let bit = 1 << (63 - depth);
        let deep = &mut self.tables[number as usize];
        deep.depth += 1;
        let other = Deep {
            table: deep.table.split(bit, &hash_of),
            depth: deep.depth,
        };
        let other_number = self.tables.len() as u32;
        self.tables.push(other);
        // Places of the old one in the directory: all with its highest bits.
        let count = 1 << (self.depth - depth);
        let first = self.directory_at(hash) & !(count - 1);
        self.directory[first + count / 2..first + count].fill(other_number);
    }

    /// Removes a key with all its versions.
    pub(crate) fn remove(&mut self, spot: Spot) {
        let entry = *self.get(spot);
        self.older.give_back(entry.older());
        if entry.name().inline_bytes.is_none() {
            let class = entry.key_class() - INLINE_BYTES_MAX as u8;
            self.long_keys[usize::from(class) - 1].give_back(entry.long_index);
        }
        let hasher = self.hasher;
        let table = &mut self.tables[spot.table as usize].table;
        table.remove(spot.number, &|entry: &Entry| hasher.hash(&entry.name()));
        self.keys -= 1;
    }

    /// A key's versions but for its head, oldest first.
    pub(crate) fn older(&self, spot: Spot) -> &[Held] {
        self.older.get(self.get(spot).older())
    }

    /// Gives a key a new head.
    pub(crate) fn push(&mut self, spot: Spot, head: Held) {
        let entry = *self.get(spot);
        assert!(
            entry.head().version < head.version,
            "versions of a key rise"
        );
        let older = self.older.push(entry.older(), entry.head());
        let entry = self.get_mut(spot);
        entry.set_older(older);
        entry.set_head(head);
    }

    /// Versions of a key whose content lies at an address have it elsewhere now: where it was. None: there are none.
    /// `is_partial`: only the newest of them.
    pub(crate) fn move_places(
        &mut self,
        spot: Spot,
        from: u64,
        to: Place,
        is_partial: bool,
    ) -> Option<Place> {
        let (mut old, array, mut head) = (None, self.get(spot).older(), self.get(spot).head());
        let mut move_one = |held: &mut Held| {
            if held.place.address() == Some(from) && !(is_partial && old.is_some()) {
                old = Some(held.place.as_written());
                held.place = held.place.moved_to(to);
            }
        };
        move_one(&mut head);
        self.older
            .get_mut(array)
            .iter_mut()
            .rev()
            .for_each(move_one);
        self.get_mut(spot).set_head(head);
        old
    }

    /// Gives a key these older versions instead, and its head with or without a gap before it.
    pub(crate) fn replace(&mut self, spot: Spot, older: &[Held], head: Held) {
        let array = self.older.replace(self.get(spot).older(), older);
        let gap = |one: &Held| one.place.has_gap();
        let has_inner_gap = older.iter().skip(1).any(gap) || !older.is_empty() && gap(&head);
        let entry = self.get_mut(spot);
        entry.set_older(array);
        entry.set_head(head);
        entry.set_inner_gap(has_inner_gap);
    }

    /// Moves what belongs to a key to where memory is denser.
    pub(crate) fn settle(&mut self, spot: Spot) {
        let entry = *self.get(spot);
        let older = self.older.settle(entry.older());
        self.get_mut(spot).set_older(older);
        if entry.name().inline_bytes.is_none() {
            let class = entry.key_class() - INLINE_BYTES_MAX as u8;
            let slab = &mut self.long_keys[usize::from(class) - 1];
            let index = slab.settle(entry.long_index);
            self.get_mut(spot).long_index = index;
        }
    }

    /// Keys from this hash on, by rising hash, some [`SLICE_KEYS`] of one sub-table; and where the next ones begin.
    pub(crate) fn slice(&self, from_hash: u64) -> (Vec<(u64, Spot)>, Option<u64>) {
        let at = self.directory_at(from_hash);
        let table = self.directory[at];
        let deep = &self.tables[table as usize];
        let mut found: Vec<(u64, Spot)> = (0..deep.table.len() as u16)
            .map(|number| {
                let hash = self.hasher.hash(&deep.table.get(number).name());
                (hash, Spot { table, number })
            })
            .filter(|(hash, _)| *hash >= from_hash)
            .collect();
        let mut next = end_of(from_hash, deep.depth);
        if found.len() > SLICE_KEYS {
            let (_, last, rest) = found.select_nth_unstable_by_key(SLICE_KEYS - 1, |it| it.0);
            let last_hash = last.0;
            let behind = rest.iter().map(|it| it.0).filter(|hash| *hash > last_hash);
            next = behind.min().or(next);
            found.retain(|(hash, _)| *hash <= last_hash);
        }
        found.sort_unstable_by_key(|(hash, spot)| (*hash, spot.number));
        (found, next)
    }

    /// Memory that it has allocated, but for the allocator's own.
    pub(crate) fn bytes(&self) -> usize {
        let tables = self.tables.iter().map(|deep| deep.table.bytes());
        let long_keys = self.long_keys.iter().map(Slab::bytes);
        tables.sum::<usize>()
            + long_keys.sum::<usize>()
            + self.older.bytes()
            + self.tables.capacity() * size_of::<Deep>()
            + self.directory.capacity() * size_of::<u32>()
            + self.long_keys.capacity() * size_of::<Slab<u8>>()
    }
}

/// The first hash behind those that share the highest bits with this one.
fn end_of(hash: u64, depth: u8) -> Option<u64> {
    if depth == 0 {
        return None;
    }
    let size = 1u64 << (64 - u32::from(depth));
    (hash & !(size - 1)).checked_add(size)
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
