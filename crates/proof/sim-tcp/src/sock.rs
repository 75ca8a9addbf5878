// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection.
//!
//! Names are those of `struct tcp_sock`. Invariants, checked by [`Sock::check`]:
//!  K1. snd_una <= snd_nxt <= write_seq.
//!  K2. The records in `sent` lie gapless over [snd_una, snd_nxt), none is empty.
//!  K3. `unacked` holds the bytes [data_first, data_end) and nothing else; FIN takes no byte of it.
//!  K4. copied_seq <= rcv_nxt and `readable` holds exactly the bytes between (FIN takes none).
//!  K5. rcv_wup <= rcv_nxt; the right edge rcv_wup + rcv_wnd never moves back.
//!  K6. Pieces in `pieces` are sorted, not empty, and end above rcv_nxt, the first begins above it.
//!  K7. No record is both sacked and lost; only lost ones or probes are sent again.
//!  K8. Something unacknowledged has a timer, and so has unsent data with nothing in flight.
//!  K9. The TSval of what is sent never goes back.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::api::{SockId, State, View};
use crate::config::{CWND_INIT, MSS_MIN, PMTU_V4_MIN, PMTU_V6_MIN, RTO_INIT, SEC};
use crate::core::Core;
use crate::rx::Piece;
use crate::{Ns, seq};
use erb_wire::Options;

/// What was sent and is not acknowledged: one segment's worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) seq: u32,
    pub(crate) end: u32,
    pub(crate) sent_at: Ns,
    pub(crate) sacked: bool,
    pub(crate) lost: bool,
    /// Sent again at some time: no RTT from it without timestamps.
    pub(crate) again: bool,
    /// Sent again and not believed lost since.
    pub(crate) again_out: bool,
}

/// State of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    Open,
    Fast,
    Loss,
}

/// What the one timer of the sending side is set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Xmit {
    Retransmit,
    TailProbe,
    WindowProbe,
}

/// What the table has to do with the socket after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// A TIME_WAIT socket takes its place, in this substate, for so long.
    TimeWait(State, Ns),
    /// It leaves the table.
    Done,
}

/// The acknowledgement that is owed, and how soon: icsk_ack.
#[derive(Default)]
pub(crate) struct Owed {
    pub(crate) ack_scheduled: bool,
    pub(crate) ack_now: bool,
    pub(crate) ack_pushed: u8,
    pub(crate) quick: u32,
    pub(crate) pingpong: bool,
    pub(crate) ato: Ns,
}

/// Round trips measured, and how long the peer has been silent.
#[derive(Default)]
pub(crate) struct Timing {
    pub(crate) srtt: Ns,
    pub(crate) rttvar: Ns,
    pub(crate) backoff: u32,
    pub(crate) retransmits: u32,
    pub(crate) retrans_stamp: Option<Ns>,
    pub(crate) probes_out: u32,
    pub(crate) probes_since: Option<Ns>,
}

pub(crate) struct Sock {
    pub(crate) id: SockId,
    pub(crate) cookie: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: State,
    /// The owner has closed it.
    pub(crate) dead: bool,
    pub(crate) fate: Option<Fate>,

    pub(crate) rcv_nxt: u32,
    pub(crate) copied_seq: u32,
    pub(crate) rcv_wup: u32,
    pub(crate) rcv_wnd: u32,
    pub(crate) rcv_ssthresh: u32,
    pub(crate) rcv_mss: u32,
    pub(crate) rcv_wscale: u8,
    pub(crate) bytes_received: u64,
    pub(crate) data_segs_in: u32,
    /// Number of the urgent byte, as long as the reader has not passed it.
    pub(crate) urgent: Option<u32>,
    pub(crate) readable: VecDeque<u8>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) sacks: Vec<(u32, u32)>,
    pub(crate) dsack: Option<(u32, u32)>,
    /// FIN was received, or the owner reads no more.
    pub(crate) rcv_shutdown: bool,
    pub(crate) fin_received: bool,

    pub(crate) sack_ok: bool,
    pub(crate) tstamp_ok: bool,
    pub(crate) ts_recent: u32,
    pub(crate) ts_recent_at: Ns,
    pub(crate) tsoffset: u32,
    pub(crate) last_tsval: Option<u32>,

    pub(crate) owed: Owed,
    pub(crate) lrcvtime: Ns,
    pub(crate) last_oow_ack: Option<Ns>,

    pub(crate) snd_una: u32,
    pub(crate) snd_nxt: u32,
    pub(crate) write_seq: u32,
    pub(crate) snd_wnd: u32,
    pub(crate) snd_wl1: u32,
    pub(crate) snd_sml: u32,
    pub(crate) max_window: u32,
    pub(crate) snd_wscale: u8,
    pub(crate) peer_mss: u32,
    pub(crate) pmtu: u32,
    pub(crate) mss_cache: u32,
    pub(crate) bytes_acked: u64,
    pub(crate) unacked: VecDeque<u8>,
    pub(crate) data_first: u32,
    pub(crate) sent: VecDeque<Sent>,
    pub(crate) fin_queued: bool,
    /// `send` took less than it was offered.
    pub(crate) blocked: bool,

    pub(crate) cwnd: u32,
    pub(crate) cwnd_count: u32,
    pub(crate) ssthresh: u32,
    pub(crate) dup_acks: u32,
    pub(crate) recovery: Recovery,
    pub(crate) high_seq: u32,
    pub(crate) tail_probe_end: Option<u32>,

    pub(crate) timing: Timing,
    pub(crate) rto: Ns,
    pub(crate) rcv_tstamp: Ns,

    pub(crate) xmit: Option<(Ns, Xmit)>,
    pub(crate) delack_at: Option<Ns>,
    /// Keepalive, or the end of FIN_WAIT2 of a closed socket.
    pub(crate) keepalive_at: Option<Ns>,
}

