// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store gets more space. If a node has it open that takes the space, once it is there.
//!
//! Invariants, beside those of [`Growth`]:
//! 1. What is there is not touched. If a file cannot become so large it is given back what it had.
//! 2. A file has the blocks of what is added, zeroed once, before a superblock names them.
//! 3. One process at a time writes behind a store's end. A node writes there only what its superblock names, and that it
//!    changes when it is told that the space is there.
//! 4. Nobody is sent a signal who does not wait for it: it would end him.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use erb_store::growth::{Growth, GrowthIo, NoGrowth};
use erb_store::layout::{ALIGN_BYTES, Layout, SUPERBLOCKS};
use erb_store::superblock::Superblock;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::buffer::Aligned;
use crate::error::{Error, Result, system};
use crate::file::{StoreFile, bytes_of, failed, holder, lock_growth, superblocks_of};
use crate::locks::catches;

/// What tells a node to take the space that was added to its store.
pub const GROWTH_SIGNAL: Signal = Signal::SIGUSR1;
/// A node takes it within this time.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

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
    /// A node serves it.
    pub is_running: bool,
}

/// Adds space to a store. `told` hears how many bytes of how many are done.
///
/// # Errors
/// It cannot become so large, or something stands in the way. The store is as it was, or as it should become.
pub fn grow(wanted: &Grow, told: &mut dyn FnMut(u64, u64)) -> Result<Grown> {
    match StoreFile::open(&wanted.path) {
        Ok(store) => grow_closed(&store, wanted, told),
        Err(error @ Error::InUse { .. }) => match holder(&wanted.path)?.filter(waits) {
            Some(process) => grow_running(process, wanted, told),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Whether a process is a node that waits for this.
fn waits(process: &i32) -> bool {
    catches(*process, GROWTH_SIGNAL)
}

/// What a store shall become, as far as that can be told before anything is done.
struct Planned {
    before: Layout,
    there: u64,
    growth: Growth,
    is_device: bool,
}

fn plan(file: &File, wanted: &Grow) -> Result<Planned> {
    let path = &wanted.path;
    let found = file
        .metadata()
        .map_err(failed(path, "cannot be looked at"))?;
    let is_device = found.file_type().is_block_device();
    let there = bytes_of(file, path)?;
    let copies = superblocks_of(file);
    let no_growth = |source: NoGrowth| Error::Grow {
        path: path.clone(),
        source,
    };
    let block = Superblock::choose(&copies).map_err(|error| no_growth(error.into()))?;
    let before = block.0.layout;
    let wants = before.store_bytes;
    if there < wants {
        // What was cut off would become zeros that look like a log's end.
        return Err(Error::Short {
            path: path.clone(),
            has: there,
            wants,
        });
    }
    let bytes = wanted.bytes.unwrap_or(there);
    if is_device && bytes > there {
        return Err(Error::Size(format!(
            "{}: it has {there} bytes, fewer than --size says: make the device larger first",
            path.display()
        )));
    }
    Ok(Planned {
        before,
        there,
        growth: Growth::within(&copies, bytes).map_err(no_growth)?,
        is_device,
    })
}

/// What is added is there, durably.
fn make_space(
    file: &File,
    path: &Path,
    planned: &mut Planned,
    told: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let (growth, there) = (&mut planned.growth, planned.there);
    if planned.is_device {
        // Its blocks are there: no write changes metadata.
        while let Some(GrowthIo::Zeros { .. }) = growth.io() {
            growth.done();
        }
    } else if let Err(error) = make_larger((file, path), growth, there, told) {
        // Nothing names what was added.
        let _ = file.set_len(there);
        return Err(error);
    }
    Ok(())
}

fn grow_closed(store: &StoreFile, wanted: &Grow, told: &mut dyn FnMut(u64, u64)) -> Result<Grown> {
    let (file, path) = (store.file(), &wanted.path);
    lock_growth(file, path)?;
    let mut planned = plan(file, wanted)?;
    make_space(file, path, &mut planned, told)?;
    let growth = &mut planned.growth;
    while let Some(io) = growth.io() {
        if let GrowthIo::Superblock { address, bytes } = io {
            write((file, path), address, &Aligned::of(&bytes))?;
        }
        sync((file, path))?;
        growth.done();
    }
    Ok(Grown {
        before: planned.before,
        now: growth.layout(),
        is_running: false,
    })
}

/// The same of a store that a node serves: it is told when the space is there, and changes the superblock itself.
fn grow_running(process: i32, wanted: &Grow, told: &mut dyn FnMut(u64, u64)) -> Result<Grown> {
    let path = &wanted.path;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path);
    let file = opened.map_err(failed(path, "cannot be opened"))?;
    lock_growth(&file, path)?;
    let mut planned = plan(&file, wanted)?;
    let now = planned.growth.layout();
    if planned.there - planned.there.min(now.store_bytes) >= ALIGN_BYTES {
        return Err(Error::Size(format!(
            "{}: it has {} bytes, more than --size says: a running node takes all of them, without --size",
            path.display(),
            planned.there
        )));
    }
    make_space(&file, path, &mut planned, told)?;
    tell(process, path)?;
    let begun = Instant::now();
    while !all_say(&superblocks_of(&file), now) {
        let not_grown = |why| Error::NotGrown {
            path: path.clone(),
            why,
        };
        if holder(path)? != Some(process) {
            return Err(not_grown("its node has ended meanwhile"));
        }
        if begun.elapsed() > PATIENCE {
            return Err(not_grown("its node has not taken it in time"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(Grown {
        before: planned.before,
        now,
        is_running: true,
    })
}

/// Whether each copy of the superblock says that the store is so large.
fn all_say(copies: &[Option<Vec<u8>>; SUPERBLOCKS], layout: Layout) -> bool {
    (0..SUPERBLOCKS).all(|copy| {
        let alone = std::array::from_fn(|at| copies[at].clone().filter(|_| at == copy));
        let found = Superblock::choose(&alone);
        found.is_ok_and(|(block, _)| block.layout.segments() >= layout.segments())
    })
}

/// Tells a node that the file of its store has become larger.
fn tell(process: i32, path: &Path) -> Result<()> {
    if holder(path)? != Some(process) || !waits(&process) {
        return Err(Error::NotGrown {
            path: path.to_owned(),
            why: "its node has ended meanwhile",
        });
    }
    let told = kill(Pid::from_raw(process), GROWTH_SIGNAL);
    told.map_err(|error| system("the node cannot be told to grow")(error.into()))
}

/// The file gets its blocks.
fn make_larger(
    (file, path): (&File, &Path),
    growth: &mut Growth,
    there: u64,
    told: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let wants = growth.layout().store_bytes;
    if wants > there {
        let made = file.set_len(wants);
        made.map_err(failed(path, "cannot be made so large"))?;
    }
    let all = growth.left_bytes();
    while let Some(GrowthIo::Zeros { address, bytes }) = growth.io() {
        write((file, path), address, &Aligned::zeroed(bytes as usize))?;
        growth.done();
        told(all - growth.left_bytes(), all);
    }
    sync((file, path))
}

fn write((file, path): (&File, &Path), address: u64, bytes: &Aligned) -> Result<()> {
    let written = file.write_all_at(bytes.slice(), address);
    written.map_err(failed(path, "cannot be written"))
}

fn sync((file, path): (&File, &Path)) -> Result<()> {
    let synced = file.sync_all();
    synced.map_err(failed(path, "cannot be made durable"))
}
