// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a shard's log is made of: batches of [records](crate::record). All numbers are little endian.
//!
//! ```text
//!  0 u32 magic "ERB1"
//!  4 u16 shard
//!  6 u16 records
//!  8 u32 bytes, with head and padding
//! 12 u32 CRC in the head of the batch before
//! 16 u64 id of the store
//! 24 u64 log sequence number
//! 32 u32 incarnation of the node
//! 36 u32 CRC of bytes 64 to the end
//! 40 u64 first version
//! 48 u64 retention clock, us
//! 56 u32 batches before it that were not known to be durable when it was written
//! 60 u32 CRC of bytes 0 to 60
//! 64 records, zeros up to a multiple of 4,096
//! ```
//!
//! Invariants: those of [`record`](crate::record), and
//! 1. A batch whose CRCs are right has as many records as its head says, each whole.
//! 2. What a head says to have been durable was: whoever finds that damaged has found rot, not a torn write.

use crate::bytes::{put_at, u16_at, u32_at, u64_at};
use crate::log::IN_FLIGHT_MAX;
use crate::record::record_bytes;
use crate::record::{Change, Damage, Record, Seat, VALUE_BYTES_MAX, decode_record, encode_record};
use crate::version::Version;

/// Bytes of a batch's head.
pub const BATCH_HEAD_BYTES: usize = 64;
/// Batches begin and end at multiples of it.
pub const BATCH_ALIGN_BYTES: usize = 4096;
/// Longest batch: the longest record, both heads and the padding fit.
pub const BATCH_BYTES_MAX: usize = VALUE_BYTES_MAX + 2 * BATCH_ALIGN_BYTES;

const MAGIC: u32 = u32::from_le_bytes(*b"ERB1");

/// A batch's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// Whose log it is in.
    pub shard: u16,
    /// How many records follow.
    pub records: u16,
    /// All bytes of it: a multiple of [`BATCH_ALIGN_BYTES`].
    pub bytes: u32,
    /// CRC in the head of the batch before it in the log.
    pub crc_before: u32,
    /// The store's.
    pub store_id: u64,
    /// Its number in the log.
    pub lsn: u64,
    /// How often the node had started.
    pub incarnation: u32,
    /// Of what follows, padding included.
    pub content_crc: u32,
    /// All versions in it are at or above it.
    pub first_version: Version,
    /// Microseconds that the retention clock had run.
    pub retention_us: u64,
    /// Batches before it that were not known to be durable.
    pub under_way: u32,
}

impl BatchHead {
    /// Batches below it were durable when this one was written.
    #[must_use]
    pub fn durable_lsn(&self) -> u64 {
        self.lsn - u64::from(self.under_way)
    }

    /// Whether these bytes may be one, whatever the place.
    #[must_use]
    pub(crate) fn is_like(bytes: &[u8]) -> bool {
        bytes.len() >= BATCH_HEAD_BYTES && u32_at(bytes, 0) == MAGIC
    }

    /// Its bytes, for this seat.
    #[must_use]
    pub fn encode(&self, seat: Seat) -> [u8; BATCH_HEAD_BYTES] {
        let mut head = [0; BATCH_HEAD_BYTES];
        put_at(&mut head, 0, &MAGIC.to_le_bytes());
        put_at(&mut head, 4, &self.shard.to_le_bytes());
        put_at(&mut head, 6, &self.records.to_le_bytes());
        put_at(&mut head, 8, &self.bytes.to_le_bytes());
        put_at(&mut head, 12, &self.crc_before.to_le_bytes());
        put_at(&mut head, 16, &self.store_id.to_le_bytes());
        put_at(&mut head, 24, &self.lsn.to_le_bytes());
        put_at(&mut head, 32, &self.incarnation.to_le_bytes());
        put_at(&mut head, 36, &self.content_crc.to_le_bytes());
        put_at(&mut head, 40, &self.first_version.number().to_le_bytes());
        put_at(&mut head, 48, &self.retention_us.to_le_bytes());
        put_at(&mut head, 56, &self.under_way.to_le_bytes());
        let crc = crc32c::crc32c_append(seat.seed(), &head[..60]);
        put_at(&mut head, 60, &crc.to_le_bytes());
        head
    }

