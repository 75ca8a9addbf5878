// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the fuzzers run on an input, and what must hold for every input. The corpus is replayed by the
//! tests; `fuzz/fuzz` builds and runs the coverage-guided fuzzers.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use erb_abi::{ControlPlane as _, FillEntry, ValueKind};
use erb_wire::Segment;
use erb_wire::layout::{self, Layout, payload};

use crate::frames::{CLIENT, Frame};
use crate::fuzz_meant::{ScanState, marks_of};
use crate::scene::{ACK, COOKIE, DEVICE, LISTENER};
use crate::{
    Card, Csum, Datapath, DatapathConfig, Kernel, Library, Packet, Sock, Tc, Xdp, tcp_state,
};

const CONNS_WALKED: usize = erb_abi::WALK_PLACES as usize;
const PORT: u16 = 40_000;
const CLIENT_START: u32 = u32::MAX - 100;
const SERVER_START: u32 = 5001;
const NOW: u64 = 10_000_000_000;
/// Longest stream of requests or replies, and piece of it.
const STREAM_BYTES: usize = 8192;
const SEGMENT_BYTES: usize = 1400;
const KEYS: [&[u8]; 4] = [b"a", b"key", b"longer-key-of-some-bytes", b""];

/// A fuzzer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The request scanner: where a stream is cut into segments must not matter.
    Request,
    /// The reply scanner: the same.
    Reply,
    /// Options of TCP: what goes up is the same packet translated, with right sums.
    Options,
    /// Both tiers of ingress, egress and the daemon's programs, in any order on any frame.
    Ingress,
}

impl Target {
    /// All, by the names of their folders of corpus.
    pub const ALL: [(&'static str, Self); 4] = [
        ("request", Self::Request),
        ("reply", Self::Reply),
        ("options", Self::Options),
        ("ingress", Self::Ingress),
    ];
}

/// Runs one input.
///
/// # Panics
/// If something does not hold.
pub fn run(target: Target, data: &[u8]) {
    match target {
        Target::Request => request(data),
        Target::Reply => reply(data),
        Target::Options => options(data),
        Target::Ingress => ingress(data),
    }
}

struct Server {
    now: Cell<u64>,
    sock: RefCell<Sock>,
    sent: RefCell<Vec<Packet>>,
}

impl Kernel for Server {
    fn now_ns(&self) -> u64 {
        self.now.get()
    }
    fn now_coarse_ns(&self) -> u64 {
        self.now.get()
    }
    fn lookup(&self, _ifindex: u32, _local: SocketAddr, remote: SocketAddr) -> Option<u64> {
        if remote.port() == 0 {
            return Some(LISTENER);
        }
        (remote == SocketAddr::from((CLIENT, PORT))).then_some(0)
    }
    fn view(&self, sock: u64) -> Option<Sock> {
        if sock == LISTENER {
            return Some(Sock {
                cookie: LISTENER,
                state: tcp_state::LISTEN,
                ..Sock::default()
            });
        }
        Some(*self.sock.borrow())
    }
    fn transmit(&self, _ifindex: u32, packet: Packet) {
        self.sent.borrow_mut().push(packet);
    }
    fn receive(&self, _packet: Packet) -> bool {
        true
    }
    fn random(&self) -> u32 {
        4
    }
}

/// One connection, nothing sent yet.
struct World {
    server: Rc<Server>,
    path: Datapath,
    seq: u32,
    ack: u32,
}

impl World {
    fn new() -> Self {
        let sock = Sock::established(COOKIE, CLIENT_START, SERVER_START);
        let server = Rc::new(Server {
            now: Cell::new(NOW),
            sock: RefCell::new(sock),
            sent: RefCell::default(),
        });
        let config = DatapathConfig {
            sets: 2,
            conns: 4,
            cpus: 1,
            ..DatapathConfig::default()
        };
        let path = Datapath::new(
            &Library::builtin(),
            config,
            Rc::clone(&server) as Rc<dyn Kernel>,
        );
        let set = path.set_listener(LISTENER, Some(erb_abi::LISTENER_REDIS));
        assert_eq!(set, Ok(true), "there is room");
        // SAFETY: no program runs.
        let control = unsafe { &mut *path.control() };
        control.serving = 1;
        control.fills = 1;
        control.write_through = 1;
        control.admit = 1;
        control.open = erb_abi::DOOR_OPEN;
        control.lease_until_ns = u64::MAX;
        Self {
            server,
            path,
            seq: CLIENT_START,
            ack: SERVER_START,
        }
    }

