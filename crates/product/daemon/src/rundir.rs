// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The run directory: lock, control socket, notes for the next daemon, and the bpffs with the pins.
//!
//! ```text
//! RUN_DIR/lock         held while a daemon is at work
//! RUN_DIR/boost.lock   held by who takes over or replaces what is at work
//! RUN_DIR/trace.lock   held while somebody traces
//! RUN_DIR/control.sock the daemon's socket, mode 0600
//! RUN_DIR/begun.json   which boost begins, or is taken back: until there is a socket
//! RUN_DIR/notes.json   what was changed and must be put back
//! RUN_DIR/log          messages of a background daemon
//! RUN_DIR/bpf/         a bpffs of its own: maps, programs, links
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use erb_datapath::{Attached, Device, JournalSink, VlanOffload};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{FsType, statfs};

use crate::begun::{self, RootLock};
use crate::{Error, Result, holder, mounts, proc};

/// Who looks whether the lock is free holds it for a moment: it is tried again as often, so far apart.
const LOCK_TRIES: u32 = 3;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// A daemon that begins has its lock this much sooner than its socket at most, and one that ends as much longer.
const CUT_OFF_AFTER: Duration = Duration::from_secs(2);
const CUT_OFF_LOOK: Duration = Duration::from_millis(20);

/// Where run directories are made unless `--run-dir` says otherwise.
pub const RUN_ROOT: &str = "/run/erb";

/// What the bpffs says that it was mounted from.
pub(crate) const MOUNT_SOURCE: &str = "erb";

/// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
const BPF_FS_MAGIC: FsType = FsType(0xcafe_4a11);

/// What a later daemon or `erb detach` must know of a dead one.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Notes {
    /// Boosted devices.
    pub attached: Vec<Attached>,
    /// What was done to their VLAN offload, in the same order.
    pub vlan: Vec<VlanOffload>,
    /// Redis's address as given.
    pub redis: String,
    /// Redis's port.
    pub port: u16,
    /// Number of cache sets.
    pub cache_sets: u32,
    /// Places in the table of connections.
    #[serde(default)]
    pub connections: u32,
    /// Log rings of writes that are answered in Redis's place; 0: none is.
    #[serde(default)]
    pub log_rings: u32,
    /// Identity of the log rings: 32 hexadecimal digits.
    #[serde(default)]
    pub journal: String,
    /// Where what waits in them for long is kept; none: nowhere.
    #[serde(default)]
    pub journal_folder: Option<PathBuf>,
    /// Who writes it.
    #[serde(default)]
    pub sink: JournalSink,
    /// Inode of the network namespace.
    pub netns: u64,
    /// Whether ERB mounted the bpffs.
    pub mounted: bool,
    /// Build of the programs that are pinned.
    #[serde(default)]
    pub build: String,
    /// Layout of what they share.
    #[serde(default)]
    pub layout: String,
}

impl Notes {
    /// As `--mode` names it.
    #[must_use]
    pub const fn mode(&self) -> &'static str {
        match self.log_rings {
            0 => "read",
            _ => "write-back",
        }
    }

    /// The boosted devices.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        let devices = self.attached.iter().map(|attached| &attached.device);
        devices.cloned().collect()
    }

    /// Each device with what was done to its VLAN offload.
    #[must_use]
    pub fn vlan_before(&self) -> Vec<(Device, VlanOffload)> {
        let devices = self.attached.iter().map(|attached| attached.device.clone());
        devices.zip(self.vlan.iter().copied()).collect()
    }
}

