// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results of `erb bench clients`: as JSON and as a table for people.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::args::{ClientsArgs, Server};
use crate::report::Machine;
use crate::stage::Cost;
use crate::stats::Spread;
use crate::work::Work;

/// One run of one server.
#[derive(Debug, Clone, Serialize)]
pub struct OrdinaryRun {
    /// Length in seconds.
    pub seconds: f64,
    /// Requests, all answered rightly.
    pub requests: u64,
    /// Requests per second.
    pub requests_per_s: f64,
    /// Median time from request to reply, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// Processor time per request.
    #[serde(flatten)]
    pub cost: Cost,
    /// Share of requests that ERB says it answered; none for other servers.
    pub hit_ratio: Option<f64>,
    /// Of these, the share that the TC tier answered.
    pub tc_share: Option<f64>,
    /// Requests counted by Redis itself per request.
    pub answered_by_redis: f64,
}

/// All runs of one server and their medians.
#[derive(Debug, Clone, Serialize)]
pub struct OrdinaryReport {
    /// Server.
    pub server: &'static str,
    /// Device between clients and server.
    pub over: &'static str,
    /// Command.
    pub op: &'static str,
    /// Connections.
    pub conns: u32,
    /// Keys drawn from.
    pub keys: u32,
    /// Bytes per request.
    pub request_bytes: usize,
    /// Bytes per reply.
    pub reply_bytes: usize,
    /// Median, smallest and largest of the runs, by the names of their figures.
    pub figures: BTreeMap<&'static str, Spread>,
    /// Median share that ERB answered; none for other servers.
    pub hit_ratio: Option<f64>,
    /// Of these, the share that the TC tier answered; median.
    pub tc_share: Option<f64>,
    /// Every run, in order.
    pub runs: Vec<OrdinaryRun>,
}

/// All servers.
#[derive(Debug, Clone, Serialize)]
pub struct ClientsReport {
    /// Where it was measured.
    pub machine: Machine,
    /// In the order of the command line.
    pub servers: Vec<OrdinaryReport>,
    /// Of each two servers, how many times as many requests the first answers per second, and per
    /// second of processor time of both sides.
    pub ratios: BTreeMap<String, f64>,
}

type Figure = (&'static str, fn(&OrdinaryRun) -> f64);

const FIGURES: [Figure; 7] = [
    ("requests_per_s", |run| run.requests_per_s),
    ("p50_us", |run| run.p50_us),
    ("p99_us", |run| run.p99_us),
    ("cpu_ns_per_request", |run| run.cost.cpu_ns_per_request),
    ("server_ns_per_request", |run| {
        run.cost.server_ns_per_request
    }),
    ("client_ns_per_request", |run| {
        run.cost.client_ns_per_request
    }),
    ("softirq_ns_per_request", |run| {
        run.cost.softirq_ns_per_request
    }),
];

impl OrdinaryReport {
    /// Medians of the runs, of which there is at least one.
    pub fn new(
        server: Server,
        args: &ClientsArgs,
        work: &Work,
        runs: Vec<OrdinaryRun>,
    ) -> Result<Self> {
        let mut figures = BTreeMap::new();
        for (name, figure) in FIGURES {
            let spread =
                Spread::of(runs.iter().map(figure)).context("there is no run to report")?;
            figures.insert(name, spread);
        }
        Ok(Self {
            server: server.name(),
            over: args.over.name(),
            op: work.op.name(),
            conns: args.conns,
            keys: work.keys,
            request_bytes: work.request(&[0]).len(),
            reply_bytes: work.reply(&[0]).len(),
            figures,
            hit_ratio: Spread::of(runs.iter().filter_map(|run| run.hit_ratio)).map(|s| s.median),
            tc_share: Spread::of(runs.iter().filter_map(|run| run.tc_share)).map(|s| s.median),
            runs,
        })
    }

    fn median(&self, figure: &str) -> f64 {
        self.figures.get(figure).map_or(0.0, |spread| spread.median)
    }
}

impl ClientsReport {
    /// Adds the ratios of each server to the others.
    pub fn new(machine: Machine, servers: Vec<OrdinaryReport>) -> Self {
        let mut ratios = BTreeMap::new();
        for a in &servers {
            for b in servers.iter().filter(|b| b.server != a.server) {
                let pair = format!("{}/{}", a.server, b.server);
                let (per_s, cpu) = ("requests_per_s", "cpu_ns_per_request");
                let ratio = a.median(per_s) / b.median(per_s);
                ratios.insert(format!("{pair} per second"), ratio);
                let ratio = b.median(cpu) / a.median(cpu);
                ratios.insert(format!("{pair} per processor time"), ratio);
            }
        }
        Self {
            machine,
            servers,
            ratios,
        }
    }

    /// The table that people read.
    pub fn to_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "server",
            "requests/s",
            "(min-max)",
            "p50 us",
            "p99 us",
            "cpu ns/request",
            "(min-max)",
            "server",
            "client",
            "softirq",
            "hit ratio",
            "by TC",
        ]);
        for server in &self.servers {
            let of = |figure: &str| format!("{:.0}", server.median(figure));
            let range = |figure: &str| {
                let spread = server.figures.get(figure);
                spread.map_or_else(String::new, |it| format!("{:.0}-{:.0}", it.min, it.max))
            };
            let share = |share: Option<f64>| {
                share.map_or_else(|| "-".to_owned(), |share| format!("{share:.4}"))
            };
            table.add_row([
                server.server.to_owned(),
                of("requests_per_s"),
                range("requests_per_s"),
                of("p50_us"),
                of("p99_us"),
                of("cpu_ns_per_request"),
                range("cpu_ns_per_request"),
                of("server_ns_per_request"),
                of("client_ns_per_request"),
                of("softirq_ns_per_request"),
                share(server.hit_ratio),
                share(server.tc_share),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{table}\n");
        for (pair, ratio) in &self.ratios {
            text += &format!("{pair}: {ratio:.3}\n");
        }
        let machine = &self.machine;
        text += &format!(
            "{}, {} cores, Linux {}\n",
            machine.processor, machine.cores, machine.kernel
        );
        text
    }
}
