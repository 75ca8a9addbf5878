// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a start has not found in a log although it was durable, where nothing says of which keys it was: what roll backs
//! made of keys may rest on it.
//!
//! Invariants:
//! 1. A record that is lost had a version within its loss: above what was before it for sure, below the next write of its
//!    log.
//! 2. What a row makes of a key is uncertain if a lost version may be the one that it should have taken, may have counted
//!    on the way back to that, or may be the write for which it should have spared the key.
//! 3. There are at most [`ROTTEN_MAX`]. Where there would be more the last one is as wide as all that are left.

use crate::mistake::{Mistake, Rules};
use crate::rows::{RollBack, Target};
use crate::scrub::ROTTEN_MAX;
use crate::version::Version;

/// Between which versions something is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    after: Version,
    before: Version,
}

/// All that a start has not found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    all: Vec<Loss>,
    /// From this one on no write was found behind them.
    open_from: usize,
}

impl Losses {
    /// Something is lost whose version is above this one, and below the next that is found.
    pub(crate) fn add(&mut self, after: Version) {
        if self.all.len() < ROTTEN_MAX {
            let before = Version::MAX;
            self.all.push(Loss { after, before });
        } else if let Some(last) = self.all.last_mut() {
            last.after = last.after.min(after);
            last.before = Version::MAX;
            self.open_from = self.open_from.min(ROTTEN_MAX - 1);
        }
    }

    /// A write was found behind all of them.
    pub(crate) fn found(&mut self, version: Version) {
        let open = self.all.iter_mut().skip(self.open_from);
        open.for_each(|loss| loss.before = version);
        self.open_from = self.all.len();
    }

    /// Whether a version above the first and up to the second may be lost.
    fn may_have(&self, above: Version, up_to: Version) -> bool {
        self.all
            .iter()
            .any(|loss| loss.after.max(above) < loss.before.before().min(up_to))
    }

