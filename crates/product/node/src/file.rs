// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file or block device of a store: opened for direct I/O, by one process.
//!
//! Invariants:
//! 1. Whoever reads or writes a store holds its lock. It ends with the process, however that ends.
//! 2. All I/O is direct: what is read comes from the drive, not from a cache of the system.
//! 3. A file of a store has its blocks, zeroed once. So a write changes no metadata of the file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use erb_nvme::backend::Retention;
use erb_store::Settings;
use erb_store::layout::{ALIGN_BYTES, Layout, NoLayout, SUPERBLOCKS};
use erb_store::place::SEGMENT_BYTES;
use erb_store::superblock::{NoSuperblock, Superblock};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use nix::sys::statfs::{FsType, TMPFS_MAGIC, fstatfs};

use crate::buffer::Aligned;
use crate::error::{Error, Result, system};
use crate::locks::lock_of;
use crate::words;

/// The writes of a node that was killed end within this time, or the device hangs.
const LAST_WRITES: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
/// A device's claim ends a moment behind its holder's lock.
const LAST_CLAIM: Duration = Duration::from_millis(200);
/// Written at once by a format.
const ZEROS_BYTES: usize = 1 << 20;
/// Segments of a small store are smaller, so that it has so many at least: steps of space are percentages.
const SEGMENTS_WANTED: u64 = 64;
/// The same where shards are many.
const SEGMENTS_WANTED_PER_SHARD: u64 = 16;
/// Fewer, and a shard's log, its two checkpoints and what is kept free leave nothing to write to, or a restart does: of
/// one shard 11 held through restarts, 9 did not.
const SEGMENTS_MIN_PER_SHARD: u32 = 11;
/// But not below this: the longest batch has to fit twice.
const SEGMENT_BYTES_MIN: u64 = 4 << 20;

/// A store's file, open and locked.
#[derive(Debug)]
pub(crate) struct StoreFile {
    file: Flock<File>,
    path: PathBuf,
}

pub(crate) fn failed<'a>(
    path: &'a Path,
    what: &'static str,
) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::File {
        path: path.to_owned(),
        what,
        source,
    }
}

impl StoreFile {
    /// Opens and locks what is there.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, false)
    }

    fn open_with(path: &Path, is_new: bool) -> Result<Self> {
        let mut flags = libc::O_DIRECT;
        let mut is_device = false;
        if !is_new {
            let found = std::fs::metadata(path).map_err(failed(path, "cannot be opened"))?;
            let kind = found.file_type();
            is_device = kind.is_block_device();
            if is_device {
                flags |= libc::O_EXCL;
            } else if !kind.is_file() {
                return Err(Error::NotAFile(path.to_owned()));
            }
        }
        let file = match opened(path, flags, is_new) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                if is_new {
                    // It may have been made all the same, and is of no use.
                    let _ = std::fs::remove_file(path);
                }
                return Err(Error::NotDirect(path.to_owned()));
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(in_use(path, "the system, or another process,".to_owned()));
            }
            opened => opened.map_err(failed(path, "cannot be opened"))?,
        };
        let system = fstatfs(&file).map_err(io::Error::from);
        let system = system.map_err(failed(path, "its file system cannot be told"))?;
        if lies_in_memory(is_device, system.filesystem_type()) {
            if is_new {
                // What was just made for this is of no use.
                let _ = std::fs::remove_file(path);
            }
            return Err(Error::InMemory(path.to_owned()));
        }
        Ok(Self {
            file: locked(file, path)?,
            path: path.to_owned(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Bytes that it has.
    pub(crate) fn bytes(&self) -> Result<u64> {
        bytes_of(&self.file, &self.path)
    }

    /// Reads from the drive; none: it could not.
    pub(crate) fn read(&self, address: u64, bytes: usize) -> Option<Aligned> {
        read_at(&self.file, address, bytes)
    }

    /// What its superblocks say.
    ///
    /// # Errors
    /// There is no store.
    pub(crate) fn superblock(&self) -> std::result::Result<Superblock, NoSuperblock> {
        Superblock::choose(&self.superblocks()).map(|(block, _)| block)
    }

    /// All copies; none of one that cannot be read.
    pub(crate) fn superblocks(&self) -> [Option<Vec<u8>>; SUPERBLOCKS] {
        superblocks_of(&self.file)
    }

    /// Makes all that can be read durable.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn read_at(file: &File, address: u64, bytes: usize) -> Option<Aligned> {
    let mut buffer = Aligned::zeroed(bytes);
    let read = file.read_exact_at(buffer.slice_mut(), address);
    read.ok().map(|()| buffer)
}

/// Bytes that a file or block device has.
pub(crate) fn bytes_of(mut file: &File, path: &Path) -> Result<u64> {
    // Of a block device metadata does not say.
    let end = io::Seek::seek(&mut file, io::SeekFrom::End(0));
    end.map_err(failed(path, "its size cannot be told"))
}

/// All copies of the superblock; none of one that cannot be read.
pub(crate) fn superblocks_of(file: &File) -> [Option<Vec<u8>>; SUPERBLOCKS] {
    std::array::from_fn(|copy| {
        let read = read_at(file, Layout::superblock_at(copy), ALIGN_BYTES as usize);
        read.map(|buffer| buffer.slice().to_vec())
    })
}

/// Whoever writes behind a store's end holds this, beside the store's lock or without it: what lies there becomes the
/// store's when somebody else has written it. It ends with the file.
pub(crate) fn lock_growth(file: &File, path: &Path) -> Result<()> {
    let all = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&all)) {
        Ok(_) => Ok(()),
        Err(Errno::EAGAIN | Errno::EACCES) => Err(Error::Growing(path.to_owned())),
        Err(error) => Err(failed(path, "cannot be locked")(error.into())),
    }
}

