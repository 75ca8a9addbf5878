// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room for commands' data. Nothing is allocated here: bytes are counted before they are allocated elsewhere.
//!
//! Invariants:
//! 1. What is reserved is at most the pool, and of one host at most its share.
//! 2. What was reserved comes back once.

use std::collections::HashMap;

/// Room for commands' data.
#[derive(Debug, Default)]
pub(super) struct Pool {
    reserved: usize,
    by_host: HashMap<String, usize>,
}

impl Pool {
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Whether there was room, which is now taken.
    pub(super) fn reserve(&mut self, host: &str, bytes: usize, most: usize, share: usize) -> bool {
        let has = self.by_host.get(host).copied().unwrap_or_default();
        if self.reserved + bytes > most || has + bytes > share {
            return false;
        }
        if bytes > 0 {
            self.reserved += bytes;
            self.by_host.insert(host.to_owned(), has + bytes);
        }
        true
    }

    pub(super) fn release(&mut self, host: &str, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.reserved -= bytes;
        let has = self.by_host.get_mut(host);
        let has = has.expect("a host gives back what it took");
        *has -= bytes;
        if *has == 0 {
            self.by_host.remove(host);
        }
    }
}
