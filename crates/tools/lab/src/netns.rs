// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Named network namespaces: make, enter, leave, remove.
//!
//! Names live in /run/netns, where `ip netns` looks for them, so that `ip netns exec NAME` and
//! `ip -n NAME` work on namespaces made here and the other way round.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

/// Where named namespaces are mounted; the folder `ip netns` uses.
pub const NETNS_DIR: &str = "/run/netns";

/// The path at which the namespace `name` is (or would be) mounted.
pub fn path(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Whether a namespace of that name is there.
pub fn exists(name: &str) -> bool {
    path(name).exists()
}

/// Makes the network namespace `name` with its loopback device still down.
///
/// Fails if the name is taken or the caller may not make namespaces (needs root).
pub fn create(name: &str) -> Result<()> {
    fs::create_dir_all(NETNS_DIR).with_context(|| format!("cannot make {NETNS_DIR}"))?;
    share_dir().with_context(|| format!("cannot share {NETNS_DIR}"))?;
    let target = path(name);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&target)
        .with_context(|| {
            format!(
                "cannot make namespace {name} at {} (is it there already?)",
                target.display()
            )
        })?;
    let mounted = in_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).context("unshare(CLONE_NEWNET)")?;
        mount(
            Some("/proc/thread-self/ns/net"),
            &target,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .with_context(|| format!("cannot bind the namespace to {}", target.display()))
    });
    if mounted.is_err() {
        // The plain file would look like a namespace to the next caller; the first error counts.
        let _ = fs::remove_file(&target);
    }
    mounted.with_context(|| format!("cannot make namespace {name} (root is needed)"))
}

/// Makes the folder a shared mount, as the first `ip netns add` does, under the same lock. Done over
/// namespaces that are there, it would leave each of them mounted twice, and impossible to remove.
fn share_dir() -> Result<()> {
    let dir = Path::new(NETNS_DIR);
    let _lock =
        Flock::lock(File::open(dir)?, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    let none = None::<&str>;
    let share = || mount(none, dir, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none);
    if share() == Err(Errno::EINVAL) {
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(dir), dir, none, bind, none)?;
        share()?;
    }
    Ok(())
}

/// Removes the namespace `name`; nothing to do if it is not there.
///
/// The kernel frees the namespace and its devices when the last process in it has ended.
pub fn remove(name: &str) -> Result<()> {
    let target = path(name);
    if !target.exists() {
        return Ok(());
    }
    match umount2(&target, MntFlags::MNT_DETACH) {
        // EINVAL: not a mount point, what a half-finished create leaves.
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(error) => {
            return Err(error).with_context(|| format!("cannot unmount {}", target.display()));
        }
    }
    fs::remove_file(&target).with_context(|| format!("cannot remove {}", target.display()))
}

/// Removes the namespaces of processes that were killed: of those that are named by `begin`, the number of the process that made
/// them, and whatever stands behind a `-`. One that cannot be removed is told.
pub fn remove_left(begin: &str) {
    let names = fs::read_dir(NETNS_DIR).into_iter().flatten().flatten();
    for name in names.map(|entry| entry.file_name()) {
        let name = name.to_string_lossy();
        let maker = maker_of(&name, begin);
        if maker.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            if let Err(error) = remove(&name) {
                eprintln!("{error:#}");
            }
        }
    }
}

fn maker_of(name: &str, begin: &str) -> Option<u32> {
    let rest = name.strip_prefix(begin)?;
    let number = rest.split_once('-').map_or(rest, |(number, _)| number);
    number.parse().ok()
}

/// Opens the namespace `name`; the file keeps it alive and can be given to setns(2).
pub fn open(name: &str) -> Result<File> {
    let target = path(name);
    File::open(&target).with_context(|| {
        format!(
            "no network namespace {name} ({} cannot be opened)",
            target.display()
        )
    })
}

/// Moves the calling thread, and what it starts from now on, into namespace `name` for good.
///
/// Meant for threads of one's own; see [`run_in`] for a call that leaves the caller where it is.
pub fn enter_in_thread(name: &str) -> Result<()> {
    let file = open(name)?;
    setns(file.as_fd(), CloneFlags::CLONE_NEWNET)
        .with_context(|| format!("cannot enter namespace {name} (root is needed)"))
}

/// Runs `work` on a thread of its own inside namespace `name` and returns its result.
///
/// Sockets made by `work` belong to that namespace and may be handed out.
pub fn run_in<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    in_thread(|| {
        enter_in_thread(name)?;
        work()
    })
}

