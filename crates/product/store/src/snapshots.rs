// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Snapshots: taken, released, and those that end by themselves.
//!
//! Invariants:
//! 1. One that ends by itself ends when the retention clock has run for as long as was asked for: no wall clock, pause
//!    or restart ends it sooner.
//! 2. Its end lets go of itself alone: a moment stays held by all others.
//! 3. While the store is locked none ends. It waits for the lock's end.
//! 4. A release takes of those that hold a moment the one that would end first. So whoever has taken one that stays,
//!    or ends later, does not lose it by a release of another's that comes before the other's end.
//! 5. How many hold a moment, and when they end, changes by one entry: no crash parts that.

use crate::control::{Control, Request};
use crate::entry::Entry;
use crate::mistake::{Mistake, Rules};
use crate::retention::SNAPSHOTS_MAX;
use crate::version::Version;
use crate::view::Refused;

/// When none of a moment's snapshots ends by itself.
const NEVER_US: u64 = u64::MAX;

impl<R: Rules + Copy> Control<R> {
    fn holding(&self, moment: Version) -> u32 {
        let mut counts = self.state().retention.counts();
        counts.find(|it| it.0 == moment).map_or(0, |it| it.1)
    }

    /// Holds the present moment: until it is released, or for so many microseconds of the retention clock.
    pub(crate) fn take_snapshot(&mut self, ticket: Option<u64>, for_us: Option<u64>) {
        let all = self.state().retention.counts().map(|(_, count)| count);
        if all.sum::<u32>() as usize >= SNAPSHOTS_MAX {
            self.answer(ticket, Version::ZERO, Err(Refused::Busy));
            return;
        }
        let moment = self.shared.watermark();
        let count = self.holding(moment) + 1;
        let run_us = self.retention_clock.run_us();
        let at_us = for_us.map(|for_us| run_us.saturating_add(for_us).min(NEVER_US - 1));
        let entry = match at_us {
            None => Entry::Snapshot(moment, count),
            Some(at_us) => Entry::Ending {
                moment,
                count,
                at_us,
                ending: self.state().ending(moment, at_us) + 1,
            },
        };
        let request = Some(Request::Snapshot { for_us });
        self.begin_writing((ticket, request), entry, None, moment);
    }

    /// Lets go of a moment that somebody holds.
    pub(crate) fn release_snapshot(&mut self, ticket: Option<u64>, moment: Version) {
        if self.is_locked() {
            self.answer(ticket, Version::ZERO, Err(Refused::Locked));
            return;
        }
        let count = self.holding(moment);
        if count == 0 {
            self.answer(ticket, Version::ZERO, Err(Refused::NoSuch));
            return;
        }
        let ends = self.state().endings().filter(|it| it.1 == moment);
        let ends: Vec<_> = ends.collect();
        let staying = count - ends.iter().map(|it| it.2).sum::<u32>();
        let is_last = self.rules.makes(Mistake::ReleaseTakesLast);
        let end = ends.first().filter(|_| !is_last || staying == 0);
        let entry = end.map_or(Entry::Snapshot(moment, count - 1), |&(at_us, _, ending)| {
            Entry::Ending {
                moment,
                count: count - 1,
                at_us,
                ending: ending - 1,
            }
        });
        let request = Some(Request::Release(moment));
        self.begin_writing((ticket, request), entry, None, moment);
    }

    /// Ends what is due first; true: it does.
    pub(crate) fn end_snapshots(&mut self) -> bool {
        let run_us = self.retention_clock.run_us();
        let is_hasty = self.rules.makes(Mistake::SnapshotEndsAtOnce);
        let is_free = !self.is_locked() || self.rules.makes(Mistake::SnapshotEndsLocked);
        let first = self.state().endings().next();
        let Some((at_us, moment, ending)) =
            first.filter(|(at_us, ..)| is_free && (*at_us <= run_us || is_hasty))
        else {
            return false;
        };
        let others = match self.rules.makes(Mistake::SnapshotEndsAll) {
            true => 0,
            false => self.holding(moment) - ending,
        };
        let entry = Entry::Ending {
            moment,
            count: others,
            at_us,
            ending: 0,
        };
        self.begin_writing((None, None), entry, None, moment);
        true
    }
}
