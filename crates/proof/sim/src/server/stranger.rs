// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another server on another address of Redis's port: it says the same to whatever it hears, or echoes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use erb_abi::ControlPlane as _;
use erb_sim_kernel::{Context, Datapath};
use erb_sim_redis::CrashMode;
use erb_sim_tcp::SockId;

use super::{Pair, Server};
use crate::client::machine::{PORT, server_ip};
use crate::fault::Fault;
use crate::inner::Event;
use crate::time::{MS, Ns};

/// What it says to each segment that it reads.
pub const STRANGERS_WORDS: &[u8] = b"$8\r\nstranger\r\n";

/// What it reads at once at most.
const READ_BYTES: usize = 4096;
/// The longest that a slow one rests between two reads.
const REST_MAX: Ns = 30 * MS;

/// What another server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Says {
    /// [`STRANGERS_WORDS`] to whatever it reads at once.
    #[default]
    Words,
    /// What it has read: each byte of its clients can be checked.
    Echo,
}

/// Where it listens, and its connections.
#[derive(Debug, Default)]
pub struct Stranger {
    at: Option<SocketAddr>,
    says: Says,
    /// Where it has ever listened.
    had: BTreeSet<SocketAddr>,
    socks: BTreeSet<SockId>,
    /// Those that it rests from.
    resting: BTreeSet<SockId>,
    /// Answers that TCP has not taken yet.
    unsent: BTreeMap<SockId, Vec<u8>>,
}

impl Server {
    /// Another server begins to listen.
    pub fn stranger_listens(&self, at: SocketAddr) {
        self.stranger.borrow_mut().at = Some(at);
        self.stranger.borrow_mut().had.insert(at);
        self.host.borrow_mut().listen_at(at, 128);
    }

    /// The same; it echoes.
    pub fn neighbour_listens(&self, at: SocketAddr) {
        self.stranger.borrow_mut().says = Says::Echo;
        self.stranger_listens(at);
    }

    /// It takes Redis's place on all of the port, and the data path serves it; nobody is the daemon.
    ///
    /// # Panics
    /// If the data path has no room for its listener.
    pub fn neighbour_is_served(self: &Rc<Self>) -> Datapath {
        self.crash_redis(CrashMode::Process);
        self.attach();
        let at = (server_ip(self.inner.plan.profile.ipv6), PORT).into();
        self.neighbour_listens(at);
        let path = self.attached_path().expect("it was just attached");
        for (_, cookie) in self.host.borrow().listeners(PORT) {
            self.cookies.borrow_mut().insert(cookie);
            let set = path.set_listener(cookie, Some(erb_abi::LISTENER_REDIS));
            assert_eq!(set, Ok(true), "there is room");
        }
        // SAFETY: the map has one value, which stays where it is; no program runs.
        let control = unsafe { &mut *path.control() };
        control.serving = 1;
        control.admit = 1;
        control.open = 1;
        control.lease_until_ns = Ns::MAX;
        path
    }

    /// It rests no more, and reads on.
    pub fn neighbour_reads(self: &Rc<Self>, sock: SockId) {
        self.stranger.borrow_mut().resting.remove(&sock);
        self.stranger_hears(sock);
    }

    /// Whether it owes a connection nothing that it has read.
    #[must_use]
    pub fn has_echoed(&self, pair: Pair) -> bool {
        let look = self.host.borrow().lookup(pair.0, pair.1);
        let stranger = self.stranger.borrow();
        let unsent = look.and_then(|look| stranger.unsent.get(&look.id?));
        unsent.is_none_or(Vec::is_empty)
    }

    /// Where another server listens.
    #[must_use]
    pub fn stranger_at(&self) -> Option<SocketAddr> {
        self.stranger.borrow().at
    }

    /// It ends to listen; its connections stay.
    pub fn stranger_leaves(&self) {
        let at = self.stranger.borrow_mut().at.take();
        if let Some(at) = at {
            self.host.borrow_mut().unlisten_at(self.inner.now(), at);
        }
    }

    /// Whether this is an address of the machine's because another server has it.
    pub(super) fn is_strangers(&self, address: SocketAddr) -> bool {
        self.stranger.borrow().had.contains(&address)
    }

    /// Takes a new connection of its, or what one of them has read; false if it is none of its.
    pub(super) fn stranger_hears(self: &Rc<Self>, sock: SockId) -> bool {
        let mut stranger = self.stranger.borrow_mut();
        let before = stranger.socks.len();
        if let Some(at) = stranger.at {
            let accepted = std::iter::from_fn(|| self.host.borrow_mut().accept_at(at));
            stranger.socks.extend(accepted);
        }
        if !stranger.socks.contains(&sock) {
            return stranger.socks.len() > before;
        }
        if stranger.resting.contains(&sock) {
            return true;
        }
        drop(stranger);
        let Some(pair) = self.pairs.borrow().get(&sock).copied() else {
            self.stranger.borrow_mut().unsent.remove(&sock);
            return true;
        };
        let server = self.clone();
        self.cpus.spawn(0, Context::Process, move || {
            server.stranger_turn(sock, pair)
        });
        true
    }

    /// It reads a connection and answers what it can.
    fn stranger_turn(self: &Rc<Self>, sock: SockId, pair: Pair) {
        self.own(pair);
        let now = self.inner.now();
        let mut most = READ_BYTES;
        let slow = self.inner.plan.profile.server.slow_reader;
        if self.inner.happens(Fault::SlowReader, slow) {
            let mut random = self.inner.random.borrow_mut();
            most = random.usize(1..200);
            let rest = random.u64(0..REST_MAX);
            self.stranger.borrow_mut().resting.insert(sock);
            self.inner.at(now + rest, Event::NeighbourReads(sock));
        }
        let mut heard = Vec::new();
        self.host.borrow_mut().recv(now, sock, most, &mut heard);
        let mut stranger = self.stranger.borrow_mut();
        let says = stranger.says;
        let unsent = stranger.unsent.entry(sock).or_default();
        match says {
            Says::Words if heard.is_empty() => {}
            Says::Words => unsent.extend_from_slice(STRANGERS_WORDS),
            Says::Echo => unsent.extend_from_slice(&heard),
        }
        let taken = self.host.borrow_mut().send(now, sock, unsent);
        unsent.drain(..taken);
        let over = heard.is_empty() && unsent.is_empty() && says == Says::Echo;
        drop(stranger);
        if over && self.ended.borrow().contains(&sock) {
            self.host.borrow_mut().close(now, sock);
        }
        self.send_out(Some(pair));
        self.disown(pair);
        if !heard.is_empty() {
            self.stranger_hears(sock); // there may be more to read
        }
    }
}
