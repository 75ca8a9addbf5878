// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Redis says of a value before it is read, and what reading it takes at most.

use erb_abi::{self as abi, HASH_MEMORY_MAX, TABLE_MEMORY_MAX};

use crate::cached_hash::Encoding;

/// Memory of a string that may fit, with its key and what the allocator adds.
const STRING_MEMORY_MAX: u64 = 4096;

/// Memory of a listpack whose fields were not counted: what it may hold fits a batch.
const QUIET_LISTPACK_MEMORY_MAX: u64 = 2200;

/// The same of a hash table. Redis looks at all fields of one that takes so little (`reading.rs`,
/// `MEMORY_SAMPLES`), so this is no estimate.
const QUIET_TABLE_MEMORY_MAX: u64 = 3072;

/// Bytes of a listpack that a field and its value take at least.
const LISTPACK_FIELD_BYTES_MIN: u64 = 4;

/// The same of a hash table: a pointer and the smallest allocation.
const TABLE_FIELD_BYTES_MIN: u64 = 8 + 16;

/// Bytes before and behind a bulk string of a hash that fits: `$1451`, two line ends.
const BULK_WORDS_BYTES: u64 = 9;

/// What Redis says of a value before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Bytes of a string.
    String(u64),
    /// A hash that may be cached: its fields, if they were asked for, and its memory.
    Hash {
        encoding: Encoding,
        fields: Option<u64>,
        memory: u64,
    },
    /// Memory of a string, with its key: where its length was not asked for.
    StringMemory(u64),
    /// There is no such key.
    Absent,
    /// No value of the kind: it cannot be filled.
    None,
}

impl Size {
    /// Bytes that reading it takes at most; none: it is too large.
    pub(crate) fn bytes(self) -> Option<usize> {
        let bytes = match self {
            Self::Absent => 0,
            Self::String(bytes) if bytes <= abi::VALUE_BYTES_MAX.into() => bytes,
            Self::Hash {
                encoding,
                fields,
                memory,
            } => hash_bytes(encoding, fields, memory)?,
            Self::StringMemory(memory) if memory <= STRING_MEMORY_MAX => memory,
            _ => return None,
        };
        usize::try_from(bytes).ok()
    }
}

/// Bytes that reading a hash takes at most; none: it is too large.
fn hash_bytes(encoding: Encoding, fields: Option<u64>, memory: u64) -> Option<u64> {
    let (most, quiet_most, field_least, times) = match encoding {
        // Numbers grow at most twofold.
        Encoding::Listpack => (
            HASH_MEMORY_MAX,
            QUIET_LISTPACK_MEMORY_MAX,
            LISTPACK_FIELD_BYTES_MIN,
            2,
        ),
        Encoding::Table => (
            TABLE_MEMORY_MAX,
            QUIET_TABLE_MEMORY_MAX,
            TABLE_FIELD_BYTES_MIN,
            1,
        ),
    };
    let fits = match fields {
        Some(fields) => fields <= abi::HASH_FIELDS_MAX.into() && memory <= most,
        None => memory <= quiet_most,
    };
    let fields = fields.unwrap_or(memory / field_least);
    fits.then(|| times * memory + fields * 2 * BULK_WORDS_BYTES)
}

#[cfg(test)]
mod tests {
    use erb_abi::{ValueKind, Wanted};

    use super::*;
    use crate::fill::{BATCH_BYTES_MAX, words_of};

    #[test]
    fn only_what_fits_a_slot_is_read() {
        let size = |encoding, fields, memory| {
            let hash = Size::Hash {
                encoding,
                fields,
                memory,
            };
            hash.bytes()
        };
        let hash = |fields, memory| size(Encoding::Listpack, Some(fields), memory);
        let table = |fields, memory| size(Encoding::Table, Some(fields), memory);
        assert_eq!(Size::String(0).bytes(), Some(0));
        assert_eq!(Size::Absent.bytes(), Some(0));
        assert_eq!(
            Size::String(abi::VALUE_BYTES_MAX.into()).bytes(),
            Some(1451)
        );
        assert_eq!(
            Size::String(u64::from(abi::VALUE_BYTES_MAX) + 1).bytes(),
            None
        );
        assert!(hash(64, HASH_MEMORY_MAX).is_some());
        assert_eq!(hash(65, 100), None);
        assert_eq!(hash(1, HASH_MEMORY_MAX + 1), None);
        assert_eq!(hash(u64::MAX, u64::MAX), None);
        assert_eq!(Size::None.bytes(), None);
        assert_eq!(Size::StringMemory(4096).bytes(), Some(4096));
        assert_eq!(Size::StringMemory(4097).bytes(), None);
        // What is not taken from the front would be waited for in vain.
        let quiet = [
            (Encoding::Listpack, QUIET_LISTPACK_MEMORY_MAX),
            (Encoding::Table, QUIET_TABLE_MEMORY_MAX),
        ];
        for (encoding, most) in quiet {
            assert!(size(encoding, None, most).is_some());
            assert_eq!(size(encoding, None, most + 1), None);
        }
        assert_eq!(table(64, TABLE_MEMORY_MAX + 1), None);
        let all = quiet.map(|(encoding, most)| size(encoding, None, most).unwrap());
        let most = all.into_iter().chain(table(64, TABLE_MEMORY_MAX)).max();
        let most = most.unwrap();
        let mut longest = Wanted::string(vec![b'k'; abi::KEY_BYTES_MAX as usize]);
        longest.kind = ValueKind::Hash;
        assert!(most + words_of(&longest) <= BATCH_BYTES_MAX);
    }
}
