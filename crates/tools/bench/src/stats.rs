// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Medians and spread of runs.

use serde::Serialize;

/// Median, smallest and largest of some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Median; the mean of the two middle ones if their number is even.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// `None` if there are no numbers.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Some(Self { median, min, max })
    }
}

/// Median and quartiles of some numbers: one number far off moves none of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quartiles {
    /// Median.
    pub median: f64,
    /// A quarter of the numbers is less.
    pub low: f64,
    /// A quarter is more.
    pub high: f64,
}

impl Quartiles {
    /// Between two numbers in proportion; `None` if there are none.
    #[allow(clippy::cast_precision_loss, reason = "numbers of runs")]
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |quarter: usize| {
            let below = last * quarter / 4;
            let part = (last * quarter % 4) as f64 / 4.0;
            sorted[below] + part * (sorted[last.min(below + 1)] - sorted[below])
        };
        Some(Self {
            median: at(2),
            low: at(1),
            high: at(3),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_even_one_none() {
        let spread = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            spread,
            Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            }
        );
        assert!((Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median - 2.5).abs() < 1e-12);
        assert!((Spread::of([7.0]).unwrap().median - 7.0).abs() < 1e-12);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn quartiles_lie_between_numbers_in_proportion() {
        let of = |numbers: &[f64]| {
            let it = Quartiles::of(numbers.iter().copied()).unwrap();
            [it.low, it.median, it.high]
        };
        assert_eq!(of(&[7.0]), [7.0; 3]);
        assert_eq!(of(&[5.0, 1.0, 4.0, 2.0, 3.0]), [2.0, 3.0, 4.0]);
        assert_eq!(of(&[1.0, 2.0, 3.0, 4.0]), [1.75, 2.5, 3.25]);
        assert_eq!(of(&[1.0, 1.0, 1.0, 1.0, 1e9]), [1.0; 3]);
        assert_eq!(Quartiles::of([]), None);
    }
}
