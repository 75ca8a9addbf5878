// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames as values: built from the few fields a row names, read back with every checksum proved.
//!
//! Headers and checksums are those of `erb-wire`; what rows need besides, odd IP headers, is here.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use erb_lab::topology::{
    CLIENT_IPV4, CLIENT_IPV6, CLIENT_MAC, SERVER_IPV4, SERVER_IPV6, SERVER_MAC,
};
pub use erb_wire::flags::{ACK, AE, CWR, ECE, FIN, PSH, RST, SYN, URG};
use erb_wire::layout::{self, Layout};
use erb_wire::{Macs, Options};

/// Redis's port in every row.
pub const PORT: u16 = 6379;
/// Hops that a packet has left.
const HOPS: u8 = 61;
/// Where the IP header begins, tags aside.
const L3: usize = layout::ETHERNET_BYTES;
/// The types of an Ethernet frame.
const VLAN: [u8; 2] = [0x81, 0x00];

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
        let mut frame = self.plain();
        match self.family {
            Family::V4 => self.make_odd_v4(&mut frame),
            Family::V6 => self.make_odd_v6(&mut frame),
        }
        for tag in self.vlan.iter().rev() {
            frame.splice(12..12, [VLAN, tag.to_be_bytes()].concat());
        }
        frame.truncate(frame.len() - self.cut);
        if frame.len() < self.pad_to {
            frame.resize(self.pad_to, 0);
        }
        frame
    }

    /// The frame without tags, without anything unusual about the IP header.
    fn plain(&self) -> Vec<u8> {
        let (from, to) = ends(self.family, self.client_port, self.up);
        let segment = erb_wire::Segment {
            ecn: if self.ip == IpOdd::Ce { 3 } else { 0 },
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: u16::from(self.flags & URG != 0),
            options: Options {
                ts: self.ts,
                other: self.options.clone(),
                ..Options::default()
            },
            payload: self.payload.clone(),
            ..erb_wire::Segment::new(from, to)
        };
        let mut frame = segment.to_frame(macs(self.up));
        let at = Layout::of(&frame).expect("a TCP frame");
        match self.checksum {
            Checksum::Full => {}
            Checksum::Pseudo => layout::seal_bare(&mut frame, &at),
            Checksum::Wrong => frame[at.l4 + 16..at.l4 + 18]
                .iter_mut()
                .for_each(|byte| *byte ^= 0x5a),
        }
        frame
    }

    fn make_odd_v4(&self, frame: &mut Vec<u8>) {
        frame[L3 + 4..L3 + 6].copy_from_slice(&[0x12, 0x34]); // identification
        frame[L3 + 8] = HOPS;
        match self.ip {
            IpOdd::No | IpOdd::BadSum | IpOdd::Ce => {}
            IpOdd::Options => {
                frame[L3] += 1;
                lengthen(frame, L3 + 2, 4);
                frame[L3 + 6] = 0; // may be fragmented
                frame.splice(L3 + 20..L3 + 20, [1; 4]);
            }
            IpOdd::FirstFragment => frame[L3 + 6..L3 + 8].copy_from_slice(&[0x20, 0]),
            IpOdd::LaterFragment => frame[L3 + 6..L3 + 8].copy_from_slice(&[0x20, 8]),
        }
        layout::seal_ipv4_header(frame, L3);
        frame[L3 + 11] ^= u8::from(self.ip == IpOdd::BadSum);
    }

    fn make_odd_v6(&self, frame: &mut Vec<u8>) {
        frame[L3 + 7] = HOPS;
        let (next, header) = match self.ip {
            IpOdd::Options => (0, [6, 0, 1, 4, 0, 0, 0, 0]),
            IpOdd::FirstFragment => (layout::FRAGMENT_HEADER, [6, 0, 0, 1, 0, 0, 0, 9]),
            IpOdd::LaterFragment => (layout::FRAGMENT_HEADER, [6, 0, 0, 0x41, 0, 0, 0, 9]),
            _ => return,
        };
        lengthen(frame, L3 + 4, 8);
        frame[L3 + 6] = next;
        frame.splice(L3 + 40..L3 + 40, header);
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
        let wanted = macs(up);
        ensure!(
            frame.get(..12) == Some(&[wanted.dst, wanted.src].concat()[..]),
            "hardware addresses"
        );
        let mut frame = frame.to_vec();
        let mut vlan = Vec::new();
        while frame.get(12..14) == Some(&VLAN[..]) {
            vlan.push(u16::from_be_bytes(
                *frame[14..].first_chunk().context("no tag")?,
            ));
            frame.drain(12..16);
        }
        let ip = make_plain(&mut frame, up)?;
        let read = erb_wire::Segment::parse_vouched(&frame)?;
        let at = Layout::of(&frame).context("no TCP header")?;
        let checksum = if erb_wire::Segment::parse(&frame).is_ok() {
            Checksum::Full
        } else if layout::is_bare(&frame, &at) {
            Checksum::Pseudo
        } else {
            Checksum::Wrong
        };
        let family = if at.v6 { Family::V6 } else { Family::V4 };
        let client_port = if up { read.src.port() } else { read.dst.port() };
        ensure!(
            (read.src, read.dst) == ends(family, client_port, up),
            "from {} to {}",
            read.src,
            read.dst
        );
        let mut options = frame[at.l4 + 20..at.payload].to_vec();
        let ts = read
            .options
            .ts
            .filter(|_| options.starts_with(&[1, 1, 8, 10]));
        options.drain(..if ts.is_some() { 12 } else { 0 });
        Ok(Self {
            up,
            vlan,
            flags: read.flags,
            seq: read.seq,
            ack: read.ack,
            window: read.window,
            ts,
            options,
            payload: read.payload,
            checksum,
            ip,
            ..Self::new(family, client_port)
        })
    }
}

