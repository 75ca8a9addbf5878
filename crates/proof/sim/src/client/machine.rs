// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client's machine: one TCP stack and the connections of its applications.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use erb_sim_tcp::{Checksum, Config, EventKind, Host, Keepalive, Macs, Outgoing, Segment, SockId};
use fastrand::Rng;

use crate::ConnId;
use crate::check::Via;
use crate::client::session::{Deed, Drive, Session, Stage};
use crate::client::ticks::Ticks;
use crate::client::workload::{Operation, Workload, mix};
use crate::fault::Fault;
use crate::inner::{Event, Inner};
use crate::link::Frame;
use crate::story::Place;
use crate::time::{MS, Ns, SECOND};
use crate::violation::Violation;

/// Redis's port.
pub const PORT: u16 = 6379;
/// The server's Ethernet address.
pub const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The first port that clients take.
const FIRST_PORT: u16 = 40_000;
/// What an application reads at once at most.
const READ_BYTES: usize = 16 * 1024;

/// The server's address.
#[must_use]
pub fn server_ip(v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(10, 0, 0, 1).into()
    }
}

/// Another address of the server's, of another server.
#[must_use]
pub fn neighbour_ip(v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x22).into()
    } else {
        Ipv4Addr::new(10, 0, 0, 22).into()
    }
}

/// The address of machine `number`.
#[must_use]
pub fn machine_ip(number: usize, v6: bool) -> IpAddr {
    let last = u8::try_from(number + 2).unwrap_or(255);
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, u16::from(last)).into()
    } else {
        Ipv4Addr::new(10, 0, 1, last).into()
    }
}

/// The Ethernet address of machine `number`.
#[must_use]
pub fn machine_mac(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, u8::try_from(number).unwrap_or(255)]
}

/// A machine.
pub struct Machine {
    /// Its number.
    pub number: usize,
    /// Its stack.
    pub host: Host,
    sessions: BTreeMap<SockId, Session>,
    by_conn: BTreeMap<ConnId, SockId>,
    /// Ports whose process has vanished: what arrives for them is not answered.
    silent: Vec<u16>,
    used_ports: Vec<u16>,
    next_port: u16,
    bare: bool,
    random: Rng,
    timer_at: Option<Ns>,
    finished: u32,
    buffer: Vec<u8>,
    /// Segments for clients without a stack, if this machine is one of those.
    raw: Option<Vec<Segment>>,
    /// Its timestamp clock.
    pub ticks: Ticks,
}

/// Knobs of a machine's stack, drawn from the profile.
fn config(inner: &Inner, random: &mut Rng) -> Config {
    let profile = inner.plan.profile;
    let rates = &profile.client;
    let mut chance = |rate: u32| rate > 0 && random.u32(0..1_000_000) < rate;
    let mut config = Config {
        timestamps: !chance(rates.no_timestamps),
        sack: !chance(rates.no_sack),
        vlan: profile.vlan,
        mss: if profile.ipv6 { 1440 } else { 1460 },
        ..Config::default()
    };
    if chance(rates.tiny_window) && inner.plan.faults.has(Fault::TinyWindow) {
        inner.coverage.borrow_mut().fault(Fault::TinyWindow);
        config.rcv_buf = random.u32(600..6_000);
        config.wscale = if random.bool() {
            None
        } else {
            Some(random.u8(0..8))
        };
    }
    if profile.events.machine_crash > 0 || profile.events.redis_crash > 0 {
        // Who waits for a server that has forgotten it, or whose reset got lost, learns so by probing only.
        config.keepalive = Some(Keepalive {
            time: 20 * SECOND,
            interval: 5 * SECOND,
            probes: 4,
        });
    }
    config.nagle = random.bool();
    if random.u8(0..4) == 0 {
        config.delayed_ack_ns = 0;
    }
    if inner.faults.get().has(Fault::Split) && profile.link.split > 0 {
        config.split_permille = profile.link.split / 2000;
    }
    config
}

impl Machine {
    /// A machine of the world.
    #[must_use]
    pub fn new(inner: &Inner, number: usize) -> Self {
        let seed = mix(inner.plan.seed, &[4, number as u64]);
        let mut random = Rng::with_seed(seed);
        let config = config(inner, &mut random);
        let bare = random.u32(0..1_000_000) < inner.plan.profile.link.bare_sum;
        Self::with_config(number, config, seed, bare)
    }

