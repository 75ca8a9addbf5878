// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the content of a version lies, and what kind of version it is, in eight bytes.
//!
//! ```text
//! bits 63:62  origin: 0 written, 1 restored, 2 rolled back
//! bit  61     deleted: there is no value
//! bit  60     gap: the version before it was trimmed
//! bit  59     expires: the put said when
//! bits 58:47  sectors of 512 bytes that the record touches
//! bit  46     uncertain
//! bits 45:0   address of the record in the store, in units of 8 bytes
//! ```
//!
//! Invariants:
//! 1. Versions have the same source if and only if they have the same place, flags of origin, gap and certainty apart. A
//!    put or delete is the only one of its place; restores and roll backs share it.
//! 2. What a roll back or a restore made is uncertain if it may rest on a version that is lost. That stays with it.
//! 3. Address 0 belongs to no record: the first superblock is there. It stands for a key that was never written.

/// Bytes of a sector, the smallest that a disk writes at once.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes of a segment.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// Records begin at multiples of it.
pub const RECORD_ALIGN_BYTES: u64 = 8;

const ORIGIN_SHIFT: u32 = 62;
const DELETED: u64 = 1 << 61;
const GAP: u64 = 1 << 60;
const SECTORS_SHIFT: u32 = 47;
const EXPIRES: u64 = 1 << 59;
const SECTORS_MASK: u64 = (1 << 12) - 1;
const ADDRESS_BITS: u32 = 46;
const UNCERTAIN: u64 = 1 << ADDRESS_BITS;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
/// Addresses lie below it: half a pebibyte.
pub const ADDRESS_END_BYTES: u64 = RECORD_ALIGN_BYTES << ADDRESS_BITS;

/// Sectors that so many bytes from an address on touch.
pub(crate) fn sectors(address: u64, bytes: u64) -> u64 {
    (address + bytes).div_ceil(SECTOR_BYTES) - address / SECTOR_BYTES
}

/// Who made a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A put or a delete.
    Written,
    /// A restore of this key alone. It counts as a write.
    Restored,
    /// A roll back of a scope. It does not.
    RolledBack,
}

/// Where the content of a version lies, and what kind of version it is.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Place(u64);

impl Place {
    /// Of a roll back to before the key's first write.
    pub const NOTHING: Self = Self((2 << ORIGIN_SHIFT) | DELETED);

    /// Of a put or delete: its record lies at this address and has so many bytes.
    ///
    /// # Panics
    /// The address is 0, no multiple of 8, or above [`ADDRESS_END_BYTES`]; the record has 2 MiB or more.
    #[must_use]
    pub fn written(address: u64, bytes: u64, is_delete: bool) -> Self {
        assert!(address > 0 && address < ADDRESS_END_BYTES && address % RECORD_ALIGN_BYTES == 0);
        let sectors = sectors(address, bytes);
        assert!(sectors <= SECTORS_MASK, "a record has less than 2 MiB");
        let deleted = if is_delete { DELETED } else { 0 };
        Self(deleted | (sectors << SECTORS_SHIFT) | (address / RECORD_ALIGN_BYTES))
    }

    /// The same content, made a version again. What was before it is there.
    #[must_use]
    pub fn again(self, origin: Origin) -> Self {
        let number = match origin {
            Origin::Written => 0,
            Origin::Restored => 1,
            Origin::RolledBack => 2,
        };
        Self((self.0 & !(3 << ORIGIN_SHIFT) & !GAP & !UNCERTAIN) | (number << ORIGIN_SHIFT))
    }

    /// The same, of which it may not be known whether it should have had another content.
    #[must_use]
    pub(crate) fn uncertain_if(self, is_uncertain: bool) -> Self {
        Self(if is_uncertain {
            self.0 | UNCERTAIN
        } else {
            self.0 & !UNCERTAIN
        })
    }

    /// It may rest on a version that is lost: what was here once may have been another content.
    #[must_use]
    pub fn is_uncertain(self) -> bool {
        self.0 & UNCERTAIN != 0
    }

    /// Of a put that said when its value expires, or that it does not.
    #[must_use]
    pub fn with_expiry(self, expires: bool) -> Self {
        Self(if expires {
            self.0 | EXPIRES
        } else {
            self.0 & !EXPIRES
        })
    }

    /// The content's put said when it expires.
    #[must_use]
    pub fn expires(self) -> bool {
        self.0 & EXPIRES != 0
    }

    /// The place itself, as its put or delete has it.
    #[must_use]
    pub fn as_written(self) -> Self {
        self.again(Origin::Written)
    }

    /// The same version, whose content has been copied there.
    #[must_use]
    pub(crate) fn moved_to(self, to: Self) -> Self {
        const WHERE: u64 = (SECTORS_MASK << SECTORS_SHIFT) | ADDRESS_MASK;
        Self((self.0 & !WHERE) | (to.0 & WHERE))
    }

    /// The same, with a gap before it or without.
    #[must_use]
    pub fn with_gap(self, has_gap: bool) -> Self {
        Self(if has_gap { self.0 | GAP } else { self.0 & !GAP })
    }

