// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histories that must pass and, next to each, one that must not.

use std::sync::Arc;

use erb_sim_redis::{Cause, Change, Executed, Stored};

use erb_sim::ConnId;
use erb_sim::check::{Checks, Config, Told, Via, changes_rights};
use erb_sim::time::{MS, Ns, START_NS, WALL_START_MS};

/// A run by hand: time moves a millisecond per step.
struct Run {
    checks: Checks,
    now: Ns,
}

fn words(line: &str) -> Vec<Arc<[u8]>> {
    line.split(' ')
        .map(|word| Arc::from(word.as_bytes()))
        .collect()
}

fn wire(line: &str) -> Vec<u8> {
    erb_check::resp::command(&words(line))
}

fn value(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

fn set(key: &str, value: Option<&str>, expire_at_ms: Option<u64>) -> Change {
    Change {
        db: 0,
        key: Arc::from(key.as_bytes()),
        value: value.map_or(Stored::Gone, |v| Stored::String(Arc::from(v.as_bytes()))),
        expire_at_ms,
        cause: Cause::Command,
    }
}

impl Run {
    fn new() -> Self {
        let mut run = Self {
            checks: Checks::new(Config::default()),
            now: START_NS,
        };
        for conn in 0..4 {
            run.checks.opened(run.now, conn, Via::Erb);
        }
        run
    }

    fn wait(&mut self, ms: u64) {
        self.now += ms * MS;
    }

    fn send(&mut self, conn: ConnId, line: &str) {
        self.wait(1);
        self.checks.sent(self.now, conn, &wire(line));
    }

    fn execute(&mut self, conn: Option<ConnId>, line: &str, reply: &[u8], changes: &[Change]) {
        self.wait(1);
        let executed = Executed {
            client: 1,
            argv: words(line),
            reply: reply.to_vec(),
            at_ns: self.now,
            db: 0,
            changes: changes.to_vec(),
            served: Vec::new(),
        };
        self.checks.executed(self.now, conn, false, &executed);
    }

    fn read(&mut self, conn: ConnId, reply: &[u8]) -> Result<(), &'static str> {
        self.wait(1);
        self.checks
            .received(self.now, conn, reply)
            .map_err(|violation| violation.check)
    }

    /// A whole SET.
    fn write(&mut self, conn: ConnId, key: &str, to: &str) {
        let line = format!("SET {key} {to}");
        self.send(conn, &line);
        self.execute(Some(conn), &line, b"+OK\r\n", &[set(key, Some(to), None)]);
        self.read(conn, b"+OK\r\n").expect("Redis's own reply");
    }

    /// A whole GET that is answered fast.
    fn fast(&mut self, conn: ConnId, key: &str, reply: &str) -> Result<(), &'static str> {
        self.send(conn, &format!("GET {key}"));
        self.read(conn, &value(reply))
    }
}

#[test]
fn replies_of_redis_pass_and_others_do_not() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(0, "LLEN k");
    run.execute(Some(0), "LLEN k", b":1\r\n", &[]);
    assert_eq!(run.read(0, b":2\r\n"), Err("stream"));
}

#[test]
fn a_reply_that_nobody_gave_is_rejected() {
    let mut run = Run::new();
    run.send(0, "LLEN k");
    assert_eq!(run.read(0, b":0\r\n"), Err("stream"));
    let mut run = Run::new();
    assert_eq!(
        run.read(0, b"+PONG\r\n"),
        Err("stream"),
        "nothing was asked"
    );
    let mut run = Run::new();
    run.send(0, "PING");
    assert_eq!(run.read(0, b"+PONG\r\n"), Ok(()));
    assert_eq!(run.read(0, b"+PONG\r\n"), Err("stream"), "a second reply");
    let mut run = Run::new();
    run.send(0, "PING");
    assert_eq!(run.read(0, b"hello\r\n"), Err("stream"), "no RESP");
}

#[test]
fn replies_in_another_order_are_rejected() {
    let mut run = Run::new();
    run.write(0, "a", "1");
    run.write(0, "b", "2");
    run.send(1, "GET a");
    run.send(1, "GET b");
    assert_eq!(run.read(1, &value("2")), Err("history"));
}

