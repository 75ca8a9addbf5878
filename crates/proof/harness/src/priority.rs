// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle priority of the compute lane, as long as the kernel lane is at work.
//!
//! Beside other work of the machine, a process at idle priority gets no processor at all. So idle priority ends with
//! the kernel lane: sessions that run then are raised to normal priority, later ones start there.
//!
//! Invariants: 1. After [`Idle::end`] no process of a session that was announced is idle. 2. A limit of time
//! counts from that moment: a session that got no processor does not hang.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, getsid};

/// Of this run.
pub static IDLE: Idle = Idle::new();

/// Shell words that run the rest at idle priority: it gives way at once, within the session and among sessions, to what
/// runs at normal priority.
const WORDS: &str =
    "chrt --idle --pid 0 $$; echo 19 2>/dev/null >/proc/self/autogroup; exec \"$@\"";
/// A process that forks while it is raised may have an idle child; so often the processes are looked through.
const PASSES_MAX: usize = 20;

/// Whether the compute lane is idle, and the sessions of its processes.
#[derive(Debug)]
pub struct Idle(Mutex<State>);

#[derive(Debug)]
struct State {
    ended: Option<Instant>,
    sessions: BTreeSet<i32>,
}

impl Idle {
    const fn new() -> Self {
        Self(Mutex::new(State {
            ended: None,
            sessions: BTreeSet::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command that runs its arguments, at idle priority if that has not ended.
    pub fn command(&self) -> Command {
        let is_over = self.state().ended.is_some();
        let mut command = Command::new("bash");
        command.args(["-c", if is_over { "exec \"$@\"" } else { WORDS }, "idle"]);
        command
    }

    /// A session that was started by [`Idle::command`].
    pub fn started(&self, session: Pid) {
        let mut state = self.state();
        state.sessions.insert(session.as_raw());
        if state.ended.is_some() {
            raise(&state.sessions);
        }
    }

    /// A session that has ended.
    pub fn gone(&self, session: Pid) {
        self.state().sessions.remove(&session.as_raw());
    }

    /// Ends idle priority.
    pub fn end(&self) {
        let mut state = self.state();
        if state.ended.is_none() {
            state.ended = Some(Instant::now());
            raise(&state.sessions);
        }
    }

    /// How much of its limit a session has left that began then.
    pub fn left(&self, began: Instant, limit: Duration) -> Duration {
        self.state().ended.map_or(limit, |ended| {
            limit.saturating_sub(began.max(ended).elapsed())
        })
    }
}

/// Raises every thread of these sessions to normal priority.
fn raise(sessions: &BTreeSet<i32>) {
    for _ in 0..PASSES_MAX {
        let mut raised = 0;
        for process in numbers("/proc") {
            let session = getsid(Some(Pid::from_raw(process)));
            if !session.is_ok_and(|session| sessions.contains(&session.as_raw())) {
                continue;
            }
            let tasks = numbers(&format!("/proc/{process}/task"));
            raised += tasks.into_iter().filter(|task| raise_one(*task)).count();
            // Fails if the kernel has no such groups, or the process has ended.
            let _ = fs::write(format!("/proc/{process}/autogroup"), "0");
        }
        if raised == 0 {
            return;
        }
    }
}

/// True if the thread was idle, and is no longer.
fn raise_one(task: i32) -> bool {
    let normal = libc::sched_param { sched_priority: 0 };
    // SAFETY: both take numbers and a pointer to a structure that outlives the call.
    unsafe {
        libc::sched_getscheduler(task) == libc::SCHED_IDLE
            && libc::sched_setscheduler(task, libc::SCHED_OTHER, &raw const normal) == 0
    }
}

/// Names in a folder of /proc that are numbers; none if the process has ended.
pub fn numbers(folder: &str) -> Vec<i32> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names =
        entries.filter_map(|entry: io::Result<_>| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Stdio;

    use super::*;
    use crate::child::{in_a_session, session};

    /// Prints the scheduler's class of a child's child, once more for each line that it is told.
    const TELLS: &str = "(while chrt --pid $BASHPID; read -r _; do :; done)";

    #[test]
    fn what_was_started_idle_is_raised_at_the_end_and_later_ones_are_not_idle() {
        let idle = Idle::new();
        let mut command = idle.command();
        command.args(["bash", "-c", TELLS]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        in_a_session(&mut command);
        let mut child = command.spawn().expect("bash");
        let id = session(&child);
        idle.started(id);
        let mut said = String::new();
        let mut output = child.stdout.take().expect("its output");
        while !said.contains("priority: 0") {
            let mut byte = [0];
            output.read_exact(&mut byte).expect("a line");
            said.push(char::from(byte[0]));
        }
        assert!(said.contains("SCHED_IDLE"), "{said}");
        let began = Instant::now();
        let limit = Duration::from_secs(600);
        assert_eq!(idle.left(began, limit), limit, "it does not count yet");
        idle.end();
        assert!(idle.left(began, limit) < limit);
        let mut input = child.stdin.take().expect("its input");
        io::Write::write_all(&mut input, b"again\n").expect("it reads");
        drop(input);
        let mut later = String::new();
        output.read_to_string(&mut later).expect("its output");
        assert!(child.wait().expect("its end").success());
        assert!(later.contains("SCHED_OTHER"), "{later}");
        assert!(!later.contains("SCHED_IDLE"), "{later}");
        idle.gone(id);
        // A later one is as this test, which may itself be in a lane that is idle.
        let class = |mut command: Command| {
            let output = command.args(["bash", "-c", "chrt --pid $$"]).output();
            let output = String::from_utf8(output.expect("bash").stdout).expect("UTF-8");
            assert!(output.contains("SCHED_"), "{output}");
            output.contains("SCHED_IDLE")
        };
        assert_eq!(class(idle.command()), class(Command::new("env")));
    }
}
