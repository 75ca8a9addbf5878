// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What programs ask of the kernel around them; the world implements it.

use std::net::SocketAddr;

use crate::packet::Packet;

/// A socket as programs may see it: the fields of `bpf/base/kernel_types.h`. Fields that a socket of its
/// state does not have are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sock {
    /// Cookie; 0 if none was made yet.
    pub cookie: u64,
    /// `tcp_sock.bytes_received`; for the checks, programs do not see it.
    pub bytes_received: u64,
    /// Bytes of ours that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Next byte expected.
    pub rcv_nxt: u32,
    /// Segments with payload, whatever became of them.
    pub data_segs_in: u32,
    /// Head of what user space has not read.
    pub copied_seq: u32,
    /// `rcv_nxt` when the window was last advertised.
    pub rcv_wup: u32,
    /// Window last advertised.
    pub rcv_wnd: u32,
    /// Oldest unacknowledged byte.
    pub snd_una: u32,
    /// Next byte to be sent.
    pub snd_nxt: u32,
    /// End of what user space has written.
    pub write_seq: u32,
    /// Window of the peer.
    pub snd_wnd: u32,
    /// Largest window the peer has offered.
    pub max_window: u32,
    /// Offset of timestamps.
    pub tsoffset: u32,
    /// Bytes per segment, options not counted.
    pub mss_cache: u32,
    /// Timestamp to be echoed.
    pub ts_recent: u32,
    /// When it was learnt: seconds, `CLOCK_MONOTONIC`.
    pub ts_recent_s: u32,
    /// A listener's queue for Fast Open, 0: none.
    pub fastopen: u32,
    /// `tcp_request_sock`: the peer's first number.
    pub rcv_isn: u32,
    /// `tcp_request_sock`: our first number.
    pub snt_isn: u32,
    /// Other than 0: an urgent byte is awaited, or unread.
    pub urg_data: u16,
    /// `TCP_*` of `bpf/base/kernel_types.h`; decides what kind of socket it is.
    pub state: u8,
    /// 1: timestamps are in use.
    pub tstamp_ok: u8,
    /// Scale of the peer's window.
    pub snd_wscale: u8,
    /// Scale of our window.
    pub rcv_wscale: u8,
    /// 1: timestamps are in microseconds.
    pub usec_ts: u8,
    /// 4 or 6.
    pub family: u8,
    /// 1: segments wait for what is before them.
    pub out_of_order: u8,
    /// 1: of a listener with `IP_TRANSPARENT`.
    pub transparent: u8,
}

impl Sock {
    /// An IPv4 connection that awaits `rcv` and sends `snd` next; all is read and acknowledged.
    #[must_use]
    pub fn established(cookie: u64, rcv: u32, snd: u32) -> Self {
        Self {
            cookie,
            rcv_nxt: rcv,
            copied_seq: rcv,
            rcv_wup: rcv,
            rcv_wnd: 65_535,
            snd_una: snd,
            snd_nxt: snd,
            write_seq: snd,
            snd_wnd: 65_535,
            max_window: 65_535,
            mss_cache: 1460,
            state: tcp_state::ESTABLISHED,
            family: 4,
            ..Self::default()
        }
    }
}

/// States of sockets, `include/net/tcp_states.h`.
pub mod tcp_state {
    /// `TCP_ESTABLISHED`.
    pub const ESTABLISHED: u8 = 1;
    /// `TCP_SYN_SENT`.
    pub const SYN_SENT: u8 = 2;
    /// `TCP_SYN_RECV`.
    pub const SYN_RECV: u8 = 3;
    /// `TCP_FIN_WAIT1`.
    pub const FIN_WAIT1: u8 = 4;
    /// `TCP_FIN_WAIT2`.
    pub const FIN_WAIT2: u8 = 5;
    /// `TCP_TIME_WAIT`: `tcp_timewait_sock`.
    pub const TIME_WAIT: u8 = 6;
    /// `TCP_CLOSE`.
    pub const CLOSE: u8 = 7;
    /// `TCP_CLOSE_WAIT`.
    pub const CLOSE_WAIT: u8 = 8;
    /// `TCP_LAST_ACK`.
    pub const LAST_ACK: u8 = 9;
    /// `TCP_LISTEN`.
    pub const LISTEN: u8 = 10;
    /// `TCP_CLOSING`.
    pub const CLOSING: u8 = 11;
    /// `TCP_NEW_SYN_RECV`: `tcp_request_sock`.
    pub const NEW_SYN_RECV: u8 = 12;
}

/// The kernel around the programs. Called from inside programs, so by shared reference; an
/// implementation must not keep a borrow of its own across [`crate::point`].
pub trait Kernel {
    /// `CLOCK_MONOTONIC`, ns.
    fn now_ns(&self) -> u64;
    /// The same, as of the last jiffy.
    fn now_coarse_ns(&self) -> u64;
    /// The socket that a packet from `remote` to `local` on this device belongs to: a connection,
    /// TIME_WAIT, a request, else a listener. The number is the world's own.
    fn lookup(&self, ifindex: u32, local: SocketAddr, remote: SocketAddr) -> Option<u64>;
    /// Whether a segment with these numbers ends a handshake by SYN cookie.
    fn is_cookie(&self, local: SocketAddr, remote: SocketAddr, seq: u32, ack: u32) -> bool {
        let _ = (local, remote, seq, ack);
        false
    }
    /// The socket at this moment. None: it is gone from all tables; programs that still hold a
    /// reference see it as it last was, a connection closed.
    fn view(&self, sock: u64) -> Option<Sock>;
    /// A clone that a program sent has passed the egress program and leaves by the device.
    fn transmit(&self, ifindex: u32, packet: Packet);
    /// A clone that a program sent is received by the device: behind its XDP, in front of TC's ingress, and not before
    /// the program has ended. False: there is no room.
    fn receive(&self, packet: Packet) -> bool;
    /// A program leaves the lock of an entry; nobody else has run since it changed it.
    fn leaves(&self, entry: &erb_abi::conn) {
        let _ = entry;
    }
    /// `bpf_get_prandom_u32`, and whatever else has to be random in a kernel.
    fn random(&self) -> u32;
}
