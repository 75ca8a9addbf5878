// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files with secrets: nobody but their owner reads or writes them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use erb_nvme::auth::Secrets;
use nix::unistd::geteuid;
use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// No file with secrets is larger.
const BYTES_MAX: u64 = 4 << 20;
/// Permissions of everybody but the owner.
const OTHERS: u32 = 0o077;

pub(crate) fn failed<'a>(
    path: &'a Path,
    what: &'static str,
) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::SecretsFile {
        path: path.to_owned(),
        what,
        source,
    }
}

fn not_private(path: &Path, why: &'static str) -> Error {
    Error::NotPrivate {
        path: path.to_owned(),
        why,
    }
}

/// Opens a file with secrets, unless somebody else may know or change them.
pub(crate) fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    // A pipe would keep whoever opens it waiting.
    let opened = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(failed(path, "cannot be opened"))?;
    let found = opened.metadata();
    let found = found.map_err(failed(path, "cannot be looked at"))?;
    if !found.is_file() {
        return Err(not_private(path, "it is no file"));
    }
    if found.mode() & OTHERS != 0 {
        return Err(not_private(
            path,
            "others than its owner may read or write it: chmod 600",
        ));
    }
    let own = geteuid();
    if !own.is_root() && ![0, own.as_raw()].contains(&found.uid()) {
        return Err(not_private(path, "it belongs to another user"));
    }
    Ok(opened)
}

/// Reads all of it.
pub(crate) fn text_of(file: &File, path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    match read {
        Ok(count) if count as u64 > BYTES_MAX => Err(not_private(path, "it has more than 4 MiB")),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            Err(not_private(path, "it is no text"))
        }
        Err(error) => Err(failed(path, "cannot be read")(error)),
    }
}

/// Reads a host's file: its secret, and the node's if it is there.
///
/// # Errors
/// It cannot be read, others than its owner may, or it has something else.
pub fn read_secrets(path: &Path) -> Result<Secrets> {
    let text = text_of(&open(path)?, path)?;
    Secrets::parse(&text).map_err(|_| Error::NoSecrets(path.to_owned()))
}

/// Writes a new file with secrets, durably. What is there is not overwritten.
///
/// # Errors
/// It cannot be written, or is there.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    let file = beside(path, text)?;
    let put = file.persist_noclobber(path).map_err(|error| error.error);
    put.map_err(failed(path, "cannot be made"))?;
    sync_folder(path)
}

/// A durable file in the same folder, which nobody but its owner reads. It goes unless it takes a name.
pub(crate) fn beside(path: &Path, text: &str) -> Result<NamedTempFile> {
    let made = tempfile::Builder::new()
        .prefix(".erb-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(folder(path));
    let mut file = made.map_err(failed(path, "no file can be made beside it"))?;
    let written = file.write_all(text.as_bytes());
    let synced = written.and_then(|()| file.as_file().sync_all());
    synced.map_err(failed(path, "cannot be written"))?;
    Ok(file)
}

/// A name in a folder is durable.
pub(crate) fn sync_folder(of: &Path) -> Result<()> {
    let folder = folder(of);
    let synced = File::open(&folder).and_then(|folder| folder.sync_all());
    synced.map_err(failed(&folder, "cannot be synced"))
}

fn folder(of: &Path) -> PathBuf {
    match of.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
