// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records, of which batches are made. All numbers are little endian.
//!
//! ```text
//!  0 u8  type: 1 put, 2 delete, 3 restore, 4 trim, 5 done, 6 control, 7 moved put, 8 moved delete
//!  1 u8  flags: 1 part of a batch over shards
//!  2 u16 bytes of the key
//!  4 u32 bytes of the value
//!  8 u64 version
//! 16 u64 source: of a restore the version that it takes, of a trim its key's epoch, of what was moved the address
//!        from which, else the version
//! 24 u32 namespace
//! 28 u32 writer
//! 32 u64 expiry, ms since 1970; 0: none
//! 40 u32 CRC of the value
//! 44 u32 CRC of bytes 0 to 44 and the key
//! 48 key, value, zeros up to a multiple of 8
//! ```
//!
//! Invariants:
//! 1. CRCs of heads are seeded with the address at which they lie and with how often their segment was used
//!    before. So what was written elsewhere, or earlier, is damage.
//! 2. Decoding believes nothing: no bytes make it panic, read beyond them, or allocate.
//! 3. What is encoded decodes to the same, and encodes to the same bytes again.

use thiserror::Error;

use crate::bytes::{put_at, u16_at, u32_at, u64_at};
use crate::key::{KEY_BYTES_MAX, Key};
use crate::version::Version;

/// Bytes of a record's head.
pub const RECORD_HEAD_BYTES: usize = 48;
/// Longest value.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a number in a trim's value.
const TRIMMED_BYTES: usize = 8;

/// Where a head lies: what its CRC is seeded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Byte of the store.
    pub address: u64,
    /// How often its segment was used before.
    pub uses: u32,
}

impl Seat {
    pub(crate) fn seed(self) -> u32 {
        let seed = crc32c::crc32c(&self.address.to_le_bytes());
        crc32c::crc32c_append(seed, &self.uses.to_le_bytes())
    }

    /// So many bytes on, in the same segment.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Self {
            address: self.address + bytes as u64,
            ..self
        }
    }
}

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    /// Fewer bytes than their head says, or than a head has.
    #[error("cut off")]
    Short,
    /// No batch begins here.
    #[error("no batch begins here")]
    Magic,
    /// The head's CRC is wrong, or it belongs elsewhere.
    #[error("the head's checksum is wrong, or it was written for another place")]
    Head,
    /// The CRC of a value or of a batch's records is wrong.
    #[error("the content's checksum is wrong")]
    Content,
    /// The checksum is right, and a field is not: it was written by something else.
    #[error("a field has a value that this version does not write")]
    Field,
}

/// Types of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A value.
    Put = 1,
    /// A delete marker.
    Delete = 2,
    /// A version whose content is an older one's.
    Restore = 3,
    /// Versions that are not kept any more.
    Trim = 4,
    /// The batch over shards with this version is committed, and its parts are in the index.
    Done = 5,
    /// An [entry](crate::entry) of the control log.
    Control = 6,
    /// A put that was copied here: what had its content there has it here.
    MovedPut = 7,
    /// The same of a delete.
    MovedDelete = 8,
}

/// Flag of a part: it counts if the batch with its version is committed.
const PART: u8 = 1;

impl Kind {
    /// A version can have its content there.
    #[must_use]
    pub fn has_place(self) -> bool {
        matches!(
            self,
            Self::Put | Self::Delete | Self::MovedPut | Self::MovedDelete
        )
    }

    /// There is a value.
    #[must_use]
    pub fn has_value(self) -> bool {
        matches!(self, Self::Put | Self::MovedPut)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        let kinds = [
            Self::Put,
            Self::Delete,
            Self::Restore,
            Self::Trim,
            Self::Done,
            Self::Control,
            Self::MovedPut,
            Self::MovedDelete,
        ];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A record's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// What it is.
    pub kind: Kind,
    /// It is a part of a batch over shards.
    pub is_part: bool,
    /// Bytes of the key.
    pub key_bytes: u16,
    /// Bytes of the value.
    pub value_bytes: u32,
    /// Of a trim: when it was decided. Of a part and of done: the batch's.
    pub version: Version,
    /// Of a restore the version that it takes, of a trim the key's epoch, of what was moved the address from which;
    /// else the version itself.
    pub source: Version,
    /// The key's.
    pub namespace: u16,
    /// Who wrote it.
    pub writer: u32,
    /// Milliseconds since 1970; 0: none.
    pub expiry_ms: u64,
    /// Of the value.
    pub value_crc: u32,
}

/// A record with all its bytes, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its head.
    pub head: RecordHead,
    /// Its key.
    pub key: Key<'a>,
    /// A put's value, a trim's versions, or an entry.
    pub value: &'a [u8],
}

