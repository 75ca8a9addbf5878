// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures of Redis alone and of ERB beside each other.

use anyhow::{Context, Result, bail};
use erb_bench::workload::{PER_S, SERVER, WorkloadReport, WorkloadServerReport};
use erb_bench::{CapacityReport, Run, ServerReport, Spread};
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

    fn of(self, server: &WorkloadServerReport) -> Option<Spread> {
        let latency = |command| {
            let mut operations = server.operations.iter();
            operations.find(|operation| operation.command == command)
        };
        match self {
            Self::PerSecond => server.figures.get(PER_S).copied(),
            Self::GetMedian => latency("GET").map(|it| it.p50_us),
            Self::GetP99 => latency("GET").map(|it| it.p99_us),
            Self::SetP99 => latency("SET").map(|it| it.p99_us),
            Self::ServerTime => server.figures.get(SERVER).map(|&ns| scaled(ns, 1e-3)),
            Self::PerCore => None,
        }
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
    /// How many times better ERB is; less than 1: worse.
    pub times_better: f64,
    /// Why it is worse, if it is.
    pub why: Option<String>,
}

impl Row {
    /// Compares medians.
    pub fn new(label: &str, figure: Figure, [redis, erb]: [Spread; 2], facts: &Facts) -> Self {
        let ratio = erb.median / redis.median;
        let mut row = Self {
            label: label.to_owned(),
            figure,
            redis,
            erb,
            times_better: if figure.is_time() { 1.0 / ratio } else { ratio },
            why: None,
        };
        row.why = why(&row, facts);
        row
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
        let spread = |runs: &[Run]| {
            let spread = Spread::of(runs.iter().map(|run| run.requests_per_core_s));
            spread.context("there is no run to show")
        };
        let facts = Facts::of_runs(erb, redis);
        let both = [spread(redis)?, spread(erb)?];
        Ok(Self::new(label, Figure::PerCore, both, &facts))
    }
}

/// These figures of a workload.
pub fn rows(report: &WorkloadReport, figures: &[Figure]) -> Result<Vec<Row>> {
    let [redis, erb] = pair(report)?;
    let facts = Facts::of(report)?;
    let row = |&figure: &Figure| {
        let both = figure.of(redis).zip(figure.of(erb));
        let (redis, erb) = both.with_context(|| format!("{} was not measured", figure.label()))?;
        Ok(Row::new(figure.label(), figure, [redis, erb], &facts))
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

fn scaled(spread: Spread, by: f64) -> Spread {
    Spread {
        median: spread.median * by,
        min: spread.min * by,
        max: spread.max * by,
    }
}
