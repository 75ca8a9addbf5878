// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One Redis has one boost: a second one would not see what is written through the first. It is refused however the Redis
//! is named, and what belongs to the same boost is not.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use erb_daemon::RunDir;
use erb_e2e::calls::call;
use erb_e2e::lab::{STATE_WAIT, TestLab, erb_bin, long, wait};
use erb_e2e::process::signal;
use erb_lab::End;
use nix::sys::signal::Signal;

use crate::devices::two_uplinks;

/// Exit code of `erb --help`.
const ALREADY: i32 = 11;

/// `erb boost` in the server's namespace, in this run directory or in the default one.
fn boost(lab: &TestLab, run_dir: Option<&Path>, redis: &str, devices: &[&str]) -> Command {
    let mut command = lab.lab().exec(End::Server, erb_bin()).expect("exec");
    command.args(["boost", "--cache-size", "4M", "--redis", redis]);
    for device in devices {
        command.args(["--dev", device]);
    }
    if let Some(run_dir) = run_dir {
        command.arg("--run-dir").arg(run_dir);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

fn assert_accepted(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
}

#[track_caller]
fn assert_refused(output: &Output, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(ALREADY), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

/// The first boost: of s0 alone.
fn boosted(lab: &TestLab) {
    let redis = lab.address().to_string();
    let output = boost(lab, Some(lab.run_dir()), &redis, &["s0"]).output();
    assert_accepted(&output.expect("erb"));
    lab.wait_admitting();
}

/// As a crash would.
fn kill_daemon(lab: &TestLab) {
    signal(lab.daemon_pid(), Signal::SIGKILL);
    let run_dir = RunDir::new(lab.run_dir());
    wait(STATE_WAIT, || {
        let ended = !run_dir.is_locked();
        ended.then_some(()).ok_or_else(|| "it lives".to_owned())
    });
}

/// Every way to name the lab's Redis.
fn names(lab: &TestLab) -> Vec<String> {
    let port = lab.address().port();
    let socket = lab.lab().state().redis_dir.join("redis.sock");
    vec![
        lab.address().to_string(),
        lab.address6().to_string(),
        format!("127.0.0.1:{port}"),
        format!("127.0.0.9:{port}"),
        format!("[::1]:{port}"),
        format!("localhost:{port}"),
        format!("unix:{}", socket.display()),
    ]
}

/// Where else a boost may be kept; none: in the default place.
fn places(folder: &Path) -> [Option<PathBuf>; 3] {
    [
        None,
        Some("/run/erb/e2e-second-place".into()),
        Some(folder.join("a place")),
    ]
}

/// All that names the same Redis otherwise is refused, and nothing is left of it.
fn assert_all_refused(lab: &TestLab, words: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let (names, places) = (names(lab), places(folder.path()));
    let sets = [&["lo"][..], &["s1"], &["s0"], &["s0", "lo"], &["lo", "s1"]];
    let all = names.len() * sets.len() * places.len();
    // A step that none of the three numbers divides: each name meets different devices and places.
    for at in (0..all).step_by(if long() { 1 } else { 4 }) {
        let redis = &names[at % names.len()];
        let devices = sets[at / names.len() % sets.len()];
        let place = places[at / names.len() / sets.len()].as_deref();
        let mut command = boost(lab, place, redis, devices);
        println!("{command:?}");
        assert_refused(&command.output().expect("erb"), words);
        if let Some(place) = place {
            assert!(!place.exists(), "{place:?} is left");
        }
    }
}

#[test]
fn one_redis_twice_is_refused_however_it_is_named() {
    let lab = two_uplinks("twice");
    boosted(&lab);
    let detach = format!("erb detach --run-dir {}", lab.run_dir().display());
    assert_all_refused(&lab, &["is boosted already", &detach]);
    // Beside it in its own place: with other devices, or the same.
    let redis = lab.address().to_string();
    for devices in [&["s1"][..], &["s0", "lo"]] {
        let mut command = boost(&lab, Some(lab.run_dir()), &redis, devices);
        assert_refused(&command.output().expect("erb"), &["already", &detach]);
    }
    let output = boost(&lab, Some(lab.run_dir()), &redis, &["s0"]).output();
    assert_refused(&output.expect("erb"), &["already boosted"]);
    assert!(lab.status().serving, "the first goes on");
    doctor_sees_it(&lab);
    // The commands that are named are right.
    let output = boost(&lab, None, &redis, &["lo"]).output().expect("erb");
    let said = said(&output);
    let commands: Vec<&str> = said.split('`').skip(1).step_by(2).collect();
    assert_eq!(commands.len(), 2, "{said}");
    for (command, more) in commands.iter().zip(["", " --cache-size 4M"]) {
        let words = format!("{command}{more}").replacen("erb", &erb_bin().display().to_string(), 1);
        lab.exec(End::Server, &["sh", "-c", &words]);
    }
    let output = lab
        .lab()
        .exec(End::Server, erb_bin())
        .expect("exec")
        .arg("status")
        .output();
    let status = String::from_utf8_lossy(&output.expect("erb").stdout).into_owned();
    assert!(status.contains("s0") && status.contains("lo"), "{status}");
    let detached = lab.lab().exec(End::Server, erb_bin()).expect("exec");
    end(detached);
}

fn end(mut erb: Command) {
    assert_accepted(&erb.args(["detach", "--force"]).output().expect("erb"));
}

/// It is no hindrance where the same devices are named, and else the error of a boost.
fn doctor_sees_it(lab: &TestLab) {
    let redis = lab.address().to_string();
    let place = lab.run_dir().display().to_string();
    for (device, code) in [("s0", 0), ("lo", ALREADY), ("s1", ALREADY)] {
        let mut command = lab.lab().exec(End::Server, erb_bin()).expect("exec");
        command.args(["doctor", "--redis", &redis, "--dev", device]);
        let output = command.output().expect("erb");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(
            said.contains("boosted already: on s0 (run") && said.contains(&place),
            "{said}"
        );
    }
}

#[test]
fn one_redis_twice_by_a_dead_daemon_is_refused_and_adopted() {
    let lab = two_uplinks("twicedead");
    boosted(&lab);
    kill_daemon(&lab);
    assert_all_refused(
        &lab,
        &["is boosted already", "has died", "erb detach --run-dir"],
    );
    doctor_sees_it(&lab);
    // Its own is another matter: at once, and with the feed of the dead in Redis's list maybe.
    boosted(&lab);
    for _ in 0..3 {
        kill_daemon(&lab);
        boosted(&lab);
        let redis = lab.address().to_string();
        let mut again = boost(&lab, Some(lab.run_dir()), &redis, &["s0"]);
        assert_accepted(&again.arg("--take-over").output().expect("erb"));
        lab.wait_admitting();
        end_and_begin_elsewhere(&lab);
    }
}

/// A detach ends it: the next one may be anything.
fn end_and_begin_elsewhere(lab: &TestLab) {
    let output = lab.erb(&["detach", "--force"]);
    assert_accepted(&output);
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("run");
    let redis = format!("[::1]:{}", lab.address().port());
    let output = boost(lab, Some(&place), &redis, &["lo"]).output();
    assert_accepted(&output.expect("erb"));
    let mut detach = lab.lab().exec(End::Server, erb_bin()).expect("exec");
    detach
        .arg("detach")
        .arg("--force")
        .arg("--run-dir")
        .arg(&place);
    assert_accepted(&detach.output().expect("erb"));
    boosted(lab);
}

/// Neither is seen by the other's feed yet.
#[test]
fn one_redis_twice_at_once_is_boosted_once() {
    let lab = two_uplinks("twiceatonce");
    let folder = tempfile::tempdir().expect("a folder");
    let names = names(&lab);
    for round in 0..3 {
        let devices = ["s0", "s1", "lo"];
        let places: Vec<PathBuf> = devices
            .iter()
            .map(|name| folder.path().join(name))
            .collect();
        let begun: Vec<Child> = (0..3)
            .map(|at| {
                let redis = &names[(round + at) % names.len()];
                let mut command = boost(&lab, Some(&places[at]), redis, &devices[at..=at]);
                command.spawn().expect("erb")
            })
            .collect();
        let ends = begun
            .into_iter()
            .map(|boost| boost.wait_with_output().expect("its end"));
        let ends: Vec<Output> = ends.collect();
        let codes: Vec<Option<i32>> = ends.iter().map(|output| output.status.code()).collect();
        println!("{codes:?}");
        let accepted = ends.iter().filter(|output| output.status.success());
        assert_eq!(accepted.count(), 1, "{ends:#?}");
        for (output, place) in ends.iter().zip(&places) {
            if output.status.success() {
                let mut detach = lab.lab().exec(End::Server, erb_bin()).expect("exec");
                detach.arg("detach").arg("--run-dir").arg(place);
                assert_accepted(&detach.output().expect("erb"));
            } else {
                assert_refused(output, &["already"]);
            }
        }
    }
}

/// As of a boost in a container: no directory is seen.
#[test]
fn one_redis_twice_is_seen_by_its_feed_alone() {
    let lab = two_uplinks("twicefeed");
    let mut feed = lab.unseen();
    call(&mut feed, "CLIENT SETNAME erb-feed:elsewhere");
    let id = call(&mut feed, "CLIENT ID");
    let id = id.trim_start_matches(':').trim_end();
    let kill = format!("CLIENT KILL ID {id}");
    let redis = lab.address().to_string();
    let output = boost(&lab, Some(lab.run_dir()), &redis, &["s0"]).output();
    assert_refused(
        &output.expect("erb"),
        &["erb-feed:elsewhere", &kill, "not seen from here"],
    );
    assert!(!lab.run_dir().exists());
    let mut doctor = lab.lab().exec(End::Server, erb_bin()).expect("exec");
    doctor.args(["doctor", "--redis", &redis, "--dev", "s0"]);
    assert_refused(
        &doctor.output().expect("erb"),
        &["erb-feed:elsewhere", &kill],
    );
    // It is about to end, as that of a daemon that was killed.
    let ends = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(feed);
    });
    boosted(&lab);
    ends.join().expect("its end");
}

#[test]
fn two_redis_servers_are_not_one_redis_twice() {
    let mut lab = two_uplinks("twicetwo");
    boosted(&lab);
    let other = lab.address().port() + 1;
    let _redis = lab.redis_on(other);
    let first = lab.run_dir().to_path_buf();
    let second = PathBuf::from("/run/erb/e2e-twicetwo-other");
    // The first is at work, then dead.
    for dead in [false, true] {
        if dead {
            kill_daemon(&lab);
        }
        let redis = format!("127.0.0.1:{other}");
        let output = boost(&lab, Some(&second), &redis, &["lo"]).output();
        assert_accepted(&output.expect("erb"));
        lab.use_run_dir(&second);
        lab.wait_admitting();
        assert_accepted(&lab.erb(&["detach", "--force"]));
        lab.use_run_dir(&first);
    }
}

/// The port of a server may change: what is at work is of that server all the same.
#[test]
fn one_redis_twice_by_another_port_is_refused() {
    let lab = two_uplinks("twiceport");
    boosted(&lab);
    let other = lab.address().port() + 1;
    let mut admin = lab.unseen();
    assert_eq!(
        call(&mut admin, &format!("CONFIG SET port {other}")),
        "+OK\r\n"
    );
    let redis = format!("127.0.0.1:{other}");
    let refused = || {
        let output = boost(&lab, None, &redis, &["lo"]).output();
        assert_refused(
            &output.expect("erb"),
            &["is boosted already", "erb detach --run-dir"],
        );
    };
    refused();
    kill_daemon(&lab);
    // A client from before is there yet.
    refused();
    drop(admin);
}
