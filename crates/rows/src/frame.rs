// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames as values: built from the few fields a row names, read back with every checksum proved.
//!
//! Headers and checksums are etherparse's, so that the data path is not checked against its own
//! arithmetic.

use anyhow::{Context, Result, bail, ensure};
use erb_lab::topology::{
    CLIENT_IPV4, CLIENT_IPV6, CLIENT_MAC, SERVER_IPV4, SERVER_IPV6, SERVER_MAC,
};
use etherparse::{IpNumber, Ipv4Header, Ipv6Header, TcpHeader};

/// Redis's port in every row.
pub const PORT: u16 = 6379;

/// TCP flag, as in the header's 13th byte; `AE` is the bit before it.
pub const FIN: u16 = 0x01;
/// See [`FIN`].
pub const SYN: u16 = 0x02;
/// See [`FIN`].
pub const RST: u16 = 0x04;
/// See [`FIN`].
pub const PSH: u16 = 0x08;
/// See [`FIN`].
pub const ACK: u16 = 0x10;
/// See [`FIN`].
pub const URG: u16 = 0x20;
/// See [`FIN`].
pub const ECE: u16 = 0x40;
/// See [`FIN`].
pub const CWR: u16 = 0x80;
/// See [`FIN`].
pub const AE: u16 = 0x100;

/// Version of the Internet protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What the TCP checksum field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The right sum.
    Full,
    /// The bare pseudo-header sum, what a local stack leaves to its device.
    Pseudo,
    /// Neither.
    Wrong,
}

/// What is unusual about the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpOdd {
    /// Nothing.
    No,
    /// Four bytes of IPv4 options (NOPs), or a hop-by-hop header in IPv6.
    Options,
    /// More fragments follow (IPv4 flag, IPv6 fragment header).
    FirstFragment,
    /// A fragment from the middle.
    LaterFragment,
    /// IPv4 header sum off by one.
    BadSum,
    /// Congestion experienced.
    Ce,
}

/// A TCP segment in its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// True: from client to server.
    pub up: bool,
    /// Version of the Internet protocol.
    pub family: Family,
    /// The client's port.
    pub client_port: u16,
    /// Tags, outermost first.
    pub vlan: Vec<u16>,
    /// `FIN` to `AE`.
    pub flags: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Window field, unscaled.
    pub window: u16,
    /// TSval and TSecr.
    pub ts: Option<(u32, u32)>,
    /// Options behind the timestamps, a multiple of four bytes.
    pub options: Vec<u8>,
    /// Payload.
    pub payload: Vec<u8>,
    /// What the checksum field holds.
    pub checksum: Checksum,
    /// What is unusual about the IP header.
    pub ip: IpOdd,
    /// The frame is padded with zeros to this length (60 is Ethernet's least).
    pub pad_to: usize,
    /// Bytes that the TCP header says to be longer than it is: for headers that do not fit.
    pub cut: usize,
}

impl Segment {
    /// An empty ACK from the client.
    #[must_use]
    pub const fn new(family: Family, client_port: u16) -> Self {
        Self {
            up: true,
            family,
            client_port,
            vlan: Vec::new(),
            flags: ACK,
            seq: 0,
            ack: 0,
            window: 0xffff,
            ts: None,
            options: Vec::new(),
            payload: Vec::new(),
            checksum: Checksum::Full,
            ip: IpOdd::No,
            pad_to: 0,
            cut: 0,
        }
    }

    /// SACK blocks as an option, with the two NOPs in front that Linux writes.
    #[must_use]
    pub fn sack(mut self, blocks: &[(u32, u32)]) -> Self {
        self.options.extend([1, 1, 5, 2 + 8 * blocks.len() as u8]);
        for (start, end) in blocks {
            self.options.extend(start.to_be_bytes());
            self.options.extend(end.to_be_bytes());
        }
        self
    }

