// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A status as text for Prometheus, by what [`declared`](crate::declared) says.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as WrittenUnit};
use serde_json::Value;

use crate::declared::{Kind, Metric, Unit};
use crate::values::{Number, histograms, infos, values};
use crate::watched::Watched;

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

/// A status, ready to be written.
#[derive(Debug)]
struct Written(Value, &'static [Metric]);

impl Collector for Written {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        for metric in self.1 {
            self.metric(&mut encoder, metric)?;
        }
        Ok(())
    }
}

fn number(encoder: &mut MetricEncoder, kind: Kind, number: Number) -> Result<(), Error> {
    match (kind, number) {
        (Kind::Counter, Number::Whole(count)) => {
            encoder.encode_counter::<NoLabelSet, u64, u64>(&count, None)
        }
        (Kind::Counter, Number::Real(real)) => {
            encoder.encode_counter::<NoLabelSet, f64, u64>(&real, None)
        }
        (_, Number::Whole(count)) => encoder.encode_gauge(&count),
        (_, Number::Real(real)) => encoder.encode_gauge(&real),
    }
}

impl Written {
    fn metric(&self, encoder: &mut DescriptorEncoder, metric: &Metric) -> Result<(), Error> {
        let unit = match metric.unit {
            Unit::Pure => None,
            unit => Some(WrittenUnit::Other(unit.word().to_owned())),
        };
        let kind = match metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Info => MetricType::Info,
            Kind::Histogram => MetricType::Histogram,
        };
        let mut encoder =
            encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
        for (labels, value) in values(metric, &self.0) {
            if labels.is_empty() {
                number(&mut encoder, metric.kind, value)?;
            } else {
                number(&mut encoder.encode_family(&labels)?, metric.kind, value)?;
            }
        }
        for (labels, of) in histograms(metric, &self.0) {
            encoder
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(of.sum, of.count, &of.buckets, None)?;
        }
        infos(metric, &self.0)
            .iter()
            .try_for_each(|labels| encoder.encode_info(labels))
    }
}

/// The text.
#[must_use]
pub fn text<W: Watched>(status: &W, format: Format) -> String {
    let mut registry = Registry::with_prefix("erb");
    // A status is numbers, words, lists and objects with names.
    registry.register_collector(Box::new(Written(
        serde_json::to_value(status).unwrap_or_default(),
        W::METRICS,
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
