// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values that were read or written lately, so that a get needs no disk.
//!
//! A value is known by the place of its record: its address, and how often the segment had been taken into use. Versions
//! that share a place share it. What goes first is decided by SIEVE: a queue in the order of coming, and a hand that
//! goes from the oldest to the newest. It takes what was not asked for since it came by last.
//!
//! Invariants:
//! 1. What lies at a place never changes: one that is used again has another number of uses. So nothing has to be taken
//!    out when versions are trimmed, expire, or move.
//! 2. Only what was checked comes in: what a write has given to the log, and what a read has found right.
//! 3. All together, with what an entry costs beside its value, is at most the budget, at any time.
//! 4. The queue has each entry once, and the hand stands at one of them or at none.

use std::collections::HashMap;

use crate::mistake::{Mistake, Rules};
use crate::record::{RecordHead, Seat};
use crate::version::Version;

/// Bytes that an entry costs beside its value at most: 64 in the queue, which grows by doubling, 25 in the table, of
/// which 7 of 16 places are used at least, and what the allocator takes.
pub const ENTRY_COST_BYTES: usize = 256;
/// A value that takes more than this share of the budget is not kept.
const SHARE: usize = 8;
/// No entry.
const NONE: u32 = u32::MAX;

/// A value with what a read of its record would have told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached<'a> {
    /// The version of the put that wrote it.
    pub version: Version,
    /// Who that was.
    pub writer: u32,
    /// Milliseconds since 1970; 0: none.
    pub expiry_ms: u64,
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Cached<'a> {
    pub(crate) fn of(head: &RecordHead, value: &'a [u8]) -> Self {
        Self {
            version: head.version,
            writer: head.writer,
            expiry_ms: head.expiry_ms,
            value,
        }
    }
}

/// What the cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Bytes that it has, costs included.
    pub bytes: u64,
    /// Values.
    pub values: u64,
    /// Gets that needed no disk.
    pub hits: u64,
    /// Gets that needed one.
    pub misses: u64,
}

/// Where a value lies: address, uses of the segment.
type At = (u64, u32);

#[derive(Debug)]
struct Entry {
    at: At,
    version: Version,
    expiry_ms: u64,
    writer: u32,
    is_visited: bool,
    /// Towards the newest.
    newer: u32,
    older: u32,
    value: Box<[u8]>,
}

/// The cache of one shard.
#[derive(Debug)]
pub(crate) struct Cache<R> {
    budget_bytes: usize,
    bytes: usize,
    places: HashMap<At, u32>,
    entries: Vec<Entry>,
    newest: u32,
    oldest: u32,
    hand: u32,
    hits: u64,
    misses: u64,
    rules: R,
}

impl<R: Rules> Cache<R> {
    /// Of nothing: it keeps no values.
    pub(crate) fn new(rules: R) -> Self {
        Self {
            budget_bytes: 0,
            bytes: 0,
            places: HashMap::new(),
            entries: Vec::new(),
            newest: NONE,
            oldest: NONE,
            hand: NONE,
            hits: 0,
            misses: 0,
            rules,
        }
    }

    pub(crate) fn set_budget(&mut self, budget_bytes: usize) {
        self.budget_bytes = budget_bytes;
        self.make_room(0);
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        CacheCounts {
            bytes: self.bytes as u64,
            values: self.entries.len() as u64,
            hits: self.hits,
            misses: self.misses,
        }
    }

    fn at(&self, seat: Seat) -> At {
        let is_confused = self.rules.makes(Mistake::CachedPlaceUsedAgain);
        (seat.address, if is_confused { 0 } else { seat.uses })
    }

    /// What lies there. It was asked for.
    pub(crate) fn get(&mut self, seat: Seat) -> Option<Cached<'_>> {
        if self.budget_bytes == 0 {
            return None;
        }
        let Some(slot) = self.places.get(&self.at(seat)) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        let entry = &mut self.entries[*slot as usize];
        entry.is_visited = true;
        Some(entry.cached())
    }

    /// The same, and it does not count as asked for.
    pub(crate) fn peek(&self, seat: Seat) -> Option<Cached<'_>> {
        let slot = self.places.get(&self.at(seat))?;
        Some(self.entries[*slot as usize].cached())
    }

    /// What lies there from now on, as long as the segment is used.
    pub(crate) fn insert(&mut self, seat: Seat, content: Cached<'_>) {
        let cost = content.value.len() + ENTRY_COST_BYTES;
        let at = self.at(seat);
        if cost > self.budget_bytes / SHARE || self.places.contains_key(&at) {
            return;
        }
        self.make_room(cost);
        self.push(Entry {
            at,
            version: content.version,
            expiry_ms: content.expiry_ms,
            writer: content.writer,
            is_visited: false,
            newer: NONE,
            older: self.newest,
            value: content.value.into(),
        });
        self.bytes += cost;
    }

    /// What lies at one place has been copied to another.
    pub(crate) fn moved(&mut self, from: Seat, to: Seat) {
        let (from, to) = (self.at(from), self.at(to));
        if self.places.contains_key(&to) {
            return;
        }
        if let Some(slot) = self.places.remove(&from) {
            self.entries[slot as usize].at = to;
            self.places.insert(to, slot);
        }
    }

    fn push(&mut self, entry: Entry) {
        let slot = u32::try_from(self.entries.len()).expect("a budget has fewer");
        self.places.insert(entry.at, slot);
        match self.entries.get_mut(self.newest as usize) {
            Some(newest) => newest.newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
        self.entries.push(entry);
    }

    fn make_room(&mut self, bytes: usize) {
        if self.rules.makes(Mistake::CacheUnbounded) {
            return;
        }
        while self.bytes + bytes > self.budget_bytes && !self.entries.is_empty() {
            self.evict();
        }
        if self.entries.is_empty() {
            self.places.shrink_to_fit();
            self.entries.shrink_to_fit();
        }
    }

    /// The hand goes on to what was not asked for, and takes it.
    fn evict(&mut self) {
        let mut hand = self.hand;
        loop {
            if hand == NONE {
                hand = self.oldest;
            }
            let entry = &mut self.entries[hand as usize];
            if !entry.is_visited {
                break;
            }
            entry.is_visited = false;
            hand = entry.newer;
        }
        self.hand = self.entries[hand as usize].newer;
        self.remove(hand);
    }

    fn remove(&mut self, slot: u32) {
        let (newer, older) = {
            let entry = &self.entries[slot as usize];
            (entry.newer, entry.older)
        };
        self.link(older, newer);
        let entry = self.entries.swap_remove(slot as usize);
        self.places.remove(&entry.at);
        self.bytes -= entry.value.len() + ENTRY_COST_BYTES;
        // The last one has taken its slot.
        let Some(moved) = self.entries.get(slot as usize) else {
            return;
        };
        let (at, newer, older) = (moved.at, moved.newer, moved.older);
        let was = self.entries.len() as u32;
        self.places.insert(at, slot);
        self.link(older, slot);
        self.link(slot, newer);
        if self.hand == was {
            self.hand = slot;
        }
    }

    /// Two are neighbours.
    fn link(&mut self, older: u32, newer: u32) {
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }
}