    /// A machine with this stack; `bare`: it leaves checksums to a card that does nothing.
    #[must_use]
    pub fn with_config(number: usize, config: Config, seed: u64, bare: bool) -> Self {
        Self {
            number,
            host: Host::new(config, seed),
            sessions: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            silent: Vec::new(),
            used_ports: Vec::new(),
            next_port: FIRST_PORT,
            bare,
            random: Rng::with_seed(seed ^ 1),
            timer_at: None,
            finished: 0,
            buffer: Vec::new(),
            raw: None,
            ticks: Ticks::default(),
        }
    }

    /// Connections that are not over.
    #[must_use]
    pub fn open(&self) -> usize {
        self.sessions.len()
    }

    /// Connections that are over.
    #[must_use]
    pub const fn finished(&self) -> u32 {
        self.finished
    }

    /// The open connections.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// A connection, if it is not over.
    #[must_use]
    pub fn session(&self, conn: ConnId) -> Option<&Session> {
        self.sessions.get(self.by_conn.get(&conn)?)
    }

    /// Whether this port's process has vanished: its connection may stay open for hours.
    #[must_use]
    pub fn is_silent(&self, port: u16) -> bool {
        self.silent.contains(&port)
    }

    fn draw_port(&mut self, inner: &Inner) -> u16 {
        let reuse = inner.plan.profile.client.reuse;
        if !self.used_ports.is_empty() && inner.happens(Fault::Reuse, reuse) {
            let port = self.used_ports[self.random.usize(..self.used_ports.len())];
            let busy = self
                .sessions
                .values()
                .any(|session| session.local.port() == port);
            if !busy {
                return port;
            }
        }
        self.next_port += 1;
        self.next_port
    }

    /// Begins connection `conn`, from `port` if one is given.
    pub fn connect(&mut self, inner: &Rc<Inner>, conn: ConnId, port: Option<u16>, manual: bool) {
        let way = if manual {
            Drive::Scenario
        } else {
            Drive::Workload
        };
        let redis = SocketAddr::new(server_ip(inner.plan.profile.ipv6), PORT);
        self.connect_to(inner, conn, port, redis, way);
    }

    /// The same to another server on the port, which echoes.
    pub fn connect_to_neighbour(&mut self, inner: &Rc<Inner>, conn: ConnId, at: SocketAddr) {
        self.connect_to(inner, conn, None, at, Drive::Echo);
    }

    fn connect_to(
        &mut self,
        inner: &Rc<Inner>,
        conn: ConnId,
        port: Option<u16>,
        remote: SocketAddr,
        drive: Drive,
    ) {
        let ip = machine_ip(self.number, inner.plan.profile.ipv6);
        let now = inner.now();
        let port = port.unwrap_or_else(|| self.draw_port(inner));
        let mut local = SocketAddr::new(ip, port);
        let mut sock = self.host.connect(now, local, remote);
        if sock.is_none() {
            self.next_port += 1;
            local.set_port(self.next_port);
            sock = self.host.connect(now, local, remote);
        }
        let Some(sock) = sock else {
            self.finished += 1;
            return;
        };
        self.silent.retain(|silent| *silent != local.port());
        if !self.used_ports.contains(&local.port()) {
            self.used_ports.push(local.port());
        }
        if drive != Drive::Echo {
            inner.checks.borrow_mut().opened(now, conn, Via::Erb);
        }
        inner.tell_with(Place::Client(self.number), Some(conn), || {
            format!("connects from {local} to {remote}")
        });
        let session = Session::new(inner, conn, sock, local, drive);
        self.sessions.insert(sock, session);
        self.by_conn.insert(conn, sock);
        self.pump(inner, None);
    }

    /// The application of a connection goes on.
    pub fn wake(&mut self, inner: &Rc<Inner>, conn: ConnId, workload: &Workload) {
        if let Some(sock) = self.by_conn.get(&conn).copied() {
            self.advance(inner, sock, workload);
            self.pump(inner, Some(workload));
        }
    }

    /// A scenario lets the connection send an operation.
    pub fn begin(&mut self, inner: &Rc<Inner>, conn: ConnId, operation: &Operation) {
        let Some(sock) = self.by_conn.get(&conn).copied() else {
            return;
        };
        if let Some(session) = self.sessions.get_mut(&sock) {
            session.begin(inner, operation);
        }
        self.flush(inner, sock);
        self.pump(inner, None);
    }

    /// All connections are closed by their applications.
    pub fn close_all(&mut self, inner: &Rc<Inner>) {
        let open: Vec<SockId> = self.sessions.keys().copied().collect();
        for sock in open {
            self.carry_out(inner, sock, Deed::Close);
        }
        self.pump(inner, None);
    }

