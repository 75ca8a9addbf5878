// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments as Ethernet frames: at most one VLAN tag, IPv4 or IPv6, options in Linux's order.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::segment::{Macs, Options, Segment};

const ETH_BYTES: usize = 14;
const VLAN_BYTES: usize = 4;
const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const IPPROTO_TCP: u8 = 6;
const TTL: u8 = 64;
/// Where the checksum stands in a TCP header.
const TCP_CHECKSUM_AT: usize = 16;
const OPTIONS_BYTES_MAX: usize = 40;

/// What stands in the checksum field of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The right sum.
    Full,
    /// The bare pseudo-header sum, which a local stack leaves for the device to complete.
    Pseudo,
}

/// Why a frame is no segment for the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The frame ends before its headers or its IP length.
    Short,
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// The IP header contradicts itself.
    BadIp,
    /// The IPv4 header's sum is wrong.
    IpChecksum,
    /// A fragment.
    Fragment,
    /// Another protocol than TCP.
    NotTcp,
    /// The TCP header contradicts itself.
    BadTcp,
    /// The TCP sum is wrong.
    TcpChecksum,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParseError::Short => "the frame is shorter than its headers say",
            ParseError::NotIp => "the frame carries no IP",
            ParseError::BadIp => "the IP header contradicts itself",
            ParseError::IpChecksum => "the IPv4 header's checksum is wrong",
            ParseError::Fragment => "the packet is a fragment",
            ParseError::NotTcp => "the packet is not TCP",
            ParseError::BadTcp => "the TCP header contradicts itself",
            ParseError::TcpChecksum => "the TCP checksum is wrong",
        })
    }
}

impl std::error::Error for ParseError {}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Adds bytes to a one's complement sum that is folded at the end.
pub(crate) fn sum(bytes: &[u8], start: u64) -> u64 {
    let mut chunks = bytes.chunks_exact(4);
    let mut total = start;
    for chunk in &mut chunks {
        total += u64::from(u32::from_be_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]));
    }
    let rest = chunks.remainder();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total + u64::from(u32::from_be_bytes(last))
}

/// The 16-bit sum, not complemented.
pub(crate) fn fold(mut total: u64) -> u16 {
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// Sum of the pseudo-header for `len` bytes of protocol `proto`.
pub(crate) fn pseudo(src: IpAddr, dst: IpAddr, proto: u8, len: usize) -> u64 {
    let start = u64::from(proto) + len as u64;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sum(&dst.octets(), sum(&src.octets(), start)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => sum(&dst.octets(), sum(&src.octets(), start)),
        _ => unreachable!("a packet has addresses of one family"),
    }
}

/// Appends Ethernet and IP headers for `len` bytes of protocol `proto`.
pub(crate) fn push_headers(
    out: &mut Vec<u8>,
    macs: Macs,
    vlan: Option<u16>,
    addrs: (IpAddr, IpAddr),
    (proto, ecn, len): (u8, u8, usize),
) {
    out.extend_from_slice(&macs.dst);
    out.extend_from_slice(&macs.src);
    if let Some(tci) = vlan {
        out.extend_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
        out.extend_from_slice(&tci.to_be_bytes());
    }
    match addrs {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            out.extend_from_slice(&ETHERTYPE_V4.to_be_bytes());
            let mut ip = [0; 20];
            ip[0] = 0x45;
            ip[1] = ecn & 3;
            ip[2..4].copy_from_slice(&((20 + len) as u16).to_be_bytes());
            ip[6] = 0x40; // do not fragment
            ip[8] = TTL;
            ip[9] = proto;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let check = !fold(sum(&ip, 0));
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            out.extend_from_slice(&ip);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            out.extend_from_slice(&ETHERTYPE_V6.to_be_bytes());
            let mut ip = [0; 40];
            ip[0] = 0x60;
            ip[1] = (ecn & 3) << 4;
            ip[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            ip[6] = proto;
            ip[7] = TTL;
            ip[8..24].copy_from_slice(&src.octets());
            ip[24..40].copy_from_slice(&dst.octets());
            out.extend_from_slice(&ip);
        }
        _ => unreachable!("a packet has addresses of one family"),
    }
}

/// An IP packet inside a frame.
pub(crate) struct IpPacket<'a> {
    pub(crate) vlan: Option<u16>,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) proto: u8,
    pub(crate) ecn: u8,
    pub(crate) body: &'a [u8],
}

