// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that escape: unknown keys, transactions, connections that are not understood, proofs
//! (C-3, C-7, C-8, C-9, C-20, C-21, C-22, C-38, C-39, C-40).

use erb_abi as abi;

use crate::ConnId;
use crate::client::session::Deed;
use crate::scenario::tools::Talk;
use crate::scenario::{Scenario, Setup, over_seeds};
use crate::time::{MS, SECOND};

/// Whether a GET of a cached key is answered fast now.
fn is_fast(s: &mut Scenario, client: ConnId) -> bool {
    let fast = s.stat(abi::STAT_FAST_GET);
    s.call(client, &[b"GET", b"k"]);
    s.stat(abi::STAT_FAST_GET) > fast
}

/// Runs until a GET is fast again.
fn becomes_fast(s: &mut Scenario, client: ConnId) {
    for _ in 0..4000 {
        if is_fast(s, client) {
            return;
        }
        s.run(5 * MS);
    }
    panic!("never fast again: {}", s.counters());
}

fn setup() -> (Scenario, ConnId) {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let client = s.fast();
    assert!(is_fast(&mut s, client), "{}", s.counters());
    (s, client)
}

pub(crate) fn unknown_keys_close_everything() {
    let (mut s, client) = setup();
    let script = s.open_on(1, None);
    s.call(script, &[b"PING"]);
    s.stop_redis(true);
    s.ask(
        script,
        &[
            b"EVAL",
            b"return redis.call('set',KEYS[1],ARGV[1])",
            b"1",
            b"k",
            b"w",
        ],
    );
    s.run(MS);
    assert_eq!(s.control().fence, 1, "no fence");
    let refused = s.stat(abi::STAT_REFUSE_FENCE);
    let fast = s.stat(abi::STAT_FAST_GET);
    s.ask(client, &[b"GET", b"k"]);
    s.run(MS);
    assert_eq!(s.stat(abi::STAT_REFUSE_FENCE), refused + 1);
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast);
    s.stop_redis(false);
    assert_eq!(s.answers(client), b"$1\r\nw\r\n");
    s.answers(script);
    s.settle();
    assert_eq!(s.control().fence, 0);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    becomes_fast(&mut s, client);
    s.finish();
}

pub(crate) fn writes_of_bypassed_connections() {
    let (mut s, client) = setup();
    let other = s.open_on(1, None);
    s.call(other, &[b"SELECT", b"0"]);
    s.call(other, &[b"CLIENT", b"TRACKING", b"OFF"]);
    let marks = s.stat(abi::STAT_MARK_TAKEN) + s.stat(abi::STAT_FENCE_TAKEN);
    s.call(other, &[b"SET", b"k", b"w"]);
    assert!(
        s.stat(abi::STAT_MARK_TAKEN) + s.stat(abi::STAT_FENCE_TAKEN) > marks,
        "a write in BYPASS took nothing"
    );
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    becomes_fast(&mut s, client);
    s.finish();
}

