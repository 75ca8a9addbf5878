// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cut of the log: all writes up to an LSN and none behind it, of each key the last one.
//!
//! Invariants:
//! 1. A cut begins behind `drained` and has every LSN up to its end. Where one is missing it ends: its CPU
//!    has not put it into the ring yet, and what is behind it waits.
//! 2. Values come from records. Of a key in a database the last record of the cut counts, and no other.
//! 3. Within a ring LSNs grow, over all rings none stands twice.
//! 4. What was read of the rings and is not drained is read again: a cut that is given up leaves nothing.
//! 5. No record allocates: all that grows is kept from cut to cut, and bounded by [`RECORDS_MAX`] and
//!    the arena.

use erb_abi as abi;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::ring::{Arena, Log, LogError, Record};

/// Records of one cut: what is outstanding stays far below 2^32, and Redis is not kept for long.
pub(crate) const RECORDS_MAX: usize = 16 * 1024;

/// Bytes of keys and values of one cut: Redis reads as many before it can begin.
const BYTES_MAX: usize = 1 << 20;

/// What one write costs Redis, in quarters of a plain one in an MSET: measured 1.8 and 3.0 us.
const PLAIN_COST: usize = 4;
const EXPIRING_COST: usize = 7;
/// A quarter more for so many bytes of value.
const COST_BYTES: usize = 512;

/// Cost of one plain, short key.
pub(crate) const KEY_COST: usize = PLAIN_COST;

/// How far a ring is read.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// Behind the last drained record, and its LSN; 0: none of this ring was seen.
    next: u64,
    last: u64,
    /// The same behind the cut's.
    cut_next: u64,
    cut_last: u64,
}

/// A key and its last write.
#[derive(Clone, Copy, Debug)]
struct Key {
    hash: u64,
    record: Record,
}

/// The writes of one batch, and the memory to find them.
pub(crate) struct Cut {
    cursors: Vec<Cursor>,
    databases: u32,
    secret: abi::hash_secret,
    arena: Arena,
    /// In the order in which rings are read.
    records: Vec<Record>,
    /// By LSN from the first behind `drained`: 1 + index in `records`; 0: not there.
    window: Vec<u32>,
    by_key: HashTable<u32>,
    keys: Vec<Key>,
    /// Last LSN, and how many records there are.
    end: u64,
    count: usize,
    cost: usize,
    missing: Option<u64>,
}

/// How much a cut may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) records: usize,
    /// Of Redis, as [`KEY_COST`] counts it.
    pub(crate) cost: usize,
}

impl Cut {
    /// Begins at the rings' tails.
    pub(crate) fn new(log: &impl Log, databases: u32, secret: abi::hash_secret) -> Self {
        let cursor = |ring| {
            let next = log.tail(ring);
            Cursor {
                next,
                cut_next: next,
                ..Cursor::default()
            }
        };
        Self {
            cursors: (0..log.count()).map(cursor).collect(),
            databases,
            secret,
            arena: Arena::default(),
            records: Vec::new(),
            window: Vec::new(),
            by_key: HashTable::new(),
            keys: Vec::new(),
            end: log.drained(),
            count: 0,
            cost: 0,
            missing: None,
        }
    }

    /// Cuts anew what is behind `drained`; false: there is nothing, or the next LSN is missing.
    pub(crate) fn make(
        &mut self,
        log: &impl Log,
        drained: u64,
        most: Most,
    ) -> Result<bool, LogError> {
        self.give_up();
        let mut records = most.records.clamp(1, RECORDS_MAX);
        // Until there is room for all rings: what is missing may be in the last one.
        while !self.read_rings(log, drained, records)? {
            records /= 2;
        }
        self.coalesce(drained, most.cost);
        Ok(self.count > 0)
    }

