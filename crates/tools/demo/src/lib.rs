// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb demo`, what `./run` shows: the same clients against Redis alone and against Redis boosted,
//! then the capacity figures, in one table.
//!
//! # Layout
//! - [`DemoArgs`], [`run`]: the command.
//! - `stage`: one lab with its processes on processors of their own; clients are run against it.
//! - `table`: rows, as text and as JSON.
//!
//! The figures of the clients say what those clients see on this machine. On two processors they
//! are bound by the client; what the server could do is in the capacity rows.

mod stage;
mod table;

use std::fs::{self, File};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use erb_bench::args::{CapacityArgs, Op, Server, WorkArgs};
use erb_bench::clients::{self, ClientLoad, ClientRun};
use erb_lab::{Erb, Mode, Stop};
use nix::fcntl::{Flock, FlockArg};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use crate::stage::Stage;
use crate::table::{Report, Row};

pub use crate::stage::KEYS;

/// Processor of everything that counts as server; as in `erb bench capacity`.
const SERVER_CORE: usize = 0;
/// Processor of the clients.
const CLIENT_CORE: usize = 1;
/// Held while a demonstration runs, so that a lab of its name that nobody holds is a left-over.
const LOCK_FILE: &str = "/run/erb/demo.lock";
/// Runs per server of the capacity rows; the comparison of `erb bench capacity` takes seven.
const CAPACITY_RUNS: u32 = 3;
/// Holds all of the capacity rows' keys, and is less than half of a machine with 1 GiB.
const CAPACITY_CACHE: &str = "256M";
/// A boosted Redis that still answers more than this share itself after warming up is not boosted.
const MISS_SHARE_MAX: f64 = 0.1;

/// Show Redis alone beside Redis boosted, with real clients, in a lab of its own.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Length of one client run, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub seconds: u32,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// One client program with its settings.
#[derive(Clone, Copy)]
struct Workload {
    label: &'static str,
    conns: usize,
    kind: ClientKind,
}

#[derive(Clone, Copy)]
enum ClientKind {
    /// redis-benchmark; it counts requests, not time: `per_s` is what it is given for a second.
    RedisBenchmark {
        pipeline: u32,
        per_s: u64,
    },
    RedisRs,
}

const WORKLOADS: [Workload; 3] = [
    Workload {
        label: "redis-benchmark, 50 connections",
        conns: 50,
        kind: ClientKind::RedisBenchmark {
            pipeline: 1,
            per_s: 100_000,
        },
    },
    Workload {
        // More would not fit into veth's packet buffers and go up.
        label: "redis-benchmark, 50 connections, 2 commands per packet",
        conns: 50,
        kind: ClientKind::RedisBenchmark {
            pipeline: 2,
            per_s: 150_000,
        },
    },
    Workload {
        label: "redis-rs (client library), 16 connections",
        conns: 16,
        kind: ClientKind::RedisRs,
    },
];

impl Workload {
    /// Runs it on the clients' processor; also the number of requests it sent.
    fn run(&self, stage: &Stage<'_>, seconds: u32) -> Result<(ClientRun, u64)> {
        let pids = stage.server_pids();
        let load = ClientLoad {
            conns: self.conns,
            ..stage.load(&pids)
        };
        stage::on_core(CLIENT_CORE, || match self.kind {
            ClientKind::RedisBenchmark { pipeline, per_s } => {
                let requests = u64::from(seconds) * per_s;
                Ok((
                    clients::redis_benchmark(&load, requests, pipeline)?,
                    requests,
                ))
            }
            ClientKind::RedisRs => {
                let time = Duration::from_secs(seconds.into());
                let run = clients::redis_rs(&load, time)?;
                let requests = (run.requests_per_s * time.as_secs_f64()).round() as u64;
                Ok((run, requests))
            }
        })
    }
}

/// Runs the demonstration and prints its result.
///
/// Needs root and two processors. What it makes is gone when it returns, also on error, SIGINT and
/// SIGTERM.
pub fn run(args: &DemoArgs, erb: &Erb) -> Result<()> {
    check_machine()?;
    let stop = Stop::watch()?;
    let _lock = lock()?;
    let mut rows = Vec::new();
    for mode in [Mode::Off, Mode::Read] {
        rows.extend(client_rows(args, erb, mode, &stop)?);
    }
    // Beside each other what belongs together; the sort is stable: alone, then boosted.
    rows.sort_by_key(|row| WORKLOADS.iter().position(|known| known.label == row.client));
    stop.check()?;
    progress("capacity: generator in XDP, 200 connections, 100,000 keys");
    let capacity = erb_bench::measure_capacity(&capacity_args(), erb)
        .context("the capacity measurement failed")?;
    rows.extend(capacity.servers.iter().map(Row::of_capacity));
    let report = Report::new(capacity.machine, rows);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.to_text());
    }
    Ok(())
}

