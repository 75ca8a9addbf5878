// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments, read as if an enemy had written them.
//!
//! Invariants:
//! 1. No byte is believed before its checksum, and no length before its bounds: memory is bounded by
//!    [`RECORD_BYTES_MAX`], whatever a file says.
//! 2. What is told ends at the first byte that is wrong. Nothing behind it is looked for: its order would not be known.
//! 3. LSNs have no gaps within a segment.

use std::io::{self, Read};

use crate::format::{
    HEADER_BYTES, Header, Id, Identity, KIND_SET, MAGIC, RECORD_BYTES_MAX, RECORD_HEAD, VERSION,
    bytes_at, encode_header, record_crc,
};

/// Why a segment ends before its file does.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file is shorter than a header: it was being made, and has nothing.
    #[error("it has no whole header: nothing was written to it")]
    Unmade,
    /// It does not begin as a segment.
    #[error("it is no segment of a journal")]
    Foreign,
    /// A later build wrote it.
    #[error("it is of version {0}, which this erb does not know: use a newer one")]
    Version(u32),
    /// The header's checksum is another.
    #[error("its header is damaged")]
    Header,
    /// A record is cut, or is none.
    #[error("at byte {at}: {what}")]
    Record {
        /// Where the record begins.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The disk.
    #[error("at byte {at}: {reason}")]
    Io {
        /// Where it was being read.
        at: u64,
        /// What the disk says.
        reason: io::Error,
    },
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the order of all.
    pub lsn: u64,
    /// Database.
    pub db: u16,
    /// Wall clock, ms; 0: never.
    pub expiry_ms: u64,
    /// Key.
    pub key: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
}

/// Reads one segment from its begin.
pub struct SegmentReader<R> {
    from: R,
    header: Header,
    seed: u32,
    at: u64,
    last_lsn: Option<u64>,
    record: Vec<u8>,
    is_over: bool,
}

impl<R: Read> SegmentReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`Fault`]: it has none, or another.
    pub fn open(mut from: R) -> Result<Self, Fault> {
        let mut bytes = [0; HEADER_BYTES];
        let read = fill(&mut from, &mut bytes).map_err(|reason| Fault::Io { at: 0, reason })?;
        let begun = read.min(MAGIC.len());
        if bytes[..begun] != MAGIC[..begun] {
            return Err(Fault::Foreign);
        }
        if read < HEADER_BYTES {
            return Err(Fault::Unmade);
        }
        let version = u32::from_le_bytes(bytes_at(&bytes, 8));
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        let header = Header {
            identity: Identity {
                journal: Id(bytes_at(&bytes, 16)),
                boot: Id(bytes_at(&bytes, 32)),
            },
            number: u64::from_le_bytes(bytes_at(&bytes, 48)),
            first_lsn: u64::from_le_bytes(bytes_at(&bytes, 56)),
        };
        if encode_header(&header) != bytes {
            return Err(Fault::Header);
        }
        Ok(Self {
            from,
            seed: header.seed(),
            header,
            at: HEADER_BYTES as u64,
            last_lsn: None,
            record: Vec::new(),
            is_over: false,
        })
    }

    /// Its header.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes that were good.
    pub const fn good_bytes(&self) -> u64 {
        self.at
    }

    /// The next record; none: the file ends behind the last one.
    ///
    /// # Errors
    /// [`Fault`]: here it ends, and something is behind. It stays the end.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Fault> {
        if self.is_over {
            return Ok(None);
        }
        let found = self.read();
        self.is_over = !matches!(found, Ok(Some(_)));
        found
    }

    fn wrong(&self, what: &'static str) -> Fault {
        Fault::Record { at: self.at, what }
    }

    fn part(&mut self, from: usize) -> Result<usize, Fault> {
        let at = self.at;
        fill(&mut self.from, &mut self.record[from..]).map_err(|reason| Fault::Io { at, reason })
    }

    fn read(&mut self) -> Result<Option<Entry>, Fault> {
        self.record.clear();
        self.record.resize(RECORD_HEAD, 0);
        match self.part(0)? {
            0 => return Ok(None),
            RECORD_HEAD => {}
            _ => return Err(self.wrong("a record is cut off")),
        }
        // A file system may keep a file's length of what it has not synced, and have zeros for the bytes (ext4's last block).
        if self.record.iter().all(|byte| *byte == 0) {
            return Err(self.wrong("zeros, where the power was cut before a sync"));
        }
        let bytes = u32::from_le_bytes(bytes_at(&self.record, 0)) as usize;
        if !(RECORD_HEAD..=RECORD_BYTES_MAX).contains(&bytes) {
            return Err(self.wrong("a record's length is beyond what one has"));
        }
        self.record.resize(bytes, 0);
        if self.part(RECORD_HEAD)? != bytes - RECORD_HEAD {
            return Err(self.wrong("a record is cut off"));
        }
        let crc = u32::from_le_bytes(bytes_at(&self.record, 4));
        if record_crc(self.seed, &self.record) != crc {
            return Err(self.wrong("a record's checksum is another"));
        }
        let entry = self.entry()?;
        self.at += bytes as u64;
        self.last_lsn = Some(entry.lsn);
        Ok(Some(entry))
    }

    /// What the record says, whose checksum is right.
    fn entry(&self) -> Result<Entry, Fault> {
        let record = &self.record;
        let lsn = u64::from_le_bytes(bytes_at(record, 8));
        let is_next = match self.last_lsn {
            Some(last) => last.checked_add(1) == Some(lsn),
            None => lsn >= self.header.first_lsn,
        };
        if !is_next {
            return Err(self.wrong("a record's LSN is not the next one"));
        }
        if u16::from_le_bytes(bytes_at(record, 24)) != KIND_SET {
            return Err(self.wrong("a record is of a kind that is not known"));
        }
        let key = u32::from_le_bytes(bytes_at(record, 28)) as usize;
        let data = &record[RECORD_HEAD..];
        let Some((key, value)) = data.split_at_checked(key) else {
            return Err(self.wrong("a record's key is longer than the record"));
        };
        Ok(Entry {
            lsn,
            db: u16::from_le_bytes(bytes_at(record, 26)),
            expiry_ms: u64::from_le_bytes(bytes_at(record, 32)),
            key: key.to_vec(),
            value: value.to_vec(),
        })
    }
}

/// Reads until the bytes are full or the file ends; how many there were.
fn fill(from: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < to.len() {
        match from.read(&mut to[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
