// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An ordinary client: TCP sockets, one thread, one request in flight on each connection. It does
//! little else, so that it asks as fast as one core can. What it asks, and whether a reply is right,
//! is its [`Traffic`]'s.
//!
//! It asks in a closed loop, or when operations are due by a [`Pace`]. A latency then begins when the
//! operation was due, not when it could be sent: who waits for a slow server before asking again
//! would leave out just the requests that had to wait (coordinated omission).

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::interrupt::Interrupt;
use crate::pace::{Due, Pace};
use crate::tally::Tally;

/// A request without a reply for so long: the connection is lost.
const STALL: Duration = Duration::from_secs(5);
/// Connecting to a server on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that one wait reports; more are reported by the next one.
const EVENTS: usize = 256;
/// More than nearly any reply: so a read shows that nothing came behind it.
const READ_BYTES: usize = 64 * 1024;
/// Stands for the timer where others stand for connections.
const TIMER: u64 = u64::MAX;

/// What one client asks, and what must be answered.
pub trait Traffic {
    /// What is known of a connection's request.
    type Asked: Default + Send;
    /// Kinds of operations, whose latencies are kept apart.
    const OPERATIONS: usize;

    /// Makes the next request of the one before it on this connection; false: there is none left.
    fn ask(&mut self, asked: &mut Self::Asked, request: &mut Vec<u8>) -> Result<bool>;

    /// Judges what has come of the reply; an error if it is wrong.
    fn hear(
        &mut self,
        asked: &mut Self::Asked,
        reply: &[u8],
        request: &mut Vec<u8>,
    ) -> Result<Heard>;
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// There is more of the reply to come.
    Part,
    /// Its next request was made and is to be sent.
    Next,
    /// It is done and was of this kind.
    Done(usize),
}

/// Connections to one server.
pub struct Load<T: Traffic> {
    epoll: Epoll,
    timer: TimerFd,
    traffic: T,
    pace: Pace,
    conns: Vec<Conn<T::Asked>>,
    /// Connections without a request, the one that has been so longest first.
    idle: VecDeque<usize>,
    /// Operations begun.
    begun: u64,
    /// The pace's time, which stands still between two drives.
    clock: Duration,
    exhausted: bool,
    buffer: Box<[u8]>,
}

struct Conn<A> {
    stream: TcpStream,
    asked: A,
    request: Vec<u8>,
    /// Bytes of the request that the socket has taken.
    sent: usize,
    /// The reply, if it comes in parts.
    reply: Vec<u8>,
    /// When the operation was due, and when it began.
    due: Instant,
    begun: Instant,
    idle_since: Instant,
}

/// One drive.
#[derive(Clone, Copy)]
struct Span {
    start: Instant,
    end: Instant,
    /// The pace's time at its start.
    clock: Duration,
}

impl Span {
    /// The moment of a time of the pace; one before the span is of an operation that had to wait.
    fn at(&self, time: Duration) -> Instant {
        let late = self.clock.saturating_sub(time);
        let moment = self.start + time.saturating_sub(self.clock);
        moment.checked_sub(late).unwrap_or(moment)
    }
}

