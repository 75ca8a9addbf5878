// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets in the server: from the device through XDP, merging, TC and TCP, and out again.

use std::rc::Rc;

use erb_sim_kernel::{Context, Csum, Datapath, Packet, Tc, Xdp, pin};
use erb_sim_tcp::{Checksum, IcmpError, Macs, Outgoing, Segment};

use crate::client::machine::SERVER_MAC;
use crate::fault::Fault;
use crate::inner::Event;
use crate::link::Frame;
use crate::server::devices::{BOOSTED, Link};
use crate::server::{POLL_FRAMES, Pair, Server, fragments};
use crate::story::Place;
use crate::time::{Ns, US};
use crate::violation::Violation;
use erb_wire::layout::{self, Layout};

/// The longest that a packet waits for the CPU that it was steered to.
const STEERED_LATER_MAX: Ns = 100 * US;

impl Server {
    /// A frame arrives at the device: a poll on the flow's CPU will take it.
    pub fn frame(self: &Rc<Self>, frame: Frame) {
        if !self.powered.get() {
            return;
        }
        let cpu = self.steer(&frame);
        self.inner.tell_frame(Place::Cpu(cpu), "gets", &frame.bytes);
        self.rings.borrow_mut()[cpu].push_back(frame);
        if std::mem::replace(&mut self.polled.borrow_mut()[cpu], true) {
            return;
        }
        let server = self.clone();
        self.cpus
            .spawn(cpu, Context::Softirq, move || server.poll(cpu));
    }

    /// The flow's CPU: by its hash, which now and then is another.
    fn steer(&self, frame: &Frame) -> usize {
        let next = self.steered_next.borrow_mut().pop_front();
        if let Some(cpu) = next.or(self.steered.get()) {
            return cpu;
        }
        let cpus = self.inner.plan.profile.server.cpus;
        let ports = Layout::of(&frame.bytes).map_or((0, 0), |at| at.ports(&frame.bytes));
        let rate = self.inner.plan.profile.server.cpu_change;
        if cpus > 1 && self.inner.happens(Fault::CpuChange, rate) {
            *self.flow_moves.borrow_mut().entry(ports).or_default() += 1;
        }
        let moved = self.flow_moves.borrow().get(&ports).copied().unwrap_or(0);
        let hash = u64::from(ports.0).wrapping_mul(0x9e37_79b9) >> 4;
        usize::try_from((hash + moved) % cpus as u64).unwrap_or(0)
    }

    /// One poll of the device's queue.
    fn poll(self: &Rc<Self>, cpu: usize) {
        let mut merged: Vec<Packet> = Vec::new();
        for _ in 0..POLL_FRAMES {
            let next = self.rings.borrow_mut()[cpu].pop_front();
            let Some(frame) = next else { break };
            if let Some(packet) = self.driver(cpu, &frame) {
                self.merge(&mut merged, packet);
            }
        }
        for packet in merged {
            self.hand_up(cpu, packet);
        }
        let more = !self.rings.borrow()[cpu].is_empty();
        self.polled.borrow_mut()[cpu] = more;
        if more {
            let server = self.clone();
            self.cpus
                .spawn(cpu, Context::Softirq, move || server.poll(cpu));
        }
    }

    /// XDP. Returns what goes up.
    fn driver(&self, cpu: usize, frame: &Frame) -> Option<Packet> {
        let device = self.arrives_by(frame);
        let mut packet = Packet::received(&self.handed_on(frame), self.card, device);
        if frame.bare {
            packet.csum = Csum::Partial;
        }
        self.over_loopback(&mut packet, frame.mark);
        self.note_arrival(packet.bytes());
        let boosted = BOOSTED.contains(&device);
        let path = self.attached_path().filter(|_| self.is_native() && boosted);
        let Some(path) = path else {
            return Some(packet);
        };
        let verdict = path.run_xdp(&mut packet);
        self.wake_for_held(&path);
        self.inner.coverage.borrow_mut().verdict(
            "xdp",
            match verdict {
                Xdp::Drop => 1,
                Xdp::Pass => 2,
                Xdp::Tx => 3,
            },
        );
        match verdict {
            Xdp::Drop => {
                self.inner
                    .tell(Place::Cpu(cpu), None, crate::story::Note::Text("XDP drops"));
                None
            }
            Xdp::Tx => {
                self.inner
                    .tell_frame(Place::Cpu(cpu), "XDP answers", packet.bytes());
                self.wire(Frame::new(packet.bytes().to_vec()));
                None
            }
            Xdp::Pass => Some(packet),
        }
    }

