// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log's order, its bounds, and what recovery says of ends and of damage.

use erb_store::log::{IN_FLIGHT_MAX, Log, LogEnd, LogWrite, NotAdded, Segment, Start, WriteOf};
use erb_store::mistake::Sound;
use erb_store::record::{Change, Kind, Seat, VALUE_BYTES_MAX};
use erb_store::salvage::Found;
use erb_store::scan::{Logged, Scan, Scanned};
use erb_store::{Key, Version};

const SEGMENT_BYTES: u64 = 4 << 20;
const START: Start = Start {
    shard: 1,
    store_id: 99,
    incarnation: 1,
    lsn: 10,
    crc_before: 5,
};

fn segment(number: u64) -> Segment {
    Segment {
        number: number as u32,
        order: number,
        seat: Seat {
            address: number * SEGMENT_BYTES,
            uses: 2,
        },
        bytes: SEGMENT_BYTES,
    }
}

fn change(version: u64, value: &[u8]) -> Change<'_> {
    Change {
        kind: Kind::Put,
        is_part: false,
        version: Version::new(version),
        source: Version::new(version),
        writer: 0,
        expiry_ms: 0,
        key: Key {
            namespace: 1,
            bytes: b"key",
        },
        value,
    }
}

fn log(start: Start) -> Log<Sound> {
    let mut log = Log::new(start, Sound);
    log.give_segment(segment(1));
    log
}

/// No end was recorded.
const OPEN: [Option<LogEnd>; 2] = [None, None];

/// Where, and of a record with a damaged value its version, of all else how many bytes.
type Rotten = (u64, Result<u64, u64>);

/// A store of two segments, as bytes.
struct Store(Vec<u8>);

impl Store {
    fn new() -> Self {
        Self(vec![0; 3 * SEGMENT_BYTES as usize])
    }

    fn write(&mut self, write: &LogWrite) {
        self.0[write.address as usize..][..write.bytes.len()].copy_from_slice(&write.bytes);
    }

    /// With the ends of both segments, as far as they were recorded.
    fn scan(&self, ends: [Option<LogEnd>; 2]) -> (Scanned, Vec<u64>) {
        let (scanned, versions, rot) = self.scan_rot(ends, 0, None);
        assert_eq!(rot, [], "nothing is rotten");
        (scanned, versions)
    }

    /// The same where batches below a number are known to have been durable, and a place cannot be read, which is repaired or not. And what is
    /// rotten: where, of a record with a damaged value its version, of all else how many bytes.
    fn scan_rot(
        &self,
        ends: [Option<LogEnd>; 2],
        durable_lsn: u64,
        unreadable: Option<(u64, bool)>,
    ) -> (Scanned, Vec<u64>, Vec<Rotten>) {
        let (unreadable, is_repairing) = unreadable.unzip();
        let is_repairing = is_repairing.unwrap_or(false);
        let segments = [1, 2].map(segment).into_iter().zip(ends);
        let logged = segments.map(|(segment, end)| Logged { segment, end });
        let scan = Scan::new(START, logged.collect(), durable_lsn, Sound);
        let mut scan = scan.repairing(is_repairing);
        let (mut versions, mut rot) = (Vec::new(), Vec::new());
        while let Some(read) = scan.read() {
            let range = read.address..read.address + read.bytes;
            let bytes = &self.0[read.address as usize..][..read.bytes as usize];
            let is_readable = unreadable.is_none_or(|at| !range.contains(&at));
            scan.take(is_readable.then_some(bytes), |at, found| match found {
                Found::Record(record) => versions.push(record.head.version.number()),
                Found::Rotten(head, _) => rot.push((at.address, Ok(head.version.number()))),
                Found::Lost(bytes) => rot.push((at.address, Err(bytes))),
            });
        }
        (scan.finish(), versions, rot)
    }
}

