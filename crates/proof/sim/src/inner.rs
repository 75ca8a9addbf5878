// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What everybody in a world shares: clock, queue of events, links, books.
//!
//! Tasks on the server's CPUs are suspended in the middle of programs, so everything that they
//! reach is behind a cell, and no borrow is kept across a point at which a task may be switched.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use erb_sim_tcp::SockId;
use fastrand::Rng;

use crate::ConnId;
use crate::check::Checks;
use crate::coverage::Coverage;
use crate::fault::{Fault, Faults};
use crate::link::{Frame, Link};
use crate::plan::Plan;
use crate::story::{self, Note, Place, Story};
use crate::time::{Ns, START_NS, WALL_START_MS};
use crate::violation::Violation;

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A frame of a machine reaches the server.
    Up(usize, (Ns, u64)),
    /// A frame reaches a machine.
    Down(usize, (Ns, u64)),
    /// A machine's TCP has something to do.
    MachineTimer(usize),
    /// A client opens this connection.
    Open(ConnId),
    /// A connection's application has something to do.
    Wake(ConnId),
    /// A packet that XDP has passed is taken by this CPU of the server.
    Steered(usize),
    /// The server's TCP has something to do.
    HostTimer,
    /// Redis has something to do by the clock.
    RedisTimer,
    /// Redis has been away for long enough.
    RedisBack,
    /// A replica has loaded its master's data.
    Loaded,
    /// The daemon has something to do.
    DaemonWake,
    /// A new daemon is started.
    DaemonBack,
    /// The next place gets another build's program.
    Relink(usize),
    /// The machine is up again.
    MachineBack,
    /// ERB is attached for the first time.
    Attach,
    /// Another server begins to listen on the port.
    Neighbour,
    /// Another server reads on behind a pause.
    NeighbourReads(SockId),
    /// A rare fault.
    Rare(Fault),
    /// Faults end.
    Calm,
    /// A processor that stands still goes on.
    GoesOn,
    /// The checks look at the maps.
    Look,
}

/// Events by time; equal times in the order in which they were added.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<(Ns, u64, Event)>>,
    added: u64,
}

impl Queue {
    /// Adds an event.
    pub fn push(&mut self, at: Ns, event: Event) {
        self.added += 1;
        self.heap.push(Reverse((at, self.added, event)));
    }

    /// When the next event is.
    #[must_use]
    pub fn next_at(&self) -> Option<Ns> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Takes the next event if it is due.
    pub fn pop_due(&mut self, now: Ns) -> Option<Event> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, _, event))| event)
    }
}

/// Shared by all parts of a world.
pub struct Inner {
    /// The plan.
    pub plan: Plan,
    /// The monotonic clock.
    pub now: Cell<Ns>,
    /// Wall clock minus monotonic clock, ms.
    pub wall_minus_mono_ms: Cell<i64>,
    /// Faults that may still happen.
    pub faults: Cell<Faults>,
    /// What will happen.
    pub queue: RefCell<Queue>,
    /// From each machine to the server.
    pub up: RefCell<Vec<Link>>,
    /// From the server to each machine.
    pub down: RefCell<Vec<Link>>,
    /// Counters.
    pub coverage: RefCell<Coverage>,
    /// The story.
    pub story: RefCell<Story>,
    /// What clients may see.
    pub checks: RefCell<Checks>,
    /// The first broken rule.
    pub violation: RefCell<Option<Violation>>,
    /// Frames that reached a machine.
    pub packets: Cell<u64>,
    /// Draws that belong to nobody else.
    pub random: RefCell<Rng>,
}

impl Inner {
    /// A world's shared parts; links are added with the machines.
    #[must_use]
    pub fn new(plan: &Plan, story: Story, checks: Checks) -> Rc<Self> {
        Rc::new(Self {
            plan: plan.clone(),
            now: Cell::new(START_NS),
            wall_minus_mono_ms: Cell::new(WALL_START_MS),
            faults: Cell::new(plan.faults),
            queue: RefCell::default(),
            up: RefCell::default(),
            down: RefCell::default(),
            coverage: RefCell::default(),
            story: RefCell::new(story),
            checks: RefCell::new(checks),
            violation: RefCell::default(),
            packets: Cell::new(0),
            random: RefCell::new(Rng::with_seed(plan.seed)),
        })
    }

    /// The monotonic clock.
    #[must_use]
    pub fn now(&self) -> Ns {
        self.now.get()
    }

    /// The wall clock, ns since 1970.
    #[must_use]
    pub fn wall_ns(&self) -> u64 {
        let ms = u64::try_from(self.wall_minus_mono_ms.get()).unwrap_or(0);
        ms * crate::time::MS + self.now()
    }

    /// An event at `at`.
    pub fn at(&self, at: Ns, event: Event) {
        self.queue.borrow_mut().push(at.max(self.now()), event);
    }

    /// Whether `fault` happens, at a rate in parts per million.
    pub fn happens(&self, fault: Fault, rate: u32) -> bool {
        let happens = rate > 0
            && self.faults.get().has(fault)
            && self.random.borrow_mut().u32(0..1_000_000) < rate;
        if happens {
            self.coverage.borrow_mut().fault(fault);
        }
        happens
    }

    /// The first violation ends the run.
    pub fn fail(&self, violation: Violation) {
        let mut slot = self.violation.borrow_mut();
        if slot.is_none() {
            self.tell(
                Place::World,
                None,
                Note::Made(format!("VIOLATION {violation}")),
            );
            *slot = Some(violation);
        }
    }

    /// Whether a rule is broken.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.violation.borrow().is_some()
    }

    /// Adds to the story.
    pub fn tell(&self, place: Place, conn: Option<ConnId>, note: Note) {
        let mut story = self.story.borrow_mut();
        if story.is_on() {
            story.push(story::Event {
                at: self.now(),
                place,
                conn,
                note,
            });
        }
    }

    /// Adds to the story what costs much to say.
    pub fn tell_with(&self, place: Place, conn: Option<ConnId>, text: impl FnOnce() -> String) {
        if self.story.borrow().is_on() {
            self.tell(place, conn, Note::Made(text()));
        }
    }

    /// Adds a frame to the story.
    pub fn tell_frame(&self, place: Place, did: &'static str, bytes: &[u8]) {
        if self.story.borrow().is_on() {
            self.tell(
                place,
                None,
                Note::Frame {
                    did,
                    bytes: bytes.into(),
                },
            );
        }
    }

    /// A machine sends a frame to the server.
    pub fn send_up(&self, machine: usize, frame: Frame) {
        self.tell_frame(Place::Client(machine), "sends", &frame.bytes);
        let now = self.now();
        let sent = self.up.borrow_mut()[machine].send(now, frame, &mut self.coverage.borrow_mut());
        for key in sent.arrivals {
            self.at(key.0, Event::Up(machine, key));
        }
    }

    /// The server sends a frame to a machine.
    pub fn send_down(&self, machine: usize, frame: Frame) {
        let now = self.now();
        let sent =
            self.down.borrow_mut()[machine].send(now, frame, &mut self.coverage.borrow_mut());
        for key in sent.arrivals {
            self.at(key.0, Event::Down(machine, key));
        }
        if let Some(icmp) = sent.icmp {
            self.tell_frame(Place::Link, "packet too big", &icmp);
            let delay = self.plan.profile.link.delay;
            let key = self.up.borrow_mut()[machine].inject(now, delay, Frame::new(icmp));
            self.at(key.0, Event::Up(machine, key));
        }
    }
}
