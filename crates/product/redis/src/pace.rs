// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What walks over the table of connections takes as long as there are entries: a turn's part of it
//! is run again only when it has rested for some times as long.

/// So many times.
const RESTS: u64 = 10;

/// The pace of one such walk.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    next_ns: u64,
}

impl Pace {
    /// Whether it has rested.
    pub(crate) const fn may(&self, now: u64) -> bool {
        now >= self.next_ns
    }

    /// It ran from `began` to `ended`.
    pub(crate) const fn ran(&mut self, began: u64, ended: u64) {
        self.next_ns = ended + ended.saturating_sub(began) * RESTS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_takes_a_part_of_the_time_at_most() {
        let mut pace = Pace::default();
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
    }
}
