// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ERB's daemon as a process: the real core, over the maps of this server and over its sockets.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::{Rc, Weak};

use erb_redis::rights::{Credentials, DEFAULT_USER};
use erb_redis::{
    Allowed, Core, Listener, Machine, Pieces, Result, Settings, Stage, TcpPair, Traffic,
};
use erb_sim_kernel::{Context, Hook, Library, point};
use erb_sim_redis::ClientId;
use erb_sim_tcp::State;

use crate::client::machine::{PORT, server_ip};
use crate::fault::Fault;
use crate::inner::Event;
use crate::mutate::{Mistaken, said_by};
use crate::scenario::key_of;
use crate::server::control::Control;
use crate::server::{IFINDEX, Pipe, Server, Way};
use crate::story::{Note, Place};
use crate::time::{MS, Ns, SECOND, US};
use crate::violation::Violation;

/// So long after payload has passed unseen a command of that connection may be of that payload.
pub(super) const UNSEEN_LAG_NS: Ns = 5 * SECOND;

/// How long a packet may wait for what was answered before it.
pub const HOLD_MAX: Ns = 5 * SECOND;

/// The daemon's core over this world.
pub type Daemon = Core<Mistaken<Control>, Around>;

/// The daemon's process.
#[derive(Default)]
pub struct Boost {
    core: RefCell<Option<Box<Daemon>>>,
    stream: RefCell<Option<Pipe>>,
    /// All that were made.
    feeds: RefCell<Vec<Pipe>>,
    running: Cell<bool>,
    wake_at: Cell<Ns>,
    away_until: Cell<Ns>,
    stop_asked: Cell<bool>,
    /// Nobody finds out whether replicas have what was drained.
    pub knows_no_replicas: Cell<bool>,
    /// After so long without any gain the next daemon closes the cache by itself.
    pub close_after_ns: Cell<Option<Ns>>,
    /// When the cache was last closed, at the end of a turn.
    pub(super) closed_at: Cell<Ns>,
    /// Programs may be replaced by the second build of the same sources.
    pub is_replaceable: Cell<bool>,
    /// Whether the second build was the last that was taken.
    is_second: Cell<bool>,
    /// What the daemon's password file holds; none: the daemon has no such file.
    pub password: RefCell<Option<String>>,
    /// The process dies at so many calls from now.
    die_in: Rc<Cell<Option<u32>>>,
    /// It has asked to be told of what it has read, and the cache is not emptied yet.
    switches: Rc<Cell<bool>>,
}

/// What a killed daemon's task is unwound with.
struct Killed;

impl Boost {
    /// Whether there is a daemon.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.core.borrow().is_some() || self.running.get()
    }

    /// Whether this is the daemon's connection to Redis, or was that of a dead one.
    #[must_use]
    pub fn was_feed(&self, pipe: &Pipe) -> bool {
        self.feeds.borrow().iter().any(|feed| feed.is(pipe))
    }

    /// Whether this is the daemon's connection to Redis.
    #[must_use]
    pub fn is_feed(&self, pipe: &Pipe) -> bool {
        let feed = self.stream.borrow();
        feed.as_ref().is_some_and(|feed| feed.is(pipe))
    }

    /// Looks at the daemon between its turns, or tells it something. What it does of that is no call at which it dies:
    /// it dies within a turn.
    pub fn with<T>(&self, look: impl FnOnce(&mut Daemon) -> T) -> Option<T> {
        let dies = self.die_in.take();
        let seen = self.core.borrow_mut().as_deref_mut().map(look);
        self.die_in.set(dies);
        seen
    }

    pub(super) fn step(die_in: &Cell<Option<u32>>) {
        point();
        match die_in.get() {
            Some(0) => {
                die_in.set(None);
                resume_unwind(Box::new(Killed));
            }
            Some(left) => die_in.set(Some(left - 1)),
            None => {}
        }
    }
}

