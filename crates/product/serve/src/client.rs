// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One client: requests in, answers out, in order.
//!
//! Invariants:
//! 1. A body that ends is whole and of one version. With a lease nobody could write. Without one its last
//!    bytes are sent only when the peer has all before them and the file still has its version; else the
//!    connection is reset.
//! 2. Everything is bounded: the head, the requests that are answered ahead, the time for a head, for a
//!    client that takes nothing, and for closing.
//! 3. A file is held until the peer has acknowledged the body.
//! 4. A turn ends: whoever sends without an end, requests or anything else, holds up nobody.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::mem;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;

use dax_send::{Cause, Connection, Error, Progress, Reason, Ticket};

use crate::answer::{Head, plain};
use crate::conditions::{Outcome, outcome};
use crate::files::{Found, Missing, Opened};
use crate::request::{Bad, HEAD_BYTES_MAX, Method, Request, parse};
use crate::worker::{Place, Shop};

/// Answers whose bodies may be on their way at once.
const AHEAD_MAX: usize = 16;
/// From the first byte of a head to its last.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Without a request.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Between our end of a connection and the client's.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// A file without a lease that does not stand still is tried so often.
const STILL_TRIES: u8 = 8;
/// Pause between two tries.
const STILL_PAUSE: Duration = Duration::from_millis(20);
/// Of a body without a lease, what is held back for the comparison; shorter ones are read at once.
const TAIL_BYTES: u64 = 16 << 10;
/// Read from the socket at a time.
const READ_BYTES: usize = 4096;
/// Times that a turn reads and answers; each reads no more than a head may have.
const TURN_ROUNDS: usize = 4;

/// What the loop does next with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait for an event.
    Wait,
    /// Look again soon, without an event: something has to be seen by looking.
    Soon,
    /// Give it another turn behind the others.
    Again,
    /// It is over.
    Drop,
}

/// What the next answer waits for.
enum Pending {
    /// A file without a lease was changed a moment ago.
    Still {
        request: Box<Request>,
        until: Instant,
        tries: u8,
    },
    /// All but the last bytes of a body have been queued.
    Tail {
        opened: Rc<Opened>,
        at: u64,
        end: u64,
        before: Ticket,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Requests are read.
    Open,
    /// No further request; what is queued leaves.
    Ending,
    /// We have closed; the client has until then.
    Lingering(Instant),
}

/// Who has failed.
enum Over {
    /// The file has changed below the body.
    Changed,
    /// The client, or its network.
    Gone(Error),
}

impl From<Error> for Over {
    fn from(error: Error) -> Self {
        Self::Gone(error)
    }
}

pub struct Client {
    connection: Connection,
    _place: Place,
    input: Vec<u8>,
    may_read: bool,
    bodies: VecDeque<(Ticket, Rc<Opened>)>,
    pending: Option<Pending>,
    phase: Phase,
    /// Begin of the head that is being read.
    head_since: Option<Instant>,
    /// Last request, or last bytes that left or were acknowledged.
    moved: Instant,
    told_cause: bool,
    /// The client sends nothing more.
    ended: bool,
    /// It will say so, or has failed: what is read is read to its end.
    hung_up: bool,
    /// Completions wait, or it is time to see what was acknowledged.
    looks: bool,
    /// As [`Connection::taken_bytes`] and [`Connection::acknowledged_bytes`] told last.
    taken_bytes: u64,
    acknowledged_bytes: u64,
}

impl Client {
    /// The socket, to be watched.
    pub fn stream(&self) -> &TcpStream {
        self.connection.stream()
    }

    pub fn new(connection: Connection, place: Place, now: Instant) -> Self {
        Self {
            connection,
            _place: place,
            input: Vec::new(),
            may_read: true,
            bodies: VecDeque::new(),
            pending: None,
            phase: Phase::Open,
            head_since: None,
            moved: now,
            told_cause: false,
            ended: false,
            hung_up: false,
            looks: false,
            taken_bytes: 0,
            acknowledged_bytes: 0,
        }
    }

    /// What an event has told.
    pub fn told(&mut self, events: EpollFlags) {
        let over = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP;
        self.hung_up |= events.intersects(over);
        self.looks |= events.intersects(over | EpollFlags::EPOLLERR);
        if events.intersects(over | EpollFlags::EPOLLIN) {
            self.may_read = !self.ended;
        }
    }

    /// Completions are read if some wait. What the peer has acknowledged raises no event: it is looked up when
    /// something depends on it.
    fn look(&mut self, now: Instant) -> Result<(), Over> {
        let depends =
            self.pending.is_some() || self.phase != Phase::Open || self.bodies.len() >= AHEAD_MAX;
        if mem::take(&mut self.looks) || depends {
            self.connection.completions(now)?;
        }
        Ok(())
    }

