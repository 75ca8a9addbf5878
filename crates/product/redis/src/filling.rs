// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Misses become fills: the ring is drained, and as much is asked of Redis as may be under way.

use std::io::{Read, Write};

use erb_abi::{self as abi, ValueKind, Wanted};

use crate::clock::MS;
use crate::feed::Feed;
use crate::fill::{Filled, Fills, Size};
use crate::outside::{DataPath, Result};
use crate::reading::Asked;

/// Between drains while misses flow: a fill then takes about as long as two round trips.
const DRAIN_NS: u64 = 2 * MS;

/// Misses seen within this time count as flowing.
const FLOW_NS: u64 = 20 * MS;

/// What is wanted in the cache, and the ring that says so.
#[derive(Default)]
pub(crate) struct Filling {
    fills: Fills,
    last_miss_ns: u64,
    last_drain_ns: u64,
    misses_this_second: u64,
}

impl Filling {
    /// What came of the fills so far.
    pub(crate) const fn fills(&self) -> &Fills {
        &self.fills
    }

    /// When the ring is drained again although it is not time for a tick; none: misses do not flow.
    pub(crate) const fn next_drain_ns(&self, now: u64) -> Option<u64> {
        if now < self.last_miss_ns + FLOW_NS {
            Some(self.last_drain_ns + DRAIN_NS)
        } else {
            None
        }
    }

    /// Takes the misses out of the ring, for fills if `may_fill`; false if there are none.
    pub(crate) fn drain(&mut self, path: &mut impl DataPath, now: u64, may_fill: bool) -> bool {
        self.last_drain_ns = now;
        let keys = path.drain_misses();
        if keys.is_empty() {
            return false;
        }
        self.last_miss_ns = now;
        self.misses_this_second += keys.len() as u64;
        if may_fill {
            for key in keys {
                self.fills.missed(key);
            }
        }
        true
    }

    /// Once a second: old misses are forgotten, and keys that could not be filled forgiven.
    pub(crate) fn forget_old(&mut self, path: &impl DataPath, now: u64) {
        if self.misses_this_second > 0 {
            self.misses_this_second = 0;
            path.halve_miss_counts();
        }
        self.fills.forgive(now);
    }

    /// Asks for as many sizes and values as may be under way.
    pub(crate) fn begin<S: Read + Write>(
        &mut self,
        path: &impl DataPath,
        feed: &mut Feed<S>,
    ) -> Result<()> {
        while let Some(room) = feed.fill_room() {
            let (keys, bytes) = self.fills.take_sized(room);
            if keys.is_empty() {
                let (keys, bytes) = self.fills.take_unsized(room);
                if keys.is_empty() {
                    break;
                }
                feed.ask_sizes(keys, bytes);
                continue;
            }
            let borrowed: Vec<&[u8]> = keys.iter().map(|(wanted, _)| &wanted.key[..]).collect();
            let tokens = path.fill_begin(&borrowed)?;
            let mut asked = Vec::new();
            let mut refused = false;
            for ((wanted, size), token) in keys.into_iter().zip(tokens) {
                if token.status == abi::FILL_OK {
                    asked.push(Asked {
                        wanted,
                        size,
                        token,
                    });
                } else {
                    refused = true;
                    // Later: the time matters only for what is never filled.
                    self.fills.ended(wanted, Filled::Later, 0);
                }
            }
            if !asked.is_empty() {
                feed.ask_fill(asked, bytes);
            }
            if refused {
                // What must be tried again waits for the next drain, or this loop would spin.
                break;
            }
        }
        Ok(())
    }

    /// Keys are asked for by name.
    pub(crate) fn ask(&mut self, kind: ValueKind, keys: impl IntoIterator<Item = Vec<u8>>) {
        for key in keys {
            self.fills.ask(Wanted { db: 0, kind, key });
        }
    }

    /// Redis has said how large values are; none: it could not be asked.
    pub(crate) fn take_sizes(&mut self, sizes: Vec<(Wanted, Option<Size>)>, now: u64) {
        for (key, size) in sizes {
            match size {
                Some(size) => self.fills.sized(key, size, now),
                None => self.fills.ended(key, Filled::Later, now),
            }
        }
    }

    /// Fills have ended.
    pub(crate) fn take_ends(&mut self, ends: Vec<(Wanted, Filled)>, now: u64) {
        for (key, end) in ends {
            self.fills.ended(key, end, now);
        }
    }

    /// Keys were written.
    pub(crate) fn take_writes(&mut self, keys: &[impl AsRef<[u8]>]) {
        for key in keys {
            self.fills.written(key.as_ref());
        }
    }

    /// The feed is gone: what was under way is not coming.
    pub(crate) fn forget_all(&mut self) {
        self.fills.forget_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doubles::Recorder;

    #[test]
    fn misses_flow_for_a_while_and_are_kept_only_if_they_may_be_filled() {
        let (mut filling, mut path) = (Filling::default(), Recorder::default());
        let now = 1000 * MS;
        assert!(!filling.drain(&mut path, now, true));
        assert_eq!(filling.next_drain_ns(now), None);
        for (may_fill, waiting) in [(false, 0), (true, 1)] {
            path.misses.replace(vec![Wanted::string(b"k".to_vec())]);
            assert!(filling.drain(&mut path, now, may_fill));
            assert_eq!(filling.fills().waiting(), waiting);
        }
        assert_eq!(filling.next_drain_ns(now + 19 * MS), Some(now + 2 * MS));
        assert_eq!(filling.next_drain_ns(now + 20 * MS), None);
        filling.forget_all();
        assert_eq!(filling.fills().waiting(), 0);
    }
}
