// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads of values: from a version to the record that has its content.
//!
//! Invariants:
//! 1. From the moment at which a version was looked up until its read ends nothing else is written where it lies.
//!    So a read is begun in the same turn in which its version was looked up.
//! 2. Bytes are believed if the record's checksums are right for its place, its key is the key, and, of a version
//!    that was written as such, its version is the version.
//! 3. What is not right is read once more. Then that version alone is damaged, and that is counted.

use crate::history::Held;
use crate::key::Key;
use crate::layout::ALIGN_BYTES;
use crate::mistake::Rules;
use crate::place::{Origin, SECTOR_BYTES};
use crate::record::{Record, Seat, decode_record};
use crate::shard::Shard;
use crate::version::Version;

/// A read of a value under way. It has to be [ended](Shard::end_read).
#[derive(Debug, PartialEq, Eq)]
pub struct Reading {
    /// Byte of the store: a multiple of 4,096.
    pub address: u64,
    /// A multiple of 4,096.
    pub bytes: usize,
    segment: u32,
    /// Where the record lies.
    seat: Seat,
    /// Of a version that was written as such.
    version: Option<Version>,
    is_repeated: bool,
}

/// What came of a read.
#[derive(Debug)]
pub enum Came<'a> {
    /// The record.
    Record(Record<'a>),
    /// It has to be read once more.
    Again(Reading),
    /// This version is damaged.
    Damaged,
}

impl<R: Rules + Copy> Shard<R> {
    /// Begins to read what a version has. None: there is nothing to be read, the key was never written.
    ///
    /// # Panics
    /// The version does not come from this shard, or not in this turn.
    pub fn begin_read(&mut self, held: &Held) -> Option<Reading> {
        let address = held.place.address()?;
        let number = self.layout.segment_of(address);
        let segment = number.and_then(|it| self.collector.segments.get_mut(&it));
        let segment = segment.expect("what the index names lies in the log");
        segment.readers += 1;
        let first = address / SECTOR_BYTES * SECTOR_BYTES;
        let end = (first + held.place.sectors() * SECTOR_BYTES).next_multiple_of(ALIGN_BYTES);
        let from = address / ALIGN_BYTES * ALIGN_BYTES;
        Some(Reading {
            address: from,
            bytes: (end - from) as usize,
            segment: segment.segment.number,
            seat: Seat {
                address,
                uses: segment.segment.seat.uses,
            },
            version: (held.place.origin() == Origin::Written).then_some(held.version),
            is_repeated: false,
        })
    }

    /// A read has ended with these bytes; none: it failed.
    pub fn end_read<'a>(
        &mut self,
        reading: Reading,
        key: Key<'_>,
        bytes: Option<&'a [u8]>,
    ) -> Came<'a> {
        let at = (reading.seat.address - reading.address) as usize;
        let found = bytes.and_then(|bytes| decode_record(bytes.get(at..)?, reading.seat).ok());
        let is_it = |record: &Record<'_>| {
            let is_version = reading.version.is_none_or(|it| it == record.head.version);
            record.head.kind.has_place() && record.key == key && is_version
        };
        let came = match found.filter(is_it) {
            Some(record) => Came::Record(record),
            None if !reading.is_repeated => {
                return Came::Again(Reading {
                    is_repeated: true,
                    ..reading
                });
            }
            None => {
                self.collector.damaged += 1;
                Came::Damaged
            }
        };
        if let Some(segment) = self.collector.segments.get_mut(&reading.segment) {
            segment.readers -= 1;
        }
        self.leave_unread();
        came
    }
}
