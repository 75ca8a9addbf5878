// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Switches of a device's offloads, by the ethtool ioctl.
//!
//! Own code because the `ethtool` crate only reads features; the calls are the four-byte ones
//! that every kernel has (linux/ethtool.h, `struct ethtool_value`).

use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::netns;

/// One switch, with the ethtool command that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Checksums left to the device on sending; off: the stack writes them in full.
    TxChecksum,
    /// TCP segmentation left to the device; off: frames fit the MTU.
    Tso,
    /// Segmentation right above the device; off: frames fit the MTU.
    Gso,
    /// Merging of received segments; on a veth this also gives the device its NAPI.
    Gro,
    /// Insertion of VLAN tags by the device.
    TxVlan,
    /// Removal of VLAN tags by the device.
    RxVlan,
}

// linux/ethtool.h; libc does not name them all.
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// linux/ethtool.h `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Sets one offload of `device` in namespace `namespace`.
pub fn set(namespace: &str, device: &str, offload: Offload, on: bool) -> Result<()> {
    netns::run_in(namespace, || set_here(device, offload, on)).with_context(|| {
        let on = if on { "on" } else { "off" };
        format!("cannot turn {offload:?} {on} for {device} in {namespace}")
    })
}

fn set_here(device: &str, offload: Offload, on: bool) -> Result<()> {
    let flag = match offload {
        Offload::TxChecksum => return call(device, ETHTOOL_STXCSUM, on.into()).map(drop),
        Offload::Tso => return call(device, ETHTOOL_STSO, on.into()).map(drop),
        Offload::Gso => return call(device, ETHTOOL_SGSO, on.into()).map(drop),
        Offload::Gro => return call(device, ETHTOOL_SGRO, on.into()).map(drop),
        Offload::TxVlan => ETH_FLAG_TXVLAN,
        Offload::RxVlan => ETH_FLAG_RXVLAN,
    };
    let flags = call(device, ETHTOOL_GFLAGS, 0)?;
    let flags = if on { flags | flag } else { flags & !flag };
    call(device, ETHTOOL_SFLAGS, flags).map(drop)
}

fn call(device: &str, command: u32, data: u32) -> Result<u32> {
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: ifreq is plain integers and a union of them; all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        bail!("device name {device} is longer than the kernel allows");
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    let mut value = EthtoolValue { command, data };
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request names a device by a terminated string and points to a live value of
    // the layout that these commands read and write.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    nix::errno::Errno::result(result).context("ioctl SIOCETHTOOL")?;
    Ok(value.data)
}