/// So many batches of one record each, all written; the log that wrote them.
fn batches(
    store: &mut Store,
    start: Start,
    count: u64,
    value: &[u8],
) -> (Log<Sound>, Vec<LogWrite>) {
    let mut log = log(start);
    let mut writes = Vec::new();
    for version in start.lsn..start.lsn + count {
        if log.wants_segment() {
            log.give_segment(segment(2));
        }
        let (_, lsn) = log.add(&change(version, value)).unwrap();
        let mut write = log.write(7).unwrap();
        if let WriteOf::Directory(_) = write.of {
            store.write(&write);
            log.written(write.of, true);
            write = log.write(7).unwrap();
        }
        assert_eq!((write.of, lsn), (WriteOf::Batch(version), version));
        store.write(&write);
        log.written(write.of, true);
        writes.push(write);
    }
    (log, writes)
}

#[test]
fn only_what_is_done_from_the_oldest_on_is_durable() {
    let mut log = log(START);
    let mut writes = Vec::new();
    for version in 0..IN_FLIGHT_MAX as u64 {
        log.add(&change(version, b"a")).unwrap();
        log.add(&change(version, b"b")).unwrap();
        writes.push(log.write(0).unwrap().of);
    }
    log.add(&change(9, b"c")).unwrap();
    assert_eq!(log.write(0), None, "as many as may be are under way");
    for of in [writes[2], writes[1]] {
        log.written(of, true);
        assert_eq!(log.durable_lsn(), START.lsn);
    }
    log.written(writes[0], true);
    assert_eq!(log.durable_lsn(), START.lsn + 3);
    assert_eq!(log.write(0).unwrap().of, WriteOf::Batch(START.lsn + 4));
    assert_eq!(log.write(0), None, "nothing is left to be written");
}

#[test]
fn a_failed_write_ends_the_log() {
    let mut log = log(START);
    let mut writes = Vec::new();
    for version in 0..3 {
        log.add(&change(version, b"a")).unwrap();
        writes.push(log.write(0).unwrap().of);
    }
    log.written(writes[0], true);
    log.written(writes[1], false);
    log.written(writes[2], true);
    assert!(log.has_failed());
    assert_eq!(log.durable_lsn(), START.lsn + 1);
    assert_eq!(log.add(&change(9, b"a")), Err(NotAdded::Failed));
    assert_eq!(log.write(0), None);
}

#[test]
fn a_batch_is_bounded_and_a_segment_is_not_overrun() {
    let mut log = Log::new(START, Sound);
    let value = vec![1; VALUE_BYTES_MAX];
    assert_eq!(log.add(&change(1, &value)), Err(NotAdded::NeedsSegment));
    log.give_segment(segment(1));
    // Each takes 1 MiB and 4 KiB, so a fourth does not fit 4 MiB.
    for lsn in START.lsn..START.lsn + 3 {
        log.add(&change(1, &value)).unwrap();
        assert_eq!(log.add(&change(9, &value)), Err(NotAdded::Busy));
        let write = log.write(0).unwrap();
        let end = write.address + write.bytes.len() as u64;
        assert!(end <= 2 * SEGMENT_BYTES && write.of == WriteOf::Batch(lsn));
    }
    assert_eq!(log.add(&change(4, &value)), Err(NotAdded::NeedsSegment));
    log.give_segment(segment(2));
    let (address, _) = log.add(&change(4, &value)).unwrap();
    assert_eq!(address, 2 * SEGMENT_BYTES + 64);
}

#[test]
fn a_scan_finds_all_batches_over_segments_and_reads() {
    let mut store = Store::new();
    // 300 KiB each: batches lie across the ends of reads and of segments.
    let value = vec![3; 300 << 10];
    let (log, _) = batches(&mut store, START, 20, &value);
    let (scanned, versions) = store.scan(OPEN);
    assert!(versions.into_iter().eq(10..30));
    assert_eq!((scanned.lsn, scanned.damaged_at), (log.durable_lsn(), None));
}

