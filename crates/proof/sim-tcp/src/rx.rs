// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data of a connection: order, overlaps, SACK blocks, windows, when to acknowledge.
//!
//! tcp_data_queue(), tcp_data_queue_ofo(), tcp_ofo_queue(), __tcp_select_window() and
//! __tcp_ack_snd_check() of the kernel.

use crate::api::{EventKind, State};
use crate::config::{ATO_MIN, DELACK_MAX, MS, QUICKACKS_MAX};
use crate::core::Core;
use crate::seq;
use crate::sock::Sock;
use erb_wire::{SackBlocks, Segment, flags};

/// The segment's payload ended a write of the peer.
const PUSHED: u8 = 1;
const PUSHED_TWICE: u8 = 2;

/// Data that came before what is in front of it.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) seq: u32,
    pub(crate) data: Vec<u8>,
    pub(crate) fin: bool,
}

impl Piece {
    pub(crate) fn end(&self) -> u32 {
        self.seq
            .wrapping_add(self.data.len() as u32 + u32::from(self.fin))
    }
}

impl Sock {
    /// tcp_receive_window(): what the peer may still send.
    pub(crate) fn receive_window(&self) -> u32 {
        let window = self
            .rcv_wup
            .wrapping_add(self.rcv_wnd)
            .wrapping_sub(self.rcv_nxt) as i32;
        window.max(0) as u32
    }

    fn window_end(&self) -> u32 {
        self.rcv_nxt.wrapping_add(self.receive_window())
    }

    /// Takes the payload and FIN of an acceptable segment.
    pub(crate) fn data_queue(&mut self, core: &mut Core, seg: &Segment) {
        let fin = seg.has(flags::FIN);
        let end = seg
            .seq
            .wrapping_add(seg.payload.len() as u32 + u32::from(fin));
        if seg.seq == end {
            return;
        }
        self.dsack = None;
        if seq::after(seg.seq, self.rcv_nxt) {
            if !seq::before(seg.seq, self.window_end()) {
                return self.out_of_window(core);
            }
            return self.queue_early(core, seg, end);
        }
        if seg.seq != self.rcv_nxt {
            let known = seq::min(end, self.rcv_nxt);
            self.dsack_set(core, seg.seq, known);
            if !seq::after(end, self.rcv_nxt) {
                return self.out_of_window(core);
            }
        }
        let bare_fin = seg.payload.is_empty() && fin && self.pieces.is_empty();
        if self.receive_window() == 0 && !bare_fin {
            return self.out_of_window(core);
        }
        if self.held() + seg.payload.len() > self.memory(core) && self.held() > 0 {
            self.owed.ack_now = true; // no memory: the peer must send it again
            self.owed.ack_scheduled = true;
            return;
        }
        let skip = seq::span(seg.seq, self.rcv_nxt) as usize;
        self.take_in_order(core, &seg.payload[skip.min(seg.payload.len())..]);
        if !seg.payload.is_empty() {
            self.note_data(core, seg);
        }
        if fin {
            self.take_fin(core);
        }
        if !self.pieces.is_empty() {
            self.join_pieces(core);
            self.owed.ack_now |= self.pieces.is_empty(); // RFC 5681 4.2: a gap was filled
        }
        self.sack_remove();
        if !self.dead && !seg.payload.is_empty() {
            core.event(self.id, EventKind::Readable);
        }
    }

    fn memory(&self, core: &Core) -> usize {
        2 * core.config.rcv_buf as usize
    }

    fn held(&self) -> usize {
        self.readable.len() + self.pieces.iter().map(|p| p.data.len()).sum::<usize>()
    }

    fn take_in_order(&mut self, core: &Core, data: &[u8]) {
        self.readable.extend(data);
        self.rcv_nxt = self.rcv_nxt.wrapping_add(data.len() as u32);
        self.bytes_received += data.len() as u64;
        let grown = self.rcv_ssthresh.saturating_add(2 * data.len() as u32);
        self.rcv_ssthresh = grown.min(core.config.rcv_buf);
    }

    /// tcp_event_data_recv(): an acknowledgement is owed, and how soon.
    fn note_data(&mut self, core: &Core, seg: &Segment) {
        let len = seg.payload.len() as u32;
        self.owed.ack_scheduled = true;
        if len >= self.rcv_mss {
            self.rcv_mss = len.min(u32::from(core.config.mss));
        }
        if seg.has(flags::PSH) {
            let twice = if self.owed.ack_pushed & PUSHED != 0 {
                PUSHED_TWICE
            } else {
                0
            };
            self.owed.ack_pushed |= PUSHED | twice;
        }
        if self.owed.ato == 0 {
            self.owed.quick = self.quickacks().max(self.owed.quick);
            self.owed.ato = ATO_MIN;
        } else {
            let gap = core.now - self.lrcvtime;
            if gap <= ATO_MIN / 2 {
                self.owed.ato = self.owed.ato / 2 + ATO_MIN / 2;
            } else if gap < self.owed.ato {
                self.owed.ato = (self.owed.ato / 2 + gap).min(self.rto);
            } else if gap > self.rto {
                self.owed.quick = self.quickacks().max(self.owed.quick); // the peer's start after idle
            }
        }
        self.lrcvtime = core.now;
    }

