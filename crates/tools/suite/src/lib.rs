// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb check suite`: Redis's own test suite, in its mode for external servers, against Redis alone
//! and against Redis boosted; every test must end the same way.
//!
//! # Layout
//! - [`SuiteArgs`], [`run`]: the command, and the rule by which rounds are repeated.
//! - `bystander`: a client like ERB's own, for Redis without ERB.
//! - `source`: the suite, from Debian's source package of the installed redis-server.
//! - `stage`: one file of the suite in a lab of its own.
//! - `parse`: what the suite printed, as one outcome per test.
//! - `compare`: outcomes of both servers beside each other.
//! - `repeat`: the proxy of `--repeat-reads`, which lets ERB answer what the suite reads once.
//! - `witness`: what ERB says of a connection.
//! - `report`, `shares`: text and JSON.
//!
//! # The rule
//! No list of ours says which tests count. A test's result is the same if Redis alone has shown, in
//! this very run, each outcome that the boosted Redis showed. Where that is not so after the first
//! round, the whole file is repeated on both, up to `--repeat` times: a test that Redis alone
//! passes now and fails then is told apart from one that only ERB fails by looking, not by name.
//! What the suite itself leaves out with external servers (its tags) it leaves out on both.
//!
//! ERB's daemon is a client of Redis, told of all changes by CLIENT TRACKING; INFO and CLIENT LIST
//! show it, as they show any client. So the repetitions have a third server: Redis without ERB, with
//! one such client. What that shows too is reported apart: it comes of one client more, not of ERB's
//! answers.

mod bystander;
mod compare;
mod parse;
mod repeat;
mod report;
mod shares;
mod source;
mod stage;
mod witness;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use erb_lab::{Answers, Erb, ServerProgram, Stop};
use serde::Serialize;

use crate::compare::{Comparison, Server};
use crate::report::{Report, UnitReport};
use crate::source::Suite;
use crate::stage::{Stage, UnitRun};

/// Files of `--fast`: what touches strings, expiry, connections and the protocol, and is done in
/// seconds.
const FAST_UNITS: [&str; 15] = [
    "unit/protocol",
    "unit/keyspace",
    "unit/info-command",
    "unit/type/string",
    "unit/type/incr",
    "unit/type/hash",
    "unit/expire",
    "unit/multi",
    "unit/quit",
    "unit/pubsub",
    "unit/bitops",
    "unit/scripting",
    "unit/functions",
    "unit/pause",
    "unit/tracking",
];

/// Run Redis's own test suite against Redis alone and against Redis boosted, test by test.
///
/// The suite is that of Debian's source package of the server, in its mode for external servers,
/// unchanged; it is fetched once. Each file of it runs in labs of its own. Exit code 0: every test
/// ended the same way; 1: some did not, or ERB answered fewer reads than --share-min; 2: the suite could not be run.
#[derive(Args, Clone, Debug)]
pub struct SuiteArgs {
    /// Without the tests that the suite calls slow, and with one database; without --tests only some
    /// quick files: two to three minutes.
    #[arg(long)]
    pub fast: bool,
    /// Only these files of the suite, like unit/type/string.
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub tests: Vec<String>,
    /// Send each read of the fast list again until ERB answers it, a bounded number of times, and hand
    /// on the last reply; to Redis without ERB as well.
    #[arg(long)]
    pub repeat_reads: bool,
    /// Share of these reads that ERB must have answered.
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.0,
        requires = "repeat_reads"
    )]
    pub share_min: f64,
    /// Which server, with its own suite: the installed redis-server, or one of Debian 13, fetched once.
    #[arg(long, value_enum, default_value_t = ServerProgram::Redis7)]
    pub server: ServerProgram,
    /// What ERB answers on the boosted Redis.
    #[arg(long, value_enum, default_value_t = Answers::Read)]
    pub mode: Answers,
    /// Threads by which the server reads and writes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub io_threads: Option<u8>,
    /// How the suite uses databases [default: both ways one after the other; with --fast single].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub databases: Vec<Databases>,
    /// So often a file is repeated, on both servers, while a test of it differs.
    #[arg(long, default_value_t = 4, value_name = "TIMES")]
    pub repeat: u32,
    /// Unpacked source of redis-server to take the suite from, instead of fetching it.
    #[arg(long, value_name = "DIR")]
    pub source: Option<PathBuf>,
    /// Where source and outputs of the suite are kept [default: suite in the build's target
    /// directory, else erb/suite in the user's cache directory].
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// The suite's two ways with databases on an external server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Databases {
    /// Its default: each connection begins with SELECT 9.
    Many,
    /// `--singledb`: no SELECT, fewer tests.
    Single,
}