#[test]
fn fast_reads_of_the_present_value_pass() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    assert_eq!(run.fast(1, "k", "a"), Ok(()));
    run.write(0, "k", "b");
    assert_eq!(run.fast(1, "k", "b"), Ok(()));
    assert_eq!(run.checks.checked().fast, 2);
    assert!(run.checks.end(run.now).is_ok());
    assert_eq!(run.checks.checked().blackbox_keys, 1);
}

#[test]
fn a_value_that_was_replaced_before_the_request_is_rejected() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.write(0, "k", "b");
    assert_eq!(run.fast(1, "k", "a"), Err("history"));
}

#[test]
fn a_value_replaced_while_the_request_was_under_way_passes() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(1, "GET k");
    run.write(0, "k", "b");
    assert_eq!(run.read(1, &value("a")), Ok(()));
}

#[test]
fn a_value_that_comes_only_after_the_reply_is_rejected() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    assert_eq!(run.fast(1, "k", "b"), Err("history"));
    run.write(0, "k", "b");
}

#[test]
fn a_write_counts_from_its_execution_even_without_reply() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(0, "SET k b");
    assert_eq!(run.fast(1, "k", "a"), Ok(()), "not executed yet");
    run.execute(Some(0), "SET k b", b"+OK\r\n", &[set("k", Some("b"), None)]);
    run.checks.closed(run.now, 0);
    assert_eq!(run.fast(1, "k", "a"), Err("history"));
}

#[test]
fn one_connection_does_not_go_back_in_time() {
    // Two keys written one after the other while both reads are under way.
    let mut run = Run::new();
    run.write(0, "a", "1");
    run.write(0, "b", "1");
    run.send(1, "GET b");
    run.send(1, "GET a");
    run.write(0, "a", "2");
    run.write(0, "b", "2");
    run.read(1, &value("2")).expect("b = 2 within the interval");
    assert_eq!(
        run.read(1, &value("1")),
        Err("history"),
        "a = 1 is before b = 2"
    );
    let mut run = Run::new();
    run.write(0, "a", "1");
    run.write(0, "b", "1");
    run.send(1, "GET a");
    run.send(1, "GET b");
    run.write(0, "a", "2");
    run.write(0, "b", "2");
    run.read(1, &value("1")).expect("a = 1, early");
    assert_eq!(run.read(1, &value("2")), Ok(()));
}

#[test]
fn unseen_changes_may_be_missed_for_the_lease_only() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.execute(None, "SET k b", b"+OK\r\n", &[set("k", Some("b"), None)]);
    assert_eq!(run.fast(1, "k", "a"), Ok(()));
    assert_eq!(run.checks.checked().fast_stale, 1);
    run.wait(120);
    assert_eq!(run.fast(1, "k", "a"), Err("history"));
}

#[test]
fn the_allowance_is_for_unseen_changes_only() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.execute(None, "SET k b", b"+OK\r\n", &[set("k", Some("b"), None)]);
    run.write(0, "k", "c");
    assert_eq!(
        run.fast(1, "k", "a"),
        Err("history"),
        "a seen write lies between"
    );
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.write(0, "k", "b");
    run.execute(None, "SET k c", b"+OK\r\n", &[set("k", Some("c"), None)]);
    assert_eq!(run.fast(1, "k", "b"), Ok(()));
    assert_eq!(run.fast(1, "k", "a"), Err("history"));
}

#[test]
fn expiry_is_kept_to_the_millisecond() {
    let at = |run: &Run, ms: u64| run.now / MS + ms + WALL_START_MS as u64;
    let mut run = Run::new();
    run.send(0, "SET k a PX 50");
    let change = set("k", Some("a"), Some(at(&run, 50)));
    run.execute(Some(0), "SET k a PX 50", b"+OK\r\n", &[change]);
    run.read(0, b"+OK\r\n").unwrap();
    assert_eq!(run.fast(1, "k", "a"), Ok(()));
    run.wait(60);
    assert_eq!(run.fast(1, "k", "a"), Err("history"));
}

