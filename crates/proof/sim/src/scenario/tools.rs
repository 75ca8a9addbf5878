// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversations of raw clients, and looks at the wire and at the server's kernel.

use std::cell::RefCell;
use std::rc::Rc;

use erb_sim_tcp::{Counters, Segment, flags};

use crate::client::resp::request;
use crate::link::{Fate, Filter};
use crate::scenario::{Raw, Scenario};
use crate::violation::Violation;

/// Segments that a filter saw.
pub type Log = Rc<RefCell<Vec<Segment>>>;

/// A filter that delivers everything and notes the segments.
#[must_use]
pub fn tap() -> (Filter, Log) {
    let log = Log::default();
    let notes = log.clone();
    let filter: Filter = Box::new(move |_, frame| {
        if let Ok(segment) = Segment::parse(&frame.bytes) {
            notes.borrow_mut().push(segment);
        }
        Fate::Deliver
    });
    (filter, log)
}

/// Length in sequence space.
#[must_use]
pub fn len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// A raw client in a conversation: what it sends next and what it has received.
pub struct Talk {
    /// The client.
    pub raw: Raw,
    /// Its next byte.
    pub seq: u32,
    /// The server's next byte.
    pub ack: u32,
}

impl Talk {
    /// A connection that the fast path answers: its first PING was Redis's.
    ///
    /// # Panics
    /// If it does not come to that.
    pub fn begin(scenario: &mut Scenario, raw: Raw) -> Self {
        let mut talk = Self::connected(scenario, raw);
        assert_eq!(talk.ask(scenario, &[b"PING"]), b"+PONG\r\n");
        let entry = scenario.entry_of(talk.raw.pair()).expect("an entry");
        assert_eq!(u32::from(entry.state), erb_abi::CONN_FAST);
        talk
    }

    /// A connection that has said nothing yet.
    pub fn connected(scenario: &mut Scenario, mut raw: Raw) -> Self {
        raw.connect(scenario);
        Self {
            raw,
            seq: 1,
            ack: 1,
        }
    }

    /// The usual one.
    pub fn fast(scenario: &mut Scenario) -> Self {
        let raw = scenario.raw();
        Self::begin(scenario, raw)
    }

    /// Sends a command; the bytes of its answer, none if there is none within a millisecond.
    pub fn ask(&mut self, scenario: &mut Scenario, argv: &[&[u8]]) -> Vec<u8> {
        self.say(scenario, &request(argv))
    }

    /// Sends bytes; the bytes that came back in order.
    pub fn say(&mut self, scenario: &mut Scenario, bytes: &[u8]) -> Vec<u8> {
        let answers = self.raw.data(scenario, self.seq, self.ack, bytes);
        self.seq += len(bytes);
        self.take(&answers)
    }

    /// Sends a command without looking at what comes back.
    pub fn send(&mut self, scenario: &mut Scenario, argv: &[&[u8]]) {
        let bytes = request(argv);
        let segment = self
            .raw
            .segment(self.seq, self.ack, flags::ACK | flags::PSH, &bytes);
        self.raw.post(scenario, &segment);
        self.seq += len(&bytes);
    }

    /// Takes segments as a receiver does; returns the new bytes.
    pub fn take(&mut self, segments: &[Segment]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for segment in segments {
            self.raw.see(segment);
            let (seq, _) = self.raw.relative(segment);
            let known = self.ack.wrapping_sub(seq) as usize;
            if known < segment.payload.len() {
                bytes.extend_from_slice(&segment.payload[known..]);
                self.ack = seq + len(&segment.payload);
            }
        }
        bytes
    }

    /// What came by itself since the last look, taken as a receiver does.
    pub fn hear(&mut self, scenario: &mut Scenario) -> Vec<u8> {
        let segments = self.raw.received(scenario);
        self.take(&segments)
    }

    /// Acknowledges what was received.
    pub fn ack(&self, scenario: &mut Scenario) -> Vec<Segment> {
        self.raw.ack(scenario, self.seq, self.ack)
    }
}

impl Scenario {
    /// Counters of the server's kernel.
    #[must_use]
    pub fn kernel(&self) -> Counters {
        *self.world.server.host.borrow().counters()
    }

    /// Whether everything between XDP and TCP is as the client sent it: segments that are stopped
    /// there, as the kernel would get them.
    #[must_use]
    pub fn stopped_up(&self) -> Vec<Segment> {
        let frames = self.world.server.stopped_in_stack();
        frames
            .iter()
            .filter_map(|frame| Segment::parse(frame).ok())
            .collect()
    }

    /// Packets answered by either tier.
    #[must_use]
    pub fn fast_packets(&self) -> u64 {
        self.stat(erb_abi::STAT_FAST_PACKET) + self.stat(erb_abi::STAT_FAST_PACKET_TC)
    }

    /// Whether a GET of a cached key on this connection is answered fast now.
    pub fn is_fast_now(&mut self, conn: crate::ConnId, key: &[u8]) -> bool {
        let fast = self.stat(erb_abi::STAT_FAST_GET);
        self.call(conn, &[b"GET", key]);
        self.stat(erb_abi::STAT_FAST_GET) > fast
    }

    /// Asks until a GET of the key is answered fast: the liveness of the fast path, whatever had closed
    /// it.
    ///
    /// # Panics
    /// With the violation `fast-again` if that takes longer than `limit`.
    pub fn is_fast_within(&mut self, conn: crate::ConnId, key: &[u8], limit: crate::time::Ns) {
        let began = self.now();
        while !self.is_fast_now(conn, key) {
            if self.now() > began + limit {
                let text = format!("the fast path is not back: {}", self.counters());
                panic!("{}", Violation::new("fast-again", self.now(), text));
            }
            self.run(5 * crate::time::MS);
        }
    }

    /// The value of a key, read by a connection of its own.
    pub fn read(&mut self, key: &[u8]) -> Vec<u8> {
        let conn = self.open_on(1, None);
        let value = self.call(conn, &[b"GET", key]);
        self.close(conn);
        value
    }

    /// All counters of the data path that moved, for a message.
    #[must_use]
    pub fn counters(&self) -> String {
        let path = self.world.server.path.borrow();
        let stats = path.as_ref().map(|path| path.stats()).unwrap_or_default();
        let named = erb_abi::REASONS.iter().zip(stats);
        let moved = named.filter(|(_, count)| *count > 0);
        moved
            .map(|(reason, count)| format!("{} {count} ", reason.name))
            .collect()
    }
}
