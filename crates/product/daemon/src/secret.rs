// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A secret out of a file: its first line, if nobody but its owner can read or change it.

use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::trusted::{self, Refused};

/// A file that is longer is some other file.
const SECRET_BYTES_MAX: u64 = 4096;

/// Permission bits that it must not have: nobody else reads it, nobody but its owner writes it.
const FORBIDDEN_MODE: u32 = 0o027;

/// The file's first line; else the reason, with `option` as what names the file.
///
/// # Errors
/// It cannot be read, others may read it, or its first line is empty.
pub(crate) fn first_line(path: &Path, option: &str) -> Result<Vec<u8>, String> {
    let file = trusted::open(path, FORBIDDEN_MODE).map_err(|refused| match refused {
        Refused::Unreadable(error) if error.kind() == ErrorKind::PermissionDenied => format!(
            "cannot be read ({error}); at work the daemon has no right to other users' \
             files: it must belong to root, and so must its folders or let everybody in"
        ),
        Refused::Unreadable(_) | Refused::NoFile => format!("{refused}; correct {option}"),
        Refused::Mode(mode) => {
            format!("may be read or written by others (mode {mode:o}); `chmod 600` it")
        }
        Refused::Unknown(_) | Refused::Owner(_) => refused.to_string(),
    })?;
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
