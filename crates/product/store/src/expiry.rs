// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When values expire: by the place of the put that said so. Versions that share the place share that.
//!
//! Buckets of a hash are split one by one as there are more, so no call takes time that grows with their number, but
//! for a doubling of the list of buckets.
//!
//! Invariants:
//! 1. A place is in the bucket that its hash names: `level` bits of it, and one more below `split`.
//! 2. Memory is at most [`EXPIRY_BYTES_BUDGET`] for each. A test holds it.

/// Memory for each expiry.
pub const EXPIRY_BYTES_BUDGET: usize = 24;
/// As many in a bucket, on the average, make it be split.
const BUCKET: usize = 64;
/// A bucket grows, and keeps room, by as many.
const STEP: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expiry {
    address: u64,
    at_ms: u64,
}

/// Expiries by address.
#[derive(Clone, Debug)]
pub(crate) struct Expiries {
    buckets: Vec<Vec<Expiry>>,
    level: u32,
    split: usize,
    count: usize,
}

impl Default for Expiries {
    fn default() -> Self {
        Self {
            buckets: vec![Vec::new()],
            level: 0,
            split: 0,
            count: 0,
        }
    }
}

impl Expiries {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn bucket_of(&self, address: u64) -> usize {
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let hash = ((address / 8).wrapping_mul(MULTIPLIER) >> 32) as usize;
        let bucket = hash & ((1 << self.level) - 1);
        if bucket < self.split {
            return hash & ((2 << self.level) - 1);
        }
        bucket
    }

    /// Milliseconds since 1970. None: there is no expiry.
    pub(crate) fn get(&self, address: u64) -> Option<u64> {
        let bucket = &self.buckets[self.bucket_of(address)];
        let found = bucket.iter().find(|it| it.address == address);
        found.map(|it| it.at_ms)
    }

    pub(crate) fn insert(&mut self, address: u64, at_ms: u64) {
        self.remove(address);
        let bucket = self.bucket_of(address);
        push(&mut self.buckets[bucket], Expiry { address, at_ms });
        self.count += 1;
        if self.count > BUCKET * self.buckets.len() {
            self.split_one();
        }
    }

    fn split_one(&mut self) {
        let all = std::mem::take(&mut self.buckets[self.split]);
        self.buckets.push(Vec::new());
        self.split += 1;
        if self.split == 1 << self.level {
            (self.level, self.split) = (self.level + 1, 0);
        }
        for one in all {
            let bucket = self.bucket_of(one.address);
            push(&mut self.buckets[bucket], one);
        }
    }

    pub(crate) fn remove(&mut self, address: u64) {
        let bucket = self.bucket_of(address);
        let bucket = &mut self.buckets[bucket];
        if let Some(at) = bucket.iter().position(|it| it.address == address) {
            bucket.swap_remove(at);
            self.count -= 1;
            if bucket.capacity() > bucket.len() + 2 * STEP {
                bucket.shrink_to(bucket.len() + STEP);
            }
        }
    }

    /// Memory that it has allocated, but for the allocator's own.
    pub(crate) fn bytes(&self) -> usize {
        let buckets = self.buckets.iter().map(Vec::capacity);
        buckets.sum::<usize>() * size_of::<Expiry>()
            + self.buckets.capacity() * size_of::<Vec<Expiry>>()
    }
}

fn push(bucket: &mut Vec<Expiry>, one: Expiry) {
    if bucket.len() == bucket.capacity() {
        bucket.reserve_exact(STEP);
    }
    bucket.push(one);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_has_what_was_said(steps in prop::collection::vec((0u64..400, any::<u64>(), 0u8..3), 0..900)) {
            let mut expiries = Expiries::default();
            let mut wanted = BTreeMap::new();
            for (address, at_ms, what) in steps {
                if what == 0 {
                    expiries.remove(address * 8);
                    wanted.remove(&(address * 8));
                } else {
                    expiries.insert(address * 8, at_ms);
                    wanted.insert(address * 8, at_ms);
                }
                prop_assert_eq!(expiries.len(), wanted.len());
            }
            for address in (0..400).map(|it| it * 8) {
                prop_assert_eq!(expiries.get(address), wanted.get(&address).copied());
            }
        }
    }

    #[test]
    fn an_expiry_takes_24_bytes() {
        let mut expiries = Expiries::default();
        for number in 1..300_000u64 {
            expiries.insert(number * 104, number);
            if number > 10_000 && number % 997 == 0 {
                // The allocator's own, for each bucket.
                let bytes = expiries.bytes() + 16 * expiries.buckets.len();
                assert!(bytes <= expiries.len() * EXPIRY_BYTES_BUDGET, "{number}");
            }
        }
        for number in 1..300_000u64 {
            if number % 4 > 0 {
                expiries.remove(number * 104);
            }
        }
        assert_eq!(expiries.get(104 * 8), Some(8));
        assert!(
            expiries
                .buckets
                .iter()
                .all(|it| it.capacity() <= it.len() + 2 * STEP)
        );
    }
}
