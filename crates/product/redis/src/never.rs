// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys that cannot be filled: of another type, too large, or absent where that is not cached. They are not asked for again for
//! minutes, or until a write to them: what it makes of them nobody knows.
//!
//! Only hashes of keys are kept. Two keys of one hash are one: the second is not filled for a while.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use erb_abi::{ValueKind, Wanted};

/// Not asked for again for this long. Asking costs Redis about 2 us, and the answer changes only by
/// a write, which is pushed (SWAPDB is not).
pub(crate) const NEVER_FOR_NS: u64 = 300_000_000_000;

/// Kept at most; the oldest makes room. About 6 MB.
const NEVER_MAX: usize = 65_536;

/// A key that cannot be filled, of one database and as one kind of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct One {
    db: u16,
    kind: ValueKind,
    since_ns: u64,
}

/// The keys that cannot be filled.
#[derive(Default)]
pub(crate) struct Never {
    hasher: RandomState,
    /// By the hash of the key alone: a push names no database.
    known: HashMap<u64, Vec<One>>,
    /// In order of time. What a write has forgotten stays here until its turn.
    order: VecDeque<(u64, One)>,
}

impl Never {
    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Whether the key is not to be asked for.
    pub(crate) fn holds(&self, wanted: &Wanted) -> bool {
        let found = self.known.get(&self.hash(&wanted.key));
        let same = |one: &One| one.db == wanted.db && one.kind == wanted.kind;
        found.is_some_and(|all| all.iter().any(same))
    }

    /// The key could not be filled.
    pub(crate) fn note(&mut self, wanted: &Wanted, now_ns: u64) {
        if self.holds(wanted) {
            return;
        }
        if self.order.len() >= NEVER_MAX {
            self.forget_oldest();
        }
        let hash = self.hash(&wanted.key);
        let one = One {
            db: wanted.db,
            kind: wanted.kind,
            since_ns: now_ns,
        };
        self.known.entry(hash).or_default().push(one);
        self.order.push_back((hash, one));
    }

    /// Somebody asks for the key by name.
    pub(crate) fn forget(&mut self, wanted: &Wanted) {
        let hash = self.hash(&wanted.key);
        self.retain(hash, |one| one.db != wanted.db || one.kind != wanted.kind);
    }

    /// The key was written, in whatever database.
    pub(crate) fn written(&mut self, key: &[u8]) {
        if !self.known.is_empty() {
            self.known.remove(&self.hash(key));
        }
    }

    /// Called now and then: lets what is old be asked for again.
    pub(crate) fn forgive(&mut self, now_ns: u64) {
        while let Some((_, one)) = self.order.front() {
            if now_ns.saturating_sub(one.since_ns) <= NEVER_FOR_NS {
                break;
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((hash, oldest)) = self.order.pop_front() {
            self.retain(hash, |one| *one != oldest);
        }
    }

    fn retain(&mut self, hash: u64, keep: impl Fn(&One) -> bool) {
        if let Some(all) = self.known.get_mut(&hash) {
            all.retain(keep);
            if all.is_empty() {
                self.known.remove(&hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Wanted {
        Wanted::string(number.to_string().into_bytes())
    }

    #[test]
    fn a_key_rests_for_minutes_and_each_by_itself() {
        let mut never = Never::default();
        never.note(&key(1), 0);
        never.note(&key(2), NEVER_FOR_NS / 2);
        never.forgive(NEVER_FOR_NS);
        assert!(never.holds(&key(1)) && never.holds(&key(2)));
        never.forgive(NEVER_FOR_NS + 1);
        assert!(!never.holds(&key(1)) && never.holds(&key(2)));
    }

    #[test]
    fn a_write_forgets_the_key_in_all_databases_and_no_other() {
        let mut never = Never::default();
        let mut elsewhere = key(1);
        elsewhere.db = 3;
        let mut hash = key(1);
        hash.kind = ValueKind::Hash;
        for wanted in [&key(1), &elsewhere, &hash, &key(2)] {
            never.note(wanted, 0);
        }
        never.forget(&hash);
        assert!(never.holds(&key(1)) && never.holds(&elsewhere) && !never.holds(&hash));
        never.written(b"1");
        assert!(!never.holds(&key(1)) && !never.holds(&elsewhere));
        assert!(never.holds(&key(2)));
    }

    #[test]
    fn what_is_kept_is_bounded_and_only_the_oldest_makes_room() {
        let mut never = Never::default();
        for number in 0..NEVER_MAX + 10 {
            never.note(&key(number), number as u64);
        }
        let held = (0..NEVER_MAX + 10).filter(|number| never.holds(&key(*number)));
        assert_eq!(held.count(), NEVER_MAX);
        assert!(!never.holds(&key(9)) && never.holds(&key(10)));
        for _ in 0..3 * NEVER_MAX {
            never.written(b"7777");
            never.note(&key(7777), u64::MAX);
        }
        assert!(never.order.len() <= NEVER_MAX && never.known.len() <= NEVER_MAX);
    }
}
