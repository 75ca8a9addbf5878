// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check history`: many connections on shared keys; every key's history must be linearizable.
//!
//! - [`linear`]: the checker.
//! - [`drive`]: the workload that records the history.
//! - [`read`]: all ways to read a key, and what each says of it.
//! - [`bypass`]: writers that do not pass the target; reads of their keys have a stated bound.

mod bypass;
mod drive;
pub mod linear;
mod read;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;

use crate::net::{self, Conn};
use drive::{Driver, KeyKind, Plan};
use linear::{Op, Verdict};

/// Operations around a violation that are shown.
const CONTEXT_OPS: usize = 20;
/// Violations that are spelled out; more are counted.
const SHOWN_MAX: usize = 10;

/// Arguments of `check history`.
#[derive(Debug, Clone, Args)]
pub struct HistoryArgs {
    /// The address under test, HOST:PORT or [IPV6]:PORT.
    #[arg(long)]
    pub target: String,
    /// The same Redis by a way that bypasses the target: one more writer there, on its own keys.
    #[arg(long)]
    pub direct: Option<String>,
    /// How much older than a completed bypassing write a read may be, ms (the lease).
    #[arg(long, default_value_t = 100)]
    pub direct_bound_ms: u64,
    /// Concurrent connections.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    pub conns: u32,
    /// Operations in total.
    #[arg(long, default_value_t = 1_000_000)]
    pub ops: u64,
    /// Shared keys: half registers (strings and hashes), a quarter counters, a quarter in pairs.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    pub keys: u32,
    /// Deepest pipeline.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub pipeline: u32,
    /// Share of reads.
    #[arg(long, default_value_t = 0.8)]
    pub read_share: f64,
    /// Seconds until an unanswered operation counts as unknown and its connection is given up.
    #[arg(long, default_value_t = 10)]
    pub timeout: u64,
    /// Seed of everything random; printed with the result.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Something that Redis alone cannot have shown.
#[derive(Debug, Clone, Serialize)]
pub struct Violation {
    /// Key.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// Operations on the key around it, in order of invocation.
    pub context: Vec<String>,
}

/// What a whole run saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Seed of the workload (timing decides the rest).
    pub seed: u64,
    /// Operations with a reply.
    pub answered: u64,
    /// Operations without one: any effect or none.
    pub unknown: u64,
    /// Reads among the answered.
    pub reads: u64,
    /// Connections that broke.
    pub broken: Vec<String>,
    /// Keys whose history was decided.
    pub keys_checked: u32,
    /// Keys too entangled to decide (not a pass).
    pub undecided: Vec<String>,
    /// How many violations there are.
    pub violation_count: u64,
    /// The first of them.
    pub violations: Vec<Violation>,
    /// Reads of bypassed keys, and the oldest of them beyond the write's completion, ms.
    pub direct_reads: u64,
    /// Largest staleness seen on keys of the bypassing writer, ms.
    pub direct_staleness_ms_max: f64,
    /// Seconds of workload.
    pub seconds: f64,
    /// Seconds of checking.
    pub check_seconds: f64,
    /// Nothing wrong, nothing undecided, no connection broken, and something was read.
    pub passed: bool,
}

impl Report {
    fn violate(&mut self, violation: Violation) {
        self.violation_count += 1;
        if self.violations.len() < SHOWN_MAX {
            self.violations.push(violation);
        }
    }
}

/// Runs workload and checkers.
///
/// # Errors
/// If an argument is wrong, no connection can be made, or the direct address fails.
pub fn execute(args: &HistoryArgs) -> Result<Report> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("check history: seed {seed}");
    let target = net::resolve(&args.target)?;
    let plan = Arc::new(Plan {
        target,
        timeout: Duration::from_secs(args.timeout.max(1)),
        conns: args.conns,
        keys: args.keys,
        pipeline: args.pipeline,
        read_share: args.read_share.clamp(0.0, 1.0),
        seed,
        start: Instant::now(),
        budget: AtomicU64::new(args.ops),
        versions: (0..args.keys).map(|_| AtomicU64::new(0)).collect(),
        stop: AtomicBool::new(false),
    });
    // Proves that the target answers before threads start; also empties nothing: keys are fresh.
    Conn::connect(target, plan.timeout)?.call(&["PING"])?;
    let direct = args
        .direct
        .as_ref()
        .map(|d| bypass::start(d, &plan))
        .transpose()?;
    let threads: Vec<_> = (0..args.conns)
        .map(|conn| {
            let plan = Arc::clone(&plan);
            std::thread::Builder::new()
                .name(format!("history-{conn}"))
                .spawn(move || Driver::new(&plan, conn).run())
        })
        .collect::<std::io::Result<_>>()?;
    let mut report = Report {
        seed,
        ..Report::default()
    };
    let mut ops = Vec::new();
    for thread in threads {
        let log = thread
            .join()
            .map_err(|_| anyhow!("a connection's thread panicked"))?;
        ops.extend(log.ops);
        report.broken.extend(log.broken);
        for violation in log.violations {
            report.violate(violation);
        }
    }
    report.seconds = plan.start.elapsed().as_secs_f64();
    let began = Instant::now();
    if let Some(direct) = direct {
        direct.finish(&plan, args.direct_bound_ms, &mut report)?;
    }
    judge(&plan, ops, &mut report);
    report.check_seconds = began.elapsed().as_secs_f64();
    report.passed = report.reads > 0
        && report.violation_count == 0
        && report.undecided.is_empty()
        && report.broken.is_empty();
    Ok(report)
}