/// What is written of a change, but for what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// What it is.
    pub kind: Kind,
    /// See [`RecordHead::is_part`].
    pub is_part: bool,
    /// Its number.
    pub version: Version,
    /// See [`RecordHead::source`].
    pub source: Version,
    /// Who wrote it.
    pub writer: u32,
    /// Milliseconds since 1970; 0: none.
    pub expiry_ms: u64,
    /// Its key.
    pub key: Key<'a>,
    /// A put's value, a trim's versions, or an entry.
    pub value: &'a [u8],
}

/// Bytes of a record with its padding.
#[must_use]
pub fn record_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    (RECORD_HEAD_BYTES + key_bytes + value_bytes).next_multiple_of(8)
}

/// Appends a record, with padding, that will lie at `seat`.
///
/// # Panics
/// Key or value are longer than they may be: who took them has checked that.
pub fn encode_record(change: &Change<'_>, seat: Seat, out: &mut Vec<u8>) {
    let (key, value) = (change.key, change.value);
    assert!(key.bytes.len() <= KEY_BYTES_MAX && value.len() <= VALUE_BYTES_MAX);
    let mut head = encode_fields(change);
    put_at(&mut head, 40, &crc32c::crc32c(value).to_le_bytes());
    let crc = head_crc(&head, key.bytes, seat);
    put_at(&mut head, 44, &crc.to_le_bytes());
    let end = out.len() + record_bytes(key.bytes.len(), value.len());
    out.extend_from_slice(&head);
    out.extend_from_slice(key.bytes);
    out.extend_from_slice(value);
    out.resize(end, 0);
}

/// A head without its checksums: bytes 0 to 40.
pub(crate) fn encode_fields(change: &Change<'_>) -> [u8; RECORD_HEAD_BYTES] {
    let (key, value) = (change.key, change.value);
    let mut head = [0; RECORD_HEAD_BYTES];
    head[0] = change.kind as u8;
    head[1] = if change.is_part { PART } else { 0 };
    put_at(&mut head, 2, &(key.bytes.len() as u16).to_le_bytes());
    put_at(&mut head, 4, &(value.len() as u32).to_le_bytes());
    put_at(&mut head, 8, &change.version.number().to_le_bytes());
    put_at(&mut head, 16, &change.source.number().to_le_bytes());
    put_at(&mut head, 24, &u32::from(key.namespace).to_le_bytes());
    put_at(&mut head, 28, &change.writer.to_le_bytes());
    put_at(&mut head, 32, &change.expiry_ms.to_le_bytes());
    head
}

fn head_crc(head: &[u8], key: &[u8], seat: Seat) -> u32 {
    let crc = crc32c::crc32c_append(seat.seed(), &head[..44]);
    crc32c::crc32c_append(crc, key)
}

/// Reads the head of a record, and the key behind it. The value may be cut off.
///
/// # Errors
/// It is damaged, or was written for another place.
pub fn decode_head(bytes: &[u8], seat: Seat) -> Result<(RecordHead, Key<'_>), Damage> {
    let head = bytes.get(..RECORD_HEAD_BYTES).ok_or(Damage::Short)?;
    let key_bytes = u16_at(head, 2);
    let key = bytes[RECORD_HEAD_BYTES..].get(..usize::from(key_bytes));
    let key = key.ok_or(Damage::Short)?;
    if head_crc(head, key, seat) != u32_at(head, 44) {
        return Err(Damage::Head);
    }
    let decoded = decode_fields(head)?;
    let key = Key {
        namespace: decoded.namespace,
        bytes: key,
    };
    Ok((decoded, key))
}

/// A head whose checksum was right: what its fields say.
pub(crate) fn decode_fields(head: &[u8]) -> Result<RecordHead, Damage> {
    let decoded = RecordHead {
        kind: Kind::from_byte(head[0]).ok_or(Damage::Field)?,
        is_part: head[1] == PART,
        key_bytes: u16_at(head, 2),
        value_bytes: u32_at(head, 4),
        version: Version::new(u64_at(head, 8)),
        source: Version::new(u64_at(head, 16)),
        namespace: u16::try_from(u32_at(head, 24)).map_err(|_| Damage::Field)?,
        writer: u32_at(head, 28),
        expiry_ms: u64_at(head, 32),
        value_crc: u32_at(head, 40),
    };
    let is_key = usize::from(decoded.key_bytes) <= KEY_BYTES_MAX;
    if head[1] > PART || !is_key || !decoded.is_sane() {
        return Err(Damage::Field);
    }
    Ok(decoded)
}

