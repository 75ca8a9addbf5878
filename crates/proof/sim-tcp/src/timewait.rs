// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TIME_WAIT, and FIN_WAIT2 of a connection that its owner has closed: what is left of a socket.
//! tcp_timewait_state_process().

use crate::Ns;
use crate::api::State;
use crate::config::INVALID_RATELIMIT;
use crate::core::Core;
use crate::seq;
use crate::sock::Sock;
use erb_wire::{Segment, flags};

/// How far above the old incarnation's last byte a reused pair of addresses starts.
const REUSE_GAP: u32 = 65535 + 2;

pub(crate) struct TimeWait {
    pub(crate) cookie: u64,
    pub(crate) substate: State,
    pub(crate) snd_nxt: u32,
    pub(crate) rcv_nxt: u32,
    pub(crate) rcv_wnd: u32,
    pub(crate) rcv_wscale: u8,
    pub(crate) tstamp_ok: bool,
    pub(crate) ts_recent: u32,
    pub(crate) ts_recent_at: Ns,
    pub(crate) tsoffset: u32,
    pub(crate) until: Ns,
    pub(crate) last_oow_ack: Option<Ns>,
}

/// What becomes of a segment for a TIME_WAIT socket.
pub(crate) enum TimeWaitSays {
    /// Nothing more.
    Taken,
    /// It is answered by an acknowledgement.
    Ack,
    /// It is answered by a reset, and the socket goes.
    Reset,
    /// The socket goes.
    Gone,
    /// The segment begins a new connection, whose first number is this.
    Syn(u32),
}

/// tcp_in_window().
pub(crate) fn in_window(first: u32, end: u32, from: u32, to: u32) -> bool {
    first == from
        || (seq::after(end, from) && seq::before(first, to))
        || (first == to && first == end)
}

impl TimeWait {
    pub(crate) fn of(sock: &Sock, now: Ns, substate: State, length: Ns) -> TimeWait {
        TimeWait {
            cookie: sock.cookie,
            substate,
            snd_nxt: sock.snd_nxt,
            rcv_nxt: sock.rcv_nxt,
            rcv_wnd: sock.receive_window(),
            rcv_wscale: sock.rcv_wscale,
            tstamp_ok: sock.tstamp_ok,
            ts_recent: sock.ts_recent,
            ts_recent_at: sock.ts_recent_at,
            tsoffset: sock.tsoffset,
            until: now + length,
            last_oow_ack: sock.last_oow_ack,
        }
    }

    /// First number of a connection that takes this one's place.
    pub(crate) fn next_isn(&self) -> u32 {
        match self.snd_nxt.wrapping_add(REUSE_GAP) {
            0 => 1,
            isn => isn,
        }
    }

    pub(crate) fn input(&mut self, core: &mut Core, seg: &Segment) -> TimeWaitSays {
        let tsval = seg.options.ts.filter(|_| self.tstamp_ok).map(|ts| ts.0);
        let old_stamp = tsval.is_some_and(|val| self.paws_rejects(core, val, seg));
        if self.substate == State::FinWait2 {
            return self.input_fin_wait2(core, seg, tsval, old_stamp);
        }
        let rst = seg.has(flags::RST);
        let empty = seg.seq_len() == 0;
        if !old_stamp && seg.seq == self.rcv_nxt && (empty || rst) {
            if rst {
                return TimeWaitSays::Gone; // RFC 1337 is off by default
            }
            self.until = core.now + core.config.time_wait_ns;
            self.stamp(core, tsval);
            return TimeWaitSays::Taken;
        }
        let syn = seg.has(flags::SYN) && !rst && !seg.has(flags::ACK);
        let newer = tsval.is_some_and(|val| seq::before(self.ts_recent, val));
        if syn && !old_stamp && (seq::after(seg.seq, self.rcv_nxt) || newer) {
            return TimeWaitSays::Syn(self.next_isn());
        }
        if rst {
            return TimeWaitSays::Taken;
        }
        if old_stamp || seg.has(flags::ACK) {
            self.until = core.now + core.config.time_wait_ns;
        }
        self.ack_limited(core, seg)
    }

    fn paws_rejects(&self, core: &Core, tsval: u32, seg: &Segment) -> bool {
        let wrapped = core.now - self.ts_recent_at >= crate::config::PAWS_WRAP;
        let old = (self.ts_recent.wrapping_sub(tsval) as i32) > 0;
        old && !wrapped && self.ts_recent != 0 && !seg.has(flags::RST)
    }

    fn stamp(&mut self, core: &Core, tsval: Option<u32>) {
        if let Some(val) = tsval {
            (self.ts_recent, self.ts_recent_at) = (val, core.now);
        }
    }

    fn input_fin_wait2(
        &mut self,
        core: &mut Core,
        seg: &Segment,
        tsval: Option<u32>,
        old_stamp: bool,
    ) -> TimeWaitSays {
        let end = seg.end_seq();
        let edge = self.rcv_nxt.wrapping_add(self.rcv_wnd);
        if old_stamp || !in_window(seg.seq, end, self.rcv_nxt, edge) {
            return self.ack_limited(core, seg);
        }
        if seg.has(flags::RST) {
            return TimeWaitSays::Gone;
        }
        if seg.has(flags::SYN) && !seq::before(seg.seq, self.rcv_nxt) {
            return TimeWaitSays::Reset;
        }
        if !seg.has(flags::ACK) || !seq::after(end, self.rcv_nxt) || end == seg.seq {
            return TimeWaitSays::Taken;
        }
        if !seg.has(flags::FIN) || end != self.rcv_nxt.wrapping_add(1) {
            return TimeWaitSays::Reset; // data after the owner closed
        }
        self.substate = State::TimeWait;
        self.rcv_nxt = end;
        self.stamp(core, tsval);
        self.until = core.now + core.config.time_wait_ns;
        TimeWaitSays::Ack
    }

    fn ack_limited(&mut self, core: &Core, seg: &Segment) -> TimeWaitSays {
        let recent = self
            .last_oow_ack
            .is_some_and(|at| core.now - at < INVALID_RATELIMIT);
        let limited = recent && (seg.payload.is_empty() || seg.has(flags::SYN));
        if limited {
            return TimeWaitSays::Taken;
        }
        self.last_oow_ack = Some(core.now);
        TimeWaitSays::Ack
    }

    /// tcp_v4_timewait_ack().
    pub(crate) fn send_ack(&self, core: &mut Core, seg: &Segment) {
        let ts = self
            .tstamp_ok
            .then(|| (core.ts_clock().wrapping_add(self.tsoffset), self.ts_recent));
        let window = (self.rcv_wnd >> self.rcv_wscale).min(65535) as u16;
        core.control_ack((seg.dst, seg.src), (self.snd_nxt, self.rcv_nxt, window), ts);
    }
}
