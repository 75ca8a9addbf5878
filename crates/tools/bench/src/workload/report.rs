// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results of `erb bench workload`: medians, ratios, and what must be told of them; as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use erb_lab::Boost;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::args::{WorkloadArgs, WorkloadServer};
use super::asker::OPERATIONS;
use super::beside::Done;
use super::plan::Plan;
use super::reads;
use crate::args::Over;
use crate::report::{FOREIGN_SHARE_TOLD, Machine};
use crate::stage::Cost;
use crate::stats::Spread;
use crate::tally::{LATE, Tally};

/// A cold start is over when this share of a second's reads was answered fast.
pub const WARM: f64 = 0.9;
/// What is late or not sent is told from this share on.
const TOLD: f64 = 0.01;
/// A client's thread that runs for more of its time decides how many operations there are.
const BUSY: f64 = 0.9;

/// Time from when an operation was due to its last reply.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// Operations.
    pub count: u64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// 99.9th percentile of the same.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            count: histogram.len(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max() as f64 / 1e3,
        }
    }

    /// Of all kinds of operations that there were.
    pub fn of_all(tally: &Tally) -> BTreeMap<&'static str, Self> {
        let kinds = OPERATIONS.into_iter().zip(&tally.latencies);
        let kinds = kinds.filter(|(_, histogram)| !histogram.is_empty());
        kinds.map(|(name, of)| (name, Self::of(of))).collect()
    }
}

/// What came of a load that does not wait for the server.
#[derive(Debug, Clone, Serialize)]
pub struct Offered {
    /// Operations per second that were to be sent; none if a trace says when.
    pub rate: Option<f64>,
    /// Share of the operations due that had not been sent when the run ended.
    pub unsent: f64,
    /// Share of those sent that began more than a millisecond late, as no connection was idle.
    pub late_for_server: f64,
    /// The same although a connection was idle: the client did not keep up.
    pub late_by_client: f64,
    /// 99th percentile of how late they began although a connection was idle, in microseconds.
    pub own_delay_p99_us: f64,
}

impl Offered {
    /// Of one run.
    pub fn of(plan: &Plan, tally: &Tally, unsent: u64) -> Self {
        let sent = tally.own_delay.len().max(1) as f64;
        Self {
            rate: plan.rate,
            unsent: unsent as f64 / (sent + unsent as f64),
            late_for_server: tally.late_for_server as f64 / sent,
            late_by_client: tally.late_by_client as f64 / sent,
            own_delay_p99_us: tally.own_delay.value_at_quantile(0.99) as f64 / 1e3,
        }
    }
}

/// One second of a cold start.
#[derive(Debug, Clone, Serialize)]
pub struct Second {
    /// When it ended, in seconds since the first operation was due. Between two seconds ERB is asked
    /// for its counts, while no request is under way.
    pub at_s: f64,
    /// Operations per second.
    pub operations_per_s: f64,
    /// Share of the reads that ERB answered; none without it, or without reads.
    pub hit_ratio: Option<f64>,
    /// See [`WorkloadRun`].
    pub repeated_ratio: Option<f64>,
}

impl Second {
    /// Of a tally; ERB answered `fast` reads, and `repeated` were of keys read before.
    pub fn of(at_s: f64, took: Duration, tally: &Tally, fast: Option<u64>, repeated: u64) -> Self {
        let reads = reads(tally);
        let ratio = |count: u64| (reads > 0).then(|| count as f64 / reads as f64);
        Self {
            at_s,
            operations_per_s: tally.operations() as f64 / took.as_secs_f64(),
            hit_ratio: fast.and_then(ratio),
            repeated_ratio: ratio(repeated),
        }
    }
}

