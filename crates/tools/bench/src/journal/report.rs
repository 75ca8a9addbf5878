// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `erb bench journal` found: as JSON and as a table.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::args::Sink;
use super::delays::Delays;
use crate::report::{FOREIGN_SHARE_TOLD, Machine, Run};
use crate::stats::Spread;

/// What data path and journal did, as they count it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Work {
    /// SETs that were answered in Redis's place.
    pub answered: u64,
    /// Records that were written.
    pub records: u64,
    /// Writes that these were.
    pub batches: u64,
    /// Syncs.
    pub syncs: u64,
    /// How often a push has woken the module's thread that writes.
    pub wakes: u64,
    /// Writes and syncs that failed.
    pub failures: u64,
}

impl Work {
    /// What was done since then.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            answered: self.answered.saturating_sub(before.answered),
            records: self.records.saturating_sub(before.records),
            batches: self.batches.saturating_sub(before.batches),
            syncs: self.syncs.saturating_sub(before.syncs),
            wakes: self.wakes.saturating_sub(before.wakes),
            failures: self.failures.saturating_sub(before.failures),
        }
    }
}

/// Processor time of the server's side, for each SET that a client was told of.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Times {
    /// Length, until the last SET is in Redis and synced.
    pub seconds: f64,
    /// SETs per second of that.
    pub sets_per_s: f64,
    /// All of it: the sum of the four below.
    pub all_ns: f64,
    /// The receive thread: the packet path, and with the module what it takes of a program's time.
    pub path_ns: f64,
    /// redis-server, all threads.
    pub redis_ns: f64,
    /// The daemon without its journal's thread.
    pub daemon_ns: f64,
    /// The journal: the daemon's thread, and the module's.
    pub journal_ns: f64,
    /// That for each record that was written.
    pub journal_ns_per_record: f64,
    /// Share of the time for which the server's core worked for anybody else.
    pub foreign_share: f64,
}

/// One run of one sink.
#[derive(Debug, Clone, Serialize)]
pub struct SinkRun {
    /// SETs, those of the warm-up among them.
    pub sets: u64,
    /// What was done of them.
    #[serde(flatten)]
    pub work: Work,
    /// None where all is emulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
}

impl SinkRun {
    /// Out of what was measured.
    ///
    /// # Errors
    /// A client was told what is wrong.
    pub fn new(run: &Run, work: Work, is_timed: bool) -> Result<Self> {
        ensure!(run.mismatches == 0, "{} replies were wrong", run.mismatches);
        let journal_ns = run.journal_ns_per_request.unwrap_or(0.0);
        let records_per_set = work.records as f64 / run.replies.max(1) as f64;
        let times = Times {
            seconds: run.seconds,
            sets_per_s: run.requests_per_s,
            all_ns: run.server_cpu_ns_per_request,
            path_ns: run.napi_ns_per_request,
            redis_ns: run.redis_ns_per_request,
            daemon_ns: run.daemon_ns_per_request,
            journal_ns,
            journal_ns_per_record: match work.records {
                0 => 0.0,
                _ => journal_ns / records_per_set,
            },
            foreign_share: run.foreign_share,
        };
        Ok(Self {
            sets: run.replies,
            work,
            times: is_timed.then_some(times),
        })
    }
}

/// All runs of one sink.
#[derive(Debug, Clone, Serialize)]
pub struct SinkReport {
    /// Its name.
    pub sink: &'static str,
    /// Processor time per SET, with all of the server's side; none where all is emulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_ns: Option<Spread>,
    /// That of the journal, which is part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal_ns: Option<Spread>,
    /// Records for each sync.
    pub records_per_sync: Spread,
    /// From reply to sync; none: it was not watched, or not seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays: Option<Delays>,
    /// Every run, in order.
    pub runs: Vec<SinkRun>,
}

fn per(of: u64, by: u64) -> f64 {
    of as f64 / by.max(1) as f64
}

impl SinkReport {
    /// None without runs.
    pub fn new(sink: Sink, runs: Vec<SinkRun>, delays: Option<Delays>) -> Option<Self> {
        let times = |figure: fn(&Times) -> f64| {
            Spread::of(runs.iter().filter_map(|run| run.times.as_ref()).map(figure))
        };
        Some(Self {
            sink: sink.name(),
            all_ns: times(|times| times.all_ns),
            journal_ns: times(|times| times.journal_ns),
            records_per_sync: Spread::of(
                runs.iter().map(|run| per(run.work.records, run.work.syncs)),
            )?,
            delays,
            runs,
        })
    }

    fn median(&self, figure: impl Fn(&SinkRun) -> f64) -> f64 {
        Spread::of(self.runs.iter().map(figure)).map_or(0.0, |spread| spread.median)
    }

    fn time(&self, figure: fn(&Times) -> f64) -> f64 {
        self.median(|run| run.times.as_ref().map_or(0.0, figure))
    }

    /// Of a sink that writes.
    fn counts(&self) -> [String; 3] {
        if self.runs.iter().all(|run| run.work.records == 0) {
            return ["-".into(), "-".into(), "-".into()];
        }
        let wakes = self.median(|run| 100.0 * per(run.work.wakes, run.work.records));
        [
            format!(
                "{:.0}",
                self.median(|run| per(run.work.records, run.work.batches))
            ),
            format!("{:.0}", self.records_per_sync.median),
            if self.sink == Sink::Kmod.name() {
                format!("{wakes:.2}")
            } else {
                "-".into()
            },
        ]
    }

