// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's TCP sockets in the caller's network namespace, through sock_diag.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use erb_redis::{Listener, TcpPair, Traffic};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, SOCK_DESTROY};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};
use nix::net::if_::InterfaceFlags;

use crate::{Error, Result};

/// Bytes of one answer of the kernel: it fills at most 32 KiB per read.
const ANSWER_BYTES: usize = 64 * 1024;

/// Where `struct tcp_info` says how many segments with payload came (tcpi_data_segs_in).
const DATA_SEGS_IN: std::ops::Range<usize> = 152..156;

/// State of a handshake that is not over (`TCP_SYN_RECV`), of request sockets too.
const SYN_RECV: u8 = 3;

fn request(family: u8, states: StateFlags, socket_id: SocketId) -> InetRequest {
    InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states,
        socket_id,
    }
}

fn serialize(request: InetRequest, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn open() -> std::io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddr::new(0, 0))?;
    Ok(socket)
}

/// All sockets of a family in the given states.
fn dump(family: u8, states: StateFlags) -> std::io::Result<Vec<InetResponse>> {
    let socket_id = if family == AF_INET {
        SocketId::new_v4()
    } else {
        SocketId::new_v6()
    };
    let socket = open()?;
    let mut request = request(family, states, socket_id);
    request.extensions = ExtensionFlags::INFO;
    socket.send(&serialize(request, NLM_F_REQUEST | NLM_F_DUMP), 0)?;
    let mut found = Vec::new();
    loop {
        let mut bytes = Vec::with_capacity(ANSWER_BYTES);
        let size = socket.recv(&mut bytes, 0)?;
        let mut offset = 0;
        while offset < size {
            let message = <NetlinkMessage<SockDiagMessage>>::deserialize(&bytes[offset..size])
                .map_err(|error| std::io::Error::other(error.to_string()))?;
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                    found.push(*response);
                }
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
            // Messages are aligned to four bytes.
            offset += (message.header.length as usize).next_multiple_of(4).max(16);
        }
    }
}

/// Whether a TCP socket listens on the port, IPv4 or IPv6.
///
/// # Errors
/// [`Error::Io`] if the kernel does not list its sockets.
pub fn listens_on(port: u16) -> Result<bool> {
    Ok(!listeners(port)?.is_empty())
}

/// Sockets of this namespace that listen on the port.
///
/// # Errors
/// [`Error::Io`] if the kernel does not list its sockets.
pub fn listeners(port: u16) -> Result<Vec<Listener>> {
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let sockets =
            dump(family, StateFlags::LISTEN).map_err(Error::io("could not list the listeners"))?;
        let here = sockets.iter().map(|socket| &socket.header.socket_id);
        found.extend(here.filter(|id| id.source_port == port).map(|id| Listener {
            cookie: cookie(id),
            address: id.source_address.to_canonical(),
            interface: id.interface_id,
        }));
    }
    found.sort_by_key(|listener| (listener.address, listener.cookie));
    Ok(found)
}

/// Two words in host order, the low one first (struct inet_diag_sockid).
fn cookie(id: &SocketId) -> u64 {
    let word = |at: usize| {
        let bytes = [0, 1, 2, 3].map(|i| id.cookie[at + i]);
        u64::from(u32::from_ne_bytes(bytes))
    };
    word(0) | word(4) << 32
}

/// What TCP has had of a connection.
fn traffic(socket: &InetResponse) -> Traffic {
    if socket.header.state == SYN_RECV {
        return Traffic::Opening;
    }
    let info = socket.nlas.iter().find_map(|nla| match nla {
        Nla::TcpInfo(bytes) => bytes.get(DATA_SEGS_IN),
        _ => None,
    });
    match info {
        Some(&[0, 0, 0, 0]) => Traffic::Silent,
        _ => Traffic::Heard,
    }
}

/// Connections to the port that Redis may still read from or that the kernel has not finished.
///
/// # Errors
/// [`Error::Io`] if the kernel does not list its sockets.
pub fn connections(port: u16) -> Result<HashMap<TcpPair, Traffic>> {
    let states =
        StateFlags::all() & !(StateFlags::LISTEN | StateFlags::TIME_WAIT | StateFlags::CLOSE);
    let mut found = HashMap::new();
    for family in [AF_INET, AF_INET6] {
        let sockets =
            dump(family, states.clone()).map_err(Error::io("could not list the connections"))?;
        for socket in &sockets {
            let id = &socket.header.socket_id;
            if id.source_port != port {
                continue;
            }
            let client = id.destination_address.to_canonical();
            let pair = TcpPair {
                client: SocketAddr::new(client, id.destination_port),
                server: SocketAddr::new(id.source_address.to_canonical(), port),
            };
            found.insert(pair, traffic(socket));
        }
    }
    Ok(found)
}

/// Addresses of this namespace.
///
/// # Errors
/// [`Error::Io`] if the kernel does not list them.
pub fn local_addresses() -> Result<HashSet<IpAddr>> {
    let mut found = HashSet::from([
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ]);
    let all = nix::ifaddrs::getifaddrs().map_err(Error::io("could not list the addresses"))?;
    for address in all.filter_map(|entry| entry.address) {
        if let Some(v4) = address.as_sockaddr_in() {
            found.insert(IpAddr::V4(v4.ip()));
        } else if let Some(v6) = address.as_sockaddr_in6() {
            found.insert(IpAddr::V6(v6.ip()));
        }
    }
    Ok(found)
}

