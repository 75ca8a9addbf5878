// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection with a kernel made by hand, for tests: the client is made of segments, Redis of its
//! replies.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use erb_abi::{ControlPlane as _, FillEntry, ValueKind};
use erb_wire::layout::{self, Layout};
pub use erb_wire::resp::command;

use crate::frames::{CLIENT, Frame, PORT};
use crate::{
    Card, Csum, Datapath, DatapathConfig, Kernel, Library, Packet, Sock, Tc, Xdp, tcp_state,
};

/// The boosted device.
pub const DEVICE: u32 = 3;
/// Cookie of a connection's socket, less the client's port.
pub const COOKIE: u64 = 77;
/// Redis's listener: its number and its cookie.
pub(crate) const LISTENER: u64 = 1 << 32;
const CLIENT_ISN: u32 = u32::MAX - 100;
const SERVER_ISN: u32 = 5000;
pub(crate) const ACK: u8 = 16;
const SECOND: u64 = 1_000_000_000;
/// The client's clock, if it writes timestamps.
const CLIENT_TSVAL: u32 = 1000;

/// A kernel with the sockets that a test puts there.
#[derive(Default)]
pub struct HandMade {
    /// The time, ns.
    pub now: Cell<u64>,
    /// By how much it moves whenever it is read exactly.
    pub step: Cell<u64>,
    /// Sockets, by the client's address.
    pub socks: RefCell<Vec<(SocketAddr, Sock)>>,
    /// What was sent, and by which device.
    pub sent: RefCell<Vec<(u32, Packet)>>,
    /// What came in again.
    pub received: RefCell<Vec<Packet>>,
    /// How often a socket was looked at.
    pub views: Cell<u64>,
}

impl Kernel for HandMade {
    fn now_ns(&self) -> u64 {
        self.now.set(self.now.get() + self.step.get());
        self.now.get()
    }
    fn now_coarse_ns(&self) -> u64 {
        self.now.get() / 4_000_000 * 4_000_000
    }
    fn lookup(&self, _ifindex: u32, local: SocketAddr, remote: SocketAddr) -> Option<u64> {
        assert_eq!(local.port(), PORT);
        if remote.port() == 0 {
            return Some(LISTENER);
        }
        let socks = self.socks.borrow();
        let found = socks.iter().position(|(peer, _)| *peer == remote);
        found.map(|index| index as u64)
    }
    fn view(&self, sock: u64) -> Option<Sock> {
        self.views.set(self.views.get() + 1);
        if sock == LISTENER {
            return Some(Sock {
                cookie: LISTENER,
                state: tcp_state::LISTEN,
                ..Sock::default()
            });
        }
        self.socks
            .borrow()
            .get(sock as usize)
            .map(|(_, sock)| *sock)
    }
    fn transmit(&self, ifindex: u32, packet: Packet) {
        self.sent.borrow_mut().push((ifindex, packet));
    }
    fn receive(&self, packet: Packet) -> bool {
        self.received.borrow_mut().push(packet);
        true
    }
    fn random(&self) -> u32 {
        4
    }
}

/// Where a scene's client stands.
pub struct Scene {
    /// The server's.
    pub kernel: Rc<HandMade>,
    /// The programs in front of it.
    pub path: Datapath,
    /// The client's port.
    pub port: u16,
    /// Next byte that it sends.
    pub seq: u32,
    /// Next byte that it awaits.
    pub ack: u32,
    /// Both ends write timestamps.
    pub timestamps: bool,
}

impl Scene {
    /// A connection before the tree's own programs.
    #[must_use]
    pub fn new(config: DatapathConfig) -> Self {
        Self::on(&Library::builtin(), config)
    }

    /// The same before another build's.
    ///
    /// # Panics
    /// If no listener can be noted.
    #[must_use]
    pub fn on(library: &Library, config: DatapathConfig) -> Self {
        let kernel = Rc::new(HandMade::default());
        kernel.now.set(10 * SECOND);
        let path = Datapath::new(library, config, Rc::clone(&kernel) as Rc<dyn Kernel>);
        let set = path.set_listener(LISTENER, Some(erb_abi::LISTENER_REDIS));
        assert_eq!(set, Ok(true), "there is room");
        // SAFETY: no program runs.
        let control = unsafe { &mut *path.control() };
        control.serving = 1;
        control.write_through = 1;
        control.admit = 1;
        control.open = 1;
        control.lease_until_ns = 1000 * SECOND;
        let mut scene = Self {
            kernel,
            path,
            port: 0,
            seq: 0,
            ack: 0,
            timestamps: false,
        };
        scene.connect(40_000);
        scene
    }

    /// Another client, established, nothing sent yet.
    pub fn connect(&mut self, port: u16) {
        self.port = port;
        self.seq = CLIENT_ISN + 1;
        self.ack = SERVER_ISN + 1;
        let sock = Sock::established(COOKIE + u64::from(port), self.seq, self.ack);
        self.kernel.socks.borrow_mut().push((self.peer(), sock));
    }

    /// Both ends write timestamps from now on.
    pub fn with_timestamps(mut self) -> Self {
        self.timestamps = true;
        self.sock(|sock| {
            sock.tstamp_ok = 1;
            sock.ts_recent = CLIENT_TSVAL;
        });
        self
    }

