// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Number and order of replies: one that is taken for another's is the worst that ERB could do.

use crate::sequence::Sequence;
use crate::sequence::Who::{A, B, C};

/// See above.
pub fn all() -> Vec<Sequence> {
    [
        transactions(),
        silence(),
        pushes(),
        two_lines(),
        blocking(),
        full(),
    ]
    .concat()
}

/// What envoy's users sent.
const MULTI: &str = "MULTI ; SET {p}a 1 ; SET {p}b 2 ; EXEC ; GET {p}a";

fn transactions() -> Vec<Sequence> {
    const PROXY: &str = "redis-cluster-proxy #49";
    vec![
        Sequence::new("ping-in-multi", PROXY)
            .hot("EXISTS {p}w")
            .ask(A, "MULTI ; PING ; GET {p}w ; EXISTS {p}w ; EXEC")
            .ask(A, "GET {p}w"),
        Sequence::new("ping-in-multi-watched", PROXY)
            .hot("EXISTS {p}w")
            .ask(
                A,
                "WATCH {p}w ; MULTI ; PING ; GET {p}w ; EXISTS {p}w ; EXEC",
            )
            .ask(A, "GET {p}w"),
        Sequence::new("get-beside-exec", PROXY)
            .ask(A, "MULTI")
            .ask(A, "GET {p}w ; EXEC ; GET {p}w"),
        Sequence::new("multi-refused", PROXY).ask(A, "MULTI x ; GET {p}w ; PING"),
        Sequence::new("multi-in-a-segment", "envoy #23651")
            .given("SET {p}a 0")
            .hot("GET {p}a")
            .ask(A, MULTI),
        Sequence::new("multi-a-thousand-times", "envoy #26342")
            .given("SET {p}a 0")
            .hot("GET {p}a")
            .ask(A, vec![MULTI; 1000].join(" ; ")),
    ]
}

fn silence() -> Vec<Sequence> {
    const VALKEY: &str = "valkey #1268";
    vec![
        Sequence::new("replies-off-in-multi", VALKEY).to_the_mark(
            A,
            "MULTI ; PING before ; CLIENT REPLY OFF ; PING 1 ; PING 2 ; CLIENT REPLY ON ; \
             PING after ; EXEC ; GET {p}w",
        ),
        Sequence::new("reply-skipped", VALKEY)
            .given("SET {p}v other")
            .hot("GET {p}v")
            .to_the_mark(A, "CLIENT REPLY SKIP ; GET {p}w ; GET {p}v"),
        Sequence::new("replies-off", VALKEY)
            .given("SET {p}v other")
            .hot("GET {p}v")
            .to_the_mark(
                A,
                "CLIENT REPLY OFF ; GET {p}w ; GET {p}v ; CLIENT REPLY ON ; GET {p}w",
            ),
        Sequence::new("replies-off-around-multi", VALKEY).to_the_mark(
            A,
            "CLIENT REPLY OFF ; MULTI ; GET {p}w ; EXEC ; CLIENT REPLY ON ; GET {p}w",
        ),
    ]
}

fn pushes() -> Vec<Sequence> {
    const ORDER: &str = "redis #11038";
    let flushed = |name, command: &str| {
        Sequence::new(name, ORDER)
            .alone()
            .given("SELECT 1 ; SET {p}w one ; SELECT 0")
            .hello(A, "3")
            .ask(A, "CLIENT TRACKING ON ; GET {p}w")
            .to_the_mark(A, &format!("MULTI ; {command} ; EXEC"))
            .ask(B, "GET {p}w")
            .ask(C, "SELECT 1 ; GET {p}w")
    };
    vec![
        Sequence::new("push-while-replies-are-off", "redis #11874")
            .hello(A, "3")
            .ask(A, "CLIENT TRACKING ON BCAST PREFIX {p}")
            .say(A, "CLIENT REPLY OFF")
            .did(A, "client|reply")
            .ask(B, "SET {p}w x")
            // Where SETs are answered before they are executed, this comes after that.
            .ask(B, "INCR n:{p}")
            .to_the_mark(A, "CLIENT REPLY ON ; GET {p}w"),
        flushed("push-of-flushall-in-multi", "FLUSHALL"),
        flushed("push-of-flushdb-in-multi", "FLUSHDB"),
        flushed("push-of-swapdb-in-multi", "SWAPDB 0 1"),
        Sequence::new("database-beside-tracking", "dragonfly #8016")
            .given("SELECT 1 ; SET {p}w one ; SELECT 0")
            .hello(A, "3")
            .ask(A, "CLIENT TRACKING ON ; SELECT 1 ; GET {p}w")
            .ask(A, "SELECT 0 ; GET {p}w"),
    ]
}

