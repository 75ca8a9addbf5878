// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which key an operation is for.
//!
//! The distributions are those of YCSB (Cooper et al., "Benchmarking Cloud Serving Systems with
//! YCSB", SoCC 2010). YCSB draws zipfian ranks as Gray et al. do ("Quickly Generating Billion-Record
//! Synthetic Databases", SIGMOD 1994): exactly for the first two ranks, nearly for the others. Here
//! they are drawn by rejection, exactly for all and for any exponent, also below 1.

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand::distr::Distribution as _;
use rand_distr::Zipf;

use super::args::{Distribution, WorkloadArgs};

/// Ranks of the scrambled zipfian, whatever the number of keys, as in YCSB: a hot key stays as hot when
/// keys are added.
const RANKS: f64 = 1e10;
/// A prime above any number of keys, so that its multiples meet every key once.
const SPREAD: u64 = 2_654_435_761;

/// How keys are drawn.
#[derive(Debug, Clone, Copy)]
pub enum Draw {
    /// All alike.
    Uniform,
    /// A rank of [`RANKS`], hashed to a key.
    Zipf(Zipf<f64>),
    /// A rank of a key, so that no two share one.
    ZipfKeys(Zipf<f64>),
    /// A rank, counted from the newest key.
    Latest(Zipf<f64>),
    /// So many keys get this share of the requests.
    Hotspot(u32, f64),
}

impl Draw {
    /// What the options say, of so many keys.
    pub fn of(distribution: Distribution, args: &WorkloadArgs, keys: u32) -> Result<Self> {
        let zipf = |ranks| Zipf::new(ranks, args.theta).context("no such --theta");
        Ok(match distribution {
            Distribution::Uniform => Self::Uniform,
            Distribution::Zipf => Self::Zipf(zipf(RANKS)?),
            Distribution::ZipfKeys => Self::ZipfKeys(zipf(keys.into())?),
            Distribution::Latest => Self::Latest(zipf(keys.into())?),
            Distribution::Hotspot => {
                let hot = (f64::from(keys) * args.hot_keys).round() as u32;
                ensure!(
                    (1..keys).contains(&hot),
                    "--hot-keys {} of {keys} keys leaves none in one of the two parts",
                    args.hot_keys
                );
                Self::Hotspot(hot, args.hot_requests)
            }
        })
    }

    /// Each rank a key of its own.
    pub fn zipf_keys(theta: f64, keys: u32) -> Result<Self> {
        let ranks = Zipf::new(keys.into(), theta).context("no such exponent")?;
        Ok(Self::ZipfKeys(ranks))
    }

    /// A key. `loaded` were there at the begin, `now` are there: only [`Draw::Latest`] draws of those
    /// that were inserted since.
    pub fn key(&self, random: &mut impl Rng, loaded: u32, now: u32) -> u32 {
        match self {
            Self::Uniform => random.random_range(0..loaded),
            Self::Zipf(ranks) => {
                let rank = ranks.sample(random) as u64 - 1;
                (scramble(rank) % u64::from(loaded)) as u32
            }
            // Rounding may give one rank more than there are.
            Self::ZipfKeys(ranks) => {
                let rank = (ranks.sample(random) as u32).min(loaded) - 1;
                (u64::from(rank) * SPREAD % u64::from(loaded)) as u32
            }
            Self::Latest(ranks) => now - (ranks.sample(random) as u32).min(loaded),
            Self::Hotspot(hot, share) => {
                if random.random_bool(*share) {
                    random.random_range(0..*hot)
                } else {
                    random.random_range(*hot..loaded)
                }
            }
        }
    }
}

