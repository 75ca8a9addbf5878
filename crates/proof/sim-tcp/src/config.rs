// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Knobs of one stack, and the constants that Linux compiles in.

use crate::Ns;

pub(crate) const MS: Ns = 1_000_000;
pub(crate) const SEC: Ns = 1_000_000_000;

/// TCP_RTO_MIN.
pub(crate) const RTO_MIN: Ns = 200 * MS;
/// TCP_RTO_MAX.
pub(crate) const RTO_MAX: Ns = 120 * SEC;
/// TCP_TIMEOUT_INIT: first timeout of SYN and SYN-ACK, and without any measurement.
pub(crate) const RTO_INIT: Ns = SEC;
/// TCP_ATO_MIN: delayed acknowledgement starts with this.
pub(crate) const ATO_MIN: Ns = 40 * MS;
/// TCP_DELACK_MAX.
pub(crate) const DELACK_MAX: Ns = 200 * MS;
/// TCP_MAX_QUICKACKS.
pub(crate) const QUICKACKS_MAX: u32 = 16;
/// TCP_PAWS_WRAP since Linux 6.7: a stamp older than this says nothing.
pub(crate) const PAWS_WRAP: Ns = (i32::MAX as u64 / 1_000_000) * SEC;
/// sysctl tcp_invalid_ratelimit: answers to segments out of window, per socket.
pub(crate) const INVALID_RATELIMIT: Ns = 500 * MS;
/// TCP_INIT_CWND.
pub(crate) const CWND_INIT: u32 = 10;
/// Duplicate acknowledgements that show a loss.
pub(crate) const DUP_THRESHOLD: u32 = 3;
/// sysctl route.min_pmtu, and the least MTU of IPv6.
pub(crate) const PMTU_V4_MIN: u32 = 552;
pub(crate) const PMTU_V6_MIN: u32 = 1280;
/// TCP_MIN_MSS.
pub(crate) const MSS_MIN: u32 = 88;

/// When an idle connection is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub time: Ns,
    /// Between probes.
    pub interval: Ns,
    /// Unanswered probes after which the connection is reset.
    pub probes: u32,
}

/// Knobs of one stack. The default is what Linux does on a device with an MTU of 1500 bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// MTU of the device; the announced MSS follows from it.
    pub mtu: u32,
    /// Announced MSS is at most this (and so is what is sent).
    pub mss: u16,
    /// Offer and accept timestamps.
    pub timestamps: bool,
    /// Timestamps count microseconds instead of milliseconds.
    pub ts_usec: bool,
    /// Offer and accept selective acknowledgements.
    pub sack: bool,
    /// Report duplicates by D-SACK.
    pub dsack: bool,
    /// Offered window scale; `None` offers none.
    pub wscale: Option<u8>,
    /// Receive window in bytes of payload; the memory behind it is twice as much, as with
    /// tcp_adv_win_scale 1.
    pub rcv_buf: u32,
    /// Send buffer in bytes of payload.
    pub snd_buf: u32,
    /// Nagle's rule; off is TCP_NODELAY.
    pub nagle: bool,
    /// Longest delay of an acknowledgement; 0 acknowledges at once.
    pub delayed_ack_ns: Ns,
    /// Keepalive, if the socket option is set.
    pub keepalive: Option<Keepalive>,
    /// sysctl tcp_retries2: how long data are sent again, as a count of back-offs from 200 ms.
    pub retries2: u32,
    /// sysctl tcp_syn_retries.
    pub syn_retries: u32,
    /// sysctl tcp_synack_retries.
    pub synack_retries: u32,
    /// sysctl tcp_orphan_retries: as `retries2` for a connection that its owner has closed.
    pub orphan_retries: u32,
    /// Length of TIME_WAIT.
    pub time_wait_ns: Ns,
    /// sysctl tcp_fin_timeout: FIN_WAIT2 of a connection that its owner has closed.
    pub fin_timeout_ns: Ns,
    /// sysctl tcp_syncookies: 0 never, 1 when the queue of requests is full, 2 always.
    pub syncookies: u8,
    /// sysctl tcp_tw_reuse: a new connection may take the place of an own one in TIME_WAIT.
    pub tw_reuse: bool,
    /// Tail loss probe.
    pub tlp: bool,
    /// Segments that leave as one packet (segmentation offload); 1 is off.
    pub gso_segs: u32,
    /// Chance in 1000 that a new data segment is cut at a random byte.
    pub split_permille: u32,
    /// 802.1Q tag on everything that is sent.
    pub vlan: Option<u16>,
    /// First sequence numbers: `None` draws them, else each stream starts here.
    pub isn: Option<u32>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mtu: 1500,
            mss: 1460,
            timestamps: true,
            ts_usec: false,
            sack: true,
            dsack: true,
            wscale: Some(7),
            rcv_buf: 131_072,
            snd_buf: 87_040,
            nagle: true,
            delayed_ack_ns: DELACK_MAX,
            keepalive: None,
            retries2: 15,
            syn_retries: 6,
            synack_retries: 5,
            orphan_retries: 8,
            time_wait_ns: 60 * SEC,
            fin_timeout_ns: 60 * SEC,
            syncookies: 1,
            tw_reuse: true,
            tlp: true,
            gso_segs: 1,
            split_permille: 0,
            vlan: None,
            isn: None,
        }
    }
}
