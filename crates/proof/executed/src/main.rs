// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb-executed`: what packets execute, in all or of one in detail.

use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use clap::Parser;
use erb_executed::play::{Tier, machine, play};
use erb_executed::{report, table};

/// Counts the BPF instructions that packets execute, in an interpreter. Needs no root.
#[derive(Parser)]
struct Args {
    /// A packet, as `xdp/hit`: where its instructions go. None: the table of all.
    case: Option<String>,
    /// Source lines to be listed.
    #[arg(long, default_value_t = 30)]
    lines: usize,
}

fn run(args: &Args) -> Result<String> {
    let machine = Rc::new(machine()?);
    let mut played = play(&machine, Tier::Xdp)?;
    played.extend(play(&machine, Tier::Tc)?);
    let Some(case) = &args.case else {
        return Ok(table::text(&table::rows(&played)));
    };
    let found = played.iter().find(|it| it.case == *case);
    let found = found.with_context(|| {
        let known: Vec<&str> = played.iter().map(|it| &it.case[..]).collect();
        format!("there is no packet {case}; there are {}", known.join(", "))
    })?;
    Ok(report::of(&machine, found, args.lines))
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("erb-executed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
