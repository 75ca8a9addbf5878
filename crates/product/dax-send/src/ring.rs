// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zero-copy sends by io_uring (`IORING_OP_SENDMSG_ZC`): their completions come to the ring and not to the socket,
//! so that one look tells of all connections, and they come also when the socket is closed.
//!
//! A send has two completions: its result, and, if that had `IORING_CQE_F_MORE`, a notification when the kernel
//! reads the memory no more (io_uring_enter(2); axboe/liburing, issue 643). Each send is submitted by itself
//! and with `MSG_DONTWAIT`: its result is there when the call returns.
//!
//! The kernel joins small sends of a connection to one buffer, and their notifications come together, that of the
//! first one first. Only this one tells the truth of the copy: the others say "copied" in any case (Linux 6.18,
//! io_uring/notif.c, `zc_used` of a linked notification).
//!
//! Invariants:
//! 1. A submission is in `flying` from its result until its notification, and never again.
//! 2. The kernel reads no message header and no vector after [`Ring::send`] has returned (it copies them when they
//!    are submitted), for nothing stays in the submission queue: if the kernel refuses to take it out, the ring is
//!    broken and submits nothing any more.
//! 3. A notification without a connection changes nothing: the connection has gone, and what it held is kept by
//!    whoever keeps its flight.

use std::collections::{HashMap, VecDeque};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::{IoUring, cqueue, opcode, types};

use crate::guard::Guard;
use crate::ledger::Completion;
use crate::mapped::MappedFile;
use crate::socket::{Socket, Wire};
use crate::sys::{self, Piece};

/// One send is submitted at a time.
const SUBMISSIONS: u32 = 8;
/// Completions that wait to be read; the kernel keeps further ones (`IORING_FEAT_NODROP`).
const COMPLETIONS: u32 = 4096;
/// linux/io_uring.h `IORING_SEND_ZC_REPORT_USAGE`: the notification tells whether the kernel has copied.
const REPORT_USAGE: u16 = 1 << 3;
/// linux/io_uring.h `IORING_NOTIF_USAGE_ZC_COPIED`.
const USAGE_COPIED: u32 = 1 << 31;
/// The kernel takes a submission at once, unless memory is short or completions have overflown.
const SUBMIT_TRIES: u32 = 64;

/// A ring for the zero-copy sends of many connections: best one for each thread, which then waits for nobody.
///
/// Its descriptor is readable when completions wait. [`Ring::told`] then says whose
/// [`Connection::completions`](crate::Connection::completions) to call.
#[derive(Debug)]
pub struct Ring {
    descriptor: RawFd,
    inner: Mutex<Inner>,
}

/// Names a connection among those of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingId(u64);

struct Inner {
    ring: IoUring,
    next_submission: u64,
    next_id: u64,
    flying: HashMap<u64, Flying>,
    done: HashMap<RingId, VecDeque<Completion>>,
    /// The connection of the last notification of this look, if it was not copied: what follows was sent with it.
    uncopied: Option<RingId>,
    /// The kernel has refused to take what was submitted.
    broken: bool,
}