/// Runs `work` on a new thread and waits for it, so that namespace changes end with the thread.
fn in_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        scope
            .spawn(work)
            .join()
            .unwrap_or_else(|_| Err(anyhow!("a helper thread panicked inside a namespace")))
    })
}

/// A command that will run inside namespace `name`, as `ip netns exec` would run it: with a /sys
/// that shows that namespace's devices, in a mount namespace of its own.
pub fn command(name: &str, program: impl AsRef<OsStr>) -> Result<Command> {
    let file = open(name)?;
    let mut command = Command::new(program);
    let enter = move || Ok(enter_with_sys(&file)?);
    // SAFETY: `enter` runs between fork and exec; it only makes system calls on memory set up
    // before the fork (nix passes short paths on the stack), takes no lock, allocates nothing.
    unsafe { command.pre_exec(enter) };
    Ok(command)
}

/// Moves the caller into a namespace, and into a mount namespace of its own with a /sys of that
/// namespace: setns alone leaves the /sys of before, which shows the devices of before.
fn enter_with_sys(namespace: &File) -> nix::Result<()> {
    setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    // Slave: mounts made outside (a lab's bpffs) still arrive, ours stay here.
    mount(none, "/", none, MsFlags::MS_SLAVE | MsFlags::MS_REC, none)?;
    umount2("/sys", MntFlags::MNT_DETACH).ok();
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)
}

/// Whether `name` is a namespace, and not the bare file that a half-finished create leaves.
pub fn is_namespace(name: &str) -> bool {
    /// linux/magic.h NSFS_MAGIC.
    const NSFS_MAGIC: i64 = 0x6e73_6673;
    nix::sys::statfs::statfs(&path(name)).is_ok_and(|fs| fs.filesystem_type().0 == NSFS_MAGIC)
}

/// The inode number that identifies the network namespace `name` on this machine.
pub fn inode(name: &str) -> Result<u64> {
    inode_at(&path(name))
}

/// The inode number of the network namespace of process `pid`, if it is there and may be seen.
pub fn inode_of_process(pid: i32) -> Option<u64> {
    inode_at(Path::new(&format!("/proc/{pid}/ns/net"))).ok()
}

fn inode_at(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata(path)
        .with_context(|| format!("cannot look at {}", path.display()))?
        .ino())
}

/// Writes `value` to `/proc/sys/net/KEY` of namespace `name`; `key` has slashes, not dots.
pub fn sysctl(name: &str, key: &str, value: &str) -> Result<()> {
    if key.contains("..") {
        bail!("bad sysctl name {key}");
    }
    run_in(name, || {
        let path = Path::new("/proc/sys/net").join(key);
        fs::write(&path, value)
            .with_context(|| format!("cannot set {} to {value} in {name}", path.display()))
    })
}

/// Writes `value` to `/sys/class/net/DEVICE/SETTING` of namespace `name`.
pub fn set_device(name: &str, device: &str, setting: &str, value: &str) -> Result<()> {
    let namespace = open(name)?;
    in_thread(|| {
        enter_with_sys(&namespace)
            .with_context(|| format!("cannot enter namespace {name} (root is needed)"))?;
        let path = Path::new("/sys/class/net").join(device).join(setting);
        fs::write(&path, value)
            .with_context(|| format!("cannot set {} to {value} in {name}", path.display()))
    })
}

/// The open file's descriptor number, for netlink messages that name a namespace by it.
pub(crate) fn raw(file: &File) -> i32 {
    file.as_raw_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_has_left_is_removed_and_nothing_else() {
        assert_eq!(maker_of("erb-vm-78", "erb-vm-"), Some(78));
        assert_eq!(maker_of("erb-bench-78-0-c", "erb-bench-"), Some(78));
        for name in ["erb-vm-", "erb-vm-x", "erb-vm-x-78", "erb-other-78", "78"] {
            assert_eq!(maker_of(name, "erb-vm-"), None, "{name}");
        }
        // No process has this number, and one has ours.
        let (left, ours) = (
            format!("erb-left-{}", u32::MAX),
            format!("erb-left-{}", std::process::id()),
        );
        if create(&left).is_err() {
            erb_steady::skipped("namespaces need root");
            return;
        }
        create(&ours).unwrap();
        remove_left("erb-left-");
        assert!(!exists(&left) && exists(&ours));
        remove(&ours).unwrap();
    }
}
