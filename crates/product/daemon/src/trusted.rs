// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that root believes: secrets, and options that decide what root does.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Why a file is not believed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It cannot be opened.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The kernel does not say what it is.
    #[error("cannot be looked at: {0}")]
    Unknown(io::Error),
    /// It is something else.
    #[error("is no file")]
    NoFile,
    /// It is neither this user's nor root's.
    #[error("belongs to user {0}, who could change it; `chown root` it")]
    Owner(u32),
    /// It has one of the permission bits that it must not have.
    #[error("has mode {0:o}")]
    Mode(u32),
}

/// Opens a file that is this user's or root's and has none of these permission bits.
///
/// # Errors
/// [`Refused`].
pub fn open(path: &Path, forbidden_mode: u32) -> Result<File, Refused> {
    // A pipe without writer must not stop anybody.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(Refused::Unreadable)?;
    let found = file.metadata().map_err(Refused::Unknown)?;
    if !found.is_file() {
        return Err(Refused::NoFile);
    }
    let own = nix::unistd::geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        return Err(Refused::Owner(found.uid()));
    }
    if found.mode() & forbidden_mode != 0 {
        return Err(Refused::Mode(found.mode() & 0o777));
    }
    Ok(file)
}
