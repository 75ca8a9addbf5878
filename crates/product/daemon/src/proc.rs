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
