// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be known of a device without changing it.

use std::io;

use libbpf_rs::ProgramHandle;

use crate::ethtool::{self, Channels};
use crate::other_end::{OtherEnd, other_end};
use crate::{Device, Error, Result};

/// `NETDEV_XDP_ACT_BASIC` of include/uapi/linux/netdev.h: the driver runs XDP programs itself.
const XDP_BASIC: u64 = 1;

/// `NETDEV_XDP_ACT_NDO_XMIT`: the driver sends frames of XDP. A veth device says so only while its
/// other end, in whatever namespace, has an XDP program or GRO (`other_end.rs`).
const XDP_XMIT: u64 = 4;

/// `NETDEV_XDP_ACT_RX_SG`: it also gives them frames in several buffers.
const XDP_BUFFERS: u64 = 32;

/// Programs asked for at a hook; more are not told.
const PROGRAMS_MAX: usize = 64;

/// What a device is and can.
#[derive(Clone, Debug, Default)]
pub struct Abilities {
    /// Name of the driver, empty if it does not say.
    pub driver: String,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it was set up.
    pub is_up: bool,
    /// Whether the driver runs XDP programs.
    pub native_xdp: bool,
    /// Whether it can give them frames of several buffers.
    pub xdp_buffers: bool,
    /// What the other end of a veth pair does; none: it is no veth device.
    pub other_end: Option<OtherEnd>,
    /// Whether it merges segments in hardware (LRO).
    pub lro: bool,
    /// Receive queues now and at most; none: it does not say.
    pub queues: Option<(u32, u32)>,
    /// Programs at tcx ingress and egress, by name, in their order.
    pub tcx: Vec<String>,
}

/// Asks kernel and driver what the device can.
///
/// # Errors
/// [`Error::System`] if the kernel does not answer about XDP.
pub fn abilities(device: &Device) -> Result<Abilities> {
    let features = xdp_features(device).map_err(|reason| Error::System {
        what: format!("could not ask what XDP {} has", device.name),
        reason,
    })?;
    let mut tcx = Vec::new();
    for attach in [libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_TCX_EGRESS] {
        // Without privilege nobody tells; that it is missing is told elsewhere.
        tcx.extend(tcx_programs(device, attach).unwrap_or_default());
    }
    Ok(Abilities {
        driver: ethtool::driver(device).unwrap_or_default(),
        mtu: ethtool::mtu(device)?,
        is_up: ethtool::is_up(device)?,
        native_xdp: features & XDP_BASIC != 0,
        xdp_buffers: features & XDP_BUFFERS != 0,
        other_end: other_end(device),
        lro: ethtool::lro(device).unwrap_or(false),
        queues: ethtool::channels(device)
            .ok()
            .map(|Channels { now, most }| (now, most)),
        tcx,
    })
}

/// Whether the driver says that it sends frames of XDP.
pub(crate) fn xdp_sends(device: &Device) -> bool {
    xdp_features(device).is_ok_and(|features| features & XDP_XMIT != 0)
}

fn xdp_features(device: &Device) -> io::Result<u64> {
    let mut found = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: found is a live structure of the size that it states.
    let done = unsafe { libbpf_sys::bpf_xdp_query(device.ifindex as i32, 0, &raw mut found) };
    if done < 0 {
        Err(io::Error::from_raw_os_error(-done))
    } else {
        Ok(found.feature_flags)
    }
}

fn tcx_programs(device: &Device, attach: libbpf_sys::bpf_attach_type) -> io::Result<Vec<String>> {
    let mut ids = [0_u32; PROGRAMS_MAX];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = PROGRAMS_MAX as u32;
    // SAFETY: options is a live structure of the size that it states, with room for as many ids as
    // it says.
    let done =
        unsafe { libbpf_sys::bpf_prog_query_opts(device.ifindex as i32, attach, &raw mut options) };
    if done < 0 {
        return Err(io::Error::from_raw_os_error(-done));
    }
    // SAFETY: count is the member that the call has set.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    let named = ids.iter().take(count).map(|id| {
        ProgramHandle::from_prog_id(*id).map_or_else(
            |_| format!("number {id}"),
            |program| program.name().to_string_lossy().into_owned(),
        )
    });
    Ok(named.collect())
}
