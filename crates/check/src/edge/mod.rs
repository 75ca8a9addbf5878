// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check edge`: scripted protocol oddities, byte for byte against a plain Redis.
//!
//! - [`script`]: what a case consists of.
//! - [`cases`]: the cases, by topic.
//! - [`runner`]: plays a case on both servers, with readers that keep a cache hot.

mod cases;
mod runner;
mod script;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use crate::net;
use runner::Player;

/// Arguments of `check edge`.
#[derive(Debug, Clone, Args)]
pub struct EdgeArgs {
    /// The address under test, HOST:PORT or [IPV6]:PORT.
    #[arg(long)]
    pub target: String,
    /// A plain Redis of the same version. Its data are changed too.
    #[arg(long)]
    pub shadow: String,
    /// Also the cases that delete or swap whole databases, on BOTH servers.
    #[arg(long)]
    pub allow_flush: bool,
    /// Only cases whose name contains this.
    #[arg(long)]
    pub only: Option<String>,
    /// How often each case is played.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Milliseconds after warm-up reads, so that a cache can be filled.
    #[arg(long, default_value_t = 20)]
    pub warm_pause_ms: u64,
    /// Seconds without the target's bytes, while the shadow has answered, that count as stuck.
    #[arg(long, default_value_t = 30)]
    pub stall_timeout: u64,
    /// Names the keys; printed with the result.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// A case in which the target did not do what the shadow did.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    /// Case.
    pub case: String,
    /// Round, from 0.
    pub round: u32,
    /// Step, from 0.
    pub step: usize,
    /// What was sent, and what differs.
    pub what: String,
}

/// What the run saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Names the keys.
    pub seed: u64,
    /// Cases played.
    pub cases: usize,
    /// Cases left out because `--allow-flush` was not given.
    pub skipped: Vec<String>,
    /// Steps played.
    pub steps: u64,
    /// Reads around the steps that were compared.
    pub reads: u64,
    /// What differs; a case is left at its first difference.
    pub differences: Vec<Difference>,
    /// Seconds.
    pub seconds: f64,
    /// Nothing differs.
    pub passed: bool,
}

/// Plays all cases.
///
/// # Errors
/// If an argument is wrong or the shadow fails.
pub fn execute(args: &EdgeArgs) -> Result<Report> {
    let began = Instant::now();
    let (target, shadow) = (net::resolve(&args.target)?, net::resolve(&args.shadow)?);
    if target == shadow {
        bail!("target and shadow are both {target}: the shadow must be another Redis");
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    eprintln!("check edge: seed {seed}");
    let mut report = Report {
        seed,
        ..Report::default()
    };
    let stall = Duration::from_secs(args.stall_timeout.max(1));
    let warm_pause = Duration::from_millis(args.warm_pause_ms);
    for case in cases::all() {
        if args
            .only
            .as_ref()
            .is_some_and(|only| !case.name.contains(only.as_str()))
        {
            continue;
        }
        if case.flushes && !args.allow_flush {
            report.skipped.push(case.name.to_string());
            continue;
        }
        report.cases += 1;
        for round in 0..args.rounds {
            let prefix = format!("e{seed:x}:{}:{round}:", case.name);
            let mut player = Player::new(target, shadow, stall, warm_pause, prefix)?;
            let difference = player.play(&case)?;
            report.steps += player.steps;
            report.reads += player.reads;
            if let Some((step, what)) = difference {
                let case = case.name.to_string();
                report.differences.push(Difference {
                    case,
                    round,
                    step,
                    what,
                });
                break;
            }
        }
    }
    report.seconds = began.elapsed().as_secs_f64();
    report.passed = report.cases > 0 && report.differences.is_empty();
    Ok(report)
}

/// `check edge`: prints the report; exit code 0 if nothing differs, else 1.
///
/// # Errors
/// As [`execute`].
pub fn run(args: &EdgeArgs) -> Result<ExitCode> {
    let report = execute(args)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        for d in &report.differences {
            println!(
                "DIFFERENT {} (round {}, step {}): {}",
                d.case, d.round, d.step, d.what
            );
        }
        if !report.skipped.is_empty() {
            println!(
                "skipped without --allow-flush: {}",
                report.skipped.join(", ")
            );
        }
        println!(
            "{}: {} cases, {} steps, {} reads around them, {} differences, {:.1} s, seed {}",
            if report.passed { "passed" } else { "FAILED" },
            report.cases,
            report.steps,
            report.reads,
            report.differences.len(),
            report.seconds,
            report.seed
        );
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
