// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes of a segment. All numbers are little-endian.
//!
//! ```text
//! header  0  magic        8
//!         8  version      4
//!        12  crc32c       4   of the header, with zeros here
//!        16  journal id  16   of a boost: of its maps
//!        32  boot id     16   of the machine's start
//!        48  segment      8   its number
//!        56  first LSN    8   none of its records has a lower one
//! record  0  bytes        4   of the whole record
//!         4  crc32c       4   of all else of it, seeded with journal id and segment
//!         8  LSN          8
//!        16  effects      8   of commands beside it: 0, as nobody counts them yet
//!        24  kind         2   1: a SET
//!        26  database     2
//!        28  key length   4
//!        32  expiry       8   wall clock, ms; 0: none
//!        40  key, value
//! ```

use std::fmt;

/// Begins each segment.
pub(crate) const MAGIC: [u8; 8] = *b"ERBJRNL\n";
/// Of this layout.
pub(crate) const VERSION: u32 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a record before its key.
pub(crate) const RECORD_HEAD: usize = 40;
/// Longest record: far more than the longest that is answered, and little enough to be read whole.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// A SET.
pub(crate) const KIND_SET: u16 = 1;

/// Sixteen bytes that nobody else has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// Reads 32 hexadecimal digits; hyphens are left out. None: it is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits: Vec<u32> = text
            .trim()
            .chars()
            .filter(|digit| *digit != '-')
            .map(|digit| digit.to_digit(16))
            .collect::<Option<_>>()?;
        let mut bytes = [0; 16];
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = (pair[0] << 4 | pair[1]) as u8;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(to, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

/// Whose records these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Of the boost: its maps give the LSNs.
    pub journal: Id,
    /// Of the machine's start: the maps do not outlive it.
    pub boot: Id,
}

/// The head of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Whose.
    pub identity: Identity,
    /// Its number: no other segment of its folder has it.
    pub number: u64,
    /// None of its records has a lower LSN.
    pub first_lsn: u64,
}

/// A write that was answered in Redis's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// Its place in the order of all.
    pub lsn: u64,
    /// Database.
    pub db: u16,
    /// Wall clock, ms; 0: never.
    pub expiry_ms: u64,
    /// Key.
    pub key: &'a [u8],
    /// Value.
    pub value: &'a [u8],
}

impl Header {
    /// What its records' checksums begin with: a record of another segment is none of this one.
    pub(crate) fn seed(&self) -> u32 {
        let seed = crc32c::crc32c(&self.identity.journal.0);
        crc32c::crc32c_append(seed, &self.number.to_le_bytes())
    }
}

/// The bytes of a header.
#[must_use]
pub fn encode_header(header: &Header) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..32].copy_from_slice(&header.identity.journal.0);
    bytes[32..48].copy_from_slice(&header.identity.boot.0);
    bytes[48..56].copy_from_slice(&header.number.to_le_bytes());
    bytes[56..64].copy_from_slice(&header.first_lsn.to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Appends a record of a segment.
///
/// # Panics
/// If it is longer than [`RECORD_BYTES_MAX`], which no answered write is.
pub fn encode_record(header: &Header, write: &Write<'_>, to: &mut Vec<u8>) {
    let bytes = RECORD_HEAD + write.key.len() + write.value.len();
    assert!(bytes <= RECORD_BYTES_MAX, "a record of {bytes} bytes");
    let start = to.len();
    to.extend_from_slice(&(bytes as u32).to_le_bytes());
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(&write.lsn.to_le_bytes());
    to.extend_from_slice(&0u64.to_le_bytes());
    to.extend_from_slice(&KIND_SET.to_le_bytes());
    to.extend_from_slice(&write.db.to_le_bytes());
    to.extend_from_slice(&(write.key.len() as u32).to_le_bytes());
    to.extend_from_slice(&write.expiry_ms.to_le_bytes());
    to.extend_from_slice(write.key);
    to.extend_from_slice(write.value);
    let crc = record_crc(header.seed(), &to[start..]);
    to[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// Of a whole record, but for the checksum's own place.
pub(crate) fn record_crc(seed: u32, record: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(seed, &record[..4]);
    crc32c::crc32c_append(crc, &record[8..])
}

/// A number of `N` bytes at a place that is there.
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}
