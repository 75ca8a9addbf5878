// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a stack shows to its caller: handles, events, segments, look-ups, counters.

use crate::Segment;

/// A connection's handle. Handles are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SockId(pub(crate) u64);

/// State of a socket, numbered as in the kernel (include/net/tcp_states.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(
    missing_docs,
    reason = "the names are those of RFC 9293 and the kernel"
)]
pub enum State {
    Established = 1,
    SynSent = 2,
    SynRecv = 3,
    FinWait1 = 4,
    FinWait2 = 5,
    TimeWait = 6,
    Close = 7,
    CloseWait = 8,
    LastAck = 9,
    Listen = 10,
    Closing = 11,
    NewSynRecv = 12,
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A connection waits for [`crate::Host::accept`].
    Incoming,
    /// An own connection is established.
    Connected,
    /// There is something to read.
    Readable,
    /// The send buffer has room again after [`crate::Host::send`] took less than was offered.
    Writable,
    /// The peer sends no more: what can be read is all there is.
    PeerClosed,
    /// The peer reset the connection, or refused it.
    Reset,
    /// The peer was silent for too long.
    TimedOut,
    /// The connection is gone (TIME_WAIT has no owner) and its handle with it.
    Closed,
}

/// An event of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whose.
    pub id: SockId,
    /// What.
    pub kind: EventKind,
}

/// A segment that has left TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The segment, longer than `gso_size` if it is to be cut by the device ([`Segment::split`]).
    pub segment: Segment,
    /// Cookie of the socket that sent it: 0 for a SYN-ACK with a SYN cookie, [`crate::Host::CONTROL_COOKIE`]
    /// for answers without a full socket (resets, TIME_WAIT, acknowledgements of requests).
    pub cookie: u64,
    /// Bytes of payload per segment on the wire; 0 if it leaves as it is.
    pub gso_size: u32,
}

/// What a look-up by addresses finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Handle of a full socket that is no listener.
    pub id: Option<SockId>,
    /// State.
    pub state: State,
    /// Socket cookie: kept from request socket to connection to TIME_WAIT.
    pub cookie: u64,
    /// Client's first number (NEW_SYN_RECV).
    pub rcv_isn: u32,
    /// Own first number (NEW_SYN_RECV).
    pub snt_isn: u32,
    /// The peer's first timestamp, 0 if there is none (NEW_SYN_RECV).
    pub ts_recent: u32,
    /// Whether it is a listener.
    pub listen: bool,
}

/// Fields of `struct tcp_sock` at this moment, named as there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of struct tcp_sock")]
pub struct View {
    pub state: u8,
    pub cookie: u64,
    pub rcv_nxt: u32,
    pub copied_seq: u32,
    pub rcv_wup: u32,
    pub rcv_wnd: u32,
    pub snd_una: u32,
    pub snd_nxt: u32,
    pub write_seq: u32,
    pub snd_wnd: u32,
    pub max_window: u32,
    pub tsoffset: u32,
    pub mss_cache: u32,
    pub bytes_received: u64,
    pub data_segs_in: u32,
    pub urg_data: bool,
    pub out_of_order: bool,
    pub bytes_acked: u64,
    pub ts_recent: u32,
    pub ts_recent_s: u32,
    pub snd_wscale: u8,
    pub rcv_wscale: u8,
    pub tstamp_ok: bool,
    pub sack_ok: bool,
    pub usec_ts: bool,
}

/// How often a rule applied (as `nstat` shows it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is named by its rule")]
pub struct Counters {
    pub segments_in: u64,
    pub segments_out: u64,
    pub challenge_acks: u64,
    pub too_old_acks: u64,
    pub old_acks: u64,
    pub unsent_acks: u64,
    pub paws_drops: u64,
    pub out_of_window: u64,
    pub dsacks_sent: u64,
    pub retransmits: u64,
    pub fast_recoveries: u64,
    pub timeouts: u64,
    pub tail_probes: u64,
    pub window_probes: u64,
    pub keepalive_probes: u64,
    pub resets_sent: u64,
    pub syn_cookies_sent: u64,
    pub syn_cookies_taken: u64,
    pub syn_cookies_failed: u64,
    pub listen_drops: u64,
    pub pmtu_reductions: u64,
    pub icmp_out_of_window: u64,
    pub time_wait_reused: u64,
}
