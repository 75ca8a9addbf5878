// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is so is told: with the exit code that a service can act on, with the process that has to go, and without a word
//! of success where there is none.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use erb_e2e::lab::erb_bin;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::place::{Place, assert_refused, wait_for};
use crate::{boost_with, connect, tell};

const REDIS: &str = "127.0.0.1:6379";

/// Whether something of a list of the status has this word.
fn says(place: &Place, list: &str, word: &str) -> bool {
    place.status()[list].to_string().contains(word)
}

/// What `erb doctor --json` says in the server's namespace, with its exit code; `by`: another program before it.
fn doctor(place: &Place, by: &[&str]) -> (Value, Option<i32>) {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &place.server()]).args(by);
    command
        .arg(erb_bin())
        .args(["doctor", "--json", "--redis", REDIS]);
    let output = command.args(["--dev", &place.device()]).output().unwrap();
    let found = serde_json::from_slice(&output.stdout);
    let found = found.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (found, output.status.code())
}

#[test]
fn a_name_that_is_not_known_is_no_mistake_in_the_arguments() {
    let place = Place::with_redis();
    let output = boost_with(&place, &place.device(), "redis.invalid:6379", &[]);
    assert_refused(&output, 7, &["redis.invalid:6379", "resolved", "--redis"]);
    place.assert_untouched();
}

#[test]
fn a_folder_that_is_no_text_is_a_mistake_in_the_arguments() {
    let place = Place::with_redis();
    let run_dir = place.folder.join(OsStr::from_bytes(b"run\xff"));
    let device = place.device();
    let words = ["boost", "--dev", &device, "--redis", REDIS];
    for words in [&words[..], &["status"], &["detach"]] {
        let output = place.erb_at(&place.server(), &run_dir, &[], words);
        assert_refused(&output, 2, &["--run-dir", "UTF-8"]);
    }
    assert!(!run_dir.exists());
}

#[test]
fn a_log_that_cannot_be_written_is_told_and_ends_nothing() {
    let place = Place::with_redis();
    let more = ["--cache-size", "4M", "--log", "/dev/full"];
    let output = boost_with(&place, &place.device(), REDIS, &more);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("the log cannot be written (No space"),
        "{said}"
    );
    wait_for("serving", || place.status()["serving"] == true);
    // The daemon has more to say.
    place.redis(&["SWAPDB", "0", "1"]);
    wait_for("another message", || says(&place, "notes", "messages lost"));
    assert_eq!(place.redis_outside(&["SET", "key", "value"]), "OK");
    assert_eq!(place.status()["daemon"], "running");
    let output = place.erb(&["detach"]);
    assert!(output.status.success(), "{output:?}");
    place.assert_untouched();
}