    fn timed_row(&self) -> Vec<String> {
        let all = self
            .all_ns
            .map_or_else(String::new, |all| format!("{:.0}-{:.0}", all.min, all.max));
        let journal = self.time(|times| times.journal_ns);
        let share = 100.0 * journal / self.time(|times| times.all_ns).max(1.0);
        let mut row = vec![
            self.sink.to_owned(),
            format!("{:.0}", self.time(|times| times.sets_per_s)),
            format!("{:.0}", self.time(|times| times.all_ns)),
            all,
            format!("{:.0}", self.time(|times| times.path_ns)),
            format!("{:.0}", self.time(|times| times.redis_ns)),
            format!("{:.0}", self.time(|times| times.daemon_ns)),
            format!("{journal:.0} ({share:.0} %)"),
            format!("{:.0}", self.time(|times| times.journal_ns_per_record)),
        ];
        row.extend(self.counts());
        row.push(self.delays.map_or_else(
            || "-".to_owned(),
            |delays| format!("{:.0} {:.0}", delays.p50_ms, delays.p99_ms),
        ));
        row
    }

    fn counted_row(&self) -> Vec<String> {
        let sum = |figure: fn(&SinkRun) -> u64| {
            let sum: u64 = self.runs.iter().map(figure).sum();
            sum.to_string()
        };
        let mut row = vec![
            self.sink.to_owned(),
            sum(|run| run.sets),
            sum(|run| run.work.answered),
            sum(|run| run.work.records),
            sum(|run| run.work.batches),
            sum(|run| run.work.syncs),
            sum(|run| run.work.wakes),
        ];
        row.extend(self.counts());
        row
    }
}

/// A sink that was asked for and cannot be had.
#[derive(Debug, Clone, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub sink: &'static str,
    /// Why, and what to do.
    pub why: String,
}

/// The whole measurement.
#[derive(Debug, Clone, Serialize)]
pub struct SinksReport {
    /// Where.
    pub machine: Machine,
    /// By what all is emulated; none: it is not. Then nothing has times.
    pub emulator: Option<String>,
    /// The folder in which journals were written.
    pub disk: String,
    /// It is in memory: syncs cost nothing.
    pub is_tmpfs: bool,
    /// In the order they were asked for.
    pub sinks: Vec<SinkReport>,
    /// See [`LeftOut`].
    pub left_out: Vec<LeftOut>,
}

const TIMED: [&str; 13] = [
    "sink",
    "SETs/s",
    "server ns/SET",
    "(min-max)",
    "NAPI",
    "Redis",
    "daemon",
    "journal",
    "journal/record",
    "records/write",
    "records/sync",
    "wakes/100 records",
    "synced ms p50 p99",
];

const COUNTED: [&str; 10] = [
    "sink",
    "SETs",
    "answered",
    "records",
    "writes",
    "syncs",
    "wakes",
    "records/write",
    "records/sync",
    "wakes/100 records",
];

impl SinksReport {
    /// The table that people read.
    pub fn to_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        match &self.emulator {
            None => table.set_header(TIMED),
            Some(_) => table.set_header(COUNTED),
        };
        for sink in &self.sinks {
            table.add_row(match &self.emulator {
                None => sink.timed_row(),
                Some(_) => sink.counted_row(),
            });
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{table}\n");
        self.notes(&mut text);
        text
    }

    fn notes(&self, text: &mut String) {
        for out in &self.left_out {
            let _ = writeln!(text, "{} is left out: {}", out.sink, out.why);
        }
        if let Some(by) = &self.emulator {
            let _ = writeln!(
                text,
                "counts alone: this machine is emulated ({by}), so its times are the emulator's and rank nothing"
            );
        }
        if self.is_tmpfs {
            let _ = writeln!(
                text,
                "{} is in memory, where a sync does nothing: --folder names one on a disk",
                self.disk
            );
        }
        let looks = self.sinks.iter().filter_map(|sink| sink.delays);
        if let Some(apart) = Spread::of(looks.map(|delays| delays.look_ms)) {
            let _ = writeln!(
                text,
                "when a SET is synced was looked at each {:.0} ms, of kmod each 200 ms; in a run that counts for nothing else",
                apart.max
            );
        }
        let runs = self.sinks.iter().flat_map(|sink| &sink.runs);
        let times = runs.filter_map(|run| run.times.as_ref());
        let foreign = Spread::of(times.map(|times| times.foreign_share));
        let foreign = foreign.map_or(0.0, |share| share.max);
        if foreign > FOREIGN_SHARE_TOLD {
            let _ = writeln!(
                text,
                "other programs took up to {:.0} % of the server's core: repeat on a quiet machine",
                foreign * 100.0
            );
        }
        let machine = &self.machine;
        let _ = writeln!(
            text,
            "journals in {}; the kernel's own writing back is counted nowhere\n{}, {} cores, Linux {}, {}",
            self.disk, machine.processor, machine.cores, machine.kernel, machine.redis
        );
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