    /// Who made the version.
    #[must_use]
    pub fn origin(self) -> Origin {
        match self.0 >> ORIGIN_SHIFT {
            0 => Origin::Written,
            1 => Origin::Restored,
            _ => Origin::RolledBack,
        }
    }

    /// There is no value: never written, or the content is a delete's.
    #[must_use]
    pub fn is_deleted(self) -> bool {
        self.0 & DELETED != 0
    }

    /// The version before it was trimmed.
    #[must_use]
    pub fn has_gap(self) -> bool {
        self.0 & GAP != 0
    }

    /// Whether both have the same source.
    #[must_use]
    pub fn has_source_of(self, other: Self) -> bool {
        self.as_written() == other.as_written()
    }

    /// Byte of the store at which the record begins; none: the key was never written.
    #[must_use]
    pub fn address(self) -> Option<u64> {
        let address = (self.0 & ADDRESS_MASK) * RECORD_ALIGN_BYTES;
        (address > 0).then_some(address)
    }

    /// Sectors that the record touches, from the one with its first byte on.
    #[must_use]
    pub fn sectors(self) -> u64 {
        (self.0 >> SECTORS_SHIFT) & SECTORS_MASK
    }

    /// As it stands in a checkpoint.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From a checkpoint; none if no place has these bits.
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<Self> {
        let place = Self(bits);
        let has_record = place.address().is_some() && place.sectors() > 0;
        let is_nothing = place.with_gap(false).has_source_of(Self::NOTHING);
        (bits >> ORIGIN_SHIFT != 3 && (has_record || is_nothing)).then_some(place)
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let deleted = if self.is_deleted() { " deleted" } else { "" };
        let gap = if self.has_gap() { " gap" } else { "" };
        let unsure = if self.is_uncertain() {
            " uncertain"
        } else {
            ""
        };
        let (origin, address) = (self.origin(), self.address().unwrap_or(0));
        write!(
            formatter,
            "{origin:?}{unsure}{deleted}{gap} @{address:#x}+{}",
            self.sectors()
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_place_says_what_was_said(
            address in 1..ADDRESS_END_BYTES / 8, bytes in 48u64..1_050_000, deleted: bool, gap: bool
        ) {
            let address = address * 8;
            prop_assume!(address + bytes < ADDRESS_END_BYTES);
            let place = Place::written(address, bytes, deleted).with_gap(gap);
            prop_assert_eq!(place.address(), Some(address));
            prop_assert_eq!(place.is_deleted(), deleted);
            prop_assert_eq!(place.has_gap(), gap);
            prop_assert_eq!(place.origin(), Origin::Written);
            let from = address / SECTOR_BYTES * SECTOR_BYTES;
            let end = from + place.sectors() * SECTOR_BYTES;
            prop_assert!(end >= address + bytes && end < address + bytes + SECTOR_BYTES);
            prop_assert_eq!(Place::from_bits(place.to_bits()), Some(place));
            for origin in [Origin::Restored, Origin::RolledBack] {
                let again = place.again(origin);
                prop_assert_eq!(again.origin(), origin);
                prop_assert!(!again.has_gap() && again.has_source_of(place));
                prop_assert_eq!(Place::from_bits(again.to_bits()), Some(again));
                let uncertain = again.uncertain_if(true);
                prop_assert!(uncertain.is_uncertain() && !again.is_uncertain());
                prop_assert!(uncertain.origin() == origin && uncertain.has_source_of(place));
                prop_assert_eq!(uncertain.address(), place.address());
                prop_assert_eq!(Place::from_bits(uncertain.to_bits()), Some(uncertain));
                prop_assert!(!uncertain.again(origin).is_uncertain());
            }
            let other = Place::written(address ^ 8 | 16, bytes, deleted);
            prop_assert!(address == (address ^ 8 | 16) || !other.has_source_of(place));
            prop_assert!(!Place::NOTHING.has_source_of(place));
        }

        #[test]
        fn any_bits_are_a_place_or_none(bits: u64) {
            if let Some(place) = Place::from_bits(bits) {
                prop_assert_eq!(place.to_bits(), bits);
                prop_assert!(place.address().is_some() || place.is_deleted());
            }
        }
    }

    #[test]
    fn what_was_never_written_has_no_address() {
        assert_eq!(Place::NOTHING.address(), None);
        assert!(Place::NOTHING.is_deleted());
        assert_eq!(
            Place::from_bits(Place::NOTHING.to_bits()),
            Some(Place::NOTHING)
        );
        assert_eq!(Place::from_bits(0), None);
        let uncertain = Place::NOTHING.uncertain_if(true);
        assert!(uncertain.is_uncertain() && uncertain.has_source_of(Place::NOTHING));
        assert_eq!(Place::from_bits(uncertain.to_bits()), Some(uncertain));
        assert_eq!(Place::from_bits(UNCERTAIN), None);
        assert_eq!(Place::from_bits(u64::MAX), None);
    }
}
