// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server's machine: CPUs, kernel, data path, Redis, the daemon.
//!
//! Invariants:
//! 1. Whatever touches a connection's socket holds its address pair's lock ([`Server::own`],
//!    [`Server::spin`]): segments of one connection pass the egress program one after the other.
//! 2. A softirq never waits for a process: what arrives for a socket that a process owns goes to the
//!    backlog, which the process works off before it lets go, as in Linux.
//! 3. No borrow of a cell is kept across a call of a program or [`give_way`].

mod absorbed;
mod aside;
mod boost;
mod commits;
mod control;
pub mod devices;
mod fragments;
mod inside;
mod kernel;
mod loopback;
mod memory;
mod merge;
mod netfilter;
mod packets;
mod pipe;
mod process;
mod stranger;
mod writes;

pub(crate) use writes::Written;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use erb_sim_kernel::{
    Card, Context, Cpus, Datapath, DatapathConfig, Library, Packet, Sock, give_way,
};
use erb_sim_redis::{
    ClientId, Config as RedisConfig, CrashMode, Disk, Faults as DiskFaults, Redis,
};
use erb_sim_tcp::{Config, Host, Keepalive, Look, Outgoing, SockId};

pub use boost::{Around, Boost, Daemon, HOLD_MAX};
pub use control::Control;
pub use devices::IFINDEX;
pub use kernel::KernelView;
pub use pipe::Pipe;
pub use stranger::STRANGERS_WORDS;

use crate::ConnId;
use crate::client::machine::PORT;
use crate::client::workload::mix;
use crate::fault::Fault;
use crate::inner::{Event, Inner};
use crate::link::Frame;
use crate::mutate::DaemonMistake;
use crate::profile::Tier;
use crate::time::{Ns, SECOND, US};

/// Frames that a poll of the device takes at most.
const POLL_FRAMES: usize = 8;

/// Both ends of a connection: the server's, the client's.
pub type Pair = (SocketAddr, SocketAddr);

/// Who has a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Softirq,
    Process,
}

/// A look-up that a program made.
#[derive(Clone, Copy, Debug)]
struct Looked {
    look: Look,
    pair: Pair,
}

/// Redis's side of one of its connections.
#[derive(Debug)]
struct Peer {
    way: Way,
    conn: Option<ConnId>,
    /// Written by Redis, not yet taken by TCP.
    unsent: Vec<u8>,
    /// Replies of commands that were executed and have not left Redis yet.
    replies: VecDeque<u8>,
    closing: bool,
    /// Its transaction will change access rules.
    rights_queued: bool,
}

/// How Redis reaches a client.
#[derive(Clone, Debug)]
enum Way {
    Tcp(SockId, Pair),
    Inside(Pipe),
}