    fn frame<'a>(&self, options: &'a [u8], payload: &'a [u8]) -> Frame<'a> {
        Frame {
            port: PORT,
            up: true,
            seq: self.seq,
            ack: self.ack,
            flags: ACK,
            options,
            payload,
        }
    }

    /// The client sends, the kernel takes what goes up.
    fn send(&mut self, bytes: &[u8]) -> Xdp {
        let frame = self.frame(&[], bytes).bytes();
        let mut packet = Packet::received(&frame, Card::VETH, DEVICE);
        let verdict = self.path.run_xdp(&mut packet);
        self.seq = self.seq.wrapping_add(bytes.len() as u32);
        if verdict == Xdp::Pass {
            let mut sock = self.server.sock.borrow_mut();
            sock.rcv_nxt = sock.rcv_nxt.wrapping_add(bytes.len() as u32);
            sock.copied_seq = sock.rcv_nxt;
            sock.bytes_received += bytes.len() as u64;
            sock.data_segs_in += 1;
        }
        verdict
    }

    /// The kernel sends.
    fn reply(&mut self, bytes: &[u8]) -> Tc {
        let mut sock = self.server.sock.borrow_mut();
        let (seq, ack) = (sock.write_seq, sock.rcv_nxt);
        sock.write_seq = seq.wrapping_add(bytes.len() as u32);
        sock.snd_nxt = sock.write_seq;
        sock.snd_una = sock.write_seq;
        drop(sock);
        let frame = Frame {
            up: false,
            seq,
            ack,
            ..self.frame(&[], bytes)
        };
        self.ack = self.ack.wrapping_add(bytes.len() as u32);
        let mut packet = Packet::sent(&frame.bytes(), DEVICE, COOKIE);
        self.path.run_tc_egress(&mut packet)
    }

