// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Versions, and the clock that gives them.
//!
//! Invariants:
//! 1. A clock gives no version twice, and each is above all that it gave before. Threads may share it.
//! 2. It gives none above its ceiling. The ceiling is durable before it is raised here, and a clock begins at
//!    the ceiling that it finds. So a crash repeats no version, whatever the wall clock says.
//! 3. [`Wall`] never goes back, and a jump of the wall clock by more than an hour is not followed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of the counter below the microseconds: 4,096 versions in each, then the next one is borrowed.
const COUNTER_BITS: u32 = 12;
const COUNTER_MASK: u64 = (1 << COUNTER_BITS) - 1;
/// Microseconds since 1970 that a version can hold: until the year 2112.
const MICROS_MAX: u64 = u64::MAX >> COUNTER_BITS;

const SECOND_US: u64 = 1_000_000;
const HOUR_US: u64 = 3600 * SECOND_US;
const WEEK_US: u64 = 7 * 24 * HOUR_US;
/// How far the ceiling is kept above the present moment.
const CEILING_AHEAD_US: u64 = SECOND_US;

/// A moment of the node, and the number of a change: microseconds since 1970, then a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Before everything: no version that is given.
    pub const ZERO: Self = Self(0);
    /// Behind everything.
    pub const MAX: Self = Self(u64::MAX);

    /// The version with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The last moment of a microsecond since 1970: `as of` it sees what was written in it.
    #[must_use]
    pub const fn end_of_micros(micros: u64) -> Self {
        if micros >= MICROS_MAX {
            return Self::MAX;
        }
        Self((micros << COUNTER_BITS) | COUNTER_MASK)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    /// The moment just before it.
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Gives versions. All shards of a node share one.
#[derive(Debug)]
pub struct Clock {
    /// The last one given.
    last: AtomicU64,
    /// The last one that may be given.
    ceiling: AtomicU64,
}

/// The ceiling has been reached: a higher one must be durable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no version is left below the ceiling {0}: wait until a higher one is durable")]
pub struct CeilingReached(pub Version);

impl Clock {
    /// A clock behind a ceiling that was found. It gives nothing before [`Clock::raise`].
    #[must_use]
    pub fn behind(ceiling: Version) -> Self {
        Self {
            last: AtomicU64::new(ceiling.0),
            ceiling: AtomicU64::new(ceiling.0),
        }
    }

    /// The next version, at this time of [`Wall`].
    ///
    /// # Errors
    /// It would be above the ceiling.
    pub fn next(&self, now_us: u64) -> Result<Version, CeilingReached> {
        // A ceiling only rises, so an old one errs towards refusal.
        let ceiling = self.ceiling.load(Ordering::SeqCst);
        let now = now_us.min(MICROS_MAX) << COUNTER_BITS;
        let mut last = self.last.load(Ordering::SeqCst);
        loop {
            let next = now.max(last.saturating_add(1));
            if next > ceiling || next == last {
                return Err(CeilingReached(Version(ceiling)));
            }
            let given =
                self.last
                    .compare_exchange_weak(last, next, Ordering::SeqCst, Ordering::SeqCst);
            match given {
                Ok(_) => return Ok(Version(next)),
                Err(other) => last = other,
            }
        }
    }

    /// The newest version that was given, or a bound above all that were.
    #[must_use]
    pub fn last(&self) -> Version {
        Version(self.last.load(Ordering::SeqCst))
    }

    /// The ceiling that should be made durable now, if it is time: twice as far ahead as must be left.
    #[must_use]
    pub fn ceiling_due(&self, now_us: u64) -> Option<Version> {
        let now_us = now_us.max(self.last().micros());
        let left = Version(self.ceiling.load(Ordering::SeqCst)).micros();
        let is_due = left < now_us.saturating_add(CEILING_AHEAD_US);
        is_due.then(|| Version::end_of_micros(now_us.saturating_add(2 * CEILING_AHEAD_US)))
    }

    /// This ceiling is durable.
    pub fn raise(&self, ceiling: Version) {
        self.ceiling.fetch_max(ceiling.0, Ordering::SeqCst);
    }
}

/// The wall clock as the node follows it.
#[derive(Clone, Copy, Debug)]
pub struct Wall {
    now_us: u64,
    monotonic_us: u64,
}

/// Why a start waits until an operator says that the wall clock is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// It would repeat moments.
    #[error(
        "the wall clock is {behind_us} us behind what this store has seen: set it, or say that it is right"
    )]
    Behind {
        /// Microseconds below the ceiling.
        behind_us: u64,
    },
    /// It would skip moments.
    #[error(
        "the wall clock is {ahead_us} us ahead of this store's last tick: set it, or say that it is right"
    )]
    Ahead {
        /// Microseconds above the last tick.
        ahead_us: u64,
    },
}

impl Wall {
    /// Begins at a start of the node. `last_tick_us` is the wall clock when the node last said so durably.
    ///
    /// # Errors
    /// The clock is an hour below the ceiling, or a week above the last tick, and nobody `is_sure`.
    pub fn start(
        wall_us: u64,
        monotonic_us: u64,
        ceiling: Version,
        last_tick_us: Option<u64>,
        is_sure: bool,
    ) -> Result<Self, Doubt> {
        let behind_us = ceiling.micros().saturating_sub(wall_us);
        let ahead_us = last_tick_us.map_or(0, |last_us| wall_us.saturating_sub(last_us));
        if behind_us > HOUR_US && !is_sure {
            return Err(Doubt::Behind { behind_us });
        }
        if ahead_us > WEEK_US && !is_sure {
            return Err(Doubt::Ahead { ahead_us });
        }
        Ok(Self {
            now_us: wall_us,
            monotonic_us,
        })
    }

