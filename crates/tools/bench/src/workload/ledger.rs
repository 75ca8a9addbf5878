// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which versions of a key a read may show.
//!
//! Writes get rising version numbers when they are sent, but Redis executes those under way at once
//! in any order. So all of a group, from a write that begins while none is under way to the moment
//! when none is, may be the last one. Once that moment has come, what was written before the group is
//! replaced for good, and a read that begins later must not show it: L1. Nor may any read show a
//! version that was not sent when its reply came: L2.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Result, ensure};

use super::value::VERSIONS_MAX;

/// Keys of one piece, which is made when it is needed.
const PIECE: u32 = 1 << 16;
/// Pieces: more keys than a key's name can number.
const PIECES: u32 = 2048;
/// What keys hold before the first operation.
pub const LOADED: u32 = 1;

/// Writes to one key.
#[derive(Debug, Default)]
struct Versions {
    /// The last that was sent; 0: the key was never written.
    latest: u32,
    /// The oldest that a read may show which begins now; 0: the key may be missing.
    floor: u32,
    /// The first of the present group.
    group: u32,
    /// Writes under way.
    under_way: u32,
    /// It was read since the last write was sent.
    read: bool,
}

type Piece = Box<[Mutex<Versions>]>;

/// The versions of all keys of one server, for all clients.
#[derive(Debug)]
pub struct Ledger {
    pieces: Box<[OnceLock<Piece>]>,
    loaded: u32,
    /// Keys that were loaded or whose insert was begun.
    begun: AtomicU32,
    /// Keys up to here are all there.
    there: AtomicU32,
}

impl Ledger {
    /// With so many keys loaded.
    pub fn new(loaded: u32) -> Self {
        let ledger = Self {
            pieces: (0..PIECES).map(|_| OnceLock::new()).collect(),
            loaded,
            begun: loaded.into(),
            there: loaded.into(),
        };
        for key in (0..loaded).step_by(PIECE as usize) {
            drop(ledger.of(key));
        }
        ledger
    }

    /// Keys that are there, the newest last.
    pub fn keys(&self) -> u32 {
        self.there.load(Ordering::Acquire)
    }

    /// A key that was never written.
    pub fn insert(&self) -> Result<u32> {
        let key = self.begun.fetch_add(1, Ordering::Relaxed);
        ensure!(key < PIECE * PIECES, "there are no more key numbers");
        Ok(key)
    }

    /// A write is sent; its version.
    pub fn write(&self, key: u32) -> Result<u32> {
        let mut versions = self.of(key);
        ensure!(versions.latest < VERSIONS_MAX, "a key has no more versions");
        versions.latest += 1;
        if versions.under_way == 0 {
            versions.group = versions.latest;
        }
        versions.under_way += 1;
        versions.read = false;
        Ok(versions.latest)
    }

    /// A write was answered.
    pub fn written(&self, key: u32) {
        let mut versions = self.of(key);
        versions.under_way -= 1;
        if versions.under_way > 0 {
            return;
        }
        versions.floor = versions.group;
        drop(versions);
        if key < self.loaded {
            return;
        }
        let mut next = self.keys();
        while next < self.begun.load(Ordering::Relaxed) && self.of(next).floor > 0 {
            let moved =
                self.there
                    .compare_exchange(next, next + 1, Ordering::AcqRel, Ordering::Acquire);
            next = moved.map_or_else(|now| now, |_| next + 1);
        }
    }

    /// A read is sent: the oldest version that it may show, 0 if the key may be missing; and whether
    /// the key was read since it was written, so that a cache may hold it.
    pub fn read(&self, key: u32) -> (u32, bool) {
        let mut versions = self.of(key);
        (versions.floor, mem::replace(&mut versions.read, true))
    }

    /// The newest version that a read may show which was answered now.
    pub fn latest(&self, key: u32) -> u32 {
        self.of(key).latest
    }

    fn of(&self, key: u32) -> MutexGuard<'_, Versions> {
        let first = key / PIECE * PIECE;
        let piece = self.pieces[(key / PIECE) as usize].get_or_init(|| {
            let versions = (first..first + PIECE).map(|key| {
                let version = if key < self.loaded { LOADED } else { 0 };
                Mutex::new(Versions {
                    latest: version,
                    floor: version,
                    ..Versions::default()
                })
            });
            versions.collect()
        });
        let versions = &piece[(key % PIECE) as usize];
        versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Ledger {
        fn floor(&self, key: u32) -> u32 {
            self.of(key).floor
        }
    }

    #[test]
    fn a_cache_may_hold_what_was_read_since_it_was_written() {
        let ledger = Ledger::new(2);
        let reads = |key| [ledger.read(key).1, ledger.read(key).1];
        assert_eq!(reads(0), [false, true]);
        ledger.write(0).unwrap();
        assert_eq!(reads(0), [false, true]);
        ledger.written(0);
        assert_eq!((reads(0), reads(1)), ([true, true], [false, true]));
    }

    #[test]
    fn a_write_that_was_answered_replaces_what_was_before_it() {
        let ledger = Ledger::new(10);
        assert_eq!((ledger.floor(3), ledger.latest(3)), (LOADED, LOADED));
        let version = ledger.write(3).unwrap();
        assert_eq!((ledger.floor(3), ledger.latest(3)), (LOADED, version));
        ledger.written(3);
        assert_eq!((ledger.floor(3), ledger.latest(3)), (version, version));
    }

    #[test]
    fn of_writes_under_way_at_once_any_may_be_the_last() {
        let ledger = Ledger::new(1);
        let first = ledger.write(0).unwrap();
        let second = ledger.write(0).unwrap();
        ledger.written(0);
        assert_eq!(ledger.floor(0), LOADED, "one is still under way");
        let third = ledger.write(0).unwrap();
        ledger.written(0);
        ledger.written(0);
        assert_eq!((ledger.floor(0), ledger.latest(0)), (first, third));
        let alone = ledger.write(0).unwrap();
        ledger.written(0);
        assert_eq!(ledger.floor(0), alone);
        assert!(first < second && second < third && third < alone);
    }

    #[test]
    fn inserted_keys_are_there_when_all_before_them_are() {
        let ledger = Ledger::new(PIECE - 1);
        let keys = [(); 3].map(|()| ledger.insert().unwrap());
        assert_eq!(keys, [PIECE - 1, PIECE, PIECE + 1]);
        for key in keys {
            assert_eq!((ledger.floor(key), ledger.write(key).unwrap()), (0, 1));
        }
        ledger.written(keys[1]);
        assert_eq!(ledger.keys(), PIECE - 1);
        ledger.written(keys[0]);
        assert_eq!(ledger.keys(), PIECE + 1);
        ledger.written(keys[2]);
        assert_eq!(ledger.keys(), PIECE + 2);
    }
}
