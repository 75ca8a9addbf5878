// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sub-table of the index: at most 4,096 slots, probed in groups by tag, over a dense array of entries.
//!
//! Invariants:
//! 1. Each entry has exactly one slot, with its tag and its number. The others are empty or removed.
//! 2. At most seven eighths of the slots are not empty, so each probe ends.
//! 3. Entries are numbered without holes. They lie in chunks that do not move when the table grows.

use crate::history::{Array, Held};
use crate::key::{INLINE_BYTES_MAX, Name};
use crate::place::Place;
use crate::version::Version;

/// Most slots of a sub-table: splitting one of this size takes some 100 us.
pub(crate) const SLOTS_MAX: usize = 4096;
const SLOTS_MIN: usize = 64;
/// Tags that are compared at once.
const GROUP: usize = 8;
/// Entries that are allocated at once: 7 % of the fewest that a split leaves.
const CHUNK_ENTRIES: usize = 128;

const EMPTY: u8 = 0;
const REMOVED: u8 = 1;
const TAGS: u64 = 254;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = LOW_BITS << 7;

/// Bit of [`Entry::key_class`]: a version was trimmed from between others.
const INNER_GAP: u8 = 0x80;

/// What the index knows of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    name: [u8; INLINE_BYTES_MAX],
    head_version: Version,
    head_place: Place,
    /// The last roll back that the versions have in them.
    pub(crate) epoch: Version,
    older_index: u32,
    older_length: u32,
    /// Of a key above 16 bytes.
    pub(crate) long_index: u32,
    namespace: u16,
    /// Length of a short key, or the long ones' class; and [`INNER_GAP`].
    key_class: u8,
    older_class: u8,
}

const _: () = assert!(
    size_of::<Entry>() == 56,
    "72 bytes per key hold 56 of the entry"
);

impl Entry {
    pub(crate) fn new(name: &Name, long: Option<(u8, u32)>, head: Held, epoch: Version) -> Self {
        let (key_class, long_index) = match (name.inline_bytes, long) {
            (Some(length), _) => (length, 0),
            (None, Some((class, index))) => (class, index),
            (None, None) => unreachable!("a long key has been stored before its entry is made"),
        };
        Self {
            name: name.bytes,
            head_version: head.version,
            head_place: head.place,
            epoch,
            long_index,
            namespace: name.namespace,
            key_class,
            ..Self::default()
        }
    }

    pub(crate) fn name(&self) -> Name {
        let class = self.key_class();
        Name {
            namespace: self.namespace,
            inline_bytes: (usize::from(class) <= INLINE_BYTES_MAX).then_some(class),
            bytes: self.name,
        }
    }

    pub(crate) fn key_class(&self) -> u8 {
        self.key_class & !INNER_GAP
    }

    pub(crate) fn head(&self) -> Held {
        Held {
            version: self.head_version,
            place: self.head_place,
        }
    }

    pub(crate) fn set_head(&mut self, head: Held) {
        (self.head_version, self.head_place) = (head.version, head.place);
    }

    /// Nothing was trimmed from between others.
    pub(crate) fn is_whole(&self) -> bool {
        self.key_class & INNER_GAP == 0
    }

    pub(crate) fn set_inner_gap(&mut self, has_one: bool) {
        self.key_class = self.key_class() | if has_one { INNER_GAP } else { 0 };
    }

    pub(crate) fn older(&self) -> Array {
        Array {
            index: self.older_index,
            length: self.older_length,
            class: self.older_class,
        }
    }

    pub(crate) fn set_older(&mut self, older: Array) {
        self.older_index = older.index;
        self.older_length = older.length;
        self.older_class = older.class;
    }
}

/// Slots that are looked at together: one cache line, mostly.
#[derive(Clone, Copy, Debug)]
struct Group {
    tags: [u8; GROUP],
    numbers: [u16; GROUP],
}

const EMPTY_GROUP: Group = Group {
    tags: [EMPTY; GROUP],
    numbers: [0; GROUP],
};

