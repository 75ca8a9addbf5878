// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other servers than the installed Redis, and servers that read by threads: the same short checks.

use std::time::Duration;

use erb_check::history::{self, HistoryArgs};
use erb_check::shadow::{self, ShadowArgs};
use erb_check::unseen::{self, UnseenArgs};
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{TestLab, arguments, scaled};
use erb_lab::End;
use erb_lab::servers::{CANNOT_BE_HAD, ServerProgram};

/// A boosted lab with that server, or nothing if there is no such package within reach.
fn lab_of(server: ServerProgram, name: &str, words: &[&str]) -> Option<TestLab> {
    if let Err(error) = server.program() {
        let error = format!("{error:#}");
        assert!(error.contains(CANNOT_BE_HAD), "{error}");
        println!("skipped: {error}");
        return None;
    }
    let lab = TestLab::boosted_with(name, &[&["--direct"], words].concat());
    Some(lab)
}

/// Replies equal a plain server's byte by byte; concurrent histories are linearizable; what no packet
/// shows, shows within the lease; and all that with answers of ERB.
fn assert_right(mut lab: TestLab) {
    let (target, plain) = (lab.address(), lab.plain_redis());
    let seconds = scaled(8, 120);
    let words = format!("--target {target} --shadow {plain} --seconds {seconds} --conns 30");
    let report = lab.inside(End::Client, || {
        shadow::execute(&arguments::<ShadowArgs>(&words)).expect("shadow")
    });
    assert!(report.passed, "{report:#?}");
    let words = format!("--target {target} --ops {}", scaled(20_000, 500_000));
    let report = lab.inside(End::Client, || {
        history::execute(&arguments::<HistoryArgs>(&words)).expect("history")
    });
    assert!(report.passed, "{report:#?}");
    let words = format!(
        "--target {target} --direct {} --bound-ms 150 --load 4 --allow-flush --rounds {}",
        lab.unseen_address(),
        scaled(3, 50)
    );
    let report = lab.inside(End::Client, || {
        unseen::execute(&arguments::<UnseenArgs>(&words)).expect("unseen")
    });
    assert!(report.passed, "{report:#?}");
    let counters = lab.assert_settled();
    assert!(counters.get("FAST_GET") > 0, "nothing was answered fast");
}

#[test]
fn redis_8_is_served_as_it_answers_itself() {
    if let Some(lab) = lab_of(ServerProgram::Redis8, "redis8", &["--server", "redis8"]) {
        assert_right(lab);
    }
}

#[test]
fn redis_8_with_threads_that_read_is_served_as_it_answers_itself() {
    let words = ["--server", "redis8", "--io-threads", "4"];
    if let Some(lab) = lab_of(ServerProgram::Redis8, "redis8t", &words) {
        assert_right(lab);
    }
}

#[test]
fn valkey_8_is_served_as_it_answers_itself() {
    if let Some(lab) = lab_of(ServerProgram::Valkey8, "valkey8", &["--server", "valkey8"]) {
        assert_right(lab);
    }
}

/// Valkey tells a client that asked for it where the master is, instead of answering its reads.
#[test]
fn a_replica_of_valkey_redirects_who_asked_for_it() {
    let words = ["--server", "valkey8"];
    let Some(lab) = lab_of(ServerProgram::Valkey8, "valkey8r", &words) else {
        return;
    };
    let (mut admin, mut other, mut conn) = (lab.unseen(), lab.client(), lab.client());
    set(&mut admin, "k", "v");
    lab.heat(&mut conn, "k");
    expect(&mut conn, "CLIENT CAPA redirect", "+OK\r\n");
    assert_eq!(get(&mut conn, "k").as_deref(), Some("v"));
    // Nobody is there: what it has, it serves on.
    expect(&mut admin, "REPLICAOF 127.0.0.1 1", "+OK\r\n");
    lab.wait_admitting();
    lab.heat(&mut other, "k");
    for number in 0..200 {
        let reply = call(&mut conn, "GET k");
        assert_eq!(reply, "-REDIRECT 127.0.0.1:1\r\n", "reply {number}");
        std::thread::sleep(Duration::from_millis(5));
    }
    lab.assert_settled();
}

#[test]
fn valkey_8_with_threads_that_read_is_served_as_it_answers_itself() {
    let words = ["--server", "valkey8", "--io-threads", "4"];
    if let Some(lab) = lab_of(ServerProgram::Valkey8, "valkey8t", &words) {
        assert_right(lab);
    }
}

#[test]
fn redis_7_with_threads_that_read_is_served_as_it_answers_itself() {
    if let Some(lab) = lab_of(ServerProgram::Redis7, "redis7t", &["--io-threads", "4"]) {
        assert_right(lab);
    }
}
