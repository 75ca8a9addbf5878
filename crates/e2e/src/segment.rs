// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TCP client made of raw segments, for what no kernel would send.
//!
//! It uses an address that the client's kernel does not have, so nobody else answers for it. It
//! notes every byte received by its sequence number: the same number must always carry the same
//! byte, whoever sent it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use erb_check::resp;
use erb_lab::packet::{Batch, PacketSocket};
use erb_lab::{End, topology};
use etherparse::{PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};

use crate::lab::TestLab;

/// Address of the hand-made client.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 77);
/// Window scale that it offers.
const WINDOW_SCALE: u8 = 4;
/// Window field of its segments: 64 KiB less what scaling loses.
const WINDOW: u16 = 4_000;
/// Longest wait for a segment that must come.
const WAIT: Duration = Duration::from_secs(3);
/// Between two looks at the socket.
const LOOK: Duration = Duration::from_micros(200);
/// Where its sequence numbers begin: they wrap soon.
const FIRST_SEQ: u32 = 0xffff_ff00;

/// What a segment to be sent looks like; the rest is the client's state.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// Sequence number, the next one if `None`.
    pub seq: Option<u32>,
    /// Acknowledgement, all received bytes in order if `None`.
    pub ack: Option<u32>,
    /// Window field.
    pub window: Option<u16>,
    /// SYN, FIN, RST flags.
    pub syn: bool,
    /// FIN.
    pub fin: bool,
    /// RST.
    pub rst: bool,
    /// Whether the TCP checksum is spoiled.
    pub bad_checksum: bool,
    /// Selective acknowledgement.
    pub sack: Option<(u32, u32)>,
    /// How much older than now the timestamp is, ms.
    pub age_ms: u32,
}

/// A received segment.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement.
    pub ack: u32,
    /// RST flag.
    pub rst: bool,
    /// FIN flag.
    pub fin: bool,
    /// SYN flag.
    pub syn: bool,
    /// Bytes.
    pub payload: Vec<u8>,
    /// Sender's timestamp.
    ts: u32,
}

/// One connection.
pub struct RawClient {
    socket: PacketSocket,
    batch: Batch,
    port: u16,
    server_port: u16,
    began: Instant,
    peer_ts: u32,
    /// Next own byte.
    pub seq: u32,
    /// Next byte expected from the server.
    pub next: u32,
    /// Received bytes by number of the stream, from the first byte behind SYN.
    seen: BTreeMap<u32, u8>,
    first: u32,
    /// Stream bytes that [`RawClient::read`] has given out.
    taken: u32,
    /// Segments received, in order.
    pub log: Vec<Segment>,
}

