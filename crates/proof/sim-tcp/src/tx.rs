// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What leaves: new data under Nagle, both windows and the offload; acknowledgements; probes.

use crate::api::State;
use crate::config::ATO_MIN;
use crate::core::Core;
use crate::seq;
use crate::sock::{Sent, Sock, Xmit};
use erb_wire::{Options, Segment, flags};

impl Sock {
    /// Right edge of what the peer takes.
    pub(crate) fn window_edge(&self) -> u32 {
        self.snd_una.wrapping_add(self.snd_wnd)
    }

    /// tcp_current_mss(): SACK blocks take their room.
    pub(crate) fn mss_now(&self) -> u32 {
        let blocks = self.sack_blocks();
        self.mss_cache - if blocks > 0 { 4 + 8 * blocks } else { 0 }
    }

    pub(crate) fn send_room(&self, core: &Core) -> usize {
        (core.config.snd_buf as usize).saturating_sub(self.unacked.len())
    }

    /// Sequence length of the next new segment if all is sent that may go into one.
    pub(crate) fn next_len(&self) -> Option<u32> {
        let left = self.write_seq.wrapping_sub(self.snd_nxt);
        (left > 0).then(|| left.min(self.mss_now()))
    }

    /// Builds and sends a segment of `len` bytes of payload from `seq` on. Every acknowledgement
    /// that is owed goes with it.
    pub(crate) fn transmit(&mut self, core: &mut Core, seq: u32, len: u32, bits: u16, gso: u32) {
        let syn = bits & flags::SYN != 0;
        let mut seg = Segment::new(self.local, self.remote);
        seg.seq = seq;
        seg.flags = bits;
        seg.options = self.options(core, syn);
        if len > 0 {
            let from = seq::span(self.data_first, seq) as usize;
            seg.payload
                .extend(self.unacked.range(from..from + len as usize));
            if seq.wrapping_add(len) == self.data_end() {
                seg.flags |= flags::PSH;
            }
            if core.now - self.lrcvtime < self.owed.ato.max(ATO_MIN) {
                self.owed.pingpong = true; // an answer: the conversation is interactive
            }
        }
        if syn {
            let window = core.config.rcv_buf.min(65535);
            self.rcv_wnd = window;
            seg.window = window as u16;
        } else {
            seg.window = self.select_window(core);
        }
        if bits & flags::ACK != 0 {
            seg.ack = self.rcv_nxt;
            self.ack_sent();
        }
        let gso = if len > gso { gso } else { 0 };
        core.emit(seg, self.cookie, gso);
    }

    /// tcp_event_ack_sent().
    fn ack_sent(&mut self) {
        if self.owed.quick > 0 && self.owed.ack_scheduled {
            self.owed.quick -= 1;
            self.owed.ato = ATO_MIN;
        }
        self.owed.ack_scheduled = false;
        self.owed.ack_now = false;
        self.owed.ack_pushed = 0;
        self.delack_at = None;
    }

    fn options(&mut self, core: &mut Core, syn: bool) -> Options {
        let mut options = Options::default();
        let tsval = core.ts_clock().wrapping_add(self.tsoffset);
        if syn {
            options.mss = Some(core.announced_mss(self.local.is_ipv4()));
            options.wscale = core.config.wscale;
            options.sack_ok = core.config.sack;
            options.ts = core.config.timestamps.then_some((tsval, self.ts_recent));
            return options;
        }
        if self.tstamp_ok {
            debug_assert!(
                self.last_tsval.is_none_or(|last| !seq::before(tsval, last)),
                "K9: TSval {tsval} after {:?}",
                self.last_tsval
            );
            self.last_tsval = Some(tsval);
            options.ts = Some((tsval, self.ts_recent));
        }
        options.sack = self.take_sack_blocks(core);
        options
    }

    /// tcp_send_ack().
    pub(crate) fn send_ack(&mut self, core: &mut Core) {
        self.owed.ack_scheduled = true;
        let seq = self.acceptable_seq();
        self.transmit(core, seq, 0, flags::ACK, 0);
    }

    /// tcp_acceptable_seq(): not above the peer's window, if it shrank it.
    fn acceptable_seq(&self) -> u32 {
        seq::min(self.snd_nxt, self.window_edge())
    }

    /// tcp_send_challenge_ack(), RFC 5961.
    pub(crate) fn challenge(&mut self, core: &mut Core) {
        if core.limited(&mut self.last_oow_ack) {
            return;
        }
        core.counters.challenge_acks += 1;
        self.send_ack(core);
    }

    /// tcp_send_active_reset().
    pub(crate) fn send_reset(&mut self, core: &mut Core) {
        let seq = self.acceptable_seq();
        core.counters.resets_sent += 1;
        self.transmit(core, seq, 0, flags::RST | flags::ACK, 0);
    }