    /// Reads a head, and its own CRC, by which the next batch names it.
    ///
    /// # Errors
    /// It is damaged, or was written for another place.
    pub fn decode(bytes: &[u8], seat: Seat) -> Result<(Self, u32), Damage> {
        let head = bytes.get(..BATCH_HEAD_BYTES).ok_or(Damage::Short)?;
        if u32_at(head, 0) != MAGIC {
            return Err(Damage::Magic);
        }
        let crc = u32_at(head, 60);
        if crc32c::crc32c_append(seat.seed(), &head[..60]) != crc {
            return Err(Damage::Head);
        }
        let decoded = Self {
            shard: u16_at(head, 4),
            records: u16_at(head, 6),
            bytes: u32_at(head, 8),
            crc_before: u32_at(head, 12),
            store_id: u64_at(head, 16),
            lsn: u64_at(head, 24),
            incarnation: u32_at(head, 32),
            content_crc: u32_at(head, 36),
            first_version: Version::new(u64_at(head, 40)),
            retention_us: u64_at(head, 48),
            under_way: u32_at(head, 56),
        };
        let length = decoded.bytes as usize;
        let is_length = length > 0 && length <= BATCH_BYTES_MAX && length % BATCH_ALIGN_BYTES == 0;
        let under_way = u64::from(decoded.under_way);
        let is_possible = under_way < IN_FLIGHT_MAX as u64 && under_way <= decoded.lsn;
        if !is_length || !is_possible {
            return Err(Damage::Field);
        }
        Ok((decoded, crc))
    }
}

/// A batch in the making.
#[derive(Debug)]
pub struct BatchWriter {
    seat: Seat,
    bytes: Vec<u8>,
    records: u16,
    first_version: Version,
}

/// What a batch's head says beyond what is in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchContext {
    /// See [`BatchHead::shard`].
    pub shard: u16,
    /// See [`BatchHead::crc_before`].
    pub crc_before: u32,
    /// See [`BatchHead::store_id`].
    pub store_id: u64,
    /// See [`BatchHead::lsn`].
    pub lsn: u64,
    /// See [`BatchHead::incarnation`].
    pub incarnation: u32,
    /// See [`BatchHead::retention_us`].
    pub retention_us: u64,
    /// See [`BatchHead::under_way`].
    pub under_way: u32,
}

impl BatchWriter {
    /// One that will lie at `seat`.
    #[must_use]
    pub fn new(seat: Seat) -> Self {
        Self {
            seat,
            bytes: vec![0; BATCH_HEAD_BYTES],
            records: 0,
            first_version: Version::MAX,
        }
    }

    /// Whether a record of this size still fits. One alone always does.
    #[must_use]
    pub fn fits(&self, key_bytes: usize, value_bytes: usize) -> bool {
        !self.is_full()
            && self.bytes.len() + record_bytes(key_bytes, value_bytes) <= BATCH_BYTES_MAX
    }

    /// Adds a record, and tells its address.
    ///
    /// # Panics
    /// It does not fit.
    pub fn push(&mut self, change: &Change<'_>) -> u64 {
        assert!(self.fits(change.key.bytes.len(), change.value.len()));
        let seat = self.seat.plus(self.bytes.len());
        encode_record(change, seat, &mut self.bytes);
        self.records += 1;
        self.first_version = self.first_version.min(change.version);
        seat.address
    }

