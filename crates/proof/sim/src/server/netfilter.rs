// SPDX-License-Identifier: Apache-2.0 OR MIT
//! netfilter in the server: a rule that answers what comes for Redis by resets.

use erb_sim_kernel::Context;
use erb_sim_tcp::{Outgoing, Segment, flags};

use super::Server;
use crate::client::machine::PORT;

impl Server {
    /// `-p tcp --dport 6379 -j REJECT --reject-with tcp-reset` behind TC ingress, or no longer.
    pub fn reject(&self, on: bool) {
        self.rejects.set(on);
    }

    /// Whether the rule has taken a segment. Its reset is of no socket: nf_send_reset().
    pub(super) fn is_rejected(self: &std::rc::Rc<Self>, segment: &Segment) -> bool {
        if !self.rejects.get() || segment.dst.port() != PORT {
            return false;
        }
        if segment.has(flags::RST) {
            return true;
        }
        let mut reset = Segment::new(segment.dst, segment.src);
        reset.vlan = segment.vlan;
        reset.flags = flags::RST;
        if segment.has(flags::ACK) {
            reset.seq = segment.ack;
        } else {
            reset.flags |= flags::ACK;
            reset.ack = segment.end_seq();
        }
        let out = Outgoing {
            segment: reset,
            cookie: 0,
            gso_size: 0,
        };
        let server = self.clone();
        self.cpus
            .spawn(0, Context::Softirq, move || server.egress(&out));
        true
    }
}
