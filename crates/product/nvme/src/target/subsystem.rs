// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all connections share: controllers, room for data, what is under way in the backend, fences.
//!
//! Invariants:
//! 1. A ticket belongs to one command. Its room comes back when the backend is done with it, also if the connection
//!    is gone by then.
//! 2. Nothing is submitted for a controller that has ended.
//! 3. A controller's id is free again only when it has ended and nothing of it runs; then another controller's queue
//!    cannot be taken for its.
//! 4. Who may go on is looked at in the next turn: everybody when a controller ends, an event comes or a fence moves;
//!    else those to whom something came, and those that wait for room when room comes back, or when one of them has got
//!    what it waited for.
//! 5. A fence is over when every controller that it ended has nothing in the backend.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::config::{Config, Host};
use super::controller::{Controller, Event};
use super::pool::{Bounds, Pool};
use crate::backend::{Backend, Request, Ticket};
use crate::limits::CONTROLLER_ID_MAX;
use crate::random::Random;

/// Names a connection, over its life and beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Whose a ticket is.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    pub(super) connection: ConnectionId,
    pub(super) command: u16,
    controller: u16,
    host: Arc<Host>,
    reserved: usize,
    is_orphan: bool,
}

/// What all connections share.
pub struct Subsystem {
    pub(super) config: Config,
    pub(super) random: Box<dyn Random + Send>,
    controllers: BTreeMap<u16, Controller>,
    next_controller: u16,
    next_serial: u64,
    pool: Pool,
    tickets: HashMap<Ticket, Destination>,
    next_ticket: u64,
    fences: HashMap<u64, BTreeSet<u64>>,
    next_fence: u64,
    pub(super) generation: u64,
    pub(super) computations: usize,
    /// Connections that the next turn looks at.
    touched: BTreeSet<ConnectionId>,
    /// Connections that wait for room.
    hungry: BTreeSet<ConnectionId>,
    /// One of them waits no more, so another one may be the first now.
    has_moved: bool,
    /// The next turn looks at all.
    is_everybody: bool,
    /// Connections that have ended and are not closed.
    pub(super) over: BTreeSet<ConnectionId>,
    /// Connections of hosts that are not listed, and the names that they gave: the last ones.
    unlisted: VecDeque<(ConnectionId, String)>,
    /// Commands that their hosts' roles did not allow.
    pub(super) denied: u64,
}

impl std::fmt::Debug for Subsystem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = formatter.debug_struct("Subsystem");
        all.field("controllers", &self.controllers.len());
        all.field("tickets", &self.tickets.len());
        all.finish_non_exhaustive()
    }
}

/// Hosts that are not listed, and that nobody has asked for yet: so many are kept.
const UNLISTED_MAX: usize = 16;

impl Subsystem {
    /// The host that wants to connect, and whether proof is asked of it. One that is not listed is remembered.
    pub(super) fn listed(
        &mut self,
        id: ConnectionId,
        nqn: &str,
        is_loopback: bool,
    ) -> Option<(Arc<Host>, bool)> {
        let found = self.config.host(nqn, is_loopback);
        if found.is_none() {
            if self.unlisted.len() >= UNLISTED_MAX {
                self.unlisted.pop_front();
            }
            self.unlisted.push_back((id, nqn.to_owned()));
        }
        found
    }

    pub(super) fn take_unlisted(&mut self) -> Option<(ConnectionId, String)> {
        self.unlisted.pop_front()
    }

    pub(super) fn new(config: Config, random: Box<dyn Random + Send>) -> Self {
        Self {
            config,
            random,
            controllers: BTreeMap::new(),
            next_controller: 0,
            next_serial: 0,
            pool: Pool::default(),
            tickets: HashMap::new(),
            next_ticket: 0,
            fences: HashMap::new(),
            next_fence: 0,
            generation: 1,
            computations: 0,
            touched: BTreeSet::new(),
            hungry: BTreeSet::new(),
            has_moved: false,
            is_everybody: false,
            over: BTreeSet::new(),
            unlisted: VecDeque::new(),
            denied: 0,
        }
    }

    /// Something came to a connection.
    pub(super) fn touch(&mut self, id: ConnectionId) {
        self.touched.insert(id);
    }

    /// A connection waits for room. It is looked at again when some comes back.
    pub(super) fn hunger(&mut self, id: ConnectionId) {
        self.hungry.insert(id);
    }

    /// It waits for room in the pool, and not for some of its own queue.
    pub(super) fn wait(&mut self, host: &Host, id: ConnectionId) {
        self.pool.wait(&host.nqn, id);
    }

