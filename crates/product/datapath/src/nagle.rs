// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nagle's algorithm at the other end of a connection on this machine (`bpf/nagle.bpf.c`).

use std::io::{self, Read as _};
use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};

use erb_abi::nagle_pair;
use libbpf_rs::{Iter, Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, set_print};

use crate::load::{keep_message, refused};
use crate::programs::NAGLE;
use crate::{Error, Result};

/// Bytes of what the program is told.
const PAIR_BYTES: usize = size_of::<nagle_pair>();

/// Where it counts the sockets that it has changed.
const DONE: std::ops::Range<usize> = offset_of!(nagle_pair, done)..PAIR_BYTES;

/// The loaded iterator over this network namespace's TCP sockets.
#[derive(Debug)]
pub struct Nagle {
    link: Link,
    pair: MapHandle,
    /// Keeps the program.
    _object: Object,
}

impl Nagle {
    /// Loads it. What is loaded needs no more privilege to be run.
    ///
    /// # Errors
    /// [`Error::Load`] if the kernel refuses.
    pub fn load() -> Result<Self> {
        let refused = |error| refused("nagle", &error);
        set_print(Some((libbpf_rs::PrintLevel::Info, keep_message)));
        let object = ObjectBuilder::default().open_memory(NAGLE);
        let object = object
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(refused)?;
        let program = object.progs_mut().next();
        let link = program.expect("one program").attach().map_err(refused)?;
        let map = object.maps().next().expect("one map");
        let pair = MapHandle::try_from(&map).map_err(refused)?;
        Ok(Self {
            link,
            pair,
            _object: object,
        })
    }

    /// Turns the algorithm on at the end `local` of the connection with `peer`; false if no socket of
    /// this network namespace is that end.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::System`] if the kernel does not list its sockets.
    pub fn turn_on(&self, local: SocketAddr, peer: SocketAddr) -> Result<bool> {
        let map = |error| Error::map("erb_nagle_pair", error);
        let key = 0_u32.to_ne_bytes();
        self.pair
            .update(&key, &image(local, peer), MapFlags::ANY)
            .map_err(map)?;
        let list = || -> io::Result<()> {
            let mut iter = Iter::new(&self.link).map_err(io::Error::other)?;
            iter.read_to_end(&mut Vec::new())?;
            Ok(())
        };
        list().map_err(|reason| Error::System {
            what: "could not list the TCP sockets".to_owned(),
            reason,
        })?;
        let found = self.pair.lookup(&key, MapFlags::ANY).map_err(map)?;
        Ok(found.is_some_and(|found| found[DONE] != [0; 4]))
    }
}

/// The connection, as Redis's end has it.
fn image(local: SocketAddr, peer: SocketAddr) -> [u8; PAIR_BYTES] {
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let pair = nagle_pair {
        local: mapped(local),
        peer: mapped(peer),
        local_port: local.port(),
        peer_port_be: peer.port().to_be(),
        done: 0,
    };
    // SAFETY: a structure of integers without padding, which bindgen's layout checks would show.
    unsafe { std::mem::transmute(pair) }
}