#[test]
fn equal_requests_are_told_apart_by_what_becomes_of_them() {
    // The first of three GETs is answered fast, Redis executes two.
    let mut run = Run::new();
    run.write(0, "k", "a");
    for _ in 0..3 {
        run.send(1, "GET k");
    }
    run.execute(Some(1), "GET k", &value("a"), &[]);
    run.execute(Some(1), "GET k", &value("a"), &[]);
    for _ in 0..3 {
        assert_eq!(run.read(1, &value("a")), Ok(()));
    }
    assert!(run.checks.unanswered().is_empty());
    assert_eq!(run.read(1, &value("a")), Err("stream"), "there were three");
}

#[test]
fn what_redis_executed_cannot_be_skipped() {
    // Redis executed the GET; the client gets a fast reply for it and none of Redis's.
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(1, "GET k");
    run.execute(Some(1), "GET k", &value("a"), &[]);
    run.write(0, "k", "b");
    assert_eq!(run.read(1, &value("b")), Err("history"));
}

#[test]
fn a_reply_whose_first_bytes_were_lost_is_rejected() {
    let mut run = Run::new();
    run.send(0, "MGET a b");
    run.execute(Some(0), "MGET a b", b"*2\r\n$1\r\nx\r\n$-1\r\n", &[]);
    assert_eq!(run.read(0, b"$1\r\nx\r\n"), Err("stream"));
}

#[test]
fn nothing_is_answered_fast_inside_a_transaction_or_another_database() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(1, "MULTI");
    run.execute(Some(1), "MULTI", b"+OK\r\n", &[]);
    run.read(1, b"+OK\r\n").unwrap();
    assert_eq!(run.fast(1, "k", "a"), Err("history"));
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(1, "SELECT 3");
    run.execute(Some(1), "SELECT 3", b"+OK\r\n", &[]);
    run.read(1, b"+OK\r\n").unwrap();
    assert_eq!(run.fast(1, "k", "a"), Err("history"));
}

/// AUTH as a user of some rights, at a time when they are what they are by a change that ERB saw or not.
fn restricted(seen: bool) -> Run {
    let mut run = Run::new();
    run.write(0, "k", "a");
    let by = seen.then_some(0);
    let users = [("default", true), ("few", false)];
    run.checks.rights_change(run.now, by, users.into_iter());
    assert_eq!(run.fast(1, "k", "a"), Ok(()));
    run.send(1, "AUTH few x");
    run.execute(Some(1), "AUTH few x", b"+OK\r\n", &[]);
    let told = Told {
        full: false,
        db: 0,
        resp: 2,
    };
    run.checks.told(1, "few", told);
    run.read(1, b"+OK\r\n").unwrap();
    run
}

#[test]
fn who_only_asks_for_rules_changes_none() {
    let changes = |line: &str| {
        let argv: Vec<_> = line.split(' ').map(|word| word.as_bytes().into()).collect();
        changes_rights(&argv)
    };
    for line in [
        "ACL SETUSER full -get",
        "acl deluser few",
        "ACL LOAD",
        "CONFIG SET timeout 0 requirepass x",
    ] {
        assert!(changes(line), "{line}");
    }
    for line in [
        "ACL LIST",
        "ACL",
        "ACL WHOAMI",
        "CONFIG GET requirepass",
        "CONFIG SET timeout 0",
        "SET setuser requirepass",
    ] {
        assert!(!changes(line), "{line}");
    }
}

#[test]
fn nothing_is_answered_fast_to_a_user_of_some_rights() {
    assert_eq!(restricted(true).fast(1, "k", "a"), Err("history"));
    assert_eq!(restricted(true).fast(2, "k", "a"), Ok(()));
    let mut run = restricted(false);
    assert_eq!(run.fast(1, "k", "a"), Ok(()), "nobody can know yet");
    run.wait(2_000);
    assert_eq!(run.fast(1, "k", "a"), Err("history"));
}

#[test]
fn a_monitor_sees_every_command() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(2, "MONITOR");
    run.execute(Some(2), "MONITOR", b"+OK\r\n", &[]);
    run.read(2, b"+OK\r\n").unwrap();
    assert_eq!(run.fast(1, "k", "a"), Err("monitor"));
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(2, "MONITOR");
    run.execute(Some(2), "MONITOR", b"+OK\r\n", &[]);
    run.checks.closed(run.now, 2);
    assert_eq!(run.fast(1, "k", "a"), Ok(()));
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(2, "MONITOR");
    run.execute(Some(2), "MONITOR", b"+OK\r\n", &[]);
    run.checks.dropped_by_redis(2);
    assert_eq!(run.fast(1, "k", "a"), Ok(()));
}

