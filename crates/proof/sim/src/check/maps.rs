// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbered invariants of `bpf/`, on what the maps hold. Looked at while no program is under
//! way: then no lock is held and nothing is half done.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};

use erb_abi as abi;
use erb_sim_kernel::{Datapath, Sock, tcp_state};

use crate::time::Ns;
use crate::violation::Violation;

/// What was seen of an entry the last time.
#[derive(Clone, Copy)]
pub struct Seen {
    cookie: u64,
    /// Bytes of requests that were answered fast.
    pub in_delta: u32,
    out_delta: u32,
    edge: u32,
    next: u32,
    requests: u32,
    replies: u32,
    last_tsval: u32,
    /// Looks between which answers went on while the kernel lacked an acknowledgement.
    pub starved: u32,
}

/// Looks after which a kernel without its acknowledgements counts as starved: single ones may get
/// lost behind the data path.
const STARVED_LOOKS: u32 = 4;

/// Whose part of entries is judged beside the splice's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handler {
    /// Redis's.
    #[default]
    Redis,
    /// Nobody's: the handler is another.
    Other,
}

/// Holds what has to be compared between two looks.
#[derive(Default)]
pub struct Maps {
    handler: Handler,
    conns: BTreeMap<([u8; 16], u16), Seen>,
    versions: Vec<u64>,
    global_version: u64,
    /// Of each place in which entries were counted, the key of one, and how many there are.
    clients: BTreeMap<u32, (abi::conn_key, u32)>,
}

/// The address pair of an entry: client, server.
#[must_use]
pub fn addresses(key: &abi::conn_key) -> (SocketAddr, SocketAddr) {
    let address = |bytes: [u8; 16], port_be: u16| {
        SocketAddr::new(Ipv6Addr::from(bytes).to_canonical(), u16::from_be(port_be))
    };
    (
        address(key.client_addr, key.client_port_be),
        address(key.server_addr, key.server_port_be),
    )
}

/// a - b in sequence order.
const fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Maps {
    /// For entries of this handler.
    #[must_use]
    pub fn of(handler: Handler) -> Self {
        Self {
            handler,
            ..Self::default()
        }
    }

    /// Looks at everything. `sock` shows the server's socket of a client and server address.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn check(
        &mut self,
        now: Ns,
        path: &Datapath,
        sock: impl Fn(SocketAddr, SocketAddr) -> Option<Sock>,
    ) -> Result<(), Violation> {
        let broken = |rule, text: String| Violation::new(rule, now, text);
        if path.stat(abi::STAT_INVARIANT) > 0 {
            let text = "the data path itself has counted a broken invariant";
            return Err(broken("invariant", text.to_owned()));
        }
        let handler = self.handler;
        // SAFETY: the map has one value, which stays where it is; no program runs.
        let control = unsafe { *path.control() };
        let lsn = control.order.lsn;
        let mut error = None;
        let mut held = Held::default();
        let mut seen = BTreeMap::new();
        self.clients.values_mut().for_each(|(_, count)| *count = 0);
        let clients = &mut self.clients;
        path.each_conn(|key, conn| {
            if handler == Handler::Redis {
                held.add(conn);
            }
            let place = path.client_place(key);
            clients.entry(place).or_insert((*key, 0)).1 += 1;
            let (client, server) = addresses(key);
            let at = (key.client_addr, key.client_port_be);
            let view = sock(client, server).filter(|_| !is_unread(&control, conn));
            let old = self.conns.get(&at);
            let found = check_conn(conn)
                .and_then(|()| match handler {
                    Handler::Redis => check_redis(conn),
                    Handler::Other => Ok(()),
                })
                .and_then(|()| check_kernel(conn, view.as_ref()))
                .and_then(|()| old.map_or(Ok(()), |old| check_moved(old, conn, handler)))
                .and_then(|()| check_waits(conn, lsn));
            if let Err((rule, text)) = found {
                error.get_or_insert_with(|| broken(rule, format!("entry of {client}: {text}")));
            }
            let mut now_seen = note(conn);
            now_seen.starved = starved(self.conns.get(&at), conn, view.as_ref());
            if now_seen.starved >= STARVED_LOOKS {
                let text = "answers go on, but the kernel never got the acknowledgement";
                error.get_or_insert_with(|| broken("ack", format!("entry of {client}: {text}")));
            }
            seen.insert(at, now_seen);
        });
        self.conns = seen;
        if let Some(error) = error {
            return Err(error);
        }
        check_buffers(path).map_err(|(rule, text)| broken(rule, text))?;
        super::places::check(path, handler).map_err(|(rule, text)| broken(rule, text))?;
        self.check_clients(path)
            .map_err(|(rule, text)| broken(rule, text))?;
        self.check_shares(path, &held)
            .map_err(|(rule, text)| broken(rule, text))
    }

    /// L4: entries are counted by address.
    fn check_clients(&self, path: &Datapath) -> Result<(), Broken> {
        for (key, entries) in self.clients.values() {
            let counted = path.client_count(key);
            if counted != *entries {
                let client = addresses(key).0.ip();
                let text = format!("{client} has {entries} entries, {counted} are counted");
                return Err(("L4", text));
            }
        }
        Ok(())
    }

    /// U1: marks and the fence are the sum of what connections hold. C2: versions only grow.
    fn check_shares(&mut self, path: &Datapath, held: &Held) -> Result<(), Broken> {
        // SAFETY: the map has one value, which stays where it is; no program runs.
        let control = unsafe { *path.control() };
        let waiting = control.fence_answered - control.fence_settled;
        if control.fence != held.fence + waiting {
            let text = format!(
                "fence is {}, connections hold {}, {waiting} wait to be settled",
                control.fence, held.fence
            );
            return Err(("U1", text));
        }
        if control.global_version < self.global_version {
            return Err(("C2", "the global version went back".to_owned()));
        }
        self.global_version = control.global_version;
        self.versions.resize(path.set_count(), 0);
        let mut marks = held.marks.clone();
        for (index, version) in self.versions.iter_mut().enumerate() {
            let (set, _) = path.set(index);
            let expected = marks.remove(&(index as u32)).unwrap_or(0);
            if set.marks != expected {
                let text = format!(
                    "set {index} has {} marks, connections {expected}",
                    set.marks
                );
                return Err(("U1", text));
            }
            if set.version < *version {
                return Err(("C2", format!("the version of set {index} went back")));
            }
            *version = set.version;
        }
        match marks.keys().next() {
            Some(set) => Err((
                "U1",
                format!("a mark names set {set}, which does not exist"),
            )),
            None => Ok(()),
        }
    }
}

