// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection of a client's application: what it has sent, what it waits for, how it ends.

use std::collections::VecDeque;
use std::net::SocketAddr;

use erb_sim_tcp::SockId;
use fastrand::Rng;

use crate::ConnId;
use crate::client::resp::{self, Found};
use crate::client::workload::{Operation, Workload, mix, pause};
use crate::fault::Fault;
use crate::inner::{Event, Inner};
use crate::profile::ClientRates;
use crate::story::Place;
use crate::time::{MS, Ns};
use crate::violation::Violation;

/// How a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// After the last reply, in order.
    Close,
    /// The sending direction first, with replies outstanding.
    HalfClose,
    /// By a reset, at any time.
    Reset,
    /// Without a word.
    Vanish,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// SYN sent.
    Connecting,
    /// At work.
    Open,
    /// Sends no more, waits for the end of the stream.
    Ending,
    /// Over.
    Over,
}

/// What the machine is to do with the socket next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Nothing but sending what is in the outbox.
    Send,
    /// Close the sending direction after that.
    ShutDown,
    /// Close.
    Close,
    /// Reset.
    Abort,
    /// Forget the socket, without a word.
    Vanish,
}

/// Who says what the connection sends, and whose replies it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// The workload; Redis answers.
    Workload,
    /// A scenario; Redis answers.
    Scenario,
    /// The workload; another server echoes it.
    Echo,
}

/// A connection.
pub struct Session {
    /// Its number.
    pub id: ConnId,
    /// Its socket.
    pub sock: SockId,
    /// Its own address.
    pub local: SocketAddr,
    /// Where it is in its life.
    pub stage: Stage,
    /// What was read, for a scenario.
    pub read: Vec<u8>,
    /// Bytes to be handed to TCP.
    pub outbox: Vec<u8>,
    /// Does not read before.
    pub deaf_until: Ns,
    /// When the application wants to be woken; 0 = not at all.
    pub wake_at: Ns,
    pieces: VecDeque<(Ns, Vec<u8>)>,
    inbox: Vec<u8>,
    owed: u32,
    next_operation: u32,
    operations: u32,
    next_at: Ns,
    ending: Ending,
    manual: bool,
    subscribed: bool,
    no_more: bool,
    alone: bool,
    /// What another server is still to echo.
    echo: Option<VecDeque<u8>>,
    random: Rng,
}

impl Session {
    /// A connection that begins now.
    #[must_use]
    pub fn new(inner: &Inner, id: ConnId, sock: SockId, local: SocketAddr, drive: Drive) -> Self {
        let manual = drive == Drive::Scenario;
        let rates = &inner.plan.profile.client;
        let mut random = Rng::with_seed(mix(inner.plan.seed, &[3, u64::from(id)]));
        let mut operations = random.u32(1..=inner.plan.profile.operations.max(1));
        let ending = draw_ending(inner, rates, &mut random);
        operations = operations.min(inner.plan.operations);
        if manual {
            operations = u32::MAX;
        }
        Self {
            id,
            sock,
            local,
            stage: Stage::Connecting,
            read: Vec::new(),
            outbox: Vec::new(),
            deaf_until: 0,
            wake_at: 0,
            pieces: VecDeque::new(),
            inbox: Vec::new(),
            owed: 0,
            next_operation: 0,
            operations,
            next_at: if manual { Ns::MAX } else { 0 },
            ending,
            manual,
            subscribed: false,
            no_more: false,
            alone: false,
            echo: (drive == Drive::Echo).then(VecDeque::new),
            random,
        }
    }

    /// Replies that are outstanding.
    #[must_use]
    pub const fn owed(&self) -> u32 {
        self.owed
    }

    /// Bytes that another server is still to echo.
    #[must_use]
    pub fn unechoed(&self) -> usize {
        self.echo.as_ref().map_or(0, VecDeque::len)
    }

