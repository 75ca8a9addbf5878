// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments of somebody who is on no connection: any source address, numbers by chance.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result};
use etherparse::{IpFragOffset, IpNumber, Ipv4Header, TcpHeader};
use fastrand::Rng;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Hop limit of a forged packet.
const HOP_LIMIT: u8 = 64;
/// A first fragment of so many bytes has the ports and no more.
const TINY_FRAGMENT_BYTES: usize = 8;

/// What is forged, in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One byte of payload, of a connection that there is not.
    Stray,
    /// An acknowledgement.
    Ack,
    /// The end of the client's stream.
    Fin,
    /// A reset.
    Rst,
    /// A write.
    Payload,
    /// A first fragment that ends within the TCP header.
    Tiny,
    /// A SYN on the connection's addresses.
    Syn,
}

const KINDS: [Kind; 7] = [
    Kind::Stray,
    Kind::Ack,
    Kind::Fin,
    Kind::Rst,
    Kind::Payload,
    Kind::Tiny,
    Kind::Syn,
];

/// A sender of forged segments.
pub struct Forger {
    socket: Socket,
    server: SocketAddrV4,
    victims: Vec<SocketAddrV4>,
    random: Rng,
    sent: u64,
}

impl Forger {
    /// Opens a raw socket in the caller's network namespace. The victims are clients whose
    /// connections are aimed at.
    ///
    /// # Errors
    /// If the socket cannot be had: it needs CAP_NET_RAW.
    pub fn new(server: SocketAddrV4, victims: Vec<SocketAddrV4>, seed: u64) -> Result<Self> {
        let raw = Protocol::from(i32::from(IpNumber(255).0)); // IPPROTO_RAW: headers are ours
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(raw))
            .context("cannot open a raw socket (needs root)")?;
        Ok(Self {
            socket,
            server,
            victims,
            random: Rng::with_seed(seed),
            sent: 0,
        })
    }

    /// Sends the next one, of each kind in turn; how many that were.
    ///
    /// # Errors
    /// If the kernel does not send it.
    pub fn send_next(&mut self) -> Result<u64> {
        self.send(KINDS[usize::try_from(self.sent)? % KINDS.len()])
    }

    /// Sends one byte of payload of a connection that there is not; how many that were.
    ///
    /// # Errors
    /// If the kernel does not send it.
    pub fn send_stray(&mut self) -> Result<u64> {
        self.send(Kind::Stray)
    }

    fn send(&mut self, kind: Kind) -> Result<u64> {
        let packet = self.packet(kind);
        let to = SockAddr::from(self.server);
        self.socket
            .send_to(&packet, &to)
            .with_context(|| format!("cannot send a forged {kind:?}"))?;
        self.sent += 1;
        Ok(self.sent)
    }

    fn packet(&mut self, kind: Kind) -> Vec<u8> {
        let from = match kind {
            Kind::Stray => SocketAddrV4::new(
                Ipv4Addr::new(10, 77, 0, self.random.u8(100..200)),
                self.random.u16(1024..65_535),
            ),
            _ => self.victims[self.random.usize(..self.victims.len())],
        };
        let mut tcp = TcpHeader::new(
            from.port(),
            self.server.port(),
            self.random.u32(..),
            self.random.u16(512..65_535),
        );
        tcp.ack = kind != Kind::Syn;
        tcp.acknowledgment_number = self.random.u32(..);
        let mut payload: &[u8] = b"";
        match kind {
            Kind::Stray => payload = b"x",
            Kind::Ack => {}
            Kind::Fin => tcp.fin = true,
            Kind::Rst => tcp.rst = true,
            Kind::Payload | Kind::Tiny => {
                payload = b"*3\r\n$3\r\nSET\r\n$8\r\nhonest:1\r\n$6\r\nforged\r\n";
            }
            Kind::Syn => tcp.syn = true,
        }
        packet(from, self.server, &mut tcp, payload, kind == Kind::Tiny)
    }
}

/// An IPv4 packet, or its tiny first fragment.
fn packet(
    from: SocketAddrV4,
    to: SocketAddrV4,
    tcp: &mut TcpHeader,
    payload: &[u8],
    tiny: bool,
) -> Vec<u8> {
    let (source, target) = (from.ip().octets(), to.ip().octets());
    // Both fail only for a payload of more than 64 KiB.
    tcp.checksum = tcp
        .calc_checksum_ipv4_raw(source, target, payload)
        .expect("a short payload");
    let mut body = tcp.to_bytes().to_vec();
    body.extend_from_slice(payload);
    if tiny {
        body.truncate(TINY_FRAGMENT_BYTES);
    }
    let mut ip = Ipv4Header::new(
        u16::try_from(body.len()).expect("a short payload"),
        HOP_LIMIT,
        IpNumber::TCP,
        source,
        target,
    )
    .expect("a short payload");
    ip.more_fragments = tiny;
    ip.fragment_offset = IpFragOffset::ZERO;
    ip.header_checksum = ip.calc_header_checksum();
    let mut packet = ip.to_bytes().to_vec();
    packet.extend_from_slice(&body);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    #[test]
    fn forged_segments_have_right_checksums() {
        let from = "10.77.0.1:4000".parse().unwrap();
        let to: SocketAddrV4 = "10.77.0.2:6379".parse().unwrap();
        let mut tcp = TcpHeader::new(4000, 6379, 7, 1000);
        let bytes = packet(from, to, &mut tcp, b"abc", false);
        let sliced = SlicedPacket::from_ip(&bytes).unwrap();
        let Some(NetSlice::Ipv4(ip)) = &sliced.net else {
            panic!("no IPv4")
        };
        let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
            panic!("no TCP")
        };
        assert_eq!(tcp.payload(), b"abc");
        let header = tcp.to_header();
        let wanted = header.calc_checksum_ipv4(&ip.header().to_header(), tcp.payload());
        assert_eq!(header.checksum, wanted.unwrap());
    }

    #[test]
    fn a_tiny_fragment_ends_within_the_header() {
        let from = "10.77.0.1:4000".parse().unwrap();
        let to: SocketAddrV4 = "10.77.0.2:6379".parse().unwrap();
        let mut tcp = TcpHeader::new(4000, 6379, 7, 1000);
        let bytes = packet(from, to, &mut tcp, b"abc", true);
        assert_eq!(bytes.len(), 20 + TINY_FRAGMENT_BYTES);
        assert_eq!(bytes[6] & 0x20, 0x20, "more fragments");
    }
}
