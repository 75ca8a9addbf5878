// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast commands beside GET and PING: what they answer, and when they go up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use erb_abi as abi;
use erb_packets::fixture;
use erb_packets::frame::Segment;
use erb_packets::row::{Expect, Row, check};
use erb_packets::scene::{Scene, V4, V6};

use crate::{GET_KEY, PING, SET_KEY, bulk, fast, get};

pub type Moved = &'static [(&'static str, u64)];

pub const UP_MISS: Moved = &[("REFUSE_MISS", 1), ("UP_TRANSLATED", 1)];
const UP_REPORTED: Moved = &[
    ("REFUSE_MISS", 1),
    ("MISS_REPORTED", 1),
    ("UP_TRANSLATED", 1),
];
pub const UP_COMMAND: Moved = &[("REFUSE_COMMAND", 1), ("UP_TRANSLATED", 1)];

pub use erb_wire::resp::{command, said};

/// Strings of several lengths.
fn several(scene: &mut Scene) {
    let bench = &mut scene.bench;
    bench.fill(b"key", b"value", 0);
    bench.fill(b"empty", b"", 0);
    bench.fill(b"number", b"-12", 0);
    bench.fill(b"\r\n\0\xff", b"\0\r\n$", 0);
    bench.fill(b"long", &[b'v'; 200], 0);
    bench.fill(b"longer", &[b'w'; 1000], 0);
    bench.fill(&[b'k'; 256], b"of the longest key", 0);
    scene.make_fast();
}

/// What goes out for what comes in.
fn answered(name: &'static str, request: Vec<u8>, reply: &[u8], counter: &'static str) -> Row {
    let moved = vec![("FAST_PACKET", 1), (counter, 1)].leak();
    let reply = Expect::Answer(reply.to_vec());
    Row::xdp(
        name,
        V4,
        several,
        move |s| s.segment(&request),
        reply,
        moved,
    )
}

/// What becomes of a request on a connection of this version of RESP.
pub fn in_version(
    resp: u8,
    cached: fn(&mut Scene),
    request: Vec<u8>,
    expected: Expect,
    moved: Moved,
) -> Row {
    let name = format!("RESP{resp} {}", request.escape_ascii()).leak();
    let scene = move |scene: &mut Scene| {
        cached(scene);
        scene.edit(|entry| entry.h.resp = resp);
    };
    let packet = move |scene: &mut Scene| scene.segment(&request);
    Row::xdp(name, V4, scene, packet, expected, moved)
}

/// The second time that a command asks for what is not cached.
fn missed_twice(name: &'static str, words: &'static str, moved: Moved) -> Row {
    let once = move |s: &mut Scene| {
        several(s);
        s.request(&said(words));
    };
    Row::xdp(
        name,
        V4,
        once,
        |s| s.segment(&said(words)),
        Expect::Same,
        moved,
    )
}

fn goes_up(name: &'static str, request: Vec<u8>, moved: Moved) -> Row {
    let same = Expect::Same;
    Row::xdp(name, V4, several, move |s| s.segment(&request), same, moved)
}

#[test]
fn mget() {
    let row = |name, request, reply: &[u8]| answered(name, request, reply, "FAST_MGET");
    check(vec![
        row(
            "MGET of one key",
            said("MGET key"),
            b"*1\r\n$5\r\nvalue\r\n",
        ),
        row(
            "MGET of several keys, one of them twice",
            said("mGet key empty key number"),
            b"*4\r\n$5\r\nvalue\r\n$0\r\n\r\n$5\r\nvalue\r\n$3\r\n-12\r\n",
        ),
        row(
            "MGET of binary and of the longest key",
            command(&[b"MGET", b"\r\n\0\xff", &[b'k'; 256]]),
            b"*2\r\n$4\r\n\0\r\n$\r\n$18\r\nof the longest key\r\n",
        ),
        row(
            "MGET of as many keys as a packet may hold",
            said(&format!("MGET{}", " empty".repeat(64))),
            &[&b"*64\r\n"[..], &b"$0\r\n\r\n".repeat(64)].concat(),
        ),
        row(
            "MGET of values of different classes",
            said("MGET longer long key"),
            &[
                b"*3\r\n".to_vec(),
                bulk(&[b'w'; 1000]),
                bulk(&[b'v'; 200]),
                bulk(b"value"),
            ]
            .concat(),
        ),
    ]);
}