/// The server.
pub struct Server {
    /// Shared with the rest of the world.
    pub inner: Rc<Inner>,
    /// Its CPUs.
    pub cpus: Cpus,
    /// Its kernel's TCP.
    pub host: RefCell<Host>,
    /// The data path; a new one after a crash of the machine.
    pub path: RefCell<Option<Datapath>>,
    /// The programs are attached.
    pub attached: Cell<bool>,
    /// Redis, while it runs.
    pub redis: RefCell<Option<Redis>>,
    /// ERB's daemon.
    pub boost: Boost,
    /// Queues of the device, one per CPU.
    rings: RefCell<Vec<VecDeque<Frame>>>,
    polled: RefCell<Vec<bool>>,
    locks: RefCell<BTreeMap<Pair, Holder>>,
    backlogs: RefCell<BTreeMap<Pair, VecDeque<Vec<u8>>>>,
    looked: RefCell<BTreeMap<u64, Looked>>,
    /// Sockets whose cookie somebody has asked for.
    cookies: RefCell<BTreeSet<u64>>,
    conns: RefCell<BTreeMap<u64, ConnId>>,
    /// Addresses of full sockets.
    pairs: RefCell<BTreeMap<SockId, Pair>>,
    /// Whose connection a socket serves.
    served: RefCell<BTreeMap<SockId, ConnId>>,
    /// Sockets whose peer sends no more.
    ended: RefCell<BTreeSet<SockId>>,
    /// The newest connection of each client address.
    pub dialled: RefCell<BTreeMap<SocketAddr, ConnId>>,
    peers: RefCell<BTreeMap<ClientId, Peer>>,
    by_sock: RefCell<BTreeMap<SockId, ClientId>>,
    incoming_pipes: RefCell<VecDeque<(Pipe, erb_sim_redis::Peer)>>,
    probes: Cell<u16>,
    /// The next look-up of a connection finds its listener: see [`KernelView`].
    pub blink: Cell<bool>,
    /// netfilter answers what comes for Redis by resets.
    rejects: Cell<bool>,
    /// Connections of another server on the same port, and where it listens.
    pub stranger: RefCell<stranger::Stranger>,
    unseen_pipe: RefCell<Option<Pipe>>,
    master_pipe: RefCell<Option<Pipe>>,
    redis_scheduled: Cell<bool>,
    redis_running: Cell<bool>,
    redis_away_until: Cell<Ns>,
    redis_timer_at: Cell<Ns>,
    timer_at: Cell<Ns>,
    timer_running: Cell<bool>,
    fragments: RefCell<BTreeMap<fragments::Key, fragments::Pieces>>,
    /// TCP was given bytes by a way that no program is on.
    pub had_unseen_input: Cell<bool>,
    flow_moves: RefCell<BTreeMap<(u16, u16), u64>>,
    /// What data paths that are gone had counted.
    counted: RefCell<Vec<u64>>,
    /// What entries said when programs left their lock, while somebody wants to know.
    commits: RefCell<Option<Vec<commits::Commit>>>,
    library: Library,
    card: Card,
    boots: Cell<u64>,
    mistake: Option<DaemonMistake>,
    powered: Cell<bool>,
    /// A scenario has stopped the way between XDP and TC, between TCP and the egress program.
    stack_stopped: RefCell<Option<VecDeque<Packet>>>,
    egress_stopped: RefCell<Option<VecDeque<Outgoing>>>,
    steered: Cell<Option<usize>>,
    /// CPUs of the next frames, one each.
    steered_next: RefCell<VecDeque<usize>>,
    /// Packets on their way to the CPU that they were steered to.
    steered_packets: RefCell<Vec<VecDeque<Packet>>>,
    /// The listener's queue for Fast Open.
    pub fastopen: Cell<u32>,
    /// Device by which replies leave, and by which clients' packets come.
    route: Cell<u32>,
    arrival: Cell<u32>,
    /// Who hands clients' frames on, and to whom the kernel sends; none: the machines themselves.
    handed_on_by: Cell<Option<[u8; 6]>>,
    neighbour: Cell<Option<[u8; 6]>>,
    /// Clients that begin on a device that is not boosted: their first frame there, their last that
    /// nobody saw.
    begun_elsewhere: RefCell<BTreeMap<SocketAddr, (Ns, Ns)>>,
    spare_disk: RefCell<Option<Disk>>,
    arrivals: RefCell<absorbed::Arrivals>,
    /// SETs that are answered, and their drain, once there is one.
    writes: RefCell<Option<writes::Writes>>,
}

