// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The feed: one connection to Redis that carries invalidations, fills, the lease and the state
//! watch, so that their order is Redis's own.
//!
//! Invariants:
//! 1. Input is handled strictly in the order in which Redis sent it; an invalidation has reached
//!    the cache before any later reply is looked at.
//! 2. The cache is emptied after tracking is on and before the first lease of a connection.
//! 3. Only a literal `+PONG` renews the lease, from the moment its PING was written, and only if
//!    the calls read just before it were taken into account (SWAPDB sends no invalidation).
//! 4. A fill's tokens are noted before its reads are written.
//! 5. A fill names its databases itself, by SELECT inside its own MULTI; a key counts only if the
//!    SELECT before it was answered by `+OK`.
//! 6. What the user may not do ends the connection: nothing is half at work. What fills need is tried
//!    before tracking is on.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Read, Write};

use bytes::Bytes;
use erb_abi as abi;
use erb_abi::{FillEntry, FillToken, ValueKind, Wanted};

use crate::client_list::{self, ClientLine};
use crate::commands::CommandsReport;
use crate::hash;
use crate::outside::DataPath;
use crate::redis_state::{Calls, RedisState};
use crate::resp::{Frame, RespStream, error, is_simple, text};
use crate::rights::{self, Credentials, TRIAL_KEY};

/// Reads per call: bounds the time until the lease is looked at again; 8 x 64 KiB.
const READS_MAX: usize = 8;

/// One key of a fill under way.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) wanted: Wanted,
    pub(crate) token: FillToken,
}

/// How one key's fill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// It is in the cache.
    Inserted,
    /// A mark, the fence or a change came in between: worth another try.
    Later,
    /// Absent, no string or too large: another try would end the same way for a while.
    Never,
}

/// Why CLIENT LIST is asked for.
#[derive(Debug, Default)]
pub(crate) struct Question {
    /// Proof for these connections.
    pub(crate) proof: Vec<abi::sweep_row>,
    /// Whether these may be admitted, and the rights' epoch at which that was asked.
    pub(crate) admit: Vec<abi::admit_row>,
    pub(crate) rights: u32,
    /// Whether all clients are tracked again.
    pub(crate) untracked: bool,
}

/// What the daemon must act on, in order.
#[derive(Debug)]
pub(crate) enum Event {
    /// Tracking is on and the cache is empty.
    Ready,
    /// Calls as read before a lease.
    Calls(Calls),
    /// A PING written at this time (monotonic, ns) came back.
    Lease { sent_ns: u64 },
    /// PING was answered by an error.
    NoLease(String),
    /// Redis's state, read after `gate_seen` had this value.
    State { state: Box<RedisState>, gate: u64 },
    /// CLIENT LIST.
    Clients {
        list: Vec<ClientLine>,
        question: Question,
    },
    /// Fills that ended.
    Filled(Vec<(Wanted, Filled)>),
    /// Keys were invalidated, or the whole cache.
    Invalidated,
    /// Redis's command table is loaded, and whether ERB can work with it; again: not for the first
    /// time on this feed.
    Commands {
        end: Result<CommandsReport, String>,
        again: bool,
    },
}

#[derive(Debug)]
pub(crate) enum Setup {
    Hello,
    Name,
    NoEvict,
    /// A transaction like a fill's: only whether it is allowed counts.
    Trial,
    List,
    Kill,
    Tracking,
}

#[derive(Debug)]
pub(crate) enum Expect {
    Setup(Setup),
    /// INFO before the PING of a lease.
    Calls,
    Pong {
        sent_ns: u64,
    },
    /// +OK of MULTI and SELECT, +QUEUED: any error shows again as EXEC's.
    FillStep,
    Exec(Vec<Asked>),
    /// EXEC of TOUCH.
    Touched,
    Info,
    Config,
    Acl {
        gate: u64,
    },
    /// CLIENT LIST, the state's last part where a monitor may be attached.
    Monitors {
        gate: u64,
    },
    Clients(Question),
    /// COMMAND LIST.
    Names,
    /// COMMAND INFO of `asked`, where COMMAND LIST has said `listed`.
    Commands {
        listed: Vec<String>,
        asked: Vec<String>,
    },
}

