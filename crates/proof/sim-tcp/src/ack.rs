// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Acknowledgements: tcp_ack() and what follows from it.

use crate::api::EventKind;
use crate::config::{CWND_INIT, DUP_THRESHOLD, PAWS_WRAP, RTO_MAX, RTO_MIN, SEC};
use crate::core::Core;
use crate::sock::{Recovery, Sock, Xmit};
use crate::{Ns, seq};
use erb_wire::Segment;

/// What tcp_ack() says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acked {
    /// In range.
    Good,
    /// Below snd_una, but not by much: data count, nothing else does.
    Old,
    /// The segment is discarded; a challenge was sent.
    Bad,
}

impl Sock {
    pub(crate) fn window_of(&self, seg: &Segment) -> u32 {
        u32::from(seg.window) << self.snd_wscale
    }

    fn window_is_news(&self, seg: &Segment) -> bool {
        let window = self.window_of(seg);
        seq::after(seg.ack, self.snd_una)
            || seq::after(seg.seq, self.snd_wl1)
            || (seg.seq == self.snd_wl1 && (window > self.snd_wnd || window == 0))
    }

    /// tcp_ack(). RFC 5961 5.2: what acknowledges more than was ever in flight below snd_una is a
    /// forgery; the bound is min(max_window, bytes_acked).
    pub(crate) fn ack(&mut self, core: &mut Core, seg: &Segment) -> Acked {
        let before_una = self.snd_una;
        if seq::before(seg.ack, before_una) {
            let bound = u64::from(self.max_window).min(self.bytes_acked) as u32;
            if seq::before(seg.ack, before_una.wrapping_sub(bound)) {
                core.counters.too_old_acks += 1;
                self.challenge(core);
                return Acked::Bad;
            }
            core.counters.old_acks += 1;
            if self.tag_sacks(core, seg) {
                self.find_losses(core, seg, false);
                self.send_lost(core);
            }
            return Acked::Old;
        }
        if seq::after(seg.ack, self.snd_nxt) {
            core.counters.unsent_acks += 1;
            self.challenge(core);
            return Acked::Bad;
        }
        let advanced = seg.ack != before_una;
        if advanced {
            self.timing.retransmits = 0;
        }
        self.replace_ts_recent(core, seg);
        let news = self.update_window(seg);
        let sacked = self.tag_sacks(core, seg);
        self.timing.probes_out = 0;
        self.rcv_tstamp = core.now;
        if self.sent.is_empty() {
            self.ack_probe(core);
            return Acked::Good;
        }
        let in_flight = self.in_flight();
        self.clean_sent(core, seg);
        let duplicate = !advanced && seg.payload.is_empty() && seg.seq_len() == 0 && !news;
        if !advanced && duplicate && !sacked && !self.sack_ok {
            self.dup_acks += 1;
        }
        if advanced {
            self.dup_acks = 0;
        }
        self.tail_probe_done(seg);
        self.find_losses(core, seg, advanced);
        if advanced {
            self.grow_cwnd(in_flight);
        }
        if advanced || sacked {
            self.rearm(core);
        }
        self.send_lost(core);
        Acked::Good
    }

    /// tcp_ack_update_window(). Returns whether the window changed.
    fn update_window(&mut self, seg: &Segment) -> bool {
        let mut news = false;
        if self.window_is_news(seg) {
            self.snd_wl1 = seg.seq;
            let window = self.window_of(seg);
            news = window != self.snd_wnd;
            self.snd_wnd = window;
            self.max_window = self.max_window.max(window);
        }
        let advanced = seq::span(self.snd_una, seg.ack);
        self.bytes_acked += u64::from(advanced);
        self.snd_una = seg.ack;
        news
    }

    /// tcp_replace_ts_recent(): RFC 7323 4.3 with the kernel's guard against old duplicates.
    pub(crate) fn replace_ts_recent(&mut self, core: &Core, seg: &Segment) {
        let Some((val, _)) = seg.options.ts.filter(|_| self.tstamp_ok) else {
            return;
        };
        if !seq::after(seg.seq, self.rcv_wup) && self.paws_ok(core, val, 0) {
            self.ts_recent = val;
            self.ts_recent_at = core.now;
        }
    }

    /// tcp_paws_check().
    pub(crate) fn paws_ok(&self, core: &Core, tsval: u32, window: i32) -> bool {
        self.ts_recent.wrapping_sub(tsval) as i32 <= window
            || core.now / SEC - self.ts_recent_at / SEC >= PAWS_WRAP / SEC
            || self.ts_recent == 0
    }

    /// tcp_disordered_ack(): an old pure ACK that says nothing is let through.
    pub(crate) fn disordered_ack(&self, core: &Core, seg: &Segment, tsval: u32) -> bool {
        let unit = if core.config.ts_usec { 1000 } else { 1_000_000 };
        seg.payload.is_empty()
            && seg.seq_len() == 0
            && seg.seq == self.rcv_nxt
            && seg.ack == self.snd_una
            && !self.window_is_news(seg)
            && self.ts_recent.wrapping_sub(tsval) as i32 <= (self.rto / unit) as i32
    }

