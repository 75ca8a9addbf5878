// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb-lab`: the tools. The command `erb` starts it for `erb lab`, `bench`, `check` and `demo`, and
//! the tools run `erb` in turn, which lies beside this program.

mod pipe;

use std::process::ExitCode;

use anyhow::{Error, Result};
use clap::{Args, Parser, Subcommand};
use erb_lab::Erb;
use erb_report::exit;
use erb_vm::fault::{Missing, Unfit, Unprivileged};

/// The tools of ERB.
#[derive(Debug, Parser)]
#[command(name = "erb", bin_name = "erb", version)]
struct Cli {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// A laboratory in network namespaces, or in an emulated machine.
    Lab(LabTool),
    /// Measure what a request costs.
    Bench(erb_bench::args::BenchArgs),
    /// Check that a Redis address shows what Redis alone could have shown.
    #[command(subcommand)]
    Check(Check),
    /// Show Redis alone beside Redis boosted.
    Demo(erb_demo::DemoArgs),
}

/// `erb lab`.
#[derive(Debug, Args)]
struct LabTool {
    #[command(subcommand)]
    command: Lab,
    #[command(flatten)]
    args: erb_lab::LabArgs,
}

/// Laboratories of `erb lab`.
#[derive(Debug, Subcommand)]
enum Lab {
    /// In network namespaces.
    #[command(flatten)]
    Namespaces(erb_lab::LabCommand),
    /// Try ERB under other kernels than the one that runs, in emulated machines.
    Vm(erb_vm::VmArgs),
}

/// Checks of `erb check`.
#[derive(Debug, Subcommand)]
enum Check {
    /// Those that drive any Redis address.
    #[command(flatten)]
    Address(erb_check::Check),
    /// Run Redis's own test suite with and without ERB, in labs of its own.
    Suite(erb_suite::SuiteArgs),
    /// Put hostile and silly clients beside honest ones, in labs of its own.
    Hostile(erb_hostile::HostileArgs),
    /// Play what users of other servers and proxies reported, beside the same server alone, in labs of its own.
    Reports(erb_reports::ReportsArgs),
}

fn main() -> ExitCode {
    pipe::quietly(|| run(Cli::parse().tool))
}

fn run(tool: Tool) -> ExitCode {
    let erb = match Erb::beside() {
        Ok(erb) => erb,
        Err(error) => return failed(&error),
    };
    let done = match tool {
        Tool::Lab(args) => lab(args, &erb),
        Tool::Bench(args) => erb_bench::run(&args, &erb),
        Tool::Demo(args) => erb_demo::run(&args, &erb),
        Tool::Check(one) => return check(&one, &erb),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(match error {
        error if error.is::<Missing>() => exit::NO_MACHINE,
        error if error.is::<Unfit>() => exit::USAGE,
        error if error.is::<Unprivileged>() => exit::PRIVILEGE,
        _ => exit::FAILED,
    })
}

fn lab(tool: LabTool, erb: &Erb) -> Result<()> {
    let LabTool { command, args } = tool;
    let json = args.json;
    let done = match command {
        Lab::Namespaces(command) => erb_lab::run(command, &args, erb),
        Lab::Vm(vm) => erb_vm::run(&vm, json, erb),
    };
    done.inspect_err(|error| {
        if json {
            println!("{}", serde_json::json!({ "error": format!("{error:#}") }));
        }
    })
}

fn check(check: &Check, erb: &Erb) -> ExitCode {
    let done = match check {
        Check::Address(check) => erb_check::run(check),
        Check::Suite(args) => erb_suite::run(args, erb),
        Check::Hostile(args) => erb_hostile::run(args, erb),
        Check::Reports(args) => erb_reports::run(args, erb),
    };
    done.unwrap_or_else(|error| {
        eprintln!("erb check: {error:#}");
        ExitCode::from(exit::NOT_CARRIED_OUT)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
