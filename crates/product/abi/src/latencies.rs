// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histograms of latencies: which times a bucket has, as `latency_bucket()` of bpf/splice/latency.h says it.

use crate::{
    LATENCY_BUCKETS, LATENCY_LEAST_LOG2, LATENCY_MOST_LOG2, LATENCY_STEPS_LOG2, latency,
    latency_path,
};

/// One row of `latency.def`; its index in [`LATENCIES`](crate::LATENCIES) is its `enum latency_path` value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyPath {
    /// Its name.
    pub name: &'static str,
    /// From when to when.
    pub text: &'static str,
}

/// The bucket of a time.
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    if ns >> LATENCY_LEAST_LOG2 == 0 {
        return 0;
    }
    let log = ns.ilog2();
    if log >= LATENCY_MOST_LOG2 {
        return LATENCY_BUCKETS as usize - 1;
    }
    let step = (ns >> (log - LATENCY_STEPS_LOG2)) & ((1 << LATENCY_STEPS_LOG2) - 1);
    1 + ((log - LATENCY_LEAST_LOG2) << LATENCY_STEPS_LOG2) as usize + step as usize
}

/// The least time of a bucket.
///
/// # Panics
/// If there is no such bucket.
#[must_use]
pub fn bucket_starts_ns(bucket: usize) -> u64 {
    assert!(bucket < LATENCY_BUCKETS as usize, "there is such a bucket");
    let Some(behind) = bucket.checked_sub(1) else {
        return 0;
    };
    let (log, steps) = (behind >> LATENCY_STEPS_LOG2, 1 << LATENCY_STEPS_LOG2);
    let step = behind as u64 % steps;
    (steps + step) << (log as u32 + LATENCY_LEAST_LOG2 - LATENCY_STEPS_LOG2)
}

impl latency {
    /// The sum over all CPUs of what `erb_latency` holds; what is not whole is left out.
    #[must_use]
    pub fn of_cpus(values: &[u8]) -> Self {
        let mut all = Self::default();
        for cpu in values.chunks_exact(size_of::<Self>()) {
            let words = |at: usize| {
                let bytes = cpu[at..].chunks_exact(size_of::<u64>());
                bytes.map(|bytes| {
                    bytes
                        .first_chunk()
                        .map_or(0, |word| u64::from_ne_bytes(*word))
                })
            };
            let sums = words(std::mem::offset_of!(Self, sum_ns));
            for (to, from) in all.sum_ns.iter_mut().zip(sums) {
                *to = to.wrapping_add(from);
            }
            let counts = words(std::mem::offset_of!(Self, counts));
            for (to, from) in all.counts.iter_mut().flatten().zip(counts) {
                *to = to.wrapping_add(from);
            }
        }
        all
    }

    /// How many were counted of this path.
    #[must_use]
    pub fn samples(&self, path: latency_path) -> u64 {
        self.counts[path as usize].iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LATENCIES, LATENCY_HELD, LATENCY_HIT, LATENCY_MAX, LATENCY_UP};

    #[test]
    fn each_bucket_begins_where_the_one_before_it_ends() {
        assert_eq!(LATENCIES.len(), LATENCY_MAX as usize);
        assert_eq!(LATENCIES[LATENCY_HELD as usize].name, "held");
        for bucket in 1..LATENCY_BUCKETS as usize {
            let start = bucket_starts_ns(bucket);
            assert_eq!(bucket_of(start), bucket, "{start}");
            assert_eq!(bucket_of(start - 1), bucket - 1, "{start}");
        }
        assert_eq!(
            (bucket_of(0), bucket_of(63), bucket_of(64), bucket_of(80)),
            (0, 0, 1, 2)
        );
        assert_eq!(bucket_of(u64::MAX), LATENCY_BUCKETS as usize - 1);
        assert_eq!(
            bucket_starts_ns(LATENCY_BUCKETS as usize - 1),
            1 << LATENCY_MOST_LOG2
        );
    }

    #[test]
    fn processors_are_summed_and_what_is_cut_off_is_left_out() {
        let mut one = latency::default();
        one.counts[LATENCY_UP as usize][7] = 3;
        one.sum_ns[LATENCY_HELD as usize] = 9;
        // SAFETY: a struct of numbers without padding, seen as its bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const one).cast::<u8>(), size_of::<latency>())
        };
        let values = [bytes, bytes, &bytes[..9]].concat();
        let all = latency::of_cpus(&values);
        assert_eq!(all.counts[LATENCY_UP as usize][7], 6);
        assert_eq!(all.sum_ns, [0, 0, 18]);
        assert_eq!((all.samples(LATENCY_UP), all.samples(LATENCY_HIT)), (6, 0));
    }
}