/// Y5: an entry waits for what was given.
fn check_waits(conn: &abi::conn, lsn: u64) -> Result<(), Broken> {
    if conn.waits_for > lsn {
        return Err(("Y5", format!("waits for {} of {lsn}", conn.waits_for)));
    }
    Ok(())
}

/// Rule and text.
pub type Broken = (&'static str, String);

/// What all connections hold.
#[derive(Default)]
struct Held {
    fence: u64,
    marks: BTreeMap<u32, u32>,
}

impl Held {
    fn add(&mut self, conn: &abi::conn) {
        for number in 0..conn
            .h
            .mark_head
            .wrapping_sub(conn.h.mark_tail)
            .min(abi::MARKS_IN_FLIGHT)
        {
            let mark = mark_at(conn, number);
            if mark.set >= abi::EFFECT_EXEC {
                self.fence += 1;
            } else {
                *self.marks.entry(mark.set & abi::MARK_SET).or_default() += 1;
            }
        }
        for flag in [abi::CONN_F_FENCE_PROOF, abi::CONN_F_OVERFLOW] {
            self.fence += u64::from(u32::from(conn.flags) & flag != 0);
        }
    }
}

fn mark_at(conn: &abi::conn, number: u32) -> abi::mark {
    let at = conn.h.mark_tail.wrapping_add(number) % abi::MARKS_IN_FLIGHT;
    conn.h.marks[at as usize]
}

/// What is compared at the next look.
#[must_use]
pub const fn note(conn: &abi::conn) -> Seen {
    Seen {
        cookie: conn.cookie,
        in_delta: conn.in_delta,
        out_delta: conn.out_delta,
        edge: conn.edge,
        next: conn.next,
        requests: conn.requests,
        replies: conn.replies,
        last_tsval: conn.last_tsval,
        starved: 0,
    }
}

/// No acknowledgement that is new to the kernel may be swallowed: it is answered at XDP only if it
/// has them all, else the TC tier lets them through.
#[must_use]
pub fn starved(old: Option<&Seen>, conn: &abi::conn, sock: Option<&Sock>) -> u32 {
    let (Some(old), Some(sock)) = (old, sock) else {
        return 0;
    };
    let same = old.cookie == conn.cookie && sock.cookie == conn.cookie;
    let lacks = conn.out_delta != 0 && ahead(conn.edge, sock.snd_una) > 0;
    if !same || !lacks || sock.state != tcp_state::ESTABLISHED {
        return 0;
    }
    old.starved + u32::from(conn.in_delta != old.in_delta)
}

const fn has(conn: &abi::conn, flag: u32) -> bool {
    conn.flags as u32 & flag != 0
}

/// O4: who has a buffer is its owner, and nobody else has one; O1: what is kept fits into it.
fn check_buffers(path: &Datapath) -> Result<(), Broken> {
    let mut owners: Vec<u64> = path.aheads().map(|buffer| buffer.owner).collect();
    let mut error = None;
    path.each_conn(|_, conn| {
        if !has(conn, abi::CONN_F_AHEAD) {
            return;
        }
        let owner = owners.get_mut(usize::from(conn.ahead).wrapping_sub(1));
        if owner.as_ref().is_none_or(|owner| **owner != conn.cookie) || conn.ahead_busy != 0 {
            let text = format!("buffer {} is not that of its connection", conn.ahead);
            error.get_or_insert(("O4", text));
        } else if let Some(owner) = owner {
            *owner = 0;
        }
    });
    if let Some(number) = owners.iter().position(|owner| *owner != 0) {
        error.get_or_insert(("O4", format!("nobody has buffer {}", number + 1)));
    }
    let broken = path.aheads().find(|buffer| !ranges_fit(buffer));
    if broken.is_some_and(|buffer| buffer.owner != 0) {
        error.get_or_insert(("O1", "what is kept does not fit its buffer".to_owned()));
    }
    error.map_or(Ok(()), Err)
}

/// Ranges are not empty, do not touch each other, and lie within the size of the buffer.
fn ranges_fit(buffer: &abi::ahead) -> bool {
    let Some(ranges) = buffer.ranges.get(..buffer.count as usize) else {
        return false;
    };
    ranges.iter().enumerate().all(|(at, range)| {
        let apart = |other: &abi::ahead_range| {
            ahead(range.from, other.end) > 0 || ahead(other.from, range.end) > 0
        };
        ahead(range.end, range.from) > 0
            && ranges[at + 1..].iter().all(apart)
            && ranges
                .iter()
                .all(|other| ahead(range.end, other.from) <= abi::AHEAD_BYTES as i32)
    })
}

/// H3: what the splice is told of both streams is what the scanners say.
fn check_streams(conn: &abi::conn) -> Result<(), Broken> {
    let (requests, replies) = (&conn.h.in_, &conn.h.out);
    let within = [requests.state != 0, replies.state != 0 || replies.left != 0];
    let told = [conn.in_at, conn.out_at].map(|at| u32::from(at) == abi::STREAM_WITHIN);
    if told == within {
        return Ok(());
    }
    Err((
        "H3",
        format!("within a request, a reply: {within:?}, but {told:?} is noted"),
    ))
}

/// What the splice's part of an entry says by itself: T2, T3, T6.
///
/// # Errors
/// The first that is broken.
pub fn check_conn(conn: &abi::conn) -> Result<(), Broken> {
    let kept = ahead(conn.edge.wrapping_add(conn.out_delta), conn.replay_from);
    if conn.out_delta != 0 && !(0..=abi::REPLAY_BYTES as i32).contains(&kept) {
        return Err(("T2", format!("the replay buffer would hold {kept} bytes")));
    }
    if !has(conn, abi::CONN_F_SCAN_LOST) {
        if ahead(conn.in_edge, conn.next) > 0 {
            return Err(("T3", "in_edge is ahead of next".to_owned()));
        }
        if ahead(conn.up_max, conn.next) > 0 {
            let by = ahead(conn.up_max, conn.next);
            return Err(("T3", format!("up_max is {by} bytes ahead of next")));
        }
    }
    if !has(conn, abi::CONN_F_UNCOUNTABLE) && ahead(conn.replies, conn.requests) > 0 {
        let text = format!("{} replies to {} requests", conn.replies, conn.requests);
        return Err(("T6", text));
    }
    Ok(())
}

/// The same for Redis's part: H3, T6, S.
///
/// # Errors
/// The first that is broken.
pub fn check_redis(conn: &abi::conn) -> Result<(), Broken> {
    check_streams(conn)?;
    let used = conn.h.mark_head.wrapping_sub(conn.h.mark_tail);
    if used + u32::from(conn.h.half) > abi::MARKS_IN_FLIGHT {
        let text = format!("the ring holds {used} marks, {} wait", conn.h.half);
        return Err(("T6", text));
    }
    if conn.h.half != 0 && conn.h.in_.state == 0 && conn.h.late == 0 {
        let text = format!("{} keys wait for no command", conn.h.half);
        return Err(("S", text));
    }
    if has(conn, abi::CONN_F_UNCOUNTABLE) {
        return Ok(());
    }
    let mut before = conn.replies;
    for number in 0..used {
        let request = mark_at(conn, number).request;
        if ahead(request, before) < 0 || ahead(request, conn.requests) > 0 {
            let text = format!("a mark is for request {request} of {}", conn.requests);
            return Err(("T6", text));
        }
        if ahead(request, conn.replies) <= 0 {
            return Err((
                "T6",
                format!("a mark outlived the reply to request {request}"),
            ));
        }
        before = request;
    }
    Ok(())
}

/// Whether the stream goes on without the entry, which is to go: L6.
pub(super) const fn is_unread(control: &abi::control, conn: &abi::conn) -> bool {
    control.stopping >= abi::STOPPING_UNREAD && conn.in_delta | conn.out_delta == 0
}

/// An entry beside its socket: the splice is exact.
///
/// # Errors
/// Which rule says that it is not.
pub fn check_kernel(conn: &abi::conn, sock: Option<&Sock>) -> Result<(), Broken> {
    let Some(sock) = sock else { return Ok(()) };
    let tracked = conn.state != abi::CONN_OLD as u8 && !has(conn, abi::CONN_F_SCAN_LOST);
    if sock.cookie != conn.cookie || sock.state != tcp_state::ESTABLISHED || !tracked {
        return Ok(());
    }
    let read_to = sock.rcv_nxt.wrapping_add(conn.in_delta);
    if ahead(read_to, conn.up_max) > 0 {
        let by = ahead(read_to, conn.up_max);
        return Err((
            "T1",
            format!("the kernel has {by} bytes more than ever went up"),
        ));
    }
    if ahead(conn.edge, sock.write_seq) > 0 {
        return Err(("T4", "the edge is ahead of what the kernel has".to_owned()));
    }
    if conn.out_delta != 0 && ahead(conn.egress_max, conn.edge) < 0 {
        return Err(("T4", "the edge is ahead of what has left".to_owned()));
    }
    Ok(())
}

/// An entry beside itself at the last look: T1, T4.
///
/// # Errors
/// The first that is broken.
pub fn check_moved(old: &Seen, conn: &abi::conn, handler: Handler) -> Result<(), Broken> {
    if old.cookie != conn.cookie || old.cookie == 0 {
        return Ok(());
    }
    let (requests, replies) = (
        conn.in_delta != old.in_delta,
        conn.out_delta != old.out_delta,
    );
    if requests != replies {
        return Err(("T1", "one delta moved without the other".to_owned()));
    }
    if ahead(conn.in_delta, old.in_delta) < 0 || ahead(conn.out_delta, old.out_delta) < 0 {
        return Err(("T1", "a delta went back".to_owned()));
    }
    if ahead(conn.edge, old.edge) < 0 || (conn.edge != old.edge && !replies) {
        return Err(("T4", "the edge moved without a delta".to_owned()));
    }
    if ahead(conn.next, old.next) < 0 {
        return Err(("T3", "next went back".to_owned()));
    }
    // An admission, which Redis's handler alone has, counts anew.
    let recounted = u32::from(conn.h.kept) & abi::CONN_K_RECOUNTED != 0;
    let counts_on = handler == Handler::Other || !recounted;
    let back = ahead(conn.requests, old.requests) < 0 || ahead(conn.replies, old.replies) < 0;
    if counts_on && back {
        return Err(("T6", "a count went back".to_owned()));
    }
    if old.last_tsval != 0 && ahead(conn.last_tsval, old.last_tsval) < 0 {
        return Err((
            "timestamps",
            "the timestamp sent to the client went back".to_owned(),
        ));
    }
    Ok(())
}
