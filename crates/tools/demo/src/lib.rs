// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb demo`, what `./run` shows: what a user gets of ERB on this machine, what the server could do,
//! and what does not gain. It measures by `erb bench` and has no client of its own.
//!
//! # Layout
//! - [`DemoArgs`], [`run`]: the command, and what is measured in which order.
//! - `row`: figures of Redis alone and of ERB beside each other; `why`: why ERB is slower in one.
//! - `report`: all of them, as JSON and as text; `plot`: latencies as bars.

mod plot;
mod report;
mod row;
mod why;

use std::fs::{self, File};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser};
use erb_bench::args::{BenchArgs, BenchCommand, parse_within};
use erb_bench::workload::{Mix, PER_S, Session, WorkloadReport};
use erb_bench::{CACHED_BYTES_MAX, CapacityReport};
use erb_lab::{Erb, Stop};
use nix::fcntl::{Flock, FlockArg};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::plot::Load;
use crate::report::{Group, Report};
use crate::row::{Facts, Figure, Row, pair, rows};

/// What clients read and write: all of it fits into ERB's cache, and is there soon.
const KEYS: u32 = 10_000;
/// Connections of ordinary clients.
const CONNS: u32 = 50;
/// More threads than this would have too few connections each.
const CLIENT_CORES_MAX: usize = 16;
/// The capacity measurement's processors: the server's, and the generator's.
const CAPACITY_CORES: [usize; 2] = [0, 1];
/// Short runs of each server in turn, of which medians and quartiles are shown: what others do on the
/// machine meanwhile hits both.
const RUNS: u32 = 5;
/// The same under the generator in XDP, whose figures settle sooner.
const CAPACITY_RUNS: u32 = 9;
/// Seconds of one of these.
const CAPACITY_SECONDS: f64 = 0.3;
/// Values that need several packets.
const BIG_VALUE_BYTES: u32 = 4000;
/// Loads that are offered, as shares of what Redis alone can do at most.
const LOADS: [(&str, f64); 3] = [
    ("a third", 1.0 / 3.0),
    ("two thirds", 2.0 / 3.0),
    ("all", 1.0),
];
/// A boosted Redis that still answers more than this share of the reads itself is not boosted.
const MISS_SHARE_MAX: f64 = 0.1;
/// Held while a demonstration runs: two would measure each other.
const LOCK_FILE: &str = "/run/erb/demo.lock";
/// Measurements: one for each line of progress.
const STEPS: u32 = 9;

/// Show what ERB gains on this machine, and what not: Redis alone beside Redis boosted.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Length of one run of ordinary clients, in seconds.
    #[arg(long, default_value_t = 0.75, value_parser = |text: &str| parse_within(text, 0.5, 60.0))]
    pub seconds: f64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Measures all of it and prints the result.
///
/// Needs root and two processors. What it makes is gone when it returns, also on error, SIGINT and
/// SIGTERM.
pub fn run(args: &DemoArgs, erb: &Erb) -> Result<()> {
    let mut demo = Demo {
        erb,
        seconds: args.seconds,
        cores: processors()?,
        stop: Stop::watch()?,
        begun: Instant::now(),
        step: 0,
    };
    let _lock = lock()?;
    let report = demo.measure()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.to_text());
    }
    Ok(())
}

/// What would fail half-way is said before anything is made.
fn processors() -> Result<Vec<usize>> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "namespaces and XDP programs need root; run it with sudo"
    );
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("no list of processors")?;
    let cores = (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap_or(false));
    let cores: Vec<usize> = cores.collect();
    for core in CAPACITY_CORES {
        ensure!(
            cores.contains(&core),
            "processor {core} may not be used; the demonstration needs processors {} and {}",
            CAPACITY_CORES[0],
            CAPACITY_CORES[1]
        );
    }
    Ok(cores)
}

fn lock() -> Result<Flock<File>> {
    fs::create_dir_all("/run/erb").context("cannot make /run/erb")?;
    let file = File::create(LOCK_FILE).with_context(|| format!("cannot make {LOCK_FILE}"))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        anyhow::anyhow!(
            "another demonstration runs on this machine ({LOCK_FILE}: {errno}); wait for its end"
        )
    })
}

/// A demonstration at work.
struct Demo<'a> {
    erb: &'a Erb,
    seconds: f64,
    cores: Vec<usize>,
    stop: Stop,
    begun: Instant,
    step: u32,
}

