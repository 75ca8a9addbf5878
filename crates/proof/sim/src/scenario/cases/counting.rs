// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests and replies are counted; who never comes back (T-11, T-22, T-23).

use erb_abi as abi;

use crate::client::resp::request;
use crate::client::session::Stage;
use crate::scenario::tools::Talk;
use crate::scenario::{Scenario, Setup};
use crate::time::{MS, SECOND};

pub(crate) fn idle_timer_of_redis() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"CONFIG", b"SET", b"timeout", b"3"]);
    s.run(3 * SECOND);
    s.cached(b"k", b"v");
    let client = s.fast();
    let began = s.now();
    let fast = s.stat(abi::STAT_FAST_GET);
    while s.now() - began < 12 * SECOND {
        assert_eq!(s.call(client, &[b"GET", b"k"]), b"$1\r\nv\r\n");
        s.run(100 * MS);
        assert_eq!(s.stage(client), Some(Stage::Open), "Redis closed it");
    }
    assert!(s.stat(abi::STAT_FAST_GET) - fast > 60, "not fast");
    let up = s.stat(abi::STAT_REFUSE_HEARTBEAT);
    assert!((10..40).contains(&up), "{up} went up for it");
    s.finish();
}

pub(crate) fn requests_without_reply() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    for empty in [b"\r\n".as_slice(), b"*0\r\n", b"*-1\r\n", b"\r\n\r\n*0\r\n"] {
        s.write(client, empty, 0);
        s.settle();
        let entry = s.entry(client).expect("an entry");
        assert_eq!(entry.requests, entry.replies, "{empty:?} was counted");
        let fast = s.fast_packets();
        assert_eq!(s.call(client, &[b"PING"]), b"+PONG\r\n");
        assert_eq!(s.fast_packets(), fast + 1, "never fast after {empty:?}");
    }
    s.finish();
}

/// A Redis that leaves line ends in its errors; `warm` is cached as `v`, and what each of two connections says is fast.
fn of_many_lines(line_ends: bool) -> (Scenario, Talk) {
    let mut s = Scenario::new(Setup {
        line_ends,
        ..Setup::default()
    });
    s.cached(b"warm", b"v");
    let mut raw = s.raw();
    raw.ts = Some((1_000_000, 0)); // the express lane takes nothing else
    let mut talk = Talk::begin(&mut s, raw);
    assert_eq!(talk.ask(&mut s, &GET_WARM), WARM);
    (s, talk)
}

const GET_WARM: [&[u8]; 2] = [b"GET", b"warm"];
const WARM: &[u8] = b"$1\r\nv\r\n";
const POP: [&[u8]; 3] = [b"BLPOP", b"q", b"1"];
const POPPED: &[u8] = b"*-1\r\n";

/// An error of which each line looks like a reply: of so many.
fn error_of(lines: usize) -> (Vec<u8>, Vec<u8>) {
    let argument = [b"x".as_slice(), &b"\r\n+OK".repeat(lines - 1)].concat();
    let error = [b"-ERR Unknown argument ".as_slice(), &argument, b"\r\n"].concat();
    (request(&[b"FUNCTION", b"LIST", &argument]), error)
}

pub(crate) fn lines_that_look_like_replies() {
    // What is behind BLPOP is answered behind its reply, whatever the lines before it look like.
    let (mut s, mut talk) = of_many_lines(true);
    let (asked, error) = error_of(2);
    assert_eq!(talk.say(&mut s, &[asked, request(&POP)].concat()), error);
    assert_eq!(talk.ask(&mut s, &GET_WARM), b"", "before BLPOP's reply");
    s.run(2 * SECOND);
    assert_eq!(talk.hear(&mut s), [POPPED, WARM].concat());
    s.finish();

    // Nor is it known where the reply to a second such command begins.
    let (mut s, mut talk) = of_many_lines(true);
    let (asked, error) = error_of(1);
    assert_eq!(talk.say(&mut s, &asked.repeat(2)), error.repeat(2));
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    assert_eq!(u32::from(entry.state), abi::CONN_BYPASS, "{}", s.counters());
    s.finish();

    // Nor is a write taken for one that has run.
    let (mut s, mut talk) = of_many_lines(true);
    let reader = s.fast();
    s.is_fast_within(reader, b"warm", SECOND);
    let (asked, error) = error_of(3);
    let set = request(&[b"SET", b"warm", b"w"]);
    assert_eq!(
        talk.say(&mut s, &[asked, request(&POP), set].concat()),
        error
    );
    talk.ack(&mut s);
    assert!(!s.is_fast_now(reader, b"warm"), "the SET has not run");
    s.run(2 * SECOND);
    assert_eq!(talk.hear(&mut s), [POPPED, b"+OK\r\n"].concat());
    s.is_fast_within(reader, b"warm", SECOND);
    assert_eq!(s.call(reader, &GET_WARM), b"$1\r\nw\r\n");
    s.finish();
}

