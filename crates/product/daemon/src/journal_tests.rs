// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread's side, over rings of no kernel and a folder of a disk.

use std::fs;
use std::sync::Arc;

use erb_abi::{Kept, LogWriter};
use erb_journal::{Id, State, segments};

use super::*;
use crate::journal::LateJournal;

/// So long that no machine is slow enough for it to pass.
const HOUR: Duration = Duration::from_secs(3600);

fn identity(journal: u8) -> Identity {
    Identity {
        journal: Id([journal; 16]),
        boot: Id([9; 16]),
    }
}

/// Answers so many SETs.
fn answer(logs: &Logs, count: u64) {
    let mut writer = LogWriter::new(logs, 0);
    for _ in 0..count {
        let lsn = writer.next_lsn();
        writer.put(&Written {
            lsn,
            key: format!("key {lsn}").as_bytes(),
            value: b"value",
            ..Written::default()
        });
    }
}

fn lsns(folder: &Path) -> Vec<u64> {
    let mut lsns = Vec::new();
    for segment in segments(folder).expect("the folder") {
        assert_eq!(segment.state, State::Sound);
        let told = segment.tell(|entry| -> io::Result<()> {
            assert_eq!(entry.key, format!("key {}", entry.lsn).into_bytes());
            lsns.push(entry.lsn);
            Ok(())
        });
        told.expect("the segment");
    }
    lsns
}

/// One for which what is drained is settled at once.
fn keeper(folder: &Path) -> Keeper {
    Keeper {
        settled: Settled::after(Duration::ZERO),
        ..Keeper::new(folder.to_path_buf(), identity(1), None)
    }
}

/// A turn that has time for all that lies in the folder, however slow the machine is.
fn turn(keeper: &mut Keeper, logs: &Logs, hurry: bool) {
    keeper.turn(logs, hurry);
    keeper.sort(Instant::now() + HOUR);
}

/// One that keeps everything, and the rings that wait for it.
fn keeper_of_all(folder: &Path, logs: &mut Logs) -> Keeper {
    let kept = Kept::of(logs.count());
    logs.wait_for(Arc::clone(&kept));
    let all = Some(Everything::new(kept));
    Keeper::new(folder.to_path_buf(), identity(1), all)
}

/// Drains all that was answered; what of the first ring is free then.
fn drain(logs: &Logs) -> u64 {
    logs.set_drained(logs.lsn(), monotonic_ns());
    logs.set_tail(0, logs.head(0));
    logs.tail(0)
}

#[test]
fn whoever_keeps_all_keeps_what_is_drained_as_well_and_its_room_is_not_freed_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut logs = Logs::zeros(2);
    let mut keeper = keeper_of_all(folder.path(), &mut logs);
    turn(&mut keeper, &logs, false);
    assert_eq!(keeper.against(), None);
    answer(&logs, 3);
    assert_eq!(drain(&logs), 0, "it is written nowhere");
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [1, 2, 3], "it is drained");
    assert_eq!(drain(&logs), logs.head(0));
    answer(&logs, 2);
    drain(&logs);
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [1, 2, 3, 4, 5]);
    let report = keeper.report(&logs, None);
    assert_eq!(
        (&report.keeps[..], report.written, report.segments),
        ("all", 5, 1)
    );
    // The next one has what it did not come to.
    assert_eq!(drain(&logs), logs.head(0));
    answer(&logs, 2);
    drain(&logs);
    drop(keeper);
    let mut keeper = keeper_of_all(folder.path(), &mut logs);
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [1, 2, 3, 4, 5, 6, 7]);
    keeper.remove();
    assert_eq!(lsns(folder.path()), [] as [u64; 0]);
}

