// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A status as text for Prometheus, by what [`declared`](crate::declared) says.

use std::fmt::Error;

use erb_report::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as WrittenUnit};
use serde_json::Value;

use crate::declared::{Kind, METRICS, Metric, Place, Unit};

/// In which of its two texts Prometheus asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's own, 0.0.4, which every reader knows.
    Prometheus,
}

impl Format {
    /// By a request's Accept: whoever does not name OpenMetrics gets the older one.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// As the answer names it.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

type Labels = Vec<(&'static str, String)>;

/// A status, ready to be written.
#[derive(Debug)]
struct Written(Value);

impl Collector for Written {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        for metric in METRICS {
            self.metric(&mut encoder, metric)?;
        }
        Ok(())
    }
}

fn word(row: &Value, at: &str) -> String {
    row.pointer(at)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn words(row: &Value, labels: &[(&'static str, &'static str)]) -> Labels {
    let label = |(label, at): &(&'static str, &str)| (*label, word(row, at));
    labels.iter().map(label).collect()
}

/// One value, whole and exact where it is a whole number; a yes is 1.
fn value(encoder: &mut MetricEncoder, kind: Kind, value: &Value) -> Result<(), Error> {
    let whole = value.as_u64().or(value.as_bool().map(u64::from));
    match (kind, whole) {
        (Kind::Counter, Some(count)) => {
            encoder.encode_counter::<NoLabelSet, u64, u64>(&count, None)
        }
        (_, Some(count)) => encoder.encode_gauge(&count),
        _ => encoder.encode_gauge(&value.as_f64().unwrap_or(f64::NAN)),
    }
}

impl Written {
    fn rows(&self, at: &str) -> impl Iterator<Item = &Value> {
        self.0
            .pointer(at)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    }

    fn there(&self, at: &str) -> Option<&Value> {
        self.0
            .pointer(at)
            .filter(|value| value.is_number() || value.is_boolean())
    }

    fn metric(&self, encoder: &mut DescriptorEncoder, metric: &Metric) -> Result<(), Error> {
        let unit = match metric.unit {
            Unit::Pure => None,
            unit => Some(WrittenUnit::Other(unit.word().to_owned())),
        };
        let kind = match metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Info => MetricType::Info,
        };
        let mut encoder =
            encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
        match metric.from {
            Place::At(at) => self
                .there(at)
                .map_or(Ok(()), |found| value(&mut encoder, metric.kind, found)),
            Place::Thousandths(at) => self
                .there(at)
                .and_then(Value::as_f64)
                .map_or(Ok(()), |found| encoder.encode_gauge(&(found / 1_000.0))),
            Place::Each { label, of } => of.iter().try_for_each(|(name, at)| {
                let Some(found) = self.there(at) else {
                    return Ok(());
                };
                let labels: Labels = vec![(label, (*name).to_owned())];
                value(&mut encoder.encode_family(&labels)?, metric.kind, found)
            }),
            Place::Word { at, label, of } => of.iter().try_for_each(|state| {
                let labels: Labels = vec![(label, (*state).to_owned())];
                let is = u64::from(word(&self.0, at) == *state);
                encoder.encode_family(&labels)?.encode_gauge(&is)
            }),
            Place::Rows {
                at,
                labels,
                value: field,
            } => self.rows(at).try_for_each(|row| {
                let Some(found) = row.pointer(field) else {
                    return Ok(());
                };
                let labels = words(row, labels);
                value(&mut encoder.encode_family(&labels)?, metric.kind, found)
            }),
            Place::Words { labels } => encoder.encode_info(&words(&self.0, labels)),
            Place::WordsOfRows { at, labels } => self
                .rows(at)
                .try_for_each(|row| encoder.encode_info(&words(row, labels))),
        }
    }
}

/// The text.
#[must_use]
pub fn text(status: &Status, format: Format) -> String {
    let mut registry = Registry::with_prefix("erb");
    // A status is numbers, words, lists and objects with names.
    registry.register_collector(Box::new(Written(
        serde_json::to_value(status).unwrap_or_default(),
    )));
    let mut text = String::new();
    let written = match format {
        Format::OpenMetrics => prometheus_client::encoding::text::encode(&mut text, &registry),
        Format::Prometheus => {
            prometheus_client::encoding::prometheus_text::encode(&mut text, &registry)
        }
    };
    // Only a writer can fail, and a String does not.
    debug_assert!(written.is_ok(), "{written:?}");
    text
}
