// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is sent again: after losses, after a smaller path MTU, and the tail loss probe.

use crate::api::State;
use crate::config::{MS, RTO_MIN};
use crate::core::Core;
use crate::seq;
use crate::sock::{Recovery, Sent, Sock, Xmit};
use erb_wire::{Segment, flags};

impl Sock {
    /// Sends record `at` again, cut to the present MSS, or joined with what follows it.
    /// tcp_retransmit_skb(). Returns whether it left.
    pub(crate) fn send_again(&mut self, core: &mut Core, at: usize) -> bool {
        if self.state == State::SynSent {
            self.sent[0].again = true;
            self.sent[0].again_out = true;
            let seq = self.sent[0].seq;
            self.transmit(core, seq, 0, flags::SYN, 0);
            core.counters.retransmits += 1;
            return true;
        }
        let seq = self.sent[at].seq;
        let edge = self.window_edge();
        if !seq::before(seq, edge) && seq != self.snd_una {
            return false;
        }
        let mss = self.mss_now();
        let room = if seq::before(seq, edge) {
            seq::span(seq, edge)
        } else {
            mss
        };
        self.fit_record(core, at, mss.min(room));
        self.join_records(at, mss.min(room));
        let end = self.sent[at].end;
        let data_end = self.data_end();
        let fin = seq::after(end, data_end);
        let len = seq::span(seq, if fin { data_end } else { end });
        let bits = flags::ACK | if fin { flags::FIN } else { 0 };
        let sent = &mut self.sent[at];
        sent.again = true;
        sent.again_out = true;
        sent.sent_at = core.now;
        core.counters.retransmits += 1;
        self.timing.retrans_stamp.get_or_insert(core.now);
        self.transmit(core, seq, len, bits, mss);
        true
    }

    /// Cuts a record that is longer than `max`, or at a random byte if that is asked for.
    fn fit_record(&mut self, core: &mut Core, at: usize, max: u32) {
        let sent = self.sent[at];
        let fin = u32::from(seq::after(sent.end, self.data_end()));
        let data = seq::span(sent.seq, sent.end) - fin;
        let mut len = data.min(max.max(1));
        if len > 1 && core.rng.u32(..1000) < core.config.split_permille {
            len = core.rng.u32(1..len);
        }
        if len == data {
            return;
        }
        let cut = sent.seq.wrapping_add(len);
        self.sent[at].end = cut;
        self.sent.insert(at + 1, Sent { seq: cut, ..sent });
    }

    /// tcp_retrans_try_collapse(): small neighbours leave as one segment.
    fn join_records(&mut self, at: usize, max: u32) {
        while let Some(next) = self.sent.get(at + 1).copied() {
            let joined = seq::span(self.sent[at].seq, next.end);
            if next.sacked || joined > max || seq::after(next.end, self.data_end()) {
                break;
            }
            self.sent[at].end = next.end;
            self.sent.remove(at + 1);
        }
    }

    /// tcp_xmit_retransmit_queue(): lost records as the congestion window allows.
    pub(crate) fn send_lost(&mut self, core: &mut Core) {
        if self.recovery == Recovery::Open || self.fate.is_some() {
            return;
        }
        let mut in_flight = self.in_flight();
        let mut at = 0;
        while at < self.sent.len() && in_flight < self.cwnd {
            let sent = &self.sent[at];
            if sent.lost && !sent.again_out {
                if !self.send_again(core, at) {
                    break;
                }
                in_flight += 1;
                self.ensure_timer(core);
            }
            at += 1;
        }
    }

    /// tcp_rearm_rto().
    pub(crate) fn rearm(&mut self, core: &Core) {
        self.xmit = match self.sent.is_empty() {
            true => None,
            false => Some((core.now + self.rto_now(), Xmit::Retransmit)),
        };
    }

    pub(crate) fn ensure_timer(&mut self, core: &Core) {
        if !matches!(self.xmit, Some((_, Xmit::Retransmit))) {
            self.rearm(core);
        }
    }

    /// tcp_schedule_loss_probe().
    pub(crate) fn schedule_tail_probe(&mut self, core: &Core) {
        let open = self.recovery == Recovery::Open && !self.sent.iter().any(|s| s.sacked);
        let wanted = core.config.tlp && self.sack_ok && open && self.tail_probe_end.is_none();
        if !wanted || self.timing.srtt == 0 || self.sent.is_empty() {
            return;
        }
        let alone = if self.sent.len() == 1 {
            RTO_MIN
        } else {
            2 * MS
        };
        let pto = (2 * self.timing.srtt + alone).min(self.rto_now());
        self.xmit = Some((core.now + pto, Xmit::TailProbe));
    }

    /// tcp_send_loss_probe(): new data if there are any, else the last record again.
    pub(crate) fn tail_probe(&mut self, core: &mut Core) {
        self.xmit = None;
        if self.sent.is_empty() {
            return;
        }
        core.counters.tail_probes += 1;
        let mss = self.mss_now();
        let data = (self.data_end().wrapping_sub(self.snd_nxt) as i32).max(0) as u32;
        let fits = |len: u32| !seq::after(self.snd_nxt.wrapping_add(len), self.window_edge());
        if data > 0 && fits(data.min(mss)) {
            let before = self.snd_nxt;
            self.wake_peer(core);
            debug_assert!(seq::after(self.snd_nxt, before));
        } else {
            let last = self.sent.len() - 1;
            self.send_again(core, last);
            if let Some(sent) = self.sent.get_mut(last) {
                sent.again_out = false;
            }
        }
        self.tail_probe_end = Some(self.snd_nxt);
        self.rearm(core);
    }

    /// tcp_process_tlp_ack().
    pub(crate) fn tail_probe_done(&mut self, seg: &Segment) {
        if self
            .tail_probe_end
            .is_some_and(|end| !seq::before(seg.ack, end))
        {
            self.tail_probe_end = None;
        }
    }

    /// tcp_enter_loss(): all that is not sacked is lost; a peer that took blocks back is believed.
    pub(crate) fn enter_loss(&mut self) {
        let reneged = self.sent.front().is_some_and(|s| s.sacked);
        if self.recovery != Recovery::Loss || !seq::before(self.snd_una, self.high_seq) {
            self.ssthresh = (self.in_flight() / 2).max(2);
        }
        for sent in &mut self.sent {
            if reneged {
                sent.sacked = false;
            }
            sent.lost = !sent.sacked;
            sent.again_out = false;
        }
        self.cwnd = 1;
        self.cwnd_count = 0;
        self.dup_acks = 0;
        self.recovery = Recovery::Loss;
        self.high_seq = self.snd_nxt;
        self.tail_probe_end = None;
    }

    /// tcp_simple_retransmit(): what no longer fits the path is sent again in smaller pieces.
    pub(crate) fn resend_oversized(&mut self, core: &mut Core) {
        let mss = self.mss_now();
        let mut any = false;
        for sent in &mut self.sent {
            if sent.end.wrapping_sub(sent.seq) > mss && !sent.sacked {
                (sent.lost, sent.again_out) = (true, false);
                any = true;
            }
        }
        if !any {
            return;
        }
        if self.recovery == Recovery::Open {
            self.recovery = Recovery::Loss;
            self.high_seq = self.snd_nxt;
        }
        self.send_lost(core);
    }
}
