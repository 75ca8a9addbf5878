// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual time: nanoseconds of the world's monotonic clock, which starts at [`START_NS`].

/// Nanoseconds of virtual time.
pub type Ns = u64;

/// One microsecond.
pub const US: Ns = 1_000;
/// One millisecond.
pub const MS: Ns = 1_000_000;
/// One second.
pub const SECOND: Ns = 1_000_000_000;

/// When a world begins: an hour after boot, so that no "time zero" hides a mistake.
pub const START_NS: Ns = 3_600 * SECOND;

/// Wall clock minus monotonic clock when a world begins, in milliseconds.
pub const WALL_START_MS: i64 = 1_790_000_000_000;

/// Granularity of the coarse clock: a jiffy at HZ = 250.
pub const JIFFY_NS: Ns = 4 * MS;

/// The coarse monotonic clock: lags behind by up to a jiffy.
#[must_use]
pub const fn coarse(now: Ns) -> Ns {
    now - now % JIFFY_NS
}

/// Seconds since the world's start with six digits, for people.
#[must_use]
pub fn show(at: Ns) -> String {
    let since = at.saturating_sub(START_NS);
    format!("{}.{:06}", since / SECOND, since % SECOND / US)
}
