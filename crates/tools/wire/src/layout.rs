// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames as bytes: what links, the receive path and the story need to know of them, and edits that
//! keep their checksums right.

/// Bytes of an Ethernet header without tag.
pub const ETHERNET_BYTES: usize = 14;

/// The number of IPv6's fragment header.
pub const FRAGMENT_HEADER: u8 = 44;

use std::net::{IpAddr, SocketAddr};

use etherparse::checksum::Sum16BitWords;

use crate::frame::{be16, be32};
use crate::sum;

const VLAN_TYPE: u16 = 0x8100;
const IPV4_TYPE: u16 = 0x0800;
const IPV6_TYPE: u16 = 0x86dd;

/// Where the parts of a TCP frame are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First byte of the IP header.
    pub l3: usize,
    /// First byte of the TCP header.
    pub l4: usize,
    /// First byte of the payload.
    pub payload: usize,
    /// End of the IP packet: what follows is padding.
    pub end: usize,
    /// IPv6.
    pub v6: bool,
}

impl Layout {
    /// The layout of an unfragmented TCP frame, `None` if it is none.
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<Self> {
        if frame.len() < 54 {
            return None;
        }
        let (kind, l3) = match be16(frame, 12) {
            VLAN_TYPE => (be16(frame, 16), 18),
            kind => (kind, 14),
        };
        let (l4, end, v6) = match kind {
            IPV4_TYPE if frame[l3 + 9] == 6 && be16(frame, l3 + 6) & 0x3fff == 0 => {
                let header = usize::from(frame[l3] & 15) * 4;
                (l3 + header, l3 + usize::from(be16(frame, l3 + 2)), false)
            }
            IPV6_TYPE if frame.len() >= l3 + 60 && frame[l3 + 6] == 6 => {
                (l3 + 40, l3 + 40 + usize::from(be16(frame, l3 + 4)), true)
            }
            _ => return None,
        };
        if end > frame.len() || l4 + 20 > end {
            return None;
        }
        let payload = l4 + usize::from(frame[l4 + 12] >> 4) * 4;
        (payload <= end && payload >= l4 + 20).then_some(Self {
            l3,
            l4,
            payload,
            end,
            v6,
        })
    }

    /// Sequence number.
    #[must_use]
    pub fn seq(&self, frame: &[u8]) -> u32 {
        be32(frame, self.l4 + 4)
    }

    /// Acknowledgement.
    #[must_use]
    pub fn ack(&self, frame: &[u8]) -> u32 {
        be32(frame, self.l4 + 8)
    }

    /// Flags of the TCP header.
    #[must_use]
    pub fn flags(&self, frame: &[u8]) -> u8 {
        frame[self.l4 + 13]
    }

    /// Bytes of payload.
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.end - self.payload
    }

    /// Source and destination port.
    #[must_use]
    pub fn ports(&self, frame: &[u8]) -> (u16, u16) {
        (be16(frame, self.l4), be16(frame, self.l4 + 2))
    }

    /// Source and destination.
    #[must_use]
    pub fn pair(&self, frame: &[u8]) -> (SocketAddr, SocketAddr) {
        let (addresses, _) = self.flow(frame);
        let (from, to) = addresses.split_at(addresses.len() / 2);
        let address = |bytes: &[u8]| {
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let v6 = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| v6()).expect("of one version or the other")
        };
        let (source, destination) = self.ports(frame);
        (
            (address(from), source).into(),
            (address(to), destination).into(),
        )
    }

    /// Everything that makes a flow: addresses and ports.
    #[must_use]
    pub fn flow<'a>(&self, frame: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let addresses = if self.v6 {
            &frame[self.l3 + 8..self.l3 + 40]
        } else {
            &frame[self.l3 + 12..self.l3 + 20]
        };
        (addresses, &frame[self.l4..self.l4 + 4])
    }
}

/// FIN, SYN, RST, PSH, ACK, URG, ECE and CWR as letters.
#[must_use]
pub fn flag_letters(flags: u8) -> String {
    "FSRPAUEC"
        .chars()
        .enumerate()
        .filter(|(bit, _)| flags & 1 << bit != 0)
        .map(|(_, letter)| letter)
        .collect()
}

fn pseudo_sum(frame: &[u8], at: &Layout) -> Sum16BitWords {
    sum::pseudo(at.flow(frame).0, 6, at.end - at.l4)
}

/// Writes the lengths and checksums that follow from the frame's content.
pub fn seal(frame: &mut [u8], at: &Layout) {
    seal_ip(frame, at);
    let l4 = at.l4;
    frame[l4 + 16..l4 + 18].fill(0);
    let whole = pseudo_sum(frame, at).add_slice(&frame[l4..at.end]);
    let field = !sum::fold(&whole);
    frame[l4 + 16..l4 + 18].copy_from_slice(&field.to_be_bytes());
}

