// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb lab ...`: raw arguments, and what they do.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::control::LinkReport;
use crate::erb::Erb;
use crate::fault::Counters;
use crate::forward;
use crate::lab::{Lab, LabConfig, LabStatus, require_root};
use crate::redis::RedisArg;
use crate::servers::{ServerProgram, Serves};
use crate::settings::{LinkChange, PPM_MAX, SettingsError};
use crate::state::{End, Kind, LabName, LabState, Mode, NAME_DEFAULT};
use crate::teardown::{self, DownReport};

/// What all commands of a lab are told.
#[derive(Args, Debug)]
pub struct LabArgs {
    /// Name of the lab; several may be up side by side.
    #[arg(long, global = true, default_value = NAME_DEFAULT)]
    pub name: LabName,
    /// Print one JSON object instead of text.
    #[arg(long, global = true)]
    pub json: bool,
}

/// What is done with a laboratory on this machine: client, middle box and server in network namespaces.
#[derive(Subcommand, Debug)]
pub enum LabCommand {
    /// Make the namespaces, start redis-server or a storage node, boost Redis if told to.
    Up(UpArgs),
    /// Run a command in one of the namespaces; its exit code is passed through.
    Exec(ExecArgs),
    /// Show or change what the middle box does: loss=1% dup=0.5% reorder=2% corrupt=0.1%
    /// delay=2ms seed=42, or `reset`.
    Link(LinkArgs),
    /// Show what the lab consists of and how it is doing.
    Status,
    /// End what was started, remove everything.
    Down,
    /// The middle box's process (started by `up`).
    #[command(name = "__forward", hide = true)]
    Forward(ForwardArgs),
}

/// What `up` makes.
#[derive(Args, Debug)]
pub struct UpArgs {
    /// No middle box: client and server face to face, for measuring.
    #[arg(long)]
    direct: bool,
    /// Whether ERB boosts the lab's Redis.
    #[arg(long, value_enum, default_value_t = Mode::Off)]
    mode: Mode,
    /// Port of redis-server.
    #[arg(long, default_value_t = 6379, value_parser = clap::value_parser!(u16).range(1..))]
    redis_port: u16,
    /// One more redis.conf setting, like maxmemory=100mb; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    redis_arg: Vec<RedisArg>,
    /// Which server it is: the installed redis-server, one of Debian 13, fetched once, or a storage node.
    #[arg(long, value_enum, default_value_t = ServerArg::Redis7)]
    server: ServerArg,
    /// Threads by which the server reads and writes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    io_threads: Option<u8>,
}

/// What a lab can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServerArg {
    /// The installed redis-server, which is Redis 7 on Debian 12.
    Redis7,
    /// Debian 13's Redis 8.
    Redis8,
    /// Debian 13's Valkey 8.
    Valkey8,
    /// A storage node: erb node, on port 4420.
    Node,
}

impl From<ServerArg> for Serves {
    fn from(server: ServerArg) -> Self {
        match server {
            ServerArg::Redis7 => Self::Redis(ServerProgram::Redis7),
            ServerArg::Redis8 => Self::Redis(ServerProgram::Redis8),
            ServerArg::Valkey8 => Self::Redis(ServerProgram::Valkey8),
            ServerArg::Node => Self::Node,
        }
    }
}

impl UpArgs {
    fn redis_args(&self) -> Result<Vec<RedisArg>> {
        let mut all = self.redis_arg.clone();
        if let Some(threads) = self.io_threads {
            let program = match self.server.into() {
                Serves::Redis(program) => program,
                Serves::Node => bail!("a node has one thread: leave --io-threads out"),
            };
            all.extend(program.thread_settings(threads)?);
        }
        Ok(all)
    }
}

/// What `exec` runs.
#[derive(Args, Debug)]
pub struct ExecArgs {
    /// In which namespace.
    #[arg(value_enum)]
    end: End,
    /// The command with its arguments, behind `--`.
    #[arg(last = true, required = true, num_args = 1..)]
    command: Vec<std::ffi::OsString>,
}

/// What `link` changes.
#[derive(Args, Debug)]
pub struct LinkArgs {
    /// KEY=VALUE..., `reset`, or nothing to only look.
    words: Vec<String>,
}

/// What the middle box lies between.
#[derive(Args, Debug)]
pub struct ForwardArgs {
    client_device: String,
    server_device: String,
    control_socket: PathBuf,
}

/// Does what the arguments say.
///
/// Of `exec` it returns only errors: the command replaces the process.
pub fn run(command: LabCommand, args: &LabArgs, erb: &Erb) -> Result<()> {
    let LabArgs { name, json } = args;
    let json = *json;
    match command {
        LabCommand::Up(up) => {
            let config = LabConfig {
                name: name.clone(),
                direct: up.direct,
                mode: up.mode,
                redis_port: up.redis_port,
                redis_args: up.redis_args()?,
                server: up.server.into(),
            };
            print(Lab::up(&config, erb)?.state(), json, show_state)
        }
        LabCommand::Exec(exec) => run_exec(name, &exec),
        LabCommand::Link(link) => print(&run_link(name, &link.words)?, json, show_link),
        LabCommand::Status => print(&open(name)?.status(), json, show_status),
        LabCommand::Down => print(&teardown::down(name, erb)?, json, show_down),
        LabCommand::Forward(args) => forward::run(
            &args.client_device,
            &args.server_device,
            &args.control_socket,
        ),
    }
}