    /// A scenario stops packets behind XDP, or lets them go on.
    pub fn stop_stack(self: &Rc<Self>, stop: bool) {
        if stop {
            self.stack_stopped.borrow_mut().get_or_insert_default();
            return;
        }
        let waiting = self.stack_stopped.borrow_mut().take().unwrap_or_default();
        let server = self.clone();
        self.cpus.spawn(0, Context::Softirq, move || {
            for packet in waiting {
                server.stack(0, packet);
            }
        });
    }

    /// A scenario stops packets behind TCP, or lets them go on.
    pub fn stop_egress(self: &Rc<Self>, stop: bool) {
        if stop {
            self.egress_stopped.borrow_mut().get_or_insert_default();
            return;
        }
        let waiting = self.egress_stopped.borrow_mut().take().unwrap_or_default();
        let server = self.clone();
        self.cpus.spawn(0, Context::Process, move || {
            for out in waiting {
                let pair = (out.segment.src, out.segment.dst);
                server.own(pair);
                server.egress(&out);
                server.disown(pair);
            }
        });
    }

    /// What a scenario has stopped behind XDP, oldest first, as it would go on.
    pub fn stopped_in_stack(&self) -> Vec<Vec<u8>> {
        let stopped = self.stack_stopped.borrow();
        let packets = stopped.iter().flatten();
        packets.map(|packet| packet.bytes().to_vec()).collect()
    }

    /// The oldest packets that a scenario has stopped behind XDP are lost.
    pub fn lose_in_stack(&self, count: usize) {
        if let Some(stopped) = self.stack_stopped.borrow_mut().as_mut() {
            stopped.drain(..count.min(stopped.len()));
        }
    }

    /// The oldest packets that a scenario has stopped behind TCP are lost; how many there were.
    pub fn lose_at_egress(&self, count: usize) -> usize {
        let mut stopped = self.egress_stopped.borrow_mut();
        let Some(stopped) = stopped.as_mut() else {
            return 0;
        };
        let had = stopped.len();
        stopped.drain(..count.min(had));
        had
    }

    /// The next frames arrive on these CPUs, one each.
    pub fn steer_in_turn(&self, cpus: &[usize]) {
        self.steered_next.borrow_mut().extend(cpus);
    }

    /// A scenario decides on which CPU frames arrive.
    pub fn steer_to(&self, cpu: Option<usize>) {
        self.steered.set(cpu);
    }

    /// XDP has passed it. Receive packet steering may take the flow to another CPU, which comes to
    /// it later; its packets stay in order.
    fn hand_up(self: &Rc<Self>, cpu: usize, packet: Packet) {
        let rate = u64::from(self.inner.plan.profile.server.steered);
        let ports = Layout::of(packet.bytes()).map_or((0, 0), |at| at.ports(packet.bytes()));
        let flow = u64::from(ports.0).wrapping_mul(0x9e37_79b9) % 1_000_000;
        if flow >= rate || !self.inner.faults.get().has(Fault::Steered) {
            self.stack(cpu, packet);
            return;
        }
        self.inner.coverage.borrow_mut().fault(Fault::Steered);
        let to = (cpu + 1) % self.inner.plan.profile.server.cpus;
        self.steered_packets.borrow_mut()[to].push_back(packet);
        let later = self.inner.random.borrow_mut().u64(0..STEERED_LATER_MAX);
        self.inner.at(self.inner.now() + later, Event::Steered(to));
    }

