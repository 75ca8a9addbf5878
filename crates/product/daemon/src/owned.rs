// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a run directory is ERB's. `--run-dir` may name any folder, and what is taken away there
//! has common names: nothing is, unless the folder proves whose it is.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::mounts::{self, mounts};
use crate::rundir::{MOUNT_SOURCE, RunDir};

impl RunDir {
    /// Whether a boost has made it: it has notes, pins or a bpffs of ERB's; or nothing but a lock and
    /// what it has begun, as a boost has left it that was killed at its begin.
    #[must_use]
    pub fn is_erbs(&self) -> bool {
        self.notes().is_ok() || self.has_pins() || self.pins_are_own() || self.is_just_begun()
    }

    /// Whether ERB has mounted the bpffs of the pins.
    #[must_use]
    pub fn pins_are_own(&self) -> bool {
        let Ok(pins) = fs::canonicalize(self.pins()) else {
            return false;
        };
        is_own_mount(&mounts::table(), &pins)
    }

    fn is_just_begun(&self) -> bool {
        let owner = nix::unistd::geteuid().as_raw();
        let made = |found: &Metadata, mode| found.uid() == owner && found.mode() & 0o777 == mode;
        let is_own = |entry: &fs::DirEntry| {
            let (name, found) = (entry.file_name(), entry.metadata());
            let is_empty =
                |path: &Path| fs::read_dir(path).is_ok_and(|mut all| all.next().is_none());
            found.is_ok_and(|found| match name.as_bytes() {
                b"lock" | b"boost.lock" | b"trace.lock" => {
                    found.is_file() && found.len() == 0 && made(&found, 0o600)
                }
                b"begun.json" | b"begun.new" => found.is_file() && made(&found, 0o600),
                b"bpf" => found.is_dir() && is_empty(&entry.path()),
                _ => false,
            })
        };
        fs::metadata(self.path()).is_ok_and(|found| made(&found, 0o700))
            && self.path().join("lock").exists()
            && fs::read_dir(self.path()).is_ok_and(|all| all.flatten().all(|entry| is_own(&entry)))
    }
}

/// Whether the topmost mount at a path is a bpffs from ERB, by `/proc/self/mountinfo`.
fn is_own_mount(all: &str, path: &Path) -> bool {
    let topmost = mounts(all).rfind(|mount| mount.at == path);
    topmost.is_some_and(|mount| mount.kind == "bpf" && mount.source == MOUNT_SOURCE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_mount_of_ours_is_told_from_others() {
        let all = "22 1 0:20 / /sys/fs/bpf rw,nosuid - bpf bpf rw,mode=700\n\
                   23 1 0:21 / /run/a\\040b/bpf rw shared:4 - bpf erb rw,mode=700\n\
                   24 1 0:22 / /run/c/bpf rw - bpf erb rw\n\
                   25 1 0:23 / /run/c/bpf rw - tmpfs erb rw\n";
        let own = |path: &str| is_own_mount(all, Path::new(path));
        assert!(own("/run/a b/bpf"));
        assert!(!own("/sys/fs/bpf"), "another's");
        assert!(!own("/run/c/bpf"), "something else lies above it");
        assert!(!own("/run/a"));
    }

    #[test]
    fn a_folder_with_anything_else_is_not_erbs() {
        let path = std::env::temp_dir().join(format!("erb-owned-test-{}", std::process::id()));
        let run_dir = RunDir::new(&path);
        assert!(!run_dir.is_erbs(), "there is none");
        drop(run_dir.lock().unwrap());
        assert!(run_dir.is_erbs(), "a boost's begin");
        fs::create_dir(path.join("bpf")).unwrap();
        assert!(run_dir.is_erbs());
        for name in ["log", "notes.json", "control.sock", "bpf/erb_control"] {
            fs::write(path.join(name), "{}").unwrap();
            assert!(!run_dir.is_erbs(), "{name}");
            fs::remove_file(path.join(name)).unwrap();
        }
        let allow = |name: &str, mode| {
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        allow("lock", 0o644);
        assert!(!run_dir.is_erbs(), "a lock that ERB does not make");
        allow("lock", 0o600);
        allow(".", 0o755);
        assert!(!run_dir.is_erbs(), "a folder that ERB does not make");
        allow(".", 0o700);
        fs::write(path.join("lock"), "12").unwrap();
        assert!(!run_dir.is_erbs(), "a lock with words");
        fs::remove_dir_all(&path).unwrap();
    }
}
