// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One client connection: its requests, what Redis wrote to it, what the client read.
//!
//! Redis executed some of the requests, in order; the others must have been answered fast. Which,
//! nobody says: equal requests can be told apart only by what becomes of them. So all alignments
//! that are still possible are kept ([`State`]), usually one. None left: the client has read bytes
//! that Redis alone would not have sent.

use std::collections::VecDeque;
use std::sync::Arc;

use erb_sim_redis::Bytes;

use crate::time::{MS, Ns, show as show_time};

use super::wire::{Argv, Replies, Requests, is, show, show_argv};
use super::{Point, Told, Versions, Via, reads};

/// Alignments kept at most; equal requests in one pipeline cannot make more.
const STATES_MAX: usize = 4_096;

/// Access rules that no packet shows are read each second, and take a moment to be judged.
const RIGHTS_LAG_NS: Ns = 1_500 * MS;

#[derive(Debug)]
struct Request {
    argv: Argv,
    invoked: Point,
}

/// What the connection's earlier commands make of a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mode {
    /// The database selected.
    pub(super) db: u32,
    multi: bool,
    watching: bool,
    subscribed: bool,
    muted: bool,
    monitor: bool,
    resp3: bool,
    /// Its user may not do everything, by what the connection itself has said.
    /// From then on ERB knows.
    restricted: Option<Ns>,
}

impl Mode {
    /// Whether GET and PING mean what the fast path takes them to mean.
    fn is_plain(self) -> bool {
        !self.multi && !self.subscribed && !self.muted && !self.monitor
    }

    /// The mode behind a command that Redis has executed.
    fn after(mut self, argv: &[Bytes], reply: &[u8]) -> Self {
        if reply.starts_with(b"-") || (self.multi && reply.starts_with(b"+QUEUED")) {
            let ends = self.multi && (is(argv, "exec") || is(argv, "discard"));
            self.multi &= !ends;
            self.watching &= !ends;
            return self;
        }
        let text = |at: usize| argv.get(at).map(|arg| arg.to_ascii_lowercase());
        if is(argv, "multi") {
            self.multi = true;
        } else if is(argv, "exec") || is(argv, "discard") {
            self.multi = false;
            self.watching = false;
        } else if is(argv, "watch") {
            self.watching = true;
        } else if is(argv, "unwatch") {
            self.watching = false;
        } else if is(argv, "select") {
            let number = text(1).and_then(|arg| String::from_utf8(arg).ok()?.parse().ok());
            self.db = number.unwrap_or(0);
        } else if is(argv, "hello") {
            self.resp3 = reply.starts_with(b"%");
        } else if is(argv, "reset") {
            let restricted = self.restricted;
            self = Self {
                restricted,
                ..Self::default()
            };
        } else if is(argv, "monitor") {
            self.monitor = true;
        } else if ["subscribe", "psubscribe", "ssubscribe"]
            .iter()
            .any(|name| is(argv, name))
        {
            self.subscribed = true;
        } else if is(argv, "unsubscribe") || is(argv, "punsubscribe") {
            self.subscribed &= !reply.ends_with(b":0\r\n");
        } else if is(argv, "client") && text(1).as_deref() == Some(b"reply") {
            self.muted = text(2).as_deref() != Some(b"on");
        }
        self
    }
}

/// What Redis wrote at once: for one command, or out of turn.
#[derive(Debug)]
struct Chunk {
    /// `None`: bytes that belong to no command.
    argv: Option<Argv>,
    reply: Bytes,
    at: Point,
    /// Mode before it.
    mode: Mode,
}

/// A possible alignment of what the client has read so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    /// Requests answered.
    request: u64,
    /// Commands of Redis consumed.
    chunk: u64,
    /// Bytes of the next one's reply consumed.
    offset: usize,
    /// Earliest possible point of the last command.
    floor: Point,
    /// The last step was a fast answer, of a replaced value or not.
    fast: Option<bool>,
}

/// Who wants to see what is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    /// Since when there is a monitor.
    pub(super) monitored: Option<u64>,
    /// Since when Redis tells of reads of absent keys, and whether ERB saw what made it do so.
    pub(super) misses: Option<(Point, bool)>,
}

impl Watched {
    /// Whether what was asked for then, and is answered here, would have been told of.
    fn misses_at(self, here: Point, invoked: u64) -> bool {
        self.misses.is_some_and(|(since, seen)| {
            let is_late = seen || here.at > since.at + RIGHTS_LAG_NS;
            is_late && since.stamp < invoked
        })
    }
}