    /// Takes acknowledged records and bytes off, and measures.
    fn clean_sent(&mut self, core: &mut Core, seg: &Segment) {
        let mut sample = None;
        let mut again = false;
        while let Some(head) = self.sent.front_mut() {
            if seq::after(head.end, self.snd_una) {
                if seq::after(self.snd_una, head.seq) {
                    head.seq = self.snd_una;
                }
                break;
            }
            again |= head.again;
            sample = Some(core.now - head.sent_at);
            self.sent.pop_front();
        }
        let data_to = seq::min(self.snd_una, self.data_end());
        if seq::after(data_to, self.data_first) {
            self.unacked
                .drain(..seq::span(self.data_first, data_to) as usize);
            self.data_first = data_to;
            if self.blocked && self.send_room(core) > 0 {
                self.blocked = false;
                core.event(self.id, EventKind::Writable);
            }
        }
        if sample.is_none() {
            return;
        }
        match seg.options.ts.filter(|t| self.tstamp_ok && t.1 != 0) {
            _ if !again => self.measure(sample.unwrap_or(0)),
            Some((_, echo)) => {
                let unit = if core.config.ts_usec { 1000 } else { 1_000_000 };
                let ticks = core
                    .ts_clock()
                    .wrapping_add(self.tsoffset)
                    .wrapping_sub(echo) as i32;
                if ticks >= 0 {
                    self.measure((ticks as u64).max(1) * unit);
                }
            }
            None => {}
        }
        if !again || self.tstamp_ok {
            self.timing.backoff = 0;
        }
    }

    /// RFC 6298 with Linux's floor under the variance.
    pub(crate) fn measure(&mut self, rtt: Ns) {
        let rtt = rtt.max(1);
        if self.timing.srtt == 0 {
            self.timing.srtt = rtt;
            self.timing.rttvar = rtt / 2;
        } else {
            self.timing.rttvar =
                self.timing.rttvar - self.timing.rttvar / 4 + self.timing.srtt.abs_diff(rtt) / 4;
            self.timing.srtt = self.timing.srtt - self.timing.srtt / 8 + rtt / 8;
        }
        self.timing.backoff = 0;
        self.rto = (self.timing.srtt + (4 * self.timing.rttvar).max(RTO_MIN)).min(RTO_MAX);
    }

    /// tcp_ack_probe(): a window that opened ends the probing.
    fn ack_probe(&mut self, core: &Core) {
        let Some(len) = self.next_len() else {
            self.xmit = None;
            return;
        };
        if !seq::after(self.snd_nxt.wrapping_add(len), self.window_edge()) {
            self.timing.backoff = 0;
            self.timing.probes_since = None;
            self.xmit = None;
        } else {
            let at = core.now + self.probe_interval();
            self.xmit = Some((at, Xmit::WindowProbe));
        }
    }

    /// Marks what the peer holds. Returns whether it said anything new.
    fn tag_sacks(&mut self, _core: &mut Core, seg: &Segment) -> bool {
        if !self.sack_ok || self.sent.is_empty() {
            return false;
        }
        let mut news = false;
        for &(first, end) in seg.options.sack.as_slice() {
            let sane = seq::after(end, first)
                && !seq::before(first, self.snd_una)
                && !seq::after(end, self.snd_nxt);
            if !sane {
                continue; // a D-SACK, or nonsense
            }
            for sent in self.sent.iter_mut() {
                let inside = !seq::before(sent.seq, first) && !seq::after(sent.end, end);
                if inside && !sent.sacked {
                    sent.sacked = true;
                    sent.lost = false;
                    sent.again_out = false;
                    news = true;
                }
            }
        }
        news
    }

    /// Segments believed to be on their way.
    pub(crate) fn in_flight(&self) -> u32 {
        let out = self
            .sent
            .iter()
            .filter(|s| !s.sacked && (!s.lost || s.again_out))
            .count() as u32;
        if self.sack_ok {
            out
        } else {
            out.saturating_sub(self.dup_acks)
        }
    }

    /// RFC 6675 and NewReno: which records are lost, and whether recovery begins or ends.
    fn find_losses(&mut self, core: &mut Core, seg: &Segment, advanced: bool) {
        if self.recovery != Recovery::Open && !seq::before(self.snd_una, self.high_seq) {
            if self.recovery == Recovery::Fast {
                self.cwnd = self.ssthresh.max(2);
            }
            self.recovery = Recovery::Open;
            self.dup_acks = 0;
            for sent in &mut self.sent {
                (sent.lost, sent.again_out) = (false, false);
            }
        }
        let mut lost = false;
        if self.sack_ok {
            let mut above = 0;
            for sent in self.sent.iter_mut().rev() {
                above += u32::from(sent.sacked);
                if !sent.sacked && !sent.lost && above >= DUP_THRESHOLD {
                    sent.lost = true;
                    lost = true;
                }
            }
        } else if self.dup_acks >= DUP_THRESHOLD || (self.recovery == Recovery::Fast && advanced) {
            if let Some(head) = self.sent.front_mut().filter(|s| !s.lost) {
                head.lost = true;
                lost = true;
            }
        }
        debug_assert!(!seq::before(self.snd_una, seg.ack) || !advanced);
        if lost && self.recovery == Recovery::Open {
            core.counters.fast_recoveries += 1;
            self.recovery = Recovery::Fast;
            self.high_seq = self.snd_nxt;
            self.ssthresh = (self.cwnd / 2).max(2);
            self.cwnd = self.ssthresh;
        }
    }

    /// Slow start, then one segment per window; only when the window was used.
    fn grow_cwnd(&mut self, in_flight: u32) {
        if self.recovery == Recovery::Fast || in_flight + 1 < self.cwnd.min(CWND_INIT) {
            return;
        }
        if self.cwnd < self.ssthresh {
            self.cwnd = self.cwnd.saturating_add(1);
            return;
        }
        self.cwnd_count += 1;
        if self.cwnd_count >= self.cwnd {
            self.cwnd_count = 0;
            self.cwnd += 1;
        }
    }
}