impl<T: Traffic> Load<T> {
    /// Connects; call it in the clients' namespace.
    pub fn connect(address: SocketAddr, conns: u32, traffic: T, pace: Pace) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::empty()).context("no epoll")?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::empty());
        let timer = timer.context("no timer")?;
        // By edge, so that it needs no reading.
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER);
        epoll.add(&timer, event).context("epoll refused a timer")?;
        let now = Instant::now();
        let mut load = Self {
            epoll,
            timer,
            traffic,
            pace,
            conns: Vec::new(),
            idle: (0..conns as usize).collect(),
            begun: 0,
            clock: Duration::ZERO,
            exhausted: false,
            buffer: vec![0; READ_BYTES].into(),
        };
        for index in 0..conns {
            let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
                .with_context(|| format!("connection {index} to {address} failed"))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, index.into());
            load.epoll.add(&stream, event).context("epoll refused")?;
            load.conns.push(Conn {
                stream,
                asked: T::Asked::default(),
                request: Vec::new(),
                sent: 0,
                reply: Vec::new(),
                due: now,
                begun: now,
                idle_since: now,
            });
        }
        Ok(load)
    }

    /// Asks for `time`, or as long as there is something to ask, then waits for the last replies; an
    /// error if a reply is wrong.
    pub fn drive(&mut self, time: Duration, interrupt: &Interrupt) -> Result<Tally> {
        let mut tally = Tally::new(T::OPERATIONS)?;
        let start = Instant::now();
        let span = Span {
            start,
            end: start + time,
            clock: self.clock,
        };
        for conn in &mut self.conns {
            conn.idle_since = start;
        }
        let mut looked = start;
        let mut events = [EpollEvent::empty(); EVENTS];
        loop {
            let more = self.begin_due(&span, &mut tally)?;
            if !more && self.idle.len() == self.conns.len() {
                break;
            }
            interrupt.check()?;
            let stall_ms = EpollTimeout::try_from(STALL).context("a short time")?;
            let ready = match self.epoll.wait(&mut events, stall_ms) {
                Err(Errno::EINTR) => continue,
                ready => ready.context("epoll failed")?,
            };
            let mut heard = false;
            for event in events[..ready].iter().filter(|event| event.data() != TIMER) {
                heard = true;
                self.attend(event.data() as usize, event.events(), &mut tally)?;
            }
            if !heard && looked.elapsed() >= STALL {
                self.check_stalled()?;
                looked = Instant::now();
            }
        }
        self.clock += time;
        Ok(tally)
    }

    /// Whether all that there was has been asked.
    pub fn exhausted(&self) -> bool {
        self.exhausted
    }

    /// Operations that were due and not begun.
    pub fn unsent(&self) -> u64 {
        if self.exhausted {
            return 0;
        }
        self.pace.due_before(self.clock, self.begun)
    }

    /// Leaves out what was due and not begun.
    pub fn skip_unsent(&mut self) {
        self.begun += self.unsent();
    }

    /// What it asks.
    pub fn traffic(&self) -> &T {
        &self.traffic
    }

    /// Begins what is due; whether there will be more to begin.
    fn begin_due(&mut self, span: &Span, tally: &mut Tally) -> Result<bool> {
        while let Some(&index) = self.idle.front() {
            let now = Instant::now();
            if self.exhausted || now >= span.end {
                return Ok(false);
            }
            let due = match self.pace.due(self.begun) {
                Due::Never => {
                    self.exhausted = true;
                    return Ok(false);
                }
                Due::Now => now,
                Due::At(time) => {
                    let due = span.at(time);
                    if due > now {
                        self.wake_in(due.min(span.end) - now)?;
                        return Ok(true);
                    }
                    tally.late(due, self.conns[index].idle_since, now)?;
                    due
                }
            };
            let conn = &mut self.conns[index];
            if !self.traffic.ask(&mut conn.asked, &mut conn.request)? {
                self.exhausted = true;
                return Ok(false);
            }
            (conn.due, conn.begun, conn.sent) = (due, now, 0);
            self.begun += 1;
            self.idle.pop_front();
            self.send(index)?;
        }
        Ok(true)
    }

    fn wake_in(&self, time: Duration) -> Result<()> {
        let time = Expiration::OneShot(time.max(Duration::from_nanos(1)).into());
        let set = self.timer.set(time, TimerSetTimeFlags::empty());
        set.context("cannot set a timer")
    }

    /// Sends what is left of a request; of a large one the rest when the socket takes it.
    fn send(&mut self, index: usize) -> Result<()> {
        let conn = &mut self.conns[index];
        let mut whole = true;
        while whole && conn.sent < conn.request.len() {
            match conn.stream.write(&conn.request[conn.sent..]) {
                Ok(count) => conn.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => whole = false,
                Err(error) => return Err(error).with_context(|| broken(index)),
            }
        }
        if whole {
            return Ok(());
        }
        self.listen(index, EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT)
    }

    fn listen(&self, index: usize, events: EpollFlags) -> Result<()> {
        let mut event = EpollEvent::new(events, index as u64);
        let changed = self.epoll.modify(&self.conns[index].stream, &mut event);
        changed.context("epoll refused")
    }

    fn attend(&mut self, index: usize, events: EpollFlags, tally: &mut Tally) -> Result<()> {
        if events.contains(EpollFlags::EPOLLOUT) {
            self.listen(index, EpollFlags::EPOLLIN)?;
            self.send(index)?;
        }
        if events == EpollFlags::EPOLLOUT {
            return Ok(());
        }
        let conn = &mut self.conns[index];
        let count = match conn.stream.read(&mut self.buffer) {
            Ok(0) => bail!("the server closed connection {index}"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            count => count.with_context(|| broken(index))?,
        };
        let whole = conn.reply.is_empty();
        if !whole {
            conn.reply.extend_from_slice(&self.buffer[..count]);
        }
        let reply = if whole {
            &self.buffer[..count]
        } else {
            &conn.reply
        };
        let heard = self
            .traffic
            .hear(&mut conn.asked, reply, &mut conn.request)
            .with_context(|| format!("a wrong reply on connection {index}"))?;
        match heard {
            Heard::Part if whole => conn.reply.extend_from_slice(&self.buffer[..count]),
            Heard::Part => {}
            Heard::Next => {
                conn.reply.clear();
                conn.sent = 0;
                self.send(index)?;
            }
            Heard::Done(operation) => {
                conn.reply.clear();
                let now = Instant::now();
                tally.done(operation, now - conn.due)?;
                conn.idle_since = now;
                self.idle.push_back(index);
            }
        }
        Ok(())
    }

    /// An error if a request has waited too long.
    fn check_stalled(&self) -> Result<()> {
        let waits = |conn: &&Conn<_>| conn.begun > conn.idle_since && conn.begun.elapsed() >= STALL;
        let stalled = self.conns.iter().filter(waits).count();
        ensure!(
            stalled == 0,
            "{stalled} connections got no reply for {} s",
            STALL.as_secs()
        );
        Ok(())
    }
}

fn broken(index: usize) -> String {
    format!("connection {index} broke")
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