/// One run of one server.
#[derive(Debug, Clone, Serialize)]
pub struct WorkloadRun {
    /// Length in seconds.
    pub seconds: f64,
    /// Operations, all answered rightly.
    pub operations: u64,
    /// Operations per second.
    pub operations_per_s: f64,
    /// Requests: a read-modify-write is two.
    pub requests: u64,
    /// Requests per second.
    pub requests_per_s: f64,
    /// By kind of operation.
    pub latencies: BTreeMap<&'static str, Latency>,
    /// Processor time per request.
    #[serde(flatten)]
    pub cost: Cost,
    /// Requests that read.
    pub reads: u64,
    /// Share of these that ERB says it answered; none for other servers, and without reads.
    pub hit_ratio: Option<f64>,
    /// Share of the reads whose key had been read since it was last written: what a cache could have
    /// answered that fills at once and has room for all.
    pub repeated_ratio: Option<f64>,
    /// Of the packets that ERB answered, the share that the TC tier answered.
    pub tc_share: Option<f64>,
    /// Reads counted by Redis itself for each read.
    pub reads_by_redis: f64,
    /// Largest share of its time that a client's thread ran.
    pub client_busy: f64,
    /// Connections that ERB had no room to see.
    pub unseen: u32,
    /// What came of a load at a rate or at given times; none of a closed loop.
    pub offered: Option<Offered>,
    /// Each second of a cold start; empty unless it was asked for.
    pub series: Vec<Second>,
    /// What was done beside; none unless it was asked for.
    pub beside: Option<Done>,
    /// What became of SETs that ERB answers; none of other servers.
    pub answered: Option<Answered>,
}

/// SETs that are answered in Redis's place, from one moment to another.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Answered {
    /// SETs that were answered.
    pub absorbed: u64,
    /// Packets that waited for what was answered before them.
    pub held: u64,
    /// Those of which no copy was made: they wait for their client.
    pub uncopied: u64,
    /// SETs that are in Redis by now, the keys that were written for them, and the batches.
    pub drained: u64,
    /// See `drained`.
    pub drained_keys: u64,
    /// See `drained`.
    pub batches: u64,
}

impl Answered {
    /// Since the boost.
    pub fn of(boost: &Boost) -> Result<Self> {
        let status = boost.status()?;
        let counter = |name| status.counter(name).context("`erb status` lacks a counter");
        let writes = &status.writes;
        Ok(Self {
            absorbed: counter("ABSORBED")?,
            held: counter("HELD_COPIED")?,
            uncopied: counter("HELD_UNCOPIED")?,
            drained: writes.drained,
            drained_keys: writes.drained_keys,
            batches: writes.batches,
        })
    }

    /// Since an earlier look.
    pub fn since(self, before: Self) -> Self {
        Self {
            absorbed: self.absorbed - before.absorbed,
            held: self.held - before.held,
            uncopied: self.uncopied - before.uncopied,
            drained: self.drained - before.drained,
            drained_keys: self.drained_keys - before.drained_keys,
            batches: self.batches - before.batches,
        }
    }

    fn add(self, more: Self) -> Self {
        Self {
            absorbed: self.absorbed + more.absorbed,
            held: self.held + more.held,
            uncopied: self.uncopied + more.uncopied,
            drained: self.drained + more.drained,
            drained_keys: self.drained_keys + more.drained_keys,
            batches: self.batches + more.batches,
        }
    }

    /// For people; of so many requests that write.
    fn told(self) -> String {
        let per = |part: u64, of: u64| part as f64 / of.max(1) as f64;
        format!(
            "{} SETs answered; {} packets waited for them, {} without a copy; {:.0} SETs a batch, {:.2} for a \
             key that was written",
            self.absorbed,
            self.held,
            self.uncopied,
            per(self.drained, self.batches),
            per(self.drained, self.drained_keys),
        )
    }
}

/// The runs of one server.
#[derive(Debug)]
pub struct ServerRuns {
    /// Which.
    pub server: WorkloadServer,
    runs: Vec<WorkloadRun>,
}

impl ServerRuns {
    /// None yet.
    pub fn of(server: WorkloadServer) -> Self {
        Self {
            server,
            runs: Vec::new(),
        }
    }

    /// Adds one.
    pub fn add(&mut self, run: WorkloadRun) {
        self.runs.push(run);
    }
}

/// One kind of operation at one server.
#[derive(Debug, Clone, Serialize)]
pub struct OperationReport {
    /// Kind.
    pub operation: &'static str,
    /// By which command, or which two.
    pub command: String,
    /// Medians, smallest and largest of the runs.
    pub p50_us: Spread,
    /// See `p50_us`.
    pub p99_us: Spread,
    /// See `p50_us`.
    pub p999_us: Spread,
}

/// All runs of one server and their medians.
#[derive(Debug, Clone, Serialize)]
pub struct WorkloadServerReport {
    /// Server.
    pub server: &'static str,
    /// Median, smallest and largest of the runs, by the names of their figures.
    pub figures: BTreeMap<&'static str, Spread>,
    /// Share of the reads that ERB answered; none for other servers.
    pub hit_ratio: Option<Spread>,
    /// Share of the reads whose key had been read since it was last written.
    pub repeated_ratio: Option<Spread>,
    /// Of the packets that it answered, the share that the TC tier answered; median.
    pub tc_share: Option<f64>,
    /// Latencies.
    pub operations: Vec<OperationReport>,
    /// When a cold start first had a second in which ERB answered nine tenths of the reads: its end,
    /// in seconds; of each run that had one.
    pub warm_after_s: Option<Spread>,
    /// Every run, in order.
    pub runs: Vec<WorkloadRun>,
}

