// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop: one thread, strict order. Each tick (50 ms) renews the clock and the lease, runs the
//! retransmission timer and drains the misses; once a second Redis's state is read, the connection
//! table swept and new devices covered.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use erb_datapath::{MissRing, SweepReport};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;

use crate::addr::RedisAddr;
use crate::boost::{BoostConfig, Boosted, boost};
use crate::clock::{monotonic_ns, wall_minus_monotonic_ms};
use crate::feed::{Asked, Event, Feed, Filled};
use crate::fill::Fills;
use crate::rundir::Notes;
use crate::server::Server;
use crate::watch::Watch;
use crate::{Error, Result};

const MS: u64 = 1_000_000;

/// Half a lease: one lost tick does not end it.
const TICK_NS: u64 = erb_abi::LEASE_MS as u64 / 2 * MS;

/// Between drains while misses flow: a fill then takes about as long as two round trips.
const DRAIN_NS: u64 = 2 * MS;

/// Misses seen within this time count as flowing.
const FLOW_NS: u64 = 20 * MS;

/// Between handling invalidations while they flow: marks and lease cover what is in between, and
/// one wake-up then handles many.
const PUSH_PAUSE_NS: u64 = MS;

/// Once a second: state watch, sweep, devices, miss counts.
const SECOND_NS: u64 = 1000 * MS;

/// After attaching, packets that passed before it are in the kernel after this time.
const ADMIT_AFTER_NS: u64 = 200 * MS;

/// After the start and after each look at the status the lease is kept up for this long, even if
/// there is no connection to answer.
pub(crate) const AWAKE_NS: u64 = 5000 * MS;

/// Between attempts to reach Redis again.
const RETRY_NS: u64 = 200 * MS;

/// A feed that leaves PING unanswered for this long is made anew.
const SILENCE_MAX_NS: u64 = 5000 * MS;

/// PINGs under way at most: a slow Redis needs no more.
const PINGS_MAX: usize = 4;

/// Fill transactions under way at most: bounds what Redis does for us between two clients' turns.
const FILLS_MAX: usize = 8;

/// A step of the wall clock against the monotonic one that voids all expiry times.
const CLOCK_STEP_MS: u64 = 2;

/// What goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Running,
    /// Detach was asked for at this time; leaves when nothing needs translation.
    Stopping {
        since_ns: u64,
    },
    /// Leave now.
    Leaving,
}

/// What there is to do, besides what the clock asks for.
#[derive(Clone, Copy, Default)]
struct Ready {
    signal: bool,
    feed: bool,
    clients: bool,
}

/// The daemon.
pub struct Daemon {
    pub(crate) boosted: Boosted,
    pub(crate) redis: RedisAddr,
    pub(crate) feed: Option<Feed>,
    pub(crate) feeds_made: u64,
    pub(crate) fills: Fills,
    pub(crate) watch: Watch,
    pub(crate) sweep: SweepReport,
    pub(crate) proof_pending: bool,
    pub(crate) untracked_asked: bool,
    pub(crate) clients_asked_ns: u64,
    pub(crate) clients_next_ns: u64,
    pub(crate) stage: Stage,
    pub(crate) server: Server,
    pub(crate) created: u64,
    pub(crate) awake_until_ns: u64,
    pub(crate) fill_client: Option<(u64, u64, u64)>,
    ring: MissRing,
    signals: SignalFd,
    feed_name: String,
    retry_ns: u64,
    next_tick_ns: u64,
    next_second_ns: u64,
    last_miss_ns: u64,
    last_drain_ns: u64,
    push_pause_until_ns: u64,
    admit_at_ns: Option<u64>,
    misses_this_second: u64,
    answered: u64,
    unacked: bool,
    wall_minus_mono_ms: i64,
}

impl Daemon {
    /// Checks everything, loads (or adopts) and attaches the data path. Nothing is answered before
    /// [`Self::run`].
    ///
    /// # Errors
    /// Any [`Error`]; then nothing was changed.
    pub fn start(config: &BoostConfig) -> Result<Self> {
        let boosted = boost(config)?;
        let made = Server::bind(&boosted.run_dir)
            .and_then(|server| Ok((server, boosted.datapath.miss_ring()?, signals()?)));
        match made {
            Ok((server, ring, signals)) => Ok(Self::new(config, boosted, server, ring, signals)),
            Err(error) => {
                boosted.give_up();
                Err(error)
            }
        }
    }

