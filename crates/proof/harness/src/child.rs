// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Child processes in sessions of their own: a session can be ended as a whole.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};

use crate::priority::IDLE;
use crate::said::Said;
use crate::stop::Stop;

/// A command, and how it is run.
pub struct Run {
    /// What is run.
    pub command: Command,
    /// Results of tests that it is to tell.
    pub results: usize,
    /// At idle priority, until that ends for all: the command is of [`IDLE`].
    pub idle: bool,
    /// After this long it is ended: a guard against hanging.
    pub limit: Duration,
}

impl Run {
    /// Runs it to its end, in a session of its own: what it says, and how it ended; `None` if that was after its limit. What it
    /// leaves behind in its session is ended.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn whole(mut self, stop: &Stop) -> Result<(Said, Option<ExitStatus>)> {
        self.command.stdin(Stdio::null());
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        in_a_session(&mut self.command);
        let mut child = self.command.spawn().with_context(|| {
            let program = Path::new(self.command.get_program());
            format!("cannot run {}", program.display())
        })?;
        let (began, session) = (Instant::now(), session(&child));
        stop.started(session);
        if self.idle {
            IDLE.started(session);
        }
        let mut said = Said::default();
        let in_time = said.read(&mut child, self.results, || {
            if self.idle {
                IDLE.left(began, self.limit)
            } else {
                self.limit.saturating_sub(began.elapsed())
            }
        });
        // What it left behind; itself if it hangs.
        stop.ended(session);
        let status = child.wait().context("a child process")?;
        if self.idle {
            IDLE.gone(session);
        }
        Ok((said, in_time.then_some(status)))
    }
}

/// A session of its own: it can be ended as a whole, and is a group of the scheduler. No signal is
/// blocked. The process gets SIGKILL when the thread that started it ends, so also when the harness is killed.
pub fn in_a_session(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let prepare = move || {
        nix::unistd::setsid()?;
        // The harness has blocked some, to wait for them.
        SigSet::empty().thread_set_mask()?;
        set_pdeathsig(Signal::SIGKILL)?;
        // It may have ended before that.
        if getppid() == parent {
            Ok(())
        } else {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
    };
    // SAFETY: between fork and exec only setsid(2), sigprocmask(2), prctl(2) and getppid(2) are called, which are safe in
    // signal handlers; errors are numbers, nothing is allocated.
    unsafe { command.pre_exec(prepare) };
}

/// The session of a child that has one of its own.
pub fn session(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a process id"))
}
