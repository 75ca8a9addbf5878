// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard: a process beside the daemon that ends it when it stands still (stopped, hung).
//!
//! Redis keeps invalidations for a client that does not read, without bound, and counts them as its
//! own memory (measured: 1.4 MB per 200,000 SETs of 1,000 keys). A daemon that is gone costs hits,
//! as one that stands still does; one that stands still may cost Redis's memory as well.
//!
//! The daemon writes a byte each second; the guard waits for it. It ends with the daemon, whose end
//! of the pipe closes whatever way it goes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Error, Result, service};

/// Name of the hidden command that runs [`watch`].
pub const COMMAND: &str = "guard";

/// A daemon that was silent for this long is ended: twenty of its slowest ticks and a connection
/// attempt that Redis does not answer fit in.
const SILENCE_MS: u16 = 5000;

/// ... if it stays silent for this many looks more: where the whole machine stood still, the daemon
/// gets its turn before it is judged.
const LOOKS: u32 = 10;
const LOOK_MS: u16 = 100;

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
    let daemon = process_of(nix::unistd::getppid().as_raw())?;
    let mut beats = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    loop {
        let beat = is_readable(&beats, SILENCE_MS)?
            || (0..LOOKS).try_fold(false, |beat, _| {
                io::Result::Ok(beat || is_readable(&beats, LOOK_MS)?)
            })?;
        if !beat {
            eprintln!(
                "erb: the daemon stood still for {SILENCE_MS} ms and is ended: see erb status"
            );
            return end(&daemon);
        }
        if beats.read(&mut [0; 64])? == 0 {
            return Ok(());
        }
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
