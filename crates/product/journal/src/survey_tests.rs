// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder is read while a boost lets go of what is drained, as people do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::format::{Id, Write, encode_header, encode_record};

const SEGMENTS: u64 = 8;
const ROUNDS: u64 = 300;

/// Makes a segment of one record.
fn make(folder: &Path, number: u64) {
    let header = Header {
        identity: Identity {
            journal: Id([1; 16]),
            boot: Id([2; 16]),
        },
        number,
        first_lsn: number,
    };
    let mut bytes = encode_header(&header).to_vec();
    let write = Write {
        lsn: number,
        db: 0,
        expiry_ms: 0,
        key: b"key",
        value: b"value",
    };
    encode_record(&header, &write, &mut bytes);
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
