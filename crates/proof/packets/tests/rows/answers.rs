// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What XDP answers.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use erb_abi::REPLAY_BYTES;
use erb_packets::frame::{Checksum, Segment};
use erb_packets::row::{Expect, Row, check};
use erb_packets::scene::{Scene, Shape, V4, V4_BARE, V4_NO_TS, V4_VLAN, V6, V6_NO_TS, V6_VLAN};

use crate::{GET_KEY, PING, bulk, fast, get};

const EVERY_SHAPE: [Shape; 7] = [V4, V4_NO_TS, V4_BARE, V4_VLAN, V6, V6_NO_TS, V6_VLAN];
const ONE_GET: &[(&str, u64)] = &[("FAST_PACKET", 1), ("FAST_GET", 1)];
const ONE_PING: &[(&str, u64)] = &[("FAST_PACKET", 1), ("FAST_PING", 1)];

fn answer(payload: &[u8]) -> Expect {
    Expect::Answer(payload.to_vec())
}

#[test]
fn on_every_kind_of_connection() {
    let rows = EVERY_SHAPE.into_iter().flat_map(|shape| {
        [
            Row::xdp(
                "GET hit",
                shape,
                fast,
                |scene| scene.segment(GET_KEY),
                answer(b"$5\r\nvalue\r\n"),
                ONE_GET,
            ),
            Row::xdp(
                "PING",
                shape,
                fast,
                |scene| scene.segment(PING),
                answer(b"+PONG\r\n"),
                ONE_PING,
            ),
            Row::xdp(
                "PING inline, in a frame padded beyond it",
                shape,
                fast,
                |scene| {
                    let mut segment = scene.segment(b"PING\r\n");
                    segment.pad_to = 130;
                    segment
                },
                answer(b"+PONG\r\n"),
                ONE_PING,
            ),
            Row::xdp(
                "GET with the bare pseudo-header sum",
                shape,
                fast,
                |scene| {
                    let mut segment = scene.segment(GET_KEY);
                    segment.checksum = Checksum::Pseudo;
                    segment
                },
                answer(b"$5\r\nvalue\r\n"),
                ONE_GET,
            ),
            Row::xdp(
                "GET after an answered PING, which it acknowledges",
                shape,
                crate::spliced,
                |scene| scene.segment(GET_KEY),
                answer(b"$5\r\nvalue\r\n"),
                ONE_GET,
            ),
            Row::xdp(
                "GET behind an answered PING, not acknowledged yet",
                shape,
                crate::spliced,
                |scene| {
                    let mut segment = scene.segment(GET_KEY);
                    segment.ack = segment.ack.wrapping_sub(7);
                    segment
                },
                answer(b"$5\r\nvalue\r\n"),
                ONE_GET,
            ),
        ]
    });
    check(rows.collect());
}

#[test]
fn spellings() {
    check(vec![
        Row::xdp(
            "lower case GET",
            V4,
            fast,
            |scene| scene.segment(b"*2\r\n$3\r\nget\r\n$3\r\nkey\r\n"),
            answer(b"$5\r\nvalue\r\n"),
            ONE_GET,
        ),
        Row::xdp(
            "mixed case PING",
            V4,
            fast,
            |scene| scene.segment(b"*1\r\n$4\r\nPinG\r\n"),
            answer(b"+PONG\r\n"),
            ONE_PING,
        ),
        Row::xdp(
            "two inline PINGs",
            V4,
            fast,
            |scene| scene.segment(b"ping\r\nPING\r\n"),
            answer(b"+PONG\r\n+PONG\r\n"),
            &[("FAST_PACKET", 1), ("FAST_PING", 2)],
        ),
        Row::xdp(
            "GET PING GET in one packet, answered in order",
            V6,
            |scene| {
                scene.bench.fill(b"a", b"first", 0);
                scene.bench.fill(b"bb", b"", 0);
                scene.make_fast();
            },
            |scene| scene.segment(&[&get("a"), PING, &get("bb")].concat()),
            answer(b"$5\r\nfirst\r\n+PONG\r\n$0\r\n\r\n"),
            &[("FAST_PACKET", 1), ("FAST_GET", 2), ("FAST_PING", 1)],
        ),
        Row::xdp(
            "as many commands as a packet may hold",
            V4,
            fast,
            |scene| scene.segment(&b"PING\r\n".repeat(64)),
            answer(&b"+PONG\r\n".repeat(64)),
            &[("FAST_PACKET", 1), ("FAST_PING", 64)],
        ),
    ]);
}

fn in_an_hour() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_millis() as u64 + 3_600_000
}

fn set_wall_clock(scene: &Scene) {
    let clock = |clock| Duration::from(nix::time::clock_gettime(clock).unwrap());
    let wall = clock(nix::time::ClockId::CLOCK_REALTIME);
    let difference = wall - clock(nix::time::ClockId::CLOCK_MONOTONIC);
    scene
        .bench
        .dp
        .control()
        .set_wall_minus_mono_ns(difference.as_nanos() as i64);
}