impl RecordHead {
    /// Bytes of the record with its padding.
    #[must_use]
    pub fn bytes(&self) -> usize {
        record_bytes(usize::from(self.key_bytes), self.value_bytes as usize)
    }

    fn is_sane(&self) -> bool {
        let value_bytes = self.value_bytes as usize;
        let may_be_part = matches!(self.kind, Kind::Put | Kind::Delete | Kind::Restore);
        value_bytes <= VALUE_BYTES_MAX
            && (may_be_part || !self.is_part)
            && match self.kind {
                Kind::Put => self.source == self.version,
                Kind::Delete => self.source == self.version && value_bytes == 0,
                Kind::Restore => self.source < self.version && value_bytes == 0,
                Kind::Trim => value_bytes % TRIMMED_BYTES == 0,
                Kind::Done => value_bytes == 0 && self.key_bytes == 0,
                Kind::Control => self.key_bytes == 0,
                Kind::MovedPut => true,
                Kind::MovedDelete => value_bytes == 0,
            }
    }
}

/// Reads a whole record.
///
/// # Errors
/// It is damaged, or was written for another place.
pub fn decode_record(bytes: &[u8], seat: Seat) -> Result<Record<'_>, Damage> {
    let (head, key) = decode_head(bytes, seat)?;
    let value = bytes[RECORD_HEAD_BYTES + key.bytes.len()..].get(..head.value_bytes as usize);
    let value = value.ok_or(Damage::Short)?;
    if crc32c::crc32c(value) != head.value_crc {
        return Err(Damage::Content);
    }
    Ok(Record { head, key, value })
}

/// A trim's value: versions that are not kept, rising.
#[must_use]
pub fn encode_trimmed(versions: &[Version]) -> Vec<u8> {
    let numbers = versions.iter().map(|version| version.number());
    numbers.flat_map(u64::to_le_bytes).collect()
}

