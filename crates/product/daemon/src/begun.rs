// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A boost that begins, or is taken back before it is at work: which process does that, with which devices, for which Redis.
//! Loading takes seconds, in which there are neither notes nor a socket.
//!
//! Invariants:
//! 1. `begun.json` is written by the process that holds the lock, and counts only while that is held and the process lives.
//! 2. It is there, and the bpffs is mounted, before the lock of beginnings is given back ([`RootLock`]): so another boost that
//!    takes that lock finds it, or is found.
//! 3. It goes when there is a socket, or with the directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::proc;
use crate::rundir::{RUN_ROOT, RunDir, could_not};
use crate::{Error, Result};

/// Its file, and what that is before it is whole.
pub(crate) const FILE: &str = "begun.json";
pub(crate) const UNFINISHED: &str = "begun.new";

/// Longest wait for the lock of beginnings: its holder asks a Redis, which has ten seconds for an answer.
const LOCK_MAX: Duration = Duration::from_secs(30);
const LOCK_LOOK: Duration = Duration::from_millis(5);

/// What is known of it from its first moment.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Begun {
    /// Its process.
    pub pid: u32,
    /// Devices that are to be boosted.
    pub devices: Vec<String>,
    /// Redis's address as given.
    pub redis: String,
    /// Redis's port.
    pub port: u16,
    /// Inode of the network namespace.
    pub netns: u64,
    /// It was interrupted or has failed, and takes back what it has done.
    pub withdraws: bool,
}

impl Begun {
    /// For a message.
    pub(crate) fn told(&self, run_dir: &Path) -> String {
        let (devices, place, pid) = (self.devices.join(", "), run_dir.display(), self.pid);
        if self.withdraws {
            format!(
                "a boost of {devices} that was interrupted or has failed is being taken back in {place} by process {pid}: \
                 the same again in some seconds"
            )
        } else {
            format!(
                "a boost of {devices} is being started in {place} by process {pid}: it is at work in some seconds, or has \
                 failed; `kill {pid}` takes it back"
            )
        }
    }
}

impl RunDir {
    /// Says that this process begins a boost here, or takes it back.
    pub(crate) fn note_begun(&self, begun: &Begun) -> Result<()> {
        let (path, new) = (self.path().join(FILE), self.path().join(UNFINISHED));
        let text = serde_json::to_vec(begun).map_err(|error| Error::Usage(error.to_string()))?;
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600);
        options
            .open(&new)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(Error::io(could_not("write", &path)))
    }

    /// Says that it is taken back.
    pub(crate) fn note_withdraws(&self) {
        let Some(begun) = self.begun() else {
            return;
        };
        let withdraws = Begun {
            withdraws: true,
            ..begun
        };
        if let Err(error) = self.note_begun(&withdraws) {
            tracing::warn!("{error}");
        }
    }

    /// The boost is at work.
    pub(crate) fn end_begun(&self) {
        // What was never made need not go.
        let _ = fs::remove_file(self.path().join(FILE));
    }

    /// The boost that begins here, or is taken back; none: there is none, or it is at work.
    #[must_use]
    pub fn begun(&self) -> Option<Begun> {
        if !self.is_locked() {
            return None;
        }
        let text = fs::read(self.path().join(FILE)).ok()?;
        let begun: Begun = serde_json::from_slice(&text).ok()?;
        proc::is_there(begun.pid).then_some(begun)
    }

    /// Refuses where a boost begins or is taken back.
    ///
    /// # Errors
    /// [`Error::UnderWay`] if one does.
    pub(crate) fn check_not_begun(&self) -> Result<()> {
        match self.begun() {
            Some(begun) => Err(Error::UnderWay(begun.told(self.path()))),
            None => Ok(()),
        }
    }

    /// Why its daemon is not to be reached.
    pub(crate) fn unreached(&self) -> Error {
        let not_boosted = || Error::NotBoosted(self.path().to_path_buf());
        self.check_not_begun().err().unwrap_or_else(not_boosted)
    }
}

/// The lock of beginnings: of two boosts of one Redis that begin at once, the one that has it later sees the other.
/// It is a lock on [`RUN_ROOT`].
pub(crate) struct RootLock {
    root: PathBuf,
    _lock: Flock<File>,
}

impl RootLock {
    /// Waits for it. None: it was not to be had, which is no reason not to begin; two that begin at the same moment may
    /// then not see each other.
    pub(crate) fn take() -> Option<Self> {
        let taken = Self::take_at(Path::new(RUN_ROOT), LOCK_MAX);
        if let Err(why) = &taken {
            tracing::warn!(
                "{why}: a boost of the same Redis that begins right now would not be seen"
            );
        }
        taken.ok()
    }

