// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments as Ethernet frames: at most one VLAN tag, IPv4 or IPv6, options in Linux's order.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use etherparse::err::{ipv4, ipv6};
use etherparse::{
    EtherType, Ethernet2Header, Ethernet2HeaderSlice, IpEcn, IpNumber, Ipv4Header, Ipv4HeaderSlice,
    Ipv6Header, Ipv6HeaderSlice, TcpHeader, TcpHeaderSlice,
};

use crate::segment::{Macs, Options, Segment, flags};
use crate::sum::{fold, pseudo, sum};

const ETH_BYTES: usize = 14;
const VLAN_BYTES: usize = 4;
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

/// Two addresses of one family behind each other, as a pseudo-header has them.
pub(crate) fn addresses(from: IpAddr, to: IpAddr) -> ([u8; 32], usize) {
    let mut bytes = [0; 32];
    let len = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes[..4].copy_from_slice(&from.octets());
            bytes[4..8].copy_from_slice(&to.octets());
            8
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes[..16].copy_from_slice(&from.octets());
            bytes[16..].copy_from_slice(&to.octets());
            32
        }
        _ => unreachable!("a packet has addresses of one family"),
    };
    (bytes, len)
}

/// Appends Ethernet and IP headers for `len` bytes of protocol `proto`.
pub(crate) fn push_headers(
    out: &mut Vec<u8>,
    macs: Macs,
    vlan: Option<u16>,
    addrs: (IpAddr, IpAddr),
    (protocol, ecn, len): (IpNumber, u8, usize),
) {
    let kind = match addrs.0 {
        IpAddr::V4(_) => EtherType::IPV4,
        IpAddr::V6(_) => EtherType::IPV6,
    };
    let link = Ethernet2Header {
        source: macs.src,
        destination: macs.dst,
        ether_type: vlan.map_or(kind, |_| EtherType::VLAN_TAGGED_FRAME),
    };
    out.extend_from_slice(&link.to_bytes());
    if let Some(tag) = vlan {
        out.extend_from_slice(&tag.to_be_bytes());
        out.extend_from_slice(&kind.0.to_be_bytes());
    }
    match addrs {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = Ipv4Header {
                ecn: IpEcn::try_new(ecn & 3).unwrap_or_default(),
                total_len: (Ipv4Header::MIN_LEN + len) as u16,
                dont_fragment: true,
                time_to_live: TTL,
                protocol,
                source: src.octets(),
                destination: dst.octets(),
                ..Ipv4Header::default()
            };
            ip.header_checksum = ip.calc_header_checksum();
            out.extend_from_slice(&ip.to_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = Ipv6Header {
                traffic_class: ecn & 3,
                payload_length: len as u16,
                next_header: protocol,
                hop_limit: TTL,
                source: src.octets(),
                destination: dst.octets(),
                ..Ipv6Header::default()
            };
            out.extend_from_slice(&ip.to_bytes());
        }
        _ => unreachable!("a packet has addresses of one family"),
    }
}

/// An IP packet inside a frame.
pub(crate) struct IpPacket<'a> {
    pub(crate) vlan: Option<u16>,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) proto: IpNumber,
    pub(crate) ecn: u8,
    pub(crate) body: &'a [u8],
}

/// Takes Ethernet and IP headers off. IPv6 extension headers are not walked.
pub(crate) fn parse_ip(frame: &[u8]) -> Result<IpPacket<'_>, ParseError> {
    let link = Ethernet2HeaderSlice::from_slice(frame).map_err(|_| ParseError::Short)?;
    let mut kind = link.ether_type();
    let mut rest = &frame[ETH_BYTES..];
    let mut vlan = None;
    if kind == EtherType::VLAN_TAGGED_FRAME {
        let (tag, behind) = rest.split_at_checked(VLAN_BYTES).ok_or(ParseError::Short)?;
        vlan = Some(be16(tag, 0));
        kind = EtherType(be16(tag, 2));
        rest = behind;
    }
    let ip = match kind {
        EtherType::IPV4 => parse_v4(rest),
        EtherType::IPV6 => parse_v6(rest),
        _ => Err(ParseError::NotIp),
    }?;
    Ok(IpPacket { vlan, ..ip })
}

impl From<ipv4::HeaderSliceError> for ParseError {
    fn from(error: ipv4::HeaderSliceError) -> Self {
        match error {
            ipv4::HeaderSliceError::Len(_) => ParseError::Short,
            ipv4::HeaderSliceError::Content(_) => ParseError::BadIp,
        }
    }
}

