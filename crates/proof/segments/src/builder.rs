// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How exchanges are written: a builder that keeps the numbers of both streams.

use std::fmt;

pub use erb_wire::resp::{bulk_text as bulk, said as command};

use crate::exchange::{
    CWR, ECE, Exchange, FIN, Fault, Offer, RST, SYN, Segment, Silence, Stamp, Step,
};
use crate::play::brief;

/// How long nothing must come where nothing may: longer than a retransmission timer's least.
pub const QUIET_MS: u64 = 350;

/// A silence that is only to give what comes at once the time to come.
const SHORT_MS: u64 = 50;
/// Linux challenges a connection's sender once in half a second.
pub const CHALLENGE_MS: u64 = 600;

/// Length as a relative number.
#[must_use]
pub fn length(bytes: impl AsRef<[u8]>) -> i64 {
    bytes.as_ref().len() as i64
}

impl Segment {
    /// Bytes at a place, with an acknowledgement.
    #[must_use]
    pub fn new(seq: i64, ack: i64, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            seq,
            ack: Some(ack),
            flags: 0,
            window: None,
            stamp: Stamp::Now,
            sack: Vec::new(),
            ecn: 0,
            fault: Fault::None,
            payload: payload.into(),
            counts: true,
        }
    }

    /// Nothing but an acknowledgement.
    #[must_use]
    pub fn ack(seq: i64, ack: i64) -> Self {
        Self::new(seq, ack, [])
    }

    /// With flags.
    #[must_use]
    pub fn flags(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    /// With another window field.
    #[must_use]
    pub fn window(mut self, field: u16) -> Self {
        self.window = Some(field);
        self
    }

    /// With a SACK block.
    #[must_use]
    pub fn sack(mut self, from: i64, to: i64) -> Self {
        self.sack.push((from, to));
        self
    }

    /// With a timestamp older than the last ones.
    #[must_use]
    pub fn older(mut self, age: u32) -> Self {
        self.stamp = Stamp::Older(age);
        self
    }

    /// Without timestamp.
    #[must_use]
    pub fn unstamped(mut self) -> Self {
        self.stamp = Stamp::Absent;
        self
    }

    /// With a fault. No receiver may take it for more than noise.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.fault = fault;
        self.stray()
    }

    /// With ECN bits in the IP header.
    #[must_use]
    pub fn ecn(mut self, bits: u8) -> Self {
        self.ecn = bits;
        self
    }

    /// Without the ACK flag.
    #[must_use]
    pub fn without_ack(mut self) -> Self {
        self.ack = None;
        self.stray()
    }

    /// The server must not take it.
    #[must_use]
    pub fn stray(mut self) -> Self {
        self.counts = false;
        self
    }

    /// The number behind it.
    #[must_use]
    pub fn end(&self) -> i64 {
        let flags = i64::from(self.flags & SYN != 0) + i64::from(self.flags & FIN != 0);
        self.seq + length(&self.payload) + flags
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.seq, self.end())?;
        match self.ack {
            Some(ack) => write!(f, " ack {ack}")?,
            None => write!(f, " no ack")?,
        }
        for (flag, name) in [
            (SYN, "SYN"),
            (FIN, "FIN"),
            (RST, "RST"),
            (ECE, "ECE"),
            (CWR, "CWR"),
        ] {
            if self.flags & flag != 0 {
                write!(f, " {name}")?;
            }
        }
        if let Some(window) = self.window {
            write!(f, " window {window}")?;
        }
        for (from, to) in &self.sack {
            write!(f, " sack {from}..{to}")?;
        }
        match self.stamp {
            Stamp::Now => {}
            Stamp::Older(age) => write!(f, " stamp {age} older")?,
            Stamp::Absent => write!(f, " no stamp")?,
        }
        if self.ecn != 0 {
            write!(f, " ecn {}", self.ecn)?;
        }
        if self.fault != Fault::None {
            write!(f, " wrong {:?}", self.fault)?;
        }
        if !self.payload.is_empty() {
            write!(f, " {}", brief(&self.payload))?;
        }
        Ok(())
    }
}

/// An exchange in the making.
#[derive(Debug)]
pub struct Builder {
    exchange: Exchange,
    /// The client's next number.
    pub seq: i64,
    /// End of the server's stream as far as asked for.
    pub got: i64,
}

impl Builder {
    /// Begins an exchange.
    #[must_use]
    pub fn new(name: &'static str, rule: &'static str) -> Self {
        Self {
            exchange: Exchange {
                name,
                rule,
                steps: Vec::new(),
            },
            seq: 0,
            got: 0,
        }
    }

