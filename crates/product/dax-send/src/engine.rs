// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection: what is queued, what is in flight, which tickets are done.
//!
//! Invariants:
//! 1. Bytes leave in the order in which they were queued.
//! 2. A file is held (L1, L2) from the moment its range is queued until its ticket is done. Each open send
//!    holds it too, so that a connection may be dropped at any line.
//! 3. Tickets are done in the order of their numbers: `done_below` is all that is remembered of them. `waiting` is in
//!    that order; an empty range gets there at once, and waits for those that were queued before it.
//! 4. Check, then change: what is in the queue moves only by as many bytes as the kernel has taken.
//! 5. Reserved memory is given back by the completion of the send that it was reserved for, or at once if
//!    the kernel took less.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::mem;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::choice::{Choice, Reason};
use crate::error::Error;
use crate::flight::{Flight, Hold};
use crate::ledger::Ledger;
use crate::mapped::MappedFile;
use crate::queue::{Batch, Item, Open, Queue, SENDFILE_BYTES_MAX};
use crate::sender::{PageCache, Sender};
use crate::socket::Wire;
use crate::sys::Piece;

/// What one connection sends before others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Completions are read once for so many sends.
const REAP_SENDS: usize = 16;
/// What is read at a time of a file that can only be read.
const READ_BYTES_MAX: usize = 64 << 10;
/// Sends in flight for one connection.
const OPEN_SENDS_MAX: usize = 1024;
/// A send that is not acknowledged after this part of the deadline lets no further one be pinned.
const SLOW_PART: u32 = 4;

/// Where a call of `advance` has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All that was queued has been handed to the kernel.
    Idle,
    /// The socket takes no more: go on when it is writable.
    Blocked,
    /// This connection had its turn: go on after the others.
    Again,
}

/// How bytes were handed over.
#[derive(Clone, Copy, Debug)]
enum Way {
    ZeroCopy(u64),
    Sendfile,
    Copied(Reason),
}

enum Step {
    Sent(usize),
    /// Fewer bytes than were asked for: mostly the socket is full.
    Short(usize),
    Full,
}

/// The state of a connection, without its thread-safe share.
#[derive(Debug)]
pub struct Engine<W: Wire> {
    flight: Flight<W>,
    queue: Queue,
    /// Handed over in full, and not done.
    waiting: VecDeque<Open>,
    choice: Choice,
    enabled: bool,
    failed: bool,
    /// The socket was full at the last send. Completions wake an event loop as well, and a call for the few
    /// bytes that they make room for costs as much as one for many.
    full: bool,
    aborted: bool,
    next_ticket: u64,
    done_below: u64,
    /// Bytes that the kernel has taken.
    taken_bytes: u64,
    pinned_bytes: u64,
    unread_sends: usize,
}

impl<W: Wire> Engine<W> {
    /// `first`: the kernel's number of the next zero-copy send, 0 on a new socket.
    pub fn new(wire: W, first: u64) -> Self {
        Self {
            flight: Flight {
                wire,
                ledger: Ledger::new(first),
            },
            queue: Queue::default(),
            waiting: VecDeque::new(),
            choice: Choice::default(),
            enabled: false,
            failed: false,
            full: false,
            aborted: false,
            next_ticket: 0,
            done_below: 0,
            taken_bytes: 0,
            pinned_bytes: 0,
            unread_sends: 0,
        }
    }

    pub const fn wire(&self) -> &W {
        &self.flight.wire
    }

    #[cfg(test)]
    pub const fn wire_mut(&mut self) -> &mut W {
        &mut self.flight.wire
    }

