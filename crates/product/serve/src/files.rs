// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files below the served folder, as one thread has them open.
//!
//! Invariants:
//! 1. Nothing outside of the folder is opened: the kernel resolves each path beneath it (`RESOLVE_BENEATH`),
//!    symbolic links included.
//! 2. The bytes of a file with a lease are those of its version: whoever wants to write waits. The version was
//!    read when the lease was held.
//! 3. A file without a lease is compared by whoever sends it, behind the last byte.
//! 4. At most so many files are kept for later as there is room for, for [`KEEP`] after their last use, and as many
//!    names.
//! 5. A name stands for a kept file only if it leads to that very version now (`fstatat`), and did so beneath the
//!    folder when the file was opened by it.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dax_send::{MappedFile, ReadLease};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::sys::stat::{FileStat, fstatat};

use crate::answer::version_fields;
use crate::conditions::Version;

/// Tells of a lease that somebody waits for. Blocked in all threads, read from a signalfd.
pub const LEASE_SIGNAL: libc::c_int = libc::SIGIO;
/// How long a file stays open that nobody asks for: its blocks are not freed before.
const KEEP: Duration = Duration::from_secs(10);
/// Times of files tick by 4 ms on some kernels, and a write's time is taken before its bytes. A file must have
/// been still for so long before its times say what its bytes are.
const STILL: Duration = Duration::from_millis(20);
/// The same while somebody has it open for writing: who edits in several writes pauses between them.
const STILL_OPEN: Duration = Duration::from_millis(100);
/// The kernel asks for a path anew that changed while it was resolved.
const TRIES: usize = 4;

/// A file as it was at one moment.
#[derive(Debug)]
pub struct Opened {
    pub mapped: Arc<MappedFile>,
    pub version: Version,
    /// Fields of an answer's head that tell of the version.
    pub fields: String,
    lease: Option<ReadLease<Arc<MappedFile>>>,
    /// There is no lease because somebody has the file open for writing.
    is_open_elsewhere: bool,
    /// Somebody waits for the lease since then.
    pub wanted_since: Cell<Option<Instant>>,
}

impl Opened {
    /// Whether its bytes cannot change while this value lives.
    pub const fn is_leased(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether the file still has the version that was opened.
    pub fn is_same(&self) -> bool {
        let facts = self.mapped.file().metadata();
        facts.is_ok_and(|facts| version(&facts) == self.version)
    }

    /// Whether the file has been still for long enough to be told by its times.
    pub fn is_still(&self) -> bool {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let newest = self.version.modified_ns.max(self.version.changed_ns);
        #[expect(clippy::cast_possible_wrap, reason = "nanoseconds since 1970")]
        let age_ns = now.as_nanos() as i128 - newest;
        // A time in the future says nothing, and will not for long.
        let enough = if self.is_open_elsewhere {
            STILL_OPEN
        } else {
            STILL
        };
        age_ns >= enough.as_nanos() as i128 || age_ns < -1_000_000_000
    }
}

/// What a path leads to.
#[derive(Debug)]
pub enum Found {
    /// The file, and its content type.
    File(Rc<Opened>, &'static str),
    Directory,
}

/// Why there is nothing to send, by the status that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Forbidden,
    NotFound,
    Failed,
    Unavailable,
}

/// The files that a thread has open.
pub struct Files {
    root: Arc<File>,
    kept: HashMap<Version, (Rc<Opened>, Instant)>,
    named: HashMap<Box<[u8]>, (Version, &'static str)>,
    leased: Vec<Weak<Opened>>,
    files_max: usize,
}

impl Files {
    /// So many files are kept open for the next request.
    pub fn new(root: Arc<File>, files_max: usize) -> Self {
        Self {
            files_max,
            root,
            kept: HashMap::new(),
            named: HashMap::new(),
            leased: Vec::new(),
        }
    }

    /// Opens a path below the folder; empty: the folder itself.
    pub fn open(&mut self, path: &[u8], now: Instant) -> Result<Found, Missing> {
        if let Some(found) = self.known(path, now) {
            return Ok(found);
        }
        let file = self.resolve(path).map_err(missing)?;
        let facts = file.metadata().map_err(|_| Missing::Failed)?;
        if facts.is_dir() {
            return Ok(Found::Directory);
        }
        if !facts.is_file() || path.ends_with(b"/") {
            return Err(Missing::NotFound);
        }
        let kind = content_type(path);
        if let Some((opened, used)) = self.kept.get_mut(&version(&facts)) {
            *used = now;
            let opened = Rc::clone(opened);
            self.name(path, opened.version, kind);
            return Ok(Found::File(opened, kind));
        }
        let opened = Rc::new(leased(file).map_err(|_| Missing::Unavailable)?);
        if opened.is_open_elsewhere {
            // Opened anew for each request: there may be a lease then.
            return Ok(Found::File(opened, kind));
        }
        if opened.is_leased() {
            if self.leased.len() >= 2 * self.files_max {
                self.leased.retain(|one| one.strong_count() > 0);
            }
            self.leased.push(Rc::downgrade(&opened));
        }
        if self.kept.len() >= self.files_max {
            let oldest = self.kept.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(version, _)| *version);
            oldest.and_then(|version| self.kept.remove(&version));
        }
        self.kept.insert(opened.version, (Rc::clone(&opened), now));
        self.name(path, opened.version, kind);
        Ok(Found::File(opened, kind))
    }

