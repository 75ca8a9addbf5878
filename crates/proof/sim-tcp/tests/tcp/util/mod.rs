// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two hosts and a link between them, in virtual time.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use erb_sim_tcp::{Config, EventKind, Host, Macs, Ns, Outgoing, Segment, SockId, flags};

pub const MS: Ns = 1_000_000;
pub const SEC: Ns = 1_000_000_000;
pub const PORT: u16 = 6379;

/// What the link does to a frame, in permille.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub loss: u32,
    pub dup: u32,
    pub corrupt: u32,
    pub reorder: u32,
}

pub struct Net {
    pub now: Ns,
    pub client: Host,
    pub server: Host,
    pub faults: Faults,
    pub delay: Ns,
    /// Everything that either side sent, with the time.
    pub log: Vec<(Ns, Outgoing)>,
    rng: fastrand::Rng,
    flying: BTreeMap<(Ns, u64), Vec<u8>>,
    serial: u64,
}

pub fn addr(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

pub fn client_addr() -> SocketAddr {
    addr(1, 40000)
}

pub fn server_addr() -> SocketAddr {
    addr(2, PORT)
}

impl Net {
    pub fn new(client: Config, server: Config, seed: u64) -> Net {
        let mut server = Host::new(server, seed ^ 1);
        server.listen(PORT, 16);
        Net {
            now: SEC,
            client: Host::new(client, seed),
            server,
            faults: Faults::default(),
            delay: MS,
            log: Vec::new(),
            rng: fastrand::Rng::with_seed(seed ^ 2),
            flying: BTreeMap::new(),
            serial: 0,
        }
    }

    pub fn plain() -> Net {
        Net::new(Config::default(), Config::default(), 1)
    }

    fn fly(&mut self, out: Outgoing) {
        self.log.push((self.now, out.clone()));
        let pieces = match out.gso_size {
            0 => vec![out.segment],
            size => out.segment.split(size as usize),
        };
        for segment in pieces {
            let mut frame = segment.to_frame(Macs::default());
            if self.rng.u32(..1000) < self.faults.loss {
                continue;
            }
            if self.rng.u32(..1000) < self.faults.corrupt {
                let at = self.rng.usize(14..frame.len());
                frame[at] ^= 1 << self.rng.u32(..8);
            }
            let copies = 1 + u32::from(self.rng.u32(..1000) < self.faults.dup);
            for _ in 0..copies {
                let late = self.rng.u32(..1000) < self.faults.reorder;
                let extra = if late { self.rng.u64(..20 * MS) } else { 0 };
                self.serial += 1;
                self.flying
                    .insert((self.now + self.delay + extra, self.serial), frame.clone());
            }
        }
    }

    /// Puts what both hosts have sent on the link.
    pub fn flush(&mut self) {
        while let Some(out) = self.client.pop_out() {
            self.fly(out);
        }
        while let Some(out) = self.server.pop_out() {
            self.fly(out);
        }
    }

    pub fn next(&self) -> Option<Ns> {
        let frame = self.flying.keys().next().map(|k| k.0);
        [frame, self.client.next_timer(), self.server.next_timer()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Goes on to the next thing that happens, if it happens until `until`.
    pub fn step(&mut self, until: Ns) -> bool {
        self.flush();
        let Some(at) = self.next().filter(|at| *at <= until) else {
            self.now = until.max(self.now);
            return false;
        };
        self.now = self.now.max(at);
        while let Some(key) = self
            .flying
            .keys()
            .next()
            .copied()
            .filter(|k| k.0 <= self.now)
        {
            let frame = self.flying.remove(&key).expect("just seen");
            if let Ok(segment) = Segment::parse(&frame) {
                let client = segment.dst.port() != PORT;
                let host = if client {
                    &mut self.client
                } else {
                    &mut self.server
                };
                host.input(self.now, &segment);
            }
        }
        self.client.on_timer(self.now);
        self.server.on_timer(self.now);
        self.flush();
        self.client.check_invariants();
        self.server.check_invariants();
        true
    }

    pub fn run(&mut self, time: Ns) {
        let until = self.now + time;
        while self.step(until) {}
    }

    /// An established connection.
    pub fn connected() -> (Net, SockId, SockId) {
        Net::plain().connect()
    }

    pub fn connect(mut self) -> (Net, SockId, SockId) {
        let id = self
            .client
            .connect(self.now, client_addr(), server_addr())
            .expect("free pair");
        self.run(10 * MS);
        let server = self.server.accept(PORT).expect("a connection");
        self.drain();
        (self, id, server)
    }

    /// Forgets events and what was sent.
    pub fn drain(&mut self) {
        self.flush();
        self.log.clear();
        while self.client.pop_event().is_some() {}
        while self.server.pop_event().is_some() {}
    }

    /// A segment of the client's that the server's kernel would take: exact numbers, no payload.
    pub fn by_client(&self, client: SockId) -> Segment {
        let view = self.client.view(client).expect("open");
        let mut seg = Segment::new(client_addr(), server_addr());
        seg.seq = view.snd_nxt;
        seg.ack = view.rcv_nxt;
        seg.flags = flags::ACK;
        seg.window = (view.rcv_wnd >> view.rcv_wscale) as u16;
        let tsval = (self.now / MS) as u32;
        seg.options.ts = view
            .tstamp_ok
            .then(|| (tsval.wrapping_add(view.tsoffset), view.ts_recent));
        seg
    }

    /// Feeds a hand-made segment to the server and returns what the server sends at once.
    pub fn poke(&mut self, seg: &Segment) -> Vec<Segment> {
        self.server.input(self.now, seg);
        self.server.check_invariants();
        self.server_sent()
    }

    pub fn server_sent(&mut self) -> Vec<Segment> {
        std::iter::from_fn(|| self.server.pop_out())
            .map(|out| out.segment)
            .collect()
    }

    pub fn client_sent(&mut self) -> Vec<Segment> {
        std::iter::from_fn(|| self.client.pop_out())
            .map(|out| out.segment)
            .collect()
    }

    pub fn server_events(&mut self) -> Vec<EventKind> {
        std::iter::from_fn(|| self.server.pop_event())
            .map(|e| e.kind)
            .collect()
    }

    pub fn client_events(&mut self) -> Vec<EventKind> {
        std::iter::from_fn(|| self.client.pop_event())
            .map(|e| e.kind)
            .collect()
    }

    pub fn server_reads(&mut self, id: SockId) -> Vec<u8> {
        let mut got = Vec::new();
        self.server.recv(self.now, id, usize::MAX, &mut got);
        got
    }
}
