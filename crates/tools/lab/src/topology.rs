// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Namespaces, devices, addresses.
//!
//! ```text
//! client ns          middle ns                     server ns
//! c0 ------------- m-client [forwarder] m-server ------------- s0
//! c0 --------------------------- (--direct) ------------------ s0
//! ```

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, anyhow};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::AddressHeaderFlags;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth};

use crate::netns;
use crate::offload::{self, Offload};
use crate::state::{EndState, MiddleState};
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
/// MTU of every device: Ethernet's.
pub const MTU: u32 = 1500;

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
        None => make_pair(&client.namespace, &client.device, server)?,
        Some(middle) => {
            netns::create(&middle.namespace)?;
            quiet(&middle.namespace)?;
            make_pair(&middle.namespace, &middle.client_device, client)?;
            make_pair(&middle.namespace, &middle.server_device, server)?;
        }
    }
    for (end, peer) in [(client, server), (server, client)] {
        prepare_end(end)?;
        run_netlink(&end.namespace, |handle| configure_end(handle, end, peer))
            .with_context(|| format!("cannot set up {} in {}", end.device, end.namespace))?;
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

/// Makes a veth pair: `device` in `namespace`, the other one is `end`'s.
fn make_pair(namespace: &str, device: &str, end: &EndState) -> Result<()> {
    let there = netns::open(&end.namespace)?;
    run_netlink(namespace, |handle| add_veth(handle, device, end, &there)).with_context(|| {
        format!(
            "cannot make the veth pair {device} - {} ({})",
            end.device, end.namespace
        )
    })
}

async fn add_veth(handle: Handle, device: &str, end: &EndState, there: &File) -> Result<()> {
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(end.device.clone())
        .mtu(MTU)
        .setns_by_fd(netns::raw(there))
        .build();
    let message = LinkMessageBuilder::<LinkVeth>::new(device, &end.device)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .mtu(MTU)
        .build();
    Ok(handle.link().add(message).execute().await?)
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
        run_netlink(namespace, |handle| bring_up(handle, device))
            .with_context(|| format!("cannot bring up {device} in {namespace}"))?;
        xdp_pass::attach(namespace, device)?;
        // Attaching turned it on; merged frames would not fit the MTU on the other side.
        offload::set(namespace, device, Offload::Gro, false)?;
    }
    Ok(())
}

async fn bring_up(handle: Handle, device: &str) -> Result<()> {
    let index = index_of(&handle, device).await?;
    let up = LinkUnspec::new_with_index(index).up().build();
    Ok(handle.link().set(up).execute().await?)
}

async fn configure_end(handle: Handle, end: &EndState, peer: &EndState) -> Result<()> {
    bring_up(handle.clone(), "lo").await?;
    let index = index_of(&handle, &end.device).await?;
    let mac = parse_mac(&end.mac)?;
    let up = LinkUnspec::new_with_index(index).address(mac).up().build();
    handle.link().set(up).execute().await?;
    let addresses = [
        (IpAddr::V4(end.ipv4), IPV4_PREFIX),
        (IpAddr::V6(end.ipv6), IPV6_PREFIX),
    ];
    for (address, prefix) in addresses {
        let mut request = handle.address().add(index, address, prefix);
        // Nobody else is here; without this the IPv6 address is unusable for a second.
        request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        request.execute().await?;
    }
    // Fixed neighbours: ARP has no checksum, a corrupted answer would send frames nowhere until
    // it expires, which no client could tell from a stuck server.
    let peer_mac = parse_mac(&peer.mac)?;
    for address in [IpAddr::V4(peer.ipv4), IpAddr::V6(peer.ipv6)] {
        let request = handle.neighbours().add(index, address);
        request.link_layer_address(&peer_mac).execute().await?;
    }
    Ok(())
}

/// Removes the lab's devices from `namespace`; the peers in other namespaces go with them.
pub fn remove_devices(namespace: &str) -> Result<()> {
    if !netns::is_namespace(namespace) {
        return Ok(());
    }
    run_netlink(namespace, |handle| async move {
        let mut links = handle.link().get().execute();
        let mut indices = Vec::new();
        while let Some(link) = links.try_next().await? {
            let is_ours = link.attributes.iter().any(|attribute| {
                matches!(attribute, LinkAttribute::IfName(name) if DEVICES.contains(&name.as_str()))
            });
            if is_ours {
                indices.push(link.header.index);
            }
        }
        for index in indices {
            handle.link().del(index).execute().await?;
        }
        Ok(())
    })
    .with_context(|| format!("cannot remove the devices of {namespace}"))
}

async fn index_of(handle: &Handle, device: &str) -> Result<u32> {
    let mut links = handle.link().get().match_name(device).execute();
    let link = links
        .try_next()
        .await?
        .ok_or_else(|| anyhow!("no device {device}"))?;
    Ok(link.header.index)
}

/// Runs one netlink conversation in namespace `namespace`.
fn run_netlink<F>(namespace: &str, talk: impl FnOnce(Handle) -> F + Send) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    netns::run_in(namespace, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection()?;
            tokio::spawn(connection);
            talk(handle).await
        })
    })
}

/// `02:00:..` as text.
pub fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn parse_mac(text: &str) -> Result<Vec<u8>> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    bytes
        .filter(|bytes| bytes.len() == 6)
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
