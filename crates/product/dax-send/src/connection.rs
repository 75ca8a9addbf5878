// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection as its owner sees it.

use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::choice::Reason;
use crate::engine::{Engine, Progress};
use crate::error::Error;
use crate::mapped::MappedFile;
use crate::queue::QUEUE_MAX;
use crate::ring::RingId;
use crate::sender::Sender;
use crate::socket::AnySocket;

/// How often acknowledgements are looked for where no event tells of them.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Stands for a queued range until its bytes are the caller's again. Of one connection; they are done in the
/// order in which they were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A TCP connection that sends ranges of files, and bytes between them.
///
/// In an event loop: queue, [`advance`](Self::advance), and do so again on every event of the socket.
/// `EPOLLERR` is set whenever a completion waits and does not mean that the connection has failed: call
/// [`completions`](Self::completions), which tells. Without an event loop: [`finish`](Self::finish).
///
/// Dropped with tickets open it is aborted (RST), because their bytes could not be followed further. To close
/// in peace, wait until [`open_tickets`](Self::open_tickets) is 0.
#[derive(Debug)]
pub struct Connection {
    sender: Arc<Sender>,
    engine: Option<Engine<AnySocket>>,
}

impl Connection {
    pub(crate) fn new(sender: Arc<Sender>, socket: AnySocket) -> io::Result<Self> {
        socket.stream().set_nonblocking(true)?;
        Ok(Self {
            sender,
            engine: Some(Engine::new(socket, 0)),
        })
    }

    /// The socket: to read from, to watch, to shut down. What is written to it directly may come before what
    /// is queued here.
    pub fn stream(&self) -> &TcpStream {
        self.engine().wire().stream()
    }

    /// What [`Ring::told`](crate::Ring::told) calls this connection, if it sends by a ring.
    #[must_use]
    pub fn ring_id(&self) -> Option<RingId> {
        match self.engine().wire() {
            AnySocket::Plain(_) => None,
            AnySocket::Ring(socket) => Some(socket.ring().1),
        }
    }

    /// Whether there is room for `items` more of bytes and ranges.
    pub fn has_room(&self, items: usize) -> bool {
        items <= QUEUE_MAX.saturating_sub(self.engine().queued())
    }

    /// Queues bytes that belong to no file. They are copied, and leave with what follows them.
    ///
    /// # Panics
    /// If there is no room; ask [`Self::has_room`].
    pub fn queue_bytes(&mut self, bytes: impl Into<Vec<u8>>) {
        assert!(self.has_room(1), "the queue is bounded");
        self.engine_mut().queue_bytes(bytes.into());
    }

    /// Queues a range of a file, counted from the begin of the part that is mapped.
    ///
    /// # Panics
    /// If the range leaves the file, or there is no room.
    pub fn queue(&mut self, file: &Arc<MappedFile>, range: Range<u64>) -> Ticket {
        assert!(self.has_room(1), "the queue is bounded");
        Ticket(self.engine_mut().queue_range(file, range))
    }

    /// Hands to the kernel what the socket takes now. Small ranges that were queued together leave together.
    /// What the peer has acknowledged of ranges sent by `sendfile` is looked up by [`Self::completions`] alone.
    ///
    /// # Errors
    /// The connection is aborted then; drop it.
    pub fn advance(&mut self, now: Instant) -> Result<Progress, Error> {
        let (engine, sender) = self.parts();
        engine.advance(sender, now)
    }

    /// Reads completions, sees which tickets are done, and what has failed.
    ///
    /// # Errors
    /// As [`Self::advance`].
    pub fn completions(&mut self, now: Instant) -> Result<(), Error> {
        let (engine, sender) = self.parts();
        let result = engine.completions(sender);
        if result.is_err() {
            engine.abort(sender);
            return result;
        }
        match self.stream().take_error() {
            Ok(None) => self.check(now),
            Ok(Some(error)) | Err(error) => {
                self.abort();
                Err(Error::Socket(error))
            }
        }
    }

