//! Workloads and checkers that drive any Redis address and decide whether what clients saw is
//! what Redis alone could have shown them.
//!
//! # Layout
//! - [`resp`], [`net`]: bytes and sockets, shared by all.
//! - [`history`]: concurrent operations on shared keys must be linearizable.
//! - [`shadow`]: every reply byte compared with a plain Redis.
//! - [`record`]: a proxy that prints who sends what.

pub mod history;
pub mod net;
pub mod record;
pub mod resp;
pub mod shadow;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// The checks, as subcommands of `erb check` and of `erb-check`.
#[derive(Debug, Clone, Subcommand)]
pub enum Check {
    /// Send the same commands to a target and a plain Redis, compare every reply byte.
    Shadow(shadow::ShadowArgs),
    /// Work on shared keys from many connections and check that the history is linearizable.
    History(history::HistoryArgs),
    /// Pass connections to a Redis and print what each side sends.
    Record(record::RecordArgs),
}

/// Runs one check. The exit code is 0 if it passed, 1 if it found something wrong.
///
/// # Errors
/// If the check could not be carried out at all (exit code 2 is the caller's).
pub fn run(check: &Check) -> Result<ExitCode> {
    match check {
        Check::Shadow(args) => shadow::run(args),
        Check::History(args) => history::run(args),
        Check::Record(args) => record::run(args).map(|()| ExitCode::SUCCESS),
    }
}
