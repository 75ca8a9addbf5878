// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is never trimmed: what was head since the floor, the newest versions, what snapshots hold.
//!
//! Invariants:
//! 1. No floor ever goes back, and what a deleted key is forgotten by never passes the other.
//! 2. Nothing that ended above the floor is trimmed. So every key's state at or above it is known.
//! 3. A count back below `counted` never meets a gap, whenever min-count grew.

use std::collections::BTreeMap;

use crate::version::Version;

/// Most snapshots.
pub const SNAPSHOTS_MAX: usize = 4096;

/// What an operator chooses of it, and how far counts back are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Microseconds for which a version is kept that has ended.
    pub min_age_us: u64,
    /// Microseconds for which a deleted key is kept; at least min-age.
    pub keep_deleted_us: u64,
    /// Newest versions of a key that are kept; at least 1.
    pub min_count: u32,
    /// The smallest min-count since gaps were last looked for.
    pub counted: u32,
}

const DAY_US: u64 = 24 * 3600 * 1_000_000;

impl Settings {
    /// Of a new store, until somebody chooses: who notices within a week can go back.
    pub const NEW: Self = Self {
        min_age_us: 7 * DAY_US,
        keep_deleted_us: 30 * DAY_US,
        min_count: 1,
        counted: 1,
    };

    /// The same, as it can be.
    #[must_use]
    pub(crate) fn within(self, counted: u32) -> Self {
        let min_count = self.min_count.max(1);
        Self {
            keep_deleted_us: self.keep_deleted_us.max(self.min_age_us),
            min_count,
            counted: counted.clamp(1, min_count),
            ..self
        }
    }

    /// What keeps all that either keeps; counts back are good as far as the other's.
    #[must_use]
    pub(crate) fn longest(self, other: Self) -> Self {
        Self {
            min_age_us: self.min_age_us.max(other.min_age_us),
            keep_deleted_us: self.keep_deleted_us.max(other.keep_deleted_us),
            min_count: self.min_count.max(other.min_count),
            counted: other.counted,
        }
    }
}

/// What holds versions. Counts of it are the same on all shards; its changes are durable before they come here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    min_age_us: u64,
    keep_deleted_us: u64,
    floor: Version,
    deleted_floor: Version,
    min_count: u32,
    counted: u32,
    /// Moments, and how many snapshots each has.
    snapshots: BTreeMap<Version, u32>,
}

impl Retention {
    /// Of a store where nothing was trimmed yet. At least one version of a key is kept.
    #[must_use]
    pub fn new(min_count: u32) -> Self {
        let min_count = min_count.max(1);
        Self {
            min_age_us: 0,
            keep_deleted_us: 0,
            floor: Version::ZERO,
            deleted_floor: Version::ZERO,
            min_count,
            counted: min_count,
            snapshots: BTreeMap::new(),
        }
    }