pub(crate) fn older_than_erb() {
    let mut s = Scenario::new(Setup {
        attached: false,
        ..Setup::default()
    });
    let old = s.open_on(1, None);
    s.call(old, &[b"SET", b"k", b"v"]);
    s.attach();
    let client = s.fast();
    let made = s.stat(abi::STAT_CONN_OLD);
    let fast = s.fast_packets();
    assert_eq!(s.call(old, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.stat(abi::STAT_CONN_OLD), made + 1);
    assert!(
        s.stat(abi::STAT_FENCE_PROOF) > 0,
        "no fence for its payload"
    );
    assert_eq!(s.fast_packets(), fast, "an old connection was answered");
    becomes_fast(&mut s, client);
    s.call(old, &[b"SET", b"k", b"w"]);
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    s.finish();
}

pub(crate) fn queued_is_no_reply() {
    over_seeds(1..9, &Setup::default(), |mut s| {
        s.cached(b"k", b"v");
        let client = s.fast();
        let writer = s.open_on(1, None);
        s.call(writer, &[b"MULTI"]);
        assert_eq!(s.call(writer, &[b"SET", b"k", b"w"]), b"+QUEUED\r\n");
        // Filled again between QUEUED and EXEC.
        for _ in 0..10 {
            assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
            s.run(3 * MS);
        }
        let fences = s.stat(abi::STAT_FENCE_TAKEN) + s.stat(abi::STAT_FENCE_PROOF);
        s.call(writer, &[b"EXEC"]);
        assert!(s.stat(abi::STAT_FENCE_TAKEN) + s.stat(abi::STAT_FENCE_PROOF) > fences);
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
        s.finish();
    });
}

pub(crate) fn streams_that_cannot_be_parsed() {
    let (mut s, client) = setup();
    let odd = s.open_on(1, None);
    s.call(odd, &[b"PING"]);
    let lost = s.stat(abi::STAT_SCAN_LOST);
    s.write(odd, b"*1\r\n:4\r\nPING\r\n", 1);
    s.settle();
    assert_eq!(s.stat(abi::STAT_SCAN_LOST), lost + 1);
    becomes_fast(&mut s, client);
    assert_eq!(s.control().fence, 0);
    s.finish();
}

pub(crate) fn blocked_for_long() {
    let (mut s, client) = setup();
    let idle = s.open_on(1, None);
    s.call(idle, &[b"PING"]);
    s.ask(idle, &[b"BLPOP", b"list", b"0"]);
    s.run(3 * SECOND);
    // One idle consumer may close the fast path while its command may still run; it must not
    // answer a single wrong byte, and it ends with the reply.
    s.unseen(&[b"RPUSH", b"list", b"x"]);
    s.answers(idle);
    s.call(client, &[b"GET", b"k"]);
    becomes_fast(&mut s, client);
    assert_eq!(s.control().fence, 0);
    s.finish();
}

pub(crate) fn no_reply_will_come() {
    let (mut s, client) = setup();
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"CLIENT", b"REPLY", b"OFF"]);
    assert!(talk.ask(&mut s, &[b"SET", b"k", b"w"]).is_empty());
    s.run(5 * MS);
    // Released by proof, not by a reply that never comes.
    assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nw\r\n");
    becomes_fast(&mut s, client);
    assert_eq!(s.control().fence, 0, "the fence leaked");
    assert!(s.stat(abi::STAT_FENCE_PROOF) > 0, "no proof was needed");
}

pub(crate) fn marks_of_a_connection_that_dies() {
    over_seeds(1..9, &Setup::default(), |mut s| {
        s.cached(b"k", b"v");
        let client = s.fast();
        let writer = s.open_on(1, None);
        s.call(writer, &[b"PING"]);
        s.stop_redis(true);
        s.ask(writer, &[b"SET", b"k", b"w"]);
        s.run(MS);
        s.deed(writer, Deed::Abort);
        s.run(MS);
        let marked = s.stat(abi::STAT_REFUSE_MARKED);
        s.ask(client, &[b"GET", b"k"]);
        s.run(MS);
        assert_eq!(
            s.stat(abi::STAT_REFUSE_MARKED),
            marked + 1,
            "the mark went before its command could run"
        );
        s.stop_redis(false);
        s.answers(client);
        becomes_fast(&mut s, client);
        s.finish();
    });
}

pub(crate) fn copies_take_no_mark() {
    let (mut s, _) = setup();
    let writer = s.open();
    s.call(writer, &[b"PING"]);
    let (taken, released) = (
        s.stat(abi::STAT_MARK_TAKEN),
        s.stat(abi::STAT_MARK_RELEASED),
    );
    let copies = crate::link::Fate::Copies(3, 100_000);
    s.up(0, Some(crate::scenario::first(1, copies)));
    assert_eq!(s.call(writer, &[b"INCR", b"n"]), b":1\r\n");
    s.settle();
    assert_eq!(s.stat(abi::STAT_MARK_TAKEN), taken + 1);
    assert_eq!(s.stat(abi::STAT_MARK_RELEASED), released + 1);
    s.finish();
}

pub(crate) fn first_command_is_redis_own() {
    let mut s = Scenario::new(Setup::default());
    s.cached(b"k", b"v");
    let fast = s.fast_packets();
    let conn = s.open();
    assert_eq!(s.call(conn, &[b"GET", b"k"]), b"$1\r\nv\r\n");
    assert_eq!(s.fast_packets(), fast, "the first command was answered");
    assert_eq!(s.call(conn, &[b"GET", b"k"]), b"$1\r\nv\r\n");
    assert_eq!(s.fast_packets(), fast + 1);
    // A password is asked for from now on: who has not said it gets no data.
    s.unseen(&[b"CONFIG", b"SET", b"requirepass", b"secret"]);
    s.run(2 * SECOND);
    let stranger = s.open_on(1, None);
    let fast = s.fast_packets();
    assert!(s.call(stranger, &[b"GET", b"k"]).starts_with(b"-NOAUTH"));
    assert!(s.call(stranger, &[b"GET", b"k"]).starts_with(b"-NOAUTH"));
    assert_eq!(s.fast_packets(), fast, "data for a stranger");
    s.finish();
}