/// Whether what is written lies in memory. The name of a device does (/dev is a tmpfs to statfs), and its blocks do not.
fn lies_in_memory(is_device: bool, system: FsType) -> bool {
    !is_device && system == TMPFS_MAGIC
}

fn in_use(path: &Path, holder: String) -> Error {
    Error::InUse {
        path: path.to_owned(),
        holder,
    }
}

/// Opens it. A device is claimed by who has it open (`O_EXCL`), and by a node that was killed until the kernel has ended
/// its writes.
fn opened(path: &Path, flags: libc::c_int, is_new: bool) -> io::Result<File> {
    let begun = Instant::now();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(is_new);
    options.mode(0o600).custom_flags(flags);
    loop {
        let opened = options.open(path);
        let busy = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
        if !opened.as_ref().is_err_and(busy) {
            return opened;
        }
        let waits = match lock_of(path) {
            Ok(Some((_, lives))) => !lives && begun.elapsed() < LAST_WRITES,
            _ => begun.elapsed() < LAST_CLAIM,
        };
        if !waits {
            return opened;
        }
        std::thread::sleep(LOOK);
    }
}

/// Takes the lock. A node that was killed holds it until the kernel has ended its writes: nobody may read before.
fn locked(mut file: File, path: &Path) -> Result<Flock<File>> {
    let begun = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => return Ok(file),
            Err((back, Errno::EWOULDBLOCK)) => file = back,
            Err((_, error)) => return Err(failed(path, "cannot be locked")(error.into())),
        }
        let said = lock_of(path);
        if let Ok(Some((process, true))) = said {
            return Err(in_use(path, format!("process {process}")));
        }
        if begun.elapsed() > LAST_WRITES {
            let other = match said {
                Ok(Some(_)) => "a process that was killed and has writes that do not end,",
                _ => "a process that /proc/locks does not name",
            };
            return Err(in_use(path, other.to_owned()));
        }
        std::thread::sleep(LOOK);
    }
}

/// The process that holds a store, and lives.
pub(crate) fn holder(path: &Path) -> Result<Option<i32>> {
    std::fs::metadata(path).map_err(failed(path, "cannot be opened"))?;
    let held = lock_of(path).map_err(system("/proc/locks cannot be read"))?;
    Ok(held.filter(|(_, lives)| *lives).map(|(process, _)| process))
}

/// How long a new store keeps versions, unless something else is said.
pub const NEW_RETENTION: Retention = Retention {
    min_age_us: Settings::NEW.min_age_us,
    keep_deleted_us: Settings::NEW.keep_deleted_us,
    min_count: Settings::NEW.min_count,
};

/// What a new store is.
#[derive(Clone, Debug)]
pub struct Format {
    /// The file or block device.
    pub path: PathBuf,
    /// Bytes; none: all of what is there.
    pub bytes: Option<u64>,
    /// Shards, 1 to 64.
    pub shards: u16,
    /// What is there is overwritten.
    pub may_overwrite: bool,
}

/// What lies where in a store of so many bytes.
///
/// # Errors
/// It is too small or too large, or has no shards or too many.
pub fn layout(bytes: u64, shards: u16) -> Result<Layout> {
    let layout = Layout::new(bytes, shards.max(1));
    let wanted = SEGMENTS_WANTED.max(SEGMENTS_WANTED_PER_SHARD * u64::from(shards));
    let small = (bytes / wanted).max(1);
    let segment_bytes = (1 << small.ilog2()).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES);
    let layout = match layout {
        Ok(layout) => Layout {
            segment_bytes,
            shards,
            ..layout
        },
        // Segments of the usual size do not fit; areas are those of the smallest store that has them.
        Err(_) => Layout {
            store_bytes: bytes / ALIGN_BYTES * ALIGN_BYTES,
            segment_bytes,
            area_bytes: Layout::new(1 << 30, 1)?.area_bytes,
            shards,
        },
    };
    layout.check()?;
    if layout.segments() < SEGMENTS_MIN_PER_SHARD * u32::from(shards) {
        return Err(NoLayout::TooSmall(bytes).into());
    }
    Ok(layout)
}

