// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast commands on hashes: what they answer in both versions of RESP, and when they go up.

use erb_abi::ValueKind;
use erb_packets::row::{Expect, Row, check};
use erb_packets::scene::Scene;

use crate::bulk;
use crate::more::{Moved, UP_COMMAND, UP_MISS, command, in_version, said};

fn layout(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    erb_abi::hash_value(pairs.iter().copied()).expect("it fits")
}

fn hashes(scene: &mut Scene) {
    let long = [b'F'; 200];
    let h: [(&[u8], &[u8]); 4] = [
        (b"a", b"1"),
        (b"field-one", b""),
        (b"field-two", b"\r\n"),
        (&long, &[b'v'; 120]),
    ];
    let names: Vec<[u8; 1]> = (0..64).map(|n| [b'0' + n]).collect();
    let many: Vec<(&[u8], &[u8])> = names.iter().map(|name| (&name[..], &b"x"[..])).collect();
    let bench = &mut scene.bench;
    bench.fill_kind(b"h", ValueKind::Hash, &layout(&h), 0);
    bench.fill_kind(b"many", ValueKind::Hash, &layout(&many), 0);
    bench.fill(b"s", b"string", 0);
    scene.make_fast();
}

fn answered(resp: u8, request: Vec<u8>, reply: &[u8], counter: &'static str) -> Row {
    let moved = vec![("FAST_PACKET", 1), (counter, 1)].leak();
    in_version(resp, hashes, request, Expect::Answer(reply.to_vec()), moved)
}

fn goes_up(resp: u8, text: &str, moved: Moved) -> Row {
    in_version(resp, hashes, said(text), Expect::Same, moved)
}

#[test]
fn the_same_in_both_versions() {
    let long = [b'F'; 200];
    let two: &[u8] = b"\r\n";
    let rows = [2, 3].into_iter().flat_map(|resp| {
        let row = |text: &str, reply: &[u8], counter| answered(resp, said(text), reply, counter);
        [
            row("HGET h a", b"$1\r\n1\r\n", "FAST_HGET"),
            row("hget h field-one", b"$0\r\n\r\n", "FAST_HGET"),
            row("HGET h field-two", &bulk(two), "FAST_HGET"),
            row("HGET many o", b"$1\r\nx\r\n", "FAST_HGET"),
            answered(
                resp,
                command(&[b"HGET", b"h", &long]),
                &bulk(&[b'v'; 120]),
                "FAST_HGET",
            ),
            row(
                "HMGET h field-two a a",
                b"*3\r\n$2\r\n\r\n\r\n$1\r\n1\r\n$1\r\n1\r\n",
                "FAST_HMGET",
            ),
            row("HLEN h", b":4\r\n", "FAST_HLEN"),
            row("HLEN many", b":64\r\n", "FAST_HLEN"),
            row("HEXISTS h a", b":1\r\n", "FAST_HEXISTS"),
            row("HEXISTS h field-six", b":0\r\n", "FAST_HEXISTS"),
            row("HSTRLEN h field-two", b":2\r\n", "FAST_HSTRLEN"),
            row("HSTRLEN h none", b":0\r\n", "FAST_HSTRLEN"),
            answered(
                resp,
                command(&[b"HSTRLEN", b"h", &long]),
                b":120\r\n",
                "FAST_HSTRLEN",
            ),
            row("EXISTS h", b":1\r\n", "FAST_EXISTS"),
            row("TTL h", b":-1\r\n", "FAST_TTL"),
            row(
                "HKEYS h",
                &[
                    &b"*4\r\n"[..],
                    &bulk(b"a"),
                    &bulk(b"field-one"),
                    &bulk(b"field-two"),
                    &bulk(&long),
                ]
                .concat(),
                "FAST_HKEYS",
            ),
            row(
                "HVALS h",
                &[
                    &b"*4\r\n"[..],
                    &bulk(b"1"),
                    &bulk(b""),
                    &bulk(two),
                    &bulk(&[b'v'; 120]),
                ]
                .concat(),
                "FAST_HVALS",
            ),
            row(
                "HVALS many",
                &[&b"*64\r\n"[..], &bulk(b"x").repeat(64)].concat(),
                "FAST_HVALS",
            ),
        ]
    });
    check(rows.collect());
}

#[test]
fn each_version_has_its_nil_and_its_map() {
    let long = [b'F'; 200];
    let body = [
        bulk(b"a"),
        bulk(b"1"),
        bulk(b"field-one"),
        bulk(b""),
        bulk(b"field-two"),
        bulk(b"\r\n"),
        bulk(&long),
        bulk(&[b'v'; 120]),
    ]
    .concat();
    let whole = |head: &[u8]| [head, &body].concat();
    check(vec![
        answered(2, said("HGET h b"), b"$-1\r\n", "FAST_HGET"),
        answered(3, said("HGET h b"), b"_\r\n", "FAST_HGET"),
        answered(2, said("HGET h field-six"), b"$-1\r\n", "FAST_HGET"),
        answered(
            2,
            said("HMGET h x a"),
            b"*2\r\n$-1\r\n$1\r\n1\r\n",
            "FAST_HMGET",
        ),
        answered(
            3,
            said("HMGET h x a"),
            b"*2\r\n_\r\n$1\r\n1\r\n",
            "FAST_HMGET",
        ),
        answered(2, said("HGETALL h"), &whole(b"*8\r\n"), "FAST_HGETALL"),
        answered(3, said("HGETALL h"), &whole(b"%4\r\n"), "FAST_HGETALL"),
        // While nobody knows the version, what depends on it is Redis's.
        goes_up(0, "HGET h b", UP_COMMAND),
        goes_up(0, "HMGET h a x", UP_COMMAND),
        goes_up(0, "HGETALL h", UP_COMMAND),
        answered(0, said("HGET h a"), b"$1\r\n1\r\n", "FAST_HGET"),
    ]);
}

#[test]
fn of_another_type_or_not_at_all() {
    check(vec![
        goes_up(2, "GET h", UP_MISS),
        goes_up(2, "MGET s h", UP_MISS),
        goes_up(2, "STRLEN h", UP_MISS),
        goes_up(2, "GETRANGE h 0 1", UP_MISS),
        goes_up(2, "HGET s a", UP_MISS),
        goes_up(2, "HGETALL s", UP_MISS),
        goes_up(2, "HGET none a", UP_MISS),
        goes_up(2, "HGET h", UP_COMMAND),
        goes_up(2, "HGET h a b", UP_COMMAND),
        goes_up(2, "HMGET h", UP_COMMAND),
        goes_up(2, "HGETALL h a", UP_COMMAND),
        goes_up(2, "HLEN h a", UP_COMMAND),
    ]);
}
