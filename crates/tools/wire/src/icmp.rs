// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ICMP errors that quote a segment: fragmentation needed, Packet Too Big, unreachable.

use std::net::{IpAddr, SocketAddr};

use etherparse::{IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice};

use crate::frame::{ParseError, addresses, be16, be32, parse_ip, push_headers};
use crate::segment::{Macs, Segment};
use crate::sum::{fold, pseudo, sum};

/// What a router may quote: RFC 1812 4.3.2.3 and RFC 4443 2.4.
const QUOTE_V4_MAX: usize = 576 - 20 - 8;
const QUOTE_V6_MAX: usize = 1280 - 40 - 8;
const V4_UNREACHABLE: u8 = 3;
const V4_FRAG_NEEDED: u8 = 4;
const V6_UNREACHABLE: u8 = 1;
const V6_TOO_BIG: u8 = 2;

/// What the router says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpKind {
    /// The next link takes packets of at most so many bytes.
    TooBig(u32),
    /// The destination cannot be reached, for the reason with this code.
    Unreachable(u8),
}

/// An ICMP error about a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The router.
    pub from: IpAddr,
    /// What it says.
    pub kind: IcmpKind,
    /// Sender of the quoted segment, who gets the error.
    pub src: SocketAddr,
    /// Receiver of the quoted segment.
    pub dst: SocketAddr,
    /// Sequence number of the quoted segment.
    pub seq: u32,
    /// 802.1Q tag control information of the frame.
    pub vlan: Option<u16>,
}

impl IcmpError {
    /// Builds the frame with which router `from` refuses `segment`.
    pub fn frame(from: IpAddr, kind: IcmpKind, segment: &Segment, macs: Macs) -> Vec<u8> {
        let quoted = segment.to_frame(Macs::default());
        let skip = 14 + if segment.vlan.is_some() { 4 } else { 0 };
        let most = if from.is_ipv4() {
            QUOTE_V4_MAX
        } else {
            QUOTE_V6_MAX
        };
        let quoted = &quoted[skip..];
        let quoted = &quoted[..quoted.len().min(most)];
        Self::quoting(from, kind, segment.src.ip(), segment.vlan, macs, quoted)
    }

    /// Builds the frame with which router `from` refuses the IP packet that begins with `quoted`.
    pub fn quoting(
        from: IpAddr,
        kind: IcmpKind,
        to: IpAddr,
        vlan: Option<u16>,
        macs: Macs,
        quoted: &[u8],
    ) -> Vec<u8> {
        let v4 = from.is_ipv4();
        let mut body = vec![0; 8];
        match (kind, v4) {
            (IcmpKind::TooBig(mtu), true) => {
                body[..2].copy_from_slice(&[V4_UNREACHABLE, V4_FRAG_NEEDED]);
                body[6..8].copy_from_slice(&(mtu as u16).to_be_bytes());
            }
            (IcmpKind::TooBig(mtu), false) => {
                body[0] = V6_TOO_BIG;
                body[4..8].copy_from_slice(&mtu.to_be_bytes());
            }
            (IcmpKind::Unreachable(code), true) => {
                body[..2].copy_from_slice(&[V4_UNREACHABLE, code])
            }
            (IcmpKind::Unreachable(code), false) => {
                body[..2].copy_from_slice(&[V6_UNREACHABLE, code]);
            }
        }
        body.extend_from_slice(quoted);
        let check = !body_sum(from, to, &body);
        body[2..4].copy_from_slice(&check.to_be_bytes());
        let mut out = Vec::with_capacity(body.len() + 58);
        let what = (protocol(from), 0, body.len());
        push_headers(&mut out, macs, vlan, (from, to), what);
        out.extend_from_slice(&body);
        out
    }

    /// Reads a frame. [`ParseError::NotTcp`] if it is no error about a segment.
    pub fn parse(frame: &[u8]) -> Result<IcmpError, ParseError> {
        let ip = parse_ip(frame)?;
        if ip.proto != protocol(ip.src) {
            return Err(ParseError::NotTcp);
        }
        let body = ip.body;
        if body.len() < 8 {
            return Err(ParseError::Short);
        }
        if body_sum(ip.src, ip.dst, body) != 0xffff {
            return Err(ParseError::TcpChecksum);
        }
        let v4 = ip.src.is_ipv4();
        let kind = match (v4, body[0], body[1]) {
            (true, V4_UNREACHABLE, V4_FRAG_NEEDED) => IcmpKind::TooBig(u32::from(be16(body, 6))),
            (true, V4_UNREACHABLE, code) | (false, V6_UNREACHABLE, code) => {
                IcmpKind::Unreachable(code)
            }
            (false, V6_TOO_BIG, _) => IcmpKind::TooBig(be32(body, 4)),
            _ => return Err(ParseError::NotTcp),
        };
        let (src, dst, tcp) = quoted(&body[8..], v4)?;
        Ok(IcmpError {
            from: ip.src,
            kind,
            src: SocketAddr::new(src, be16(tcp, 0)),
            dst: SocketAddr::new(dst, be16(tcp, 2)),
            seq: be32(tcp, 4),
            vlan: ip.vlan,
        })
    }
}

fn protocol(of: IpAddr) -> IpNumber {
    match of {
        IpAddr::V4(_) => IpNumber::ICMP,
        IpAddr::V6(_) => IpNumber::IPV6_ICMP,
    }
}

/// Only ICMPv6 has a pseudo-header.
fn body_sum(from: IpAddr, to: IpAddr, body: &[u8]) -> u16 {
    if from.is_ipv4() {
        return sum(body);
    }
    let (both, used) = addresses(from, to);
    fold(&pseudo(&both[..used], IpNumber::IPV6_ICMP.0, body.len()).add_slice(body))
}

/// Addresses of the quoted packet and at least the first eight bytes of its TCP header.
fn quoted(bytes: &[u8], v4: bool) -> Result<(IpAddr, IpAddr, &[u8]), ParseError> {
    let (src, dst, protocol, header) = if v4 {
        let ip = Ipv4HeaderSlice::from_slice(bytes)?;
        let (src, dst) = (ip.source_addr().into(), ip.destination_addr().into());
        (src, dst, ip.protocol(), ip.slice().len())
    } else {
        let ip = Ipv6HeaderSlice::from_slice(bytes)?;
        let (src, dst) = (ip.source_addr().into(), ip.destination_addr().into());
        (src, dst, ip.next_header(), ip.slice().len())
    };
    if protocol != IpNumber::TCP {
        return Err(ParseError::NotTcp);
    }
    let tcp = &bytes[header..];
    (tcp.len() >= 8)
        .then_some((src, dst, tcp))
        .ok_or(ParseError::Short)
}
