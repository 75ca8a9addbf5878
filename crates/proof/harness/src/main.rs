// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `./test`: everything that must hold before a change is merged.
//!
//! - [`programs`]: builds the workspace once, lists the test programs.
//! - [`lanes`]: which tests run beside which.
//! - [`changed`]: which crates a change can reach.
//! - [`run`]: runs a program or one of its tests.
//! - [`verdict`]: which failures are repeated, what the machine lacked.
//! - [`priority`]: idle priority of the compute lane.
//! - [`steps`]: what is done beside tests (`scripts/step`).
//! - [`results`]: results kept by commit, for runs that are resumed.
//! - [`machine`], [`load`]: what the machine was short of; a load beside the tests.
//! - [`session`]: one run of it all.
//! - [`summary`]: what is told at the end.

mod args;
mod changed;
mod lanes;
mod load;
mod machine;
mod priority;
mod programs;
mod results;
mod run;
mod session;
mod steps;
mod summary;
mod verdict;

use std::process::ExitCode;

use clap::Parser as _;

/// Something failed.
const FAILED: u8 = 1;
/// Wrong words, or what is needed cannot be had.
const CANNOT: u8 = 2;

fn main() -> ExitCode {
    let args = args::Args::parse();
    session::run(&args).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(CANNOT)
    })
}
