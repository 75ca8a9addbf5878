// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder is read while a boost lets go of what is drained, as people do; and what others may have done to it.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

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

/// A segment of one journal with records of these LSNs.
fn keep(folder: &Path, header: &Header, lsns: impl Iterator<Item = u64>) -> PathBuf {
    let path = Disk::segment(folder, header.number);
    let mut bytes = encode_header(header).to_vec();
    lsns.for_each(|lsn| add(header, lsn, b"value", &mut bytes));
    fs::write(&path, bytes).expect("a segment");
    path
}

fn of_another(number: u64) -> Header {
    let mut other = header(number);
    other.identity.journal = Id([3; 16]);
    other
}

#[test]
fn what_cannot_be_read_is_told_as_that_and_is_neither_damaged_nor_empty() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    make(folder, 1);
    symlink(Disk::segment(folder, 1), Disk::segment(folder, 2)).expect("a link");
    mkfifo(&Disk::segment(folder, 3), Mode::S_IRWXU).expect("a pipe");
    fs::create_dir(Disk::segment(folder, 4)).expect("a folder");
    let mut later = encode_header(&header(5));
    later[8] = 2;
    fs::write(Disk::segment(folder, 5), later).expect("a later build's");
    let found = segments(folder).expect("the folder");
    assert_eq!((found.len(), unread(&found)), (5, 4), "{found:?}");
    assert_eq!(summary(&found), (1, 0));
    for segment in &found[1..] {
        assert!(!segment.is_empty() && !segment.is_sound(), "{segment:?}");
    }
    let State::Unread(why) = &found[4].state else {
        panic!("{found:?}");
    };
    assert!(why.contains("version 2"), "{why}");
}

#[test]
fn what_was_cut_since_it_was_looked_at_is_not_told_as_if_it_were_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = keep(folder.path(), &header(1), 1..=3);
    let found = segments(&path).expect("it").remove(0);
    let told = || {
        let mut lsns = Vec::new();
        let done = found.tell(|entry| -> io::Result<()> {
            lsns.push(entry.lsn);
            Ok(())
        });
        (lsns, done)
    };
    assert!(matches!(told(), (lsns, Ok(())) if lsns == [1, 2, 3]));
    let file = OpenOptions::new().write(true).open(&path).expect("it");
    for (cut, whole) in [(1, 2), (found.bytes / 3, 1), (found.bytes, 0)] {
        file.set_len(found.bytes - cut).expect("cut");
        let (lsns, done) = told();
        assert_eq!(lsns.len(), whole);
        let why = done.expect_err("some are missing").to_string();
        let said = format!("{whole} of the 3 records");
        assert!(why.contains(&said), "{why}");
    }
}

/// `discard` waits for twice as long.
const LOOKS_MAX: Duration = Duration::from_millis(50);

#[test]
fn who_deletes_waits_for_who_just_looks_and_leaves_what_is_anothers_by_now() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = keep(folder.path(), &header(1), 1..=3);
    let found = segments(&path).expect("it").remove(0);
    let lock = |kind| {
        let file = File::open(&path).expect("it");
        Flock::lock(file, kind).expect("its lock")
    };
    let at_work = lock(FlockArg::LockExclusive);
    assert!(!discard(&found).expect("left alone") && path.exists());
    drop(at_work);
    fs::remove_file(&path).expect("somebody deletes it");
    keep(folder.path(), &of_another(1), 1..=3);
    assert!(!discard(&found).expect("left alone") && path.exists());
    let found = segments(&path).expect("it").remove(0);
    let looks = lock(FlockArg::LockShared);
    let begun = Instant::now();
    let looks = thread::spawn(move || {
        thread::sleep(Duration::from_millis(10));
        drop(looks);
        begun.elapsed()
    });
    let is_deleted = discard(&found).expect("deleted") && !path.exists();
    let looked = looks.join().expect("no panic");
    if !is_deleted && looked > LOOKS_MAX {
        erb_steady::out_of_patience(format_args!("it was looked at for {looked:?}"));
    }
    assert!(is_deleted);
    assert!(discard(&found).expect("it is gone"));
}

#[test]
fn what_has_no_record_parts_no_journal() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    keep(folder, &header(1), 1..=3);
    fs::write(Disk::segment(folder, 2), b"").expect("one that was never begun");
    fs::write(Disk::segment(folder, 3), b"something else").expect("one that is damaged");
    keep(folder, &of_another(4), 9..9);
    keep(folder, &header(5), 5..=6);
    keep(folder, &of_another(6), 6..=7);
    let found = journals(segments(folder).expect("the folder"));
    let numbers = |of: &Vec<Segment>| of.iter().map(|one| one.number).collect();
    let numbers: Vec<Vec<u64>> = found.iter().map(numbers).collect();
    assert_eq!(numbers, [vec![1, 5], vec![6]]);
}

#[test]
fn a_folder_of_journals_has_none_itself_and_names_those_that_are_below() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    for name in ["eth1-6379", "eth0-6379", "empty"] {
        fs::create_dir(root.join(name)).expect("a folder");
    }
    fs::write(root.join("README"), "mine").expect("a file");
    mkfifo(&root.join("pipe"), Mode::S_IRWXU).expect("a pipe");
    make(&root.join("eth1-6379"), 7);
    make(&root.join("eth0-6379"), 1);
    assert!(segments(root).expect("the folder").is_empty());
    assert_eq!(
        below(root),
        ["eth0-6379", "eth1-6379"].map(|name| root.join(name))
    );
    assert!(below(&root.join("README")).is_empty());
}
