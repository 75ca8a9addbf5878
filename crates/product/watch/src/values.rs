// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values of a metric in a status, by what [`declared`](crate::declared) says.

use serde_json::Value;

use crate::declared::{BOUNDS_LOG2, Kind, Metric, Place};

/// Labels with their values.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// A value, exact where it is a whole number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Whole(u64),
    Real(f64),
}

impl Number {
    /// A number or a yes or no, which is 1 or 0.
    fn of(value: &Value) -> Option<Self> {
        let whole = value.as_u64().or(value.as_bool().map(u64::from));
        whole
            .map(Self::Whole)
            .or_else(|| value.as_f64().map(Self::Real))
    }

    /// For pictures.
    #[allow(
        clippy::cast_precision_loss,
        reason = "beyond 2^53 a picture is as good"
    )]
    pub(crate) const fn rounded(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        }
    }
}

fn word(row: &Value, at: &str) -> String {
    match row.pointer(at) {
        Some(Value::String(word)) => word.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn words(row: &Value, labels: &[(&'static str, &'static str)]) -> Labels {
    let label = |(label, at): &(&'static str, &str)| (*label, word(row, at));
    labels.iter().map(label).collect()
}

fn rows<'a>(status: &'a Value, at: &str) -> impl Iterator<Item = &'a Value> {
    let list = status.pointer(at).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// Its values, each with its labels; none of what is not there, and none of words.
pub(crate) fn values(metric: &Metric, status: &Value) -> Vec<(Labels, Number)> {
    let there = |row: &Value, at: &str| row.pointer(at).and_then(Number::of);
    let one = |found: Option<Number>| found.into_iter().map(|it| (Labels::new(), it)).collect();
    match metric.from {
        Place::At(at) => one(there(status, at)),
        Place::Thousandths(at) => {
            let found = there(status, at);
            one(found.map(|it| Number::Real(it.rounded() / 1_000.0)))
        }
        Place::Each { label, of } => {
            let each = of.iter().filter_map(|(name, at)| {
                Some((vec![(label, (*name).to_owned())], there(status, at)?))
            });
            each.collect()
        }
        Place::Members { at, label } => {
            let members = status.pointer(at).and_then(Value::as_object);
            let each = members.into_iter().flatten().filter_map(|(name, value)| {
                Some((vec![(label, name.clone())], Number::of(value)?))
            });
            each.collect()
        }
        Place::Word { at, label, of } => {
            let found = word(status, at);
            let each = of.iter().map(|state| {
                let is = Number::Whole(u64::from(found == *state));
                (vec![(label, (*state).to_owned())], is)
            });
            each.collect()
        }
        Place::Rows { at, labels, value } => rows(status, at)
            .filter_map(|row| Some((words(row, labels), there(row, value)?)))
            .collect(),
        Place::RowsOfEach { at, row, label, of } => rows(status, at)
            .flat_map(|element| {
                let name = word(element, row.1);
                of.iter().filter_map(move |(value, at)| {
                    let labels = vec![(row.0, name.clone()), (label, (*value).to_owned())];
                    Some((labels, there(element, at)?))
                })
            })
            .collect(),
        Place::Words { .. } | Place::WordsOfRows { .. } | Place::Histograms { .. } => Vec::new(),
    }
}

/// A histogram: ends of its buckets, each with how many lie in it and not in those before.
pub(crate) struct Counted {
    /// Of all values.
    pub(crate) sum: f64,
    /// How many there are.
    pub(crate) count: u64,
    /// [`BOUNDS_LOG2`] in the base unit, and what is beyond.
    pub(crate) buckets: Vec<(f64, u64)>,
}

const SECOND_NS: f64 = 1e9;

/// The histograms of a metric that has some.
pub(crate) fn histograms(metric: &Metric, status: &Value) -> Vec<(Labels, Counted)> {
    let Place::Histograms {
        at,
        row,
        sum,
        buckets,
    } = metric.from
    else {
        return Vec::new();
    };
    let counted = |element: &Value| {
        let whole = |of: &Value, at: &str| of.pointer(at).and_then(Value::as_u64);
        let mut ends: Vec<(Option<u64>, u64)> = BOUNDS_LOG2
            .map(|log| (Some(1 << log), 0))
            .chain([(None, 0)])
            .collect();
        for bucket in rows(element, buckets) {
            let below = whole(bucket, "/below_ns");
            let end = ends
                .iter_mut()
                .find(|(end, _)| end.is_none_or(|end| below.is_some_and(|below| below <= end)));
            if let Some((_, count)) = end {
                *count += whole(bucket, "/count").unwrap_or(0);
            }
        }
        let in_seconds = |ns: u64| Number::Whole(ns).rounded() / SECOND_NS;
        Counted {
            sum: in_seconds(whole(element, sum).unwrap_or(0)),
            count: ends.iter().map(|(_, count)| count).sum(),
            buckets: ends
                .into_iter()
                .map(|(end, count)| (end.map_or(f64::INFINITY, in_seconds), count))
                .collect(),
        }
    };
    rows(status, at)
        .map(|element| (vec![(row.0, word(element, row.1))], counted(element)))
        .collect()
}

/// The words of a metric that has words.
pub(crate) fn infos(metric: &Metric, status: &Value) -> Vec<Labels> {
    match metric.from {
        Place::Words { labels } => vec![words(status, labels)],
        Place::WordsOfRows { at, labels } => {
            rows(status, at).map(|row| words(row, labels)).collect()
        }
        _ => Vec::new(),
    }
}

/// A value's name with its labels, as Prometheus writes it.
fn written(name: &str, labels: &Labels) -> String {
    if labels.is_empty() {
        return name.to_owned();
    }
    let escaped = |text: &str| {
        text.replace('\\', r"\\")
            .replace('"', "\\\"")
            .replace('\n', r"\n")
    };
    let labels: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
        .collect();
    format!("{name}{{{}}}", labels.join(","))
}

/// All values of a status under their names, in the order of the declaration; of a histogram its sum and count.
pub(crate) fn named(metrics: &[Metric], status: &Value) -> Vec<(String, f64)> {
    let numbers = metrics.iter().filter(|metric| metric.kind != Kind::Info);
    let each = numbers.flat_map(|metric| {
        let name = metric.full_name();
        let of = values(metric, status)
            .into_iter()
            .map(|(labels, number)| (written(&name, &labels), number.rounded()));
        let timed = histograms(metric, status)
            .into_iter()
            .flat_map(|(labels, of)| {
                let count = Number::Whole(of.count).rounded();
                [("sum", of.sum), ("count", count)]
                    .map(|(end, value)| (written(&format!("{name}_{end}"), &labels), value))
            });
        of.chain(timed).collect::<Vec<_>>()
    });
    each.collect()
}
