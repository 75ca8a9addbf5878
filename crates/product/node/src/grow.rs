// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store gets more space. No node has it open meanwhile.
//!
//! Invariants, beside those of [`Growth`]:
//! 1. What is there is not touched. If a file cannot become so large it is given back what it had.
//! 2. A file has the blocks of what is added, zeroed once, before a superblock names them.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use erb_store::growth::{Growth, GrowthIo, NoGrowth};
use erb_store::layout::Layout;

use crate::buffer::Aligned;
use crate::error::{Error, Result};
use crate::file::{StoreFile, failed};

/// What a store shall become.
#[derive(Clone, Debug)]
pub struct Grow {
    /// The file or block device.
    pub path: PathBuf,
    /// Bytes; none: all of what is there.
    pub bytes: Option<u64>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// What the store was.
    pub before: Layout,
    /// What it is.
    pub now: Layout,
}

/// Adds space to a store. `told` hears how many bytes of how many are done.
///
/// # Errors
/// It cannot become so large, or something stands in the way. The store is as it was, or as it should become.
pub fn grow(wanted: &Grow, told: &mut dyn FnMut(u64, u64)) -> Result<Grown> {
    let store = StoreFile::open(&wanted.path)?;
    let is_device = store.is_device()?;
    let there = store.bytes()?;
    let no_growth = |source: NoGrowth| Error::Grow {
        path: wanted.path.clone(),
        source,
    };
    let before = store
        .superblock()
        .map_err(|error| no_growth(error.into()))?;
    let wants = before.layout.store_bytes;
    if there < wants {
        // What was cut off would become zeros that look like a log's end.
        return Err(Error::Short {
            path: wanted.path.clone(),
            has: there,
            wants,
        });
    }
    let bytes = wanted.bytes.unwrap_or(there);
    if is_device && bytes > there {
        return Err(Error::Size(format!(
            "{}: it has {there} bytes, fewer than --size says: make the device larger first",
            wanted.path.display()
        )));
    }
    let mut growth = Growth::within(&store.superblocks(), bytes).map_err(no_growth)?;
    if is_device {
        // Its blocks are there: no write changes metadata.
        while let Some(GrowthIo::Zeros { .. }) = growth.io() {
            growth.done();
        }
    } else if let Err(error) = make_larger(&store, &mut growth, there, told) {
        // Nothing names what was added.
        let _ = store.file().set_len(there);
        return Err(error);
    }
    while let Some(io) = growth.io() {
        match io {
            GrowthIo::Superblock { address, bytes } => {
                write(&store, &wanted.path, address, &Aligned::of(&bytes))?;
                sync(&store, &wanted.path)?;
            }
            _ => sync(&store, &wanted.path)?,
        }
        growth.done();
    }
    Ok(Grown {
        before: before.layout,
        now: growth.layout(),
    })
}

/// The file gets its blocks.
fn make_larger(
    store: &StoreFile,
    growth: &mut Growth,
    there: u64,
    told: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let path = store.path();
    let wants = growth.layout().store_bytes;
    if wants > there {
        let made = store.file().set_len(wants);
        made.map_err(failed(path, "cannot be made so large"))?;
    }
    let all = growth.left_bytes();
    while let Some(GrowthIo::Zeros { address, bytes }) = growth.io() {
        write(store, path, address, &Aligned::zeroed(bytes as usize))?;
        growth.done();
        told(all - growth.left_bytes(), all);
    }
    sync(store, path)
}

fn write(store: &StoreFile, path: &Path, address: u64, bytes: &Aligned) -> Result<()> {
    let written = store.file().write_all_at(bytes.slice(), address);
    written.map_err(failed(path, "cannot be written"))
}

fn sync(store: &StoreFile, path: &Path) -> Result<()> {
    let synced = store.file().sync_all();
    synced.map_err(failed(path, "cannot be made durable"))
}
