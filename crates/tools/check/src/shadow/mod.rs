// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check shadow`: the same commands to a target and to a plain Redis, every reply byte compared.
//!
//! Each connection has keys of its own, so both servers run the same sequence per key and the
//! replies are equal byte for byte whatever the other connections do.
//! - [`generate`]: what is sent, from a seed.
//! - [`worker`]: one connection to both sides.

mod generate;
mod worker;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde::Serialize;

pub use generate::{Mix, Verb};

use crate::net;

/// Arguments of `check shadow`.
#[derive(Debug, Clone, Args)]
pub struct ShadowArgs {
    /// The address under test, HOST:PORT or [IPV6]:PORT.
    #[arg(long)]
    pub target: String,
    /// A plain Redis of the same version, reached by nothing under test. Its data are changed too.
    #[arg(long)]
    pub shadow: String,
    /// Concurrent connections.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub conns: u32,
    /// Length of the run.
    #[arg(long, default_value_t = 600)]
    pub seconds: u64,
    /// Stop a connection after this many commands (0: only the clock stops it).
    #[arg(long, default_value_t = 0)]
    pub commands: u64,
    /// Seed of everything random; printed with the result.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Seconds without a byte of progress, while the shadow has answered, that count as stuck.
    #[arg(long, default_value_t = 30)]
    pub stall_timeout: u64,
    /// Weights of commands, e.g. get=60,set=20,incr=5; those not named keep their default.
    #[arg(long, value_delimiter = ',')]
    pub weights: Vec<String>,
    /// Largest value in bytes.
    #[arg(long, default_value_t = 65_536)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub value_max: u32,
    /// Commands per second of all connections together (0: as fast as it goes).
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// End the whole run at the first thing that is wrong.
    #[arg(long)]
    pub fail_fast: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// One reply that was not what the shadow said, with what led to it.
#[derive(Debug, Clone, Serialize)]
pub struct Mismatch {
    /// Connection number.
    pub conn: u32,
    /// Local address of the connection to the target.
    pub local: String,
    /// Index of the command on its connection, from 0.
    pub command_index: u64,
    /// The command.
    pub command: String,
    /// The target's bytes from the beginning of the reply.
    pub target: String,
    /// The shadow's reply.
    pub shadow: String,
    /// First byte that differs, counted from the beginning of the reply.
    pub first_difference: usize,
    /// The last commands on the connection, oldest first.
    pub last_commands: Vec<String>,
}

/// A connection that ended or stood still.
#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    /// Connection number.
    pub conn: u32,
    /// Local address of the connection to the target.
    pub local: String,
    /// Index of the command whose reply was awaited.
    pub command_index: u64,
    /// What happened.
    pub what: String,
    /// The last commands on the connection, oldest first.
    pub last_commands: Vec<String>,
}

/// What a whole run saw. It passed if `mismatches`, `resets`, `stalls` are empty.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Seed that repeats the commands.
    pub seed: u64,
    /// Connections.
    pub conns: u32,
    /// Seconds the run took.
    pub seconds: f64,
    /// Commands whose reply was compared.
    pub commands: u64,
    /// Bytes sent to the target.
    pub bytes_sent: u64,
    /// Reply bytes compared.
    pub bytes_compared: u64,
    /// Compared commands by name.
    pub by_command: BTreeMap<String, u64>,
    /// Replies that differ.
    pub mismatches: Vec<Mismatch>,
    /// Connections that the target closed or reset, or could not be made.
    pub resets: Vec<Failure>,
    /// Connections on which the target stopped while the shadow answered.
    pub stalls: Vec<Failure>,
    /// Segments this end sent again, over all connections to the target.
    pub retransmissions: u64,
    /// Whether nothing was wrong and something was compared.
    pub passed: bool,
}