/// Takes Ethernet and IP headers off. IPv6 extension headers are not walked.
pub(crate) fn parse_ip(frame: &[u8]) -> Result<IpPacket<'_>, ParseError> {
    if frame.len() < ETH_BYTES + VLAN_BYTES {
        return Err(ParseError::Short);
    }
    let mut ethertype = be16(frame, 12);
    let mut at = ETH_BYTES;
    let mut vlan = None;
    if ethertype == ETHERTYPE_VLAN {
        vlan = Some(be16(frame, 14));
        ethertype = be16(frame, 16);
        at += VLAN_BYTES;
    }
    let ip = match ethertype {
        ETHERTYPE_V4 => parse_v4(&frame[at..]),
        ETHERTYPE_V6 => parse_v6(&frame[at..]),
        _ => Err(ParseError::NotIp),
    }?;
    Ok(IpPacket { vlan, ..ip })
}

fn parse_v4(ip: &[u8]) -> Result<IpPacket<'_>, ParseError> {
    if ip.len() < 20 {
        return Err(ParseError::Short);
    }
    let header = usize::from(ip[0] & 0x0f) * 4;
    let total = usize::from(be16(ip, 2));
    if ip[0] >> 4 != 4 || header < 20 || total < header {
        return Err(ParseError::BadIp);
    }
    if ip.len() < total {
        return Err(ParseError::Short);
    }
    if fold(sum(&ip[..header], 0)) != 0xffff {
        return Err(ParseError::IpChecksum);
    }
    if be16(ip, 6) & 0x3fff != 0 {
        return Err(ParseError::Fragment);
    }
    let addr = |at: usize| IpAddr::V4(Ipv4Addr::from(be32(ip, at)));
    Ok(IpPacket {
        vlan: None,
        src: addr(12),
        dst: addr(16),
        proto: ip[9],
        ecn: ip[1] & 3,
        body: &ip[header..total],
    })
}

fn parse_v6(ip: &[u8]) -> Result<IpPacket<'_>, ParseError> {
    if ip.len() < 40 {
        return Err(ParseError::Short);
    }
    let len = usize::from(be16(ip, 4));
    if ip[0] >> 4 != 6 {
        return Err(ParseError::BadIp);
    }
    if ip.len() < 40 + len {
        return Err(ParseError::Short);
    }
    let addr = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&ip[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    Ok(IpPacket {
        vlan: None,
        src: addr(8),
        dst: addr(24),
        proto: ip[6],
        ecn: ip[1] >> 4 & 3,
        body: &ip[40..40 + len],
    })
}

/// Writes the options as Linux orders them and pads them to words. Returns their length. Options
/// that do not fit are left out from the end.
fn write_options(options: &Options, out: &mut [u8; OPTIONS_BYTES_MAX]) -> usize {
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        if len + bytes.len() <= OPTIONS_BYTES_MAX {
            out[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        }
    };
    if let Some(mss) = options.mss {
        let mss = mss.to_be_bytes();
        put(&[2, 4, mss[0], mss[1]]);
    }
    if let Some((val, ecr)) = options.ts {
        let start = if options.sack_ok {
            [4, 2, 8, 10]
        } else {
            [1, 1, 8, 10]
        };
        let mut ts = [0; 12];
        ts[..4].copy_from_slice(&start);
        ts[4..8].copy_from_slice(&val.to_be_bytes());
        ts[8..].copy_from_slice(&ecr.to_be_bytes());
        put(&ts);
    } else if options.sack_ok {
        put(&[1, 1, 4, 2]);
    }
    if let Some(scale) = options.wscale {
        put(&[1, 3, 3, scale]);
    }
    let blocks = options.sack.as_slice();
    if !blocks.is_empty() {
        put(&[1, 1, 5, 2 + 8 * blocks.len() as u8]);
        for (first, end) in blocks {
            put(&first.to_be_bytes());
            put(&end.to_be_bytes());
        }
    }
    put(&options.other);
    out[len..len.next_multiple_of(4)].fill(0);
    len.next_multiple_of(4)
}

fn parse_options(mut bytes: &[u8]) -> Options {
    let mut options = Options::default();
    while let [kind, rest @ ..] = bytes {
        match kind {
            0 => break,
            1 => {
                bytes = rest;
                continue;
            }
            _ => {}
        }
        let len = usize::from(rest.first().copied().unwrap_or(0));
        if len < 2 || len > bytes.len() {
            break; // as the kernel: what cannot be read ends the list
        }
        let (option, after) = bytes.split_at(len);
        match (kind, len) {
            (2, 4) => options.mss = Some(be16(option, 2)),
            (3, 3) => options.wscale = Some(option[2]),
            (4, 2) => options.sack_ok = true,
            (5, 10 | 18 | 26 | 34) => {
                for at in (2..len).step_by(8) {
                    options.sack.push(be32(option, at), be32(option, at + 4));
                }
            }
            (8, 10) => options.ts = Some((be32(option, 2), be32(option, 6))),
            _ => options.other.extend_from_slice(option),
        }
        bytes = after;
    }
    options
}

