// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The late journal: what was answered and waits for Redis is on a disk within a second, is what clients were told, and
//! goes when it is drained; a disk that is full shuts the gate and loses nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use erb_e2e::calls::{call, expect, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, erb_bin, wait};
use erb_e2e::process::Still;
use erb_e2e::stop::Stop;
use erb_journal::{Header, Id, Identity, Write, encode_header, encode_record};
use erb_lab::End;
use erb_report::JournalReport;
use erb_steady::too_slow;
use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use tempfile::TempDir;

use crate::write_back::promised;

const MODE: [&str; 6] = ["--dev", "s0", "--dev", "lo", "--mode", "write-back"];

/// Boosted with a journal in this folder.
fn boosted(name: &str, folder: &Path) -> TestLab {
    let lab = TestLab::up(name, &["--mode", "write-back", "--direct"]);
    lab.wait_admitting();
    let gone = lab.erb(&["detach", "--force"]);
    assert!(gone.status.success(), "{gone:?}");
    boost(&lab, folder);
    lab
}

fn boost(lab: &TestLab, folder: &Path) {
    let words = ["--journal-dir", text(folder)];
    let output = lab.boost(&[&MODE[..], &words].concat());
    assert!(output.status.success(), "{output:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

fn wait_open(lab: &TestLab) {
    wait(STATE_WAIT, || {
        let writes = lab.try_status()?.writes;
        writes.open.then_some(()).ok_or(format!("{writes:?}"))
    });
}

fn kept(lab: &TestLab) -> JournalReport {
    lab.status().writes.journal
}

fn journal(words: &[&str]) -> Output {
    let output = Command::new(erb_bin()).arg("journal").args(words).output();
    output.expect("erb journal")
}

/// Keys and values of the records, in their order.
fn shown(path: &Path) -> Vec<(String, String)> {
    let output = journal(&["show", "--json", text(path)]);
    assert!(output.status.success(), "{output:?}");
    let pair = |line: &str| {
        let record: Value = serde_json::from_str(line).expect("JSON");
        let word = |name: &str| record[name].as_str().expect("text").to_owned();
        (word("key"), word("value"))
    };
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(pair).collect()
}

/// What a client is told, in its order, until told to stop.
fn write(lab: &TestLab, told: &Mutex<Vec<(String, String)>>, stop: &AtomicBool) {
    let mut conn = lab.client();
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let pair = (format!("j{number}"), format!("value {number}"));
        let reply = conn.call(&["SET", &pair.0, &pair.1]).expect("SET");
        assert_eq!(reply, b"+OK\r\n");
        told.lock().expect("no panic").push(pair);
    }
}

/// Redis stands still, and what was answered waits and is on the disk; where the gate was shut by a late lease just
/// then, another moment is tried.
fn still_and_kept(lab: &TestLab) -> Still {
    wait(STATE_WAIT, || {
        wait_open(lab);
        let still = Still::of(lab.redis_pid());
        sleep(Duration::from_millis(1_200));
        let writes = wait(STATE_WAIT, || {
            let writes = lab.try_status()?.writes;
            let kept = &writes.journal;
            let good = !writes.open && kept.waiting == writes.waiting && kept.sound;
            good.then(|| writes.clone()).ok_or(format!("{writes:?}"))
        });
        (writes.waiting > 0)
            .then_some(still)
            .ok_or(format!("{writes:?}"))
    })
}

/// Runs while a client writes and Redis stands still, with what it was told by then; then Redis goes on.
fn while_it_stands_still(lab: &TestLab, happens: impl FnOnce(&[(String, String)])) {
    let (told, stop) = (Mutex::default(), AtomicBool::new(false));
    scope(|threads| {
        threads.spawn(|| write(lab, &told, &stop));
        let _end = Stop(&stop);
        sleep(Duration::from_millis(500));
        let _still = still_and_kept(lab);
        let before = told.lock().expect("no panic").clone();
        happens(&before);
    });
    let mut conn = lab.unseen();
    for (key, value) in told.into_inner().expect("no panic") {
        let words = ["EVAL", "return redis.call('GET',KEYS[1])", "1", &key];
        let reply = conn.call(&words).expect("EVAL");
        assert_eq!(
            String::from_utf8_lossy(&reply),
            format!("${}\r\n{value}\r\n", value.len())
        );
    }
}

fn folder() -> (TempDir, PathBuf) {
    let own = tempfile::tempdir().expect("a folder");
    let path = own.path().join("journal");
    (own, path)
}

#[test]
fn what_waits_is_on_the_disk_within_a_second_and_goes_when_it_is_drained() {
    let (own, path) = folder();
    let lab = boosted("jlate", &path);
    wait_open(&lab);
    let copy = own.path().join("copy");
    while_it_stands_still(&lab, |told| {
        let writes = lab.status().writes;
        assert!(!writes.open && writes.waiting > 0, "{writes:?}");
        assert_eq!(writes.journal.waiting, writes.waiting, "{writes:?}");
        let check = journal(&["check", text(&path)]);
        assert!(check.status.success(), "{check:?}");
        let shown = shown(&path);
        // What was drained before it was written is not there.
        let from = told.len() - writes.waiting as usize;
        assert_eq!(shown[shown.len() - writes.waiting as usize..], told[from..]);
        let segment = std::fs::read_dir(&path).expect("the journal").next();
        std::fs::copy(segment.expect("a segment").expect("its name").path(), &copy)
            .expect("a copy");
        let refused = journal(&["discard", "--yes", text(&path)]);
        assert!(String::from_utf8_lossy(&refused.stdout).contains("nothing to delete"));
    });
    wait_open(&lab);
    wait(STATE_WAIT, || {
        let now = kept(&lab);
        let good = now.waiting == 0 && now.segments == 1 && now.sound;
        good.then_some(()).ok_or(format!("{now:?}"))
    });
    assert_eq!(shown(&path), []);

    // As if the power had gone, and Redis had nothing of it.
    let mut conn = lab.unseen();
    call(&mut conn, "FLUSHALL");
    let address = lab.address().to_string();
    let apply = |words: &[&str]| {
        let mut command = lab.lab().exec(End::Server, erb_bin()).expect("exec");
        command.args(["journal", "apply", text(&copy), "--redis", &address]);
        command.args(words).output().expect("erb journal")
    };
    let counted = apply(&["--dry-run"]);
    assert!(counted.status.success(), "{counted:?}");
    assert!(!apply(&[]).status.success(), "it was not confirmed");
    expect(&mut conn, "DBSIZE", ":0\r\n");
    let done = apply(&["--yes"]);
    assert!(done.status.success(), "{done:?}");
    let records = shown(&copy);
    expect(&mut conn, "DBSIZE", &format!(":{}\r\n", records.len()));
    let gone = journal(&["discard", "--yes", text(&copy)]);
    assert!(gone.status.success() && !copy.exists(), "{gone:?}");

    let left = lab.erb(&["detach", "--force"]);
    assert!(left.status.success(), "{left:?}");
    assert_eq!(std::fs::read_dir(&path).expect("the folder").count(), 0);
}

#[test]
fn a_daemon_that_dies_with_a_journal_is_followed_by_one_that_clears_it() {
    let (own, path) = folder();
    let lab = boosted("jdead", &path);
    wait_open(&lab);
    let file = own.path().join("undrained");
    while_it_stands_still(&lab, |_| {
        assert!(kept(&lab).waiting > 0);
        kill(lab.daemon_pid(), Signal::SIGKILL).expect("the daemon");
        wait(STATE_WAIT, || match lab.try_status()?.daemon.as_str() {
            "dead" => Ok(()),
            other => Err(other.to_owned()),
        });
        assert!(!shown(&path).is_empty());
        // The client waits for the next daemon, and that for Redis.
        kill(lab.redis_pid(), Signal::SIGCONT).expect("redis");
        boost(&lab, &path);
    });
    wait_open(&lab);
    wait(STATE_WAIT, || {
        let found = shown(&path);
        found
            .is_empty()
            .then_some(())
            .ok_or(format!("{} records", found.len()))
    });

    // What cannot be brought to Redis goes to a file instead.
    let (still, _conn) = promised(&lab, &[("k", "owed")], |_| ());
    let done = lab.erb(&["detach", "--force", "--undrained-to", text(&file)]);
    drop(still);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(shown(&file), [("k".to_owned(), "owed".to_owned())]);
    assert_eq!(std::fs::read_dir(&path).expect("the folder").count(), 0);
}

/// Where something else is in the way of the detach there is no file, and nothing is given up.
#[test]
fn beside_a_dead_daemon_there_is_a_file_or_nothing_changes() {
    let (own, path) = folder();
    let lab = boosted("jkept", &path);
    wait_open(&lab);
    let file = own.path().join("undrained");
    let (still, _conn) = promised(&lab, &[("k", "owed")], |_| ());
    kill(lab.daemon_pid(), Signal::SIGKILL).expect("the daemon");
    wait(STATE_WAIT, || match lab.try_status()?.daemon.as_str() {
        "dead" => Ok(()),
        other => Err(other.to_owned()),
    });
    let kept_in = ["--undrained-to", text(&file)];
    // The client's connection is translated.
    let done = lab.erb(&[&["detach", "--wait", "1s"][..], &kept_in].concat());
    assert_eq!(done.status.code(), Some(14), "{done:?}");
    assert!(!file.exists(), "it is there, and so is all else");
    let done = lab.erb(&[&["detach", "--force"][..], &kept_in].concat());
    drop(still);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(shown(&file), [("k".to_owned(), "owed".to_owned())]);
    assert!(lab.try_status().is_err(), "it is boosted");
}

/// A segment of another start of the machine.
fn left_behind(folder: &Path) -> PathBuf {
    let header = Header {
        identity: Identity {
            journal: Id([1; 16]),
            boot: Id([2; 16]),
        },
        number: 77,
        first_lsn: 5,
    };
    let mut bytes = encode_header(&header).to_vec();
    let write = Write {
        lsn: 5,
        db: 0,
        expiry_ms: 0,
        key: b"left",
        value: b"behind",
    };
    encode_record(&header, &write, &mut bytes);
    // The power went while the next one was written.
    bytes.extend([0; 40]);
    std::fs::create_dir_all(folder).expect("the folder");
    let path = folder.join("000000000000004d.erbj");
    std::fs::write(&path, bytes).expect("a segment");
    path
}

#[test]
fn what_a_boost_has_left_that_is_no_more_is_told_and_left_alone() {
    let (_own, path) = folder();
    let segment = left_behind(&path);
    let lab = boosted("jleft", &path);
    wait_open(&lab);
    let found = kept(&lab);
    assert_eq!((found.left, found.left_segments), (1, 1), "{found:?}");
    assert!(found.left_what.contains("erb journal show"), "{found:?}");
    expect(&mut lab.unseen(), "EXISTS left", ":0\r\n");
    let check = journal(&["check", text(&path)]);
    assert_eq!(check.status.code(), Some(30), "{check:?}");
    let gone = journal(&["discard", "--yes", text(&path)]);
    assert!(gone.status.success() && !segment.exists(), "{gone:?}");
    wait(STATE_WAIT, || {
        let found = kept(&lab);
        (found.left == 0).then_some(()).ok_or(format!("{found:?}"))
    });
    assert!(lab.status().writes.open);
}

/// A file system of a test's own.
struct Small(PathBuf);

impl Small {
    fn mount(path: &Path, size: &str) -> Self {
        std::fs::create_dir_all(path).expect("a folder");
        let small = Self(path.to_path_buf());
        small.run(
            "mount",
            &["-t", "tmpfs", "-o", &format!("size={size}"), "erb-test"],
        );
        small
    }

    fn resize(&self, size: &str) {
        self.run("mount", &["-o", &format!("remount,size={size}")]);
    }

    fn run(&self, program: &str, words: &[&str]) {
        let done = Command::new(program).args(words).arg(&self.0).status();
        assert!(done.expect(program).success(), "{program} {words:?}");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_shuts_the_gate_by_its_name_and_loses_nothing() {
    let (_own, path) = folder();
    let disk = Small::mount(&path, "1m");
    let lab = boosted("jfull", &path);
    let wait_shut = || {
        wait(STATE_WAIT, || {
            let writes = lab.try_status()?.writes;
            let found = writes
                .conditions
                .iter()
                .find(|one| one.condition == "journal");
            let good = !writes.open && found.is_some_and(|one| !one.met);
            good.then_some(()).ok_or(format!("{writes:?}"))
        });
    };
    wait_shut();
    set(&mut lab.client(), "through", "Redis");
    expect(&mut lab.unseen(), "EXISTS through", ":1\r\n");
    disk.resize("8g");
    wait_open(&lab);

    // It is full at the moment when it is needed.
    while_it_stands_still(&lab, |_| {
        let before = kept(&lab);
        assert!(before.waiting > 0 && before.sound, "{before:?}");
    });
    wait_open(&lab);
    // What was kept stays until Redis has synced it.
    wait(STATE_WAIT, || {
        let found = kept(&lab);
        (found.segments == 1)
            .then_some(())
            .ok_or(format!("{found:?}"))
    });
    // More than a page, which the segment has.
    let answered = ["a", "b", "c", "d"].map(|key| (key.to_owned(), key.repeat(1_200)));
    let sets = answered
        .each_ref()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    let (still, _conn) = promised(&lab, &sets, |_| ());
    disk.resize("4k");
    wait_shut();
    wait(STATE_WAIT, || {
        let found = kept(&lab);
        let good = found.failures > 0 && found.waiting == 0 && !found.sound;
        good.then_some(()).ok_or(format!("{found:?}"))
    });
    disk.resize("8g");
    wait(STATE_WAIT, || {
        let found = kept(&lab);
        let good = found.waiting == 4 && found.sound;
        good.then_some(()).ok_or(format!("{found:?}"))
    });
    assert_eq!(shown(&path), answered);
    drop(still);
    wait_open(&lab);
    for (key, value) in &answered {
        let reply = lab.unseen().call(&["GET", key]).expect("GET");
        assert_eq!(
            String::from_utf8_lossy(&reply),
            format!("$1200\r\n{value}\r\n")
        );
    }
    let gone = lab.erb(&["detach", "--force"]);
    assert!(gone.status.success(), "{gone:?}");
}

#[test]
fn whoever_keeps_all_has_every_set_that_was_answered_although_it_is_drained() {
    let folder = TempDir::new().expect("a folder");
    let lab = boosted("journalall", folder.path());
    let gone = lab.erb(&["detach", "--force"]);
    assert!(gone.status.success(), "{gone:?}");
    let words = ["--journal", "all", "--journal-dir", text(folder.path())];
    let output = lab.boost(&[&MODE[..], &words].concat());
    assert!(output.status.success(), "{output:?}");
    lab.wait_admitting();
    wait_open(&lab);
    let (told, stop) = (Mutex::default(), AtomicBool::new(false));
    scope(|threads| {
        threads.spawn(|| write(&lab, &told, &stop));
        sleep(Duration::from_millis(1_500));
        stop.store(true, Ordering::Relaxed);
    });
    let answered = lab.counters().get("ABSORBED") as usize;
    let told = told.into_inner().expect("no panic");
    wait(STATE_WAIT, || {
        let found = kept(&lab);
        let all = found.written as usize == answered && found.keeps == "all" && found.sound;
        all.then_some(()).ok_or(format!("{found:?}"))
    });
    wait(STATE_WAIT, || match lab.try_status()?.writes.waiting {
        0 => Ok(()),
        waiting => Err(format!("{waiting} wait")),
    });
    // All of it is drained, and still there.
    let found = shown(folder.path());
    assert_eq!(found.len(), answered);
    let mut rest = told.iter();
    assert!(
        found.iter().all(|pair| rest.any(|one| one == pair)),
        "in their order"
    );
    wait(STATE_WAIT, || match shown(folder.path()).len() {
        0 => Ok(()),
        rest => Err(format!("{rest} are still kept")),
    });
    if answered <= told.len() / 2 {
        too_slow(format_args!(
            "{answered} of {} SETs were answered",
            told.len()
        ));
    }
}
