// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock by which versions age: it only runs while the node runs, and nobody can set it.
//!
//! Invariants:
//! 1. It runs by the monotonic clock, at most ten seconds between two ticks. So neither the wall clock nor a pause
//!    nor time without the node ages anything.
//! 2. [`RetentionClock::floor`] never names a version that was given less than that age ago. It errs towards what is
//!    older, by a 512th of the longest age and one tick. Of an age that is at most the shorter one it errs by a 512th of
//!    that one, once the node has run for so long.
//! 3. It remembers at most [`SAMPLES_MAX`] moments for each of the two ages.

use std::collections::VecDeque;

use crate::retention::Settings;
use crate::version::Version;

/// Most that a tick adds: a node that ticks runs, one that does not is paused.
const TICK_US_MAX: u64 = 10_000_000;
/// Samples within an age.
pub(crate) const SAMPLES_WITHIN: u64 = 512;
/// Most moments that are remembered for an age.
pub const SAMPLES_MAX: usize = 2 * SAMPLES_WITHIN as usize;

/// A moment: all versions up to this one had been given when the clock had run so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Microseconds.
    pub run_us: u64,
    /// The last one that had been given.
    pub version: Version,
}

/// Moments within an age, oldest first.
#[derive(Clone, Debug)]
struct Samples {
    age_us: u64,
    all: VecDeque<Sample>,
}

/// The clock.
#[derive(Clone, Debug)]
pub struct RetentionClock {
    run_us: u64,
    monotonic_us: u64,
    /// Within the longest age: what becomes durable.
    long: Samples,
    /// Within the min-age, which may be far shorter: since the node's start.
    short: Samples,
}

impl Samples {
    fn new(age_us: u64) -> Self {
        let all = VecDeque::new();
        Self { age_us, all }
    }

    /// Takes a sample, if it is due.
    fn take(&mut self, run_us: u64, last: Version) -> Option<Sample> {
        let interval_us = self.age_us / SAMPLES_WITHIN;
        let newest = self.all.back();
        if newest.is_some_and(|newest| run_us < newest.run_us.saturating_add(interval_us)) {
            return None;
        }
        let version = newest.map_or(last, |newest| newest.version.max(last));
        let sample = Sample { run_us, version };
        self.all.push_back(sample);
        self.thin(run_us);
        Some(sample)
    }

    fn thin(&mut self, run_us: u64) {
        // The last one that is older than any age is needed, those before it are not.
        let oldest_us = run_us.saturating_sub(self.age_us);
        let next = |all: &VecDeque<Sample>| all.get(1).map(|it| it.run_us);
        while next(&self.all).is_some_and(|next| next <= oldest_us) {
            self.all.pop_front();
        }
        while self.all.len() > SAMPLES_MAX {
            // Only after an age was made longer: samples are too dense, every second one does.
            let mut is_kept = false;
            self.all.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
    }

    fn floor(&self, until_us: u64) -> Version {
        let count = self.all.partition_point(|it| it.run_us <= until_us);
        let sample = count.checked_sub(1).and_then(|at| self.all.get(at));
        sample.map_or(Version::ZERO, |sample| sample.version)
    }
}

impl RetentionClock {
    /// At a start of the node: with what was durable of it. What it has forgotten ages anew. Samples above `run_us`
    /// do not count.
    #[must_use]
    pub fn start(
        run_us: u64,
        monotonic_us: u64,
        kept: Settings,
        samples: impl IntoIterator<Item = Sample>,
    ) -> Self {
        let mut long = Samples::new(longest_age_us(kept));
        for sample in samples {
            let last = long.all.back();
            let rises = last
                .is_none_or(|last| last.run_us <= sample.run_us && last.version <= sample.version);
            if sample.run_us <= run_us && rises {
                long.all.push_back(sample);
                long.thin(run_us);
            }
        }
        Self {
            run_us,
            monotonic_us,
            long,
            short: Samples::new(kept.min_age_us),
        }
    }

    /// Time has passed. `last` is the last version that was given. A sample that is taken should become durable: it
    /// stands in heads of batches too.
    pub fn tick(&mut self, monotonic_us: u64, last: Version) -> Option<Sample> {
        let passed_us = monotonic_us.saturating_sub(self.monotonic_us);
        self.monotonic_us = self.monotonic_us.max(monotonic_us);
        self.run_us = self.run_us.saturating_add(passed_us.min(TICK_US_MAX));
        self.short.take(self.run_us, last);
        self.long.take(self.run_us, last)
    }

    /// This is kept from now on.
    pub fn set_ages(&mut self, kept: Settings) {
        self.long.age_us = longest_age_us(kept);
        self.short.age_us = kept.min_age_us;
    }

    /// Microseconds that it has run.
    #[must_use]
    pub fn run_us(&self) -> u64 {
        self.run_us
    }

