// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check conversation`: planned conversations, byte for byte against a plain Redis.
//!
//! Each case is played step by step, and as pipelines that are cut in two at one place after the
//! other. How much was answered in front of Redis is read off Redis itself: it counts the commands
//! that it has executed, and both servers were asked the same.
//! - [`case`]: what a case consists of.
//! - [`cases`], [`classes`]: the cases, by topic.
//! - [`front`]: who answers.
//! - [`runner`]: plays a case step by step, with readers that keep a cache hot.
//! - [`split`]: plays it as pipelines, cut everywhere.

mod case;
mod cases;
mod classes;
#[cfg(test)]
mod coverage;
mod front;
mod runner;
mod split;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use crate::net;
use case::Case;
use runner::Player;
pub use split::Cuts;
use split::Stage;

/// How long it is tried to be answered in front of Redis.
const FRONT_WAIT: Duration = Duration::from_secs(2);

/// Arguments of `check conversation`.
#[derive(Debug, Clone, Args)]
pub struct ConversationArgs {
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
    /// How often each case is played step by step.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub rounds: u32,
    /// Where pipelines are cut in two.
    #[arg(long, value_enum, default_value_t = Cuts::Some)]
    pub cuts: Cuts,
    /// Cut pipelines that are played at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub workers: u32,
    /// Fail if, of what a case reads, nothing was answered in front of Redis.
    #[arg(long)]
    pub require_fast: bool,
    /// Milliseconds after warm-up reads, so that a cache can be filled.
    #[arg(long, default_value_t = 20)]
    pub warm_pause_ms: u64,
    /// Seconds without the target's bytes, while the shadow has answered, that count as stuck.
    #[arg(long, default_value_t = 30)]
    pub stall_timeout: u64,
    /// Names the keys and chooses the cuts; printed with the result.
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
    /// Where: round and step, or the place of the cut.
    pub place: String,
    /// What was sent, and what differs.
    pub what: String,
}

/// One case.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Played {
    /// Name.
    pub case: String,
    /// Places at which its pipelines can be cut.
    pub boundaries: usize,
    /// Places at which they were.
    pub cuts: usize,
    /// Plays in parts.
    pub plays: usize,
    /// Of the plays done one by one: reads that Redis alone has executed and the target's Redis
    /// has not; unknown in cases that stop such answers.
    pub answered_in_front: Option<i64>,
    /// Of the same plays: reads that Redis alone has executed.
    pub reads: i64,
    /// Seconds.
    pub seconds: f64,
}

/// What the run saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Names the keys and chooses the cuts.
    pub seed: u64,
    /// Cases played.
    pub cases: Vec<Played>,
    /// Cases left out because `--allow-flush` was not given.
    pub skipped: Vec<String>,
    /// Steps played one by one.
    pub steps: u64,
    /// Reads around the steps that were compared.
    pub reads: u64,
    /// What differs; a case is left at its first difference.
    pub differences: Vec<Difference>,
    /// Cases of which nothing was answered in front of Redis, if that was required.
    pub slow: Vec<String>,
    /// Seconds.
    pub seconds: f64,
    /// Nothing differs.
    pub passed: bool,
}

impl Report {
    /// Places at which pipelines were cut.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.cases.iter().map(|case| case.cuts).sum()
    }

    /// Places at which they can be.
    #[must_use]
    pub fn boundaries(&self) -> usize {
        self.cases.iter().map(|case| case.boundaries).sum()
    }

    /// Plays in parts.
    #[must_use]
    pub fn plays(&self) -> usize {
        self.cases.iter().map(|case| case.plays).sum()
    }

    /// Reads that the target's Redis has not executed.
    #[must_use]
    pub fn answered_in_front(&self) -> i64 {
        self.cases
            .iter()
            .filter_map(|case| case.answered_in_front)
            .sum()
    }
}

/// A run.
struct Run<'a> {
    args: &'a ConversationArgs,
    stage: Stage,
    prefixes: AtomicU32,
}

