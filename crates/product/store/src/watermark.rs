// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The watermark: the version up to which everything is durable, on every shard.
//!
//! Invariants:
//! 1. Whoever is about to take a version first publishes a bound below it, and raises that only once the version is
//!    durable. Who has nothing that is not durable holds nobody back.
//! 2. The clock is read before the bounds. So a version that was given before is either durable or has a bound below
//!    it that is seen: an idle shard that wakes up meanwhile takes a version above what was read.
//! 3. It never goes back: a shard that wakes up slowly may publish a bound below what was seen, but what was durable
//!    stays so.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::pacing::SHARE_MAX;
use crate::space::Space;
use crate::version::{Clock, Version};

/// What all shards and the control log share.
#[derive(Debug)]
pub struct Shared {
    clock: Clock,
    /// Of each shard, then of the control log: everything of it up to here is durable.
    bounds: Vec<AtomicU64>,
    /// Of each shard: batches of its log below it are durable.
    durable_lsns: Vec<AtomicU64>,
    /// The highest watermark that anybody has seen.
    seen: AtomicU64,
    /// Recovery has come to its end, and that is durable.
    is_open: AtomicBool,
    /// How much of the store is free.
    space: AtomicU8,
    /// Thousandths of what collecting wins that users may write while space is short.
    writers_share: AtomicU32,
    /// By shard, a bit of each: it makes room.
    making_room: AtomicU64,
}

impl Shared {
    /// Of a store with so many shards. Nothing is under way.
    #[must_use]
    pub fn new(clock: Clock, shards: u16) -> Self {
        let bounds = (0..=shards).map(|_| AtomicU64::new(u64::MAX));
        Self {
            clock,
            bounds: bounds.collect(),
            durable_lsns: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            seen: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            space: AtomicU8::new(Space::Plenty as u8),
            writers_share: AtomicU32::new(SHARE_MAX),
            making_room: AtomicU64::new(0),
        }
    }

    /// How much of the store is free. It may be some messages old.
    #[must_use]
    pub fn space(&self) -> Space {
        Space::from_byte(self.space.load(Ordering::Relaxed))
    }

    pub(crate) fn set_space(&self, space: Space, writers_share: u32) {
        self.space.store(space as u8, Ordering::Relaxed);
        self.writers_share.store(writers_share, Ordering::Relaxed);
    }

    /// Thousandths of what collecting wins that users may write while space is short.
    pub(crate) fn writers_share(&self) -> u32 {
        self.writers_share.load(Ordering::Relaxed)
    }

    /// A shard makes room, or does not.
    pub(crate) fn set_makes_room(&self, shard: u16, makes_room: bool) {
        let bit = 1 << shard;
        if makes_room {
            self.making_room.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.making_room.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether another shard makes room. It may be some messages old.
    pub(crate) fn others_make_room(&self, shard: u16) -> bool {
        self.making_room.load(Ordering::Relaxed) & !(1 << shard) != 0
    }

    /// The one clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The bound of the control log.
    #[must_use]
    pub fn control(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Before a version is taken: all that is given from now on is not durable. A bound that is there stays.
    pub fn hold(&self, who: usize) {
        let bound = &self.bounds[who];
        if bound.load(Ordering::SeqCst) == u64::MAX {
            bound.store(self.clock.last().number(), Ordering::SeqCst);
        }
    }

    /// Everything up to this version is durable; none: everything.
    pub fn publish(&self, who: usize, up_to: Option<Version>) {
        let bound = up_to.map_or(u64::MAX, Version::number);
        self.bounds[who].store(bound, Ordering::SeqCst);
    }

    /// Batches of a shard's log below this one are durable.
    pub(crate) fn publish_lsn(&self, shard: u16, lsn: u64) {
        self.durable_lsns[usize::from(shard)].store(lsn, Ordering::Relaxed);
    }

    /// By shard: batches of its log below it are durable.
    pub(crate) fn durable_lsns(&self) -> impl Iterator<Item = u64> + '_ {
        let lsns = self.durable_lsns.iter();
        lsns.map(|lsn| lsn.load(Ordering::Relaxed))
    }

    /// The version up to which everything is durable.
    #[must_use]
    pub fn watermark(&self) -> Version {
        let last = self.clock.last();
        let bounds = self.bounds.iter();
        let bounds = bounds.map(|bound| Version::new(bound.load(Ordering::SeqCst)));
        let found = bounds.fold(last, Version::min).number();
        let before = self.seen.fetch_max(found, Ordering::SeqCst);
        Version::new(before.max(found))
    }

    /// Whether anything may be answered.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(shards: u16) -> Shared {
        let clock = Clock::behind(Version::ZERO);
        clock.raise(Version::MAX);
        Shared::new(clock, shards)
    }

    #[test]
    fn who_is_idle_holds_nobody_back_and_a_bound_holds_all() {
        let shared = shared(2);
        let first = shared.clock().next(10).unwrap();
        assert_eq!(shared.watermark(), first);
        shared.hold(0);
        let held = shared.clock().next(10).unwrap();
        shared.hold(1);
        let second = shared.clock().next(10).unwrap();
        shared.hold(1);
        assert_eq!(shared.watermark(), first);
        shared.publish(1, None);
        assert_eq!(shared.watermark(), first);
        shared.publish(0, Some(held));
        assert_eq!(shared.watermark(), held);
        shared.publish(0, None);
        assert_eq!(shared.watermark(), second);
    }

    /// Threads that take versions, make them durable, and look: the watermark never passes what is not.
    #[test]
    fn the_watermark_never_passes_what_is_not_durable() {
        const TAKEN: usize = 20_000;
        let shared = shared(3);
        // By shard: the version that is under way; 0: none is.
        let under_way: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let takers: Vec<_> = (0..3)
                .map(|shard| {
                    let (shared, under_way) = (&shared, &under_way);
                    scope.spawn(move || {
                        for _ in 0..TAKEN {
                            shared.hold(shard);
                            let version = shared.clock().next(7).unwrap().number();
                            under_way[shard].store(version, Ordering::SeqCst);
                            std::hint::spin_loop();
                            under_way[shard].store(0, Ordering::SeqCst);
                            shared.publish(shard, None);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut last = Version::ZERO;
                while !is_over.load(Ordering::SeqCst) {
                    // What is under way now was not durable when the watermark is read before.
                    let watermark = shared.watermark();
                    assert!(watermark >= last);
                    last = watermark;
                    for version in &under_way {
                        let version = version.load(Ordering::SeqCst);
                        assert!(version == 0 || version > watermark.number());
                    }
                }
            });
            for taker in takers {
                taker.join().unwrap();
            }
            is_over.store(true, Ordering::SeqCst);
        });
    }
}