/// The same with the bare pseudo-header sum, as a stack leaves it that lets its card finish.
pub fn seal_bare(frame: &mut [u8], at: &Layout) {
    seal_ip(frame, at);
    let field = sum::fold(&pseudo_sum(frame, at));
    frame[at.l4 + 16..at.l4 + 18].copy_from_slice(&field.to_be_bytes());
}

/// Whether the TCP checksum field is the bare pseudo-header sum.
#[must_use]
pub fn is_bare(frame: &[u8], at: &Layout) -> bool {
    be16(frame, at.l4 + 16) == sum::fold(&pseudo_sum(frame, at))
}

fn seal_ip(frame: &mut [u8], at: &Layout) {
    let l3 = at.l3;
    if at.v6 {
        let len = u16::try_from(at.end - l3 - 40).unwrap_or(u16::MAX);
        frame[l3 + 4..l3 + 6].copy_from_slice(&len.to_be_bytes());
        return;
    }
    let len = u16::try_from(at.end - l3).unwrap_or(u16::MAX);
    frame[l3 + 2..l3 + 4].copy_from_slice(&len.to_be_bytes());
    seal_ipv4_header(frame, l3);
}

/// Whether the sum of the IPv4 header at `l3` is right.
#[must_use]
pub fn is_ipv4_header_sealed(frame: &[u8], l3: usize) -> bool {
    let header = usize::from(frame[l3] & 15) * 4;
    sum::sum(&frame[l3..l3 + header]) == 0xffff
}

/// Writes the checksum of the IPv4 header at `l3`.
pub fn seal_ipv4_header(frame: &mut [u8], l3: usize) {
    let header = usize::from(frame[l3] & 15) * 4;
    frame[l3 + 10..l3 + 12].fill(0);
    let field = !sum::sum(&frame[l3..l3 + header]);
    frame[l3 + 10..l3 + 12].copy_from_slice(&field.to_be_bytes());
}

/// A copy with other payload, `skip` bytes further in the stream, checksums right.
#[must_use]
pub fn with_payload(frame: &[u8], at: &Layout, skip: u32, payload: &[u8]) -> Vec<u8> {
    let mut copy = Vec::with_capacity(at.payload + payload.len());
    copy.extend_from_slice(&frame[..at.payload]);
    copy.extend_from_slice(payload);
    let seq = at.seq(frame).wrapping_add(skip);
    copy[at.l4 + 4..at.l4 + 8].copy_from_slice(&seq.to_be_bytes());
    let at = Layout {
        end: copy.len(),
        ..*at
    };
    seal(&mut copy, &at);
    copy
}

/// One line about a frame, for people.
#[must_use]
pub fn describe(frame: &[u8]) -> String {
    let Some(at) = Layout::of(frame) else {
        return format!("{} bytes that are no whole TCP segment", frame.len());
    };
    let (from, to) = at.ports(frame);
    let payload = &frame[at.payload..at.end];
    let shown = String::from_utf8_lossy(&payload[..payload.len().min(40)]);
    format!(
        "{from}>{to} {} seq {} ack {} win {} len {} {:?}",
        flag_letters(at.flags(frame)),
        at.seq(frame),
        at.ack(frame),
        be16(frame, at.l4 + 14),
        payload.len(),
        shown
    )
}

/// The payload of a TCP frame; none of what is no such frame.
#[must_use]
pub fn payload(frame: &[u8]) -> &[u8] {
    Layout::of(frame).map_or(&[], |at| &frame[at.payload..at.end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 54];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[23] = 6;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[46] = 0x50;
        frame[47] = 0x18;
        frame.extend_from_slice(content);
        let at = Layout {
            l3: 14,
            l4: 34,
            payload: 54,
            end: frame.len(),
            v6: false,
        };
        seal(&mut frame, &at);
        frame
    }

    #[test]
    fn a_sealed_frame_has_right_sums() {
        for content in [&b""[..], b"x", b"PING\r\n"] {
            let frame = frame(content);
            let at = Layout::of(&frame).expect("a TCP frame");
            assert_eq!(at.payload_len(), content.len());
            assert_eq!(payload(&frame), content);
            let whole = pseudo_sum(&frame, &at).add_slice(&frame[at.l4..at.end]);
            assert_eq!(sum::fold(&whole), 0xffff);
            assert!(is_ipv4_header_sealed(&frame, 14));
            assert!(!is_bare(&frame, &at));
        }
    }

    #[test]
    fn a_cut_frame_goes_on_where_the_first_ended() {
        let whole = frame(b"hello");
        let at = Layout::of(&whole).expect("a TCP frame");
        let tail = with_payload(&whole, &at, 2, b"llo");
        let cut = Layout::of(&tail).expect("a TCP frame");
        assert_eq!(cut.seq(&tail), at.seq(&whole) + 2);
        assert_eq!(payload(&tail), b"llo");
    }
}
