// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard: a process beside the daemon that ends it when it stands still (stopped, hung).
//!
//! Redis keeps invalidations for a client that does not read, without bound, and counts them as its
//! own memory (measured: 1.4 MB per 200,000 SETs of 1,000 keys). A daemon that is gone costs hits,
//! as one that stands still does; one that stands still may cost Redis's memory as well.
//!
//! The daemon writes a byte each second; the guard waits for it. It ends with the daemon, whose end
//! of the pipe closes whatever way it goes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Error, Result, proc, service};

/// Name of the hidden command that runs [`watch`].
pub const COMMAND: &str = "guard";

/// A daemon that was silent for this long is ended: twenty of its slowest ticks and a connection
/// attempt that Redis does not answer fit in.
const SILENCE_MS: u16 = 5000;

/// ... if it stays silent for this many looks more: where the whole machine stood still, the daemon
/// gets its turn before it is judged.
const LOOKS: u32 = 10;
const LOOK_MS: u16 = 100;

/// ... or for this many, while it waits for a processor that others have: it was seen to get none for six seconds on
/// two processors with thirty busy processes. Another daemon in its place would fare no better.
const STARVED_LOOKS: u32 = 600;

/// A daemon that has run for this long and has not come around stands still, too: a turn takes some milliseconds.
const RAN_MS: u64 = 500;

/// Places in /proc/PID/stat after the name: clock ticks in user mode and in the kernel (proc_pid_stat(5)).
const UTIME: usize = 11;
/// See [`UTIME`].
const STIME: usize = 12;
/// A clock tick as user space is told of it: USER_HZ is 100 on every architecture that ERB builds for.
const TICK_MS: u64 = 10;

/// Between two bytes of the daemon.
const BEAT_NS: u64 = 1_000_000_000;

/// The daemon's side.
pub(crate) struct Guard {
    beats: Option<ChildStdin>,
    process: Child,
    next_ns: u64,
}

impl Guard {
    /// Starts the guard of this process.
    pub(crate) fn start() -> Result<Self> {
        let failed = |error: io::Error| Error::io("could not start the daemon's guard")(error);
        let mut process = Command::new("/proc/self/exe")
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let beats = process.stdin.take();
        if let Some(beats) = &beats {
            // A guard that is stopped itself must not stop the daemon.
            fcntl(beats.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
                .map_err(|error| failed(error.into()))?;
        }
        Ok(Self {
            beats,
            process,
            next_ns: 0,
        })
    }

    /// Called at each turn; systemd's own watchdog is told by the same beat.
    pub(crate) fn beat(&mut self, now_ns: u64) {
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + BEAT_NS;
        service::turns();
        if let Some(beats) = &mut self.beats {
            // Full or closed: then nobody watches, and the daemon works on.
            let _ = beats.write(&[1]);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.beats = None;
        // It ends at once, its input is closed.
        let _ = self.process.wait();
    }
}

/// The guard's side: watches the parent until that closes its end of standard input.
///
/// # Errors
/// If the parent or standard input cannot be watched.
pub fn watch() -> io::Result<()> {
    let pid = nix::unistd::getppid().as_raw();
    let daemon = process_of(pid)?;
    let mut beats = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let thread = PathBuf::from(format!("/proc/{pid}/task/{pid}"));
    loop {
        let is_beat = |for_ms| is_readable(&beats, for_ms);
        if let Some(seen) = silence(is_beat, || Seen::of(&thread))? {
            // A log that takes nothing is no reason to let it stand.
            let _ = writeln!(
                io::stderr(),
                "erb: the daemon stood still for {SILENCE_MS} ms ({seen}) and is ended: see erb status"
            );
            return end(&daemon);
        }
        if beats.read(&mut [0; 64])? == 0 {
            return Ok(());
        }
    }
}

/// Waits for a beat; if the daemon stands still, what it was last seen to do.
fn silence(
    mut is_beat: impl FnMut(u16) -> io::Result<bool>,
    see: impl Fn() -> Seen,
) -> io::Result<Option<Seen>> {
    let before = see();
    if is_beat(SILENCE_MS)? {
        return Ok(None);
    }
    for look in 1..=STARVED_LOOKS {
        if is_beat(LOOK_MS)? {
            return Ok(None);
        }
        let seen = see().since(&before);
        if look >= LOOKS && !seen.is_starved() {
            return Ok(Some(seen));
        }
    }
    Ok(Some(see().since(&before)))
}

/// What the thread that beats is seen to do (/proc/PID/task/TID/stat and wchan).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// R: it runs, or waits for a processor; none: it cannot be seen.
    state: Option<char>,
    /// Time that it has run.
    ran_ms: u64,
    /// The kernel's function that it waits in.
    function: String,
}

impl Seen {
    fn of(thread: &Path) -> Self {
        let stat = proc::stat(thread).unwrap_or_default();
        let ticks = [UTIME, STIME].map(|at| stat.get(at)?.parse::<u64>().ok());
        let ticks: u64 = ticks.into_iter().flatten().sum();
        let wchan = proc::text(thread.join("wchan")).unwrap_or_default();
        Self {
            state: stat.first().and_then(|word| word.chars().next()),
            ran_ms: ticks * TICK_MS,
            // "0": it waits in none.
            function: match wchan.trim() {
                "0" => String::new(),
                function => function.to_owned(),
            },
        }
    }