    /// tcp_incr_quickack(): as many as half a window of segments.
    fn quickacks(&self) -> u32 {
        (self.rcv_wnd / (2 * self.rcv_mss)).clamp(2, QUICKACKS_MAX)
    }

    /// tcp_enter_quickack_mode().
    pub(crate) fn enter_quickack(&mut self) {
        self.owed.quick = self.quickacks().max(self.owed.quick);
        self.owed.pingpong = false;
        self.owed.ato = ATO_MIN;
    }

    fn out_of_window(&mut self, core: &mut Core) {
        core.counters.out_of_window += 1;
        self.enter_quickack();
        self.owed.ack_scheduled = true;
    }

    /// tcp_fin(): the peer's stream ends here.
    fn take_fin(&mut self, core: &mut Core) {
        self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
        self.bytes_received += 1;
        self.fin_received = true;
        self.rcv_shutdown = true;
        self.owed.ack_scheduled = true;
        self.pieces.clear();
        self.sacks.clear();
        if !self.dead {
            core.event(self.id, EventKind::PeerClosed);
        }
        match self.state {
            State::Established => {
                self.state = State::CloseWait;
                self.owed.pingpong = true;
            }
            State::FinWait1 => {
                self.send_ack(core);
                self.state = State::Closing;
            }
            State::FinWait2 => {
                self.send_ack(core);
                self.time_wait(State::TimeWait, core.config.time_wait_ns);
            }
            _ => {}
        }
    }

    /// tcp_data_queue_ofo(). On overlap the piece that begins first wins; one that covers others
    /// whole takes their place.
    fn queue_early(&mut self, core: &mut Core, seg: &Segment, end: u32) {
        self.owed.ack_scheduled = true;
        if self.held() + seg.payload.len() > self.memory(core) {
            return;
        }
        let new = Piece {
            seq: seg.seq,
            data: seg.payload.clone(),
            fin: seg.has(flags::FIN),
        };
        let at = self.pieces.partition_point(|p| seq::before(p.seq, new.seq));
        if at > 0 && seq::before(new.seq, self.pieces[at - 1].end()) {
            let before = self.pieces[at - 1].end();
            if !seq::after(end, before) {
                self.dsack_set(core, new.seq, end);
                return self.sack_add(new.seq, end);
            }
            self.dsack_set(core, new.seq, before);
        }
        if let Some(same) = self.pieces.get(at).filter(|p| p.seq == new.seq) {
            if !seq::after(end, same.end()) {
                self.dsack_set(core, new.seq, end);
                return self.sack_add(new.seq, end);
            }
        }
        while let Some((first, last)) = self.pieces.get(at).map(|next| (next.seq, next.end())) {
            if !seq::after(end, first) {
                break;
            }
            if seq::before(end, last) {
                self.dsack_extend(core, first, end);
                break;
            }
            self.dsack_extend(core, first, last);
            self.pieces.remove(at);
        }
        let first = new.seq;
        self.pieces.insert(at, new);
        self.sack_add(first, end);
    }

    /// tcp_ofo_queue(): pieces that are in order now.
    fn join_pieces(&mut self, core: &mut Core) {
        let mut dsack_high = self.rcv_nxt;
        while self
            .pieces
            .first()
            .is_some_and(|p| !seq::after(p.seq, self.rcv_nxt))
        {
            let piece = self.pieces.remove(0);
            let end = piece.end();
            if seq::before(piece.seq, dsack_high) {
                let known = dsack_high;
                if seq::before(end, dsack_high) {
                    dsack_high = end;
                }
                self.dsack_extend(core, piece.seq, known);
            }
            if !seq::after(end, self.rcv_nxt) {
                continue;
            }
            let skip = seq::span(piece.seq, self.rcv_nxt) as usize;
            self.take_in_order(core, &piece.data[skip.min(piece.data.len())..]);
            if piece.fin {
                self.take_fin(core);
                break;
            }
        }
    }

    fn dsack_set(&mut self, core: &Core, first: u32, end: u32) {
        if self.sack_ok && core.config.dsack {
            self.dsack = Some((first, end));
        }
    }

    fn dsack_extend(&mut self, core: &Core, first: u32, end: u32) {
        match &mut self.dsack {
            None => self.dsack_set(core, first, end),
            Some((a, b)) if !seq::after(first, *b) && !seq::after(*a, end) => {
                *a = seq::min(*a, first);
                *b = seq::max(*b, end);
            }
            Some(_) => {}
        }
    }

    /// tcp_sack_new_ofo_skb(): the newest block stands first.
    fn sack_add(&mut self, first: u32, end: u32) {
        if !self.sack_ok {
            return;
        }
        let (mut first, mut end) = (first, end);
        self.sacks.retain(|&(a, b)| {
            let touches = !seq::after(first, b) && !seq::after(a, end);
            if touches {
                first = seq::min(first, a);
                end = seq::max(end, b);
            }
            !touches
        });
        self.sacks.insert(0, (first, end));
        self.sacks.truncate(SackBlocks::MAX);
    }

