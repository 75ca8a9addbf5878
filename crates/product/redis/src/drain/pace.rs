// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much one batch takes, and when the next is due. Redis does nothing else while it executes a batch, so
//! a batch is as long as others may wait.
//!
//! Invariants:
//! 1. A batch aims at [`Pace::aim_ns`] of Redis by the cheapest of the last batches: what a busy Redis needs
//!    longer for is not the batch's doing, and smaller batches would only make it busier.
//! 2. A batch costs at least [`COST_MIN`], so that its fixed part stays small, and the aim grows twofold at most.
//!    While more than a batch waits it may have [`BEHIND`] times as much: who is held waits for all of that.
//! 3. While less than a batch waits, batches begin [`LOOK_NS`] apart, or half of that behind a large one.

use std::collections::VecDeque;

use super::cut::{KEY_COST, RECORDS_MAX};
use crate::clock::MS;

/// Between two batches while few write. Each costs Redis and the daemon some 30 us apiece, whatever is in it:
/// half of this made 20,000 writes a second a quarter dearer.
const LOOK_NS: u64 = MS;

/// The same behind a batch of so many records, whose fixed part is small: its own time is part of what the
/// last write has to wait for.
const MANY_LOOK_NS: u64 = MS / 2;
const MANY: usize = 100;

/// Fewest keys that a batch of enough may have: one MSET.
const COST_MIN: usize = 100 * KEY_COST;

/// What a batch costs may be so many times as much if more waits than one has: who is behind will be no later for
/// it, and each batch has a fixed part.
const BEHIND: usize = 4;

/// Batches of which the cheapest counts.
const REMEMBERED: usize = 16;

/// Size and time of batches.
#[derive(Debug)]
pub(crate) struct Pacing {
    aim_ns: u64,
    cost: usize,
    /// Nanoseconds for 1,000 of cost, of the last batches that were large enough to tell.
    prices: VecDeque<u64>,
    /// Records for 16 of cost, as the last batch had them.
    records: usize,
    began_ns: u64,
    /// Until the next one begins.
    apart_ns: u64,
}

impl Pacing {
    /// Batches of so long.
    pub(crate) const fn new(aim_ns: u64) -> Self {
        Self {
            aim_ns,
            cost: COST_MIN,
            prices: VecDeque::new(),
            records: 16 / KEY_COST,
            began_ns: 0,
            apart_ns: LOOK_NS,
        }
    }

    /// What the next batch may cost if so many records wait.
    pub(crate) fn most(&self, waiting: u64) -> usize {
        let full = self.needed() as u64;
        let times = (waiting / full.max(1)).clamp(1, BEHIND as u64);
        self.cost * times as usize
    }

    /// Records that should make a whole batch.
    const fn needed(&self) -> usize {
        self.cost * self.records / 16
    }

    /// When the next batch is due if so many records wait.
    pub(crate) fn due_ns(&self, waiting: u64) -> u64 {
        if waiting >= self.needed() as u64 {
            return self.began_ns;
        }
        self.began_ns + self.apart_ns
    }

    pub(crate) const fn began(&mut self, now_ns: u64) {
        self.began_ns = now_ns;
    }

    /// A batch with so many records of this cost is done.
    pub(crate) fn done(&mut self, records: usize, cost: usize, now_ns: u64) {
        if cost == 0 {
            return;
        }
        self.apart_ns = if records < MANY {
            LOOK_NS
        } else {
            MANY_LOOK_NS
        };
        let took = now_ns.saturating_sub(self.began_ns).max(1);
        let price = took.saturating_mul(1000) / cost as u64;
        if cost >= self.cost / 2 || records >= self.needed() {
            self.records = (records * 16 / cost).max(16 / KEY_COST);
        }
        let cheapest = self.prices.iter().min().copied();
        if cost < self.cost / 2 && cheapest.is_some_and(|cheapest| price >= cheapest) {
            return;
        }
        self.prices.push_back(price);
        if self.prices.len() > REMEMBERED {
            self.prices.pop_front();
        }
        let cheapest = self.prices.iter().min().copied().unwrap_or(price).max(1);
        let aim = usize::try_from(self.aim_ns.saturating_mul(1000) / cheapest);
        let twice = 2 * self.cost;
        self.cost = aim.unwrap_or(twice).min(twice).max(COST_MIN);
        self.cost = self.cost.min(RECORDS_MAX * KEY_COST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AIM: u64 = MS / 2;

    /// Batches that are always full, at this price for each key.
    fn full(pacing: &mut Pacing, count: usize, key_ns: u64) -> usize {
        for _ in 0..count {
            let cost = pacing.most(0);
            pacing.began(0);
            let keys = cost / KEY_COST;
            pacing.done(keys, cost, 20_000 + keys as u64 * key_ns);
        }
        pacing.most(0) / KEY_COST
    }

    #[test]
    fn a_batch_takes_as_long_as_it_may() {
        let mut pacing = Pacing::new(AIM);
        let keys = full(&mut pacing, 20, 2_000);
        assert!((220..=250).contains(&keys), "{keys}");
        let keys = full(&mut pacing, 20, 20_000);
        assert_eq!(keys, 100, "an MSET at least");
    }

    #[test]
    fn who_is_behind_takes_more_and_not_all_at_once() {
        let mut pacing = Pacing::new(AIM);
        let keys = full(&mut pacing, 20, 2_000);
        let one = pacing.most(0);
        for (waiting, times) in [(1, 1), (2 * keys - 1, 1), (2 * keys, 2), (100 * keys, 4)] {
            let most = pacing.most(waiting as u64);
            assert_eq!(most, times * one, "{waiting} of {keys}");
        }
    }

    #[test]
    fn a_redis_that_was_busy_for_a_while_gets_no_smaller_batches() {
        let mut pacing = Pacing::new(AIM);
        let before = full(&mut pacing, 20, 2_000);
        assert_eq!(full(&mut pacing, REMEMBERED - 1, 50_000), before);
    }

    #[test]
    fn small_batches_say_nothing_of_large_ones() {
        let mut pacing = Pacing::new(AIM);
        let before = full(&mut pacing, 20, 2_000);
        for _ in 0..100 {
            pacing.began(0);
            pacing.done(1, KEY_COST, 50_000);
        }
        assert_eq!(pacing.most(0) / KEY_COST, before);
    }

    #[test]
    fn a_batch_is_due_at_once_if_it_is_full_and_else_in_a_while() {
        let mut pacing = Pacing::new(AIM);
        pacing.began(7);
        assert_eq!(pacing.due_ns(10_000), 7);
        assert_eq!(pacing.due_ns(1), 7 + LOOK_NS);
        pacing.done(MANY, MANY * KEY_COST, 100_000);
        assert_eq!(pacing.due_ns(1), 7 + MANY_LOOK_NS);
        pacing.done(MANY - 1, MANY * KEY_COST, 100_000);
        assert_eq!(pacing.due_ns(1), 7 + LOOK_NS);
    }

    #[test]
    fn writes_of_one_key_make_batches_of_many_records() {
        let mut pacing = Pacing::new(AIM);
        for _ in 0..30 {
            pacing.began(0);
            pacing.done(10_000, KEY_COST * 100, 200_000);
        }
        let key = 10_000 / 100;
        let full = (pacing.most(0) / KEY_COST * key) as u64;
        assert_eq!(pacing.due_ns(full), 0);
        assert!(pacing.due_ns(full / 2) > 0, "half a batch waits for more");
    }
}