/// The whole measurement.
#[derive(Debug, Clone, Serialize)]
pub struct WorkloadReport {
    /// Where it was measured.
    pub machine: Machine,
    /// What clients did.
    pub workload: String,
    /// Device between clients and server.
    pub over: &'static str,
    /// Connections.
    pub conns: u32,
    /// In the order of the command line.
    pub servers: Vec<WorkloadServerReport>,
    /// Of each two servers, how many times better the first named is, by medians.
    pub ratios: BTreeMap<String, f64>,
    /// What a reader of the figures must know.
    pub notes: Vec<String>,
}

type Figure = (&'static str, fn(&WorkloadRun) -> f64);

/// Name of a figure: operations per second.
pub const PER_S: &str = "operations_per_s";
const BOTH: &str = "cpu_ns_per_request";
/// Name of a figure: processor time of the server's side for each request.
const SERVER: &str = "server_ns_per_request";
pub const CLIENT: &str = "client_ns_per_request";
const FIGURES: [Figure; 9] = [
    (PER_S, |run| run.operations_per_s),
    ("requests_per_s", |run| run.requests_per_s),
    (BOTH, |run| run.cost.cpu_ns_per_request),
    (SERVER, |run| run.cost.server_ns_per_request),
    (CLIENT, |run| run.cost.client_ns_per_request),
    ("softirq_ns_per_request", |run| {
        run.cost.softirq_ns_per_request
    }),
    ("reads_by_redis", |run| run.reads_by_redis),
    ("client_busy", |run| run.client_busy),
    ("foreign_share", |run| run.cost.foreign_share),
];

impl WorkloadServerReport {
    fn new(of: ServerRuns, plan: &Plan) -> Result<Self> {
        let runs = of.runs;
        let mut figures = BTreeMap::new();
        for (name, figure) in FIGURES {
            let spread =
                Spread::of(runs.iter().map(figure)).context("there is no run to report")?;
            figures.insert(name, spread);
        }
        let operations = OPERATIONS
            .into_iter()
            .filter_map(|operation| operation_report(operation, &runs, plan));
        Ok(Self {
            server: of.server.name(),
            hit_ratio: Spread::of(runs.iter().filter_map(|run| run.hit_ratio)),
            repeated_ratio: Spread::of(runs.iter().filter_map(|run| run.repeated_ratio)),
            tc_share: Spread::of(runs.iter().filter_map(|run| run.tc_share)).map(|s| s.median),
            operations: operations.collect(),
            warm_after_s: Spread::of(runs.iter().filter_map(warm_after_s)),
            figures,
            runs,
        })
    }

    /// The median of a figure.
    pub fn median(&self, figure: &str) -> f64 {
        self.figures.get(figure).map_or(0.0, |spread| spread.median)
    }

    /// What of its runs must be told.
    fn notes(&self, notes: &mut Vec<String>) {
        let name = self.server;
        let answered = self.runs.iter().filter_map(|run| run.answered);
        if let Some(all) = answered.reduce(Answered::add) {
            notes.push(format!("{name}: {}", all.told()));
        }
        let done = self.runs.iter().filter_map(|run| run.beside.as_ref());
        notes.extend(done.map(|done| format!("{name}: {}", done.told())));
        let most = |of: fn(&Offered) -> f64| {
            let offered = self.runs.iter().filter_map(|run| run.offered.as_ref());
            offered.map(of).fold(0.0, f64::max)
        };
        let unsent = most(|it| it.unsent);
        if unsent > TOLD {
            notes.push(format!(
                "{name}: up to {:.1} % of what was due had not been sent when a run ended, as all \
                 connections waited: the latencies are those of the rest, and too good",
                unsent * 100.0
            ));
        }
        let late = most(|it| it.late_by_client);
        if late > TOLD {
            notes.push(format!(
                "{name}: the client began up to {:.1} % of the operations more than {} ms late \
                 although a connection was idle: it does not keep up; take a lower --rate, more \
                 --client-core, or a machine on which nobody else works",
                late * 100.0,
                LATE.as_millis()
            ));
        }
        let unseen = self.runs.iter().map(|run| run.unseen).max().unwrap_or(0);
        if unseen > 0 {
            notes.push(format!(
                "{name}: ERB had no room to see {unseen} connections, so Redis alone answered them"
            ));
        }
    }
}

fn operation_report(
    operation: &'static str,
    runs: &[WorkloadRun],
    plan: &Plan,
) -> Option<OperationReport> {
    let spread = |figure: fn(&Latency) -> f64| {
        let latencies = runs.iter().filter_map(|run| run.latencies.get(operation));
        Spread::of(latencies.map(figure))
    };
    let (read, write) = (plan.read_command(), plan.write_command());
    Some(OperationReport {
        operation,
        command: match operation {
            "read" => read.to_owned(),
            "read-modify-write" => format!("{read}, {write}"),
            "count" => "INCR".to_owned(),
            _ => write.to_owned(),
        },
        p50_us: spread(|it| it.p50_us)?,
        p99_us: spread(|it| it.p99_us)?,
        p999_us: spread(|it| it.p999_us)?,
    })
}

/// When a run first had a second with enough hits.
pub fn warm_after_s(run: &WorkloadRun) -> Option<f64> {
    let mut seconds = run.series.iter();
    let warm = seconds.find(|second| second.hit_ratio.is_some_and(|ratio| ratio >= WARM));
    warm.map(|second| second.at_s)
}

impl WorkloadReport {
    /// Medians and ratios of all runs.
    pub fn new(
        machine: Machine,
        args: &WorkloadArgs,
        plan: &Plan,
        servers: Vec<ServerRuns>,
    ) -> Result<Self> {
        let servers = servers
            .into_iter()
            .map(|runs| WorkloadServerReport::new(runs, plan))
            .collect::<Result<Vec<_>>>()?;
        let mut notes = plan.notes.clone();
        for server in &servers {
            server.notes(&mut notes);
        }
        let largest = |figure| {
            let all = servers.iter().map(|it| it.median(figure));
            all.fold(0.0, f64::max)
        };
        let (busy, foreign) = (largest("client_busy"), largest("foreign_share"));
        if foreign > FOREIGN_SHARE_TOLD {
            notes.push(format!(
                "other programs took {:.0} % of the processors: repeat on a quiet machine",
                foreign * 100.0
            ));
        }
        if !plan.timed() && busy > BUSY {
            notes.push(format!(
                "a client's thread ran for {:.0} % of its time: how many operations there are is then \
                 up to it, so compare processor time, or give it more --client-core",
                busy * 100.0
            ));
        }
        let load = match plan.rate {
            Some(rate) => format!("{rate} operations/s"),
            None if plan.timed() => "at the trace's times".to_owned(),
            None => "closed loop".to_owned(),
        };
        Ok(Self {
            machine,
            workload: format!("{}, {load}", plan.label),
            over: args.over.name(),
            conns: args.conns,
            ratios: ratios(&servers, plan, args.over),
            servers,
            notes,
        })
    }
}

/// The cost that can be told apart, and its heading: over a veth the server's, over lo that of both
/// sides.
pub fn cost_of(over: &str) -> (&'static str, &'static str) {
    if over == Over::Veth.name() {
        (SERVER, "server ns/request")
    } else {
        (BOTH, "both sides ns/request")
    }
}

/// Of each two servers, how many times better the one named later is.
fn ratios(servers: &[WorkloadServerReport], plan: &Plan, over: Over) -> BTreeMap<String, f64> {
    let mut ratios = BTreeMap::new();
    for (number, b) in servers.iter().enumerate() {
        for a in &servers[number + 1..] {
            let pair = format!("{}/{}", a.server, b.server);
            // At a rate all have the same.
            if !plan.timed() {
                let ratio = a.median(PER_S) / b.median(PER_S);
                ratios.insert(format!("{pair} per second"), ratio);
            }
            let (cost, _) = cost_of(over.name());
            let ratio = b.median(cost) / a.median(cost);
            ratios.insert(format!("{pair} per processor time"), ratio);
            for one in &a.operations {
                let same = b.operations.iter().find(|it| it.operation == one.operation);
                let Some(other) = same else { continue };
                let what = format!("{pair} {}", one.operation);
                let (p50, p99) = (other.p50_us.median, other.p99_us.median);
                ratios.insert(format!("{what} p50"), p50 / one.p50_us.median);
                ratios.insert(format!("{what} p99"), p99 / one.p99_us.median);
            }
        }
    }
    ratios
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