    /// The application goes on: the next operation, the next piece, the end.
    pub fn advance(&mut self, inner: &Inner, workload: &Workload) -> Deed {
        let now = inner.now();
        while self.pieces.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, piece)) = self.pieces.pop_front() {
                self.outbox.extend_from_slice(&piece);
            }
        }
        if self.stage != Stage::Open || !self.pieces.is_empty() || now < self.next_at {
            self.plan_wake(inner);
            return Deed::Send;
        }
        if self.no_more {
            return Deed::Send;
        }
        if self.next_operation >= self.operations || now >= end_of_work(inner) {
            return self.end(inner);
        }
        // Some clients send on without waiting.
        let waits = self.owed > 0 && (self.alone || self.owed > 40 || self.random.u8(0..100) >= 8);
        if waits {
            return Deed::Send;
        }
        let operation = workload.operation(self.id, self.next_operation);
        self.next_operation += 1;
        self.begin(inner, &operation);
        let think = if self.subscribed {
            100 * MS
        } else {
            inner.plan.profile.client.think
        };
        self.next_at = now + pause(&mut self.random, think);
        self.plan_wake(inner);
        Deed::Send
    }

    /// Sends an operation.
    pub fn begin(&mut self, inner: &Inner, operation: &Operation) {
        if let Some(echo) = &mut self.echo {
            let said = operation.commands.iter().flat_map(|c| c.bytes.clone());
            let bytes: Vec<u8> = said.collect();
            echo.extend(&bytes);
            self.owed += 1;
            inner.coverage.borrow_mut().fault(Fault::Neighbour);
            self.cut(inner, bytes);
            return;
        }
        let mut bytes = Vec::new();
        for command in &operation.commands {
            inner.coverage.borrow_mut().count("command", command.name);
            bytes.extend_from_slice(&command.bytes);
            self.owed += command.replies;
        }
        if operation.subscribes {
            // Says no more: messages and replies must not mix. Listens for a while.
            self.subscribed = true;
            self.operations = self.next_operation;
        }
        self.no_more |= operation.ends;
        self.alone = operation.alone;
        if operation.beyond {
            inner.coverage.borrow_mut().fault(Fault::Beyond);
        }
        if operation.garbage {
            inner.coverage.borrow_mut().fault(Fault::Garbage);
        }
        inner.checks.borrow_mut().sent(inner.now(), self.id, &bytes);
        inner.tell_with(Place::Client(0), Some(self.id), || {
            format!(
                "asks {:?}",
                String::from_utf8_lossy(&bytes[..bytes.len().min(120)])
            )
        });
        self.cut(inner, bytes);
    }

    /// Puts bytes into the outbox, at times in pieces with pauses between.
    fn cut(&mut self, inner: &Inner, bytes: Vec<u8>) {
        let torn = inner.plan.profile.client.torn;
        if bytes.len() < 2 || !inner.happens(Fault::Torn, torn) {
            self.outbox.extend_from_slice(&bytes);
            return;
        }
        let mut at = inner.now();
        let mut rest = bytes.as_slice();
        for _ in 0..self.random.u8(1..5) {
            if rest.len() < 2 {
                break;
            }
            let cut = self.random.usize(1..rest.len());
            self.pieces.push_back((at, rest[..cut].to_vec()));
            rest = &rest[cut..];
            at += self.random.u64(0..3 * MS);
        }
        self.pieces.push_back((at, rest.to_vec()));
        while self
            .pieces
            .front()
            .is_some_and(|(at, _)| *at <= inner.now())
        {
            if let Some((_, piece)) = self.pieces.pop_front() {
                self.outbox.extend_from_slice(&piece);
            }
        }
    }

    fn plan_wake(&mut self, inner: &Inner) {
        let mut at = self.next_at;
        if let Some((piece, _)) = self.pieces.front() {
            at = *piece;
        }
        if at != Ns::MAX && at > inner.now() && self.wake_at != at {
            self.wake_at = at;
            inner.at(at, Event::Wake(self.id));
        }
    }

    fn end(&mut self, inner: &Inner) -> Deed {
        let allowed = |fault| inner.faults.get().has(fault);
        match self.ending {
            Ending::Reset if allowed(Fault::Reset) => {
                inner.coverage.borrow_mut().fault(Fault::Reset);
                Deed::Abort
            }
            Ending::Vanish if allowed(Fault::Vanish) => {
                inner.coverage.borrow_mut().fault(Fault::Vanish);
                Deed::Vanish
            }
            Ending::HalfClose if allowed(Fault::HalfClose) => {
                inner.coverage.borrow_mut().fault(Fault::HalfClose);
                self.stage = Stage::Ending;
                Deed::ShutDown
            }
            _ if self.owed > 0 && !self.subscribed => Deed::Send,
            _ => Deed::Close,
        }
    }

    /// The application has read bytes.
    ///
    /// # Errors
    /// They are not what Redis alone would have sent.
    pub fn take(&mut self, inner: &Inner, bytes: &[u8]) -> Result<(), Violation> {
        inner.tell_with(Place::Client(0), Some(self.id), || {
            format!(
                "reads {:?}",
                String::from_utf8_lossy(&bytes[..bytes.len().min(120)])
            )
        });
        if let Some(echo) = &mut self.echo {
            let right = bytes.len() <= echo.len();
            if !right || bytes.iter().any(|byte| echo.pop_front() != Some(*byte)) {
                let text = format!(
                    "connection {}: not what another server has echoed: {:?}",
                    self.id,
                    String::from_utf8_lossy(&bytes[..bytes.len().min(120)])
                );
                return Err(Violation::new("neighbour", inner.now(), text));
            }
            if echo.is_empty() {
                self.owed = 0;
            }
            return Ok(());
        }
        inner
            .checks
            .borrow_mut()
            .received(inner.now(), self.id, bytes)?;
        self.inbox.extend_from_slice(bytes);
        if self.manual {
            self.read.extend_from_slice(bytes);
        }
        let mut at = 0;
        loop {
            match resp::next(&self.inbox[at..], self.subscribed) {
                Found::Reply(len) => {
                    at += len;
                    self.owed = self.owed.saturating_sub(1);
                }
                Found::Push(len) => at += len,
                Found::Incomplete | Found::Broken => break,
            }
            if at >= self.inbox.len() {
                break;
            }
        }
        self.inbox.drain(..at);
        Ok(())
    }
}

/// When applications begin nothing new.
fn end_of_work(inner: &Inner) -> Ns {
    crate::time::START_NS + inner.plan.duration
}

fn draw_ending(inner: &Inner, rates: &ClientRates, random: &mut Rng) -> Ending {
    let draw = random.u32(0..1_000_000);
    let faults = inner.plan.faults;
    let mut below = 0;
    for (fault, rate, ending) in [
        (Fault::Vanish, rates.vanish, Ending::Vanish),
        (Fault::Reset, rates.reset, Ending::Reset),
        (Fault::HalfClose, rates.half_close, Ending::HalfClose),
    ] {
        below += rate;
        if draw < below && faults.has(fault) {
            return ending;
        }
    }
    Ending::Close
}