    /// Fast, with a key in the cache and one answered GET, so that both deltas are set.
    fn spliced() -> Self {
        let mut world = Self::new();
        assert_eq!(world.send(b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n"), Xdp::Pass);
        assert_eq!(world.reply(b"$-1\r\n"), Tc::Next);
        world.fill(b"key", b"value", 0);
        assert_eq!(world.send(b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"), Xdp::Tx);
        world.ack = world.ack.wrapping_add(11);
        world
    }

    fn fill(&self, key: &[u8], value: &[u8], expiry_ms: u64) {
        let tokens = self.path.fill_begin(&[key]).expect("it runs");
        if tokens[0].status != erb_abi::FILL_OK {
            return;
        }
        let entry = FillEntry {
            key,
            db: 0,
            kind: ValueKind::String,
            value: Some(value),
            expiry_ms,
            token: tokens[0],
        };
        self.path.fill_insert(&[entry]).expect("it runs");
    }

    fn conn(&self) -> Option<erb_abi::conn> {
        let mut found = None;
        self.path.each_conn(|_, conn| found = Some(*conn));
        found
    }

    /// Whether anything keeps the cache from answering: a mark or a share of the fence.
    fn holds(&self) -> bool {
        // SAFETY: no program runs.
        let control = unsafe { *self.path.control() };
        let fence = control.fence - (control.fence_answered - control.fence_settled);
        fence > 0 || (0..self.path.set_count()).any(|set| self.path.set(set).0.marks > 0)
    }

    fn sound(&self) {
        assert_eq!(self.path.stat(erb_abi::STAT_INVARIANT), 0);
        let Some(conn) = self.conn() else { return };
        let unacked = conn
            .edge
            .wrapping_add(conn.out_delta)
            .wrapping_sub(conn.replay_from);
        assert!(
            conn.out_delta == 0 || unacked <= erb_abi::REPLAY_BYTES,
            "T2: {unacked}"
        );
        let marks = conn.h.mark_head.wrapping_sub(conn.h.mark_tail);
        assert!(marks <= erb_abi::MARKS_IN_FLIGHT, "{marks} marks");
        assert!(u32::from(conn.state) < erb_abi::CONN_STATE_MAX);
    }
}

/// Cuts a stream at places that the seed chooses.
fn cut(stream: &[u8], seed: u64) -> Vec<&[u8]> {
    let mut random = fastrand::Rng::with_seed(seed);
    let longest = [1, 3, 20, 200][random.usize(..4)];
    let mut rest = stream;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(random.usize(1..=longest).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

fn request(data: &[u8]) {
    let Some((seed, stream)) = data.split_first() else {
        return;
    };
    let stream = &stream[..stream.len().min(STREAM_BYTES)];
    let scan = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut world = World::new();
        for piece in pieces {
            world.send(piece);
            world.sound();
        }
        world
    };
    let whole = scan(&mut stream.chunks(SEGMENT_BYTES));
    let pieces = scan(&mut cut(stream, u64::from(*seed)).into_iter());
    assert_eq!(whole.holds(), pieces.holds(), "what is held back");
    // SAFETY: no program runs.
    let gates = [&whole, &pieces].map(|world| unsafe { (*world.path.control()).gate_seen } > 0);
    assert_eq!(gates[0], gates[1], "gate");
    let (Some(a), Some(b)) = (whole.conn(), pieces.conn()) else {
        return;
    };
    assert_eq!(a.state, b.state);
    assert_eq!(a.requests, b.requests);
    let lost = [a, b].map(|conn| u32::from(conn.flags) & erb_abi::CONN_F_SCAN_LOST);
    assert_eq!(lost[0], lost[1]);
    if let [Some(a), Some(b)] = [a, b].map(|conn| marks_of(&conn)) {
        assert_eq!(a, b, "marks");
    }
    if lost[0] == 0 {
        assert_eq!(a.next, b.next);
        assert_eq!(a.in_at, b.in_at);
        assert_eq!(ScanState::of(&a.h), ScanState::of(&b.h));
    }
}

fn reply(data: &[u8]) {
    let Some((seed, stream)) = data.split_first() else {
        return;
    };
    let stream = &stream[..stream.len().min(STREAM_BYTES)];
    let scan = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut world = World::new();
        for _ in 0..8 {
            world.send(&b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n".repeat(64));
        }
        for piece in pieces {
            world.reply(piece);
            world.sound();
        }
        world.conn().expect("the connection is tracked")
    };
    let whole = scan(&mut stream.chunks(SEGMENT_BYTES));
    let pieces = scan(&mut cut(stream, u64::from(*seed)).into_iter());
    let uncountable =
        [whole, pieces].map(|conn| u32::from(conn.flags) & erb_abi::CONN_F_UNCOUNTABLE);
    assert_eq!(uncountable[0], uncountable[1]);
    if uncountable[0] == 0 {
        assert_eq!(whole.replies, pieces.replies);
        let fields = |scan: &erb_abi::scan_reply| (scan.state, scan.left, scan.skip, scan.push);
        assert_eq!(fields(&whole.h.out), fields(&pieces.h.out));
    }
}

fn options(data: &[u8]) {
    let [how, flags, rest @ ..] = data else {
        return;
    };
    let (options, payload_bytes) =
        rest.split_at(rest.len().min(usize::from(how & 15) * 4).min(40) / 4 * 4);
    let payload_bytes = &payload_bytes[..payload_bytes.len().min(100)];
    let mut world = World::spliced();
    if how & 16 != 0 {
        world.ack = world.ack.wrapping_sub(11);
    }
    let frame = Frame {
        flags: *flags,
        ..world.frame(options, payload_bytes)
    };
    let sent = frame.bytes();
    let mut packet = Packet::received(&sent, Card::VETH, DEVICE);
    let up = if how & 32 != 0 {
        world.path.run_tc_ingress(&mut packet) == Tc::Next
    } else {
        world.path.run_xdp(&mut packet) == Xdp::Pass
    };
    world.sound();
    if !up {
        return;
    }
    let read = Segment::parse(packet.bytes());
    assert!(read.is_ok(), "sums of what goes up: {read:?}");
    if payload(packet.bytes()).is_empty() {
        return; // perhaps consumed by the TC tier
    }
    assert_eq!(packet.len(), sent.len());
    assert_eq!(payload(packet.bytes()), payload_bytes);
}

/// Takes an input apart.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn signed(&mut self) -> u32 {
        i32::from(self.byte() as i8) as u32
    }

    fn bytes(&mut self, most: usize) -> &'a [u8] {
        let wanted = usize::from(self.byte()) | usize::from(self.byte()) << 8;
        let (taken, rest) = self.0.split_at(wanted.min(most).min(self.0.len()));
        self.0 = rest;
        taken
    }
}

fn ingress(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::spliced();
    for _ in 0..24 {
        if input.0.is_empty() {
            return;
        }
        step(&mut world, &mut input);
        world.sound();
        world.server.sent.borrow_mut().clear();
    }
}

fn step(world: &mut World, input: &mut Input<'_>) {
    let key = KEYS[usize::from(input.byte() & 3)];
    match input.byte() % 12 {
        0 => {
            let frame = input.bytes(2000).to_vec();
            let mut packet = Packet::received(&frame, Card::Physical, DEVICE);
            world.path.run_xdp(&mut packet);
        }
        1 => {
            let mut packet = Packet::received(input.bytes(2000), Card::VETH, DEVICE);
            packet.csum = Csum::None;
            world.path.run_tc_ingress(&mut packet);
        }
        2 => {
            let mut packet = Packet::sent(input.bytes(2000), DEVICE, COOKIE);
            world.path.run_tc_egress(&mut packet);
        }
        3..=5 => segment(world, input),
        6 => {
            world.send(input.bytes(SEGMENT_BYTES));
        }
        7 => {
            world.reply(input.bytes(SEGMENT_BYTES));
        }
        8 => world.fill(key, input.bytes(2000), u64::from(input.byte()) * 1000),
        9 => {
            let more = u64::from(input.byte()) * 10_000_000;
            world.server.now.set(world.server.now.get() + more);
            let places = world.path.places(erb_abi::PLACES_USED, 1, CONNS_WALKED);
            world.path.tick(&places).expect("it runs");
            world.path.sweep(&places).expect("it runs");
        }
        10 => {
            let mut sock = world.server.sock.borrow_mut();
            sock.state = 1 + input.byte() % 12;
            sock.snd_una = sock.snd_una.wrapping_add(input.signed());
            sock.rcv_wnd = u32::from(input.byte()) << 8;
            sock.mss_cache = 1 + u32::from(input.byte()) * 7;
        }
        _ => {
            let get = [b"*2\r\n$3\r\nGET\r\n$3\r\n", b"key\r\n".as_slice()].concat();
            if world.send(&get) == Xdp::Tx {
                world.ack = world.ack.wrapping_add(u32::from(input.byte()));
            }
        }
    }
}

/// A segment near what the connection expects, perhaps cut, merged or without metadata.
fn segment(world: &World, input: &mut Input<'_>) {
    let how = input.byte();
    let options = input.bytes(40);
    let payload_bytes = input.bytes(SEGMENT_BYTES);
    let frame = Frame {
        seq: world.seq.wrapping_add(input.signed()),
        ack: world.ack.wrapping_add(input.signed()),
        flags: input.byte(),
        ..world.frame(&options[..options.len() / 4 * 4], payload_bytes)
    };
    let mut bytes = frame.bytes();
    if how & 1 != 0 {
        let parts = Layout::of(&bytes).expect("a TCP frame");
        let at = usize::from(input.byte()) % bytes.len();
        bytes[at] = input.byte();
        if how & 2 != 0 && at < parts.l3 || at > parts.l4 {
            layout::seal(&mut bytes, &parts);
        }
    }
    if how & 4 != 0 {
        bytes.truncate(usize::from(input.byte()));
    }
    let card = if how & 8 == 0 {
        Card::VETH
    } else {
        Card::NoMeta
    };
    let mut packet = Packet::received(&bytes, card, DEVICE);
    if how & 16 == 0 && world.path.run_xdp(&mut packet) != Xdp::Pass {
        return;
    }
    packet.gso_segs = u32::from(how >> 6);
    world.path.run_tc_ingress(&mut packet);
}

/// Entry of `fuzz/driver.c`.
///
/// # Safety
/// `data` must be valid for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn erb_sim_fuzz(target: u32, data: *const u8, len: usize) {
    let data = if len == 0 {
        &[][..]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(data, len) }
    };
    run(Target::ALL[target as usize % Target::ALL.len()].1, data);
}
