// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Use of keys: where Redis evicts by use (`maxmemory` with an lru or lfu policy), answers of ERB
//! would hide which keys are used, and Redis would evict the hottest first. So each second, the
//! step of Redis's own clock for lru, keys that were answered are named to it by TOUCH.
//!
//! With lfu a key that ERB answers counts once a second, however often it was answered.

use std::io::{Read, Write};

use crate::clock::{SECOND_NS, TICK_NS};
use crate::feed::Feed;
use crate::outside::{DataPath, Result};

/// A round over the whole cache takes a second: this many ticks.
const TICKS: u32 = (SECOND_NS / TICK_NS) as u32;

/// Where the round goes on.
#[derive(Debug, Default)]
pub(crate) struct Touches {
    next_set: u32,
}

impl Touches {
    /// Called at each tick: tells Redis of the keys that were answered in the next part of the
    /// cache, unless it has yet to answer the last time: a slow Redis is told less often.
    pub(crate) fn tell<S: Read + Write>(
        &mut self,
        path: &impl DataPath,
        feed: &mut Feed<S>,
    ) -> Result<()> {
        if feed.is_touching() {
            return Ok(());
        }
        let sets = path.sets();
        let mut left = sets.div_ceil(TICKS);
        let mut keys = Vec::new();
        while left > 0 {
            let found = path.touched(self.next_set)?;
            let end = match found.next_set {
                0 => sets,
                next => next,
            };
            left = left.saturating_sub(end.saturating_sub(self.next_set).max(1));
            self.next_set = found.next_set;
            keys.extend(found.keys);
        }
        if !keys.is_empty() {
            feed.ask_touch(keys);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doubles::{Pipe, Recorder};

    #[test]
    fn a_round_takes_a_second_and_goes_on_where_it_was() {
        let (mut touches, path) = (Touches::default(), Recorder::default());
        let mut feed = Feed::new(Pipe::default(), "test", None).unwrap();
        // 64 sets in 20 ticks are four at each; a look goes through eight.
        for from in [0, 8, 16] {
            touches.tell(&path, &mut feed).unwrap();
            assert_eq!(path.take_log(), [format!("touched from {from}")]);
        }
        path.used.replace(vec![(0, b"k".to_vec())]);
        touches.tell(&path, &mut feed).unwrap();
        path.take_log();
        touches.tell(&path, &mut feed).unwrap();
        assert!(path.take_log().is_empty(), "Redis has not answered");
    }
}