#[test]
fn mget_goes_up() {
    check(vec![
        goes_up(
            "MGET of which one key is missed",
            said("MGET key none"),
            UP_MISS,
        ),
        goes_up(
            "MGET of which the first is missed",
            said("MGET none key"),
            UP_MISS,
        ),
        goes_up(
            "MGET longer than a segment",
            said("MGET longer longer"),
            &[("REFUSE_MSS", 1), ("UP_TRANSLATED", 1)],
        ),
        goes_up(
            "MGET of more keys than a packet may hold",
            said(&format!("MGET{}", " empty".repeat(65))),
            UP_COMMAND,
        ),
        goes_up("MGET without keys", said("MGET"), UP_COMMAND),
        goes_up(
            "MGET of an empty key",
            command(&[b"MGET", b"key", b""]),
            UP_COMMAND,
        ),
        goes_up(
            "MGET of a key of 257 bytes",
            command(&[b"MGET", &[b'k'; 257]]),
            UP_COMMAND,
        ),
        goes_up(
            "two MGETs of more keys together",
            [
                said(&format!("MGET{}", " key".repeat(33))),
                said(&format!("MGET{}", " key".repeat(32))),
            ]
            .concat(),
            &[("REFUSE_COMMANDS", 1), ("UP_TRANSLATED", 1)],
        ),
    ]);
}

#[test]
fn exists_and_strlen() {
    check(vec![
        answered("EXISTS", said("EXISTS key"), b":1\r\n", "FAST_EXISTS"),
        answered(
            "EXISTS counts a key as often as it is named",
            said("exists key key empty"),
            b":3\r\n",
            "FAST_EXISTS",
        ),
        answered(
            "EXISTS of many",
            said(&format!("EXISTS{}", " key".repeat(64))),
            b":64\r\n",
            "FAST_EXISTS",
        ),
        goes_up(
            "EXISTS of which one is missed",
            said("EXISTS key none"),
            UP_MISS,
        ),
        goes_up("EXISTS without keys", said("EXISTS"), UP_COMMAND),
        answered("STRLEN", said("STRLEN key"), b":5\r\n", "FAST_STRLEN"),
        answered(
            "STRLEN of nothing",
            said("STRLEN empty"),
            b":0\r\n",
            "FAST_STRLEN",
        ),
        answered(
            "STRLEN of much",
            said("STRLEN longer"),
            b":1000\r\n",
            "FAST_STRLEN",
        ),
        goes_up("STRLEN of two", said("STRLEN key key"), UP_COMMAND),
        goes_up("STRLEN of what is missed", said("STRLEN none"), UP_MISS),
        missed_twice(
            "STRLEN missed twice is reported",
            "STRLEN none",
            UP_REPORTED,
        ),
        missed_twice("EXISTS says no type: not reported", "EXISTS none", UP_MISS),
        missed_twice("nor does TTL", "TTL none", UP_MISS),
        missed_twice("nor PTTL", "PTTL none", UP_MISS),
    ]);
}

#[test]
fn getrange() {
    let row = |text: &str, reply: &[u8]| {
        let name = text.to_owned().leak();
        answered(name, said(text), &bulk(reply), "FAST_GETRANGE")
    };
    check(vec![
        row("GETRANGE key 0 -1", b"value"),
        row("getrange key 0 0", b"v"),
        row("GETRANGE key 1 3", b"alu"),
        row("GETRANGE key -3 -2", b"lu"),
        row("GETRANGE key -100 2", b"val"),
        row("GETRANGE key 3 999999999", b"ue"),
        row("GETRANGE key 5 9", b""),
        row("GETRANGE key 3 2", b""),
        row("GETRANGE key -2 -3", b""),
        row("GETRANGE key -2 -100", b""),
        row("GETRANGE key 4 -5", b""),
        row("GETRANGE key -999999999 -5", b"v"),
        row("GETRANGE empty 0 -1", b""),
        row("GETRANGE empty -1 -1", b""),
        row("GETRANGE longer 1 998", &[b'w'; 998]),
        row("GETRANGE longer 999 1000", b"w"),
        answered(
            "SUBSTR",
            said("SUBSTR key 1 -2"),
            &bulk(b"alu"),
            "FAST_SUBSTR",
        ),
    ]);
}