    /// The frame.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut frame = self.link_header();
        let tcp = self.tcp_bytes();
        match self.family {
            Family::V4 => frame.extend(self.ipv4_header(tcp.len())),
            Family::V6 => frame.extend(self.ipv6_header(tcp.len())),
        }
        frame.extend(tcp);
        frame.truncate(frame.len() - self.cut);
        if frame.len() < self.pad_to {
            frame.resize(self.pad_to, 0);
        }
        frame
    }

    fn link_header(&self) -> Vec<u8> {
        let (to, from) = if self.up {
            (SERVER_MAC, CLIENT_MAC)
        } else {
            (CLIENT_MAC, SERVER_MAC)
        };
        let mut bytes = [to, from].concat();
        for tag in &self.vlan {
            bytes.extend([0x81, 0x00]);
            bytes.extend(tag.to_be_bytes());
        }
        bytes.extend(match self.family {
            Family::V4 => [0x08, 0x00],
            Family::V6 => [0x86, 0xdd],
        });
        bytes
    }

    fn ipv4_header(&self, tcp_len: usize) -> Vec<u8> {
        let (from, to) = addresses(self.up, CLIENT_IPV4.octets(), SERVER_IPV4.octets());
        let mut ip = Ipv4Header {
            time_to_live: 61,
            protocol: IpNumber::TCP,
            source: from,
            destination: to,
            dont_fragment: matches!(self.ip, IpOdd::No | IpOdd::BadSum | IpOdd::Ce),
            identification: 0x1234,
            ..Default::default()
        };
        if self.ip == IpOdd::Options {
            ip.options = [1u8; 4].into();
        }
        ip.more_fragments = matches!(self.ip, IpOdd::FirstFragment | IpOdd::LaterFragment);
        if self.ip == IpOdd::LaterFragment {
            ip.fragment_offset = 8u16.try_into().expect("in range");
        }
        ip.set_payload_len(tcp_len).expect("a frame is short");
        let mut bytes = ip.to_bytes().to_vec();
        bytes[1] = if self.ip == IpOdd::Ce { 3 } else { 0 };
        bytes[10..12].fill(0);
        let sum = !fold(sum_of(&bytes)) ^ u16::from(self.ip == IpOdd::BadSum);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn ipv6_header(&self, tcp_len: usize) -> Vec<u8> {
        let (from, to) = addresses(self.up, CLIENT_IPV6.octets(), SERVER_IPV6.octets());
        let extension: &[u8] = match self.ip {
            IpOdd::Options => &[6, 0, 1, 4, 0, 0, 0, 0],
            IpOdd::FirstFragment => &[6, 0, 0, 1, 0, 0, 0, 9],
            IpOdd::LaterFragment => &[6, 0, 0, 0x41, 0, 0, 0, 9],
            _ => &[],
        };
        let ip = Ipv6Header {
            traffic_class: if self.ip == IpOdd::Ce { 3 } else { 0 },
            payload_length: (extension.len() + tcp_len) as u16,
            next_header: match self.ip {
                IpOdd::Options => IpNumber(0),
                IpOdd::FirstFragment | IpOdd::LaterFragment => IpNumber(44),
                _ => IpNumber::TCP,
            },
            hop_limit: 61,
            source: from,
            destination: to,
            ..Default::default()
        };
        [&ip.to_bytes(), extension].concat()
    }

    fn tcp_bytes(&self) -> Vec<u8> {
        let (source, destination) = if self.up {
            (self.client_port, PORT)
        } else {
            (PORT, self.client_port)
        };
        let mut tcp = TcpHeader::new(source, destination, self.seq, self.window);
        tcp.acknowledgment_number = self.ack;
        let mut options = Vec::new();
        if let Some((value, echo)) = self.ts {
            options.extend([1, 1, 8, 10]);
            options.extend(value.to_be_bytes());
            options.extend(echo.to_be_bytes());
        }
        options.extend(&self.options);
        tcp.set_options_raw(&options).expect("at most 40 bytes");
        let mut bytes = tcp.to_bytes().to_vec();
        bytes[12] = bytes[12] & 0xf0 | (self.flags >> 8) as u8;
        bytes[13] = self.flags as u8;
        if self.flags & URG != 0 {
            bytes[19] = 1;
        }
        bytes.extend(&self.payload);
        let pseudo = pseudo_sum(self.family, bytes.len());
        let sum = match self.checksum {
            Checksum::Full => !fold(pseudo + sum_of(&bytes)),
            Checksum::Pseudo => fold(pseudo),
            Checksum::Wrong => !fold(pseudo + sum_of(&bytes)) ^ 0x5a5a,
        };
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Reads a frame of a row's connection: lengths, IP sum and TCP sum are proved, addresses must
    /// be the lab's. What is behind the IP packet is padding. What arrives may have no hops left: only
    /// who forwards counts them.
    ///
    /// # Errors
    /// If it is no TCP segment between the two ends, a length or the IP sum is wrong, or the server
    /// sends it nowhere.
    pub fn parse(frame: &[u8]) -> Result<Self> {
        let up = frame.get(..6) == Some(&SERVER_MAC[..]);
        let macs = if up {
            [SERVER_MAC, CLIENT_MAC]
        } else {
            [CLIENT_MAC, SERVER_MAC]
        };
        ensure!(
            frame.get(..12) == Some(&macs.concat()[..]),
            "hardware addresses"
        );
        let (vlan, kind, network) = parse_tags(&frame[12..])?;
        let mut segment = match kind {
            [0x08, 0x00] => parse_ipv4(network, up)?,
            [0x86, 0xdd] => parse_ipv6(network, up)?,
            other => bail!("ethertype {other:02x?}"),
        };
        segment.vlan = vlan;
        Ok(segment)
    }
}

fn addresses<T>(up: bool, client: T, server: T) -> (T, T) {
    if up {
        (client, server)
    } else {
        (server, client)
    }
}

/// Unfolded one's complement sum of big-endian words.
fn sum_of(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)))
        .sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn pseudo_sum(family: Family, tcp_len: usize) -> u64 {
    let ends = match family {
        Family::V4 => sum_of(&CLIENT_IPV4.octets()) + sum_of(&SERVER_IPV4.octets()),
        Family::V6 => sum_of(&CLIENT_IPV6.octets()) + sum_of(&SERVER_IPV6.octets()),
    };
    ends + 6 + tcp_len as u64
}

