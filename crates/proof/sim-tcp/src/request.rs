// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listeners: request sockets (NEW_SYN_RECV) and SYN cookies. tcp_conn_request(),
//! tcp_check_req(), cookie_v4_check().

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use crate::Ns;
use crate::api::{SockId, State};
use crate::config::{RTO_INIT, RTO_MAX, SEC};
use crate::core::Core;
use crate::seq;
use crate::sock::{Sock, Start};
use crate::timewait::in_window;
use erb_wire::{Options, Segment, flags};

/// MSS values that a cookie can stand for.
const COOKIE_MSS: [u16; 4] = [536, 1300, 1440, 1460];
/// How long one value of the cookie's clock lasts, and for how many of them it is good.
const COOKIE_PERIOD: Ns = 64 * SEC;
const COOKIE_PERIODS: u64 = 2;
/// Bits of the SYN-ACK's TSval that keep the client's options: TSBITS.
const TS_OPTION_BITS: u32 = 6;
const TS_WSCALE_NONE: u32 = 0xf;
const TS_SACK: u32 = 1 << 4;

/// A listening port.
pub(crate) struct Listener {
    pub(crate) cookie: u64,
    pub(crate) backlog: usize,
    pub(crate) requests: usize,
    pub(crate) queue: VecDeque<SockId>,
    /// When a SYN cookie was last given out: only then one is accepted.
    pub(crate) overflow_at: Option<Ns>,
}

/// A handshake that waits for its third packet.
pub(crate) struct Request {
    pub(crate) cookie: u64,
    pub(crate) rcv_isn: u32,
    pub(crate) snt_isn: u32,
    pub(crate) theirs: Options,
    pub(crate) ts_recent: u32,
    pub(crate) tsoffset: u32,
    pub(crate) sent_at: Ns,
    pub(crate) retries: u32,
    pub(crate) due: Ns,
    pub(crate) last_oow_ack: Option<Ns>,
}

/// What becomes of a segment for a request socket.
pub(crate) enum RequestSays {
    /// Nothing more.
    Taken,
    /// The request goes; the flag says whether the segment is answered by a reset.
    Drop(bool),
    /// The segment is answered by a reset, the request stays.
    Reset,
    /// The handshake is complete.
    Complete,
}

/// Secrets of the stack: offsets of timestamps and cookies follow from them.
pub(crate) struct Secret(pub(crate) u64);

impl Secret {
    fn mix(&self, what: impl Hash) -> u32 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        what.hash(&mut hasher);
        hasher.finish() as u32
    }

    /// secure_tcp_ts_off(): one offset per pair of hosts.
    pub(crate) fn tsoffset(&self, local: IpAddr, remote: IpAddr) -> u32 {
        self.mix((local, remote))
    }

    fn cookie(&self, pair: (SocketAddr, SocketAddr), rcv_isn: u32, period: u64) -> u32 {
        self.mix((pair, rcv_isn, period)) & !3
    }

    fn cookie_isn(&self, now: Ns, pair: (SocketAddr, SocketAddr), syn: &Segment) -> u32 {
        let mss = syn.options.mss.unwrap_or(536);
        let at = COOKIE_MSS.iter().rposition(|&m| m <= mss).unwrap_or(0);
        self.cookie(pair, syn.seq, now / COOKIE_PERIOD) | at as u32
    }

    /// The MSS that the acknowledged cookie stands for, if it is one of ours.
    fn cookie_mss(
        &self,
        now: Ns,
        pair: (SocketAddr, SocketAddr),
        (seq, ack): (u32, u32),
    ) -> Option<u16> {
        let isn = ack.wrapping_sub(1);
        let rcv_isn = seq.wrapping_sub(1);
        let period = now / COOKIE_PERIOD;
        (0..COOKIE_PERIODS.min(period + 1))
            .any(|ago| self.cookie(pair, rcv_isn, period - ago) == isn & !3)
            .then(|| COOKIE_MSS[(isn & 3) as usize])
    }
}

/// cookie_init_timestamp(): the clock with the client's options in its low bits, never ahead.
fn cookie_tsval(clock: u32, theirs: &Options) -> u32 {
    let scale = theirs
        .wscale
        .map_or(TS_WSCALE_NONE, |w| u32::from(w.min(14)));
    let bits = scale | if theirs.sack_ok { TS_SACK } else { 0 };
    let low = (1 << TS_OPTION_BITS) - 1;
    let value = clock & !low | bits;
    if seq::after(value, clock) {
        value.wrapping_sub(1 << TS_OPTION_BITS)
    } else {
        value
    }
}

