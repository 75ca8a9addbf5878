// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cut of the log: all writes up to an LSN and none behind it, of each key the last one.
//!
//! Invariants:
//! 1. A cut begins behind `drained` and has every LSN up to its end. Where one is missing it ends: its CPU
//!    has not put it into the ring yet, and what is behind it waits.
//! 2. Values come from records. Of a key in a database the last record of the cut counts, and no other.
//! 3. Within a ring LSNs grow, over all rings none stands twice.
//! 4. What was read of the rings and is not drained is read again: a cut that is given up leaves nothing. Of each ring
//!    one record is read that the cut may not need.
//! 5. No cut has a record of a database that Redis does not have: a SELECT that is refused does not end a
//!    transaction, so the writes after it would go into another database.
//! 6. No record allocates: all that grows is kept from cut to cut, and bounded by [`RECORDS_MAX`] and
//!    the arena.

use erb_abi as abi;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::ring::{Arena, Log, LogError, Record};

/// Records of one cut: what is outstanding stays far below 2^32, and one key that is written for ever ends no cut.
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
    /// Up to where there are records, as this cut has seen it.
    head: u64,
    /// The record behind the cut's.
    ahead: Option<Record>,
}

/// A key and its last write.
#[derive(Clone, Copy, Debug)]
struct Key {
    hash: u64,
    record: Record,
}

/// What came of making a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// It has records.
    Batch,
    /// There are none, or the next LSN is missing.
    Nothing,
    /// One of its records is of this database, which Redis does not have.
    NoDatabase(u16),
}

/// The writes of one batch, and the memory to find them.
pub(crate) struct Cut {
    cursors: Vec<Cursor>,
    secret: abi::hash_secret,
    arena: Arena,
    by_key: HashTable<u32>,
    keys: Vec<Key>,
    /// Last LSN, and how many records there are.
    end: u64,
    count: usize,
    cost: usize,
    missing: Option<u64>,
    /// Somebody else waits for room that could be freed.
    owes_room: bool,
}

impl Cut {
    /// Begins at the rings' tails.
    pub(crate) fn new(log: &impl Log, secret: abi::hash_secret) -> Self {
        let cursor = |ring| {
            let next = log.tail(ring);
            Cursor {
                next,
                ..Cursor::default()
            }
        };
        Self {
            cursors: (0..log.count()).map(cursor).collect(),
            secret,
            arena: Arena::default(),
            by_key: HashTable::new(),
            keys: Vec::new(),
            end: log.drained(),
            count: 0,
            cost: 0,
            missing: None,
            owes_room: false,
        }
    }

    /// Cuts anew what is behind `drained`, of so much cost for a Redis that has so many databases.
    pub(crate) fn make(
        &mut self,
        log: &impl Log,
        drained: u64,
        cost_max: usize,
        databases: u32,
    ) -> Result<Made, LogError> {
        self.give_up();
        self.arena.clear();
        self.end = drained;
        let mut bytes = 0;
        let mut ring = 0;
        while self.cost < cost_max && bytes < BYTES_MAX && self.count < RECORDS_MAX {
            let Some((from, record)) = self.next_of_all(log, ring, drained)? else {
                break;
            };
            if u32::from(record.db) >= databases {
                // Nor what is before it: all of the cut may have been executed before the connection was lost, and a
                // part of it would put older values over newer ones.
                return Ok(Made::NoDatabase(record.db));
            }
            self.take(record, &mut bytes);
            let cursor = &mut self.cursors[from];
            (cursor.cut_next, cursor.cut_last) = (record.end, record.lsn);
            cursor.ahead = None;
            self.count += 1;
            self.end = record.lsn;
            ring = from; // who has written goes on as a rule
        }
        Ok(match self.count {
            0 => Made::Nothing,
            _ => Made::Batch,
        })
    }

    /// The record behind the cut's last one, and its ring; it is looked for from this ring on.
    fn next_of_all(
        &mut self,
        log: &impl Log,
        first: usize,
        drained: u64,
    ) -> Result<Option<(usize, Record)>, LogError> {
        let mut is_gap = false;
        let rings = self.cursors.len();
        for ring in (first..rings).chain(0..first) {
            let Some(record) = self.next_of(log, ring, drained)? else {
                continue;
            };
            if record.lsn == self.end + 1 {
                return Ok(Some((ring, record)));
            }
            if record.lsn <= self.end {
                let at = self.cursors[ring].cut_next;
                let what = "its LSN stands twice";
                return Err(LogError::Record { ring, at, what });
            }
            is_gap = true;
        }
        self.missing = is_gap.then_some(self.end + 1);
        Ok(None)
    }

    /// The record of a ring that is behind the cut's; none: there is none yet, or the arena is full.
    fn next_of(
        &mut self,
        log: &impl Log,
        ring: usize,
        drained: u64,
    ) -> Result<Option<Record>, LogError> {
        let cursor = &mut self.cursors[ring];
        if let Some(record) = cursor.ahead {
            return Ok(Some(record));
        }
        if cursor.head == cursor.cut_next {
            cursor.look(log, ring)?;
        }
        while cursor.cut_next != cursor.head && self.arena.has_room() {
            let (at, head) = (cursor.cut_next, cursor.head);
            let record = self.arena.read(log, (ring, at, head))?;
            if record.lsn <= cursor.cut_last {
                let what = "its LSN is not above the one before it";
                return Err(LogError::Record { ring, at, what });
            }
            log.prefetch(ring, record.end, head);
            if record.lsn > drained {
                cursor.ahead = Some(record);
                return Ok(Some(record));
            }
            // Drained by a daemon that ended before it could free the room.
            self.arena.forget(&record);
            (cursor.next, cursor.last) = (record.end, record.lsn);
            (cursor.cut_next, cursor.cut_last) = (record.end, record.lsn);
        }
        Ok(None)
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
        for cursor in &mut self.cursors {
            (cursor.next, cursor.last) = (cursor.cut_next, cursor.cut_last);
        }
        self.free(log);
        self.forget();
    }

    /// Frees the room of all that is drained, as far as nobody else waits for it.
    fn free(&mut self, log: &impl Log) {
        self.owes_room = false;
        for (ring, cursor) in self.cursors.iter().enumerate() {
            if log.tail(ring) != cursor.next {
                log.set_tail(ring, cursor.next);
                self.owes_room |= log.tail(ring) < cursor.next;
            }
        }
    }

    /// Whether somebody else waited for room when it was last freed.
    pub(crate) const fn owes_room(&self) -> bool {
        self.owes_room
    }

    /// The same between two batches, where somebody else has waited for it: behind a full ring there may be no batch any
    /// more that would do it.
    pub(crate) fn free_owed(&mut self, log: &impl Log) {
        if self.owes_room {
            self.free(log);
        }
    }

    /// It is not drained; the next one begins where this one began.
    pub(crate) fn give_up(&mut self) {
        for cursor in &mut self.cursors {
            (cursor.cut_next, cursor.cut_last) = (cursor.next, cursor.last);
            (cursor.head, cursor.ahead) = (cursor.next, None);
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

impl Cursor {
    /// Sees how far there are records now.
    fn look(&mut self, log: &impl Log, ring: usize) -> Result<(), LogError> {
        let (head, next) = (log.head(ring), self.cut_next);
        let line = u64::from(abi::LOG_ALIGN);
        if head.wrapping_sub(self.next) > u64::from(abi::LOG_BYTES)
            || head.wrapping_sub(next) > u64::from(abi::LOG_BYTES)
            || (head | next) % line != 0
        {
            return Err(LogError::Head { ring, head, next });
        }
        self.head = head;
        Ok(())
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
