// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which key is written, and with what: the same for records and for ordinary clients.

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};

use super::args::{DIGITS, DrainArgs};

/// Spreads ranks over the keys, so that popular ones do not lie side by side; odd.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Draws keys.
pub struct Keys {
    count: u32,
    zipf: Option<Zipf<f64>>,
    random: SmallRng,
}

impl Keys {
    /// For this run, by popularity or not.
    pub fn new(args: &DrainArgs, zipf: bool, seed: u64) -> Result<Self> {
        let skewed = || Zipf::new(f64::from(args.keys), args.theta).context("no such --theta");
        Ok(Self {
            count: args.keys,
            zipf: zipf.then(skewed).transpose()?,
            random: SmallRng::seed_from_u64(seed),
        })
    }

    /// The next one's number.
    pub fn draw(&mut self) -> u32 {
        match &self.zipf {
            None => self.random.random_range(0..self.count),
            Some(zipf) => {
                let rank = zipf.sample(&mut self.random) as u64;
                (rank.wrapping_mul(SPREAD) % u64::from(self.count)) as u32
            }
        }
    }
}

/// Puts a number's digits at the start.
pub fn put_digits(to: &mut [u8], mut number: u64) {
    for digit in to[..DIGITS as usize].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// The number at the start.
pub fn digits_of(from: &[u8]) -> Option<u64> {
    let digits = from.get(..DIGITS as usize)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_back() {
        let mut bytes = [b'v'; 20];
        put_digits(&mut bytes, 1_234_567);
        assert_eq!(&bytes, b"0000000001234567vvvv");
        assert_eq!(digits_of(&bytes), Some(1_234_567));
        assert_eq!(digits_of(&bytes[..15]), None);
    }
}