    /// The oldest packet that was steered to this CPU is taken.
    pub fn steered_packet(self: &Rc<Self>, cpu: usize) {
        let server = self.clone();
        self.cpus.spawn(cpu, Context::Softirq, move || {
            let packet = server.steered_packets.borrow_mut()[cpu].pop_front();
            if let Some(packet) = packet {
                server.stack(cpu, packet);
            }
        });
    }

    /// A program lets a packet come again by its device: behind XDP, when the program has ended.
    pub(super) fn receive(self: &Rc<Self>, packet: Packet) -> bool {
        let rate = self.inner.plan.profile.server.backlog;
        if self.inner.happens(Fault::Backlog, rate) {
            return false;
        }
        self.inner.coverage.borrow_mut().count("daemon", "injects");
        let (server, cpu) = (self.clone(), self.draw_cpu());
        self.cpus.spawn(cpu, Context::Softirq, move || {
            server.stack(cpu, packet);
        });
        true
    }

    /// What waits goes to the daemon.
    fn wake_for_held(&self, path: &Datapath) {
        if path.held_waiting() > 0 {
            self.wake_daemon();
        }
    }

    /// TC ingress, then TCP.
    fn stack(self: &Rc<Self>, cpu: usize, mut packet: Packet) {
        if let Some(stopped) = self.stack_stopped.borrow_mut().as_mut() {
            stopped.push_back(packet);
            return;
        }
        if self
            .inner
            .happens(Fault::Backlog, self.inner.plan.profile.server.backlog)
        {
            return;
        }
        packet.untag();
        if let Some(path) = self.attached_path() {
            let link = Link::strip(&mut packet);
            let verdict = path.run_tc_ingress(&mut packet);
            self.wake_for_held(&path);
            link.restore(&mut packet);
            let number = if verdict == Tc::Drop { 2 } else { -1 };
            self.inner.coverage.borrow_mut().verdict("ingress", number);
            if verdict == Tc::Drop {
                self.inner
                    .tell(Place::Cpu(cpu), None, crate::story::Note::Text("TC drops"));
                return;
            }
        }
        let mut bytes = packet.tagged();
        self.inner.tell_frame(Place::Cpu(cpu), "goes up", &bytes);
        if self.forgets(&bytes) {
            return;
        }
        match packet.csum {
            Csum::None => {}
            Csum::Unnecessary | Csum::Partial => {
                // TCP does not look at the sum again; a broken partial one would show when sent. In
                // one packet of 65,536 the bare sum is the right one too: the data path may keep it
                // right instead of bare, which nobody behind it can tell apart.
                let Some(at) = Layout::of(&bytes) else {
                    return;
                };
                let right = || layout::is_bare(&bytes, &at) || Segment::parse(&bytes).is_ok();
                if packet.csum == Csum::Partial && !right() {
                    self.fail(
                        "partial-sum",
                        "a bare checksum is not the pseudo-header's",
                        &bytes,
                    );
                }
                layout::seal(&mut bytes, &at);
            }
        }
        if let Some(bytes) = self.reassemble(bytes) {
            self.input(bytes);
        }
    }

    pub(super) fn fail(&self, check: &'static str, text: &str, bytes: &[u8]) {
        let text = format!("{text}: {}", layout::describe(bytes));
        self.inner
            .fail(Violation::new(check, self.inner.now(), text));
    }

    /// Fragments wait for each other; everything else passes.
    fn reassemble(&self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let Some(piece) = fragments::Piece::of(&bytes) else {
            return Some(bytes);
        };
        let mut table = self.fragments.borrow_mut();
        let pieces = table.entry(piece.key.clone()).or_default();
        pieces.retain(|(from, _)| *from != piece.from);
        pieces.push((piece.from, piece.content.to_vec()));
        pieces.sort();
        // Two are made of each packet: the second is the last.
        let whole = pieces.len() == 2 && pieces[0].0 == 0 && pieces[1].0 == pieces[0].1.len();
        if !whole {
            return None;
        }
        let pieces = table.remove(&piece.key)?;
        piece.whole(&bytes, &pieces)
    }

    /// A frame reaches TCP by a way that no program is on.
    pub fn input_unseen(self: &Rc<Self>, bytes: Vec<u8>) {
        self.had_unseen_input.set(true);
        self.input(bytes);
    }