/// A send whose memory the kernel still reads.
#[derive(Clone, Copy, Debug)]
struct Flying {
    id: RingId,
    /// As its connection counts; none: the send has failed.
    number: Option<u32>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Inner");
        shown.field("flying", &self.flying.len());
        shown.field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl Ring {
    /// Makes a ring.
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.2, or what io_uring_setup(2) says: `PermissionDenied` where
    /// `kernel.io_uring_disabled` forbids it. Connections without a ring do the same.
    pub fn new() -> Result<Arc<Self>> {
        let mut builder = IoUring::builder();
        let ring = builder
            .setup_cqsize(COMPLETIONS)
            .setup_clamp()
            .build(SUBMISSIONS)?;
        let features = ring.params();
        if !features.is_feature_submit_stable() || !features.is_feature_nodrop() {
            return Err(ErrorKind::Unsupported.into());
        }
        let descriptor = ring.as_raw_fd();
        let inner = Inner {
            ring,
            next_submission: 0,
            next_id: 0,
            flying: HashMap::new(),
            done: HashMap::new(),
            uncopied: None,
            broken: false,
        };
        let ring = Self {
            descriptor,
            inner: Mutex::new(inner),
        };
        // Who knows the operation and its flag looks at the descriptor next, which is none.
        match ring.send(RingId(u64::MAX), -1, 0, &[Piece::of(b"x")], 0) {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(Arc::new(ring)),
            _ => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Connections whose completions have come and were not read. A connection that is gone is not among them.
    #[must_use]
    pub fn told(&self) -> Vec<RingId> {
        let mut inner = self.lock();
        inner.drain();
        let waiting = inner.done.iter().filter(|(_, done)| !done.is_empty());
        waiting.map(|(id, _)| *id).collect()
    }

    /// Sends of all connections, those that are gone among them, whose memory the kernel still reads.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let mut inner = self.lock();
        inner.drain();
        inner.flying.len()
    }

    fn join(&self) -> RingId {
        let mut inner = self.lock();
        let id = RingId(inner.next_id);
        inner.next_id += 1;
        inner.done.insert(id, VecDeque::new());
        id
    }

    fn leave(&self, id: RingId) {
        self.lock().done.remove(&id);
    }

    /// Sends what fits without waiting; `number` is the send's among those of its connection that succeed.
    fn send(
        &self,
        id: RingId,
        socket: RawFd,
        number: u32,
        pieces: &[Piece],
        flags: i32,
    ) -> Result<usize> {
        sys::with_message(pieces, |message| {
            self.lock().submit(id, socket, number, message, flags)
        })
    }

    fn completion(&self, id: RingId) -> Option<Completion> {
        let mut inner = self.lock();
        inner.drain();
        inner.done.get_mut(&id)?.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whoever panicked has lost one completion at most: its memory then stays mapped.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring closes it, and lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

impl Inner {
    fn submit(
        &mut self,
        id: RingId,
        socket: RawFd,
        number: u32,
        message: &libc::msghdr,
        flags: i32,
    ) -> Result<usize> {
        if self.broken {
            return Err(Error::from_raw_os_error(libc::ENOBUFS));
        }
        let submission = self.next_submission;
        self.next_submission += 1;
        let flags = (flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u32;
        let entry = opcode::SendMsgZc::new(types::Fd(socket), std::ptr::from_ref(message))
            .ioprio(REPORT_USAGE)
            .flags(flags)
            .build()
            .user_data(submission);
        // SAFETY: header and vectors are copied by the kernel when it takes the entry (IORING_FEAT_SUBMIT_STABLE),
        // which is before this function returns, or never (invariant 2). What the vectors point at is only read, and
        // the caller keeps it mapped until the notification.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| Error::from_raw_os_error(libc::ENOBUFS))?;
        self.hand_over()?;
        for _ in 0..SUBMIT_TRIES {
            if let Some((result, more)) = self.take(submission) {
                return self.settled(
                    submission,
                    Flying {
                        id,
                        number: Some(number),
                    },
                    result,
                    more,
                );
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != ErrorKind::Interrupted => break,
                _ => {}
            }
        }
        // Nobody knows what became of it: its memory is never given back, and no further one is risked.
        self.broken = true;
        Err(Error::other("io_uring has not told the result of a send"))
    }

    /// Lets the kernel take the submission.
    fn hand_over(&mut self) -> Result<()> {
        for _ in 0..SUBMIT_TRIES {
            let result = self.ring.submit();
            if self.ring.submission().is_empty() {
                return Ok(());
            }
            match result {
                // Completions have overflown: they are read, and then it goes.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => self.drain(),
                _ => {}
            }
        }
        self.broken = true;
        Err(Error::from_raw_os_error(libc::ENOBUFS))
    }

    /// What the result of a send means; its notification may have come with it.
    fn settled(
        &mut self,
        submission: u64,
        flying: Flying,
        result: i32,
        more: bool,
    ) -> Result<usize> {
        let sent = usize::try_from(result).ok().filter(|bytes| *bytes > 0);
        let number = flying.number.filter(|_| sent.is_some());
        if more {
            self.flying.insert(submission, Flying { number, ..flying });
        } else if let (Some(number), Some(done)) = (number, self.done.get_mut(&flying.id)) {
            // No notification will come: the kernel holds nothing.
            done.push_back(Completion {
                first: number,
                last: number,
                copied: true,
            });
        }
        self.drain();
        match (sent, -result) {
            (Some(bytes), _) => Ok(bytes),
            // The memory that a user may pin is counted under another error here.
            (None, libc::ENOMEM) => Err(Error::from_raw_os_error(libc::ENOBUFS)),
            (None, 0) => Err(ErrorKind::WouldBlock.into()),
            (None, code) => Err(Error::from_raw_os_error(code)),
        }
    }

    /// The result of a submission, if it is there: how much was sent, or the error, and whether a notification
    /// follows. Notifications before it are taken as well, those behind it stay.
    fn take(&mut self, submission: u64) -> Option<(i32, bool)> {
        self.uncopied = None;
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() == submission && !cqueue::notif(entry.flags()) {
                return Some((entry.result(), cqueue::more(entry.flags())));
            }
            self.notified(&entry);
        }
    }

    /// Takes all notifications that wait.
    fn drain(&mut self) {
        self.uncopied = None;
        if self.ring.submission().cq_overflow() && !self.broken {
            // The kernel keeps what had no room, until it is asked.
            let _ = self.ring.submit();
        }
        loop {
            // Not `while let`: the queue would stay borrowed.
            let next = self.ring.completion().next();
            let Some(entry) = next else { return };
            self.notified(&entry);
        }
    }

    fn notified(&mut self, entry: &cqueue::Entry) {
        if !cqueue::notif(entry.flags()) {
            return;
        }
        let Some(Flying { id, number }) = self.flying.remove(&entry.user_data()) else {
            return;
        };
        let says_copied = entry.result() as u32 & USAGE_COPIED != 0;
        let copied = says_copied && self.uncopied != Some(id);
        self.uncopied = (!copied).then_some(id);
        if let (Some(number), Some(done)) = (number, self.done.get_mut(&id)) {
            done.push_back(Completion {
                first: number,
                last: number,
                copied,
            });
        }
    }
}

/// A socket whose zero-copy sends go by a ring.
#[derive(Debug)]
pub struct RingSocket {
    socket: Socket,
    ring: Arc<Ring>,
    id: RingId,
    /// The number of the next send that succeeds.
    next: u32,
    /// Zero-copy sends go by the socket itself: see [`Wire::guarded_by`].
    by_socket: bool,
}

impl RingSocket {
    pub fn new(socket: Socket, ring: Arc<Ring>) -> Self {
        let id = ring.join();
        Self {
            socket,
            ring,
            id,
            next: 0,
            by_socket: false,
        }
    }

    pub const fn socket(&self) -> &Socket {
        &self.socket
    }

    pub const fn ring(&self) -> (&Arc<Ring>, RingId) {
        (&self.ring, self.id)
    }
}

impl Drop for RingSocket {
    fn drop(&mut self) {
        self.ring.leave(self.id);
    }
}

impl Wire for RingSocket {
    /// It asks for no option of the socket.
    fn enable(&mut self) -> Result<()> {
        Ok(())
    }

    /// What a ring sends is not charged to the socket, and its notifications end with its process. So nothing
    /// would tell the guard when the kernel reads no more, and it is not asked: what is guarded goes by the socket.
    fn guarded_by(&mut self, guard: &Arc<Guard>) -> bool {
        debug_assert_eq!(self.next, 0, "what has a guard has it from the beginning");
        self.by_socket = self.by_socket || self.socket.enable().is_ok();
        self.by_socket && self.socket.guarded_by(guard)
    }

    fn stays_guarded(&mut self) {
        self.socket.stays_guarded();
    }

    fn send(&mut self, pieces: &[Piece], zero_copy: bool, more: bool) -> Result<usize> {
        if !zero_copy || self.by_socket {
            return self.socket.send(pieces, zero_copy, more);
        }
        let flags = if more { libc::MSG_MORE } else { 0 };
        let socket = self.socket.stream().as_raw_fd();
        let sent = self.ring.send(self.id, socket, self.next, pieces, flags)?;
        self.next = self.next.wrapping_add(1);
        Ok(sent)
    }

    fn sendfile(&mut self, file: &MappedFile, at: u64, length_bytes: usize) -> Result<usize> {
        self.socket.sendfile(file, at, length_bytes)
    }

    fn is_local(&self) -> bool {
        self.socket.is_local()
    }

    fn is_writable(&self) -> bool {
        self.socket.is_writable()
    }

    fn completion(&mut self) -> Result<Option<Completion>> {
        if self.by_socket {
            return self.socket.completion();
        }
        Ok(self.ring.completion(self.id))
    }

    fn unacknowledged_bytes(&self) -> Result<u64> {
        self.socket.unacknowledged_bytes()
    }

    fn abort(&mut self) -> Result<()> {
        self.socket.abort()
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