    /// It waits no more: it has got room, or it has ended.
    pub(super) fn wait_no_more(&mut self, host: &Host, id: ConnectionId) {
        self.has_moved |= self.pool.leave(&host.nqn, id);
    }

    /// Who is to be looked at again in this turn: those that wait, if one of them waits no more.
    pub(super) fn take_moved(&mut self) -> BTreeSet<ConnectionId> {
        if std::mem::take(&mut self.has_moved) {
            return std::mem::take(&mut self.hungry);
        }
        BTreeSet::new()
    }

    /// Whether another host waits for room that has less of it.
    pub(super) fn keeps_from_others(&self, host: &Host) -> bool {
        self.pool.keeps_from_others(&host.nqn)
    }

    /// Nothing is to be done for a connection any more.
    pub(super) fn leave(&mut self, id: ConnectionId) {
        self.touched.remove(&id);
        self.hungry.remove(&id);
        self.over.remove(&id);
    }

    /// Something came that may concern every connection.
    pub(super) fn touch_all(&mut self) {
        self.is_everybody = true;
    }

    /// Whom the next turn looks at; nothing: all.
    pub(super) fn take_touched(&mut self) -> Option<BTreeSet<ConnectionId>> {
        let touched = std::mem::take(&mut self.touched);
        let is_everybody = std::mem::take(&mut self.is_everybody);
        (!is_everybody).then_some(touched)
    }

    /// A new controller, if there is room: its id and serial number.
    pub(super) fn add_controller(
        &mut self,
        host: Arc<Host>,
        host_id: [u8; 16],
        is_discovery: bool,
    ) -> Option<(u16, u64)> {
        let limits = &self.config.limits;
        let discoveries = self.controllers.values().filter(|it| it.is_discovery);
        let is_full = is_discovery && discoveries.count() >= limits.discoveries;
        if is_full || self.controllers.len() >= limits.controllers {
            return None;
        }
        let id = loop {
            self.next_controller = self.next_controller % CONTROLLER_ID_MAX + 1;
            if !self.controllers.contains_key(&self.next_controller) {
                break self.next_controller;
            }
        };
        self.next_serial += 1;
        let serial = self.next_serial;
        let controller = Controller::new(id, serial, host, host_id, is_discovery);
        self.controllers.insert(id, controller);
        Some((id, serial))
    }

    /// A controller that lives.
    pub(super) fn controller(&mut self, id: u16, serial: u64) -> Option<&mut Controller> {
        let controller = self.controllers.get_mut(&id)?;
        (controller.serial == serial && !controller.is_ended).then_some(controller)
    }

    /// A controller that lives, by what an I/O queue's Connect says.
    pub(super) fn find_controller(
        &mut self,
        id: u16,
        host: &str,
        host_id: [u8; 16],
    ) -> Option<&mut Controller> {
        let controller = self.controllers.get_mut(&id)?;
        let is_own = controller.host.nqn == host && controller.host_id == host_id;
        (is_own && !controller.is_ended && !controller.is_discovery).then_some(controller)
    }

    pub(super) fn end_controller(&mut self, id: u16, serial: u64) {
        if let Some(controller) = self.controller(id, serial) {
            controller.is_ended = true;
            self.is_everybody = true;
            self.forget(id);
        }
    }

    fn forget(&mut self, id: u16) {
        let is_over = |controller: &Controller| controller.is_ended && controller.running == 0;
        if self.controllers.get(&id).is_some_and(is_over) {
            let gone = self.controllers.remove(&id).map_or(0, |it| it.serial);
            for waits in self.fences.values_mut() {
                self.is_everybody |= waits.remove(&gone);
            }
        }
    }

    /// Ends controllers whose hosts have been silent for too long.
    pub(super) fn tick(&mut self, now_us: u64) {
        let late = |it: &&Controller| it.alive_until_us.is_some_and(|until| until <= now_us);
        let late: Vec<(u16, u64)> = self
            .controllers
            .values()
            .filter(late)
            .map(|it| (it.id, it.serial))
            .collect();
        for (id, serial) in late {
            self.end_controller(id, serial);
        }
    }

