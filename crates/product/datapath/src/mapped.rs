// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Array maps, mapped into this process.

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use erb_abi::{LOG, Logs, Values, control};
use libbpf_rs::MapCore as _;
use memmap2::MmapOptions;

use crate::load::{check_shape, open_map};
use crate::{Error, Result};

/// Maps the values of an array map that is pinned in `root` and was made with `BPF_F_MMAPABLE`.
pub(crate) fn mapped(root: &Path, name: &'static str) -> Result<Values> {
    let map = open_map(root, name)?;
    let count = map.max_entries() as usize;
    // As the kernel lays them out (kernel/bpf/arraymap.c, `array->elem_size`).
    let stride = map.value_size().next_multiple_of(8) as usize;
    let area = MmapOptions::new()
        .len(stride * count)
        .map_raw(map.as_fd().as_raw_fd())
        .map_err(|error| Error::map(name, format!("could not be mapped: {error}")))?;
    // SAFETY: the mapping has all values and lives as long as `area`; check_shapes has compared
    // their size with the mirror's.
    Ok(unsafe { Values::new(area.as_mut_ptr(), stride, count, area) })
}

/// The log of what is answered in the server's place, of the programs that are pinned in `root`.
///
/// # Errors
/// [`Error::Pin`] if they answer no writes, [`Error::OtherVersion`] if their log has another shape.
pub fn open_logs(root: &Path) -> Result<Logs> {
    check_shape(root, &LOG)?;
    let rings = mapped(root, LOG.name)?;
    let order = mapped(root, "erb_control")?.behind(offset_of!(control, order));
    Ok(Logs::new(rings, order))
}