#[test]
fn muted_commands_are_executed_without_reply() {
    let mut run = Run::new();
    run.send(0, "CLIENT REPLY OFF");
    run.send(0, "SET k a");
    run.send(0, "CLIENT REPLY ON");
    run.execute(Some(0), "CLIENT REPLY OFF", b"", &[]);
    run.execute(Some(0), "SET k a", b"", &[set("k", Some("a"), None)]);
    run.execute(Some(0), "CLIENT REPLY ON", b"+OK\r\n", &[]);
    assert_eq!(run.read(0, b"+OK\r\n"), Ok(()));
    assert!(run.checks.unanswered().is_empty());
}

#[test]
fn after_a_restart_only_what_the_log_held_is_there() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.write(0, "k", "b");
    run.wait(1);
    run.checks.restarted(run.now, &[set("k", Some("a"), None)]);
    run.wait(200);
    assert_eq!(run.fast(1, "k", "a"), Ok(()), "the log held no more");
    assert_eq!(run.fast(1, "k", "b"), Err("history"));
}

#[test]
fn what_has_no_answer_is_reported_and_is_no_pass() {
    let mut run = Run::new();
    run.write(0, "k", "a");
    run.send(0, "SET k b");
    let sent = run.now;
    assert_eq!(run.checks.unanswered(), [(0, sent)]);
    run.checks.closed(run.now, 0);
    assert_eq!(run.checks.checked().unknown, 1);
    assert!(run.checks.unanswered().is_empty());
}

#[test]
fn replies_alone_show_a_lost_update() {
    // The model's own order is wrong here: only the second opinion can see it.
    let mut run = Run::new();
    for conn in 0..2 {
        run.send(conn, "INCR n");
        run.execute(
            Some(conn),
            "INCR n",
            b":1\r\n",
            &[set("n", Some("1"), None)],
        );
        run.read(conn, b":1\r\n").unwrap();
    }
    assert_eq!(
        run.checks.end(run.now).map_err(|v| v.check),
        Err("blackbox")
    );
}

#[test]
fn a_pipeline_read_at_once_counts_every_reply() {
    let mut run = Run::new();
    run.send(0, "GET n");
    run.execute(Some(0), "GET n", b"$-1\r\n", &[]);
    run.read(0, b"$-1\r\n").unwrap();
    run.wait(1);
    let both = [wire("INCR n"), wire("SET m x")].concat();
    run.checks.sent(run.now, 0, &both);
    run.execute(Some(0), "INCR n", b":1\r\n", &[set("n", Some("1"), None)]);
    run.execute(Some(0), "SET m x", b"+OK\r\n", &[set("m", Some("x"), None)]);
    run.read(0, b":1\r\n+OK\r\n").unwrap();
    run.checks.closed(run.now, 0);
    assert!(run.checks.end(run.now).is_ok());
    assert_eq!(run.checks.checked().blackbox_operations, 3);
}

#[test]
fn reads_of_several_keys_need_one_moment() {
    let mut run = Run::new();
    run.write(0, "a", "1");
    run.write(0, "b", "1");
    run.send(1, "MGET a b");
    run.write(0, "a", "2");
    run.write(0, "b", "2");
    let reply = |a, b| [b"*2\r\n".to_vec(), value(a), value(b)].concat();
    assert_eq!(run.read(1, &reply("1", "2")), Err("history"));
    for (a, b) in [("1", "1"), ("2", "1"), ("2", "2")] {
        let mut run = Run::new();
        run.write(0, "a", "1");
        run.write(0, "b", "1");
        run.send(1, "MGET a b");
        run.write(0, "a", "2");
        run.write(0, "b", "2");
        assert_eq!(run.read(1, &reply(a, b)), Ok(()), "{a} {b}");
    }
}

