// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results: as JSON and as a table for people.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use comfy_table::{Cell, CellAlignment, Table, presets};
use procfs::{CpuInfo, Current as _};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::CapacityArgs;
use crate::instance::Plan;
use crate::stats::{Quartiles, Spread};

/// Clock ticks are this inexact over a short run; above it somebody else was there.
pub const FOREIGN_SHARE_TOLD: f64 = 0.05;

/// One run of one server.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Length in seconds.
    pub seconds: f64,
    /// Replies in that time.
    pub requests: u64,
    /// The same with those of the warm-up.
    pub replies: u64,
    /// Requests per second as observed.
    pub requests_per_s: f64,
    /// Processor time of the server's side per request: receive thread, Redis, daemon, journal.
    pub server_cpu_ns_per_request: f64,
    /// 1e9 / `server_cpu_ns_per_request`.
    pub requests_per_core_s: f64,
    /// Share of the device's receive thread.
    pub napi_ns_per_request: f64,
    /// Share of redis-server, all threads.
    pub redis_ns_per_request: f64,
    /// Share of ERB's daemon.
    pub daemon_ns_per_request: f64,
    /// Share of the threads that write the journal, which are not the daemon's then. Of `erb bench journal` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal_ns_per_request: Option<f64>,
    /// Share of the run's time for which the server's core worked for anybody else. It lowers
    /// `requests_per_s` and, by cold caches, raises the time per request.
    pub foreign_share: f64,
    /// Share of requests that ERB says it answered; none for other servers.
    pub hit_ratio: Option<f64>,
    /// Requests counted by Redis itself per request (with fills on, ERB's own reads count too).
    pub answered_by_redis: f64,
    /// Replies that were not what the server had to say.
    pub mismatches: u64,
    /// Connections that stood still for half a second and were started again.
    pub stalled_conns: u32,
    /// Payload that came a second time (retransmissions of the server).
    pub repeated: u64,
    /// Parts of replies that came in several packets; their bytes are counted, not compared.
    pub pieces: u64,
    /// Packets with TCP options other than timestamps; dropped.
    pub odd: u64,
    /// Frames that could not be resized; the request was lost.
    pub no_room: u64,
}

/// All runs of one server and their medians.
#[derive(Debug, Clone, Serialize)]
pub struct ServerReport {
    /// Command.
    pub op: &'static str,
    /// Server.
    pub server: &'static str,
    /// Connections.
    pub conns: u32,
    /// Keys drawn from.
    pub keys: u32,
    /// Bytes per value.
    pub value_size: u32,
    /// Keys per request.
    pub batch: u32,
    /// Fields per hash; 0 where it is none.
    pub fields: u32,
    /// Bytes per request.
    pub request_bytes: usize,
    /// Bytes per reply.
    pub reply_bytes: usize,
    /// Median of the runs.
    pub requests_per_s: f64,
    /// Median of the runs.
    pub server_cpu_ns_per_request: f64,
    /// Median of the runs.
    pub requests_per_core_s: f64,
    /// Quartiles of `server_cpu_ns_per_request`.
    pub server_cpu_quartiles: Quartiles,
    /// Smallest and largest of the three figures.
    pub spread: BTreeMap<&'static str, Spread>,
    /// Median share that ERB answered; none for other servers.
    pub hit_ratio: Option<f64>,
    /// Sum over the runs.
    pub mismatches: u64,
    /// Largest of the runs.
    pub stalled_conns: u32,
    /// Every run, in order.
    pub runs: Vec<Run>,
    /// With `--hit-ratio 0`: misses while fills are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_with_fills: Option<MissWithFills>,
    /// Keys in ERB's cache before the runs, as ERB counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filled_keys: Option<u64>,
    /// `erb status --json` after the last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
}

/// Misses while fills are on and the keys are 16 times the cache.
#[derive(Debug, Clone, Serialize)]
pub struct MissWithFills {
    /// Cache given to ERB.
    pub cache_size: String,
    /// Keys drawn from.
    pub keys: u32,
    /// Median.
    pub requests_per_s: f64,
    /// Median.
    pub server_cpu_ns_per_request: f64,
    /// Median.
    pub requests_per_core_s: f64,
    /// Median share that ERB answered all the same.
    pub hit_ratio: Option<f64>,
    /// Sum over the runs.
    pub mismatches: u64,
    /// Largest of the runs.
    pub stalled_conns: u32,
    /// Every run.
    pub runs: Vec<Run>,
}

