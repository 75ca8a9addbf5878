// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb-lab`: the lab alone, without ERB's daemon. The command `erb lab` is the same with it.

use std::process::ExitCode;

use clap::Parser;
use erb_lab::{LabArgs, NoBooster};

/// The ERB lab: client, middle box and server with Redis in network namespaces.
#[derive(Parser)]
#[command(name = "erb-lab", version)]
struct Cli {
    #[command(flatten)]
    lab: LabArgs,
}

fn main() -> ExitCode {
    let args = Cli::parse().lab;
    let json = args.json();
    match erb_lab::run(args, &NoBooster, &["__forward"]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if json {
                println!("{}", serde_json::json!({ "error": format!("{error:#}") }));
            }
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