#[test]
fn fast_reads_say_what_the_key_held() {
    let said = |line: &str, reply: &[u8]| {
        let mut run = Run::new();
        run.write(0, "k", "value");
        run.send(1, line);
        run.read(1, reply)
    };
    for (line, reply) in [
        ("STRLEN k", &b":5\r\n"[..]),
        ("EXISTS k k", b":2\r\n"),
        ("TTL k", b":-1\r\n"),
        ("GETRANGE k 1 2", b"$2\r\nal\r\n"),
        ("EXISTS k none", b":1\r\n"),
        ("EXISTS none none", b":0\r\n"),
        ("TTL none", b":-2\r\n"),
        ("MGET k none", b"*2\r\n$5\r\nvalue\r\n$-1\r\n"),
        ("HGETALL none", b"*0\r\n"),
    ] {
        assert_eq!(said(line, reply), Ok(()), "{line}");
    }
    for (line, reply) in [
        ("STRLEN k", &b":4\r\n"[..]),
        ("EXISTS k none", b":2\r\n"),
        ("EXISTS k k", b":1\r\n"),
        ("EXISTS k", b":0\r\n"),
        ("TTL k", b":5\r\n"),
        ("TTL k", b":-2\r\n"),
        ("TTL none", b":-1\r\n"),
        ("HGETALL k", b"*0\r\n"),
        ("GETRANGE k 01 2", b"$2\r\nal\r\n"),
        ("MGET k none", b"*2\r\n$-1\r\n$5\r\nvalue\r\n"),
        ("MGET k none", b"*2\r\n$5\r\nvalue\r\n_\r\n"),
        ("GET none", b"_\r\n"),
    ] {
        assert_eq!(said(line, reply), Err("history"), "{line}");
    }
}

#[test]
fn where_misses_are_told_none_is_hidden() {
    let nil = b"$-1\r\n";
    let asked_then = |seen: bool, ms: u64, told: bool, line: &str, reply: &[u8]| {
        let mut run = Run::new();
        run.write(0, "k", "value");
        let by = seen.then_some(2);
        run.checks.misses_told(run.now, by, true);
        run.checks.misses_told(run.now, by, told);
        run.wait(ms);
        run.send(1, line);
        run.read(1, reply)
    };
    assert_eq!(asked_then(true, 0, true, "GET none", nil), Err("keymiss"));
    assert_eq!(
        asked_then(true, 0, true, "EXISTS k none", b":1\r\n"),
        Err("keymiss")
    );
    assert_eq!(asked_then(true, 0, true, "EXISTS k", b":1\r\n"), Ok(()));
    assert_eq!(asked_then(true, 0, false, "GET none", nil), Ok(()));
    assert_eq!(asked_then(false, 0, true, "GET none", nil), Ok(()));
    assert_eq!(
        asked_then(false, 2_000, true, "GET none", nil),
        Err("keymiss")
    );
}

#[test]
fn times_left_are_those_of_a_moment_between() {
    let mut run = Run::new();
    let wall = |run: &Run| run.now / MS + erb_sim::time::WALL_START_MS as u64;
    let end = wall(&run) + 1_000;
    let line = format!("SET k v PXAT {end}");
    run.send(0, &line);
    run.execute(
        Some(0),
        &line,
        b"+OK\r\n",
        &[set("k", Some("v"), Some(end))],
    );
    run.read(0, b"+OK\r\n").unwrap();
    run.send(1, "PTTL k");
    let left = end - wall(&run);
    let reply = format!(":{}\r\n", left + 1);
    assert_eq!(run.read(1, reply.as_bytes()), Err("history"));
    run.send(2, "PTTL k");
    let reply = format!(":{}\r\n", end - wall(&run));
    assert_eq!(run.read(2, reply.as_bytes()), Ok(()));
}

#[test]
fn what_expires_while_a_read_is_under_way_may_be_absent() {
    for (waits_ms, allowed) in [(900, false), (1_100, true)] {
        let mut run = Run::new();
        let end = run.now / MS + 2_000 + WALL_START_MS as u64;
        run.execute(None, "SET k v", b"", &[set("k", Some("v"), Some(end))]);
        run.wait(1_000);
        run.send(0, "GET k");
        run.now += waits_ms * MS;
        // A replica has no record of it.
        let read = run.read(0, b"$-1\r\n");
        assert_eq!(read, if allowed { Ok(()) } else { Err("history") });
    }
}
