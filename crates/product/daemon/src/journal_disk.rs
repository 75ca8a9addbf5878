// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What speaks against a journal's disk, in words for people.

use std::io;

use erb_abi::{LOG_BYTES, Logs};
use erb_journal::Disk;

/// A folder that cannot be opened.
pub(crate) fn unusable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            "another daemon has it: give one of them another --journal-dir".to_owned()
        }
        // It may be a disk that is not mounted: nothing is made in its place.
        io::ErrorKind::NotFound => "it is gone: make it, or mount its disk".to_owned(),
        _ => error.to_string(),
    }
}

/// Whether the disk has room for all that may wait, and as much again for what is written a second time.
pub(crate) fn room_against(disk: &Disk, logs: &Logs) -> Option<String> {
    let wanted = 2 * logs.count() as u64 * u64::from(LOG_BYTES);
    match disk.room() {
        Ok(room) if room >= wanted => None,
        Ok(room) => Some(format!(
            "its disk has room for {} MiB, and {} may be needed: make room",
            room >> 20,
            wanted >> 20
        )),
        Err(error) => Some(format!(
            "its disk does not tell how much room it has: {error}"
        )),
    }
}
