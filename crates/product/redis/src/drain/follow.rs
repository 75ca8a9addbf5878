// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads what is not drained beside the drain, in order of LSN, for who keeps it elsewhere: the journal's thread.
//!
//! Invariants:
//! 1. Nothing is written to the rings: room is freed by the drain alone.
//! 2. The drain may free a record while it is copied, and its CPU write over it then. So a ring's tail is read behind
//!    each copy: if it has passed the record, that is in Redis, and the copy is worth nothing.
//! 3. What is told has no gaps but where all that is left out is drained.
//! 4. What cannot be a record ends the reading ([`ring`](super::ring), 1).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{Ordering, fence};

use erb_abi::{self as abi, Written};

use super::ring::{Arena, Log, LogError, Record};

/// How far a ring is read.
#[derive(Clone, Copy, Default)]
struct Place {
    next: u64,
    last_lsn: u64,
    /// Its next record is known, which begins there.
    is_known: bool,
    at: u64,
}

/// See the module.
#[derive(Default)]
pub struct Follower {
    rings: Vec<Place>,
    /// The next record of each ring that has one: LSN, ring, position.
    known: BinaryHeap<Reverse<(u64, usize, u64)>>,
    arena: Arena,
    last: u64,
    /// What is drained is told as well: its room is not freed before it is read ([`erb_abi::Kept`]).
    tells_all: bool,
}

impl Follower {
    /// One that tells what is drained, too.
    #[must_use]
    pub fn of_all() -> Self {
        Self {
            tells_all: true,
            ..Self::default()
        }
    }

    /// All before this position was told, of one ring.
    #[must_use]
    pub fn position(&self, ring: usize) -> u64 {
        let place = self.rings.get(ring).copied().unwrap_or_default();
        match place.is_known {
            true => place.at,
            false => place.next,
        }
    }

    /// Begins anew behind this LSN.
    pub fn begin(&mut self, log: &impl Log, behind: u64) {
        self.known.clear();
        self.rings.clear();
        self.rings.resize(log.count(), Place::default());
        self.last = behind;
    }

    /// The next write that is not drained, or was not a moment ago; none: its CPU has not put it into its ring yet, or there is none.
    ///
    /// # Errors
    /// [`LogError`]: what a ring holds cannot be.
    pub fn next(&mut self, log: &impl Log) -> Result<Option<Written<'_>>, LogError> {
        loop {
            // Before the rings are looked at: what is drained by now was in one.
            let drained = log.drained();
            if !self.tells_all {
                // What is in Redis by now need not be kept.
                self.last = self.last.max(drained);
            }
            let wanted = self.last + 1;
            if self.known.peek().is_none_or(|first| first.0.0 > wanted) {
                self.look(log)?;
            }
            let Some(Reverse((lsn, ring, at))) = self.known.peek().copied() else {
                return Ok(None);
            };
            if lsn > wanted {
                // Either it is drained by now, or its room was freed before anybody waited for this reader.
                let freed = if self.tells_all {
                    drained
                } else {
                    log.drained()
                };
                if freed < wanted {
                    return Ok(None);
                }
                self.last = freed.min(lsn - 1);
                continue;
            }
            self.known.pop();
            self.rings[ring].is_known = false;
            if lsn < wanted {
                continue;
            }
            if let Some(record) = self.read(log, ring, at)? {
                self.last = lsn;
                return Ok(Some(Written {
                    lsn,
                    db: record.db,
                    expiry_ms: record.expiry_ms,
                    key: self.arena.key(&record),
                    value: self.arena.value(&record),
                }));
            }
        }
    }

    /// Finds the next record of each ring of which it is not known.
    fn look(&mut self, log: &impl Log) -> Result<(), LogError> {
        for ring in 0..self.rings.len() {
            while !self.rings[ring].is_known {
                let at = self.rings[ring].next.max(log.tail(ring));
                self.rings[ring].next = at;
                let Some(head) = self.head(log, ring, at)? else {
                    continue; // the tail has moved on
                };
                if head == at {
                    break;
                }
                if let Some(record) = self.read(log, ring, at)? {
                    let place = &mut self.rings[ring];
                    if record.lsn <= place.last_lsn {
                        let what = "its LSN is not above the one before it";
                        return Err(LogError::Record { ring, at, what });
                    }
                    (place.next, place.last_lsn) = (record.end, record.lsn);
                    if record.lsn > self.last {
                        (place.is_known, place.at) = (true, at);
                        self.known.push(Reverse((record.lsn, ring, at)));
                    }
                }
            }
        }
        Ok(())
    }

    /// Where a ring that is read up to `at` ends; none: its tail has passed that.
    fn head(&self, log: &impl Log, ring: usize, at: u64) -> Result<Option<u64>, LogError> {
        let head = log.head(ring);
        let line = u64::from(abi::LOG_ALIGN);
        if head.wrapping_sub(at) <= u64::from(abi::LOG_BYTES) && (head | at) % line == 0 {
            return Ok(Some(head));
        }
        match passed(log, ring, at) {
            true => Ok(None),
            false => Err(LogError::Head {
                ring,
                head,
                next: at,
            }),
        }
    }

    /// The record at a position; none: it is drained.
    fn read(&mut self, log: &impl Log, ring: usize, at: u64) -> Result<Option<Record>, LogError> {
        self.arena.clear();
        let found = self.arena.read(log, (ring, at, log.head(ring)));
        match passed(log, ring, at) {
            true => Ok(None),
            false => found.map(Some),
        }
    }
}

/// Whether what was copied from there may be something else by now: invariant 2.
fn passed(log: &impl Log, ring: usize, at: u64) -> bool {
    fence(Ordering::Acquire);
    log.tail(ring) > at
}
