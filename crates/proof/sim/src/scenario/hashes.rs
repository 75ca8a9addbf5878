// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cached hashes: what is answered of them, and how each way in which one may change ends that.

use erb_abi as abi;

use super::reads::{ask, quiet, roomy};
use super::{Scenario, Setup, over_seeds};
use crate::ConnId;
use crate::time::{MS, SECOND};

const WRONG: &[u8] = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";

/// Asks for the hash `h` until it is cached.
fn cached(s: &mut Scenario, client: ConnId) {
    let fast = s.stat(abi::STAT_FAST_HGETALL);
    for _ in 0..100 {
        s.call(client, &[b"HGETALL", b"h"]);
        s.run(20 * MS);
        if s.stat(abi::STAT_FAST_HGETALL) > fast {
            return;
        }
    }
    panic!("never answered fast: {}", s.counters());
}

/// A world with a cached hash, and who asks.
fn with_hash() -> (Scenario, ConnId) {
    let mut s = Scenario::new(roomy());
    s.unseen(&[b"HSET", b"h", b"a", b"1", b"b", b"", b"cc", b"333"]);
    s.cached(b"s", b"string");
    let client = quiet(&mut s);
    cached(&mut s, client);
    s.run(100 * MS);
    (s, client)
}

pub(super) fn answers() {
    let (mut s, client) = with_hash();
    let whole: &[u8] =
        b"*6\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$0\r\n\r\n$2\r\ncc\r\n$3\r\n333\r\n";
    let fast: [(&str, &[u8]); 15] = [
        ("HGETALL h", whole),
        ("HGET h a", b"$1\r\n1\r\n"),
        ("hget h b", b"$0\r\n\r\n"),
        ("HGET h d", b"$-1\r\n"),
        ("HGET h c", b"$-1\r\n"),
        (
            "HMGET h cc x a cc",
            b"*4\r\n$3\r\n333\r\n$-1\r\n$1\r\n1\r\n$3\r\n333\r\n",
        ),
        ("HLEN h", b":3\r\n"),
        ("HEXISTS h cc", b":1\r\n"),
        ("HEXISTS h dd", b":0\r\n"),
        ("HSTRLEN h cc", b":3\r\n"),
        ("HSTRLEN h b", b":0\r\n"),
        ("HKEYS h", b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$2\r\ncc\r\n"),
        ("HVALS h", b"*3\r\n$1\r\n1\r\n$0\r\n\r\n$3\r\n333\r\n"),
        ("EXISTS h s", b":2\r\n"),
        ("PTTL h", b":-1\r\n"),
    ];
    for (text, reply) in fast {
        assert!(ask(&mut s, client, text, reply), "{text} went up");
    }
    let up: [(&str, &[u8]); 6] = [
        ("GET h", WRONG),
        ("STRLEN h", WRONG),
        ("GETRANGE h 0 1", WRONG),
        ("MGET s h", b"*2\r\n$6\r\nstring\r\n$-1\r\n"),
        ("HGET s a", WRONG),
        ("HGETALL s", WRONG),
    ];
    for _ in 0..4 {
        for (text, reply) in up {
            assert!(
                !ask(&mut s, client, text, reply),
                "{text} was answered fast"
            );
        }
    }
    assert!(
        ask(&mut s, client, "HGETALL h", whole),
        "a GET threw it out"
    );
    s.finish();
}

/// Every way in which a hash changes by what packets show.
pub(super) fn changes() {
    let gone: &[u8] = b"*0\r\n";
    let other: &[u8] = b"*2\r\n$1\r\nx\r\n$1\r\ny\r\n";
    let cases: [(&[&str], &[u8]); 8] = [
        (
            &["HSET h a 2", "HDEL h b cc"],
            b"*2\r\n$1\r\na\r\n$1\r\n2\r\n",
        ),
        (&["HDEL h a", "HDEL h b", "HDEL h cc"], gone),
        (&["DEL h"], gone),
        (&["DEL h", "SET h v"], WRONG),
        (&["HSET o x y", "RENAME o h"], other),
        (&["HSET o x y", "COPY o h REPLACE"], other),
        (&["MULTI", "DEL h", "HSET h x y", "EXEC"], other),
        (&["FLUSHALL"], gone),
    ];
    for (commands, reply) in cases {
        let (mut s, client) = with_hash();
        let writer = s.fast();
        for text in commands {
            let argv: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
            s.call(writer, &argv);
        }
        let got = s.call(client, &[b"HGETALL", b"h"]);
        assert_eq!(
            got.escape_ascii().to_string(),
            reply.escape_ascii().to_string()
        );
        for _ in 0..10 {
            assert_eq!(s.call(client, &[b"HGETALL", b"h"]), reply, "{commands:?}");
            s.run(20 * MS);
        }
        s.finish();
    }
}

/// A write meets the fill of its hash, at every moment.
pub(super) fn fill_meets_a_write() {
    let setup = Setup {
        cpus: 3,
        switch: 300_000,
        ..roomy()
    };
    let stale = std::cell::Cell::new(0);
    over_seeds(1..33, &setup, |mut s| {
        s.unseen(&[b"HSET", b"h", b"f", b"old"]);
        let (reader, writer) = (s.fast(), s.fast());
        s.call(reader, &[b"HGET", b"h", b"f"]);
        s.call(reader, &[b"HGET", b"h", b"f"]);
        let reply = s.write_while_filling(writer, &[b"HSET", b"h", b"f", b"new"]);
        assert_eq!(reply, b":0\r\n");
        for _ in 0..5 {
            assert_eq!(s.call(reader, &[b"HGET", b"h", b"f"]), b"$3\r\nnew\r\n");
            s.run(300_000);
        }
        stale.set(stale.get() + s.stat(abi::STAT_FILL_STALE));
        s.finish();
    });
    assert!(stale.get() > 0, "no fill met the write");
}

/// A hash is gone when Redis says so.
pub(super) fn expires() {
    let (mut s, client) = with_hash();
    let writer = s.fast();
    s.call(writer, &[b"PEXPIRE", b"h", b"700"]);
    cached(&mut s, client);
    for _ in 0..100 {
        s.call(client, &[b"HGETALL", b"h"]);
        s.call(client, &[b"PTTL", b"h"]);
        s.call(client, &[b"HGET", b"h", b"a"]);
        s.run(11 * MS);
    }
    assert_eq!(s.call(client, &[b"HGETALL", b"h"]), b"*0\r\n");
    s.finish();
}

/// Replies that differ between RESP2 and RESP3 are Redis's from HELLO on.
pub(super) fn other_version() {
    let (mut s, client) = with_hash();
    let reply = s.call(client, &[b"HELLO", b"3"]);
    assert!(reply.starts_with(b"%"), "{}", reply.escape_ascii());
    s.run(100 * MS);
    for _ in 0..5 {
        assert_eq!(s.call(client, &[b"HGET", b"h", b"none"]), b"_\r\n");
        assert!(s.call(client, &[b"HGETALL", b"h"]).starts_with(b"%3\r\n"));
        assert_eq!(s.call(client, &[b"HGET", b"h", b"a"]), b"$1\r\n1\r\n");
        s.run(SECOND / 10);
    }
    s.finish();
}

/// A hash table, which a long value makes.
const TABLE: [&[u8]; 6] = [b"HSET", b"h", b"f0", &[b'0'; 100], b"f1", &[b'1'; 100]];

/// The reply to HGET of one of its fields.
fn of_field(value: u8) -> Vec<u8> {
    [b"$100\r\n", &[value; 100][..], b"\r\n"].concat()
}

pub(super) fn table() {
    let mut s = Scenario::new(roomy());
    s.unseen(&TABLE);
    let client = quiet(&mut s);
    cached(&mut s, client);
    s.run(100 * MS);
    let value = String::from_utf8(of_field(b'1')).unwrap();
    let fast = [
        ("HGET h f1", value.clone()),
        ("HMGET h f1 x f1", format!("*3\r\n{value}$-1\r\n{value}")),
        ("HLEN h", ":2\r\n".to_owned()),
        ("HKEYS h", "*2\r\n$2\r\nf0\r\n$2\r\nf1\r\n".to_owned()),
    ];
    for (text, reply) in fast {
        assert!(
            ask(&mut s, client, text, reply.as_bytes()),
            "{text} went up"
        );
    }
    let changes: [&[&[u8]]; 3] = [
        &[b"HSET", b"h", b"f1", &[b'2'; 100]],
        &[b"HDEL", b"h", b"f0"],
        &[b"DEL", b"h"],
    ];
    for (change, of_second) in changes.into_iter().zip([Some(b'2'), Some(b'2'), None]) {
        s.call(client, change);
        let got = s.call(client, &[b"HGET", b"h", b"f1"]);
        assert_eq!(got, of_second.map_or(b"$-1\r\n".to_vec(), of_field));
        let got = s.call(client, &[b"HGET", b"h", b"f0"]);
        let there = change[0] == b"HSET";
        assert_eq!(
            got,
            if there {
                of_field(b'0')
            } else {
                b"$-1\r\n".to_vec()
            }
        );
        s.run(100 * MS);
    }
    s.finish();
}

/// Fields that expire by themselves are told to nobody in time.
pub(super) fn field_expires() {
    let mut s = Scenario::new(Setup {
        field_expiry: true,
        ..roomy()
    });
    s.unseen(&TABLE);
    let client = quiet(&mut s);
    cached(&mut s, client);
    // Another hash of the database: what is read from now on is not sure.
    s.unseen(&[b"HSET", b"o", b"a", b"1", b"b", b"2"]);
    s.unseen(&[b"HPEXPIRE", b"o", b"900000", b"FIELDS", b"1", b"a"]);
    s.unseen(&[b"HSET", b"small", b"a", b"1"]);
    s.call(client, &[b"DEL", b"h"]);
    s.unseen(&TABLE);
    s.unseen(&[b"HPEXPIRE", b"h", b"1000", b"FIELDS", b"1", b"f1"]);
    let fast = s.stat(abi::STAT_FAST_HGET);
    for _ in 0..40 {
        s.call(client, &[b"HGET", b"h", b"f1"]);
        s.call(client, &[b"HGET", b"o", b"a"]);
        s.run(20 * MS);
    }
    assert_eq!(s.stat(abi::STAT_FAST_HGET), fast, "f1 may end at any time");
    s.run(SECOND);
    assert_eq!(s.call(client, &[b"HGET", b"h", b"f1"]), b"$-1\r\n");
    for _ in 0..10 {
        s.call(client, &[b"HGET", b"small", b"a"]);
        s.run(20 * MS);
    }
    assert!(s.stat(abi::STAT_FAST_HGET) > fast, "a listpack is sure");
    s.finish();
}

/// Hashes that a slot has no room for, or of too many fields, stay Redis's.
pub(super) fn too_large() {
    let mut s = Scenario::new(roomy());
    let names: Vec<String> = (0..=abi::HASH_FIELDS_MAX)
        .map(|n| format!("f{n}"))
        .collect();
    let mut many: Vec<&[u8]> = vec![b"HSET", b"many"];
    many.extend(names.iter().flat_map(|name| [name.as_bytes(), b"v"]));
    s.unseen(&many);
    let long = [b'v'; 60];
    let mut large: Vec<&[u8]> = vec![b"HSET", b"large"];
    large.extend(names[..25].iter().flat_map(|name| [name.as_bytes(), &long]));
    s.unseen(&large);
    let client = quiet(&mut s);
    for key in [&b"many"[..], b"large"] {
        for _ in 0..10 {
            s.call(client, &[b"HGET", key, b"f1"]);
            s.run(20 * MS);
        }
    }
    assert_eq!(s.stat(abi::STAT_FAST_HGET), 0);
    s.finish();
}
