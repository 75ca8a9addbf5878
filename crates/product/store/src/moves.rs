// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places of versions: which segments they need, when what is there expires, and how they move.
//!
//! Invariants:
//! 1. A move changes the place of every version that shares it, and nothing else: no version is added. So it may
//!    come before or after a row of the same key, and the key is the same.
//! 2. What is counted as needed follows from the index alone.

use std::collections::BTreeMap;

use crate::history::Held;
use crate::key::Key;
use crate::layout::Layout;
use crate::mistake::{Mistake, Rules};
use crate::place::Place;
use crate::sweep::Saved;
use crate::usage::{Needed, different};
use crate::versions::{Versions, live_sectors};

impl<R: Rules> Versions<R> {
    /// From now on it counts what is needed of segments. There are no keys yet.
    pub fn count_segments(&mut self, layout: Layout) {
        self.usage.begin(layout);
    }

    /// What is needed of a segment.
    #[must_use]
    pub fn needed(&self, segment: u32) -> Needed {
        self.usage.of(segment)
    }

    /// Whether a version of the key has its content in the record at this address.
    #[must_use]
    pub fn needs(&self, key: Key<'_>, address: u64) -> bool {
        let Ok(spot) = self.index.find(key) else {
            return false;
        };
        let mut all = self.view(spot).all();
        all.any(|held| held.place.address() == Some(address))
    }

    /// The record at this address has been copied to another place. False: nobody needs it.
    pub fn move_place(&mut self, key: Key<'_>, from: u64, to: Place) -> bool {
        let Ok(spot) = self.index.find(key) else {
            return false;
        };
        let is_partial = self.rules.makes(Mistake::SharedPlaceStays);
        let before = live_sectors(self.index.get(spot).head());
        let moved = self.index.move_places(spot, from, to, is_partial);
        self.count_live(before, live_sectors(self.index.get(spot).head()));
        if let Some(old) = moved {
            let expiry_ms = if self.rules.makes(Mistake::ExpiryStays) {
                0
            } else {
                self.usage.expiry_ms(old)
            };
            self.usage.add(to.with_expiry(old.expires()), expiry_ms);
            self.usage.remove(old);
        }
        moved.is_some()
    }

    /// The version clock: milliseconds since 1970. It does not go back.
    pub fn set_now(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// When a version expires: milliseconds since 1970; 0: it does not.
    #[must_use]
    pub fn expiry_ms(&self, held: &Held) -> u64 {
        self.usage.expiry_ms(held.place)
    }

    /// Whether a version that is a head is over by the version clock. Older versions are read without it.
    #[must_use]
    pub fn is_expired(&self, held: &Held) -> bool {
        let at_ms = self.expiry_ms(held);
        at_ms > 0 && at_ms <= self.now_ms && !self.rules.makes(Mistake::ExpiredIsThere)
    }

    /// There is no value: no version, a deleted one, or one that is over.
    pub(crate) fn is_absent(&self, head: Option<Held>) -> bool {
        head.is_none_or(|head| head.place.is_deleted() || self.is_expired(&head))
    }

    /// When each of these expires that does, in their order.
    pub(crate) fn expiries_of(&self, versions: &[Held]) -> Vec<u64> {
        let expiring = versions.iter().filter(|held| held.place.expires());
        expiring.map(|held| self.expiry_ms(held)).collect()
    }

    /// Counts what a key needs that a checkpoint had.
    pub(crate) fn count_saved(&mut self, saved: &Saved) {
        if let ([only], []) = (&saved.versions[..], &saved.expiries[..]) {
            self.usage.add(only.place, 0);
            return;
        }
        let expiring = saved.versions.iter().filter(|held| held.place.expires());
        let expiries: BTreeMap<Option<u64>, u64> = expiring
            .map(|held| held.place.address())
            .zip(saved.expiries.iter().copied())
            .collect();
        for place in different(saved.versions.iter().map(|held| held.place)) {
            let expiry_ms = expiries.get(&place.address()).copied().unwrap_or(0);
            self.usage.add(place, expiry_ms);
        }
    }

    /// Versions of a key have gone, others are kept: what of their places nobody needs any more.
    pub(crate) fn cease(
        &mut self,
        gone: impl Iterator<Item = Place>,
        kept: impl Iterator<Item = Place>,
    ) {
        let mut gone = different(gone);
        if gone.is_empty() {
            return;
        }
        if !self.rules.makes(Mistake::SharedPlaceCeases) {
            let kept = different(kept);
            let is_kept = |place: &Place| {
                let found = kept.binary_search_by_key(&place.address(), |it| it.address());
                found.is_ok()
            };
            gone.retain(|place| !is_kept(place));
        }
        for place in gone {
            self.usage.remove(place);
        }
    }
}
