// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world: one server, some machines, links between them, and what happens to them in virtual
//! time. Single-threaded; everything random follows from the plan's seed.

mod alive;
mod rare;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use erb_sim_kernel::Library;
use fastrand::Rng;

use crate::ConnId;
use crate::check::{Checks, Config as CheckConfig};
use crate::client::machine::{Machine, PORT, neighbour_ip};
use crate::client::workload::{Workload, mix};
use crate::client::{mixed, settings};
use crate::fault::{Fault, Faults};
use crate::inner::{Event, Inner};
use crate::link::Link;
use crate::look::Looks;
use crate::plan::{Options, Outcome, Plan};
use crate::profile::ClientRates;
use crate::server::Server;
use crate::story::{Note, Place, Story};
use crate::time::{MS, Ns, SECOND, START_NS, US};
use crate::violation::Violation;

/// Between looks of the checks at the maps.
const LOOK_EVERY: Ns = 50 * MS;
/// Virtual time that a world may take to come to rest after its faults have ended.
const REST_MAX: Ns = 400 * SECOND;
/// After the last connection: sweeps, proofs and delays are over by then.
const SETTLE: Ns = 5 * SECOND;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something happened.
    Ran,
    /// Nothing is left to happen.
    Quiet,
    /// A rule is broken: the run is over.
    Failed,
}

/// A world.
pub struct World {
    /// What all parts share.
    pub inner: Rc<Inner>,
    /// The server.
    pub server: Rc<Server>,
    /// The clients' machines.
    pub machines: Vec<Machine>,
    workload: Workload,
    machine_of: Vec<usize>,
    unseen: u32,
    events: u64,
    redis_down: bool,
    calm: bool,
    looks: Looks,
    random: Rng,
}

impl World {
    /// The world that a plan describes: Redis runs, ERB is attached soon, clients come.
    #[must_use]
    pub fn new(plan: &Plan, options: &Options) -> Self {
        let mut world = Self::bare(plan, options);
        world.populate();
        world
    }

    /// The same without anything planned: for scenarios.
    ///
    /// # Panics
    /// If the built-in data path does not fit the simulator.
    #[must_use]
    pub fn bare(plan: &Plan, options: &Options) -> Self {
        let inner = Inner::new(
            plan,
            Story::new(options.keep),
            Checks::new(CheckConfig::default()),
        );
        let library = options.library.clone().unwrap_or_else(Library::builtin);
        let server = Server::new(&inner, &library, options.mistake);
        // Nobody mends a mutant by replacing it.
        server.boost.is_replaceable.set(options.library.is_none());
        let mut machines = Vec::new();
        for number in 0..plan.profile.client.machines {
            machines.push(Machine::new(&inner, number));
            let link = |way: u64, forge| {
                let seed = mix(plan.seed, &[11, way, number as u64]);
                Link::new(plan.profile.link, plan.faults, seed, forge)
            };
            inner.up.borrow_mut().push(link(0, true));
            inner.down.borrow_mut().push(link(1, false));
        }
        Self {
            inner,
            server,
            machines,
            workload: Workload::new(client_rates(plan), plan.seed),
            machine_of: Vec::new(),
            unseen: 0,
            events: 0,
            redis_down: false,
            calm: false,
            looks: Looks::default(),
            random: Rng::with_seed(mix(plan.seed, &[12])),
        }
    }

    /// Plans connections, the attaching, rare faults.
    fn populate(&mut self) {
        let plan = self.inner.plan.clone();
        let rates = &plan.profile.client;
        let mut old = 0;
        for _ in 0..plan.connections {
            let conn = self.new_conn();
            let mut random = Rng::with_seed(mix(plan.seed, &[13, u64::from(conn)]));
            let is_old = rates.old > 0 && random.u32(0..1_000_000) < rates.old;
            let at = if is_old {
                old += 1;
                START_NS + random.u64(0..150 * MS)
            } else {
                START_NS + 200 * MS + random.u64(0..plan.duration * 3 / 4)
            };
            self.inner.at(at, Event::Open(conn));
        }
        let attach = if old > 0 { 200 * MS } else { MS };
        self.inner.at(START_NS + attach, Event::Attach);
        self.inner.at(START_NS + plan.duration, Event::Calm);
        self.inner.at(START_NS + LOOK_EVERY, Event::Look);
        self.server.arm_redis();
        // Most keys exist from the start.
        for number in 0..rates.keys {
            let key = format!("key:{number}").into_bytes();
            let value = vec![b'0'; number as usize * 7 % 90 + 1];
            let request = crate::client::resp::request(&[b"SET", &key, &value]);
            self.server.ask_unseen(&request);
        }
        if rates.mixed > 0 {
            for request in mixed::first(rates.keys) {
                self.server.ask_unseen(&request);
            }
        }
        if rates.neighbour > 0 {
            // Already there when ERB comes, or later.
            let at = self.random.u64(0..plan.duration / 2);
            self.inner.at(START_NS + at, Event::Neighbour);
        }
        for (fault, every) in rare::all(&plan) {
            self.plan_rare(fault, every);
        }
    }