/// The feed connection.
pub(crate) struct Feed<S> {
    pub(crate) stream: RespStream<S>,
    name: String,
    user: Option<String>,
    pub(crate) expected: VecDeque<Expect>,
    invalid: Vec<Bytes>,
    state: RedisState,
    /// What was wrong with the last answer to [`Expect::Calls`]: invariant 3.
    calls_error: Option<String>,
    pub(crate) ready: bool,
    /// The daemon's commands are what they are called: without that none is sent but for set-up, as
    /// it might be another one.
    pub(crate) trusts_names: bool,
}

impl<S: Read + Write> Feed<S> {
    /// Asks for tracking on a new connection, which may be used after [`Event::Ready`].
    pub(crate) fn new(
        stream: S,
        name: &str,
        credentials: Option<&Credentials>,
    ) -> io::Result<Self> {
        let mut feed = Self {
            stream: RespStream::new(stream),
            name: name.to_owned(),
            user: credentials.map(|credentials| credentials.user.clone()),
            expected: VecDeque::new(),
            invalid: Vec::new(),
            state: RedisState::default(),
            calls_error: None,
            ready: false,
            trusts_names: false,
        };
        feed.ask(
            &Credentials::hello(credentials),
            Expect::Setup(Setup::Hello),
        );
        feed.ask(
            &[b"CLIENT", b"SETNAME", name.as_bytes()],
            Expect::Setup(Setup::Name),
        );
        feed.ask(
            &[b"CLIENT", b"NO-EVICT", b"ON"],
            Expect::Setup(Setup::NoEvict),
        );
        let trial: [&[&[u8]]; 8] = [
            &[b"MULTI"],
            &[b"SELECT", b"0"],
            &[b"GET", TRIAL_KEY],
            &[b"OBJECT", b"ENCODING", TRIAL_KEY],
            &[b"HKEYS", TRIAL_KEY],
            &[b"HVALS", TRIAL_KEY],
            &[b"PEXPIRETIME", TRIAL_KEY],
            &[b"EXEC"],
        ];
        for words in trial {
            feed.ask(words, Expect::Setup(Setup::Trial));
        }
        feed.ask(&[b"CLIENT", b"LIST"], Expect::Setup(Setup::List));
        feed.flush()?;
        Ok(feed)
    }

    pub(crate) const fn stream(&self) -> &S {
        self.stream.get_ref()
    }

    pub(crate) const fn is_ready(&self) -> bool {
        self.ready
    }

    /// Number of fill transactions and of PINGs without answer.
    pub(crate) fn fills_in_flight(&self) -> usize {
        self.expected
            .iter()
            .filter(|expect| matches!(expect, Expect::Exec(_)))
            .count()
    }

    /// When the oldest unanswered PING was written.
    pub(crate) fn oldest_ping_ns(&self) -> Option<u64> {
        self.expected.iter().find_map(|expect| match expect {
            Expect::Pong { sent_ns } => Some(*sent_ns),
            _ => None,
        })
    }

    pub(crate) fn pings_in_flight(&self) -> usize {
        self.expected
            .iter()
            .filter(|expect| matches!(expect, Expect::Pong { .. }))
            .count()
    }

    pub(crate) fn is_asking_clients(&self) -> bool {
        self.expected
            .iter()
            .any(|expect| matches!(expect, Expect::Clients(_)))
    }

    pub(crate) fn is_asking_state(&self) -> bool {
        self.expected
            .iter()
            .any(|expect| matches!(expect, Expect::Acl { .. } | Expect::Monitors { .. }))
    }