fn parse_tags(mut rest: &[u8]) -> Result<(Vec<u16>, [u8; 2], &[u8])> {
    let mut tags = Vec::new();
    loop {
        let kind: [u8; 2] = *rest.first_chunk().context("no ethertype")?;
        rest = &rest[2..];
        if kind != [0x81, 0x00] {
            return Ok((tags, kind, rest));
        }
        tags.push(u16::from_be_bytes(*rest.first_chunk().context("no tag")?));
        rest = &rest[2..];
    }
}

fn parse_ipv4(packet: &[u8], up: bool) -> Result<Segment> {
    let (ip, _) = Ipv4Header::from_slice(packet).context("IPv4 header")?;
    let ends = addresses(up, CLIENT_IPV4.octets(), SERVER_IPV4.octets());
    ensure!((ip.source, ip.destination) == ends, "IPv4 addresses");
    ensure!(ip.protocol == IpNumber::TCP, "protocol {:?}", ip.protocol);
    let header = packet.get(..ip.header_len()).context("IPv4 header cut")?;
    ensure!(fold(sum_of(header)) == 0xffff, "wrong IPv4 header sum");
    ensure!(up || ip.time_to_live > 0, "time to live 0");
    let end = usize::from(ip.total_len);
    let tcp = packet.get(ip.header_len()..end).context("IPv4 length")?;
    let mut segment = parse_tcp(tcp, Family::V4, up)?;
    segment.ip = match (header.len(), ip.is_fragmenting_payload(), header[1] & 3) {
        (20, false, 3) => IpOdd::Ce,
        (20, false, _) => IpOdd::No,
        (_, true, _) => IpOdd::FirstFragment,
        _ => IpOdd::Options,
    };
    Ok(segment)
}

fn parse_ipv6(packet: &[u8], up: bool) -> Result<Segment> {
    let (ip, rest) = Ipv6Header::from_slice(packet).context("IPv6 header")?;
    let ends = addresses(up, CLIENT_IPV6.octets(), SERVER_IPV6.octets());
    ensure!((ip.source, ip.destination) == ends, "IPv6 addresses");
    ensure!(up || ip.hop_limit > 0, "hop limit 0");
    let content = rest
        .get(..usize::from(ip.payload_length))
        .context("IPv6 length")?;
    let (odd, skip) = match ip.next_header.0 {
        6 if ip.traffic_class & 3 == 3 => (IpOdd::Ce, 0),
        6 => (IpOdd::No, 0),
        0 => (IpOdd::Options, 8),
        44 => (IpOdd::FirstFragment, 8),
        other => bail!("next header {other}"),
    };
    let mut segment = parse_tcp(
        content.get(skip..).context("IPv6 extension")?,
        Family::V6,
        up,
    )?;
    segment.ip = odd;
    Ok(segment)
}

fn parse_tcp(bytes: &[u8], family: Family, up: bool) -> Result<Segment> {
    let (tcp, payload) = TcpHeader::from_slice(bytes).context("TCP header")?;
    let (client_port, port) = addresses(up, tcp.source_port, tcp.destination_port);
    ensure!(port == PORT, "port {port}");
    let mut options = tcp.options.as_slice().to_vec();
    let mut ts = None;
    if options.starts_with(&[1, 1, 8, 10]) && options.len() >= 12 {
        let word = |at: usize| u32::from_be_bytes(options[at..at + 4].try_into().expect("four"));
        ts = Some((word(4), word(8)));
        options.drain(..12);
    }
    let pseudo = pseudo_sum(family, bytes.len());
    let checksum = if fold(pseudo + sum_of(bytes)) == 0xffff {
        Checksum::Full
    } else if tcp.checksum == fold(pseudo) {
        Checksum::Pseudo
    } else {
        Checksum::Wrong
    };
    Ok(Segment {
        up,
        client_port,
        flags: u16::from(bytes[12] & 1) << 8 | u16::from(bytes[13]),
        seq: tcp.sequence_number,
        ack: tcp.acknowledgment_number,
        window: tcp.window_size,
        ts,
        options,
        payload: payload.to_vec(),
        checksum,
        ..Segment::new(family, client_port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_frames_read_back() {
        for family in [Family::V4, Family::V6] {
            for checksum in [Checksum::Full, Checksum::Pseudo, Checksum::Wrong] {
                let segment = Segment {
                    seq: 7,
                    ack: 9,
                    flags: PSH | ACK,
                    ts: Some((1, 2)),
                    payload: b"*1\r\n$4\r\nPING\r\n".to_vec(),
                    checksum,
                    vlan: vec![5],
                    ..Segment::new(family, 40_000)
                };
                let frame = segment.bytes();
                assert_eq!(Segment::parse(&frame).unwrap(), segment);
                assert!(etherparse::SlicedPacket::from_ethernet(&frame).is_ok());
            }
        }
    }

    #[test]
    fn a_wrong_ip_sum_is_seen() {
        let mut segment = Segment::new(Family::V4, 40_000);
        segment.ip = IpOdd::BadSum;
        assert!(Segment::parse(&segment.bytes()).is_err());
    }
}