#[test]
fn a_cluster_node_is_boosted_only_by_an_explicit_word() {
    let mut place = Place::new();
    place.start_redis_with(&["--cluster-enabled", "yes"]);
    assert_eq!(doctor(&place, &[]).1, Some(16));
    assert_refused(&place.boost(), 16, &["cluster node", "slots", "--anyway"]);
    place.assert_untouched();
    let more = ["--cache-size", "4M", "--anyway"];
    let output = boost_with(&place, &place.device(), REDIS, &more);
    assert!(output.status.success(), "{output:?}");
    wait_for("the reason", || says(&place, "not_serving", "cluster"));
    // What is at work needs a daemon, whatever its Redis is.
    place.crash();
    let output = place.boost();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn where_no_user_may_do_everything_that_is_told_with_the_word_that_is_against_it() {
    let place = Place::with_redis();
    place.boosted();
    let none = "no user may do everything";
    assert!(!says(&place, "notes", none));
    place.redis(&["ACL", "SETUSER", "default", "-debug"]);
    let told = "no user may do everything, because of -debug (user default)";
    wait_for("the note", || says(&place, "notes", told));
    let (found, _) = doctor(&place, &[]);
    let mut findings = found["findings"].as_array().unwrap().iter();
    let is_told = |one: &Value| one["level"] == "error" && one["text"].to_string().contains(told);
    assert!(findings.any(is_told), "{found}");
    place.redis(&["ACL", "SETUSER", "default", "+@all"]);
    wait_for("its end", || !says(&place, "notes", none));
}

#[test]
fn a_daemon_that_may_not_read_all_keys_any_more_answers_nothing() {
    let place = Place::with_redis();
    let all = ["on", ">secret", "~*", "&*", "+@all"];
    place.redis(&[&["ACL", "SETUSER", "feed"], &all[..]].concat());
    let file = place.folder.join("password");
    fs::write(&file, "secret").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    let user = [
        "--redis-user",
        "feed",
        "--redis-password-file",
        file,
        "--cache-size",
        "4M",
    ];
    let output = boost_with(&place, &place.device(), REDIS, &user);
    assert!(output.status.success(), "{output:?}");
    wait_for("serving", || place.status()["serving"] == true);
    place.redis(&["ACL", "SETUSER", "feed", "resetkeys", "~app:*"]);
    wait_for("the reason", || {
        place.status()["serving"] == false && says(&place, "not_serving", "no ~*")
    });
    place.redis(&["ACL", "SETUSER", "feed", "resetkeys", "~*"]);
    wait_for("serving again", || place.status()["serving"] == true);
}

#[test]
fn a_dead_daemon_is_told_with_what_it_has_left() {
    let place = Place::with_redis();
    place.boosted();
    let mut streams: Vec<_> = (0..10).map(|_| connect(&place)).collect();
    for stream in &mut streams {
        tell(stream, "PING\r\n", "+PONG\r\n");
    }
    place.crash();
    assert_eq!(place.status()["connections"]["total"], 10);
    let output = place.erb(&["status"]);
    let said = String::from_utf8_lossy(&output.stdout);
    for words in [
        "the daemon is dead",
        "`erb boost` with the same arguments adopts",
        "10: ",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("pid 0"), "{said}");
}

#[test]
fn rules_that_cannot_be_looked_at_are_unknown() {
    let place = Place::with_redis();
    let (found, _) = doctor(&place, &["env", "PATH=/nonexistent"]);
    let findings = found["findings"].as_array().unwrap();
    let firewall = findings.iter().find(|one| one["subject"] == "firewall");
    assert_eq!(firewall.unwrap()["level"], "unknown", "{found}");
    assert!(found["unknown"].as_u64() >= Some(1), "{found}");
}

#[test]
fn a_daemon_whose_run_directory_was_emptied_is_named_with_the_way_out() {
    for with_lock in [false, true] {
        let place = Place::with_redis();
        place.boosted();
        let pid = place.status()["pid"].as_i64().unwrap();
        for name in ["control.sock", "notes.json", "log", "boost.lock", "lock"] {
            if with_lock || name != "lock" {
                let _ = fs::remove_file(place.run_dir().join(name));
            }
        }
        let way_out = [
            &format!("process {pid} is the daemon")[..],
            &format!("kill {pid}"),
        ];
        for command in ["detach", "status"] {
            assert_refused(&place.erb(&[command]), 11, &way_out);
        }
        if with_lock {
            assert_refused(&place.boost(), 11, &way_out);
        }
        let pid = Pid::from_raw(i32::try_from(pid).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        wait_for("the daemon to leave", || !place.run_dir().exists());
        place.assert_untouched();
    }
}

#[test]
fn ways_past_the_boosted_devices_are_told_with_the_flags_that_are_missing() {
    let place = Place::with_redis();
    place.add_device("more0");
    let words = ["127.0.0.1 by lo, for clients of this machine", "--dev lo"];
    let (found, code) = doctor(&place, &[]);
    let findings = found["findings"].as_array().unwrap();
    let of_devices = |one: &&Value| one["subject"] == "devices" && one["level"] == "warning";
    let mut told = findings.iter().filter(of_devices);
    let is_told = |one: &Value| words.iter().all(|word| one.to_string().contains(word));
    assert!(told.any(is_told), "{found}");
    assert_eq!(code, Some(0), "{found}");
    let output = place.boost();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = || fs::read_to_string(place.run_dir().join("log")).unwrap();
    wait_for("the log", || words.iter().all(|word| log().contains(word)));
    for word in words {
        assert!(said.contains(word), "{said}");
        assert!(says(&place, "notes", word), "{}", place.status());
    }
    // It has no address.
    assert!(!said.contains("more0"), "{said}");
    let output = place.erb(&["detach"]);
    assert!(output.status.success(), "{output:?}");
    let output = boost_with(
        &place,
        &place.device(),
        REDIS,
        &["--dev", "lo", "--cache-size", "4M"],
    );
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("serving"), "{said}");
    assert!(!said.contains("past the boosted devices"), "{said}");
    assert!(!says(&place, "notes", "past the boosted devices"));
}
