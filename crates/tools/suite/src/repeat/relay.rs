// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection of a client, handed on to the server.
//!
//! R1. Each byte goes on as it came and in its order, both ways; only the replies of repeated reads but
//!     the last are kept from the client.
//! R2. A read is repeated only if it stands alone: every earlier command was answered, and nothing has
//!     come behind it. Nothing is sent behind it before its last reply is here.
//! R3. An error, and what MULTI answers, is handed on at once: it was no read. So is the reply when the
//!     client or the server ends the connection, and all that is longer than [`REPLY_BYTES_MAX`].
//! R4. Where replies cannot be told one by one (subscriptions, MONITOR, CLIENT REPLY, what is no RESP),
//!     both streams pass unread from then on.
//! R5. While CLIENT TRACKING is on, a read has an effect: it is not repeated.
//! R6. A read is kept back before its first try only while it stands alone as R2 wants it, and for
//!     [`ADMISSION_MAX`] at most. If nobody comes to terms with the connection in that time, its next reads are not kept back.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use erb_abi::FastCommand;
use nix::libc::linger;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{setsockopt, sockopt};

use super::patience::{self, Patience};
use super::reads::{Reads, Why};
use super::reply::{Item, Replies};
use super::request::{End, Piece, Requests};
use super::worth::{self, Beside, Could};
use erb_report::Consumed;

use crate::witness::Witness;

/// Longer replies are not kept back: ERB has none so long.
const REPLY_BYTES_MAX: usize = 64 * 1024;
/// No more is read while so much waits to be written: who does not read is not read from.
const WAITING_BYTES_MAX: usize = 64 * 1024;
/// Longest wait for ERB to hear how a connection stands: it looks each 50 ms, and asks Redis then.
const ADMISSION_MAX: Duration = Duration::from_millis(500);
/// Between two looks at that.
const ADMISSION_LOOK: Duration = Duration::from_millis(5);
/// Longest wait for the server's kernel to take a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Tries of what ERB cannot have: it is not waited for.
const UNWAITED_TRIES: usize = 2;

/// What all connections share.
pub struct Shared {
    /// Where the server is.
    pub server: SocketAddr,
    /// Sees answers of ERB; none where there is no ERB.
    pub witness: Option<Arc<dyn Witness>>,
    /// What came of the reads.
    pub reads: Reads,
    /// How long it is worth to wait for ERB.
    pub patience: Patience,
    /// Whether the proxy shall end.
    pub leave: AtomicBool,
}

/// A read under way.
struct Asking {
    command: &'static FastCommand,
    request: Vec<u8>,
    /// Of which command and key it is.
    subject: u64,
    /// How long to wait before each further try.
    pauses: &'static [Duration],
    /// 0: it is kept back until ERB knows the connection.
    tries: usize,
    /// So long at most.
    admission: Instant,
    /// Bytes of requests that ERB had consumed before this try.
    consumed: Option<u32>,
    /// The reply, as far as it has come.
    reply: Vec<u8>,
    /// The reply to the try before.
    before: Vec<u8>,
    /// When to try again; none while a reply is awaited.
    again: Option<Instant>,
}

/// One way of the connection.
struct Way {
    from_ended: bool,
    /// The one who sends has gone without a farewell.
    reset: bool,
    waiting: Vec<u8>,
}

impl Way {
    const fn new() -> Self {
        Self {
            from_ended: false,
            reset: false,
            waiting: Vec::new(),
        }
    }
}

/// The connection.
pub struct Relay {
    shared: Arc<Shared>,
    client: TcpStream,
    server: TcpStream,
    /// Our end of the connection to the server, which is its client.
    own: SocketAddr,
    up: Way,
    down: Way,
    requests: Requests,
    replies: Replies,
    /// Commands whose replies have not come.
    owed: u64,
    asking: Option<Asking>,
    tracking: bool,
    multi: bool,
    database: u32,
    /// ERB was waited for in vain: R6.
    unknown: bool,
    /// Asks Redis what no reply tells.
    beside: Option<Beside>,
    opaque: bool,
}

