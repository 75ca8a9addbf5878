// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb check`, with ERB's daemon in the labs of the suite.

use std::process::ExitCode;

use erb_suite::Host;

use crate::args::Check;
use crate::lab;

/// Of a check that could not be carried out, which is neither passed nor failed.
const NOT_CARRIED_OUT: u8 = 2;

/// Runs `erb check ...`.
pub fn run(check: &Check) -> ExitCode {
    let done = match check {
        Check::Address(check) => erb_check::run(check),
        Check::Suite(args) => {
            let host = Host {
                booster: &lab::DaemonBooster,
                forward_words: &["lab", "__forward"],
            };
            erb_suite::run(args, &host)
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("erb check: {error:#}");
        ExitCode::from(NOT_CARRIED_OUT)
    })
}