    /// Every version up to it is at least this old.
    #[must_use]
    pub fn floor(&self, age_us: u64) -> Version {
        let Some(until_us) = self.run_us.checked_sub(age_us) else {
            return Version::ZERO;
        };
        self.long.floor(until_us).max(self.short.floor(until_us))
    }
}

fn longest_age_us(kept: Settings) -> u64 {
    kept.keep_deleted_us.max(kept.min_age_us)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND_US: u64 = 1_000_000;
    const HOUR_US: u64 = 3600 * SECOND_US;

    fn kept(min_age_us: u64, keep_deleted_us: u64) -> Settings {
        Settings {
            min_age_us,
            keep_deleted_us,
            min_count: 1,
            counted: 1,
        }
    }

    proptest! {
        #[test]
        fn a_floor_is_never_too_young_and_not_much_too_old(
            steps in prop::collection::vec((0u64..12 * SECOND_US, 0u64..1000), 10..1500),
            age_us in 0..2 * HOUR_US, longest_us in HOUR_US / 2..2 * HOUR_US, longer_at in 0usize..1500,
        ) {
            let mut clock = RetentionClock::start(0, 0, kept(age_us.min(longest_us), longest_us), []);
            let mut longest_us = longest_us;
            let (mut now_us, mut version) = (0, 1);
            // When each version was the last, as the clock had run.
            let mut given: Vec<(u64, u64)> = Vec::new();
            for (number, (passed_us, changes)) in steps.into_iter().enumerate() {
                if number == longer_at {
                    longest_us += HOUR_US;
                    clock.set_ages(kept(age_us.min(longest_us), longest_us));
                }
                now_us += passed_us;
                clock.tick(now_us, Version::new(version));
                given.push((clock.run_us(), version));
                version += changes;
                prop_assert!(clock.long.all.len() <= SAMPLES_MAX);
                prop_assert!(clock.short.all.len() <= SAMPLES_MAX);
                let floor = clock.floor(age_us).number();
                let run_us = clock.run_us();
                let old = given.iter().rev().find(|(at_us, _)| at_us + age_us <= run_us);
                prop_assert!(floor <= old.map_or(0, |(_, version)| *version));
                // Ages that it was made for move the floor.
                let slack_us = age_us / SAMPLES_WITHIN + 2 * TICK_US_MAX;
                if age_us <= longest_us && number < longer_at {
                    let older = given.iter().rev().find(|(at_us, _)| at_us + age_us + slack_us <= run_us);
                    prop_assert!(floor >= older.map_or(0, |(_, version)| *version));
                }
            }
        }
    }

    #[test]
    fn neither_a_pause_nor_time_without_the_node_ages_anything() {
        let mut clock = RetentionClock::start(0, 5, kept(0, HOUR_US), []);
        let sample = clock.tick(6, Version::new(10)).unwrap();
        clock.tick(6 + 24 * HOUR_US, Version::new(20));
        assert_eq!(clock.run_us(), 1 + TICK_US_MAX);
        assert_eq!(clock.floor(HOUR_US), Version::ZERO);
        // The monotonic clock of another boot.
        let mut clock = RetentionClock::start(
            clock.run_us(),
            900 * HOUR_US,
            kept(HOUR_US, HOUR_US),
            [sample],
        );
        clock.tick(900 * HOUR_US + 1, Version::new(30));
        assert_eq!(clock.run_us(), 2 + TICK_US_MAX);
        assert_eq!(clock.floor(TICK_US_MAX), Version::new(10));
        // It never goes back.
        clock.tick(3, Version::new(40));
        assert_eq!(clock.run_us(), 2 + TICK_US_MAX);
    }

    #[test]
    fn samples_that_cannot_be_are_left_out() {
        let sample = |run_us, version| Sample {
            run_us,
            version: Version::new(version),
        };
        let given = [
            sample(10, 5),
            sample(20, 4),
            sample(5, 9),
            sample(30, 7),
            sample(99, 8),
        ];
        let clock = RetentionClock::start(50, 0, kept(0, HOUR_US), given);
        assert_eq!(clock.long.all, [sample(10, 5), sample(30, 7)]);
        let many = (0..5000).map(|at| sample(at, at));
        let clock = RetentionClock::start(5000, 0, kept(0, HOUR_US), many);
        assert!(clock.long.all.len() <= SAMPLES_MAX);
        assert_eq!(clock.floor(5000), Version::ZERO);
    }

    /// A min-age that is far shorter than what deleted keys are kept for moves its floor as often as it says.
    #[test]
    fn a_short_age_beside_a_long_one_is_measured_by_itself() {
        let month_us = 30 * 24 * HOUR_US;
        let mut clock = RetentionClock::start(0, 0, kept(60 * SECOND_US, month_us), []);
        for second in 1..=600 {
            let sample = clock.tick(second * SECOND_US, Version::new(second));
            assert_eq!(sample.is_some(), second == 1, "few become durable");
            assert_eq!(clock.floor(0), Version::new(second));
            let floor = clock.floor(60 * SECOND_US);
            assert_eq!(floor, Version::new(second.saturating_sub(60)), "{second}");
        }
        assert!(clock.short.all.len() <= 62);
    }
}
