// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks as a program of their own; the `erb` binary mounts the same subcommands.

use std::process::ExitCode;

use clap::Parser;

/// Decide whether a Redis address shows its clients what Redis alone could have shown them.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    check: erb_check::Check,
}

fn main() -> ExitCode {
    erb_check::run(&Cli::parse().check).unwrap_or_else(|error| {
        eprintln!("erb-check: {error:#}");
        ExitCode::from(2)
    })
}
