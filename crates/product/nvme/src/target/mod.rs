// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target: connections, and what they share. Whoever drives it brings bytes, time, random numbers and a
//! [`Backend`], computes [`Job`]s elsewhere, and sends what it says.
//!
//! Invariants:
//! 1. Memory is bounded by [`Limits`](crate::limits::Limits), whatever peers send: [`Target::counts`] shows what is held.
//! 2. A connection's id is not given twice.

mod admin;
mod commands;
mod config;
mod connection;
mod controller;
mod discovery;
mod fabrics;
mod identify;
mod io;
mod logs;
mod pool;
mod subsystem;

pub use admin::feature;
pub use config::{Config, Host, Namespace, Port, Proof, Role};
pub use connection::Ended;
pub use controller::Event;
pub use fabrics::{
    ANY_CONTROLLER, CONNECT_BYTES, DISCOVERY_NQN, RESULT_AUTHENTICATION, connect_field, property,
};
pub use identify::page;
pub use logs::log;
pub use subsystem::ConnectionId;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::auth::{Computed, Job};
use crate::backend::Backend;
use crate::random::Random;
use connection::{Connection, Context};
use subsystem::Subsystem;

/// What a target holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections.
    pub connections: usize,
    /// Of these, those whose hosts are not known yet.
    pub strangers: usize,
    /// Commands under way.
    pub commands: usize,
    /// Bytes of replies that are not sent.
    pub unsent_bytes: usize,
    /// Bytes of the pool that are reserved.
    pub reserved_bytes: usize,
    /// Requests in the backend.
    pub requests: usize,
    /// Controllers.
    pub controllers: usize,
    /// Listings that are open.
    pub listings: usize,
    /// Fences that wait.
    pub fences: usize,
    /// Diffie-Hellman computations that wait or run.
    pub jobs: usize,
}

/// The target.
#[derive(Debug)]
pub struct Target<B> {
    subsystem: Subsystem,
    backend: B,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u64,
    jobs: VecDeque<(ConnectionId, Job)>,
    /// When all connections are looked at next.
    tick_us: u64,
}

/// All connections are looked at so often at least, for the sake of time.
const TICK_US: u64 = 100_000;

impl<B: Backend> Target<B> {
    /// Serves what `config` says out of `backend`.
    pub fn new(config: Config, backend: B, random: Box<dyn Random + Send>) -> Self {
        Self {
            subsystem: Subsystem::new(config, random),
            backend,
            connections: BTreeMap::new(),
            next_connection: 0,
            jobs: VecDeque::new(),
            tick_us: 0,
        }
    }

    /// The store behind it.
    pub fn backend(&mut self) -> &mut B {
        &mut self.backend
    }

    fn with<T>(
        &mut self,
        id: ConnectionId,
        now_us: u64,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let connection = self.connections.get_mut(&id)?;
        let mut cx = Context {
            subsystem: &mut self.subsystem,
            backend: &mut self.backend,
            jobs: &mut self.jobs,
            now_us,
        };
        Some(act(connection, &mut cx))
    }

    /// A connection came. Nothing: there is no room for it, and it should be closed.
    pub fn open(&mut self, is_loopback: bool, now_us: u64) -> Option<ConnectionId> {
        self.open_at(None, is_loopback, now_us)
    }

    /// The same, and where the peer has found this end.
    pub fn open_at(
        &mut self,
        found_at: Option<Port>,
        is_loopback: bool,
        now_us: u64,
    ) -> Option<ConnectionId> {
        let limits = &self.subsystem.config.limits;
        let strangers = self.connections.values();
        let strangers = strangers.filter(|it| !it.is_established()).count();
        if self.connections.len() >= limits.connections || strangers >= limits.strangers {
            return None;
        }
        self.next_connection += 1;
        let id = ConnectionId(self.next_connection);
        let cx = Context {
            subsystem: &mut self.subsystem,
            backend: &mut self.backend,
            jobs: &mut self.jobs,
            now_us,
        };
        let connection = Connection::new(id, found_at, is_loopback, &cx);
        self.connections.insert(id, connection);
        Some(id)
    }

    /// Whether a connection's host is not known yet.
    pub fn is_stranger(&self, id: ConnectionId) -> bool {
        let connection = self.connections.get(&id);
        connection.is_some_and(|it| !it.is_established())
    }

