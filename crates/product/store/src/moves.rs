// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places of versions: which segments they need, and how they move.
//!
//! Invariants:
//! 1. A move changes the place of every version that shares it, and nothing else: no version is added. So it may
//!    come before or after a row of the same key, and the key is the same.
//! 2. What is counted as needed follows from the index alone.

use crate::key::Key;
use crate::layout::Layout;
use crate::mistake::{Mistake, Rules};
use crate::place::Place;
use crate::usage::{Needed, different};
use crate::versions::Versions;

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
        let moved = self.index.move_places(spot, from, to, is_partial);
        if let Some(old) = moved {
            self.usage.add(to);
            self.usage.remove(old);
        }
        moved.is_some()
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
