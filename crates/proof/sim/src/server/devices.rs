// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server's devices: by which a packet comes, by which it leaves, and what it is there.

use std::net::SocketAddr;

use erb_sim_kernel::{Datapath, Packet, Tc, pin};

use crate::client::machine::{PORT, SERVER_MAC, machine_mac, server_ip};
use crate::client::workload::mix;
use crate::fault::Fault;
use crate::link::Frame;
use crate::scenario::key_of;
use crate::server::{Pair, Server};
use crate::time::{MS, Ns};
use erb_wire::layout::Layout;

/// The device on which clients arrive.
pub const IFINDEX: u32 = 7;
/// A second one, boosted as well.
pub const SECOND: u32 = 8;
/// One that is not boosted: no XDP, the TC programs as on every device.
pub const ELSEWHERE: u32 = 9;
/// One that is not boosted and has no link layer, as a tunnel.
pub const BARE: u32 = 10;
/// One above [`IFINDEX`], as a VLAN or a bridge: what leaves by it passes both.
pub const UPPER: u32 = 11;

/// Those that are boosted.
pub(super) const BOOSTED: &[u32] = &[IFINDEX, SECOND];

/// The longest that a connection stays where it began elsewhere.
const ELSEWHERE_FOR_MAX: Ns = 1_000 * MS;

/// By which clients' packets may come, and replies leave, once routes move.
const ARRIVALS: [u32; 4] = [IFINDEX, SECOND, ELSEWHERE, BARE];
const DEPARTURES: [u32; 5] = [IFINDEX, SECOND, ELSEWHERE, BARE, UPPER];

impl Server {
    /// From now on what TCP sends leaves by this device.
    pub fn route_by(&self, ifindex: u32) {
        self.route.set(ifindex);
    }

    /// From now on clients' frames come by this device.
    pub fn arrive_by(&self, ifindex: u32) {
        self.arrival.set(ifindex);
    }

    /// From now on clients' frames bear this source address: another machine hands them on.
    pub fn handed_on_by(&self, address: Option<[u8; 6]>) {
        self.handed_on_by.set(address);
    }

    /// From now on the kernel sends to this address what is for clients.
    pub fn neighbour_is(&self, address: Option<[u8; 6]>) {
        self.neighbour.set(address);
    }

    /// Where the kernel sends what is for a machine.
    pub(super) fn neighbour_of(&self, machine: usize) -> [u8; 6] {
        self.neighbour.get().unwrap_or_else(|| machine_mac(machine))
    }

    /// The frame as it comes from the link.
    pub(super) fn handed_on(&self, frame: &Frame) -> Vec<u8> {
        let mut bytes = frame.bytes.clone();
        if let Some(address) = self.handed_on_by.get() {
            bytes[6..12].copy_from_slice(&address);
        }
        bytes
    }

    /// Who hands requests on drops what comes from its own address: what leaves has to leave as the
    /// kernel's own packets do.
    pub(super) fn check_link(&self, machine: usize, bytes: &[u8]) {
        if bytes[..12] != [self.neighbour_of(machine), SERVER_MAC].concat() {
            self.fail("link", "the kernel sends this elsewhere", bytes);
        }
    }

    /// The device by which a frame comes.
    pub(super) fn arrives_by(&self, frame: &Frame) -> u32 {
        let rate = self.inner.plan.profile.server.route;
        if self.inner.happens(Fault::Route, rate) {
            let next = self.inner.random.borrow_mut().usize(..ARRIVALS.len());
            self.arrival.set(ARRIVALS[next]);
        }
        if self.begins_elsewhere(frame) {
            return ELSEWHERE;
        }
        // Who begins where routes lead by chance is not known for one that ERB does not see.
        if rate > 0 && !self.is_tracked(frame) {
            return IFINDEX;
        }
        self.arrival.get()
    }

    /// Whether the machine has this address.
    pub(super) fn is_own(&self, address: SocketAddr) -> bool {
        address.ip() == server_ip(self.inner.plan.profile.ipv6) || self.is_strangers(address)
    }

    /// A packet for another machine goes on: by a device of this one, whose egress program must leave
    /// it alone.
    pub(super) fn forward(&self, bytes: &[u8]) {
        let Some(path) = self.attached_path() else {
            return;
        };
        let _pinned = pin();
        let mut packet = Packet::sent(bytes, IFINDEX, 0);
        let verdict = path.run_tc_egress(&mut packet);
        self.must_be_left_alone("egress", verdict, &packet, bytes);
    }

