// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check clients`: real client libraries connect with their defaults, work, and stay connected.
//!
//! One JSON line per event on stdout: `connected` (with the client's local address, so that
//! somebody else can be asked about that connection), `result`, and `holding` when all are done
//! and their connections are still open. They stay open for `--hold` seconds, else until stdin
//! closes.
//! - [`prepare`]: toolchains and builds, cached in the work directory.
//! - [`process`]: clients that are programs of their own.
//! - [`redis_cli`], [`redis_rs`]: the two that need no program of ours.

mod prepare;
mod process;
mod redis_cli;
mod redis_rs;

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::net;
use prepare::Unavailable;
use process::Process;

/// Longest wait for a client's next sign of life: a JVM on a busy machine takes seconds.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `check clients`.
#[derive(Debug, Clone, Args)]
pub struct ClientsArgs {
    /// The address under test, HOST:PORT or [IPV6]:PORT.
    #[arg(long)]
    pub target: String,
    /// Only these clients.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Client>,
    /// Where client programs are built and kept (default: the user's cache directory).
    #[arg(long)]
    pub workdir: Option<PathBuf>,
    /// Build the clients and stop: for a later run where there is no network.
    #[arg(long)]
    pub prepare_only: bool,
    /// GETs of one key after the other commands.
    #[arg(long, default_value_t = 200)]
    pub repeats: u32,
    /// Keep the connections open for so many seconds (without it: until stdin closes).
    #[arg(long)]
    pub hold: Option<u64>,
    /// Exit with 0 although a client's toolchain is missing.
    #[arg(long)]
    pub allow_unavailable: bool,
}

/// A client library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// redis-cli of the system.
    RedisCli,
    /// redis-py from PyPI.
    RedisPy,
    /// The Rust crate `redis`.
    RedisRs,
    /// go-redis v9.
    GoRedis,
    /// Jedis from Maven Central.
    Jedis,
}

/// How one client fared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "status", content = "reason")]
pub enum Status {
    /// Every reply was right.
    Passed,
    /// A reply was wrong or the connection broke.
    Failed(String),
    /// The client could not be built or started here; nothing is known about the target.
    Unavailable(String),
}

/// A line of output.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum Event<'a> {
    Connected {
        client: Client,
        protocol: u8,
        version: &'a str,
        local: SocketAddr,
    },
    Result {
        client: Client,
        protocol: u8,
        #[serde(flatten)]
        status: &'a Status,
    },
    Prepared {
        client: Client,
    },
    Holding {
        passed: usize,
        failed: usize,
        unavailable: usize,
    },
}

fn say(event: &Event<'_>) -> Result<()> {
    println!("{}", serde_json::to_string(event)?);
    Ok(())
}

/// A connection that stays open until this is dropped.
enum Held {
    Process(#[expect(dead_code, reason = "held for its Drop")] Process),
    RedisRs(#[expect(dead_code, reason = "held for its Drop")] Box<::redis::Connection>),
}

/// What a client is told.
pub(crate) struct Job {
    target: SocketAddr,
    protocol: u8,
    repeats: u32,
    /// Keys of this client begin with it.
    prefix: String,
}

/// Runs the clients; prints as it goes. Returns the status of each client and protocol.
///
/// # Errors
/// If an argument is wrong; what happens to a client is in its status.
pub fn execute(args: &ClientsArgs) -> Result<Vec<(Client, u8, Status)>> {
    let target = net::resolve(&args.target)?;
    let workdir = workdir(args)?;
    let clients = if args.only.is_empty() {
        Client::value_variants()
    } else {
        args.only.as_slice()
    };
    let mut results = Vec::new();
    let mut held = Vec::new();
    for &client in clients {
        let program = match prepare::prepare(client, &workdir) {
            Ok(program) => program,
            Err(Unavailable(reason)) => {
                results.push((client, 0, Status::Unavailable(reason)));
                say_last(&results)?;
                continue;
            }
        };
        if args.prepare_only {
            say(&Event::Prepared { client })?;
            continue;
        }
        for protocol in [2, 3] {
            let prefix = format!("cl{:x}:{client:?}{protocol}", std::process::id());
            let job = Job {
                target,
                protocol,
                repeats: args.repeats,
                prefix,
            };
            let status = match drive(client, program.as_ref(), &job) {
                Ok((keep, status)) => {
                    held.push(keep);
                    status
                }
                Err(error) => Status::Failed(format!("{error:#}")),
            };
            results.push((client, protocol, status));
            say_last(&results)?;
        }
    }
    if !args.prepare_only {
        hold(args, &results)?;
    }
    drop(held);
    Ok(results)
}

fn say_last(results: &[(Client, u8, Status)]) -> Result<()> {
    let Some((client, protocol, status)) = results.last() else {
        return Ok(());
    };
    say(&Event::Result {
        client: *client,
        protocol: *protocol,
        status,
    })
}

fn drive(client: Client, program: Option<&prepare::Program>, job: &Job) -> Result<(Held, Status)> {
    let connected = |version: &str, local| {
        say(&Event::Connected {
            client,
            protocol: job.protocol,
            version,
            local,
        })
    };
    match (client, program) {
        (Client::RedisRs, _) => redis_rs::drive(job, connected)
            .map(|(conn, status)| (Held::RedisRs(Box::new(conn)), status)),
        (Client::RedisCli, _) => redis_cli::drive(job, connected)
            .map(|(process, status)| (Held::Process(process), status)),
        (_, Some(program)) => {
            let mut command = Command::new(&program.argv[0]);
            command.args(&program.argv[1..]).args([
                job.target.ip().to_string(),
                job.target.port().to_string(),
                job.protocol.to_string(),
                job.repeats.to_string(),
                job.prefix.clone(),
            ]);
            process::drive(command, job, connected)
                .map(|(process, status)| (Held::Process(process), status))
        }
        (_, None) => Err(anyhow!("{client:?} has no program")),
    }
}

fn hold(args: &ClientsArgs, results: &[(Client, u8, Status)]) -> Result<()> {
    let count = |f: fn(&Status) -> bool| results.iter().filter(|r| f(&r.2)).count();
    say(&Event::Holding {
        passed: count(|s| *s == Status::Passed),
        failed: count(|s| matches!(s, Status::Failed(_))),
        unavailable: count(|s| matches!(s, Status::Unavailable(_))),
    })?;
    match args.hold {
        Some(seconds) => std::thread::sleep(Duration::from_secs(seconds)),
        None => {
            std::io::stdin()
                .read_to_end(&mut Vec::new())
                .context("waiting for stdin to close")?;
        }
    }
    Ok(())
}

fn workdir(args: &ClientsArgs) -> Result<PathBuf> {
    if let Some(workdir) = &args.workdir {
        return std::path::absolute(workdir).context("--workdir");
    }
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .ok_or_else(|| anyhow!("neither XDG_CACHE_HOME nor HOME is set: give --workdir"))?;
    Ok(cache.join("erb/check-clients"))
}

/// `check clients`: exit code 0 if every client passed (or was allowed to be unavailable).
///
/// # Errors
/// As [`execute`].
pub fn run(args: &ClientsArgs) -> Result<ExitCode> {
    let results = execute(args)?;
    let bad = results.iter().any(|(_, _, status)| match status {
        Status::Passed => false,
        Status::Unavailable(_) => !args.allow_unavailable,
        Status::Failed(_) => true,
    });
    Ok(if bad {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
