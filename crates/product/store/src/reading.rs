// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads of values: from a version to the record that has its content.
//!
//! Invariants:
//! 1. From the moment at which a version was looked up until its read ends nothing else is written where it lies.
//!    So a read is begun in the same turn in which its version was looked up.
//! 2. Bytes are believed if the record's checksums are right for its place, its key is the key, and, of a version
//!    that was written as such, its version is the version.
//! 3. What is not right is read once more. Then that version alone is damaged, and that is counted.
//! 4. A value that is cached is the one of its place, so it is given without a read; also if the disk has lost it.
//! 5. Of a head alone the value's bytes are not checked: who wants them reads the record.

use crate::cache::Cached;
use crate::history::Held;
use crate::key::Key;
use crate::layout::ALIGN_BYTES;
use crate::mistake::{Mistake, Rules};
use crate::place::{Origin, SECTOR_BYTES};
use crate::record::{RECORD_HEAD_BYTES, Record, RecordHead, Seat, decode_head, decode_record};
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

/// What came of a read of a head.
#[derive(Debug)]
pub enum CameHead {
    /// The record's head.
    Head(RecordHead),
    /// It has to be read once more.
    Again(Reading),
    /// This version is damaged.
    Damaged,
}

impl Reading {
    fn is_of(&self, head: &RecordHead, found: Key<'_>, key: Key<'_>) -> bool {
        let is_version = self.version.is_none_or(|it| it == head.version);
        head.kind.has_place() && found == key && is_version
    }

    /// Where the record begins in what is read.
    fn at(&self) -> usize {
        (self.seat.address - self.address) as usize
    }

    fn again(self) -> Self {
        Self {
            is_repeated: true,
            ..self
        }
    }
}

impl<R: Rules + Copy> Shard<R> {
    /// The record at this address, in the present use of its segment.
    pub(crate) fn seat(&self, address: u64) -> Seat {
        let number = self.layout.segment_of(address);
        let uses = number.and_then(|number| self.collector.uses(number));
        let uses = uses.expect("what is written or named lies in the log");
        Seat { address, uses }
    }

    /// What a version has, if that is in memory: it needs no read.
    ///
    /// # Panics
    /// The version does not come from this shard, or not in this turn.
    pub fn cached(&mut self, held: &Held) -> Option<Cached<'_>> {
        let seat = self.seat(held.place.address()?);
        let cached = self.cache.get(seat);
        cached.inspect(|it| check_version(held, it.version))
    }

    /// The same of what is known beside the value. It does not count as asked for.
    ///
    /// # Panics
    /// As [`Shard::cached`].
    #[must_use]
    pub fn cached_head(&self, held: &Held) -> Option<Cached<'_>> {
        let cached = self.cache.peek(self.seat(held.place.address()?));
        cached.inspect(|it| check_version(held, it.version))
    }

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
        let at = reading.at();
        if let Some(bytes) = bytes.filter(|_| self.rules.makes(Mistake::CachedUnchecked)) {
            self.cache_unchecked(&reading, &bytes[at..]);
        }
        let found = bytes.and_then(|bytes| decode_record(bytes.get(at..)?, reading.seat).ok());
        let came = match found.filter(|it| reading.is_of(&it.head, it.key, key)) {
            Some(record) => {
                if record.head.kind.has_value() {
                    let content = Cached::of(&record.head, record.value);
                    self.cache.insert(reading.seat, content);
                }
                Came::Record(record)
            }
            None if !reading.is_repeated => return Came::Again(reading.again()),
            None => {
                self.refuse(reading.seat.address, key);
                Came::Damaged
            }
        };
        self.has_read(reading.segment);
        came
    }

    /// Begins to read what is known of a version beside its value, whose key has so many bytes. None: as
    /// [`Shard::begin_read`].
    ///
    /// # Panics
    /// As [`Shard::begin_read`].
    pub fn begin_read_head(&mut self, held: &Held, key_bytes: usize) -> Option<Reading> {
        let reading = self.begin_read(held)?;
        let end = reading.at() + RECORD_HEAD_BYTES + key_bytes;
        let bytes = end.next_multiple_of(ALIGN_BYTES as usize);
        Some(Reading {
            bytes: bytes.min(reading.bytes),
            ..reading
        })
    }

    /// A read of a head has ended with these bytes; none: it failed.
    pub fn end_read_head(
        &mut self,
        reading: Reading,
        key: Key<'_>,
        bytes: Option<&[u8]>,
    ) -> CameHead {
        let at = reading.at();
        let found = bytes.and_then(|bytes| decode_head(bytes.get(at..)?, reading.seat).ok());
        let came = match found.filter(|(head, of)| reading.is_of(head, *of, key)) {
            Some((head, _)) => CameHead::Head(head),
            None if !reading.is_repeated => return CameHead::Again(reading.again()),
            None => {
                self.refuse(reading.seat.address, key);
                CameHead::Damaged
            }
        };
        self.has_read(reading.segment);
        came
    }

    /// For a [`Mistake`] alone.
    fn cache_unchecked(&mut self, reading: &Reading, record: &[u8]) {
        let Ok((head, key)) = decode_head(record, reading.seat) else {
            return;
        };
        let begin = RECORD_HEAD_BYTES + key.bytes.len();
        let value = record.get(begin..begin + head.value_bytes as usize);
        if let Some(value) = value.filter(|_| head.kind.has_value()) {
            self.cache.insert(reading.seat, Cached::of(&head, value));
        }
    }

    /// Each place is counted among what is told, and reads of it that follow on their own.
    fn refuse(&mut self, address: u64, key: Key<'_>) {
        if !self.is_met_by_read(address, key) {
            self.collector.damaged += 1;
        }
    }

    fn has_read(&mut self, segment: u32) {
        if let Some(segment) = self.collector.segments.get_mut(&segment) {
            segment.readers -= 1;
        }
        self.leave_unread();
    }
}

fn check_version(held: &Held, cached: Version) {
    let is_written = held.place.origin() == Origin::Written;
    assert!(
        !is_written || cached == held.version,
        "a cached value is the one of its place"
    );
}
