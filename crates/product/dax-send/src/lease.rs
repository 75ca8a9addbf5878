// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read leases: whoever wants to write to the file waits until the lease is given back.
//!
//! fcntl(2), `F_SETLEASE`: an open for writing, or a truncate, of another process waits (or fails with
//! `EWOULDBLOCK` if it was non-blocking), and the holder is told. Rename and unlink pass. After
//! `/proc/sys/fs/lease-break-time` (45 s) the kernel takes the lease away, so deadlines are shorter.

use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};

/// linux/fcntl.h, Linux alone.
const F_SETSIG: i32 = 10;

/// A read lease on an open file; given back when dropped.
///
/// The kernel refuses it (`EAGAIN`) while anybody has the file open for writing, and (`EACCES`) if it belongs
/// to another user and we lack `CAP_LEASE`. Some file systems know no leases (`EINVAL`).
#[derive(Debug)]
pub struct ReadLease<F: AsFd> {
    file: F,
}

impl<F: AsFd> ReadLease<F> {
    /// Takes one, on a file that is open for reading alone. `signal` tells the calling thread of a break; its default action
    /// must be harmless or the signal blocked: [`libc::SIGURG`] is ignored by default, and one that is read by a
    /// `signalfd` wakes an event loop.
    ///
    /// # Errors
    /// As above.
    pub fn take(file: F, signal: i32) -> Result<Self> {
        // The signal comes first: the default one, SIGIO, would end the process.
        control(&file, F_SETSIG, signal)?;
        // An owner that is set before stays: else it would be the process, and any of its threads was told.
        tell_this_thread(&file)?;
        control(&file, libc::F_SETLEASE, libc::F_RDLCK)?;
        Ok(Self { file })
    }

    /// The file.
    pub const fn file(&self) -> &F {
        &self.file
    }

    /// Whether somebody waits for its end.
    pub fn is_breaking(&self) -> bool {
        // The kernel tells what the lease is to become.
        !control(&self.file, libc::F_GETLEASE, 0).is_ok_and(|kind| kind == libc::F_RDLCK)
    }
}

impl<F: AsFd> Drop for ReadLease<F> {
    fn drop(&mut self) {
        // It is gone already if the kernel took it away.
        let _ = control(&self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

/// The signal goes to the calling thread and not to any of the process.
fn tell_this_thread(file: &impl AsFd) -> Result<()> {
    /// `struct f_owner_ex` of fcntl(2).
    #[repr(C)]
    struct Owner {
        kind: i32,
        id: i32,
    }
    const F_SETOWN_EX: i32 = 15;
    const F_OWNER_TID: i32 = 0;
    let owner = Owner {
        kind: F_OWNER_TID,
        id: nix::unistd::gettid().as_raw(),
    };
    let file = file.as_fd().as_raw_fd();
    // SAFETY: the structure is the one that F_SETOWN_EX reads, and lives through the call.
    let done = unsafe { libc::fcntl(file, F_SETOWN_EX, &raw const owner) };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

fn control(file: &impl AsFd, command: i32, value: i32) -> Result<i32> {
    // SAFETY: all commands used here take an int or nothing.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, value) };
    if result >= 0 {
        Ok(result)
    } else {
        Err(Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::io::ErrorKind;
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::{Duration, Instant};

    use super::*;

    fn file() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x");
        fs::write(&path, "bytes").expect("a file");
        (dir, path)
    }

    #[test]
    fn a_writer_waits_for_its_end_and_shows() {
        let (_dir, path) = file();
        let lease =
            ReadLease::take(File::open(&path).expect("open"), libc::SIGURG).expect("a lease");
        assert!(!lease.is_breaking());
        let mut writing = OpenOptions::new();
        writing.write(true);
        let at_once = writing.clone().custom_flags(libc::O_NONBLOCK).open(&path);
        assert_eq!(at_once.expect_err("held").kind(), ErrorKind::WouldBlock);
        assert!(lease.is_breaking());
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| writing.open(&path).map(|_| begin.elapsed()));
            std::thread::sleep(Duration::from_millis(100));
            drop(lease);
            let waited = writer.join().expect("no panic").expect("opened");
            assert!(waited >= Duration::from_millis(90), "{waited:?}");
        });
    }

    #[test]
    fn a_file_that_is_being_written_has_none_and_rename_passes() {
        let (dir, path) = file();
        let writer = OpenOptions::new().append(true).open(&path).expect("open");
        let refused = ReadLease::take(File::open(&path).expect("open"), libc::SIGURG);
        assert_eq!(refused.expect_err("a writer").kind(), ErrorKind::WouldBlock);
        drop(writer);
        let lease =
            ReadLease::take(File::open(&path).expect("open"), libc::SIGURG).expect("a lease");
        let other = dir.path().join("y");
        fs::write(&other, "other").expect("a file");
        fs::rename(&other, &path).expect("renamed over");
        fs::remove_file(&path).expect("removed");
        assert!(!lease.is_breaking());
    }
}