    /// A number for a connection, and the machine that will open it.
    pub(crate) fn new_conn(&mut self) -> ConnId {
        let conn = ConnId::try_from(self.machine_of.len()).unwrap_or(ConnId::MAX);
        self.machine_of.push(conn as usize % self.machines.len());
        conn
    }

    /// The same for a machine that a scenario has chosen.
    pub(crate) fn new_conn_on(&mut self, machine: usize) -> ConnId {
        let conn = self.new_conn();
        self.machine_of[conn as usize] = machine;
        conn
    }

    /// The machine of a connection.
    #[must_use]
    pub fn machine_of(&self, conn: ConnId) -> usize {
        self.machine_of[conn as usize]
    }

    /// Steps so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The broken rule, if one is.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        self.inner.violation.borrow().clone()
    }

    /// Takes the next event and those shortly behind it, and runs all tasks that come of them.
    pub fn step(&mut self) -> Step {
        self.step_until(Ns::MAX)
    }

    fn step_until(&mut self, last: Ns) -> Step {
        if self.inner.is_failed() {
            return Step::Failed;
        }
        let Some(at) = self.inner.queue.borrow().next_at().filter(|at| *at <= last) else {
            return Step::Quiet;
        };
        self.inner.now.set(self.inner.now().max(at));
        // What happens within some microseconds happens at once, on several CPUs.
        let window = if self.random.bool() {
            0
        } else {
            self.random.u64(0..25 * US)
        };
        let until = (self.inner.now() + window).min(last);
        let done = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let event = {
                    let mut queue = self.inner.queue.borrow_mut();
                    let Some(next) = queue.next_at().filter(|next| *next <= until) else {
                        break;
                    };
                    self.inner.now.set(self.inner.now().max(next));
                    queue.pop_due(until)
                };
                let Some(event) = event else { break };
                self.events += 1;
                self.handle(event);
                if self.inner.is_failed() {
                    break;
                }
            }
            self.server.run_tasks();
            self.server.note_writes();
        }));
        if let Err(panic) = done {
            self.inner.fail(Violation::new(
                "panic",
                self.inner.now(),
                panic_text(&*panic),
            ));
        }
        if self.inner.is_failed() {
            Step::Failed
        } else {
            Step::Ran
        }
    }

    /// Runs until this time.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn run_until(&mut self, at: Ns) -> Result<(), Violation> {
        loop {
            match self.step_until(at) {
                Step::Ran => {}
                Step::Quiet => {
                    self.inner.now.set(self.inner.now().max(at));
                    return Ok(());
                }
                Step::Failed => return Err(self.violation().expect("a rule is broken")),
            }
        }
    }

    /// Runs for so long.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn run_for(&mut self, time: Ns) -> Result<(), Violation> {
        self.run_until(self.inner.now() + time)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Up(machine, key) => {
                let frame = self.inner.up.borrow_mut()[machine].arrive(key);
                if let Some(frame) = frame {
                    self.inner.packets.set(self.inner.packets.get() + 1);
                    self.server.frame(frame);
                }
            }
            Event::Down(machine, key) => {
                let frame = self.inner.down.borrow_mut()[machine].arrive(key);
                if let Some(frame) = frame {
                    self.inner.packets.set(self.inner.packets.get() + 1);
                    let inner = self.inner.clone();
                    self.inner
                        .tell_frame(Place::Client(machine), "gets", &frame.bytes);
                    self.server.back_over_loopback(&frame);
                    self.machines[machine].frame(&inner, &frame, Some(&self.workload));
                }
            }
            Event::MachineTimer(machine) => {
                let inner = self.inner.clone();
                self.machines[machine].timer(&inner, Some(&self.workload));
            }
            Event::Open(conn) => self.open(conn),
            Event::Wake(conn) => {
                let inner = self.inner.clone();
                let machine = &mut self.machines[self.machine_of[conn as usize]];
                machine.catch_up(&inner, conn);
                machine.wake(&inner, conn, &self.workload);
            }
            Event::Steered(cpu) => self.server.steered_packet(cpu),
            Event::HostTimer => self.server.timer(),
            Event::RedisTimer => self.server.redis_turn(),
            Event::RedisBack => {
                self.redis_down = false;
                self.server.restart_redis();
            }
            Event::DaemonWake => self.server.daemon_turn(),
            Event::Relink(place) => self.server.relink(place),
            Event::Loaded => self.server.resync(false),
            Event::DaemonBack | Event::Attach => self.server.start_daemon(),
            Event::MachineBack => self.boot(),
            Event::Neighbour => {
                let ip = neighbour_ip(self.inner.plan.profile.ipv6);
                self.server.neighbour_listens((ip, PORT).into());
            }
            Event::NeighbourReads(sock) => self.server.neighbour_reads(sock),
            Event::Rare(fault) => self.rare(fault),
            Event::GoesOn => self.server.cpus.go_on(),
            Event::Calm => self.end_faults(),
            Event::Look => self.look(),
        }
    }

    fn open(&mut self, conn: ConnId) {
        let inner = self.inner.clone();
        let machine = self.machine_of[conn as usize];
        let parallel = self.inner.plan.profile.client.parallel as usize;
        if self.machines[machine].open() >= parallel {
            let later = self.random.u64(MS..60 * MS);
            self.inner.at(self.inner.now() + later, Event::Open(conn));
            return;
        }
        if self.is_neighbours(conn) {
            match self.server.stranger_at() {
                Some(at) => self.machines[machine].connect_to_neighbour(&inner, conn, at),
                None => inner.at(inner.now() + 10 * MS, Event::Open(conn)),
            }
            return;
        }
        self.machines[machine].connect(&inner, conn, None, false);
        self.note_dialled(machine, conn);
    }

    /// Whether a connection is one with another server on the port.
    fn is_neighbours(&self, conn: ConnId) -> bool {
        let plan = &self.inner.plan;
        let mut random = Rng::with_seed(mix(plan.seed, &[14, u64::from(conn)]));
        let rate = plan.profile.client.neighbour;
        plan.faults.has(Fault::Neighbour) && random.u32(0..1_000_000) < rate
    }

    /// Lets the server know which connection an address stands for.
    pub(crate) fn note_dialled(&self, machine: usize, conn: ConnId) {
        if let Some(session) = self.machines[machine].session(conn) {
            self.server.dialled.borrow_mut().insert(session.local, conn);
        }
    }

    fn look(&mut self) {
        // What maps say in the midst of a program is nobody's rule.
        if !self.server.is_amid() {
            let looked = self.looks.maps(&self.inner, &self.server);
            looked.unwrap_or_else(|violation| self.inner.fail(violation));
        }
        self.inner.at(self.inner.now() + LOOK_EVERY, Event::Look);
    }

    /// From now on nothing goes wrong any more.
    pub fn end_faults(&mut self) {
        self.calm = true;
        self.inner.faults.set(Faults::NONE);
        self.server.cpus.go_on();
        self.server.trouble_disk(false);
        if !self.inner.plan.profile.server.absorbs {
            self.server.drain();
        }
        self.restore_settings();
        for machine in &mut self.machines {
            machine.come_back();
        }
        for link in self.inner.up.borrow_mut().iter_mut() {
            link.end_faults();
        }
        for link in self.inner.down.borrow_mut().iter_mut() {
            link.end_faults();
        }
        self.inner
            .tell(Place::World, None, Note::Text("faults end"));
    }

    /// The administrator takes back what keeps clients, and the daemon, from being served.
    fn restore_settings(&self) {
        for request in settings::defaults() {
            self.server.ask_unseen(&request);
        }
    }

    /// Connections that are not over.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.machines.iter().map(Machine::open).sum()
    }

    /// Runs the whole life: work, the end of the faults, rest; then looks for leaks.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn run(&mut self) -> Result<(), Violation> {
        let end = START_NS + self.inner.plan.duration;
        self.run_until(end)?;
        let deadline = end + REST_MAX;
        loop {
            let opened: u32 = self.machines.iter().map(Machine::finished).sum();
            let all = u32::try_from(self.machine_of.len()).unwrap_or(u32::MAX);
            if self.open_connections() == 0 && opened >= all {
                break;
            }
            if self.inner.now() > deadline {
                let violation = crate::look::stuck(&self.inner, &self.machines);
                self.inner.fail(violation.clone());
                return Err(violation);
            }
            self.run_for(100 * MS)?;
        }
        self.is_fast_again()?;
        self.run_for(SETTLE)?;
        // What clients have set since, or a Redis that was away has not read.
        self.restore_settings();
        // Sockets in TIME_WAIT keep their entries for a minute, those of clients that have vanished
        // until the kernel asks for them.
        self.run_for(90 * SECOND)?;
        let last = crate::look::leaks(&self.inner, &self.server)
            .and_then(|()| crate::look::content(&self.inner, &self.server))
            .and_then(|()| self.inner.checks.borrow_mut().end(self.inner.now()));
        if let Err(violation) = &last {
            self.inner.fail(violation.clone());
        }
        last
    }

    /// What the run was.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let stats = self.server.stats();
        let mut coverage = self.inner.coverage.borrow().all();
        for (reason, count) in erb_abi::REASONS.iter().zip(&stats) {
            if *count > 0 {
                coverage.insert(("reason", reason.name.to_owned()), *count);
            }
        }
        Outcome {
            violation: self.violation(),
            events: self.events,
            packets: self.inner.packets.get(),
            virtual_ns: self.inner.now() - START_NS,
            stats,
            coverage,
            story: if self.inner.is_failed() || self.inner.story.borrow().is_full() {
                self.inner.story.borrow().text()
            } else {
                String::new()
            },
        }
    }
}

/// The clients' rates without faults that the plan has switched off.
fn client_rates(plan: &Plan) -> ClientRates {
    let mut rates = plan.profile.client;
    if !plan.faults.has(Fault::Beyond) {
        rates.beyond = 0;
    }
    rates
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "a panic without text".to_owned())
}

/// Makes the run that `plan` describes.
#[must_use]
pub fn run(plan: &Plan, options: &Options) -> Outcome {
    let mut world = World::new(plan, options);
    // What went wrong is in the outcome.
    drop(world.run());
    world.outcome()
}