impl Server {
    /// A server with a running Redis; ERB is not attached yet.
    ///
    /// # Panics
    /// If Redis does not start from an empty disk.
    #[must_use]
    pub fn new(inner: &Rc<Inner>, library: &Library, mistake: Option<DaemonMistake>) -> Rc<Self> {
        let plan = &inner.plan;
        let rates = &plan.profile.server;
        // A mean of points between switches that gives the profile's chance per point.
        let mean = 1_000_000_u32.checked_div(rates.switch).unwrap_or(0);
        let cpus = Cpus::new(rates.cpus, mix(plan.seed, &[5]), mean);
        let disk = Disk::new(mix(plan.seed, &[6]), DiskFaults::default());
        let redis = Self::start_redis(inner, disk);
        let server = Rc::new(Self {
            inner: inner.clone(),
            cpus,
            host: RefCell::new(Self::boot_host(inner, 0)),
            path: RefCell::default(),
            attached: Cell::new(false),
            redis: RefCell::new(redis),
            boost: Boost::default(),
            rings: RefCell::new(vec![VecDeque::new(); rates.cpus]),
            polled: RefCell::new(vec![false; rates.cpus]),
            locks: RefCell::default(),
            backlogs: RefCell::default(),
            looked: RefCell::default(),
            cookies: RefCell::default(),
            conns: RefCell::default(),
            pairs: RefCell::default(),
            served: RefCell::default(),
            ended: RefCell::default(),
            dialled: RefCell::default(),
            peers: RefCell::default(),
            by_sock: RefCell::default(),
            incoming_pipes: RefCell::default(),
            probes: Cell::default(),
            blink: Cell::default(),
            rejects: Cell::default(),
            stranger: RefCell::default(),
            unseen_pipe: RefCell::default(),
            master_pipe: RefCell::default(),
            redis_scheduled: Cell::new(false),
            redis_running: Cell::new(false),
            redis_away_until: Cell::new(0),
            redis_timer_at: Cell::new(0),
            timer_at: Cell::new(Ns::MAX),
            timer_running: Cell::new(false),
            fragments: RefCell::default(),
            had_unseen_input: Cell::default(),
            flow_moves: RefCell::default(),
            library: library.clone(),
            card: Self::draw_card(inner),
            boots: Cell::new(0),
            mistake,
            powered: Cell::new(true),
            stack_stopped: RefCell::default(),
            egress_stopped: RefCell::default(),
            steered: Cell::default(),
            steered_next: RefCell::default(),
            steered_packets: RefCell::new((0..rates.cpus).map(|_| VecDeque::new()).collect()),
            fastopen: Cell::new(0),
            counted: RefCell::default(),
            commits: RefCell::default(),
            route: Cell::new(IFINDEX),
            arrival: Cell::new(IFINDEX),
            handed_on_by: Cell::default(),
            neighbour: Cell::default(),
            begun_elsewhere: RefCell::default(),
            spare_disk: RefCell::default(),
            arrivals: RefCell::default(),
            writes: RefCell::default(),
        });
        server.host.borrow_mut().listen(PORT, 128);
        server
    }

    fn draw_card(inner: &Inner) -> Card {
        let rates = &inner.plan.profile.server;
        if inner.happens(Fault::NoMeta, rates.no_meta * 50) {
            return Card::NoMeta;
        }
        if !rates.veth {
            return Card::Physical;
        }
        let is_narrow = inner.happens(Fault::NoRoom, rates.no_room);
        let mut random = inner.random.borrow_mut();
        if is_narrow {
            return Card::Veth {
                head: random.u16(40..120),
                tail: random.u16(0..20),
            };
        }
        Card::Veth {
            head: random.u16(192..=256),
            tail: random.u16(0..64),
        }
    }

    fn boot_host(inner: &Inner, boots: u64) -> Host {
        let profile = inner.plan.profile;
        let config = Config {
            vlan: profile.vlan,
            nagle: false,
            mss: if profile.ipv6 { 1440 } else { 1460 },
            gso_segs: if profile.server.offload > 0 { 16 } else { 1 },
            keepalive: inner.plan.profile.server.keepalive.then_some(Keepalive {
                // Redis's default is 300 s: nobody waits so long for the end of a run.
                time: 60 * SECOND,
                interval: 20 * SECOND,
                probes: 3,
            }),
            ..Config::default()
        };
        Host::new(config, mix(inner.plan.seed, &[7, boots]))
    }

    fn start_redis(inner: &Inner, disk: Disk) -> Option<Redis> {
        let rates = &inner.plan.profile.events;
        let config = RedisConfig {
            port: PORT,
            appendfsync: erb_sim_redis::AppendFsync::EverySec,
            fsync_ns_max: if rates.disk > 0 { 3 * SECOND } else { 0 },
            seed: mix(inner.plan.seed, &[8]),
            renamed: inner.plan.profile.server.renamed,
            field_expiry: inner.plan.profile.server.field_expiry,
            line_ends: inner.plan.profile.server.line_ends,
            ..RedisConfig::default()
        };
        Redis::start(config, disk, inner.wall_ns()).ok()
    }

