// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of `./test`.

use clap::Parser;
use regex::Regex;

use crate::lanes::Lane;

/// Everything that must hold before a change is merged, unattended.
///
/// Without options: formats, one build, all tests, the package, the kernel module, another kernel,
/// sanitizers, clippy. What searches (simulator, fuzzers, long histories, mutations) is a smoke of seconds.
#[derive(Debug, Parser)]
#[command(name = "./test", bin_name = "./test", after_help = AFTER)]
pub struct Args {
    /// Complete campaigns instead of smokes; a part of them, until all are done at this commit
    #[arg(long, conflicts_with = "times")]
    pub long: bool,
    /// With --long or --times: begin nothing after so many minutes; the next call goes on from there
    #[arg(long, default_value_t = 30.0, value_name = "N")]
    pub minutes: f64,
    /// Only the crates that the changes since this commit can reach, committed or not [default: HEAD]
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "HEAD")]
    pub changed: Option<String>,
    /// Each test so often, every time in a new process
    #[arg(long, value_name = "N")]
    pub times: Option<usize>,
    /// Busy processes beside the tests
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub load: usize,
    /// Only the tests of this lane, and no other step
    #[arg(long)]
    pub lane: Option<Lane>,
    /// Only the tests with a name that this regular expression matches, and no other step
    #[arg(long, value_name = "REGEX")]
    pub only: Option<Regex>,
}

const AFTER: &str = "\
A test that fails for set-up, pace or patience alone is repeated once, alone. If it passes then, it is
listed as unsteady and the run is good; docs/unsteady.md gets a row. Anything else is red at once.

Exit codes: 0 good; 1 something failed; 2 wrong words, or something needed cannot be had; 75 good so far,
but not all is done: call it again.";

impl Args {
    /// Whether all steps are wanted, not chosen tests.
    pub const fn everything(&self) -> bool {
        self.times.is_none() && self.lane.is_none() && self.only.is_none() && self.changed.is_none()
    }
}
