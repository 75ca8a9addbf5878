// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check pipelines`: batches of SETs on one connection to a target and on one to a plain Redis over
//! the same line, by turns: how many batches a second each makes where the line loses or reorders.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::net::{self, Conn};
use crate::resp;

/// A batch that takes longer counts as stuck.
const STALL: Duration = Duration::from_secs(30);
/// Batches that are not counted, on each new connection.
const WARM_UP: u32 = 20;

/// Arguments of `check pipelines`.
#[derive(Debug, Clone, Args)]
pub struct PipelinesArgs {
    /// The address under test, HOST:PORT or [IPV6]:PORT.
    #[arg(long)]
    pub target: String,
    /// A plain Redis behind the same line.
    #[arg(long)]
    pub shadow: String,
    /// SETs of one batch.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub value_bytes: u32,
    /// Turns of each side.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub turns: u32,
    /// Length of a turn.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// The least that the target must make of what the plain Redis makes.
    #[arg(long, default_value_t = 0.0)]
    pub bar: f64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// One side.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Side {
    /// Batches a second, turn by turn.
    pub batches_per_s: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// Segments the client sent again.
    pub retransmissions: u64,
}

/// What the run saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The address under test.
    pub target: Side,
    /// The plain Redis.
    pub shadow: Side,
    /// Median of the target by that of the plain Redis.
    pub ratio: f64,
    /// The ratio is not below the bar. A wrong reply ends the run with an error.
    pub passed: bool,
}

/// Batches of one connection for so long; adds to the side.
fn turn(to: SocketAddr, args: &PipelinesArgs, number: u32, side: &mut Side) -> Result<()> {
    let mut conn = Conn::connect(to, STALL)?;
    let value = vec![b'v'; args.value_bytes as usize];
    let batch: Vec<u8> = (0..args.batch)
        .flat_map(|key| {
            let key = format!("pipeline:{number}:{key}");
            resp::command(&[b"SET", key.as_bytes(), &value])
        })
        .collect();
    let mut began = Instant::now();
    let mut count = 0_u32;
    for done in 0.. {
        if done == WARM_UP {
            (began, count) = (Instant::now(), 0);
        } else if done > WARM_UP && began.elapsed().as_secs_f64() >= args.seconds {
            break;
        }
        conn.send(&batch)?;
        for _ in 0..args.batch {
            let reply = conn.reply()?;
            ensure!(
                reply == b"+OK\r\n",
                "{to} answers a SET by {}",
                resp::show(&reply, 100)
            );
        }
        count += 1;
    }
    side.batches_per_s
        .push(f64::from(count) / began.elapsed().as_secs_f64());
    side.retransmissions += u64::from(conn.retransmissions()?);
    Ok(())
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Carries it out.
///
/// # Errors
/// If an address cannot be reached or answers wrongly.
pub fn execute(args: &PipelinesArgs) -> Result<Report> {
    ensure!(
        args.seconds > 0.0,
        "a turn of {} s measures nothing",
        args.seconds
    );
    let (target, shadow) = (net::resolve(&args.target)?, net::resolve(&args.shadow)?);
    let mut report = Report::default();
    for number in 0..args.turns {
        turn(shadow, args, number, &mut report.shadow)?;
        turn(target, args, number, &mut report.target)?;
    }
    for side in [&mut report.target, &mut report.shadow] {
        side.median = median(&side.batches_per_s);
    }
    report.ratio = report.target.median / report.shadow.median;
    report.passed = report.ratio >= args.bar;
    Ok(report)
}

fn print(report: &Report) {
    for (name, side) in [("target", &report.target), ("shadow", &report.shadow)] {
        let least = side.batches_per_s.iter().copied().fold(f64::MAX, f64::min);
        let most = side.batches_per_s.iter().copied().fold(0.0, f64::max);
        println!(
            "{name}: {:.0} batches a second ({least:.0} to {most:.0}), {} segments sent again",
            side.median, side.retransmissions
        );
    }
    println!("ratio: {:.2}", report.ratio);
}

/// Carries it out and prints what it saw.
///
/// # Errors
/// As [`execute`].
pub fn run(args: &PipelinesArgs) -> Result<ExitCode> {
    let report = execute(args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(&[]).abs() < f64::EPSILON);
    }
}