    /// Where it will lie.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.seat.address
    }

    /// Bytes so far, with the head, without the padding.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// There is no record in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// It has as many records as its head can say.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.records == u16::MAX
    }

    /// All bytes of the batch, and its head's CRC, by which the next one names it.
    #[must_use]
    pub fn finish(mut self, context: &BatchContext) -> (Vec<u8>, u32) {
        let length = self.bytes.len().next_multiple_of(BATCH_ALIGN_BYTES);
        self.bytes.resize(length, 0);
        let head = BatchHead {
            shard: context.shard,
            records: self.records,
            bytes: length as u32,
            crc_before: context.crc_before,
            store_id: context.store_id,
            lsn: context.lsn,
            incarnation: context.incarnation,
            content_crc: crc32c::crc32c(&self.bytes[BATCH_HEAD_BYTES..]),
            first_version: self.first_version,
            retention_us: context.retention_us,
            under_way: context.under_way,
        };
        let head = head.encode(self.seat);
        self.bytes[..BATCH_HEAD_BYTES].copy_from_slice(&head);
        (self.bytes, u32_at(&head, 60))
    }
}

/// A batch that was read.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Its head.
    pub head: BatchHead,
    /// The head's own CRC.
    pub crc: u32,
    seat: Seat,
    content: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Reads one whose bytes, all of them, begin here.
    ///
    /// # Errors
    /// It is damaged, cut off, or was written for another place.
    pub fn decode(bytes: &'a [u8], seat: Seat) -> Result<Self, Damage> {
        let (head, crc) = BatchHead::decode(bytes, seat)?;
        let content = bytes.get(BATCH_HEAD_BYTES..head.bytes as usize);
        let content = content.ok_or(Damage::Short)?;
        if crc32c::crc32c(content) != head.content_crc {
            return Err(Damage::Content);
        }
        Ok(Self {
            head,
            crc,
            seat: seat.plus(BATCH_HEAD_BYTES),
            content,
        })
    }

    /// Its records with their addresses. Ends behind the first that is damaged.
    pub fn records(&self) -> impl Iterator<Item = Result<(u64, Record<'a>), Damage>> + use<'a> {
        let (mut rest, mut seat) = (self.content, self.seat);
        let mut left = self.head.records;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let found = decode_record(rest, seat);
            let bytes = found.map_or(rest.len(), |record| record.head.bytes());
            let item = found.map(|record| (seat.address, record));
            // Padding of the last record may be cut off only with the record.
            match rest.get(bytes..) {
                Some(behind) => rest = behind,
                None => left = 0,
            }
            if item.is_err() {
                left = 0;
            }
            seat = seat.plus(bytes);
            Some(item)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::{KEY_BYTES_MAX, Key};
    use crate::record::Kind;

    const SEAT: Seat = Seat {
        address: 64 << 20,
        uses: 3,
    };
    const CONTEXT: BatchContext = BatchContext {
        shard: 2,
        crc_before: 77,
        store_id: 0x0102_0304_0506_0708,
        lsn: 9,
        incarnation: 4,
        retention_us: 1_000_001,
        under_way: 3,
    };

    fn put<'a>(version: u64, key: &'a [u8], value: &'a [u8]) -> Change<'a> {
        Change {
            kind: Kind::Put,
            is_part: false,
            version: Version::new(version),
            source: Version::new(version),
            writer: 5,
            expiry_ms: 0,
            key: Key {
                namespace: 1,
                bytes: key,
            },
            value,
        }
    }

    fn batch(values: &[Vec<u8>]) -> (Vec<u8>, u32) {
        let mut writer = BatchWriter::new(SEAT);
        for (number, value) in (10..).zip(values) {
            writer.push(&put(number, b"key", value));
        }
        writer.finish(&CONTEXT)
    }

    prop_compose! {
        fn values()(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..40))
            -> Vec<Vec<u8>> {
            values
        }
    }

    proptest! {
        #[test]
        fn a_batch_says_what_was_said(values in values()) {
            let (bytes, crc) = batch(&values);
            prop_assert_eq!(bytes.len() % BATCH_ALIGN_BYTES, 0);
            let batch = Batch::decode(&bytes, SEAT).unwrap();
            prop_assert_eq!(batch.crc, crc);
            prop_assert_eq!(batch.head.first_version, Version::new(10));
            let found: Vec<Vec<u8>> = batch
                .records()
                .map(|found| {
                    let (address, record) = found.unwrap();
                    let at = (address - SEAT.address) as usize;
                    assert_eq!(decode_record(&bytes[at..], SEAT.plus(at)), Ok(record));
                    record.value.to_vec()
                })
                .collect();
            prop_assert_eq!(found, values);
            prop_assert_eq!(&batch.head.encode(SEAT)[..], &bytes[..BATCH_HEAD_BYTES]);
        }

        /// Also in the padding: a sector that was not written is seen.
        #[test]
        fn a_turned_bit_is_damage(values in values(), at: prop::sample::Index, bit in 0..8) {
            let (mut bytes, _) = batch(&values);
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            prop_assert!(Batch::decode(&bytes, SEAT).is_err());
        }

        #[test]
        fn a_torn_batch_is_damage(values in values(), sector: prop::sample::Index, old: u8) {
            let (mut bytes, _) = batch(&values);
            let sector = sector.index(bytes.len() / 512) * 512;
            let torn = &mut bytes[sector..sector + 512];
            prop_assume!(torn.iter().any(|byte| *byte != old));
            torn.fill(old);
            prop_assert!(Batch::decode(&bytes, SEAT).is_err());
        }

        #[test]
        fn arbitrary_bytes_are_no_batch(mut bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
            if magic && bytes.len() > 4 {
                put_at(&mut bytes, 0, &MAGIC.to_le_bytes());
            }
            prop_assert!(Batch::decode(&bytes, SEAT).is_err());
        }

        /// Who knows the seat can make every checksum right.
        #[test]
        fn hostile_batches_end_at_their_first_wrong_record(
            content in prop::collection::vec(any::<u8>(), 4032..=4032), records: u16, length in 0u32..9000,
        ) {
            let head = BatchHead {
                shard: 0,
                records,
                bytes: if length % 3 == 0 { 4096 } else { length },
                crc_before: 0,
                store_id: 0,
                lsn: 0,
                incarnation: 0,
                content_crc: crc32c::crc32c(&content),
                first_version: Version::ZERO,
                retention_us: 0,
                under_way: 0,
            };
            let bytes = [&head.encode(SEAT)[..], &content].concat();
            match Batch::decode(&bytes, SEAT) {
                Ok(batch) => {
                    let found: Vec<bool> = batch.records().map(|found| found.is_ok()).collect();
                    prop_assert_eq!(found.len(), usize::from(records.min(1)));
                    prop_assert!(!found.contains(&true));
                }
                Err(damage) => prop_assert!(length % 3 != 0 || damage != Damage::Field),
            }
        }
    }

    #[test]
    fn one_record_of_any_size_fits_and_no_more_than_that() {
        let (key, value) = (vec![1; KEY_BYTES_MAX], vec![2; VALUE_BYTES_MAX]);
        let mut writer = BatchWriter::new(SEAT);
        writer.push(&put(1, &key, &value));
        assert!(!writer.fits(KEY_BYTES_MAX, VALUE_BYTES_MAX));
        let (bytes, _) = writer.finish(&CONTEXT);
        assert!(bytes.len() <= BATCH_BYTES_MAX);
        assert_eq!(Batch::decode(&bytes, SEAT).unwrap().records().count(), 1);
    }

    #[test]
    fn a_batch_of_another_place_or_use_is_damage() {
        let (bytes, _) = batch(&[vec![1]]);
        assert_eq!(
            Batch::decode(&bytes, SEAT.plus(4096)).unwrap_err(),
            Damage::Head
        );
        let later = Seat { uses: 4, ..SEAT };
        assert_eq!(Batch::decode(&bytes, later).unwrap_err(), Damage::Head);
    }
}