#[test]
fn expiry() {
    check(vec![
        Row::xdp(
            "entry that expires in an hour",
            V4,
            |scene| {
                set_wall_clock(scene);
                scene.bench.fill(b"later", b"value", in_an_hour());
                scene.make_fast();
            },
            |scene| scene.segment(&get("later")),
            answer(b"$5\r\nvalue\r\n"),
            ONE_GET,
        ),
        Row::xdp(
            "entry that has expired",
            V4,
            |scene| {
                set_wall_clock(scene);
                scene
                    .bench
                    .fill(b"over", b"value", in_an_hour() - 3_600_001);
                scene.make_fast();
            },
            |scene| scene.segment(&get("over")),
            Expect::Same,
            &[("REFUSE_EXPIRED", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "entry that expires within the guard",
            V4,
            |scene| {
                scene.make_fast();
                set_wall_clock(scene);
                scene
                    .bench
                    .fill(b"soon", b"value", in_an_hour() - 3_600_000 + 4);
            },
            |scene| scene.segment(&get("soon")),
            Expect::Same,
            &[("REFUSE_EXPIRED", 1), ("UP_TRANSLATED", 1)],
        ),
    ]);
}

/// Every length of value up to the longest that is cached, every length of key: the reply is
/// byte-exact and its sums are right (odd lengths, block ends, digits of the length).
#[test]
fn every_length() {
    erb_packets::fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        scene.make_fast();
        for value_len in (0..=300).chain((301..1430).step_by(13)).chain(1430..=1438) {
            let key = "k".repeat(1 + value_len * 7 % 256);
            let value: Vec<u8> = (0..value_len)
                .map(|at| (at * 31 + value_len) as u8)
                .collect();
            scene.bench.fill(key.as_bytes(), &value, 0);
            let segment = scene.segment(&get(&key));
            let outcome = scene.up(&segment);
            let got = Segment::parse(&outcome.frame).unwrap();
            assert_eq!(got.payload, bulk(&value), "value of {value_len} bytes");
            assert_eq!(got.checksum, Checksum::Full, "value of {value_len} bytes");
            assert_eq!(got.seq, scene.rcv);
            assert_eq!(got.ack, scene.snd);
            again(&mut scene, &segment, got.seq, &got.payload);
            scene.rcv = scene.rcv.wrapping_add(got.payload.len() as u32);
        }
    });
}

/// What is unacknowledged may be in the ring of the connection at most: block copies may run over by one block.
const UNACKED_MAX: usize = (REPLAY_BYTES - 64) as usize;

/// Replies that lie across the ring's end, with others unacknowledged before them: the end comes at each place of a word,
/// in a reply's first, middle and last block. A client that asks again gets the same bytes.
#[test]
fn replies_across_the_rings_end() {
    erb_packets::fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        scene.make_fast();
        let (mut unacked, mut sent) = (VecDeque::<Vec<u8>>::new(), 0_usize);
        let (mut places_in_word, mut blocks_after) = (BTreeSet::new(), BTreeSet::new());
        for round in 0..400_usize {
            let value: Vec<u8> = (0..(round * 389 + round / 7) % 1439)
                .map(|at| (at * 31 + round) as u8)
                .collect();
            let (key, reply) = (format!("ring{round}"), bulk(&value));
            scene.bench.fill(key.as_bytes(), &value, 0);
            while unacked.iter().map(Vec::len).sum::<usize>() + reply.len() > UNACKED_MAX {
                unacked.pop_front();
            }
            let before = unacked.iter().map(Vec::len).sum::<usize>();
            let from = scene.rcv.wrapping_sub(before as u32);
            let mut segment = scene.segment(&get(&key));
            segment.ack = from;
            let outcome = scene.up(&segment);
            let got = Segment::parse(&outcome.frame).expect("a segment");
            assert_eq!(got.payload, reply, "round {round}");
            assert_eq!(got.seq, scene.rcv, "round {round}");
            let at = sent % REPLAY_BYTES as usize;
            if at + reply.len() > REPLAY_BYTES as usize {
                places_in_word.insert(at % 8);
                blocks_after.insert((at + reply.len() - REPLAY_BYTES as usize) / 64);
            }
            sent += reply.len();
            scene.rcv = scene.rcv.wrapping_add(reply.len() as u32);
            unacked.push_back(reply);
            again(
                &mut scene,
                &segment,
                from,
                &unacked.make_contiguous().concat(),
            );
        }
        assert_eq!(places_in_word.len(), 8, "{places_in_word:?}");
        assert!(blocks_after.len() > 10, "{blocks_after:?}");
    });
}

/// The client asks again for all from a sequence number on, piece by piece, by copies of its last request.
fn again(scene: &mut Scene<'_>, request: &Segment, from: u32, wanted: &[u8]) {
    let mut at = 0;
    while at < wanted.len() {
        let mut copy = request.clone();
        copy.ack = from.wrapping_add(at as u32);
        let outcome = scene.xdp(&copy.bytes());
        let got = Segment::parse(&outcome.frame).expect("a segment");
        assert_eq!(got.seq, copy.ack);
        assert_eq!(got.checksum, Checksum::Full);
        assert!(!got.payload.is_empty(), "it stops at {at}");
        let end = (at + got.payload.len()).min(wanted.len());
        assert_eq!(got.payload, wanted[at..end], "from {at} on");
        at = end;
    }
}
