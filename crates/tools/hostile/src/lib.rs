// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb check hostile`: honest clients beside hostile and silly ones, on a boosted Redis with a
//! password, in labs of its own. Every byte that the honest ones read is judged, and how many of
//! their GETs were answered without Redis: before, during and after.
//!
//! # Layout
//! - [`HostileArgs`], [`run`]: the command; one attack after the other, each in a lab of its own.
//! - `stage`: the lab, and what ERB counts.
//! - `honest`: the others, whose fast answers are at stake.
//! - `attack`: what the hostile ones do.
//! - `forge`: segments of somebody who is on no connection.
//! - `report`: text and JSON.

mod attack;
mod forge;
mod honest;
mod report;
mod stage;

pub use forge::Forger;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use erb_lab::{Erb, Stop};

use crate::attack::{Attack, Ground};
use crate::honest::Honest;
use crate::report::{Phase, Report, Row};
use crate::stage::Stage;

/// Cached keys are read before the first phase for so long.
const WARM_UP: Duration = Duration::from_secs(2);
/// The fast path must be back so long after an attack has ended.
const RECOVERY: Duration = Duration::from_secs(2);

/// Put hostile and silly clients beside honest ones and see what these lose.
///
/// Each attack has a lab of its own. Exit code 0: no honest client read a wrong byte, and in no attack
/// did the share of their GETs that ERB answers fall below --keep of what it was; 1: not so; 2: the
/// check could not be carried out.
#[derive(Args, Clone, Debug)]
pub struct HostileArgs {
    /// Only these attacks [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ATTACK")]
    pub only: Vec<Attack>,
    /// Seconds of each phase: before, during and after an attack.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Share of what was answered before an attack that must be answered during it and after it.
    #[arg(long, default_value_t = 0.9)]
    pub keep: f64,
    /// Seed of everything random; printed with the result.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the attacks and prints what came of each.
///
/// Needs root. Labs that it makes are gone when it returns, also on error, SIGINT and SIGTERM.
///
/// # Errors
/// If a lab could not be made or an attack not carried out.
pub fn run(args: &HostileArgs, erb: &Erb) -> Result<ExitCode> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces and raw sockets need root; run it with sudo"
    );
    ensure!(
        (0.0..=1.0).contains(&args.keep),
        "--keep {}: must be from 0 to 1",
        args.keep
    );
    let stop = Stop::watch()?;
    let _lock = erb_lab::only_one("hostile")?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut report = Report::new(seed, args.keep);
    for attack in Attack::chosen(&args.only) {
        stop.check()?;
        eprintln!("hostile: {}", attack.sentence());
        let row = play(attack, args, seed, erb, &stop)
            .with_context(|| format!("the attack {} could not be carried out", attack.name()))?;
        eprintln!("hostile: {}", row.line());
        report.add(row);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.to_text());
    }
    Ok(ExitCode::from(u8::from(!report.passed())))
}

fn play(attack: Attack, args: &HostileArgs, seed: u64, erb: &Erb, stop: &Stop) -> Result<Row> {
    let stage = Stage::up(erb)?;
    let seconds = Duration::from_secs(args.seconds);
    let honest = Honest::start(&stage)?;
    pause(WARM_UP, stop)?;
    let before = phase(&stage, &honest, seconds, stop)?;
    let ground = Ground::new(&stage, honest.clients(), seed)?;
    let running = ground.begin(attack)?;
    let during = phase(&stage, &honest, seconds, stop);
    let done = running.end();
    let during = during?;
    pause(RECOVERY, stop)?;
    let after = phase(&stage, &honest, seconds, stop)?;
    let wrong = honest.end()?;
    let broken = stage.broken_invariants()?;
    stage.down()?;
    let row = Row::new(attack, [before, during, after], wrong, broken, done?);
    Ok(row)
}

/// What the honest clients got during the next `length`.
fn phase(stage: &Stage<'_>, honest: &Honest, length: Duration, stop: &Stop) -> Result<Phase> {
    let count = || {
        let (gets, fast) = honest.gets_and(|| stage.fast_gets());
        fast.map(|fast| (gets, fast))
    };
    let (gets, fast) = count()?;
    pause(length, stop)?;
    let (gets_then, fast_then) = count()?;
    Ok(Phase::new(gets_then - gets, fast_then - fast, length))
}

fn pause(length: Duration, stop: &Stop) -> Result<()> {
    const STEP: Duration = Duration::from_millis(100);
    let mut left = length;
    while !left.is_zero() {
        stop.check()?;
        let step = left.min(STEP);
        thread::sleep(step);
        left -= step;
    }
    Ok(())
}
