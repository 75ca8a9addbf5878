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

use crate::cast::{Signed, Unsigned};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::aof::Aof;
use crate::client::{Argv, Blocked, Client};
use crate::db::Db;
use crate::disk::{CrashMode, Disk};
use crate::dispatch::CommandStat;
use crate::info::Stats;
use crate::resp::Parsed;
use crate::types::{Bytes, Change, ClientId, Config, Executed, Peer, StartError};

/// `serverCron` at hz 10.
const CRON_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Redis's first connection has this number.
const FIRST_CLIENT: ClientId = 3;

/// A Redis server.
pub struct Redis {
    pub(crate) config: Config,
    pub(crate) disk: Disk,
    pub(crate) dbs: Vec<Db>,
    /// When a field of a key of a database ends, ms.
    pub(crate) field_ends: BTreeMap<(u32, Bytes, Bytes), i64>,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) now_ns: u64,
    pub(crate) started_ns: u64,
    pub(crate) changes: Vec<Change>,
    pub(crate) served: Vec<(ClientId, Vec<u8>)>,
    pub(crate) random: fastrand::Rng,
    pub(crate) down: bool,
    pub(crate) replica: bool,
    pub(crate) loading: bool,
    /// The link of a replica to its master.
    pub(crate) link_up: bool,
    pub(crate) stats: Stats,
    pub(crate) command_stats: BTreeMap<&'static str, CommandStat>,
    /// Full name of the command that runs.
    pub(crate) running: &'static str,
    pub(crate) dirty: u64,
    pub(crate) aof: Aof,
    pub(crate) log_override: Option<Argv>,
    pub(crate) users: BTreeMap<String, crate::acl::User>,
    pub(crate) paused_until_ms: i64,
    pub(crate) pause_all: bool,
    /// Clients in BLPOP in the order of waiting; lists that may have something for them.
    pub(crate) waiting: Vec<ClientId>,
    pub(crate) ready_lists: Vec<(u32, Bytes)>,
    pub(crate) unblocked: VecDeque<ClientId>,
    /// Number of watched keys of all clients.
    pub(crate) watchers: usize,
    /// Tracking: changed keys per prefix with who changed them; readers per key; null or keys for
    /// the client whose command runs.
    pub(crate) broadcast: BTreeMap<Bytes, BTreeMap<Bytes, Option<ClientId>>>,
    pub(crate) tracked: BTreeMap<Bytes, BTreeSet<ClientId>>,
    pub(crate) pending_own: Vec<Option<Bytes>>,
    pub(crate) executing: Option<ClientId>,
    closed: VecDeque<(ClientId, Vec<u8>)>,
    next_client: ClientId,
    next_cron_ns: u64,
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
        let users = crate::acl::first_users(&config.requirepass);
        let mut redis = Self {
            random: fastrand::Rng::with_seed(config.seed),
            dbs: vec![Db::new(); config.databases as usize],
            field_ends: BTreeMap::new(),
            config,
            disk,
            clients: BTreeMap::new(),
            now_ns,
            started_ns: now_ns,
            changes: Vec::new(),
            served: Vec::new(),
            down: false,
            replica: false,
            loading: false,
            link_up: false,
            stats: Stats::default(),
            command_stats: BTreeMap::new(),
            running: "",
            dirty: 0,
            aof: Aof::default(),
            log_override: None,
            users,
            paused_until_ms: 0,
            pause_all: false,
            waiting: Vec::new(),
            ready_lists: Vec::new(),
            unblocked: VecDeque::new(),
            watchers: 0,
            broadcast: BTreeMap::new(),
            tracked: BTreeMap::new(),
            pending_own: Vec::new(),
            executing: None,
            closed: VecDeque::new(),
            next_client: FIRST_CLIENT,
            next_cron_ns: now_ns + CRON_NS,
            turn: VecDeque::new(),
            ready: VecDeque::new(),
            current: None,
            reading: None,
            in_turn: false,
        };
        redis.load()?;
        Ok(redis)
    }

    /// A new connection. Beyond `maxclients` it is refused: see [`Redis::pop_closed`].
    pub fn accept(&mut self, peer: Peer, now_ns: u64) -> ClientId {
        let id = self.next_client;
        self.next_client += 1;
        if self.clients.len() >= self.config.maxclients {
            self.stats.rejected += 1;
            let text = b"-ERR max number of clients reached\r\n".to_vec();
            self.closed.push_back((id, text));
            return id;
        }
        let mut client = Client::new(id, peer, now_ns);
        let obeyed = matches!(client.peer, Peer::Master(_));
        client.authenticated = obeyed || self.default_user().is_free();
        self.stats.connections += 1;
        self.clients.insert(id, client);
        id
    }

    fn enqueue(&mut self, client: ClientId, must_read: bool) {
        if !self.ready.iter().any(|(id, _)| *id == client) {
            self.ready.push_back((client, must_read));
        }
    }

    /// The kernel has bytes for this client: [`Redis::next_read`] will ask for them.
    pub fn readable(&mut self, client: ClientId) {
        self.enqueue(client, true);
    }

    /// The client whose socket Redis reads now, and how many bytes at most.
    #[must_use]
    pub fn next_read(&self) -> Option<(ClientId, usize)> {
        let id = self.reading?;
        Some((id, self.clients.get(&id)?.read_max()))
    }

    /// Bytes that Redis has read. Answers [`Redis::next_read`] if that asked for this client (none:
    /// nothing was there); else they count as read (`qbuf`) and are looked at in the next turn.
    pub fn input(&mut self, client: ClientId, bytes: &[u8], now_ns: u64) {
        if self.reading == Some(client) {
            self.reading = None;
            self.current = Some(client);
        } else {
            self.enqueue(client, false);
        }
        if let Some(found) = self.clients.get_mut(&client) {
            found.query.extend_from_slice(bytes);
            found.last_seen_ns = now_ns;
        }
    }

    /// The client has closed or reset its connection: what was read before is executed first.
    pub fn disconnect(&mut self, client: ClientId) {
        if self.reading == Some(client) {
            self.reading = None;
            self.current = Some(client);
        }
        if let Some(found) = self.clients.get_mut(&client) {
            found.eof = true;
            self.enqueue(client, false);
        }
    }

    /// Whether [`Redis::step`] would do something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.down && (self.in_turn || !self.ready.is_empty())
    }

    /// Executes one command, or ends the turn (None), or waits for [`Redis::next_read`] (None).
    pub fn step(&mut self, now_ns: u64) -> Option<Executed> {
        self.now_ns = now_ns;
        loop {
            if self.down || self.reading.is_some() {
                return None;
            }
            if let Some(id) = self.current {
                if let Some(executed) = self.run_client(id) {
                    return Some(executed);
                }
                self.current = None;
                if self.clients.get(&id).is_some_and(|client| client.eof) {
                    self.close_at_once(id);
                }
            }
            if let Some((id, must_read)) = self.turn.pop_front() {
                if !self.clients.contains_key(&id) {
                    continue;
                }
                if must_read {
                    self.reading = Some(id);
                } else {
                    self.current = Some(id);
                }
                continue;
            }
            if self.in_turn {
                self.end_waits();
                if !self.unblocked.is_empty() {
                    let unblocked = std::mem::take(&mut self.unblocked);
                    self.turn
                        .extend(unblocked.into_iter().map(|id| (id, false)));
                    continue;
                }
                self.before_sleep();
                self.in_turn = false;
                return None;
            }
            if self.ready.is_empty() {
                return None;
            }
            std::mem::swap(&mut self.turn, &mut self.ready);
            self.in_turn = true;
        }
    }

    /// Runs this client's next whole command, if it may.
    fn run_client(&mut self, id: ClientId) -> Option<Executed> {
        let client = self.clients.get_mut(&id)?;
        if client.blocked.is_some() {
            client.trim();
        }
        if client.blocked.is_some() || client.close_after_reply || client.close_now {
            return None;
        }
        let (start, db) = (client.out.len(), client.db);
        let argv = match client
            .postponed
            .take()
            .map_or_else(|| client.parse(), Parsed::Command)
        {
            Parsed::Nothing => return None,
            Parsed::Broken => Vec::new(),
            Parsed::Command(argv) => argv,
        };
        self.executing = Some(id);
        if !argv.is_empty() && self.process(id, &argv) {
            let client = self.client(id);
            client.close_after_reply |= client.close_after_reply_at_end;
            if client.blocked.is_none() {
                client.command_ends();
            }
        }
        self.executing = None;
        self.send_own_invalidations(id);
        let reply = self
            .clients
            .get(&id)
            .map(|client| client.out[start..].to_vec());
        Some(Executed {
            client: id,
            argv,
            reply: reply.unwrap_or_default(),
            at_ns: self.now_ns,
            db,
            changes: std::mem::take(&mut self.changes),
            served: std::mem::take(&mut self.served),
        })
    }

    pub(crate) fn client(&mut self, id: ClientId) -> &mut Client {
        self.clients
            .get_mut(&id)
            .expect("a client stays while its command runs")
    }

    /// BLPOPs whose time is over, and clients that a pause held back.
    fn end_waits(&mut self) {
        let now_ms = self.now_ms();
        let late: Vec<ClientId> = self
            .waiting
            .iter()
            .copied()
            .filter(|id| {
                let blocked = self
                    .clients
                    .get(id)
                    .and_then(|client| client.blocked.as_ref());
                matches!(blocked, Some(Blocked::List { until_ms: Some(until), .. })
                    if until.signed() <= now_ms)
            })
            .collect();
        for id in late {
            self.unblock(id, Client::add_null_array);
        }
        if self.paused_until_ms > 0 && !self.is_paused() {
            self.end_pause();
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until_ms > self.now_ms()
    }

    /// Ends CLIENT PAUSE: what was held back runs in the order of the clients' numbers.
    pub(crate) fn end_pause(&mut self) {
        self.paused_until_ms = 0;
        for client in self.clients.values_mut() {
            if let Some(Blocked::Postponed(argv)) = &client.blocked {
                client.postponed = Some(argv.clone());
                client.blocked = None;
                self.unblocked.push_back(client.id);
            }
        }
    }

    /// The end of a turn: invalidations, log, output, closing.
    fn before_sleep(&mut self) {
        self.send_broadcasts();
        self.flush_log(false);
        if self.down {
            return;
        }
        let mut closing = Vec::new();
        for client in self.clients.values_mut() {
            client.sent.append(&mut client.out);
            if client.close_after_reply || client.close_now {
                closing.push(client.id);
            }
        }
        for id in closing {
            self.close_at_once(id);
        }
    }

    /// `freeClient`: output that has not left yet is lost.
    pub(crate) fn close_at_once(&mut self, id: ClientId) {
        self.disable_tracking(id);
        self.waiting.retain(|waiting| *waiting != id);
        if let Some(client) = self.clients.remove(&id) {
            self.watchers -= client.watched.len();
            self.closed.push_back((id, client.sent));
        }
    }

    /// Takes what may be sent to a client now; true if there was something.
    pub fn output(&mut self, client: ClientId, into: &mut Vec<u8>) -> bool {
        let Some(found) = self.clients.get_mut(&client) else {
            return false;
        };
        let some = !found.sent.is_empty();
        into.append(&mut found.sent);
        some
    }

    /// Clients that have output to send.
    pub fn with_output(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.clients
            .values()
            .filter(|client| !client.sent.is_empty())
            .map(|client| client.id)
    }

    /// The next connection that Redis has closed, with output that leaves before the FIN.
    pub fn pop_closed(&mut self) -> Option<(ClientId, Vec<u8>)> {
        self.closed.pop_front()
    }

    /// Everything that Redis does by the clock: expiry, closing of idle clients, ends of BLPOP and
    /// CLIENT PAUSE, the background fsync. Returns the changes of keys. [`Redis::step`] must follow.
    pub fn cron(&mut self, now_ns: u64) -> Vec<Change> {
        self.now_ns = now_ns;
        self.poll_fsync();
        if now_ns >= self.next_cron_ns && !self.down {
            self.next_cron_ns = now_ns + CRON_NS;
            self.close_idle();
            self.expire_cycle();
        }
        self.in_turn |= !self.down;
        std::mem::take(&mut self.changes)
    }

    fn close_idle(&mut self) {
        let limit = self.config.timeout_s;
        if limit == 0 {
            return;
        }
        let now_s = self.now_ns / SECOND_NS;
        let idle: Vec<ClientId> = self
            .clients
            .values()
            .filter(|client| client.blocked.is_none() && !client.in_pubsub() && !client.monitor)
            .filter(|client| now_s.saturating_sub(client.last_seen_ns / SECOND_NS) > limit)
            .map(|client| client.id)
            .collect();
        for id in idle {
            self.close_at_once(id);
        }
    }

    /// When [`Redis::cron`] has something to do.
    #[must_use]
    pub fn next_wake_ns(&self) -> u64 {
        let blpop =
            self.waiting
                .iter()
                .filter_map(|id| match self.clients.get(id)?.blocked.as_ref()? {
                    Blocked::List { until_ms, .. } => until_ms.map(|until| until * 1_000_000),
                    Blocked::Postponed(_) => None,
                });
        let pause = (self.paused_until_ms > 0)
            .then(|| self.paused_until_ms.unsigned().saturating_mul(1_000_000));
        blpop
            .chain(pause)
            .chain(self.aof.fsync_done_ns)
            .fold(self.next_cron_ns, u64::min)
    }

    /// Whether SHUTDOWN (or a failed write or fsync of `always`) has ended the server: all
    /// connections close, output that has not left is lost.
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
    pub const fn disk(&mut self) -> &mut Disk {
        &mut self.disk
    }

    pub(crate) fn set_role(&mut self, replica: bool, loading: bool) {
        self.replica = replica;
        self.loading = loading;
        self.link_up = false;
        for client in self.clients.values_mut() {
            client.close_now |= matches!(client.peer, Peer::Master(_));
        }
    }

    /// Whether it is a replica.
    #[must_use]
    pub const fn is_replica(&self) -> bool {
        self.replica
    }

    /// The link to the master is there (`REPL_STATE_CONNECTED`), or gone.
    pub const fn master_link(&mut self, up: bool) {
        self.link_up = up;
    }

    /// `mustObeyClient`: the master of a replica.
    pub(crate) fn obeys(&self, id: ClientId) -> bool {
        self.clients
            .get(&id)
            .is_some_and(|client| matches!(client.peer, Peer::Master(_)))
    }

    /// A replica's full resynchronisation begins (all keys go, commands get LOADING) or ends.
    pub fn resync(&mut self, loading: bool, now_ns: u64) -> Vec<Change> {
        self.now_ns = now_ns;
        if loading {
            self.flush(None);
        }
        self.loading = loading;
        self.link_up = !loading;
        self.in_turn = true;
        std::mem::take(&mut self.changes)
    }
}
