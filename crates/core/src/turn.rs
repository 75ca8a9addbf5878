// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The turn: one thread, strict order. Each tick (50 ms, 100 ms at rest) renews the clock and the
//! lease, runs the retransmission timer and drains the misses; once a second Redis's state is read,
//! the connection table swept and new devices covered.

use erb_abi::{SweepReport, ValueKind, Wanted};

use crate::admit::Admissions;
use crate::feed::{Event, Feed};
use crate::fill::Fills;
use crate::listeners::Listeners;
use crate::outside::{DataPath, Error, Machine, Result};
use crate::pace::Pace;
use crate::reading::{Asked, Filled};
use crate::walk::{Pieces, Round, Timer, Walk};
use crate::watch::Watch;

pub(crate) const MS: u64 = 1_000_000;

/// Half a lease: one lost tick does not end it.
pub(crate) const TICK_NS: u64 = erb_abi::LEASE_MS as u64 / 2 * MS;

/// While nothing can be answered and nothing waits: what a rest costs is mostly its wake-ups.
const REST_TICK_NS: u64 = 2 * TICK_NS;

/// Between drains while misses flow: a fill then takes about as long as two round trips.
const DRAIN_NS: u64 = 2 * MS;

/// Misses seen within this time count as flowing.
const FLOW_NS: u64 = 20 * MS;

/// Between handling invalidations while they flow: marks and lease cover what is in between, and
/// one wake-up then handles many.
const PUSH_PAUSE_NS: u64 = MS;

/// Once a second: state watch, sweep, devices, miss counts.
pub(crate) const SECOND_NS: u64 = 1000 * MS;

/// After attaching, packets that passed before it are in the kernel after this time.
const ADMIT_AFTER_NS: u64 = 200 * MS;

/// Between attempts to reach Redis again.
const RETRY_NS: u64 = 200 * MS;

/// The device that each network namespace has (include/net/flow.h).
const LOOPBACK_IFINDEX: u32 = 1;

/// The same where Redis refused the user, or closed what it owed too long an answer: each attempt is a
/// line in its ACL LOG or log.
const REFUSED_RETRY_NS: u64 = 1000 * MS;

/// A feed that leaves PING unanswered, and says nothing else either, for this long is made anew.
const SILENCE_MAX_NS: u64 = 5000 * MS;

/// PINGs under way at most: a slow Redis needs no more.
pub(crate) const PINGS_MAX: usize = 4;

/// A step of the wall clock against the monotonic one that voids all expiry times.
const CLOCK_STEP_NS: u64 = 2 * MS;

/// What reading the two clocks may err by.
const CLOCK_NOISE_NS: u64 = 2_000;

/// What goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// At work.
    Running,
    /// Detach was asked for at this time; leaves when nothing needs translation.
    Stopping {
        /// When, `CLOCK_MONOTONIC`, ns.
        since_ns: u64,
    },
    /// Leave now.
    Leaving,
}

/// What does not change.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The feed's client name; without blanks.
    pub feed_name: String,
    /// Redis's address, for people.
    pub redis: String,
    /// Redis's port.
    pub port: u16,
    /// How the table of connections is walked.
    pub pieces: Pieces,
}