    /// A kept file, if the name leads to it as before. One call of the kernel instead of three; a file that was
    /// changed, replaced or forbidden since shows in its version (a change of its mode changes its ctime).
    fn known(&mut self, path: &[u8], now: Instant) -> Option<Found> {
        let (named, kind) = *self.named.get(path)?;
        let (opened, used) = self.kept.get_mut(&named)?;
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let facts = fstatat(&*self.root, path, AtFlags::empty()).ok()?;
        if version_of(&facts) != named {
            return None;
        }
        *used = now;
        Some(Found::File(Rc::clone(opened), kind))
    }

    fn name(&mut self, path: &[u8], version: Version, kind: &'static str) {
        // Who asks for more names than files are kept gains nothing by them.
        if self.named.len() >= self.files_max {
            self.named.clear();
        }
        self.named.insert(path.into(), (version, kind));
    }

    fn resolve(&self, path: &[u8]) -> Result<File, Errno> {
        let path = if path.is_empty() {
            Path::new(".")
        } else {
            Path::new(std::ffi::OsStr::from_bytes(path))
        };
        // Non-blocking: nobody writes to a FIFO that somebody has put there.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let mut last = Errno::EAGAIN;
        for _ in 0..TRIES {
            let how = OpenHow::new().flags(flags).resolve(resolve);
            match openat2(&*self.root, path, how) {
                Ok(file) => return Ok(file.into()),
                Err(error @ (Errno::EAGAIN | Errno::EINTR)) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Gives up what was not used for long.
    pub fn tidy(&mut self, now: Instant) {
        self.kept
            .retain(|_, (_, used)| now.duration_since(*used) < KEEP);
        let kept = &self.kept;
        self.named
            .retain(|_, (version, _)| kept.contains_key(version));
    }

    /// Whether files are kept that will have to be given up.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Somebody waits for a lease: those that nobody sends from are given back at once, the others with their
    /// last body. New requests open the file anew.
    pub fn give_back(&mut self, now: Instant) {
        self.leased.retain(|one| {
            let Some(opened) = one.upgrade() else {
                return false;
            };
            if opened.wanted_since.get().is_none()
                && opened.lease.as_ref().is_some_and(ReadLease::is_breaking)
            {
                opened.wanted_since.set(Some(now));
            }
            true
        });
        self.kept
            .retain(|_, (opened, _)| opened.wanted_since.get().is_none());
    }
}

/// Takes a lease if one can be had, and then reads the version.
fn leased(file: File) -> io::Result<Opened> {
    // As long as it is now; if that changes before the lease is held, the version tells.
    let mut mapped = Arc::new(MappedFile::new(file)?);
    let lease = ReadLease::take(Arc::clone(&mapped), LEASE_SIGNAL);
    let refused = lease.as_ref().err().map(io::Error::kind);
    let facts = mapped.file().metadata()?;
    if facts.len() != mapped.length_bytes() {
        // Lengths differ: somebody has written between. Without a lease, the body's comparison tells.
        mapped = Arc::new(MappedFile::new(mapped.file().try_clone()?)?);
    }
    let version = version(&facts);
    let is_whole = version.length_bytes == mapped.length_bytes();
    let opened = Opened {
        version,
        fields: version_fields(&version),
        lease: lease.ok(),
        is_open_elsewhere: refused == Some(io::ErrorKind::WouldBlock),
        mapped,
        wanted_since: Cell::new(None),
    };
    if is_whole {
        Ok(opened)
    } else {
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

const fn time_ns(seconds: i64, ns: i64) -> i128 {
    seconds as i128 * 1_000_000_000 + ns as i128
}

/// The same as [`version`] of what `fstatat` says.
fn version_of(facts: &FileStat) -> Version {
    Version {
        file: (facts.st_dev, facts.st_ino),
        length_bytes: facts.st_size.unsigned_abs(),
        modified_ns: time_ns(facts.st_mtime, facts.st_mtime_nsec),
        changed_ns: time_ns(facts.st_ctime, facts.st_ctime_nsec),
    }
}

/// By the name's end, as web servers do.
fn content_type(path: &[u8]) -> &'static str {
    let kind = mime_guess::from_path(String::from_utf8_lossy(path).as_ref());
    kind.first_raw().unwrap_or("application/octet-stream")
}

fn version(facts: &Metadata) -> Version {
    Version {
        file: (facts.dev(), facts.ino()),
        length_bytes: facts.len(),
        modified_ns: time_ns(facts.mtime(), facts.mtime_nsec()),
        changed_ns: time_ns(facts.ctime(), facts.ctime_nsec()),
    }
}

const fn missing(error: Errno) -> Missing {
    match error {
        // EXDEV: the path leads out of the folder.
        Errno::ENOENT
        | Errno::ENOTDIR
        | Errno::ENAMETOOLONG
        | Errno::EXDEV
        | Errno::ELOOP
        | Errno::ENXIO => Missing::NotFound,
        Errno::EACCES | Errno::EPERM => Missing::Forbidden,
        Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN | Errno::ENOMEM => Missing::Unavailable,
        _ => Missing::Failed,
    }
}
