// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worlds played step by step: for sequences that are known to be dangerous. Nothing happens by chance but the
//! interleaving of the CPUs, which [`over_seeds`] varies.
//!
//! A [`Scenario`] is a world in which ERB is attached and idle. Its clients are either *real*
//! ([`Scenario::open`], [`Scenario::call`]: a TCP stack and an application whose replies are always
//! checked) or *raw* ([`Scenario::raw`]: segments by hand, nothing checked but what the server does).
//! Links, the way between XDP and TCP, the way between TCP and the egress program, Redis and the
//! daemon can each be stopped and let go. All helpers panic with the broken rule if one breaks.
//!
//! ```no_run
//! use erb_sim::scenario::{Scenario, Setup};
//!
//! let mut s = Scenario::new(Setup::default());
//! let client = s.fast();
//! s.cached(b"k", b"v");
//! s.lose_down(1); // the next frame to the client
//! assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
//! assert!(s.stat(erb_abi::STAT_FAST_GET) >= 1);
//! s.finish();
//! ```

pub mod absent;
mod cases;
mod closed;
mod hand;
mod hashes;
mod links;
mod raw;
mod reads;
mod reports;
mod seldom;
mod sharp;
mod table;
mod through;
mod tools;

use erb_abi::{conn, conn_key, erb_stat};
use erb_sim_tcp::{Config, View};

use crate::client::machine::{Machine, PORT};
use crate::client::resp::request;
use crate::client::session::{Deed, Stage};
use crate::client::workload::{Command, Operation};
use crate::inner::Event;
use crate::plan::{Options, Plan};
use crate::profile::{CALM, Profile, Tier};
use crate::story::Keep;
use crate::time::{MS, Ns, SECOND, US};
use crate::{ConnId, Fault, Faults, World};

pub use crate::server::Pair;
pub use hand::Played;
pub use links::{first, only};
pub use raw::{RAW_MACHINE, Raw};
pub use table::{ALL, Case, NOT_IN_MODE_READ, find, mistakes};

/// The longest that a helper waits for something, in virtual time.
const WAIT_MAX: Ns = 300 * SECOND;

/// How a scenario's world is made.
#[derive(Clone)]
pub struct Setup {
    /// Seed of the interleaving.
    pub seed: u64,
    /// The server's CPUs.
    pub cpus: usize,
    /// Chance of a switch of tasks at each point, parts per million.
    pub switch: u32,
    /// XDP and TC, or TC alone.
    pub tier: Tier,
    /// veth (no room behind the frame) or a card with a page per frame.
    pub veth: bool,
    /// VLAN tag of all frames.
    pub vlan: Option<u16>,
    /// IPv6.
    pub ipv6: bool,
    /// Cache sets.
    pub sets: u32,
    /// Places in the table of connections; one address has half of them.
    pub conns: u32,
    /// `rename-command` of redis.conf: declared name, name in use.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Redis is one whose fields may expire by themselves.
    pub field_expiry: bool,
    /// Redis leaves line ends in what its errors repeat.
    pub line_ends: bool,
    /// One way of each link.
    pub delay: Ns,
    /// The stack of machine 0; others have the default one.
    pub client: Config,
    /// Clients leave checksums to a card that does nothing.
    pub bare: bool,
    /// ERB is attached, serves and admits before the first step. If not, see
    /// [`Scenario::attach`].
    pub attached: bool,
    /// The kernel of the server hands merged segments to the egress program.
    pub offload: bool,
    /// Frames that arrive together reach TC merged (receive offload).
    pub merge: bool,
    /// Redis's sockets probe silent clients (`tcp-keepalive`).
    pub keepalive: bool,
    /// Another CPU than XDP's takes each packet to TC, later.
    pub steered: bool,
    /// SETs are answered in Redis's place.
    pub absorbs: bool,
    /// What is kept of the story.
    pub keep: Keep,
    /// The data path; the built-in one if `None`.
    pub library: Option<erb_sim_kernel::Library>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seed: 1,
            cpus: 2,
            switch: 50_000,
            tier: Tier::Native,
            veth: true,
            vlan: None,
            ipv6: false,
            sets: 16,
            conns: 128,
            renamed: &[],
            field_expiry: false,
            line_ends: false,
            delay: 30 * US,
            client: Config {
                nagle: false,
                ..Config::default()
            },
            bare: false,
            attached: true,
            offload: false,
            merge: false,
            steered: false,
            keepalive: true,
            absorbs: false,
            keep: Keep::Last,
            library: None,
        }
    }
}

/// A world played step by step.
pub struct Scenario {
    /// The world, for everything that has no helper here.
    pub world: World,
    raws: u16,
}