    /// Time has passed. False: the wall clock jumped by more than an hour, and is not followed.
    pub fn tick(&mut self, wall_us: u64, monotonic_us: u64) -> bool {
        let passed_us = monotonic_us.saturating_sub(self.monotonic_us);
        let expected_us = self.now_us.saturating_add(passed_us);
        self.monotonic_us = self.monotonic_us.max(monotonic_us);
        let is_followed = wall_us.abs_diff(expected_us) <= HOUR_US;
        let now_us = if is_followed { wall_us } else { expected_us };
        self.now_us = self.now_us.max(now_us);
        is_followed
    }

    /// Microseconds since 1970.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.now_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: u64 = 1_800_000_000 * SECOND_US;

    fn raised(now_us: u64) -> Clock {
        let clock = Clock::behind(Version::ZERO);
        clock.raise(clock.ceiling_due(now_us).unwrap());
        clock
    }

    #[test]
    fn versions_rise_within_a_microsecond_and_when_the_clock_goes_back() {
        let clock = raised(NOW_US);
        let mut last = Version::ZERO;
        for step in 0..20_000u64 {
            let version = clock.next(NOW_US - step % 7).unwrap();
            assert!(version > last);
            last = version;
        }
        // 20,000 in one microsecond have borrowed four others.
        assert_eq!(last.micros(), NOW_US + 4);
    }

    #[test]
    fn a_moment_is_the_end_of_its_microsecond() {
        let clock = raised(NOW_US);
        let versions: Vec<Version> = (0..4096).map(|_| clock.next(NOW_US).unwrap()).collect();
        let moment = Version::end_of_micros(NOW_US);
        assert!(versions.iter().all(|version| *version <= moment));
        assert!(clock.next(NOW_US).unwrap() > moment);
        assert_eq!(Version::end_of_micros(u64::MAX), Version::MAX);
    }

    #[test]
    fn no_version_is_given_above_the_ceiling_or_twice_after_a_crash() {
        let clock = raised(NOW_US);
        let ceiling = Version(clock.ceiling.load(Ordering::SeqCst));
        assert_eq!(clock.ceiling_due(NOW_US), None);
        assert!(clock.ceiling_due(NOW_US + 3 * SECOND_US / 2).is_some());
        let beyond_us = ceiling.micros() + 1;
        assert_eq!(clock.next(beyond_us), Err(CeilingReached(ceiling)));
        let given = clock.next(NOW_US).unwrap();
        // The wall clock went back by a day meanwhile.
        let again = Clock::behind(ceiling);
        let now_us = NOW_US - 24 * HOUR_US;
        assert_eq!(again.next(now_us), Err(CeilingReached(ceiling)));
        again.raise(again.ceiling_due(now_us).unwrap());
        assert!(again.next(now_us).unwrap() > given);
        assert!(again.last() > ceiling);
    }

    #[test]
    fn the_end_of_time_is_refused() {
        let clock = Clock::behind(Version(u64::MAX - 1));
        clock.raise(Version::MAX);
        assert_eq!(clock.next(u64::MAX), Ok(Version::MAX));
        assert!(clock.next(u64::MAX).is_err());
    }

    #[test]
    fn threads_get_different_versions() {
        let clock = raised(NOW_US);
        let mut all: Vec<Version> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| -> Vec<Version> {
                        (0..5000).map(|_| clock.next(NOW_US).unwrap()).collect()
                    })
                })
                .collect();
            let given = threads.into_iter().map(|thread| thread.join().unwrap());
            given
                .inspect(|given| assert!(given.is_sorted()))
                .flatten()
                .collect()
        });
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 20_000);
    }

    #[test]
    fn a_wall_clock_that_jumps_is_not_followed() {
        let mut wall = Wall::start(NOW_US, 0, Version::ZERO, None, false).unwrap();
        assert!(wall.tick(NOW_US + SECOND_US, SECOND_US));
        assert!(!wall.tick(NOW_US + 365 * 24 * HOUR_US, 2 * SECOND_US));
        assert_eq!(wall.now_us(), NOW_US + 2 * SECOND_US);
        assert!(!wall.tick(0, 3 * SECOND_US));
        assert_eq!(wall.now_us(), NOW_US + 3 * SECOND_US);
        // Half an hour back is followed, and does not go back.
        assert!(wall.tick(NOW_US - HOUR_US / 2, 4 * SECOND_US));
        assert_eq!(wall.now_us(), NOW_US + 3 * SECOND_US);
    }

    #[test]
    fn a_start_with_a_doubtful_clock_waits() {
        let ceiling = Version::end_of_micros(NOW_US);
        let start = |wall_us, is_sure| Wall::start(wall_us, 0, ceiling, Some(NOW_US), is_sure);
        assert!(start(NOW_US - HOUR_US, false).is_ok());
        let behind = start(NOW_US - HOUR_US - 1, false).unwrap_err();
        assert!(matches!(behind, Doubt::Behind { .. }));
        let ahead = start(NOW_US + WEEK_US + 1, false).unwrap_err();
        assert!(matches!(ahead, Doubt::Ahead { .. }));
        assert!(start(NOW_US + WEEK_US + 1, true).is_ok());
    }
}
