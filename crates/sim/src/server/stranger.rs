// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another server on another address of Redis's port. It says the same to whatever it hears.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;

use erb_sim_path::Context;
use erb_sim_tcp::SockId;

use super::Server;

/// What it says to each segment that it reads.
pub const STRANGERS_WORDS: &[u8] = b"$8\r\nstranger\r\n";

/// Where it listens, and its connections.
#[derive(Debug, Default)]
pub struct Stranger {
    at: Option<SocketAddr>,
    /// Where it has ever listened.
    had: BTreeSet<SocketAddr>,
    socks: BTreeSet<SockId>,
}

impl Server {
    /// Another server begins to listen.
    pub fn stranger_listens(&self, at: SocketAddr) {
        self.stranger.borrow_mut().at = Some(at);
        self.stranger.borrow_mut().had.insert(at);
        self.host.borrow_mut().listen_at(at, 128);
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
        let at = stranger.at;
        let accepted = at.and_then(|at| self.host.borrow_mut().accept_at(at));
        stranger.socks.extend(accepted);
        if !stranger.socks.contains(&sock) {
            return accepted.is_some();
        }
        drop(stranger);
        let Some(pair) = self.pairs.borrow().get(&sock).copied() else {
            return true;
        };
        let server = self.clone();
        self.cpus.spawn(0, Context::Process, move || {
            server.own(pair);
            let mut heard = Vec::new();
            let now = server.inner.now();
            server.host.borrow_mut().recv(now, sock, 4096, &mut heard);
            if !heard.is_empty() {
                server.host.borrow_mut().send(now, sock, STRANGERS_WORDS);
            }
            server.send_out(Some(pair));
            server.disown(pair);
        });
        true
    }
}
