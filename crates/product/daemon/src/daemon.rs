// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's one thread: it waits for Redis, for signals, for clients of the control socket and
//! for the time that [`erb_redis::Core`] names, and lets the core decide.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use erb_abi::{ControlBlock as _, Kept, Logs};
use erb_datapath::{
    Datapath, DeviceWatch, HeldRing, JournalSink, MissRing, Nagle, WakeRing, open_logs,
};
use erb_redis::{Core, Machine, Pieces, Settings, Stage};
use erb_report::{ConnLine, HotKeys, Status};
use erb_watch::details::Detail;
use erb_watch::{Asker, Endpoint};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::boost::{BoostConfig, Boosted, MetricsConfig, Taken, boost};
use crate::client::request_within;
use crate::guard::Guard;
use crate::heat::Heat;
use crate::journal::LateJournal;
use crate::machine::{Kernel, Linux};
use crate::replicas::Replicas;
use crate::rundir::{Notes, RunDir};
use crate::server::{Request, Server};
use crate::signals::Signals;
use crate::tiers::TierWatch;
use crate::{Error, Result, others, service};

/// What there is to do, besides what the clock asks for.
#[derive(Clone, Copy, Default)]
struct Ready {
    signal: bool,
    feed: bool,
    clients: bool,
    wanted: bool,
    devices: bool,
}

/// A client that waits for its keys to be filled, and what was filled and refused before.
#[derive(Clone, Copy)]
pub(crate) struct FillClient {
    pub(crate) number: u64,
    pub(crate) filled: u64,
    pub(crate) failed: u64,
}

/// The daemon.
pub struct Daemon {
    pub(crate) core: Core<Kernel, Linux>,
    pub(crate) boosted: Boosted,
    pub(crate) server: Server,
    pub(crate) fill_client: Option<FillClient>,
    /// Another daemon waits for the lock.
    pub(crate) handed_over: bool,
    pub(crate) tiers: TierWatch,
    /// Where metrics are served.
    pub(crate) metrics_at: Option<String>,
    /// And the dashboard.
    pub(crate) dashboard_at: Option<String>,
    /// Keys by heat, and where the data path reports them.
    pub(crate) heat: Heat,
    pub(crate) hot: MissRing,
    /// Of keys and connections the dashboard tells, too.
    details: bool,
    /// Until they are.
    metrics: Option<Endpoint>,
    signals: Signals,
    wakes: WakeRing,
    devices: DeviceWatch,
    /// None: nothing is kept on a disk, or it does not run yet.
    pub(crate) journal: Option<LateJournal>,
    /// Until it runs: how far it has kept all.
    kept: Option<Arc<Kept>>,
    /// None: no writes are answered, or it does not run yet.
    replicas: Option<Replicas>,
}

/// What the data path writes for the daemon.
struct Rings {
    ring: MissRing,
    held: HeldRing,
    hot: MissRing,
    wakes: WakeRing,
    logs: Option<Logs>,
    /// How far these are kept, if all of it is to be.
    kept: Option<Arc<Kept>>,
}

impl Rings {
    /// `all`: every write is kept in a journal before its room is freed.
    fn of(boosted: &Boosted, loaded: &Datapath, all: bool) -> Result<Self> {
        let answers_writes = boosted.notes.log_rings > 0;
        let mut logs = answers_writes
            .then(|| open_logs(&boosted.run_dir.pins()))
            .transpose()?;
        let kept = logs.as_mut().filter(|_| all).map(|logs| {
            let kept = Kept::of(logs.count());
            logs.wait_for(Arc::clone(&kept));
            kept
        });
        Ok(Self {
            logs,
            kept,
            ring: loaded.miss_ring()?,
            held: loaded.held_ring()?,
            hot: loaded.heat_ring()?,
            wakes: loaded.wake_ring()?,
        })
    }
}

/// Time that this daemon has to tell its status to who asks for metrics.
const STATUS_MAX: Duration = Duration::from_secs(2);

/// A daemon that lives and is replaced has the address until it ends; else it has to be free.
fn metrics_free(metrics: Option<&Endpoint>, taken: Taken) -> Result<()> {
    match (metrics, taken) {
        (Some(endpoint), Taken::Fresh | Taken::Adopted) => {
            endpoint.must_be_bound().map_err(Error::Metrics)
        }
        _ => Ok(()),
    }
}