impl Relay {
    /// Connects to the server for this client.
    pub fn new(shared: &Arc<Shared>, client: TcpStream) -> std::io::Result<Self> {
        let server = TcpStream::connect_timeout(&shared.server, CONNECT_MAX)?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        Ok(Self {
            shared: Arc::clone(shared),
            own: server.local_addr()?,
            client,
            server,
            up: Way::new(),
            down: Way::new(),
            requests: Requests::default(),
            replies: Replies::default(),
            owed: 0,
            asking: None,
            tracking: false,
            multi: false,
            database: 0,
            unknown: false,
            beside: None,
            opaque: false,
        })
    }

    /// Its two connections: to the client, to the server.
    pub fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.client.as_fd(), self.server.as_fd()]
    }

    /// When it wants to go on without having been told anything.
    pub fn again(&self) -> Option<Instant> {
        self.asking.as_ref()?.again
    }

    /// What it wants to be told of the connection to the client, and of that to the server.
    pub fn wishes(&self) -> [EpollFlags; 2] {
        let room = |way: &Way| !way.from_ended && way.waiting.len() < WAITING_BYTES_MAX;
        // The reply to a read is not of what waits for the client.
        let awaited = self.asking.is_some() && !self.down.from_ended;
        let wish = |read: bool, write: &Way| {
            let mut wish = EpollFlags::empty();
            wish.set(EpollFlags::EPOLLIN, read);
            wish.set(EpollFlags::EPOLLOUT, !write.waiting.is_empty());
            wish
        };
        let listen = room(&self.up) && self.requests.held() < 2 * WAITING_BYTES_MAX;
        [
            wish(listen, &self.down),
            wish(room(&self.down) || awaited, &self.up),
        ]
    }

    /// Something can be done with one of its connections: reads what is there.
    pub fn told(&mut self, of_server: bool) {
        let mut bytes = [0; 16 * 1024];
        let [client, server] = self.wishes().map(|wish| wish.contains(EpollFlags::EPOLLIN));
        if of_server && server {
            let length = read_some(&mut self.server, &mut self.down, &mut bytes);
            self.heard(&bytes[..length]);
        } else if !of_server && client {
            let length = read_some(&mut self.client, &mut self.up, &mut bytes);
            self.requests.feed(&bytes[..length]);
        }
    }

    /// Hands on what can be handed on now; false when both have nothing more to say.
    pub fn go_on(&mut self) -> std::io::Result<bool> {
        self.work();
        write_some(&mut self.client, &mut self.down)?;
        if write_some(&mut self.server, &mut self.up).is_err() {
            // It does not listen any more; what it said before is still to be read.
            self.up.waiting.clear();
        }
        if self.down.from_ended && self.down.waiting.is_empty() {
            self.part(self.down.reset)?;
            return Ok(false);
        }
        if self.up.from_ended && self.up.waiting.is_empty() {
            if self.up.reset {
                self.part(true)?;
                return Ok(false);
            }
            // Redis ends the connection when it reads this, and not before what came earlier.
            let _ = self.server.shutdown(Shutdown::Write);
        }
        Ok(true)
    }

    /// Ends both connections, as one of them was ended.
    fn part(&self, reset: bool) -> std::io::Result<()> {
        if reset {
            let now = linger {
                l_onoff: 1,
                l_linger: 0,
            };
            setsockopt(&self.client, sockopt::Linger, &now)?;
            setsockopt(&self.server, sockopt::Linger, &now)?;
        }
        Ok(())
    }

    /// Sends on what may be sent.
    fn work(&mut self) {
        if self.down.from_ended {
            self.give_back(true);
        } else if self.up.from_ended {
            self.give_back(false);
        }
        if let Some(asking) = &self.asking
            && asking.again.is_some_and(|again| Instant::now() >= again)
        {
            self.ask();
        }
        while self.asking.is_none() && self.up.waiting.len() < WAITING_BYTES_MAX {
            if self.opaque {
                self.up.waiting.extend(self.requests.rest());
                return;
            }
            let Some(piece) = self.requests.next() else {
                return;
            };
            self.send(piece);
        }
    }

    fn send(&mut self, piece: Piece) {
        match piece {
            Piece::Opaque(bytes) => {
                self.opaque = true;
                self.up.waiting.extend(bytes);
            }
            Piece::Pass(bytes, end) => {
                self.up.waiting.extend(bytes);
                if let Some(end) = end {
                    self.passed(end);
                }
            }
            Piece::Line(command, bytes) => self.send_once(command, Why::Line, &bytes),
            Piece::Read(command, bytes) if self.tracking => {
                self.send_once(command, Why::Tracked, &bytes);
            }
            Piece::Read(command, bytes) if self.owed > 0 || self.requests.held() > 0 => {
                self.send_once(command, Why::Piped, &bytes);
            }
            Piece::Read(command, request) => {
                let subject = patience::subject(command, &request);
                self.asking = Some(Asking {
                    command,
                    pauses: self.shared.patience.pauses(subject),
                    subject,
                    request,
                    tries: 0,
                    admission: Instant::now() + ADMISSION_MAX,
                    consumed: None,
                    reply: Vec::new(),
                    before: Vec::new(),
                    again: None,
                });
                self.ask();
            }
        }
    }

    /// A command was handed on.
    const fn passed(&mut self, end: End) {
        match end {
            End::Silent => return,
            End::Opaque => {
                self.opaque = true;
                return;
            }
            End::Replied => {}
            End::Tracking(on) => self.tracking = on,
            End::Multi(on) => self.multi = on,
            End::Database(number) => self.database = number,
            End::Reset => (self.tracking, self.multi, self.database) = (false, false, 0),
        }
        self.owed += 1;
    }

    fn send_once(&mut self, command: &'static FastCommand, why: Why, request: &[u8]) {
        self.shared.reads.count(command, why);
        self.up.waiting.extend_from_slice(request);
        self.owed += 1;
    }

    fn look(&self) -> Option<Consumed> {
        let witness = self.shared.witness.as_ref()?;
        witness.look(self.own, self.shared.server)
    }

    fn ask(&mut self) {
        let look = self.look();
        let bypass = look.is_some_and(|look| look.bypass);
        self.unknown &= bypass;
        if let Some(asking) = &mut self.asking {
            if asking.tries == 0 && bypass && !self.multi && !self.unknown {
                let now = Instant::now();
                if now < asking.admission {
                    asking.again = Some(now + ADMISSION_LOOK);
                    return;
                }
                self.unknown = true;
            }
            asking.tries += 1;
            asking.again = None;
            asking.consumed = look.map(|look| look.bytes);
            asking.before = std::mem::take(&mut asking.reply);
            self.up.waiting.extend_from_slice(&asking.request);
        }
    }

    /// From here on nothing is looked at, and no read is repeated; `ended`: nor does the reply that is
    /// awaited come any more.
    fn give_back(&mut self, ended: bool) {
        self.opaque = true;
        let Some(asking) = self.asking.take() else {
            return;
        };
        self.shared.reads.count(asking.command, Why::Slow);
        if asking.tries == 0 {
            self.up.waiting.extend(asking.request);
            return;
        }
        let lost = ended && asking.again.is_none() && !asking.before.is_empty();
        let reply = if lost { asking.before } else { asking.reply };
        self.down.waiting.extend(reply);
    }

    /// Takes what the server sent.
    fn heard(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.opaque {
                self.down.waiting.extend_from_slice(bytes);
                return;
            }
            let Ok((length, item)) = self.replies.scan(bytes) else {
                self.give_back(false);
                continue;
            };
            let (part, rest) = bytes.split_at(length);
            bytes = rest;
            match &mut self.asking {
                Some(asking)
                    if asking.tries > 0 && item != Some(Item::Push) && !self.replies.in_push() =>
                {
                    asking.reply.extend_from_slice(part);
                    if let Some(Item::Reply(kind)) = item {
                        self.answered(kind);
                    } else if asking.reply.len() > REPLY_BYTES_MAX {
                        self.hand_on_long();
                    }
                }
                _ => {
                    self.down.waiting.extend_from_slice(part);
                    if let Some(Item::Reply(_)) = item {
                        self.owed = self.owed.saturating_sub(1);
                    }
                }
            }
        }
    }

    /// A reply that is not kept back: it goes on as it comes.
    fn hand_on_long(&mut self) {
        if let Some(asking) = self.asking.take() {
            self.down.waiting.extend(asking.reply);
            self.owed = 1;
            self.shared.reads.count(asking.command, Why::Slow);
        }
    }

    /// A try was answered.
    fn answered(&mut self, kind: u8) {
        let consumed = self.look().map(|look| look.bytes);
        let Some(asking) = &mut self.asking else {
            return;
        };
        let fast =
            matches!((asking.consumed, consumed), (Some(before), Some(now)) if before != now);
        let why = match (kind, fast) {
            (_, true) if asking.tries == 1 => Why::FastAtOnce,
            (_, true) => Why::Fast,
            (b'-', _) => Why::Refused,
            _ if asking.reply == b"+QUEUED\r\n" => Why::Queued,
            _ => Why::Slow,
        };
        let could = worth::by_reply(asking.command, &asking.reply);
        if why == Why::Slow
            && let Some(pause) = pause_of(asking, could)
        {
            // Without ERB there is nobody to wait for.
            let waits = self.shared.witness.is_some();
            let pause = if waits { pause } else { Duration::ZERO };
            asking.again = Some(Instant::now() + pause);
            return;
        }
        if let Some(asking) = self.asking.take() {
            self.done(&asking, why, could);
            self.down.waiting.extend(asking.reply);
        }
    }

    /// No further try is made.
    fn done(&mut self, asking: &Asking, why: Why, could: Could) {
        let could = match why {
            Why::Slow if could == Could::Unknown => self.beside(asking),
            _ => could,
        };
        let why = match (why, could) {
            (Why::Slow, Could::No) => Why::Beyond,
            _ => why,
        };
        self.shared.reads.count(asking.command, why);
        if why != Why::Beyond || asking.tries > UNWAITED_TRIES {
            let answered = !matches!(why, Why::Slow | Why::Beyond);
            let patience = &self.shared.patience;
            patience.learn(asking.subject, asking.pauses, answered);
        }
    }

    /// Whether ERB could have answered what tells nothing of it: asked where there is an ERB.
    fn beside(&mut self, asking: &Asking) -> Could {
        if self.shared.witness.is_none() || !worth::is_of_hash(asking.command) {
            return Could::Unknown;
        }
        let Some(key) = patience::key(&asking.request) else {
            return Could::Unknown;
        };
        let server = self.shared.server;
        let beside = self
            .beside
            .take()
            .map_or_else(|| Beside::connect(server), Ok);
        let told = beside.and_then(|mut beside| {
            let could = beside.hash(self.database, key)?;
            Ok((beside, could))
        });
        // It is made anew for the next one: no answer is taken for another question's.
        let Ok((beside, could)) = told else {
            return Could::Unknown;
        };
        self.beside = Some(beside);
        could
    }
}

/// How long to wait for the next try; none: there is none.
fn pause_of(asking: &Asking, could: Could) -> Option<Duration> {
    let pauses = match could {
        Could::No => &asking.pauses[..UNWAITED_TRIES - 1],
        Could::Yes | Could::Unknown => asking.pauses,
    };
    pauses.get(asking.tries - 1).copied()
}

/// What can be read now; notes the end.
fn read_some(from: &mut TcpStream, way: &mut Way, bytes: &mut [u8]) -> usize {
    match from.read(bytes) {
        Ok(0) => way.from_ended = true,
        Ok(length) => return length,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        Err(_) => (way.from_ended, way.reset) = (true, true),
    }
    0
}

/// Writes what can be written now.
fn write_some(to: &mut TcpStream, way: &mut Way) -> std::io::Result<()> {
    while !way.waiting.is_empty() {
        match to.write(&way.waiting) {
            Ok(length) => drop(way.waiting.drain(..length)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
