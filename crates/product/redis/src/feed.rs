// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The feed: one connection to Redis that carries invalidations, fills, the lease and the state
//! watch, so that their order is Redis's own.
//!
//! Invariants:
//! 1. Input is handled strictly in the order in which Redis sent it; an invalidation has reached
//!    the cache before any later reply is looked at.
//! 2. The cache is emptied after tracking is on and before the first lease of a connection. Of which changes
//!    Redis tells may change later: `reports.rs`.
//! 3. Only a literal `+PONG` renews the lease, from the moment its PING was written, and only if
//!    the calls read just before it were taken into account (SWAPDB sends no invalidation).
//! 4. A fill's tokens are noted before its reads are written. What it may read at most is known before
//!    (`fill.rs`, `reading.rs`): Redis is never asked for more than it holds at hand for a client.
//! 5. A fill names its databases itself, by SELECT inside its own MULTI; a key counts only if the
//!    SELECT before it was answered by `+OK`.
//! 6. A PING's note of answered shares of the fence is read before the PING is queued.
//! 7. What the user may not do ends the connection: nothing is half at work. What fills need is tried
//!    before tracking is on. A user that may not read all keys is not told of all changes: each ACL LIST says
//!    whether it still may (`users.rs`), and nothing is answered while it may not.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use bytes::Bytes;
use erb_abi::Logs;

use crate::client_list::{self, ClientLine};
use crate::commands::{self, CommandsReport};
use crate::drain::Drain;
use crate::expect::{Event, Expect, Setup};
use crate::fill::Room;
use crate::line_ends::{self, LineEnds};
use crate::output_limit;
use crate::outside::DataPath;
use crate::reading::{BATCH_REPLY_MAX, insert, sizes};
use crate::redis_state::RedisState;
use crate::reports::{self, Reports};
use crate::resp::{
    Frame, REPLY_BYTES_MAX, RespStream, Tree, broken, error, field, integer, is_simple, text,
};
use crate::rights::{self, Credentials, TRIAL_KEY};
use crate::size::Steps;
use crate::usage::ByCommand;

/// Reads per call: bounds the time until the lease is looked at again; 8 x 64 KiB.
const READS_MAX: usize = 8;

/// PINGs under way at most.
const PINGS_MAX: usize = 4;