/// What a daemon needs besides its data path; and no signal has come that takes it back.
fn parts(
    config: &BoostConfig,
    boosted: &Boosted,
    loaded: &Datapath,
    metrics: Option<&Endpoint>,
    signals: &Signals,
) -> Result<(Server, Rings, DeviceWatch)> {
    let keeps_all = config.journal_all
        && config.journal_sink == JournalSink::Daemon
        && boosted.notes.journal_folder.is_some();
    metrics_free(metrics, boosted.taken)?;
    let server = Server::bind(&boosted.run_dir)?;
    let rings = Rings::of(boosted, loaded, keeps_all)?;
    let devices = DeviceWatch::open()?;
    // What was at work before stays so.
    if boosted.taken == Taken::Fresh {
        signals.check()?;
    }
    Ok((server, rings, devices))
}

/// What a write costs Redis beyond its own work is least with it, but nothing else depends on it.
fn gatherer() -> Option<Nagle> {
    let told = |error: &_| tracing::info!("Redis will send each report by itself: {error}");
    Nagle::load().inspect_err(told).ok()
}

impl Daemon {
    /// Checks everything, loads (or adopts) and attaches the data path. Nothing is answered before
    /// [`Self::run`].
    ///
    /// # Errors
    /// Any [`Error`]; then nothing was changed. [`Error::Interrupted`] if a signal came meanwhile.
    pub fn start(config: &BoostConfig) -> Result<Self> {
        let signals = Signals::take_over()?;
        let metrics = config
            .metrics
            .as_ref()
            .map(MetricsConfig::bind)
            .transpose()?;
        let (boosted, links, loaded) = boost(config, &signals)?;
        let made = parts(config, &boosted, &loaded, metrics.as_ref(), &signals);
        match made {
            Ok((server, rings, devices)) => {
                boosted.run_dir.end_begun();
                // A former daemon may have wanted to hear of keys.
                loaded.control().set_heat(0);
                loaded.control().set_sampling(config.timing.into());
                let machine = Linux {
                    redis: config.redis.clone(),
                    credentials: config.credentials.clone(),
                    port: boosted.notes.port,
                    links,
                    devices: boosted.notes.devices(),
                    feed: None,
                    nagle: gatherer(),
                };
                let settings = settings(config, &boosted);
                let kernel = Kernel {
                    loaded,
                    ring: rings.ring,
                    held: rings.held,
                    logs: rings.logs,
                };
                Ok(Self {
                    core: Core::new(kernel, machine, settings),
                    boosted,
                    server,
                    fill_client: None,
                    handed_over: false,
                    tiers: TierWatch::new(config.tiers),
                    metrics_at: metrics
                        .as_ref()
                        .map(|endpoint| format!("http://{}/metrics", endpoint.address())),
                    dashboard_at: metrics
                        .as_ref()
                        .filter(|_| config.metrics.as_ref().is_some_and(|of| of.dashboard))
                        .map(|endpoint| format!("http://{}/", endpoint.address())),
                    details: config.metrics.as_ref().is_some_and(|of| of.details),
                    heat: Heat::default(),
                    hot: rings.hot,
                    metrics,
                    signals,
                    wakes: rings.wakes,
                    devices,
                    journal: None,
                    kept: rings.kept,
                    replicas: None,
                })
            }
            Err(error) => {
                boosted.give_up();
                Err(error)
            }
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

    /// How it came to its data path.
    #[must_use]
    pub const fn taken(&self) -> Taken {
        self.boosted.taken
    }

    /// Works until detached, then takes everything away; or until it hands over, then leaves
    /// everything at work.
    ///
    /// # Errors
    /// [`Error`] if the data path cannot be driven any more; it stays attached then, without lease.
    pub fn run(mut self) -> Result<()> {
        let mut guard = Guard::start()?;
        self.serve_metrics()?;
        self.journal = LateJournal::start(
            self.boosted.run_dir.pins(),
            &self.boosted.notes,
            self.kept.take(),
        )?;
        self.replicas = self.ask_for_replicas()?;
        if let Some(unseen) = self.unseen_ways() {
            tracing::warn!("{unseen}");
        }
        service::is_ready();
        loop {
            guard.beat(self.core.machine().monotonic_ns());
            let ready = self.wait()?;
            if ready.signal {
                // The first asks politely, the second insists.
                self.core.stop(self.core.stage() != Stage::Running)?;
            }
            if ready.wanted {
                self.wakes.drain();
            }
            if ready.devices && self.devices.changed() {
                // Before a route names it; else the next second does it.
                self.core.look_at_devices()?;
            }
            if ready.clients || self.fill_client.is_some() {
                self.serve_clients()?;
            }
            if self.handed_over {
                tracing::info!("another daemon goes on with what is at work");
                self.core.hand_over();
                if let Some(journal) = self.journal.take() {
                    journal.hand_over();
                }
                return Ok(());
            }
            self.take_heat();
            self.keep_tiers(self.core.machine().monotonic_ns());
            self.look_at_journal();
            self.look_at_replicas();
            self.core.turn(ready.feed)?;
            if self.core.is_leaving() {
                return self.leave();
            }
        }
    }

    /// Behind the drop of privileges: a thread has those of who makes it.
    fn serve_metrics(&mut self) -> Result<()> {
        let Some(endpoint) = self.metrics.take() else {
            return Ok(());
        };
        let run_dir = self.boosted.run_dir.clone();
        let endpoint = match self.details {
            true => endpoint.with_details(detailed(run_dir.clone())),
            false => endpoint,
        };
        let status = move |asker| {
            let request = match asker {
                Asker::Reader => Request::Status,
                Asker::History => Request::Sample,
            };
            request_within::<Status>(&run_dir, &request, STATUS_MAX)
                .map_err(|error| error.to_string())
        };
        endpoint
            .serve(status)
            .map_err(Error::io("could not serve metrics"))
    }

    /// What it cannot keep shuts the gate; where Redis is away, or a detach waits, it is to keep all.
    fn look_at_journal(&mut self) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let hurry = !self.core.is_feed_up() || self.core.stage() != Stage::Running;
        let lsn = self.core.datapath().control().lsn();
        if let Some(against) = journal.look(hurry, lsn) {
            self.core.set_journal(against);
        }
    }

    /// Behind the drop of privileges, as the other threads.
    fn ask_for_replicas(&self) -> Result<Option<Replicas>> {
        if self.boosted.notes.log_rings == 0 {
            return Ok(None);
        }
        let machine = self.core.machine();
        let (redis, credentials) = (machine.redis.clone(), machine.credentials.clone());
        Replicas::start(redis, credentials, machine.on_loopback()).map(Some)
    }

    /// Who asks for replicas goes on when they have what he wrote.
    fn look_at_replicas(&mut self) {
        let asking = self.core.asking();
        let (Some(replicas), Some(asking)) = (&self.replicas, asking) else {
            return;
        };
        if let Some(answered) = replicas.want(asking) {
            self.core.set_synced(answered);
        }
    }

    fn wait(&self) -> Result<Ready> {
        let now = self.core.machine().monotonic_ns();
        let until = self.core.next_wake_ns(now);
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.wakes.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.core.datapath().held.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.devices.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(stream) = self.core.stream() {
            let mut flags = PollFlags::empty();
            if self.core.may_read(now) {
                flags |= PollFlags::POLLIN;
            }
            if self.core.wants_write() {
                flags |= PollFlags::POLLOUT;
            }
            fds.push(PollFd::new(stream.as_fd(), flags));
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
            signal: any(&fds[..1]) && self.signals.asks(),
            wanted: any(&fds[1..2]),
            // What lies in the ring of packets that wait, each turn takes.
            devices: any(&fds[3..4]),
            feed: any(&fds[4..first_client]),
            clients: any(&fds[first_client..]),
        })
    }
}

/// Asks this daemon of keys and connections, as a client does.
fn detailed(run_dir: RunDir) -> impl Fn(Detail) -> std::result::Result<serde_json::Value, String> {
    move |detail| {
        let words = |error: Error| error.to_string();
        let json = match detail {
            Detail::Keys => {
                let keys: HotKeys =
                    request_within(&run_dir, &Request::Keys, STATUS_MAX).map_err(words)?;
                serde_json::to_value(keys)
            }
            Detail::Connections => {
                let lines: Vec<ConnLine> =
                    request_within(&run_dir, &Request::Conns, STATUS_MAX).map_err(words)?;
                serde_json::to_value(lines)
            }
        };
        json.map_err(|error| error.to_string())
    }
}

fn settings(config: &BoostConfig, boosted: &Boosted) -> Settings {
    Settings {
        feed_name: others::feed_name(&boosted.run_dir),
        redis: config.redis.to_string(),
        port: boosted.notes.port,
        pieces: Pieces::default(),
        hold_max_ns: nanos(config.hold_max),
        close_after_ns: config.close_after.map(nanos),
        allowed: config.write_back.unwrap_or_default(),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