/// FNV-1a of the number's bytes, as YCSB spreads its hot keys.
fn scramble(number: u64) -> u64 {
    let hash = number
        .to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    // YCSB takes the absolute value of a signed number.
    (hash as i64).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const DRAWS: u32 = 1_000_000;
    const KEYS: u32 = 1000;

    fn zipf(ranks: f64, theta: f64) -> Zipf<f64> {
        Zipf::new(ranks, theta).unwrap()
    }

    /// Shares of the keys after many draws.
    fn shares(draw: &Draw, now: u32) -> Vec<f64> {
        let mut random = StdRng::seed_from_u64(7);
        let mut counts = vec![0u32; now as usize];
        for _ in 0..DRAWS {
            counts[draw.key(&mut random, KEYS, now) as usize] += 1;
        }
        let share = |count: u32| f64::from(count) / f64::from(DRAWS);
        counts.into_iter().map(share).collect()
    }

    /// Six standard deviations of the share of a key that has this one: more is no chance.
    fn assert_share(found: f64, wanted: f64, what: &str) {
        let deviation = (wanted * (1.0 - wanted) / f64::from(DRAWS)).sqrt();
        let far = (found - wanted).abs() / deviation;
        assert!(far < 6.0, "{what}: {found} instead of {wanted}");
    }

    /// The sum of the ranks' weights up to `ranks`: added one by one, and behind that by Euler and
    /// Maclaurin's formula.
    fn zeta(ranks: f64, theta: f64) -> f64 {
        let exact = ranks.min(1000.0);
        let sum: f64 = (1..=exact as u32)
            .map(|rank| f64::from(rank).powf(-theta))
            .sum();
        let (low, high) = (exact.powf(-theta), ranks.powf(-theta));
        let integral = (ranks * high - exact * low) / (1.0 - theta);
        sum + integral + (high - low) / 2.0
    }

    #[test]
    fn the_weights_of_ycsb_s_ranks_add_up_to_its_constant() {
        assert!((zeta(RANKS, 0.99) - 26.469_028_201_783_02).abs() < 1e-6);
        assert!((zeta(3.0, 0.5) - (1.0 + 0.5f64.sqrt() + (1.0 / 3.0f64).sqrt())).abs() < 1e-12);
    }

    #[test]
    fn latest_is_zipfian_from_the_newest_key_for_exponents_below_and_above_one() {
        for theta in [0.5, 0.8, 0.99, 1.2] {
            let draw = Draw::Latest(zipf(KEYS.into(), theta));
            let found = shares(&draw, KEYS + 100);
            assert!(
                found[..100].iter().all(|&share| share == 0.0),
                "older than the ranks reach"
            );
            for rank in [1, 2, 3, 10, 100, 1000] {
                let wanted = f64::from(rank).powf(-theta) / zeta(KEYS.into(), theta);
                let key = KEYS + 100 - rank;
                assert_share(
                    found[key as usize],
                    wanted,
                    &format!("{theta}, rank {rank}"),
                );
            }
        }
    }

    #[test]
    fn zipf_of_keys_has_a_key_for_each_rank() {
        let found = shares(&Draw::ZipfKeys(zipf(KEYS.into(), 0.99)), KEYS);
        for rank in [1u32, 2, 3, 10, 100, 1000] {
            let wanted = f64::from(rank).powf(-0.99) / zeta(KEYS.into(), 0.99);
            let key = (u64::from(rank) - 1) * SPREAD % u64::from(KEYS);
            assert_share(found[key as usize], wanted, &format!("rank {rank}"));
        }
        assert!(found.iter().all(|&share| share > 0.0), "each has a rank");
    }

    #[test]
    fn zipf_spreads_the_shares_of_ycsb_over_all_keys() {
        let draw = Draw::Zipf(zipf(RANKS, 0.99));
        let found = shares(&draw, KEYS);
        // Each key also gets its part of the many ranks that hardly count.
        let few = 2000;
        let zeta = zeta(RANKS, 0.99);
        let weight = |rank: u32| f64::from(rank).powf(-0.99) / zeta;
        let rest = 1.0 - (1..=few).map(weight).sum::<f64>();
        let mut wanted = vec![rest / f64::from(KEYS); KEYS as usize];
        for rank in 1..=few {
            wanted[(scramble(u64::from(rank) - 1) % u64::from(KEYS)) as usize] += weight(rank);
        }
        let hot: Vec<u64> = (0..3)
            .map(|rank| scramble(rank) % u64::from(KEYS))
            .collect();
        for key in hot {
            let (found, wanted) = (found[key as usize], wanted[key as usize]);
            // The rest is not spread quite evenly.
            assert!(
                (found / wanted - 1.0).abs() < 0.03,
                "{key}: {found}, {wanted}"
            );
        }
        let hottest = found.iter().copied().fold(0.0, f64::max);
        assert!(
            (0.037..0.042).contains(&hottest),
            "1 of 26.47, and a bit: {hottest}"
        );
        assert!(
            found.iter().all(|&share| share > 0.0),
            "every key is asked for"
        );
    }

    #[test]
    fn uniform_and_hotspot_have_their_shares() {
        for share in shares(&Draw::Uniform, KEYS) {
            assert_share(share, 1.0 / f64::from(KEYS), "uniform");
        }
        let found = shares(&Draw::Hotspot(200, 0.8), KEYS);
        assert_share(found[..200].iter().sum(), 0.8, "hot");
        assert_share(found[7], 0.8 / 200.0, "a hot one");
        assert_share(found[200], 0.2 / 800.0, "a cold one");
    }

    #[test]
    fn scrambling_is_that_of_ycsb() {
        // FNV-1a of eight zero bytes, which is negative as a signed number.
        assert_eq!(scramble(0), 0xa8c7_f832_281a_39c5_u64.wrapping_neg());
        let distinct: std::collections::HashSet<u64> = (0..10_000).map(scramble).collect();
        assert_eq!(distinct.len(), 10_000);
    }
}