    /// Whether the frame is of a connection that begins on a device that is not boosted, by which it
    /// comes for a while.
    fn begins_elsewhere(&self, frame: &Frame) -> bool {
        let rate = u64::from(self.inner.plan.profile.server.elsewhere);
        if rate == 0 || !self.inner.faults.get().has(Fault::Elsewhere) {
            return false;
        }
        let pair = Layout::of(&frame.bytes).map(|at| at.pair(&frame.bytes));
        let Some((client, server)) = pair.filter(|(_, server)| self.is_own(*server)) else {
            return false;
        };
        let draw = mix(self.inner.plan.seed, &[15, u64::from(client.port())]);
        if draw % 1_000_000 >= rate {
            return false;
        }
        let now = self.inner.now();
        let mut begun = self.begun_elsewhere.borrow_mut();
        let first = begun.entry(client).or_insert((now, now));
        if now > first.0 + draw % ELSEWHERE_FOR_MAX {
            return false;
        }
        if !self.is_tracked_pair((server, client)) {
            first.1 = now;
            self.inner.coverage.borrow_mut().fault(Fault::Elsewhere);
        }
        true
    }

    /// When the last frame of a client came by a device that is not boosted, of which ERB knows nothing.
    pub(super) fn was_elsewhere(&self, client: SocketAddr) -> Option<Ns> {
        let begun = self.begun_elsewhere.borrow();
        begun.get(&client).map(|(_, last)| *last)
    }

    /// Whether the frame's connection has an entry.
    fn is_tracked(&self, frame: &Frame) -> bool {
        let pair = Layout::of(&frame.bytes).map(|at| at.pair(&frame.bytes));
        pair.is_some_and(|(client, server)| self.is_tracked_pair((server, client)))
    }

    /// ERB's entry of a client's connection with Redis.
    pub fn entry_of(&self, client: SocketAddr) -> Option<erb_abi::conn> {
        let server = SocketAddr::new(server_ip(self.inner.plan.profile.ipv6), PORT);
        self.attached_path()?
            .conn(&key_of((server, client)))
            .copied()
    }

    fn is_tracked_pair(&self, pair: Pair) -> bool {
        let Some(path) = self.attached_path() else {
            return false;
        };
        let cookie = path.conn(&key_of(pair)).map(|entry| entry.cookie);
        let look = self.host.borrow().lookup(pair.0, pair.1);
        look.is_some_and(|look| cookie == Some(look.cookie))
    }

    /// The device that the route of a packet of the kernel names.
    pub(super) fn leaves_by(&self) -> u32 {
        let rate = self.inner.plan.profile.server.route;
        if self.inner.happens(Fault::Route, rate) {
            let next = self.inner.random.borrow_mut().usize(..DEPARTURES.len());
            self.route.set(DEPARTURES[next]);
        }
        self.route.get()
    }

    /// The egress program on each device that the packet meets.
    pub(super) fn pass_egress(&self, path: &Datapath, packet: &mut Packet) -> Tc {
        let link = Link::strip(packet);
        let verdict = path.run_tc_egress(packet);
        link.restore(packet);
        if verdict != Tc::Next || packet.ifindex != UPPER {
            return verdict;
        }
        packet.ifindex = IFINDEX;
        if self.inner.random.borrow_mut().bool() {
            packet.route = 0; // some upper devices keep the route, some do not
        }
        path.run_tc_egress(packet)
    }
}

/// The link layer's header of a packet on a device that has none.
pub(super) struct Link(Vec<u8>);

impl Link {
    /// Takes it away where there is none.
    pub(super) fn strip(packet: &mut Packet) -> Self {
        let at = Layout::of(packet.bytes()).filter(|_| packet.ifindex == BARE);
        let Some(at) = at else {
            return Self(Vec::new());
        };
        let (link, rest) = packet.bytes().split_at(at.l3);
        let (link, rest) = (link.to_vec(), rest.to_vec());
        *packet = packet.replaced(&rest);
        packet.l3 = 0;
        Self(link)
    }

    /// Puts it back for the world, whose frames all have one.
    pub(super) fn restore(self, packet: &mut Packet) {
        if self.0.is_empty() {
            return;
        }
        let bytes = [&self.0, packet.bytes()].concat();
        let l3 = self.0.len();
        *packet = packet.replaced(&bytes);
        packet.l3 = l3 as u16;
    }
}
