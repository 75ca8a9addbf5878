// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why the kernel copies what a connection sends zero-copy: looked up for people, never to decide by.

use std::fs;
use std::net::{IpAddr, TcpStream};

use nix::ifaddrs::getifaddrs;

/// What is likely to make the kernel copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The peer is on this machine: whoever receives locally gets a copy.
    LocalPeer,
    /// A packet socket is open in this network namespace (tcpdump, a DHCP client): it sees a copy.
    PacketSocket,
    /// Neither: the device, which then lacks scatter-gather or checksum offload, or a tunnel on the way.
    Device(String),
}

impl Cause {
    /// Its name in JSON and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::LocalPeer => "local_peer",
            Self::PacketSocket => "packet_socket",
            Self::Device(_) => "device",
        }
    }

    /// The likely cause for a connection that is open.
    ///
    /// # Errors
    /// If the connection is gone, or addresses cannot be listed.
    pub fn of(stream: &TcpStream) -> std::io::Result<Self> {
        let (own, peer) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
        let mut device = None;
        for interface in getifaddrs()? {
            let address = interface.address.as_ref();
            let v4 = address.and_then(|it| Some(IpAddr::V4(it.as_sockaddr_in()?.ip())));
            let v6 = address.and_then(|it| Some(IpAddr::V6(it.as_sockaddr_in6()?.ip())));
            let Some(address) = v4.or(v6) else { continue };
            if address == peer.to_canonical() || peer.to_canonical().is_loopback() {
                return Ok(Self::LocalPeer);
            }
            if address == own.to_canonical() {
                device = Some(interface.interface_name);
            }
        }
        if has_packet_sockets() {
            return Ok(Self::PacketSocket);
        }
        Ok(Self::Device(device.unwrap_or_else(|| "unknown".to_owned())))
    }
}

/// Whether a packet socket that receives is open in this network namespace.
#[must_use]
pub fn has_packet_sockets() -> bool {
    let sockets = fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default();
    // A heading, then a line for each; the fourth word is the protocol, 0: it only sends.
    let mut lines = sockets.lines().skip(1);
    lines.any(|line| {
        line.split_whitespace()
            .nth(3)
            .is_some_and(|it| it != "0000")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_on_lo_is_local() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("lo");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        assert_eq!(Cause::of(&stream).expect("told"), Cause::LocalPeer);
    }
}