/// Shared by all connections of a run.
struct Shared {
    target: SocketAddr,
    shadow: SocketAddr,
    stall: Duration,
    until: Instant,
    commands_max: u64,
    stop: AtomicBool,
    fail_fast: bool,
    mix: Mix,
    rate: u64,
    started: Instant,
    sent: AtomicU64,
}

impl Shared {
    fn running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && Instant::now() < self.until
    }

    /// Waits so that all connections together stay below the rate.
    fn throttle(&self, commands: u64) {
        let sent = self.sent.fetch_add(commands, Ordering::Relaxed);
        if self.rate > 0 {
            let due = self.started + Duration::from_secs_f64(sent as f64 / self.rate as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}

/// Runs the workload and returns what it saw.
///
/// # Errors
/// If an argument is wrong or the shadow itself fails; what is wrong with the target is in the
/// report.
pub fn execute(args: &ShadowArgs) -> Result<Report> {
    let started = Instant::now();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let shared = Arc::new(Shared {
        target: net::resolve(&args.target)?,
        shadow: net::resolve(&args.shadow)?,
        stall: Duration::from_secs(args.stall_timeout.max(1)),
        until: started + Duration::from_secs(args.seconds),
        commands_max: if args.commands == 0 {
            u64::MAX
        } else {
            args.commands
        },
        stop: AtomicBool::new(false),
        fail_fast: args.fail_fast,
        mix: Mix::parse(&args.weights, args.value_max as usize)?,
        rate: args.rate,
        started,
        sent: AtomicU64::new(0),
    });
    if shared.target == shared.shadow {
        bail!(
            "target and shadow are both {}: the shadow must be another Redis",
            shared.target
        );
    }
    eprintln!("check shadow: seed {seed}");
    let threads: Vec<_> = (0..args.conns)
        .map(|conn| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("shadow-{conn}"))
                .spawn(move || worker::run(&shared, conn, seed))
        })
        .collect::<std::io::Result<_>>()?;
    let mut report = Report {
        seed,
        conns: args.conns,
        ..Report::default()
    };
    for thread in threads {
        let outcome = thread
            .join()
            .map_err(|_| anyhow!("a connection's thread panicked"))??;
        outcome.add_to(&mut report);
    }
    report.seconds = started.elapsed().as_secs_f64();
    report.passed = report.commands > 0
        && report.mismatches.is_empty()
        && report.resets.is_empty()
        && report.stalls.is_empty();
    Ok(report)
}

/// `check shadow`: prints the report; exit code 0 if it passed, else 1.
///
/// # Errors
/// As [`execute`].
pub fn run(args: &ShadowArgs) -> Result<ExitCode> {
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
    for m in &report.mismatches {
        println!(
            "MISMATCH seed {} connection {} ({}) command {}: {}\n  target: {}\n  shadow: {}",
            report.seed, m.conn, m.local, m.command_index, m.command, m.target, m.shadow
        );
        println!(
            "  first difference at byte {}; before it:",
            m.first_difference
        );
        for command in &m.last_commands {
            println!("    {command}");
        }
    }
    for (name, list) in [("RESET", &report.resets), ("STUCK", &report.stalls)] {
        for f in list {
            println!(
                "{name} seed {} connection {} ({}) command {}: {}",
                report.seed, f.conn, f.local, f.command_index, f.what
            );
            for command in &f.last_commands {
                println!("    {command}");
            }
        }
    }
    println!(
        "{}: {} commands on {} connections in {:.1} s, {} B sent, {} B compared, \
         {} mismatches, {} resets, {} stalls, {} retransmissions, seed {}",
        if report.passed { "passed" } else { "FAILED" },
        report.commands,
        report.conns,
        report.seconds,
        report.bytes_sent,
        report.bytes_compared,
        report.mismatches.len(),
        report.resets.len(),
        report.stalls.len(),
        report.retransmissions,
        report.seed
    );
    let counts: Vec<String> = report
        .by_command
        .iter()
        .map(|(k, v)| format!("{k} {v}"))
        .collect();
    println!("  {}", counts.join(", "));
}