/// The versions in a trim's value.
pub fn decode_trimmed(value: &[u8]) -> impl Iterator<Item = Version> + '_ {
    let numbers = value.chunks_exact(TRIMMED_BYTES);
    numbers.map(|bytes| Version::new(u64_at(bytes, 0)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEAT: Seat = Seat {
        address: 64 << 20,
        uses: 3,
    };

    #[derive(Clone, Debug)]
    struct Owned {
        kind: Kind,
        is_part: bool,
        version: u64,
        writer: u32,
        expiry_ms: u64,
        namespace: u16,
        key: Vec<u8>,
        value: Vec<u8>,
    }

    impl Owned {
        fn change(&self) -> Change<'_> {
            let source = match self.kind {
                Kind::Restore | Kind::Trim | Kind::MovedPut | Kind::MovedDelete => self.version - 1,
                _ => self.version,
            };
            let value = match self.kind {
                Kind::Put | Kind::MovedPut | Kind::Control => &self.value[..],
                Kind::Trim => &self.value[..self.value.len() / 8 * 8],
                Kind::Delete | Kind::MovedDelete | Kind::Restore | Kind::Done => &[],
            };
            let has_key = !matches!(self.kind, Kind::Done | Kind::Control);
            let may_be_part = matches!(self.kind, Kind::Put | Kind::Delete | Kind::Restore);
            Change {
                kind: self.kind,
                is_part: may_be_part && self.is_part,
                version: Version::new(self.version),
                source: Version::new(source),
                writer: self.writer,
                expiry_ms: self.expiry_ms,
                key: Key {
                    namespace: self.namespace,
                    bytes: if has_key { &self.key } else { &[] },
                },
                value,
            }
        }
    }

    prop_compose! {
        fn owned()(
            kind in prop::sample::select(vec![
                Kind::Put, Kind::Delete, Kind::Restore, Kind::Trim, Kind::Done, Kind::Control,
                Kind::MovedPut, Kind::MovedDelete,
            ]),
            is_part: bool,
            version in 1u64.., writer: u32, expiry_ms: u64, namespace: u16,
            key in prop::collection::vec(any::<u8>(), 0..60),
            value in prop::collection::vec(any::<u8>(), 0..200),
        ) -> Owned {
            Owned { kind, is_part, version, writer, expiry_ms, namespace, key, value }
        }
    }

    fn encoded(change: &Change<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        encode_record(change, SEAT, &mut out);
        out
    }

    proptest! {
        #[test]
        fn a_record_says_what_was_said(owned in owned()) {
            let change = owned.change();
            let bytes = encoded(&change);
            let record = decode_record(&bytes, SEAT).unwrap();
            prop_assert_eq!(record.head.bytes(), bytes.len());
            let again = Change {
                kind: record.head.kind,
                is_part: record.head.is_part,
                version: record.head.version,
                source: record.head.source,
                writer: record.head.writer,
                expiry_ms: record.head.expiry_ms,
                key: record.key,
                value: record.value,
            };
            prop_assert_eq!(again, change);
            prop_assert_eq!(encoded(&again), bytes);
        }

        #[test]
        fn a_turned_bit_is_damage(owned in owned(), at: prop::sample::Index, bit in 0..8) {
            let change = owned.change();
            let mut bytes = encoded(&change);
            // Padding is the batch's affair.
            let whole = RECORD_HEAD_BYTES + change.key.bytes.len() + change.value.len();
            bytes[at.index(whole)] ^= 1u8 << bit;
            prop_assert!(decode_record(&bytes, SEAT).is_err());
        }

        #[test]
        fn a_record_cut_off_is_damage(owned in owned(), at: prop::sample::Index) {
            let change = owned.change();
            let bytes = encoded(&change);
            let whole = RECORD_HEAD_BYTES + change.key.bytes.len() + change.value.len();
            let cut = &bytes[..at.index(whole)];
            let found = decode_record(cut, SEAT);
            prop_assert!(matches!(found, Err(Damage::Short | Damage::Head)), "{:?}", found);
        }

        #[test]
        fn a_record_elsewhere_is_damage(owned in owned(), address: u64, uses: u32) {
            let bytes = encoded(&owned.change());
            let seat = Seat { address, uses };
            prop_assume!(seat != SEAT);
            prop_assert_eq!(decode_head(&bytes, seat), Err(Damage::Head));
        }

        #[test]
        fn arbitrary_bytes_decode_to_nothing(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decode_record(&bytes, SEAT).is_err());
        }

        /// Who knows the seat can make every checksum right.
        #[test]
        fn hostile_heads_are_judged_field_by_field(
            mut bytes in prop::collection::vec(any::<u8>(), RECORD_HEAD_BYTES..300),
            kind in 0u8..10, flags in 0u8..3, key_bytes in 0u16..80, value_bytes in 0u32..80,
            namespace in 0u32..70_000, is_source: bool,
        ) {
            bytes[0] = kind;
            bytes[1] = flags;
            put_at(&mut bytes, 2, &key_bytes.to_le_bytes());
            put_at(&mut bytes, 4, &value_bytes.to_le_bytes());
            put_at(&mut bytes, 24, &namespace.to_le_bytes());
            if is_source {
                bytes.copy_within(8..16, 16);
            }
            if let Some(key) = bytes.get(RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + usize::from(key_bytes)) {
                let crc = head_crc(&bytes, key, SEAT);
                put_at(&mut bytes, 44, &crc.to_le_bytes());
            }
            match decode_record(&bytes, SEAT) {
                Ok(record) => {
                    prop_assert!(RECORD_HEAD_BYTES + record.key.bytes.len() + record.value.len() <= bytes.len());
                    prop_assert!(flags < 2 && (1..=8).contains(&kind) && namespace < 65_536);
                }
                Err(damage) => prop_assert_ne!(damage, Damage::Magic),
            }
        }

        #[test]
        fn a_trim_says_what_was_said(numbers: Vec<u64>) {
            let versions: Vec<Version> = numbers.into_iter().map(Version::new).collect();
            let again: Vec<Version> = decode_trimmed(&encode_trimmed(&versions)).collect();
            prop_assert_eq!(again, versions);
        }
    }

    #[test]
    fn the_longest_record_fits() {
        let owned = Owned {
            kind: Kind::Put,
            is_part: false,
            version: 1,
            writer: 0,
            expiry_ms: 0,
            namespace: 0,
            key: vec![7; KEY_BYTES_MAX],
            value: vec![8; VALUE_BYTES_MAX],
        };
        let bytes = encoded(&owned.change());
        assert_eq!(decode_record(&bytes, SEAT).unwrap().value, owned.value);
    }

    /// The format is a promise. These bytes were made by hand, their checksums by another program.
    #[test]
    fn a_record_has_the_bytes_that_it_had() {
        let owned = Owned {
            kind: Kind::Put,
            is_part: false,
            version: 0x0102_0304_0506_0708,
            writer: 0x1112_1314,
            expiry_ms: 0x2122_2324_2526_2728,
            namespace: 0x3132,
            key: b"key".to_vec(),
            value: b"123456789".to_vec(),
        };
        let bytes = encoded(&owned.change());
        let wanted = "01000300 09000000 0807060504030201 0807060504030201 32310000 14131211 \
            2827262524232221 839206e3 b129bda6 6b6579 313233343536373839 00000000";
        assert_eq!(hex(&bytes), wanted.replace([' ', '\n'], ""));
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
