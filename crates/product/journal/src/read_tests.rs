// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever bytes a file has: what is told was written, in order, and nothing panics.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::format::{Write, encode_record};

fn header() -> Header {
    Header {
        identity: Identity {
            journal: Id([7; 16]),
            boot: Id([9; 16]),
        },
        number: 3,
        first_lsn: 40,
    }
}

fn entry(lsn: u64) -> Entry {
    Entry {
        lsn,
        db: (lsn % 16) as u16,
        expiry_ms: lsn % 3 * 1_000,
        key: format!("key {lsn}").into_bytes(),
        value: vec![lsn as u8; lsn as usize % 90],
    }
}

fn written<'a>(entry: &'a Entry) -> Write<'a> {
    Write {
        lsn: entry.lsn,
        db: entry.db,
        expiry_ms: entry.expiry_ms,
        key: &entry.key,
        value: &entry.value,
    }
}

/// A segment of these, and where each record ends.
fn segment(entries: &[Entry]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = encode_header(&header()).to_vec();
    let end = |entry: &Entry| {
        encode_record(&header(), &written(entry), &mut bytes);
        bytes.len()
    };
    let ends = entries.iter().map(end).collect();
    (bytes, ends)
}

fn read(bytes: &[u8]) -> (Vec<Entry>, Option<Fault>) {
    let mut reader = match SegmentReader::open(bytes) {
        Ok(reader) => reader,
        Err(fault) => return (Vec::new(), Some(fault)),
    };
    let mut told = Vec::new();
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => told.push(entry),
            Ok(None) => return (told, None),
            Err(fault) => {
                assert!(matches!(reader.next_entry(), Ok(None)), "an end stays one");
                return (told, Some(fault));
            }
        }
    }
}

fn ten() -> Vec<Entry> {
    (41..51).map(entry).collect()
}

#[test]
fn what_was_written_is_read() {
    let (bytes, _) = segment(&ten());
    let (told, fault) = read(&bytes);
    assert_eq!(told, ten());
    assert!(fault.is_none(), "{fault:?}");
}

#[test]
fn a_segment_that_is_cut_at_any_byte_has_what_is_whole() {
    let (bytes, ends) = segment(&ten());
    for cut in 0..bytes.len() {
        let (told, fault) = read(&bytes[..cut]);
        let whole = ends.iter().filter(|end| **end <= cut).count();
        assert_eq!(told, ten()[..whole], "{cut}");
        let at_end = cut == HEADER_BYTES || ends.contains(&cut);
        assert_eq!(fault.is_none(), at_end, "{cut}: {fault:?}");
        assert_eq!(matches!(fault, Some(Fault::Unmade)), cut < HEADER_BYTES);
    }
}

#[test]
fn zeros_of_what_was_not_synced_are_told_as_such() {
    let (mut bytes, ends) = segment(&ten());
    bytes[ends[4]..].fill(0);
    let (told, fault) = read(&bytes);
    assert_eq!(told, ten()[..5]);
    let said = fault.expect("an end").to_string();
    assert_eq!(
        said,
        format!(
            "at byte {}: zeros, where the power was cut before a sync",
            ends[4]
        )
    );
}

#[test]
fn each_bit_counts() {
    let (bytes, ends) = segment(&ten());
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (told, fault) = read(&bytes);
        let whole = match bit / 8 < HEADER_BYTES {
            true => 0,
            false => ends.iter().filter(|end| **end <= bit / 8).count(),
        };
        assert_eq!(told, ten()[..whole], "bit {bit}");
        assert!(fault.is_some(), "bit {bit}");
    }
}

#[test]
fn what_is_of_another_segment_or_out_of_turn_is_not_told() {
    let (mut bytes, ends) = segment(&ten());
    let other = Header {
        number: 4,
        ..header()
    };
    bytes.truncate(ends[4]);
    encode_record(&other, &written(&entry(46)), &mut bytes);
    assert_eq!(read(&bytes).0, ten()[..5]);
    for lsn in [45, 47, 0, u64::MAX] {
        bytes.truncate(ends[4]);
        let late = Entry { lsn, ..entry(46) };
        encode_record(&header(), &written(&late), &mut bytes);
        let (told, fault) = read(&bytes);
        assert_eq!(told, ten()[..5], "{lsn}");
        assert!(matches!(fault, Some(Fault::Record { .. })), "{fault:?}");
    }
    let mut early = encode_header(&header()).to_vec();
    encode_record(&header(), &written(&entry(39)), &mut early);
    assert!(read(&early).1.is_some(), "below the first LSN");
}

#[test]
fn a_name_and_a_version_are_told_apart() {
    let mut bytes = encode_header(&header());
    bytes[8] = 2;
    assert!(matches!(read(&bytes).1, Some(Fault::Version(2))));
    assert!(matches!(read(b"#!/bin/sh\n").1, Some(Fault::Foreign)));
    assert!(matches!(read(&[0; 4096]).1, Some(Fault::Foreign)));
    let id = Id::parse("4f0e2d1c-0b0a-4908-8706-050403020100\n").expect("a boot id");
    assert_eq!(Id::parse(&id.to_string()), Some(id));
    for text in ["", "4f", "4f0e2d1c-0b0a-4908-8706-05040302010g"] {
        assert_eq!(Id::parse(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_an_end(bytes in vec(any::<u8>(), 0..4_096)) {
        read(&bytes);
    }

    #[test]
    fn any_bytes_behind_a_header_are_read_to_an_end(tail in vec(any::<u8>(), 0..4_096)) {
        let mut bytes = encode_header(&header()).to_vec();
        bytes.extend(tail);
        prop_assert!(read(&bytes).0.is_empty(), "nobody meets a checksum by chance");
    }

    #[test]
    fn bytes_that_are_changed_anywhere_make_no_other_record(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let (mut bytes, _) = segment(&ten());
        for (place, byte) in changes {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        let told = read(&bytes).0;
        prop_assert_eq!(&told[..], &ten()[..told.len()]);
    }

    #[test]
    fn any_write_is_read_as_it_was(key in vec(any::<u8>(), 0..300), value in vec(any::<u8>(), 0..2_000), db: u16, expiry_ms: u64) {
        let one = Entry { lsn: 40, db, expiry_ms, key, value };
        prop_assert_eq!(read(&segment(std::slice::from_ref(&one)).0).0, vec![one]);
    }
}
