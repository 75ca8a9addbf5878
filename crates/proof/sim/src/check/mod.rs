// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks that are always on: is what clients saw what Redis alone could have shown them?
//!
//! | file | rule |
//! | --- | --- |
//! | `session.rs` | every reply is Redis's own bytes, or a fast reply that history allows |
//! | `reads.rs` | what a fast reply to a read says of its keys |
//! | `versions.rs` | which values a key had when, and how old a read may be |
//! | `blackbox.rs` | per key, replies alone are linearizable (knows nothing of the model's order) |
//! | `maps.rs` | the numbered invariants of `bpf/`, on the maps' content |
//! | `places.rs` | each entry has a place, and is on the lists where it must be found |
//! | `stream.rs` | the scanners found what a second parser finds in the client's bytes |
//! | `cache.rs` | what the cache would answer at this moment is true |
//! | `quiet.rs` | nothing leaks and everything ends when faults do |
//!
//! The world is single-threaded: the order of its calls is the order of events. A run ends with
//! the first violation.

mod blackbox;
pub mod cache;
mod held;
pub mod maps;
pub mod places;
pub mod quiet;
pub mod reads;
mod session;
pub mod stream;
mod versions;
pub mod wire;

use std::collections::BTreeMap;

use erb_sim_redis::{Bytes, Cause, Change, Executed, Stored};

use crate::ConnId;
use crate::server::Written;
use crate::time::{MS, Ns, WALL_START_MS};
use crate::violation::Violation;

use blackbox::Blackbox;
pub use held::Held;
use session::{Session, Watched};
use stream::Stream;
pub use versions::{Point, Read, Versions};
pub use wire::changes_rights;
use wire::is;

/// What the checks allow.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How long a change that no packet shows (clients on a unix socket, SWAPDB by them, a restart
    /// of Redis) may go unnoticed: the lease and what the coarse clock lags behind.
    pub unseen_ns: Ns,
    /// How long a value may be answered after its expiry: not at all.
    pub expiry_ns: Ns,
    /// Wall clock minus monotonic clock, ms.
    pub wall_minus_mono_ms: i64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            unseen_ns: Ns::from(erb_abi::LEASE_MS + erb_abi::CLOCK_LAG_MS) * MS,
            expiry_ns: 0,
            wall_minus_mono_ms: WALL_START_MS,
        }
    }
}

/// By which way a connection reaches Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// Over the network: its packets pass the data path.
    #[default]
    Erb,
    /// A unix socket: no packet shows what it does.
    Inside,
}

/// What Redis holds of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its user may do everything.
    pub full: bool,
    /// The database selected.
    pub db: u32,
    /// The version of RESP.
    pub resp: u8,
}

/// What was checked: a run that checked nothing proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Replies that are Redis's own bytes.
    pub from_redis: u64,
    /// Fast replies that history allows.
    pub fast: u64,
    /// Of these, values that an unseen change had replaced within the allowance.
    pub fast_stale: u64,
    /// Writes that were answered in Redis's place.
    pub absorbed: u64,
    /// Requests whose outcome is unknown: their connection ended first.
    pub unknown: u64,
    /// Keys that were checked by replies alone.
    pub blackbox_keys: u64,
    /// Operations on them.
    pub blackbox_operations: u64,
}

/// All checks of what clients see, for one run.
pub struct Checks {
    stamp: u64,
    now: Ns,
    versions: Versions,
    // Ordered: what is said first must not depend on a hash's seed.
    sessions: BTreeMap<ConnId, Session>,
    /// When access rules last changed, and whether ERB saw what did it.
    rights_changed: (Point, bool),
    /// Of each user: whether it may do everything, and the same of its last change.
    users: BTreeMap<String, (bool, (Point, bool))>,
    /// Kept for as long as the server may: a client's end is not its socket's.
    streams: BTreeMap<ConnId, Stream>,
    blackbox: Blackbox,
    monitors: BTreeMap<ConnId, u64>,
    /// Since when Redis tells of reads of absent keys, and whether ERB saw what made it do so.
    misses_told: Option<(Point, bool)>,
    /// Keys with writes that were answered in Redis's place and are not drained: the last one's LSN.
    undrained: BTreeMap<(u32, Bytes), u64>,
    /// Writes of which Redis was told too early.
    too_early: Option<String>,
    checked: Checked,
}