    /// A packet reaches the IP layer: to TCP, or to the backlog of a socket that a process owns.
    fn input(self: &Rc<Self>, bytes: Vec<u8>) {
        let segment = match Segment::parse(&bytes) {
            Ok(segment) => segment,
            Err(_) => {
                self.icmp(&bytes);
                return;
            }
        };
        if !self.is_own(segment.dst) {
            self.forward(&bytes);
            return;
        }
        if self.is_rejected(&segment) {
            return;
        }
        let pair = (segment.dst, segment.src);
        if !self.spin(pair) {
            let mut backlogs = self.backlogs.borrow_mut();
            backlogs.entry(pair).or_default().push_back(bytes);
            return;
        }
        self.input_segment(pair, &segment);
        self.unlock(pair);
    }

    /// An error about one of our segments. Taken by a process, which may wait for the socket.
    fn icmp(self: &Rc<Self>, bytes: &[u8]) {
        let Ok(error) = IcmpError::parse(bytes) else {
            return;
        };
        let server = self.clone();
        let cpu = self.draw_cpu();
        self.cpus.spawn(cpu, Context::Process, move || {
            let pair = (error.src, error.dst);
            server.own(pair);
            server
                .host
                .borrow_mut()
                .input_icmp(server.inner.now(), &error);
            server.send_out(Some(pair));
            server.disown(pair);
        });
    }

    /// The same for a packet of the backlog, lock held.
    pub(super) fn input_locked(self: &Rc<Self>, bytes: &[u8]) {
        if let Ok(segment) = Segment::parse(bytes) {
            self.input_segment((segment.dst, segment.src), &segment);
        }
    }

    fn input_segment(self: &Rc<Self>, pair: Pair, segment: &Segment) {
        let now = self.inner.now();
        let had = self.taken(pair);
        self.host.borrow_mut().input(now, segment);
        self.name_socket(pair);
        self.check_taken(pair, had);
        self.send_out(Some(pair));
    }

    /// Notes which connection of a client a new socket serves.
    fn name_socket(&self, pair: Pair) {
        let look = self.host.borrow().lookup(pair.0, pair.1);
        let Some(look) = look.filter(|look| !look.listen && look.cookie != 0) else {
            return;
        };
        let conn = self.dialled.borrow().get(&pair.1).copied();
        if let Some(id) = look.id {
            self.pairs.borrow_mut().insert(id, pair);
            if let Some(conn) = conn {
                self.served.borrow_mut().entry(id).or_insert(conn);
            }
        }
        if let Some(conn) = conn {
            self.conns.borrow_mut().entry(look.cookie).or_insert(conn);
        }
    }

    /// What TCP has sent passes the egress program and leaves. `owned`: the lock that is held.
    pub(super) fn send_out(self: &Rc<Self>, owned: Option<Pair>) {
        let mut outs = Vec::new();
        {
            let mut host = self.host.borrow_mut();
            while let Some(out) = host.pop_out() {
                outs.push(out);
            }
        }
        self.take_events();
        for out in outs {
            let pair = (out.segment.src, out.segment.dst);
            if owned == Some(pair) {
                self.egress(&out);
            } else {
                self.own(pair);
                self.egress(&out);
                self.disown(pair);
            }
        }
    }

