// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures of Redis alone and of ERB beside each other.

use anyhow::{Context, Result, bail};
use erb_bench::workload::{PER_S, WorkloadReport, WorkloadRun, WorkloadServerReport};
use erb_bench::{CapacityReport, Quartiles, Run, ServerReport, Spread};
use serde::Serialize;

use crate::why::why;

/// What a row shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Operations of all clients.
    PerSecond,
    /// From when it was due to its reply.
    GetMedian,
    /// The same.
    GetP99,
    /// The same.
    SetP99,
    /// Redis, its receive thread and ERB's daemon.
    ServerTime,
    /// Requests for a second of the same.
    PerCore,
}

impl Figure {
    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            Self::PerSecond => "requests per second",
            Self::GetMedian => "GET, median",
            Self::GetP99 => "GET, 99th percentile",
            Self::SetP99 => "SET, 99th percentile",
            Self::ServerTime => "server's processor time per request",
            Self::PerCore => "requests per second of a processor",
        }
    }

    /// Whether it is a time, in microseconds; else it is a number, and more is better.
    pub fn is_time(self) -> bool {
        !matches!(self, Self::PerSecond | Self::PerCore)
    }

    /// Of each run, in order; none: it was not measured.
    fn of(self, server: &WorkloadServerReport) -> Option<Vec<f64>> {
        let command = match self {
            Self::SetP99 => "SET",
            _ => "GET",
        };
        let mut operations = server.operations.iter();
        let operation = operations.find(|it| it.command == command);
        let latency = |run: &WorkloadRun| run.latencies.get(operation?.operation).cloned();
        let of = |run: &WorkloadRun| match self {
            Self::PerSecond => Some(run.operations_per_s),
            Self::GetMedian => latency(run).map(|it| it.p50_us),
            Self::GetP99 | Self::SetP99 => latency(run).map(|it| it.p99_us),
            Self::ServerTime => Some(run.cost.server_ns_per_request / 1e3),
            Self::PerCore => None,
        };
        server.runs.iter().map(of).collect()
    }
}

/// What was counted beside a row, by which it is explained.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// Share of the reads that ERB answered.
    pub hits: f64,
    /// ERB's own reads for each read of a client.
    pub own_reads: f64,
    /// Share of the requests that write.
    pub writes: f64,
    /// How many times the requests of Redis alone there were.
    pub times_requests: f64,
    /// Share of the processors' time that others took.
    pub foreign: f64,
    /// Share of the requests that a client began late although it could have.
    pub late: f64,
}

impl Facts {
    /// Of a workload.
    pub fn of(report: &WorkloadReport) -> Result<Self> {
        let [redis, erb] = pair(report)?;
        let (mut reads, mut requests) = (0, 0);
        for run in &erb.runs {
            reads += run.reads;
            requests += run.requests;
        }
        let hits = erb.hit_ratio.map_or(0.0, |spread| spread.median);
        let offered = erb.runs.iter().filter_map(|run| run.offered.as_ref());
        Ok(Self {
            hits,
            own_reads: (erb.median("reads_by_redis") + hits - 1.0).max(0.0),
            writes: 1.0 - reads as f64 / requests.max(1) as f64,
            times_requests: erb.median(PER_S) / redis.median(PER_S),
            foreign: foreign(report),
            late: offered.map(|it| it.late_by_client).fold(0.0, f64::max),
        })
    }

    fn of_runs(runs: &[Run], beside: &[Run]) -> Self {
        let hits = median(runs, |run| run.hit_ratio.unwrap_or(0.0));
        let all = runs.iter().chain(beside);
        Self {
            hits,
            own_reads: (median(runs, |run| run.answered_by_redis) + hits - 1.0).max(0.0),
            times_requests: 1.0,
            foreign: all.map(|run| run.foreign_share).fold(0.0, f64::max),
            ..Self::default()
        }
    }
}