/// A sub-table.
#[derive(Debug)]
pub(crate) struct Table {
    groups: Box<[Group]>,
    chunks: Vec<Box<[Entry]>>,
    entries: usize,
    /// Slots that are not empty.
    taken: usize,
}

/// Whether a table takes one more entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

fn tag_of(hash: u64) -> u8 {
    (2 + hash % TAGS) as u8
}

/// Groups in the order in which a hash is looked for; all of them, once.
struct Probe {
    group: usize,
    step: usize,
    mask: usize,
}

impl Probe {
    fn new(hash: u64, groups: usize) -> Self {
        let mask = groups - 1;
        Self {
            group: (hash >> 8) as usize & mask,
            step: 0,
            mask,
        }
    }

    fn next(&mut self) -> usize {
        let group = self.group;
        self.step += 1;
        self.group = (self.group + self.step) & self.mask;
        group
    }
}

/// Slots of a group whose tag may be this one: false ones have another tag there.
fn matches(word: u64, tag: u8) -> impl Iterator<Item = usize> {
    let differences = word ^ (LOW_BITS * u64::from(tag));
    let mut found = differences.wrapping_sub(LOW_BITS) & !differences & HIGH_BITS;
    std::iter::from_fn(move || {
        let bit = (found != 0).then(|| found.trailing_zeros())?;
        found &= found - 1;
        Some(bit as usize / 8)
    })
}

impl Table {
    pub(crate) fn new() -> Self {
        Self::with_slots(SLOTS_MIN)
    }

