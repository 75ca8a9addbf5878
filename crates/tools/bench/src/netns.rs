// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network namespaces and the veth pair between them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use erb_lab::netns::{create, remove, remove_left, run_in, set_device, sysctl};
use erb_lab::offload::{self, Offload};
use erb_lab::veth::{self, VethEnd};

use crate::cputime;

/// Hardware addresses are fixed, so that neighbours can be entered by hand and nobody has to ask.
pub const CLIENT_MAC: [u8; 6] = [0x02, 0xe4, 0xbe, 0, 0, 1];
/// See [`CLIENT_MAC`].
pub const SERVER_MAC: [u8; 6] = [0x02, 0xe4, 0xbe, 0, 0, 2];
/// A private network; the namespaces have no way out.
pub const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// See [`CLIENT_IP`].
pub const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const PREFIX: u8 = 24;

/// Delays interrupts of the client's device, so that the server does not pay for waking it: the
/// poll timer and how many empty polls it may cause before interrupts come back.
const CLIENT_FLUSH_NS: &str = "20000";
/// See [`CLIENT_FLUSH_NS`].
const CLIENT_EMPTY_POLLS: &str = "1000";

/// How namespaces are named: behind it stands the number of the process that has made one.
const NAMES: &str = "erb-bench-";

/// Two namespaces with a veth pair; removed when dropped.
#[derive(Debug)]
pub struct Pair {
    /// Name of the client's namespace.
    pub client: String,
    /// Name of the server's namespace.
    pub server: String,
    /// The client's device.
    pub client_dev: String,
    /// The server's device.
    pub server_dev: String,
}

/// The kernel threads of a pair's receive sides.
#[derive(Debug, Clone, Copy)]
pub struct ReceiveThreads {
    /// The client's.
    pub client: u32,
    /// The server's.
    pub server: u32,
}

impl Pair {
    /// Makes both ends, up, with addresses; GRO is on, which gives veth its NAPI.
    pub fn make() -> Result<Self> {
        // Tells several pairs of one process apart.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let index = NEXT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        remove_left(NAMES);
        // Device names carry the pid: NAPI threads are found by them, all over the machine.
        let pair = Self {
            client: format!("{NAMES}{pid}-{index}-c"),
            server: format!("{NAMES}{pid}-{index}-s"),
            client_dev: format!("c{index}p{pid}"),
            server_dev: format!("s{index}p{pid}"),
        };
        create(&pair.client)?;
        create(&pair.server)?;
        let client = VethEnd {
            namespace: &pair.client,
            device: &pair.client_dev,
            mac: Some(CLIENT_MAC),
        };
        let server = VethEnd {
            namespace: &pair.server,
            device: &pair.server_dev,
            mac: Some(SERVER_MAC),
        };
        veth::make(client, server, Some(1))?;
        set_up_end(client, CLIENT_IP, (SERVER_IP, SERVER_MAC))?;
        set_up_end(server, SERVER_IP, (CLIENT_IP, CLIENT_MAC))?;
        Ok(pair)
    }

    /// Gives each end's receive side a kernel thread on a processor of its own. After all XDP
    /// programs are attached: Linux 6.18 loses the queue of a threaded veth when XDP is detached and
    /// attached again.
    pub fn receive_threads(
        &self,
        client_core: usize,
        server_core: usize,
    ) -> Result<ReceiveThreads> {
        let (client, client_dev) = (self.client.as_str(), self.client_dev.as_str());
        set_device(client, client_dev, "threaded", "1")?;
        set_device(&self.server, &self.server_dev, "threaded", "1")?;
        set_device(client, client_dev, "gro_flush_timeout", CLIENT_FLUSH_NS)?;
        set_device(
            client,
            client_dev,
            "napi_defer_hard_irqs",
            CLIENT_EMPTY_POLLS,
        )?;
        let threads = ReceiveThreads {
            client: cputime::napi_thread(client_dev)?,
            server: cputime::napi_thread(&self.server_dev)?,
        };
        cputime::pin(threads.client, client_core)?;
        cputime::pin(threads.server, server_core)?;
        Ok(threads)
    }

    /// The client's kernel can send nothing to the server any more. Without this its TCP would
    /// speak beside the generator (keepalives, resets, retransmissions).
    pub fn silence_client(&self) -> Result<()> {
        veth::blackhole(&self.client, SERVER_IP)
    }
}

fn set_up_end(
    end: VethEnd<'_>,
    own: Ipv4Addr,
    (peer, peer_mac): (Ipv4Addr, [u8; 6]),
) -> Result<()> {
    // Only the bench's packets: no IPv6 router or neighbour chatter.
    sysctl(
        end.namespace,
        &format!("ipv6/conf/{}/disable_ipv6", end.device),
        "1",
    )?;
    veth::configure(
        end,
        &[(IpAddr::V4(own), PREFIX)],
        &[(IpAddr::V4(peer), peer_mac)],
    )?;
    // After "up": only then Linux enters the peer as able to take the XDP frames of a kick.
    offload::set(end.namespace, end.device, Offload::Gro, true)
}

impl Drop for Pair {
    fn drop(&mut self) {
        // The devices go first: TCP timers of dying sockets would keep the namespaces for minutes.
        let _ = veth::remove(&self.client, &[&self.client_dev]);
        for netns in [&self.client, &self.server] {
            if let Err(error) = remove(netns) {
                eprintln!("could not remove namespace {netns}: {error:#}");
            }
        }
    }
}

/// Interface index of a device in a namespace.
pub fn ifindex(netns: &str, dev: &str) -> Result<u32> {
    run_in(netns, || {
        nix::net::if_::if_nametoindex(dev).with_context(|| format!("no device {dev} in {netns}"))
    })
}