    fn new(
        config: &BoostConfig,
        boosted: Boosted,
        server: Server,
        ring: MissRing,
        signals: SignalFd,
    ) -> Self {
        let now = monotonic_ns();
        let control = boosted.datapath.control();
        control.set_serving(0);
        control.set_lease_until_ns(0);
        control.set_stopping(0);
        let name = boosted
            .run_dir
            .path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        // A client name has no blanks.
        let feed_name = format!("erb-feed:{}", name.replace(char::is_whitespace, "_"));
        Self {
            redis: config.redis.clone(),
            feed: None,
            feeds_made: 0,
            fills: Fills::default(),
            watch: Watch::default(),
            sweep: SweepReport::default(),
            proof_pending: false,
            untracked_asked: false,
            clients_asked_ns: 0,
            clients_next_ns: 0,
            stage: Stage::Running,
            server,
            created: 0,
            awake_until_ns: now + AWAKE_NS,
            fill_client: None,
            ring,
            signals,
            feed_name,
            retry_ns: 0,
            next_tick_ns: now,
            next_second_ns: now,
            last_miss_ns: 0,
            last_drain_ns: 0,
            push_pause_until_ns: 0,
            admit_at_ns: Some(now + ADMIT_AFTER_NS),
            misses_this_second: 0,
            answered: 0,
            // Of an adopted data path nothing is known.
            unacked: true,
            wall_minus_mono_ms: 0,
            boosted,
        }
    }

    /// Takes back a start whose report could not be delivered.
    pub fn give_up(self) {
        self.boosted.give_up();
    }

    /// What was attached, for the user.
    #[must_use]
    pub const fn notes(&self) -> &Notes {
        &self.boosted.notes
    }

    /// Run directory.
    #[must_use]
    pub fn run_dir(&self) -> &std::path::Path {
        self.boosted.run_dir.path()
    }

    /// Whether a dead daemon's data path was taken over.
    #[must_use]
    pub const fn adopted(&self) -> bool {
        self.boosted.adopted
    }

    /// Works until detached, then takes everything away.
    ///
    /// # Errors
    /// [`Error`] if the data path cannot be driven any more; it stays attached then, without lease.
    pub fn run(mut self) -> Result<()> {
        loop {
            let ready = self.wait()?;
            if ready.signal {
                // The first asks politely, the second insists.
                self.stop(self.stage != Stage::Running)?;
            }
            if ready.clients || self.fill_client.is_some() {
                self.serve_clients()?;
            }
            if ready.feed {
                self.turn_feed();
            }
            let now = monotonic_ns();
            if now >= self.next_tick_ns {
                self.next_tick_ns = (self.next_tick_ns + TICK_NS).max(now + TICK_NS / 2);
                match self.tick(now) {
                    Err(error) if is_device_gone(&error) => self.change_device()?,
                    done => done?,
                }
            } else if self.is_flowing(now) && now >= self.last_drain_ns + DRAIN_NS {
                self.drain_misses(now)?;
            }
            self.flush_feed();
            if self.stage == Stage::Leaving {
                return self.leave();
            }
        }
    }

    const fn is_flowing(&self, now: u64) -> bool {
        now < self.last_miss_ns + FLOW_NS
    }

    fn wait(&self) -> Result<Ready> {
        let now = monotonic_ns();
        let mut until = self.next_tick_ns;
        if self.is_flowing(now) {
            until = until.min(self.last_drain_ns + DRAIN_NS);
        }
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if let Some(feed) = &self.feed {
            let mut flags = PollFlags::empty();
            if now >= self.push_pause_until_ns {
                flags |= PollFlags::POLLIN;
            } else {
                until = until.min(self.push_pause_until_ns);
            }
            if feed.wants_write() {
                flags |= PollFlags::POLLOUT;
            }
            fds.push(PollFd::new(feed.as_fd(), flags));
        }
        let first_client = fds.len();
        for (fd, writes) in self.server.fds() {
            let flags = if writes {
                PollFlags::POLLIN | PollFlags::POLLOUT
            } else {
                PollFlags::POLLIN
            };
            fds.push(PollFd::new(fd, flags));
        }
        let timeout = TimeSpec::from_duration(Duration::from_nanos(until.saturating_sub(now)));
        match ppoll(&mut fds, Some(timeout), None) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => return Ok(Ready::default()),
            Ok(_) => {}
            Err(error) => return Err(Error::io("could not wait for input")(error)),
        }
        let any = |fds: &[PollFd<'_>]| fds.iter().any(|fd| fd.any().unwrap_or(true));
        Ok(Ready {
            signal: any(&fds[..1])
                && self
                    .signals
                    .read_signal()
                    .is_ok_and(|found| found.is_some()),
            feed: any(&fds[1..first_client]),
            clients: any(&fds[first_client..]),
        })
    }