/// The feed connection.
pub(crate) struct Feed<S> {
    stream: RespStream<S>,
    name: String,
    /// Redis's number of this connection; 0: HELLO is not answered yet. A name anybody can take.
    id: u64,
    user: Option<String>,
    expected: VecDeque<Expect>,
    invalid: Vec<Bytes>,
    state: RedisState,
    /// Bytes of a line of the last CLIENT LIST; 0: there was none.
    line_bytes: u64,
    /// Redis's limit of output for the feed, once it is read.
    output_limit: Option<u64>,
    /// Redis tells subscribers of keys that were not there: `reading.rs`, invariant 2.
    quiet: bool,
    /// Fields of hashes may expire by themselves; unknown: yes.
    fields_expire: bool,
    /// Whether Redis's errors are one line each; none: it is to be asked, as it has FUNCTION by its own name.
    line_ends: Option<LineEnds>,
    /// How often hash tables are looked into.
    steps: Steps,
    /// Of which changes Redis tells: `reports.rs`.
    reports: Reports,
    /// What was wrong with the last answer to [`Expect::Calls`]: invariant 3.
    calls_error: Option<String>,
    /// What was wrong with a step of [`Expect::WriteTrial`].
    trial_error: Option<String>,
    ready: bool,
    /// The daemon's commands are what they are called: without that none is sent but for set-up, as
    /// it might be another one.
    trusts_names: bool,
    /// What was asked for.
    own: ByCommand,
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
            id: 0,
            user: credentials.map(|credentials| credentials.user.clone()),
            expected: VecDeque::new(),
            invalid: Vec::new(),
            state: RedisState::default(),
            line_bytes: 0,
            output_limit: None,
            quiet: false,
            fields_expire: true,
            line_ends: Some(LineEnds::Untold),
            steps: Steps::default(),
            reports: Reports::All,
            calls_error: None,
            trial_error: None,
            ready: false,
            trusts_names: false,
            own: ByCommand::default(),
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
        let trial: [&[&[u8]]; 11] = [
            &[b"MULTI"],
            &[b"SELECT", b"0"],
            &[b"STRLEN", TRIAL_KEY],
            &[b"GETRANGE", TRIAL_KEY, b"0", b"0"],
            &[b"OBJECT", b"ENCODING", TRIAL_KEY],
            &[b"HLEN", TRIAL_KEY],
            &[b"MEMORY", b"USAGE", TRIAL_KEY],
            &[b"HMGET", TRIAL_KEY, b"f"],
            &[b"HRANDFIELD", TRIAL_KEY, b"1"],
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

    /// Redis tells subscribers of keys that were not there.
    pub(crate) const fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// How often hash tables are looked into.
    pub(crate) const fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Fields of hashes may expire by themselves.
    pub(crate) const fn fields_expire(&self) -> bool {
        self.fields_expire
    }

    /// Whether another PING may be sent: a slow Redis needs no more.
    pub(crate) fn may_ping(&self) -> bool {
        self.ready && self.pings_in_flight() < PINGS_MAX
    }

    /// Number of transactions under way that read values.
    pub(crate) fn fills_in_flight(&self) -> usize {
        self.expected
            .iter()
            .filter(|expect| matches!(expect, Expect::Exec { .. }))
            .count()
    }

    /// Whether sizes or values are under way.
    pub(crate) fn is_filling(&self) -> bool {
        self.expects(|expect| matches!(expect, Expect::Sizes { .. } | Expect::Exec { .. }))
    }

    /// What may be begun of fills beside those under way; none: nothing.
    pub(crate) fn fill_room(&self) -> Option<Room> {
        let bytes = self.expected.iter().filter_map(|expect| match expect {
            Expect::Sizes { bytes, .. } | Expect::Exec { bytes, .. } => Some(*bytes),
            _ => None,
        });
        let (batches, bytes) = bytes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        Room::beside(batches, bytes)
    }

    /// Longest reply that the next question can have.
    fn reply_max(&self) -> usize {
        match self.expected.front() {
            Some(Expect::FillStep | Expect::Sizes { .. } | Expect::Exec { .. }) => BATCH_REPLY_MAX,
            _ => REPLY_BYTES_MAX,
        }
    }

    /// When the oldest unanswered PING was written.
    pub(crate) fn oldest_ping_ns(&self) -> Option<u64> {
        self.expected.iter().find_map(|expect| match expect {
            Expect::Pong { sent_ns, .. } => Some(*sent_ns),
            _ => None,
        })
    }

    /// Bytes that Redis has sent.
    pub(crate) const fn received(&self) -> u64 {
        self.stream.received()
    }

    pub(crate) fn pings_in_flight(&self) -> usize {
        self.expected
            .iter()
            .filter(|expect| matches!(expect, Expect::Pong { .. }))
            .count()
    }

    /// Of which changes Redis tells, as far as its answers have come.
    pub(crate) const fn reports(&self) -> Reports {
        self.reports
    }

    /// Whether such an answer is still to come.
    pub(crate) fn expects(&self, is_such: impl Fn(&Expect) -> bool) -> bool {
        self.expected.iter().any(is_such)
    }

    pub(crate) fn is_asking_clients(&self) -> bool {
        self.expects(|expect| matches!(expect, Expect::Clients(_)))
    }

    pub(crate) fn is_asking_state(&self) -> bool {
        self.expects(|expect| matches!(expect, Expect::Info { .. } | Expect::Monitors { .. }))
    }

    pub(crate) fn is_touching(&self) -> bool {
        self.expects(|expect| matches!(expect, Expect::Touched))
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.stream.wants_write()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().map_err(|end| self.why_ended(end))
    }

    /// Why the connection ended: Redis closes who is owed an answer that is too long.
    fn why_ended(&self, end: io::Error) -> io::Error {
        let long = self.expected.iter().find_map(Expect::long_answer);
        match long {
            Some(question) => output_limit::end_while_owed(end, question, self.output_limit),
            None => end,
        }
    }

    /// Queues what the lease needs: the calls that tell of SWAPDB (some 15 us of Redis), then PING.
    /// `answered`: shares of the fence, by now.
    pub(crate) fn ping(&mut self, sent_ns: u64, answered: u64) {
        self.ask(&[b"INFO", b"stats", b"commandstats"], Expect::Calls);
        self.ask(&[b"PING"], Expect::Pong { sent_ns, answered });
    }

    pub(crate) fn ask(&mut self, arguments: &[&[u8]], expect: Expect) {
        if self.ready && !self.trusts_names {
            return;
        }
        self.own.count(arguments);
        self.stream.push(arguments);
        self.expected.push_back(expect);
    }

    /// What this feed has asked for, by command.
    pub(crate) const fn own(&self) -> &ByCommand {
        &self.own
    }

    /// Reads and handles what Redis sent. An error ends the connection.
    pub(crate) fn handle_input(
        &mut self,
        cache: &impl DataPath,
        mut drain: Option<&mut Drain<Logs>>,
        now: u64,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        for _ in 0..READS_MAX {
            let more = self.stream.fill().map_err(|end| self.why_ended(end))?;
            while self.handle_next(cache, drain.as_deref_mut(), now, events)? {}
            if !more {
                break;
            }
        }
        self.flush_invalid(cache, events)?;
        self.flush()
    }

    /// Handles the next reply or push; false if none is there.
    fn handle_next(
        &mut self,
        cache: &impl DataPath,
        drain: Option<&mut Drain<Logs>>,
        now: u64,
        events: &mut Vec<Event>,
    ) -> io::Result<bool> {
        if let (Some(Expect::Batch), Some(drain)) = (self.expected.front(), drain)
            && let Some(goes_on) = self.take_batch(drain, cache, now, events)?
        {
            return Ok(goes_on);
        }
        let is_info = matches!(self.expected.front(), Some(Expect::Commands { .. }));
        if is_info && self.stream.has_array() {
            let Some(answer) = self.stream.next_tree()? else {
                return Ok(false);
            };
            self.flush_invalid(cache, events)?;
            self.take_commands(&answer, cache, events)?;
            return Ok(true);
        }
        let most = self.reply_max();
        let Some(frame) = self.stream.next_frame_of(most)? else {
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
        self.check_right(&frame)?;
        let expect = self.expected.pop_front();
        let expect = expect.ok_or_else(|| broken("a reply to nothing that was asked"))?;
        match expect {
            Expect::Setup(step) => self.handle_setup(&step, &frame, cache, events)?,
            Expect::Calls => self.take_calls(&frame, events),
            Expect::Pong { sent_ns, answered } => {
                let pong = is_simple(&frame, b"PONG");
                let wrong = self.calls_error.take();
                let wrong = wrong.or_else(|| (!pong).then(|| refusal(&frame, "PING")));
                let lease = Event::Lease { sent_ns, answered };
                events.push(wrong.map_or(lease, Event::NoLease));
            }
            // A Redis that refuses TOUCH for a moment (-BUSY) is told again in a second.
            Expect::FillStep | Expect::Touched => {}
            Expect::Sizes {
                asked,
                answers,
                whole,
                ..
            } => events.push(Event::Sized(sizes(asked, &answers, whole, &frame)?)),
            Expect::Exec {
                asked,
                answers,
                tables,
                ..
            } => {
                let steps = &mut self.steps;
                let ends = insert(cache, asked, (&answers, tables), steps, &frame)?;
                events.push(Event::Filled(ends));
            }
            Expect::Reports(to) => {
                reports::begin(cache, to, &frame)?;
                self.reports = to;
            }
            Expect::WriteTrial { last, .. } => self.take_trial(&frame, last, events),
            Expect::Batch => return Err(broken("a batch is answered to the drain")),
            Expect::Config => self.take_config(&frame),
            Expect::Acl => self.state.take_acl(&frame),
            Expect::Info { gate, own } => self.take_info(&frame, (gate, own), events),
            Expect::Monitors { gate } => {
                self.state.take_clients(&frame);
                self.line_bytes = self.state.line_bytes;
                events.push(self.state_read(gate));
            }
            Expect::Clients(question) => {
                // Without a list nothing is proved; the next sweep asks again.
                if let Some(list) = text(&frame) {
                    self.line_bytes = output_limit::line_bytes(list);
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

    /// Whatever was asked: nothing works as it should without the right to it. But a trial asks just that.
    fn check_right(&self, frame: &Frame) -> io::Result<()> {
        let asked = self.expected.front();
        let tries = matches!(
            asked,
            Some(Expect::WriteTrial { frame: false, .. } | Expect::Setup(Setup::LineEnds))
        );
        match error(frame).filter(|text| !tries && rights::lacks_right(text)) {
            Some(reason) => Err(self.refused(&asked, &reason)),
            None => Ok(()),
        }
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
                Setup::LineEnds => {
                    self.take_line_ends(&reason, cache);
                    Ok(())
                }
                _ => Err(self.refused(step, &reason)),
            };
        }
        match step {
            Setup::Hello => {
                let id = field(frame, b"id").and_then(integer).filter(|id| *id > 0);
                self.id = id.ok_or_else(|| broken("HELLO's reply tells no id"))?;
            }
            Setup::Name | Setup::NoEvict | Setup::Trial | Setup::Kill => {}
            // Whatever that is, it is not the error that was asked for.
            Setup::LineEnds | Setup::LineEndsRest => {}
            Setup::List => {
                let list = text(frame).cloned().unwrap_or_default();
                self.line_bytes = output_limit::line_bytes(&list);
                self.kill_others(&client_list::parse(&String::from_utf8_lossy(&list)));
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

    /// Queues the questions about Redis's command table.
    pub(crate) fn ask_commands(&mut self) {
        self.ask(&[b"COMMAND", b"LIST"], Expect::Names);
    }

    pub(crate) fn is_asking_commands(&self) -> bool {
        self.expects(|expect| matches!(expect, Expect::Names | Expect::Commands { .. }))
    }

    /// COMMAND LIST was answered.
    fn take_names(&mut self, frame: &Frame) -> io::Result<()> {
        let listed = commands::names(frame).map_err(io::Error::other)?;
        let asked = commands::asked(&listed);
        let names = asked.iter().map(String::as_bytes);
        let words: Vec<&[u8]> = [&b"COMMAND"[..], b"INFO"]
            .into_iter()
            .chain(names)
            .collect();
        self.own.count(&words);
        self.stream.push(&words);
        self.expected.push_back(Expect::Commands { listed, asked });
        Ok(())
    }

    /// COMMAND INFO was answered.
    fn take_commands(
        &mut self,
        answer: &Tree,
        cache: &impl DataPath,
        events: &mut Vec<Event>,
    ) -> io::Result<()> {
        let Some(Expect::Commands { listed, asked }) = self.expected.pop_front() else {
            return Err(broken("COMMAND INFO was not asked for"));
        };
        let table = commands::table(&listed, &asked, answer).map_err(io::Error::other)?;
        if commands::apply(cache, &table).map_err(io::Error::other)? && self.ready {
            cache.clear().map_err(io::Error::other)?;
        }
        if table.has(line_ends::COMMAND) && self.line_ends == Some(LineEnds::Untold) {
            self.line_ends = None;
        }
        let end = match table.report.refusal() {
            Some(reason) => Err(reason),
            None => Ok(table.report),
        };
        self.commands_end(end, events);
        Ok(())
    }

    /// The table is loaded; a new feed goes on with its tracking.
    fn commands_end(&mut self, end: Result<CommandsReport, String>, events: &mut Vec<Event>) {
        let again = self.ready;
        self.trusts_names = end.is_ok();
        events.push(Event::Commands { end, again });
        if !self.ready {
            self.ask(
                &[b"CLIENT", b"TRACKING", b"ON", b"BCAST", b"NOLOOP"],
                Expect::Setup(Setup::Tracking),
            );
        }
    }

    fn refused(&self, what: &impl std::fmt::Debug, reason: &str) -> io::Error {
        rights::refused(self.user.as_deref(), reason)
            .unwrap_or_else(|| io::Error::other(format!("Redis refused {what:?} with {reason:?}")))
    }

    /// Ends feeds of the same name that are older than this connection (ids only grow). What is
    /// younger and bears the name is no feed, or one that will end this one.
    fn kill_others(&mut self, list: &[ClientLine]) {
        let older = |client: &&ClientLine| client.name == self.name && client.id < self.id;
        let older: Vec<u64> = list.iter().filter(older).map(|client| client.id).collect();
        for id in older {
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
                events.push(Event::Invalidated {
                    keys: Vec::new(),
                    again: erb_abi::Again::default(),
                });
            }
        }
        Ok(())
    }

    fn flush_invalid(&mut self, cache: &impl DataPath, events: &mut Vec<Event>) -> io::Result<()> {
        if self.invalid.is_empty() {
            return Ok(());
        }
        let keys: Vec<&[u8]> = self.invalid.iter().map(Bytes::as_ref).collect();
        let again = cache.invalidate(&keys).map_err(io::Error::other)?;
        let keys = std::mem::take(&mut self.invalid);
        events.push(Event::Invalidated { keys, again });
        Ok(())
    }
}

/// What a reply that should have been another says.
fn refusal(reply: &Frame, command: &str) -> String {
    error(reply).unwrap_or_else(|| format!("an unexpected reply to {command}"))
}

#[path = "feed_state.rs"]
mod state;
#[path = "feed_writes.rs"]
mod writes;

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