#[test]
fn what_is_late_is_kept_and_what_is_drained_goes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (logs, mut keeper) = (Logs::zeros(2), keeper(folder.path()));
    turn(&mut keeper, &logs, false);
    assert_eq!(keeper.against(), None);
    logs.set_drained(0, monotonic_ns() - LATE_NS - 1);
    answer(&logs, 5);
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [1, 2, 3, 4, 5], "it is late");
    // As if it came in an hour: so it is young, however long the machine takes until here.
    logs.set_drained(3, monotonic_ns() + HOUR.as_nanos() as u64);
    answer(&logs, 2);
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [1, 2, 3, 4, 5], "it is young");
    turn(&mut keeper, &logs, true);
    assert_eq!(
        lsns(folder.path()),
        [1, 2, 3, 4, 5, 6, 7],
        "nobody drains it"
    );
    let report = keeper.report(&logs, None);
    assert_eq!((report.waiting, report.written, report.segments), (4, 7, 1));
    logs.set_drained(7, monotonic_ns());
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [] as [u64; 0]);
    assert_eq!(
        keeper.report(&logs, None).segments,
        1,
        "the next one is ready"
    );
    keeper.remove();
    assert_eq!(fs::read_dir(folder.path()).expect("it").count(), 0);
}

#[test]
fn what_is_late_stays_until_redis_has_synced_it_and_what_is_late_next_has_a_segment_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let (logs, mut keeper) = (Logs::zeros(1), keeper(folder.path()));
    // Redis has not synced, and it has.
    let [not_yet, by_now] = [HOUR, Duration::ZERO].map(|after| move || Settled::after(after));
    keeper.settled = not_yet();
    answer(&logs, 3);
    turn(&mut keeper, &logs, true);
    logs.set_drained(3, monotonic_ns());
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [1, 2, 3], "Redis's log may lose it");
    assert_eq!(keeper.against(), None);
    let report = keeper.report(&logs, None);
    assert_eq!((report.waiting, report.segments), (0, 2));
    answer(&logs, 2);
    turn(&mut keeper, &logs, true);
    assert_eq!(lsns(folder.path()), [1, 2, 3, 4, 5]);
    keeper.settled = by_now();
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [4, 5]);
    keeper.settled = not_yet();
    logs.set_drained(5, monotonic_ns());
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [4, 5], "nor has it those");
    keeper.settled = by_now();
    turn(&mut keeper, &logs, false);
    assert_eq!(lsns(folder.path()), [] as [u64; 0]);
    assert_eq!(keeper.report(&logs, None).segments, 1);
}

#[test]
fn former_segments_of_the_same_maps_go_when_all_of_that_time_is_drained() {
    let folder = tempfile::tempdir().expect("a folder");
    let (logs, mut dead) = (Logs::zeros(1), keeper(folder.path()));
    answer(&logs, 3);
    turn(&mut dead, &logs, true);
    drop(dead);
    answer(&logs, 1);
    let mut next = keeper(folder.path());
    turn(&mut next, &logs, false);
    assert_eq!(next.against(), None);
    assert_eq!(next.report(&logs, None).left, 0, "they are no others'");
    // It has all of them as well, for what the dead one had synced is not known.
    assert_eq!(lsns(folder.path()), [1, 2, 3, 1, 2, 3, 4]);
    logs.set_drained(3, 0);
    turn(&mut next, &logs, false);
    assert_eq!(lsns(folder.path()).len(), 7);
    logs.set_drained(4, 0);
    turn(&mut next, &logs, false);
    assert_eq!(lsns(folder.path()), [] as [u64; 0]);
}

#[test]
fn segments_of_others_are_told_and_stay_but_for_those_without_a_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = Logs::zeros(1);
    answer(&logs, 2);
    let mut other = Keeper::new(folder.path().to_path_buf(), identity(2), None);
    turn(&mut other, &logs, true);
    let mut empty = Keeper::new(folder.path().to_path_buf(), identity(3), None);
    turn(&mut empty, &Logs::zeros(1), false);
    assert!(
        empty
            .against()
            .is_some_and(|why| why.contains("another daemon"))
    );
    drop(other);
    empty.next_try = Instant::now();
    turn(&mut empty, &Logs::zeros(1), false);
    assert_eq!((empty.against(), empty.left.len()), (None, 1));
    drop(empty);
    let mut own = keeper(folder.path());
    turn(&mut own, &logs, false);
    let report = own.report(&logs, None);
    assert_eq!((report.left, report.left_segments), (2, 1));
    let told = &report.left_what;
    assert!(
        told.contains("has 2 SETs") && told.contains("erb journal show"),
        "{told}"
    );
    own.remove();
    assert_eq!(lsns(folder.path()), [1, 2]);
}

