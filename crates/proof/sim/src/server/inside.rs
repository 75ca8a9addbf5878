// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who reaches Redis without a packet on a boosted device: clients of its unix socket, and the
//! master while Redis is a replica.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use erb_sim_redis::{Peer as RedisPeer, Redis};
use fastrand::Rng;

use super::Server;
use super::pipe::Pipe;
use crate::client::resp::request;
use crate::time::{MS, Ns};

const MASTER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 99)), 6379);

impl Server {
    /// A stream inside the machine reaches Redis; `None` if it does not run.
    pub fn dial_inside(&self) -> Option<Pipe> {
        self.dial(RedisPeer::Unix("/run/redis.sock".to_owned()))
    }

    /// The same for a client of this machine by TCP.
    pub(super) fn dial_from(&self, peer: SocketAddr, local: SocketAddr) -> Option<Pipe> {
        self.dial(RedisPeer::Tcp { peer, local })
    }

    /// Another port for each.
    pub(super) fn probe_port(&self) -> u16 {
        let n = self.probes.get();
        self.probes.set(n.wrapping_add(1));
        50_000 + n % 10_000
    }

    /// The unspecified address.
    pub(super) fn all_addresses(&self) -> IpAddr {
        if self.inner.plan.profile.ipv6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        }
    }

    fn dial(&self, peer: RedisPeer) -> Option<Pipe> {
        self.redis.borrow().as_ref()?;
        let pipe = Pipe::default();
        let incoming = (pipe.clone(), peer);
        self.incoming_pipes.borrow_mut().push_back(incoming);
        self.wake_redis();
        Some(pipe)
    }

    /// A client that ERB does not see sends a command.
    pub fn ask_unseen(&self, bytes: &[u8]) {
        self.ask_by(&self.unseen_pipe, bytes, || self.dial_inside());
    }

    /// The master of a replica does.
    pub fn ask_as_master(&self, bytes: &[u8]) {
        self.ask_by(&self.master_pipe, bytes, || {
            self.dial(RedisPeer::Master(MASTER))
        });
    }

    /// Whoever can write and is not seen.
    pub fn ask_unseen_or_master(&self, bytes: &[u8]) {
        if self.is_replica() {
            self.ask_as_master(bytes);
        } else {
            self.ask_unseen(bytes);
        }
    }

    fn ask_by(&self, slot: &RefCell<Option<Pipe>>, bytes: &[u8], dial: impl Fn() -> Option<Pipe>) {
        let mut slot = slot.borrow_mut();
        // Once more if Redis has closed the first.
        for _ in 0..2 {
            if slot.is_none() {
                *slot = dial();
            }
            let Some(pipe) = slot.as_mut() else { return };
            let mut replies = [0; 4096];
            while pipe.read(&mut replies).is_ok_and(|len| len > 0) {}
            if pipe.write_all(bytes).is_ok() {
                break;
            }
            *slot = None;
        }
        drop(slot);
        self.wake_redis();
    }

    fn is_replica(&self) -> bool {
        self.redis.borrow().as_ref().is_some_and(Redis::is_replica)
    }

    /// What happens to a replica, or makes Redis one. If its master begins to load it anew, the time
    /// that takes.
    pub fn master_does(&self, random: &mut Rng) -> Option<Ns> {
        if !self.is_replica() {
            let host = MASTER.ip().to_string();
            self.ask_unseen(&request(&[b"REPLICAOF", host.as_bytes(), b"6379"]));
            return None;
        }
        match random.u8(0..6) {
            0 | 1 => {
                self.resync(true);
                return Some(random.u64(MS..200 * MS));
            }
            2 | 3 => self.master_link(random.bool()),
            4 => {
                let stale: &[u8] = if random.bool() { b"yes" } else { b"no" };
                let config = [
                    b"CONFIG".as_slice(),
                    b"SET",
                    b"replica-serve-stale-data",
                    stale,
                ];
                self.ask_unseen(&request(&config));
            }
            _ => self.ask_unseen(&request(&[b"REPLICAOF", b"NO", b"ONE"])),
        }
        None
    }

    /// The link of a replica to its master goes or is there again.
    pub fn master_link(&self, up: bool) {
        if let Some(redis) = self.redis.borrow_mut().as_mut() {
            redis.master_link(up);
        }
    }

    /// A full resynchronisation of a replica begins or ends.
    pub fn resync(&self, loading: bool) {
        let wall = self.inner.wall_ns();
        let mut slot = self.redis.borrow_mut();
        let Some(redis) = slot.as_mut() else { return };
        let changes = redis.resync(loading, wall);
        drop(slot);
        if !changes.is_empty() {
            let now = self.inner.now();
            self.inner.checks.borrow_mut().changed(now, &changes);
        }
        self.wake_redis();
    }
}