    /// Does all that can be done now.
    pub fn turn(&mut self, shop: &mut Shop, now: Instant) -> Next {
        let was_leased = self.is_leased();
        match self.work(shop, now) {
            // Stopped meanwhile, for longer than a lease lasts.
            Ok(_) if (was_leased || self.is_leased()) && now.elapsed() >= shop.stands_still => {
                self.reset(shop);
                Next::Drop
            }
            Ok(next) => next,
            Err(Over::Changed) => {
                self.reset(shop);
                Next::Drop
            }
            Err(Over::Gone(error)) => {
                if matches!(error, Error::Overdue { .. }) {
                    shop.counters.reset_slow.fetch_add(1, Relaxed);
                }
                // A file that was cut below its body, or cannot be read, must not look whole either.
                if matches!(error, Error::File { .. }) {
                    shop.counters.reset_changed.fetch_add(1, Relaxed);
                }
                Next::Drop
            }
        }
    }

    fn work(&mut self, shop: &mut Shop, now: Instant) -> Result<Next, Over> {
        self.look(now)?;
        for _ in 0..TURN_ROUNDS {
            self.read(now)?;
            self.requests(shop, now)?;
            if self.ended && self.phase == Phase::Open && self.pending.is_none() && !self.has_head()
            {
                self.phase = Phase::Ending;
            }
            let progress = self.connection.advance(now)?;
            self.retire(now);
            self.tell_cause(shop);
            match progress {
                Progress::Again => return Ok(Next::Again),
                Progress::Blocked => return Ok(Next::Wait),
                Progress::Idle => {}
            }
            let more = self.may_read && self.input.len() < HEAD_BYTES_MAX;
            let room = self.bodies.len() < AHEAD_MAX;
            if self.phase == Phase::Open
                && self.pending.is_none()
                && (more || room && self.has_head())
            {
                continue;
            }
            let next = self.rest(now);
            // What comes behind our end is dropped, but not all of it at once.
            let drops = self.may_read && self.phase != Phase::Open;
            return Ok(if next == Next::Wait && drops {
                Next::Again
            } else {
                next
            });
        }
        Ok(Next::Again)
    }

    /// Everything that was queued is with the kernel.
    fn rest(&mut self, now: Instant) -> Next {
        if self.pending.is_some() {
            return Next::Soon;
        }
        let done = self.connection.open_tickets() == 0;
        match self.phase {
            // The acknowledgements that make room for the next answer raise no event.
            Phase::Open if self.has_head() => Next::Soon,
            Phase::Open => Next::Wait,
            Phase::Ending => {
                let _ = self.connection.stream().shutdown(std::net::Shutdown::Write);
                self.phase = Phase::Lingering(now + LINGER_TIME);
                if self.ended && done {
                    Next::Drop
                } else {
                    Next::Wait
                }
            }
            Phase::Lingering(until) if done && (self.ended || now >= until) => Next::Drop,
            Phase::Lingering(_) => Next::Wait,
        }
    }

    /// Whether a request waits that is whole, or cannot be read.
    fn has_head(&self) -> bool {
        self.phase == Phase::Open
            && !self.input.is_empty()
            && !matches!(parse(&self.input), Ok(None))
    }

    /// Reads what there is and what there is room for.
    fn read(&mut self, now: Instant) -> Result<(), Over> {
        let mut chunk = [0; READ_BYTES];
        for _ in 0..HEAD_BYTES_MAX / READ_BYTES {
            if !self.may_read {
                return Ok(());
            }
            let room = match self.phase {
                Phase::Open => HEAD_BYTES_MAX
                    .saturating_sub(self.input.len())
                    .min(READ_BYTES),
                // What comes after the end is taken and dropped, so that the client sees our last bytes.
                Phase::Ending | Phase::Lingering(_) => READ_BYTES,
            };
            if room == 0 {
                return Ok(());
            }
            let mut stream = self.connection.stream();
            match stream.read(&mut chunk[..room]) {
                Ok(0) => {
                    self.ended = true;
                    self.may_read = false;
                }
                Ok(count) if self.phase == Phase::Open => {
                    self.input.extend_from_slice(&chunk[..count]);
                    self.head_since.get_or_insert(now);
                    // Less than asked for: there is no more, and what comes raises an event (epoll(7)).
                    self.may_read = count == room || self.hung_up;
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.may_read = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Over::Gone(Error::Socket(error))),
            }
        }
        Ok(())
    }