    pub fn queue_bytes(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.queue.push(Item::Bytes { bytes, at: 0 });
        }
    }

    /// Queues a range within the file; returns its ticket.
    pub fn queue_range(&mut self, file: &Arc<MappedFile>, range: Range<u64>) -> u64 {
        assert!(
            range.start <= range.end && range.end <= file.length_bytes(),
            "the range {range:?} is within the file's {} bytes",
            file.length_bytes()
        );
        let number = self.next_ticket;
        self.next_ticket += 1;
        file.hold();
        let ticket = Open {
            number,
            file: Arc::clone(file),
            send: None,
            place: None,
        };
        if range.is_empty() {
            self.await_done(ticket);
            self.settle(true);
        } else {
            let (at, end) = (range.start, range.end);
            self.queue.push(Item::Range { at, end, ticket });
        }
        number
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub const fn done_below(&self) -> u64 {
        self.done_below
    }

    pub fn open_tickets(&self) -> u64 {
        self.next_ticket - self.done_below
    }

    pub const fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    pub fn acknowledged_bytes(&self) -> io::Result<u64> {
        let waiting = self.flight.wire.unacknowledged_bytes()?;
        Ok(self.taken_bytes.saturating_sub(waiting))
    }

    pub const fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    pub const fn copies(&self) -> Option<Reason> {
        self.choice.copies(0)
    }

    /// When the oldest open send is overdue; none: never, or nothing is open.
    pub fn due(&self, deadline: Duration) -> Option<Instant> {
        self.flight.ledger.oldest()?.at.checked_add(deadline)
    }

    /// Hands over what the socket takes.
    pub fn advance(&mut self, sender: &Sender, now: Instant) -> Result<Progress, Error> {
        if self.failed {
            return Err(Error::Failed);
        }
        let result = self.run(sender, now);
        if result.is_err() {
            self.abort(sender);
        }
        result
    }

    fn run(&mut self, sender: &Sender, now: Instant) -> Result<Progress, Error> {
        self.check_deadline(sender, now)?;
        if self.full && !self.queue.is_empty() && !self.flight.wire.is_writable() {
            return Ok(Progress::Blocked);
        }
        self.full = false;
        let mut turn = 0;
        while !self.queue.is_empty() {
            if turn >= TURN_BYTES {
                return Ok(Progress::Again);
            }
            if self.unread_sends >= REAP_SENDS {
                self.completions(sender)?;
            }
            match self.step(sender, now)? {
                Step::Sent(bytes) => turn += bytes,
                // To ask costs less than another call that takes nothing; and asking makes the kernel tell of room.
                Step::Short(bytes) if self.queue.is_empty() || self.flight.wire.is_writable() => {
                    turn += bytes;
                }
                Step::Short(_) | Step::Full => {
                    self.full = true;
                    return Ok(Progress::Blocked);
                }
            }
        }
        Ok(Progress::Idle)
    }

    fn check_deadline(&mut self, sender: &Sender, now: Instant) -> Result<(), Error> {
        let after = sender.options().deadline;
        if self.due(after).is_none_or(|due| now < due) {
            return Ok(());
        }
        // The completion may wait to be read.
        self.completions(sender)?;
        if self.due(after).is_none_or(|due| now < due) {
            return Ok(());
        }
        sender.counters().overdue.fetch_add(1, Relaxed);
        Err(Error::Overdue { after })
    }

    /// Reads completions, and sees which tickets are done.
    pub fn completions(&mut self, sender: &Sender) -> Result<(), Error> {
        self.unread_sends = 0;
        let (choice, pinned) = (&mut self.choice, &mut self.pinned_bytes);
        let result = self.flight.reap(sender.counters(), |copied, pinned_bytes| {
            choice.completed(copied);
            *pinned -= pinned_bytes;
        });
        self.settle(true);
        result
    }

    /// Ends the connection at once; what is in flight stays held until its completion (L4).
    pub fn abort(&mut self, sender: &Sender) {
        self.failed = true;
        if !mem::replace(&mut self.aborted, true) {
            // An error here means that there is no connection any more.
            let _ = self.flight.wire.abort();
        }
        let given_up: Vec<Open> = self.queue.clear().collect();
        given_up.into_iter().for_each(|open| self.await_done(open));
        let _ = self.completions(sender);
    }

    /// Gives back what the sends hold; the tickets are done for their files only when these are.
    pub fn into_flight(mut self) -> Option<Flight<W>> {
        for open in mem::take(&mut self.waiting) {
            // A file that is still read from keeps its ticket for ever, or L2 would be broken.
            if open
                .send
                .is_none_or(|send| send < self.flight.ledger.done_below())
            {
                open.file.release();
            }
        }
        let Self { flight, .. } = self;
        (!flight.is_empty()).then_some(flight)
    }

    fn step(&mut self, sender: &Sender, now: Instant) -> Result<Step, Error> {
        if let Some(batch) = self.queue.gather_small(sender.copy_bytes_max()) {
            return self.by_copy(sender, &batch, Reason::Small);
        }
        let Some(Item::Range { at, end, ticket }) = self.queue.front() else {
            return Ok(Step::Full);
        };
        let cached = !ticket.file.is_dax();
        let by_sendfile = cached && sender.options().page_cache == PageCache::Sendfile;
        // A receiver on this machine has acknowledged before it has read, and would then hold the file's own
        // pages: who writes to them would change what it reads.
        let is_local = self.flight.wire.is_local();
        if by_sendfile && !is_local {
            let (at, length) = (*at, (*end - *at).min(SENDFILE_BYTES_MAX as u64));
            return self.by_sendfile(sender, at, length as usize);
        }
        let Some(batch) = self.queue.gather() else {
            return self.by_read(sender);
        };
        if by_sendfile {
            return self.by_copy(sender, &batch, Reason::KernelCopies);
        }
        if let Some(reason) = self.copies_because(sender, &batch, now) {
            return self.by_copy(sender, &batch, reason);
        }
        self.by_zero_copy(sender, &batch, now)
    }

    /// Of a file that cannot be mapped, or not be sent from.
    fn by_read(&mut self, sender: &Sender) -> Result<Step, Error> {
        let Some(Item::Range { at, end, ticket }) = self.queue.front() else {
            return Ok(Step::Full);
        };
        let (offset, length) = (ticket.file.file_offset(*at), *end - *at);
        let mut bytes = vec![0; length.min(READ_BYTES_MAX as u64) as usize];
        let file_error = |source| Error::File { offset, source };
        let count = match ticket.file.file().read_at(&mut bytes, offset) {
            Ok(0) => return Err(file_error(ErrorKind::UnexpectedEof.into())),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Step::Short(0)),
            other => other.map_err(file_error)?,
        };
        let more = (count as u64) < length || self.queue.len() > 1;
        let piece = Piece::of(&bytes[..count]);
        let sent = taken(self.flight.wire.send(&[piece], false, more))?;
        Ok(self.moved(sender, sent, count, Way::Copied(Reason::Unmapped)))
    }

    fn by_sendfile(&mut self, sender: &Sender, at: u64, length: usize) -> Result<Step, Error> {
        let Some(Item::Range { ticket, .. }) = self.queue.front() else {
            return Ok(Step::Full);
        };
        let offset = ticket.file.file_offset(at);
        let file_error = |source| Error::File { offset, source };
        match self.flight.wire.sendfile(&ticket.file, at, length) {
            Ok(0) => Err(file_error(ErrorKind::UnexpectedEof.into())),
            // EIO is the medium's, and no socket says it.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Err(file_error(error)),
            // What can only be read (sendfile(2)).
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.by_read(sender),
            other => {
                let sent = taken(other)?;
                Ok(self.moved(sender, sent, length, Way::Sendfile))
            }
        }
    }

    fn by_copy(&mut self, sender: &Sender, batch: &Batch, reason: Reason) -> Result<Step, Error> {
        let sent = self.flight.wire.send(&self.queue.pieces, false, batch.more);
        let sent = taken(self.readable(sent)?)?;
        Ok(self.moved(sender, sent, batch.bytes, Way::Copied(reason)))
    }

    fn by_zero_copy(
        &mut self,
        sender: &Sender,
        batch: &Batch,
        now: Instant,
    ) -> Result<Step, Error> {
        if !sender.reserve(batch.pinned_bytes) {
            return self.by_copy(sender, batch, Reason::OverBound);
        }
        self.queue.populate(batch.bytes);
        let sent = self.flight.wire.send(&self.queue.pieces, true, batch.more);
        let bytes = match &sent {
            Ok(bytes) if *bytes > 0 => *bytes,
            _ => {
                sender.counters().release(batch.pinned_bytes);
                return self.not_zero_copy(sender, batch, sent);
            }
        };
        let pinned_bytes = self.queue.pinned_of(bytes);
        sender.counters().release(batch.pinned_bytes - pinned_bytes);
        self.pinned_bytes += pinned_bytes;
        self.unread_sends += 1;
        let send = self.flight.ledger.open(Hold {
            bytes: bytes as u64,
            pinned_bytes,
            at: now,
            _files: mem::take(&mut self.queue.files),
        });
        Ok(self.moved(sender, Some(bytes), batch.bytes, Way::ZeroCopy(send)))
    }

    /// A zero-copy send that did not happen.
    fn not_zero_copy(
        &mut self,
        sender: &Sender,
        batch: &Batch,
        sent: io::Result<usize>,
    ) -> Result<Step, Error> {
        let code = sent.as_ref().err().and_then(io::Error::raw_os_error);
        if code != Some(libc::ENOBUFS) {
            let sent = taken(self.readable(sent)?)?;
            debug_assert!(sent.is_none_or(|bytes| bytes == 0), "nothing was sent");
            return Ok(Step::Full);
        }
        self.completions(sender)?;
        // With nothing of ours in flight it is the limit itself, or somebody else has used it up.
        if sender.counters().pinned_bytes.load(Relaxed) == 0 {
            self.choice.stop(Reason::Refused);
        }
        self.by_copy(sender, batch, Reason::NoBuffers)
    }

    /// EFAULT is the file's: nothing is mapped where its bytes should be.
    fn readable(&self, sent: io::Result<usize>) -> Result<io::Result<usize>, Error> {
        match sent {
            Err(source) if source.raw_os_error() == Some(libc::EFAULT) => {
                let offset = self.queue.first_offset();
                Err(Error::File { offset, source })
            }
            other => Ok(other),
        }
    }

    /// Why the batch is copied, asked again behind fresh completions where these may change it.
    fn copies_because(&mut self, sender: &Sender, batch: &Batch, now: Instant) -> Option<Reason> {
        if batch.bytes <= sender.copy_bytes_max() {
            return Some(Reason::Small);
        }
        if !sender.may_pin() {
            return Some(Reason::Refused);
        }
        let mut reason = self.no_room(sender, batch, now);
        if matches!(
            reason,
            Some(Reason::Trial | Reason::SlowPeer | Reason::OverBound)
        ) && self.completions(sender).is_ok()
        {
            reason = self.no_room(sender, batch, now);
        }
        if reason.is_none() && !self.enabled {
            self.enabled = self.flight.wire.enable().is_ok();
            if !self.enabled {
                self.choice.stop(Reason::Refused);
                return Some(Reason::Refused);
            }
        }
        if reason.is_none() && !self.guarded(sender) {
            self.choice.stop(Reason::Unguarded);
            return Some(Reason::Unguarded);
        }
        reason
    }

    /// Whether the gathered batch may be sent zero-copy though this process may be killed.
    fn guarded(&mut self, sender: &Sender) -> bool {
        let Some(guard) = sender.guard() else {
            return true;
        };
        let files = &self.queue.files;
        self.flight.wire.guarded_by(guard) && files.iter().all(|file| file.guarded_by(guard))
    }

    fn no_room(&self, sender: &Sender, batch: &Batch, now: Instant) -> Option<Reason> {
        let options = sender.options();
        let ledger = &self.flight.ledger;
        let reason = self.choice.copies(ledger.len());
        if reason.is_some() {
            return reason;
        }
        let slow = now.checked_sub(options.deadline / SLOW_PART);
        let is_slow = |hold: &Hold| slow.is_some_and(|slow| hold.at < slow);
        if ledger.oldest().is_some_and(is_slow) {
            return Some(Reason::SlowPeer);
        }
        let room = options
            .connection_pinned_bytes_max
            .saturating_sub(self.pinned_bytes);
        let over = batch.pinned_bytes > room || ledger.len() >= OPEN_SENDS_MAX;
        over.then_some(Reason::OverBound)
    }

    /// The kernel has taken bytes from the queue's head; none: it was full.
    fn moved(&mut self, sender: &Sender, sent: Option<usize>, asked: usize, way: Way) -> Step {
        let Some(sent) = sent else {
            return Step::Full;
        };
        match way {
            Way::ZeroCopy(_) => {}
            Way::Sendfile => {
                sender
                    .counters()
                    .sendfile_bytes
                    .fetch_add(sent as u64, Relaxed);
            }
            Way::Copied(reason) => {
                sender.counters().copied(reason, sent as u64);
                self.choice.copied(sent as u64);
            }
        }
        let mut left = sent as u64;
        while left > 0 {
            let begin = self.taken_bytes;
            let (moved, gone) = self.queue.move_front(left, |ticket, moved| match way {
                Way::ZeroCopy(send) => ticket.send = Some(send),
                Way::Sendfile => ticket.place = Some(begin + moved),
                Way::Copied(_) => {}
            });
            self.taken_bytes += moved;
            left -= moved;
            if let Some(open) = gone {
                self.await_done(open);
            }
        }
        // What was sent a moment ago is not acknowledged: the peer's state is not asked for here.
        self.settle(false);
        if sent < asked {
            Step::Short(sent)
        } else {
            Step::Sent(sent)
        }
    }

    /// A ticket takes its place among those that wait: at the end, but for empty ranges that were queued behind it.
    fn await_done(&mut self, open: Open) {
        if self
            .waiting
            .back()
            .is_none_or(|last| last.number < open.number)
        {
            self.waiting.push_back(open);
            return;
        }
        let behind = self.waiting.iter().rev();
        let behind = behind
            .take_while(|other| other.number > open.number)
            .count();
        self.waiting.insert(self.waiting.len() - behind, open);
    }

    /// Sees which tickets are done; `asks`: the kernel may be asked what the peer has acknowledged.
    fn settle(&mut self, asks: bool) {
        let mut acknowledged = None;
        while let Some(open) = self.waiting.front() {
            if open.number != self.done_below {
                return;
            }
            if open
                .send
                .is_some_and(|send| send >= self.flight.ledger.done_below())
            {
                return;
            }
            if let Some(place) = open.place.filter(|_| !self.aborted) {
                if !asks {
                    return;
                }
                let upto = *acknowledged
                    .get_or_insert_with(|| self.acknowledged_bytes().unwrap_or_default());
                if upto < place {
                    return;
                }
            }
            open.file.release();
            self.done_below = open.number + 1;
            self.waiting.pop_front();
        }
    }
}

/// Bytes that were sent; none: the socket is full. An interrupted call is told as 0 bytes.
fn taken(sent: io::Result<usize>) -> Result<Option<usize>, Error> {
    match sent {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Some(0)),
        Err(error) => Err(Error::Socket(error)),
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "engine_fault_tests.rs"]
mod fault_tests;