impl Entry {
    fn cached(&self) -> Cached<'_> {
        Cached {
            version: self.version,
            writer: self.writer,
            expiry_ms: self.expiry_ms,
            value: &self.value,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mistake::Sound;

    fn seat(address: u64) -> Seat {
        Seat { address, uses: 1 }
    }

    fn value(bytes: &[u8]) -> Cached<'_> {
        Cached {
            version: Version::new(bytes.len() as u64),
            writer: 1,
            expiry_ms: 2,
            value: bytes,
        }
    }

    fn cache(values: usize) -> Cache<Sound> {
        let mut cache = Cache::new(Sound);
        cache.set_budget(values * (ENTRY_COST_BYTES + 8));
        cache
    }

    /// Oldest first.
    fn queue(cache: &Cache<Sound>) -> Vec<At> {
        let (mut slot, mut all) = (cache.oldest, Vec::new());
        while let Some(entry) = cache.entries.get(slot as usize) {
            assert_eq!(cache.places[&entry.at], slot);
            all.push(entry.at);
            slot = entry.newer;
        }
        all
    }

    #[test]
    fn what_was_asked_for_stays_and_a_scan_passes() {
        let mut cache = cache(16);
        for address in 0..16 {
            cache.insert(seat(address), value(&[7; 8]));
        }
        for address in 0..8 {
            assert!(cache.get(seat(address)).is_some());
        }
        // So many come by once.
        for address in 100..200 {
            cache.insert(seat(address), value(&[7; 8]));
        }
        assert!((0..8).all(|address| cache.peek(seat(address)).is_some()));
        assert_eq!(cache.counts().values, 16);
    }

    #[test]
    fn a_place_that_is_used_again_is_another() {
        let mut cache = cache(16);
        cache.insert(seat(8), value(&[7; 8]));
        assert_eq!(
            cache.get(Seat {
                address: 8,
                uses: 2
            }),
            None
        );
        cache.moved(
            seat(8),
            Seat {
                address: 16,
                uses: 3,
            },
        );
        assert_eq!(cache.get(seat(8)), None);
        let moved = cache.get(Seat {
            address: 16,
            uses: 3,
        });
        assert_eq!(moved, Some(value(&[7; 8])));
    }

    #[test]
    fn nothing_is_kept_without_a_budget() {
        let mut cache = cache(16);
        cache.insert(seat(8), value(&[7; 8]));
        cache.set_budget(0);
        cache.insert(seat(16), value(&[7; 8]));
        assert!(cache.get(seat(8)).is_none() && cache.get(seat(16)).is_none());
        assert_eq!(cache.counts(), CacheCounts::default());
    }

    proptest! {
        #[test]
        fn it_is_within_its_budget_and_each_value_is_its_place_s(
            budget in 0usize..20_000, steps in prop::collection::vec((0u64..40, 0u8..4, 0usize..3000), 0..400),
        ) {
            let mut cache = Cache::new(Sound);
            cache.set_budget(budget);
            let mut known: HashMap<u64, Vec<u8>> = HashMap::new();
            for (address, what, bytes) in steps {
                match what {
                    0 => {
                        let found = cache.get(seat(address)).map(|it| it.value.to_vec());
                        if let Some(found) = found {
                            prop_assert_eq!(Some(&found), known.get(&address));
                        }
                    }
                    1 if !known.contains_key(&(address + 100)) => {
                        cache.moved(seat(address), seat(address + 100));
                        if let Some(moved) = known.remove(&address) {
                            known.insert(address + 100, moved);
                        }
                    }
                    _ => {
                        let new = vec![address as u8; bytes];
                        let put = known.entry(address).or_insert(new);
                        let put = put.clone();
                        cache.insert(seat(address), value(&put));
                    }
                }
                prop_assert!(cache.bytes <= budget);
                let queue = queue(&cache);
                prop_assert_eq!(queue.len(), cache.places.len());
                prop_assert_eq!(queue.len(), cache.entries.len());
                prop_assert!(cache.hand == NONE || (cache.hand as usize) < queue.len());
            }
        }
    }
}