    /// A scenario does something to the connection's socket.
    pub fn deed(&mut self, inner: &Rc<Inner>, conn: ConnId, deed: Deed) {
        let Some(sock) = self.by_conn.get(&conn).copied() else {
            return;
        };
        self.carry_out(inner, sock, deed);
        self.pump(inner, None);
    }

    fn advance(&mut self, inner: &Rc<Inner>, sock: SockId, workload: &Workload) {
        let Some(session) = self.sessions.get_mut(&sock) else {
            return;
        };
        let deed = session.advance(inner, workload);
        self.carry_out(inner, sock, deed);
    }

    fn carry_out(&mut self, inner: &Rc<Inner>, sock: SockId, deed: Deed) {
        let now = inner.now();
        self.flush(inner, sock);
        match deed {
            Deed::Send => {}
            Deed::ShutDown => {
                if let Some(session) = self.sessions.get_mut(&sock)
                    && session.outbox.is_empty()
                {
                    session.stage = Stage::Ending;
                    self.host.shutdown_write(now, sock);
                }
            }
            Deed::Close => {
                self.host.close(now, sock);
                self.over(inner, sock);
            }
            Deed::Abort => {
                self.host.abort(now, sock);
                self.over(inner, sock);
            }
            Deed::Vanish => {
                if let Some(session) = self.sessions.get(&sock) {
                    self.silent.push(session.local.port());
                }
                self.host.abort(now, sock);
                self.over(inner, sock);
            }
        }
    }

    /// Hands what the application has written to TCP, as much as that takes.
    fn flush(&mut self, inner: &Rc<Inner>, sock: SockId) {
        let Some(session) = self.sessions.get_mut(&sock) else {
            return;
        };
        if session.outbox.is_empty() || session.stage == Stage::Connecting {
            return;
        }
        let taken = self.host.send(inner.now(), sock, &session.outbox);
        session.outbox.drain(..taken);
    }

    fn over(&mut self, inner: &Rc<Inner>, sock: SockId) {
        let Some(session) = self.sessions.remove(&sock) else {
            return;
        };
        self.by_conn.remove(&session.id);
        self.finished += 1;
        inner.checks.borrow_mut().closed(inner.now(), session.id);
        inner.tell_with(Place::Client(self.number), Some(session.id), || {
            "is over".to_owned()
        });
    }

    /// A frame arrives.
    pub fn frame(&mut self, inner: &Rc<Inner>, frame: &Frame, workload: Option<&Workload>) {
        let parsed = if frame.bare {
            Segment::parse_vouched(&frame.bytes)
        } else {
            Segment::parse(&frame.bytes)
        };
        let mut segment = match parsed {
            Ok(segment) => segment,
            Err(why) => {
                inner.tell_with(Place::Client(self.number), None, || format!("drops: {why}"));
                return;
            }
        };
        if segment.dst.ip() != machine_ip(self.number, inner.plan.profile.ipv6)
            || self.silent.contains(&segment.dst.port())
        {
            return;
        }
        if let Some(raw) = &mut self.raw {
            raw.push(segment);
            return;
        }
        if let Some((_, echo)) = &mut segment.options.ts {
            *echo = self.ticks.heard(segment.dst.port(), *echo);
        }
        self.host.input(inner.now(), &segment);
        self.pump(inner, workload);
    }

    /// From now on nobody answers for this machine: a scenario does.
    pub fn set_raw(&mut self) {
        self.raw = Some(Vec::new());
    }

    /// Segments that came for a client without a stack.
    pub fn take_raw(&mut self, local: SocketAddr) -> Vec<Segment> {
        let raw = self.raw.get_or_insert_default();
        let (mine, others) = std::mem::take(raw)
            .into_iter()
            .partition(|s| s.dst == local);
        *raw = others;
        mine
    }

    /// Ports whose process has vanished answer again: by resets.
    pub fn come_back(&mut self) {
        self.silent.clear();
    }

    /// What a scenario's connection has read since the last call.
    pub fn take_read(&mut self, conn: ConnId) -> Vec<u8> {
        let sock = self.by_conn.get(&conn);
        let session = sock.and_then(|sock| self.sessions.get_mut(sock));
        session.map_or_else(Vec::new, |session| std::mem::take(&mut session.read))
    }

    /// TCP's timers.
    pub fn timer(&mut self, inner: &Rc<Inner>, workload: Option<&Workload>) {
        self.timer_at = None;
        let now = inner.now();
        if self.host.next_timer().is_some_and(|at| at <= now) {
            self.host.on_timer(now);
        }
        self.pump(inner, workload);
    }