    pub(crate) fn is_touching(&self) -> bool {
        self.expected
            .iter()
            .any(|expect| matches!(expect, Expect::Touched))
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.stream.wants_write()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }

    /// Queues what the lease needs: the calls that tell of SWAPDB (some 15 us of Redis), then PING.
    pub(crate) fn ping(&mut self, sent_ns: u64) {
        self.ask(&[b"INFO", b"stats", b"commandstats"], Expect::Calls);
        self.ask(&[b"PING"], Expect::Pong { sent_ns });
    }

    pub(crate) fn ask(&mut self, arguments: &[&[u8]], expect: Expect) {
        if self.ready && !self.trusts_names {
            return;
        }
        self.stream.push(arguments);
        self.expected.push_back(expect);
    }

    /// Reads and handles what Redis sent. An error ends the connection.
    pub(crate) fn handle_input(
        &mut self,
        cache: &impl DataPath,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        for _ in 0..READS_MAX {
            let more = self.stream.fill()?;
            while self.handle_next(cache, events)? {}
            if !more {
                break;
            }
        }
        self.flush_invalid(cache, events)?;
        self.flush()
    }

    /// Handles the next reply or push; false if none is there.
    fn handle_next(&mut self, cache: &impl DataPath, events: &mut Vec<Event>) -> io::Result<bool> {
        let is_info = matches!(self.expected.front(), Some(Expect::Commands { .. }));
        if is_info && self.stream.has_array() {
            let Some(answer) = self.stream.next_tree()? else {
                return Ok(false);
            };
            self.flush_invalid(cache, events)?;
            self.take_commands(&answer, cache, events)?;
            return Ok(true);
        }
        let Some(frame) = self.stream.next_frame()? else {
            return Ok(false);
        };
        self.handle_frame(frame, cache, events)?;
        Ok(true)
    }

    fn handle_frame(
        &mut self,
        frame: Frame,
        cache: &impl DataPath,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        if let Frame::Push { data, .. } = &frame {
            return self.handle_push(data, cache, events);
        }
        self.flush_invalid(cache, events)?;
        // Whatever was asked: nothing works as it should without the right to it.
        if let Some(reason) = error(&frame).filter(|text| rights::lacks_right(text)) {
            return Err(self.refused(&self.expected.front(), &reason));
        }
        let expect = self.expected.pop_front();
        let expect = expect.ok_or_else(|| broken("a reply to nothing that was asked"))?;
        match expect {
            Expect::Setup(step) => self.handle_setup(&step, &frame, cache, events)?,
            Expect::Calls => {
                let calls = Calls::of(&frame);
                self.calls_error = calls.is_none().then(|| refusal(&frame, "INFO"));
                events.extend(calls.map(Event::Calls));
            }
            Expect::Pong { sent_ns } => {
                let pong = is_simple(&frame, b"PONG");
                let wrong = self.calls_error.take();
                let wrong = wrong.or_else(|| (!pong).then(|| refusal(&frame, "PING")));
                events.push(wrong.map_or(Event::Lease { sent_ns }, Event::NoLease));
            }
            // A Redis that refuses TOUCH for a moment (-BUSY) is told again in a second.
            Expect::FillStep | Expect::Touched => {}
            Expect::Exec(asked) => events.push(Event::Filled(insert(cache, asked, &frame)?)),
            Expect::Info => {
                self.state = RedisState::default();
                self.state.take_info(&frame);
            }
            Expect::Config => self.state.take_config(&frame),
            Expect::Acl { gate } => {
                self.state.take_acl(&frame);
                if self.state.may_be_monitored() {
                    self.ask(&[b"CLIENT", b"LIST"], Expect::Monitors { gate });
                } else {
                    events.push(self.state_read(gate));
                }
            }
            Expect::Monitors { gate } => {
                self.state.take_clients(&frame);
                events.push(self.state_read(gate));
            }
            Expect::Clients(question) => {
                // Without a list nothing is proved; the next sweep asks again.
                if let Some(list) = text(&frame) {
                    let list = client_list::parse(&String::from_utf8_lossy(list));
                    events.push(Event::Clients { list, question });
                }
            }
            Expect::Names => self.take_names(&frame)?,
            // The answer itself is an array: handle_next.
            Expect::Commands { .. } => return Err(broken(&refusal(&frame, "COMMAND INFO"))),
        }
        Ok(())
    }

