// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file, or a part of it, that may be sent from memory.
//!
//! Invariants:
//! 1. The mapping is made once, when it is first needed, and lives as long as this value (L1). Each ticket
//!    and each open send holds the value, so the last of them unmaps and no caller can.
//! 2. No slice of the mapping is ever made: others may write to the file. Addresses go to the kernel alone.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::guard::{Guard, Held};
use crate::sys::{self, Piece};

/// Page tables are filled by so many bytes at a time: what one entry of the next level spans on x86-64.
const POPULATE_BYTES: u64 = 2 << 20;
/// What lies further back in a file is not populated: a note of each block of a sparse file of exabytes would take all
/// memory. The send pays for the page faults there.
const POPULATED_BYTES_MAX: u64 = 1 << 40;

/// A file in the page cache is mapped for its small ranges when it has been asked for more often than this: who
/// comes once is sent by `sendfile`, which costs less than a mapping.
const SENDS_BEFORE_MAPPING: u64 = 2;

/// A file of which ranges can be sent. Share it by `Arc`; it is unmapped with its last ticket.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    begin: u64,
    length_bytes: u64,
    is_dax: bool,
    /// None: it cannot be mapped (`/proc`, some file systems in user space, longer than the address space).
    mapping: OnceLock<Option<MmapRaw>>,
    /// A bit for each `POPULATE_BYTES` up to `POPULATED_BYTES_MAX`: its page table entries were made.
    populated: Box<[AtomicU64]>,
    open_tickets: AtomicUsize,
    held: OnceLock<Held>,
    /// All that there ever were.
    tickets: AtomicU64,
}

impl MappedFile {
    /// All of a regular file, as long as it is now: what is appended later needs a mapping of its own.
    ///
    /// # Errors
    /// Of `fstat` and `statx`; `InvalidInput` if it is no regular file.
    pub fn new(file: File) -> Result<Self> {
        let facts = file.metadata()?;
        if !facts.is_file() {
            let what = "only regular files have ranges that can be sent";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        Self::part(file, 0..facts.len())
    }

    /// A part: a segment of a log, say, that is freed when [`MappedFile::open_tickets`] is 0. Ranges to send
    /// are counted from its beginning.
    ///
    /// # Errors
    /// Of `statx`; `InvalidInput` if the range is backwards or longer than memory.
    pub fn part(file: File, bytes: Range<u64>) -> Result<Self> {
        let length = bytes.end.checked_sub(bytes.start);
        let length_bytes = length.filter(|length| usize::try_from(*length).is_ok());
        let length_bytes = length_bytes.ok_or(ErrorKind::InvalidInput)?;
        let is_dax = sys::is_dax(&file)?;
        let noted_bytes = length_bytes.min(POPULATED_BYTES_MAX);
        let blocks = noted_bytes.div_ceil(POPULATE_BYTES).div_ceil(64);
        Ok(Self {
            file,
            begin: bytes.start,
            length_bytes,
            is_dax,
            mapping: OnceLock::new(),
            populated: (0..blocks).map(|_| AtomicU64::new(0)).collect(),
            open_tickets: AtomicUsize::new(0),
            held: OnceLock::new(),
            tickets: AtomicU64::new(0),
        })
    }

    /// The file itself.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Bytes that can be sent.
    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Whether its mapping is the persistent memory itself (`STATX_ATTR_DAX`).
    pub const fn is_dax(&self) -> bool {
        self.is_dax
    }

    /// Tickets that are not done. While it is not 0 nobody may rewrite, cut or free any of these bytes (L2).
    pub fn open_tickets(&self) -> usize {
        self.open_tickets.load(Ordering::Acquire)
    }

    /// One more ticket.
    pub(crate) fn hold(&self) {
        self.open_tickets.fetch_add(1, Ordering::Relaxed);
        self.tickets.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether its mapping is there, or pays.
    pub(crate) fn is_worth_mapping(&self) -> bool {
        self.is_dax || self.tickets.load(Ordering::Relaxed) > SENDS_BEFORE_MAPPING
    }

    /// A ticket is done.
    pub(crate) fn release(&self) {
        let before = self.open_tickets.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a ticket is done once");
    }

    /// Whether the guard holds the file, from now on at the latest. A file has one guard.
    pub(crate) fn guarded_by(&self, guard: &Arc<Guard>) -> bool {
        if let Some(held) = self.held.get() {
            return held.is_by(guard);
        }
        // Who comes second lets go of what the guard holds twice.
        let held = guard.hold_file(&self.file);
        held.is_some_and(|held| self.held.get_or_init(|| held).is_by(guard))
    }

    /// Where in the file a place of the part is.
    pub(crate) const fn file_offset(&self, at: u64) -> u64 {
        self.begin + at
    }

    /// The memory of a range within the part, mapped on first use; none: it cannot be mapped.
    pub(crate) fn piece(&self, at: u64, length_bytes: usize) -> Option<Piece> {
        let end = at.checked_add(length_bytes as u64);
        assert!(
            end.is_some_and(|end| end <= self.length_bytes),
            "a range is within its file"
        );
        let mapping = self.mapping()?;
        let address = mapping.as_ptr().wrapping_add(at as usize);
        Some(Piece {
            address,
            length_bytes,
        })
    }

    /// Whether there is a mapping; made on first use.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mapping().is_some()
    }

    fn mapping(&self) -> Option<&MmapRaw> {
        if let Some(mapping) = self.mapping.get() {
            return mapping.as_ref();
        }
        let length = self.length_bytes as usize;
        let mapping = MmapOptions::new()
            .offset(self.begin)
            .len(length)
            .map_raw_read_only(&self.file);
        // Who comes second drops a mapping that nobody has used.
        self.mapping.get_or_init(|| mapping.ok()).as_ref()
    }

    /// Fills the page tables around a range, so that no send pays for page faults. Best effort: kernels
    /// before 5.14 do not know it, and what cannot be read shows at the send.
    pub(crate) fn populate(&self, at: u64, length_bytes: usize) {
        let last = (at + length_bytes.max(1) as u64 - 1) / POPULATE_BYTES;
        for block in at / POPULATE_BYTES..=last {
            let Some(word) = self.populated.get((block / 64) as usize) else {
                return;
            };
            let bit = 1 << (block % 64);
            if word.load(Ordering::Relaxed) & bit != 0 {
                continue;
            }
            word.fetch_or(bit, Ordering::Relaxed);
            let begin = block * POPULATE_BYTES;
            let end = (begin + POPULATE_BYTES).min(self.length_bytes);
            if let Some(mapping) = self.mapping() {
                let (begin, length) = (begin as usize, (end - begin) as usize);
                let _ = mapping.advise_range(Advice::PopulateRead, begin, length);
            }
        }
    }
}

/// Of the file, for leases on it.
impl AsFd for MappedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
