// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two clocks of the data path.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

fn now(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

/// `CLOCK_MONOTONIC`, ns: what `bpf_ktime_get_ns` reads.
pub(crate) fn monotonic_ns() -> u64 {
    u64::try_from(now(ClockId::CLOCK_MONOTONIC).as_nanos()).unwrap_or(u64::MAX)
}

/// `CLOCK_REALTIME - CLOCK_MONOTONIC`, ms, rounded down so that entries rather end early.
pub(crate) fn wall_minus_monotonic_ms() -> i64 {
    let wall = now(ClockId::CLOCK_REALTIME).as_nanos();
    let monotonic = now(ClockId::CLOCK_MONOTONIC).as_nanos();
    // Wall time read first: the difference is never too large, so an entry is never thought
    // younger than it is by more than the time between the two calls.
    i64::try_from(wall.saturating_sub(monotonic) / 1_000_000).unwrap_or(i64::MAX)
}
