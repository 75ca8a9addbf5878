// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values beyond every bound: what a fill may cost Redis (E-1).

use erb_abi as abi;

use crate::ConnId;
use crate::scenario::{Scenario, Setup};
use crate::time::{MS, SECOND};

/// Bytes of one write of an unseen client: less than its stream holds.
const PIECE: usize = 50_000;

fn fields(from: usize, to: usize) -> Vec<Vec<u8>> {
    let pair = |number: usize| [format!("field{number}"), format!("value{number}")];
    let words = (from..to).flat_map(pair);
    words.map(String::into_bytes).collect()
}

/// A string of 600 KB and a hash of 6,000 fields, made by a client that nobody sees.
fn make_large(s: &mut Scenario) {
    for _ in 0..12 {
        s.unseen(&[b"APPEND", b"string", &[b'x'; PIECE]]);
    }
    for from in (0..6_000).step_by(1_000) {
        let fields = fields(from, from + 1_000);
        let words = [b"HSET".to_vec(), b"hash".to_vec()].into_iter();
        let words: Vec<Vec<u8>> = words.chain(fields).collect();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        s.unseen(&words);
    }
}

/// How often Redis was asked for this so far, by whomever; read by a client of its own.
fn calls(s: &mut Scenario, client: ConnId, command: &str) -> u64 {
    let info = s.call(client, &[b"INFO", b"commandstats"]);
    let info = String::from_utf8_lossy(&info).into_owned();
    let name = format!("cmdstat_{command}:calls=");
    let Some((_, rest)) = info.split_once(&name) else {
        return 0;
    };
    let digits = rest.split(',').next().unwrap_or_default();
    digits.parse().expect("a number")
}

pub(crate) fn large_values() {
    let mut s = Scenario::new(Setup::default());
    make_large(&mut s);
    let client = s.fast();
    let reported = s.stat(abi::STAT_MISS_REPORTED);
    let large = format!(":{}\r\n", 12 * PIECE).into_bytes();
    for round in 0..600 {
        assert_eq!(s.call(client, &[b"STRLEN", b"string"]), large);
        let part = s.call(client, &[b"GETRANGE", b"string", b"1", b"4"]);
        assert_eq!(part, b"$4\r\nxxxx\r\n");
        let value = s.call(client, &[b"HGET", b"hash", b"field77"]);
        assert_eq!(value, b"$7\r\nvalue77\r\n");
        if round % 100 == 0 {
            assert_eq!(s.call(client, &[b"GET", b"string"]).len(), 12 * PIECE + 11);
        }
        s.run(100 * MS);
    }
    assert!(s.stat(abi::STAT_MISS_REPORTED) > reported, "never missed");
    // In a minute the hash was asked for its size once, and read never; the trial of the feed's
    // rights is the other one.
    let asked = [
        ("hlen", 2),
        ("memory|usage", 2),
        ("hrandfield", 1),
        ("getrange", 601),
    ];
    for (command, most) in asked {
        let found = calls(&mut s, client, command);
        assert!(found <= most, "{command} was called {found} times");
    }
    assert_eq!(s.stat(abi::STAT_FILL_INSERTED), 0);
    s.finish();
}

pub(crate) fn typeless() {
    let mut s = Scenario::new(Setup::default());
    make_large(&mut s);
    s.unseen(&[b"SET", b"small", b"v"]);
    let client = s.fast();
    for _ in 0..50 {
        assert_eq!(
            s.call(client, &[b"EXISTS", b"string", b"hash", b"small"]),
            b":3\r\n"
        );
        assert_eq!(s.call(client, &[b"TTL", b"small"]), b":-1\r\n");
        assert_eq!(s.call(client, &[b"PTTL", b"string"]), b":-1\r\n");
        s.run(20 * MS);
    }
    assert_eq!(s.stat(abi::STAT_MISS_REPORTED), 0, "{}", s.counters());
    assert_eq!(s.stat(abi::STAT_FAST_EXISTS), 0);
    // Of what is read they are answered.
    for _ in 0..20 {
        assert_eq!(s.call(client, &[b"GET", b"small"]), b"$1\r\nv\r\n");
        assert_eq!(s.call(client, &[b"EXISTS", b"small"]), b":1\r\n");
        s.run(20 * MS);
    }
    assert!(s.stat(abi::STAT_FAST_EXISTS) > 10, "{}", s.counters());
    s.finish();
}

pub(crate) fn written_small() {
    let mut s = Scenario::new(Setup::default());
    make_large(&mut s);
    let client = s.fast();
    for _ in 0..20 {
        s.call(client, &[b"STRLEN", b"string"]);
        s.call(client, &[b"HLEN", b"hash"]);
        s.call(client, &[b"GET", b"none"]);
        s.run(10 * MS);
    }
    assert_eq!(s.stat(abi::STAT_FILL_INSERTED), 1, "that there is none");
    s.unseen(&[b"SET", b"string", b"small"]);
    s.unseen(&[b"SET", b"none", b"some"]);
    s.unseen(&[b"DEL", b"hash"]);
    s.unseen(&[b"HSET", b"hash", b"f", b"v"]);
    // Misses are counted anew each second.
    for _ in 0..160 {
        assert_eq!(s.call(client, &[b"STRLEN", b"string"]), b":5\r\n");
        assert_eq!(s.call(client, &[b"HLEN", b"hash"]), b":1\r\n");
        assert_eq!(s.call(client, &[b"GET", b"none"]), b"$4\r\nsome\r\n");
        s.run(10 * MS);
    }
    for stat in [
        abi::STAT_FAST_STRLEN,
        abi::STAT_FAST_HLEN,
        abi::STAT_FAST_GET,
    ] {
        assert!(s.stat(stat) > 20, "{}", s.counters());
    }
    s.finish();
}

pub(crate) fn grows() {
    crate::scenario::over_seeds(1..41, &Setup::default(), |mut s| {
        s.unseen(&[b"SET", b"k", b"short"]);
        s.unseen(&[b"HSET", b"h", b"f", b"v"]);
        let client = s.fast();
        for _ in 0..2 {
            s.call(client, &[b"GET", b"k"]);
            s.call(client, &[b"HGET", b"h", b"f"]);
        }
        // Somewhere around the question for the sizes and the reading.
        s.run(25_000 * s.world.inner.plan.seed);
        let more = vec![b'x'; PIECE];
        s.unseen(&[b"APPEND", b"k", &more]);
        s.unseen(&[b"HSET", b"h", b"g", &more]);
        let strlen = format!(":{}\r\n", 5 + PIECE).into_bytes();
        for _ in 0..5 {
            s.run(abi::LEASE_MS as u64 * MS / 2);
            assert_eq!(s.call(client, &[b"STRLEN", b"k"]), strlen);
            assert_eq!(s.call(client, &[b"HLEN", b"h"]), b":2\r\n");
        }
        s.run(SECOND);
        s.finish();
    });
}