impl Server {
    /// Whether the client's last bytes may have passed unseen, for want of room in the table or as the cache was closed.
    pub(super) fn is_unseen(&self, client: ClientId) -> bool {
        if self.was_closed() {
            return true;
        }
        let peers = self.peers.borrow();
        let Some(Way::Tcp(_, pair)) = peers.get(&client).map(|peer| &peer.way) else {
            return false;
        };
        let elsewhere = self.was_elsewhere(pair.1);
        if elsewhere.is_some_and(|last| self.inner.now() < last + UNSEEN_LAG_NS) {
            return true;
        }
        let path = self.path.borrow();
        let key = key_of(*pair);
        path.as_ref().is_some_and(|path| {
            let time = Ns::from(path.unseen_time(&key)) << 20;
            let lately = self.inner.now() < time + UNSEEN_LAG_NS;
            time != 0 && (lately || path.conn(&key).is_none())
        })
    }

    /// Connections that the daemon says are not seen.
    #[must_use]
    pub fn unseen(&self) -> u32 {
        self.boost.with(|core| core.unseen().count).unwrap_or(0)
    }

    /// Starts a daemon: on new maps, or taking over those that a dead one left.
    pub fn start_daemon(self: &Rc<Self>) {
        if self.boost.is_alive() || !self.powered.get() {
            return;
        }
        let adopts = self.path.borrow().is_some();
        if !adopts {
            self.attach();
        }
        let Some(path) = self.path.borrow().clone() else {
            return;
        };
        let die_in = self.boost.die_in.clone();
        die_in.set(None);
        let absorbs = self.inner.plan.profile.server.absorbs;
        let control = Control::new(path, die_in.clone()).with_log(absorbs);
        let inner = self.inner.clone();
        let mistake = self
            .mistake
            .map(|mistake| (mistake, self.boost.switches.clone()));
        let control = Mistaken::new(control, mistake, move || inner.now(), adopts);
        let around = Around {
            server: Rc::downgrade(self),
            die_in,
        };
        let settings = Settings {
            feed_name: "erb-feed:sim".to_owned(),
            redis: "the simulator's".to_owned(),
            port: PORT,
            // Small, so that a world's table takes several runs and turns.
            pieces: Pieces {
                places: 4,
                per_turn: 2,
            },
            hold_max_ns: HOLD_MAX,
            close_after_ns: self.boost.close_after_ns.get(),
            // Who is not seen writes before ERB is there.
            allowed: Allowed {
                unseen: true,
                modules: false,
            },
        };
        self.boost.stop_asked.set(false);
        *self.boost.core.borrow_mut() = Some(Box::new(Core::new(control, around, settings)));
        let event = if adopts { "adopts" } else { "starts" };
        self.inner.coverage.borrow_mut().count("daemon", event);
        self.inner.tell(Place::Daemon, None, Note::Text(event));
        self.boost.wake_at.set(0);
        self.wake_daemon();
    }

    /// Sees to it that the daemon runs soon.
    pub fn wake_daemon(&self) {
        let at = self.inner.now() + self.inner.random.borrow_mut().u64(0..60 * US);
        self.daemon_at(at.max(self.boost.away_until.get()));
    }

    fn daemon_at(&self, at: Ns) {
        let armed = self.boost.wake_at.get();
        if armed <= self.inner.now() || at < armed {
            self.boost.wake_at.set(at);
            self.inner.at(at, Event::DaemonWake);
        }
    }

    /// The daemon's turn has come.
    pub fn daemon_turn(self: &Rc<Self>) {
        self.boost.wake_at.set(0);
        let away = self.boost.away_until.get();
        if self.inner.now() < away {
            self.daemon_at(away);
            return;
        }
        if self.boost.running.get() {
            return;
        }
        let Some(core) = self.boost.core.borrow_mut().take() else {
            return;
        };
        self.boost.running.set(true);
        let (server, boots) = (self.clone(), self.boots.get());
        let cpu = self.draw_cpu();
        self.cpus.spawn(cpu, Context::Process, move || {
            server.daemon_task(core, boots);
        });
    }