/// One figure of both.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What it is called; the figure's own name if there is no better one.
    pub label: String,
    /// Figure.
    pub figure: Figure,
    /// Of Redis alone.
    pub redis: Spread,
    /// Of Redis boosted.
    pub erb: Spread,
    /// How many times better ERB is than Redis alone in the run before, of all runs; less than 1: worse.
    pub times_better: Quartiles,
    /// Why it is worse, if it is.
    pub why: Option<String>,
}

impl Row {
    /// Compares runs that took turns.
    pub fn new(
        label: &str,
        figure: Figure,
        [redis, erb]: [&[f64]; 2],
        facts: &Facts,
    ) -> Result<Self> {
        let times = redis.iter().zip(erb).map(|(redis, erb)| {
            let ratio = erb / redis;
            if figure.is_time() { 1.0 / ratio } else { ratio }
        });
        let none = "there is no run to show";
        let spread = |runs: &[f64]| Spread::of(runs.iter().copied()).context(none);
        let mut row = Self {
            label: label.to_owned(),
            figure,
            redis: spread(redis)?,
            erb: spread(erb)?,
            times_better: Quartiles::of(times).context(none)?,
            why: None,
        };
        row.why = why(&row, facts);
        Ok(row)
    }

    /// What the server's processor can do.
    pub fn of_capacity(label: &str, report: &CapacityReport) -> Result<Self> {
        let [redis, erb] = [of_server(report, "redis")?, of_server(report, "erb")?];
        Self::of_runs(label, &redis.runs, &erb.runs)
    }

    /// The same while ERB reads missed keys into a cache that is far too small.
    pub fn of_capacity_with_fills(report: &CapacityReport) -> Result<Self> {
        let [redis, erb] = [of_server(report, "redis")?, of_server(report, "erb")?];
        let fills = erb.miss_with_fills.as_ref();
        let fills = fills.context("misses were not measured with fills")?;
        Self::of_runs(Figure::PerCore.label(), &redis.runs, &fills.runs)
    }

    fn of_runs(label: &str, redis: &[Run], erb: &[Run]) -> Result<Self> {
        let of = |runs: &[Run]| -> Vec<f64> {
            let runs = runs.iter();
            runs.map(|run| run.requests_per_core_s).collect()
        };
        let facts = Facts::of_runs(erb, redis);
        Self::new(label, Figure::PerCore, [&of(redis), &of(erb)], &facts)
    }
}

/// These figures of a workload.
pub fn rows(report: &WorkloadReport, figures: &[Figure]) -> Result<Vec<Row>> {
    let [redis, erb] = pair(report)?;
    let facts = Facts::of(report)?;
    let row = |&figure: &Figure| {
        let both = figure.of(redis).zip(figure.of(erb));
        let (redis, erb) = both.with_context(|| format!("{} was not measured", figure.label()))?;
        Row::new(figure.label(), figure, [&redis, &erb], &facts)
    };
    figures.iter().map(row).collect()
}

/// Redis alone and ERB.
pub fn pair(report: &WorkloadReport) -> Result<[&WorkloadServerReport; 2]> {
    match report.servers.as_slice() {
        [redis, erb] => Ok([redis, erb]),
        servers => bail!("{} servers were measured instead of two", servers.len()),
    }
}

/// A server of the capacity measurement.
pub fn of_server<'a>(report: &'a CapacityReport, name: &str) -> Result<&'a ServerReport> {
    let found = report.servers.iter().find(|server| server.server == name);
    found.with_context(|| format!("{name} was not measured"))
}

/// Requests per second that were offered.
pub fn rate(report: &WorkloadReport) -> Result<f64> {
    let run = pair(report)?[0].runs.first();
    let rate = run.and_then(|run| run.offered.as_ref()?.rate);
    rate.context("nothing was offered at a rate")
}

/// Largest share of the processors' time that others took.
pub fn foreign(report: &WorkloadReport) -> f64 {
    let shares = report.servers.iter().map(|it| it.median("foreign_share"));
    shares.fold(0.0, f64::max)
}

fn median(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    Spread::of(runs.iter().map(figure)).map_or(0.0, |spread| spread.median)
}
