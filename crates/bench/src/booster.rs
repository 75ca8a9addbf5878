// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ERB offers to be measured. The `erb` binary implements these two traits; this crate knows
//! nothing of the daemon.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::args::Op;

/// What to boost.
#[derive(Debug, Clone, Copy)]
pub struct BoostRequest<'a> {
    /// Named network namespace (below /run/netns) of device and Redis.
    pub netns: &'a str,
    /// Namespace of the client, should a fill want to read through ERB. Its local ports from 20000
    /// on belong to the generator.
    pub client_netns: &'a str,
    /// The server's device. It is up, has no XDP program and no threaded NAPI yet: the bench turns
    /// threaded NAPI on after [`Booster::boost`] returned. From then on XDP must not be detached
    /// and attached again (Linux 6.18 loses the veth queue); an atomic replacement is fine.
    pub device: &'a str,
    /// Address on which redis-server listens in that namespace; it holds all keys already.
    pub redis: SocketAddr,
    /// The TC tier alone, whatever the driver can do.
    pub tc_alone: bool,
    /// Cache size as on the command line, for example `1G`.
    pub cache_size: &'a str,
    /// An empty folder for sockets, pins, logs; removed by the bench after the detach.
    pub run_dir: &'a Path,
}

/// Packets answered since a boost, by tier.
#[derive(Debug, Clone, Copy)]
pub struct Packets {
    /// In XDP.
    pub xdp: u64,
    /// In TC.
    pub tc: u64,
}

impl Packets {
    /// Of the packets answered since an earlier look, the share that TC answered; 0 if there were
    /// none.
    pub fn tc_share_since(&self, before: &Self) -> f64 {
        let (xdp, tc) = (self.xdp - before.xdp, self.tc - before.tc);
        tc as f64 / (xdp + tc).max(1) as f64
    }
}

/// Starts ERB on a device.
pub trait Booster {
    /// Boosts and returns once connections opened from now on can become fast.
    ///
    /// The daemon must be a process of its own, not a thread of the caller: its processor time is
    /// read from /proc/PID and counts as the server's, and it is pinned to the server's core.
    fn boost(&self, request: &BoostRequest<'_>) -> Result<Box<dyn Boosted>>;
}

/// A boosted device.
pub trait Boosted {
    /// Processes whose time counts as the server's (the daemon, what it started).
    fn pids(&self) -> Vec<u32>;
    /// Puts these keys, which hold what `op` asks for, into the cache; returns how many are in it
    /// afterwards. Keys that do not fit into their set are not an error.
    fn fill(&mut self, op: Op, keys: &mut dyn Iterator<Item = Vec<u8>>) -> Result<u64>;
    /// Turns filling by misses on or off; off also means that misses are no longer recorded.
    fn set_fills(&mut self, on: bool) -> Result<()>;
    /// Commands of this kind answered by the fast path with a value since the boost. Only grows.
    fn hits(&self, op: Op) -> Result<u64>;
    /// Packets answered since the boost. Only grows.
    fn packets(&self) -> Result<Packets>;
    /// What `erb status --json` says; goes into the report as it is.
    fn status_json(&self) -> Result<Value>;
    /// Detaches by force and ends the daemon. Connections still stand then, but nobody speaks on
    /// them any more: their client's route is a black hole.
    fn detach(self: Box<Self>) -> Result<()>;
}