#[test]
fn a_folder_that_is_gone_or_a_ring_that_is_wrong_speaks_against_answering() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gone");
    let (logs, mut keeper) = (Logs::zeros(1), keeper(&path));
    turn(&mut keeper, &logs, false);
    let against = keeper.against().expect("there is no folder");
    assert!(against.contains("it is gone"), "{against}");
    LateJournal::make_folder(&path).expect("a folder");
    keeper.next_try = Instant::now();
    turn(&mut keeper, &logs, false);
    assert_eq!(keeper.against(), None);
    assert_eq!(keeper.report(&logs, None).failures, 1);
    let mut writer = LogWriter::new(&logs, 0);
    let _ = writer.next_lsn();
    writer.put_bytes(&[0xff; 64]);
    turn(&mut keeper, &logs, true);
    assert!(keeper.against().is_some_and(|why| why.contains("log ring")));
}

#[test]
fn a_segment_that_somebody_takes_away_is_written_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let (logs, mut keeper) = (Logs::zeros(1), keeper(folder.path()));
    answer(&logs, 3);
    turn(&mut keeper, &logs, true);
    let look = |keeper: &mut Keeper| {
        keeper.next_look = Instant::now();
        turn(keeper, &logs, true);
    };
    for one in segments(folder.path()).expect("the folder") {
        fs::remove_file(one.path).expect("a segment");
    }
    look(&mut keeper);
    let against = keeper.against().expect("nothing is kept");
    assert!(against.contains("taken away"), "{against}");
    turn(&mut keeper, &logs, true);
    assert_eq!(
        (keeper.against(), lsns(folder.path())),
        (None, vec![1, 2, 3])
    );
    let report = keeper.report(&logs, None);
    assert_eq!((report.written, report.failures), (6, 1));
    // The same of the whole folder.
    let aside = folder.path().with_extension("aside");
    fs::rename(folder.path(), &aside).expect("a name");
    fs::create_dir(folder.path()).expect("another folder");
    look(&mut keeper);
    assert!(keeper.against().is_some());
    turn(&mut keeper, &logs, true);
    assert_eq!(
        (keeper.against(), lsns(folder.path())),
        (None, vec![1, 2, 3])
    );
    fs::remove_dir_all(aside).expect("the first one");
}

#[test]
fn whoever_keeps_all_writes_anew_what_somebody_takes_away_and_redis_has_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut logs = Logs::zeros(2);
    let mut keeper = keeper_of_all(folder.path(), &mut logs);
    answer(&logs, 3);
    turn(&mut keeper, &logs, true);
    assert_eq!(lsns(folder.path()), [1, 2, 3]);
    for one in segments(folder.path()).expect("the folder") {
        fs::remove_file(one.path).expect("a segment");
    }
    answer(&logs, 1);
    keeper.next_look = Instant::now();
    turn(&mut keeper, &logs, true);
    let against = keeper.against().expect("nothing is kept");
    assert!(against.contains("taken away"), "{against}");
    turn(&mut keeper, &logs, true);
    let found = (keeper.against(), lsns(folder.path()));
    assert_eq!(found, (None, vec![1, 2, 3, 4]));
}

