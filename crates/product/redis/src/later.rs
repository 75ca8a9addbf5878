// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys whose SET is answered for a while longer: each is read again shortly before that ends, once, and
//! not while it is written anew.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use erb_abi::{self as abi, Wanted};

use crate::clock::MS;

/// Keys at most; more are missed when what their SETs said is over.
const LATER_MAX: usize = 4096;

/// A report comes behind its SET, so no more than `WRITTEN_END_NS` is left by then.
const LATER_NS: u64 = (abi::WRITTEN_NS - abi::WRITTEN_END_NS) as u64;

/// Keys are due together: to wake and ask for each alone costs more than its value.
const TOGETHER_NS: u64 = 4 * MS;

#[derive(Default)]
pub(crate) struct Later {
    /// When each key is due by its last report, and whether only if it was read.
    due: HashMap<Wanted, (u64, bool)>,
    /// Each key once, by when it was due when it was put here.
    queue: BinaryHeap<Reverse<(u64, Wanted)>>,
}

impl Later {
    /// The key was written; if_read: to read it again is worth it only if somebody has.
    pub(crate) fn note(&mut self, key: Wanted, if_read: bool, now_ns: u64) {
        let at = (now_ns + LATER_NS).next_multiple_of(TOGETHER_NS);
        if let Some(due) = self.due.get_mut(&key) {
            *due = (at, if_read);
        } else if self.due.len() < LATER_MAX {
            self.queue.push(Reverse((at, key.clone())));
            self.due.insert(key, (at, if_read));
        }
    }

    /// When to look for keys that are due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at, _))| *at)
    }

    /// Keys that are due, and whether only if they were read.
    pub(crate) fn take(&mut self, now_ns: u64) -> Vec<(Wanted, bool)> {
        let mut taken = Vec::new();
        while self.next_ns().is_some_and(|at| at <= now_ns)
            && let Some(Reverse((_, key))) = self.queue.pop()
        {
            match self.due.get(&key) {
                Some((at, _)) if *at > now_ns => self.queue.push(Reverse((*at, key))),
                _ => {
                    let if_read = self.due.remove(&key).is_some_and(|(_, if_read)| if_read);
                    taken.push((key, if_read));
                }
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Wanted {
        Wanted::string(number.to_ne_bytes().to_vec())
    }

    #[test]
    fn a_key_is_due_once_and_not_while_it_is_written() {
        let mut later = Later::default();
        assert_eq!(later.next_ns(), None);
        later.note(key(1), false, MS);
        later.note(key(2), false, 2 * MS);
        later.note(key(3), true, 2 * MS);
        later.note(key(1), true, 3 * MS);
        assert_eq!(later.take(LATER_NS + MS), []);
        let due = [(key(2), false), (key(3), true)];
        assert_eq!(later.take(LATER_NS + 2 * MS), due, "1 was written since");
        assert_eq!(later.next_ns(), Some(LATER_NS + 6 * MS), "with others");
        assert_eq!(later.take(LATER_NS + 6 * MS), [(key(1), true)]);
        assert_eq!((later.next_ns(), later.due.len()), (None, 0));
    }

    #[test]
    fn keys_are_bounded() {
        let mut later = Later::default();
        for number in 0..2 * LATER_MAX {
            later.note(key(number), false, 0);
        }
        assert_eq!(later.take(u64::MAX).len(), LATER_MAX);
    }
}
