// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys that are cached as absent: what is answered of them, and what ends that.

use erb_abi as abi;

use super::reads::{ask, ask_at_once, quiet, roomy};
use super::{Scenario, Setup, over_seeds};
use crate::ConnId;
use crate::time::{MS, SECOND};

const NIL: &[u8] = b"$-1\r\n";
const WRONG: &[u8] = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";

/// Asks for an absent key until its absence is cached.
fn cached(s: &mut Scenario, client: ConnId, key: &[u8]) {
    for _ in 0..100 {
        let found = s.stat(abi::STAT_FOUND_ABSENT);
        let reply = s.call(client, &[b"GET", key]);
        assert!(reply == NIL || reply == b"_\r\n", "{reply:?}");
        s.run(20 * MS);
        if s.stat(abi::STAT_FOUND_ABSENT) > found {
            return;
        }
    }
    panic!("never found as absent: {}", s.counters());
}

/// A world where a key is cached as absent and another is there, and who asks.
fn with_absence() -> (Scenario, ConnId) {
    let mut s = Scenario::new(roomy());
    s.cached(b"k", b"value");
    let client = quiet(&mut s);
    cached(&mut s, client, b"no");
    s.run(100 * MS);
    (s, client)
}

pub(super) fn answers() {
    let (mut s, client) = with_absence();
    let fast: [(&str, &[u8]); 22] = [
        ("GET no", NIL),
        ("get k", b"$5\r\nvalue\r\n"),
        ("MGET no", b"*1\r\n$-1\r\n"),
        ("MGET no k no", b"*3\r\n$-1\r\n$5\r\nvalue\r\n$-1\r\n"),
        ("EXISTS no", b":0\r\n"),
        ("EXISTS no k no k", b":2\r\n"),
        ("STRLEN no", b":0\r\n"),
        ("TTL no", b":-2\r\n"),
        ("PTTL no", b":-2\r\n"),
        ("GETRANGE no 0 -1", b"$0\r\n\r\n"),
        ("GETRANGE no -5 -9", b"$0\r\n\r\n"),
        ("SUBSTR no 3 4", b"$0\r\n\r\n"),
        ("HGET no f", NIL),
        ("HMGET no f g", b"*2\r\n$-1\r\n$-1\r\n"),
        ("HGETALL no", b"*0\r\n"),
        ("HLEN no", b":0\r\n"),
        ("HEXISTS no f", b":0\r\n"),
        ("HSTRLEN no f", b":0\r\n"),
        ("HKEYS no", b"*0\r\n"),
        ("HVALS no", b"*0\r\n"),
        ("TTL k", b":-1\r\n"),
        ("STRLEN k", b":5\r\n"),
    ];
    for (text, reply) in fast {
        assert!(ask(&mut s, client, text, reply), "{text} went up");
    }
    assert!(!ask(&mut s, client, "LLEN no", b":0\r\n"), "it is not fast");
    let fast = s.fast_packets();
    s.ask_all(
        client,
        &[
            &[b"GET", b"no"],
            &[b"HGETALL", b"no"],
            &[b"GET", b"k"],
            &[b"EXISTS", b"no", b"k"],
        ],
    );
    assert_eq!(s.answers(client), b"$-1\r\n*0\r\n$5\r\nvalue\r\n:1\r\n");
    assert_eq!(s.fast_packets(), fast + 1, "{}", s.counters());
    s.finish();
}

