// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads every program of every object by itself, so that one refusal does not hide another, and says for each how many
//! instructions were verified or why it was refused. `erb lab vm load` runs it under other kernels.
//!
//! Exit code 0: all were loaded; 1: some were refused, or are nearly as long as the verifier takes; 2: an object is none.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result};
use clap::Parser;
use erb_datapath::verified;
use libbpf_rs::{ObjectBuilder, OpenObject, PrintLevel, set_print};

/// The end of a verifier's log names the instruction, the registers and the line of the source.
const LINES_SHOWN: usize = 45;
/// The verifier takes 1,000,000 (`BPF_COMPLEXITY_LIMIT_INSNS`). A twentieth of that is left to what a kernel's next release or
/// another compiler makes of the same program: the count differs by half from one kernel to another.
const VERIFIED_MAX: u32 = 950_000;

/// Loads each of ERB's programs by itself.
#[derive(Debug, Parser)]
#[command(name = "erb-load-vm")]
struct Args {
    /// An empty folder on a bpffs: there the objects share their maps.
    pins: PathBuf,
}

/// What libbpf says of the program at hand: a verifier's log among it.
static SAID: Mutex<String> = Mutex::new(String::new());

fn keep(_level: PrintLevel, message: String) {
    if let Ok(mut said) = SAID.lock() {
        said.push_str(&message);
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// How many were refused, or are too long.
fn run(args: &Args) -> Result<u32> {
    set_print(Some((PrintLevel::Warn, keep)));
    let mut refused = 0;
    for (object, bytes) in erb_datapath::objects()
        .into_iter()
        .chain(erb_bench::objects())
    {
        for program in programs(&open(object, bytes, args)?) {
            if let Ok(mut said) = SAID.lock() {
                said.clear();
            }
            match load_one(object, bytes, &program, args) {
                Ok(count) => {
                    let is_long = count > VERIFIED_MAX;
                    let word = if is_long { "TOO LONG" } else { "loaded" };
                    println!("{word:<8} {program:<20} {count:7} instructions verified");
                    refused += u32::from(is_long);
                }
                Err(error) => {
                    refused += 1;
                    println!("REFUSED  {program}: {error:#}\n{}", end_of_log());
                }
            }
        }
    }
    println!("{refused} refused or longer than {VERIFIED_MAX}");
    Ok(refused)
}

fn open(name: &str, bytes: &[u8], args: &Args) -> Result<OpenObject> {
    let mut builder = ObjectBuilder::default();
    builder.name(name)?.pin_root_path(&args.pins)?;
    let opened = builder.open_memory(bytes);
    opened.with_context(|| format!("the object {name} is none"))
}

fn programs(object: &OpenObject) -> Vec<String> {
    let names = object.progs().map(|program| program.name().to_owned());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// How many instructions were verified.
fn load_one(object: &str, bytes: &[u8], name: &str, args: &Args) -> Result<u32> {
    let mut opened = open(object, bytes, args)?;
    for mut program in opened.progs_mut() {
        let wanted = program.name() == name;
        program.set_autoload(wanted);
    }
    let loaded = opened.load()?;
    let mut programs = loaded.progs();
    let program = programs.find(|program| program.name() == name);
    Ok(verified(&program.context("it is gone")?.as_fd())?)
}

fn end_of_log() -> String {
    let said = SAID.lock().map(|said| said.clone()).unwrap_or_default();
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
}