/// A run directory, which need not exist.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// The directory at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
        }
    }

    /// The default directory for a device of the caller's network namespace.
    ///
    /// # Errors
    /// [`Error::Io`] if the namespace cannot be read.
    pub fn of_device(device: &str) -> Result<Self> {
        Ok(Self::new(
            &Path::new(RUN_ROOT).join(format!("{device}-{}", netns_inode()?)),
        ))
    }

    /// The boost that is meant by a command without `--run-dir`: the only one of the caller's network
    /// namespace, or the only one there is. Besides, the directories of those that are not meant.
    ///
    /// # Errors
    /// [`Error::NotBoosted`] if there is none, [`Error::Usage`] if there are several,
    /// [`Error::Privilege`] if they may not be looked for.
    pub fn meant() -> Result<(Self, Vec<PathBuf>)> {
        Self::meant_in(Path::new(RUN_ROOT), netns_inode()?)
    }

    fn meant_in(root: &Path, netns: u64) -> Result<(Self, Vec<PathBuf>)> {
        let all = Self::all_in(root)?;
        let (here, elsewhere): (Vec<Self>, Vec<Self>) =
            all.into_iter().partition(|one| one.is_of(netns));
        let paths = |list: Vec<Self>| list.into_iter().map(|one| one.path).collect::<Vec<_>>();
        let (place, mut wanted, others) = if here.is_empty() {
            ("other network namespaces", elsewhere, Vec::new())
        } else {
            ("this network namespace", here, paths(elsewhere))
        };
        match wanted.len() {
            0 => Err(Error::NotBoosted(root.to_path_buf())),
            1 => Ok((wanted.remove(0), others)),
            count => Err(Error::Usage(format!(
                "there are {count} boosts in {place}; say which is meant with --run-dir: {}",
                shown(&paths(wanted))
            ))),
        }
    }

    /// The boosts of the caller's network namespace that are in the default places.
    ///
    /// # Errors
    /// [`Error::Privilege`] if they may not be looked for.
    pub fn all_here() -> Result<Vec<Self>> {
        let netns = netns_inode()?;
        let mut all = Self::all()?;
        all.retain(|one| one.is_of(netns));
        Ok(all)
    }

    /// All boosts in the default places, by name.
    ///
    /// # Errors
    /// [`Error::Privilege`] if they may not be looked for.
    pub(crate) fn all() -> Result<Vec<Self>> {
        Self::all_in(Path::new(RUN_ROOT))
    }

    /// The same of another place.
    fn all_in(root: &Path) -> Result<Vec<Self>> {
        if fs::read_dir(root).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            return Err(Self::new(root).not_permitted());
        }
        // Labs keep theirs one level below.
        let entries = [root.to_path_buf(), root.join("lab")]
            .into_iter()
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flat_map(|entries| entries.flatten().map(|entry| entry.path()));
        let mut found = Vec::new();
        for path in entries {
            // A folder that was emptied has its mount yet.
            let is_boost = path
                .join("lock")
                .try_exists()
                .map(|is_there| is_there || is_bpffs(&path.join("bpf")));
            match is_boost {
                Ok(true) => found.push(path),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(Self::new(&path).not_permitted());
                }
                _ => {}
            }
        }
        found.sort();
        Ok(found.iter().map(|path| Self::new(path)).collect())
    }

    /// Whether its boost is of this network namespace; one that has no notes yet has a default name.
    fn is_of(&self, netns: u64) -> bool {
        let named = || {
            let name = self.path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(&format!("-{netns}"))
        };
        self.notes()
            .map_or_else(|_| named(), |notes| notes.netns == netns)
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of the pins.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        self.path.join("bpf")
    }

    /// Path of the daemon's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    /// Path of a background daemon's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Makes the directory and takes its lock.
    ///
    /// # Errors
    /// [`Error::AlreadyBoosted`] if a daemon holds it, [`Error::Stuck`] if one that was killed does.
    pub fn lock(&self) -> Result<Flock<File>> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(Error::io(could_not("make", &self.path)))?;
        let mut file = open_lock(&self.path.join("lock"))?;
        for _ in 0..LOCK_TRIES {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((same, _)) => file = same,
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Err(self.taken())
    }

    /// A daemon that is at work for this directory and cannot be spoken to, as what was in it was taken away: its
    /// process. One that begins, or ends, is given the time to.
    pub(crate) fn cut_off(&self) -> Option<u32> {
        let until = Instant::now() + CUT_OFF_AFTER;
        loop {
            let pid = holder::holder(Path::new("/proc"), &self.path.join("lock"))?;
            if self.begun().is_some() || UnixStream::connect(self.socket()).is_ok() {
                return None;
            }
            if Instant::now() >= until {
                return Some(pid);
            }
            std::thread::sleep(CUT_OFF_LOOK);
        }
    }

    /// Refuses to work on a directory with a daemon that cannot be spoken to.
    ///
    /// # Errors
    /// [`Error::UnderWay`] if it begins, or is taken back; [`Error::CutOff`] if it is at work.
    pub(crate) fn check_not_cut_off(&self) -> Result<()> {
        self.check_not_begun()?;
        match self.cut_off() {
            Some(pid) => Err(Error::CutOff {
                run_dir: self.path.clone(),
                pid,
            }),
            None => Ok(()),
        }
    }

    /// Why the lock is not to be had.
    pub(crate) fn taken(&self) -> Error {
        if let Err(under_way) = self.check_not_begun() {
            return under_way;
        }
        let Some(stuck) = holder::stuck(Path::new("/proc"), &self.path.join("lock")) else {
            return Error::AlreadyBoosted(self.path.clone());
        };
        let journal = self.notes().ok().and_then(|notes| notes.journal_folder);
        Error::Stuck {
            run_dir: self.path.clone(),
            pid: stuck.pid,
            advice: holder::advice(&stuck, journal.as_deref(), &mounts::table()),
        }
    }

    /// Takes the lock of those who change what is at work; waits for another.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be made.
    pub fn turn(&self) -> Result<Flock<File>> {
        let path = self.path.join("boost.lock");
        Flock::lock(open_lock(&path)?, FlockArg::LockExclusive)
            .map_err(|(_, error)| Error::io(could_not("lock", &path))(error))
    }

    /// Whether a daemon holds the lock.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.is_held("lock")
    }

    /// Takes the lock of the one who traces.
    ///
    /// # Errors
    /// [`Error::AlreadyTraced`] if another has it.
    pub fn trace_lock(&self) -> Result<Flock<File>> {
        Flock::lock(
            open_lock(&self.path.join("trace.lock"))?,
            FlockArg::LockExclusiveNonblock,
        )
        .map_err(|_| Error::AlreadyTraced(self.path.clone()))
    }

    /// Whether somebody traces.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.is_held("trace.lock")
    }

    fn is_held(&self, name: &str) -> bool {
        // Shared: who looks does not see others who look.
        File::open(self.path.join(name))
            .is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
    }

    /// Mounts a bpffs for the pins unless one is there; true if it did.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel refuses.
    pub fn mount_pins(&self) -> Result<bool> {
        let pins = self.pins();
        fs::create_dir_all(&pins).map_err(Error::io(could_not("make", &pins)))?;
        if self.pins_are_mounted() {
            return Ok(false);
        }
        mount(
            Some(MOUNT_SOURCE),
            &pins,
            Some("bpf"),
            MsFlags::empty(),
            Some("mode=0700"),
        )
        .map_err(Error::io(could_not("mount a bpffs at", &pins)))?;
        Ok(true)
    }

    /// Whether the pins' folder is a bpffs.
    #[must_use]
    pub fn pins_are_mounted(&self) -> bool {
        is_bpffs(&self.pins())
    }

    /// The error of a user who may not look into the directory.
    pub(crate) fn not_permitted(&self) -> Error {
        Error::Privilege(format!(
            "{} is for the user alone who boosted; run as root",
            self.path.display()
        ))
    }

    /// Whether a data path is pinned here.
    #[must_use]
    pub fn has_pins(&self) -> bool {
        self.pins_are_mounted() && self.pins().join("erb_control").exists()
    }

    /// Whether there are notes: written when all was attached.
    #[must_use]
    pub fn has_notes(&self) -> bool {
        self.path.join("notes.json").exists()
    }

    /// Notes of the daemon that loaded what is pinned.
    ///
    /// # Errors
    /// [`Error::NotBoosted`] if there are none, [`Error::Usage`] if they mean nothing to this version,
    /// [`Error::Privilege`] if they may not be read.
    pub fn notes(&self) -> Result<Notes> {
        let path = self.path.join("notes.json");
        let bytes = fs::read(&path).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => self.not_permitted(),
            _ => Error::NotBoosted(self.path.clone()),
        })?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::Usage(format!(
                "{} is of another version of ERB: {error}; detach with the erb that boosted. Where \
                 that is gone, kill the daemon and `erb detach`: connections that were answered break",
                path.display()
            ))
        })
    }

    /// Writes the notes.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn write_notes(&self, notes: &Notes) -> Result<()> {
        let path = self.path.join("notes.json");
        let bytes = serde_json::to_vec(notes)
            .map_err(|error| Error::Usage(format!("notes cannot be written: {error}")))?;
        // Whole or not at all: who is killed here leaves the notes of before.
        let new = self.path.join("notes.new");
        fs::write(&new, bytes)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(Error::io(could_not("write", &path)))
    }

    /// Unmounts the bpffs if ERB mounted it, and removes the directory. Needs `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    /// [`Error::Io`] naming what could not be removed.
    pub fn remove(&self, mounted: bool) -> Result<()> {
        let pins = self.pins();
        if mounted && self.pins_are_mounted() {
            umount2(&pins, MntFlags::MNT_DETACH)
                .map_err(Error::io(format!("could not unmount {}", pins.display())))?;
        }
        for name in [
            "control.sock",
            "notes.new",
            begun::UNFINISHED,
            "log",
            "boost.lock",
            "trace.lock",
            "notes.json", // they prove whose the rest is
            begun::FILE,
            "lock",
        ] {
            // What was never made need not go.
            let _ = fs::remove_file(self.path.join(name));
        }
        if !self.pins_are_mounted() {
            // A bpffs of somebody else's mounting stays, and its folder with it.
            let _ = fs::remove_dir(&pins);
            let _ = fs::remove_dir(&self.path);
            RootLock::tidy();
        }
        Ok(())
    }
}

