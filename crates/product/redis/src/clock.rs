// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The wall clock, by which cached values expire: the programs know the monotonic one, and how far
//! the other is from it.

use crate::outside::{DataPath, Result};

pub(crate) const MS: u64 = 1_000_000;

pub(crate) const SECOND_NS: u64 = 1000 * MS;

/// Half a lease: one lost tick does not end it.
pub(crate) const TICK_NS: u64 = erb_abi::LEASE_MS as u64 / 2 * MS;

/// A step of the wall clock against the monotonic one that voids all expiry times.
const STEP_NS: u64 = 2 * MS;

/// What reading the two clocks may err by.
const NOISE_NS: u64 = 2_000;

/// What the programs were told.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    wall_minus_mono_ns: i64,
}

impl Clock {
    /// The clocks were read. A step of the wall clock makes every cached expiry wrong.
    pub(crate) fn keep(&mut self, path: &impl DataPath, difference: i64) -> Result<()> {
        let moved = difference.abs_diff(self.wall_minus_mono_ns);
        if moved <= NOISE_NS {
            return Ok(());
        }
        path.set_wall_minus_mono_ns(difference);
        if moved > STEP_NS && self.wall_minus_mono_ns != 0 {
            tracing::warn!("the wall clock was set: the cache is emptied");
            path.clear()?;
        }
        self.wall_minus_mono_ns = difference;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use erb_abi::ControlBlock as _;

    use super::*;
    use crate::doubles::Recorder;

    #[test]
    fn noise_is_not_told_slewing_is_and_a_step_empties_the_cache() {
        let (mut clock, path) = (Clock::default(), Recorder::default());
        let far = 1_700_000_000_000_000_000;
        let mut keep = |difference| {
            clock.keep(&path, difference).unwrap();
            (path.wall_minus_mono_ns(), path.take_log().len())
        };
        assert_eq!(keep(far), (far, 0), "nothing is cached yet");
        assert_eq!(keep(far + 2_000), (far, 0), "noise");
        assert_eq!(keep(far + 2_000_000), (far + 2_000_000, 0), "slewed");
        assert_eq!(keep(far - 1), (far - 1, 1), "set");
    }
}
