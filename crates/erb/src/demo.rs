// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb demo`, with ERB's daemon in the lab and in the bench.

use std::process::ExitCode;

use erb_demo::{DemoArgs, Host};

use crate::{bench, exit, lab};

/// Runs `erb demo ...`.
pub fn run(args: &DemoArgs) -> ExitCode {
    let host = Host {
        lab: &lab::DaemonBooster,
        bench: &bench::DaemonBooster,
        forward_words: &["lab", "__forward"],
    };
    match erb_demo::run(args, &host) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(exit::FAILED)
        }
    }
}