    fn tick(&mut self, now: u64) -> Result<()> {
        self.keep_clock()?;
        if self.stage == Stage::Running {
            let at_rest = now < self.next_second_ns && self.is_at_rest(now)?;
            self.keep_feed(now, at_rest);
            if self.admit_at_ns.is_some_and(|at| now >= at) {
                self.admit_at_ns = None;
                // The dump gives every older socket the cookie by which XDP knows it.
                crate::sockets::remote_connections(self.boosted.notes.port)?;
                self.boosted.datapath.control().set_admit(1);
            }
        }
        self.retransmit()?;
        self.drain_misses(now)?;
        self.watch_gate();
        if now >= self.next_second_ns {
            self.next_second_ns = now + SECOND_NS;
            self.second()?;
        } else if self.is_sweep_urgent() {
            self.sweep_connections()?;
        }
        Ok(())
    }

    /// The device on which programs are run is gone: takes the next one, leaves after the last.
    fn change_device(&mut self) -> Result<()> {
        let present = erb_datapath::all_devices()?;
        let boosted = self
            .boosted
            .notes
            .attached
            .iter()
            .map(|attached| &attached.device);
        if let Some(device) = boosted.clone().find(|device| present.contains(device)) {
            self.boosted.datapath.run_on(device.ifindex);
        } else {
            tracing::warn!("no boosted device is left: detaching");
            self.stage = Stage::Leaving;
        }
        Ok(())
    }

    /// A closed fence may wait for proof: everybody's hits wait with it.
    fn is_sweep_urgent(&self) -> bool {
        let fenced = self.boosted.datapath.control().fence() != 0;
        fenced || self.proof_pending || self.stage != Stage::Running
    }

    /// Runs the retransmission timer, which walks the whole table (0.3 ms): only while bytes are
    /// unacknowledged or anything was answered since it last found none.
    fn retransmit(&mut self) -> Result<()> {
        let datapath = &self.boosted.datapath;
        // Counted after the answer is committed: what this misses, the next tick finds.
        let answered = datapath.stat(erb_abi::STAT_FAST_PACKET)?
            + datapath.stat(erb_abi::STAT_FAST_PACKET_TC)?;
        if self.unacked || answered != self.answered {
            self.answered = answered;
            self.unacked = datapath.tick()?;
        }
        Ok(())
    }

    fn second(&mut self) -> Result<()> {
        for name in self.boosted.links.cover_egress()? {
            tracing::info!("replies by {name} are watched from now on");
        }
        if self.misses_this_second > 0 {
            self.misses_this_second = 0;
            self.boosted.datapath.halve_miss_counts();
        }
        self.fills.forgive();
        let gate = self.gate_executed();
        if let Some(feed) = self
            .feed
            .as_mut()
            .filter(|feed| feed.is_ready() && !feed.is_asking_state())
        {
            feed.ask_state(gate);
        }
        self.sweep_connections()?;
        self.check_untracked()
    }

    /// A step of the wall clock makes every cached expiry wrong.
    fn keep_clock(&mut self) -> Result<()> {
        let difference = wall_minus_monotonic_ms();
        if difference == self.wall_minus_mono_ms {
            return Ok(());
        }
        let stepped = difference.abs_diff(self.wall_minus_mono_ms) > CLOCK_STEP_MS;
        self.boosted
            .datapath
            .control()
            .set_wall_minus_mono_ms(difference);
        if stepped && self.wall_minus_mono_ms != 0 {
            tracing::warn!("the wall clock was set: the cache is emptied");
            self.boosted.datapath.clear()?;
        }
        self.wall_minus_mono_ms = difference;
        Ok(())
    }

    fn keep_feed(&mut self, now: u64, at_rest: bool) {
        match &mut self.feed {
            Some(feed) => {
                if feed
                    .oldest_ping_ns()
                    .is_some_and(|sent| now > sent + SILENCE_MAX_NS)
                {
                    self.drop_feed("Redis does not answer PING");
                } else if !at_rest && feed.is_ready() && feed.pings_in_flight() < PINGS_MAX {
                    feed.ping(monotonic_ns());
                }
            }
            None if now >= self.retry_ns => {
                self.retry_ns = now + RETRY_NS;
                match Feed::connect(&self.redis, &self.feed_name) {
                    Ok(feed) => self.feed = Some(feed),
                    Err(error) => self
                        .watch
                        .no_feed(&format!("Redis cannot be reached: {error}")),
                }
            }
            None => {}
        }
    }