/// Makes a store. `told` hears how many bytes of how many are done.
///
/// # Errors
/// Something stands in the way; what was there may be lost only if that was allowed.
pub fn format(wanted: &Format, told: &mut dyn FnMut(u64, u64)) -> Result<Layout> {
    format_keeping(wanted, NEW_RETENTION, told)
}

/// The same, of a store that keeps versions for so long from its first write on.
///
/// # Errors
/// As [`format`].
pub fn format_keeping(
    wanted: &Format,
    keeps: Retention,
    told: &mut dyn FnMut(u64, u64),
) -> Result<Layout> {
    let path = &wanted.path;
    let is_there = path.exists();
    let is_device =
        is_there && std::fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device());
    if is_there
        && !wanted.may_overwrite
        && (!is_device || StoreFile::open(path)?.superblock().is_ok())
    {
        return Err(Error::Exists(path.clone()));
    }
    if let Some(bytes) = wanted.bytes {
        // Whoever asks for what cannot be gets no file.
        layout(bytes, wanted.shards)?;
    } else if !is_there {
        return Err(Error::Size(
            "--size is needed for a file that is not there".to_owned(),
        ));
    }
    let store = StoreFile::open_with(path, !is_there)?;
    lock_growth(store.file(), path)?;
    let made = make(&store, wanted, (is_device, keeps), told);
    if made.is_err() && !is_there {
        // What is half a store is of no use to anybody.
        let _ = std::fs::remove_file(path);
    }
    made
}

fn make(
    store: &StoreFile,
    wanted: &Format,
    (is_device, keeps): (bool, Retention),
    told: &mut dyn FnMut(u64, u64),
) -> Result<Layout> {
    let path = store.path();
    let there = store.bytes()?;
    let bytes = wanted.bytes.unwrap_or(there);
    if is_device && bytes > there {
        return Err(Error::Size(format!(
            "{}: it has {there} bytes, fewer than --size says",
            path.display()
        )));
    }
    let layout = layout(bytes, wanted.shards)?;
    let zeroed = if is_device {
        layout.segment_at(0)
    } else {
        store
            .file
            .set_len(layout.store_bytes)
            .map_err(failed(path, "cannot be made so large"))?;
        layout.store_bytes
    };
    let zeros = Aligned::zeroed(ZEROS_BYTES);
    let mut at = 0;
    while at < zeroed {
        let length = (zeroed - at).min(ZEROS_BYTES as u64);
        let written = store
            .file
            .write_all_at(&zeros.slice()[..length as usize], at);
        written.map_err(failed(path, "cannot be written"))?;
        at += length;
        told(at, zeroed);
    }
    // What the superblocks name is durable before they are.
    store
        .file
        .sync_all()
        .map_err(failed(path, "cannot be made durable"))?;
    let [id, first, second] = random()?;
    let block = Superblock::format(layout, id, [first, second]).keeping(words::settings(keeps));
    for copy in 0..SUPERBLOCKS {
        let bytes = Aligned::of(&block.encode(copy));
        let written = store
            .file
            .write_all_at(bytes.slice(), Layout::superblock_at(copy));
        written.map_err(failed(path, "cannot be written"))?;
    }
    store
        .file
        .sync_all()
        .map_err(failed(path, "cannot be made durable"))?;
    if let Some(folder) = path.parent().filter(|_| !is_device) {
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(failed(path, "its folder cannot be made durable"))?;
    }
    Ok(layout)
}

fn random() -> Result<[u64; 3]> {
    let mut numbers = [0; 3];
    for number in &mut numbers {
        *number = getrandom::u64().map_err(|error| {
            system("the system has no random numbers")(io::Error::other(error.to_string()))
        })?;
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use nix::sys::statfs::{EXT4_SUPER_MAGIC, TMPFS_MAGIC};

    use super::lies_in_memory;

    #[test]
    fn a_file_lies_where_its_name_does_and_a_device_does_not() {
        assert!(lies_in_memory(false, TMPFS_MAGIC));
        assert!(!lies_in_memory(false, EXT4_SUPER_MAGIC));
        assert!(!lies_in_memory(true, TMPFS_MAGIC), "/dev/vda");
    }
}
