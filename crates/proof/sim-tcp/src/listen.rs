// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who listens where, and takes which connections.

use std::net::{IpAddr, SocketAddr};

use crate::Ns;
use crate::api::SockId;
use crate::host::{Host, Kind, Pair, Place};
use crate::request::Listener;

impl Host {
    /// Listens on a port, on all addresses; at most `backlog` requests and as many connections that
    /// wait for [`Host::accept`].
    pub fn listen(&mut self, port: u16, backlog: usize) {
        self.listen_on((None, port), backlog);
    }

    /// Listens on one address, before whoever listens on all.
    pub fn listen_at(&mut self, local: SocketAddr, backlog: usize) {
        self.listen_on((Some(local.ip()), local.port()), backlog);
    }

    fn listen_on(&mut self, place: Place, backlog: usize) {
        let cookie = self.next_cookie();
        self.listeners
            .entry(place)
            .or_insert_with(|| Listener::new(backlog, cookie))
            .backlog = backlog;
    }

    /// Listeners on a port: the address, none for all of them, and the cookie.
    pub fn listeners(&self, port: u16) -> Vec<(Option<IpAddr>, u64)> {
        let here = self.listeners.iter().filter(|(place, _)| place.1 == port);
        let mut found: Vec<_> = here.map(|(place, l)| (place.0, l.cookie)).collect();
        found.sort_unstable();
        found
    }

    /// Where listens who takes connections to this address.
    pub(crate) fn place_for(&self, local: SocketAddr) -> Option<Place> {
        let places = [(Some(local.ip()), local.port()), (None, local.port())];
        places
            .into_iter()
            .find(|place| self.listeners.contains_key(place))
    }

    pub(crate) fn listener_for(&mut self, local: SocketAddr) -> Option<&mut Listener> {
        let place = self.place_for(local)?;
        self.listeners.get_mut(&place)
    }

    /// Whether a segment with these numbers ends a handshake by SYN cookie:
    /// `bpf_tcp_check_syncookie`.
    pub fn is_cookie(
        &self,
        now: Ns,
        local: SocketAddr,
        remote: SocketAddr,
        (seq, ack): (u32, u32),
    ) -> bool {
        let listener = self.place_for(local).map(|place| &self.listeners[&place]);
        self.core.config.syncookies > 0
            && listener.is_some_and(|l| l.believes(now, &self.secret, (local, remote), (seq, ack)))
    }

    /// Stops listening: requests are forgotten, connections that nobody accepted are reset.
    pub fn unlisten(&mut self, now: Ns, port: u16) {
        self.unlisten_on(now, (None, port));
    }

    /// The same for a listener on one address.
    pub fn unlisten_at(&mut self, now: Ns, local: SocketAddr) {
        self.unlisten_on(now, (Some(local.ip()), local.port()));
    }

    fn unlisten_on(&mut self, now: Ns, place: Place) {
        self.core.now = now;
        let requests: Vec<Pair> = self
            .table
            .iter()
            .filter(|(pair, entry)| {
                matches!(entry.kind, Kind::Request(_)) && self.place_for(pair.0) == Some(place)
            })
            .map(|(pair, _)| *pair)
            .collect();
        let Some(listener) = self.listeners.remove(&place) else {
            return;
        };
        for id in listener.queue {
            self.abort(now, id);
        }
        let mut requests = requests;
        requests.sort();
        for pair in requests {
            self.remove_entry(pair);
        }
    }

    /// The oldest connection that waits on a port.
    pub fn accept(&mut self, port: u16) -> Option<SockId> {
        self.listeners.get_mut(&(None, port))?.queue.pop_front()
    }

    /// The same where somebody listens on one address.
    pub fn accept_at(&mut self, local: SocketAddr) -> Option<SockId> {
        let place = (Some(local.ip()), local.port());
        self.listeners.get_mut(&place)?.queue.pop_front()
    }
}