/// What the handshake settled, or what the own side proposes.
pub(crate) struct Start {
    pub(crate) id: SockId,
    pub(crate) cookie: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: State,
    pub(crate) isn: u32,
    pub(crate) tsoffset: u32,
}

impl Sock {
    /// A socket whose next byte to send is `isn`; nothing is known of the peer.
    pub(crate) fn new(core: &Core, start: Start) -> Sock {
        let isn = start.isn;
        let headers = if start.local.is_ipv4() { 40 } else { 60 };
        Sock {
            id: start.id,
            cookie: start.cookie,
            local: start.local,
            remote: start.remote,
            state: start.state,
            dead: false,
            fate: None,
            rcv_nxt: 0,
            copied_seq: 0,
            rcv_wup: 0,
            rcv_wnd: 0,
            rcv_ssthresh: core.config.rcv_buf.min(65535),
            rcv_mss: 536,
            rcv_wscale: 0,
            bytes_received: 0,
            data_segs_in: 0,
            urgent: None,
            readable: VecDeque::new(),
            pieces: Vec::new(),
            sacks: Vec::new(),
            dsack: None,
            rcv_shutdown: false,
            fin_received: false,
            sack_ok: false,
            tstamp_ok: false,
            ts_recent: 0,
            ts_recent_at: core.now,
            tsoffset: start.tsoffset,
            last_tsval: None,
            owed: Owed::default(),
            lrcvtime: core.now,
            last_oow_ack: None,
            snd_una: isn,
            snd_nxt: isn,
            write_seq: isn,
            snd_wnd: 0,
            snd_wl1: 0,
            snd_sml: isn,
            max_window: 0,
            snd_wscale: 0,
            peer_mss: 536,
            pmtu: core.config.mtu,
            mss_cache: core.config.mtu - headers,
            bytes_acked: 0,
            unacked: VecDeque::new(),
            data_first: isn,
            sent: VecDeque::new(),
            fin_queued: false,
            blocked: false,
            cwnd: CWND_INIT,
            cwnd_count: 0,
            ssthresh: u32::MAX,
            dup_acks: 0,
            recovery: Recovery::Open,
            high_seq: isn,
            tail_probe_end: None,
            timing: Timing::default(),
            rto: RTO_INIT,
            rcv_tstamp: core.now,
            xmit: None,
            delack_at: None,
            keepalive_at: None,
        }
    }

    /// Takes the peer's SYN options into account; `ours` is what this side offered.
    pub(crate) fn negotiate(&mut self, core: &Core, theirs: &Options) {
        let config = &core.config;
        self.tstamp_ok = config.timestamps && theirs.ts.is_some();
        self.sack_ok = config.sack && theirs.sack_ok;
        if let (Some(own), Some(peer)) = (config.wscale, theirs.wscale) {
            self.rcv_wscale = own.min(14);
            self.snd_wscale = peer.min(14);
        }
        if let (true, Some((val, _))) = (self.tstamp_ok, theirs.ts) {
            self.ts_recent = val;
            self.ts_recent_at = core.now;
        }
        self.peer_mss = u32::from(theirs.mss.unwrap_or(536));
        self.sync_mss(core);
        self.rcv_mss = (self.mss_cache / 2).clamp(MSS_MIN, 536);
    }

    /// tcp_sync_mss(): what fits a segment after path MTU, both MSS, and timestamps.
    pub(crate) fn sync_mss(&mut self, core: &Core) {
        let headers = if self.local.is_ipv4() { 40 } else { 60 };
        let ts = if self.tstamp_ok { 12 } else { 0 };
        let mss = (self.pmtu - headers)
            .min(self.peer_mss)
            .min(u32::from(core.config.mss));
        self.mss_cache = mss.max(MSS_MIN) - ts;
    }

