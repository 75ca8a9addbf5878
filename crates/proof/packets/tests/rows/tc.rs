// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The TC ingress tier: the packet that XDP leaves to it, and devices without XDP.

use std::collections::BTreeMap;

use erb_abi as abi;
use erb_packets::fixture;
use erb_packets::frame::{ACK, Checksum, PORT, Segment};
use erb_packets::row::{Before, Expect, Packet, Program, Row, check, moved};
use erb_packets::run::{Outcome, SkbContext};
use erb_packets::scene::{
    META_TO_TC, Scene, Shape, TCX_DROP, TCX_NEXT, V4, V4_NO_TS, V6, V6_NO_TS, XDP_PASS, XDP_TX,
};

use crate::{GET_KEY, PING, SET_OTHER, fast, spliced};

const SHAPES: [Shape; 4] = [V4, V4_NO_TS, V6, V6_NO_TS];

/// The kernel has not got the acknowledgement of its reply yet.
fn answered(scene: &mut Scene) {
    scene.bench.fill(b"key", b"value", 0);
    scene.make_answered();
}

/// What is left of a consumed packet: the acknowledgement alone, at the place of its first byte in
/// kernel space; the window is smaller by the 11 bytes that the answer takes.
fn bare_ack(_: &Scene, p: &mut Segment) {
    p.payload.clear();
    p.flags = ACK;
    p.window = (((0xffff_u32 << 7) - 11) >> 7) as u16;
    p.checksum = Checksum::Full;
}

#[test]
fn consumed() {
    let counters: &[(&str, u64)] = &[("FAST_PACKET_TC", 1), ("FAST_GET", 1), ("EGRESS_CLONE", 1)];
    let mut rows = Vec::new();
    for shape in SHAPES {
        let row = |name, before: Before, packet: Packet, expect| {
            Row::xdp(name, shape, before, packet, expect, counters).on(Program::Ingress)
        };
        rows.extend([
            row(
                "the packet that XDP left to TC",
                |s| {
                    answered(s);
                    let get = s.segment(GET_KEY);
                    assert_eq!(s.xdp(&get.bytes()).meta, Some(META_TO_TC));
                },
                |s| s.segment(GET_KEY),
                Expect::Changed(bare_ack),
            ),
            row(
                "the bare pseudo-header sum is completed",
                answered,
                |s| {
                    let mut get = s.segment(GET_KEY);
                    get.checksum = Checksum::Pseudo;
                    get
                },
                Expect::Changed(bare_ack),
            ),
            row(
                "without XDP in front of it",
                fast,
                |s| s.segment(GET_KEY),
                Expect::Changed(bare_ack),
            ),
        ]);
    }
    check(rows);
}

#[test]
fn passed_up() {
    let set: &[(&str, u64)] = &[
        ("REFUSE_COMMAND", 1),
        ("MARK_TAKEN", 1),
        ("UP_TRANSLATED", 1),
    ];
    let behind_ping: fn(&Scene, &mut Segment) = |_, p| {
        p.seq = p.seq.wrapping_sub(14);
        p.ack = p.ack.wrapping_sub(7);
    };
    let mut rows = Vec::new();
    for shape in SHAPES {
        let on = |program, name, before: Before, packet: Packet, expect, moved| {
            Row::xdp(name, shape, before, packet, expect, moved).on(program)
        };
        rows.push(on(
            Program::Ingress,
            "a write behind an answered request",
            spliced,
            |s| s.segment(SET_OTHER),
            Expect::Changed(behind_ping),
            set,
        ));
        rows.push(on(
            Program::IngressMerged,
            "a merged packet is translated, never answered",
            spliced,
            |s| s.segment(GET_KEY),
            Expect::Changed(behind_ping),
            &[("TC_MERGED", 1), ("UP_TRANSLATED", 1)],
        ));
        rows.push(on(
            Program::IngressMerged,
            "a merged packet that XDP left to TC is scanned",
            |s| {
                answered(s);
                let get = s.segment(GET_KEY);
                s.xdp(&get.bytes());
            },
            |s| s.segment(&[GET_KEY, SET_OTHER].concat()),
            Expect::Ignored,
            &[("TC_MERGED", 1), ("MARK_TAKEN", 1), ("UP_TRANSLATED", 1)],
        ));
        rows.push(on(
            Program::Ingress,
            "lease over between the tiers: up, nothing was changed",
            |s| {
                answered(s);
                let get = s.segment(GET_KEY);
                s.xdp(&get.bytes());
                s.bench.dp.control().set_lease_until_ns(1);
            },
            |s| s.segment(GET_KEY),
            Expect::Ignored,
            &[("REFUSE_LEASE", 1), ("UP_TRANSLATED", 1)],
        ));
    }
    check(rows);
}

