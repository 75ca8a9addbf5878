// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What /proc says of the process that has a lock, or waits for a signal. Whether a store is in use is asked of its lock
//! itself; what is read here gives names to messages, and the process that a signal is for.
//!
//! Any line of /proc/locks may be one that this program does not know: every user of the machine adds lines, and
//! kernels have added kinds of lines (a lease that is waited for: "LEASE BREAKER ... <none>:0"). Such a line is passed
//! over.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::signal::Signal;
use nix::sys::stat::{major, minor};
use procfs::ProcError;

/// A file, as /proc/locks names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    major: u64,
    minor: u64,
    inode: u64,
}

impl Place {
    /// `MAJOR:MINOR:INODE`, the first two hexadecimal (`lock_get_status` of fs/locks.c).
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let place = Self {
            major: u64::from_str_radix(parts.next()?, 16).ok()?,
            minor: u64::from_str_radix(parts.next()?, 16).ok()?,
            inode: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(place)
    }
}

/// The process that has the lock of a file, and whether it lives; none: nothing names it.
///
/// # Errors
/// /proc/locks cannot be read.
pub(crate) fn lock_of(path: &Path) -> io::Result<Option<(i32, bool)>> {
    let metadata = fs::metadata(path)?;
    let wanted = Place {
        major: major(metadata.dev()),
        minor: minor(metadata.dev()),
        inode: metadata.ino(),
    };
    let table = fs::read("/proc/locks")?;
    let process = flock_of(&String::from_utf8_lossy(&table), wanted);
    Ok(process.map(|process| (process, lives(process))))
}

/// The process that has a flock(2) of this file. A line that waits for one has "->" in place of the kind.
fn flock_of(table: &str, wanted: Place) -> Option<i32> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        if words.next()? != "FLOCK" {
            return None;
        }
        // After ADVISORY and READ or WRITE.
        let process = words.nth(2)?.parse().ok()?;
        (Place::parse(words.next()?)? == wanted).then_some(process)
    })
}

/// Whether a process has not ended. What cannot be told counts as alive: its store is not touched.
fn lives(process: i32) -> bool {
    match procfs::process::Process::new(process).and_then(|it| it.stat()) {
        Ok(stat) => !matches!(stat.state, 'Z' | 'X' | 'x'),
        Err(ProcError::NotFound(_)) => false,
        Err(_) => true,
    }
}

/// Whether a process waits for a signal. Another one that gets it ends.
pub(crate) fn catches(process: i32, signal: Signal) -> bool {
    let status = fs::read(format!("/proc/{process}/status")).unwrap_or_default();
    caught_in(&String::from_utf8_lossy(&status), signal)
}

fn caught_in(status: &str, signal: Signal) -> bool {
    let set = status.lines().find_map(|line| {
        let set = line.strip_prefix("SigCgt:")?.trim();
        u64::from_str_radix(set, 16).ok()
    });
    set.is_some_and(|set| set & (1 << (signal as i32 - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "1: POSIX  ADVISORY  READ  812 fd:00:1573 1073741826 1073742335\n\
        2: LEASE  BREAKING  READ  990 fd:00:1573 0 EOF\n\
        2: -> LEASE  BREAKER   READ  991 <none>:0 0 EOF\n\
        3: LEASE  BREAKER   READ  991 <none>:0 0 EOF\n\
        4: -> FLOCK  ADVISORY  WRITE 77 103:0a:1573 0 EOF\n\
        5: OFDLCK ADVISORY  WRITE -1 103:0a:1573 0 EOF\n\
        6: FLOCK\n\
        7: FLOCK  ADVISORY  WRITE pid 103:0a:1573 0 EOF\n\
        \n\
        8: NEWKIND of a line\n\
        9: FLOCK  ADVISORY  WRITE 4711 103:0a:1573 0 EOF\n";

    #[test]
    fn lines_that_are_not_understood_are_passed_over() {
        let place = |major, minor, inode| Place {
            major,
            minor,
            inode,
        };
        assert_eq!(flock_of(TABLE, place(0x103, 10, 1573)), Some(4711));
        assert_eq!(flock_of(TABLE, place(0xfd, 0, 1573)), None, "no flock");
        assert_eq!(flock_of(TABLE, place(0x103, 10, 1574)), None);
        assert_eq!(flock_of("", place(0, 0, 0)), None);
    }

    #[test]
    fn a_place_is_three_numbers() {
        assert_eq!(Place::parse("<none>:0"), None);
        for text in ["", "1", "1:2", "1:2:3:4", "g:0:1", "1:2:-3", "1:2:0x3"] {
            assert_eq!(Place::parse(text), None, "{text}");
        }
    }

    #[test]
    fn caught_signals_are_bits() {
        let status = "Name:\tx\nSigIgn:\t0000000000004000\nSigCgt:\t0000000000000200\n";
        assert!(caught_in(status, Signal::SIGUSR1));
        assert!(!caught_in(status, Signal::SIGTERM), "it is ignored");
        assert!(!caught_in("", Signal::SIGUSR1));
        assert!(!catches(std::process::id() as i32, Signal::SIGUSR2));
    }

    #[test]
    fn this_process_lives() {
        assert!(lives(std::process::id() as i32));
        assert!(!lives(i32::MAX));
    }
}
