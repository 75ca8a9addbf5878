// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One stack: its sockets, found by addresses, and their timers.
//!
//! Invariants, checked by [`Host::check_invariants`]:
//!  H1. A pair of addresses belongs to at most one socket, full or not; each full socket that is
//!      not CLOSED stands in the table under its own pair.
//!  H2. Each entry's earliest timer is in `timers`, and nothing else is.
//!  H3. A listener's count of requests is the number of request sockets for its address.
//!  H4. A cookie is given to one connection only, from request to TIME_WAIT.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::net::{IpAddr, SocketAddr};

use crate::api::{Counters, Event, EventKind, Look, Outgoing, SockId, State, View};
use crate::core::Core;
use crate::request::{Listener, Request, Secret};
use crate::sock::{Fate, Sock, Start};
use crate::timewait::TimeWait;
use crate::{Config, Ns, seq};
use erb_wire::{IcmpError, IcmpKind};
use erb_wire::{Segment, flags};

/// Own address, then the peer's.
pub(crate) type Pair = (SocketAddr, SocketAddr);

/// Segments that wait while a task holds the socket; more are dropped (tcp_add_backlog()).
const BACKLOG_SEGMENTS: usize = 1000;

/// A hash with fixed keys: the order of the table must not differ from run to run.
type Table = HashMap<Pair, Entry, BuildHasherDefault<DefaultHasher>>;

pub(crate) enum Kind {
    Full(usize),
    Request(Box<Request>),
    TimeWait(Box<TimeWait>),
}

pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) armed: Option<Ns>,
}

/// Where a listener listens: on one address, or on all.
pub(crate) type Place = (Option<IpAddr>, u16);

/// A place for a full socket; its generation tells handles of former sockets from the present one.
struct Slot {
    generation: u32,
    sock: Option<Box<Sock>>,
    /// Input that waits until the task that holds the socket lets go.
    backlog: Option<VecDeque<Segment>>,
}

/// One stack.
pub struct Host {
    pub(crate) core: Core,
    pub(crate) secret: Secret,
    pub(crate) table: Table,
    pub(crate) listeners: HashMap<Place, Listener, BuildHasherDefault<DefaultHasher>>,
    places: Vec<Slot>,
    free: Vec<usize>,
    timers: BTreeSet<(Ns, Pair)>,
    cookie_last: u64,
}

impl Host {
    /// Cookie of the namespace's control socket, which answers where there is no full socket.
    pub const CONTROL_COOKIE: u64 = 1;

    /// A stack without sockets.
    pub fn new(config: Config, seed: u64) -> Host {
        let mut core = Core::new(config, seed);
        let secret = Secret(core.rng.u64(..));
        Host {
            core,
            secret,
            table: Table::default(),
            listeners: HashMap::default(),
            places: Vec::new(),
            free: Vec::new(),
            timers: BTreeSet::new(),
            cookie_last: Host::CONTROL_COOKIE,
        }
    }