impl From<ipv6::HeaderSliceError> for ParseError {
    fn from(error: ipv6::HeaderSliceError) -> Self {
        match error {
            ipv6::HeaderSliceError::Len(_) => ParseError::Short,
            ipv6::HeaderSliceError::Content(_) => ParseError::BadIp,
        }
    }
}

fn parse_v4(bytes: &[u8]) -> Result<IpPacket<'_>, ParseError> {
    let ip = Ipv4HeaderSlice::from_slice(bytes)?;
    let header = ip.slice().len();
    let total = usize::from(ip.total_len());
    if total < header {
        return Err(ParseError::BadIp);
    }
    let body = bytes.get(header..total).ok_or(ParseError::Short)?;
    if sum(ip.slice()) != 0xffff {
        return Err(ParseError::IpChecksum);
    }
    if ip.is_fragmenting_payload() {
        return Err(ParseError::Fragment);
    }
    Ok(IpPacket {
        vlan: None,
        src: ip.source_addr().into(),
        dst: ip.destination_addr().into(),
        proto: ip.protocol(),
        ecn: ip.ecn().value(),
        body,
    })
}

fn parse_v6(bytes: &[u8]) -> Result<IpPacket<'_>, ParseError> {
    let ip = Ipv6HeaderSlice::from_slice(bytes)?;
    let rest = &bytes[Ipv6Header::LEN..];
    let body = rest.get(..usize::from(ip.payload_length()));
    Ok(IpPacket {
        vlan: None,
        src: ip.source_addr().into(),
        dst: ip.destination_addr().into(),
        proto: ip.next_header(),
        ecn: ip.ecn().value(),
        body: body.ok_or(ParseError::Short)?,
    })
}

impl Options {
    /// Reads options as they stand in a TCP header.
    pub fn parse(mut bytes: &[u8]) -> Self {
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

/// The TCP header of `segment`; the sum is 0.
fn tcp_header(segment: &Segment) -> TcpHeader {
    let mut options = [0; OPTIONS_BYTES_MAX];
    let used = write_options(&segment.options, &mut options);
    let (from, to) = (segment.src.port(), segment.dst.port());
    let mut tcp = TcpHeader::new(from, to, segment.seq, segment.window);
    tcp.acknowledgment_number = segment.ack;
    tcp.urgent_pointer = segment.urgent;
    tcp.ns = segment.has(flags::AE);
    tcp.cwr = segment.has(flags::CWR);
    tcp.ece = segment.has(flags::ECE);
    tcp.urg = segment.has(flags::URG);
    tcp.ack = segment.has(flags::ACK);
    tcp.psh = segment.has(flags::PSH);
    tcp.rst = segment.has(flags::RST);
    tcp.syn = segment.has(flags::SYN);
    tcp.fin = segment.has(flags::FIN);
    tcp.set_options_raw(&options[..used])
        .expect("whole words, at most 40 bytes");
    tcp
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
        let tcp = tcp_header(self).to_bytes();
        let len = tcp.len() + self.payload.len();
        let addrs = (self.src.ip(), self.dst.ip());
        out.clear();
        out.reserve(ETH_BYTES + VLAN_BYTES + Ipv6Header::LEN + len);
        let what = (IpNumber::TCP, self.ecn, len);
        push_headers(out, macs, self.vlan, addrs, what);
        let at = out.len();
        out.extend_from_slice(&tcp);
        out.extend_from_slice(&self.payload);
        let (both, used) = addresses(addrs.0, addrs.1);
        let start = pseudo(&both[..used], IpNumber::TCP.0, len);
        let check = match checksum {
            Checksum::Full => !fold(&start.add_slice(&out[at..])),
            Checksum::Pseudo => fold(&start),
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
        if ip.proto != IpNumber::TCP {
            return Err(ParseError::NotTcp);
        }
        let tcp = TcpHeaderSlice::from_slice(ip.body).map_err(|_| ParseError::BadTcp)?;
        if verify {
            let (both, used) = addresses(ip.src, ip.dst);
            let start = pseudo(&both[..used], IpNumber::TCP.0, ip.body.len());
            if fold(&start.add_slice(ip.body)) != 0xffff {
                return Err(ParseError::TcpChecksum);
            }
        }
        Ok(Segment {
            src: SocketAddr::new(ip.src, tcp.source_port()),
            dst: SocketAddr::new(ip.dst, tcp.destination_port()),
            vlan: ip.vlan,
            ecn: ip.ecn,
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            flags: be16(tcp.slice(), 12) & flags::ALL,
            window: tcp.window_size(),
            urgent: tcp.urgent_pointer(),
            options: Options::parse(tcp.options()),
            payload: ip.body[tcp.slice().len()..].to_vec(),
        })
    }
}