    /// Without feed nothing is answered from the cache, at once.
    pub(crate) fn drop_feed(&mut self, reason: &str) {
        let control = self.boosted.datapath.control();
        control.set_serving(0);
        control.set_lease_until_ns(0);
        if self.feed.take().is_some() {
            tracing::warn!("the feed from Redis ended: {reason}");
        }
        self.retry_ns = monotonic_ns() + RETRY_NS;
        self.watch.no_feed(reason);
        self.fills.forget_all();
        self.untracked_asked = false;
    }

    fn flush_feed(&mut self) {
        if let Some(Err(error)) = self.feed.as_mut().map(Feed::flush) {
            self.drop_feed(&error.to_string());
        }
    }

    fn turn_feed(&mut self) {
        let now = monotonic_ns();
        let Some(feed) = &mut self.feed else { return };
        if now < self.push_pause_until_ns {
            return;
        }
        let mut events = Vec::new();
        let done = feed.handle_input(&self.boosted.datapath, &mut events);
        for event in events {
            if let Err(error) = self.handle(event, now) {
                self.drop_feed(&error.to_string());
                return;
            }
        }
        if let Err(error) = done {
            self.drop_feed(&error.to_string());
        }
    }

    fn handle(&mut self, event: Event, now: u64) -> Result<()> {
        match event {
            Event::Ready => self.feed_ready(),
            Event::Lease { sent_ns } => {
                self.watch.lease_refused(None);
                let until = sent_ns + u64::from(erb_abi::LEASE_MS) * MS;
                let control = self.boosted.datapath.control();
                if self.stage == Stage::Running && until > control.lease_until_ns() {
                    control.set_lease_until_ns(until);
                }
            }
            Event::NoLease(reason) => self.watch.lease_refused(Some(reason)),
            Event::State { state, gate } => self.take_state(*state, gate)?,
            Event::Clients { list, question } => self.take_clients(&list, question)?,
            Event::Filled(ends) => {
                for (key, end) in ends {
                    self.fills.ended(key, end);
                }
                self.begin_fills()?;
            }
            Event::Invalidated => self.push_pause_until_ns = now + PUSH_PAUSE_NS,
        }
        Ok(())
    }

    fn feed_ready(&mut self) {
        self.feeds_made += 1;
        tracing::info!("feed from Redis at {} is up", self.redis);
        self.watch.feed_made();
        let gate = self.boosted.datapath.control().gate_seen();
        if let Some(feed) = &mut self.feed {
            feed.ask_state(gate);
            feed.ping(monotonic_ns());
        }
    }

    fn drain_misses(&mut self, now: u64) -> Result<()> {
        self.last_drain_ns = now;
        let keys = self.ring.drain();
        if !keys.is_empty() {
            self.last_miss_ns = now;
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
        self.stage == Stage::Running && self.boosted.datapath.control().serving() == 1
    }

    /// Sends as many fill transactions as may be under way.
    pub(crate) fn begin_fills(&mut self) -> Result<()> {
        if !self.can_fill() {
            return Ok(());
        }
        let Some(feed) = self.feed.as_mut().filter(|feed| feed.is_ready()) else {
            return Ok(());
        };
        while feed.fills_in_flight() < FILLS_MAX {
            let keys = self.fills.take(erb_abi::FILL_BATCH as usize);
            if keys.is_empty() {
                break;
            }
            let borrowed: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let tokens = self.boosted.datapath.fill_begin(&borrowed)?;
            let mut asked = Vec::new();
            let mut refused = false;
            for (key, token) in keys.into_iter().zip(tokens) {
                if token.status == erb_abi::FILL_OK {
                    asked.push(Asked { key, token });
                } else {
                    refused = true;
                    self.fills.ended(key, Filled::Later);
                }
            }
            if !asked.is_empty() {
                feed.ask_fill(asked);
            }
            if refused {
                // What must be tried again waits for the next drain, or this loop would spin.
                break;
            }
        }
        Ok(())
    }
}

fn is_device_gone(error: &Error) -> bool {
    matches!(
        error,
        Error::Datapath(erb_datapath::Error::Run { reason, .. })
            if reason.raw_os_error() == Some(libc::ENODEV)
    )
}

/// SIGTERM and SIGINT as a descriptor.
fn signals() -> Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set.thread_block()
        .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC))
        .map_err(|error| Error::io("could not take over signals")(io::Error::from(error)))
}
