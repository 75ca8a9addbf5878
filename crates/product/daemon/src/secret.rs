// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A secret out of a file: its first line, if nobody but its owner can read or change it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file that is longer is some other file.
const SECRET_BYTES_MAX: u64 = 4096;

/// Permission bits that it must not have: nobody else reads it, nobody but its owner writes it.
const FORBIDDEN_MODE: u32 = 0o027;

/// The file's first line; else the reason, with `option` as what names the file.
///
/// # Errors
/// It cannot be read, others may read it, or its first line is empty.
pub(crate) fn first_line(path: &Path, option: &str) -> Result<Vec<u8>, String> {
    // A pipe without writer must not stop the daemon.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => format!(
                "cannot be read ({error}); at work the daemon has no right to other users' \
                 files: it must belong to root, and so must its folders or let everybody in"
            ),
            _ => format!("cannot be read: {error}; correct {option}"),
        })?;
    let found = file
        .metadata()
        .map_err(|error| format!("cannot be looked at: {error}"))?;
    if !found.is_file() {
        return Err(format!("is no file; correct {option}"));
    }
    let own = nix::unistd::geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        return Err(format!(
            "belongs to user {}, who could change it; `chown root` it",
            found.uid()
        ));
    }
    if found.mode() & FORBIDDEN_MODE != 0 {
        return Err(format!(
            "may be read or written by others (mode {:o}); `chmod 600` it",
            found.mode() & 0o777
        ));
    }
    let mut bytes = Vec::new();
    file.take(SECRET_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(format!(
            "is longer than {SECRET_BYTES_MAX} bytes; it must hold the secret and nothing else"
        ));
    }
    if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        bytes.truncate(end);
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    if bytes.is_empty() {
        return Err("has nothing in its first line; write the secret there".to_owned());
    }
    Ok(bytes)
}