/// What ordinary clients met.
struct Traffic {
    /// YCSB C.
    reads: WorkloadReport,
    /// YCSB B.
    few_writes: WorkloadReport,
    /// YCSB A.
    half_writes: WorkloadReport,
    /// YCSB B at [`LOADS`].
    offered: Vec<WorkloadReport>,
}

impl<'a> Demo<'a> {
    fn measure(&mut self) -> Result<Report> {
        let traffic = self.traffic()?;
        let big = self.big_values()?;
        let hits = self.capacity("keys in the cache", "--server redis,erb,echo")?;
        let misses = self.capacity("keys not in the cache", "--server redis,erb --hit-ratio 0")?;
        let all = [
            &traffic.reads,
            &traffic.few_writes,
            &traffic.half_writes,
            &big,
        ];
        let foreign = all.into_iter().chain(&traffic.offered).map(row::foreign);
        Ok(Report {
            machine: hits.machine.clone(),
            setting: [
                format!(
                    "{CONNS} connections of ordinary clients share all processors with the server."
                ),
                format!(
                    "{} keys of 100 bytes, zipfian.",
                    report::grouped(f64::from(KEYS))
                ),
                format!(
                    "Medians of {RUNS} runs in turn, {CAPACITY_RUNS} in section 3; every reply was checked."
                ),
            ],
            gets: gets(&traffic)?,
            loads: loads(&traffic.offered)?,
            capacity: capacity(&hits, &misses)?,
            no_gain: no_gain(&traffic.half_writes, &big, &misses)?,
            limit: row::of_server(&hits, "echo")?.requests_per_core_s,
            foreign_share: foreign.fold(0.0, f64::max),
            again: self.line("--mix b"),
        })
    }

    /// Says what is measured now. Standard output is the result's.
    fn next(&mut self, what: &str) -> Result<()> {
        self.stop.check()?;
        self.step += 1;
        let (step, at) = (self.step, self.begun.elapsed().as_secs());
        eprintln!("demo: {step} of {STEPS} ({at} s): {what}");
        Ok(())
    }

    /// The options of `erb bench workload` that measure what a user gets.
    fn line(&self, more: &str) -> String {
        let list = |cores: &[usize]| {
            let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
            cores.join(",")
        };
        let clients = &self.cores[..self.cores.len().min(CLIENT_CORES_MAX)];
        format!(
            "workload --keys {KEYS} --conns {CONNS} --server-core {} --client-core {} {more}",
            list(&self.cores),
            list(clients)
        )
    }

    fn session(&self, more: &str) -> Result<Session<'a>> {
        let line = self.line(&format!("{more} --runs {RUNS} --seconds {}", self.seconds));
        match bench(&line)? {
            BenchCommand::Workload(args) => Session::new(*args, self.erb),
            _ => bail!("`erb bench {line}` is another measurement"),
        }
    }

    fn traffic(&mut self) -> Result<Traffic> {
        let mut session = self.session("--mix c --warm-up 2")?;
        self.next("only reads (YCSB C), Redis alone and boosted in turn")?;
        let reads = session.measure()?;
        check_boosted(&reads, &session)?;
        self.next("5 % writes (YCSB B)")?;
        session.turn_to(Mix::B, None)?;
        let few_writes = session.measure()?;
        let most = pair(&few_writes)?[0].median(PER_S);
        let mut offered = Vec::new();
        for (share, of_most) in LOADS {
            let rate = (most * of_most).round();
            self.next(&format!(
                "{rate} requests/s, {share} of what Redis alone can do"
            ))?;
            session.turn_to(Mix::B, Some(rate))?;
            offered.push(session.measure()?);
        }
        self.next("half writes (YCSB A)")?;
        session.turn_to(Mix::A, None)?;
        Ok(Traffic {
            reads,
            few_writes,
            half_writes: session.measure()?,
            offered,
        })
    }

    fn big_values(&mut self) -> Result<WorkloadReport> {
        self.next(&format!("values of {BIG_VALUE_BYTES} bytes"))?;
        let more = format!("--mix c --value-bytes {BIG_VALUE_BYTES} --warm-up 0.5");
        self.session(&more)?.measure()
    }

    fn capacity(&mut self, what: &str, options: &str) -> Result<CapacityReport> {
        self.next(&format!(
            "capacity, {what}: 200 connections that always ask"
        ))?;
        let [server, generator] = CAPACITY_CORES;
        let line = format!(
            "capacity {options} --server-core {server} --generator-core {generator} --runs {CAPACITY_RUNS} \
             --seconds {CAPACITY_SECONDS}"
        );
        let BenchCommand::Capacity(args) = bench(&line)? else {
            bail!("`erb bench {line}` is another measurement");
        };
        let report = erb_bench::measure_capacity(&args, self.erb)
            .context("the capacity measurement failed")?;
        for server in &report.servers {
            ensure!(
                server.mismatches == 0,
                "{} of the replies were not what {} has to answer",
                server.mismatches,
                server.server
            );
        }
        Ok(report)
    }
}