fn open(name: &LabName) -> Result<Lab> {
    require_root()?;
    Lab::open(name)
}

fn run_exec(name: &LabName, exec: &ExecArgs) -> Result<()> {
    let [program, arguments @ ..] = exec.command.as_slice() else {
        bail!("no command given: erb lab exec client -- redis-cli -h 10.77.0.2");
    };
    let mut command = open(name)?.exec(exec.end, program)?;
    let error = command.args(arguments).exec();
    let program = program.to_string_lossy();
    if error.kind() == ErrorKind::NotFound {
        bail!("cannot run `{program}`: no such command");
    }
    Err(error).with_context(|| format!("cannot run `{program}`"))
}

fn run_link(name: &LabName, words: &[String]) -> Result<LinkReport> {
    // Words first: a typing mistake is told even when the lab is down.
    let is_reset = |word: &String| word == "reset";
    if words.len() > 1 && words.iter().any(is_reset) {
        return Err(SettingsError::ResetWithMore.into());
    }
    if words.iter().any(is_reset) {
        return open(name)?.link_reset();
    }
    if words.is_empty() {
        return open(name)?.link_report();
    }
    let change = LinkChange::parse(words)?;
    open(name)?.link(change)
}

fn print<T: Serialize>(value: &T, json: bool, show: impl Fn(&T)) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(value)?);
    } else {
        show(value);
    }
    Ok(())
}

fn show_state(state: &LabState) {
    let mode = match (state.kind, state.mode) {
        (Kind::Node, _) => "a storage node",
        (Kind::Redis, Mode::Off) => "Redis alone",
        (Kind::Redis, Mode::Read) => "boosted, mode read",
        (Kind::Redis, Mode::WriteBack) => "boosted, mode write-back",
    };
    println!("lab {} ({mode})", state.name.as_str());
    for (role, end) in [("client", &state.client), ("server", &state.server)] {
        println!(
            "  {role}  namespace {}, device {}, {}, {}",
            end.namespace, end.device, end.ipv4, end.ipv6
        );
    }
    match &state.middle {
        Some(middle) => println!(
            "  middle  namespace {}, devices {} and {}",
            middle.namespace, middle.client_device, middle.server_device
        ),
        None => println!("  no middle box (--direct)"),
    }
    for process in &state.processes {
        println!("  {}  pid {}", process.role, process.pid);
    }
    let (server, scheme) = match state.kind {
        Kind::Redis => ("redis", ""),
        Kind::Node => ("node", "nvme://"),
    };
    let (address, port) = (state.server.ipv4, state.redis_port);
    println!("  {server:<7} {scheme}{address}:{port}");
    println!(
        "  files   {}, pins in {}",
        state.run_dir.display(),
        state.bpf_dir.display()
    );
}

fn show_status(status: &LabStatus) {
    show_state(&status.lab);
    println!(
        "  server  {}",
        if status.redis_answers {
            "answers"
        } else {
            "DOES NOT ANSWER"
        }
    );
    if !status.dead.is_empty() {
        println!("  DEAD    {}", status.dead.join(", "));
    }
    if let Some(link) = &status.link {
        show_link(link);
    }
}

fn show_link(report: &LinkReport) {
    let settings = &report.settings;
    let percent = |ppm: u32| f64::from(ppm) * 100.0 / f64::from(PPM_MAX);
    println!(
        "link loss={}% dup={}% reorder={}% corrupt={}% delay={}us seed={}",
        percent(settings.loss_ppm),
        percent(settings.dup_ppm),
        percent(settings.reorder_ppm),
        percent(settings.corrupt_ppm),
        settings.delay_us,
        settings.seed
    );
    for (way, counters) in [
        ("to server", &report.to_server),
        ("to client", &report.to_client),
    ] {
        let Counters {
            received,
            forwarded,
            lost,
            duplicated,
            reordered,
            corrupted,
            delayed,
            failed,
            missed,
        } = counters;
        println!(
            "  {way}: received {received}, forwarded {forwarded}, lost {lost}, duplicated \
             {duplicated}, reordered {reordered}, corrupted {corrupted}, delayed {delayed}, \
             failed {failed}, missed {missed}"
        );
    }
}

fn show_down(report: &DownReport) {
    let name = report.name.as_str();
    if !report.was_there {
        println!("lab {name}: nothing to remove");
        return;
    }
    println!("lab {name} removed");
    for process in &report.ended {
        println!("  ended {} (pid {})", process.role, process.pid);
    }
}