/// One reply that is two lines, on servers that do not clean errors and status replies.
fn two_lines() -> Vec<Sequence> {
    const CLEANED: &str = "redis PR #14872";
    let before_a_block = |name, command: &str| {
        Sequence::new(name, CLEANED)
            .say(A, format!("{command} ; BLPOP {{p}}q 0"))
            .blocked(A)
            .say(A, "GET {p}w ; ECHO the-mark")
            .ask(B, "RPUSH {p}q v")
            .until(A, crate::sequence::MARK)
            .ask(B, "GET {p}w")
    };
    vec![
        before_a_block("two-lines-of-function", r"FUNCTION LIST x\r\n+OK"),
        before_a_block(
            "two-lines-of-an-error",
            r"EVAL 'return redis.error_reply(ARGV[1])' 0 a\r\n:1",
        ),
        before_a_block(
            "two-lines-of-an-error-table",
            r"EVAL 'return {err=ARGV[1]}' 0 a\r\n:1",
        ),
        before_a_block(
            "two-lines-of-a-status",
            r"EVAL 'return redis.status_reply(ARGV[1])' 0 a\r\n+OK",
        ),
        before_a_block(
            "two-lines-of-a-status-table",
            r"EVAL 'return {ok=ARGV[1]}' 0 a\r\n$-1",
        ),
        Sequence::new("three-lines-before-a-write", CLEANED)
            .say(
                A,
                r"FUNCTION LIST x\r\n+OK\r\n+OK ; BLPOP {p}q 0 ; SET {p}w new ; ECHO the-mark",
            )
            .blocked(A)
            .ask(B, "GET {p}w ; GET {p}w")
            .ask(C, "RPUSH {p}q v")
            .until(A, crate::sequence::MARK)
            .ask(B, "GET {p}w ; GET {p}w"),
    ]
}

fn blocking() -> Vec<Sequence> {
    let unblocked = |name, how: &str| {
        Sequence::new(name, "garnet #2030")
            .say(A, "BLPOP {p}q 0")
            .blocked(A)
            .ask(B, format!("CLIENT UNBLOCK {{id:A}} {how}"))
            .get(A, 1)
            .ask(A, "PING ; GET {p}w")
    };
    vec![
        Sequence::new("replies-before-a-block", "dragonfly #7733")
            .given("SET {p}o old")
            .hot("GET {p}o")
            .say(A, "PING ; SET {p}o x ; GET {p}o ; BLPOP {p}q 0")
            .get(A, 3)
            .blocked(A)
            .ask(B, "RPUSH {p}q v")
            .get(A, 1)
            .ask(A, "GET {p}o"),
        unblocked("unblocked-by-an-error", "ERROR"),
        unblocked("unblocked-by-a-time-out", "TIMEOUT"),
        // Alone: with threads CLIENT LIST stops all of them, and several plays that ask for it keep each other from warm keys.
        Sequence::new("deferred-by-a-stream", "valkey PR #4060")
            .threads()
            .alone()
            .given("XGROUP CREATE {p}s g $ MKSTREAM")
            .say(
                A,
                "SET {p}x 1 ; GET {p}w ; XREADGROUP GROUP g c BLOCK 0 STREAMS {p}s >",
            )
            .get(A, 2)
            .blocked(A)
            .ask(B, "XADD {p}s 1-1 f v")
            .get(A, 1)
            .ask(A, "GET {p}w"),
        Sequence::new("crowd-of-pipelines", "valkey #3198")
            .threads()
            .alone()
            .uncut()
            .crowd(640, vec!["SET {p}c v"; 100].join(" ; "))
            .ask(A, "GET {p}c ; GET {p}w"),
    ]
}

/// Replies that wait unread while requests go on.
fn full() -> Vec<Sequence> {
    let reads = vec!["GET {p}big ; GET {p}w"; 24].join(" ; ");
    let long = "x".repeat(4 << 20);
    vec![
        Sequence::new("both-directions-full", "redis-rs #1955")
            .alone()
            .uncut()
            .given("SETRANGE {p}big 1048575 x")
            .ask(
                A,
                format!("{reads} ; SET {{p}}x {long} ; GET {{p}}w ; STRLEN {{p}}x"),
            ),
    ]
}