    /// The knobs; what is changed here holds for what comes after.
    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.core.config
    }

    /// Begins a connection. `None` if the pair of addresses is in use.
    pub fn connect(&mut self, now: Ns, local: SocketAddr, remote: SocketAddr) -> Option<SockId> {
        self.core.now = now;
        let pair = (local, remote);
        let mut isn = self.core.draw_isn();
        let mut stamp = None;
        if let Some(entry) = self.table.get(&pair) {
            let Kind::TimeWait(tw) = &entry.kind else {
                return None;
            };
            let age = now.saturating_sub(tw.ts_recent_at);
            if !self.core.config.tw_reuse || !tw.tstamp_ok || age < crate::config::SEC {
                return None;
            }
            isn = tw.next_isn();
            stamp = Some((tw.ts_recent, tw.ts_recent_at));
            self.remove_entry(pair);
        }
        let cookie = self.next_cookie();
        let tsoffset = self.secret.tsoffset(local.ip(), remote.ip());
        let (at, id) = self.take_place();
        let start = Start {
            id,
            cookie,
            local,
            remote,
            state: State::SynSent,
            isn,
            tsoffset,
        };
        let mut sock = Box::new(Sock::new(&self.core, start));
        if let Some((val, stamped)) = stamp {
            (sock.ts_recent, sock.ts_recent_at) = (val, stamped);
        }
        sock.connect(&mut self.core);
        self.places[at].sock = Some(sock);
        self.table.insert(
            pair,
            Entry {
                kind: Kind::Full(at),
                armed: None,
            },
        );
        self.settle(at);
        Some(id)
    }

    /// When [`Host::on_timer`] has something to do.
    pub fn next_timer(&self) -> Option<Ns> {
        self.timers.first().map(|t| t.0)
    }

    /// Does what is due.
    pub fn on_timer(&mut self, now: Ns) {
        self.core.now = now;
        while let Some((_, pair)) = self.timers.first().copied().filter(|t| t.0 <= now) {
            self.timer_of(pair);
        }
    }

    fn timer_of(&mut self, pair: Pair) {
        let now = self.core.now;
        let Some(entry) = self.table.get_mut(&pair) else {
            return;
        };
        let keep = match &mut entry.kind {
            Kind::TimeWait(tw) => tw.until > now,
            Kind::Request(request) => request.due > now || request.on_timer(&mut self.core, pair),
            Kind::Full(at) => {
                let at = *at;
                let place = &mut self.places[at];
                if let (None, Some(sock)) = (&place.backlog, &mut place.sock) {
                    sock.on_timer(&mut self.core);
                }
                return self.settle(at);
            }
        };
        if keep {
            self.arm(pair)
        } else {
            self.remove_entry(pair)
        }
    }

    /// The next segment that left TCP.
    pub fn pop_out(&mut self) -> Option<Outgoing> {
        self.core.out.pop_front()
    }

    /// The next event.
    pub fn pop_event(&mut self) -> Option<Event> {
        self.core.events.pop_front()
    }

    /// Queues data; returns how many bytes the send buffer took.
    pub fn send(&mut self, now: Ns, id: SockId, data: &[u8]) -> usize {
        self.with(now, id, |sock, core| sock.send(core, data))
            .unwrap_or(0)
    }

    /// Appends what can be read, at most `max` bytes; returns how many.
    pub fn recv(&mut self, now: Ns, id: SockId, max: usize, into: &mut Vec<u8>) -> usize {
        self.with(now, id, |sock, core| sock.recv(core, max, into))
            .unwrap_or(0)
    }

    /// Sends no more (FIN behind what is queued), goes on reading.
    pub fn shutdown_write(&mut self, now: Ns, id: SockId) {
        self.with(now, id, |sock, core| sock.shutdown_write(core));
    }

    /// Gives the connection up. Unread data make it a reset, as in Linux.
    pub fn close(&mut self, now: Ns, id: SockId) {
        self.with(now, id, |sock, core| sock.close(core));
    }

    /// Resets the connection (SO_LINGER 0).
    pub fn abort(&mut self, now: Ns, id: SockId) {
        self.with(now, id, |sock, core| sock.abort(core));
    }

    /// A task takes the socket's lock: input waits, timers too, until [`Host::release`].
    pub fn hold(&mut self, id: SockId) {
        if let Some(at) = self.place_of(id) {
            self.places[at].backlog.get_or_insert_default();
            self.settle(at);
        }
    }

    /// The task lets go: what waited is taken now (release_sock()).
    pub fn release(&mut self, now: Ns, id: SockId) {
        let Some(at) = self.place_of(id) else { return };
        let waiting = self.places[at].backlog.take().unwrap_or_default();
        for segment in waiting {
            self.deliver(now, &segment);
        }
        self.settle(at);
        self.on_timer(now);
    }

    /// An ICMP error: tcp_v4_err(). Only one that quotes bytes in flight is believed.
    pub fn input_icmp(&mut self, now: Ns, error: &IcmpError) {
        self.core.now = now;
        let Some(Entry {
            kind: Kind::Full(at),
            ..
        }) = self.table.get(&(error.src, error.dst))
        else {
            return;
        };
        let at = *at;
        let Some(sock) = &mut self.places[at].sock else {
            return;
        };
        if seq::before(error.seq, sock.snd_una) || seq::after(error.seq, sock.snd_nxt) {
            self.core.counters.icmp_out_of_window += 1;
            return;
        }
        match error.kind {
            IcmpKind::TooBig(mtu) => {
                if sock.reduce_pmtu(&mut self.core, mtu) {
                    sock.resend_oversized(&mut self.core);
                    sock.push(&mut self.core);
                }
            }
            IcmpKind::Unreachable(_) => {
                if sock.state == State::SynSent {
                    sock.peer_reset(&mut self.core);
                }
            }
        }
        self.settle(at);
    }

    /// What a look-up in the tables finds: connection, TIME_WAIT, request, then listener.
    pub fn lookup(&self, local: SocketAddr, remote: SocketAddr) -> Option<Look> {
        let none = Look {
            id: None,
            state: State::Listen,
            cookie: 0,
            rcv_isn: 0,
            snt_isn: 0,
            ts_recent: 0,
            listen: false,
        };
        let Some(entry) = self.table.get(&(local, remote)) else {
            return self.place_for(local).map(|place| Look {
                listen: true,
                cookie: self.listeners[&place].cookie,
                ..none
            });
        };
        Some(match &entry.kind {
            Kind::Full(at) => {
                let sock = self.places[*at].sock.as_ref()?;
                Look {
                    id: Some(sock.id),
                    state: sock.state,
                    cookie: sock.cookie,
                    ..none
                }
            }
            Kind::TimeWait(tw) => Look {
                state: State::TimeWait,
                cookie: tw.cookie,
                ..none
            },
            Kind::Request(r) => Look {
                state: State::NewSynRecv,
                cookie: r.cookie,
                rcv_isn: r.rcv_isn,
                snt_isn: r.snt_isn,
                ts_recent: r.ts_recent,
                ..none
            },
        })
    }

    /// The fields of a connection.
    pub fn view(&self, id: SockId) -> Option<View> {
        let at = self.place_of(id)?;
        self.places[at]
            .sock
            .as_ref()
            .map(|sock| sock.view(&self.core))
    }

    /// tcp_prune_ofo_queue(): for want of memory all data beyond a hole are thrown away, although they
    /// were acknowledged selectively. Returns whether there were any.
    pub fn prune(&mut self, now: Ns, id: SockId) -> bool {
        self.with(now, id, |sock, _| sock.prune()).unwrap_or(false)
    }

    /// How often each rule applied.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// Takes a segment from the network.
    pub fn input(&mut self, now: Ns, segment: &Segment) {
        self.core.counters.segments_in += 1;
        self.deliver(now, segment);
    }

    /// Input for a full socket: at once, or later if a task holds it.
    pub(crate) fn input_full(&mut self, at: usize, segment: &Segment) {
        let place = &mut self.places[at];
        if let Some(sock) = &mut place.sock {
            // tcp_segs_in(): before the socket is locked, whatever becomes of the segment.
            sock.data_segs_in += u32::from(!segment.payload.is_empty());
        }
        if let Some(backlog) = &mut place.backlog {
            if backlog.len() < BACKLOG_SEGMENTS {
                backlog.push_back(segment.clone());
            }
            return;
        }
        if let Some(sock) = &mut place.sock {
            sock.input(&mut self.core, segment);
        }
        self.settle(at);
    }

    /// A full socket in the place of the request or for a cookie, with its first input.
    pub(crate) fn adopt(&mut self, request: &Request, segment: &Segment) {
        let pair = (segment.dst, segment.src);
        let (at, id) = self.take_place();
        let mut first = segment.clone();
        first.flags &= !flags::SYN;
        let sock = request.child(&self.core, id, &first);
        self.places[at].sock = Some(Box::new(sock));
        self.table.insert(
            pair,
            Entry {
                kind: Kind::Full(at),
                armed: None,
            },
        );
        if let Some(listener) = self.listener_for(pair.0) {
            listener.queue.push_back(id);
        }
        self.core.event(id, EventKind::Incoming);
        self.input_full(at, &first);
    }

    pub(crate) fn next_cookie(&mut self) -> u64 {
        self.cookie_last += 1;
        self.cookie_last
    }

    fn take_place(&mut self) -> (usize, SockId) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(Slot {
                generation: 0,
                sock: None,
                backlog: None,
            });
            self.places.len() - 1
        });
        self.places[at].generation += 1;
        (
            at,
            SockId(u64::from(self.places[at].generation) << 32 | at as u64),
        )
    }

    fn place_of(&self, id: SockId) -> Option<usize> {
        let at = (id.0 & 0xffff_ffff) as usize;
        let place = self.places.get(at)?;
        (u64::from(place.generation) == id.0 >> 32 && place.sock.is_some()).then_some(at)
    }

    fn with<T>(
        &mut self,
        now: Ns,
        id: SockId,
        f: impl FnOnce(&mut Sock, &mut Core) -> T,
    ) -> Option<T> {
        self.core.now = now;
        let at = self.place_of(id)?;
        let result = f(self.places[at].sock.as_mut()?, &mut self.core);
        self.settle(at);
        Some(result)
    }

    /// After every call on a full socket: it leaves the table if it must, its timer is set.
    fn settle(&mut self, at: usize) {
        let Some(sock) = &mut self.places[at].sock else {
            return;
        };
        let pair = (sock.local, sock.remote);
        let gone = sock.dead && (sock.fate.is_some() || sock.state == State::Close);
        let id = sock.id;
        let hashed =
            matches!(self.table.get(&pair), Some(Entry { kind: Kind::Full(a), .. }) if *a == at);
        match sock.fate.take() {
            Some(Fate::TimeWait(substate, length)) => {
                let now = self.core.now;
                let tw = Box::new(TimeWait::of(sock, now, substate, length));
                sock.state = State::Close;
                self.disarm(pair);
                self.table.insert(
                    pair,
                    Entry {
                        kind: Kind::TimeWait(tw),
                        armed: None,
                    },
                );
                self.arm(pair);
            }
            Some(Fate::Done) if hashed => self.remove_entry(pair),
            None if hashed => {
                #[cfg(debug_assertions)]
                sock.check();
                self.arm(pair);
            }
            _ => {}
        }
        if gone {
            let place = &mut self.places[at];
            place.sock = None;
            place.backlog = None;
            self.free.push(at);
            self.core.event(id, EventKind::Closed);
        }
    }

    fn due_of(&self, entry: &Entry) -> Option<Ns> {
        match &entry.kind {
            Kind::Full(at) => {
                let place = &self.places[*at];
                let held = place.backlog.is_some();
                place
                    .sock
                    .as_ref()
                    .filter(|_| !held)
                    .and_then(|sock| sock.next_timer())
            }
            Kind::Request(request) => Some(request.due),
            Kind::TimeWait(tw) => Some(tw.until),
        }
    }

    /// H2: sets the entry's timer anew.
    pub(crate) fn arm(&mut self, pair: Pair) {
        let Some(due) = self.table.get(&pair).map(|entry| self.due_of(entry)) else {
            return;
        };
        let Some(entry) = self.table.get_mut(&pair) else {
            return;
        };
        if entry.armed == due {
            return;
        }
        if let Some(old) = entry.armed {
            self.timers.remove(&(old, pair));
        }
        if let Some(new) = due {
            self.timers.insert((new, pair));
        }
        entry.armed = due;
    }

    fn disarm(&mut self, pair: Pair) {
        if let Some(old) = self
            .table
            .get_mut(&pair)
            .and_then(|entry| entry.armed.take())
        {
            self.timers.remove(&(old, pair));
        }
    }

    /// Takes an entry out of the table; a full socket lives on for its owner.
    pub(crate) fn remove_entry(&mut self, pair: Pair) {
        self.disarm(pair);
        let Some(entry) = self.table.remove(&pair) else {
            return;
        };
        if let Kind::Request(_) = entry.kind {
            if let Some(listener) = self.listener_for(pair.0) {
                listener.requests -= 1;
            }
        }
    }

    /// Checks the invariants of the tables and of every connection; panics with the number of the
    /// broken one.
    pub fn check_invariants(&self) {
        let mut armed = 0;
        for (pair, entry) in &self.table {
            if let Kind::Full(at) = entry.kind {
                let sock = self.places[at]
                    .sock
                    .as_ref()
                    .expect("H1: an entry without its socket");
                assert_eq!(
                    (sock.local, sock.remote),
                    *pair,
                    "H1: a socket under another's pair"
                );
                assert_ne!(sock.state, State::Close, "H1: a closed socket in the table");
                sock.check();
            }
            assert_eq!(entry.armed, self.due_of(entry), "H2: {pair:?}");
            if let Some(at) = entry.armed {
                assert!(
                    self.timers.contains(&(at, *pair)),
                    "H2: {pair:?} is not armed"
                );
                armed += 1;
            }
        }
        assert_eq!(armed, self.timers.len(), "H2: timers without an entry");
        for (place, listener) in &self.listeners {
            let requests = self.table.iter().filter(|(pair, entry)| {
                matches!(entry.kind, Kind::Request(_)) && self.place_for(pair.0) == Some(*place)
            });
            assert_eq!(requests.count(), listener.requests, "H3: {place:?}");
        }
    }
}
