// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends a run early: at a signal, or because what is found can no longer be kept or told.
//!
//! Invariants: 1. The first reason stays. 2. Each session that is announced when the run is stopped gets SIGTERM, and
//! SIGKILL if it is still announced [`GRACE`] later. 3. A session that is announced after that gets SIGKILL at once.
//! 4. Nothing of a session is at work when [`Stop::ended`] returns, but what the kernel does not let go within [`GRACE`].

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getsid};

use crate::priority::numbers;

/// For so long a step may tidy up after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(20);
/// A process that forks while its session is looked through may have a child that is missed; so often it is looked
/// through.
const PASSES_MAX: usize = 20;
/// What ends a run from outside.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Why a run ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was told to.
    Signal(Signal),
    /// It cannot go on.
    Error(String),
}

impl fmt::Display for Why {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => write!(to, "ended by {signal}"),
            Self::Error(error) => to.write_str(error),
        }
    }
}

/// Whether the run is to end, and the sessions that are at work for it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    why: Option<Why>,
    sessions: BTreeSet<i32>,
}

impl Stop {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the run at SIGINT, SIGTERM and SIGHUP from now on, but for those that are ignored (`nohup`); a second signal
    /// does not wait for anything. To be called before other threads are started: they inherit the mask. Child
    /// processes do, too, but for those [`in_a_session`](crate::child::in_a_session).
    ///
    /// # Errors
    /// If the signals cannot be blocked.
    pub fn at_signals(&self) -> Result<()> {
        let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
        let ignored = ignored(&status);
        // One that is blocked and ignored is waited for like any other.
        let set: SigSet = SIGNALS
            .into_iter()
            .filter(|signal| ignored & (1 << (*signal as i32 - 1)) == 0)
            .collect();
        set.thread_block().context("cannot block signals")?;
        let stop = self.clone();
        thread::spawn(move || {
            while let Ok(signal) = set.wait() {
                stop.now(Why::Signal(signal));
            }
        });
        Ok(())
    }

    /// Ends all that is at work.
    pub fn now(&self, why: Why) {
        let mut state = self.state();
        if state.why.is_some() {
            if matches!(why, Why::Signal(_)) {
                state.send(Signal::SIGKILL);
            }
            return;
        }
        state.why = Some(why);
        state.send(Signal::SIGTERM);
        let stop = self.clone();
        thread::spawn(move || {
            thread::sleep(GRACE);
            stop.state().send(Signal::SIGKILL);
        });
    }

    /// Why the run is to end, if it is.
    pub fn why(&self) -> Option<Why> {
        self.state().why.clone()
    }

    /// Whether the run is to end.
    pub fn is_now(&self) -> bool {
        self.state().why.is_some()
    }

    /// A session that has begun to work.
    pub fn started(&self, session: Pid) {
        let mut state = self.state();
        state.sessions.insert(session.as_raw());
        if state.why.is_some() {
            state.send(Signal::SIGKILL);
        }
    }

    /// A session of which the first process has ended, and was not waited for, or is to end. What is left of the session
    /// gets SIGKILL; after its time to tidy up if the run was stopped.
    pub fn ended(&self, session: Pid) {
        if self.is_now() {
            wait(session, || ());
        }
        wait(session, || send(session, Signal::SIGKILL));
        self.state().sessions.remove(&session.as_raw());
    }
}

impl State {
    fn send(&self, signal: Signal) {
        for session in &self.sessions {
            send(Pid::from_raw(*session), signal);
        }
    }
}

/// All processes of a session, in whatever process group they are.
fn members(session: Pid) -> BTreeSet<i32> {
    let is_member = |process: &i32| getsid(Some(Pid::from_raw(*process))) == Ok(session);
    numbers("/proc").into_iter().filter(is_member).collect()
}

/// Whether a process of the session runs that is not about to be waited for.
fn is_at_work(session: Pid) -> bool {
    members(session).into_iter().any(|process| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // pid (name) state: proc_pid_stat(5).
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    })
}

/// Waits until nothing of a session is at work, at most for [`GRACE`]; `act` before each look.
fn wait(session: Pid, act: impl Fn()) {
    let end = Instant::now() + GRACE;
    loop {
        act();
        if !is_at_work(session) || Instant::now() > end {
            return;
        }
        thread::sleep(LOOK);
    }
}