/// The clone carries the answer, the kernel gets the acknowledgement, and the next packet is XDP's.
#[test]
fn hand_over() {
    fixture::with(|bench| {
        for shape in SHAPES {
            let mut scene = Scene::connect(bench, shape);
            answered(&mut scene);
            let get = scene.segment(GET_KEY);
            let left = scene.xdp(&get.bytes());
            assert_eq!(left.meta, Some(META_TO_TC), "{shape:?}");
            let after = scene.ingress(&left.frame, 0);
            assert_eq!(after.verdict, TCX_NEXT);
            let reply = scene.expect_from_kernel(|segment| !segment.payload.is_empty());
            assert_eq!(reply.payload, b"$5\r\nvalue\r\n");
            assert_eq!(reply.seq, scene.rcv);
            assert_eq!(reply.ack, get.seq.wrapping_add(GET_KEY.len() as u32));
            assert_eq!(reply.checksum, Checksum::Full);
            assert_eq!(reply.ts.map(|ts| ts.1), get.ts.map(|ts| ts.0));
            scene.to_kernel(&after.frame);
            scene.snd = reply.ack;
            scene.rcv = scene.rcv.wrapping_add(11);
            erb_packets::scene::patient("the kernel takes the ACK", || {
                (scene.info().tcpi_unacked == 0).then_some(())
            });
            let next = scene.segment(GET_KEY);
            assert_eq!(scene.up(&next).verdict, XDP_TX, "{shape:?}");
        }
    });
}

/// What the fast path sees of payload beyond a hole, of what fills it, and of what comes behind.
#[test]
fn a_hole_is_filled() {
    fixture::with(|bench| {
        for shape in SHAPES {
            let mut scene = Scene::connect(bench, shape);
            spliced(&mut scene);
            let mut early = scene.segment(SET_OTHER);
            early.seq = early.seq.wrapping_add(PING.len() as u32);
            let (left, up) = both_tiers(&scene, &early);
            assert_eq!((left, up.verdict), (Some(META_TO_TC), TCX_NEXT));
            scene.to_kernel(&up.frame);
            let known = scene.expect_from_kernel(|segment| segment.payload.is_empty());
            assert_eq!((known.seq, known.ack), (scene.rcv, scene.snd));
            // NOP NOP SACK, in the client's numbers.
            let block = [early.seq, early.seq.wrapping_add(SET_OTHER.len() as u32)];
            let block: Vec<u8> = block.iter().flat_map(|edge| edge.to_be_bytes()).collect();
            assert_eq!(known.options, [&[1, 1, 5, 10][..], &block].concat());
            assert_eq!(scene.bench.dp.control().fence(), 0);
            let before = scene.bench.stats();
            let ping = scene.segment(PING);
            let (left, up) = both_tiers(&scene, &ping);
            assert_eq!((left, up.verdict), (Some(META_TO_TC), TCX_NEXT));
            let counted = moved(&before, &scene.bench.stats());
            let expected = [("TO_TC", 1), ("UP_TRANSLATED", 1), ("MARK_TAKEN", 1)];
            assert_eq!(counted, expected.into_iter().collect(), "{shape:?}");
            scene.to_kernel(&up.frame);
            scene.read_request(&[PING, SET_OTHER].concat());
            scene.snd = scene
                .snd
                .wrapping_add((PING.len() + SET_OTHER.len()) as u32);
            scene.reply(b"+PONG\r\n+OK\r\n");
            // The buffer goes with the client's acknowledgement, which XDP leaves to TC.
            let ack = scene.segment(b"");
            let (left, up) = both_tiers(&scene, &ack);
            assert_eq!((left, up.verdict), (Some(META_TO_TC), TCX_NEXT));
            scene.to_kernel(&up.frame);
            let flags = u32::from(scene.entry().expect("an entry").flags);
            assert_eq!(flags & abi::CONN_F_AHEAD, 0);
            erb_packets::scene::patient("the kernel takes the ACK", || {
                (scene.info().tcpi_unacked == 0).then_some(())
            });
            let ping = scene.segment(PING);
            assert_eq!(scene.xdp(&ping.bytes()).verdict, XDP_TX, "{shape:?}");
        }
    });
}

