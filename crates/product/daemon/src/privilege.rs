// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Giving up what is not needed once everything is loaded.

use caps::{CapSet, Capability, CapsHashSet};

use crate::{Error, Result};

/// Needed at work: running programs, attaching to new devices, resetting connections.
const AT_WORK: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN];

/// Kept in the permitted set only, raised to unmount the bpffs at the very end.
const IN_RESERVE: Capability = Capability::CAP_SYS_ADMIN;

/// Drops all capabilities but those the daemon needs, for good.
///
/// # Errors
/// [`Error::Privilege`] if the kernel refuses.
pub fn drop_privileges() -> Result<()> {
    let refused = |error: caps::errors::CapsError| Error::Privilege(error.to_string());
    let at_work: CapsHashSet = AT_WORK.into_iter().collect();
    let mut permitted = at_work.clone();
    permitted.insert(IN_RESERVE);
    caps::clear(None, CapSet::Ambient).map_err(refused)?;
    for capability in caps::all() {
        // CAP_SETPCAP is needed for this and goes with the permitted set below; what the kernel
        // does not know or what is not there need not go.
        if !permitted.contains(&capability) {
            let _ = caps::drop(None, CapSet::Bounding, capability);
        }
    }
    caps::set(None, CapSet::Effective, &at_work).map_err(refused)?;
    caps::set(None, CapSet::Permitted, &permitted).map_err(refused)?;
    caps::clear(None, CapSet::Inheritable).map_err(refused)?;
    nix::sys::prctl::set_no_new_privs().map_err(Error::io("could not set no_new_privs"))
}

/// Takes back what is kept for the end: unmounting the bpffs.
pub(crate) fn raise_reserve() {
    if let Err(error) = caps::raise(None, CapSet::Effective, IN_RESERVE) {
        tracing::warn!("unmounting needs CAP_SYS_ADMIN: {error}");
    }
}

/// Does something without root's rights to everybody's files, which the daemon gives up.
pub(crate) fn as_at_work<T>(work: impl FnOnce() -> T) -> T {
    let had: Vec<Capability> = [
        Capability::CAP_DAC_OVERRIDE,
        Capability::CAP_DAC_READ_SEARCH,
    ]
    .into_iter()
    .filter(|capability| caps::has_cap(None, CapSet::Effective, *capability).unwrap_or(false))
    .collect();
    for capability in &had {
        // What cannot be lowered is told by the daemon's next attempt.
        let _ = caps::drop(None, CapSet::Effective, *capability);
    }
    let done = work();
    for capability in had {
        let _ = caps::raise(None, CapSet::Effective, capability);
    }
    done
}
