// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ICMP errors that quote a segment: fragmentation needed, Packet Too Big, unreachable.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::segment::{Macs, Segment};
use crate::wire::{ParseError, be16, be32, fold, parse_ip, pseudo, push_headers, sum};

const IPPROTO_ICMP: u8 = 1;
const IPPROTO_ICMPV6: u8 = 58;
const IPPROTO_TCP: u8 = 6;
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
        let v4 = segment.src.is_ipv4();
        let most = if v4 { QUOTE_V4_MAX } else { QUOTE_V6_MAX };
        let quoted = &quoted[skip..];
        let quoted = &quoted[..quoted.len().min(most)];
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
        let to = segment.src.ip();
        let proto = if v4 { IPPROTO_ICMP } else { IPPROTO_ICMPV6 };
        let start = if v4 {
            0
        } else {
            pseudo(from, to, proto, body.len())
        };
        let check = !fold(sum(&body, start));
        body[2..4].copy_from_slice(&check.to_be_bytes());
        let mut out = Vec::with_capacity(body.len() + 58);
        push_headers(
            &mut out,
            macs,
            segment.vlan,
            (from, to),
            (proto, 0, body.len()),
        );
        out.extend_from_slice(&body);
        out
    }

    /// Reads a frame. [`ParseError::NotTcp`] if it is no error about a segment.
    pub fn parse(frame: &[u8]) -> Result<IcmpError, ParseError> {
        let ip = parse_ip(frame)?;
        let v4 = ip.src.is_ipv4();
        if ip.proto != if v4 { IPPROTO_ICMP } else { IPPROTO_ICMPV6 } {
            return Err(ParseError::NotTcp);
        }
        let body = ip.body;
        let start = if v4 {
            0
        } else {
            pseudo(ip.src, ip.dst, ip.proto, body.len())
        };
        if body.len() < 8 {
            return Err(ParseError::Short);
        }
        if fold(sum(body, start)) != 0xffff {
            return Err(ParseError::TcpChecksum);
        }
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

/// Addresses of the quoted packet and at least the first eight bytes of its TCP header.
fn quoted(ip: &[u8], v4: bool) -> Result<(IpAddr, IpAddr, &[u8]), ParseError> {
    if ip.len() < if v4 { 28 } else { 48 } {
        return Err(ParseError::Short);
    }
    if v4 {
        let header = usize::from(ip[0] & 0x0f) * 4;
        if ip[9] != IPPROTO_TCP {
            return Err(ParseError::NotTcp);
        }
        if header < 20 || ip.len() < header + 8 {
            return Err(ParseError::Short);
        }
        let addr = |at| IpAddr::V4(Ipv4Addr::from(be32(ip, at)));
        return Ok((addr(12), addr(16), &ip[header..]));
    }
    if ip[6] != IPPROTO_TCP {
        return Err(ParseError::NotTcp);
    }
    let addr = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&ip[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    Ok((addr(8), addr(24), &ip[40..]))
}