#[test]
fn a_segment_that_cannot_be_made_is_named_and_counted_and_shuts_the_gate() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = folder.path().join("0000000000000001.erbj");
    let (logs, mut keeper) = (Logs::zeros(1), keeper(folder.path()));
    keeper.journal = Some(keeper.open(&logs).expect("the folder"));
    fs::create_dir(&taken).expect("another's");
    let begun = Instant::now();
    turn(&mut keeper, &logs, false);
    let against = keeper.against().expect("there is none");
    let named = "segment 0000000000000001 could not be made: File exists";
    assert!(against.contains(named), "{against}");
    assert_eq!(keeper.report(&logs, Some(&against)).failures, 1);
    assert!(keeper.next_try >= begun + RETRY, "it is tried each second");
    keeper.next_try = Instant::now() + HOUR;
    turn(&mut keeper, &logs, false);
    assert_eq!(keeper.against(), Some(against), "and not before");
    keeper.next_try = Instant::now();
    turn(&mut keeper, &logs, false);
    assert_eq!(keeper.against(), None);
    assert_eq!(keeper.report(&logs, None).failures, 1);
}

#[test]
fn a_file_that_bears_a_segments_name_by_now_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (logs, mut keeper) = (Logs::zeros(1), keeper(folder.path()));
    answer(&logs, 1);
    turn(&mut keeper, &logs, true);
    let own = segments(folder.path()).expect("the folder").remove(0);
    fs::remove_file(&own.path).expect("a segment");
    fs::write(&own.path, b"another's").expect("a file");
    let next = own
        .path
        .with_file_name(format!("{:016x}.erbj", own.number + 1));
    fs::write(&next, b"another's").expect("a file");
    logs.set_drained(1, monotonic_ns());
    for _ in 0..3 {
        keeper.next_try = Instant::now();
        turn(&mut keeper, &logs, false);
    }
    keeper.remove();
    for path in [own.path, next] {
        assert_eq!(fs::read(&path).expect("it is there"), b"another's");
    }
}

/// Leaves so many segments of another boot, each of one record.
fn leave(folder: &Path, count: u64) {
    for number in 1..=count {
        let header = erb_journal::Header {
            identity: identity(7),
            number,
            first_lsn: number,
        };
        let mut bytes = erb_journal::encode_header(&header).to_vec();
        let write = Write {
            lsn: number,
            db: 0,
            expiry_ms: 0,
            key: b"key",
            value: b"value",
        };
        erb_journal::encode_record(&header, &write, &mut bytes);
        fs::write(folder.join(format!("{number:016x}.erbj")), bytes).expect("a segment");
    }
}

#[test]
fn however_many_segments_lie_there_the_first_turn_makes_one_ready_and_all_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    leave(folder.path(), 14_000);
    let logs = Logs::zeros(1);
    let mut dead = keeper(folder.path());
    answer(&logs, 2);
    dead.keep_late(&logs, true);
    drop(dead);
    let mut next = keeper(folder.path());
    next.keep_late(&logs, true);
    assert_eq!(next.against(), None);
    assert_eq!(next.left.len(), 0, "nothing of it was looked at yet");
    let mut turns = 0;
    while next.survey.is_some() {
        let before = next.left.len();
        // It has no time left: it ends as soon as it can, and that is after a step.
        next.sort(Instant::now());
        turns += 1;
        assert!(next.left.len() <= before + 1, "a step is short");
    }
    // Of each, its head and its records.
    assert!(turns >= 2 * 14_000, "{turns}");
    let report = next.report(&logs, None);
    assert_eq!((report.left, report.left_segments), (14_000, 14_000));
    assert!(
        report.left_what.contains("14000 SETs"),
        "{}",
        report.left_what
    );
    // That of the dead daemon was found among them, and goes.
    assert_eq!(report.segments, 2);
    next.remove();
    assert_eq!(fs::read_dir(folder.path()).expect("it").count(), 14_000);
}

#[test]
fn without_the_module_that_is_to_write_it_nothing_is_answered_and_it_is_said_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = Logs::zeros(1);
    let all = Everything::of_nobody(logs.count());
    let mut keeper = Keeper::new(folder.path().to_path_buf(), identity(1), Some(all)).by_module();
    answer(&logs, 2);
    turn(&mut keeper, &logs, false);
    let why = keeper.against().expect("nothing is kept");
    assert!(why.contains("erb_io"), "{why}");
    let report = keeper.report(&logs, Some(&why));
    assert_eq!((&report.sink[..], report.sound), ("kmod", false));
    keeper.remove();
}
