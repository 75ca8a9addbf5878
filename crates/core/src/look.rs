// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be seen of the core from outside: for the status report, tests and the simulator.

use erb_abi::SweepReport;

use crate::feed::Feed;
use crate::outside::{DataPath, Machine, Result};
use crate::redis_state::RedisState;
use crate::turn::{Core, Stage};

/// What the status report shows.
impl<P: DataPath, M: Machine> Core<P, M> {
    /// The data path.
    #[must_use]
    pub const fn path(&self) -> &P {
        &self.path
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, for a driver that changes it.
    pub const fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// What goes on.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether nothing is left to do: what is attached can be taken away.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.stage == Stage::Leaving
    }

    /// Looks at the connections, for somebody who asks, and keeps the lease up for a while.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn look(&mut self) -> Result<()> {
        let now = self.machine.monotonic_ns();
        if self.is_at_rest(now) {
            // The lease is back when the answer is read.
            self.next_tick_ns = now;
        }
        self.stay_awake(now);
        self.count_connections()
    }

    /// The last sweep.
    #[must_use]
    pub const fn last_sweep(&self) -> &SweepReport {
        &self.sweep
    }

    /// Why ERB must not answer, as far as Redis is concerned; empty: it may.
    #[must_use]
    pub fn reasons_against_serving(&self) -> Vec<String> {
        self.watch.reasons()
    }

    /// Redis's state, as last read over the present feed.
    #[must_use]
    pub const fn redis_state(&self) -> Option<&RedisState> {
        self.watch.state.as_ref()
    }

    /// Whether tracking is on.
    #[must_use]
    pub fn is_feed_up(&self) -> bool {
        self.feed.as_ref().is_some_and(Feed::is_ready)
    }

    /// Feeds made so far.
    #[must_use]
    pub const fn feeds_made(&self) -> u64 {
        self.feeds_made
    }

    /// Fill transactions under way.
    #[must_use]
    pub fn fills_in_flight(&self) -> usize {
        self.feed.as_ref().map_or(0, Feed::fills_in_flight)
    }

    /// Keys waiting to be filled.
    #[must_use]
    pub fn fills_waiting(&self) -> usize {
        self.fills.waiting()
    }

    /// Keys given to [`Self::fill`] that are not done yet.
    #[must_use]
    pub fn named_left(&self) -> usize {
        self.fills.named_left()
    }

    /// Keys filled so far, and keys given to [`Self::fill`] that could not be filled.
    #[must_use]
    pub const fn fill_counts(&self) -> (u64, u64) {
        (self.fills.filled, self.fills.named_failed)
    }
}
