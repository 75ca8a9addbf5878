// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients on the server's own machine: one device for both directions, so that each packet passes
//! the egress program and then the ingress program, whoever sent it; sums stay bare, marks stay.

use std::rc::Rc;

use erb_sim_kernel::{Context, Csum, Packet, Tc, pin};
use erb_sim_tcp::Segment;

use crate::link::Frame;
use crate::profile::Tier;
use crate::server::{IFINDEX, Server};
use crate::violation::Violation;
use erb_wire::layout::{self, Layout};

/// Cookie of all sockets of clients: none of the server's.
const CLIENT_COOKIE: u64 = 1 << 40;

/// The length field of an IP header while a program must not know it.
pub(super) struct Length(Option<(usize, [u8; 2])>);

impl Length {
    /// Puts it back.
    pub(super) fn restore(self, packet: &mut Packet) {
        if let Some((at, field)) = self.0 {
            packet.bytes_mut()[at..at + 2].copy_from_slice(&field);
        }
    }
}

impl Server {
    /// A merged packet of more than 64 KB, as `lo` has them, says 0 where its length belongs. Here
    /// all merged ones do.
    pub(super) fn hide_length(&self, packet: &mut Packet) -> Length {
        let at = Layout::of(packet.bytes()).filter(|_| packet.gso_segs > 1);
        let Some(at) = at.filter(|_| self.is_loopback()) else {
            return Length(None);
        };
        let at = at.l3 + if at.v6 { 4 } else { 2 };
        let field = &mut packet.bytes_mut()[at..at + 2];
        let length = [field[0], field[1]];
        field.fill(0);
        Length(Some((at, length)))
    }

    fn is_loopback(&self) -> bool {
        self.inner.plan.profile.server.tier == Tier::Loopback
    }

    /// A client's packet before the ingress program: it has passed the egress program, which must
    /// leave it alone, and its sum was left to a card that is none.
    pub(super) fn over_loopback(&self, packet: &mut Packet, mark: u32) {
        if !self.is_loopback() {
            return;
        }
        packet.mark = mark;
        if packet.csum == Csum::None
            && Segment::parse(packet.bytes()).is_ok()
            && let Some(at) = Layout::of(packet.bytes())
        {
            layout::seal_bare(packet.bytes_mut(), &at);
            packet.csum = Csum::Partial;
        }
        let Some(path) = self.attached_path() else {
            return;
        };
        let mut sent = Packet::sent(packet.bytes(), IFINDEX, CLIENT_COOKIE);
        sent.csum = packet.csum;
        sent.mark = mark;
        let _pinned = pin();
        let verdict = path.run_tc_egress(&mut sent);
        self.must_be_left_alone("egress", verdict, &sent, packet.bytes());
    }

    /// What the server has sent arrives at its own machine: the ingress program must leave it alone.
    pub fn back_over_loopback(self: &Rc<Self>, frame: &Frame) {
        if !self.is_loopback() {
            return;
        }
        let Some(path) = self.attached_path() else {
            return;
        };
        let server = self.clone();
        let bytes = frame.bytes.clone();
        self.cpus.spawn(0, Context::Softirq, move || {
            let mut packet = Packet::received(&bytes, server.card, IFINDEX);
            if let Some(at) = Layout::of(&bytes) {
                layout::seal_bare(packet.bytes_mut(), &at);
                packet.csum = Csum::Partial;
            }
            let before = packet.bytes().to_vec();
            let verdict = path.run_tc_ingress(&mut packet);
            server.must_be_left_alone("ingress", verdict, &packet, &before);
        });
    }

    pub(super) fn must_be_left_alone(
        &self,
        program: &str,
        verdict: Tc,
        packet: &Packet,
        before: &[u8],
    ) {
        if verdict == Tc::Next && packet.bytes() == before {
            return;
        }
        let what = layout::describe(before);
        let text = format!("the {program} program took a packet that is not for it: {what}");
        self.inner
            .fail(Violation::new("left-alone", self.inner.now(), text));
    }
}