    /// Carries events to the applications and segments to the link until nothing moves.
    pub fn pump(&mut self, inner: &Rc<Inner>, workload: Option<&Workload>) {
        loop {
            while let Some(out) = self.host.pop_out() {
                self.transmit(inner, &out);
            }
            let Some(event) = self.host.pop_event() else {
                break;
            };
            self.event(inner, event.id, event.kind, workload);
        }
        if let Some(at) = self.host.next_timer()
            && self.timer_at.is_none_or(|armed| at < armed)
        {
            self.timer_at = Some(at);
            inner.at(at, Event::MachineTimer(self.number));
        }
    }

    fn transmit(&mut self, inner: &Rc<Inner>, out: &Outgoing) {
        if self.silent.contains(&out.segment.src.port()) {
            return;
        }
        let macs = Macs {
            src: machine_mac(self.number),
            dst: SERVER_MAC,
        };
        let sum = if self.bare {
            Checksum::Pseudo
        } else {
            Checksum::Full
        };
        if self.bare {
            inner.coverage.borrow_mut().fault(Fault::BareSum);
        }
        let mut segment = out.segment.clone();
        if let Some((stamp, _)) = &mut segment.options.ts {
            *stamp = self.ticks.sent(segment.src.port(), *stamp);
        }
        let mut bytes = Vec::new();
        segment.write_frame(macs, sum, &mut bytes);
        let frame = Frame {
            bytes,
            bare: self.bare,
            mark: 0,
        };
        inner.send_up(self.number, frame);
    }

    fn event(
        &mut self,
        inner: &Rc<Inner>,
        sock: SockId,
        kind: EventKind,
        workload: Option<&Workload>,
    ) {
        match kind {
            EventKind::Connected => {
                if let Some(session) = self.sessions.get_mut(&sock) {
                    session.stage = Stage::Open;
                }
            }
            EventKind::Readable => self.read(inner, sock),
            EventKind::PeerClosed => {
                self.read(inner, sock);
                self.host.close(inner.now(), sock);
                self.ended_by_peer(inner, sock);
                return;
            }
            EventKind::TimedOut => {
                self.given_up(inner, sock);
                self.over(inner, sock);
                return;
            }
            EventKind::Reset | EventKind::Closed => {
                self.ended_by_peer(inner, sock);
                return;
            }
            EventKind::Writable | EventKind::Incoming => {}
        }
        match workload {
            Some(workload) => self.advance(inner, sock, workload),
            None => self.flush(inner, sock),
        }
    }

    /// Who echoes ends no connection before all is echoed.
    fn ended_by_peer(&mut self, inner: &Rc<Inner>, sock: SockId) {
        if let Some(session) = self.sessions.get(&sock).filter(|s| s.unechoed() > 0) {
            let (conn, left) = (session.id, session.unechoed());
            let text = format!("connection {conn}: over, {left} bytes are not echoed");
            inner.fail(Violation::new("neighbour", inner.now(), text));
        }
        self.over(inner, sock);
    }

    /// TCP repeats for minutes, faults last for seconds: something never lets it through.
    fn given_up(&self, inner: &Rc<Inner>, sock: SockId) {
        if let Some(session) = self.sessions.get(&sock) {
            let text = format!("c{}: TCP repeated in vain until it gave up", session.id);
            inner.fail(Violation::new("stuck", inner.now(), text));
        }
    }

    fn read(&mut self, inner: &Rc<Inner>, sock: SockId) {
        let now = inner.now();
        let Some(session) = self.sessions.get_mut(&sock) else {
            return;
        };
        if now < session.deaf_until {
            return;
        }
        let lazy = inner.plan.profile.client.tiny_window > 0
            && inner.happens(
                Fault::TinyWindow,
                inner.plan.profile.client.tiny_window / 20,
            );
        if lazy {
            session.deaf_until = now + self.random.u64(MS..400 * MS);
            inner.at(session.deaf_until, Event::Wake(session.id));
            return;
        }
        loop {
            self.buffer.clear();
            if self.host.recv(now, sock, READ_BYTES, &mut self.buffer) == 0 {
                return;
            }
            if let Err(violation) = session.take(inner, &self.buffer) {
                inner.fail(violation);
                return;
            }
        }
    }

    /// Reads what a connection left unread while it did not listen.
    pub fn catch_up(&mut self, inner: &Rc<Inner>, conn: ConnId) {
        if let Some(sock) = self.by_conn.get(&conn).copied() {
            self.read(inner, sock);
        }
    }
}