    fn state_read(&mut self, gate: u64) -> Event {
        let state = Box::new(std::mem::take(&mut self.state));
        Event::State { state, gate }
    }

    fn handle_setup(
        &mut self,
        step: &Setup,
        frame: &Frame,
        cache: &impl DataPath,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        if let Some(reason) = error(frame) {
            // An old feed that closed meanwhile cannot be killed: as good as killed. A trial that
            // fails for another reason than its rights (a Redis that is loading) proves nothing.
            return match step {
                Setup::Kill | Setup::Trial => Ok(()),
                _ => Err(self.refused(step, &reason)),
            };
        }
        match step {
            Setup::Hello | Setup::Name | Setup::NoEvict | Setup::Trial | Setup::Kill => {}
            Setup::List => {
                let list = text(frame).map(|list| String::from_utf8_lossy(list).into_owned());
                self.kill_others(&client_list::parse(&list.unwrap_or_default()));
                self.ask_commands();
            }
            Setup::Tracking => {
                cache.clear().map_err(io::Error::other)?;
                self.ready = true;
                events.push(Event::Ready);
            }
        }
        Ok(())
    }

    fn refused(&self, what: &impl std::fmt::Debug, reason: &str) -> io::Error {
        rights::refused(self.user.as_deref(), reason)
            .unwrap_or_else(|| io::Error::other(format!("Redis refused {what:?} with {reason:?}")))
    }

    /// Ends feeds of the same name that are older than this connection (ids only grow).
    fn kill_others(&mut self, list: &[ClientLine]) {
        let named: Vec<u64> = list
            .iter()
            .filter(|client| client.name == self.name)
            .map(|client| client.id)
            .collect();
        let own = named.iter().copied().max();
        for id in named.into_iter().filter(|id| Some(*id) != own) {
            let id = id.to_string();
            self.ask(
                &[b"CLIENT", b"KILL", b"ID", id.as_bytes()],
                Expect::Setup(Setup::Kill),
            );
        }
    }

    fn handle_push(
        &mut self,
        data: &[Frame],
        cache: &impl DataPath,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        if data.first().and_then(text).map(Bytes::as_ref) != Some(b"invalidate") {
            return Ok(());
        }
        match data.get(1) {
            Some(Frame::Array { data: keys, .. }) => {
                self.invalid.extend(keys.iter().filter_map(text).cloned())
            }
            // FLUSHALL, FLUSHDB, DEBUG RELOAD, full resync.
            _ => {
                self.invalid.clear();
                cache.clear().map_err(io::Error::other)?;
                events.push(Event::Invalidated);
            }
        }
        Ok(())
    }

    pub(crate) fn flush_invalid(
        &mut self,
        cache: &impl DataPath,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        if self.invalid.is_empty() {
            return Ok(());
        }
        let keys: Vec<&[u8]> = self.invalid.iter().map(Bytes::as_ref).collect();
        cache.invalidate(&keys).map_err(io::Error::other)?;
        events.push(Event::Invalidated);
        self.invalid.clear();
        Ok(())
    }
}

/// What a reply that should have been another says.
fn refusal(reply: &Frame, command: &str) -> String {
    error(reply).unwrap_or_else(|| format!("an unexpected reply to {command}"))
}

pub(crate) fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Whether a fill's key needs a SELECT before it.
pub(crate) fn needs_select(asked: &[Asked], index: usize) -> bool {
    index == 0 || asked[index - 1].wanted.db != asked[index].wanted.db
}

