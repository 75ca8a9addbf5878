// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys by heat: the keys of sampled packets, counted while somebody wants to know.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi 2005): as many counters as there is room for; a key that has none
//! takes the place of the least one, and its count as a possible error.
//!
//! # Invariants
//! 1. Bounded: [`COUNTERS_MAX`] keys of at most `KEY_BYTES_MAX` bytes.
//! 2. The data path reports keys only while somebody has asked within [`WANTED`].
//! 3. A key that makes more than one in [`COUNTERS_MAX`] of the samples is among them, its count at most too large, and
//!    by no more than its error.

use std::collections::HashMap;
use std::time::Duration;

use erb_abi::{SAMPLE_ONE_OF, Wanted};
use erb_report::{HotKey, HotKeys, shown_key};

/// Keys that are counted.
pub const COUNTERS_MAX: usize = 512;
/// Keys that are told.
pub const TOLD_MAX: usize = 100;
/// Whoever wants to know asks again within this time.
pub const WANTED: Duration = Duration::from_secs(10);
/// The sample begins anew when so many were counted, each count halved: what was hot an hour ago is not.
const SAMPLES_MAX: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    count: u64,
    error: u64,
}

/// Keys and how often they were met.
#[derive(Debug, Default)]
pub(crate) struct Heat {
    counts: HashMap<(u16, Vec<u8>), Count>,
    samples: u64,
    wanted_until_ns: u64,
}

impl Heat {
    /// Somebody asks. Returns whether nobody did before: then the data path is to be told.
    pub(crate) fn ask(&mut self, now_ns: u64) -> bool {
        let begins = self.wanted_until_ns == 0;
        self.wanted_until_ns = now_ns + u64::try_from(WANTED.as_nanos()).unwrap_or(u64::MAX);
        begins
    }

    /// Whether somebody wants to know.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.wanted_until_ns > 0
    }

    /// Whether nobody wants to know any more; all is forgotten then.
    pub(crate) fn ends(&mut self, now_ns: u64) -> bool {
        let over = self.is_wanted() && now_ns > self.wanted_until_ns;
        if over {
            *self = Self::default();
        }
        over
    }

    /// A sampled packet asked for this key.
    pub(crate) fn met(&mut self, wanted: Wanted) {
        self.samples += 1;
        let key = (wanted.db, wanted.key);
        if let Some(found) = self.counts.get_mut(&key) {
            found.count += 1;
        } else {
            let error = if self.counts.len() < COUNTERS_MAX {
                0
            } else {
                self.give_place()
            };
            let count = error + 1;
            self.counts.insert(key, Count { count, error });
        }
        if self.samples >= SAMPLES_MAX {
            self.halve();
        }
        debug_assert!(self.counts.len() <= COUNTERS_MAX);
    }

    /// The least key goes; returns its count.
    fn give_place(&mut self) -> u64 {
        let least = self.counts.iter().min_by_key(|(_, of)| of.count);
        let Some((key, count)) = least.map(|(key, of)| (key.clone(), of.count)) else {
            return 0;
        };
        self.counts.remove(&key);
        count
    }

    fn halve(&mut self) {
        self.samples /= 2;
        self.counts.retain(|_, of| {
            (of.count, of.error) = (of.count / 2, of.error / 2);
            of.count > 0
        });
    }

    /// The hottest keys.
    pub(crate) fn report(&self) -> HotKeys {
        let mut keys: Vec<_> = self.counts.iter().collect();
        keys.sort_by(|(a_key, a), (b_key, b)| {
            let sure = |of: &Count| of.count - of.error;
            (sure(b), b.count)
                .cmp(&(sure(a), a.count))
                .then(a_key.cmp(b_key))
        });
        keys.truncate(TOLD_MAX);
        let told = keys.into_iter().map(|((db, key), of)| HotKey {
            key: shown_key(key),
            key_bytes: u32::try_from(key.len()).unwrap_or(u32::MAX),
            db: *db,
            count: of.count,
            error: of.error,
        });
        HotKeys {
            one_of: SAMPLE_ONE_OF,
            samples: self.samples,
            keys: told.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use erb_abi::ValueKind;

    use super::*;

    fn met(heat: &mut Heat, key: &[u8], times: usize) {
        for _ in 0..times {
            heat.met(Wanted {
                db: 0,
                kind: ValueKind::String,
                key: key.to_vec(),
            });
        }
    }

    #[test]
    fn a_hot_key_is_found_among_more_keys_than_there_is_room_for() {
        let mut heat = Heat::default();
        for round in 0..20_000 {
            met(&mut heat, format!("cold:{round}").as_bytes(), 1);
            if round % 20 == 0 {
                met(&mut heat, b"hot\x1b[31m", 1);
            }
        }
        let report = heat.report();
        assert_eq!((report.samples, report.keys.len()), (21_000, TOLD_MAX));
        assert_eq!(heat.counts.len(), COUNTERS_MAX);
        let hot = &report.keys[0];
        assert_eq!(hot.key, r"hot\x1b[31m");
        assert!(
            hot.count >= 1_000 && hot.count - hot.error <= 1_000,
            "{hot:?}"
        );
        // No counter is above what all of them have got.
        assert!(heat.counts.values().map(|of| of.count).sum::<u64>() <= report.samples);
    }

    #[test]
    fn it_is_forgotten_when_nobody_asks_any_more() {
        let mut heat = Heat::default();
        assert!(!heat.ends(u64::MAX), "nobody ever asked");
        assert!(heat.ask(1_000) && !heat.ask(2_000));
        met(&mut heat, b"k", 3);
        assert!(!heat.ends(2_000 + 10_000_000_000));
        assert_eq!(heat.report().keys[0].count, 3);
        assert!(heat.ends(2_001 + 10_000_000_000) && !heat.is_wanted());
        assert!(heat.report().keys.is_empty());
    }

    #[test]
    fn what_was_hot_long_ago_fades() {
        let mut heat = Heat::default();
        met(&mut heat, b"old", 10);
        met(&mut heat, b"once", 1);
        heat.halve();
        let report = heat.report();
        assert_eq!((report.samples, report.keys.len()), (5, 1));
        assert_eq!(report.keys[0].count, 5);
    }
}
