// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The turn: one thread, strict order. Each tick (50 ms, 100 ms at rest) renews the clock and the
//! lease, runs the retransmission timer and drains the misses; once a second Redis's state is read,
//! the connection table swept and new devices covered.
//!
//! Order is all that is decided here: what each part knows stands in its own file.

use erb_abi::ValueKind;

use crate::aside::CLOSED_LEVEL;
use crate::clock::{Clock, MS, SECOND_NS, TICK_NS};
use crate::closing::Closing;
use crate::connections::{Connections, Place};
use crate::expect::Event;
use crate::feed::Feed;
use crate::filling::Filling;
use crate::gate::Allowed;
use crate::holding::Holding;
use crate::hours::{Hours, Word};
use crate::lease::{self, Lease};
use crate::link::Link;
use crate::outside::{DataPath, Machine, Result};
use crate::redis_state::RedisState;
use crate::settle::{Settling, settle};
use crate::stop::{Detach, Stage};
use crate::timer::Timer;
use crate::touch::Touches;
use crate::usage::Spared;
use crate::walk::Pieces;
use crate::watch::{Watch, is_gate_to_read};
use crate::writes::Writes;

/// While nothing can be answered and nothing waits: what a rest costs is mostly its wake-ups.
const REST_TICK_NS: u64 = 2 * TICK_NS;

/// The device that each network namespace has (include/net/flow.h).
const LOOPBACK_IFINDEX: u32 = 1;

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
    /// How long a packet may wait for what was answered before it.
    pub hold_max_ns: u64,
    /// After so long without any gain the cache is closed for as long, at first; none: by an operator's word alone.
    pub close_after_ns: Option<u64>,
    /// What may be so where writes are answered in Redis's place, if the data path does that.
    pub allowed: Allowed,
}

/// Between looks whether the journal has kept what is to be freed: it wakes nobody.
const ROOM_LOOK_NS: u64 = MS;