/// Sorts the operations by key and checks each key.
fn judge(plan: &Plan, ops: Vec<(u32, Op)>, report: &mut Report) {
    let mut by_key: Vec<Vec<Op>> = vec![Vec::new(); plan.keys as usize];
    for (key, op) in ops {
        match op.answered {
            Some(_) => report.answered += 1,
            None => report.unknown += 1,
        }
        report.reads += u64::from(op.answered.is_some() && linear::only_reads(op.action));
        by_key[key as usize].push(op);
    }
    for (key, mut ops) in by_key.into_iter().enumerate() {
        // Stable: a pipeline's operations have the same invocation and keep their order.
        ops.sort_by_key(|op| op.invoked);
        let key = key as u32;
        match linear::check(&ops, None) {
            Verdict::Linearizable => report.keys_checked += 1,
            Verdict::Undecided(_) => report.undecided.push(plan.key_name(key)),
            Verdict::Violation(at) => {
                report.keys_checked += 1;
                report.violate(Violation {
                    key: plan.key_name(key),
                    what: format!("not linearizable: nothing explains {}", ops[at]),
                    context: context(&ops, at),
                });
            }
        }
        if let KeyKind::Register {
            single_writer: true,
            ..
        }
        | KeyKind::PairFirst
        | KeyKind::PairSecond = plan.kind(key)
        {
            session_check(plan, key, &ops, report);
        }
    }
}

/// On keys with one writer versions only grow: what one connection saw never goes back.
fn session_check(plan: &Plan, key: u32, ops: &[Op], report: &mut Report) {
    let mut newest = vec![0; plan.conns as usize];
    for (at, op) in ops.iter().enumerate() {
        if let (linear::Action::Get(Some(version)), Some(_)) = (op.action, op.answered) {
            let seen = &mut newest[op.conn as usize];
            if version < *seen {
                report.violate(Violation {
                    key: plan.key_name(key),
                    what: format!("connection saw version {seen}, then older: {op}"),
                    context: context(ops, at),
                });
                // One per key: the rest mostly follows from it.
                return;
            }
            *seen = version.max(*seen);
        }
    }
}

fn context(ops: &[Op], at: usize) -> Vec<String> {
    let from = at.saturating_sub(CONTEXT_OPS);
    ops[from..ops.len().min(at + CONTEXT_OPS / 4)]
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// `check history`: prints the report; exit code 0 if it passed, else 1.
///
/// # Errors
/// As [`execute`].
pub fn run(args: &HistoryArgs) -> Result<ExitCode> {
    let report = execute(args)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print_text(&report);
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print_text(report: &Report) {
    for v in &report.violations {
        println!("VIOLATION seed {} key {}: {}", report.seed, v.key, v.what);
        for line in &v.context {
            println!("    {line}");
        }
    }
    for broken in &report.broken {
        println!("BROKEN {broken}");
    }
    for key in &report.undecided {
        println!(
            "UNDECIDED {key}: more than {} configurations",
            linear::CONFIGS_MAX
        );
    }
    println!(
        "{}: {} operations answered ({} reads), {} unknown, {} keys decided, {} violations, \
         {:.1} s + {:.1} s of checking, seed {}",
        if report.passed { "passed" } else { "FAILED" },
        report.answered,
        report.reads,
        report.unknown,
        report.keys_checked,
        report.violation_count,
        report.seconds,
        report.check_seconds,
        report.seed
    );
    if report.direct_reads > 0 {
        println!(
            "  bypassing writer: {} reads, at most {:.1} ms behind",
            report.direct_reads, report.direct_staleness_ms_max
        );
    }
}