impl Drop for Scenario {
    fn drop(&mut self) {
        // What a failing scenario has reached says nothing.
        if !std::thread::panicking() {
            hand::over(|| self.world.outcome());
        }
    }
}

impl Scenario {
    /// A world with two machines for real clients and one for raw ones.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let mut profile: Profile = CALM;
        profile.name = "scenario";
        profile.ipv6 = setup.ipv6;
        profile.vlan = setup.vlan;
        profile.link.delay = setup.delay;
        profile.link.jitter = 0;
        profile.link.bare_sum = 0;
        profile.server.cpus = setup.cpus;
        profile.server.switch = setup.switch;
        profile.server.tier = setup.tier;
        profile.server.veth = setup.veth;
        profile.server.sets = setup.sets;
        profile.server.conns = setup.conns;
        profile.server.renamed = setup.renamed;
        profile.server.field_expiry = setup.field_expiry;
        profile.server.line_ends = setup.line_ends;
        profile.server.offload = if setup.offload { 1_000_000 } else { 0 };
        profile.server.merge = if setup.merge { 1_000_000 } else { 0 };
        profile.server.keepalive = setup.keepalive;
        profile.server.absorbs = setup.absorbs;
        profile.server.steered = if setup.steered { 1_000_000 } else { 0 };
        profile.client.machines = 3;
        profile.client.parallel = u32::MAX;
        profile.duration = Ns::MAX / 4;
        // One per scenario and small: a plan's profile lives as long as the program.
        let mut plan = Plan::new(Box::leak(Box::new(profile)), setup.seed);
        plan.faults = Faults::NONE;
        for (wanted, fault) in [(setup.merge, Fault::Merge), (setup.steered, Fault::Steered)] {
            if wanted {
                plan.faults = plan.faults.with(fault);
            }
        }
        let options = Options {
            library: setup.library.or_else(hand::library),
            mistake: hand::mistake(),
            keep: setup.keep,
        };
        let mut world = World::bare(&plan, &options);
        let config = |client: Config| Config {
            vlan: setup.vlan,
            mss: client.mss.min(if setup.ipv6 { 1440 } else { 1460 }),
            ..client
        };
        world.machines[0] = Machine::with_config(0, config(setup.client), setup.seed, setup.bare);
        let usual = config(Setup::default().client);
        world.machines[1] = Machine::with_config(1, usual, setup.seed ^ 2, setup.bare);
        world.machines[2].set_raw();
        world.server.arm_redis();
        hand::played(1, 0);
        let mut scenario = Self { world, raws: 0 };
        if setup.attached {
            scenario.attach();
        }
        scenario
    }

    /// Attaches ERB and waits until it serves and admits new connections.
    pub fn attach(&mut self) {
        self.world.server.start_daemon();
        self.until("ERB serves", |s| {
            let control = s.control();
            control.serving == 1 && control.admit == 1 && control.lease_until_ns > s.now()
        });
    }

    // --- time ---

    /// The monotonic clock.
    #[must_use]
    pub fn now(&self) -> Ns {
        self.world.inner.now()
    }

    /// Runs for so long.
    ///
    /// # Panics
    /// With the story, if a rule is broken.
    pub fn run(&mut self, time: Ns) {
        let before = self.world.events();
        let done = self.world.run_for(time);
        hand::played(0, self.world.events() - before);
        if let Err(violation) = done {
            let story = self.world.inner.story.borrow().text();
            panic!("{story}{violation}");
        }
    }

    /// Runs until something holds.
    ///
    /// # Panics
    /// If it does not within five minutes, or a rule is broken.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = self.now() + WAIT_MAX;
        while !holds(self) {
            if self.now() > end {
                let story = self.world.inner.story.borrow().text();
                panic!("{story}never happened: {what}");
            }
            self.run(10 * US);
        }
    }

    /// Lets everything that is under way arrive: some round trips, no timers of seconds.
    pub fn settle(&mut self) {
        self.run(5 * MS);
    }

    /// Ends the scenario: all connections are closed, the world comes to rest, leaks are looked for.
    ///
    /// # Panics
    /// If a rule is broken.
    pub fn finish(mut self) {
        let open: Vec<ConnId> = self
            .world
            .machines
            .iter()
            .flat_map(Machine::sessions)
            .map(|session| session.id)
            .collect();
        for conn in open {
            self.close(conn);
        }
        self.run(80 * SECOND);
        let broken = self.stat(erb_abi::STAT_INVARIANT);
        assert_eq!(broken, 0, "the data path has counted broken invariants");
        let world = &self.world;
        let done = crate::look::leaks(&world.inner, &world.server)
            .and_then(|()| crate::look::content(&world.inner, &world.server))
            .and_then(|()| world.inner.checks.borrow_mut().end(world.inner.now()));
        if let Err(violation) = done {
            let story = self.world.inner.story.borrow().text();
            panic!("{story}{violation}");
        }
    }

    // --- real clients ---

    /// A connection of machine 0, established.
    pub fn open(&mut self) -> ConnId {
        self.open_on(0, None)
    }

    /// A connection of a machine (0 or 1), from a port if one is given, established.
    pub fn open_on(&mut self, machine: usize, port: Option<u16>) -> ConnId {
        let conn = self.dial(machine, port);
        self.until("connected", |s| s.stage(conn) != Some(Stage::Connecting));
        conn
    }

    /// Begins a connection without waiting.
    pub fn dial(&mut self, machine: usize, port: Option<u16>) -> ConnId {
        let conn = self.world.new_conn_on(machine);
        let inner = self.world.inner.clone();
        self.world.machines[machine].connect(&inner, conn, port, true);
        self.world.note_dialled(machine, conn);
        conn
    }

    /// A connection that the fast path answers: its first command was Redis's.
    pub fn fast(&mut self) -> ConnId {
        let conn = self.open();
        assert_eq!(self.call(conn, &[b"PING"]), b"+PONG\r\n");
        self.until("the connection is fast", |s| {
            s.entry(conn)
                .is_some_and(|entry| u32::from(entry.state) == erb_abi::CONN_FAST)
        });
        conn
    }

    /// Where a connection is in its life; `None` when it is over.
    #[must_use]
    pub fn stage(&self, conn: ConnId) -> Option<Stage> {
        self.session(conn).map(|session| session.stage)
    }

    fn session(&self, conn: ConnId) -> Option<&crate::client::session::Session> {
        self.world
            .machines
            .iter()
            .find_map(|machine| machine.session(conn))
    }

    /// Sends commands as one write, without waiting.
    pub fn ask_all(&mut self, conn: ConnId, commands: &[&[&[u8]]]) {
        let commands = commands.iter().map(|argv| Command {
            name: "scenario",
            bytes: request(argv),
            replies: 1,
        });
        let operation = Operation {
            commands: commands.collect(),
            ..Operation::default()
        };
        self.operation(conn, &operation);
    }

    /// Sends a command without waiting.
    pub fn ask(&mut self, conn: ConnId, argv: &[&[u8]]) {
        self.ask_all(conn, &[argv]);
    }

    /// Sends bytes that get so many replies.
    pub fn write(&mut self, conn: ConnId, bytes: &[u8], replies: u32) {
        let operation = Operation {
            commands: vec![Command {
                name: "scenario",
                bytes: bytes.to_vec(),
                replies,
            }],
            ..Operation::default()
        };
        self.operation(conn, &operation);
    }

    fn operation(&mut self, conn: ConnId, operation: &Operation) {
        let inner = self.world.inner.clone();
        let machine = self.world.machine_of(conn);
        self.world.machines[machine].begin(&inner, conn, operation);
    }

    /// Waits until all commands of the connection are answered; what was read since the last call.
    pub fn answers(&mut self, conn: ConnId) -> Vec<u8> {
        self.until("all is answered", |s| {
            s.session(conn).is_none_or(|session| session.owed() == 0)
        });
        let machine = self.world.machine_of(conn);
        self.world.machines[machine].take_read(conn)
    }

    /// Sends a command and waits for its reply.
    pub fn call(&mut self, conn: ConnId, argv: &[&[u8]]) -> Vec<u8> {
        self.ask(conn, argv);
        self.answers(conn)
    }

    /// Closes a connection in order.
    pub fn close(&mut self, conn: ConnId) {
        self.deed(conn, Deed::Close);
    }

    /// Closes, half-closes, resets or forgets a connection.
    pub fn deed(&mut self, conn: ConnId, deed: Deed) {
        let inner = self.world.inner.clone();
        let machine = self.world.machine_of(conn);
        self.world.machines[machine].deed(&inner, conn, deed);
    }

    // --- the server ---

    /// Puts a key into Redis by a client that ERB does not see, and into the cache by asking for it.
    pub fn cached(&mut self, key: &[u8], value: &[u8]) {
        self.unseen(&[b"SET", key, value]);
        let client = self.fast();
        let filled = self.stat(erb_abi::STAT_FILL_INSERTED);
        for _ in 0..200 {
            self.call(client, &[b"GET", key]);
            self.run(5 * MS);
            if self.stat(erb_abi::STAT_FILL_INSERTED) > filled {
                break;
            }
        }
        assert!(
            self.stat(erb_abi::STAT_FILL_INSERTED) > filled,
            "the key was never filled"
        );
        self.close(client);
        self.settle();
    }

    /// A client that ERB does not see sends a command.
    pub fn unseen(&mut self, argv: &[&[u8]]) {
        self.world.server.ask_unseen(&request(argv));
        self.settle();
    }

    /// A counter of the data path.
    #[must_use]
    pub fn stat(&self, stat: erb_stat) -> u64 {
        self.world
            .server
            .path
            .borrow()
            .as_ref()
            .map_or(0, |path| path.stat(stat))
    }

    /// The control block as it is.
    ///
    /// # Panics
    /// If ERB is not attached.
    #[must_use]
    pub fn control(&self) -> erb_abi::control {
        let path = self.world.server.path.borrow();
        let path = path.as_ref().expect("ERB is attached");
        // SAFETY: the block lives as long as the data path, and no program runs meanwhile.
        unsafe { path.control().read() }
    }

    /// Addresses of a connection: the server's, the client's.
    ///
    /// # Panics
    /// If the connection is over.
    #[must_use]
    pub fn pair(&self, conn: ConnId) -> Pair {
        let local = self
            .session(conn)
            .expect("the connection is not over")
            .local;
        let server = crate::client::machine::server_ip(self.world.inner.plan.profile.ipv6);
        ((server, PORT).into(), local)
    }

    /// What the data path knows of a connection.
    #[must_use]
    pub fn entry(&self, conn: ConnId) -> Option<conn> {
        self.entry_of(self.pair(conn))
    }

    /// The same by addresses.
    #[must_use]
    pub fn entry_of(&self, pair: Pair) -> Option<conn> {
        let path = self.world.server.path.borrow().clone()?;
        path.conn(&key_of(pair)).copied()
    }

    /// What the server's kernel knows of a connection.
    #[must_use]
    pub fn socket_of(&self, pair: Pair) -> Option<View> {
        let host = self.world.server.host.borrow();
        host.view(host.lookup(pair.0, pair.1)?.id?)
    }

    /// Stops Redis's process; `false` lets it go on.
    pub fn stop_redis(&mut self, stop: bool) {
        self.world.server.stop_redis(stop);
    }

    /// Stops the daemon's process; `false` lets it go on.
    pub fn stop_daemon(&mut self, stop: bool) {
        let long = if stop { WAIT_MAX } else { 0 };
        self.world.server.stall_daemon(long);
        if !stop {
            self.world.server.wake_daemon();
        }
    }

    /// A command while a fill is under way, of which the daemon hears afterwards; its reply.
    pub fn write_while_filling(&mut self, client: ConnId, argv: &[&[u8]]) -> Vec<u8> {
        self.until("a fill is asked for", |s| {
            let fills = s.world.server.boost.with(|core| core.fills_in_flight());
            fills.is_some_and(|fills| fills > 0)
        });
        self.stop_daemon(true);
        self.run(MS);
        let reply = self.call(client, argv);
        self.stop_daemon(false);
        reply
    }

    /// Kills the daemon now; [`Self::attach`] starts another.
    pub fn kill_daemon(&mut self) {
        self.world.server.kill_daemon_now();
    }

    /// Stops packets between XDP and TC ingress (`false`: lets them go on, in order).
    pub fn stop_stack(&mut self, stop: bool) {
        self.world.server.stop_stack(stop);
        self.poke();
    }

    /// Stops packets between TCP and the egress program (`false`: lets them go on, in order).
    pub fn stop_egress(&mut self, stop: bool) {
        self.world.server.stop_egress(stop);
        self.poke();
    }

    /// Runs tasks that were made outside of a step.
    fn poke(&mut self) {
        self.world.inner.at(self.now(), Event::HostTimer);
        self.run(0);
    }

    /// The next frames of this machine arrive on this CPU, whatever their flow; `None`: as usual.
    pub fn steer(&mut self, cpu: Option<usize>) {
        self.world.server.steer_to(cpu);
    }

    /// A client of which every segment is written by hand.
    pub fn raw(&mut self) -> Raw {
        self.raws += 1;
        Raw::new(&self.world, 50_000 + self.raws)
    }
}

/// Plays a scenario under many interleavings; the failing seed is in the panic's message.
pub fn over_seeds(seeds: std::ops::Range<u64>, setup: &Setup, play: impl Fn(Scenario)) {
    for seed in seeds {
        let setup = Setup {
            seed,
            ..setup.clone()
        };
        let run = std::panic::AssertUnwindSafe(|| play(Scenario::new(setup)));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("the interleaving was that of seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// The data path's key of an address pair.
#[must_use]
pub fn key_of(pair: Pair) -> conn_key {
    let bytes = |ip: std::net::IpAddr| match ip {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(ip) => ip.octets(),
    };
    conn_key {
        client_addr: bytes(pair.1.ip()),
        server_addr: bytes(pair.0.ip()),
        client_port_be: pair.1.port().to_be(),
        server_port_be: pair.0.port().to_be(),
        pad: 0,
    }
}