    /// Answers the requests that are whole, in order, as far as there is room.
    fn requests(&mut self, shop: &mut Shop, now: Instant) -> Result<(), Over> {
        loop {
            match self.pending.take() {
                Some(Pending::Still {
                    request,
                    until,
                    tries,
                }) if now >= until => {
                    self.answer(shop, *request, tries, now);
                }
                Some(Pending::Tail {
                    opened,
                    at,
                    end,
                    before,
                }) if self.connection.is_done(before) => {
                    self.tail(&opened, at, end)?;
                }
                None => {}
                waits => {
                    self.pending = waits;
                    return Ok(());
                }
            }
            if self.pending.is_some() {
                continue;
            }
            if self.phase != Phase::Open
                || self.bodies.len() >= AHEAD_MAX
                || !self.connection.has_room(4)
            {
                return Ok(());
            }
            if self.input.is_empty() {
                return Ok(());
            }
            match parse(&self.input) {
                Ok(None) => return Ok(()),
                Ok(Some((request, length))) => {
                    self.input.drain(..length);
                    self.head_since = (!self.input.is_empty()).then_some(now);
                    self.moved = now;
                    self.answer(shop, request, 0, now);
                }
                Err(bad) => {
                    self.refuse(
                        shop,
                        status(bad),
                        (bad == Bad::Method).then_some(("Allow", "GET, HEAD")),
                    );
                    return Ok(());
                }
            }
        }
    }

    /// An error behind which nothing can be read any more.
    fn refuse(&mut self, shop: &mut Shop, status: u16, extra: Option<(&str, &str)>) {
        shop.counters.answered(status);
        let bytes = plain(status, shop.date.now(), false, true, extra);
        self.connection.queue_bytes(bytes);
        self.input.clear();
        self.head_since = None;
        self.phase = Phase::Ending;
    }

    fn answer(&mut self, shop: &mut Shop, request: Request, tries: u8, now: Instant) {
        let mut path = request.path.clone();
        let is_folder = path.is_empty() || path.ends_with(b"/");
        if is_folder {
            path.extend_from_slice(shop.index.as_bytes());
        }
        match shop.files.open(&path, now) {
            Ok(Found::File(opened, kind)) if opened.is_leased() || opened.is_still() => {
                self.file(shop, &request, &opened, kind);
            }
            Ok(Found::File(..)) if tries < STILL_TRIES => {
                let (request, until) = (Box::new(request), now + STILL_PAUSE);
                self.pending = Some(Pending::Still {
                    request,
                    until,
                    tries: tries + 1,
                });
            }
            Ok(Found::File(..)) | Err(Missing::Unavailable) => {
                self.plain(shop, &request, 503, Some(("Retry-After", "1")));
            }
            // A folder of the index's name is none.
            Ok(Found::Directory) if is_folder => self.plain(shop, &request, 404, None),
            Ok(Found::Directory) => {
                let place = format!("{}/{}", request.written, request.query);
                self.plain(shop, &request, 301, Some(("Location", &place)));
            }
            Err(Missing::Forbidden) => self.plain(shop, &request, 403, None),
            Err(Missing::NotFound) => self.plain(shop, &request, 404, None),
            Err(Missing::Failed) => self.plain(shop, &request, 500, None),
        }
    }

    fn plain(
        &mut self,
        shop: &mut Shop,
        request: &Request,
        status: u16,
        extra: Option<(&str, &str)>,
    ) {
        shop.counters.answered(status);
        let with_body = request.method == Method::Get;
        let bytes = plain(
            status,
            shop.date.now(),
            request.keep_alive,
            with_body,
            extra,
        );
        self.connection.queue_bytes(bytes);
        self.ends(request);
    }

    fn ends(&mut self, request: &Request) {
        if !request.keep_alive {
            self.phase = Phase::Ending;
        }
    }

    fn file(&mut self, shop: &mut Shop, request: &Request, opened: &Rc<Opened>, kind: &str) {
        let version = &opened.version;
        let all = version.length_bytes;
        let (status, begin, end) = match outcome(request, version) {
            Outcome::Whole => (200, 0, all),
            Outcome::Part(begin, end) => (206, begin, end),
            Outcome::NotModified => (304, 0, 0),
            Outcome::Failed => return self.plain(shop, request, 412, None),
            Outcome::Unsatisfiable => {
                let words = format!("bytes */{all}");
                return self.plain(shop, request, 416, Some(("Content-Range", &words)));
            }
        };
        shop.counters.answered(status);
        let mut head =
            Head::new(status, shop.date.now(), request.keep_alive).fields(&opened.fields);
        if status == 206 {
            head = head.field(
                "Content-Range",
                format_args!("bytes {begin}-{}/{all}", end - 1),
            );
        }
        if status != 304 {
            head = head.field("Content-Length", end - begin);
            head = head.field("Content-Type", kind);
        }
        self.connection.queue_bytes(head.end());
        if request.method == Method::Get && end > begin {
            self.body(opened, begin, end);
        }
        self.ends(request);
    }

