// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting until no program is under way that has begun before.
//!
//! The kernel has one call that promises this to user space: an update of a map of maps comes back when all programs
//! that do not sleep have ended which may have seen the former map (`maybe_wait_bpf_programs`, kernel/bpf/syscall.c).
//! None of ours sleeps. The maps are made for this and go with the call.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null;

use crate::{Error, Result};

const KEY_BYTES: u32 = 4;

fn failed(reason: io::Error) -> Error {
    Error::Run {
        program: "a wait for all programs",
        reason,
    }
}

/// A map with one place; `inner`: a map like those that it holds.
fn create(kind: libbpf_sys::bpf_map_type, inner: Option<RawFd>) -> Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if let Some(inner) = inner {
        options.inner_map_fd = inner as u32;
    }
    // SAFETY: options is live, with its true size; no name is given.
    let fd =
        unsafe { libbpf_sys::bpf_map_create(kind, null(), KEY_BYTES, 4, 1, &raw const options) };
    if fd < 0 {
        return Err(failed(io::Error::from_raw_os_error(-fd)));
    }
    // SAFETY: the kernel has just given it to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns when all programs have ended that were under way.
///
/// # Errors
/// [`Error::Run`] if the kernel does not say so.
pub fn wait_for_programs() -> Result<()> {
    let inner = create(libbpf_sys::BPF_MAP_TYPE_ARRAY, None)?;
    let outer = create(
        libbpf_sys::BPF_MAP_TYPE_ARRAY_OF_MAPS,
        Some(inner.as_raw_fd()),
    )?;
    let (key, value) = (0u32, inner.as_raw_fd());
    // SAFETY: key and value are as long as the map says and outlive the call.
    let done = unsafe {
        libbpf_sys::bpf_map_update_elem(
            outer.as_raw_fd(),
            (&raw const key).cast(),
            (&raw const value).cast(),
            0,
        )
    };
    match done {
        0 => Ok(()),
        error => Err(failed(io::Error::from_raw_os_error(-error))),
    }
}