    fn with_slots(slots: usize) -> Self {
        Self {
            groups: vec![EMPTY_GROUP; slots / GROUP].into(),
            chunks: Vec::new(),
            entries: 0,
            taken: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    pub(crate) fn get(&self, number: u16) -> &Entry {
        let number = usize::from(number);
        debug_assert!(number < self.entries);
        &self.chunks[number / CHUNK_ENTRIES][number % CHUNK_ENTRIES]
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> &mut Entry {
        let number = usize::from(number);
        debug_assert!(number < self.entries);
        &mut self.chunks[number / CHUNK_ENTRIES][number % CHUNK_ENTRIES]
    }

    fn slots(&self) -> usize {
        self.groups.len() * GROUP
    }

    /// Group and position of a slot.
    fn find_slot(&self, hash: u64, is_it: impl Fn(u16) -> bool) -> Option<(usize, usize)> {
        let tag = tag_of(hash);
        let mut probe = Probe::new(hash, self.groups.len());
        loop {
            let at = probe.next();
            let group = &self.groups[at];
            let word = u64::from_le_bytes(group.tags);
            for position in matches(word, tag) {
                if group.tags[position] == tag && is_it(group.numbers[position]) {
                    return Some((at, position));
                }
            }
            if matches(word, EMPTY).next().is_some() {
                return None;
            }
        }
    }

    /// The entry with this name.
    pub(crate) fn find(&self, hash: u64, name: &Name) -> Option<u16> {
        let found = self.find_slot(hash, |number| self.get(number).name() == *name);
        found.map(|(group, position)| self.groups[group].numbers[position])
    }

    /// Adds an entry whose name is not there.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        entry: Entry,
        hash_of: &impl Fn(&Entry) -> u64,
    ) -> Result<u16, Full> {
        if (self.taken + 1) * 8 > self.slots() * 7 {
            let slots = self.slots();
            let has_many = self.entries * 4 >= slots * 3;
            match (has_many, slots) {
                // Removed ones alone fill it.
                (false, _) => self.rebuild(slots, hash_of),
                (true, SLOTS_MAX) => return Err(Full),
                (true, _) => self.rebuild(slots * 2, hash_of),
            }
        }
        let number = self.entries as u16;
        if self.entries % CHUNK_ENTRIES == 0 {
            self.chunks
                .push(vec![Entry::default(); CHUNK_ENTRIES].into());
        }
        self.entries += 1;
        *self.get_mut(number) = entry;
        self.take_slot(hash, number);
        Ok(number)
    }

    fn take_slot(&mut self, hash: u64, number: u16) {
        let mut probe = Probe::new(hash, self.groups.len());
        loop {
            let group = &mut self.groups[probe.next()];
            let Some(position) = group.tags.iter().position(|tag| *tag <= REMOVED) else {
                continue;
            };
            self.taken += usize::from(group.tags[position] == EMPTY);
            group.tags[position] = tag_of(hash);
            group.numbers[position] = number;
            return;
        }
    }

    fn rebuild(&mut self, slots: usize, hash_of: &impl Fn(&Entry) -> u64) {
        if slots == self.slots() {
            self.groups.fill(EMPTY_GROUP);
        } else {
            self.groups = vec![EMPTY_GROUP; slots / GROUP].into();
        }
        self.taken = 0;
        for number in 0..self.entries as u16 {
            let hash = hash_of(self.get(number));
            self.take_slot(hash, number);
        }
    }

    /// Removes an entry. The last one takes its number.
    pub(crate) fn remove(&mut self, number: u16, hash_of: &impl Fn(&Entry) -> u64) {
        let slot = self.find_slot(hash_of(self.get(number)), |other| other == number);
        let (group, position) = slot.expect("each entry has a slot");
        let tags = &mut self.groups[group].tags;
        // No probe passes a group that has an empty slot.
        let ends_here = tags.contains(&EMPTY);
        tags[position] = if ends_here { EMPTY } else { REMOVED };
        self.taken -= usize::from(ends_here);
        let last = (self.entries - 1) as u16;
        if number != last {
            let moved = *self.get(last);
            let slot = self.find_slot(hash_of(&moved), |other| other == last);
            let (group, position) = slot.expect("each entry has a slot");
            self.groups[group].numbers[position] = number;
            *self.get_mut(number) = moved;
        }
        self.entries -= 1;
        self.chunks.truncate(self.entries.div_ceil(CHUNK_ENTRIES));
    }

    /// Splits by a bit of the hash: returns those that have it.
    pub(crate) fn split(&mut self, bit: u64, hash_of: &impl Fn(&Entry) -> u64) -> Self {
        let whole = std::mem::replace(self, Self::with_slots(SLOTS_MAX));
        let mut other = Self::with_slots(SLOTS_MAX);
        let mut left = whole.entries;
        // A chunk goes as soon as it was read, so a split takes little memory beside.
        for chunk in whole.chunks {
            for entry in chunk.iter().take(left) {
                let hash = hash_of(entry);
                let into = if hash & bit == 0 {
                    &mut *self
                } else {
                    &mut other
                };
                let added = into.insert(hash, *entry, hash_of);
                added.expect("half a table fits a whole one");
            }
            left = left.saturating_sub(CHUNK_ENTRIES);
        }
        other
    }

    pub(crate) fn bytes(&self) -> usize {
        self.groups.len() * size_of::<Group>()
            + self.chunks.len() * CHUNK_ENTRIES * size_of::<Entry>()
            + self.chunks.capacity() * size_of::<Box<[Entry]>>()
    }

    #[cfg(test)]
    pub(crate) fn check(&self, hash_of: &impl Fn(&Entry) -> u64) {
        let tags = || self.groups.iter().flat_map(|group| group.tags);
        let taken = tags().filter(|tag| *tag != EMPTY).count();
        assert_eq!(taken, self.taken);
        assert!(taken * 8 <= self.slots() * 7);
        assert_eq!(tags().filter(|tag| *tag > REMOVED).count(), self.entries);
        assert_eq!(self.chunks.len(), self.entries.div_ceil(CHUNK_ENTRIES));
        for number in 0..self.entries as u16 {
            let hash = hash_of(self.get(number));
            assert!(self.find_slot(hash, |other| other == number).is_some());
        }
    }
}