/// The commands that read a whole value; the key stands behind each.
pub(crate) const fn reads_of(kind: ValueKind) -> &'static [&'static [&'static [u8]]] {
    match kind {
        ValueKind::String => &[&[b"GET"]],
        ValueKind::Hash => &hash::READS,
    }
}

/// The bytes to be cached of a value that was read; none: it is not cached.
fn value_of<'a>(kind: ValueKind, replies: &[&'a Frame]) -> Option<Cow<'a, [u8]>> {
    match (kind, replies) {
        (ValueKind::String, [Frame::BlobString { data, .. }]) => Some(Cow::Borrowed(data)),
        (ValueKind::Hash, [encoding, fields, values]) => {
            hash::encode(encoding, fields, values).map(Cow::Owned)
        }
        _ => None,
    }
}

/// Takes EXEC's reply apart: of each database SELECT, then the reads and PEXPIRETIME of each key.
fn insert(
    cache: &impl DataPath,
    asked: Vec<Asked>,
    reply: &Frame,
) -> io::Result<Vec<(Wanted, Filled)>> {
    let Frame::Array { data, .. } = reply else {
        // EXECABORT or nil: nothing was read.
        return Ok(asked
            .into_iter()
            .map(|one| (one.wanted, Filled::Later))
            .collect());
    };
    let selects = (0..asked.len()).filter(|index| needs_select(&asked, *index));
    let reads = asked.iter().map(|one| reads_of(one.wanted.kind).len() + 1);
    if data.len() != selects.count() + reads.sum::<usize>() {
        return Err(broken(
            "EXEC answered another number of replies than was asked for",
        ));
    }
    let mut ends = vec![Filled::Never; asked.len()];
    let mut values: Vec<(usize, Cow<'_, [u8]>, u64)> = Vec::new();
    let mut selected = false;
    let mut replies = data.iter();
    let mut next = || replies.next().expect("the replies were counted");
    for (index, one) in asked.iter().enumerate() {
        if needs_select(&asked, index) {
            selected = is_simple(next(), b"OK");
        }
        let kind = one.wanted.kind;
        let replies: Vec<&Frame> = reads_of(kind).iter().map(|_| next()).collect();
        let expiry = expiry_of(next());
        if let (Some(value), Some(expiry_ms), true) = (value_of(kind, &replies), expiry, selected) {
            values.push((index, value, expiry_ms));
        }
    }
    values.retain(|(_, value, _)| value.len() <= abi::CLASS3_BYTES as usize);
    let entries: Vec<FillEntry<'_>> = values
        .iter()
        .map(|(index, value, expiry_ms)| entry_of(&asked[*index], value, *expiry_ms))
        .collect();
    let places = values.iter().map(|(index, ..)| *index);
    if !entries.is_empty() {
        let found = cache.fill_insert(&entries).map_err(io::Error::other)?;
        for (place, status) in places.zip(found) {
            ends[place] = match status {
                abi::FILL_OK => Filled::Inserted,
                abi::FILL_BIG => Filled::Never,
                _ => Filled::Later,
            };
        }
    }
    Ok(asked.into_iter().map(|one| one.wanted).zip(ends).collect())
}

/// What PEXPIRETIME says, 0 = no expiry; none: the key is gone, so its value is not sure.
fn expiry_of(reply: &Frame) -> Option<u64> {
    match reply {
        Frame::Number { data: -1, .. } => Some(0),
        Frame::Number { data, .. } if *data > 0 => Some(data.unsigned_abs()),
        _ => None,
    }
}

fn entry_of<'a>(one: &'a Asked, value: &'a [u8], expiry_ms: u64) -> FillEntry<'a> {
    FillEntry {
        key: &one.wanted.key,
        db: one.wanted.db,
        kind: one.wanted.kind,
        value,
        expiry_ms,
        token: one.token,
    }
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
