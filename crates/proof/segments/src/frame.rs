// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments of exchanges as Ethernet frames.

use std::net::SocketAddr;

use erb_wire::layout::seal_ipv4_header;
use erb_wire::{Macs, Options, ParseError, SackBlocks, Segment as Wired, flags};

use crate::exchange::{Fault, Offer, PSH, Segment};
use crate::wire::Ends;

/// Window scale that the client offers.
pub const WINDOW_SCALE: u8 = 4;
/// Window field of its segments: 64 KiB less what scaling loses.
pub const WINDOW: u16 = 4_000;
/// Where the IPv4 header begins.
const IP: usize = 14;
/// Where the TCP header begins: there are no IP options.
const TCP: usize = IP + 20;

/// A segment with the numbers that go onto the cable.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement.
    pub ack: u32,
    /// What relative number 0 of the server is, for SACK blocks.
    pub server_zero: u32,
    /// Timestamp and echo, if any.
    pub stamp: Option<(u32, u32)>,
}

/// The frame of a segment; `offer` if it opens a connection.
#[must_use]
pub fn build(ends: &Ends, n: Numbers, segment: &Segment, offer: Option<&Offer>) -> Vec<u8> {
    let mut wired = Wired::new(ends.client.into(), ends.server.into());
    wired.seq = n.seq;
    wired.ack = n.ack;
    wired.flags = u16::from(segment.flags);
    if segment.ack.is_some() {
        wired.flags |= flags::ACK;
    }
    if !segment.payload.is_empty() {
        wired.flags |= flags::PSH;
    }
    wired.window = segment.window.unwrap_or(WINDOW);
    wired.ecn = segment.ecn;
    wired.payload.clone_from(&segment.payload);
    wired.options = options(n, segment, offer);
    let mut frame = wired.to_frame(Macs {
        src: ends.client_mac,
        dst: ends.server_mac,
    });
    spoil(&mut frame, segment.fault);
    frame
}

fn options(n: Numbers, segment: &Segment, offer: Option<&Offer>) -> Options {
    let wire = |number: i64| n.server_zero.wrapping_add(number as u32);
    let mut sack = SackBlocks::default();
    for (from, to) in &segment.sack {
        sack.push(wire(*from), wire(*to));
    }
    Options {
        mss: offer.map(|offer| offer.mss),
        wscale: offer.map(|_| WINDOW_SCALE),
        sack_ok: offer.is_some_and(|offer| offer.sack),
        ts: n.stamp,
        sack,
        other: Vec::new(),
    }
}

/// Makes a right frame a wrong one.
fn spoil(frame: &mut [u8], fault: Fault) {
    match fault {
        Fault::None => {}
        Fault::TcpChecksum => frame[TCP + 16] ^= 0x55,
        Fault::IpChecksum => frame[IP + 10] ^= 0x55,
        Fault::IpLength => {
            // Shorter than the two headers; the IP checksum fits it.
            let length = 30_u16.to_be_bytes();
            frame[IP + 2..IP + 4].copy_from_slice(&length);
            seal_ipv4_header(frame, IP);
        }
        // The checksum no longer fits either, but lengths are looked at first.
        Fault::TcpLength => frame[TCP + 12] = 0xf0,
    }
}

/// The segment in a frame if it is for the client.
///
/// # Errors
/// If it is damaged.
pub fn parse(ends: &Ends, frame: &[u8]) -> Result<Option<Wired>, ParseError> {
    // What goes to others may have sums that their device has yet to write.
    let ours = Wired::parse_vouched(frame)
        .is_ok_and(|segment| segment.dst == SocketAddr::from(ends.client));
    if ours {
        Wired::parse(frame).map(Some)
    } else {
        Ok(None)
    }
}

/// Flags that exchanges know; PSH says nothing.
#[must_use]
pub fn known_flags(segment: &Wired) -> u8 {
    segment.flags as u8 & !PSH
}