pub(crate) fn commands_that_move_the_gate() {
    let commands: [&[&[u8]]; 3] = [
        &[b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru"],
        &[b"ACL", b"SETUSER", b"default", b"off"],
        &[b"MONITOR"],
    ];
    for argv in commands {
        let (mut s, client) = setup();
        let admin = s.open_on(1, None);
        s.call(admin, &[b"PING"]);
        let shut = s.stat(abi::STAT_GATE_SHUT);
        s.stop_daemon(true);
        s.call(admin, argv);
        assert_eq!(s.stat(abi::STAT_GATE_SHUT), shut + 1, "{argv:?}");
        assert_ne!(s.control().gate_seen, s.control().gate_ack);
        assert!(!is_fast(&mut s, client), "{argv:?}: answered unread");
        let fast = s.fast_packets();
        s.call(client, &[b"PING"]);
        assert_eq!(s.fast_packets(), fast, "{argv:?}: answered unread");
        s.stop_daemon(false);
        s.run(SECOND);
        assert_eq!(s.control().gate_seen, s.control().gate_ack, "{argv:?}");
    }
}

/// A key that is read through ERB only stays, though hundreds of keys come after it.
pub(crate) fn policies_that_count_reads() {
    for policy in ["allkeys-lru", "volatile-lru", "allkeys-lfu"] {
        let (mut s, client) = setup();
        s.unseen(&[b"PEXPIRE", b"k", b"10000000"]);
        s.unseen(&[b"CONFIG", b"SET", b"maxmemory-policy", policy.as_bytes()]);
        s.unseen(&[b"CONFIG", b"SET", b"maxmemory", b"882000"]);
        s.run(2 * SECOND);
        becomes_fast(&mut s, client);
        for round in 0..300 {
            let key = format!("filler{round}");
            s.unseen(&[b"SET", key.as_bytes(), b"v", b"EX", b"1000"]);
            assert!(is_fast(&mut s, client), "{policy}, round {round}");
            let value = s.call(client, &[b"GET", b"k"]);
            assert_eq!(value, b"$1\r\nv\r\n", "{policy}, round {round}: evicted");
            s.run(20 * MS);
        }
        // By use alone: not read any more, it goes.
        s.run(2 * SECOND);
        for round in 300..600 {
            let key = format!("filler{round}");
            s.unseen(&[b"SET", key.as_bytes(), b"v", b"EX", b"1000"]);
            if !policy.ends_with("lfu") {
                s.run(20 * MS);
            }
        }
        let there = s.call(client, &[b"GET", b"k"]) == b"$1\r\nv\r\n";
        assert_eq!(there, policy.ends_with("lfu"), "{policy}");
        s.finish();
    }
}

/// Nothing is answered fast while the MONITOR is there, so many times; when it has gone, all is again.
fn looks_on(mut s: Scenario, client: ConnId, monitor: ConnId, times: u32) {
    for _ in 0..times {
        assert!(!is_fast(&mut s, client), "a MONITOR did not see it");
        s.run(100 * MS);
    }
    s.close(monitor);
    s.run(3 * SECOND);
    becomes_fast(&mut s, client);
    s.finish();
}

pub(crate) fn monitor_sees_everything() {
    let (mut s, client) = setup();
    let monitor = s.open_on(1, None);
    s.call(monitor, &[b"MONITOR"]);
    s.run(2 * SECOND);
    looks_on(s, client, monitor, 10);
}

pub(crate) fn monitor_that_cannot_be_read() {
    let (mut s, client) = setup();
    let monitor = s.open_on(1, None);
    s.call(monitor, &[b"PING"]);
    // Redis does not look at the two bytes behind an argument, the scanner gives up there.
    let lost = s.stat(abi::STAT_SCAN_LOST);
    s.write(monitor, b"*1\r\n$7\r\nMONITORxy", 1);
    assert_eq!(s.answers(monitor), b"+OK\r\n");
    assert_eq!(s.stat(abi::STAT_SCAN_LOST), lost + 1);
    looks_on(s, client, monitor, 30);
}