/// What the daemon decides with, between two turns.
pub struct Core<P, M: Machine> {
    pub(crate) path: P,
    pub(crate) machine: M,
    pub(crate) feed: Option<Feed<M::Stream>>,
    pub(crate) feeds_made: u64,
    pub(crate) fills: Fills,
    pub(crate) watch: Watch,
    pub(crate) admissions: Admissions,
    pub(crate) sweep: SweepReport,
    pub(crate) proof_pending: bool,
    pub(crate) unseen: crate::unseen::Unseen,
    /// Rows whose commands had run when the last list was made, unless threads had only parsed them.
    pub(crate) perhaps_run: Vec<erb_abi::sweep_row>,
    pub(crate) stubborn: crate::proof::Stubborn,
    pub(crate) listeners: Listeners<M::Stream>,
    pub(crate) clients_asked_ns: u64,
    pub(crate) clients_next_ns: u64,
    pub(crate) stage: Stage,
    pub(crate) asked: crate::lease::Asked,
    pub(crate) awake_until_ns: u64,
    /// Where [`Self::touch_used`] goes on.
    pub(crate) touch_set: u32,
    pub(crate) settings: Settings,
    retry_ns: u64,
    pub(crate) next_tick_ns: u64,
    pub(crate) next_second_ns: u64,
    /// When the feed last said anything.
    heard_ns: u64,
    last_miss_ns: u64,
    last_drain_ns: u64,
    push_pause_until_ns: u64,
    pub(crate) settle_next_ns: u64,
    /// Answered shares of the fence that the last PING noted.
    pub(crate) settle_asked: u64,
    admit_at_ns: Option<u64>,
    misses_this_second: u64,
    pub(crate) answered: u64,
    pub(crate) unacked: bool,
    pub(crate) timer: Timer,
    /// The sweep that is not over yet.
    pub(crate) round: Option<Round>,
    pub(crate) held: Walk,
    pub(crate) held_pace: Pace,
    pub(crate) sweep_pace: Pace,
    pub(crate) timer_pace: Pace,
    wall_minus_mono_ns: i64,
}

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Takes over a data path of which nothing is known. Nothing is answered before the first
    /// turns. A feed of the same name, left by a dead daemon, is ended.
    #[must_use]
    pub fn new(path: P, machine: M, settings: Settings) -> Self {
        let now = machine.monotonic_ns();
        path.set_serving(0);
        path.set_lease_until_ns(0);
        path.set_stopping(0);
        // What a former daemon knew of access rules is not known any more.
        path.set_open(0);
        path.set_rights(path.rights().wrapping_add(1));
        Self {
            path,
            machine,
            feed: None,
            feeds_made: 0,
            fills: Fills::default(),
            watch: Watch::default(),
            admissions: Admissions::default(),
            sweep: SweepReport::default(),
            proof_pending: false,
            unseen: crate::unseen::Unseen::default(),
            perhaps_run: Vec::new(),
            stubborn: crate::proof::Stubborn::default(),
            listeners: Listeners::default(),
            clients_asked_ns: 0,
            clients_next_ns: 0,
            stage: Stage::Running,
            asked: crate::lease::Asked::default(),
            awake_until_ns: now + crate::lease::AWAKE_NS,
            touch_set: 0,
            settings,
            retry_ns: 0,
            next_tick_ns: now,
            next_second_ns: now,
            heard_ns: 0,
            last_miss_ns: 0,
            last_drain_ns: 0,
            push_pause_until_ns: 0,
            settle_next_ns: 0,
            settle_asked: 0,
            admit_at_ns: Some(now + ADMIT_AFTER_NS),
            misses_this_second: 0,
            answered: 0,
            // Of an adopted data path nothing is known.
            unacked: true,
            timer: Timer::default(),
            round: None,
            held: Walk::default(),
            held_pace: Pace::default(),
            sweep_pace: Pace::default(),
            timer_pace: Pace::default(),
            wall_minus_mono_ns: 0,
        }
    }

    /// Does what is due. `feed_is_ready`: Redis sent something, or there is room again for what
    /// could not be written.
    ///
    /// # Errors
    /// The data path cannot be driven any more; it is left as it is.
    pub fn turn(&mut self, feed_is_ready: bool) -> Result<()> {
        if feed_is_ready {
            self.turn_feed();
        }
        let now = self.machine.monotonic_ns();
        if now >= self.next_tick_ns {
            self.next_tick_ns = (self.next_tick_ns + TICK_NS).max(now + TICK_NS / 2);
            match self.tick(now) {
                Err(Error::DeviceGone(_)) => self.change_device()?,
                done => done?,
            }
            if self.is_idle(now) {
                self.next_tick_ns += REST_TICK_NS - TICK_NS;
            }
        } else if self.is_flowing(now) && now >= self.last_drain_ns + DRAIN_NS {
            self.drain_misses(now)?;
        }
        self.ask_settle(now);
        self.flush_feed();
        Ok(())
    }

    /// When the next turn is due even if Redis is silent.
    #[must_use]
    pub fn next_wake_ns(&self, now: u64) -> u64 {
        let mut until = self.next_tick_ns;
        if self.is_flowing(now) {
            until = until.min(self.last_drain_ns + DRAIN_NS);
        }
        if self.feed.is_some() && !self.may_read(now) {
            until = until.min(self.push_pause_until_ns);
        }
        if self.wants_settle() {
            until = until.min(self.settle_next_ns.max(now));
        }
        until
    }

    /// The connection to Redis, if there is one.
    #[must_use]
    pub fn stream(&self) -> Option<&M::Stream> {
        self.feed.as_ref().map(Feed::stream)
    }

    /// Whether a turn would read what Redis sent; if not, [`Self::next_wake_ns`] says when.
    #[must_use]
    pub fn may_read(&self, now: u64) -> bool {
        now >= self.push_pause_until_ns || self.is_settling()
    }

    /// Whether something waits for room to be written.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.feed.as_ref().is_some_and(Feed::wants_write)
    }

    const fn is_flowing(&self, now: u64) -> bool {
        now < self.last_miss_ns + FLOW_NS
    }

    fn tick(&mut self, now: u64) -> Result<()> {
        self.keep_clock()?;
        self.look_who_asks(now)?;
        if self.stage == Stage::Running {
            // Once a second even at rest: a Redis that does not answer is found out.
            let at_rest = now < self.next_second_ns && self.is_at_rest(now);
            self.keep_feed(now, at_rest);
            self.hurry_listeners(now)?;
            if self.admit_at_ns.is_some_and(|at| now >= at) && self.is_settled(now) {
                self.admit_at_ns = None;
                // The dump gives every older socket the cookie by which XDP knows it.
                self.machine.passing_connections()?;
                self.path.set_admit(1);
            }
        }
        self.retransmit(now)?;
        self.drain_misses(now)?;
        self.touch_used(now)?;
        self.watch_gate();
        if now >= self.next_second_ns {
            self.next_second_ns = now + SECOND_NS;
            self.second(now)?;
        } else if self.sweep_pace.may(now)
            && (self.round.is_some()
                || self.is_sweep_urgent()
                || self.is_probe_urgent()
                || self.wants_admissions(now)?)
        {
            self.sweep_connections()?;
        } else {
            self.hurry_held(now)?;
        }
        Ok(())
    }

    /// The device on which programs are run is gone: takes the next one. After the last one
    /// connections may go on by devices that are not boosted, and need translation there.
    fn change_device(&mut self) -> Result<()> {
        if let Some(ifindex) = self.machine.present_device()? {
            self.path.run_on(ifindex);
            return Ok(());
        }
        self.path.run_on(LOOPBACK_IFINDEX);
        if self.stage == Stage::Running {
            tracing::warn!("no boosted device is left");
            self.stop(false)?;
        }
        Ok(())
    }

    /// A closed fence may wait for proof: everybody's hits wait with it.
    pub(crate) fn is_sweep_urgent(&self) -> bool {
        self.path.fence() != 0 || self.proof_pending || self.stage != Stage::Running
    }

    /// Whether nothing needs the next tick soon: no lease now or under way, under which the clock
    /// must be watched closely, nothing to retransmit, to prove, to read again.
    fn is_idle(&self, now: u64) -> bool {
        let settled = |feed: &Feed<M::Stream>| feed.is_ready() && feed.pings_in_flight() == 0;
        self.is_at_rest(now)
            && now >= self.path.lease_until_ns()
            && self.feed.as_ref().is_some_and(settled)
            && !self.unacked
            && self.admit_at_ns.is_none()
            && self.round.is_none()
            && !self.is_sweep_urgent()
            && self.path.gate_seen() == self.path.gate_ack()
    }

    fn second(&mut self, now: u64) -> Result<()> {
        for name in self.machine.cover_egress()? {
            tracing::info!("replies by {name} are watched from now on");
        }
        if self.misses_this_second > 0 {
            self.misses_this_second = 0;
            self.path.halve_miss_counts();
        }
        self.fills.forgive(now);
        self.ask_state();
        self.read_listeners(now)?;
        self.count_unseen(now)?;
        if self.sweep_pace.may(now) {
            self.sweep_connections()?;
        }
        Ok(())
    }

    /// A step of the wall clock makes every cached expiry wrong.
    fn keep_clock(&mut self) -> Result<()> {
        let difference = self.machine.wall_minus_monotonic_ns();
        if difference.abs_diff(self.wall_minus_mono_ns) <= CLOCK_NOISE_NS {
            return Ok(());
        }
        let stepped = difference.abs_diff(self.wall_minus_mono_ns) > CLOCK_STEP_NS;
        self.path.set_wall_minus_mono_ns(difference);
        if stepped && self.wall_minus_mono_ns != 0 {
            tracing::warn!("the wall clock was set: the cache is emptied");
            self.path.clear()?;
        }
        self.wall_minus_mono_ns = difference;
        Ok(())
    }

    fn keep_feed(&mut self, now: u64, at_rest: bool) {
        match &mut self.feed {
            Some(feed) => {
                // A long answer to another question that is on its way is no silence.
                let heard_ns = self.heard_ns;
                let since = feed.oldest_ping_ns().map(|sent| sent.max(heard_ns));
                if since.is_some_and(|since| now > since + SILENCE_MAX_NS) {
                    self.drop_feed("Redis does not answer PING");
                } else if !at_rest && feed.is_ready() && feed.pings_in_flight() < PINGS_MAX {
                    let answered = self.path.fence_answered();
                    feed.ping(self.machine.monotonic_ns(), answered);
                    self.settle_asked = answered;
                }
            }
            None if now >= self.retry_ns => {
                self.retry_ns = now + RETRY_NS;
                match self.new_feed() {
                    Ok(feed) => self.feed = Some(feed),
                    Err(reason) => self.watch.no_feed(&reason),
                }
            }
            None => {}
        }
    }

    fn new_feed(&mut self) -> std::result::Result<Feed<M::Stream>, String> {
        let credentials = self
            .machine
            .credentials()
            .map_err(|error| error.to_string())?;
        let stream = self.machine.connect();
        stream
            .and_then(|stream| Feed::new(stream, &self.settings.feed_name, credentials.as_ref()))
            .map_err(|error| format!("Redis cannot be reached: {error}; the daemon keeps trying"))
    }

    /// Without feed nothing is answered from the cache, at once.
    fn drop_feed(&mut self, reason: &str) {
        self.path.set_serving(0);
        self.path.set_lease_until_ns(0);
        let known = self.watch.no_feed_for(reason);
        if self.feed.take().is_some() && !known {
            tracing::warn!("the feed from Redis ended: {reason}");
        }
        self.retry_ns = self.machine.monotonic_ns() + RETRY_NS;
        self.watch.no_feed(reason);
        self.forget_rights();
        self.fills.forget_all();
        self.drop_probes();
        self.perhaps_run.clear();
        self.settle_asked = 0;
    }

    fn flush_feed(&mut self) {
        if let Some(Err(error)) = self.feed.as_mut().map(Feed::flush) {
            self.drop_feed(&error.to_string());
        }
    }

    fn turn_feed(&mut self) {
        let now = self.machine.monotonic_ns();
        if !self.may_read(now) {
            return;
        }
        let Some(feed) = &mut self.feed else { return };
        let mut events = Vec::new();
        let before = feed.received();
        let done = feed.handle_input(&self.path, &mut events);
        if feed.received() != before {
            // Behind it: what the daemon needs to read it is not Redis's silence.
            self.heard_ns = self.machine.monotonic_ns();
        }
        for event in events {
            if let Err(error) = self.handle(event, now) {
                self.drop_feed(&error.to_string());
                return;
            }
        }
        if let Err(error) = done {
            self.drop_feed(&error.to_string());
            let refused = [
                std::io::ErrorKind::PermissionDenied,
                std::io::ErrorKind::QuotaExceeded,
            ];
            if refused.contains(&error.kind()) {
                self.retry_ns = now + REFUSED_RETRY_NS;
            }
        }
    }

    fn handle(&mut self, event: Event, now: u64) -> Result<()> {
        match event {
            Event::Ready => self.feed_ready(),
            Event::Calls(calls) => self.take_calls(calls)?,
            Event::Commands { end, again } => self.take_commands(end, again),
            Event::Lease { sent_ns, answered } => {
                self.settle(answered)?;
                self.watch.lease_refused(None);
                let until = sent_ns + u64::from(erb_abi::LEASE_MS) * MS;
                if self.stage == Stage::Running && until > self.path.lease_until_ns() {
                    self.path.set_lease_until_ns(until);
                }
            }
            Event::NoLease(reason) => self.watch.lease_refused(Some(reason)),
            Event::State { state, gate } => self.take_state(*state, gate),
            Event::Clients { list, question } => self.take_clients(&list, question)?,
            Event::Sized(sizes) => {
                for (key, size) in sizes {
                    match size {
                        Some(size) => self.fills.sized(key, size, now),
                        None => self.fills.ended(key, Filled::Later, now),
                    }
                }
                self.begin_fills()?;
            }
            Event::Filled(ends) => {
                for (key, end) in ends {
                    self.fills.ended(key, end, now);
                }
                self.begin_fills()?;
            }
            Event::Invalidated(keys) => {
                for key in &keys {
                    self.fills.written(key);
                }
                self.push_pause_until_ns = now + PUSH_PAUSE_NS;
            }
        }
        Ok(())
    }

    fn feed_ready(&mut self) {
        self.feeds_made += 1;
        tracing::info!("feed from Redis at {} is up", self.settings.redis);
        self.watch.feed_made();
        self.doubt_listeners();
        let gate = self.path.gate_seen();
        let answered = self.path.fence_answered();
        if let Some(feed) = &mut self.feed {
            feed.ask_state(gate);
            feed.ping(self.machine.monotonic_ns(), answered);
            self.settle_asked = answered;
        }
    }

    fn drain_misses(&mut self, now: u64) -> Result<()> {
        self.last_drain_ns = now;
        let keys = self.path.drain_misses();
        if !keys.is_empty() {
            self.last_miss_ns = now;
            self.stay_awake(now);
            self.misses_this_second += keys.len() as u64;
        }
        if self.can_fill() {
            for key in keys {
                self.fills.missed(key);
            }
        }
        self.begin_fills()
    }

    fn can_fill(&self) -> bool {
        self.stage == Stage::Running && self.path.serving() == 1
    }

    /// Asks for as many sizes and values as may be under way.
    fn begin_fills(&mut self) -> Result<()> {
        if !self.can_fill() {
            return Ok(());
        }
        let Some(feed) = self.feed.as_mut().filter(|feed| feed.is_ready()) else {
            return Ok(());
        };
        while let Some(room) = feed.fill_room() {
            let (keys, bytes) = self.fills.take_sized(room);
            if keys.is_empty() {
                let (keys, bytes) = self.fills.take_unsized(room);
                if keys.is_empty() {
                    break;
                }
                feed.ask_sizes(keys, bytes);
                continue;
            }
            let borrowed: Vec<&[u8]> = keys.iter().map(|(wanted, _)| &wanted.key[..]).collect();
            let tokens = self.path.fill_begin(&borrowed)?;
            let mut asked = Vec::new();
            let mut refused = false;
            for ((wanted, size), token) in keys.into_iter().zip(tokens) {
                if token.status == erb_abi::FILL_OK {
                    asked.push(Asked {
                        wanted,
                        size,
                        token,
                    });
                } else {
                    refused = true;
                    // Later: the time matters only for what is never filled.
                    self.fills.ended(wanted, Filled::Later, 0);
                }
            }
            if !asked.is_empty() {
                feed.ask_fill(asked, bytes);
            }
            if refused {
                // What must be tried again waits for the next drain, or this loop would spin.
                break;
            }
        }
        Ok(())
    }

    /// Asks for strings of database 0 to be filled, each tried until it is filled or cannot be.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn fill(&mut self, kind: ValueKind, keys: impl IntoIterator<Item = Vec<u8>>) -> Result<()> {
        for key in keys {
            self.fills.ask(Wanted { db: 0, kind, key });
        }
        self.begin_fills()
    }
}
