// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Redis says of a value before it is read, and what reading it takes at most.
//!
//! A hash table is measured twice. MEMORY USAGE walks its buckets until it has seen so many fields, and a
//! table that has lost most of its fields has millions of empty ones. So first one field is looked at, which
//! bounds the buckets, and then all. One that was cached before is measured once.

use erb_abi::{self as abi, HASH_MEMORY_MAX, TABLE_MEMORY_MAX};

use crate::cached_hash::Encoding;

/// Memory of a string that may fit, with its key and what the allocator adds.
const STRING_MEMORY_MAX: u64 = 4096;

/// Memory of a listpack whose fields were not counted: what it may hold fits a batch.
const QUIET_LISTPACK_MEMORY_MAX: u64 = 2200;

/// The same of a hash table. Redis looks at all fields of one that takes so little (`reading.rs`,
/// `MEMORY_SAMPLES`), so this is no estimate.
const QUIET_TABLE_MEMORY_MAX: u64 = 3072;

/// Memory of a hash table by one of its fields: 64 that are as long as a reply may be. It has 16,384 buckets
/// at most.
const UNMEASURED_MEMORY_MAX: u64 = 128 * 1024;

/// Bytes of a bucket: Redis's (a pointer; a step of rehashing passes ten empty ones) and Valkey's.
const BUCKET_BYTES: u64 = 8;
const EMPTY_BUCKETS_PER_STEP: u64 = 10;
const VALKEY_BUCKET_BYTES: u64 = 64;

/// Bytes that a step takes, question and answer: `reading.rs`.
const STEP_BYTES: u64 = 17;

/// Bytes around a field and its value that are in no bucket, at least: two lengths, two zeros.
const FIELD_WORDS_BYTES: u64 = 4;

/// Unit of what is learned of steps: finer than a step for the largest table.
const STEPS_FOR_BYTES: u64 = 1 << 16;

/// What any table needs, less its one step.
const MANY_MAX: u64 = STEPS_FOR_BYTES / TABLE_FIELD_BYTES_MIN
    + STEPS_FOR_BYTES / BUCKET_BYTES / EMPTY_BUCKETS_PER_STEP;

/// Of what was too many, one of so many is left out the next time.
const FORGETS: u64 = 8;

/// Bytes of a listpack that a field and its value take at least.
const LISTPACK_FIELD_BYTES_MIN: u64 = 4;

/// The same of a hash table: two pointers and the smallest allocations.
const TABLE_FIELD_BYTES_MIN: u64 = 2 * 8 + 16;

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
    /// A hash table of which not all fields were looked at.
    Unmeasured,
    /// Memory of a string, with its key: where its length was not asked for.
    StringMemory(u64),
    /// There is no such key.
    Absent,
    /// No value of the kind: it cannot be filled.
    None,
}

/// What reading a value takes at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Bytes of the answer.
    pub(crate) bytes: usize,
    /// Memory of a hash table; 0: it is none.
    pub(crate) table_memory: usize,
    /// Look-ups in it at most.
    pub(crate) steps_max: usize,
}

/// How often a hash table is looked into, so that it is not being rehashed any more: learned from what
/// the tables that were read have needed ([`Steps::needed`]).
#[derive(Debug)]
pub(crate) struct Steps {
    /// For so many bytes of memory: `STEPS_FOR_BYTES`.
    many: u64,
}

impl Default for Steps {
    /// Enough for any.
    fn default() -> Self {
        Self { many: MANY_MAX }
    }
}

impl Steps {
    /// So many for a table.
    pub(crate) fn of(&self, reading: &Reading) -> usize {
        let steps = (reading.table_memory as u64 * self.many).div_ceil(STEPS_FOR_BYTES);
        usize::try_from(steps).map_or(reading.steps_max, |steps| steps.min(reading.steps_max))
    }

    /// Steps behind which nothing is left to be moved of a table with so many fields, of so many bytes with
    /// their values. It has no more buckets than find room beside them.
    pub(crate) fn needed(fields: u64, content_bytes: u64, memory: u64) -> u64 {
        let content_bytes = content_bytes + fields * FIELD_WORDS_BYTES;
        let buckets = memory.saturating_sub(content_bytes);
        steps(fields, buckets)
    }

    /// A table needed so many. What one lacked the next has; what is too many is forgotten slowly.
    pub(crate) fn learn(&mut self, needed: u64, memory: u64) {
        let many = (needed * STEPS_FOR_BYTES).div_ceil(memory.max(1));
        let many = many.min(MANY_MAX);
        self.many = many.max(self.many - self.many.saturating_sub(many).div_ceil(FORGETS));
    }
}

impl Size {
    /// Of a table by one of its fields: whether it is to be measured.
    pub(crate) fn of_unmeasured(fields: Option<u64>, memory: u64) -> Self {
        let few = fields.is_none_or(|fields| fields <= abi::HASH_FIELDS_MAX.into());
        if few && memory <= UNMEASURED_MEMORY_MAX {
            Self::Unmeasured
        } else {
            Self::None
        }
    }

    /// What reading it takes at most; none: it is too large.
    pub(crate) fn reading(self) -> Option<Reading> {
        let mut table = (0, 0);
        let bytes = match self {
            Self::Absent => 0,
            Self::String(bytes) if bytes <= abi::VALUE_BYTES_MAX.into() => bytes,
            Self::Hash {
                encoding: Encoding::Listpack,
                fields,
                memory,
            } => listpack_bytes(fields, memory)?,
            Self::Hash {
                encoding: Encoding::Table,
                fields,
                memory,
            } => {
                let (bytes, steps_max) = table_bytes(fields, memory)?;
                table = (memory, steps_max);
                bytes
            }
            Self::StringMemory(memory) if memory <= STRING_MEMORY_MAX => memory,
            _ => return None,
        };
        let number = |number: u64| usize::try_from(number).ok();
        Some(Reading {
            bytes: number(bytes)?,
            table_memory: number(table.0)?,
            steps_max: number(table.1)?,
        })
    }
}