fn cookie_options(mss: u16, ts: Option<(u32, u32)>, tsoffset: u32) -> Options {
    let bits = ts.map_or(TS_WSCALE_NONE, |(_, echo)| echo.wrapping_sub(tsoffset));
    let scale = bits & 0xf;
    Options {
        mss: Some(mss),
        wscale: (scale != TS_WSCALE_NONE).then_some(scale as u8),
        sack_ok: bits & TS_SACK != 0,
        ts,
        ..Options::default()
    }
}

impl Request {
    pub(crate) fn new(core: &Core, syn: &Segment, cookie: u64, isn: u32, tsoffset: u32) -> Request {
        Request {
            cookie,
            rcv_isn: syn.seq,
            snt_isn: isn,
            theirs: syn.options.clone(),
            ts_recent: syn.options.ts.map_or(0, |ts| ts.0),
            tsoffset,
            sent_at: core.now,
            retries: 0,
            due: core.now + RTO_INIT,
            last_oow_ack: None,
        }
    }

    fn tstamp_ok(&self, core: &Core) -> bool {
        core.config.timestamps && self.theirs.ts.is_some()
    }

    /// tcp_make_synack(); `tsval` is without the offset.
    fn syn_ack(&self, core: &Core, pair: (SocketAddr, SocketAddr), tsval: u32) -> Segment {
        let config = &core.config;
        let mut seg = Segment::new(pair.0, pair.1);
        seg.seq = self.snt_isn;
        seg.ack = self.rcv_isn.wrapping_add(1);
        seg.flags = flags::SYN | flags::ACK;
        seg.window = config.rcv_buf.min(65535) as u16;
        seg.options = Options {
            mss: Some(core.announced_mss(pair.0.is_ipv4())),
            wscale: config.wscale.filter(|_| self.theirs.wscale.is_some()),
            sack_ok: config.sack && self.theirs.sack_ok,
            ts: self
                .tstamp_ok(core)
                .then(|| (tsval.wrapping_add(self.tsoffset), self.ts_recent)),
            ..Options::default()
        };
        seg
    }

    pub(crate) fn send_syn_ack(&self, core: &mut Core, pair: (SocketAddr, SocketAddr)) {
        let seg = self.syn_ack(core, pair, core.ts_clock());
        core.emit(seg, self.cookie, 0);
    }

    /// reqsk_timer_handler(). Returns whether the request lives on.
    pub(crate) fn on_timer(&mut self, core: &mut Core, pair: (SocketAddr, SocketAddr)) -> bool {
        if self.retries >= core.config.synack_retries {
            return false;
        }
        self.retries += 1;
        self.due = core.now + (RTO_INIT << self.retries).min(RTO_MAX);
        core.counters.retransmits += 1;
        self.send_syn_ack(core, pair);
        true
    }

    /// tcp_check_req().
    pub(crate) fn input(&mut self, core: &mut Core, seg: &Segment) -> RequestSays {
        let pair = (seg.dst, seg.src);
        let tsval = seg
            .options
            .ts
            .filter(|_| self.tstamp_ok(core))
            .map(|ts| ts.0);
        let old = tsval.is_some_and(|v| (self.ts_recent.wrapping_sub(v) as i32) > 0);
        let old = old && self.ts_recent != 0 && !seg.has(flags::RST);
        let kind = seg.flags & (flags::SYN | flags::ACK | flags::RST | flags::FIN);
        if seg.seq == self.rcv_isn && kind == flags::SYN && !old {
            if !core.limited(&mut self.last_oow_ack) {
                self.send_syn_ack(core, pair);
            }
            return RequestSays::Taken;
        }
        if seg.has(flags::ACK) && seg.ack != self.snt_isn.wrapping_add(1) {
            return RequestSays::Reset;
        }
        let next = self.rcv_isn.wrapping_add(1);
        let edge = next.wrapping_add(core.config.rcv_buf.min(65535));
        if old || !in_window(seg.seq, seg.end_seq(), next, edge) {
            let mut last = self.last_oow_ack;
            if !seg.has(flags::RST) && !core.rate_limited(seg, &mut last) {
                self.send_ack(core, pair);
            }
            self.last_oow_ack = last;
            return RequestSays::Taken;
        }
        if let Some(val) = tsval.filter(|_| !seq::after(seg.seq, next)) {
            self.ts_recent = val;
        }
        if seg.has(flags::RST) {
            return RequestSays::Drop(false);
        }
        if seg.has(flags::SYN) && seg.seq != self.rcv_isn {
            return RequestSays::Drop(true);
        }
        match seg.has(flags::ACK) {
            true => RequestSays::Complete,
            false => RequestSays::Taken,
        }
    }

