// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nagle's algorithm at the other end of a connection on this machine (`bpf/nagle.bpf.c`).

use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};

use libbpf_rs::{Iter, Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, set_print};

use crate::load::{keep_message, refused};
use crate::{Error, Result};

const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nagle.bpf.o"));

/// Where `struct nagle_pair` counts the sockets that were changed.
const DONE: std::ops::Range<usize> = 36..40;

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
        let object = ObjectBuilder::default().open_memory(BYTES);
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

/// `struct nagle_pair`.
fn image(local: SocketAddr, peer: SocketAddr) -> [u8; DONE.end] {
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let mut image = [0; DONE.end];
    image[..16].copy_from_slice(&mapped(local));
    image[16..32].copy_from_slice(&mapped(peer));
    image[32..34].copy_from_slice(&local.port().to_ne_bytes());
    image[34..36].copy_from_slice(&peer.port().to_be_bytes());
    image
}