impl Checks {
    /// Checks for one run.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            stamp: 0,
            now: 0,
            versions: Versions::new(config),
            sessions: BTreeMap::new(),
            rights_changed: (Point::default(), true),
            users: BTreeMap::new(),
            streams: BTreeMap::new(),
            blackbox: Blackbox::default(),
            monitors: BTreeMap::new(),
            misses_told: None,
            undrained: BTreeMap::new(),
            too_early: None,
            checked: Checked::default(),
        }
    }

    /// What was checked so far.
    #[must_use]
    pub const fn checked(&self) -> Checked {
        self.checked
    }

    /// The values of keys so far.
    #[must_use]
    pub const fn versions(&self) -> &Versions {
        &self.versions
    }

    fn stream(&self, conn: ConnId) -> Option<&Stream> {
        self.streams.get(&conn)
    }

    /// What a client has said so far.
    pub(crate) fn commands(&self, conn: ConnId) -> impl Iterator<Item = stream::Said<'_>> {
        let stream = self.streams.get(&conn).into_iter();
        stream.flat_map(Stream::commands)
    }

    /// This moment as a point of the history.
    #[must_use]
    pub const fn here(&self) -> Point {
        Point {
            stamp: self.stamp,
            at: self.now,
        }
    }

    fn next(&mut self, now: Ns) -> Point {
        self.stamp += 1;
        self.now = now;
        self.here()
    }

    /// A connection begins.
    pub fn opened(&mut self, now: Ns, conn: ConnId, via: Via) {
        self.next(now);
        self.sessions.insert(conn, Session::new(via));
        self.streams.insert(conn, Stream::default());
    }

    /// The client hands these bytes to its TCP: called before any of them leaves.
    pub fn sent(&mut self, now: Ns, conn: ConnId, bytes: &[u8]) {
        let here = self.next(now);
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.sent(here, bytes);
        }
        if let Some(stream) = self.streams.get_mut(&conn) {
            stream.sent(bytes);
        }
    }

    /// Redis has executed a command, of this connection or of somebody whom ERB does not see. `unseen`:
    /// the table of connections had no room for it.
    pub fn executed(&mut self, now: Ns, conn: Option<ConnId>, unseen: bool, executed: &Executed) {
        let here = self.next(now);
        if let Some(stream) = conn.and_then(|conn| self.streams.get_mut(&conn)) {
            stream.executed();
        }
        let session = conn.and_then(|conn| self.sessions.get_mut(&conn));
        // A connection that has ended for its client may still be served.
        let by_erb = session
            .as_ref()
            .map_or(conn.is_some(), |s| s.via() == Via::Erb);
        let seen = by_erb && !unseen;
        if let Some(session) = session {
            session.executed(here, executed.argv.as_slice().into(), &executed.reply);
        }
        // Nobody is there any more to whom something could be missing, if its client has gone.
        if let Some(conn) = conn.filter(|conn| self.sessions.contains_key(conn))
            && seen
            && is(&executed.argv, "monitor")
            && !executed.reply.starts_with(b"-")
        {
            self.monitors.entry(conn).or_insert(here.stamp);
        }
        // What cannot be followed as requests and replies is nothing for the second opinion.
        let followed = conn
            .and_then(|conn| self.sessions.get(&conn))
            .is_none_or(Session::is_followed);
        let plain = followed && blackbox::is_plain(&executed.argv);
        for change in &executed.changes {
            self.change(here, change, seen);
            if !plain {
                self.blackbox.exclude(change.db, &change.key);
            }
        }
    }

    /// A command may have changed access rules; `by`: whose it was; `users`: whether they may do
    /// everything now.
    pub fn rights_change<'a>(
        &mut self,
        now: Ns,
        by: Option<ConnId>,
        users: impl Iterator<Item = (&'a str, bool)>,
    ) {
        let by_erb = |by| self.sessions.get(&by).is_none_or(|s| s.via() == Via::Erb);
        let seen = by.is_some_and(by_erb);
        let changed = (self.next(now), seen);
        self.rights_changed = changed;
        if seen {
            // ERB reads all rules again.
            self.users.values_mut().for_each(|(_, old)| old.1 = true);
        }
        for (user, full) in users {
            let entry = self.users.entry(user.to_owned());
            let entry = entry.or_insert((full, changed));
            if entry.0 != full {
                *entry = (full, changed);
            }
        }
    }

    /// Whether Redis tells of reads of absent keys now; `by`: whose command may have changed that.
    pub fn misses_told(&mut self, now: Ns, by: Option<ConnId>, told: bool) {
        let by_erb = |by| self.sessions.get(&by).is_none_or(|s| s.via() == Via::Erb);
        let seen = by.is_some_and(by_erb);
        let here = self.next(now);
        self.misses_told = told.then(|| self.misses_told.unwrap_or((here, seen)));
    }

    /// A command of the connection itself may have changed what Redis holds of it.
    pub fn told(&mut self, conn: ConnId, user: &str, told: Told) {
        let changed = match self.users.get(user) {
            Some((full, changed)) if *full == told.full => *changed,
            _ => self.rights_changed,
        };
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.told(told, changed);
        }
    }

    /// Whether the user of a connection may do everything since the last such change.
    pub fn rights(&mut self, conn: ConnId, full: bool) {
        let (here, seen) = self.rights_changed;
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.rights(here, full, seen);
        }
    }

    /// Redis has changed keys outside of commands: expiry, eviction.
    pub fn changed(&mut self, now: Ns, changes: &[Change]) {
        let here = self.next(now);
        for change in changes {
            self.change(here, change, false);
        }
    }

    /// A write was answered in Redis's place: it has this LSN.
    pub(crate) fn absorbed(&mut self, now: Ns, lsn: u64, written: Written) {
        let here = self.next(now);
        self.checked.absorbed += 1;
        self.undrained
            .insert((written.db, written.key.clone()), lsn);
        if written.expire_at_ms.is_some() {
            self.blackbox.exclude(written.db, &written.key);
        }
        let change = Change {
            db: written.db,
            key: written.key,
            value: Stored::String(written.value),
            expire_at_ms: written.expire_at_ms,
            cause: Cause::Command,
        };
        self.versions.absorb(here, &change);
    }

    /// All up to this LSN is in Redis.
    pub fn drained(&mut self, lsn: u64) {
        self.undrained.retain(|_, last| *last > lsn);
    }

    fn change(&mut self, here: Point, change: &Change, seen: bool) {
        if self
            .undrained
            .contains_key(&(change.db, change.key.clone()))
        {
            // What expires or goes for room is what the key held before.
            if !matches!(change.cause, Cause::Expired | Cause::Evicted) && self.too_early.is_none()
            {
                self.too_early = Some(format!(
                    "key {} has a write that is not drained, and Redis ran another",
                    wire::show(&change.key)
                ));
            }
            return;
        }
        // What expires is gone by the clock, whoever notices it.
        let seen = seen && !matches!(change.cause, Cause::Expired | Cause::Evicted);
        self.versions.change(here, change, seen);
        if !seen {
            self.blackbox.exclude(change.db, &change.key);
        }
    }

    /// Redis has queued bytes for the connection that belong to none of its commands: messages of
    /// subscriptions, invalidations, late answers to commands that waited.
    pub fn pushed(&mut self, now: Ns, conn: ConnId, bytes: &[u8]) {
        let here = self.next(now);
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.redis_pushed(here, bytes);
        }
    }

    /// The client has read these bytes.
    ///
    /// # Errors
    /// Redis alone would not have sent them.
    pub fn received(&mut self, now: Ns, conn: ConnId, bytes: &[u8]) -> Result<(), Violation> {
        let here = self.next(now);
        let violation = |rule, text: String| {
            Err(Violation::new(
                rule,
                now,
                format!("connection {conn}: {text}"),
            ))
        };
        // A monitor must see every command that begins after it did and ends before it leaves.
        let monitored = self.monitors.values().min().copied();
        let Some(session) = self.sessions.get_mut(&conn) else {
            return violation("stream", "bytes were read after its end".to_owned());
        };
        session.received(bytes);
        loop {
            let frame = match session.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(text) => return violation("stream", text),
            };
            let watched = Watched {
                monitored,
                misses: self.misses_told,
            };
            let answer = match session.replied(here, &frame, &self.versions, watched) {
                Ok(answer) => answer,
                Err((rule, text)) => return violation(rule, text),
            };
            match answer.fast {
                None => self.checked.from_redis += 1,
                Some(stale) => {
                    self.checked.fast += 1;
                    self.checked.fast_stale += u64::from(stale);
                }
            }
            if let Some((argv, invoked)) = answer.request {
                self.blackbox
                    .answered(conn, &argv, answer.mode, invoked, here.stamp, &frame);
            }
        }
    }

    /// Redis has dropped the connection: it shows it nothing any more, whatever its client knows.
    pub fn dropped_by_redis(&mut self, conn: ConnId) {
        self.monitors.remove(&conn);
    }

    /// The connection has ended for its client: what is unanswered may have happened or not.
    pub fn closed(&mut self, now: Ns, conn: ConnId) {
        self.next(now);
        self.end_session(conn);
    }

    /// Whether a client has this connection.
    #[must_use]
    pub fn is_open(&self, conn: ConnId) -> bool {
        self.sessions.contains_key(&conn)
    }

    fn end_session(&mut self, conn: ConnId) {
        self.monitors.remove(&conn);
        let Some(session) = self.sessions.remove(&conn) else {
            return;
        };
        for (argv, mode, invoked) in session.unknown() {
            self.checked.unknown += 1;
            self.blackbox.unknown(conn, &argv, mode, invoked);
        }
    }

    /// Whether what Redis holds at the end is what clients were told.
    ///
    /// # Errors
    /// The first key of which it is not.
    pub fn agree(&self, now: Ns, content: &[Change]) -> Result<(), Violation> {
        let told = self.too_early.clone().map_or(Ok(()), Err);
        told.and_then(|()| self.versions.agree(content, now, |_| false))
            .map_err(|text| Violation::new("agree", now, text))
    }

    /// Whether Redis, whose process was killed, has all in its log: of keys with a write that is not drained nobody
    /// can tell.
    ///
    /// # Errors
    /// The first key of which it has something else.
    pub fn kept(&self, now: Ns, content: &[Change]) -> Result<(), Violation> {
        let is_owed = |key: &(u32, Bytes)| self.undrained.contains_key(key);
        let agree = self.versions.agree(content, now, is_owed);
        agree.map_err(|text| Violation::new("kept", now, text))
    }

    /// Redis is back from its log with these keys and no others. What was answered in its place and is not drained stays
    /// the newest of its keys: it was promised.
    pub fn restarted(&mut self, now: Ns, content: &[Change]) {
        let here = self.next(now);
        self.misses_told = None;
        let undrained = &self.undrained;
        let is_owed = |key: &(u32, Bytes)| undrained.contains_key(key);
        for key in self.versions.restart(here, content, is_owed) {
            self.blackbox.exclude(key.0, &key.1);
        }
    }

    /// The wall clock was set.
    pub fn wall_stepped(&mut self, now: Ns, wall_minus_mono_ms: i64) {
        let here = self.next(now);
        self.versions.step_clock(here, wall_minus_mono_ms);
    }

    /// Connections with an unanswered request, and when the oldest was sent.
    #[must_use]
    pub fn unanswered(&self) -> Vec<(ConnId, Ns)> {
        self.sessions
            .iter()
            .filter_map(|(conn, session)| Some((*conn, session.oldest_unanswered()?)))
            .collect()
    }

    /// The run is over: what can only be judged as a whole.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn end(&mut self, now: Ns) -> Result<(), Violation> {
        self.next(now);
        let open: Vec<ConnId> = self.sessions.keys().copied().collect();
        for conn in open {
            self.end_session(conn);
        }
        let (keys, operations) = self.blackbox.check(now)?;
        self.checked.blackbox_keys = keys;
        self.checked.blackbox_operations = operations;
        Ok(())
    }
}