#[test]
fn rot_of_what_was_durable_is_told_and_costs_what_it_hits_and_a_lost_end_is_none() {
    let mut store = Store::new();
    let (log, writes) = batches(&mut store, START, 12, b"value");
    let last = writes.last().map(|write| write.address).unwrap();
    for (at, write) in (0..).zip(&writes) {
        let wanted: Vec<u64> = (10..22).filter(|version| *version != 10 + at).collect();
        // The head of the batch, the head of its record, its value, what pads it.
        for (place, rot) in [
            (9, None),
            (70, Some((write.address + 64, Err(4096 - 64)))),
            (64 + 48 + 5, Some((write.address + 64, Ok(10 + at)))),
            (300, None),
        ] {
            let byte = write.address as usize + place;
            store.0[byte] ^= 1;
            let (scanned, versions, found) = store.scan_rot(OPEN, 0, None);
            // Nothing behind the last says that it was durable, until that is noted elsewhere.
            if write.address == last {
                assert_eq!((&versions, &found[..]), (&wanted, &[][..]), "{at} {place}");
                assert_eq!(WriteOf::Batch(scanned.lsn), write.of);
            }
            let known = store.scan_rot(OPEN, log.durable_lsn(), None);
            for (scanned, versions, found) in [(scanned, versions, found), known] {
                if write.address == last && scanned.lsn < log.durable_lsn() {
                    continue;
                }
                let is_lost = rot.is_some();
                assert_eq!(versions.len(), 12 - usize::from(is_lost), "{at} {place}");
                assert!(found.into_iter().eq(rot), "{at} {place}");
                assert_eq!((scanned.lsn, scanned.damaged_at), (log.durable_lsn(), None));
            }
            store.0[byte] ^= 1;
        }
    }
}

#[test]
fn behind_rot_nothing_counts_that_was_not_durable() {
    for gone in 0..IN_FLIGHT_MAX {
        let mut store = Store::new();
        let (mut log, first) = batches(&mut store, START, 3, b"value");
        // Four are under way, and one of them was not done. All the others are there.
        let mut writes = Vec::new();
        for version in 13..17 {
            log.add(&change(version, b"value")).unwrap();
            writes.push(log.write(7).unwrap());
        }
        for (_, write) in writes.iter().enumerate().filter(|(at, _)| *at != gone) {
            store.write(write);
        }
        store.0[first[2].address as usize + 70] ^= 1;
        let (scanned, versions, rot) = store.scan_rot(OPEN, 0, None);
        let counted = 13 + gone as u64;
        let wanted: Vec<u64> = (10..counted).filter(|version| *version != 12).collect();
        assert_eq!(versions, wanted, "{gone}");
        assert_eq!((scanned.lsn, scanned.damaged_at), (counted, None));
        assert_eq!(rot, [(first[2].address + 64, Err(4096 - 64))]);
    }
}

#[test]
fn of_a_rotten_batch_all_records_count_but_those_that_are_hit() {
    let mut store = Store::new();
    let mut log = log(START);
    let records = [10, 11, 12].map(|version| log.add(&change(version, &[5; 100])).unwrap().0);
    let write = log.write(0).unwrap();
    store.write(&write);
    log.written(write.of, true);
    log.add(&change(13, b"next")).unwrap();
    store.write(&log.write(0).unwrap());
    let record = records[1] - records[0];
    for (place, versions, rot) in [
        // Its version, its key, its length, its value; the head of the batch with a value.
        (
            vec![records[1] + 9],
            vec![10, 12, 13],
            (records[1], Err(record)),
        ),
        (
            vec![records[1] + 49],
            vec![10, 12, 13],
            (records[1], Err(record)),
        ),
        (
            vec![records[1] + 5],
            vec![10, 13],
            (records[1], Err(4096 - 64 - record)),
        ),
        (
            vec![records[1] + 80],
            vec![10, 12, 13],
            (records[1], Ok(11)),
        ),
        (
            vec![write.address + 3, records[2] + 80],
            vec![10, 11, 13],
            (records[2], Ok(12)),
        ),
    ] {
        place.iter().for_each(|at| store.0[*at as usize] ^= 4);
        let (scanned, found, told) = store.scan_rot(OPEN, 0, None);
        assert_eq!((found, told), (versions, vec![rot]), "{place:?}");
        assert_eq!((scanned.lsn, scanned.damaged_at), (12, None));
        place.iter().for_each(|at| store.0[*at as usize] ^= 4);
    }
}