/// Whatever creates a key ends its absence, at once where a packet shows it.
pub(super) fn created() {
    let creations: [(&[&str], &str, &[u8]); 12] = [
        (&["SET no v"], "GET no", b"$1\r\nv\r\n"),
        (&["INCR no"], "GET no", b"$1\r\n1\r\n"),
        (&["APPEND no v"], "STRLEN no", b":1\r\n"),
        (&["MSET a 1 no 2"], "EXISTS no", b":1\r\n"),
        (&["RENAME k no"], "GET no", b"$5\r\nvalue\r\n"),
        (&["COPY k no"], "GET no", b"$5\r\nvalue\r\n"),
        (&["RPUSH no v"], "GET no", WRONG),
        (&["HSET no f v"], "HGET no f", b"$1\r\nv\r\n"),
        (&["MULTI", "SET no v", "EXEC"], "GET no", b"$1\r\nv\r\n"),
        (&["FLUSHALL", "SET no v"], "GET no", b"$1\r\nv\r\n"),
        (
            &["SELECT 1", "SET no v", "MOVE no 0"],
            "GET no",
            b"$1\r\nv\r\n",
        ),
        (
            &["SELECT 1", "SET no v", "SWAPDB 0 1"],
            "GET no",
            b"$1\r\nv\r\n",
        ),
    ];
    for (number, (commands, read, reply)) in creations.into_iter().enumerate() {
        for seen in [true, false] {
            // Who is not seen speaks on one connection, in one database.
            if !seen && number >= 10 {
                continue;
            }
            let (mut s, client) = with_absence();
            let writer = s.fast();
            for command in commands {
                let argv: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
                if seen {
                    s.call(writer, &argv);
                } else {
                    s.unseen(&argv);
                }
            }
            if !seen {
                s.run(110 * MS);
            }
            ask(&mut s, client, read, reply);
            s.finish();
        }
    }
}

/// A key becomes what is no string and no hash, and the daemon has not handled Redis's report yet.
pub(super) fn made_into_another_type() {
    let makers: [&[&str]; 5] = [
        &["RPUSH no v"],
        &["LPUSH no v"],
        &["SADD no v"],
        &["RPUSH src v", "RPOPLPUSH src no"],
        &["RPUSH src v", "BRPOPLPUSH src no 0"],
    ];
    for commands in makers {
        let (mut s, client) = with_absence();
        let (writer, other) = (s.fast(), quiet(&mut s));
        s.stop_daemon(true);
        assert!(
            ask_at_once(&mut s, client, "EXISTS no", b":0\r\n"),
            "not cached"
        );
        for command in commands {
            let argv: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
            s.call(writer, &argv);
        }
        assert!(
            !ask_at_once(&mut s, client, "EXISTS no", b":1\r\n"),
            "{commands:?}"
        );
        assert!(
            !ask_at_once(&mut s, client, "GET no", WRONG),
            "{commands:?}"
        );
        let open = ask_at_once(&mut s, other, "GET k", b"$5\r\nvalue\r\n");
        assert!(open, "closed, so nothing was shown");
        s.stop_daemon(false);
        s.finish();
    }
}

/// A move that blocks makes its destination long after its packet: the absence is not cached meanwhile.
pub(super) fn made_by_a_move_that_blocked() {
    let (mut s, client) = with_absence();
    let (worker, pusher) = (s.fast(), s.fast());
    let other = quiet(&mut s);
    s.ask(worker, &[b"BRPOPLPUSH", b"src", b"no", b"0"]);
    s.run(MS);
    for _ in 0..50 {
        assert!(
            !ask_at_once(&mut s, client, "GET no", NIL),
            "it may be made now"
        );
        s.run(40 * MS);
    }
    assert!(ask_at_once(&mut s, other, "GET k", b"$5\r\nvalue\r\n"));
    s.stop_daemon(true);
    s.call(pusher, &[b"RPUSH", b"src", b"v"]);
    assert!(!ask_at_once(&mut s, client, "EXISTS no", b":1\r\n"));
    assert_eq!(s.answers(worker), b"$1\r\nv\r\n");
    assert!(!ask_at_once(&mut s, client, "GET no", WRONG));
    s.stop_daemon(false);
    s.call(pusher, &[b"DEL", b"no"]);
    cached(&mut s, client, b"no");
    s.finish();
}

/// A fill that finds no key is overtaken by what creates it.
pub(super) fn fill_meets_a_write() {
    let setup = Setup {
        cpus: 3,
        switch: 300_000,
        ..Setup::default()
    };
    let (stale, found) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    over_seeds(1..33, &setup, |mut s| {
        let (reader, writer) = (s.fast(), s.fast());
        s.call(reader, &[b"GET", b"k"]);
        s.call(reader, &[b"GET", b"k"]);
        s.write_while_filling(writer, &[b"SET", b"k", b"new"]);
        for _ in 0..5 {
            assert_eq!(s.call(reader, &[b"GET", b"k"]), b"$3\r\nnew\r\n");
            s.run(MS);
        }
        stale.set(stale.get() + s.stat(abi::STAT_FILL_STALE));
        s.call(writer, &[b"DEL", b"k"]);
        for _ in 0..9 {
            assert_eq!(s.call(reader, &[b"GET", b"k"]), NIL);
            s.run(5 * MS);
        }
        found.set(found.get() + s.stat(abi::STAT_FOUND_ABSENT));
        s.finish();
    });
    assert!(stale.get() > 0, "no fill met the write");
    assert!(found.get() > 0, "no absence was cached");
}