/// Source and destination.
fn ends(family: Family, client_port: u16, up: bool) -> (SocketAddr, SocketAddr) {
    let (client, server) = match family {
        Family::V4 => (CLIENT_IPV4.into(), SERVER_IPV4.into()),
        Family::V6 => (CLIENT_IPV6.into(), SERVER_IPV6.into()),
    };
    let client = SocketAddr::new(client, client_port);
    let server = SocketAddr::new(server, PORT);
    if up {
        (client, server)
    } else {
        (server, client)
    }
}

const fn macs(up: bool) -> Macs {
    let (src, dst) = if up {
        (CLIENT_MAC, SERVER_MAC)
    } else {
        (SERVER_MAC, CLIENT_MAC)
    };
    Macs { src, dst }
}

/// Moves the 16-bit length at `at`.
fn lengthen(frame: &mut [u8], at: usize, by: i16) {
    let length = u16::from_be_bytes([frame[at], frame[at + 1]]).wrapping_add_signed(by);
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

/// Takes what is unusual about the IP header off an untagged frame; says what that was.
fn make_plain(frame: &mut Vec<u8>, up: bool) -> Result<IpOdd> {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => make_plain_v4(frame, up),
        Some([0x86, 0xdd]) => make_plain_v6(frame, up),
        other => bail!("ethertype {other:02x?}"),
    }
}

fn make_plain_v4(frame: &mut Vec<u8>, up: bool) -> Result<IpOdd> {
    let header = usize::from(frame.get(L3).context("no IPv4 header")? & 15) * 4;
    ensure!(
        header >= 20 && frame.len() >= L3 + header,
        "IPv4 header cut"
    );
    ensure!(
        layout::is_ipv4_header_sealed(frame, L3),
        "wrong IPv4 header sum"
    );
    ensure!(up || frame[L3 + 8] > 0, "time to live 0");
    let is_fragment = frame[L3 + 6] & 0x3f != 0 || frame[L3 + 7] != 0;
    let odd = match (header, is_fragment, frame[L3 + 1] & 3) {
        (20, false, 3) => IpOdd::Ce,
        (20, false, _) => IpOdd::No,
        (_, true, _) => IpOdd::FirstFragment,
        _ => IpOdd::Options,
    };
    frame[L3] = 0x45;
    lengthen(frame, L3 + 2, 20 - header as i16);
    frame[L3 + 6..L3 + 8].fill(0);
    frame.drain(L3 + 20..L3 + header);
    layout::seal_ipv4_header(frame, L3);
    Ok(odd)
}

fn make_plain_v6(frame: &mut Vec<u8>, up: bool) -> Result<IpOdd> {
    ensure!(frame.len() >= L3 + 48, "IPv6 header cut");
    ensure!(up || frame[L3 + 7] > 0, "hop limit 0");
    let odd = match frame[L3 + 6] {
        6 if frame[L3 + 1] & 0x30 == 0x30 => return Ok(IpOdd::Ce),
        6 => return Ok(IpOdd::No),
        0 => IpOdd::Options,
        layout::FRAGMENT_HEADER => IpOdd::FirstFragment,
        other => bail!("next header {other}"),
    };
    frame[L3 + 6] = frame[L3 + 40];
    lengthen(frame, L3 + 4, -8);
    frame.drain(L3 + 40..L3 + 48);
    Ok(odd)
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
