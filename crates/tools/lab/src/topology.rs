// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Namespaces, devices, addresses.
//!
//! ```text
//! client ns          middle ns                     server ns
//! c0 ------------- m-client [forwarder] m-server ------------- s0
//! c0 --------------------------- (--direct) ------------------ s0
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};

use crate::netns;
use crate::offload::{self, Offload};
use crate::state::{EndState, MiddleState};
use crate::veth::{self, VethEnd};
use crate::xdp_pass;

/// The client's addresses and hardware address (a private network, a unique local one).
pub const CLIENT_IPV4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// See [`CLIENT_IPV4`].
pub const CLIENT_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0xe4b, 0, 0, 0, 0, 0, 1);
/// See [`CLIENT_IPV4`].
pub const CLIENT_MAC: [u8; 6] = [0x02, 0xe4, 0xb0, 0, 0, 1];
/// The server's addresses.
pub const SERVER_IPV4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// See [`SERVER_IPV4`].
pub const SERVER_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0xe4b, 0, 0, 0, 0, 0, 2);
/// See [`SERVER_IPV4`].
pub const SERVER_MAC: [u8; 6] = [0x02, 0xe4, 0xb0, 0, 0, 2];
const IPV4_PREFIX: u8 = 24;
const IPV6_PREFIX: u8 = 64;

/// The client's device, in its namespace.
pub const CLIENT_DEVICE: &str = "c0";
/// The server's device, in its namespace.
pub const SERVER_DEVICE: &str = "s0";
/// The middle box's device towards the client.
pub const MIDDLE_CLIENT_DEVICE: &str = "m-client";
/// The middle box's device towards the server.
pub const MIDDLE_SERVER_DEVICE: &str = "m-server";

/// Every device that a lab makes.
const DEVICES: [&str; 4] = [
    CLIENT_DEVICE,
    SERVER_DEVICE,
    MIDDLE_CLIENT_DEVICE,
    MIDDLE_SERVER_DEVICE,
];

/// Makes namespaces, devices and addresses as described; nothing is undone on failure.
pub fn build(client: &EndState, server: &EndState, middle: Option<&MiddleState>) -> Result<()> {
    for namespace in [&client.namespace, &server.namespace] {
        netns::create(namespace)?;
        quiet(namespace)?;
    }
    match middle {
        None => veth::make(client.veth()?, server.veth()?, None)?,
        Some(middle) => {
            netns::create(&middle.namespace)?;
            quiet(&middle.namespace)?;
            for (device, end) in [
                (&middle.client_device, client),
                (&middle.server_device, server),
            ] {
                let here = VethEnd {
                    namespace: &middle.namespace,
                    device,
                    mac: None,
                };
                veth::make(here, end.veth()?, None)?;
            }
        }
    }
    for (end, peer) in [(client, server), (server, client)] {
        prepare_end(end)?;
        let addresses = [
            (IpAddr::V4(end.ipv4), IPV4_PREFIX),
            (IpAddr::V6(end.ipv6), IPV6_PREFIX),
        ];
        // Fixed neighbours: ARP has no checksum, a corrupted answer would send frames nowhere until
        // it expires, which no client could tell from a stuck server.
        let mac = parse_mac(&peer.mac)?;
        let neighbours = [IpAddr::V4(peer.ipv4), IpAddr::V6(peer.ipv6)].map(|peer| (peer, mac));
        veth::configure(end.veth()?, &addresses, &neighbours)?;
    }
    match middle {
        Some(middle) => prepare_middle(middle),
        // The client's device is the peer of the server's; who measures from the client's end with
        // a program of his own replaces this one (`ip -force link set dev c0 xdpdrv ...`).
        None => xdp_pass::attach(&client.namespace, &client.device),
    }
}

/// No addresses of the kernel's own choice, no router search: only the lab's packets are there.
fn quiet(namespace: &str) -> Result<()> {
    netns::sysctl(namespace, "ipv6/conf/default/accept_ra", "0")?;
    // 1: no link-local address.
    netns::sysctl(namespace, "ipv6/conf/default/addr_gen_mode", "1")?;
    netns::sysctl(namespace, "ipv6/conf/default/router_solicitations", "0")
}

impl EndState {
    fn veth(&self) -> Result<VethEnd<'_>> {
        Ok(VethEnd {
            namespace: &self.namespace,
            device: &self.device,
            mac: Some(parse_mac(&self.mac)?),
        })
    }
}

/// Offloads of a client's or server's device, before it goes up.
fn prepare_end(end: &EndState) -> Result<()> {
    let switches = [
        // Checksums on the wire are real, so that a corrupted frame is seen to be one.
        (Offload::Tso, false),
        (Offload::Gso, false),
        (Offload::TxChecksum, false),
        // A VLAN tag is in the frame, where XDP looks for it.
        (Offload::TxVlan, false),
        (Offload::RxVlan, false),
        // As on real cards; on a veth this is also what gives it NAPI.
        (Offload::Gro, true),
    ];
    for (offload, on) in switches {
        offload::set(&end.namespace, &end.device, offload, on)?;
    }
    Ok(())
}

/// The middle box's devices: no addresses, NAPI by XDP, no merging of frames.
fn prepare_middle(middle: &MiddleState) -> Result<()> {
    let namespace = &middle.namespace;
    netns::sysctl(namespace, "ipv6/conf/all/disable_ipv6", "1")?;
    for device in [&middle.client_device, &middle.server_device] {
        for offload in [Offload::TxVlan, Offload::RxVlan] {
            offload::set(namespace, device, offload, false)?;
        }
        veth::up(namespace, device)?;
        xdp_pass::attach(namespace, device)?;
        // Attaching turned it on; merged frames would not fit the MTU on the other side.
        offload::set(namespace, device, Offload::Gro, false)?;
    }
    Ok(())
}

/// Removes the lab's devices from `namespace`; the peers in other namespaces go with them.
pub fn remove_devices(namespace: &str) -> Result<()> {
    veth::remove(namespace, &DEVICES)
}

/// `02:00:..` as text.
pub fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn parse_mac(text: &str) -> Result<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .with_context(|| format!("bad hardware address {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_survive_their_text() {
        assert_eq!(parse_mac(&format_mac(SERVER_MAC)).unwrap(), SERVER_MAC);
        for bad in ["", "02:00", "02:00:00:00:00:00:00", "02:00:00:00:00:zz"] {
            assert!(parse_mac(bad).is_err(), "{bad} was accepted");
        }
    }
}