impl Run<'_> {
    /// A key prefix that nobody had.
    fn prefix(&self) -> String {
        let number = self.prefixes.fetch_add(1, Ordering::Relaxed);
        format!("{:08x}{number:07x}:", self.stage.seed as u32)
    }

    fn case(&self, case: &Case, report: &mut Report) -> Result<Played> {
        let began = Instant::now();
        let mut played = Played {
            case: case.name.to_owned(),
            ..Played::default()
        };
        if !self.by_steps(case, report)? && self.args.cuts != Cuts::None {
            let outcome = split::play(case, &self.stage, &|| self.prefix())?;
            played.boundaries = outcome.boundaries;
            played.cuts = outcome.cuts;
            played.plays = outcome.plays;
            played.reads = outcome.reads;
            played.answered_in_front = outcome.answered_in_front;
            if let Some(what) = outcome.difference {
                report.differences.push(Difference {
                    case: case.name.to_owned(),
                    place: "in parts".to_owned(),
                    what,
                });
            }
        }
        played.seconds = began.elapsed().as_secs_f64();
        Ok(played)
    }

    /// Returns whether something differs.
    fn by_steps(&self, case: &Case, report: &mut Report) -> Result<bool> {
        for round in 0..self.args.rounds {
            let pause = Duration::from_millis(self.args.warm_pause_ms);
            let Stage {
                addresses, stall, ..
            } = self.stage;
            let mut player = Player::new(addresses, stall, pause, self.prefix())?;
            let difference = player.play(case)?;
            report.steps += player.steps;
            report.reads += player.reads;
            if let Some((step, what)) = difference {
                report.differences.push(Difference {
                    case: case.name.to_owned(),
                    place: format!("round {round}, step {step}"),
                    what,
                });
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn all_cases() -> Vec<Case> {
    [cases::all(), classes::all()].concat()
}

/// Plays all cases.
///
/// # Errors
/// If an argument is wrong or the shadow fails.
pub fn execute(args: &ConversationArgs) -> Result<Report> {
    let began = Instant::now();
    let addresses = (net::resolve(&args.target)?, net::resolve(&args.shadow)?);
    if addresses.0 == addresses.1 {
        let address = addresses.0;
        bail!("target and shadow are both {address}: the shadow must be another Redis");
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("check conversation: seed {seed}");
    let stall = Duration::from_secs(args.stall_timeout.max(1));
    let run = Run {
        args,
        stage: Stage {
            addresses,
            stall,
            in_front: front::wait(addresses.0, stall, FRONT_WAIT)?,
            workers: args.workers as usize,
            cuts: args.cuts,
            seed,
        },
        prefixes: AtomicU32::new(0),
    };
    let mut report = Report {
        seed,
        ..Report::default()
    };
    for case in all_cases() {
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
        let played = run.case(&case, &mut report)?;
        if args.require_fast && played.answered_in_front.is_some_and(|front| front <= 0) {
            report.slow.push(played.case.clone());
        }
        report.cases.push(played);
    }
    report.seconds = began.elapsed().as_secs_f64();
    report.passed =
        !report.cases.is_empty() && report.differences.is_empty() && report.slow.is_empty();
    Ok(report)
}

fn print(report: &Report) {
    for d in &report.differences {
        println!("DIFFERENT {} ({}): {}", d.case, d.place, d.what);
    }
    for case in &report.slow {
        println!("SLOW {case}: Redis itself has executed all that was read");
    }
    if !report.skipped.is_empty() {
        let skipped = report.skipped.join(", ");
        println!("skipped without --allow-flush: {skipped}");
    }
    println!(
        "{}: {} cases, {} steps, {} reads around them; {} plays cut at {} of {} places; {} reads \
         answered in front of Redis; {} differences, {:.1} s, seed {}",
        if report.passed { "passed" } else { "FAILED" },
        report.cases.len(),
        report.steps,
        report.reads,
        report.plays(),
        report.cuts(),
        report.boundaries(),
        report.answered_in_front(),
        report.differences.len(),
        report.seconds,
        report.seed
    );
}

/// `check conversation`: prints the report; exit code 0 if nothing differs, else 1.
///
/// # Errors
/// As [`execute`].
pub fn run(args: &ConversationArgs) -> Result<ExitCode> {
    let report = execute(args)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
