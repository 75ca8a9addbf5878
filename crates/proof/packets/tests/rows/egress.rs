// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel sends: recorded, translated, its replies counted.

use erb_abi as abi;
use erb_packets::frame::{ACK, FIN, RST, Segment};
use erb_packets::row::{Expect, Program, Row, check};
use erb_packets::run::{SkbContext, run_skb};
use erb_packets::scene::{Scene, Shape, TCX_NEXT, V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS};

use crate::{SET_OTHER, fast, spliced};

type Moved = &'static [(&'static str, u64)];

const SHAPES: [Shape; 5] = [V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS];

/// A segment of the kernel behind one answered PING: kernel space is 7 bytes behind, and it has
/// seen 14 bytes less.
fn from_kernel(scene: &Scene, payload: &[u8]) -> Segment {
    let mut segment = scene.reply_segment(scene.rcv.wrapping_sub(7), payload);
    segment.ack = scene.snd.wrapping_sub(14);
    if payload.is_empty() {
        segment.flags = ACK;
    }
    segment
}

fn to_client(scene: &Scene, segment: &mut Segment) {
    segment.seq = segment.seq.wrapping_add(7);
    segment.ack = segment.ack.wrapping_add(14);
    if let Some(ts) = &mut segment.ts {
        // The kernel does not know the PING's timestamp.
        ts.1 = scene.clock;
    }
}

fn egress(
    name: &'static str,
    shape: Shape,
    before: fn(&mut Scene),
    packet: fn(&mut Scene) -> Segment,
    expect: Expect,
    moved: Moved,
) -> Row {
    Row::xdp(name, shape, before, packet, expect, moved).on(Program::Egress)
}

fn set_on_its_way(scene: &mut Scene) {
    spliced(scene);
    scene.request(SET_OTHER);
}

#[test]
fn translation() {
    let mut rows = Vec::new();
    for shape in SHAPES {
        let row = |name, before, packet, moved| {
            egress(
                name,
                shape,
                before,
                packet,
                Expect::Changed(to_client),
                moved,
            )
        };
        rows.extend([
            row(
                "ACK",
                spliced,
                |s| from_kernel(s, b""),
                &[("EGRESS_TRANSLATED", 1)],
            ),
            row(
                "reply: its request's mark is released",
                set_on_its_way,
                |s| from_kernel(s, b"+OK\r\n"),
                &[("EGRESS_TRANSLATED", 1), ("MARK_RELEASED", 1)],
            ),
            row(
                "keepalive or window probe below the edge",
                spliced,
                |s| {
                    let mut segment = from_kernel(s, b"");
                    segment.seq = segment.seq.wrapping_sub(1);
                    segment
                },
                &[("EGRESS_TRANSLATED", 1)],
            ),
            row(
                "FIN",
                spliced,
                |s| {
                    let mut segment = from_kernel(s, b"");
                    segment.flags = FIN | ACK;
                    segment
                },
                &[("EGRESS_TRANSLATED", 1)],
            ),
            row(
                "RST with ACK",
                spliced,
                |s| {
                    let mut segment = from_kernel(s, b"");
                    segment.flags = RST | ACK;
                    segment
                },
                &[("EGRESS_TRANSLATED", 1)],
            ),
        ]);
        rows.push(egress(
            "before any answer: as it is",
            shape,
            fast,
            |s| {
                let mut segment = s.reply_segment(s.rcv, b"");
                segment.flags = ACK;
                segment
            },
            Expect::Ignored,
            &[("EGRESS_PLAIN", 1)],
        ));
    }
    check(rows);
}

#[test]
fn below_the_edge() {
    let dropped: Moved = &[("EGRESS_BELOW_EDGE", 1)];
    check(vec![
        egress(
            "retransmission of a reply that the client has",
            V4,
            spliced,
            |s| {
                let mut segment = from_kernel(s, b":0\r\n");
                segment.seq = segment.seq.wrapping_sub(4);
                segment
            },
            Expect::Drop,
            dropped,
        ),
        egress(
            "data that straddles the edge",
            V6,
            set_on_its_way,
            |s| {
                let mut segment = from_kernel(s, b"\r\n+OK\r\n");
                segment.seq = segment.seq.wrapping_sub(2);
                segment
            },
            Expect::Drop,
            dropped,
        ),
    ]);
}

#[test]
fn selective_acks() {
    let mut rows = Vec::new();
    for shape in [V4, V6_NO_TS] {
        rows.push(egress(
            "SACK of the kernel for request bytes",
            shape,
            spliced,
            |s| {
                let segment = from_kernel(s, b"");
                let ack = segment.ack;
                segment.sack(&[
                    (ack.wrapping_add(10), ack.wrapping_add(20)),
                    (ack.wrapping_add(30), ack.wrapping_add(40)),
                ])
            },
            Expect::Changed(|s, p| {
                let ack = p.ack.wrapping_add(14);
                p.options.clear();
                *p = p.clone().sack(&[
                    (ack.wrapping_add(10), ack.wrapping_add(20)),
                    (ack.wrapping_add(30), ack.wrapping_add(40)),
                ]);
                to_client(s, p);
            }),
            &[("EGRESS_TRANSLATED", 1)],
        ));
        rows.push(egress(
            "D-SACK of the kernel",
            shape,
            spliced,
            |s| {
                let segment = from_kernel(s, b"");
                let ack = segment.ack;
                segment.sack(&[(ack.wrapping_sub(10), ack.wrapping_sub(2))])
            },
            Expect::Changed(|s, p| {
                let ack = p.ack.wrapping_add(14);
                p.options.clear();
                *p = p
                    .clone()
                    .sack(&[(ack.wrapping_sub(10), ack.wrapping_sub(2))]);
                to_client(s, p);
            }),
            &[("EGRESS_TRANSLATED", 1)],
        ));
    }
    check(rows);
}

