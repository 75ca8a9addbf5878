// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who holds a lock that ought to be free: a daemon that was killed and does not end, for one of its threads waits in the
//! kernel for a disk that does not answer. Nobody can end it but that disk.
//!
//! Nothing here asks a file system: what hangs for one would hang for who looks, too.

use std::fs;
use std::path::Path;

use erb_report::shell::quoted_path;

use crate::mounts::{Mount, mount_of};
use crate::proc;

/// SIGKILL in a mask of signals.
const KILLED: u64 = 1 << 8;

/// The thread that writes the journal.
pub(crate) const JOURNAL_THREAD: &str = "journal";

/// A process that was killed and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Its id.
    pub pid: u32,
    /// Its thread that waits in the kernel.
    pub thread: u32,
    /// What that is called.
    pub name: String,
}

/// Who was killed, waits in the kernel and has this file open; none: nobody, or it cannot be told.
pub(crate) fn stuck(proc: &Path, lock: &Path) -> Option<Stuck> {
    let lock = lock.canonicalize().ok()?;
    numbers(proc).find_map(|pid| {
        let process = proc.join(pid.to_string());
        let tasks = process.join("task");
        let stuck = numbers(&tasks).find(|thread| {
            let task = tasks.join(thread.to_string());
            proc::state(&task) == Some('D')
                && (is_killed(&task) || is_dead(&process))
                && has(&task, &lock)
        });
        let name = |thread: &u32| {
            let name = proc::text(tasks.join(thread.to_string()).join("comm"));
            name.unwrap_or_default().trim_end().to_owned()
        };
        stuck.map(|thread| Stuck {
            pid,
            thread,
            name: name(&thread),
        })
    })
}

/// The process that holds the lock on this file, which may be deleted since; none: none does, or it cannot be told.
pub(crate) fn holder(proc: &Path, lock: &Path) -> Option<u32> {
    let folder = lock.parent()?;
    let lock = folder.canonicalize().ok()?.join(lock.file_name()?);
    let deleted = format!("{} (deleted)", lock.display());
    numbers(proc).find(|pid| {
        let process = proc.join(pid.to_string());
        numbers(&process.join("fd")).any(|fd| {
            let open = fs::read_link(process.join(format!("fd/{fd}"))).unwrap_or_default();
            let is_it = open == lock || open.as_os_str() == deleted.as_str();
            is_it && holds(&process.join(format!("fdinfo/{fd}")))
        })
    })
}

/// Whether the whole file is locked by this descriptor, not shared as by a process that only looks (proc_pid_fdinfo(5)).
fn holds(fdinfo: &Path) -> bool {
    let text = proc::text(fdinfo).unwrap_or_default();
    let mut locks = text.lines().filter_map(|line| line.strip_prefix("lock:"));
    locks.any(|lock| lock.contains("FLOCK") && lock.contains("WRITE"))
}

/// Names of a folder that are numbers.
fn numbers(folder: &Path) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Its first thread has ended already.
fn is_dead(process: &Path) -> bool {
    matches!(proc::state(process), Some('Z' | 'X'))
}