    fn since(self, before: &Self) -> Self {
        let ran_ms = self.ran_ms.saturating_sub(before.ran_ms);
        Self { ran_ms, ..self }
    }

    /// It would go on if a processor were free.
    fn is_starved(&self) -> bool {
        self.state == Some('R') && self.ran_ms < RAN_MS
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it ran for {} ms, ", self.ran_ms)?;
        match self.state {
            Some(state) => write!(f, "state {state}")?,
            None => write!(f, "its state is not known")?,
        }
        if !self.function.is_empty() {
            write!(f, ", in the kernel's {}", self.function)?;
        }
        Ok(())
    }
}

fn is_readable(file: &File, for_ms: u16) -> io::Result<bool> {
    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut fds, PollTimeout::from(for_ms))? > 0)
}

/// The process itself, not its number, which may be given to another.
fn process_of(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of this process.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to this process, nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // Had the parent gone before, the number could be another's: then this process has a new parent.
    if nix::unistd::getppid().as_raw() == pid {
        Ok(fd)
    } else {
        Err(io::Error::other("the daemon has gone"))
    }
}

fn end(process: &OwnedFd) -> io::Result<()> {
    // SAFETY: a descriptor of ours, a signal number, no further information (null), no flags.
    let done = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    const fn seen(state: char, ran_ms: u64) -> Seen {
        Seen {
            state: Some(state),
            ran_ms,
            function: String::new(),
        }
    }

    /// How long it is waited for a beat that comes at this look, or never; and the judgement. From the first look on
    /// it is seen to do this.
    fn waited(beat: Option<u32>, now: &Seen) -> (u32, Option<Seen>) {
        let looks = Cell::new(0);
        let is_beat = |_| {
            looks.set(looks.get() + 1);
            Ok(beat == Some(looks.get()))
        };
        let see = || match looks.get() {
            0 => seen('S', 7000),
            _ => now.clone(),
        };
        let judged = silence(is_beat, see).expect("nothing fails");
        (looks.get(), judged)
    }

    #[test]
    fn a_daemon_that_had_its_turn_is_judged_and_one_that_had_none_is_waited_for() {
        let stopped = seen('T', 7000);
        assert_eq!(waited(Some(1), &stopped), (1, None));
        assert_eq!(waited(Some(1 + LOOKS), &stopped), (1 + LOOKS, None));
        assert_eq!(waited(None, &stopped), (1 + LOOKS, Some(seen('T', 0))));
        let busy = seen('R', 7000 + RAN_MS);
        assert_eq!(waited(None, &busy), (1 + LOOKS, Some(seen('R', RAN_MS))));
        let starved = seen('R', 7000 + RAN_MS - 1);
        let late = 1 + LOOKS + 100;
        assert_eq!(waited(Some(late), &starved), (late, None));
        let end = waited(None, &starved);
        assert_eq!(end, (1 + STARVED_LOOKS, Some(seen('R', RAN_MS - 1))));
    }

    #[test]
    fn what_it_does_is_told_as_far_as_it_is_known() {
        let thread = tempfile::tempdir().expect("a folder");
        let told = || Seen::of(thread.path()).to_string();
        assert_eq!(told(), "it ran for 0 ms, its state is not known");
        let stat = b"7 (a) S (\xff) D 1 7 7 0 -1 4194560 1 0 0 0 12 30 0 0";
        fs::write(thread.path().join("stat"), stat).expect("a file");
        assert_eq!(told(), "it ran for 420 ms, state D");
        fs::write(thread.path().join("wchan"), "0").expect("a file");
        assert_eq!(told(), "it ran for 420 ms, state D");
        fs::write(thread.path().join("wchan"), "rtnl_lock").expect("a file");
        let told = told();
        assert_eq!(
            told,
            "it ran for 420 ms, state D, in the kernel's rtnl_lock"
        );
    }

    #[test]
    fn a_thread_that_runs_is_seen_to() {
        let thread = format!("/proc/self/task/{}", nix::unistd::gettid());
        let before = Seen::of(Path::new(&thread));
        let mut seen = before.clone();
        while seen.ran_ms < before.ran_ms + 2 * TICK_MS {
            seen = Seen::of(Path::new(&thread));
        }
        assert_eq!(seen.state, Some('R'));
    }
}
