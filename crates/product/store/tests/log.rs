// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log's order, its bounds, and what recovery says of ends and of damage.

use erb_store::log::{IN_FLIGHT_MAX, Log, LogWrite, NotAdded, Segment, Start};
use erb_store::mistake::Sound;
use erb_store::record::{Change, Kind, Seat, VALUE_BYTES_MAX};
use erb_store::scan::{End, Scan, Scanned};
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

/// A store of two segments, as bytes.
struct Store(Vec<u8>);

impl Store {
    fn new() -> Self {
        Self(vec![0; 3 * SEGMENT_BYTES as usize])
    }

    fn write(&mut self, write: &LogWrite) {
        self.0[write.address as usize..][..write.bytes.len()].copy_from_slice(&write.bytes);
    }

    fn scan(&self, ends: &[End]) -> (Scanned, Vec<u64>) {
        let segments = vec![segment(1), segment(2)];
        let mut scan = Scan::new(START, segments, ends.to_vec(), Sound);
        let mut versions = Vec::new();
        while let Some(read) = scan.read() {
            let bytes = &self.0[read.address as usize..][..read.bytes as usize];
            scan.take(bytes, |_, record| {
                versions.push(record.head.version.number())
            });
        }
        (scan.finish(), versions)
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
        let write = log.write(7).unwrap();
        assert_eq!((write.lsn, lsn), (version, version));
        store.write(&write);
        log.written(write.lsn, true);
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
        writes.push(log.write(0).unwrap().lsn);
    }
    log.add(&change(9, b"c")).unwrap();
    assert_eq!(log.write(0), None, "as many as may be are under way");
    for lsn in [writes[2], writes[1]] {
        log.written(lsn, true);
        assert_eq!(log.durable_lsn(), START.lsn);
    }
    log.written(writes[0], true);
    assert_eq!(log.durable_lsn(), START.lsn + 3);
    assert_eq!(log.write(0).unwrap().lsn, START.lsn + 4);
    assert_eq!(log.write(0), None, "nothing is left to be written");
}

#[test]
fn a_failed_write_ends_the_log() {
    let mut log = log(START);
    let mut writes = Vec::new();
    for version in 0..3 {
        log.add(&change(version, b"a")).unwrap();
        writes.push(log.write(0).unwrap().lsn);
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
        assert!(end <= 2 * SEGMENT_BYTES && write.lsn == lsn);
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
    let (scanned, versions) = store.scan(&[]);
    assert!(versions.into_iter().eq(10..30));
    assert_eq!(
        (scanned.lsn, scanned.is_damaged),
        (log.durable_lsn(), false)
    );
}

#[test]
fn damage_of_what_was_durable_is_said_and_a_lost_end_is_none() {
    let mut store = Store::new();
    let (_, writes) = batches(&mut store, START, 12, b"value");
    for (at, write) in writes.iter().enumerate() {
        let byte = write.address as usize + 70;
        store.0[byte] ^= 1;
        let (scanned, versions) = store.scan(&[]);
        assert_eq!(versions.len(), at);
        assert_eq!(scanned.lsn, write.lsn);
        // Of the last four any may be the one that was never done.
        assert_eq!(
            scanned.is_damaged,
            at + IN_FLIGHT_MAX < writes.len(),
            "batch {at}"
        );
        store.0[byte] ^= 1;
    }
}

#[test]
fn nothing_old_counts_behind_a_recorded_end() {
    let mut store = Store::new();
    let (_, writes) = batches(&mut store, START, 6, b"old");
    // Batch 13 was not there, 14 and 15 were; the end was recorded, and it can be read again.
    let end = End {
        incarnation: 1,
        lsn: writes[3].lsn,
    };
    let (scanned, versions) = store.scan(&[end]);
    assert_eq!((versions.len(), scanned.is_damaged), (3, false));
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
    let (scanned, versions) = store.scan(&[end]);
    assert_eq!(versions, [10, 11, 12, 77]);
    assert_eq!((scanned.lsn, scanned.is_damaged), (14, false));
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
    assert_eq!(store.scan(&[]).1, [0; 0]);
    batches(&mut store, Start { shard: 2, ..START }, 3, b"value");
    assert_eq!(store.scan(&[]).1, [0; 0]);
}