    /// The disk begins to fail, or ceases to.
    pub fn trouble_disk(&self, on: bool) {
        let mut random = self.inner.random.borrow_mut();
        let mut faults = DiskFaults::default();
        if on {
            match random.u8(0..3) {
                0 => faults.fsync_fails_per_million = 500_000,
                1 => faults.short_write_per_million = 300_000,
                _ => faults.capacity = random.usize(0..20_000),
            }
        }
        if let Some(redis) = self.redis.borrow_mut().as_mut() {
            redis.disk().set_faults(faults);
        }
    }

    /// Makes the maps of a boost and attaches the programs.
    pub fn attach(self: &Rc<Self>) {
        let plan = &self.inner.plan;
        let config = DatapathConfig {
            sets: plan.profile.server.sets,
            conns: plan.profile.server.conns,
            client_conns: plan.profile.server.conns / erb_abi::CLIENT_SHARE,
            cpus: plan.profile.server.cpus,
            port: PORT,
            devices: devices::BOOSTED,
            hash_seed: mix(plan.seed, &[9, self.boots.get()]),
            seed: mix(plan.seed, &[10, self.boots.get()]),
            ..DatapathConfig::default()
        };
        let kernel = Rc::new(KernelView::new(self));
        *self.path.borrow_mut() = Some(Datapath::new(&self.library, config, kernel));
        self.attached.set(true);
    }

    /// The maps of a boost are gone; what they counted is not.
    fn forget_path(&self) {
        let counted = self.stats();
        self.attached.set(false);
        *self.path.borrow_mut() = None;
        self.arrivals.take();
        *self.counted.borrow_mut() = counted;
    }

    /// Counters of all data paths there were, by `enum erb_stat`.
    #[must_use]
    pub fn stats(&self) -> Vec<u64> {
        let path = self.path.borrow();
        let mut stats = path.as_ref().map_or_else(Vec::new, |path| path.stats());
        let counted = self.counted.borrow();
        stats.resize(stats.len().max(counted.len()), 0);
        for (stat, before) in stats.iter_mut().zip(counted.iter()) {
            *stat += before;
        }
        stats
    }

    /// The data path, if it is attached. A handle: no borrow stays behind.
    #[must_use]
    pub fn attached_path(&self) -> Option<Datapath> {
        if self.attached.get() {
            self.path.borrow().clone()
        } else {
            None
        }
    }

    /// Whether a program is under way: on a CPU that stands still.
    #[must_use]
    pub fn is_amid(&self) -> bool {
        self.path.borrow().as_ref().is_some_and(Datapath::is_amid)
    }