fn is_killed(task: &Path) -> bool {
    let status = proc::text(task.join("status")).unwrap_or_default();
    let pending = |line: &str| {
        let mask = line
            .strip_prefix("SigPnd:")
            .or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    let mut masks = status.lines().filter_map(pending);
    masks.any(|mask| mask & KILLED != 0)
}

fn has(task: &Path, file: &Path) -> bool {
    let open = fs::read_dir(task.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|path| path == file)
}

/// In words, what a killed daemon waits for, and what ends that.
pub(crate) fn advice(stuck: &Stuck, journal: Option<&Path>, mountinfo: &str) -> String {
    let of_journal = journal.filter(|_| stuck.name == JOURNAL_THREAD);
    let Some(folder) = of_journal else {
        return format!(
            "its thread {} ({}) waits in the kernel; /proc/{}/task/{}/stack says for what",
            stuck.thread, stuck.name, stuck.pid, stuck.thread
        );
    };
    let (place, thaw) = match mount_of(mountinfo, folder) {
        Some(Mount {
            source, kind, at, ..
        }) => (
            format!(" on {source} ({kind}, mounted at {})", at.display()),
            format!(
                "`fsfreeze --unfreeze {0}` if it is frozen, `umount -f {0}` if its server is away",
                quoted_path(&at)
            ),
        ),
        None => (String::new(), "mend that disk".to_owned()),
    };
    format!(
        "its journal's thread waits for the disk of {}{place}, which does not answer: {thaw}",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn task(proc: &Path, pid: u32, thread: u32, state: char, pending: u64, open: &Path) {
        let task = proc.join(format!("{pid}/task/{thread}"));
        fs::create_dir_all(task.join("fd")).expect("a folder");
        // Any user gives a process such a name.
        let stat = [
            format!("{thread} (a) D (b").as_bytes(),
            b"\xff",
            format!(") {state} 1 2").as_bytes(),
        ]
        .concat();
        fs::write(task.join("stat"), stat).expect("a file");
        let masks = format!("SigPnd:\t{pending:016x}\nShdPnd:\t0\n");
        let status = [b"Name:\t\xff\n", masks.as_bytes()].concat();
        fs::write(task.join("status"), status).expect("a file");
        fs::write(task.join("comm"), "journal\n").expect("a file");
        std::os::unix::fs::symlink(open, task.join("fd/3")).expect("a link");
    }

    #[test]
    fn a_killed_process_that_waits_in_the_kernel_is_found_by_what_it_has_open() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path().canonicalize().expect("its path");
        let (proc, lock) = (root.join("proc"), root.join("lock"));
        fs::write(&lock, "").expect("a file");
        let leader = |pid: u32, state: char| {
            fs::create_dir_all(proc.join(pid.to_string())).expect("a folder");
            fs::write(
                proc.join(format!("{pid}/stat")),
                format!("{pid} (erb) {state} 1"),
            )
            .expect("a file");
        };
        for pid in [5, 6, 7] {
            leader(pid, 'S');
        }
        // It sleeps; it waits and was not killed; it was killed and has something else open.
        task(&proc, 5, 5, 'S', KILLED, &lock);
        task(&proc, 6, 6, 'D', 0, &lock);
        task(&proc, 7, 7, 'D', KILLED, &root.join("other"));
        assert_eq!(stuck(&proc, &lock), None);
        task(&proc, 7, 9, 'D', KILLED, &lock);
        let found = stuck(&proc, &lock).expect("7");
        assert_eq!(
            (found.pid, found.thread, &found.name[..]),
            (7, 9, "journal")
        );
        // The signal is taken: its first thread has ended, and the other cannot.
        leader(6, 'Z');
        assert_eq!(stuck(&proc, &lock).expect("6").pid, 6);
    }

    #[test]
    fn what_it_waits_for_is_named_with_what_ends_that() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 21 8:2 / /var/lib rw shared:1 - xfs /dev/sdb1 rw\n\
                      31 30 0:40 / /var/lib/erb\\040x rw - nfs4 host:/kept rw\n";
        let journal = PathBuf::from("/var/lib/erb x/journal/eth0-6379");
        let mut stuck = Stuck {
            pid: 7,
            thread: 9,
            name: JOURNAL_THREAD.to_owned(),
        };
        let text = advice(&stuck, Some(&journal), mounts);
        assert!(
            text.contains("host:/kept (nfs4, mounted at /var/lib/erb x)"),
            "{text}"
        );
        assert!(text.contains("umount -f '/var/lib/erb x'"), "{text}");
        let found = mount_of(mounts, Path::new("/var/library")).expect("the root's");
        assert_eq!(found.at, Path::new("/"));
        stuck.name = "erb".to_owned();
        assert!(advice(&stuck, Some(&journal), mounts).contains("/proc/7/task/9/stack"));
    }
}