    /// Bytes came. Returns how many are taken; the rest is to be given again when [`Self::wants_bytes`] says so.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8], now_us: u64) -> usize {
        self.touch(id);
        let taken = self.with(id, now_us, |it, cx| it.receive(cx, bytes));
        taken.unwrap_or(bytes.len())
    }

    fn touch(&mut self, id: ConnectionId) {
        if self.connections.contains_key(&id) {
            self.subsystem.touch(id);
        }
    }

    /// Whether a connection takes bytes at present.
    pub fn wants_bytes(&mut self, id: ConnectionId, now_us: u64) -> bool {
        let wants = self.with(id, now_us, |it, cx| it.wants_bytes(cx));
        wants.unwrap_or(false)
    }

    /// The next bytes to send; nothing if there are none.
    pub fn output(&self, id: ConnectionId) -> &[u8] {
        let connection = self.connections.get(&id);
        connection.map_or(&[], |it| it.outbox.front())
    }

    /// All that is to be sent, in parts.
    pub fn outputs(&self, id: ConnectionId) -> impl Iterator<Item = &[u8]> {
        let connection = self.connections.get(&id);
        connection.into_iter().flat_map(|it| it.outbox.parts())
    }

    /// So many bytes of the output are sent.
    pub fn sent(&mut self, id: ConnectionId, count: usize, now_us: u64) {
        self.with(id, now_us, |it, cx| it.sent(cx, count));
    }

    /// A connection is gone.
    pub fn close(&mut self, id: ConnectionId, now_us: u64) {
        self.with(id, now_us, |it, cx| it.close(cx));
        self.connections.remove(&id);
        self.jobs.retain(|(owner, _)| *owner != id);
    }

    /// A computation to run elsewhere; [`Self::computed`] takes what comes of it.
    pub fn next_job(&mut self) -> Option<(ConnectionId, Job)> {
        if self.subsystem.computations >= self.subsystem.config.limits.computations {
            return None;
        }
        let job = self.jobs.pop_front()?;
        self.subsystem.computations += 1;
        Some(job)
    }

    /// A computation is done. Its connection may be gone.
    pub fn computed(&mut self, id: ConnectionId, computed: Computed) {
        self.subsystem.computations -= 1;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.computed(computed);
            self.subsystem.touch(id);
        }
    }

    /// Takes completions of the backend, looks at time, and lets connections go on. To be called after anything
    /// came, and 10 times a second. It costs as much as there are connections to which something came.
    pub fn turn(&mut self, now_us: u64) {
        while let Some((ticket, result)) = self.backend.completed() {
            if let Some(destination) = self.subsystem.done(ticket) {
                let command = destination.command;
                self.with(destination.connection, now_us, |it, cx| {
                    it.complete(cx, command, ticket, result);
                });
            }
        }
        let is_due = now_us >= self.tick_us;
        if is_due {
            self.tick_us = now_us + TICK_US;
            self.subsystem.tick(now_us);
        }
        let touched = self.subsystem.take_touched();
        let mut ids = match touched.filter(|_| !is_due) {
            Some(touched) => touched,
            None => self.connections.keys().copied().collect(),
        };
        loop {
            for id in ids {
                self.with(id, now_us, |it, cx| it.turn(cx));
            }
            // Each time one of those that wait for room has got some, or has ended: so this comes to an end.
            ids = self.subsystem.take_moved();
            if ids.is_empty() {
                return;
            }
        }
    }

    /// Connections that have ended and said their last words, with the reason: they are to be closed.
    pub fn over(&mut self, now_us: u64) -> Vec<(ConnectionId, Ended)> {
        let mut over = Vec::new();
        for id in self.subsystem.over.clone() {
            let ended = self.with(id, now_us, |it, cx| it.ended().filter(|_| it.is_over(cx)));
            over.extend(ended.flatten().map(|ended| (id, ended)));
        }
        over
    }

    /// The next of the last connections whose host is not listed, with the name that it gave.
    pub fn unlisted(&mut self) -> Option<(ConnectionId, String)> {
        self.subsystem.take_unlisted()
    }

    /// How many commands were refused because their hosts' roles do not allow them.
    pub fn denied(&self) -> u64 {
        self.subsystem.denied
    }

    /// Something happened that hosts may wait for.
    pub fn happened(&mut self, event: Event) {
        self.subsystem.happened(event);
    }

    /// Other hosts, or other roles and secrets. Connections of hosts that have changed end.
    pub fn set_hosts(&mut self, hosts: Vec<Arc<Host>>) {
        self.subsystem.set_hosts(hosts);
        self.subsystem.happened(Event::Discovery);
    }

    /// A namespace has another size.
    pub fn set_size(&mut self, namespace: u32, size_bytes: u64) {
        self.subsystem.set_size(namespace, size_bytes);
        self.subsystem.happened(Event::Namespaces);
    }

    /// What it holds.
    pub fn counts(&self) -> Counts {
        let [reserved_bytes, requests, controllers, listings, fences] = self.subsystem.counts();
        let all = || self.connections.values();
        Counts {
            connections: self.connections.len(),
            strangers: all().filter(|it| !it.is_established()).count(),
            commands: all().map(|it| it.slots.len()).sum(),
            unsent_bytes: all().map(|it| it.outbox.unsent()).sum(),
            reserved_bytes,
            requests,
            controllers,
            listings,
            fences,
            jobs: self.jobs.len() + self.subsystem.computations,
        }
    }
}