/// Whether a bpffs is mounted at a path.
pub(crate) fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// Paths for a message.
fn shown(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

/// Inode of the caller's network namespace.
///
/// # Errors
/// [`Error::Io`] if /proc is not there.
pub fn netns_inode() -> Result<u64> {
    fs::metadata("/proc/self/ns/net")
        .map(|found| found.ino())
        .map_err(Error::io("could not read /proc/self/ns/net"))
}

/// Enters the mount namespace of the system if the caller is in a mere derivative of it, as
/// `ip netns exec` makes one: a bpffs mounted there would vanish with the daemon, and nobody else
/// would see it. The system's is that of the topmost ancestor with the caller's root directory, so
/// that a container (another root) is never left.
///
/// # Errors
/// [`Error::Privilege`] or [`Error::Io`] if the kernel does not let the caller in.
pub fn enter_base_mount_namespace() -> Result<()> {
    let Some(ancestor) = topmost_ancestor() else {
        return Ok(());
    };
    let path = format!("/proc/{ancestor}/ns/mnt");
    let inode = |path: &str| {
        fs::metadata(path)
            .ok()
            .map(|found| (found.dev(), found.ino()))
    };
    if inode(&path) == inode("/proc/self/ns/mnt") {
        return Ok(());
    }
    let namespace = File::open(&path).map_err(Error::io(format!("could not open {path}")))?;
    let here = std::env::current_dir().ok();
    setns(namespace, CloneFlags::CLONE_NEWNS).map_err(|error| match error {
        Errno::EPERM => Error::Privilege(
            "missing CAP_SYS_ADMIN or CAP_SYS_CHROOT (entering the system's mount namespace); \
             run as root"
                .to_owned(),
        ),
        other => Error::io("could not enter the system's mount namespace")(other),
    })?;
    if let Some(here) = here {
        // Relative paths keep their meaning where the folder exists.
        let _ = std::env::set_current_dir(here);
    }
    Ok(())
}

/// The ancestor farthest up whose root directory is the caller's.
fn topmost_ancestor() -> Option<u32> {
    let root = |process: &str| {
        fs::metadata(format!("/proc/{process}/root/"))
            .ok()
            .map(|found| (found.dev(), found.ino()))
    };
    let own = root("self")?;
    let mut found = None;
    let mut process = nix::unistd::getppid().as_raw().unsigned_abs();
    while process > 0 {
        if root(&process.to_string()) == Some(own) {
            found = Some(process);
        }
        let status = proc::text(format!("/proc/{process}/status")).ok()?;
        process = status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())?;
    }
    found
}

fn open_lock(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::io(could_not("open", path)))
}

/// What could not be done in a run directory, and how to have another.
pub(crate) fn could_not(what: &str, path: &Path) -> String {
    format!(
        "could not {what} {} (--run-dir names another place)",
        path.display()
    )
}

#[cfg(test)]
#[path = "rundir_tests.rs"]
mod tests;
