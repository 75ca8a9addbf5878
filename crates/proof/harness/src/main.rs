// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `./test`: everything that must hold before a change is merged.
//!
//! - [`programs`]: builds the workspace once, lists the test programs.
//! - [`lanes`]: which tests run beside which.
//! - [`changed`]: which crates a change can reach.
//! - [`run`]: runs a program or one of its tests; [`child`], [`said`]: any program in a session of its own, and what it
//!   says meanwhile.
//! - [`verdict`]: which failures are repeated, what the machine lacked.
//! - [`history`]: what is red or unsteady after all results of a test.
//! - [`stop`]: ends a run early, with all that is at work; [`out`]: what is told on stdout.
//! - [`priority`]: idle priority of the compute lane.
//! - [`steps`]: what is done beside tests (`scripts/step`).
//! - [`results`]: results kept by commit, for runs that are resumed.
//! - [`machine`], [`load`]: what the machine was short of; a load beside the tests.
//! - [`session`]: one run of it all; [`repeat`]: what it repeats, and its canaries.
//! - [`summary`]: what is told at the end.

mod args;
mod changed;
mod child;
#[cfg(test)]
mod fake;
mod history;
mod lanes;
mod load;
mod machine;
mod out;
mod priority;
mod programs;
mod repeat;
mod results;
mod run;
mod said;
mod session;
mod steps;
mod stop;
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
    let code = args.checked().and_then(|args| session::run(&args));
    code.map_or_else(
        |error| {
            out::error(format_args!("error: {error:#}"));
            ExitCode::from(CANNOT)
        },
        ExitCode::from,
    )
}
