// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Use of keys: where Redis evicts by use (`maxmemory` with an lru or lfu policy), answers of ERB
//! would hide which keys are used, and Redis would evict the hottest first. So each second, the
//! step of Redis's own clock for lru, keys that were answered are named to it by TOUCH.
//!
//! With lfu a key that ERB answers counts once a second, however often it was answered.

use crate::outside::{DataPath, Machine, Result};
use crate::redis_state::RedisState;
use crate::turn::{Core, SECOND_NS, TICK_NS};

/// A round over the whole cache takes a second: this many ticks.
const TICKS: u32 = (SECOND_NS / TICK_NS) as u32;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Called at each tick: tells Redis of the keys that were answered in the next part of the
    /// cache.
    pub(crate) fn touch_used(&mut self, now: u64) -> Result<()> {
        let state = self.watch.state.as_ref();
        let wanted = state.is_some_and(RedisState::evicts_by_use) && !self.is_at_rest(now);
        // One after the other: a slow Redis is told less often.
        let feed = self
            .feed
            .as_mut()
            .filter(|feed| wanted && feed.is_ready() && !feed.is_touching());
        let Some(feed) = feed else { return Ok(()) };
        let sets = self.path.sets();
        let mut left = sets.div_ceil(TICKS);
        let mut keys = Vec::new();
        while left > 0 {
            let found = self.path.touched(self.touch_set)?;
            let end = if found.next_set == 0 {
                sets
            } else {
                found.next_set
            };
            left = left.saturating_sub(end.saturating_sub(self.touch_set).max(1));
            self.touch_set = found.next_set;
            keys.extend(found.keys);
        }
        if !keys.is_empty() {
            feed.ask_touch(keys);
        }
        Ok(())
    }
}