#[test]
fn getrange_goes_up() {
    let row = |text: &str| goes_up(text.to_owned().leak(), said(text), UP_COMMAND);
    check(vec![
        // Versions differ.
        row("GETRANGE key 0 -6"),
        row("GETRANGE key -100 -99"),
        // Redis refuses them.
        row("GETRANGE key 00 1"),
        row("GETRANGE key +1 2"),
        row("GETRANGE key -0 2"),
        row("GETRANGE key 0 -"),
        row("GETRANGE key 0 1x"),
        row("GETRANGE key 0x1 2"),
        row("GETRANGE key 0"),
        row("GETRANGE key 0 1 2"),
        // Longer than is read.
        row("GETRANGE key 0 1000000000"),
        row("GETRANGE key 0 -1000000000"),
        goes_up(
            "no number",
            command(&[b"GETRANGE", b"key", b"0", b""]),
            UP_COMMAND,
        ),
        goes_up(
            "GETRANGE of what is missed",
            said("GETRANGE none 0 1"),
            UP_MISS,
        ),
    ]);
}

fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_millis() as u64
}

fn expiring(scene: &mut Scene) {
    let clock = |clock| Duration::from(nix::time::clock_gettime(clock).unwrap());
    let wall = clock(nix::time::ClockId::CLOCK_REALTIME);
    let difference = wall - clock(nix::time::ClockId::CLOCK_MONOTONIC);
    let control = scene.bench.dp.control();
    control.set_wall_minus_mono_ns(difference.as_nanos() as i64);
    // Far from where the second's rounding changes.
    scene.bench.fill(b"later", b"value", wall_ms() + 3_600_100);
    scene.bench.fill(b"over", b"value", wall_ms() - 1);
    scene.bench.fill(b"soon", b"value", wall_ms() + 4);
    scene.bench.fill(b"ages", b"value", i64::MAX as u64);
    scene.bench.fill(b"key", b"value", 0);
    scene.make_fast();
}

#[test]
fn ttl() {
    let row = |text: &'static str, reply: Expect, moved: Moved| {
        Row::xdp(
            text,
            V4,
            expiring,
            move |s| s.segment(&said(text)),
            reply,
            moved,
        )
    };
    let answer = |reply: &[u8]| Expect::Answer(reply.to_vec());
    const ONE_TTL: Moved = &[("FAST_PACKET", 1), ("FAST_TTL", 1)];
    const EXPIRED: Moved = &[("REFUSE_EXPIRED", 1), ("UP_TRANSLATED", 1)];
    check(vec![
        row("TTL later", answer(b":3600\r\n"), ONE_TTL),
        row("ttl key", answer(b":-1\r\n"), ONE_TTL),
        row(
            "PTTL key",
            answer(b":-1\r\n"),
            &[("FAST_PACKET", 1), ("FAST_PTTL", 1)],
        ),
        row("TTL over", Expect::Same, EXPIRED),
        row("PTTL soon", Expect::Same, EXPIRED),
        row("EXISTS over", Expect::Same, EXPIRED),
        row("STRLEN over", Expect::Same, EXPIRED),
        row("MGET key over", Expect::Same, EXPIRED),
        row("GETRANGE over 0 1", Expect::Same, EXPIRED),
        row("TTL none", Expect::Same, UP_MISS),
        row("TTL key 1", Expect::Same, UP_COMMAND),
    ]);
}

#[test]
fn pttl_is_exact() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        expiring(&mut scene);
        for _ in 0..50 {
            let end = wall_ms() + 100_000;
            scene.bench.fill(b"exact", b"value", end);
            let segment = scene.segment(&said("PTTL exact"));
            let before = wall_ms();
            let sent = Segment::parse(&scene.xdp(&segment.bytes()).frame).unwrap();
            let after = wall_ms();
            let text = String::from_utf8(sent.payload[1..].to_vec()).unwrap();
            let left: u64 = text.trim_end().parse().unwrap();
            assert!((end - after..=end - before).contains(&left), "{text}");
            scene.snd = scene.snd.wrapping_add(segment.payload.len() as u32);
            scene.rcv = scene.rcv.wrapping_add(sent.payload.len() as u32);
        }
    });
}