    fn body(&mut self, opened: &Rc<Opened>, begin: u64, end: u64) {
        let leased = opened.is_leased();
        let stop = if leased {
            end
        } else {
            end.saturating_sub(TAIL_BYTES).max(begin)
        };
        // With nothing before the tail, the ticket of nothing is done at once.
        let ticket = self.connection.queue(&opened.mapped, begin..stop);
        self.bodies.push_back((ticket, Rc::clone(opened)));
        if !leased {
            self.pending = Some(Pending::Tail {
                opened: Rc::clone(opened),
                at: stop,
                end,
                before: ticket,
            });
        }
    }

    /// The last bytes of a body without a lease: read, then compared, then sent.
    fn tail(&mut self, opened: &Opened, at: u64, end: u64) -> Result<(), Over> {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        let read = opened.mapped.file().read_exact_at(&mut bytes, at);
        if read.is_err() || !opened.is_same() {
            return Err(Over::Changed);
        }
        self.connection.queue_bytes(bytes);
        Ok(())
    }

    /// Lets go of files whose bodies the peer has.
    fn retire(&mut self, now: Instant) {
        let taken_bytes = self.connection.taken_bytes();
        if taken_bytes != self.taken_bytes {
            self.taken_bytes = taken_bytes;
            self.moved = now;
        }
        while self
            .bodies
            .front()
            .is_some_and(|(ticket, _)| self.connection.is_done(*ticket))
        {
            self.bodies.pop_front();
            self.moved = now;
        }
    }

    fn tell_cause(&mut self, shop: &Shop) {
        if !self.told_cause && self.connection.copies() == Some(Reason::KernelCopies) {
            self.told_cause = true;
            let cause = Cause::of(self.connection.stream());
            shop.counters
                .kernel_copies(cause.as_ref().map_or("unknown", Cause::name));
        }
    }

    /// Whether something is due; called now and then without an event.
    pub fn tick(&mut self, shop: &mut Shop, now: Instant) -> Next {
        let wanted = self
            .bodies
            .iter()
            .filter_map(|(_, opened)| opened.wanted_since.get())
            .min();
        let busy = !self.connection.is_idle()
            || self.connection.open_tickets() > 0
            || self.pending.is_some();
        if busy {
            self.looks = true;
            // A slow client's buffers hold more than it takes within the deadline.
            let bytes = self.connection.acknowledged_bytes().unwrap_or_default();
            if bytes != self.acknowledged_bytes {
                self.acknowledged_bytes = bytes;
                self.moved = now;
            }
        }
        let late = |since: Instant, after: Duration| now.duration_since(since) >= after;
        if wanted.is_some_and(|since| late(since, shop.lease_time))
            || busy && late(self.moved, shop.deadline)
        {
            shop.counters.reset_slow.fetch_add(1, Relaxed);
            self.connection.abort();
            return Next::Drop;
        }
        if let Some(since) = self
            .head_since
            .filter(|_| !busy && self.phase == Phase::Open)
        {
            if late(since, HEAD_TIME) {
                self.refuse(shop, 408, None);
            }
        } else if !busy && self.phase == Phase::Open && late(self.moved, IDLE_TIME) {
            return Next::Drop;
        }
        self.turn(shop, now)
    }

    /// Whether bodies are under way that rely on a lease.
    pub fn is_leased(&self) -> bool {
        self.bodies.iter().any(|(_, opened)| opened.is_leased())
    }

    /// The file may have changed below a body.
    pub fn reset(&mut self, shop: &Shop) {
        shop.counters.reset_changed.fetch_add(1, Relaxed);
        self.connection.abort();
    }

    /// No further request; what is under way may end.
    pub fn end(&mut self) {
        if self.phase == Phase::Open && self.pending.is_none() {
            self.phase = Phase::Ending;
        }
    }
}

const fn status(bad: Bad) -> u16 {
    match bad {
        Bad::Request => 400,
        Bad::Path => 404,
        Bad::Method => 405,
        Bad::Body => 413,
        Bad::Long => 431,
        Bad::Unknown => 501,
        Bad::Version => 505,
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
