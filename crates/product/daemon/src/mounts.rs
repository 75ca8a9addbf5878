// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is mounted where, as `/proc/self/mountinfo` has it (proc(5)). Nothing here asks a file system.

use std::path::{Path, PathBuf};

use crate::proc;

/// A mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Where it is.
    pub at: PathBuf,
    /// Its type.
    pub kind: String,
    /// What is mounted.
    pub source: String,
    /// Options of the file system.
    pub options: String,
}

/// The table of this process; empty if there is no /proc.
#[must_use]
pub fn table() -> String {
    proc::text("/proc/self/mountinfo").unwrap_or_default()
}

/// All of them; of two at one place the later one hides the other.
pub(crate) fn mounts(table: &str) -> impl DoubleEndedIterator<Item = Mount> + '_ {
    table.lines().filter_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        Some(Mount {
            at: PathBuf::from(plain(place.split(' ').nth(4)?)),
            kind: what.next()?.to_owned(),
            source: plain(what.next()?),
            options: what.next().unwrap_or_default().to_owned(),
        })
    })
}

/// The one that has this path.
#[must_use]
pub fn mount_of(table: &str, path: &Path) -> Option<Mount> {
    let above = mounts(table).filter(|mount| path.starts_with(&mount.at));
    above.max_by_key(|mount| mount.at.components().count())
}

/// Blanks and the like stand there as octal numbers.
fn plain(word: &str) -> String {
    let codes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    codes.iter().fold(word.to_owned(), |word, (code, letter)| {
        word.replace(code, letter)
    })
}