    /// A router cannot forward more than `mtu`. Returns whether that is news.
    pub(crate) fn reduce_pmtu(&mut self, core: &mut Core, mtu: u32) -> bool {
        let least = if self.local.is_ipv4() {
            PMTU_V4_MIN
        } else {
            PMTU_V6_MIN
        };
        let mtu = mtu.max(least);
        if mtu >= self.pmtu {
            return false;
        }
        self.pmtu = mtu;
        self.sync_mss(core);
        core.counters.pmtu_reductions += 1;
        true
    }

    /// First byte that is not in `unacked` any more or was never written.
    pub(crate) fn data_end(&self) -> u32 {
        self.data_first.wrapping_add(self.unacked.len() as u32)
    }

    /// Whether the peer may still be sent data.
    pub(crate) fn may_write(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait) && !self.fin_queued
    }

    /// The earliest of its timers.
    pub(crate) fn next_timer(&self) -> Option<Ns> {
        [self.xmit.map(|x| x.0), self.delack_at, self.keepalive_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// tcp_done(): leaves the table; the handle lives until the owner closes it.
    pub(crate) fn done(&mut self) {
        self.state = State::Close;
        self.fate.get_or_insert(Fate::Done);
        self.quiet();
    }

    /// Hands over to TIME_WAIT.
    pub(crate) fn time_wait(&mut self, substate: State, length: Ns) {
        self.fate = Some(Fate::TimeWait(substate, length));
        self.quiet();
    }

    fn quiet(&mut self) {
        self.xmit = None;
        self.delack_at = None;
        self.keepalive_at = None;
    }

    pub(crate) fn view(&self, core: &Core) -> View {
        View {
            state: self.state as u8,
            cookie: self.cookie,
            rcv_nxt: self.rcv_nxt,
            copied_seq: self.copied_seq,
            rcv_wup: self.rcv_wup,
            rcv_wnd: self.rcv_wnd,
            snd_una: self.snd_una,
            snd_nxt: self.snd_nxt,
            write_seq: self.write_seq,
            snd_wnd: self.snd_wnd,
            max_window: self.max_window,
            tsoffset: self.tsoffset,
            mss_cache: self.mss_cache,
            bytes_received: self.bytes_received,
            data_segs_in: self.data_segs_in,
            urg_data: self.urgent.is_some(),
            out_of_order: !self.pieces.is_empty(),
            bytes_acked: self.bytes_acked,
            ts_recent: self.ts_recent,
            ts_recent_s: (self.ts_recent_at / SEC) as u32,
            snd_wscale: self.snd_wscale,
            rcv_wscale: self.rcv_wscale,
            tstamp_ok: self.tstamp_ok,
            sack_ok: self.sack_ok,
            usec_ts: core.config.ts_usec,
        }
    }

    /// Checks K1 to K8; panics with the number of the broken one.
    pub(crate) fn check(&self) {
        if self.state == State::Close {
            return;
        }
        assert!(
            !seq::after(self.snd_una, self.snd_nxt),
            "K1: una {:?}",
            self.view_numbers()
        );
        assert!(
            !seq::after(self.snd_nxt, self.write_seq),
            "K1: nxt {:?}",
            self.view_numbers()
        );
        let mut at = self.snd_una;
        for sent in &self.sent {
            assert!(
                sent.seq == at && seq::after(sent.end, at),
                "K2: {sent:?}, expected {at}"
            );
            assert!(!(sent.sacked && sent.lost), "K7: {sent:?}");
            at = sent.end;
        }
        assert_eq!(at, self.snd_nxt, "K2: records end early");
        let syn = self.state == State::SynSent;
        let fin = u32::from(self.fin_queued);
        assert_eq!(
            self.data_end().wrapping_add(fin),
            self.write_seq,
            "K3: syn {syn}"
        );
        let unread = self.readable.len() as u32 + u32::from(self.fin_received);
        assert!(
            self.copied_seq.wrapping_add(unread) == self.rcv_nxt,
            "K4: {unread} unread"
        );
        assert!(
            !seq::after(self.rcv_wup, self.rcv_nxt),
            "K5: rcv_wup above rcv_nxt"
        );
        let mut at = self.rcv_nxt;
        for (i, piece) in self.pieces.iter().enumerate() {
            let first = seq::after(piece.seq, at);
            assert!(
                first && seq::after(piece.end(), self.rcv_nxt),
                "K6: piece {i}"
            );
            at = piece.seq;
        }
        let waiting = !self.sent.is_empty() || (self.write_seq != self.snd_nxt);
        assert!(
            !waiting || self.xmit.is_some() || self.fate.is_some(),
            "K8: no timer"
        );
    }

    fn view_numbers(&self) -> (u32, u32, u32) {
        (self.snd_una, self.snd_nxt, self.write_seq)
    }
}