#[test]
fn what_a_start_has_told_the_next_one_tells_again() {
    let mut store = Store::new();
    let (log, writes) = batches(&mut store, START, 3, b"value");
    // All of the last batch.
    store.0[writes[2].address as usize..][..4096].fill(0x77);
    let first = store.scan_rot(OPEN, log.durable_lsn(), None);
    assert_eq!(first.1, [10, 11]);
    let [(address, Err(bytes))] = first.2[..] else {
        panic!("{first:?}");
    };
    assert!(address == writes[2].address && bytes >= 4096);
    let (number, end) = first.0.ends[0];
    assert_eq!((number, end.lsn), (1, log.durable_lsn()));
    let start = Start {
        incarnation: 2,
        lsn: first.0.lsn,
        crc_before: first.0.crc_before,
        ..START
    };
    let mut log = Log::new(start, Sound);
    log.give_segment(segment(2));
    log.add(&change(77, b"new")).unwrap();
    store.write(&log.write(0).unwrap());
    let (scanned, versions, rot) = store.scan_rot([Some(end), None], 0, None);
    assert_eq!((versions, scanned.damaged_at), (vec![10, 11, 77], None));
    assert_eq!(rot.len(), 1, "{rot:?}");
    assert_eq!(rot[0].0, writes[2].address);
}

#[test]
fn what_cannot_be_read_is_refused_or_costs_itself() {
    let mut store = Store::new();
    let (log, writes) = batches(&mut store, START, 6, b"value");
    let at = writes[2].address;
    let (scanned, ..) = store.scan_rot(OPEN, 0, Some((at, false)));
    assert_eq!(scanned.damaged_at, Some(at));
    let (scanned, versions, rot) = store.scan_rot(OPEN, 0, Some((at, true)));
    assert_eq!(versions, [10, 11, 13, 14, 15]);
    assert_eq!(rot, [(at, Err(4096))]);
    assert_eq!((scanned.lsn, scanned.damaged_at), (log.durable_lsn(), None));
    // The log may have gone on there, or behind it lay what said that more was durable.
    for behind in [0, 4096, 40960] {
        let at = writes[5].address + behind;
        let (scanned, versions, rot) = store.scan_rot(OPEN, 0, Some((at, true)));
        assert_eq!(scanned.damaged_at, None);
        assert!(versions.into_iter().eq(10..15 + u64::from(behind > 0)));
        assert_eq!(rot, [(at, Err(4096))]);
    }
}

#[test]
fn nothing_old_counts_behind_a_recorded_end() {
    let mut store = Store::new();
    let (mut log, mut writes) = batches(&mut store, START, 3, b"old");
    for version in 13..16 {
        log.add(&change(version, b"old")).unwrap();
        writes.push(log.write(7).unwrap());
    }
    writes[3..].iter().for_each(|write| store.write(write));
    // Batch 13 was not there, 14 and 15 were; the end was recorded, and it can be read again.
    let byte = writes[3].address as usize + 70;
    store.0[byte] ^= 1;
    let (scanned, _) = store.scan(OPEN);
    let (number, end) = scanned.ends[0];
    assert_eq!(
        (number, end.lsn, scanned.damaged_at),
        (1, START.lsn + 3, None)
    );
    store.0[byte] ^= 1;
    let ended = [Some(end), None];
    assert_eq!(store.scan(ended).1, [10, 11, 12]);
    let start = Start {
        incarnation: 2,
        lsn: scanned.lsn,
        crc_before: scanned.crc_before,
        ..START
    };
    let mut log = Log::new(start, Sound);
    log.give_segment(segment(2));
    log.add(&change(77, b"new")).unwrap();
    store.write(&log.write(0).unwrap());
    let (scanned, versions) = store.scan(ended);
    assert_eq!(versions, [10, 11, 12, 77]);
    assert_eq!((scanned.lsn, scanned.damaged_at), (14, None));
    // What lies before a recorded end was durable: any of it that is missing is rot.
    store.0[writes[2].address as usize + 70] ^= 1;
    let (_, versions, rot) = store.scan_rot(ended, 0, None);
    assert_eq!(versions, [10, 11, 77]);
    assert_eq!(rot, [(writes[2].address + 64, Err(4096 - 64))]);
}