    /// Whether XDP sees packets first.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.inner.plan.profile.server.tier == Tier::Native
    }

    /// Runs all tasks to their ends.
    pub fn run_tasks(&self) {
        self.cpus.run();
        self.arm_timer();
    }

    // --- sockets' locks ---

    /// As a softirq: waits for other softirqs; false if a process owns the socket.
    fn spin(&self, pair: Pair) -> bool {
        loop {
            let held = self.locks.borrow().get(&pair).copied();
            match held {
                None => {
                    self.locks.borrow_mut().insert(pair, Holder::Softirq);
                    return true;
                }
                Some(Holder::Process) => return false,
                Some(Holder::Softirq) => give_way(),
            }
        }
    }

    /// As a process: waits until nobody has the socket.
    fn own(&self, pair: Pair) {
        while self.locks.borrow().contains_key(&pair) {
            give_way();
        }
        self.locks.borrow_mut().insert(pair, Holder::Process);
    }

    fn unlock(&self, pair: Pair) {
        self.locks.borrow_mut().remove(&pair);
    }

    /// As a process: works off the backlog, then lets go.
    fn disown(self: &Rc<Self>, pair: Pair) {
        loop {
            let next = self
                .backlogs
                .borrow_mut()
                .get_mut(&pair)
                .and_then(VecDeque::pop_front);
            match next {
                Some(bytes) => self.input_locked(&bytes),
                None => break,
            }
        }
        self.backlogs.borrow_mut().remove(&pair);
        self.unlock(pair);
    }

    // --- the clock ---

    /// Sees to it that the kernel's timers run when they are due.
    pub fn arm_timer(&self) {
        // While they wait for a CPU that stands still they are due all the time.
        if self.timer_running.get() {
            return;
        }
        let next = self.host.borrow().next_timer();
        if let Some(at) = next
            && at < self.timer_at.get()
        {
            self.timer_at.set(at);
            self.inner.at(at, Event::HostTimer);
        }
    }

    /// The kernel's timers: as a process, which may wait for sockets.
    pub fn timer(self: &Rc<Self>) {
        self.timer_at.set(Ns::MAX);
        if self.timer_running.replace(true) {
            return;
        }
        let server = self.clone();
        let cpu = self.draw_cpu();
        self.cpus.spawn(cpu, Context::Process, move || {
            // A timer of a socket that a process owns waits until it lets go.
            while !server.locks.borrow().is_empty() {
                give_way();
            }
            let now = server.inner.now();
            let due = server
                .host
                .borrow()
                .next_timer()
                .is_some_and(|at| at <= now);
            if due {
                server.host.borrow_mut().on_timer(now);
                server.send_out(None);
            }
            server.timer_running.set(false);
        });
    }

    fn draw_cpu(&self) -> usize {
        let cpus = self.inner.plan.profile.server.cpus;
        let cpu = self.inner.random.borrow_mut().usize(..cpus);
        // Who is woken beside one that stands still is taken by another.
        match self.cpus.still() {
            Some(still) if still == cpu => (cpu + 1) % cpus,
            _ => cpu,
        }
    }

    /// How long after it was woken a process runs.
    fn draw_delay(&self) -> Ns {
        let mut random = self.inner.random.borrow_mut();
        match random.u8(0..10) {
            0 => random.u64(0..500 * US),
            1..=4 => 0,
            _ => random.u64(0..40 * US),
        }
    }

    /// The machine loses power: sockets, maps and processes are gone, the disk stays.
    pub fn lose_power(self: &Rc<Self>) {
        self.crash_redis(CrashMode::Power);
        self.lose_daemon();
        self.forget_path();
        self.boots.set(self.boots.get() + 1);
        *self.host.borrow_mut() = Self::boot_host(&self.inner, self.boots.get());
        self.locks.borrow_mut().clear();
        self.backlogs.borrow_mut().clear();
        self.cookies.borrow_mut().clear();
        self.looked.borrow_mut().clear();
        self.conns.borrow_mut().clear();
        self.pairs.borrow_mut().clear();
        self.served.borrow_mut().clear();
        self.ended.borrow_mut().clear();
        self.fragments.borrow_mut().clear();
        for queue in self.steered_packets.borrow_mut().iter_mut() {
            queue.clear();
        }
        self.powered.set(false);
        self.timer_at.set(Ns::MAX);
    }

    /// The machine is up again, and Redis with it.
    pub fn boot(self: &Rc<Self>) {
        self.powered.set(true);
        self.restart_redis();
    }

    /// What a program would see of the connection between a client and the server.
    #[must_use]
    pub fn sock(&self, pair: Pair) -> Option<Sock> {
        let host = self.host.borrow();
        let view = host.view(host.lookup(pair.0, pair.1)?.id?)?;
        Some(kernel::sock_of(&view, view.cookie))
    }

    /// Whether the server's kernel has a socket for this pair in any state.
    #[must_use]
    pub fn has_socket(&self, pair: Pair) -> bool {
        let look = self.host.borrow().lookup(pair.0, pair.1);
        look.is_some_and(|look| !look.listen)
    }
}
