// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network devices of the caller's namespace and the XDP programs already on them.

use std::os::fd::BorrowedFd;

use libbpf_rs::{ProgramHandle, Xdp, XdpFlags};

use crate::layers::Layers;
use crate::{Error, Result};

/// A network device of the caller's namespace.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Device {
    /// Name as `ip link` shows it.
    pub name: String,
    /// Index in the namespace.
    pub ifindex: u32,
}

impl Device {
    /// Looks a device up by name.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is none of that name.
    pub fn find(name: &str) -> Result<Self> {
        let ifindex =
            nix::net::if_::if_nametoindex(name).map_err(|_| Error::NoDevice(name.to_owned()))?;
        Ok(Self {
            name: name.to_owned(),
            ifindex,
        })
    }

    /// The device with this index, if there is one.
    #[must_use]
    pub fn of_index(ifindex: u32) -> Option<Self> {
        let name = nix::net::if_::if_indextoname(ifindex).ok()?;
        let name = name.into_string().ok()?;
        Some(Self { name, ifindex })
    }
}

/// All devices of the caller's namespace, `lo` included.
///
/// # Errors
/// [`Error::System`] if the kernel does not list them.
pub fn all_devices() -> Result<Vec<Device>> {
    let list = nix::net::if_::if_nameindex().map_err(|error| Error::System {
        what: "could not list the network devices".to_owned(),
        reason: error.into(),
    })?;
    Ok(list
        .iter()
        .map(|entry| Device {
            name: entry.name().to_string_lossy().into_owned(),
            ifindex: entry.index(),
        })
        .collect())
}

/// Checks that the devices can be boosted, and together: none that is below another of them, part of a
/// bond or in a VRF.
///
/// # Errors
/// [`Error::Layers`] saying what to give instead.
pub fn check_layers(devices: &[Device]) -> Result<()> {
    let indexes: Vec<u32> = devices.iter().map(|device| device.ifindex).collect();
    match Layers::read()?.refusal(&indexes) {
        Some(why) => Err(Error::Layers(why)),
        None => Ok(()),
    }
}

/// An XDP program that is on a device already.
#[derive(Clone, Debug)]
pub struct ForeignXdp {
    /// Program name as loaded, empty if it could not be read.
    pub name: String,
    /// Kernel id of the program.
    pub id: u32,
    /// `native`, `generic`, `offloaded` or `several`.
    pub mode: &'static str,
}

impl ForeignXdp {
    /// Says whose program it is and what to do.
    #[must_use]
    pub fn describe(&self, device: &Device) -> String {
        let owner = match self.name.as_str() {
            "erb_xdp" => {
                "it is ERB's own, of another run directory: `erb detach` with that --run-dir first"
            }
            "xdp_dispatcher" => {
                "it is the dispatcher of libxdp (xdp-tools): `xdp-loader unload` it first"
            }
            _ => "ERB must be the only XDP program there: detach it with the tool that loaded it",
        };
        format!(
            "{} already has the XDP program {:?} (id {}, {}); {owner}",
            device.name, self.name, self.id, self.mode
        )
    }
}

/// The XDP program on the device, if there is one.
///
/// # Errors
/// [`Error::System`] if the kernel does not answer the query.
pub fn foreign_xdp(device: &Device) -> Result<Option<ForeignXdp>> {
    // The query needs no program; any open descriptor satisfies the type.
    let stdin = std::io::stdin();
    let fd: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(&stdin);
    let ifindex = i32::try_from(device.ifindex).unwrap_or(i32::MAX);
    let found = Xdp::new(fd)
        .query(ifindex, XdpFlags::NONE)
        .map_err(|error| Error::System {
            what: format!("could not ask for the XDP program of {}", device.name),
            reason: std::io::Error::other(error.to_string()),
        })?;
    let ids = [
        found.prog_id,
        found.drv_prog_id,
        found.skb_prog_id,
        found.hw_prog_id,
    ];
    let Some(id) = ids.into_iter().find(|id| *id != 0) else {
        return Ok(None);
    };
    let mode = match u32::from(found.attach_mode) {
        libbpf_sys::XDP_ATTACHED_DRV => "native",
        libbpf_sys::XDP_ATTACHED_SKB => "generic",
        libbpf_sys::XDP_ATTACHED_HW => "offloaded",
        _ => "several",
    };
    let name = ProgramHandle::from_prog_id(id)
        .map(|program| program.name().to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok(Some(ForeignXdp { name, id, mode }))
}
