// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Redis is told about itself stops and resumes serving.

use std::time::Duration;

use erb_check::net::Conn;
use erb_e2e::calls::{call, expect, get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, wait};

/// What ERB cannot see it reads again once a second; the rest is for a busy machine.
const UNSEEN_WITHIN: Duration = Duration::from_secs(3);

/// Sends a command whose last word may be empty; Redis must accept it.
fn change(conn: &mut Conn, words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    let reply = conn.call(&words).expect("a reply");
    assert!(
        !reply.starts_with(b"-"),
        "{words:?}: {}",
        String::from_utf8_lossy(&reply)
    );
}

/// While this connection is a monitor nothing is answered and it sees every GET; then serving
/// resumes. Where no packet shows MONITOR, the monitor sees every GET only after the next look.
fn a_monitor_sees_all(lab: &TestLab, mut monitor: Conn, unseen: bool) {
    let mut reader = lab.client();
    lab.heat(&mut reader, "hot");
    expect(&mut monitor, "MONITOR", "+OK\r\n");
    if unseen {
        lab.wait_refusing("MONITOR", UNSEEN_WITHIN);
    }
    let before = lab.counters();
    set(&mut reader, "begin", "1");
    for _ in 0..10 {
        assert_eq!(get(&mut reader, "hot").as_deref(), Some("v"));
    }
    lab.wait_refusing("MONITOR", UNSEEN_WITHIN);
    for _ in 0..10 {
        assert_eq!(get(&mut reader, "hot").as_deref(), Some("v"));
    }
    assert_eq!(lab.counters().since(&before, "FAST_GET"), 0, "hits");
    set(&mut reader, "end", "1");
    let (mut gets, mut inside) = (0, false);
    loop {
        let line = monitor.reply().expect("a line of MONITOR");
        let line = String::from_utf8_lossy(&line);
        inside |= line.contains("\"begin\"");
        gets += usize::from(inside && line.contains("\"GET\" \"hot\""));
        if line.contains("\"end\"") {
            break;
        }
    }
    assert!(gets >= 20, "the monitor saw {gets} of 20 GETs");
    drop(monitor);
    lab.wait_admitting();
    lab.heat(&mut reader, "hot");
}

#[test]
fn a_monitor_sees_every_command() {
    let lab = TestLab::boosted_with("monitor", &["--direct"]);
    let mut admin = lab.unseen();
    set(&mut admin, "hot", "v");
    a_monitor_sees_all(&lab, lab.client(), false);
    a_monitor_sees_all(&lab, lab.unseen(), true);
    // RESETSTAT forgets that there was a MONITOR, not that there is one.
    let mut monitor = lab.unseen();
    expect(&mut monitor, "MONITOR", "+OK\r\n");
    lab.wait_refusing("MONITOR", UNSEEN_WITHIN);
    expect(&mut admin, "CONFIG RESETSTAT", "+OK\r\n");
    std::thread::sleep(UNSEEN_WITHIN);
    lab.wait_refusing("MONITOR", Duration::ZERO);
    drop(monitor);
    lab.wait_admitting();
    lab.assert_settled();
}

#[test]
fn nobody_reads_without_the_password() {
    let lab = TestLab::boosted_with("password", &["--direct"]);
    let mut admin = lab.client();
    set(&mut admin, "hot", "v");
    lab.heat(&mut admin, "hot");
    for round in 0..10 {
        change(&mut admin, "CONFIG SET requirepass secret");
        let mut stranger = lab.client();
        let reply = call(&mut stranger, "GET hot");
        assert!(reply.starts_with("-NOAUTH"), "round {round}: {reply:?}");
        change(&mut admin, "CONFIG SET requirepass ");
        expect(&mut stranger, "GET hot", "$1\r\nv\r\n");
    }
    lab.assert_settled();
}

#[test]
fn a_client_that_redis_killed_is_not_answered_any_more() {
    let lab = TestLab::boosted_with("killed", &["--direct"]);
    let (mut admin, mut victim) = (lab.unseen(), lab.client());
    set(&mut admin, "hot", "v");
    lab.heat(&mut victim, "hot");
    let address = victim.stream().local_addr().expect("address");
    expect(&mut admin, &format!("CLIENT KILL ADDR {address}"), ":1\r\n");
    let words = ["GET", "hot"];
    let ended = (0..3).any(|_| victim.call(&words).is_err());
    assert!(ended, "a killed client was answered three times");
    lab.assert_settled();
}

/// Fills Redis with keys of a kilobyte, so that it evicts others.
fn flood(admin: &mut Conn, prefix: &str, count: u32) {
    let value = "x".repeat(1000);
    for number in 0..count {
        set(admin, &format!("{prefix}{number}"), &value);
    }
}

#[test]
fn keys_that_erb_answers_are_not_the_first_that_redis_evicts() {
    let lab = TestLab::boosted_with("evict", &["--direct"]);
    let (mut admin, mut reader) = (lab.unseen(), lab.client());
    // Ten of a sample decide: what is used is then never the oldest of them.
    let config = "CONFIG SET maxmemory 8mb maxmemory-policy allkeys-lru maxmemory-samples 10";
    change(&mut admin, config);
    set(&mut admin, "hot", "v");
    lab.heat(&mut reader, "hot");
    // Were few of the reads ERB's, Redis would know by the others that the key is used.
    wait(STATE_WAIT, || {
        let before = lab.counters();
        for round in 0..6 {
            flood(&mut admin, &format!("round{round}:"), 3_000);
            for _ in 0..50 {
                assert_eq!(get(&mut reader, "hot").as_deref(), Some("v"), "{round}");
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(700));
        }
        let answered = lab.counters().since(&before, "FAST_GET");
        let good = (answered > 200).then_some(());
        good.ok_or_else(|| format!("{answered} of 300 answered by ERB"))
    });
    let evicted = call(&mut admin, "EXISTS round0:0 round0:1 round0:2");
    assert_eq!(evicted, ":0\r\n", "nothing was evicted");
    lab.assert_settled();
}