/// What the daemon decides with, between two turns.
pub struct Core<P, M: Machine> {
    path: P,
    machine: M,
    settings: Settings,
    detach: Detach,
    closing: Closing,
    hours: Hours,
    link: Link<M>,
    watch: Watch,
    clock: Clock,
    lease: Lease,
    settling: Settling,
    filling: Filling,
    touches: Touches,
    timer: Timer,
    holding: Holding,
    writes: Writes,
    spared: Spared,
    connections: Connections<M>,
    next_tick_ns: u64,
    next_second_ns: u64,
    /// Since when the machine does not say what it has.
    untold_since_ns: Option<u64>,
}

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Takes over a data path of which nothing is known. Nothing is answered before the first
    /// turns. A feed of the same name, left by a dead daemon, is ended.
    #[must_use]
    pub fn new(mut path: P, machine: M, settings: Settings) -> Self {
        let now = machine.monotonic_ns();
        lease::end(&path);
        let closing = Closing::take_over(&path, now);
        // What a former daemon knew of access rules is not known any more.
        path.set_open(erb_abi::DOOR_UNKNOWN);
        path.set_rights(path.rights().wrapping_add(1));
        let mut filling = Filling::new(&path);
        let by_itself = closing.is_wanted() && closing.is_by_itself();
        if by_itself {
            filling.aside_mut().obey(&path, Word::Close, now);
        } else if closing.is_wanted() {
            filling.aside_mut().pin(&path, Some(CLOSED_LEVEL), now);
        }
        Self {
            filling,
            writes: Writes::new(&mut path, settings.allowed),
            path,
            machine,
            detach: Detach::default(),
            closing,
            hours: Hours::new(settings.close_after_ns, by_itself, now),
            link: Link::default(),
            watch: Watch::default(),
            clock: Clock::default(),
            lease: Lease::new(now),
            settling: Settling::default(),
            touches: Touches::default(),
            timer: Timer::new(settings.pieces),
            holding: Holding::new(settings.hold_max_ns),
            spared: Spared::default(),
            connections: Connections::new(settings.pieces, settings.port, now),
            settings,
            next_tick_ns: now,
            next_second_ns: now,
            untold_since_ns: None,
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
            let done = self.tick(now);
            if done.is_ok() {
                self.untold_since_ns = None;
            }
            self.outlive(done)?;
            if self.is_idle(now) {
                self.next_tick_ns += REST_TICK_NS - TICK_NS;
            }
        } else if self.filling.next_drain_ns(now).is_some_and(|at| now >= at) {
            self.drain_misses(now)?;
        }
        if let Some(drain) = self.writes.drain() {
            drain.free_owed();
        }
        let done = self.holding.turn(&mut self.path, &self.machine, now);
        self.outlive(done)?;
        self.drain_writes(now);
        self.ask_settle(now);
        if let Err(error) = self.link.flush() {
            self.drop_feed(&error.to_string());
        }
        Ok(())
    }

    /// When the next turn is due even if Redis is silent.
    #[must_use]
    pub fn next_wake_ns(&self, now: u64) -> u64 {
        let mut until = self.next_tick_ns;
        until = until.min(self.filling.next_drain_ns(now).unwrap_or(u64::MAX));
        until = until.min(self.holding.next_ns().unwrap_or(u64::MAX));
        until = until.min(self.next_batch_ns().unwrap_or(u64::MAX));
        if self.writes.owes_room() {
            until = until.min(now + ROOM_LOOK_NS);
        }
        if self.link.feed().is_some() && !self.may_read(now) {
            until = until.min(self.link.paused_until_ns(self.is_awaited()));
        }
        if self.wants_settle() {
            until = until.min(self.settling.next_ns().max(now));
        }
        until
    }

    /// The connection to Redis, if there is one.
    #[must_use]
    pub fn stream(&self) -> Option<&M::Stream> {
        self.link.feed().map(Feed::stream)
    }

    /// Whether a turn would read what Redis sent; if not, [`Self::next_wake_ns`] says when.
    #[must_use]
    pub fn may_read(&self, now: u64) -> bool {
        let paused_until = self.link.paused_until_ns(self.is_awaited());
        now >= paused_until || self.settling.is_under_way(&self.path)
    }

    /// Whether something waits for room to be written.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.link.feed().is_some_and(Feed::wants_write)
    }

    fn tick(&mut self, now: u64) -> Result<()> {
        self.clock
            .keep(&self.path, self.machine.wall_minus_monotonic_ns())?;
        self.lease.look_who_asks(&self.path, now)?;
        self.close_or_open(now)?;
        if self.may_connect() || self.owes() {
            // Once a second even at rest: a Redis that does not answer is found out.
            let at_rest = now < self.next_second_ns && self.is_at_rest(now);
            self.keep_feed(now, at_rest);
        }
        if self.may_answer() {
            let (connections, at) = self.connections();
            connections.look_for_new(at, now)?;
        }
        let answered = self.lease.answered();
        self.timer.run(&self.path, &self.machine, now, answered)?;
        self.filling.tick(&self.path, now)?;
        self.choose_reports();
        self.drain_misses(now)?;
        self.touch_used(now)?;
        self.look_at_gate();
        self.decide_gate(now)?;
        self.leave_if_insisted(now);
        if now >= self.next_second_ns {
            self.next_second_ns = now + SECOND_NS;
            self.second(now)?;
        } else if self.connections.may_sweep(now) && self.wants_sweep(now)? {
            self.sweep()?;
        } else {
            let (connections, at) = self.connections();
            connections.hurry(at, now)?;
        }
        Ok(())
    }

    fn second(&mut self, now: u64) -> Result<()> {
        self.cover()?;
        self.filling.second(&self.path, now)?;
        self.look_at_hours(now);
        self.ask_state();
        self.look_at_writes(now)?;
        if self.closing.is_open() {
            let (connections, at) = self.connections();
            connections.look_around(at, now)?;
        }
        if self.connections.may_sweep(now) {
            self.sweep()?;
        }
        Ok(())
    }

    /// Whether the lease may end. Fills want it too: nothing is inserted without.
    fn is_at_rest(&self, now: u64) -> bool {
        self.lease.may_rest(now) && !self.filling.fills().is_busy() && !self.owes()
    }

    /// Whether nothing needs the next tick soon: no lease now or under way, under which the clock
    /// must be watched closely, nothing to retransmit, to prove, to read again.
    fn is_idle(&self, now: u64) -> bool {
        if self.closing.may_rest() {
            return self.detach.is_running() && !self.timer.is_unacked();
        }
        let settled = |feed: &Feed<M::Stream>| feed.is_ready() && feed.pings_in_flight() == 0;
        self.is_at_rest(now)
            && now >= self.path.lease_until_ns()
            && self.link.feed().is_some_and(settled)
            && !self.timer.is_unacked()
            && self.detach.is_running()
            && self.connections.is_idle(&self.path)
            && self.path.gate_seen() == self.path.gate_ack()
    }

    fn keep_feed(&mut self, now: u64, at_rest: bool) {
        if self.link.is_silent(now) {
            self.drop_feed("Redis does not answer PING");
        } else if self.link.feed().is_some() {
            if !at_rest && self.link.may_ping() {
                self.ping();
            }
        } else if let Err(reason) =
            self.link
                .connect(&mut self.machine, &self.settings.feed_name, now)
        {
            self.watch.no_feed(&reason);
        }
    }

    fn ping(&mut self) {
        if let Some(feed) = self.link.ready() {
            let now = self.machine.monotonic_ns();
            self.settling.ping(&self.path, feed, now);
        }
    }

    /// Without feed nothing is answered from the cache, at once.
    fn drop_feed(&mut self, reason: &str) {
        let known = self.watch.no_feed_for(reason);
        if self.hang_up(reason) && !known {
            tracing::warn!("the feed from Redis ended: {reason}");
        }
    }

    /// The same by our own will; false if there was none.
    fn hang_up(&mut self, reason: &str) -> bool {
        lease::end(&self.path);
        self.path.set_one_line(0); // the next feed's Redis may be another one
        let was_there = self.link.give_up(self.machine.monotonic_ns());
        self.watch.no_feed(reason);
        self.filling.forget_all();
        self.writes.forget_feed(&self.path);
        self.connections.forget(&self.path);
        self.settling.forget();
        was_there
    }

    fn turn_feed(&mut self) {
        let now = self.machine.monotonic_ns();
        if !self.may_read(now) {
            return;
        }
        let mut events = Vec::new();
        let drain = self.writes.drain();
        let done = self
            .link
            .read(&self.path, &self.machine, drain, &mut events);
        for event in events {
            if let Err(error) = self.handle(event, now) {
                self.drop_feed(&error.to_string());
                return;
            }
        }
        if let Err(error) = done {
            self.drop_feed(&error.to_string());
            self.link.wait_if_refused(&error, now);
        }
    }

    fn handle(&mut self, event: Event, now: u64) -> Result<()> {
        match event {
            Event::Ready => self.feed_ready(),
            Event::Calls(calls) => {
                self.filling.reports_mut().take_table(calls.tracked);
                let read_ns = self.machine.monotonic_ns();
                let feed = self.link.ready();
                self.watch.take_calls(&self.path, feed, calls, read_ns)?;
            }
            Event::Commands { end, again } => {
                self.watch.take_commands(&self.path, end);
                if again {
                    self.ask_state();
                }
            }
            Event::Lease { sent_ns, answered } => {
                if settle(&self.path, answered, self.watch.may_reply_early())? {
                    // What shuts the gate closes the fence too: it can be acknowledged now.
                    self.look_at_gate();
                }
                self.watch.lease_refused(None);
                if self.may_answer() {
                    lease::renew(&self.path, sent_ns);
                }
            }
            Event::NoLease(reason) => self.watch.lease_refused(Some(reason)),
            Event::Drained => {
                self.writes.batch_came(&self.path)?;
                self.holding.look();
            }
            Event::WriteTrial(came) => self.writes.gate().trial_came(came),
            Event::State { state, gate } => {
                self.judge_state(&state, now);
                if state.info_is_read {
                    self.spared.take(&self.path, &state.usage, now)?;
                }
                if state.acl_is_read() {
                    self.connections.take_rights(&self.path, &state.acl);
                }
                let is_running = self.may_answer();
                let absent = self.path.absent();
                let may_be_absent = self.connections.let_absences_be_answered();
                self.watch
                    .take_state(&self.path, *state, gate, (is_running, may_be_absent))?;
                if self.path.absent() > absent {
                    self.filling.forgive_all();
                }
            }
            Event::Clients { list, question } => {
                let (connections, at) = self.connections();
                connections.take_list(at, &list, &question)?;
                // Before the next packet of who was proved: it may not leave a whole tick.
                self.look_at_gate();
            }
            Event::Sized(sizes) => {
                self.filling.take_sizes(&self.path, sizes, now);
                self.begin_fills(now)?;
            }
            Event::Filled(ends) => {
                self.filling.take_ends(ends, now);
                self.begin_fills(now)?;
            }
            Event::Invalidated { keys, again } => {
                self.filling.take_writes(&keys, again, now);
                self.link.pause(now);
                self.begin_fills(now)?;
            }
        }
        Ok(())
    }

    fn feed_ready(&mut self) {
        self.link.made_ready(&self.machine);
        tracing::info!("feed from Redis at {} is up", self.settings.redis);
        self.watch.feed_made();
        self.connections.doubt();
        let now = self.machine.monotonic_ns();
        self.ask_state_of(self.path.gate_seen(), now);
        self.ping();
    }

    fn ask_state(&mut self) {
        let now = self.machine.monotonic_ns();
        let feed = self.link.feed();
        if let Some(gate) = self.watch.may_ask_state(&self.path, feed, now) {
            self.ask_state_of(gate, now);
        }
    }

    fn look_at_gate(&mut self) {
        if is_gate_to_read(&self.path) {
            self.ask_state();
        }
    }

    fn wants_settle(&self) -> bool {
        self.settling.wants(&self.path) && self.detach.is_running() && self.link.may_ping()
    }

    /// Sends a PING for shares that wait, at once for the first of them.
    fn ask_settle(&mut self, now: u64) {
        if now >= self.settling.next_ns() && self.wants_settle() {
            self.settling.rest(now);
            self.ping();
        }
    }

    fn can_fill(&self) -> bool {
        self.detach.is_running() && self.path.serving() == 1
    }

    fn drain_misses(&mut self, now: u64) -> Result<()> {
        let may_fill = self.can_fill();
        if self.filling.drain(&mut self.path, now, may_fill)? {
            self.lease.stay_awake(now);
        }
        self.begin_fills(now)
    }

    fn begin_fills(&mut self, now: u64) -> Result<()> {
        let may_fill = self.can_fill();
        match self.link.ready().filter(|_| may_fill) {
            Some(feed) => self.filling.begin(&self.path, feed, now),
            None => Ok(()),
        }
    }

    fn touch_used(&mut self, now: u64) -> Result<()> {
        let evicts = self.watch.state().is_some_and(RedisState::evicts_by_use);
        let wanted = evicts && !self.is_at_rest(now);
        match self.link.ready().filter(|_| wanted) {
            Some(feed) => self.touches.tell(&self.path, feed),
            None => Ok(()),
        }
    }

    fn connections(&mut self) -> (&mut Connections<M>, Place<'_, P, M>) {
        let at = Place {
            path: &self.path,
            machine: &mut self.machine,
            link: &mut self.link,
            watch: &self.watch,
            is_running: self.detach.is_running() && !self.closing.is_in_haste(),
        };
        (&mut self.connections, at)
    }

    fn wants_sweep(&mut self, now: u64) -> Result<bool> {
        let (connections, at) = self.connections();
        if connections.wants_sweep(&at) {
            return Ok(true);
        }
        if connections.look_who_left(at.path)? {
            self.lease.stay_awake(now);
        }
        Ok(self.connections.want_admission(now))
    }

    fn sweep(&mut self) -> Result<()> {
        let (connections, at) = self.connections();
        let over = connections.sweep(at)?;
        if let Some(began_ns) = over.filter(|_| self.detach.is_running()) {
            let found = self.connections.report();
            self.closing.swept(&self.path, began_ns, found);
        }
        self.leave_if_unneeded(over);
        Ok(())
    }

    /// Asks for strings of database 0 to be filled, each tried until it is filled or cannot be.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn fill(&mut self, kind: ValueKind, keys: impl IntoIterator<Item = Vec<u8>>) -> Result<()> {
        self.filling.ask(kind, keys);
        self.begin_fills(self.machine.monotonic_ns())
    }

    /// The data path.
    #[must_use]
    pub const fn datapath(&self) -> &P {
        &self.path
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, for a driver that changes it.
    pub const fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// What goes on.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.detach.stage()
    }

    /// Whether nothing is left to do: what is attached can be taken away.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.detach.stage() == Stage::Leaving
    }

    /// Looks at the connections, for somebody who asks, and keeps the lease up for a while.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn look(&mut self) -> Result<()> {
        let now = self.machine.monotonic_ns();
        if self.is_at_rest(now) {
            // The lease is back when the answer is read.
            self.next_tick_ns = now;
        }
        self.lease.stay_awake(now);
        self.glance()
    }

    /// Looks at the connections alone: whoever rests goes on resting.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn glance(&mut self) -> Result<()> {
        let done = self.connections.count(&self.path);
        self.outlive(done)
    }
}

#[path = "turn_seen.rs"]
mod seen;

#[path = "turn_fills.rs"]
mod fills;

#[path = "turn_closing.rs"]
mod closing;

#[path = "turn_devices.rs"]
mod devices;

#[path = "turn_writes.rs"]
mod writes;

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