/// The mark that XDP leaves on a packet, and what TC makes of it.
fn both_tiers(scene: &Scene, segment: &Segment) -> (Option<u32>, Outcome) {
    let left = scene.xdp(&segment.bytes());
    assert_eq!(left.verdict, XDP_PASS);
    assert_eq!(left.frame, segment.bytes());
    (left.meta, scene.ingress(&left.frame, 0))
}

/// Beyond the size of a buffer: dropped, and a bare duplicate ACK says what is missing.
#[test]
fn what_is_not_kept_is_answered_by_a_clone() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        spliced(&mut scene);
        scene.edit(|entry| {
            entry.flags |= abi::CONN_F_AHEAD as u8;
            entry.ahead = abi::AHEAD_BUFFERS as u8 + 1; // there is no such buffer
            entry.ahead_end = entry.next.wrapping_add(10);
        });
        let mut early = scene.segment(GET_KEY);
        early.seq = early.seq.wrapping_add(3);
        let before = scene.bench.stats();
        let outcome = scene.ingress(&early.bytes(), 0);
        assert_eq!(outcome.verdict, TCX_DROP);
        let ack = scene.expect_from_kernel(|segment| segment.payload.is_empty());
        assert_eq!((ack.seq, ack.ack), (scene.rcv, scene.snd));
        let counted = moved(&before, &scene.bench.stats());
        let expected = [
            ("DROP_OUT_OF_ORDER", 1),
            ("DUP_ACK_SENT", 1),
            ("EGRESS_CLONE", 1),
        ];
        assert_eq!(counted, expected.into_iter().collect());
    });
}

/// A packet that is none of the TC tier's although it is for Redis's port: passed on as it is.
fn left_alone(packet: fn(&mut Scene) -> Segment, context: SkbContext, counter: &'static str) {
    fixture::with(move |bench| {
        let mut scene = Scene::connect(bench, V4);
        scene.bench.fill(b"key", b"value", 0);
        scene.make_answered();
        let frame = packet(&mut scene).bytes();
        let before = scene.bench.stats();
        let outcome = scene.ingress_in(&frame, context);
        let counted = moved(&before, &scene.bench.stats());
        assert_eq!(outcome.verdict, TCX_NEXT);
        assert_eq!(outcome.frame, frame, "passed as it came");
        assert_eq!(counted, [(counter, 1)].into_iter().collect());
    });
}

#[test]
fn the_daemons_own_connection() {
    let marked = SkbContext {
        mark: erb_abi::SKB_MARK_FEED,
        ..Default::default()
    };
    left_alone(|scene| scene.segment(GET_KEY), marked, "UP_FEED");
}

/// On lo both directions pass: a packet between two ports like Redis's may be a reply.
#[test]
fn on_loopback_a_client_with_redis_port() {
    let loopback = SkbContext {
        ifindex: 1,
        ingress_ifindex: 1,
        ..Default::default()
    };
    let packet = |scene: &mut Scene| {
        let mut get = scene.segment(GET_KEY);
        get.client_port = PORT;
        get
    };
    left_alone(packet, loopback, "UP_UNTRACKED");
}

/// A device that is not boosted: what is tracked is translated there, what is not is left alone.
#[test]
fn elsewhere() {
    let packet = |scene: &mut Scene| scene.segment(GET_KEY);
    fixture::with(move |bench| {
        for shape in SHAPES {
            let mut scene = Scene::connect(bench, shape);
            let other = SkbContext {
                ifindex: 1,
                ingress_ifindex: 1,
                ..Default::default()
            };
            let before = scene.bench.stats();
            let frame = packet(&mut scene).bytes();
            let outcome = scene.ingress_in(&frame, other);
            assert_eq!((outcome.verdict, outcome.frame), (TCX_NEXT, frame));
            let counted = moved(&before, &scene.bench.stats());
            assert_eq!(counted, BTreeMap::from([("UP_ELSEWHERE", 1)]));
            spliced(&mut scene);
            let before = scene.bench.stats();
            let frame = packet(&mut scene).bytes();
            let outcome = scene.ingress_in(&frame, other);
            assert_eq!(outcome.verdict, TCX_NEXT);
            assert_ne!(outcome.frame, frame, "not translated");
            let counted = moved(&before, &scene.bench.stats());
            assert_eq!(counted.get("REFUSE_NO_EGRESS"), Some(&1), "{counted:?}");
            assert_eq!(counted.get("UP_TRANSLATED"), Some(&1), "{counted:?}");
        }
    });
}
