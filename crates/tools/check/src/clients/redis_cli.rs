// SPDX-License-Identifier: Apache-2.0 OR MIT
//! redis-cli with commands on its stdin, as shell scripts use it.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Result, anyhow};

use super::process::{Process, local_addresses};
use super::{Job, Status};

/// Starts redis-cli, reports its connection, verifies every reply.
///
/// # Errors
/// If it cannot be started or ends early.
pub fn drive(
    job: &Job,
    connected: impl Fn(&str, SocketAddr) -> Result<()>,
) -> Result<(Process, Status)> {
    let version = Command::new("redis-cli").arg("--version").output()?.stdout;
    let mut command = Command::new("redis-cli");
    command.args([
        "-h",
        &job.target.ip().to_string(),
        "-p",
        &job.target.port().to_string(),
    ]);
    if job.protocol == 3 {
        command.arg("-3");
    }
    let mut process = Process::start(command)?;
    if let Err(wrong) = ask(&mut process, "PING", "PONG") {
        return Ok((process, Status::Failed(format!("{wrong:#}"))));
    }
    let local = local_addresses(process.pid(), job.target)?
        .pop()
        .ok_or_else(|| anyhow!("redis-cli has no connection to {}", job.target))?;
    connected(String::from_utf8_lossy(&version).trim(), local)?;
    let status = match work(&mut process, job) {
        Ok(()) => Status::Passed,
        Err(wrong) => Status::Failed(format!("{wrong:#}")),
    };
    Ok((process, status))
}

fn ask(process: &mut Process, command: &str, want: &str) -> Result<()> {
    process.write(&format!("{command}\n"))?;
    expect(process, command, want)
}

fn expect(process: &Process, command: &str, want: &str) -> Result<()> {
    let got = process.line()?;
    if got == want {
        Ok(())
    } else {
        Err(anyhow!("{command}: got {got:?}, expected {want:?}"))
    }
}

fn work(process: &mut Process, job: &Job) -> Result<()> {
    let Job {
        prefix, repeats, ..
    } = job;
    let (key, counter, gone) = (
        format!("{prefix}:k"),
        format!("{prefix}:n"),
        format!("{prefix}:gone"),
    );
    ask(process, &format!("SET {key} value"), "OK")?;
    ask(process, &format!("GET {key}"), "value")?;
    for n in 1..=3 {
        ask(process, &format!("INCR {counter}"), &n.to_string())?;
    }
    ask(process, &format!("SET {gone} x"), "OK")?;
    ask(process, &format!("EXPIRE {gone} 86400"), "1")?;
    ask(process, &format!("DEL {gone}"), "1")?;
    // Without a terminal redis-cli prints nil as an empty line.
    ask(process, &format!("GET {gone}"), "")?;
    let pairs: String = (0..10)
        .map(|i| format!("SET {key} {i}\nGET {key}\n"))
        .collect();
    process.write(&pairs)?;
    for i in 0..10 {
        expect(process, "SET", "OK")?;
        expect(process, "GET", &i.to_string())?;
    }
    for _ in 0..*repeats {
        ask(process, &format!("GET {key}"), "9")?;
    }
    Ok(())
}
