// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Medians and spread of a few runs.

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
}
