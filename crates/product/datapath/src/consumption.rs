// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of one connection was answered without Redis: for checks that count answers.

use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use erb_abi as abi;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::load::check_shapes;
use crate::{Error, Result};

const NAME: &str = "erb_conns";

/// What an entry says of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// Bytes of requests that were answered without Redis, modulo 2^32, counted before the answer leaves.
    pub bytes: u32,
    /// Nothing of it is answered before Redis has said how it stands.
    pub bypass: bool,
}

/// The table of connections, to be read only.
pub struct Consumption(MapHandle);

impl Consumption {
    /// Opens the table that is pinned in `root`.
    ///
    /// # Errors
    /// [`Error::OtherVersion`] if another version made it, [`Error::Map`] if it cannot be opened.
    pub fn open(root: &Path) -> Result<Self> {
        check_shapes(root)?;
        let map = MapHandle::from_pinned_path(root.join(NAME));
        Ok(Self(map.map_err(|error| Error::map(NAME, error))?))
    }

    /// What is known of a connection; none if it is not tracked.
    ///
    /// # Errors
    /// [`Error::Map`] if the table cannot be read.
    pub fn of(&self, client: SocketAddr, server: SocketAddr) -> Result<Option<Consumed>> {
        let entry = self
            .0
            .lookup(&key(client, server), MapFlags::ANY)
            .map_err(|error| Error::map(NAME, error))?;
        Ok(entry.as_deref().and_then(consumed))
    }
}

/// Of a `struct conn`.
fn consumed(entry: &[u8]) -> Option<Consumed> {
    let bytes = entry
        .get(offset_of!(abi::conn, in_delta)..)?
        .first_chunk()?;
    let state = u32::from(*entry.get(offset_of!(abi::conn, state))?);
    Some(Consumed {
        bytes: u32::from_ne_bytes(*bytes),
        bypass: matches!(state, abi::CONN_BYPASS | abi::CONN_OLD),
    })
}

/// A `struct conn_key`.
fn key(client: SocketAddr, server: SocketAddr) -> [u8; size_of::<abi::conn_key>()] {
    let mut key = [0; size_of::<abi::conn_key>()];
    let mut put = |at: usize, bytes: &[u8]| key[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset_of!(abi::conn_key, client_addr), &octets(client));
    put(offset_of!(abi::conn_key, server_addr), &octets(server));
    let port = |of: SocketAddr| of.port().to_be_bytes();
    put(offset_of!(abi::conn_key, client_port_be), &port(client));
    put(offset_of!(abi::conn_key, server_port_be), &port(server));
    key
}

fn octets(address: SocketAddr) -> [u8; 16] {
    match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_named_as_the_programs_name_it() {
        let key = key(
            "10.77.0.1:258".parse().unwrap(),
            "[fd77::2]:6379".parse().unwrap(),
        );
        assert_eq!(
            key[..16],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 77, 0, 1]
        );
        assert_eq!((key[16], key[17], key[31]), (0xfd, 0x77, 2));
        assert_eq!(key[32..], [1, 2, 0x18, 0xeb, 0, 0, 0, 0]);
    }

    #[test]
    fn a_connection_in_bypass_is_not_answered() {
        let mut entry = vec![0; size_of::<abi::conn>()];
        for (state, bypass) in [
            (abi::CONN_NEW, false),
            (abi::CONN_FAST, false),
            (abi::CONN_BYPASS, true),
            (abi::CONN_OLD, true),
        ] {
            entry[offset_of!(abi::conn, state)] = u8::try_from(state).unwrap();
            entry[offset_of!(abi::conn, in_delta)] = 7;
            assert_eq!(consumed(&entry), Some(Consumed { bytes: 7, bypass }));
        }
        assert_eq!(consumed(&[]), None);
    }
}