    /// What was chosen.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            min_age_us: self.min_age_us,
            keep_deleted_us: self.keep_deleted_us,
            min_count: self.min_count,
            counted: self.counted,
        }
    }

    /// Takes what was chosen. Counts back are good as far as they were, at most.
    pub fn set(&mut self, settings: Settings) {
        let settings = settings.within(settings.counted);
        self.min_age_us = settings.min_age_us;
        self.keep_deleted_us = settings.keep_deleted_us;
        self.min_count = settings.min_count;
        self.counted = settings.counted;
    }

    /// The oldest moment for which every key's state is still known.
    #[must_use]
    pub fn floor(&self) -> Version {
        self.floor
    }

    /// A key that has been deleted since then may be forgotten.
    #[must_use]
    pub fn deleted_floor(&self) -> Version {
        self.deleted_floor
    }

    /// Newest versions of a key that are kept.
    #[must_use]
    pub fn min_count(&self) -> u32 {
        self.min_count
    }

    /// Counts back below it are good for every key.
    #[must_use]
    pub fn counted(&self) -> u32 {
        self.counted
    }

    /// Moves the floors up: what was min-age ago, and keep-deleted ago, which is at least as long.
    pub fn raise(&mut self, floor: Version, deleted_floor: Version) {
        self.floor = self.floor.max(floor);
        self.deleted_floor = self.deleted_floor.max(deleted_floor.min(self.floor));
    }

    /// Keeps so many of the newest versions from now on.
    pub fn set_min_count(&mut self, min_count: u32) {
        self.min_count = min_count.max(1);
        self.counted = self.counted.min(self.min_count);
    }

    /// A sweep over all keys met no gap nearer than this, and min-count was no less meanwhile.
    pub fn set_counted(&mut self, counted: u32) {
        self.counted = self.counted.max(counted.min(self.min_count));
    }

    /// Holds this moment. False: there are too many snapshots.
    pub fn take(&mut self, moment: Version) -> bool {
        let count: u64 = self.snapshots.values().map(|count| u64::from(*count)).sum();
        if count >= SNAPSHOTS_MAX as u64 {
            return false;
        }
        *self.snapshots.entry(moment).or_default() += 1;
        true
    }

    /// Lets go of a moment that was held. False: it is not.
    pub fn release(&mut self, moment: Version) -> bool {
        let Some(count) = self.snapshots.get_mut(&moment) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            self.snapshots.remove(&moment);
        }
        true
    }

    /// So many snapshots hold this moment. False: there would be too many.
    pub fn set_snapshots(&mut self, moment: Version, count: u32) -> bool {
        let others = self.snapshots.iter().filter(|(at, _)| **at != moment);
        let others: u64 = others.map(|(_, count)| u64::from(*count)).sum();
        if others + u64::from(count) > SNAPSHOTS_MAX as u64 {
            return false;
        }
        if count == 0 {
            self.snapshots.remove(&moment);
        } else {
            self.snapshots.insert(moment, count);
        }
        true
    }

    /// How many snapshots hold each moment.
    pub fn counts(&self) -> impl Iterator<Item = (Version, u32)> + '_ {
        self.snapshots
            .iter()
            .map(|(moment, count)| (*moment, *count))
    }

    /// Moments that are held, oldest first.
    pub fn snapshots(&self) -> impl Iterator<Item = Version> + '_ {
        self.snapshots.keys().copied()
    }

    /// Whether a snapshot lies within the life of a version.
    pub(crate) fn holds(&self, version: Version, ended: Version) -> bool {
        self.snapshots.range(version..ended).next().is_some()
    }

    /// Whether every key's state at this moment is known.
    #[must_use]
    pub fn knows(&self, moment: Version) -> bool {
        moment >= self.floor || self.snapshots.contains_key(&moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u64) -> Version {
        Version::new(number)
    }

    #[test]
    fn floors_never_go_back() {
        let mut retention = Retention::new(0);
        assert_eq!(retention.min_count(), 1);
        retention.raise(version(10), version(20));
        assert_eq!(retention.deleted_floor(), version(10));
        retention.raise(version(5), version(3));
        assert_eq!(
            (retention.floor(), retention.deleted_floor()),
            (version(10), version(10))
        );
    }

    #[test]
    fn a_moment_is_held_as_often_as_it_was_taken() {
        let mut retention = Retention::new(1);
        retention.raise(version(100), version(0));
        assert!(retention.take(version(7)) && retention.take(version(7)));
        assert!(retention.release(version(7)));
        assert!(retention.knows(version(7)) && !retention.knows(version(8)));
        assert!(
            retention.holds(version(7), version(8)) && !retention.holds(version(8), version(9))
        );
        assert!(!retention.holds(version(3), version(7)));
        assert!(retention.release(version(7)) && !retention.release(version(7)));
        assert!(!retention.knows(version(7)));
    }

    #[test]
    fn snapshots_are_bounded() {
        let mut retention = Retention::new(1);
        for moment in 0..SNAPSHOTS_MAX as u64 {
            assert!(retention.take(version(moment / 2)));
        }
        assert!(!retention.take(version(9999)));
        assert!(retention.release(version(0)) && retention.take(version(9999)));
    }

    #[test]
    fn counting_back_grows_with_a_sweep_alone() {
        let mut retention = Retention::new(3);
        retention.set_min_count(1);
        retention.set_min_count(4);
        assert_eq!(retention.counted(), 1);
        retention.set_counted(2);
        assert_eq!(retention.counted(), 2);
        retention.set_counted(9);
        assert_eq!(retention.counted(), 4);
    }
}