#[test]
fn timestamps() {
    check(vec![
        egress(
            "TSval older than the last one sent is raised",
            V4,
            spliced,
            |s| {
                let mut segment = from_kernel(s, b"");
                segment.ts = Some((s.echo.wrapping_sub(500), s.clock));
                segment
            },
            Expect::Changed(|s, p| {
                to_client(s, p);
                p.ts = Some((s.entry().unwrap().last_tsval, s.clock));
            }),
            &[("EGRESS_TRANSLATED", 1)],
        ),
        egress(
            "TSecr older than the client's newest timestamp is raised",
            V6,
            spliced,
            |s| {
                let mut segment = from_kernel(s, b"");
                segment.ts = Some((s.echo.wrapping_add(5000), s.clock - 100));
                segment
            },
            Expect::Changed(to_client),
            &[("EGRESS_TRANSLATED", 1)],
        ),
        egress(
            "before any answer the kernel's TSecr stays",
            V4,
            fast,
            |s| {
                let mut segment = s.reply_segment(s.rcv, b"");
                segment.flags = ACK;
                segment.ts = Some((s.echo.wrapping_add(5000), s.clock - 100));
                segment
            },
            Expect::Ignored,
            &[("EGRESS_PLAIN", 1)],
        ),
    ]);
}

#[test]
fn replies_that_do_not_fit() {
    check(vec![
        egress(
            "a reply without request",
            V4,
            spliced,
            |s| from_kernel(s, b"+OK\r\n"),
            Expect::Changed(to_client),
            &[("EGRESS_TRANSLATED", 1), ("REPLY_EXTRA", 1)],
        ),
        egress(
            "a push without request is none",
            V4,
            spliced,
            |s| from_kernel(s, b">2\r\n+message\r\n$2\r\nhi\r\n"),
            Expect::Changed(to_client),
            &[("EGRESS_TRANSLATED", 1)],
        ),
        egress(
            "a gap: bytes have left by another way; what is marked waits for proof",
            V4,
            set_on_its_way,
            |s| {
                let mut segment = from_kernel(s, b"+OK\r\n");
                segment.seq = segment.seq.wrapping_add(3);
                segment
            },
            Expect::Changed(to_client),
            &[
                ("EGRESS_TRANSLATED", 1),
                ("SCAN_REPLY_LOST", 1),
                ("FENCE_TAKEN", 1),
                ("FENCE_PROOF", 1),
            ],
        ),
        egress(
            "what is no RESP",
            V4,
            set_on_its_way,
            |s| from_kernel(s, b"HTTP/1.1 400\r\n"),
            Expect::Changed(to_client),
            &[
                ("EGRESS_TRANSLATED", 1),
                ("SCAN_REPLY_LOST", 1),
                ("FENCE_TAKEN", 1),
                ("FENCE_PROOF", 1),
            ],
        ),
        egress(
            "by another device than the client's packets came by",
            V4,
            |s| {
                spliced(s);
                s.edit(|entry| entry.ifindex = 1);
            },
            |s| from_kernel(s, b""),
            Expect::Changed(to_client),
            &[("EGRESS_OTHER_DEVICE", 1), ("EGRESS_TRANSLATED", 1)],
        ),
    ]);
}

/// What a device below the first one is given: no route names it any more.
#[test]
fn below_another_device() {
    erb_packets::fixture::with(|bench| {
        for shape in SHAPES {
            let mut scene = Scene::connect(bench, shape);
            scene.make_spliced();
            let before = scene.bench.stats();
            let frame = from_kernel(&scene, b"").bytes();
            let context = SkbContext {
                ifindex: scene.bench.ifindex,
                ..Default::default()
            };
            let outcome = run_skb(&scene.bench.programs.egress, &frame, context).unwrap();
            assert_eq!((outcome.verdict, outcome.frame), (TCX_NEXT, frame));
            let moved = erb_packets::row::moved(&before, &scene.bench.stats());
            assert_eq!(moved.get("EGRESS_BELOW"), Some(&1), "{moved:?}");
        }
    });
}

/// The same by the attached program, on packets that the kernel really sends.
#[test]
fn by_the_attached_program() {
    erb_packets::fixture::with(|bench| {
        for shape in [V4, V4_NO_TS, V6, V6_NO_TS] {
            let mut scene = Scene::connect(bench, shape);
            scene.make_spliced();
            let before = scene.bench.stats();
            // Checks payload, sequence number and all sums.
            scene.request(SET_OTHER);
            let reply = scene.reply(b"+OK\r\n");
            assert_eq!(
                reply.checksum,
                erb_packets::frame::Checksum::Full,
                "{shape:?}"
            );
            assert_eq!(reply.ack, scene.snd, "{shape:?}");
            assert_eq!(reply.ts.map(|ts| ts.1), shape.ts.then_some(scene.clock));
            let moved = erb_packets::row::moved(&before, &scene.bench.stats());
            assert_eq!(moved.get("MARK_RELEASED"), Some(&1), "{moved:?}");
            scene.acknowledge();
            let entry = scene.entry().unwrap();
            assert_eq!(u32::from(entry.state), abi::CONN_FAST);
            assert_eq!((entry.in_delta, entry.out_delta), (14, 7));
            assert_eq!((entry.requests, entry.replies), (2, 2));
            // The kernel's own retransmission, dropped below the edge: an answer moves it first.
            let get = scene.segment(b"PING\r\n");
            assert_eq!(scene.up(&get).verdict, erb_packets::scene::XDP_TX);
            assert_eq!(scene.entry().unwrap().out_delta, 14);
        }
    });
}