/// Where Redis tells of reads of absent keys it answers them, from the moment on at which it was told to.
pub(super) fn told() {
    let (mut s, client) = with_absence();
    let admin = s.fast();
    let events = |s: &mut Scenario, flags: &[u8]| {
        let ok = s.call(
            admin,
            &[b"CONFIG", b"SET", b"notify-keyspace-events", flags],
        );
        assert_eq!(ok, b"+OK\r\n");
    };
    for flags in [&b"KEm"[..], b"AKEm"] {
        events(&mut s, flags);
        for text in ["GET no", "MGET no", "EXISTS no k", "HGET no f", "TTL no"] {
            let refused = s.stat(abi::STAT_REFUSE_ABSENT);
            let argv: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
            let found = s.stat(abi::STAT_FOUND_ABSENT);
            s.call(client, &argv);
            s.run(100 * MS);
            s.call(client, &argv);
            s.run(100 * MS);
            assert!(s.stat(abi::STAT_FOUND_ABSENT) > found, "{text}");
            assert!(s.stat(abi::STAT_REFUSE_ABSENT) > refused, "{text}");
        }
        assert!(
            ask(&mut s, client, "GET k", b"$5\r\nvalue\r\n"),
            "it is there"
        );
        events(&mut s, b"AKE");
        s.run(200 * MS);
        assert!(
            ask(&mut s, client, "GET no", NIL),
            "nobody is told any more"
        );
    }
    s.unseen(&[b"CONFIG", b"SET", b"notify-keyspace-events", b"Em"]);
    s.run(2 * SECOND);
    assert!(
        !ask(&mut s, client, "GET no", NIL),
        "told by somebody unseen"
    );
    s.finish();
}

/// nil and maps are in the version of the connection, or Redis's.
pub(super) fn other_version() {
    let (mut s, client) = with_absence();
    let reply = s.call(client, &[b"HELLO", b"3"]);
    assert!(reply.starts_with(b"%"), "{}", reply.escape_ascii());
    s.run(500 * MS);
    let found = s.stat(abi::STAT_FOUND_ABSENT);
    for _ in 0..5 {
        assert_eq!(s.call(client, &[b"GET", b"no"]), b"_\r\n");
        assert_eq!(
            s.call(client, &[b"MGET", b"no", b"k"]),
            b"*2\r\n_\r\n$5\r\nvalue\r\n"
        );
        assert_eq!(s.call(client, &[b"HMGET", b"no", b"f"]), b"*1\r\n_\r\n");
        assert_eq!(s.call(client, &[b"HGETALL", b"no"]), b"%0\r\n");
        assert_eq!(s.call(client, &[b"HVALS", b"no"]), b"*0\r\n");
        s.run(SECOND / 10);
    }
    assert!(s.stat(abi::STAT_FOUND_ABSENT) > found, "{}", s.counters());
    s.finish();
}

/// A key that expires is absent, and one that is set anew with an expiry is not.
pub(super) fn expires() {
    let (mut s, client) = with_absence();
    let writer = s.fast();
    for _ in 0..3 {
        s.call(writer, &[b"SET", b"no", b"v", b"PX", b"300"]);
        for _ in 0..100 {
            s.call(client, &[b"GET", b"no"]);
            s.call(client, &[b"PTTL", b"no"]);
            s.run(7 * MS);
        }
        let found = s.stat(abi::STAT_FOUND_ABSENT);
        assert!(ask(&mut s, client, "GET no", NIL), "{}", s.counters());
        assert!(s.stat(abi::STAT_FOUND_ABSENT) > found);
    }
    s.finish();
}
