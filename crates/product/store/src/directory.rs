// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The directory of a closed segment: what replay needs of its records, without their values. All numbers are little
//! endian.
//!
//! ```text
//!  0 u32 magic "ERBD"
//!  4 u32 records
//!  8 u64 number of the segment's first batch
//! 16 u32 CRC of the head before that batch
//! 20 u32 zero
//! 24 records: 48 bytes as in the log, but for 40 u32 batch less the first, 44 u32 offset in the segment / 8;
//!    key, value of a trim, zeros up to a multiple of 8
//! ```
//!
//! Invariants:
//! 1. It has the segment's records in their order, all of them.
//! 2. Its checksum stands in the control log, so one that was written for something else is damage.
//! 3. It takes at most an eighth of its segment. Records so short that it would take more are read themselves:
//!    a directory of nearly their size would cost writes and save no reads.
//! 4. Decoding believes nothing: no bytes make it panic, read beyond them, or allocate.

use crate::bytes::{put_at, u32_at, u64_at};
use crate::key::Key;
use crate::record::{
    Change, Damage, Kind, RECORD_HEAD_BYTES, Record, RecordHead, decode_fields, encode_fields,
};

/// Directories take this part of a segment at most.
pub const DIRECTORY_SHARE: u64 = 8;
const HEAD_BYTES: usize = 24;
const MAGIC: u32 = u32::from_le_bytes(*b"ERBD");
/// Unit of offsets.
const OFFSET_BYTES: u64 = 8;

/// A directory in the making.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryWriter {
    first_lsn: u64,
    bytes: Vec<u8>,
    records: u32,
}

fn value_kept(kind: Kind, value: &[u8]) -> &[u8] {
    if kind == Kind::Trim { value } else { &[] }
}

/// Bytes that a change takes in a directory.
fn entry_bytes(change: &Change<'_>) -> usize {
    let value = value_kept(change.kind, change.value);
    (RECORD_HEAD_BYTES + change.key.bytes.len() + value.len()).next_multiple_of(8)
}

impl DirectoryWriter {
    pub(crate) fn new(first_lsn: u64, crc_before: u32) -> Self {
        let mut bytes = vec![0; HEAD_BYTES];
        put_at(&mut bytes, 0, &MAGIC.to_le_bytes());
        put_at(&mut bytes, 8, &first_lsn.to_le_bytes());
        put_at(&mut bytes, 16, &crc_before.to_le_bytes());
        Self {
            first_lsn,
            bytes,
            records: 0,
        }
    }

    /// Bytes with this change.
    pub(crate) fn len_with(&self, change: &Change<'_>) -> usize {
        self.bytes.len() + entry_bytes(change)
    }

    /// Adds a record that lies so many bytes behind the segment's begin.
    pub(crate) fn push(&mut self, change: &Change<'_>, lsn: u64, offset: u64) {
        let mut head = encode_fields(change);
        let batch = (lsn - self.first_lsn) as u32;
        put_at(&mut head, 40, &batch.to_le_bytes());
        put_at(
            &mut head,
            44,
            &((offset / OFFSET_BYTES) as u32).to_le_bytes(),
        );
        let end = self.len_with(change);
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(change.key.bytes);
        let value = value_kept(change.kind, change.value);
        self.bytes.extend_from_slice(value);
        self.bytes.resize(end, 0);
        self.records += 1;
    }

    /// All its bytes, without padding.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        put_at(&mut self.bytes, 4, &self.records.to_le_bytes());
        self.bytes
    }
}

/// A record as a directory has it.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    /// Its batch.
    pub lsn: u64,
    /// Bytes behind the segment's begin.
    pub offset: u64,
    /// The record; a put's value is not there, nor its checksum.
    pub record: Record<'a>,
}

/// A directory that was read, and whose checksum was right.
#[derive(Clone, Copy, Debug)]
pub struct Directory<'a> {
    /// Number of the segment's first batch.
    pub first_lsn: u64,
    /// CRC of the head before it.
    pub crc_before: u32,
    records: u32,
    rest: &'a [u8],
}

