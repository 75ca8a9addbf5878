// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client without a stack: every segment is written by hand, numbers relative to the first ones.

use erb_sim_tcp::{Macs, Segment, flags};

use crate::World;
use crate::client::machine::{PORT, SERVER_MAC, machine_ip, machine_mac, server_ip};
use crate::link::Frame;
use crate::scenario::Scenario;
use crate::server::Pair;
use crate::time::MS;

/// The machine that raw clients are on.
pub const RAW_MACHINE: usize = 2;

/// A raw client's connection. Sequence numbers of its methods count from 1 = first byte of payload.
#[derive(Clone, Debug)]
pub struct Raw {
    /// Its first sequence number (the SYN's).
    pub isn: u32,
    /// The server's, once the SYN-ACK came.
    pub peer_isn: u32,
    /// Window field of what it sends.
    pub window: u16,
    /// Its timestamp, if it uses them, and the last one of the server.
    pub ts: Option<(u32, u32)>,
    /// Window scale that it offers.
    pub wscale: Option<u8>,
    /// Whether it offers selective acknowledgements.
    pub sack: bool,
    /// Mark of its socket; see [`crate::profile::Tier::Loopback`].
    pub mark: u32,
    pair: Pair,
    vlan: Option<u16>,
}

impl Raw {
    /// A client on this port; nothing is sent yet.
    #[must_use]
    pub fn new(world: &World, port: u16) -> Self {
        let profile = world.inner.plan.profile;
        Self {
            isn: 1_000,
            peer_isn: 0,
            window: 60_000,
            ts: None,
            wscale: None,
            sack: false,
            mark: 0,
            pair: (
                (server_ip(profile.ipv6), PORT).into(),
                (machine_ip(RAW_MACHINE, profile.ipv6), port).into(),
            ),
            vlan: profile.vlan,
        }
    }

    /// The same client, of another address of the server's.
    #[must_use]
    pub const fn at(mut self, server: std::net::SocketAddr) -> Self {
        self.pair.0 = server;
        self
    }

    /// Addresses: the server's, the client's.
    #[must_use]
    pub const fn pair(&self) -> Pair {
        self.pair
    }

    /// A segment of this client, to be changed before it is sent.
    #[must_use]
    pub fn segment(&self, seq: u32, ack: u32, bits: u16, payload: &[u8]) -> Segment {
        let mut segment = Segment::new(self.pair.1, self.pair.0);
        segment.seq = self.isn.wrapping_add(seq);
        segment.ack = self.peer_isn.wrapping_add(ack);
        segment.flags = bits;
        segment.window = self.window;
        segment.vlan = self.vlan;
        segment.options.ts = self.ts;
        segment.payload = payload.to_vec();
        segment
    }

    /// Sends a segment and waits a millisecond; what came back.
    pub fn send(&self, scenario: &mut Scenario, segment: &Segment) -> Vec<Segment> {
        self.post(scenario, segment);
        scenario.run(MS);
        self.received(scenario)
    }

    /// Sends a segment without waiting.
    pub fn post(&self, scenario: &mut Scenario, segment: &Segment) {
        let macs = Macs {
            src: machine_mac(RAW_MACHINE),
            dst: SERVER_MAC,
        };
        let mut frame = Frame::new(segment.to_frame(macs));
        frame.mark = self.mark;
        scenario.world.inner.send_up(RAW_MACHINE, frame);
    }

    /// Sends payload at `seq` that acknowledges `ack`; what came back within a millisecond.
    pub fn data(
        &self,
        scenario: &mut Scenario,
        seq: u32,
        ack: u32,
        payload: &[u8],
    ) -> Vec<Segment> {
        let segment = self.segment(seq, ack, flags::ACK | flags::PSH, payload);
        self.send(scenario, &segment)
    }

    /// Sends a pure acknowledgement.
    pub fn ack(&self, scenario: &mut Scenario, seq: u32, ack: u32) -> Vec<Segment> {
        let segment = self.segment(seq, ack, flags::ACK, b"");
        self.send(scenario, &segment)
    }

    /// SYN, SYN-ACK, ACK.
    ///
    /// # Panics
    /// If no SYN-ACK comes.
    pub fn connect(&mut self, scenario: &mut Scenario) {
        let mut syn = self.segment(0, 0, flags::SYN, b"");
        syn.ack = 0;
        syn.options.mss = Some(1460);
        syn.options.wscale = self.wscale;
        syn.options.sack_ok = self.sack;
        syn.options.ts = self.ts.map(|(own, _)| (own, 0));
        let answer = self.send(scenario, &syn);
        let answer = answer
            .iter()
            .find(|segment| segment.has(flags::SYN | flags::ACK));
        let answer = answer.expect("a SYN-ACK");
        self.peer_isn = answer.seq;
        self.see(answer);
        self.ack(scenario, 1, 1);
    }

    /// Takes the server's timestamp from a segment, and moves the own clock on.
    pub fn see(&mut self, segment: &Segment) {
        if let (Some((own, _)), Some((theirs, _))) = (self.ts, segment.options.ts) {
            self.ts = Some((own + 1, theirs));
        }
    }

    /// Segments that came for this client since it last looked, oldest first; `seq` and `ack` of
    /// them are absolute, see [`Self::relative`].
    pub fn received(&self, scenario: &mut Scenario) -> Vec<Segment> {
        scenario.world.machines[RAW_MACHINE].take_raw(self.pair.1)
    }

    /// `seq` and `ack` of a segment of the server as this client counts.
    #[must_use]
    pub fn relative(&self, segment: &Segment) -> (u32, u32) {
        (
            segment.seq.wrapping_sub(self.peer_isn),
            segment.ack.wrapping_sub(self.isn),
        )
    }
}
