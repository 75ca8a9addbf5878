// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that are programs: started with pipes, ended by closing their stdin.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use procfs::process::{FDTarget, Process as ProcProcess};
use serde::Deserialize;

use super::{CLIENT_TIMEOUT, Job, Status};

/// How long a client may take to end after its stdin closed, before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A running client. Dropping it closes its stdin and waits for its end.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts the program with stdin and stdout as pipes.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdin = child.stdin.take();
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| anyhow!("{name} has no stdout"))?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout)
                .lines()
                .map_while(std::io::Result::ok)
            {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child,
            stdin,
            lines,
        })
    }

    /// The next line of its output.
    ///
    /// # Errors
    /// If there is none within [`CLIENT_TIMEOUT`], or the program ended.
    pub fn line(&self) -> Result<String> {
        self.lines
            .recv_timeout(CLIENT_TIMEOUT)
            .map_err(|e| match e {
                RecvTimeoutError::Timeout => anyhow!("silent for {CLIENT_TIMEOUT:?}: stuck"),
                RecvTimeoutError::Disconnected => anyhow!("the client ended early"),
            })
    }

    /// Writes to its stdin.
    ///
    /// # Errors
    /// If it does not read any more.
    pub fn write(&mut self, text: &str) -> Result<()> {
        let stdin = self
            .stdin
            .as_mut()
            .ok_or_else(|| anyhow!("stdin is closed"))?;
        stdin
            .write_all(text.as_bytes())
            .context("the client does not read")?;
        Ok(stdin.flush()?)
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + END_TIMEOUT;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Killing can only fail if it has just ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Local addresses of the process's connections to `target`.
///
/// # Errors
/// If /proc cannot be read.
pub fn local_addresses(pid: i32, target: SocketAddr) -> Result<Vec<SocketAddr>> {
    let process = ProcProcess::new(pid)?;
    let mut sockets = Vec::new();
    for fd in process.fd()?.flatten() {
        if let FDTarget::Socket(inode) = fd.target {
            sockets.push(inode);
        }
    }
    let plain = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
    let mut entries = process.tcp()?;
    entries.extend(process.tcp6().unwrap_or_default());
    Ok(entries
        .into_iter()
        .filter(|e| sockets.contains(&e.inode) && plain(e.remote_address) == target)
        .map(|e| plain(e.local_address))
        .collect())
}

/// A line of our client programs.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum Said {
    Connected { version: String },
    Done,
    Failed { error: String },
}

/// Starts the client, reports its connection, lets it work, waits for its verdict.
///
/// # Errors
/// If it cannot be started or does not keep to the protocol of our programs.
pub fn drive(
    command: Command,
    job: &Job,
    connected: impl Fn(&str, SocketAddr) -> Result<()>,
) -> Result<(Process, Status)> {
    let mut process = Process::start(command)?;
    loop {
        let line = process.line()?;
        let said =
            serde_json::from_str(&line).with_context(|| format!("the client printed {line:?}"))?;
        match said {
            Said::Connected { version } => {
                let locals = local_addresses(process.pid(), job.target)?;
                let [local] = locals[..] else {
                    bail!("the client has {} connections instead of one", locals.len());
                };
                connected(&version, local)?;
                process.write("\n")?;
            }
            Said::Done => return Ok((process, Status::Passed)),
            Said::Failed { error } => return Ok((process, Status::Failed(error))),
        }
    }
}
