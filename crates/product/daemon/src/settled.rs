// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is drained is in Redis, and its log may lose it with the machine's power for a while. Then it is settled.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Redis syncs its log each second, and puts that off for one more while a sync is under way (src/aof.c,
/// `flushAppendOnlyFile`); the rest is for a slow disk.
const SETTLED: Duration = Duration::from_secs(5);

/// How fine these are told apart.
const STEP: Duration = Duration::from_millis(100);

/// See the module.
pub(crate) struct Settled {
    after: Duration,
    /// What was drained at these times.
    drained: VecDeque<(Instant, u64)>,
    settled: u64,
}

impl Settled {
    /// Nothing is.
    pub(crate) const fn new() -> Self {
        Self::after(SETTLED)
    }

    /// The same, and for another time than Redis's.
    pub(crate) const fn after(after: Duration) -> Self {
        Self {
            after,
            drained: VecDeque::new(),
            settled: 0,
        }
    }

    /// What of all that is drained Redis's log has by now.
    pub(crate) fn of(&mut self, drained: u64, now: Instant) -> u64 {
        let is_new = |(at, lsn): &(Instant, u64)| *lsn < drained && now.duration_since(*at) >= STEP;
        if self.drained.back().is_none_or(is_new) && self.settled < drained {
            self.drained.push_back((now, drained));
        }
        while let Some((at, lsn)) = self.drained.front().copied() {
            if now.duration_since(at) < self.after {
                break;
            }
            self.settled = lsn;
            self.drained.pop_front();
        }
        self.settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drained_is_settled_some_seconds_later() {
        let (mut settled, begin) = (Settled::new(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(settled.of(0, at(0)), 0);
        assert_eq!(settled.of(5, at(10)), 0);
        assert_eq!(settled.of(9, at(50)), 0, "as fine as it is told apart");
        assert_eq!(settled.of(9, at(5_009)), 0);
        assert_eq!(settled.of(9, at(5_011)), 5);
        assert_eq!(settled.of(9, at(20_000)), 9);
        assert_eq!(settled.of(9, at(20_001)), 9);
    }
}
