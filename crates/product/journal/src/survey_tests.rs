// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder is read while a boost lets go of what is drained, as people do.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::format::{Id, Write, encode_header, encode_record};

const SEGMENTS: u64 = 8;
const ROUNDS: u64 = 300;

fn header(number: u64) -> Header {
    Header {
        identity: Identity {
            journal: Id([1; 16]),
            boot: Id([2; 16]),
        },
        number,
        first_lsn: number,
    }
}

fn add(header: &Header, lsn: u64, value: &[u8], bytes: &mut Vec<u8>) {
    let write = Write {
        lsn,
        db: 0,
        expiry_ms: 0,
        key: b"key",
        value,
    };
    encode_record(header, &write, bytes);
}

/// Makes a segment of one record.
fn make(folder: &Path, number: u64) {
    let mut bytes = encode_header(&header(number)).to_vec();
    add(&header(number), number, b"value", &mut bytes);
    let made = folder.join("made");
    fs::write(&made, bytes).expect("a file");
    fs::rename(made, Disk::segment(folder, number)).expect("a name");
}

#[test]
fn what_goes_meanwhile_is_neither_damage_nor_a_hole() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    (1..=SEGMENTS).for_each(|number| make(folder, number));
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            for number in 1..=ROUNDS {
                make(folder, SEGMENTS + number);
                fs::remove_file(Disk::segment(folder, number)).expect("a segment");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let found = segments(folder).expect("the folder");
            let is_sound = |one: &Segment| one.state == State::Sound && one.records == 1;
            assert!(found.iter().all(is_sound), "{found:?}");
            let follow = found
                .windows(2)
                .all(|two| two[0].number + 1 == two[1].number);
            assert!(follow, "{found:?}");
        }
    });
    let own = Identity {
        journal: Id([3; 16]),
        boot: Id([2; 16]),
    };
    let mut survey = Survey::begin(folder, own).expect("the folder");
    fs::remove_file(Disk::segment(folder, ROUNDS + SEGMENTS)).expect("a segment");
    let mut others = 0;
    while !survey.is_over() {
        match survey.step() {
            Some(Found::Other(segment)) => {
                assert_eq!(segment.state, State::Sound);
                others += 1;
            }
            None => {}
            Some(own) => panic!("{own:?}"),
        }
    }
    assert_eq!(others, SEGMENTS - 1);
}

/// Records of a batch, of 4,000 bytes and more each: a write of many pages.
const BATCH: u64 = 256;
const BATCHES: u64 = 200;

#[test]
fn a_write_that_is_seen_in_part_is_no_damage_and_one_that_stays_so_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = Disk::segment(folder.path(), 1);
    let header = header(1);
    fs::write(&path, encode_header(&header)).expect("a segment");
    let file = OpenOptions::new().append(true).open(&path).expect("it");
    let mut file = Flock::lock(file, FlockArg::LockExclusive).expect("its lock");
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            for batch in 0..BATCHES {
                let mut bytes = Vec::new();
                let lsns = batch * BATCH + 1..=(batch + 1) * BATCH;
                lsns.for_each(|lsn| add(&header, lsn, &[7; 4_000], &mut bytes));
                file.write_all(&bytes).expect("a write");
            }
            // Its head is there, its value is not.
            let mut bytes = Vec::new();
            add(&header, BATCH * BATCHES + 1, &[7; 4_000], &mut bytes);
            file.write_all(&bytes[..1_000]).expect("a write");
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let found = segments(folder.path()).expect("the folder");
            let is_last = found[0].records == BATCH * BATCHES;
            assert!(found[0].state == State::Sound || is_last, "{found:?}");
        }
    });
    let found = segments(&path).expect("it");
    assert!(found[0].is_at_work);
    assert!(matches!(found[0].state, State::Ends(_)), "{found:?}");
}
