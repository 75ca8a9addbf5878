// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Roll backs of scopes: whether one is possible, what it would change, and what index memory it takes.
//!
//! Invariants:
//! 1. A roll back that is possible is refused for want of memory only if the versions that it makes have no room. What
//!    is kept back from writes is for them. A dry run makes none, so it is never refused for that.
//! 2. Where memory is plentiful a row reserves a version for each key of its namespace: nothing is looked at. Where that
//!    is too much, all keys are [counted](Counting), a slice at a time: that resolves each, so the rows before reserve
//!    nothing more, and the row reserves what it will change.
//! 3. What is counted stays so until the row is given: its scope is frozen, other rows wait, and no floor moves. Other
//!    keys may come meanwhile; what is kept back is as large as any scope.
//! 4. What a row makes of a key, and whether it makes something, does not depend on whether that is uncertain.
//! 5. A row's reserve goes when a sweep or a count has resolved all keys beyond it.

use crate::history::Held;
use crate::index::VERSION_BYTES_BUDGET;
use crate::losses::Losses;
use crate::mistake::{Mistake, Rules};
use crate::place::{Origin, Place};
use crate::rows::{RollBack, Target};
use crate::version::Version;
use crate::versions::Versions;
use crate::view::{Refused, View};

/// How far it has been counted what a roll back changes.
#[derive(Clone, Copy, Debug)]
pub struct Counting {
    /// Where the next slice begins; none: all keys were met.
    from_hash: Option<u64>,
    /// Keys that it changes.
    changes: usize,
    /// The last row that there was: all keys that were met are resolved beyond it.
    rows_up_to: Version,
}

/// What is counted of a roll back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    /// Versions that it makes; all keys are resolved, also those that are not in its scope.
    Versions,
    /// Keys that have another value, or none, or one again.
    Changes,
}

impl<R: Rules> Versions<R> {
    pub(crate) fn reserved_bytes(&self) -> usize {
        let versions: usize = self.counts.reserved.iter().map(|(_, keys)| keys).sum();
        versions * VERSION_BYTES_BUDGET
    }

    /// Whether a roll back is possible, as far as that is known of its target. A dry run asks no more.
    ///
    /// # Errors
    /// [`Refused::Trimmed`], [`Refused::Future`].
    pub fn check_roll_back(&self, row: &RollBack) -> Result<(), Refused> {
        let is_known = match row.target {
            Target::Moment(moment) if moment >= row.id => return Err(Refused::Future),
            Target::Moment(moment) => {
                self.retention.knows(moment) || self.rules.makes(Mistake::FloorIgnored)
            }
            Target::Back(back) if self.rules.makes(Mistake::CountGrownAtOnce) => {
                back < self.retention.min_count()
            }
            Target::Back(back) => back < self.retention.counted(),
        };
        let since = row.unless_written_since.unwrap_or(Version::MAX);
        let is_spared_known =
            since >= self.retention.floor() || self.rules.makes(Mistake::KeepBelowFloor);
        if !is_known || !is_spared_known {
            return Err(Refused::Trimmed);
        }
        Ok(())
    }

    /// Whether a roll back may be given, before it gets its version, and without looking at keys.
    ///
    /// # Errors
    /// As [`Versions::check_roll_back`]; [`Refused::Busy`]; [`Refused::Full`]: there is no room for a version of each
    /// key. There may be room for what it changes, which is to be [counted](Versions::count_changes).
    pub fn prepare_roll_back(&self, row: &RollBack) -> Result<(), Refused> {
        self.check_roll_back(row)?;
        if self.rows.is_full() {
            return Err(Refused::Busy);
        }
        self.check_room(self.keys_of(row.namespace))
    }

    fn check_room(&self, versions: usize) -> Result<(), Refused> {
        let wanted = versions * VERSION_BYTES_BUDGET;
        if self.budget_bytes() + self.reserved_bytes() + wanted > self.memory_limit_bytes {
            return Err(Refused::Full);
        }
        Ok(())
    }

    /// Begins to count what a roll back changes.
    #[must_use]
    pub fn begin_count(&self) -> Counting {
        Counting {
            from_hash: Some(0),
            changes: 0,
            rows_up_to: self.rows.newest(),
        }
    }

    /// Counts a slice of the keys on. None: there are more. At the end it says how many versions the roll back will
    /// make. From the begin on nothing else changes its scope, and no other roll back is given.
    ///
    /// # Errors
    /// [`Refused::Full`]: those have no room.
    pub fn count_changes(
        &mut self,
        row: &RollBack,
        counting: &mut Counting,
    ) -> Option<Result<usize, Refused>> {
        if let Some(from_hash) = counting.from_hash {
            let (changes, next) = self.count_slice(row, from_hash, Version::MAX, Count::Versions);
            counting.changes += changes as usize;
            counting.from_hash = next;
        }
        if counting.from_hash.is_some() {
            return None;
        }
        self.unreserve(counting.rows_up_to);
        let room = self.check_room(counting.changes);
        Some(room.map(|()| counting.changes))
    }

