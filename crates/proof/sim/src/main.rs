// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb-sim`: runs and replays simulations.

use std::process::ExitCode;

use clap::Parser;
use erb_sim::campaign::{args::Cli, exit};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no mistakes.
            let code = if error.use_stderr() { exit::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    cli.run().unwrap_or_else(|error| {
        eprintln!("erb-sim: {error:#}");
        ExitCode::from(exit::FAILED)
    })
}
