// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Array maps, mapped into this process.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore as _, MapHandle};
use memmap2::{MmapOptions, MmapRaw};

use crate::{Error, Result};

/// A `T` shared with the BPF programs. All access goes through raw pointers: the other side may
/// change it at any time.
pub(crate) struct Mapped<T> {
    area: MmapRaw,
    shape: std::marker::PhantomData<T>,
}

impl<T> Mapped<T> {
    /// Maps value 0 of an array map made with `BPF_F_MMAPABLE`.
    pub(crate) fn new(name: &'static str, map: &MapHandle) -> Result<Self> {
        let area = MmapOptions::new()
            .len(size_of::<T>())
            .map_raw(map.as_fd().as_raw_fd())
            .map_err(|error| Error::map(name, format!("could not be mapped: {error}")))?;
        Ok(Self {
            area,
            shape: std::marker::PhantomData,
        })
    }

    /// Address of the value, valid as long as `self` and aligned to a page.
    pub(crate) fn ptr(&self) -> *mut T {
        self.area.as_mut_ptr().cast()
    }
}

/// All values of an array map, side by side: of types whose size is a multiple of 8.
pub(crate) struct MappedAll<T> {
    area: MmapRaw,
    shape: std::marker::PhantomData<T>,
}

impl<T> MappedAll<T> {
    /// Maps the values of an array map made with `BPF_F_MMAPABLE`.
    pub(crate) fn new(name: &'static str, map: &MapHandle) -> Result<Self> {
        const { assert!(size_of::<T>() % 8 == 0) };
        let area = MmapOptions::new()
            .len(size_of::<T>() * map.max_entries() as usize)
            .map_raw(map.as_fd().as_raw_fd())
            .map_err(|error| Error::map(name, format!("could not be mapped: {error}")))?;
        Ok(Self {
            area,
            shape: std::marker::PhantomData,
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.area.len() / size_of::<T>()
    }

    /// Address of one of them, valid as long as `self`.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.count(), "value {index} of {}", self.count());
        // SAFETY: the index was checked.
        unsafe { self.area.as_mut_ptr().cast::<T>().add(index) }
    }
}