    /// Begins an exchange on a connection that may be answered, with a hot key `hot`.
    #[must_use]
    pub fn fast(name: &'static str, rule: &'static str) -> Self {
        let mut b = Self::new(name, rule);
        b.hot("hot", "value");
        b.connect(Offer::USUAL);
        b.admit();
        b
    }

    /// Adds a step.
    pub fn step(&mut self, step: Step) {
        self.exchange.steps.push(step);
    }

    /// Gives a key a value, and makes it one that ERB answers.
    pub fn hot(&mut self, key: &str, value: &str) {
        self.store(key, value);
        self.step(Step::Heat(key.to_owned()));
    }

    /// Gives a key a value.
    pub fn store(&mut self, key: &str, value: &str) {
        self.step(Step::Ask(
            format!("SET {key} {value}"),
            "+OK\r\n".to_owned(),
        ));
    }

    /// Asks on the ordinary connection.
    pub fn ask(&mut self, words: &str, reply: &str) {
        self.step(Step::Ask(words.to_owned(), reply.to_owned()));
    }

    /// The handshake; numbers begin anew.
    pub fn connect(&mut self, offer: Offer) {
        self.seq = 0;
        self.got = 0;
        self.step(Step::Connect(offer));
    }

    /// The first command, which is Redis's; then the connection may be answered.
    pub fn admit(&mut self) {
        self.call("PING", "+PONG\r\n");
    }

    /// The client's next bytes.
    #[must_use]
    pub fn next(&self, payload: impl Into<Vec<u8>>) -> Segment {
        Segment::new(self.seq, self.got, payload)
    }

    /// An acknowledgement of all bytes asked for.
    #[must_use]
    pub fn bare(&self) -> Segment {
        Segment::ack(self.seq, self.got)
    }

    /// Sends a segment.
    pub fn send(&mut self, segment: Segment) {
        self.send_all(vec![segment]);
    }

    /// Sends segments at once.
    pub fn send_all(&mut self, segments: Vec<Segment>) {
        for segment in segments.iter().filter(|segment| segment.counts) {
            self.seq = self.seq.max(segment.end());
        }
        self.step(Step::Send(segments));
    }

    /// The stream goes on with these bytes.
    pub fn reply(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.step(Step::Reply(self.got, bytes.to_vec()));
        self.got += length(bytes);
    }

    /// Acknowledges all bytes asked for.
    pub fn ack(&mut self) {
        self.send(self.bare());
    }

    /// A command, its reply, and its acknowledgement.
    pub fn call(&mut self, words: &str, reply: &str) {
        self.ask_raw(words, reply);
        self.ack();
    }

    /// A command and its reply, not acknowledged.
    pub fn ask_raw(&mut self, words: &str, reply: &str) {
        self.send(self.next(command(words)));
        self.reply(reply);
    }

    /// So many ms pass.
    pub fn pause(&mut self, ms: u64) {
        self.step(Step::Pause(ms));
    }

    /// Bytes from here on come again.
    pub fn again(&mut self, at: i64, bytes: impl AsRef<[u8]>) {
        self.step(Step::Again(at, bytes.as_ref().to_vec()));
    }

    /// A bare ACK with the present numbers of both streams.
    pub fn expect_bare(&mut self) {
        self.step(Step::Bare(self.got, self.seq));
    }

    /// No stream byte that was not asked for.
    pub fn nothing_new(&mut self) {
        self.step(Step::Silence(QUIET_MS, Silence::NewBytes));
    }

    /// No segment at all.
    pub fn nothing(&mut self) {
        self.step(Step::Silence(QUIET_MS, Silence::Everything));
    }

    /// A counter has moved by just so much.
    pub fn counted(&mut self, name: &'static str, times: u64) {
        self.step(Step::Count(name, times, times));
    }

    /// A counter has moved by so much or more.
    pub fn counted_at_least(&mut self, name: &'static str, times: u64) {
        self.step(Step::Count(name, times, u64::MAX));
    }

    /// The connection still works, slow and fast; then it ends.
    #[must_use]
    pub fn still_works(mut self) -> Exchange {
        self.nothing_new();
        self.call("SET own 1", "+OK\r\n");
        self.call("INCR own", ":2\r\n");
        self.call("GET hot", &bulk("value"));
        self.done()
    }

    /// Ends the connection by an exact RST; nothing of it is left.
    #[must_use]
    pub fn done(mut self) -> Exchange {
        self.send(self.bare().flags(RST));
        self.step(Step::Silence(SHORT_MS, Silence::Everything));
        self.end()
    }

    /// The exchange as it is.
    #[must_use]
    pub fn end(self) -> Exchange {
        self.exchange
    }
}