impl RawClient {
    /// Connects from `port` and completes the handshake.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn connect(lab: &TestLab, port: u16) -> Self {
        let state = lab.lab().state();
        let address = ADDRESS.to_string();
        let words = [
            "ip",
            "neigh",
            "replace",
            &address,
            "lladdr",
            &state.client.mac,
            "dev",
            &state.server.device,
        ];
        lab.exec(End::Server, &words);
        let socket = lab.inside(End::Client, || PacketSocket::open(&state.client.device));
        let mut client = Self {
            socket: socket.expect("packet socket"),
            batch: Batch::new(),
            port,
            server_port: state.redis_port,
            began: Instant::now(),
            peer_ts: 0,
            seq: FIRST_SEQ,
            next: 0,
            seen: BTreeMap::new(),
            first: 0,
            taken: 0,
            log: Vec::new(),
        };
        client.send_shaped(
            &Shape {
                syn: true,
                ..Shape::default()
            },
            b"",
        );
        let answer = client.await_segment(|segment| segment.syn);
        client.first = answer.seq.wrapping_add(1);
        client.next = client.first;
        client.seq = client.seq.wrapping_add(1);
        client.ack_now();
        client
    }

    fn now_ms(&self, age_ms: u32) -> u32 {
        // Far from zero, so that an old one is not before the beginning.
        let ms = u32::try_from(self.began.elapsed().as_millis()).expect("a short test");
        1_000_000 + ms - age_ms
    }

    fn options(&self, shape: &Shape) -> Vec<TcpOptionElement> {
        // The layout of all common stacks.
        let nop = TcpOptionElement::Noop;
        let stamp = TcpOptionElement::Timestamp(self.now_ms(shape.age_ms), self.peer_ts);
        let mut options = vec![nop.clone(), nop.clone(), stamp];
        if shape.syn && shape.seq.is_none() {
            options.push(TcpOptionElement::MaximumSegmentSize(1460));
            options.push(TcpOptionElement::WindowScale(WINDOW_SCALE));
            options.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
        }
        if let Some(block) = shape.sack {
            options.extend([nop.clone(), nop]);
            options.push(TcpOptionElement::SelectiveAcknowledgement(block, [None; 3]));
        }
        options
    }

    /// Sends one segment and changes nothing in the client's state.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn send_shaped(&self, shape: &Shape, payload: &[u8]) {
        let window = shape.window.unwrap_or(WINDOW);
        let mut builder = PacketBuilder::ethernet2(topology::CLIENT_MAC, topology::SERVER_MAC)
            .ipv4(ADDRESS.octets(), topology::SERVER_IPV4.octets(), 64)
            .tcp(
                self.port,
                self.server_port,
                shape.seq.unwrap_or(self.seq),
                window,
            )
            .options(&self.options(shape))
            .expect("options fit");
        let opening = shape.syn && shape.seq.is_none();
        if !opening {
            builder = builder.ack(shape.ack.unwrap_or(self.next));
        }
        if !payload.is_empty() {
            builder = builder.psh();
        }
        builder = if shape.syn { builder.syn() } else { builder };
        builder = if shape.fin { builder.fin() } else { builder };
        builder = if shape.rst { builder.rst() } else { builder };
        let mut frame = Vec::with_capacity(builder.size(payload.len()));
        builder.write(&mut frame, payload).expect("a frame");
        if shape.bad_checksum {
            // Ethernet 14, IPv4 20, checksum at 16 of the TCP header.
            frame[14 + 20 + 16] ^= 0x55;
        }
        let unsent = self
            .socket
            .send(&[&frame], 100, || std::thread::sleep(LOOK));
        assert_eq!(unsent, 0, "the device takes nothing");
    }

    /// Sends the next bytes.
    pub fn send(&mut self, payload: &[u8]) {
        self.send_shaped(&Shape::default(), payload);
        self.skip(payload.len());
    }

    /// Counts `bytes` as sent.
    pub fn skip(&mut self, bytes: usize) {
        self.seq = self
            .seq
            .wrapping_add(u32::try_from(bytes).expect("few bytes"));
    }

    /// Acknowledges all bytes received in order.
    pub fn ack_now(&self) {
        self.send_shaped(&Shape::default(), b"");
    }

    /// Takes in what arrived; true if there was something.
    ///
    /// # Panics
    /// If a byte differs from what the same sequence number carried before.
    pub fn poll(&mut self) -> bool {
        let count = self.socket.receive(&mut self.batch).expect("receive");
        let frames: Vec<Vec<u8>> = self.batch.frames().map(<[u8]>::to_vec).collect();
        for frame in frames.iter().take(count) {
            if let Some(segment) = self.parse(frame) {
                self.take_in(segment);
            }
        }
        count > 0
    }

    fn parse(&self, frame: &[u8]) -> Option<Segment> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else {
            return None;
        };
        if tcp.destination_port() != self.port {
            return None;
        }
        let etherparse::NetSlice::Ipv4(ip) = packet.net? else {
            return None;
        };
        let sum = tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination());
        assert_eq!(
            sum.ok(),
            Some(tcp.checksum()),
            "a segment with a wrong checksum"
        );
        let ts = tcp
            .options_iterator()
            .flatten()
            .find_map(|option| match option {
                TcpOptionElement::Timestamp(ts, _) => Some(ts),
                _ => None,
            });
        Some(Segment {
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            rst: tcp.rst(),
            fin: tcp.fin(),
            syn: tcp.syn(),
            payload: tcp.payload().to_vec(),
            ts: ts.unwrap_or(0),
        })
    }

    fn take_in(&mut self, segment: Segment) {
        if segment.ts.wrapping_sub(self.peer_ts) < 1 << 31 {
            self.peer_ts = segment.ts;
        }
        for (number, byte) in (0u32..).zip(&segment.payload) {
            let at = segment.seq.wrapping_add(number).wrapping_sub(self.first);
            let before = *self.seen.entry(at).or_insert(*byte);
            assert_eq!(
                before, *byte,
                "stream byte {at} differs from what was sent before: {segment:?}"
            );
        }
        while self.seen.contains_key(&self.next.wrapping_sub(self.first)) {
            self.next = self.next.wrapping_add(1);
        }
        self.log.push(segment);
    }

    /// Forgets the bytes from `from` on, as if they had been lost on the way.
    pub fn lose_from(&mut self, from: u32) {
        self.seen.split_off(&from.wrapping_sub(self.first));
        self.next = from;
    }

    /// Waits for a segment that arrives from now on.
    ///
    /// # Panics
    /// If none comes.
    pub fn await_segment(&mut self, wanted: impl Fn(&Segment) -> bool) -> Segment {
        let from = self.log.len();
        let end = Instant::now() + WAIT;
        loop {
            self.poll();
            if let Some(found) = self.log[from..].iter().find(|segment| wanted(segment)) {
                return found.clone();
            }
            assert!(
                Instant::now() < end,
                "no such segment; log: {:?}",
                &self.log[from..]
            );
            std::thread::sleep(LOOK);
        }
    }

    /// The next `length` bytes of the stream, without acknowledging them.
    ///
    /// # Panics
    /// If they do not come.
    pub fn read(&mut self, length: usize) -> String {
        let end = Instant::now() + WAIT;
        let upto = self.taken + u32::try_from(length).expect("few bytes");
        while self.next.wrapping_sub(self.first) < upto {
            self.poll();
            let (have, want) = (self.next.wrapping_sub(self.first), upto);
            assert!(Instant::now() < end, "{have} of {want} stream bytes came");
            std::thread::sleep(LOOK);
        }
        let bytes: Vec<u8> = (self.taken..upto).map(|at| self.seen[&at]).collect();
        self.taken = upto;
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a command, words separated by blanks, and its reply must be this, acknowledged.
    ///
    /// # Panics
    /// If it is another.
    pub fn expect(&mut self, words: &str, reply: &str) {
        self.send(&command(words));
        assert_eq!(self.read(reply.len()), reply, "reply to {words:?}");
        self.ack_now();
    }

    /// Nothing more than `length` bytes was sent to this client, counted after `wait`.
    ///
    /// # Panics
    /// If more bytes came than were read.
    pub fn assert_no_more(&mut self, wait: Duration) {
        let end = Instant::now() + wait;
        while Instant::now() < end {
            self.poll();
            std::thread::sleep(LOOK);
        }
        let extra = self.next.wrapping_sub(self.first) - self.taken;
        assert_eq!(
            extra,
            0,
            "bytes that nobody asked for: {:?}",
            self.log.last()
        );
    }
}

/// A command as bytes, words separated by blanks.
#[must_use]
pub fn command(words: &str) -> Vec<u8> {
    resp::command(&words.split_whitespace().collect::<Vec<_>>())
}
