// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard, as the sender sees it: a process that outlives a sender that is killed.
//!
//! A killed sender's mappings go at once, but TCP goes on sending from their pages until the peer has
//! acknowledged. Before Linux 6.15 `truncate` and `unlink` then free them for other files, whose bytes the
//! peer gets. Since 6.15 they wait instead, for as long as the peer likes. So another process holds the same
//! files mapped and the same sockets open. When the sender is gone it aborts these, waits for the last
//! completion, and only then lets go ([`run_guard`](crate::run_guard)).
//!
//! Invariants:
//! 1. The guard has said that it holds a file and a socket before the first zero-copy send of that file on
//!    that socket.
//! 2. It is told to let go only of what no open send uses. What this process forgets stays held until it ends.
//! 3. A guard that fails once is never asked again; what it would have to hold is copied.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, setsockopt,
    socketpair, sockopt,
};
use nix::sys::time::TimeVal;

/// Since this version `truncate` and `unlink` wait for pages that are still sent, mapped or not ("fs/dax: properly
/// refcount fs dax pages").
const FREES_WAIT_SINCE: (u32, u32) = (6, 15);
/// A guard that has not answered after this time is given up.
const PATIENCE_SECONDS: i64 = 2;

/// What is asked of the guard: a byte, then the number of what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ask {
    /// Keep the file mapped that comes with it.
    File = b'F',
    /// Keep the socket open that comes with it.
    Socket = b'S',
    /// Let go.
    Drop = b'D',
}

/// Bytes of a question: what, and a number in the order of this machine.
pub const ASK_BYTES: usize = 9;
/// The answer to what is held; a refusal is anything else.
pub const HELD: u8 = b'+';
/// The answer to what cannot be held.
pub const REFUSED: u8 = b'-';

/// A guard process. It ends by itself with the process that has started it, when the last completion has come.
#[derive(Debug)]
pub struct Guard {
    /// Held through a question and its answer.
    channel: Mutex<OwnedFd>,
    next: AtomicU64,
    failed: AtomicBool,
    process: Child,
}

/// Something that the guard holds until this is dropped.
#[derive(Debug)]
pub struct Held {
    guard: Arc<Guard>,
    number: u64,
}

impl Guard {
    /// Whether another file's bytes may leave this machine when a sender without a guard is killed: before Linux
    /// 6.15. Later kernels let whoever frees such a file wait for the peer instead, which a guard spares as well.
    #[must_use]
    pub fn is_needed() -> bool {
        let release = nix::sys::utsname::uname();
        let release = release.as_ref().map(|it| it.release().to_string_lossy());
        release.map_or(true, |release| frees_at_once(&release))
    }

    /// Starts `command` as the guard. Its standard input becomes the channel; the program must call
    /// [`run_guard`](crate::run_guard) and nothing else, as a hidden command of one's own program does.
    ///
    /// # Errors
    /// If there is no socket pair, or the command cannot be started.
    pub fn start(command: &mut Command) -> Result<Arc<Self>> {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        let patience = TimeVal::new(PATIENCE_SECONDS, 0);
        setsockopt(&ours, sockopt::ReceiveTimeout, &patience)?;
        setsockopt(&ours, sockopt::SendTimeout, &patience)?;
        let null = || Stdio::null();
        command.stdin(theirs).stdout(null()).stderr(null());
        let process = command.spawn()?;
        // Else our copy of its end hides that it has ended.
        command.stdin(null());
        Ok(Arc::new(Self {
            channel: Mutex::new(ours),
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            process,
        }))
    }

    /// Number of its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Whether the guard has failed: what is sent from now on is copied.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Lets the guard hold a file; none: it cannot.
    pub(crate) fn hold_file(self: &Arc<Self>, file: &impl AsFd) -> Option<Held> {
        self.hold(Ask::File, file)
    }

    /// Lets the guard hold a socket; none: it cannot.
    pub(crate) fn hold_socket(self: &Arc<Self>, socket: &impl AsFd) -> Option<Held> {
        self.hold(Ask::Socket, socket)
    }

    fn hold(self: &Arc<Self>, ask: Ask, what: &impl AsFd) -> Option<Held> {
        if self.has_failed() {
            return None;
        }
        let number = self.next.fetch_add(1, Relaxed);
        match self.asked(ask, number, what) {
            Ok(HELD) => Some(Held {
                guard: Arc::clone(self),
                number,
            }),
            // It has no more descriptors, or the mappings of a process are used up: later it may have.
            Ok(REFUSED) => None,
            _ => {
                self.failed.store(true, Relaxed);
                None
            }
        }
    }

    fn asked(&self, ask: Ask, number: u64, what: &impl AsFd) -> Result<u8> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptors = [what.as_fd().as_raw_fd()];
        tell(
            &channel,
            ask,
            number,
            &[ControlMessage::ScmRights(&descriptors)],
        )?;
        let mut answer = [0];
        match recv(channel.as_raw_fd(), &mut answer, MsgFlags::empty())? {
            0 => Err(Error::from(ErrorKind::UnexpectedEof)),
            _ => Ok(answer[0]),
        }
    }

    /// A number and nothing else follows a failed guard, which lets go of all.
    fn drop_held(&self, number: u64) {
        if self.has_failed() {
            return;
        }
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if tell(&channel, Ask::Drop, number, &[]).is_err() {
            self.failed.store(true, Relaxed);
        }
    }
}

impl Held {
    /// Whether this guard holds it.
    pub(crate) fn is_by(&self, guard: &Arc<Guard>) -> bool {
        Arc::ptr_eq(&self.guard, guard) && !guard.has_failed()
    }

    /// It stays held until this process has ended.
    pub(crate) fn for_ever(self) {
        std::mem::forget(self);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.guard.drop_held(self.number);
    }
}

/// Whether a kernel of this release frees pages that nobody maps any more; of what is no release: it does.
fn frees_at_once(release: &str) -> bool {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    let mut next = || numbers.next()?.parse::<u32>().ok();
    match (next(), next()) {
        (Some(major), Some(minor)) => (major, minor) < FREES_WAIT_SINCE,
        _ => true,
    }
}

fn tell(channel: &OwnedFd, ask: Ask, number: u64, with: &[ControlMessage<'_>]) -> Result<()> {
    let mut bytes = [ask as u8; ASK_BYTES];
    bytes[1..].copy_from_slice(&number.to_ne_bytes());
    let pieces = [IoSlice::new(&bytes)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(channel.as_raw_fd(), &pieces, with, flags, None)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::frees_at_once;

    #[test]
    fn kernels_that_need_a_guard_are_known_by_their_release() {
        for old in [
            "6.1.0-56-amd64",
            "6.12.117+deb13-amd64",
            "6.14",
            "5.19.0",
            "what",
        ] {
            assert!(frees_at_once(old), "{old}");
        }
        for new in ["6.15.0", "6.16.12+deb13-amd64", "6.18-rc1", "7.3.4", "10.0"] {
            assert!(!frees_at_once(new), "{new}");
        }
    }
}