/// What a reply turned out to be.
pub(super) struct Answer {
    /// The fast path's, with whether the value was a replaced one.
    pub(super) fast: Option<bool>,
    /// The request that it ended, with the stamp of its invocation.
    pub(super) request: Option<(Argv, u64)>,
    /// What the request meant.
    pub(super) mode: Mode,
}

/// A client connection.
#[derive(Debug)]
pub(super) struct Session {
    via: Via,
    stream_in: Requests,
    stream_out: Replies,
    requests: VecDeque<Request>,
    first_request: u64,
    chunks: VecDeque<Chunk>,
    first_chunk: u64,
    states: Vec<State>,
    mode: Mode,
    /// Since when its user may not do everything, and whether ERB saw what took that away.
    lost: Option<(Point, bool)>,
}

impl Session {
    /// A connection that has said nothing yet.
    pub(super) fn new(via: Via) -> Self {
        let start = State {
            request: 0,
            chunk: 0,
            offset: 0,
            floor: Point::default(),
            fast: None,
        };
        Self {
            via,
            stream_in: Requests::default(),
            stream_out: Replies::default(),
            requests: VecDeque::new(),
            first_request: 0,
            chunks: VecDeque::new(),
            first_chunk: 0,
            states: vec![start],
            mode: Mode::default(),
            lost: None,
        }
    }

    /// By which way it reaches Redis.
    pub(super) const fn via(&self) -> Via {
        self.via
    }

    /// Whether all of its bytes were requests so far.
    pub(super) fn is_followed(&self) -> bool {
        !self.stream_in.broken
    }

    /// The client hands bytes to its TCP.
    pub(super) fn sent(&mut self, here: Point, bytes: &[u8]) {
        let requests = &mut self.requests;
        self.stream_in.push(bytes, |argv| {
            let invoked = here;
            requests.push_back(Request { argv, invoked });
        });
    }

    /// Redis executed a command of this connection.
    pub(super) fn executed(&mut self, here: Point, argv: Argv, reply: &[u8]) {
        let mode = self.mode;
        self.mode = mode.after(&argv, reply);
        self.chunks.push_back(Chunk {
            argv: Some(argv),
            reply: reply.into(),
            at: here,
            mode,
        });
    }

    /// Redis wrote something out of turn.
    pub(super) fn redis_pushed(&mut self, here: Point, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.chunks.push_back(Chunk {
            argv: None,
            reply: bytes.into(),
            at: here,
            mode: self.mode,
        });
    }

