// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of /proc as text.
//!
//! They hold names that any user of the machine gives: of processes (/proc/PID/stat, status, comm) and of mount points
//! (mountinfo). Such a name need not be UTF-8, and must not hide the rest of the file.

use std::fs;
use std::io;
use std::path::Path;

/// The whole file; bytes that are not UTF-8 become U+FFFD.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn text(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Fields of the file `stat` of a process or thread (proc_pid_stat(5)) after the name, which stands in brackets and may
/// have any letters: its state is the first. None: there is no such process.
pub(crate) fn stat(process: &Path) -> Option<Vec<String>> {
    let stat = text(process.join("stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// The state of a process or thread, a letter. None: there is no such process.
pub(crate) fn state(process: &Path) -> Option<char> {
    stat(process)?.first()?.chars().next()
}

/// Whether there is such a process that has not ended.
#[must_use]
pub fn is_there(pid: u32) -> bool {
    let state = state(&Path::new("/proc").join(pid.to_string()));
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
