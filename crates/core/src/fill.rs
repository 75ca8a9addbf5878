// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which keys to fill next: those missed more than once, each once, in batches.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};

use erb_abi::Wanted;

use crate::feed::Filled;

/// Keys waiting at most; a key that does not fit is missed again.
const WAITING_MAX: usize = 65_536;

/// Tries per key that somebody asked for by name.
const TRIES_MAX: u32 = 40;

/// Keys that cannot be filled (absent, no string, too large) are not asked for again for this long.
const NEVER_FOR_NS: u64 = 2_000_000_000;

/// Such keys remembered at most; beyond, some are asked for once more than needed.
const NEVER_MAX: usize = 65_536;

/// Keys wanted in the cache.
#[derive(Default)]
pub(crate) struct Fills {
    waiting: VecDeque<Wanted>,
    /// Waiting or under way, with the tries left.
    known: HashMap<Wanted, u32>,
    /// Asked for by name: tried again when something came in between.
    named: HashSet<Wanted>,
    never: HashSet<Wanted>,
    never_since_ns: Option<u64>,
    /// Keys that were filled.
    pub(crate) filled: u64,
    /// Keys asked for by name that could not be filled.
    pub(crate) named_failed: u64,
}

impl Fills {
    /// A key was missed more than once.
    pub(crate) fn missed(&mut self, key: Wanted) {
        if self.waiting.len() < WAITING_MAX && !self.never.contains(&key) {
            self.want(key, 1);
        }
    }

    /// Somebody asks for this key to be filled.
    pub(crate) fn ask(&mut self, key: Wanted) {
        self.never.remove(&key);
        self.named.insert(key.clone());
        self.want(key, TRIES_MAX);
    }

    fn want(&mut self, key: Wanted, tries: u32) {
        if let Entry::Vacant(place) = self.known.entry(key) {
            self.waiting.push_back(place.key().clone());
            place.insert(tries);
        }
    }

    /// Keys asked for by name that are not done yet.
    pub(crate) fn named_left(&self) -> usize {
        self.named.len()
    }

    /// Keys waiting.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether keys wait or are under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.known.is_empty()
    }

    /// The next keys, at most `count`.
    pub(crate) fn take(&mut self, count: usize) -> Vec<Wanted> {
        let count = count.min(self.waiting.len());
        self.waiting.drain(..count).collect()
    }

    /// A fill ended, or could not begin.
    pub(crate) fn ended(&mut self, key: Wanted, end: Filled, now_ns: u64) {
        let tries = self.known.remove(&key).unwrap_or(1);
        match end {
            Filled::Inserted => {
                self.filled += 1;
                self.named.remove(&key);
            }
            Filled::Later if self.named.contains(&key) && tries > 1 => self.want(key, tries - 1),
            Filled::Later => self.failed(&key),
            Filled::Never => {
                self.failed(&key);
                self.remember_never(key, now_ns);
            }
        }
    }

    /// The connection is gone: what was under way is not coming.
    pub(crate) fn forget_all(&mut self) {
        self.named_failed += self.named.len() as u64;
        self.waiting.clear();
        self.known.clear();
        self.named.clear();
    }

    fn failed(&mut self, key: &Wanted) {
        if self.named.remove(key) {
            self.named_failed += 1;
        }
    }

    fn remember_never(&mut self, key: Wanted, now_ns: u64) {
        if self.is_old(now_ns) || self.never.len() >= NEVER_MAX {
            self.never.clear();
        }
        if self.never.is_empty() {
            self.never_since_ns = Some(now_ns);
        }
        self.never.insert(key);
    }

    /// Called now and then: lets keys that could not be filled be asked for again.
    pub(crate) fn forgive(&mut self, now_ns: u64) {
        if self.is_old(now_ns) {
            self.never.clear();
            self.never_since_ns = None;
        }
    }

    fn is_old(&self, now_ns: u64) -> bool {
        self.never_since_ns
            .is_some_and(|since| now_ns.saturating_sub(since) > NEVER_FOR_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Wanted {
        Wanted::string(name.as_bytes().to_vec())
    }

    #[test]
    fn a_key_is_asked_for_once() {
        let mut fills = Fills::default();
        for _ in 0..3 {
            fills.missed(key("a"));
        }
        assert_eq!(fills.take(32), [key("a")]);
        fills.missed(key("a"));
        assert!(fills.take(32).is_empty(), "under way");
        fills.ended(key("a"), Filled::Inserted, 0);
        assert_eq!(fills.filled, 1);
        fills.missed(key("a"));
        assert_eq!(fills.take(32).len(), 1);
    }

    #[test]
    fn keys_that_cannot_be_filled_rest() {
        let mut fills = Fills::default();
        fills.missed(key("a"));
        fills.take(1);
        fills.ended(key("a"), Filled::Never, 0);
        fills.missed(key("a"));
        assert_eq!(fills.waiting(), 0);
        fills.ask(key("a"));
        assert_eq!(fills.waiting(), 1, "asked for by name");
    }

    #[test]
    fn named_keys_are_tried_again_and_end() {
        let mut fills = Fills::default();
        fills.ask(key("a"));
        let mut rounds = 0;
        while let Some(key) = fills.take(1).pop() {
            fills.ended(key, Filled::Later, 0);
            rounds += 1;
        }
        assert_eq!(rounds, TRIES_MAX);
        assert_eq!((fills.named_left(), fills.named_failed), (0, 1));
    }

    #[test]
    fn waiting_keys_are_bounded() {
        let mut fills = Fills::default();
        for number in 0..WAITING_MAX + 10 {
            fills.missed(Wanted::string(number.to_ne_bytes().to_vec()));
        }
        assert_eq!(fills.waiting(), WAITING_MAX);
    }
}
