// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A command that waits for a daemon which it has started, and is interrupted meanwhile.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use erb_daemon::{Error, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit;

/// Between two looks whether a signal has come, for one that comes just before a wait begins; else it ends the wait.
const LOOK_MS: u16 = 200;

/// Between two looks whether a daemon has left.
const LOOK: Duration = Duration::from_millis(20);

/// SIGINT and SIGTERM, once they are watched.
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From here on they end nothing by themselves.
    pub fn watch() -> Result<Self> {
        let number = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM] {
            let of = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_usize(signal, Arc::clone(&number), of)
                .map_err(Error::io("could not watch signals"))?;
        }
        Ok(Self(number))
    }

    /// The number of one that has come since the last call.
    pub fn take(&self) -> Option<u8> {
        let number = self.0.swap(0, Ordering::Relaxed);
        u8::try_from(number).ok().filter(|number| *number != 0)
    }

    /// The first line that comes, or what there is of it at its end; `interrupted` is called for each signal meanwhile.
    pub fn line(
        &self,
        mut output: impl Read + AsFd,
        mut interrupted: impl FnMut(u8),
    ) -> std::io::Result<String> {
        let mut text = Vec::new();
        let mut bytes = [0; 4096];
        while !text.contains(&b'\n') {
            if let Some(number) = self.take() {
                interrupted(number);
            }
            let mut waits = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waits, PollTimeout::from(LOOK_MS)) {
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match output.read(&mut bytes)? {
                0 => break,
                size => text.extend_from_slice(&bytes[..size]),
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Interrupt {
    /// Detaches what is at work and was not before, and waits for that. A second signal does not wait for connections that
    /// were answered.
    pub fn detach(
        &self,
        pid: u32,
        number: u8,
        mut ended: impl FnMut() -> Option<String>,
    ) -> ExitCode {
        eprintln!(
            "interrupted: the boost is taken back, and waits for connections that were answered already; a second signal \
             resets them"
        );
        signal(pid, Signal::SIGTERM);
        while ended().is_none() {
            if self.take().is_some() {
                signal(pid, Signal::SIGTERM);
            }
            std::thread::sleep(LOOK);
        }
        eprintln!("error: interrupted by signal {number}: nothing is boosted");
        code(number)
    }
}

/// One that has ended needs none.
pub fn signal(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// The daemon has taken back what it had begun.
pub fn taken_back(number: u8) -> ExitCode {
    eprintln!("error: {}", Error::Interrupted(number));
    code(number)
}

/// Of a command that was interrupted.
pub fn code(number: u8) -> ExitCode {
    ExitCode::from(exit::BY_SIGNAL + number)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_line_comes_whole_and_signals_meanwhile_are_told() {
        let interrupt = Interrupt(Arc::new(AtomicUsize::new(0)));
        let (reader, mut writer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut seen = Vec::new();
        let number = Arc::clone(&interrupt.0);
        number.store(2, Ordering::Relaxed);
        let line = std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                interrupt.line(reader, |number| {
                    seen.push(number);
                })
            });
            writer.write_all(b"half ").expect("a write");
            erb_steady::wait_until(std::time::Duration::from_secs(30), "the look", || {
                number.load(Ordering::Relaxed) == 0
            });
            number.store(15, Ordering::Relaxed);
            erb_steady::wait_until(std::time::Duration::from_secs(30), "another", || {
                number.load(Ordering::Relaxed) == 0
            });
            writer.write_all(b"a line\n").expect("a write");
            reads.join().expect("a thread")
        });
        assert_eq!(line.expect("a line"), "half a line\n");
        assert_eq!(seen, [2, 15]);
        assert_eq!(interrupt.take(), None);
    }

    #[test]
    fn what_ends_without_a_line_is_told_as_far_as_it_came() {
        let interrupt = Interrupt(Arc::new(AtomicUsize::new(0)));
        let (reader, mut writer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        writer.write_all(b"half").expect("a write");
        drop(writer);
        let line = interrupt.line(reader, |number| panic!("{number}"));
        assert_eq!(line.expect("its end"), "half");
    }
}