    /// The client's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        SocketAddr::from((CLIENT, self.port))
    }

    /// Changes the kernel's side of the connection.
    ///
    /// # Panics
    /// If the kernel has no such socket.
    pub fn sock(&self, change: impl FnOnce(&mut Sock)) {
        let mut socks = self.kernel.socks.borrow_mut();
        let found = socks.iter_mut().find(|(peer, _)| *peer == self.peer());
        change(&mut found.unwrap().1);
    }

    /// A segment of the client's, as the device receives it.
    #[must_use]
    pub fn request(&self, payload: &[u8]) -> Packet {
        let bytes = self.frame(true, [self.seq, self.ack], payload);
        Packet::received(&bytes, Card::VETH, DEVICE)
    }

    /// The request goes through XDP.
    pub fn send(&mut self, payload: &[u8]) -> (Xdp, Packet) {
        let mut packet = self.request(payload);
        let verdict = self.path.run_xdp(&mut packet);
        self.seq = self.seq.wrapping_add(payload.len() as u32);
        (verdict, packet)
    }

    /// The kernel takes a request of so many bytes, Redis reads it and replies.
    pub fn served(&mut self, request: usize, reply: &[u8]) -> (Tc, Packet) {
        let mut packet = self.reply(request, reply);
        let verdict = self.path.run_tc_egress(&mut packet);
        let at = Layout::of(packet.bytes()).expect("a segment");
        assert!(layout::is_bare(packet.bytes(), &at), "the sum is spoilt");
        layout::seal(packet.bytes_mut(), &at);
        (verdict, packet)
    }

    /// The reply's packet, on its way to egress.
    pub fn reply(&mut self, request: usize, reply: &[u8]) -> Packet {
        let mut start = [0, 0];
        self.sock(|sock| {
            sock.rcv_nxt = sock.rcv_nxt.wrapping_add(request as u32);
            sock.copied_seq = sock.rcv_nxt;
            sock.bytes_received += request as u64;
            sock.data_segs_in += 1;
            start = [sock.write_seq, sock.rcv_nxt];
            sock.write_seq = sock.write_seq.wrapping_add(reply.len() as u32);
            sock.snd_nxt = sock.write_seq;
        });
        let mut bytes = self.frame(false, start, reply);
        let at = Layout::of(&bytes).expect("a segment");
        layout::seal_bare(&mut bytes, &at);
        let cookie = COOKIE + u64::from(self.port);
        let mut packet = Packet::sent(&bytes, DEVICE, cookie);
        // As Linux sends it; the device completes the sum.
        packet.csum = Csum::Partial;
        self.ack = self.ack.wrapping_add(reply.len() as u32);
        packet
    }

    fn frame(&self, up: bool, [seq, ack]: [u32; 2], payload: &[u8]) -> Vec<u8> {
        let server = (self.kernel.now.get() / 1_000_000) as u32;
        let (value, echo) = if up {
            (CLIENT_TSVAL, server)
        } else {
            (server, CLIENT_TSVAL)
        };
        let options = [
            &[1, 1, 8, 10],
            &value.to_be_bytes()[..],
            &echo.to_be_bytes()[..],
        ]
        .concat();
        let frame = Frame {
            port: self.port,
            up,
            seq,
            ack,
            flags: ACK,
            options: if self.timestamps { &options } else { &[] },
            payload,
        };
        frame.bytes()
    }

    /// The kernel sees all acknowledged.
    pub fn settle(&self) {
        self.sock(|sock| sock.snd_una = sock.write_seq);
    }

    /// The first request and its reply: the connection is fast afterwards.
    ///
    /// # Panics
    /// If one of them does not pass.
    pub fn warm(&mut self) {
        let get = get(b"warm");
        assert_eq!(self.send(&get).0, Xdp::Pass);
        assert_eq!(self.served(get.len(), b"$-1\r\n").0, Tc::Next);
        self.settle();
    }

    /// Fills a string, as the daemon does.
    pub fn fill(&self, key: &[u8], value: &[u8]) -> u32 {
        self.fill_kind(ValueKind::String, key, value)
    }

    /// Fills one key, as the daemon does; what became of it.
    ///
    /// # Panics
    /// If a program fails.
    pub fn fill_kind(&self, kind: ValueKind, key: &[u8], value: &[u8]) -> u32 {
        let token = self.path.fill_begin(&[key]).expect("it runs")[0];
        if token.status != erb_abi::FILL_OK {
            return token.status;
        }
        let entry = FillEntry {
            key,
            db: 0,
            kind,
            value: Some(value),
            expiry_ms: 0,
            token,
        };
        self.path.fill_insert(&[entry]).expect("it runs")[0]
    }

    /// The connection's entry.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn conn(&self) -> erb_abi::conn {
        let mut found = None;
        self.path.each_conn(|key, conn| {
            if u16::from_be(key.client_port_be) == self.port {
                found = Some(*conn);
            }
        });
        found.expect("the connection is tracked")
    }
}

/// `GET key`.
#[must_use]
pub fn get(key: &[u8]) -> Vec<u8> {
    command(&[b"GET", key])
}