/// Whether so many fields, if they were counted, and so much memory are few enough.
fn is_small(fields: Option<u64>, memory: u64, most: u64, quiet_most: u64) -> bool {
    fields.map_or(memory <= quiet_most, |fields| {
        fields <= abi::HASH_FIELDS_MAX.into() && memory <= most
    })
}

fn listpack_bytes(fields: Option<u64>, memory: u64) -> Option<u64> {
    if !is_small(fields, memory, HASH_MEMORY_MAX, QUIET_LISTPACK_MEMORY_MAX) {
        return None;
    }
    let fields = fields.unwrap_or(memory / LISTPACK_FIELD_BYTES_MIN);
    // Numbers grow at most twofold.
    Some(2 * memory + fields * 2 * BULK_WORDS_BYTES)
}

/// Bytes, and steps at most.
fn table_bytes(fields: Option<u64>, memory: u64) -> Option<(u64, u64)> {
    if !is_small(fields, memory, TABLE_MEMORY_MAX, QUIET_TABLE_MEMORY_MAX) {
        return None;
    }
    let fields = fields.unwrap_or(memory / TABLE_FIELD_BYTES_MIN);
    let steps = steps(fields, memory);
    Some((
        memory + fields * 2 * BULK_WORDS_BYTES + steps * STEP_BYTES,
        steps,
    ))
}

/// Steps behind which nothing is left to be moved, in so many bytes of buckets at most. Redis moves a bucket with
/// each step, or passes ten empty ones (`dictRehash`, src/dict.c); Valkey moves one.
fn steps(fields: u64, buckets_bytes: u64) -> u64 {
    let of_redis = fields + buckets_bytes / BUCKET_BYTES / EMPTY_BUCKETS_PER_STEP;
    of_redis.max(buckets_bytes / VALKEY_BUCKET_BYTES) + 1
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
            hash.reading().map(|reading| reading.bytes)
        };
        let bytes = |size: Size| size.reading().map(|reading| reading.bytes);
        let hash = |fields, memory| size(Encoding::Listpack, Some(fields), memory);
        let table = |fields, memory| size(Encoding::Table, Some(fields), memory);
        assert_eq!(bytes(Size::String(0)), Some(0));
        assert_eq!(bytes(Size::Absent), Some(0));
        assert_eq!(bytes(Size::String(abi::VALUE_BYTES_MAX.into())), Some(1451));
        assert_eq!(
            bytes(Size::String(u64::from(abi::VALUE_BYTES_MAX) + 1)),
            None
        );
        assert!(hash(64, HASH_MEMORY_MAX).is_some());
        assert_eq!(hash(65, 100), None);
        assert_eq!(hash(1, HASH_MEMORY_MAX + 1), None);
        assert_eq!(hash(u64::MAX, u64::MAX), None);
        assert_eq!(bytes(Size::None), None);
        assert_eq!(bytes(Size::StringMemory(4096)), Some(4096));
        assert_eq!(bytes(Size::StringMemory(4097)), None);
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

    #[test]
    fn a_table_of_few_fields_is_measured_unless_it_has_many_buckets() {
        let of = Size::of_unmeasured;
        assert_eq!(of(Some(64), 2_000), Size::Unmeasured);
        assert_eq!(of(None, UNMEASURED_MEMORY_MAX), Size::Unmeasured);
        assert_eq!(of(None, UNMEASURED_MEMORY_MAX + 1), Size::None);
        assert_eq!(of(Some(65), 2_000), Size::None);
        assert_eq!(Size::Unmeasured.reading(), None);
    }

    #[test]
    fn a_table_is_looked_into_as_often_as_tables_needed_it() {
        let mut steps = Steps::default();
        let reading = |fields, memory| {
            let encoding = Encoding::Table;
            let hash = Size::Hash {
                encoding,
                fields,
                memory,
            };
            hash.reading().unwrap()
        };
        // YCSB's: ten fields of 106 bytes, 16 buckets or fewer, and as many again.
        let ten = reading(None, 1_736);
        assert_eq!(steps.of(&ten), 76);
        assert_eq!(steps.of(&reading(Some(10), 1_736)), 32);
        let needed = Steps::needed(10, 1_060, 1_736);
        assert_eq!(needed, 18);
        for _ in 0..64 {
            steps.learn(needed, 1_736);
            assert!(steps.of(&ten) >= 18);
        }
        assert!(steps.of(&ten) <= 19);
        // Many small fields: lacking once.
        let many = reading(None, 2_600);
        let needed = Steps::needed(40, 400, 2_600);
        assert!((steps.of(&many) as u64) < needed);
        steps.learn(needed, 2_600);
        assert!((steps.of(&many) as u64) >= needed);
        assert_eq!(steps.of(&Reading::default()), 0);
        steps.learn(u64::MAX >> 16, 1);
        assert_eq!(steps.of(&many), many.steps_max);
    }

    #[test]
    fn steps_suffice_for_redis_and_valkey() {
        assert_eq!(Steps::needed(10, 0, 1_736), 10 + 21 + 1);
        assert_eq!(Steps::needed(1, 2, 8_198), 8_192 / 64 + 1);
    }
}
