// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other servers than the installed Redis, and servers that read by threads: the same short checks.

use std::thread::sleep;
use std::time::Duration;

use erb_check::history::{self, HistoryArgs};
use erb_check::net::Conn;
use erb_check::shadow::{self, ShadowArgs};
use erb_check::unseen::{self, UnseenArgs};
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, arguments, scaled, wait};
use erb_lab::End;
use erb_lab::servers::{CANNOT_BE_HAD, ServerProgram};
use erb_steady::skipped;

/// A boosted lab with that server, or nothing if there is no such package within reach.
fn lab_of(server: ServerProgram, name: &str, words: &[&str]) -> Option<TestLab> {
    if let Err(error) = server.program() {
        let error = format!("{error:#}");
        assert!(error.contains(CANNOT_BE_HAD), "{error}");
        skipped(error);
        return None;
    }
    let lab = TestLab::boosted_with(name, &[&["--direct"], words].concat());
    Some(lab)
}

/// Replies equal a plain server's byte by byte; concurrent histories are linearizable; what no packet
/// shows, shows within the lease; and all that with answers of ERB.
fn assert_right(mut lab: TestLab) {
    let (target, plain) = (lab.address(), lab.plain_redis());
    let seconds = scaled(5, 120);
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

/// A command that makes a hash table of so many fields: one value is longer than a listpack takes.
fn fields(key: &str, count: usize) -> String {
    let fields = (1..count).map(|number| format!("field{number} {number}"));
    let fields: Vec<String> = fields.collect();
    format!("HSET {key} field0 {} {}", "0".repeat(100), fields.join(" "))
}

/// YCSB's record.
fn table(key: &str) -> String {
    let fields = (0..10).map(|number| format!("field{number} {}", number.to_string().repeat(100)));
    format!("HSET {key} {}", fields.collect::<Vec<_>>().join(" "))
}

/// Asks for a hash some times; how many of the answers were ERB's.
fn answered(lab: &TestLab, conn: &mut Conn, key: &str) -> u64 {
    let before = lab.counters();
    for _ in 0..30 {
        call(conn, &format!("HGETALL {key}"));
        sleep(Duration::from_millis(10));
    }
    lab.counters().since(&before, "FAST_HGETALL")
}

/// Asks until most are answered: a lease may come late.
fn is_answered(lab: &TestLab, conn: &mut Conn, key: &str) {
    wait(STATE_WAIT, || {
        let fast = answered(lab, conn, key);
        (fast > 10)
            .then_some(())
            .ok_or_else(|| format!("{key}: {fast} of 30"))
    });
}

/// The reply to HKEYS that ERB gives.
fn keys_answered(lab: &TestLab, conn: &mut Conn, key: &str) -> String {
    wait(STATE_WAIT, || {
        let before = lab.counters();
        let own = call(conn, &format!("HKEYS {key}"));
        let after = lab.counters();
        let is_fast = after.since(&before, "FAST_HKEYS") == 1;
        is_fast.then_some(own).ok_or_else(|| after.moved(&before))
    })
}

/// A hash table is answered in Redis's own order, as long as nothing changes it; where the server knows
/// fields that expire, only while its database has none.
fn assert_tables(server: ServerProgram, name: &str, word: &str, fields_expire: bool) {
    let Some(lab) = lab_of(server, name, &["--server", word]) else {
        return;
    };
    let (mut admin, mut client) = (lab.unseen(), lab.client());
    expect(&mut admin, &table("h"), ":10\r\n");
    is_answered(&lab, &mut client, "h");
    for value in ["short", &"x".repeat(200)] {
        let whole = call(&mut admin, "HGETALL h");
        assert_eq!(call(&mut client, "HGETALL h"), whole);
        expect(&mut client, &format!("HSET h field3 {value}"), ":0\r\n");
        let own = format!("${}\r\n{value}\r\n", value.len());
        expect(&mut client, "HGET h field3", &own);
        is_answered(&lab, &mut client, "h");
    }
    // What Redis has begun to rehash it goes on with whenever a field is asked for.
    for size in [6, 10, 17, 33] {
        let key = format!("r{size}");
        expect(&mut admin, &fields(&key, size), &format!(":{size}\r\n"));
        is_answered(&lab, &mut client, &key);
        for field in 0..100 {
            call(&mut admin, &format!("HGET {key} field{field}"));
        }
        let own = keys_answered(&lab, &mut client, &key);
        assert_eq!(call(&mut admin, &format!("HKEYS {key}")), own);
    }
    if fields_expire {
        expect(&mut admin, &table("other"), ":10\r\n");
        let expires = |key, ms| format!("HPEXPIRE {key} {ms} FIELDS 1 field3");
        expect(&mut admin, &expires("other", 900_000), "*1\r\n:1\r\n");
        // It is there still when ERB was asked, however busy the machine is, and then it is not.
        expect(&mut admin, &expires("h", 600_000), "*1\r\n:1\r\n");
        sleep(Duration::from_millis(200));
        assert_eq!(answered(&lab, &mut client, "h"), 0, "a field may expire");
        expect(&mut admin, &expires("h", 200), "*1\r\n:1\r\n");
        sleep(Duration::from_millis(400));
        expect(&mut client, "HGET h field3", "$-1\r\n");
        expect(&mut admin, "DEL other", ":1\r\n");
        // None may.
        expect(&mut client, "HSET h field3 back", ":1\r\n");
        is_answered(&lab, &mut client, "h");
    }
    lab.assert_settled();
}

#[test]
fn tables_of_redis_7_are_answered() {
    assert_tables(ServerProgram::Redis7, "tables7", "redis7", false);
}

#[test]
fn tables_of_redis_8_are_answered_while_no_field_expires() {
    assert_tables(ServerProgram::Redis8, "tables8", "redis8", true);
}

#[test]
fn tables_of_valkey_8_are_answered() {
    assert_tables(ServerProgram::Valkey8, "tablesv", "valkey8", false);
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
        sleep(Duration::from_millis(5));
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