    /// Whether what a row makes of a key is uncertain, where it takes the content of this version; [`Version::ZERO`]: of
    /// none.
    pub(crate) fn concern(&self, row: &RollBack, source: Version, rules: &impl Rules) -> bool {
        if self.all.is_empty() || rules.makes(Mistake::LossForgotten) {
            return false;
        }
        let before_it = row.id.before();
        let up_to = match row.target {
            Target::Moment(moment) => moment,
            Target::Back(_) => before_it,
        };
        let since = row.unless_written_since;
        let is_spared = since.is_some_and(|since| self.may_have(since, before_it));
        is_spared || self.may_have(source, up_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Held;
    use crate::key::{Key, KeyHasher};
    use crate::mistake::Sound;
    use crate::place::Place;
    use crate::retention::Retention;
    use crate::versions::Versions;
    use crate::view::{Refused, Selector};

    fn row(id: u64, target: Target, since: Option<u64>) -> RollBack {
        RollBack {
            id: Version::new(id),
            namespace: 1,
            prefix: Vec::new(),
            target,
            unless_written_since: since.map(Version::new),
        }
    }

    fn to(moment: u64) -> RollBack {
        row(100, Target::Moment(Version::new(moment)), None)
    }

    #[test]
    fn a_row_is_uncertain_where_what_it_should_take_may_be_lost() {
        let mut losses = Losses::default();
        let concerns = |losses: &Losses, row: &RollBack, source: u64| {
            losses.concern(row, Version::new(source), &Sound)
        };
        assert!(!concerns(&losses, &to(50), 0));
        losses.add(Version::new(20));
        // Until something is found behind it it may be anything above 20.
        assert!(concerns(&losses, &to(90), 80));
        losses.found(Version::new(30));
        losses.found(Version::new(40));
        assert!(concerns(&losses, &to(90), 0) && concerns(&losses, &to(90), 28));
        assert!(!concerns(&losses, &to(90), 29), "a lost one is below 30");
        assert!(concerns(&losses, &to(21), 5) && !concerns(&losses, &to(20), 5));
        // So many versions back: the lost one would have counted.
        let back = row(100, Target::Back(1), None);
        assert!(concerns(&losses, &back, 10) && !concerns(&losses, &back, 60));
        // A lost write may have spared the key.
        let spares = row(100, Target::Moment(Version::new(10)), Some(25));
        assert!(concerns(&losses, &spares, 10));
        let spares = row(100, Target::Moment(Version::new(10)), Some(29));
        assert!(!concerns(&losses, &spares, 10));
    }

    #[test]
    fn there_are_not_more_than_so_many_and_none_is_forgotten() {
        let mut losses = Losses::default();
        for number in 0..2 * ROTTEN_MAX as u64 {
            losses.add(Version::new(10 * number));
            losses.found(Version::new(10 * number + 5));
        }
        assert_eq!(losses.all.len(), ROTTEN_MAX);
        for number in 0..2 * ROTTEN_MAX as u64 {
            let (above, up_to) = (10 * number, 10 * number + 4);
            assert!(losses.may_have(Version::new(above), Version::new(up_to)));
        }
    }

    fn key(bytes: &[u8]) -> Key<'_> {
        let namespace = 1;
        Key { namespace, bytes }
    }

    #[test]
    fn what_may_rest_on_a_lost_version_is_refused_but_for_the_newest_which_says_so() {
        let mut versions = Versions::new(KeyHasher::new([1, 2]), Retention::new(4), 1 << 20, Sound);
        versions.roll_back(to(50));
        let write = |versions: &mut Versions, name: &[u8], number: u64| {
            let held = Held {
                version: Version::new(number),
                place: Place::written(4096 + 64 * number, 60, false),
            };
            versions.apply(key(name), held).expect("it rises");
        };
        write(&mut versions, b"old", 10);
        // Of one key something between 10 and 40 is lost.
        versions.losses.add(Version::new(10));
        for (name, number) in [(b"new", 40), (b"old", 60), (b"new", 61)] {
            versions.losses.found(Version::new(number));
            write(&mut versions, name, number);
        }
        let cut = Version::new(200);
        let made = Selector::Version(Version::new(100));
        for selector in [made, Selector::Back(0), Selector::AsOf(cut)] {
            let read = versions.read(key(b"old"), selector, cut);
            assert_eq!(read, Err(Refused::Uncertain), "{selector:?}");
        }
        assert_eq!(
            versions.restorable(key(b"old"), made),
            Err(Refused::Uncertain)
        );
        let head = versions.read(key(b"old"), Selector::Head, cut);
        let head = head.expect("it is given").expect("it is there");
        assert!(head.version == Version::new(100) && head.place.is_uncertain());
        // What was written is what it is, and so is what was rolled back to something behind the loss.
        for (name, number) in [(b"old", 10), (b"old", 60), (b"new", 100)] {
            let selector = Selector::Version(Version::new(number));
            let read = versions.read(key(name), selector, cut);
            assert!(read.is_ok_and(|it| it.is_some()), "{number}");
        }
        // An older state that has it is uncertain too; one that was written is not.
        let mut undo = to(100);
        undo.id = Version::new(150);
        versions.roll_back(undo);
        write(&mut versions, b"old", 151);
        let again = Selector::Version(Version::new(150));
        assert_eq!(
            versions.read(key(b"old"), again, cut).map(|_| ()),
            Err(Refused::NoSuch)
        );
        let mut other = to(60);
        other.id = Version::new(160);
        versions.roll_back(other);
        let sure = versions.read(key(b"old"), Selector::Version(Version::new(160)), cut);
        assert!(sure.is_ok_and(|it| it.is_some_and(|it| !it.place.is_uncertain())));
        let mut uncertain = to(100);
        uncertain.id = Version::new(170);
        versions.roll_back(uncertain);
        let uncertain = Selector::Version(Version::new(170));
        assert_eq!(
            versions.read(key(b"old"), uncertain, cut),
            Err(Refused::Uncertain)
        );
        // So is what was restored from it, before all of that was known.
        let restored = Version::new(180);
        let replayed = versions.replay_restore(key(b"old"), restored, Version::new(170));
        assert_eq!(replayed, Ok(()));
        let restored = versions.read(key(b"old"), Selector::Version(restored), cut);
        assert_eq!(restored, Err(Refused::Uncertain));
    }
}
