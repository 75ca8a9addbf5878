// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the journal asks of a disk: files of ours today, a kernel module one day.

use std::io;

/// Keeps segments. Every call may fail, and nothing is believed to be there before a sync said so.
pub trait Sink {
    /// An open segment.
    type File;

    /// Makes a new segment; there must be none of this number.
    ///
    /// # Errors
    /// Of the disk.
    fn create(&mut self, number: u64) -> io::Result<Self::File>;

    /// Appends bytes; how many of them. Fewer than all is a failure to the journal.
    ///
    /// # Errors
    /// Of the disk.
    fn append(&mut self, file: &mut Self::File, bytes: &[u8]) -> io::Result<usize>;

    /// All that was appended outlives a loss of power from here on.
    ///
    /// # Errors
    /// Of the disk; what was appended is in doubt then, also after a later sync that succeeds.
    fn sync(&mut self, file: &mut Self::File) -> io::Result<()>;

    /// So does which segments there are.
    ///
    /// # Errors
    /// Of the disk.
    fn sync_names(&mut self) -> io::Result<()>;

    /// Deletes a segment. That there is none is no failure.
    ///
    /// # Errors
    /// Of the disk.
    fn remove(&mut self, number: u64) -> io::Result<()>;
}