/// Where the figures come from; only ratios can be compared between machines.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Processor model as /proc/cpuinfo names it.
    pub processor: String,
    /// Processors.
    pub cores: usize,
    /// First line of `redis-server --version`.
    pub redis: String,
}

/// The whole measurement.
#[derive(Debug, Clone, Serialize)]
pub struct CapacityReport {
    /// Where.
    pub machine: Machine,
    /// In the order they were asked for.
    pub servers: Vec<ServerReport>,
    /// `a/b` -> requests_per_core_s of a by that of b (medians).
    pub ratios: BTreeMap<String, f64>,
}

impl Machine {
    /// This one.
    pub fn this() -> Result<Self> {
        Self::with(Path::new("redis-server"))
    }

    /// This one with another Redis.
    pub fn with(redis: &Path) -> Result<Self> {
        let kernel =
            fs::read_to_string("/proc/sys/kernel/osrelease").context("no kernel release")?;
        let cpuinfo = CpuInfo::current().context("could not read /proc/cpuinfo")?;
        let said = Command::new(redis).arg("--version").output();
        let said =
            said.with_context(|| format!("could not run {}; is it installed?", redis.display()))?;
        let redis = String::from_utf8_lossy(&said.stdout);
        Ok(Self {
            kernel: kernel.trim().to_owned(),
            processor: cpuinfo.model_name(0).unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            redis: redis.lines().next().unwrap_or_default().trim().to_owned(),
        })
    }
}

impl ServerReport {
    /// Medians of the runs, of which there is at least one.
    pub fn new(args: &CapacityArgs, plan: &Plan, runs: Vec<Run>) -> Result<Self> {
        let spread_of = |figure: fn(&Run) -> f64| {
            Spread::of(runs.iter().map(figure)).context("there is no run to report")
        };
        let requests_per_s = spread_of(|run| run.requests_per_s)?;
        let cpu = spread_of(|run| run.server_cpu_ns_per_request)?;
        let per_core = spread_of(|run| run.requests_per_core_s)?;
        Ok(Self {
            op: plan.work.op.name(),
            server: plan.server.name(),
            conns: args.conns,
            keys: plan.work.keys,
            value_size: plan.work.value_size,
            batch: plan.work.batch,
            fields: plan.work.fields,
            request_bytes: plan.work.request(&[0]).len(),
            reply_bytes: plan.work.reply(&[0]).len(),
            requests_per_s: requests_per_s.median,
            server_cpu_ns_per_request: cpu.median,
            requests_per_core_s: per_core.median,
            server_cpu_quartiles: Quartiles::of(
                runs.iter().map(|run| run.server_cpu_ns_per_request),
            )
            .context("there is no run to report")?,
            spread: BTreeMap::from([
                ("requests_per_s", requests_per_s),
                ("server_cpu_ns_per_request", cpu),
                ("requests_per_core_s", per_core),
            ]),
            hit_ratio: Spread::of(runs.iter().filter_map(|run| run.hit_ratio)).map(|s| s.median),
            mismatches: runs.iter().map(|run| run.mismatches).sum(),
            stalled_conns: runs.iter().map(|run| run.stalled_conns).max().unwrap_or(0),
            runs,
            miss_with_fills: None,
            filled_keys: None,
            status: None,
        })
    }
}

impl MissWithFills {
    /// The same figures under another heading.
    pub fn from(report: ServerReport, cache_size: &str) -> Self {
        Self {
            cache_size: cache_size.to_owned(),
            keys: report.keys,
            requests_per_s: report.requests_per_s,
            server_cpu_ns_per_request: report.server_cpu_ns_per_request,
            requests_per_core_s: report.requests_per_core_s,
            hit_ratio: report.hit_ratio,
            mismatches: report.mismatches,
            stalled_conns: report.stalled_conns,
            runs: report.runs,
        }
    }
}

impl CapacityReport {
    /// Adds the ratios of each server to those after and before it.
    pub fn new(machine: Machine, servers: Vec<ServerReport>) -> Self {
        let mut ratios = BTreeMap::new();
        for a in &servers {
            for b in servers.iter().filter(|b| b.server != a.server) {
                let ratio = a.requests_per_core_s / b.requests_per_core_s;
                ratios.insert(format!("{}/{}", a.server, b.server), ratio);
                if let Some(miss) = &a.miss_with_fills {
                    let ratio = miss.requests_per_core_s / b.requests_per_core_s;
                    ratios.insert(format!("{}+fills/{}", a.server, b.server), ratio);
                }
            }
        }
        Self {
            machine,
            servers,
            ratios,
        }
    }
}

