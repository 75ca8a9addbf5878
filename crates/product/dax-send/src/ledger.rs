// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which zero-copy sends of a socket the kernel still reads from. Pure: no system call, no clock.
//!
//! The kernel numbers the successful calls with `MSG_ZEROCOPY` of a socket, short ones too, from 0, in 32
//! bits (Linux, Documentation/networking/msg_zerocopy.rst). A completion names a range of numbers, both
//! ends included. Ranges join neighbours, may come out of order, and wrap.
//!
//! Invariants:
//! 1. A send is open from [`Ledger::open`] until one completion has named it, and never again.
//! 2. All sends below [`Ledger::done_below`] are done; the one of that number, if there is one, is open.
//! 3. A completion of which any number is not open changes nothing at all.

use std::collections::VecDeque;

/// What the kernel says of a range of sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number of the first call (`ee_info`).
    pub first: u32,
    /// Number of the last call (`ee_data`); less than `first` if the numbers wrap between them.
    pub last: u32,
    /// The kernel has copied the bytes after all (`SO_EE_CODE_ZEROCOPY_COPIED`).
    pub copied: bool,
}

/// A completion of sends that are not open: the socket was used by somebody else, or the kernel errs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel completed sends {first} to {last}, of which some are not open")]
pub struct Stray {
    /// As in the completion.
    pub first: u32,
    /// As in the completion.
    pub last: u32,
}

/// The open sends of a socket, each with what it holds.
#[derive(Debug)]
pub struct Ledger<T> {
    done_below: u64,
    /// From `done_below` on; none: done, behind one that is open.
    sends: VecDeque<Option<T>>,
}

impl<T> Ledger<T> {
    /// Of a socket whose next call has the number `next`: 0 if it has sent nothing with `MSG_ZEROCOPY`.
    #[must_use]
    pub const fn new(next: u64) -> Self {
        Self {
            done_below: next,
            sends: VecDeque::new(),
        }
    }

    /// A call has succeeded; returns its number.
    pub fn open(&mut self, holds: T) -> u64 {
        let number = self.next();
        self.sends.push_back(Some(holds));
        assert!(self.sends.len() < 1 << 31, "numbers of 32 bits stay apart");
        number
    }

    /// The number that the next call will have.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.done_below + self.sends.len() as u64
    }

    /// The oldest send that is open, or [`Ledger::next`].
    #[must_use]
    pub const fn done_below(&self) -> u64 {
        self.done_below
    }

    /// How many sends are open, and done behind an open one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sends.len()
    }

    /// Whether nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// What the oldest open send holds.
    #[must_use]
    pub fn oldest(&self) -> Option<&T> {
        self.sends.front()?.as_ref()
    }

    /// Takes a completion and gives `each` what its sends held, in their order.
    ///
    /// # Errors
    /// [`Stray`]; nothing has changed then.
    pub fn complete(&mut self, done: Completion, mut each: impl FnMut(T)) -> Result<(), Stray> {
        let Completion { first, last, .. } = done;
        let stray = Stray { first, last };
        // Open numbers span less than half of 32 bits, so the distance to the oldest tells which one is meant.
        let begin = first.wrapping_sub(self.done_below as u32) as usize;
        let count = last.wrapping_sub(first) as usize + 1;
        let end = begin.checked_add(count).ok_or(stray)?;
        if end > self.sends.len() || self.sends.range(begin..end).any(Option::is_none) {
            return Err(stray);
        }
        for send in self.sends.range_mut(begin..end) {
            if let Some(holds) = send.take() {
                each(holds);
            }
        }
        while self.sends.front().is_some_and(Option::is_none) {
            self.sends.pop_front();
            self.done_below += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
