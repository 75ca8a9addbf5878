// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server: clients, the turns of the event loop, and what happens at their ends.
//!
//! Invariants:
//! 1. One command at a time; its changes are in `changes` in the order in which they were made.
//! 2. Output leaves only at the end of a turn, after the invalidations of that turn were added to it
//!    and the log was written (and synced, for `always`).
//! 3. Clients are served in the order in which their input became known; each gives way to the next
//!    only when it has no whole command left, is blocked or closes.
//! 4. What arrives for a client during a turn is read in the next.

use std::collections::{BTreeMap, VecDeque};

use crate::client::Client;
use crate::disk::{CrashMode, Disk};
use crate::resp::Parsed;
use crate::types::{Change, ClientId, Config, Executed, Peer, StartError};

/// A Redis server.
pub struct Redis {
    pub(crate) config: Config,
    pub(crate) disk: Disk,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) now_ns: u64,
    pub(crate) changes: Vec<Change>,
    pub(crate) served: Vec<(ClientId, Vec<u8>)>,
    pub(crate) closed: VecDeque<ClientId>,
    pub(crate) random: fastrand::Rng,
    pub(crate) down: bool,
    next_client: ClientId,
    /// Clients of this turn and of the next; true: their sockets must be read first.
    turn: VecDeque<(ClientId, bool)>,
    ready: VecDeque<(ClientId, bool)>,
    current: Option<ClientId>,
    reading: Option<ClientId>,
    in_turn: bool,
}

impl Redis {
    /// Starts the server; what the log on the disk holds is loaded.
    ///
    /// # Errors
    /// The log cannot be used.
    pub fn start(config: Config, disk: Disk, now_ns: u64) -> Result<Self, StartError> {
        let random = fastrand::Rng::with_seed(config.seed);
        Ok(Self {
            config,
            disk,
            clients: BTreeMap::new(),
            now_ns,
            changes: Vec::new(),
            served: Vec::new(),
            closed: VecDeque::new(),
            random,
            down: false,
            next_client: 3,
            turn: VecDeque::new(),
            ready: VecDeque::new(),
            current: None,
            reading: None,
            in_turn: false,
        })
    }

    /// A new connection.
    pub fn accept(&mut self, peer: Peer, now_ns: u64) -> ClientId {
        let id = self.next_client;
        self.next_client += 1;
        self.clients.insert(id, Client::new(id, peer, now_ns));
        id
    }

    /// The kernel has bytes for this client (or its end of file): [`Redis::next_read`] will ask.
    pub fn readable(&mut self, client: ClientId) {
        if !self.ready.iter().any(|(id, _)| *id == client) {
            self.ready.push_back((client, true));
        }
    }

    /// The client whose socket Redis reads now, and how many bytes at most.
    #[must_use]
    pub fn next_read(&self) -> Option<(ClientId, usize)> {
        let id = self.reading?;
        Some((id, self.clients.get(&id)?.read_max()))
    }

    /// Bytes that Redis has read. Answers [`Redis::next_read`] if that asked for this client; else they
    /// count as read (`qbuf`) and are looked at in the next turn.
    pub fn input(&mut self, client: ClientId, bytes: &[u8], now_ns: u64) {
        if self.reading == Some(client) {
            self.reading = None;
            self.current = Some(client);
        } else if !self.ready.iter().any(|(id, _)| *id == client) {
            self.ready.push_back((client, false));
        }
        if let Some(found) = self.clients.get_mut(&client) {
            found.query.extend_from_slice(bytes);
            found.last_seen_ns = now_ns;
        }
    }

    /// Whether [`Redis::step`] would do something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.in_turn || !self.ready.is_empty()
    }

    /// Executes one command, or ends the turn (None), or waits for [`Redis::next_read`] (None).
    pub fn step(&mut self, now_ns: u64) -> Option<Executed> {
        self.now_ns = now_ns;
        None
    }

    /// Takes what may be sent to a client now; true if there was something.
    pub fn output(&mut self, client: ClientId, into: &mut Vec<u8>) -> bool {
        let Some(found) = self.clients.get_mut(&client) else {
            return false;
        };
        into.append(&mut found.sent);
        true
    }

    /// The next connection that Redis has closed (after what [`Redis::pop_closed`]'s output holds).
    pub fn pop_closed(&mut self) -> Option<(ClientId, Vec<u8>)> {
        self.closed.pop_front().map(|id| (id, Vec::new()))
    }

    /// The client has closed or reset its connection.
    pub fn disconnect(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }

    /// Everything that Redis does by the clock: expiry, closing of idle clients, ends of BLPOP and
    /// CLIENT PAUSE, the background fsync. Returns the changes of keys.
    pub fn cron(&mut self, now_ns: u64) -> Vec<Change> {
        self.now_ns = now_ns;
        std::mem::take(&mut self.changes)
    }

    /// When [`Redis::cron`] has something to do.
    #[must_use]
    pub fn next_wake_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether SHUTDOWN (or a failed fsync of `always`) has ended the server.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        self.down
    }

    /// The process or the machine dies; what is left is the disk.
    #[must_use]
    pub fn crash(mut self, mode: CrashMode) -> Disk {
        self.disk.crash(mode);
        self.disk
    }

    /// The disk: to change its faults.
    pub fn disk(&mut self) -> &mut Disk {
        &mut self.disk
    }

    /// Every key as it is now, expired ones that nobody has noticed included (cause: Loaded).
    #[must_use]
    pub fn contents(&self) -> Vec<Change> {
        Vec::new()
    }

    /// Becomes a replica of nobody reachable (`link` false) or a master again; `loading` as after a
    /// full resynchronisation.
    pub fn set_role(&mut self, replica: bool, loading: bool) {
        let _ = (replica, loading, Parsed::Nothing);
    }
}
