// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A segment for a connection: tcp_validate_incoming() and tcp_rcv_state_process().

use crate::ack::Acked;
use crate::api::{EventKind, State};
use crate::config::ATO_MIN;
use crate::core::Core;
use crate::seq;
use crate::sock::{Sock, Xmit};
use erb_wire::{Segment, flags};

impl Sock {
    /// Takes a segment that the table has found to be for this connection.
    pub(crate) fn input(&mut self, core: &mut Core, seg: &Segment) {
        if self.state == State::SynSent {
            return self.input_syn_sent(core, seg);
        }
        if !seg.has(flags::ACK) && !seg.has(flags::RST) && !seg.has(flags::SYN) {
            return;
        }
        if !self.validate(core, seg) || !seg.has(flags::ACK) {
            return;
        }
        if self.ack(core, seg) == Acked::Bad {
            return;
        }
        if self.fin_is_acked() && !self.closing_step(core, seg) {
            return;
        }
        if self.data_after_close(core, seg) {
            return;
        }
        self.urgent_check(seg);
        if !matches!(
            self.state,
            State::CloseWait | State::Closing | State::LastAck
        ) || seq::before(seg.seq, self.rcv_nxt)
        {
            self.data_queue(core, seg);
        }
        if self.fate.is_none() {
            self.push(core);
            self.ack_snd_check(core);
        }
    }

    /// tcp_validate_incoming(): whether the segment may be looked at further.
    fn validate(&mut self, core: &mut Core, seg: &Segment) -> bool {
        let rst = seg.has(flags::RST);
        if let Some((tsval, _)) = seg.options.ts.filter(|_| self.tstamp_ok && !rst) {
            if !self.paws_ok(core, tsval, 1) && !self.disordered_ack(core, seg, tsval) {
                core.counters.paws_drops += 1;
                self.refuse(core, seg);
                return false;
            }
        }
        if !self.in_window(seg) {
            core.counters.out_of_window += 1;
            if !rst {
                self.refuse(core, seg);
            } else if self.reset_after_fin(seg) {
                self.peer_reset(core);
            }
            return false;
        }
        if rst {
            let right_most = self.sacks.iter().map(|s| s.1).reduce(seq::max);
            if seg.seq == self.rcv_nxt || self.reset_after_fin(seg) || right_most == Some(seg.seq) {
                self.peer_reset(core);
            } else {
                self.challenge(core); // RFC 5961 3.2
            }
            return false;
        }
        if seg.has(flags::SYN) {
            self.challenge(core); // RFC 5961 4.2
            return false;
        }
        true
    }

    /// tcp_sequence() as of Linux 6.18.
    fn in_window(&self, seg: &Segment) -> bool {
        let end = seg.end_seq();
        if seq::before(end, self.rcv_wup) {
            return false;
        }
        let limit = self.rcv_nxt.wrapping_add(self.receive_window());
        let fin = u32::from(seg.has(flags::FIN));
        if !seq::after(end.wrapping_sub(fin), limit) {
            return true;
        }
        !seq::after(seg.seq, limit) && self.readable.is_empty()
    }

    /// The peer has sent its FIN and resets from below it: tcp_reset_check().
    fn reset_after_fin(&self, seg: &Segment) -> bool {
        seg.seq == self.rcv_nxt.wrapping_sub(1)
            && matches!(
                self.state,
                State::CloseWait | State::LastAck | State::Closing
            )
    }

    /// Answers a segment that is not acceptable: tcp_send_dupack() or a challenge for a SYN.
    fn refuse(&mut self, core: &mut Core, seg: &Segment) {
        if seg.has(flags::SYN) {
            return self.challenge(core);
        }
        let mut last = self.last_oow_ack;
        let silent = core.rate_limited(seg, &mut last);
        self.last_oow_ack = last;
        if silent {
            return;
        }
        let end = seg.end_seq();
        if end != seg.seq && seq::before(seg.seq, self.rcv_nxt) {
            self.enter_quickack();
            if self.sack_ok && core.config.dsack {
                self.dsack = Some((seg.seq, seq::min(end, self.rcv_nxt)));
            }
        }
        self.send_ack(core);
    }

    /// tcp_reset().
    pub(crate) fn peer_reset(&mut self, core: &mut Core) {
        if !self.dead {
            core.event(self.id, EventKind::Reset);
        }
        self.done();
    }

    fn fin_is_acked(&self) -> bool {
        self.fin_queued && self.snd_una == self.write_seq
    }

    /// The own FIN was acknowledged. Returns whether the segment is of further use.
    fn closing_step(&mut self, core: &mut Core, seg: &Segment) -> bool {
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if !self.dead {
                    return true;
                }
                if self.data_after_close(core, seg) {
                    return false;
                }
                if seg.has(flags::FIN) {
                    self.keepalive_at = Some(core.now + core.config.fin_timeout_ns);
                    return true;
                }
                self.time_wait(State::FinWait2, core.config.fin_timeout_ns);
                false
            }
            State::Closing => {
                self.time_wait(State::TimeWait, core.config.time_wait_ns);
                false
            }
            State::LastAck => {
                self.done();
                false
            }
            _ => true,
        }
    }

    /// New data for an owner that has closed: the connection is reset (RFC 1122 4.2.2.13).
    fn data_after_close(&mut self, core: &mut Core, seg: &Segment) -> bool {
        let data_end = seg.seq.wrapping_add(seg.payload.len() as u32);
        let closed = self.dead && matches!(self.state, State::FinWait1 | State::FinWait2);
        if !closed || seg.payload.is_empty() || !seq::after(data_end, self.rcv_nxt) {
            return false;
        }
        core.reset_for(seg);
        self.done();
        true
    }

    /// tcp_rcv_synsent_state_process(), without simultaneous open.
    fn input_syn_sent(&mut self, core: &mut Core, seg: &Segment) {
        if seg.has(flags::ACK) {
            if !seq::after(seg.ack, self.snd_una) || seq::after(seg.ack, self.snd_nxt) {
                if self.timing.retransmits == 0 {
                    self.xmit = Some((core.now + ATO_MIN, Xmit::Retransmit));
                }
                return core.reset_for(seg);
            }
            if seg.has(flags::RST) {
                return self.peer_reset(core);
            }
        }
        if !seg.has(flags::SYN | flags::ACK) {
            return;
        }
        self.snd_wl1 = seg.seq;
        self.rcv_nxt = seg.seq.wrapping_add(1);
        self.rcv_wup = self.rcv_nxt;
        self.copied_seq = self.rcv_nxt;
        self.negotiate(core, &seg.options);
        let scale = std::mem::take(&mut self.snd_wscale); // a SYN's window is not scaled
        self.ack(core, seg);
        self.snd_wscale = scale;
        self.max_window = self.snd_wnd;
        self.timing.retrans_stamp = None;
        self.state = State::Established;
        self.lrcvtime = core.now;
        self.start_keepalive(core);
        core.event(self.id, EventKind::Connected);
        self.send_ack(core);
        if !seg.payload.is_empty() {
            self.data_queue(
                core,
                &Segment {
                    seq: self.rcv_nxt,
                    ..seg.clone()
                },
            );
        }
        self.push(core);
    }
}