    /// Reads so many LSNs out of all rings; false: they take too much room.
    fn read_rings(
        &mut self,
        log: &impl Log,
        drained: u64,
        records: usize,
    ) -> Result<bool, LogError> {
        self.arena.clear();
        self.records.clear();
        self.window.clear();
        self.window.resize(records, 0);
        for ring in 0..self.cursors.len() {
            if !self.read_ring(log, ring, drained)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Notes what a ring has of the window; false: there was no room for all of it.
    fn read_ring(&mut self, log: &impl Log, ring: usize, drained: u64) -> Result<bool, LogError> {
        let head = log.head(ring);
        let Cursor { mut next, last, .. } = self.cursors[ring];
        let line = u64::from(abi::LOG_ALIGN);
        if head.wrapping_sub(next) > u64::from(abi::LOG_BYTES) || (head | next) % line != 0 {
            return Err(LogError::Head { ring, head, next });
        }
        let mut last = last;
        while next != head {
            if !self.arena.has_room() {
                return Ok(false);
            }
            let at = next;
            let wrong = |what| LogError::Record { ring, at, what };
            let record = self.arena.read(log, (ring, at, head), self.databases)?;
            if record.lsn <= last {
                return Err(wrong("its LSN is not above the one before it"));
            }
            last = record.lsn;
            next = record.end;
            // Drained by a daemon that ended before it could free the room.
            if record.lsn <= drained {
                self.arena.forget(&record);
                let cursor = &mut self.cursors[ring];
                (cursor.next, cursor.last) = (next, last);
                (cursor.cut_next, cursor.cut_last) = (next, last);
                continue;
            }
            let place = usize::try_from(record.lsn - drained - 1).unwrap_or(usize::MAX);
            let Some(place) = self.window.get_mut(place) else {
                self.arena.forget(&record);
                break;
            };
            if *place != 0 {
                return Err(wrong("its LSN stands twice"));
            }
            self.records.push(record);
            *place = self.records.len() as u32;
        }
        Ok(true)
    }

    /// Goes by LSN until one is missing, or the cut is long enough.
    fn coalesce(&mut self, drained: u64, cost_max: usize) {
        let mut bytes = 0;
        for index in 0..self.window.len() {
            if self.cost >= cost_max || bytes >= BYTES_MAX {
                break;
            }
            let Some(found) = (self.window[index] as usize).checked_sub(1) else {
                let is_gap = self.records.len() > self.count;
                self.missing = is_gap.then_some(drained + self.count as u64 + 1);
                break;
            };
            let record = self.records[found];
            self.take(record, &mut bytes);
            let cursor = &mut self.cursors[record.ring as usize];
            (cursor.cut_next, cursor.cut_last) = (record.end, record.lsn);
            self.count += 1;
            self.end = record.lsn;
        }
    }

    fn take(&mut self, record: Record, bytes: &mut usize) {
        let (arena, keys) = (&self.arena, &mut self.keys);
        let key = arena.key(&record);
        let hash = self.secret.hash(key) ^ u64::from(record.db);
        let is_same = |index: &u32| {
            let other = &keys[*index as usize];
            other.hash == hash && other.record.db == record.db && arena.key(&other.record) == key
        };
        let hash_of = |index: &u32| keys[*index as usize].hash;
        let cost = cost_of(arena, &record);
        match self.by_key.entry(hash, is_same, hash_of) {
            Entry::Occupied(index) => {
                let own = &mut keys[*index.get() as usize].record;
                self.cost -= cost_of(arena, own);
                *own = record;
            }
            Entry::Vacant(place) => {
                place.insert(keys.len() as u32);
                keys.push(Key { hash, record });
            }
        }
        self.cost += cost;
        *bytes += key.len() + arena.value(&record).len();
    }

    /// Its records are in Redis: frees their room. Not before `drained` was moved.
    pub(crate) fn done(&mut self, log: &impl Log) {
        debug_assert!(log.drained() >= self.end);
        for (ring, cursor) in self.cursors.iter_mut().enumerate() {
            (cursor.next, cursor.last) = (cursor.cut_next, cursor.cut_last);
            if log.tail(ring) != cursor.next {
                log.set_tail(ring, cursor.next);
            }
        }
        self.forget();
    }

    /// It is not drained; the next one begins where this one began.
    pub(crate) fn give_up(&mut self) {
        for cursor in &mut self.cursors {
            (cursor.cut_next, cursor.cut_last) = (cursor.next, cursor.last);
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.by_key.clear();
        self.keys.clear();
        (self.count, self.cost, self.missing) = (0, 0, None);
    }

    /// The last LSN.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// How many records it has.
    pub(crate) const fn records(&self) -> usize {
        self.count
    }

    /// How many keys it has.
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// What it costs Redis, as [`KEY_COST`] counts it.
    pub(crate) const fn cost(&self) -> usize {
        self.cost
    }

    /// The LSN that is waited for while later ones are there.
    pub(crate) const fn missing(&self) -> Option<u64> {
        self.missing
    }

    pub(crate) fn key(&self, index: u32) -> &[u8] {
        self.arena.key(self.record(index))
    }

    pub(crate) fn value(&self, index: u32) -> &[u8] {
        self.arena.value(self.record(index))
    }

    pub(crate) fn record(&self, index: u32) -> &Record {
        &self.keys[index as usize].record
    }
}

fn cost_of(arena: &Arena, record: &Record) -> usize {
    let kind = if record.expiry_ms == 0 {
        PLAIN_COST
    } else {
        EXPIRING_COST
    };
    kind + arena.value(record).len() / COST_BYTES
}
