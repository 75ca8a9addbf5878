// SPDX-License-Identifier: Apache-2.0 OR MIT
//! VLAN tag offload of a device. With it on, the tag is not in the packet that XDP sees but beside
//! it, so tagged traffic would be taken for untagged. And what a device says of itself.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::{Device, Error, Result};

const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GSG: u32 = 0x18;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_LRO: u32 = 1 << 15;
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

/// A request about the device.
fn named(device: &Device) -> libc::ifreq {
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
    request
}

/// Asks for something that fits the request itself.
fn ask(device: &Device, what: libc::Ioctl) -> Result<libc::ifreq> {
    let socket = ioctl_socket()?;
    let mut request = named(device);
    // SAFETY: request names a device; the kernel answers within it.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) };
    if done < 0 {
        return Err(Error::System {
            what: format!("could not ask about {}", device.name),
            reason: io::Error::last_os_error(),
        });
    }
    Ok(request)
}

/// The device's MTU.
pub(crate) fn mtu(device: &Device) -> Result<u32> {
    let answer = ask(device, libc::SIOCGIFMTU)?;
    // SAFETY: the answer to this request is an int.
    Ok(unsafe { answer.ifr_ifru.ifru_mtu }.unsigned_abs())
}

/// Whether the device was set up.
///
/// # Errors
/// [`Error::System`] if it is gone.
pub fn is_up(device: &Device) -> Result<bool> {
    let answer = ask(device, libc::SIOCGIFFLAGS)?;
    // SAFETY: the answer to this request is a short.
    let flags = libc::c_int::from(unsafe { answer.ifr_ifru.ifru_flags });
    // Not IFF_RUNNING: the kernel may tell of a carrier a second late.
    Ok(flags & libc::IFF_UP != 0)
}

/// # Safety
/// `T` must be the structure of the command that is in its first word.
unsafe fn ethtool<T>(device: &Device, value: &mut T) -> Result<io::Result<()>> {
    let socket = ioctl_socket()?;
    let mut request = named(device);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
    // SAFETY: request names a device and points to a live structure, which is the command's own: the
    // kernel reads and writes no more than that.
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
    // SAFETY: an ethtool_value is what the command takes.
    if unsafe { ethtool(device, &mut value) }?.is_err() || value.data & VLAN_FLAGS == 0 {
        // A device without the query has no such feature.
        return Ok(VlanOffload::WasOff);
    }
    let before = value.data;
    let mut wanted = EthtoolValue {
        command: ETHTOOL_SFLAGS,
        data: before & !VLAN_FLAGS,
    };
    // SAFETY: as above.
    Ok(match unsafe { ethtool(device, &mut wanted) }? {
        Ok(()) => VlanOffload::SwitchedOff(before),
        Err(_) => VlanOffload::Fixed,
    })
}

/// Puts the offload back as it was. A device that has another name by now is found all the same; one
/// that is gone needs nothing, and its name may be another's.
///
/// # Errors
/// [`Error::System`] if the device refuses.
pub fn vlan_offload_restore(device: &Device, before: VlanOffload) -> Result<()> {
    let VlanOffload::SwitchedOff(flags) = before else {
        return Ok(());
    };
    let Some(device) = Device::of_index(device.ifindex) else {
        return Ok(());
    };
    let mut value = EthtoolValue {
        command: ETHTOOL_SFLAGS,
        data: flags,
    };
    // SAFETY: an ethtool_value is what the command takes.
    unsafe { ethtool(&device, &mut value) }?.map_err(|reason| Error::System {
        what: format!("could not switch VLAN offload of {} on again", device.name),
        reason,
    })
}

/// Whether the device reads a packet's bytes from where they lie, and sums them itself. What is sent
/// zero-copy is copied by the kernel if it does not do both.
pub fn sends_in_place(device: &Device) -> Result<bool> {
    Ok(is_set(device, ETHTOOL_GSG)? && is_set(device, ETHTOOL_GTXCSUM)?)
}

/// A setting that is on or off; a device that does not know it has it off.
fn is_set(device: &Device, command: u32) -> Result<bool> {
    let mut value = EthtoolValue { command, data: 0 };
    // SAFETY: an ethtool_value is what the command takes.
    let known = unsafe { ethtool(device, &mut value) }?.is_ok();
    Ok(known && value.data != 0)
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}
const _: () = assert!(size_of::<DriverInfo>() == 196);

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct ChannelsInfo {
    command: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// Receive queues.
pub(crate) struct Channels {
    /// In use.
    pub(crate) now: u32,
    /// That there can be.
    pub(crate) most: u32,
}

/// Name of the driver.
pub fn driver(device: &Device) -> Result<String> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: an ethtool_drvinfo is what the command takes.
    unsafe { ethtool(device, &mut info) }?.map_err(|reason| Error::System {
        what: format!("could not ask for the driver of {}", device.name),
        reason,
    })?;
    let name = info.driver.split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

/// Whether the device merges received segments itself.
pub(crate) fn lro(device: &Device) -> Result<bool> {
    let mut value = EthtoolValue {
        command: ETHTOOL_GFLAGS,
        data: 0,
    };
    // SAFETY: an ethtool_value is what the command takes.
    let known = unsafe { ethtool(device, &mut value) }?;
    Ok(known.is_ok() && value.data & ETH_FLAG_LRO != 0)
}

/// How many receive queues there are.
pub(crate) fn channels(device: &Device) -> Result<Channels> {
    let mut info = ChannelsInfo {
        command: ETHTOOL_GCHANNELS,
        ..ChannelsInfo::default()
    };
    // SAFETY: an ethtool_channels is what the command takes.
    unsafe { ethtool(device, &mut info) }?.map_err(|reason| Error::System {
        what: format!("could not ask for the queues of {}", device.name),
        reason,
    })?;
    Ok(Channels {
        now: info.rx.max(info.combined),
        most: info.max_rx.max(info.max_combined),
    })
}