impl<'a> Directory<'a> {
    /// Reads one.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Damage> {
        let head = bytes.get(..HEAD_BYTES).ok_or(Damage::Short)?;
        if u32_at(head, 0) != MAGIC {
            return Err(Damage::Magic);
        }
        let directory = Self {
            first_lsn: u64_at(head, 8),
            crc_before: u32_at(head, 16),
            records: u32_at(head, 4),
            rest: &bytes[HEAD_BYTES..],
        };
        let mut count = 0u32;
        for listing in directory.records() {
            listing?;
            count += 1;
        }
        if count != directory.records || u32_at(head, 20) != 0 {
            return Err(Damage::Field);
        }
        Ok(directory)
    }

    /// Its records in their order. Ends behind the first that is damaged.
    pub fn records(&self) -> impl Iterator<Item = Result<Listing<'a>, Damage>> + use<'a> {
        let (mut rest, first_lsn) = (self.rest, self.first_lsn);
        let mut left = self.records;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let listing = listing(rest, first_lsn);
            match listing {
                Ok((_, bytes)) => rest = rest.get(bytes..).unwrap_or_default(),
                Err(_) => left = 0,
            }
            Some(listing.map(|(listing, _)| listing))
        })
    }
}

fn listing(bytes: &[u8], first_lsn: u64) -> Result<(Listing<'_>, usize), Damage> {
    let head = bytes.get(..RECORD_HEAD_BYTES).ok_or(Damage::Short)?;
    let decoded = RecordHead {
        value_crc: 0,
        ..decode_fields(head)?
    };
    let key_end = RECORD_HEAD_BYTES + usize::from(decoded.key_bytes);
    let key = bytes.get(RECORD_HEAD_BYTES..key_end).ok_or(Damage::Short)?;
    let value_bytes = match decoded.kind {
        Kind::Trim => decoded.value_bytes as usize,
        _ => 0,
    };
    let end = key_end + value_bytes;
    let value = bytes.get(key_end..end).ok_or(Damage::Short)?;
    let listing = Listing {
        lsn: first_lsn + u64::from(u32_at(head, 40)),
        offset: u64::from(u32_at(head, 44)) * OFFSET_BYTES,
        record: Record {
            head: decoded,
            key: Key {
                namespace: decoded.namespace,
                bytes: key,
            },
            value,
        },
    };
    Ok((listing, end.next_multiple_of(8)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::version::Version;

    fn change<'a>(kind: Kind, version: u64, key: &'a [u8], value: &'a [u8]) -> Change<'a> {
        Change {
            kind,
            is_part: false,
            version: Version::new(version),
            source: Version::new(version),
            writer: 1,
            expiry_ms: 2,
            key: Key {
                namespace: 3,
                bytes: key,
            },
            value,
        }
    }

    proptest! {
        #[test]
        fn a_directory_says_what_was_said(
            records in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40), 0usize..9), 0..60),
        ) {
            let mut writer = DirectoryWriter::new(100, 7);
            let values: Vec<Vec<u8>> = records.iter().map(|(_, _, count)| vec![5; 8 * count]).collect();
            let mut wanted = Vec::new();
            for (at, ((is_trim, key, _), value)) in records.iter().zip(&values).enumerate() {
                let kind = if *is_trim { Kind::Trim } else { Kind::Put };
                let change = change(kind, at as u64 + 1, key, value);
                let (lsn, offset) = (100 + at as u64 / 3, 64 + 8 * at as u64);
                writer.push(&change, lsn, offset);
                wanted.push((lsn, offset, change));
            }
            let bytes = writer.finish();
            let directory = Directory::decode(&bytes).unwrap();
            prop_assert_eq!((directory.first_lsn, directory.crc_before), (100, 7));
            let found: Vec<Listing<'_>> = directory.records().map(Result::unwrap).collect();
            prop_assert_eq!(found.len(), wanted.len());
            for (found, (lsn, offset, change)) in found.iter().zip(wanted) {
                prop_assert_eq!((found.lsn, found.offset), (lsn, offset));
                prop_assert_eq!(found.record.key, change.key);
                prop_assert_eq!(found.record.value, value_kept(change.kind, change.value));
                prop_assert_eq!(found.record.head.version, change.version);
                prop_assert_eq!(found.record.head.value_bytes as usize, change.value.len());
            }
        }

        #[test]
        fn arbitrary_bytes_decode_to_nothing_or_less(
            mut bytes in prop::collection::vec(any::<u8>(), 0..400), records in 0u32..6, kind in 0u8..8,
        ) {
            if bytes.len() > HEAD_BYTES + 2 {
                put_at(&mut bytes, 0, &MAGIC.to_le_bytes());
                put_at(&mut bytes, 4, &records.to_le_bytes());
                put_at(&mut bytes, 20, &[0; 4]);
                bytes[HEAD_BYTES] = kind;
                bytes[HEAD_BYTES + 1] = 0;
            }
            if let Ok(directory) = Directory::decode(&bytes) {
                prop_assert!(directory.records().count() <= records as usize);
            }
        }
    }
}
