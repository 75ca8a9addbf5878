// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two clocks of the data path.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A reading of two clocks that took no longer was not interrupted.
const READING_SURE: Duration = Duration::from_micros(1);
/// Where a clock costs more than that, the best of some.
const READINGS_MAX: u32 = 16;

fn now(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

/// `CLOCK_MONOTONIC`, ns: what `bpf_ktime_get_ns` reads.
pub(crate) fn monotonic_ns() -> u64 {
    u64::try_from(now(ClockId::CLOCK_MONOTONIC).as_nanos()).unwrap_or(u64::MAX)
}

/// `CLOCK_REALTIME - CLOCK_MONOTONIC`, ns. It is constant but for steps of the wall clock, so the
/// reading during which least time passed is the best one.
pub(crate) fn wall_minus_monotonic_ns() -> i64 {
    let reading = || {
        let before = now(ClockId::CLOCK_MONOTONIC);
        let wall = now(ClockId::CLOCK_REALTIME);
        let took = now(ClockId::CLOCK_MONOTONIC).saturating_sub(before);
        (took, wall.saturating_sub(before + took / 2))
    };
    let mut best = reading();
    for _ in 1..READINGS_MAX {
        if best.0 < READING_SURE {
            break;
        }
        best = best.min(reading());
    }
    i64::try_from(best.1.as_nanos()).unwrap_or(i64::MAX)
}
