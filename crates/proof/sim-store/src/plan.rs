// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a history of a whole store is, and what happens to it.

use erb_sim_disk::Faults;

/// When a history ends, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Steps of it.
    pub steps: u32,
    /// A loss of power at this step, before all others that chance brings; none: chance alone.
    pub crash_at: Option<u32>,
    /// What the disk does.
    pub faults: Faults,
    /// Nothing stops it before its end.
    pub is_calm: bool,
    /// The store becomes larger when it is short of space, while all else goes on.
    pub grows: bool,
}

/// Steps of a history in which anything may happen.
pub const STEPS: u32 = 3000;

/// What a store has to live with.
pub const FAULTS: Faults = Faults {
    writes_fail: 3000,
    writes_astray: 0,
    writes_lost: 0,
    reads_fail: 20_000,
    flushes_fail: 20_000,
    writes_slow: 150_000,
};

impl Plan {
    /// Stopped by chance.
    pub const LONG: Self = Self {
        steps: STEPS,
        crash_at: None,
        faults: FAULTS,
        is_calm: false,
        grows: false,
    };

    /// So long that segments are used again while reads of them are under way.
    pub const CALM: Self = Self {
        steps: 3 * STEPS,
        is_calm: true,
        ..Self::LONG.without_failed_writes()
    };

    /// The same, of a store that grows while it runs, and stops by chance behind the begin of that.
    pub const GROWING: Self = Self {
        grows: true,
        ..Self::CALM
    };

    /// Power is lost at this step, and no write fails before.
    #[must_use]
    pub const fn stopped_at(self, step: u32) -> Self {
        Self {
            crash_at: Some(step),
            ..self.without_failed_writes()
        }
    }

    const fn without_failed_writes(self) -> Self {
        Self {
            faults: Faults {
                writes_fail: 0,
                ..self.faults
            },
            ..self
        }
    }
}
