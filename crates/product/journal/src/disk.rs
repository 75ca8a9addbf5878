// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments as files of a folder. Plain writes and fdatasync(2): they come one after the other, from a thread that has
//! nothing else to do, while Redis does not answer. A ring of requests would gain nothing there.
//!
//! Invariants:
//! 1. One process writes a folder: it holds the folder's lock.
//! 2. Who has a segment at work holds its lock. What bears none is nobody's, and may be deleted.
//! 3. A journal deletes the files that it has made or taken, and no other one that bears such a name by now.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::sink::Sink;

/// How segments' names end.
const SUFFIX: &str = ".erbj";
/// Digits of a number in a name.
const DIGITS: usize = 16;
/// Who looks at a segment has done so by then.
const LOCK_TRIES: u32 = 20;
const LOCK_WAIT: Duration = Duration::from_millis(5);

/// A folder of segments that this process writes.
pub struct Disk {
    path: PathBuf,
    folder: Flock<File>,
    /// Segments that are ours, by number: invariant 3.
    own: BTreeMap<u64, Inode>,
}

/// Which file it is, whatever its name: device and inode.
type Inode = (u64, u64);

fn inode(found: &Metadata) -> Inode {
    (found.dev(), found.ino())
}

/// A segment that is at work.
pub struct DiskFile(Flock<File>);

impl AsFd for DiskFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Disk {
    /// Makes the folder, and those above it, if there is none.
    ///
    /// # Errors
    /// Of the disk.
    pub fn make(path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    /// Takes the folder, whose own name outlives a loss of power from here on, whoever made it.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: another process has it. Else of the disk.
    pub fn open(path: &Path) -> io::Result<Self> {
        let folder = locked(File::open(path)?)?;
        for above in path.canonicalize()?.ancestors().skip(1) {
            match File::open(above).and_then(|folder| folder.sync_all()) {
                // Who may not even look into it did not make anything there. Nor did anybody where the file system
                // knows no sync: a read-only image that is the root, or a folder of automounts.
                Err(error) if is_of_nobody(&error) => {}
                done => done?,
            }
        }
        Ok(Self {
            path: path.to_path_buf(),
            folder,
            own: BTreeMap::new(),
        })
    }

    /// The path of a segment.
    pub(crate) fn segment(folder: &Path, number: u64) -> PathBuf {
        folder.join(Self::name(number))
    }

    /// The number that a segment's name says. A name in other letters is another file's.
    pub(crate) fn number(path: &Path) -> Option<u64> {
        let name = path.file_name()?.to_str()?;
        let number = u64::from_str_radix(name.strip_suffix(SUFFIX)?, 16).ok()?;
        (Self::name(number) == name).then_some(number)
    }

    fn name(number: u64) -> String {
        format!("{number:0DIGITS$x}{SUFFIX}")
    }

    /// Takes a segment that an earlier process made.
    ///
    /// # Errors
    /// Another process has it, or of the disk.
    pub fn take(&mut self, number: u64) -> io::Result<DiskFile> {
        let file = File::open(Self::segment(&self.path, number))?;
        self.keep(number, file)
    }

    fn keep(&mut self, number: u64, file: File) -> io::Result<DiskFile> {
        let inode = inode(&file.metadata()?);
        let file = locked_segment(file)?;
        self.own.insert(number, inode);
        Ok(DiskFile(file))
    }

    /// A segment is nobody's from here on: it is not looked after, and not deleted.
    pub fn let_go(&mut self, number: u64) {
        self.own.remove(&number);
    }

    /// What of it is not where it was; none: all is. Somebody has moved, deleted or hidden it.
    #[must_use]
    pub fn missing(&self) -> Option<PathBuf> {
        let is_there = |path: &Path, own: Inode| {
            fs::symlink_metadata(path).is_ok_and(|found| inode(&found) == own)
        };
        // The folder may be named by a link.
        let folder = self.folder.metadata().map(|found| inode(&found)).ok();
        if fs::metadata(&self.path).map(|found| inode(&found)).ok() != folder {
            return Some(self.path.clone());
        }
        let mut own = self.own.iter();
        own.find_map(|(number, own)| {
            let path = Self::segment(&self.path, *number);
            (!is_there(&path, *own)).then_some(path)
        })
    }

    /// Bytes that may still be written to its disk.
    ///
    /// # Errors
    /// Of the disk.
    pub fn room(&self) -> io::Result<u64> {
        let found = nix::sys::statvfs::fstatvfs(&*self.folder)?;
        Ok(found
            .blocks_available()
            .saturating_mul(found.fragment_size()))
    }
}

fn is_of_nobody(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
        || error.raw_os_error() == Some(Errno::EINVAL as i32)
}

fn locked(file: File) -> io::Result<Flock<File>> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
}

/// As [`locked`], of a segment: whoever looks whether somebody has it, has it himself for a moment.
pub(crate) fn locked_segment(mut file: File) -> io::Result<Flock<File>> {
    for _ in 0..LOCK_TRIES {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((back, Errno::EWOULDBLOCK)) => file = back,
            done => return done.map_err(|(_, error)| error.into()),
        }
        sleep(LOCK_WAIT);
    }
    locked(file)
}

impl Sink for Disk {
    type File = DiskFile;

    fn create(&mut self, number: u64) -> io::Result<DiskFile> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(Self::segment(&self.path, number))?;
        self.keep(number, file)
    }

    fn append(&mut self, file: &mut DiskFile, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match file.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn sync(&mut self, file: &mut DiskFile) -> io::Result<()> {
        file.0.sync_data()
    }

    fn sync_names(&mut self) -> io::Result<()> {
        self.folder.sync_all()
    }

    fn remove(&mut self, number: u64) -> io::Result<()> {
        let Some(own) = self.own.get(&number) else {
            return Ok(());
        };
        let path = Self::segment(&self.path, number);
        match fs::symlink_metadata(&path) {
            Ok(found) if inode(&found) == *own => fs::remove_file(path)?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {} // it is gone, or another one is there
        }
        self.own.remove(&number);
        Ok(())
    }
}

/// The name of a new file outlives a loss of power.
///
/// # Errors
/// Of the disk.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_segments_in_our_letters_alone() {
        let number = |name: &str| Disk::number(Path::new(name));
        assert_eq!(number("d/00000000000000af.erbj"), Some(0xaf));
        for other in [
            "00000000000000AF.erbj",
            "00000000000000af.ERBJ",
            "+0000000000000af.erbj",
            "af.erbj",
            "000000000000000af.erbj",
            "00000000000000af",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    /// /proc knows no sync, as an image that is the root may not (squashfs, erofs), nor a folder of automounts.
    #[test]
    fn a_folder_below_one_that_knows_no_sync_can_be_had() {
        let above = File::open("/proc").expect("/proc");
        let error = above.sync_all().expect_err("it has nothing to sync");
        assert_eq!(error.raw_os_error(), Some(Errno::EINVAL as i32));
        let path = format!("/proc/{}", std::process::id());
        Disk::open(Path::new(&path)).expect("a folder");
    }
}
