// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb check reports`: what users of other servers, proxies and clients reported, as bytes, played on a
//! boosted server and on the same server alone. Both must reply the same bytes in the same order.
//!
//! # Layout
//! - [`ReportsArgs`], [`run`]: the command.
//! - [`sequence`]: what a sequence consists of; `words`: how commands are written.
//! - [`table`]: the sequences, each with its public report.
//! - [`cut`]: in which segments the bytes come.
//! - [`ground`]: the two servers; `stage`: labs that have them.
//! - `play`: one play; [`crew`]: all plays of a sequence.
//! - `report`: text and JSON.
//!
//! # Two worlds
//! Cold: fresh connections and keys. Warm: every key was read twice and had the time to be cached, and each
//! connection has been answered, so that ERB answers. The server itself is the witness: CLIENT LIST shows no read as a
//! connection's last command that was answered in front of it.

pub mod crew;
pub mod cut;
pub mod ground;
mod play;
mod report;
pub mod sequence;
mod stage;
pub mod table;
mod words;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use erb_check::net;
use erb_lab::servers::CANNOT_BE_HAD;
use erb_lab::{Answers, Erb, ServerProgram, Stop};

use crate::crew::{Plan, Prefixes};
use crate::cut::Cuts;
use crate::report::{Place, Report, Row};
use crate::sequence::{Need, Sequence};
use crate::stage::Stage;

/// Files that may be open at once: a crowd's connections to both servers.
const FILES: u64 = 8192;

/// Play what users of other servers, proxies and clients reported, beside the same server alone.
///
/// Each sequence is played cold and warm, whole, and cut: at every byte, or between commands if it is longer than
/// 512 bytes. Exit code 0: both servers replied the same bytes in the same order; 1: they did not, or
/// ERB answered no read of a sequence; 2: a sequence could not be played.
#[derive(Args, Clone, Debug)]
pub struct ReportsArgs {
    /// Only these servers: the installed redis-server, or those of Debian 13, fetched once [default: all that can be had].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub server: Vec<ServerProgram>,
    /// Only what ERB answers in these modes [default: both].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub mode: Vec<Answers>,
    /// Only sequences whose name or report contains one of these.
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    pub only: Vec<String>,
    /// List the sequences with their reports, and play none.
    #[arg(long)]
    pub list: bool,
    /// Where sequences are cut.
    #[arg(long, value_enum, default_value_t = Cuts::Every)]
    pub cuts: Cuts,
    /// Plays at a time, of those that do not disturb each other.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// Seconds without the boosted server's bytes, while the other has answered, that count as stuck.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub stall_timeout: u64,
    /// Names the keys and chooses places in long sequences; printed with the result.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Plays them and prints what came of each.
///
/// Needs root. Labs that it makes are gone when it returns, also on error, SIGINT and SIGTERM.
///
/// # Errors
/// If a lab could not be made, or a sequence not be played.
pub fn run(args: &ReportsArgs, erb: &Erb) -> Result<ExitCode> {
    let sequences = chosen(&args.only)?;
    if args.list {
        list(&sequences, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces and XDP programs need root; run it with sudo"
    );
    net::raise_file_limit(FILES)?;
    let stop = Stop::watch()?;
    let _lock = erb_lab::only_one("reports")?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut report = Report::new(seed);
    let run = Run {
        erb,
        stop: &stop,
        sequences: &sequences,
        plan: Plan {
            cuts: args.cuts,
            workers: args.workers as usize,
            stall: Duration::from_secs(args.stall_timeout),
            seed,
        },
        prefixes: Prefixes::default(),
    };
    for server in or_all(&args.server) {
        if let Err(error) = server.program() {
            let error = format!("{error:#}");
            ensure!(error.contains(CANNOT_BE_HAD), "{error}");
            progress(&error);
            report.missing.push(error);
            continue;
        }
        for mode in or_all(&args.mode) {
            run.play(Place { server, mode }, &mut report)?;
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.to_text());
    }
    if report.has_faults() {
        return Ok(ExitCode::FAILURE);
    }
    ensure!(report.played() > 0, "no sequence was played");
    ensure!(
        report.passed(),
        "{} sequences could not be played to their end",
        report.broken()
    );
    Ok(ExitCode::SUCCESS)
}

fn or_all<T: ValueEnum + Copy>(chosen: &[T]) -> Vec<T> {
    if chosen.is_empty() {
        T::value_variants().to_vec()
    } else {
        chosen.to_vec()
    }
}

/// The sequences with one of these texts, or all.
fn chosen(only: &[String]) -> Result<Vec<Sequence>> {
    let mut sequences = table::all();
    if !only.is_empty() {
        let wanted =
            |one: &Sequence, text: &String| one.name.contains(text) || one.report.contains(text);
        if let Some(none) = only
            .iter()
            .find(|text| !sequences.iter().any(|one| wanted(one, text)))
        {
            bail!("no sequence has {none:?} in its name or report; --list shows them");
        }
        sequences.retain(|one| only.iter().any(|text| wanted(one, text)));
    }
    Ok(sequences)
}

fn list(sequences: &[Sequence], json: bool) -> Result<()> {
    if json {
        let rows: Vec<_> = sequences
            .iter()
            .map(|one| serde_json::json!({ "sequence": one.name, "report": one.report }))
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    for one in sequences {
        println!("{:<28} {}", one.name, one.report);
    }
    Ok(())
}

/// A run.
struct Run<'a> {
    erb: &'a Erb,
    stop: &'a Stop,
    sequences: &'a [Sequence],
    plan: Plan,
    prefixes: Prefixes,
}

impl Run<'_> {
    /// Plays all on one server in one mode. Servers with threads are others.
    fn play(&self, place: Place, report: &mut Report) -> Result<()> {
        for threads in [false, true] {
            let here: Vec<&Sequence> = self
                .sequences
                .iter()
                .filter(|one| one.threads == threads)
                .collect();
            if here.is_empty() {
                continue;
            }
            self.stop.check()?;
            let primary = here.iter().any(|one| one.needs.contains(&Need::Primary));
            let stage = Stage::up(self.erb, place.server, place.mode, threads, primary)?;
            let ground = stage.ground();
            for sequence in here {
                self.stop.check()?;
                let ended = || self.stop.check().is_err();
                let outcome = crew::play(sequence, &ground, &self.plan, &self.prefixes, &ended)
                    .with_context(|| format!("{} could not be played", sequence.name))?;
                self.stop.check()?;
                let row = Row::new(place, sequence, outcome);
                progress(&row.line());
                report.add(row);
            }
            report.invariants(place, stage.broken_invariants()?);
            stage.down()?;
        }
        Ok(())
    }
}

/// Standard output is the result's.
fn progress(text: &str) {
    eprintln!("reports: {text}");
}