    /// tcp_push_pending_frames() and tcp_check_probe_timer().
    pub(crate) fn push(&mut self, core: &mut Core) {
        if self.fate.is_some() || self.state == State::Close || self.state == State::SynSent {
            return;
        }
        self.write_new(core);
        if self.sent.is_empty() && self.write_seq != self.snd_nxt && self.xmit.is_none() {
            self.timing.probes_since.get_or_insert(core.now);
            self.xmit = Some((core.now + self.probe_interval(), Xmit::WindowProbe));
        }
    }

    /// tcp_write_xmit(): new segments as both windows allow.
    fn write_new(&mut self, core: &mut Core) {
        let mut quota = self.cwnd.saturating_sub(self.in_flight());
        let mut any = false;
        while quota > 0 {
            let segments = quota.min(core.config.gso_segs.max(1));
            let Some((len, fin)) = self.next_new(core, segments) else {
                break;
            };
            let mss = self.mss_now();
            self.send_new(core, len, fin, mss);
            quota = quota.saturating_sub(len.div_ceil(mss).max(1));
            any = true;
        }
        if any && !matches!(self.xmit, Some((_, Xmit::Retransmit | Xmit::TailProbe))) {
            self.rearm(core);
        }
        if any {
            self.schedule_tail_probe(core);
        }
    }

    /// How many bytes go next, and whether the FIN goes with them.
    fn next_new(&mut self, core: &mut Core, segments: u32) -> Option<(u32, bool)> {
        let mss = self.mss_now();
        let data = self.data_end().wrapping_sub(self.snd_nxt) as i32;
        let data = data.max(0) as u32; // the FIN itself lies above the data
        let left = self.write_seq.wrapping_sub(self.snd_nxt);
        if left == 0 {
            return None;
        }
        let edge = self.window_edge();
        let room = if seq::before(self.snd_nxt, edge) {
            seq::span(self.snd_nxt, edge)
        } else {
            0
        };
        if left.min(mss) > room {
            return None; // sender's side of silly window avoidance: the probe timer breaks it
        }
        let mut len = data.min(mss * segments).min(room);
        if len < data && len > mss {
            len -= len % mss;
        }
        if len < mss && len == data && !self.fin_queued && self.nagle_waits(core) {
            return None;
        }
        if len > 1 && core.rng.u32(..1000) < core.config.split_permille {
            len = core.rng.u32(1..len);
        }
        let fin = self.fin_queued && len == data && len < room;
        (len > 0 || fin).then_some((len, fin))
    }

    /// tcp_nagle_check() with Minshall's variant: one small segment may be in flight.
    fn nagle_waits(&self, core: &Core) -> bool {
        let small_out =
            seq::after(self.snd_sml, self.snd_una) && !seq::after(self.snd_sml, self.snd_nxt);
        core.config.nagle && !self.sent.is_empty() && small_out
    }

    fn send_new(&mut self, core: &mut Core, len: u32, fin: bool, mss: u32) {
        let seq = self.snd_nxt;
        let bits = flags::ACK | if fin { flags::FIN } else { 0 };
        self.transmit(core, seq, len, bits, mss);
        let end = seq.wrapping_add(len + u32::from(fin));
        self.record_sent(core, end, mss);
        if len < mss {
            self.snd_sml = end;
        }
    }

    /// Records new segments up to `end`, one per `mss` bytes.
    pub(crate) fn record_sent(&mut self, core: &Core, end: u32, mss: u32) {
        while self.snd_nxt != end {
            let left = end.wrapping_sub(self.snd_nxt);
            // A FIN rides on its data: a remainder of one byte above a full segment may be it.
            let take = if left == mss + 1 && self.fin_queued && end == self.write_seq {
                left
            } else {
                left.min(mss)
            };
            let to = self.snd_nxt.wrapping_add(take);
            self.sent.push_back(Sent {
                seq: self.snd_nxt,
                end: to,
                sent_at: core.now,
                sacked: false,
                lost: false,
                again: false,
                again_out: false,
            });
            self.snd_nxt = to;
        }
    }

    /// tcp_write_wakeup(): the next data as far as the window goes, else an empty segment below
    /// snd_una that the peer must answer. Returns whether data were sent.
    pub(crate) fn wake_peer(&mut self, core: &mut Core) -> bool {
        let edge = self.window_edge();
        if self.write_seq != self.snd_nxt && seq::before(self.snd_nxt, edge) {
            let room = seq::span(self.snd_nxt, edge);
            let mss = self.mss_now();
            let data = (self.data_end().wrapping_sub(self.snd_nxt) as i32).max(0) as u32;
            let len = data.min(mss).min(room);
            let fin = self.fin_queued && len == data && len < room;
            if len > 0 || fin {
                self.send_new(core, len, fin, mss);
                return true;
            }
        }
        let seq = self.snd_una.wrapping_sub(1);
        self.transmit(core, seq, 0, flags::ACK, 0);
        false
    }
}

impl Core {
    /// MSS of the SYN: what the device's MTU leaves.
    pub(crate) fn announced_mss(&self, v4: bool) -> u16 {
        let headers = if v4 { 40 } else { 60 };
        self.config.mss.min((self.config.mtu - headers) as u16)
    }
}
