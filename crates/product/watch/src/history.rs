// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last hour: all values of all metrics, looked at once in [`EVERY`].
//!
//! # Invariants
//! 1. Bounded: [`SAMPLES_MAX`] samples of [`SERIES_MAX`] values, some 3 MB at most. ERB has about 200
//!    series, which are 600 KB.
//! 2. A series keeps its place: names are only added, in the order in which they were seen.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

/// Between two samples: two points of a chart that is as wide as a screen.
pub const EVERY: Duration = Duration::from_secs(10);
/// Samples that are kept: an hour.
pub const SAMPLES_MAX: usize = 360;
/// Series that are kept. A new device adds some, and a command that had not come before; what is beyond is left out.
pub const SERIES_MAX: usize = 1024;

/// Values at one time, in the order of the names.
#[derive(Debug)]
struct Sample {
    at_ms: u64,
    values: Box<[f64]>,
}

/// Samples, the oldest first.
#[derive(Debug, Default)]
pub struct History {
    names: Vec<String>,
    places: HashMap<String, usize>,
    samples: VecDeque<Sample>,
}

impl History {
    /// Adds what was seen `at_ms` after the beginning; the oldest sample gives way.
    pub fn push(&mut self, at_ms: u64, found: Vec<(String, f64)>) {
        let mut values = vec![f64::NAN; self.names.len()];
        for (name, value) in found {
            let place = self.place(name);
            if let Some(place) = place {
                values.resize(values.len().max(place + 1), f64::NAN);
                values[place] = value;
            }
        }
        if self.samples.len() >= SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            at_ms,
            values: values.into_boxed_slice(),
        });
        debug_assert!(self.samples.len() <= SAMPLES_MAX && self.names.len() <= SERIES_MAX);
    }

    fn place(&mut self, name: String) -> Option<usize> {
        if let Some(place) = self.places.get(&name) {
            return Some(*place);
        }
        let place = self.names.len();
        if place >= SERIES_MAX {
            return None;
        }
        self.names.push(name.clone());
        self.places.insert(name, place);
        Some(place)
    }

    /// The names, and behind `since_ms` each sample's time with its values; `null`: not there.
    #[must_use]
    pub fn json(&self, run: &str, since_ms: u64) -> String {
        let names = serde_json::Value::from(self.names.clone());
        let run = serde_json::Value::from(run);
        let every_ms = EVERY.as_millis();
        let mut text =
            format!("{{\"run\":{run},\"every_ms\":{every_ms},\"names\":{names},\"samples\":[");
        let later = self.samples.iter().filter(|it| it.at_ms > since_ms);
        for (number, sample) in later.enumerate() {
            let comma = if number == 0 { "" } else { "," };
            // Only a writer can fail, and a String does not.
            let _ = write!(text, "{comma}[{}", sample.at_ms);
            for value in &sample.values {
                let _ = match value.is_finite() {
                    true => write!(text, ",{value}"),
                    false => write!(text, ",null"),
                };
            }
            text.push(']');
        }
        text + "]}\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<(String, f64)> {
        (0..count)
            .map(|number| (format!("n{number}"), 0.5))
            .collect()
    }

    #[test]
    fn the_oldest_gives_way_and_names_are_bounded() {
        let mut history = History::default();
        for at_ms in 1..=SAMPLES_MAX as u64 + 2 {
            history.push(at_ms, names(SERIES_MAX + 3));
        }
        assert_eq!(history.samples.len(), SAMPLES_MAX);
        assert_eq!(history.samples[0].at_ms, 3);
        assert_eq!(history.names.len(), SERIES_MAX);
        assert!(
            history
                .samples
                .iter()
                .all(|it| it.values.len() == SERIES_MAX)
        );
    }

    #[test]
    fn what_comes_late_or_goes_is_null_where_it_is_not() {
        let mut history = History::default();
        history.push(1, vec![("a".to_owned(), 1.0)]);
        history.push(2, vec![("b\"".to_owned(), 1e15), ("a".to_owned(), -0.25)]);
        history.push(3, vec![("b\"".to_owned(), f64::NAN)]);
        let json = |since| -> serde_json::Value {
            serde_json::from_str(&history.json("r", since)).expect("JSON")
        };
        let all = json(0);
        assert_eq!(all["names"], serde_json::json!(["a", "b\""]));
        let samples = [
            serde_json::json!([1, 1]),
            serde_json::json!([2, -0.25, 1_000_000_000_000_000_u64]),
            serde_json::json!([3, null, null]),
        ];
        assert_eq!(all["samples"], serde_json::json!(samples));
        assert_eq!(json(2)["samples"], serde_json::json!([samples[2]]));
        assert_eq!(json(3)["samples"], serde_json::json!([]));
    }
}
