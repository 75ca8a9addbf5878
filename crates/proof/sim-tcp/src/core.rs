// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all sockets of a stack share: time of the call, knobs, randomness, queues to the caller.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::api::{Counters, Event, EventKind, Outgoing, SockId};
use crate::host::Host;
use crate::{Config, Ns};
use erb_wire::{Options, Segment, flags};

pub(crate) struct Core {
    pub(crate) now: Ns,
    pub(crate) config: Config,
    pub(crate) rng: fastrand::Rng,
    pub(crate) out: VecDeque<Outgoing>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
}

impl Core {
    pub(crate) fn new(config: Config, seed: u64) -> Core {
        Core {
            now: 0,
            config,
            rng: fastrand::Rng::with_seed(seed),
            out: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn event(&mut self, id: SockId, kind: EventKind) {
        self.events.push_back(Event { id, kind });
    }

    pub(crate) fn emit(&mut self, mut segment: Segment, cookie: u64, gso_size: u32) {
        segment.vlan = self.config.vlan;
        self.counters.segments_out += 1;
        self.out.push_back(Outgoing {
            segment,
            cookie,
            gso_size,
        });
    }

    /// The clock of the timestamp option, without a socket's offset.
    pub(crate) fn ts_clock(&self) -> u32 {
        (self.now / if self.config.ts_usec { 1000 } else { 1_000_000 }) as u32
    }

    pub(crate) fn draw_isn(&mut self) -> u32 {
        self.config.isn.unwrap_or_else(|| self.rng.u32(..))
    }

    /// A reset for a segment that belongs to no socket: tcp_v4_send_reset().
    pub(crate) fn reset_for(&mut self, seg: &Segment) {
        if seg.has(flags::RST) {
            return;
        }
        let mut rst = Segment::new(seg.dst, seg.src);
        rst.flags = flags::RST;
        if seg.has(flags::ACK) {
            rst.seq = seg.ack;
        } else {
            rst.flags |= flags::ACK;
            rst.ack = seg.end_seq();
        }
        self.counters.resets_sent += 1;
        self.emit(rst, Host::CONTROL_COOKIE, 0);
    }

    /// A bare acknowledgement that no full socket sends: tcp_v4_send_ack().
    pub(crate) fn control_ack(
        &mut self,
        (local, remote): (SocketAddr, SocketAddr),
        (seq, ack, window): (u32, u32, u16),
        ts: Option<(u32, u32)>,
    ) {
        let mut seg = Segment::new(local, remote);
        (seg.seq, seg.ack, seg.window) = (seq, ack, window);
        seg.flags = flags::ACK;
        seg.options = Options {
            ts,
            ..Options::default()
        };
        self.emit(seg, Host::CONTROL_COOKIE, 0);
    }

    /// tcp_oow_rate_limited(): whether the answer must be left out. Data are always answered.
    pub(crate) fn rate_limited(&self, seg: &Segment, last: &mut Option<Ns>) -> bool {
        if !seg.payload.is_empty() && !seg.has(flags::SYN) {
            return false;
        }
        self.limited(last)
    }

    pub(crate) fn limited(&self, last: &mut Option<Ns>) -> bool {
        if last.is_some_and(|at| self.now - at < crate::config::INVALID_RATELIMIT) {
            return true;
        }
        *last = Some(self.now);
        false
    }
}
