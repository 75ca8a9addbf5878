// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process beside a trace: should that be killed, this one puts ERB's own programs back.
//!
//! It holds the lock of the one who traces, so the next trace cannot begin before that is done. It
//! ends with the trace, whose end of the pipe closes whatever way it goes. If both are killed at once,
//! traced programs stay at work and trace nobody; the next trace, replacement or detach takes them
//! away.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_datapath::Links;

use crate::{Error, Result, RunDir};

/// Name of the hidden command that runs [`watch`].
pub const COMMAND: &str = "trace-guard";

/// A guard whose trace was killed has this long to put the programs back.
const TURN_MAX: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// The trace's side.
pub(super) struct Guard {
    input: Option<ChildStdin>,
    process: Child,
}

impl Guard {
    /// Starts the guard and waits until it holds the lock.
    pub(super) fn start(run_dir: &RunDir) -> Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .arg(COMMAND)
            .arg(run_dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the trace.
            .process_group(0)
            .spawn()
            .map_err(Error::io("could not start the trace's guard"))?;
        let ready = process
            .stdout
            .take()
            .is_some_and(|mut output| output.read(&mut [0]).is_ok_and(|read| read == 1));
        let guard = Self {
            input: process.stdin.take(),
            process,
        };
        if ready {
            Ok(guard)
        } else {
            Err(Error::AlreadyTraced(run_dir.path().to_path_buf()))
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.input = None;
        // It ends at once, its input is closed.
        let _ = self.process.wait();
    }
}

/// The guard's side: takes the lock, says so, and puts the programs back once its input is closed.
/// Ends in silence if another traces.
///
/// # Errors
/// If the programs cannot be put back.
pub fn watch(run_dir: &Path) -> Result<()> {
    let run_dir = RunDir::new(run_dir);
    let until = Instant::now() + TURN_MAX;
    let _lock = loop {
        match run_dir.trace_lock() {
            Ok(lock) => break lock,
            Err(_) if Instant::now() >= until => return Ok(()),
            Err(_) => sleep(LOOK),
        }
    };
    let mut output = io::stdout();
    output
        .write_all(&[1])
        .and_then(|()| output.flush())
        .map_err(Error::io("could not tell the trace that the lock is held"))?;
    // Any end of it is the trace's end.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    if !run_dir.has_pins() {
        return Ok(());
    }
    let _turn = run_dir.turn()?;
    Links::new(&run_dir.pins()).untrace()?;
    Ok(())
}
