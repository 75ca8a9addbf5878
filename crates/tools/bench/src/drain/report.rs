// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `erb bench drain` found: as JSON and as a table.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::args::{Case, DrainArgs};
use crate::report::Machine;
use crate::stats::Spread;

/// One run of one case. All times per write are of a SET that a client would have sent.
#[derive(Debug, Clone, Serialize)]
pub struct DrainRun {
    /// Length, until the last write was in Redis.
    pub seconds: f64,
    /// SETs.
    pub writes: u64,
    /// SETs per second.
    pub writes_per_s: f64,
    /// Processor time of all that is below.
    pub all_ns: f64,
    /// Share of redis-server, all threads.
    pub redis_ns: f64,
    /// Share of the drain's thread.
    pub drain_ns: f64,
    /// Share of the receive thread of the server's device, for ordinary clients.
    pub receive_ns: f64,
    /// Share of the kernel's softirq threads.
    pub softirq_ns: f64,
    /// Of a drain.
    pub drained: Option<DrainFigures>,
}

/// What only a drain has.
#[derive(Debug, Clone, Serialize)]
pub struct DrainFigures {
    /// Processor time of Redis for each key that it was told.
    pub redis_ns_per_key: f64,
    /// Processor time of Redis and drain for each such key.
    pub all_ns_per_key: f64,
    /// Writes by keys that Redis was told.
    pub coalescing: f64,
    /// Keys of a batch, on average.
    pub keys_per_batch: f64,
    /// Batches.
    pub batches: u64,
    /// From a write's LSN to Redis's reply, in us. While rings are full it says how full they are.
    pub lag_p50_us: f64,
    /// The same.
    pub lag_p99_us: f64,
    /// Keys that did not hold what was written last; must be 0.
    pub mismatches: u64,
}

/// All runs of one case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// Its name.
    pub case: String,
    /// Processor time per write.
    pub all_ns: Spread,
    /// Of Redis.
    pub redis_ns: Spread,
    /// Of the drain.
    pub drain_ns: Spread,
    /// As observed.
    pub writes_per_s: Spread,
    /// Every run, in order.
    pub runs: Vec<DrainRun>,
}

/// The whole measurement.
#[derive(Debug, Clone, Serialize)]
pub struct DrainReport {
    /// Where.
    pub machine: Machine,
    /// Keys, bytes of a value, the aim of a batch in us, writes per second asked for.
    pub keys: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// How long a batch may keep Redis, us.
    pub batch_us: u64,
    /// Writes per second offered; 0: all that there is room for.
    pub rate: u32,
    /// Redis's own log.
    pub aof: String,
    /// Way of the drain to Redis.
    pub way: String,
    /// Device between ordinary clients and Redis.
    pub over: &'static str,
    /// In the order they were asked for.
    pub cases: Vec<CaseReport>,
}

impl CaseReport {
    /// None without runs.
    pub fn new(case: Case, runs: Vec<DrainRun>) -> Option<Self> {
        let spread = |figure: fn(&DrainRun) -> f64| Spread::of(runs.iter().map(figure));
        Some(Self {
            case: case.name(),
            all_ns: spread(|run| run.all_ns)?,
            redis_ns: spread(|run| run.redis_ns)?,
            drain_ns: spread(|run| run.drain_ns)?,
            writes_per_s: spread(|run| run.writes_per_s)?,
            runs,
        })
    }

    fn row(&self) -> [String; 10] {
        let of = |figure: fn(&DrainFigures) -> f64| {
            let figures = self.runs.iter().filter_map(|run| run.drained.as_ref());
            Spread::of(figures.map(figure)).map(|spread| spread.median)
        };
        let shown = |number: Option<f64>, digits: usize| {
            number.map_or_else(|| "-".into(), |number| format!("{number:.digits$}"))
        };
        [
            self.case.clone(),
            format!("{:.0}", self.writes_per_s.median),
            format!("{:.0}", self.all_ns.median),
            format!("{:.0}-{:.0}", self.all_ns.min, self.all_ns.max),
            format!("{:.0}", self.redis_ns.median),
            format!("{:.0}", self.drain_ns.median),
            shown(of(|drained| drained.redis_ns_per_key), 0),
            shown(of(|drained| drained.coalescing), 2),
            shown(of(|drained| drained.keys_per_batch), 0),
            match (
                of(|drained| drained.lag_p50_us),
                of(|drained| drained.lag_p99_us),
            ) {
                (Some(p50), Some(p99)) => format!("{p50:.0} {p99:.0}"),
                _ => "-".into(),
            },
        ]
    }
}

impl DrainReport {
    /// Of all cases.
    pub fn new(machine: Machine, args: &DrainArgs, cases: Vec<CaseReport>) -> Self {
        Self {
            machine,
            keys: args.keys,
            value_size: args.value_size,
            batch_us: args.batch_us,
            rate: args.rate,
            aof: format!("{:?}", args.aof).to_lowercase(),
            way: format!("{:?}", args.way).to_lowercase(),
            over: args.over.name(),
            cases,
        }
    }

    /// The table that people read.
    pub fn to_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "case",
            "writes/s",
            "ns/write",
            "(min-max)",
            "Redis",
            "drain",
            "Redis/key",
            "coalescing",
            "keys/batch",
            "lag us p50 p99",
        ]);
        for case in &self.cases {
            table.add_row(case.row());
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let figures = self.cases.iter().flat_map(|case| &case.runs);
        let wrong = figures.filter_map(|run| run.drained.as_ref());
        let wrong: u64 = wrong.map(|drained| drained.mismatches).sum();
        let machine = &self.machine;
        format!(
            "{table}\nkeys that did not hold what was written last: {wrong}\n{}, {} cores, Linux {}, {}\n",
            machine.processor, machine.cores, machine.kernel, machine.redis
        )
    }
}
