// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A boost that is interrupted before it is at work: it takes back what it has begun, waits for that, and whoever asks
//! meanwhile is told who is at it.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use erb_daemon::RunDir;
use erb_e2e::lab::erb_bin;
use erb_e2e::process::Still;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::place::{Place, assert_refused, wait_for};

/// Starts to boost, in the background but for `--foreground`.
fn starts(place: &Place, more: &[&str]) -> Child {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &place.server()]);
    command
        .arg(erb_bin())
        .args(["boost", "--dev", &place.device()]);
    command.args(["--redis", "127.0.0.1:6379", "--cache-size", "4M"]);
    command.args(more).arg("--run-dir").arg(place.run_dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().expect("erb boost")
}

fn send(process: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("a pid"));
    kill(pid, signal).expect("a signal");
}

/// Returns when it has begun to load, with the process that does.
fn loads(place: &Place) -> u32 {
    let run_dir = RunDir::new(&place.run_dir());
    let mut pid = 0;
    wait_for("the begin", || {
        pid = run_dir.begun().map_or(0, |begun| begun.pid);
        pid != 0
    });
    pid
}

fn ended(process: Child) -> Output {
    process.wait_with_output().expect("its end")
}

#[test]
fn a_boost_that_begins_is_told_with_its_process() {
    let place = Place::with_redis();
    let boost = starts(&place, &[]);
    let pid = loads(&place);
    let process = format!("process {pid}");
    let words = ["is being started", &process, "kill"];
    // However long asking takes.
    let still = Still::of(Pid::from_raw(i32::try_from(pid).expect("a pid")));
    for output in [
        place.erb(&["status"]),
        place.boost(),
        place.erb(&["detach"]),
    ] {
        assert_refused(&output, 11, &words);
    }
    drop(still);
    let output = ended(boost);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.status()["daemon"], "running");
}

#[test]
fn a_boost_that_is_interrupted_takes_back_what_it_has_begun() {
    for (more, signal, code) in [
        (&[][..], Signal::SIGINT, 130),
        (&[], Signal::SIGTERM, 143),
        (&["--foreground"], Signal::SIGINT, 130),
        (&["--foreground"], Signal::SIGTERM, 143),
    ] {
        let place = Place::with_redis();
        let boost = starts(&place, more);
        loads(&place);
        send(&boost, signal);
        assert_refused(&ended(boost), code, &["interrupted", "taken back"]);
        // It has waited.
        place.assert_untouched();
        assert_refused(&place.erb(&["status"]), 12, &["nothing is boosted"]);
        place.boosted();
    }
}

#[test]
fn the_process_that_loads_can_be_ended_too() {
    let place = Place::with_redis();
    let boost = starts(&place, &[]);
    let pid = Pid::from_raw(i32::try_from(loads(&place)).expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("a signal");
    assert_refused(&ended(boost), 143, &["interrupted", "taken back"]);
    place.assert_untouched();
}

#[test]
fn at_whatever_moment_a_boost_is_interrupted_nothing_is_left_or_all_is_at_work() {
    let place = Place::with_redis();
    let mut codes = Vec::new();
    for after_ms in [0, 20, 100, 400, 1_000, 2_000, 3_000, 4_500] {
        let boost = starts(&place, &[]);
        std::thread::sleep(Duration::from_millis(after_ms));
        // A boost that has returned is no process any more.
        let pid = Pid::from_raw(i32::try_from(boost.id()).expect("a pid"));
        let _ = kill(pid, Signal::SIGINT);
        let output = ended(boost);
        codes.push(output.status.code());
        match output.status.code() {
            Some(0) => {
                assert_eq!(place.status()["daemon"], "running");
                let output = place.erb(&["detach"]);
                assert!(output.status.success(), "{output:?}");
            }
            Some(130) => {}
            // It ended as any program, before it looked at signals: nothing had begun.
            None => {}
            other => panic!("{other:?} after {after_ms} ms: {output:?}"),
        }
        place.assert_untouched();
    }
    println!("{codes:?}");
}

#[test]
fn what_was_at_work_before_an_interrupted_boost_stays_so() {
    let place = Place::with_redis();
    place.boosted();
    for after_ms in [0, 100, 300, 1_000] {
        let boost = starts(&place, &["--take-over"]);
        std::thread::sleep(Duration::from_millis(after_ms));
        let pid = Pid::from_raw(i32::try_from(boost.id()).expect("a pid"));
        let _ = kill(pid, Signal::SIGINT);
        let output = ended(boost);
        println!("{after_ms} ms: {output:?}");
        wait_for("it serves", || {
            let status = place.status();
            status["daemon"] == "running" && status["serving"] == true
        });
    }
}