    fn check(&mut self, now: Instant) -> Result<(), Error> {
        match self.due() {
            Some(due) if due <= now => self.advance(now).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether the range's bytes are the caller's again: the peer has them, or never will.
    #[must_use]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        ticket.0 < self.engine().done_below()
    }

    /// Tickets that are not done.
    #[must_use]
    pub fn open_tickets(&self) -> u64 {
        self.engine().open_tickets()
    }

    /// Whether all that was queued has been handed to the kernel.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.engine().queued() == 0
    }

    /// Bytes that the kernel has taken since the connection was made: while it grows, the peer takes some.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.engine().taken_bytes()
    }

    /// Bytes of these that the peer has acknowledged by now.
    ///
    /// # Errors
    /// If the socket does not tell.
    pub fn acknowledged_bytes(&self) -> io::Result<u64> {
        self.engine().acknowledged_bytes()
    }

    /// Memory pinned for this connection, in whole pages.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.engine().pinned_bytes()
    }

    /// Why this connection copies; none: it sends zero-copy, or tries to.
    #[must_use]
    pub fn copies(&self) -> Option<Reason> {
        self.engine().copies()
    }

    /// When [`Self::advance`] must be called at the latest, for the deadline of what is in flight.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.engine().due(self.sender.options().deadline)
    }

    /// Ends the connection at once with RST. What is in flight completes soon; drivers may take longer.
    pub fn abort(&mut self) {
        let (engine, sender) = self.parts();
        engine.abort(sender);
    }

    /// Sends all that is queued, and waits until all tickets are done.
    ///
    /// # Errors
    /// As [`Self::advance`]. The deadline holds for each zero-copy send, and for a time in which the peer takes and
    /// acknowledges nothing.
    pub fn finish(&mut self) -> Result<(), Error> {
        let (mut seen, mut seen_at) = (None, Instant::now());
        loop {
            let progress = self.advance(Instant::now())?;
            self.completions(Instant::now())?;
            if progress == Progress::Idle && self.open_tickets() == 0 {
                return Ok(());
            }
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLOUT, progress == Progress::Blocked);
            if progress == Progress::Again {
                continue;
            }
            // What was copied or sent by sendfile has no deadline of its own.
            let state = Some((self.taken_bytes(), self.acknowledged_bytes().ok()));
            if state != seen {
                (seen, seen_at) = (state, Instant::now());
            }
            let after = self.sender.options().deadline;
            if seen_at.elapsed() > after {
                self.sender.counters().overdue.fetch_add(1, Relaxed);
                self.abort();
                return Err(Error::Overdue { after });
            }
            self.wait(flags)?;
        }
    }

    fn wait(&self, flags: PollFlags) -> Result<(), Error> {
        let timeout = PollTimeout::try_from(LOOK_EVERY).unwrap_or(PollTimeout::ZERO);
        let mut files = vec![PollFd::new(self.stream().as_fd(), flags)];
        if let AnySocket::Ring(socket) = self.engine().wire() {
            files.push(PollFd::new(socket.ring().0.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut files, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(Error::Socket(error.into())),
        }
    }

    fn engine(&self) -> &Engine<AnySocket> {
        self.engine.as_ref().expect("taken by drop alone")
    }

    fn engine_mut(&mut self) -> &mut Engine<AnySocket> {
        self.engine.as_mut().expect("taken by drop alone")
    }

    fn parts(&mut self) -> (&mut Engine<AnySocket>, &Sender) {
        let engine = self.engine.as_mut().expect("taken by drop alone");
        (engine, &self.sender)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(mut engine) = self.engine.take() else {
            return;
        };
        if engine.open_tickets() > 0 {
            engine.abort(&self.sender);
        }
        if let Some(flight) = engine.into_flight() {
            self.sender.keep(flight);
        }
    }
}
