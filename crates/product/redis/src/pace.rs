// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What takes long when there is much of it, and takes a processor from others, is run again only when
//! it has rested for some times as long.

/// The pace of one such thing.
#[derive(Debug)]
pub(crate) struct Pace {
    rests: u64,
    rest_max_ns: u64,
    next_ns: u64,
}

/// That of a walk over a table or a list of Redis's.
impl Default for Pace {
    fn default() -> Self {
        Self::new(10, u64::MAX)
    }
}

impl Pace {
    /// It rests so many times as long as it ran, and never longer than this.
    pub(crate) const fn new(rests: u64, rest_max_ns: u64) -> Self {
        Self {
            rests,
            rest_max_ns,
            next_ns: 0,
        }
    }

    /// When it has rested.
    pub(crate) const fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Whether it has rested.
    pub(crate) const fn may(&self, now: u64) -> bool {
        now >= self.next_ns
    }

    /// It ran from `began` to `ended`.
    pub(crate) const fn ran(&mut self, began: u64, ended: u64) {
        let rest = ended.saturating_sub(began).saturating_mul(self.rests);
        let rest = if rest > self.rest_max_ns {
            self.rest_max_ns
        } else {
            rest
        };
        self.next_ns = ended + rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_takes_a_part_of_the_time_at_most() {
        let mut pace = Pace::new(10, u64::MAX);
        assert!(pace.may(0));
        let (mut now, mut walking) = (0, 0);
        while now < 100_000 {
            if pace.may(now) {
                pace.ran(now, now + 300);
                walking += 300;
                now += 300;
            } else {
                now += 50;
            }
        }
        assert!((8_000..=9_600).contains(&walking), "{walking}");
        pace.ran(now, now);
        assert!(pace.may(now), "what takes no time needs no rest");
        let mut pace = Pace::new(3, 50);
        pace.ran(now, now + 100);
        assert_eq!(pace.next_ns(), now + 150, "a rest has an end");
    }
}