/// A segment that was left, with its end, and the store. So many records make a batch.
fn closed(value: &[u8], records: u64) -> (Store, LogEnd, Vec<u64>) {
    let mut store = Store::new();
    let mut log = log(START);
    let mut versions = Vec::new();
    let mut version = 10;
    loop {
        if log.wants_segment() {
            log.give_segment(segment(2));
        }
        for _ in 0..records {
            log.add(&change(version, value)).unwrap();
            versions.push(version);
            version += 1;
        }
        while let Some(write) = log.write(0) {
            store.write(&write);
            log.written(write.of, true);
        }
        if let Some((number, end)) = log.closed() {
            assert_eq!(number, 1);
            return (store, end, versions);
        }
    }
}

#[test]
fn a_closed_segment_is_read_by_its_directory_or_without_it() {
    let (mut store, end, wanted) = closed(&[5; 100_000], 1);
    let at = end.directory.expect("large values leave room for it");
    assert!(end.bytes + u64::from(at.bytes) <= SEGMENT_BYTES);
    let ended = [Some(end), None];
    let (by_directory, versions) = store.scan(ended);
    assert_eq!(versions, wanted);
    // Values are not looked at: only whoever reads them finds out.
    let value = SEGMENT_BYTES as usize + 5000;
    store.0[value] ^= 1;
    assert_eq!(store.scan(ended), (by_directory.clone(), wanted.clone()));
    store.0[value] ^= 1;
    // A damaged directory costs a longer look.
    store.0[(SEGMENT_BYTES + end.bytes) as usize + 30] ^= 1;
    assert_eq!(store.scan(ended), (by_directory, wanted));
}

#[test]
fn a_directory_that_would_be_too_large_is_none() {
    let (store, end, wanted) = closed(b"short", 60);
    assert_eq!(end.directory, None);
    let (scanned, versions) = store.scan([Some(end), None]);
    assert_eq!((versions, scanned.damaged_at), (wanted, None));
}

#[test]
fn what_cannot_be_read_of_a_directory_is_no_loss_and_of_batches_one_is_told() {
    let (store, end, wanted) = closed(&[5; 100_000], 1);
    let ended = [Some(end), None];
    let directory_at = SEGMENT_BYTES + end.bytes;
    let (_, versions, rot) = store.scan_rot(ended, 0, Some((directory_at, false)));
    assert_eq!((versions, rot), (wanted.clone(), vec![]));
    // A batch that is not read for its directory's sake, and one that is.
    let (_, versions, rot) = store.scan_rot(ended, 0, Some((SEGMENT_BYTES, false)));
    assert_eq!((versions, rot), (wanted.clone(), vec![]));
    let without = LogEnd {
        directory: None,
        ..end
    };
    let (_, versions, rot) = store.scan_rot([Some(without), None], 0, Some((SEGMENT_BYTES, true)));
    assert_eq!(versions, wanted[1..]);
    assert_eq!(rot.len(), 1);
}

#[test]
fn another_stores_log_is_none() {
    let mut store = Store::new();
    batches(
        &mut store,
        Start {
            store_id: 98,
            ..START
        },
        3,
        b"value",
    );
    assert_eq!(store.scan(OPEN).1, [0; 0]);
    batches(&mut store, Start { shard: 2, ..START }, 3, b"value");
    assert_eq!(store.scan(OPEN).1, [0; 0]);
}