/// Devices of this namespace that are up, each with its addresses.
///
/// # Errors
/// [`Error::Io`] if the kernel does not list them.
pub fn device_addresses() -> Result<BTreeMap<String, Vec<IpAddr>>> {
    let all = nix::ifaddrs::getifaddrs().map_err(Error::io("could not list the addresses"))?;
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for entry in all.filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP)) {
        let addresses = found.entry(entry.interface_name).or_default();
        let Some(address) = entry.address else {
            continue;
        };
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        addresses.extend(v4.or_else(v6));
    }
    Ok(found)
}

/// Ends a connection with a reset, as `ss --kill` does; false if it was gone already. The cookie
/// is a must: a look-up without it that finds no connection finds, and would end, the listener.
///
/// # Errors
/// [`Error::Io`] if the kernel refuses.
pub fn destroy(pair: &TcpPair, cookie: u64) -> Result<bool> {
    // A dual-stack listener's IPv4 connections are IPv6 sockets with mapped addresses.
    let mapped = |address: IpAddr| match address {
        IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
        v6 => v6,
    };
    let mut tries = vec![(AF_INET6, mapped(pair.server.ip()), mapped(pair.client.ip()))];
    if pair.server.is_ipv4() {
        tries.insert(0, (AF_INET, pair.server.ip(), pair.client.ip()));
    }
    for (family, server, client) in tries {
        let mut socket_id = if family == AF_INET {
            SocketId::new_v4()
        } else {
            SocketId::new_v6()
        };
        socket_id.source_address = server;
        socket_id.destination_address = client;
        socket_id.source_port = pair.server.port();
        socket_id.destination_port = pair.client.port();
        // Two words in host order, the low one first (struct inet_diag_sockid).
        let (low, high) = (cookie as u32, (cookie >> 32) as u32);
        socket_id.cookie[..4].copy_from_slice(&low.to_ne_bytes());
        socket_id.cookie[4..].copy_from_slice(&high.to_ne_bytes());
        if destroy_one(family, socket_id)
            .map_err(Error::io(format!("could not reset {}", pair.client)))?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn destroy_one(family: u8, socket_id: SocketId) -> std::io::Result<bool> {
    let mut bytes = serialize(
        request(family, StateFlags::all(), socket_id),
        NLM_F_REQUEST | NLM_F_ACK,
    );
    // The crate builds look-ups only; a destroy request differs in the message type.
    bytes[4..6].copy_from_slice(&SOCK_DESTROY.to_ne_bytes());
    let socket = open()?;
    socket.send(&bytes, 0)?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    let size = socket.recv(&mut answer, 0)?;
    let code = answer
        .get(16..20)
        .filter(|_| size >= 20)
        .and_then(|code| code.first_chunk());
    match code.map(|code| i32::from_ne_bytes(*code)) {
        Some(0) => Ok(true),
        Some(code) if code == -libc::ENOENT || code == -libc::ESTALE => Ok(false),
        Some(code) => Err(std::io::Error::from_raw_os_error(-code)),
        None => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn listeners_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens_on(port).unwrap());
        drop(listener);
        assert!(!listens_on(port).unwrap());
    }

    #[test]
    fn connections_are_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let mut stream = TcpStream::connect(server).unwrap();
        let client = stream.local_addr().unwrap();
        let found = connections(server.port()).unwrap();
        let pair = TcpPair { client, server };
        assert_eq!(found, HashMap::from([(pair, Traffic::Silent)]));
        assert!(local_addresses().unwrap().contains(&client.ip()));
        stream.write_all(b"x").unwrap();
        let found = connections(server.port()).unwrap();
        assert_eq!(found, HashMap::from([(pair, Traffic::Heard)]));
    }

    fn cookie_of(pair: &TcpPair) -> u64 {
        [AF_INET, AF_INET6]
            .into_iter()
            .flat_map(|family| dump(family, StateFlags::ESTABLISHED).unwrap())
            .map(|socket| socket.header.socket_id)
            .find(|id| {
                id.source_port == pair.server.port() && id.destination_port == pair.client.port()
            })
            .map(|id| cookie(&id))
            .expect("the server's socket is listed")
    }

    #[test]
    fn a_connection_is_reset() {
        for bind in ["127.0.0.1:0", "[::]:0"] {
            let listener = TcpListener::bind(bind).unwrap();
            let port = listener.local_addr().unwrap().port();
            let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (_server, _) = listener.accept().unwrap();
            let pair = TcpPair {
                client: client.local_addr().unwrap(),
                server: client.peer_addr().unwrap(),
            };
            let cookie = cookie_of(&pair);
            assert!(destroy(&pair, cookie).unwrap(), "{bind}");
            assert!(
                client.read(&mut [0; 1]).is_err(),
                "{bind}: the client must see a reset"
            );
            assert!(!destroy(&pair, cookie).unwrap(), "{bind}: gone already");
            assert!(
                listens_on(port).unwrap(),
                "{bind}: the listener must survive"
            );
        }
    }
}
