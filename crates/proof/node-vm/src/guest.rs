// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest whose power is cut: its process, and the time until somebody in it answers.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A port that nobody has at this moment.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

/// It ends with this.
pub(crate) struct Guest {
    process: Child,
    pid_file: PathBuf,
}

impl Guest {
    /// `command` is told the file for QEMU's process id, too.
    pub(crate) fn start(command: &mut Command, pid_file: PathBuf) -> Result<Self> {
        let _ = std::fs::remove_file(&pid_file);
        let process = command.spawn().context("the guest does not start")?;
        Ok(Self { process, pid_file })
    }

    /// As a power supply ends it.
    pub(crate) fn end(&self) -> Result<()> {
        let pid = std::fs::read_to_string(&self.pid_file)?;
        kill(Pid::from_raw(pid.trim().parse()?), Signal::SIGKILL)?;
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended. What has booted it ends with it.
        let _ = self.end();
        let _ = self.process.wait();
    }
}

/// Returns when somebody in the guest answers, which takes `most` at the most.
pub(crate) fn until_up<T>(most: Duration, tells: impl Fn() -> Result<T>) -> Result<()> {
    let begun = Instant::now();
    // QEMU takes connections before anybody in the guest does, and then ends them.
    while let Err(error) = tells() {
        ensure!(
            begun.elapsed() < most,
            "the guest does not come up: {error:#}"
        );
        thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}