pub(crate) fn lines_and_what_is_asked_later() {
    for late in [
        request(&POP),
        request(&[b"SET", b"warm", b"w"]),
        request(&[b"GET", b"other"]),
        request(&GET_WARM),
    ] {
        let (mut s, mut talk) = of_many_lines(true);
        // Behind what was not answered the express lane looks at misses and writes.
        assert_eq!(talk.ask(&mut s, &[b"GET", b"nil"]), b"$-1\r\n");
        talk.ack(&mut s);
        let (asked, error) = error_of(2);
        // Redis stands still: the error comes when more was asked.
        s.stop_redis(true);
        assert_eq!(talk.say(&mut s, &asked), b"");
        assert_eq!(talk.say(&mut s, &late), b"");
        let entry = s.entry_of(talk.raw.pair()).expect("an entry");
        assert_eq!(u32::from(entry.state), abi::CONN_BYPASS, "{}", s.counters());
        s.stop_redis(false);
        s.run(MS);
        assert!(talk.hear(&mut s).starts_with(&error));
        s.run(2 * SECOND);
        talk.hear(&mut s);
        s.finish();
    }
    // An error of one line, alone, changes nothing: what is asked behind it is answered.
    let (mut s, mut talk) = of_many_lines(true);
    for _ in 0..3 {
        let (asked, error) = error_of(1);
        assert_eq!(talk.say(&mut s, &asked), error);
        let fast = s.stat(abi::STAT_FAST_GET);
        assert_eq!(talk.ask(&mut s, &GET_WARM), WARM);
        assert_eq!(s.stat(abi::STAT_FAST_GET), fast + 1, "{}", s.counters());
        assert_eq!(talk.ask(&mut s, &[b"GET", b"nil"]), b"$-1\r\n");
        assert_eq!(talk.ask(&mut s, &[b"SET", b"other", b"v"]), b"+OK\r\n");
    }
    s.finish();
}

pub(crate) fn one_line() {
    let (mut s, mut talk) = of_many_lines(false);
    s.until("Redis has told that errors are one line", |s| {
        s.control().one_line == 1
    });
    let (asked, _) = error_of(2);
    let both = [asked, request(&[b"GET", b"nil"])].concat();
    let error = b"-ERR Unknown argument x  +OK\r\n$-1\r\n";
    assert_eq!(talk.say(&mut s, &both), error);
    let fast = s.stat(abi::STAT_FAST_GET);
    assert_eq!(talk.ask(&mut s, &GET_WARM), WARM);
    assert_eq!(s.stat(abi::STAT_FAST_GET), fast + 1, "{}", s.counters());
    s.finish();
}

pub(crate) fn replies_without_request() {
    let mut s = Scenario::new(Setup::default());
    let client = s.fast();
    assert_eq!(s.call(client, &[b"PING"]), b"+PONG\r\n");
    assert!(!s.call(client, &[b"SUBSCRIBE", b"c"]).is_empty());
    s.unseen(&[b"PUBLISH", b"c", b"one"]);
    s.settle();
    let fast = s.fast_packets();
    let entry = s.entry(client).expect("an entry");
    assert_eq!(u32::from(entry.state), abi::CONN_BYPASS);
    s.unseen(&[b"PUBLISH", b"c", b"two"]);
    s.settle();
    assert_eq!(s.fast_packets(), fast);
    assert_eq!(s.stat(abi::STAT_INVARIANT), 0);
    s.finish();
}

pub(crate) fn refused_by_redis() {
    let mut s = Scenario::new(Setup::default());
    let first = s.fast();
    s.unseen(&[b"CONFIG", b"SET", b"maxclients", b"1"]);
    s.run(200 * MS);
    let raw = s.raw();
    let mut talk = Talk::connected(&mut s, raw);
    let fast = s.fast_packets();
    let heard = talk.ask(&mut s, &[b"PING"]);
    s.settle();
    assert!(!heard.starts_with(b"+PONG"), "answered without Redis");
    assert_eq!(s.fast_packets(), fast);
    s.unseen(&[b"CONFIG", b"SET", b"maxclients", b"100"]);
    s.run(200 * MS);
    assert_eq!(s.call(first, &[b"PING"]), b"+PONG\r\n");
}

pub(crate) fn gap_at_egress() {
    let mut s = Scenario::new(Setup::default());
    s.unseen(&[b"SET", b"big", &[b'y'; 9000]]);
    let client = s.fast();
    s.call(client, &[b"PING"]);
    s.stop_egress(true);
    s.ask(client, &[b"GET", b"big"]);
    s.run(5 * MS);
    assert!(s.world.server.lose_at_egress(1) > 3, "not in segments");
    let lost = s.stat(abi::STAT_SCAN_REPLY_LOST);
    s.stop_egress(false);
    assert_eq!(s.answers(client).len(), 9009);
    assert_eq!(s.stat(abi::STAT_SCAN_REPLY_LOST), lost + 1);
    let entry = s.entry(client).expect("an entry");
    assert_eq!(u32::from(entry.state), abi::CONN_BYPASS);
    let fast = s.fast_packets();
    assert_eq!(s.call(client, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast);
    s.finish();
}