/// The TCP header of `segment` into the returned buffer, with its length; the sum is 0.
pub(crate) fn tcp_header(segment: &Segment) -> ([u8; 20 + OPTIONS_BYTES_MAX], usize) {
    let mut options = [0; OPTIONS_BYTES_MAX];
    let used = write_options(&segment.options, &mut options);
    let mut tcp = [0; 20 + OPTIONS_BYTES_MAX];
    tcp[..2].copy_from_slice(&segment.src.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&segment.dst.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&segment.seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&segment.ack.to_be_bytes());
    tcp[12] = (((20 + used) / 4) << 4) as u8 | ((segment.flags >> 8) & 1) as u8;
    tcp[13] = segment.flags as u8;
    tcp[14..16].copy_from_slice(&segment.window.to_be_bytes());
    tcp[18..20].copy_from_slice(&segment.urgent.to_be_bytes());
    tcp[20..].copy_from_slice(&options);
    (tcp, 20 + used)
}

impl Segment {
    /// The segment as an Ethernet frame with right sums.
    pub fn to_frame(&self, macs: Macs) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_frame(macs, Checksum::Full, &mut out);
        out
    }

    /// Replaces `out` by the segment's frame.
    pub fn write_frame(&self, macs: Macs, checksum: Checksum, out: &mut Vec<u8>) {
        let (tcp, header) = tcp_header(self);
        let len = header + self.payload.len();
        let addrs = (self.src.ip(), self.dst.ip());
        out.clear();
        out.reserve(ETH_BYTES + VLAN_BYTES + 40 + len);
        push_headers(out, macs, self.vlan, addrs, (IPPROTO_TCP, self.ecn, len));
        let at = out.len();
        out.extend_from_slice(&tcp[..header]);
        out.extend_from_slice(&self.payload);
        let start = pseudo(addrs.0, addrs.1, IPPROTO_TCP, len);
        let check = match checksum {
            Checksum::Full => !fold(sum(&out[at..], start)),
            Checksum::Pseudo => fold(start),
        };
        out[at + TCP_CHECKSUM_AT..at + TCP_CHECKSUM_AT + 2].copy_from_slice(&check.to_be_bytes());
    }

    /// Reads a frame; both sums must be right, or the kernel would drop it.
    pub fn parse(frame: &[u8]) -> Result<Segment, ParseError> {
        Segment::read(frame, true)
    }

    /// As [`Segment::parse`] for a frame whose TCP sum the device vouches for or has yet to write
    /// (CHECKSUM_UNNECESSARY, CHECKSUM_PARTIAL).
    pub fn parse_vouched(frame: &[u8]) -> Result<Segment, ParseError> {
        Segment::read(frame, false)
    }

    fn read(frame: &[u8], verify: bool) -> Result<Segment, ParseError> {
        let ip = parse_ip(frame)?;
        if ip.proto != IPPROTO_TCP {
            return Err(ParseError::NotTcp);
        }
        let tcp = ip.body;
        if tcp.len() < 20 {
            return Err(ParseError::BadTcp);
        }
        let header = usize::from(tcp[12] >> 4) * 4;
        if header < 20 || header > tcp.len() {
            return Err(ParseError::BadTcp);
        }
        let start = pseudo(ip.src, ip.dst, IPPROTO_TCP, tcp.len());
        if verify && fold(sum(tcp, start)) != 0xffff {
            return Err(ParseError::TcpChecksum);
        }
        Ok(Segment {
            src: SocketAddr::new(ip.src, be16(tcp, 0)),
            dst: SocketAddr::new(ip.dst, be16(tcp, 2)),
            vlan: ip.vlan,
            ecn: ip.ecn,
            seq: be32(tcp, 4),
            ack: be32(tcp, 8),
            flags: u16::from(tcp[13]) | u16::from(tcp[12] & 1) << 8,
            window: be16(tcp, 14),
            urgent: be16(tcp, 18),
            options: parse_options(&tcp[20..header]),
            payload: tcp[header..].to_vec(),
        })
    }
}
