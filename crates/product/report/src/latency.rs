// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long requests take, by their way, and what each processor did.

use serde::{Deserialize, Serialize};

/// How long requests of one way took, of those that were timed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// `hit`, `up` or `held`.
    pub path: String,
    /// From when to when.
    pub text: String,
    /// So many were timed since the data path was loaded.
    pub samples: u64,
    /// What they took together, ns.
    pub sum_ns: u64,
    /// Half of them took no longer, ns; none before the first.
    pub p50_ns: Option<u64>,
    /// 99 of 100 took no longer, ns.
    pub p99_ns: Option<u64>,
    /// How many took how long: buckets that are not empty, the shortest first.
    pub buckets: Vec<LatencyBucket>,
}

/// Those that took from so long to less than so long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// Its begin, ns.
    pub from_ns: u64,
    /// Its end, ns; none: there is none.
    pub below_ns: Option<u64>,
    /// How many.
    pub count: u64,
}

impl LatencyReport {
    /// The time that this share of all did not exceed, as exact as buckets are; none if there are none.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a guess within a bucket"
    )]
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let all: u64 = self.buckets.iter().map(|bucket| bucket.count).sum();
        let wanted = (share * all as f64).max(1.0);
        let mut below = 0.0;
        for bucket in &self.buckets {
            let count = bucket.count as f64;
            if below + count >= wanted {
                let wide = bucket.below_ns.unwrap_or(bucket.from_ns) - bucket.from_ns;
                return Some(bucket.from_ns + (wide as f64 * (wanted - below) / count) as u64);
            }
            below += count;
        }
        None
    }

    /// What came since an earlier look; all of it, if counting began anew.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut now = self.clone();
        if before.samples > self.samples {
            return now;
        }
        now.samples -= before.samples;
        now.sum_ns = now.sum_ns.saturating_sub(before.sum_ns);
        for bucket in &mut now.buckets {
            let was = before.buckets.iter();
            let was = was.filter(|was| was.from_ns == bucket.from_ns);
            bucket.count = bucket
                .count
                .saturating_sub(was.map(|was| was.count).sum::<u64>());
        }
        now.buckets.retain(|bucket| bucket.count > 0);
        now.with_quantiles()
    }

    /// The same, with what its buckets say of half of them and of 99 of 100.
    #[must_use]
    pub fn with_quantiles(self) -> Self {
        Self {
            p50_ns: self.quantile_ns(0.5),
            p99_ns: self.quantile_ns(0.99),
            ..self
        }
    }
}

/// What one processor did, in packets, since the data path was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorReport {
    /// Its number.
    pub cpu: u32,
    /// Answered from the cache.
    pub answered: u64,
    /// Passed up to Redis.
    pub up: u64,
    /// The kernel's, on their way out.
    pub down: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(counts: &[(u64, u64, u64)]) -> LatencyReport {
        let buckets = counts
            .iter()
            .map(|&(from_ns, below_ns, count)| LatencyBucket {
                from_ns,
                below_ns: Some(below_ns).filter(|below| *below > 0),
                count,
            });
        LatencyReport {
            samples: counts.iter().map(|(_, _, count)| count).sum(),
            buckets: buckets.collect(),
            ..LatencyReport::default()
        }
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let all = report(&[(100, 200, 98), (1_000, 2_000, 2)]);
        assert_eq!(all.quantile_ns(0.49), Some(150));
        assert_eq!(all.quantile_ns(0.98), Some(200));
        assert_eq!(all.quantile_ns(0.99), Some(1_500));
        assert_eq!(all.quantile_ns(1.0), Some(2_000));
        assert_eq!(report(&[(64, 0, 3)]).quantile_ns(0.5), Some(64), "no end");
        assert_eq!(report(&[]).quantile_ns(0.5), None);
    }

    #[test]
    fn what_came_since_is_the_difference_and_all_if_it_began_anew() {
        let (before, now) = (report(&[(1, 2, 5)]), report(&[(1, 2, 5), (4, 5, 1)]));
        assert_eq!(now.since(&before).buckets, report(&[(4, 5, 1)]).buckets);
        assert_eq!(now.since(&before).p99_ns, Some(5));
        assert_eq!(before.since(&now), before);
        assert_eq!(now.since(&now).p50_ns, None);
    }
}
