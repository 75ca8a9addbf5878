// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that the lab started: named so that a recycled pid is never mistaken for them.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use procfs::process::Stat;
use serde::{Deserialize, Serialize};

/// How long a process may take to end after SIGTERM before it gets SIGKILL.
const TERM_WAIT: Duration = Duration::from_secs(3);
/// How long the kernel may take to end a process after SIGKILL.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Pause between two looks at a process that others reap.
const REAP_PAUSE: Duration = Duration::from_millis(2);

/// A process by pid and start time; the pair is never used twice while the machine is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// What it is for, like "redis-server".
    pub role: String,
    /// Its process id.
    pub pid: i32,
    /// When it started, in clock ticks after boot (field 22 of /proc/PID/stat).
    pub start_ticks: u64,
}

impl Process {
    /// Describes the running process `pid`; fails if it is gone already.
    pub fn describe(role: &str, pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid)?;
        match stat(pid).as_ref().and_then(start_ticks) {
            Some(start_ticks) => Ok(Self {
                role: role.to_owned(),
                pid,
                start_ticks,
            }),
            None => bail!("{role} (pid {pid}) ended right after its start"),
        }
    }

    /// Whether this very process still runs (a zombie does not).
    pub fn is_alive(&self) -> bool {
        stat(self.pid).as_ref().and_then(start_ticks) == Some(self.start_ticks)
    }

    /// Ends the process, gently first; true if it had to be done, false if it was gone.
    pub fn end(&self) -> Result<bool> {
        let ended = self.end_by_descriptor();
        // Reaps it if it is our child; everybody else's children are reaped by their parents.
        let _ = waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG));
        ended.with_context(|| format!("cannot end {} (pid {})", self.role, self.pid))
    }

    fn end_by_descriptor(&self) -> Result<bool> {
        // The descriptor first, the comparison after it: it then names the process compared.
        let Some(descriptor) = open_descriptor(self.pid)? else {
            return Ok(false);
        };
        if !self.is_alive() {
            return Ok(false);
        }
        signal(&descriptor, libc::SIGTERM)?;
        if wait(&descriptor, TERM_WAIT)? {
            return Ok(true);
        }
        signal(&descriptor, libc::SIGKILL)?;
        if !wait(&descriptor, KILL_WAIT)? {
            bail!("it did not end within {KILL_WAIT:?} after SIGKILL");
        }
        Ok(true)
    }
}

/// Lets what `command` starts live on by itself: a session of its own, so that neither Ctrl-C nor
/// the end of the terminal reaches it.
pub(crate) fn detach(command: &mut Command) -> &mut Command {
    let own_session = || Ok(nix::unistd::setsid().map(drop)?);
    // SAFETY: the closure makes one system call between fork and exec and allocates nothing.
    unsafe { command.pre_exec(own_session) }
}

/// Bytes of a log shown when what wrote it did not start.
const LOG_TAIL_BYTES: usize = 2000;

/// Adds the end of the log at `log` to why `what` did not start.
pub(crate) fn with_log(error: Error, what: &str, log: &Path) -> Error {
    let text = fs::read(log).unwrap_or_default();
    let start = text.len().saturating_sub(LOG_TAIL_BYTES);
    let text = String::from_utf8_lossy(&text[start..]);
    anyhow!(
        "{what} did not start: {error:#}; its log ends with:\n{}",
        text.trim()
    )
}

/// Has `command` write to a new file at `log`, read nothing, and hold no folder.
pub(crate) fn log_to(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    Ok(())
}

/// Waits until `answers` is right about a process that was just started, for `limit` at most; `late` says what
/// happened if it is not.
pub(crate) fn await_answer(
    child: &mut Child,
    (limit, pause): (Duration, Duration),
    late: &str,
    mut answers: impl FnMut() -> Result<()>,
) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        let Err(last) = answers() else {
            return Ok(());
        };
        if let Some(status) = child.try_wait()? {
            bail!("it ended at once ({status})");
        }
        if Instant::now() > end {
            return Err(last).context(late.to_owned());
        }
        thread::sleep(pause);
    }
}