    /// How many keys a roll back would change, from a hash on, and where to go on; none: that were all.
    pub fn would_change(
        &mut self,
        row: &RollBack,
        from_hash: u64,
        cut: Version,
    ) -> (u64, Option<u64>) {
        self.count_slice(row, from_hash, cut, Count::Changes)
    }

    fn count_slice(
        &mut self,
        row: &RollBack,
        from_hash: u64,
        cut: Version,
        count: Count,
    ) -> (u64, Option<u64>) {
        let (slice, next) = self.index.slice(from_hash);
        let (mut bytes, mut sum) = (Vec::new(), 0);
        for (_, spot) in slice {
            self.index.key_bytes(spot, &mut bytes);
            let namespace = self.index.get(spot).name().namespace;
            let is_in_scope = namespace == row.namespace && bytes.starts_with(&row.prefix);
            if is_in_scope || count == Count::Versions {
                self.resolve(spot, &bytes, Version::MAX);
            }
            if is_in_scope {
                let view = self.view_at(spot, cut);
                let is_absent = view.last().is_none_or(|head| head.place.is_deleted());
                let made = changed(&view, row, &self.losses, &self.rules);
                // A key that was deleted and becomes one that never was has another version, and no other value.
                let made = made.filter(|made| {
                    count == Count::Versions || !(is_absent && made.place.is_deleted())
                });
                sum += u64::from(made.is_some());
            }
        }
        (sum, next)
    }

    fn keys_of(&self, namespace: u16) -> usize {
        let counts = &self.counts.by_namespace;
        counts.get(&namespace).copied().unwrap_or(0)
    }

    /// A roll back that is durable. Replay gives all of them first.
    pub fn roll_back(&mut self, row: RollBack) {
        let keys = self.keys_of(row.namespace);
        self.roll_back_counted(row, keys);
    }

    /// The same of one of which it is known how many versions it makes at most.
    pub fn roll_back_counted(&mut self, row: RollBack, versions: usize) {
        self.counts.reserved.push((row.id, versions));
        self.rows.add(row);
    }

    /// Roll backs that wait for a checkpoint.
    #[must_use]
    pub fn rows_len(&self) -> usize {
        self.rows.len()
    }

    /// Replay is over: every row reserves for all keys that are there now. Replay gave rows before keys.
    pub fn recovered(&mut self) {
        let reserved = self.rows.all().iter();
        self.counts.reserved = reserved
            .map(|row| (row.id, self.keys_of(row.namespace)))
            .collect();
    }

    /// All keys have been resolved beyond these rows: they make no version any more.
    pub(crate) fn unreserve(&mut self, up_to: Version) {
        self.counts.reserved.retain(|(id, _)| *id > up_to);
    }
}

/// The version that a row gives a key with these versions, if it changes its source.
pub(crate) fn changed(
    view: &View<'_>,
    row: &RollBack,
    losses: &Losses,
    rules: &impl Rules,
) -> Option<Held> {
    let head = view.last()?;
    let counts = |one: &Held| match one.place.origin() {
        Origin::Written => true,
        Origin::Restored => !rules.makes(Mistake::RestoreNotCounted),
        Origin::RolledBack => false,
    };
    if let Some(since) = row.unless_written_since {
        let mut later = view.all().rev().take_while(|one| one.version > since);
        if later.any(|one| counts(&one)) {
            return None;
        }
    }
    let source = match row.target {
        Target::Moment(moment) => view.at(moment),
        Target::Back(back) if rules.makes(Mistake::GapsIgnored) => {
            let position = view.len().checked_sub(1 + back as usize);
            position.and_then(|position| view.get(position))
        }
        Target::Back(back) => match view.back(back) {
            Ok(held) => Some(held),
            Err(Refused::Trimmed) => return None,
            Err(_) => None,
        },
    };
    let (taken, of) = source.map_or((Version::ZERO, Place::NOTHING), |it| (it.version, it.place));
    let is_uncertain = of.is_uncertain() || losses.concern(row, taken, rules);
    let place = of.again(Origin::RolledBack).uncertain_if(is_uncertain);
    let is_change = !place.has_source_of(head.place) || rules.makes(Mistake::NoOpCounts);
    is_change.then_some(Held {
        version: row.id,
        place,
    })
}