    /// The client has read bytes.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        self.stream_out.push(bytes);
    }

    /// The next whole reply of what the client has read.
    pub(super) fn next_frame(&mut self) -> Result<Option<Vec<u8>>, String> {
        self.stream_out.next()
    }

    /// The client has read a reply.
    pub(super) fn replied(
        &mut self,
        here: Point,
        reply: &[u8],
        versions: &Versions,
        watched: Watched,
    ) -> Result<Answer, (&'static str, String)> {
        let states = self.closure();
        let mut next: Vec<State> = Vec::new();
        let mut hidden = None;
        for state in &states {
            if let Some(stepped) = self.step_redis(*state, reply) {
                keep(&mut next, stepped);
            }
            let step = |absent| self.step_fast(*state, (reply, absent), versions, here);
            let Some(stepped) = step(true) else {
                continue;
            };
            let invoked = self.request(state.request).map_or(0, |r| r.invoked.stamp);
            if watched.monitored.is_some_and(|since| since < invoked) {
                hidden = Some("monitor");
            } else if !watched.misses_at(here, invoked) {
                keep(&mut next, stepped);
            } else if let Some(stepped) = step(false) {
                keep(&mut next, stepped);
            } else {
                hidden = Some("keymiss");
            }
        }
        if next.is_empty() {
            let rule = hidden.unwrap_or_else(|| self.rule(&states, reply));
            return Err((rule, self.explain(&states, reply, versions, here)));
        }
        assert!(next.len() <= STATES_MAX, "alignments are bounded");
        let answer = self.answer(&states, &next);
        self.states = next;
        self.forget();
        Ok(answer)
    }

    /// What is known about the reply: only what all alignments agree on.
    fn answer(&self, before: &[State], next: &[State]) -> Answer {
        let ended = next[0].request;
        let agreed = next.iter().all(|state| state.request == ended) && !before.is_empty();
        let moved = before.iter().all(|state| state.request < ended);
        let request = (agreed && moved)
            .then(|| self.request(ended - 1))
            .flatten()
            .map(|request| (Arc::clone(&request.argv), request.invoked.stamp));
        Answer {
            fast: next.iter().map(|state| state.fast).min().flatten(),
            request,
            mode: self.mode_at(before[0].chunk),
        }
    }

    /// The states, and those in which commands that Redis answered by nothing are consumed.
    fn closure(&self) -> Vec<State> {
        let mut all = self.states.clone();
        let mut at = 0;
        while at < all.len() {
            let state = all[at];
            at += 1;
            if state.offset > 0 {
                continue;
            }
            let silent = self.chunk(state.chunk).is_some_and(|c| c.reply.is_empty());
            if silent && let Some(stepped) = self.step_redis(state, b"") {
                keep(&mut all, stepped);
            }
        }
        all
    }

    /// The frame is the next part of what Redis wrote.
    fn step_redis(&self, state: State, frame: &[u8]) -> Option<State> {
        let chunk = self.chunk(state.chunk)?;
        let answers = chunk.argv.is_some();
        if answers && state.offset == 0 && !self.matches(state.request, chunk) {
            return None;
        }
        if !chunk.reply[state.offset..].starts_with(frame) {
            return None;
        }
        let offset = state.offset + frame.len();
        let whole = offset == chunk.reply.len();
        Some(State {
            request: state.request + u64::from(whole && answers),
            chunk: state.chunk + u64::from(whole),
            offset: if whole { 0 } else { offset },
            floor: state.floor.max(chunk.at),
            fast: None,
        })
    }

    /// Whether Redis's command may be this request.
    fn matches(&self, request: u64, chunk: &Chunk) -> bool {
        let argv = chunk.argv.as_ref();
        match self.request(request) {
            // Who has not given the password may not send many arguments: no request of Redis's.
            Some(request) => {
                let refused = chunk
                    .reply
                    .starts_with(b"-ERR Protocol error: unauthenticated");
                request.invoked < chunk.at
                    && argv.is_some_and(|argv| *argv == request.argv || argv.is_empty() && refused)
            }
            // What could not be read as a request: Redis says what it was.
            None => self.stream_in.broken,
        }
    }

    /// The frame is a fast reply to the next request; with leave to say that keys are absent or not.
    fn step_fast(
        &self,
        state: State,
        (frame, absent): (&[u8], bool),
        versions: &Versions,
        here: Point,
    ) -> Option<State> {
        let request = self.request(state.request)?;
        let mode = self.mode_at(state.chunk);
        let may = self.via == Via::Erb && mode.is_plain();
        if state.offset > 0 || !may {
            return None;
        }
        let restricted = mode.restricted.is_some_and(|known_at| here.at > known_at);
        if restricted || self.lost_rights(request.invoked, here) {
            return None;
        }
        // Redis executed what comes next for a later request, so that one was sent before it ran.
        let next = self.request(state.request + 1);
        if let Some(chunk) = self.chunk(state.chunk)
            && chunk.argv.is_some()
            && next.is_none_or(|next| next.invoked > chunk.at)
            && !self.stream_in.broken
        {
            return None;
        }
        let from = state.floor.max(request.invoked);
        let (floor, stale) = if is(&request.argv, "ping") && request.argv.len() == 1 {
            (frame == b"+PONG\r\n").then_some((from, false))?
        } else {
            let within = (from, here.at);
            let at = (versions, mode.db);
            let says = reads::Says {
                frame,
                resp3: mode.resp3,
                absent,
            };
            let read = match &request.argv[..] {
                [name, set @ ..] if name.eq_ignore_ascii_case(b"set") => {
                    let absorbed = || versions.absorbed(mode.db, set, from);
                    (frame == b"+OK\r\n").then(absorbed)??
                }
                argv => reads::point(argv, says, at, within)?,
            };
            // Optimistic locking needs what was there after WATCH, or its EXEC is a lie.
            if mode.watching && read.stale {
                return None;
            }
            (read.point, read.stale)
        };
        Some(State {
            request: state.request + 1,
            floor,
            fast: Some(stale),
            ..state
        })
    }

    /// Whether its user had lost rights before the request was sent, so that Redis would refuse it.
    fn lost_rights(&self, invoked: Point, here: Point) -> bool {
        self.lost.is_some_and(|(since, seen)| {
            let is_late = seen || here.at > since.at + RIGHTS_LAG_NS;
            is_late && since.stamp < invoked.stamp
        })
    }

    /// Whether its user may do everything now; seen: the command that changed it came by ERB.
    pub(super) fn rights(&mut self, here: Point, full: bool, seen: bool) {
        if full {
            self.lost = None;
            self.mode.restricted = None;
        } else if self.lost.is_none() {
            self.lost = Some((here, seen));
        }
    }

    /// What Redis holds of the connection behind a command of its own that may have changed it.
    /// changed: when access rules last did, and whether ERB saw it.
    pub(super) fn told(&mut self, told: Told, changed: (Point, bool)) {
        self.mode.db = told.db;
        self.mode.resp3 = told.resp == 3;
        self.mode.restricted = None;
        if told.full {
            self.lost = None;
        } else {
            let (since, seen) = changed;
            let known_at = if seen { 0 } else { since.at + RIGHTS_LAG_NS };
            self.mode.restricted = Some(known_at);
        }
    }

    fn request(&self, number: u64) -> Option<&Request> {
        self.requests
            .get(usize::try_from(number.checked_sub(self.first_request)?).ok()?)
    }

    fn chunk(&self, number: u64) -> Option<&Chunk> {
        self.chunks
            .get(usize::try_from(number.checked_sub(self.first_chunk)?).ok()?)
    }

    fn mode_at(&self, chunk: u64) -> Mode {
        self.chunk(chunk).map_or(self.mode, |chunk| chunk.mode)
    }

    /// Drops what no alignment needs any more.
    fn forget(&mut self) {
        let request = self.states.iter().map(|s| s.request).min().unwrap_or(0);
        while self.first_request < request && self.requests.pop_front().is_some() {
            self.first_request += 1;
        }
        let chunk = self.states.iter().map(|s| s.chunk).min().unwrap_or(0);
        while self.first_chunk < chunk && self.chunks.pop_front().is_some() {
            self.first_chunk += 1;
        }
    }

    /// When the oldest request was sent that no alignment sees answered.
    pub(super) fn oldest_unanswered(&self) -> Option<Ns> {
        if self.stream_in.broken || self.mode.muted || self.mode.subscribed || self.mode.monitor {
            return None;
        }
        let answered = self.states.iter().map(|state| state.request).max()?;
        Some(self.request(answered)?.invoked.at)
    }

    /// Requests whose outcome nobody knows, with what they meant and their stamp.
    pub(super) fn unknown(self) -> Vec<(Argv, Mode, u64)> {
        let answered = self.states.iter().map(|s| s.request).min().unwrap_or(0);
        let skip = answered.saturating_sub(self.first_request) as usize;
        let mode = self.mode;
        self.requests
            .into_iter()
            .skip(skip)
            .map(|request| (request.argv, mode, request.invoked.stamp))
            .collect()
    }

    /// A reply to a read that says something of a key is a matter of history, all else of the stream.
    fn rule(&self, states: &[State], reply: &[u8]) -> &'static str {
        let get = |state: &State| {
            let request = self.request(state.request);
            state.offset == 0
                && request.is_some_and(|request| reads::is_answer(&request.argv, reply))
        };
        let value = states.iter().any(get);
        if value { "history" } else { "stream" }
    }

    fn explain(&self, states: &[State], reply: &[u8], versions: &Versions, here: Point) -> String {
        let mut text = format!("the client read {}", show(reply));
        for state in states.iter().take(3) {
            let Some(request) = self.request(state.request) else {
                text.push_str(&format!("; request {} was never sent", state.request));
                continue;
            };
            text.push_str(&format!(
                "; as reply {} to `{}` sent at {}",
                state.request,
                show_argv(&request.argv),
                show_time(request.invoked.at)
            ));
            match self.chunk(state.chunk) {
                Some(chunk) => text.push_str(&format!(
                    ", while Redis's next answer was to `{}` at {}: {}",
                    chunk.argv.as_deref().map_or("nothing".into(), show_argv),
                    show_time(chunk.at.at),
                    show(&chunk.reply[state.offset..])
                )),
                None => text.push_str(", while Redis had executed nothing more"),
            }
            if reads::is_read(&request.argv) {
                for key in request.argv.iter().skip(1) {
                    text.push_str(&format!("; {}", versions.describe(key)));
                }
            }
        }
        text.push_str(&format!(" (record {})", here.stamp));
        text
    }
}

/// Adds a state unless one like it has an earlier point already.
fn keep(states: &mut Vec<State>, new: State) {
    let same =
        |s: &&mut State| (s.request, s.chunk, s.offset) == (new.request, new.chunk, new.offset);
    match states.iter_mut().find(same) {
        Some(old) if old.floor > new.floor => *old = new,
        Some(_) => {}
        None => states.push(new),
    }
}