/// Sends a signal to each process of a session once.
fn send(session: Pid, signal: Signal) {
    let mut sent = BTreeSet::new();
    for _ in 0..PASSES_MAX {
        let new: Vec<i32> = members(session).difference(&sent).copied().collect();
        if new.is_empty() {
            return;
        }
        for process in new {
            // Fails if it has just ended.
            let _ = kill(Pid::from_raw(process), signal);
            sent.insert(process);
        }
    }
}

/// Signals that a process ignores, by `/proc/PID/status`: bit 0 is signal 1 (proc_pid_status(5)).
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::child::{in_a_session, session};
    use crate::fake;

    fn shell(words: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", words]).stdin(Stdio::null());
        in_a_session(&mut command);
        command.spawn().expect("sh")
    }

    #[test]
    fn what_is_at_work_is_ended_and_what_comes_later_too() {
        let stop = Stop::default();
        // As the signals are in a run.
        let blocked: SigSet = SIGNALS.into_iter().collect();
        blocked.thread_block().expect("a mask");
        let mut child = shell("sleep 1000 & wait");
        blocked.thread_unblock().expect("a mask");
        stop.started(session(&child));
        assert!(!stop.is_now());
        stop.now(Why::Signal(Signal::SIGINT));
        let status = child.wait().expect("its end");
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{status}");
        stop.ended(session(&child));
        let mut late = shell("sleep 1000");
        stop.started(session(&late));
        let status = late.wait().expect("its end");
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{status}");
        stop.now(Why::Error("later".to_owned()));
        let why = stop.why().expect("a reason");
        assert_eq!(why.to_string(), "ended by SIGINT", "the first reason stays");
    }

    /// A shell that ignores SIGTERM, when it does.
    fn stubborn(words: &str) -> Child {
        let child = shell(&format!("trap '' TERM; kill -STOP $$; {words}"));
        // It stops itself when it ignores the signal.
        let stat = format!("/proc/{}/stat", child.id());
        while !fs::read_to_string(&stat).is_ok_and(|text| text.contains(") T ")) {
            thread::sleep(LOOK);
        }
        kill(session(&child), Signal::SIGCONT).expect("continued");
        child
    }

    #[test]
    fn what_ignores_sigterm_is_killed_later_or_at_a_second_signal() {
        for second in [None, Some(Signal::SIGINT)] {
            let stop = Stop::default();
            let mut child = stubborn("while :; do sleep 1; done");
            stop.started(session(&child));
            stop.now(Why::Signal(Signal::SIGTERM));
            stop.now(Why::Error("no second signal".to_owned()));
            if let Some(second) = second {
                stop.now(Why::Signal(second));
            }
            let status = child.wait().expect("its end");
            assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{status}");
        }
    }

    #[test]
    fn a_session_ends_with_its_other_process_groups_which_may_tidy_up() {
        let folder = fake::folder("tidies");
        let tidy = format!("trap 'sleep 0.2; >{}/tidied; exit' TERM", folder.display());
        // `timeout` is a process group of its own.
        let words = format!("timeout 1000 sh -c \"{tidy}; echo; sleep 1000 & wait\"");
        let mut command = Command::new("sh");
        command.args(["-c", &words]).stdin(Stdio::null());
        command.stdout(Stdio::piped());
        in_a_session(&mut command);
        let mut child = command.spawn().expect("sh");
        let mut ready = [0];
        let mut output = child.stdout.take().expect("its output");
        output.read_exact(&mut ready).expect("it is ready");
        let stop = Stop::default();
        stop.started(session(&child));
        assert!(members(session(&child)).len() > 1);
        stop.now(Why::Signal(Signal::SIGINT));
        stop.ended(session(&child));
        assert!(!is_at_work(session(&child)));
        assert!(folder.join("tidied").exists(), "not tidied");
        child.wait().expect("its end");
        // At the end of a step, without time to do so.
        let mut child = shell("timeout 1000 sleep 1000 & timeout 1000 sleep 1000 & exit");
        Stop::default().ended(session(&child));
        child.wait().expect("its end");
        assert!(!is_at_work(session(&child)));
    }

    #[test]
    fn ignored_signals_are_read() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored(status), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