    fn daemon_task(self: &Rc<Self>, mut core: Box<Daemon>, boots: u64) {
        if boots != self.boots.get() {
            return; // the machine has lost power
        }
        let stops = self.boost.stop_asked.take();
        // All of it may look at the data path, and be killed at that.
        let done = catch_unwind(AssertUnwindSafe(|| {
            let ready = self.is_daemon_ready(&core);
            if stops {
                core.stop(false)?;
            }
            let asking = core.asking();
            if let Some(asking) = asking.filter(|_| !self.boost.knows_no_replicas.get()) {
                core.set_synced(asking); // there are none
            }
            core.turn(ready)?;
            if core.closed().is_some() {
                self.boost.closed_at.set(self.inner.now());
            }
            let now = self.inner.now();
            Ok(if self.is_daemon_ready(&core) {
                now + 20 * US
            } else {
                core.next_wake_ns(now)
            })
        }));
        if boots != self.boots.get() && done.as_ref().err().is_none_or(|panic| panic.is::<Killed>())
        {
            return; // the machine lost power in the midst of it
        }
        self.boost.running.set(false);
        match done {
            Ok(Ok(_)) if core.is_leaving() => {
                drop(core);
                self.inner.coverage.borrow_mut().count("daemon", "leaves");
                self.inner.tell(Place::Daemon, None, Note::Text("leaves"));
                self.end_stream();
                self.forget_path();
                // Who attaches again while it leaves waits for its end.
                self.inner.at(self.inner.now() + SECOND, Event::DaemonBack);
            }
            Ok(Ok(next)) => {
                *self.boost.core.borrow_mut() = Some(core);
                self.wake_redis_for_daemon();
                self.daemon_at(next.max(self.inner.now() + US));
            }
            Ok(Err(error)) => {
                let error: erb_redis::Error = error;
                let text = format!("the daemon cannot go on: {error}");
                self.inner
                    .fail(Violation::new("daemon", self.inner.now(), text));
            }
            Err(panic) if panic.is::<Killed>() => {
                self.inner
                    .tell(Place::Daemon, None, Note::Text("is killed in a turn"));
                self.bury_daemon();
                let after = self.inner.random.borrow_mut().u64(0..400_000 * US);
                self.inner.at(self.inner.now() + after, Event::DaemonBack);
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    fn is_daemon_ready(&self, core: &Daemon) -> bool {
        let now = self.inner.now();
        core.stream().is_some_and(|stream| {
            (stream.is_readable() && core.may_read(now)) || core.wants_write()
        })
    }

    fn wake_redis_for_daemon(&self) {
        let asks = self
            .boost
            .stream
            .borrow()
            .as_ref()
            .is_some_and(Pipe::has_input);
        if asks {
            self.wake_redis();
        }
    }

    fn end_stream(&self) {
        if let Some(stream) = self.boost.stream.borrow_mut().take() {
            stream.user_close();
            self.wake_redis();
        }
    }

    fn bury_daemon(&self) {
        self.inner.coverage.borrow_mut().fault(Fault::DaemonCrash);
        self.inner
            .coverage
            .borrow_mut()
            .count("daemon", "is killed");
        self.end_stream();
    }

    /// The daemon's process ends without warning: now, or within its next turn.
    pub fn kill_daemon(&self) {
        if self.boost.core.borrow().is_none() {
            return;
        }
        let later = self.inner.random.borrow_mut().u8(0..3);
        if later > 0 {
            let calls = self.inner.random.borrow_mut().u32(0..30);
            self.boost.die_in.set(Some(calls));
            return;
        }
        self.kill_daemon_now();
        let after = self.inner.random.borrow_mut().u64(0..400_000 * US);
        self.inner.at(self.inner.now() + after, Event::DaemonBack);
    }

    /// The same at once, and nobody starts another.
    pub fn kill_daemon_now(&self) {
        self.inner
            .tell(Place::Daemon, None, Note::Text("is killed"));
        drop(self.boost.core.borrow_mut().take());
        self.bury_daemon();
    }

    /// The operator boosts with another build: the daemon hands over, one place after another goes on
    /// with the other programs, packets in between, and then another daemon starts.
    pub fn replace_programs(&self) {
        let running = |core: &Daemon| core.stage() == Stage::Running;
        if !self.boost.core.borrow().as_deref().is_some_and(running) {
            return;
        }
        let Some(mut core) = self.boost.core.borrow_mut().take() else {
            return;
        };
        self.boost.die_in.set(None);
        core.hand_over();
        drop(core);
        self.end_stream();
        self.inner.coverage.borrow_mut().fault(Fault::Replace);
        self.inner
            .coverage
            .borrow_mut()
            .count("daemon", "hands over");
        self.inner
            .tell(Place::Daemon, None, Note::Text("hands over"));
        self.boost.is_second.set(!self.boost.is_second.get());
        self.relink_soon(0);
    }

    fn relink_soon(&self, place: usize) {
        let after = self.inner.random.borrow_mut().u64(0..1000 * US);
        self.inner
            .at(self.inner.now() + after, Event::Relink(place));
    }

    /// The next place gets its program; behind the last one the daemon starts.
    pub fn relink(self: &Rc<Self>, place: usize) {
        let Some(hook) = Hook::ALL.get(place) else {
            return self.start_daemon();
        };
        if let Some(path) = self.path.borrow().as_ref() {
            let second = self.boost.is_replaceable.get() && self.boost.is_second.get();
            let library = if second {
                Library::second()
            } else {
                self.library.clone()
            };
            path.replace(*hook, &library);
        }
        self.relink_soon(place + 1);
    }

    /// The daemon's process is not scheduled for a while.
    pub fn stall_daemon(&self, how_long: Ns) {
        self.boost.away_until.set(self.inner.now() + how_long);
    }

    /// The daemon's connection to Redis breaks.
    pub fn cut_feed(&self) {
        if let Some(stream) = self.boost.stream.borrow_mut().take() {
            stream.cut();
            self.wake_redis();
            self.wake_daemon();
        }
    }

    /// The operator detaches ERB.
    pub fn ask_detach(&self) {
        self.boost.stop_asked.set(true);
        self.wake_daemon();
    }

    /// The machine lost power: so did the daemon.
    pub(super) fn lose_daemon(&self) {
        drop(self.boost.core.borrow_mut().take());
        self.boost.stream.borrow_mut().take();
        self.boost.running.set(false);
        self.boost.away_until.set(0);
    }
}

/// The machine as the daemon sees it.
pub struct Around {
    server: Weak<Server>,
    die_in: Rc<Cell<Option<u32>>>,
}

impl Around {
    fn server(&self) -> Rc<Server> {
        self.server
            .upgrade()
            .expect("the daemon runs only while its server lives")
    }
}

impl Machine for Around {
    type Stream = Pipe;

    fn monotonic_ns(&self) -> u64 {
        self.server().inner.now()
    }

    fn wall_minus_monotonic_ns(&self) -> i64 {
        self.server().inner.wall_minus_mono_ms.get() * MS as i64
    }

    fn connect(&mut self) -> io::Result<Pipe> {
        Boost::step(&self.die_in);
        let server = self.server();
        let pipe = server
            .dial_inside()
            .ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        if let Some(mistake) = server.mistake {
            let switches = server.boost.switches.clone();
            pipe.rewrite(move |bytes| said_by(mistake, bytes, &switches));
        }
        server.boost.feeds.borrow_mut().push(pipe.clone());
        server.boost.stream.borrow_mut().replace(pipe.clone());
        Ok(pipe)
    }

    fn credentials(&mut self) -> io::Result<Option<Credentials>> {
        Boost::step(&self.die_in);
        let password = self.server().boost.password.borrow().clone();
        Ok(password.map(|password| Credentials {
            user: DEFAULT_USER.to_owned(),
            password: password.into_bytes(),
        }))
    }

    fn passing_connections(&self) -> Result<HashMap<TcpPair, Traffic>> {
        Boost::step(&self.die_in);
        let server = self.server();
        let host = server.host.borrow();
        let mut cookies = server.cookies.borrow_mut();
        let mut pairs = HashMap::new();
        for (local, remote) in server.pairs.borrow().values() {
            let Some(look) = host.lookup(*local, *remote).filter(|look| !look.listen) else {
                continue;
            };
            cookies.insert(look.cookie);
            if look.state != State::TimeWait {
                let segments = look.id.and_then(|id| host.view(id));
                let traffic = match segments.map(|view| view.data_segs_in) {
                    None => Traffic::Opening,
                    Some(0) => Traffic::Silent,
                    Some(_) => Traffic::Heard,
                };
                let pair = TcpPair {
                    client: *remote,
                    server: *local,
                };
                pairs.insert(pair, traffic);
            }
        }
        Ok(pairs)
    }

    fn listeners(&self) -> Result<Vec<Listener>> {
        Boost::step(&self.die_in);
        let server = self.server();
        let found = server.host.borrow().listeners(PORT);
        let mut cookies = server.cookies.borrow_mut();
        cookies.extend(found.iter().map(|(_, cookie)| *cookie));
        let all = server.all_addresses();
        let listener = |(address, cookie): (Option<IpAddr>, u64)| Listener {
            cookie,
            address: address.unwrap_or(all),
            interface: 0,
        };
        Ok(found.into_iter().map(listener).collect())
    }

    fn local_addresses(&self) -> Result<Vec<IpAddr>> {
        Ok(vec![server_ip(self.server().inner.plan.profile.ipv6)])
    }

    fn probe(&mut self, to: IpAddr) -> io::Result<(Pipe, TcpPair)> {
        Boost::step(&self.die_in);
        let server = self.server();
        let found = server.host.borrow().listeners(PORT);
        let at = |place: Option<IpAddr>| found.iter().any(|(address, _)| *address == place);
        if to.is_ipv6() != server.inner.plan.profile.ipv6 || !(at(Some(to)) || at(None)) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let pair = TcpPair {
            client: SocketAddr::new(to, server.probe_port()),
            server: SocketAddr::new(to, PORT),
        };
        // What stands open to another server reads as nothing.
        let pipe = match at(Some(to)) {
            true => Some(Pipe::default()),
            false => server.dial_from(pair.client, pair.server),
        };
        let pipe = pipe.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok((pipe, pair))
    }

    fn unseen_clients(&self) -> Result<HashSet<IpAddr>> {
        let v6 = self.server().inner.plan.profile.ipv6;
        Ok(HashSet::from([server_ip(v6), Ipv4Addr::LOCALHOST.into()]))
    }

    fn destroy(&self, pair: &TcpPair, cookie: u64) -> Result<bool> {
        Boost::step(&self.die_in);
        let server = self.server();
        let look = server.host.borrow().lookup(pair.server, pair.client);
        let Some(id) = look
            .filter(|look| look.cookie == cookie)
            .and_then(|look| look.id)
        else {
            return Ok(false);
        };
        let key = (pair.server, pair.client);
        server.own(key);
        server.host.borrow_mut().abort(server.inner.now(), id);
        server.send_out(Some(key));
        server.disown(key);
        Ok(true)
    }

    fn cover_egress(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn present_device(&self) -> Result<Option<u32>> {
        Ok(Some(IFINDEX))
    }
}
