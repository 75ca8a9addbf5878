// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys that are cached as absent: what is answered of them in both versions of RESP, and when it is not.

use erb_abi::{ControlPlane as _, KEY_BYTES_MAX};
use erb_packets::row::{Expect, Row, check};
use erb_packets::scene::{Scene, V4};

use crate::more::{Moved, command, in_version, said};
use crate::{get, spliced};

/// `no` is absent, and so are some whose keys take larger slots; `key` = `value`.
fn absent(scene: &mut Scene) {
    scene.bench.fill(b"key", b"value", 0);
    for bytes in [100, 240, KEY_BYTES_MAX as usize] {
        scene.bench.fill_absent(&vec![b'n'; bytes]);
    }
    scene.bench.fill_absent(b"no");
    scene.make_fast();
}

fn answered(resp: u8, request: Vec<u8>, reply: &[u8], counter: &'static str, keys: u64) -> Row {
    let moved = vec![("FAST_PACKET", 1), (counter, 1), ("FOUND_ABSENT", keys)].leak();
    in_version(resp, absent, request, Expect::Answer(reply.to_vec()), moved)
}

fn goes_up(name: &'static str, text: &str, edit: fn(&mut Scene), moved: Moved) -> Row {
    let request = said(text);
    let packet = move |scene: &mut Scene| scene.segment(&request);
    let scene = move |scene: &mut Scene| {
        absent(scene);
        edit(scene);
    };
    Row::xdp(name, V4, scene, packet, Expect::Same, moved)
}

#[test]
fn every_read_says_what_redis_says_of_no_key() {
    let rows = [2, 3].into_iter().flat_map(|resp| {
        let row = |text: &str, reply: &[u8], counter| answered(resp, said(text), reply, counter, 1);
        let nil: &[u8] = if resp == 3 { b"_\r\n" } else { b"$-1\r\n" };
        let map: &[u8] = if resp == 3 { b"%0\r\n" } else { b"*0\r\n" };
        let array = |values: &[&[u8]]| {
            let head = format!("*{}\r\n", values.len()).into_bytes();
            [head, values.concat()].concat()
        };
        let value = &b"$5\r\nvalue\r\n"[..];
        [
            row("GET no", nil, "FAST_GET"),
            row("get no", nil, "FAST_GET"),
            answered(resp, get(&"n".repeat(100)), nil, "FAST_GET", 1),
            answered(resp, get(&"n".repeat(240)), nil, "FAST_GET", 1),
            answered(resp, get(&"n".repeat(256)), nil, "FAST_GET", 1),
            row("MGET no key", &array(&[nil, value]), "FAST_MGET"),
            answered(
                resp,
                said("MGET key no no"),
                &array(&[value, nil, nil]),
                "FAST_MGET",
                2,
            ),
            row("EXISTS no", b":0\r\n", "FAST_EXISTS"),
            answered(
                resp,
                said("EXISTS no key no key"),
                b":2\r\n",
                "FAST_EXISTS",
                2,
            ),
            row("STRLEN no", b":0\r\n", "FAST_STRLEN"),
            row("TTL no", b":-2\r\n", "FAST_TTL"),
            row("PTTL no", b":-2\r\n", "FAST_PTTL"),
            row("GETRANGE no 0 -1", b"$0\r\n\r\n", "FAST_GETRANGE"),
            row("GETRANGE no -9 -1", b"$0\r\n\r\n", "FAST_GETRANGE"),
            row("GETRANGE no 99999 0", b"$0\r\n\r\n", "FAST_GETRANGE"),
            row("SUBSTR no 5 9", b"$0\r\n\r\n", "FAST_SUBSTR"),
            row("HGET no field", nil, "FAST_HGET"),
            row("HMGET no a b", &array(&[nil, nil]), "FAST_HMGET"),
            row("HGETALL no", map, "FAST_HGETALL"),
            row("HLEN no", b":0\r\n", "FAST_HLEN"),
            row("HEXISTS no field", b":0\r\n", "FAST_HEXISTS"),
            row("HSTRLEN no field", b":0\r\n", "FAST_HSTRLEN"),
            row("HKEYS no", b"*0\r\n", "FAST_HKEYS"),
            row("HVALS no", b"*0\r\n", "FAST_HVALS"),
        ]
    });
    check(rows.collect());
}

#[test]
fn what_may_not_be_said_goes_up() {
    let told = |scene: &mut Scene| scene.bench.dp.control().set_absent(0);
    let unknown = |scene: &mut Scene| scene.edit(|entry| entry.h.resp = 0);
    let moved: Moved = &[
        ("FOUND_ABSENT", 1),
        ("REFUSE_ABSENT", 1),
        ("UP_TRANSLATED", 1),
    ];
    let version: Moved = &[
        ("FOUND_ABSENT", 1),
        ("REFUSE_COMMAND", 1),
        ("UP_TRANSLATED", 1),
    ];
    check(vec![
        goes_up("GET that somebody hears of", "GET no", told, moved),
        goes_up("MGET that somebody hears of", "MGET key no", told, moved),
        goes_up("EXISTS that somebody hears of", "EXISTS no", told, moved),
        goes_up("TTL that somebody hears of", "TTL no", told, moved),
        goes_up("HGETALL that somebody hears of", "HGETALL no", told, moved),
        goes_up("GET in no known version", "GET no", unknown, version),
        goes_up("MGET in no known version", "MGET no", unknown, version),
        goes_up("HGET in no known version", "HGET no f", unknown, version),
        goes_up(
            "HGETALL in no known version",
            "HGETALL no",
            unknown,
            version,
        ),
    ]);
}

#[test]
fn of_what_is_there_nothing_else_is_said() {
    let told = |scene: &mut Scene| {
        spliced(scene);
        scene.bench.dp.control().set_absent(0);
    };
    let value = Expect::Answer(b"$5\r\nvalue\r\n".to_vec());
    let moved: Moved = &[("FAST_PACKET", 1), ("FAST_GET", 1)];
    let packet = |scene: &mut Scene| scene.segment(&get("key"));
    let created = |scene: &mut Scene| {
        absent(scene);
        let dp = &scene.bench.dp;
        dp.invalidate(&[b"no"]).expect("erb_invalidate");
    };
    let one = |scene: &mut Scene| scene.segment(&command(&[b"GET", b"no"]));
    let missed: Moved = &[("REFUSE_MISS", 1), ("UP_TRANSLATED", 1)];
    check(vec![
        Row::xdp("somebody hears of misses", V4, told, packet, value, moved),
        Row::xdp("it was created", V4, created, one, Expect::Same, missed),
    ]);
}
