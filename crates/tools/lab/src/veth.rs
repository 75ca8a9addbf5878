// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Veth pairs between namespaces, and what their ends need to talk: by netlink.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::AddressHeaderFlags;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::RouteType;
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use crate::netns;

/// MTU of every device: Ethernet's.
const MTU: u32 = 1500;

/// One end of a pair.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name there.
    pub device: &'a str,
    /// Its hardware address; none: one of the kernel's choice.
    pub mac: Option<[u8; 6]>,
}

/// Makes a pair whose ends are down, each with so many queues for sending and as many for receiving;
/// none: as many as the kernel gives.
pub fn make(end: VethEnd<'_>, other: VethEnd<'_>, queues: Option<u32>) -> Result<()> {
    let there = netns::open(other.namespace)?;
    run_netlink(end.namespace, |handle| {
        add(handle, end, other, &there, queues)
    })
    .with_context(|| {
        let ends = [end, other].map(|end| format!("{} ({})", end.device, end.namespace));
        format!("cannot make the veth pair {}", ends.join(" - "))
    })
}

async fn add(
    handle: Handle,
    end: VethEnd<'_>,
    other: VethEnd<'_>,
    there: &File,
    queues: Option<u32>,
) -> Result<()> {
    let peer = LinkMessageBuilder::<LinkUnspec>::new().setns_by_fd(netns::raw(there));
    let peer = InfoData::Veth(InfoVeth::Peer(described(peer, other, queues)));
    let pair = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth);
    let pair = described(pair.set_info_data(peer), end, queues);
    Ok(handle.link().add(pair).execute().await?)
}

fn described<T>(
    message: LinkMessageBuilder<T>,
    end: VethEnd<'_>,
    queues: Option<u32>,
) -> LinkMessage {
    let mut message = message.name(end.device).mtu(MTU);
    if let Some(mac) = end.mac {
        message = message.address(mac.to_vec());
    }
    if let Some(count) = queues {
        message = message
            .append_extra_attribute(LinkAttribute::NumTxQueues(count))
            .append_extra_attribute(LinkAttribute::NumRxQueues(count));
    }
    message.build()
}

/// Brings a device up.
pub fn up(namespace: &str, device: &str) -> Result<()> {
    run_netlink(namespace, |handle| async move {
        bring_up(&handle, device).await.map(drop)
    })
    .with_context(|| format!("cannot bring up {device} in {namespace}"))
}

/// Returns the device's index.
async fn bring_up(handle: &Handle, device: &str) -> Result<u32> {
    let mut links = handle.link().get().match_name(device).execute();
    let link = links.try_next().await?;
    let index = link
        .with_context(|| format!("no device {device}"))?
        .header
        .index;
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await?;
    Ok(index)
}

/// Brings `lo` and the end up, and gives it addresses with their prefixes and permanent neighbours with
/// their hardware addresses.
pub fn configure(
    end: VethEnd<'_>,
    addresses: &[(IpAddr, u8)],
    neighbours: &[(IpAddr, [u8; 6])],
) -> Result<()> {
    let (namespace, device) = (end.namespace, end.device);
    run_netlink(namespace, |handle| async move {
        bring_up(&handle, "lo").await?;
        let index = bring_up(&handle, device).await?;
        for &(address, prefix) in addresses {
            let mut request = handle.address().add(index, address, prefix);
            // Nobody else is here; without this an IPv6 address is unusable for a second.
            request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            request.execute().await?;
        }
        for (neighbour, mac) in neighbours {
            let request = handle.neighbours().add(index, *neighbour);
            request.link_layer_address(mac).execute().await?;
        }
        Ok(())
    })
    .with_context(|| format!("cannot set up {device} in {namespace}"))
}

/// Lets nothing be sent from `namespace` to `address` any more.
pub fn blackhole(namespace: &str, address: Ipv4Addr) -> Result<()> {
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(address, 32)
        .kind(RouteType::BlackHole)
        .build();
    run_netlink(namespace, |handle| async move {
        Ok(handle.route().add(route).replace().execute().await?)
    })
    .with_context(|| format!("cannot make {address} a black hole of {namespace}"))
}

/// Removes those of `devices` that are in `namespace`; the peers in other namespaces go with them.
pub fn remove(namespace: &str, devices: &[&str]) -> Result<()> {
    if !netns::is_namespace(namespace) {
        return Ok(());
    }
    run_netlink(namespace, |handle| async move {
        let mut links = handle.link().get().execute();
        let mut indices = Vec::new();
        while let Some(link) = links.try_next().await? {
            let is_ours = link.attributes.iter().any(|attribute| {
                matches!(attribute, LinkAttribute::IfName(name) if devices.contains(&name.as_str()))
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