/// Waits until none of `processes` is listed any more, so that what they held is free.
pub fn await_gone(processes: &[Process], limit: Duration) {
    let end = Instant::now() + limit;
    while processes.iter().any(Process::is_alive) && Instant::now() < end {
        thread::sleep(REAP_PAUSE);
    }
}

/// All processes (not this one, nor one it descends from) for which `wanted` holds.
pub fn find(role: &str, wanted: impl Fn(i32) -> bool) -> Result<Vec<Process>> {
    let mut own = vec![i32::try_from(std::process::id())?];
    while let Some(stat) = own.last().and_then(|pid| stat(*pid)) {
        own.push(stat.ppid);
    }
    let others = all()?.filter(|stat| !own.contains(&stat.pid));
    let found = others.filter_map(|stat| {
        let start_ticks = start_ticks(&stat).filter(|_| wanted(stat.pid))?;
        Some(Process {
            role: role.to_owned(),
            pid: stat.pid,
            start_ticks,
        })
    });
    Ok(found.collect())
}

/// Ids of all processes, kernel threads among them, whose name begins with `prefix`.
pub fn named(prefix: &str) -> Result<Vec<u32>> {
    let named = all()?.filter(|stat| stat.comm.starts_with(prefix));
    Ok(named.map(|stat| stat.pid.unsigned_abs()).collect())
}

fn all() -> Result<impl Iterator<Item = Stat>> {
    let all = procfs::process::all_processes().context("cannot list /proc")?;
    // A process may end between the two looks.
    Ok(all.flatten().filter_map(|process| process.stat().ok()))
}

fn stat(pid: i32) -> Option<Stat> {
    procfs::process::Process::new(pid).ok()?.stat().ok()
}

/// Start time of a process that is no zombie.
fn start_ticks(stat: &Stat) -> Option<u64> {
    (!matches!(stat.state, 'Z' | 'X')).then_some(stat.starttime)
}

fn open_descriptor(pid: i32) -> Result<Option<OwnedFd>> {
    // SAFETY: pidfd_open takes two integers and returns a descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match Errno::result(fd) {
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) })),
        Err(Errno::ESRCH) => Ok(None),
        Err(error) => Err(error).context("pidfd_open"),
    }
}

fn signal(process: &OwnedFd, signal: i32) -> Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a live pid descriptor, a signal number, no siginfo, no flags.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            no_info,
            0,
        )
    };
    match Errno::result(result) {
        Ok(_) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("signal {signal}")),
    }
}

/// Waits for the end of a process; true if it came within `limit`.
fn wait(process: &OwnedFd, limit: Duration) -> Result<bool> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(
            &mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)],
            timeout,
        ) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("poll"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_pid_is_never_hit() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::describe("sleep", child.id()).unwrap();
        let other = Process {
            start_ticks: process.start_ticks + 1,
            ..process.clone()
        };
        assert!(!other.is_alive());
        assert!(
            !other.end().unwrap(),
            "a process with another start time was ended"
        );
        assert!(process.is_alive());
        assert!(process.end().unwrap());
        assert!(!process.is_alive());
        assert!(!process.end().unwrap(), "ended twice");
        // Reaped by end(), so the handle has nothing left to wait for.
        let _ = child.wait();
    }

    #[test]
    fn one_that_ignores_sigterm_is_killed() {
        let deaf = "trap '' TERM; while :; do sleep 0.05; done";
        let mut child = Command::new("sh").args(["-c", deaf]).spawn().unwrap();
        let process = Process::describe("stubborn", child.id()).unwrap();
        thread::sleep(Duration::from_millis(200));
        assert!(process.end().unwrap());
        assert!(!process.is_alive());
        let _ = child.wait();
    }

    #[test]
    fn the_searcher_and_its_parents_are_not_found() {
        let all = find("any", |_| true).unwrap();
        let own = std::process::id() as i32;
        let parent = nix::unistd::getppid().as_raw();
        assert!(
            all.iter()
                .all(|process| process.pid != own && process.pid != parent)
        );
    }
}