    fn take_at(root: &Path, limit: Duration) -> Result<Self> {
        let until = Instant::now() + limit;
        let failed = |error: io::Error| {
            Error::io(format!("could not make and lock {}", root.display()))(error)
        };
        loop {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(root);
            let error = match made {
                Ok(()) => match Self::of(root) {
                    Some(lock) => return Ok(lock),
                    None => ErrorKind::TimedOut.into(),
                },
                Err(error) => error,
            };
            // Another has it; or takes it away, or makes it, at this moment.
            let passes = [
                ErrorKind::TimedOut,
                ErrorKind::AlreadyExists,
                ErrorKind::NotFound,
            ];
            if !passes.contains(&error.kind()) || Instant::now() >= until {
                return Err(failed(error));
            }
            std::thread::sleep(LOCK_LOOK);
        }
    }

    /// None: another has it, or the folder is not there, or not any more.
    fn of(root: &Path) -> Option<Self> {
        let folder = File::open(root).ok()?;
        let inode = |found: io::Result<fs::Metadata>| found.ok().map(|found| found.ino());
        let opened = inode(folder.metadata());
        let lock = Flock::lock(folder, FlockArg::LockExclusiveNonblock).ok()?;
        // Who had it before may have taken the folder away.
        (opened == inode(fs::metadata(root))).then(|| Self {
            root: root.to_path_buf(),
            _lock: lock,
        })
    }

    /// Takes the folder away if nothing is in it, and nobody has the lock.
    pub(crate) fn tidy() {
        drop(Self::of(Path::new(RUN_ROOT)));
    }
}

impl Drop for RootLock {
    fn drop(&mut self) {
        // Under the lock: nobody that waits for it has begun. It stays where something is in it.
        let _ = fs::remove_dir(&self.root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENT: Duration = Duration::from_secs(120);

    fn begun(pid: u32) -> Begun {
        Begun {
            pid,
            devices: vec!["eth0".to_owned(), "lo".to_owned()],
            redis: "127.0.0.1:6379".to_owned(),
            port: 6379,
            netns: 5,
            withdraws: false,
        }
    }

    #[test]
    fn a_boost_that_begins_is_told_with_its_process_until_it_is_at_work() {
        let folder = tempfile::tempdir().expect("a folder");
        let run_dir = RunDir::new(&folder.path().join("run"));
        assert!(matches!(run_dir.unreached(), Error::NotBoosted(_)));
        let lock = run_dir.lock().expect("a lock");
        let own = begun(std::process::id());
        run_dir.note_begun(&own).expect("a file");
        assert_eq!(run_dir.begun(), Some(own.clone()));
        let told = run_dir.unreached().to_string();
        for words in ["eth0, lo is being started", &format!("process {}", own.pid)] {
            assert!(told.contains(words), "{told}");
        }
        assert_eq!(run_dir.cut_off(), None, "it has no socket yet");
        run_dir.note_withdraws();
        let told = run_dir.check_not_begun().expect_err("a refusal");
        assert!(told.to_string().contains("is being taken back"), "{told}");
        run_dir.end_begun();
        assert_eq!(run_dir.begun(), None, "it is at work");
        drop(lock);
    }

    #[test]
    fn what_a_killed_boost_has_noted_is_no_boost_that_begins() {
        let folder = tempfile::tempdir().expect("a folder");
        let run_dir = RunDir::new(&folder.path().join("run"));
        let lock = run_dir.lock().expect("a lock");
        // No process has this number (proc(5), pid_max).
        run_dir.note_begun(&begun(u32::MAX)).expect("a file");
        assert_eq!(run_dir.begun(), None, "its process has ended");
        run_dir
            .note_begun(&begun(std::process::id()))
            .expect("a file");
        drop(lock);
        assert_eq!(run_dir.begun(), None, "it does not hold the lock");
        assert!(run_dir.is_erbs(), "it can be taken away");
        run_dir.remove(false).expect("its end");
        assert!(!run_dir.path().exists());
    }

    #[test]
    fn one_has_the_lock_and_the_last_takes_the_folder_away() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("erb");
        let (inside, all) = (AtomicU32::new(0), 50);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..all {
                        let lock = RootLock::take_at(&root, PATIENT).expect("the lock");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(root.exists());
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert!(!root.exists());
        let lock = RootLock::take_at(&root, PATIENT).expect("the lock");
        fs::create_dir(root.join("boost")).expect("a folder");
        let other = RootLock::take_at(&root, Duration::ZERO);
        assert!(other.is_err(), "another has it");
        drop(lock);
        assert!(root.join("boost").exists());
    }
}