    /// tcp_v4_reqsk_send_ack().
    fn send_ack(&self, core: &mut Core, pair: (SocketAddr, SocketAddr)) {
        let ts = self
            .tstamp_ok(core)
            .then(|| (core.ts_clock().wrapping_add(self.tsoffset), self.ts_recent));
        let scale = core
            .config
            .wscale
            .filter(|_| self.theirs.wscale.is_some())
            .unwrap_or(0);
        let window = (core.config.rcv_buf.min(65535) >> scale) as u16;
        let seq = self.snt_isn.wrapping_add(1);
        core.control_ack(pair, (seq, self.rcv_isn.wrapping_add(1), window), ts);
    }

    /// tcp_create_openreq_child(): the full socket; the segment that completes the handshake is
    /// its first input.
    pub(crate) fn child(&self, core: &Core, id: SockId, seg: &Segment) -> Sock {
        let start = Start {
            id,
            cookie: self.cookie,
            local: seg.dst,
            remote: seg.src,
            state: State::Established,
            isn: self.snt_isn.wrapping_add(1),
            tsoffset: self.tsoffset,
        };
        let mut sock = Sock::new(core, start);
        sock.negotiate(core, &self.theirs);
        sock.ts_recent = self.ts_recent;
        sock.rcv_nxt = self.rcv_isn.wrapping_add(1);
        sock.rcv_wup = sock.rcv_nxt;
        sock.copied_seq = sock.rcv_nxt;
        sock.rcv_wnd = core.config.rcv_buf.min(65535);
        sock.snd_wl1 = seg.seq;
        sock.snd_wnd = sock.window_of(seg);
        sock.max_window = sock.snd_wnd;
        if self.retries == 0 && core.now > self.sent_at {
            sock.measure(core.now - self.sent_at);
        }
        sock.start_keepalive(core);
        sock
    }
}

impl Listener {
    pub(crate) fn new(backlog: usize, cookie: u64) -> Listener {
        Listener {
            cookie,
            backlog,
            requests: 0,
            queue: VecDeque::new(),
            overflow_at: None,
        }
    }

    /// Whether a connection more would find no place: sk_acceptq_is_full().
    pub(crate) fn accept_full(&self) -> bool {
        self.queue.len() > self.backlog
    }

    /// inet_csk_reqsk_queue_is_full().
    pub(crate) fn requests_full(&self) -> bool {
        self.requests > self.backlog
    }

    /// tcp_synq_no_recent_overflow(), the other way round.
    fn has_overflown(&self, now: Ns) -> bool {
        let recent = COOKIE_PERIOD * COOKIE_PERIODS;
        self.overflow_at.is_some_and(|at| now - at <= recent)
    }

    /// Whether an acknowledgement with these numbers would be taken for a cookie's.
    pub(crate) fn believes(
        &self,
        now: Ns,
        secret: &Secret,
        pair: (SocketAddr, SocketAddr),
        numbers: (u32, u32),
    ) -> bool {
        self.has_overflown(now) && secret.cookie_mss(now, pair, numbers).is_some()
    }

    /// Answers a SYN without keeping anything of it.
    pub(crate) fn send_cookie(&mut self, core: &mut Core, secret: &Secret, syn: &Segment) {
        let pair = (syn.dst, syn.src);
        let tsoffset = secret.tsoffset(pair.0.ip(), pair.1.ip());
        let isn = secret.cookie_isn(core.now, pair, syn);
        let mut request = Request::new(core, syn, 0, isn, tsoffset);
        if !request.tstamp_ok(core) {
            // Without timestamps there is no room for these.
            request.theirs.wscale = None;
            request.theirs.sack_ok = false;
        }
        let tsval = cookie_tsval(core.ts_clock(), &syn.options);
        let seg = request.syn_ack(core, pair, tsval);
        self.overflow_at = Some(core.now);
        core.counters.syn_cookies_sent += 1;
        core.emit(seg, 0, 0);
    }

    /// cookie_v4_check(): the request that an acknowledgement of a cookie stands for.
    pub(crate) fn take_cookie(
        &self,
        core: &mut Core,
        secret: &Secret,
        seg: &Segment,
        cookie: u64,
    ) -> Option<Request> {
        if !self.has_overflown(core.now) {
            return None;
        }
        let pair = (seg.dst, seg.src);
        let Some(mss) = secret.cookie_mss(core.now, pair, (seg.seq, seg.ack)) else {
            core.counters.syn_cookies_failed += 1;
            return None;
        };
        core.counters.syn_cookies_taken += 1;
        let tsoffset = secret.tsoffset(pair.0.ip(), pair.1.ip());
        let ts = seg.options.ts.filter(|_| core.config.timestamps);
        Some(Request {
            cookie,
            rcv_isn: seg.seq.wrapping_sub(1),
            snt_isn: seg.ack.wrapping_sub(1),
            theirs: cookie_options(mss, ts, tsoffset),
            ts_recent: ts.map_or(0, |ts| ts.0),
            tsoffset,
            sent_at: core.now,
            retries: 0,
            due: core.now,
            last_oow_ack: None,
        })
    }
}