    pub(crate) fn prune(&mut self) -> bool {
        let any = !self.pieces.is_empty();
        self.pieces.clear();
        self.sacks.clear();
        any
    }

    fn sack_remove(&mut self) {
        if self.pieces.is_empty() {
            self.sacks.clear();
        }
        let next = self.rcv_nxt;
        self.sacks.retain(|&(first, _)| seq::before(next, first));
    }

    /// SACK option of the next segment; a D-SACK is reported once.
    pub(crate) fn take_sack_blocks(&mut self, core: &mut Core) -> SackBlocks {
        let max = if self.tstamp_ok { 3 } else { 4 };
        let mut blocks = SackBlocks::default();
        if let Some((first, end)) = self.dsack.take() {
            core.counters.dsacks_sent += 1;
            blocks.push(first, end);
        }
        for &(first, end) in &self.sacks {
            if blocks.as_slice().len() < max {
                blocks.push(first, end);
            }
        }
        blocks
    }

    /// Number of blocks that the next segment would carry.
    pub(crate) fn sack_blocks(&self) -> u32 {
        let max = if self.tstamp_ok { 3 } else { 4 };
        (self.sacks.len() as u32 + u32::from(self.dsack.is_some())).min(max)
    }

    /// __tcp_select_window(): what could be offered, with avoidance of silly windows.
    pub(crate) fn offerable(&mut self, core: &Core) -> u32 {
        let full = core.config.rcv_buf;
        let mss = self.rcv_mss.min(full);
        let unit = 1u32 << self.rcv_wscale;
        let mut free = full.saturating_sub(self.held() as u32);
        if free < full / 2 {
            self.owed.quick = 0;
            free -= free % unit;
            if free < full >> 4 || free < mss {
                return 0;
            }
        }
        free = free.min(self.rcv_ssthresh);
        if self.rcv_wscale > 0 {
            return free.next_multiple_of(unit);
        }
        let window = self.rcv_wnd;
        if window > free || window + mss <= free {
            free - free % mss
        } else if mss == full && free > window + full / 2 {
            free
        } else {
            window
        }
    }

    /// tcp_select_window(): the window field; K5: what was offered is never taken back.
    pub(crate) fn select_window(&mut self, core: &Core) -> u16 {
        let unit = 1u32 << self.rcv_wscale;
        let current = self.receive_window();
        let mut window = self.offerable(core);
        if window < current {
            window = current.next_multiple_of(unit);
        }
        window = window.min(65535 << self.rcv_wscale);
        self.rcv_wnd = window;
        self.rcv_wup = self.rcv_nxt;
        (window >> self.rcv_wscale) as u16
    }

    /// __tcp_ack_snd_check(): acknowledge now, later, or not at all.
    pub(crate) fn ack_snd_check(&mut self, core: &mut Core) {
        if !self.owed.ack_scheduled || matches!(self.state, State::Close) || self.fate.is_some() {
            return;
        }
        let unacked = self.rcv_nxt.wrapping_sub(self.rcv_wup);
        let two_frames = unacked > self.rcv_mss && self.offerable(core) >= self.rcv_wnd;
        let quick = self.owed.quick > 0 && !self.owed.pingpong;
        if two_frames || quick || self.owed.ack_now || !self.pieces.is_empty() {
            return self.send_ack(core);
        }
        let mut delay = self.owed.ato.max(ATO_MIN);
        if self.owed.pingpong {
            delay = DELACK_MAX;
        }
        if self.timing.srtt > 0 {
            delay = delay.min(self.timing.srtt.max(ATO_MIN));
        }
        delay = delay.min(core.config.delayed_ack_ns);
        if delay < MS {
            return self.send_ack(core);
        }
        let at = core.now + delay;
        self.delack_at = Some(self.delack_at.map_or(at, |old| old.min(at)));
    }

    /// Reads at most `max` bytes; tcp_cleanup_rbuf() tells the peer of the room.
    pub(crate) fn recv(&mut self, core: &mut Core, max: usize, into: &mut Vec<u8>) -> usize {
        let n = self.copy(max, into);
        if n == 0 || self.state == State::Close || self.fate.is_some() {
            return n;
        }
        let mut now = false;
        if self.owed.ack_scheduled {
            let pushed = self.owed.ack_pushed & PUSHED_TWICE != 0
                || (self.owed.ack_pushed & PUSHED != 0 && !self.owed.pingpong);
            now = self.rcv_nxt.wrapping_sub(self.rcv_wup) > self.rcv_mss
                || (pushed && self.readable.is_empty());
        }
        let offered = self.receive_window();
        if !now && !self.rcv_shutdown && 2 * u64::from(offered) <= u64::from(core.config.rcv_buf) {
            let window = self.offerable(core);
            now = window > 0 && window >= 2 * offered;
        }
        if now {
            self.send_ack(core);
        }
        n
    }
}