/// What would fail half-way is said before anything is made.
fn check_machine() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "namespaces and XDP programs need root; run it with sudo"
    );
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("no list of processors")?;
    for core in [SERVER_CORE, CLIENT_CORE] {
        ensure!(
            allowed.is_set(core).unwrap_or(false),
            "processor {core} may not be used; the demonstration needs processor {SERVER_CORE} \
             for the server and {CLIENT_CORE} for the clients"
        );
    }
    Ok(())
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

/// All workloads against one lab.
fn client_rows(args: &DemoArgs, erb: &Erb, mode: Mode, stop: &Stop) -> Result<Vec<Row>> {
    let server = match mode {
        Mode::Off => "Redis alone",
        Mode::Read => "boosted",
    };
    progress(&format!("{server}: lab, {KEYS} keys, warm-up"));
    let stage = Stage::up(erb, mode, SERVER_CORE, CLIENT_CORE)?;
    let warm = warm_up(&stage, stop)?;
    if mode == Mode::Read && warm < 1.0 - MISS_SHARE_MAX {
        bail!(
            "ERB answers only {:.1} % of the GETs; it says:\n{}",
            warm * 100.0,
            stage.boost_status()
        );
    }
    let mut rows = Vec::new();
    for workload in &WORKLOADS {
        stop.check()?;
        progress(&format!("{server}: {}", workload.label));
        let before = stage.gets_of_redis()?;
        let (run, requests) = workload
            .run(&stage, args.seconds)
            .with_context(|| format!("{} against {server} failed", workload.label))?;
        let by_redis = stage.gets_of_redis()? - before;
        let hit_ratio = (mode == Mode::Read).then(|| share_not_by_redis(by_redis, requests));
        rows.push(Row::of_client(workload.label, server, &run, hit_ratio));
    }
    stage.down()?;
    Ok(rows)
}

/// Sends GETs until Redis sees few of them or no fewer than in the round before; the share that
/// it did not see in the end.
fn warm_up(stage: &Stage<'_>, stop: &Stop) -> Result<f64> {
    /// Every key is missed some ten times per round.
    const REQUESTS: u64 = 10 * KEYS as u64;
    const ROUNDS_MAX: u32 = 10;
    let warm = Workload {
        label: "warm-up",
        conns: 50,
        kind: ClientKind::RedisBenchmark {
            pipeline: 1,
            per_s: REQUESTS,
        },
    };
    let mut share = 0.0;
    for _ in 0..ROUNDS_MAX {
        stop.check()?;
        let before = stage.gets_of_redis()?;
        warm.run(stage, 1).context("the warm-up failed")?;
        share = share_not_by_redis(stage.gets_of_redis()? - before, REQUESTS);
        if !stage.boosted() || share > 0.999 {
            break;
        }
    }
    Ok(share)
}

/// Redis's own count is the witness: what it did not see was answered by ERB. ERB's own reads
/// (fills) count against it.
fn share_not_by_redis(by_redis: u64, requests: u64) -> f64 {
    (1.0 - by_redis as f64 / requests.max(1) as f64).max(0.0)
}

fn capacity_args() -> CapacityArgs {
    CapacityArgs {
        work: WorkArgs {
            op: Op::Get,
            keys: None,
            value_size: None,
            batch: None,
            fields: None,
        },
        server: vec![Server::Redis, Server::Erb, Server::Echo],
        hit_ratio: 1.0,
        conns: 200,
        runs: CAPACITY_RUNS,
        seconds: 2.0,
        cache_size: CAPACITY_CACHE.to_owned(),
        server_core: SERVER_CORE,
        generator_core: CLIENT_CORE,
        json: false,
    }
}

/// Standard output is the result's.
fn progress(text: &str) {
    eprintln!("demo: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_is_the_witness_of_hits() {
        assert!((share_not_by_redis(0, 1000) - 1.0).abs() < f64::EPSILON);
        assert!((share_not_by_redis(250, 1000) - 0.75).abs() < f64::EPSILON);
        // ERB's own reads may make it more than were sent.
        assert!(share_not_by_redis(1100, 1000).abs() < f64::EPSILON);
        assert!(share_not_by_redis(0, 0).is_finite());
    }

    #[test]
    fn labels_of_workloads_differ() {
        for (index, workload) in WORKLOADS.iter().enumerate() {
            let first = WORKLOADS
                .iter()
                .position(|other| other.label == workload.label);
            assert_eq!(first, Some(index), "{}", workload.label);
        }
    }
}