/// One server: its object with the machine's facts in it; several: an object with `servers`.
pub fn to_json(report: &CapacityReport) -> Result<Value> {
    let machine = json!(report.machine);
    let [only] = report.servers.as_slice() else {
        return Ok(json!({
            "kernel": report.machine.kernel,
            "machine": machine,
            "servers": report.servers,
            "ratios": report.ratios,
        }));
    };
    let mut object = serde_json::to_value(only)?;
    object["kernel"] = json!(report.machine.kernel);
    object["machine"] = machine;
    Ok(object)
}

/// The table that people read.
pub fn to_table(report: &CapacityReport) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "server",
        "requests/s",
        "server ns/request",
        "(min-max)",
        "NAPI",
        "Redis",
        "daemon",
        "requests/core s",
        "hit ratio",
        "mismatches",
        "stalled",
    ]);
    for server in &report.servers {
        let cpu = server.spread["server_cpu_ns_per_request"];
        table.add_row(row(
            server.server.into(),
            &server.runs,
            cpu,
            server.hit_ratio,
        ));
        if let Some(miss) = &server.miss_with_fills {
            let label = format!("{} +fills, {} keys", server.server, miss.keys);
            let cpu = Spread::of(miss.runs.iter().map(|run| run.server_cpu_ns_per_request));
            if let Some(cpu) = cpu {
                table.add_row(row(label, &miss.runs, cpu, miss.hit_ratio));
            }
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n");
    for (pair, ratio) in &report.ratios {
        text += &format!("{pair} per core: {ratio:.3}\n");
    }
    for server in &report.servers {
        text += &written_back(server).unwrap_or_default();
    }
    let runs = report.servers.iter().flat_map(|server| &server.runs);
    let foreign = Spread::of(runs.map(|run| run.foreign_share)).map_or(0.0, |share| share.max);
    if foreign > FOREIGN_SHARE_TOLD {
        text += &format!(
            "other programs took up to {:.0} % of the server's core: repeat on a quiet machine\n",
            foreign * 100.0
        );
    }
    let machine = &report.machine;
    text += &format!(
        "{}, {} cores, Linux {}\n",
        machine.processor, machine.cores, machine.kernel
    );
    text
}

/// Of SETs that are answered in Redis's place: what of their cost is paid before the reply, and how they were drained.
fn written_back(server: &ServerReport) -> Option<String> {
    let status = server.status.as_ref()?;
    let writes = |name: &str| status["writes"][name].as_f64();
    let [drained, keys, batches] = ["drained", "drained_keys", "batches"].map(writes);
    let (drained, keys, batches) = (drained?, keys?, batches?);
    if drained == 0.0 {
        return None;
    }
    let path = Spread::of(server.runs.iter().map(|run| run.napi_ns_per_request))?.median;
    let all = server.server_cpu_ns_per_request;
    Some(format!(
        "{}: {path:.0} ns, {:.0} % of the {all:.0} ns are the receive thread's, with which a reply is sent; the rest \
         brings it to Redis\n{}: since the boost {:.0} SETs a batch, {:.2} for a key that was written\n",
        server.server,
        100.0 * path / all,
        server.server,
        drained / batches.max(1.0),
        drained / keys.max(1.0),
    ))
}

fn row(label: String, runs: &[Run], cpu: Spread, hit_ratio: Option<f64>) -> Vec<Cell> {
    let median = |figure: fn(&Run) -> f64| {
        let spread = Spread::of(runs.iter().map(figure));
        format!("{:.0}", spread.map_or(0.0, |spread| spread.median))
    };
    [
        label,
        median(|run| run.requests_per_s),
        format!("{:.0}", cpu.median),
        format!("{:.0}-{:.0}", cpu.min, cpu.max),
        median(|run| run.napi_ns_per_request),
        median(|run| run.redis_ns_per_request),
        median(|run| run.daemon_ns_per_request),
        format!("{:.0}", 1e9 / cpu.median),
        hit_ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.4}")),
        runs.iter()
            .map(|run| run.mismatches)
            .sum::<u64>()
            .to_string(),
        runs.iter()
            .map(|run| run.stalled_conns)
            .max()
            .unwrap_or(0)
            .to_string(),
    ]
    .map(Cell::new)
    .to_vec()
}
