// SPDX-License-Identifier: Apache-2.0 OR MIT
//! VLAN tag offload of a device. With it on, the tag is not in the packet that XDP sees but beside
//! it, so tagged traffic would be taken for untagged.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::{Device, Error, Result};

const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const VLAN_FLAGS: u32 = ETH_FLAG_TXVLAN | ETH_FLAG_RXVLAN;

/// What was done about a device's VLAN offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VlanOffload {
    /// It was off before.
    WasOff,
    /// Switched off; the value is the flag word to restore.
    SwitchedOff(u32),
    /// The device does not let it be switched: tagged traffic is not accelerated there.
    Fixed,
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

fn ioctl_socket() -> Result<OwnedFd> {
    socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .map_err(|error| Error::System {
        what: "could not open a socket".to_owned(),
        reason: error.into(),
    })
}

fn ethtool(device: &Device, value: &mut EthtoolValue) -> Result<io::Result<()>> {
    let socket = ioctl_socket()?;
    // SAFETY: ifreq is plain data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request
        .ifr_name
        .iter_mut()
        .take(libc::IFNAMSIZ - 1)
        .zip(device.name.bytes())
    {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
    // SAFETY: request names a device and points to a live ethtool_value; the kernel reads and
    // writes no more than that structure for these two commands.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    Ok(if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    })
}

/// Switches tag insertion and stripping off.
///
/// # Errors
/// [`Error::System`] if no socket can be opened.
pub fn vlan_offload_off(device: &Device) -> Result<VlanOffload> {
    let mut value = EthtoolValue {
        command: ETHTOOL_GFLAGS,
        data: 0,
    };
    if ethtool(device, &mut value)?.is_err() || value.data & VLAN_FLAGS == 0 {
        // A device without the query has no such feature.
        return Ok(VlanOffload::WasOff);
    }
    let before = value.data;
    let mut wanted = EthtoolValue {
        command: ETHTOOL_SFLAGS,
        data: before & !VLAN_FLAGS,
    };
    Ok(match ethtool(device, &mut wanted)? {
        Ok(()) => VlanOffload::SwitchedOff(before),
        Err(_) => VlanOffload::Fixed,
    })
}

/// Puts the offload back as it was.
///
/// # Errors
/// [`Error::System`] if the device refuses.
pub fn vlan_offload_restore(device: &Device, before: VlanOffload) -> Result<()> {
    let VlanOffload::SwitchedOff(flags) = before else {
        return Ok(());
    };
    let mut value = EthtoolValue {
        command: ETHTOOL_SFLAGS,
        data: flags,
    };
    ethtool(device, &mut value)?.map_err(|reason| Error::System {
        what: format!("could not switch VLAN offload of {} on again", device.name),
        reason,
    })
}