    /// Ends all other controllers of a host, and says by which number [`Self::is_fenced`] is asked.
    pub(super) fn fence(&mut self, id: u16, host: &str, host_id: [u8; 16]) -> u64 {
        // Discovery controllers have nothing to fence.
        let is_other = |it: &&Controller| {
            let is_same_host = it.host.nqn == host && it.host_id == host_id;
            it.id != id && is_same_host && !it.is_discovery
        };
        let others = self.controllers.values().filter(is_other);
        let others: Vec<(u16, u64)> = others.map(|it| (it.id, it.serial)).collect();
        self.next_fence += 1;
        let waits = others.iter().map(|(_, serial)| *serial).collect();
        self.fences.insert(self.next_fence, waits);
        for (id, serial) in others {
            self.end_controller(id, serial);
        }
        self.next_fence
    }

    /// Whether none of the commands that a fence ended can still happen.
    pub(super) fn is_fenced(&self, fence: u64) -> bool {
        self.fences.get(&fence).is_none_or(BTreeSet::is_empty)
    }

    pub(super) fn drop_fence(&mut self, fence: u64) {
        self.fences.remove(&fence);
    }

    /// Whether there was room for so many bytes of a host's. `is_here`: they have come with their command.
    pub(super) fn reserve(&mut self, host: &Host, bytes: usize, is_here: bool) -> bool {
        let limits = &self.config.limits;
        let bounds = Bounds {
            pool_bytes: limits.pool_bytes,
            host_part: limits.host_part,
        };
        self.pool.reserve(&host.nqn, bytes, bounds, is_here)
    }

    pub(super) fn release(&mut self, host: &Host, bytes: usize) {
        self.pool.release(&host.nqn, bytes);
        if bytes > 0 {
            self.touched.append(&mut self.hungry);
        }
    }

    /// Gives a request to the backend, unless its controller has ended.
    pub(super) fn submit(
        &mut self,
        (id, serial): (u16, u64),
        (connection, command): (ConnectionId, u16),
        reserved: usize,
        request: Request,
        backend: &mut dyn Backend,
    ) -> Option<Ticket> {
        let controller = self.controller(id, serial)?;
        controller.running += 1;
        let host = Arc::clone(&controller.host);
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let destination = Destination {
            connection,
            command,
            controller: id,
            host,
            reserved,
            is_orphan: false,
        };
        self.tickets.insert(ticket, destination);
        backend.submit(ticket, request);
        Some(ticket)
    }

    /// Nobody waits for a ticket any more.
    pub(super) fn orphan(&mut self, ticket: Ticket) {
        if let Some(destination) = self.tickets.get_mut(&ticket) {
            destination.is_orphan = true;
        }
    }

    /// The backend is done with a ticket. Whose it is, if somebody still waits.
    pub(super) fn done(&mut self, ticket: Ticket) -> Option<Destination> {
        let destination = self.tickets.remove(&ticket)?;
        if let Some(controller) = self.controllers.get_mut(&destination.controller) {
            controller.running -= 1;
        }
        self.forget(destination.controller);
        if destination.is_orphan {
            self.release(&destination.host, destination.reserved);
            return None;
        }
        Some(destination)
    }

    /// Something happened that hosts may wait for.
    pub(super) fn happened(&mut self, event: Event) {
        if event == Event::Discovery {
            self.generation += 1;
        }
        self.is_everybody = true;
        self.controllers
            .values_mut()
            .for_each(|it| it.happened(event));
    }

    /// Other hosts, or other roles and secrets. Controllers of hosts that have changed end.
    pub(super) fn set_hosts(&mut self, hosts: Vec<Arc<Host>>) {
        self.config.hosts = hosts;
        let hosts = &self.config.hosts;
        let guests = &self.config.guests;
        let is_gone = |it: &&Controller| {
            let is_guest = it.host.number == 0 && it.host.roles == *guests;
            // Who only asks what there is need not be known.
            !it.is_discovery && !is_guest && !hosts.contains(&it.host)
        };
        let gone = self.controllers.values().filter(is_gone);
        let gone: Vec<(u16, u64)> = gone.map(|it| (it.id, it.serial)).collect();
        for (id, serial) in gone {
            self.end_controller(id, serial);
        }
    }

    /// A namespace has another size.
    pub(super) fn set_size(&mut self, namespace: u32, size_bytes: u64) {
        let mut all = self.config.namespaces.iter_mut();
        if let Some(found) = all.find(|it| it.id == namespace) {
            found.size_bytes = size_bytes;
        }
    }

    /// Bytes that are reserved, tickets under way, controllers, listings, fences.
    pub(super) fn counts(&self) -> [usize; 5] {
        let listings = self.controllers.values().map(Controller::listings).sum();
        [
            self.pool.reserved(),
            self.tickets.len(),
            self.controllers.len(),
            listings,
            self.fences.len(),
        ]
    }
}