#[test]
fn in_one_packet() {
    check(vec![
        Row::xdp(
            "commands of all kinds, answered in order",
            V6,
            several,
            |s| {
                s.segment(
                    &[
                        get("key"),
                        said("MGET empty key"),
                        PING.to_vec(),
                        said("STRLEN number"),
                        said("EXISTS key empty"),
                        get("number"),
                        said("TTL key"),
                        said("GETRANGE key 1 2"),
                        said("SUBSTR key 0 0"),
                        said("PTTL key"),
                        b"PING\r\n".to_vec(),
                        said("MGET key"),
                    ]
                    .concat(),
                )
            },
            Expect::Answer(
                b"$5\r\nvalue\r\n*2\r\n$0\r\n\r\n$5\r\nvalue\r\n+PONG\r\n:3\r\n:2\r\n$3\r\n-12\r\n\
                  :-1\r\n$2\r\nal\r\n$1\r\nv\r\n:-1\r\n+PONG\r\n*1\r\n$5\r\nvalue\r\n"
                    .to_vec(),
            ),
            &[
                ("FAST_PACKET", 1),
                ("FAST_GET", 2),
                ("FAST_PING", 2),
                ("FAST_MGET", 2),
                ("FAST_EXISTS", 1),
                ("FAST_STRLEN", 1),
                ("FAST_TTL", 1),
                ("FAST_PTTL", 1),
                ("FAST_GETRANGE", 1),
                ("FAST_SUBSTR", 1),
            ],
        ),
        Row::xdp(
            "one of them is missed: all go up",
            V4,
            several,
            |s| s.segment(&[said("STRLEN key"), said("MGET key none"), get("key")].concat()),
            Expect::Same,
            UP_MISS,
        ),
        Row::xdp(
            "a write to one of the keys is on its way",
            V4,
            |s| {
                several(s);
                s.request(SET_KEY);
            },
            |s| s.segment(&said("MGET empty key")),
            Expect::Same,
            &[("REFUSE_MARKED", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "the lease is over",
            V4,
            |s| {
                several(s);
                s.bench.dp.control().set_lease_until_ns(1);
            },
            |s| s.segment(&said("EXISTS key")),
            Expect::Same,
            &[("REFUSE_LEASE", 1), ("UP_TRANSLATED", 1)],
        ),
    ]);
}

#[test]
fn cut_anywhere() {
    for whole in [
        said("MGET key empty"),
        said("GETRANGE key 0 -1"),
        said("TTL key"),
    ] {
        let rows = (1..whole.len()).map(|cut| {
            let piece = whole[..cut].to_vec();
            Row::xdp(
                "a command that is cut off",
                V4,
                several,
                move |s| s.segment(&piece),
                Expect::Same,
                UP_COMMAND,
            )
        });
        check(rows.collect());
    }
}

fn off(kind: u32) -> impl Fn(&mut Scene) {
    move |s| {
        fast(s);
        s.bench.dp.control().set_fast_off(1 << kind);
    }
}

#[test]
fn switched_off() {
    let row = |name, kind, request: Vec<u8>| {
        Row::xdp(
            name,
            V4,
            off(kind),
            move |s| s.segment(&request),
            Expect::Same,
            UP_COMMAND,
        )
    };
    check(vec![
        row("GET", abi::FAST_KIND_GET, GET_KEY.to_vec()),
        row("PING", abi::FAST_KIND_PING, PING.to_vec()),
        row("MGET", abi::FAST_KIND_MGET, said("MGET key")),
        row("STRLEN", abi::FAST_KIND_STRLEN, said("STRLEN key")),
        Row::xdp(
            "MGET does not switch GET off",
            V4,
            off(abi::FAST_KIND_MGET),
            |s| s.segment(GET_KEY),
            Expect::Answer(b"$5\r\nvalue\r\n".to_vec()),
            &[("FAST_PACKET", 1), ("FAST_GET", 1)],
        ),
        Row::xdp(
            "behind another command",
            V4,
            off(abi::FAST_KIND_GET),
            |s| s.segment(&[PING, GET_KEY].concat()),
            Expect::Same,
            &[("REFUSE_INCOMPLETE", 1), ("UP_TRANSLATED", 1)],
        ),
    ]);
}
