// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frees a file's blocks and gives them to another file.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::fstatvfs;

use crate::pattern::{self, FILLER};

/// Left beside the ballast, for what is sent and for what fills up.
const ROOM_BYTES: u64 = 24 << 20;
/// xfs frees the blocks of a deleted file some ticks later.
const SETTLES: Duration = Duration::from_millis(50);

/// How blocks are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Free {
    /// `ftruncate` to 0.
    Truncate,
    /// `FALLOC_FL_PUNCH_HOLE` over all of it.
    Hole,
    /// `unlink`; nobody has it open by then, unless a mapping does.
    Unlink,
}

impl Free {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Truncate, Self::Hole, Self::Unlink];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncate => "truncate",
            Self::Hole => "hole",
            Self::Unlink => "unlink",
        }
    }

    /// Does it.
    pub fn apply(self, path: &Path) -> Result<()> {
        if self == Self::Unlink {
            return fs::remove_file(path);
        }
        let file = OpenOptions::new().write(true).open(path)?;
        if self == Self::Truncate {
            return file.set_len(0);
        }
        let length = i64::try_from(file.metadata()?.len()).map_err(|_| ErrorKind::FileTooLarge)?;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&file, flags, 0, length)?;
        Ok(())
    }
}

/// Takes most of the file system away, so that freed blocks are used again soon.
pub fn ballast(dir: &Path) -> Result<()> {
    let file = File::create(dir.join("ballast"))?;
    let facts = fstatvfs(&file)?;
    let free = facts.blocks_available() * facts.fragment_size();
    let bytes = i64::try_from(free.saturating_sub(ROOM_BYTES)).unwrap_or(0);
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    file.sync_all()
}

/// A file that takes all that is free, with a pattern of its own; gone when dropped.
#[derive(Debug)]
pub struct Filler {
    path: PathBuf,
}

impl Filler {
    /// Lets the file system give blocks free for good, and takes them.
    pub fn fill(dir: &Path) -> Result<Self> {
        let path = dir.join("filler");
        let filler = Self { path };
        let mut file = File::create(&filler.path)?;
        // A file system frees blocks behind its back, and refuses a write of which a part would fit.
        let mut bytes = u64::MAX;
        while bytes != file.metadata()?.len() {
            bytes = file.metadata()?.len();
            settle(&file)?;
            for piece_bytes in [64 << 10, 4 << 10] {
                write_all_there_is(&mut file, piece_bytes)?;
            }
        }
        Ok(filler)
    }
}

fn write_all_there_is(file: &mut File, piece_bytes: u64) -> Result<()> {
    let piece = pattern::content(FILLER, 0xee, 0, piece_bytes);
    loop {
        match file.write_all(&piece) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // A check that needs the room will say so. The next file shall lie where it is used again first.
        let _ = fs::remove_file(&self.path);
        let _ = self
            .path
            .parent()
            .map_or(Ok(()), |dir| settle(&File::open(dir)?));
    }
}

/// Lets the file system free what it has to.
fn settle(file: &File) -> Result<()> {
    sync(file)?;
    std::thread::sleep(SETTLES);
    sync(file)
}

fn sync(file: &File) -> Result<()> {
    // SAFETY: no memory is handed over.
    if unsafe { libc::syncfs(file.as_raw_fd()) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
