// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of each segment is needed: how many records some version has its content in.
//!
//! Invariants:
//! 1. A record counts from when a version in the index has its place until none has. Versions that share a place
//!    count it once.
//! 2. Whatever counts has its expiry here, if it has one, and nothing else has.
//! 3. `unneeded` has every segment whose last record has ceased to count, until somebody takes it from there.

use std::collections::BTreeSet;

use crate::expiry::Expiries;
use crate::layout::Layout;
use crate::place::Place;

/// What is needed of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Records.
    pub records: u32,
    /// Sectors that they touch; one that two of them touch counts twice.
    pub sectors: u32,
}

/// What is needed of all segments by one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    layout: Option<Layout>,
    segments: Vec<Needed>,
    unneeded: BTreeSet<u32>,
    expiries: Expiries,
    /// Records that have ceased to count.
    ceased: u64,
    /// Sectors of all that count.
    sectors: u64,
}

impl Usage {
    /// From now on it counts, by segments of this layout.
    pub(crate) fn begin(&mut self, layout: Layout) {
        self.segments = vec![Needed::default(); layout.segments() as usize];
        self.layout = Some(layout);
    }

    /// There are more segments.
    pub(crate) fn grow(&mut self, layout: Layout) {
        let segments = layout.segments() as usize;
        self.segments.resize(segments, Needed::default());
        self.layout = Some(layout);
    }

    fn segment(&self, place: Place) -> Option<u32> {
        self.layout?.segment_of(place.address()?)
    }

    /// A version has this place, the first to do so. `expiry_ms`: 0 if it does not expire.
    pub(crate) fn add(&mut self, place: Place, expiry_ms: u64) {
        if let Some(address) = place.address().filter(|_| place.expires()) {
            self.expiries.insert(address, expiry_ms);
        }
        self.sectors += place.sectors();
        let number = self.segment(place);
        if let Some(needed) = number.and_then(|it| self.segments.get_mut(it as usize)) {
            needed.records += 1;
            needed.sectors += place.sectors() as u32;
        }
    }

    /// No version has this place any more.
    pub(crate) fn remove(&mut self, place: Place) {
        if let Some(address) = place.address().filter(|_| place.expires()) {
            self.expiries.remove(address);
        }
        self.sectors -= place.sectors();
        let number = self.segment(place);
        let Some(needed) = number.and_then(|it| self.segments.get_mut(it as usize)) else {
            return;
        };
        needed.records -= 1;
        needed.sectors -= place.sectors() as u32;
        self.ceased += 1;
        if needed.records == 0 {
            self.unneeded.extend(number);
        }
    }

    /// What is needed of a segment.
    pub(crate) fn of(&self, number: u32) -> Needed {
        self.segments
            .get(number as usize)
            .copied()
            .unwrap_or_default()
    }

    /// When what is there expires: milliseconds since 1970; 0: it does not.
    pub(crate) fn expiry_ms(&self, place: Place) -> u64 {
        let address = place.address().filter(|_| place.expires());
        let found = address.and_then(|address| self.expiries.get(address));
        found.unwrap_or(0)
    }

    pub(crate) fn expiries(&self) -> &Expiries {
        &self.expiries
    }

    /// Sectors of all records that count.
    pub(crate) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// How many records have ceased to count.
    pub(crate) fn ceased(&self) -> u64 {
        self.ceased
    }

    /// Segments that may have nothing that is needed.
    pub(crate) fn unneeded(&mut self) -> &mut BTreeSet<u32> {
        &mut self.unneeded
    }
}

/// The different places among these, each once: as a put or delete has them.
pub(crate) fn different(places: impl Iterator<Item = Place>) -> Vec<Place> {
    let written = places.map(Place::as_written);
    let mut found: Vec<Place> = written.filter(|it| it.address().is_some()).collect();
    found.sort_unstable_by_key(|place| place.address());
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Origin;

    #[test]
    fn a_segment_is_unneeded_when_its_last_record_ceases_to_count() {
        let layout = Layout::new(1 << 30, 1).unwrap();
        let mut usage = Usage::default();
        usage.begin(layout);
        let place = |segment, at| Place::written(layout.segment_at(segment) + at, 600, false);
        for one in [place(2, 64), place(2, 4096), place(3, 64)] {
            usage.add(one, 0);
        }
        let needed = Needed {
            records: 2,
            sectors: 4,
        };
        assert_eq!(usage.of(2), needed);
        usage.remove(place(2, 64));
        assert!(usage.unneeded().is_empty());
        usage.remove(place(2, 4096));
        assert_eq!(usage.unneeded().iter().copied().collect::<Vec<_>>(), [2]);
        assert_eq!((usage.of(2), usage.ceased()), (Needed::default(), 2));
    }

    #[test]
    fn places_that_are_shared_are_one_and_nothing_is_none() {
        let (one, other) = (Place::written(64, 100, false), Place::written(640, 9, true));
        let all = [
            other,
            one.again(Origin::Restored),
            Place::NOTHING,
            one.with_gap(true),
            one.again(Origin::RolledBack),
        ];
        assert_eq!(different(all.into_iter()), [one, other]);
    }
}