    pub(super) fn egress(&self, out: &Outgoing) {
        if let Some(stopped) = self.egress_stopped.borrow_mut().as_mut() {
            stopped.push_back(out.clone());
            return;
        }
        let Some(machine) = machine_of(&out.segment) else {
            return;
        };
        let macs = Macs {
            src: SERVER_MAC,
            dst: self.neighbour_of(machine),
        };
        let offload = out.gso_size > 0
            || self
                .inner
                .happens(Fault::Offload, self.inner.plan.profile.server.offload);
        let sum = if offload {
            Checksum::Pseudo
        } else {
            Checksum::Full
        };
        let mut bytes = Vec::new();
        out.segment.write_frame(macs, sum, &mut bytes);
        // From here to the device without softirqs of this CPU.
        let _pinned = pin();
        let mut packet = Packet::sent(&bytes, self.leaves_by(), out.cookie);
        if offload {
            packet.csum = Csum::Partial;
        }
        if out.gso_size > 0 {
            let size = out.gso_size as usize;
            packet.gso_segs = u32::try_from(out.segment.payload.len().div_ceil(size)).unwrap_or(1);
        }
        packet.untag(); // a VLAN's device leaves its tag to the one below
        if let Some(path) = self.attached_path() {
            self.cookies.borrow_mut().insert(out.cookie);
            let length = self.hide_length(&mut packet);
            let verdict = self.pass_egress(&path, &mut packet);
            length.restore(&mut packet);
            if path.take_wakes() {
                self.wake_daemon();
            }
            let number = if verdict == Tc::Drop { 2 } else { -1 };
            self.inner.coverage.borrow_mut().verdict("egress", number);
            if verdict == Tc::Drop {
                self.inner
                    .tell_frame(Place::World, "egress drops", packet.bytes());
                return;
            }
        }
        self.leave(&packet, out.gso_size);
    }

    /// The device completes sums, cuts what is too long, and puts it on the wire.
    pub(super) fn leave(&self, packet: &Packet, gso_size: u32) {
        let mut bytes = packet.tagged();
        let Some(at) = Layout::of(&bytes) else {
            self.fail("frame", "something leaves that is no TCP segment", &bytes);
            return;
        };
        if packet.csum == Csum::Partial {
            if !layout::is_bare(&bytes, &at) {
                self.fail(
                    "partial-sum",
                    "a bare checksum is not the pseudo-header's",
                    &bytes,
                );
            }
            layout::seal(&mut bytes, &at);
        }
        self.inner.tell_frame(Place::World, "leaves", &bytes);
        if gso_size == 0 || at.payload_len() <= gso_size as usize {
            self.wire(Frame::new(bytes));
            return;
        }
        let payload = &bytes[at.payload..at.end];
        let pieces = payload.chunks(gso_size as usize);
        let last = pieces.len() - 1;
        for (index, piece) in pieces.enumerate() {
            let skip = u32::try_from(index).unwrap_or(0) * gso_size;
            let mut cut = layout::with_payload(&bytes, &at, skip, piece);
            if index != last {
                // FIN and PSH stay on the last one.
                cut[at.l4 + 13] &= !9;
                let end = Layout {
                    end: cut.len(),
                    ..at
                };
                layout::seal(&mut cut, &end);
            }
            self.wire(Frame::new(cut));
        }
    }

    /// To the machine whose address it carries.
    fn wire(&self, frame: Frame) {
        match Segment::parse(&frame.bytes) {
            Ok(segment) => {
                if segment.vlan != self.inner.plan.profile.vlan {
                    self.fail("tag", "what leaves is not of its VLAN", &frame.bytes);
                }
                if !self.is_own(segment.src) {
                    self.fail("foreign", "an answer for another machine", &frame.bytes);
                }
                if let Some(machine) = machine_of(&segment)
                    && machine < self.inner.down.borrow().len()
                {
                    self.check_link(machine, &frame.bytes);
                    self.inner.send_down(machine, frame);
                }
            }
            Err(why) => {
                self.fail(
                    "frame",
                    &format!("what leaves is wrong ({why})"),
                    &frame.bytes,
                );
            }
        }
    }

    /// Sees to it that Redis runs soon.
    pub fn wake_redis(&self) {
        if self.redis.borrow().is_some() && !self.redis_scheduled.replace(true) {
            let at = (self.inner.now() + self.draw_delay()).max(self.redis_away_until.get());
            self.inner.at(at, Event::RedisTimer);
        }
    }
}

/// The machine to which a segment goes.
fn machine_of(segment: &Segment) -> Option<usize> {
    let last = match segment.dst.ip() {
        std::net::IpAddr::V4(ip) => ip.octets()[3],
        std::net::IpAddr::V6(ip) => ip.octets()[15],
    };
    usize::from(last).checked_sub(2)
}
