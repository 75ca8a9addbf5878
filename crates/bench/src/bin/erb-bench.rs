// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb bench` alone, without ERB: measures redis and echo.

use std::process::ExitCode;

use clap::Parser;
use erb_bench::args::BenchArgs;

/// Measures what a request costs a server (without ERB; see `erb bench` for all servers).
#[derive(Parser)]
#[command(name = "erb-bench")]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    match erb_bench::run(&Cli::parse().bench, None) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("erb-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
