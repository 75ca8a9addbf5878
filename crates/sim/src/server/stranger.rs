// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another server on another address of Redis's port: it says the same to whatever it hears, or echoes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use erb_sim_path::Context;
use erb_sim_tcp::SockId;

use super::{Pair, Server};

/// What it says to each segment that it reads.
pub const STRANGERS_WORDS: &[u8] = b"$8\r\nstranger\r\n";

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
        let mut heard = Vec::new();
        self.host.borrow_mut().recv(now, sock, 4096, &mut heard);
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