/// The options of a line of `erb bench`.
fn bench(line: &str) -> Result<BenchCommand> {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }
    let words = ["bench"].into_iter().chain(line.split_whitespace());
    let parsed = Line::try_parse_from(words);
    Ok(parsed
        .with_context(|| format!("erb bench {line}"))?
        .bench
        .command)
}

/// Redis's own count is the witness: what it did not see was answered by ERB. ERB's own reads
/// (fills) count against it.
fn check_boosted(reads: &WorkloadReport, session: &Session<'_>) -> Result<()> {
    let by_redis = pair(reads)?[1].median("reads_by_redis");
    if by_redis > MISS_SHARE_MAX {
        bail!(
            "Redis itself still answers {:.1} % of the reads; ERB says:\n{}",
            by_redis * 100.0,
            session.status()?
        );
    }
    Ok(())
}

fn gets(traffic: &Traffic) -> Result<Vec<Group>> {
    use Figure::{GetMedian, GetP99, PerSecond, ServerTime, SetP99};
    let share = |report| -> Result<String> {
        let hits = Facts::of(report)?.hits;
        Ok(format!("ERB answers {:.0} % of the reads", hits * 100.0))
    };
    let (reads, few) = (&traffic.reads, &traffic.few_writes);
    let mut groups = vec![
        Group {
            heading: format!(
                "Clients ask again when they are answered; only reads (YCSB C), {}",
                share(reads)?
            ),
            rows: rows(reads, &[PerSecond, GetMedian, GetP99, ServerTime])?,
        },
        Group {
            heading: format!("The same with 5 % writes (YCSB B), {}", share(few)?),
            rows: rows(few, &[PerSecond, GetP99, SetP99, ServerTime])?,
        },
    ];
    // What Redis alone cannot do is the plot's.
    for (report, (share, of_most)) in traffic.offered.iter().zip(LOADS) {
        if of_most < 1.0 {
            let rate = report::grouped(row::rate(report)?);
            groups.push(Group {
                heading: format!(
                    "5 % writes, {rate} requests per second: {share} of what Redis alone can do"
                ),
                rows: rows(report, &[GetMedian, GetP99, SetP99])?,
            });
        }
    }
    Ok(groups)
}

fn loads(offered: &[WorkloadReport]) -> Result<Vec<Load>> {
    let all = offered.iter().zip(LOADS);
    all.map(|(report, (share, _))| Load::of(share, report))
        .collect()
}

fn capacity(hits: &CapacityReport, misses: &CapacityReport) -> Result<Vec<Row>> {
    Ok(vec![
        Row::of_capacity("GET of a key in the cache", hits)?,
        Row::of_capacity("GET of a key not in the cache", misses)?,
    ])
}

fn no_gain(
    half_writes: &WorkloadReport,
    big: &WorkloadReport,
    misses: &CapacityReport,
) -> Result<Vec<Group>> {
    use Figure::{PerSecond, ServerTime};
    Ok(vec![
        Group {
            heading: "Half writes (YCSB A)".to_owned(),
            rows: rows(half_writes, &[PerSecond, ServerTime])?,
        },
        Group {
            heading: format!(
                "Values of {} bytes; ERB caches {} at most",
                report::grouped(f64::from(BIG_VALUE_BYTES)),
                report::grouped(CACHED_BYTES_MAX as f64)
            ),
            rows: rows(big, &[PerSecond, ServerTime])?,
        },
        Group {
            heading: "Reads of sixteen times as many keys as fit into ERB's cache".to_owned(),
            rows: vec![Row::of_capacity_with_fills(misses)?],
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_are_lines_that_erb_bench_understands() {
        let workload = bench("workload --keys 10000 --server-core 0,1 --mix b --seconds 1.5");
        assert!(matches!(workload.unwrap(), BenchCommand::Workload(_)));
        let capacity = bench("capacity --server redis,erb --hit-ratio 0 --runs 3");
        assert!(matches!(capacity.unwrap(), BenchCommand::Capacity(_)));
        let error = bench("workload --mix z").expect_err("an error");
        assert!(format!("{error:#}").starts_with("erb bench workload --mix z"));
    }
}