impl Databases {
    const fn name(self) -> &'static str {
        match self {
            Self::Many => "many",
            Self::Single => "single",
        }
    }
}

/// Runs the suite and prints what differs.
///
/// Needs root. Labs that it makes are gone when it returns, also on error, SIGINT and SIGTERM.
///
/// # Errors
/// If the suite could not be had or run.
pub fn run(args: &SuiteArgs, erb: &Erb) -> Result<ExitCode> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "network namespaces and XDP programs need root; run it with sudo"
    );
    ensure!(
        (0.0..=1.0).contains(&args.share_min),
        "--share-min {}: must be from 0 to 1",
        args.share_min
    );
    let stop = Stop::watch()?;
    let _lock = erb_lab::only_one("suite")?;
    let suite = Suite::get(args)?;
    let units = units(args, &suite)?;
    let mut report = Report::new(&suite, args);
    for databases in databases(args) {
        for unit in &units {
            let play = Play {
                erb,
                suite: &suite,
                unit,
                databases,
                args,
                stop: &stop,
            };
            let judged = play.compare()?;
            progress(&judged.line());
            report.add(judged);
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.to_text());
    }
    Ok(ExitCode::from(u8::from(!report.passed())))
}

fn databases(args: &SuiteArgs) -> Vec<Databases> {
    match args.databases.as_slice() {
        [] if args.fast => vec![Databases::Single],
        [] => Databases::value_variants().to_vec(),
        some => some.to_vec(),
    }
}

/// The files to run, in the suite's order.
fn units(args: &SuiteArgs, suite: &Suite) -> Result<Vec<String>> {
    let all = suite.units()?;
    let wanted: Vec<&str> = if args.fast && args.tests.is_empty() {
        FAST_UNITS.to_vec()
    } else {
        args.tests.iter().map(String::as_str).collect()
    };
    if let Some(unknown) = wanted.iter().find(|name| !all.iter().any(|u| u == *name)) {
        return Err(anyhow!(
            "the suite has no file {unknown}; it has: {}",
            all.join(" ")
        ));
    }
    Ok(if wanted.is_empty() {
        all
    } else {
        all.into_iter()
            .filter(|unit| wanted.contains(&unit.as_str()))
            .collect()
    })
}

/// One file of the suite on both servers.
struct Play<'a> {
    erb: &'a Erb,
    suite: &'a Suite,
    unit: &'a str,
    databases: Databases,
    args: &'a SuiteArgs,
    stop: &'a Stop,
}

impl Play<'_> {
    /// Rounds on both servers until no test differs, at most `--repeat` after the first.
    fn compare(&self) -> Result<UnitReport> {
        let mut comparison = Comparison::default();
        let mut report = UnitReport::new(self.unit, self.databases);
        for round in 0..=self.args.repeat {
            for server in [Server::Alone, Server::Watched, Server::Boosted] {
                if round == 0 && server == Server::Watched {
                    continue;
                }
                self.stop.check()?;
                let run = self.round(server, round)?;
                comparison.add(server, &run.outcomes);
                report.count(server, &run);
            }
            if comparison.differing().next().is_none() {
                break;
            }
        }
        report.judge(&comparison);
        Ok(report)
    }

    fn round(&self, server: Server, round: u32) -> Result<UnitRun> {
        let log = self.suite.log(&format!(
            "{}.{}.{}.{round}",
            self.unit.replace('/', "_"),
            self.databases.name(),
            server.name(),
        ));
        let run = || {
            let stage = Stage::up(self.erb, server, self.args, round)?;
            let words = self.words();
            let run = stage.play(self.suite, self.unit, &words, &log, self.stop)?;
            stage.down()?;
            Ok::<_, anyhow::Error>(run)
        };
        run().with_context(|| format!("{} could not be run on {}", self.unit, server.text()))
    }

    /// The suite's own options beside address and file.
    fn words(&self) -> Vec<&'static str> {
        let mut words = Vec::new();
        if self.databases == Databases::Single {
            words.push("--singledb");
        }
        if self.args.fast {
            // As Redis's own runs against external servers (.github/workflows/external.yml).
            words.extend(["--tags", "-slow"]);
        }
        words
    }
}

/// Standard output is the result's.
fn progress(text: &str) {
    eprintln!("suite: {text}");
}
