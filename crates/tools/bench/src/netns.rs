// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network namespaces and the veth pair between them, made with `ip` and `ethtool`.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, setns};

use crate::cputime;

/// Hardware addresses are fixed, so that neighbours can be entered by hand and nobody has to ask.
pub const CLIENT_MAC: [u8; 6] = [0x02, 0xe4, 0xbe, 0, 0, 1];
/// See [`CLIENT_MAC`].
pub const SERVER_MAC: [u8; 6] = [0x02, 0xe4, 0xbe, 0, 0, 2];
/// A private network; the namespaces have no way out.
pub const CLIENT_IP: [u8; 4] = [10, 78, 0, 1];
/// See [`CLIENT_IP`].
pub const SERVER_IP: [u8; 4] = [10, 78, 0, 2];

/// Delays interrupts of the client's device, so that the server does not pay for waking it: the
/// poll timer and how many empty polls it may cause before interrupts come back.
const CLIENT_FLUSH_NS: &str = "20000";
/// See [`CLIENT_FLUSH_NS`].
const CLIENT_EMPTY_POLLS: &str = "1000";

/// Runs a program to its end; its output if it succeeded.
pub fn sh(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not run {program}; is it installed?"))?;
    ensure!(
        output.status.success(),
        "{program} {} failed ({}): {}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `work` on this thread inside the namespace and comes back.
pub fn within<T>(netns: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let here = File::open("/proc/thread-self/ns/net").context("could not open own namespace")?;
    let path = path_of(netns);
    let there = File::open(&path).with_context(|| format!("could not open {path}"))?;
    setns(&there, CloneFlags::CLONE_NEWNET)
        .with_context(|| format!("could not enter namespace {netns}; root is needed"))?;
    let result = work();
    setns(&here, CloneFlags::CLONE_NEWNET).context("could not return to the own namespace")?;
    result
}

fn path_of(netns: &str) -> String {
    format!("/run/netns/{netns}")
}

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
        // Device names carry the pid: NAPI threads are found by them, all over the machine.
        let pair = Self {
            client: format!("erb-bench-{pid}-{index}-c"),
            server: format!("erb-bench-{pid}-{index}-s"),
            client_dev: format!("c{index}p{pid}"),
            server_dev: format!("s{index}p{pid}"),
        };
        for netns in [&pair.client, &pair.server] {
            sh("ip", &["netns", "add", netns])?;
            sh("ip", &["-n", netns, "link", "set", "lo", "up"])?;
        }
        pair.add_devices()?;
        pair.set_up_end(
            &pair.client,
            &pair.client_dev,
            CLIENT_IP,
            SERVER_IP,
            SERVER_MAC,
        )?;
        pair.set_up_end(
            &pair.server,
            &pair.server_dev,
            SERVER_IP,
            CLIENT_IP,
            CLIENT_MAC,
        )?;
        Ok(pair)
    }

    fn add_devices(&self) -> Result<()> {
        let queues = ["numtxqueues", "1", "numrxqueues", "1"];
        let (client_mac, server_mac) = (mac_text(CLIENT_MAC), mac_text(SERVER_MAC));
        let mut args = vec!["-n", &self.client, "link", "add", &self.client_dev];
        args.extend(["address", &client_mac]);
        args.extend(queues);
        args.extend(["type", "veth", "peer", "name", &self.server_dev]);
        args.extend(["address", &server_mac, "netns", &self.server]);
        args.extend(queues);
        sh("ip", &args).map(drop)
    }

    fn set_up_end(
        &self,
        netns: &str,
        dev: &str,
        own: [u8; 4],
        peer: [u8; 4],
        peer_mac: [u8; 6],
    ) -> Result<()> {
        let (own, peer) = (ip_text(own), ip_text(peer));
        // Only the bench's packets: no IPv6 router or neighbour chatter.
        write_in(
            netns,
            &format!("/proc/sys/net/ipv6/conf/{dev}/disable_ipv6"),
            "1",
        )?;
        sh(
            "ip",
            &["-n", netns, "addr", "add", &format!("{own}/24"), "dev", dev],
        )?;
        sh("ip", &["-n", netns, "link", "set", dev, "up"])?;
        // After "up": only then Linux enters the peer as able to take the XDP frames of a kick.
        sh(
            "ip",
            &["netns", "exec", netns, "ethtool", "-K", dev, "gro", "on"],
        )?;
        let mac = mac_text(peer_mac);
        let args = [
            "-n",
            netns,
            "neigh",
            "replace",
            &peer,
            "lladdr",
            &mac,
            "nud",
            "permanent",
        ];
        let dev_args = ["dev", dev];
        sh("ip", &[&args[..], &dev_args[..]].concat()).map(drop)
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
        self.set_device(client, client_dev, "threaded", "1")?;
        self.set_device(&self.server, &self.server_dev, "threaded", "1")?;
        self.set_device(client, client_dev, "gro_flush_timeout", CLIENT_FLUSH_NS)?;
        self.set_device(
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
        let server = format!("{}/32", ip_text(SERVER_IP));
        sh(
            "ip",
            &["-n", &self.client, "route", "replace", "blackhole", &server],
        )
        .map(drop)
    }

    /// Sets a value below /sys/class/net/DEV of a namespace.
    pub fn set_device(&self, netns: &str, dev: &str, name: &str, value: &str) -> Result<()> {
        write_in(netns, &format!("/sys/class/net/{dev}/{name}"), value)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // The devices go first: TCP timers of dying sockets would keep the namespaces for minutes.
        let _ = sh("ip", &["-n", &self.client, "link", "del", &self.client_dev]);
        for netns in [&self.client, &self.server] {
            if !Path::new(&path_of(netns)).exists() {
                continue;
            }
            if let Err(error) = sh("ip", &["netns", "del", netns]) {
                eprintln!("could not remove namespace {netns}: {error:#}");
            }
        }
    }
}

/// Interface index of a device in a namespace.
pub fn ifindex(netns: &str, dev: &str) -> Result<u32> {
    within(netns, || {
        nix::net::if_::if_nametoindex(dev).with_context(|| format!("no device {dev} in {netns}"))
    })
}

fn write_in(netns: &str, path: &str, value: &str) -> Result<()> {
    if path.contains(['\'', '"', '$', '`', '\\', ' ']) {
        bail!("odd path {path}");
    }
    // `ip netns exec` mounts the namespace's own /sys, which a plain setns does not.
    sh(
        "ip",
        &[
            "netns",
            "exec",
            netns,
            "sh",
            "-c",
            &format!("echo {value} > {path}"),
        ],
    )
    .with_context(|| format!("could not set {path} to {value} in {netns}"))
    .map(drop)
}

/// Dotted decimal.
pub fn ip_text(ip: [u8; 4]) -> String {
    std::net::Ipv4Addr::from(ip).to_string()
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
