// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `erb`: parse, validate, run.

mod args;
mod ask;
mod boost;
mod bug_report;
mod config;
mod detach;
mod doctor;
mod doctor_file;
mod exit;
mod fill;
mod generate;
mod host;
mod host_args;
mod interrupt;
mod journal;
mod journal_args;
mod kv;
mod kv_args;
mod kv_keep;
mod kv_transfer;
mod moment;
mod node;
mod node_args;
mod serve;
mod show;
mod show_lists;
mod status;
mod times;
mod tools;
mod top;
mod top_lists;
mod top_model;
mod top_view;
mod trace;
mod watch_args;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let words = match config::expanded(std::env::args_os().collect()) {
        Ok(words) => words,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(exit::code(&error));
        }
    };
    let done = match Cli::parse_from(words).command {
        Command::Boost(args) => boost::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Serve(args) => return serve::run(&args),
        Command::Node { command } => return node::run(&command),
        Command::Kv { command } => return kv::run(&command),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Journal { command } => journal::run(&command),
        Command::Config { command } => config::run(&command),
        Command::Report(args) => bug_report::run(&args),
        Command::Completions { shell } => generate::completions(shell),
        Command::Man(args) => generate::man(&args),
        Command::Lab(_) | Command::Bench(_) | Command::Check(_) | Command::Demo(_) => {
            return tools::run();
        }
        Command::Fill(args) => fill::fill(&args),
        Command::Fills(args) => fill::fills(&args),
        Command::Aside(args) => fill::aside(&args),
        Command::Consumed(which) => fill::consumed(&which),
        Command::Guard => return guard(),
        Command::ServeGuard => return serve::guard(),
        Command::TraceGuard { run_dir } => {
            erb_daemon::trace::guard::watch(&run_dir).map(|()| ExitCode::SUCCESS)
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(exit::code(&error))
    })
}

fn guard() -> ExitCode {
    match erb_daemon::guard::watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("erb: the daemon is not watched: {error}");
            ExitCode::FAILURE
        }
    }
}
