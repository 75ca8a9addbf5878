// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes and limits.

use std::process::Command;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// For so long at most a killed process is at its end.
const END_WAIT: Duration = Duration::from_secs(30);

/// A process that ends with its owner.
#[derive(Debug)]
pub struct Owned(std::process::Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Owned {
    /// Starts `command`; it is killed when this is dropped.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("start a process"))
    }

    /// Its process id.
    ///
    /// # Panics
    /// Never: pids are positive.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).expect("pids are positive"))
    }
}

/// A process that stands still, until this is dropped: also when an assertion fails, as others wait for it.
#[derive(Debug)]
pub struct Still(Pid);

impl Still {
    /// From now on it stands still.
    ///
    /// # Panics
    /// If it is not there.
    #[must_use]
    pub fn of(pid: Pid) -> Self {
        signal(pid, Signal::SIGSTOP);
        Self(pid)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Lets this process have as many sockets as the system allows.
///
/// # Panics
/// If the limit cannot be raised.
pub fn raise_file_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limit of open files");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("more open files");
}

/// Sends a signal to a process that the lab started.
///
/// # Panics
/// If it is not there.
pub fn signal(pid: Pid, signal: Signal) {
    kill(pid, signal).expect("signal");
}

/// Runs a command and returns what it printed.
///
/// # Panics
/// If it fails.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("start a program");
    assert!(
        output.status.success(),
        "{command:?}: {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Kills a process that the lab started, and returns when it has ended: what it listened to is free then.
///
/// # Panics
/// If it is not there, or does not end.
pub fn kill_whole(pid: Pid) {
    signal(pid, Signal::SIGKILL);
    let has_ended = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        // Its parent may not have asked for it yet.
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    erb_steady::wait_until(END_WAIT, "a killed process ends", has_ended);
}
