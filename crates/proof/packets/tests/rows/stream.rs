// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP on the way up: order, duplicates, acknowledgements, translation.

use erb_packets::row::{Expect, Program, Row, check};
use erb_packets::scene::{Scene, V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS};

use crate::splice::{behind_ping, behind_unacknowledged_ping, sent, shifted};
use crate::{GET_KEY, PING, SET_OTHER, fast, spliced};

const UP: &[(&str, u64)] = &[("UP_TRANSLATED", 1)];

#[test]
fn order() {
    let to_tc: &[(&str, u64)] = &[("TO_TC", 1)];
    let kept: &[(&str, u64)] = &[("AHEAD_KEPT", 1), ("UP_TRANSLATED", 1)];
    let mut rows = Vec::new();
    for shape in [V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS] {
        rows.push(Row::xdp(
            "payload beyond the next byte: left to TC",
            shape,
            fast,
            |s| shifted(s, SET_OTHER, 10, 0),
            Expect::ToTc,
            to_tc,
        ));
        rows.push(
            Row::xdp(
                "which keeps it and passes it up",
                shape,
                fast,
                |s| shifted(s, SET_OTHER, 10, 0),
                Expect::Same,
                kept,
            )
            .on(Program::Ingress),
        );
        rows.push(
            Row::xdp(
                "the same behind answered bytes",
                shape,
                spliced,
                |s| shifted(s, SET_OTHER, 1, 0),
                Expect::Changed(behind_ping),
                kept,
            )
            .on(Program::Ingress),
        );
    }
    rows.push(Row::xdp(
        "straddles consumed bytes: scanned from the new ones on, up whole",
        V4,
        spliced,
        |s| shifted(s, &[&PING[8..], SET_OTHER].concat(), -6, 0),
        Expect::Changed(behind_ping),
        &[("REFUSE_ORDER", 1), ("MARK_TAKEN", 1), ("UP_TRANSLATED", 1)],
    ));
    rows.push(Row::xdp(
        "bytes that went up before: up again, unscanned",
        V4,
        |s| {
            fast(s);
            s.request(SET_OTHER);
        },
        |s| shifted(s, SET_OTHER, -(SET_OTHER.len() as i32), 0),
        Expect::Same,
        UP,
    ));
    check(rows);
}

#[test]
fn duplicates() {
    let replayed: &[(&str, u64)] = &[("REPLAY_REQUEST", 1)];
    let mut rows = Vec::new();
    for shape in [V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS] {
        rows.push(Row::xdp(
            "consumed request again: the same bytes",
            shape,
            spliced,
            |s| shifted(s, PING, -14, -7),
            sent(-7, 0, b"+PONG\r\n"),
            replayed,
        ));
        rows.push(Row::xdp(
            "again, its reply acknowledged meanwhile: a bare ACK",
            shape,
            spliced,
            |s| shifted(s, PING, -14, 0),
            sent(0, 0, b""),
            replayed,
        ));
    }
    rows.push(Row::xdp(
        "again, half of its reply acknowledged: the rest",
        V4,
        spliced,
        |s| shifted(s, PING, -14, -3),
        sent(-3, 0, b"G\r\n"),
        replayed,
    ));
    rows.push(Row::xdp(
        "keepalive with a byte of garbage (old stacks): a bare ACK",
        V4,
        spliced,
        |s| shifted(s, b"\0", -1, 0),
        sent(0, 0, b""),
        replayed,
    ));
    rows.push(Row::xdp(
        "a duplicate from before the connection's bytes: TCP's business",
        V4,
        spliced,
        |s| shifted(s, PING, -14, 1),
        Expect::Changed(behind_ping),
        UP,
    ));
    check(rows);
}

#[test]
fn acceptance() {
    check(vec![
        Row::xdp(
            "acknowledgement older than the newest",
            V4,
            |s| {
                spliced(s);
                let get = s.segment(GET_KEY);
                s.up(&get);
                s.rcv = s.rcv.wrapping_add(11);
            },
            |s| shifted(s, GET_KEY, 0, -18),
            Expect::Changed(|s, p| {
                p.seq = p.seq.wrapping_sub(14 + GET_KEY.len() as u32);
                p.ack = s.rcv.wrapping_sub(18);
                p.window = (((0xffff_u32 << 7) - 18) >> 7) as u16;
            }),
            &[("REFUSE_ACK", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "acknowledgement beyond what was sent",
            V4,
            spliced,
            |s| shifted(s, GET_KEY, 0, 1),
            // Not up: there is no acknowledgement with which TCP is sure to refuse the bytes.
            sent(0, 0, b""),
            &[
                ("DROP_OUT_OF_ORDER", 1),
                ("DUP_ACK_SENT", 1),
                ("REFUSE_ACK", 1),
            ],
        ),
        Row::xdp(
            "timestamp older than the newest",
            V4,
            spliced,
            |s| {
                let mut segment = s.segment(GET_KEY);
                segment.ts = Some((s.clock - 100, s.echo));
                segment
            },
            sent(0, 0, b""),
            &[
                ("DROP_OUT_OF_ORDER", 1),
                ("DUP_ACK_SENT", 1),
                ("REFUSE_PAWS", 1),
            ],
        ),
    ]);
}

#[test]
fn translation_up() {
    let set: &[(&str, u64)] = &[
        ("REFUSE_COMMAND", 1),
        ("MARK_TAKEN", 1),
        ("UP_TRANSLATED", 1),
    ];
    let mut rows = Vec::new();
    for shape in [V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS] {
        rows.push(Row::xdp(
            "payload behind an answered request",
            shape,
            spliced,
            |s| s.segment(SET_OTHER),
            Expect::Changed(behind_ping),
            set,
        ));
        rows.push(Row::xdp(
            "payload that does not acknowledge the answer: floor at the edge",
            shape,
            spliced,
            |s| shifted(s, SET_OTHER, 0, -7),
            Expect::Changed(behind_unacknowledged_ping),
            set,
        ));
        rows.push(Row::xdp(
            "the same with a small window: not below 0",
            shape,
            spliced,
            |s| {
                let mut segment = shifted(s, SET_OTHER, 0, -7);
                segment.window = 0;
                segment
            },
            Expect::Changed(|_, p| p.seq = p.seq.wrapping_sub(14)),
            set,
        ));
        rows.push(Row::xdp(
            "payload with the bare pseudo-header sum keeps it",
            shape,
            spliced,
            |s| {
                let mut segment = s.segment(SET_OTHER);
                segment.checksum = erb_packets::frame::Checksum::Pseudo;
                segment
            },
            Expect::Changed(behind_ping),
            set,
        ));
    }
    check(rows);
}

#[test]
fn translation_up_of_odd_headers() {
    const SET: &[u8] = SET_OTHER;
    let mut rows = Vec::new();
    for shape in [V4, V6, V4_NO_TS] {
        rows.push(Row::xdp(
            "IP options or an extension header before TCP",
            shape,
            spliced,
            |s| {
                let mut segment = s.segment(SET);
                segment.ip = erb_packets::frame::IpOdd::Options;
                segment
            },
            Expect::Changed(behind_ping),
            &[
                ("ODD_IP_OPTIONS", 1),
                ("MARK_TAKEN", 1),
                ("UP_TRANSLATED", 1),
            ],
        ));
        rows.push(Row::xdp(
            "as many TCP options as fit",
            shape,
            spliced,
            |s| {
                let mut segment = s.segment(SET);
                segment.options = [30, 28].into_iter().chain(0..26).collect();
                segment
            },
            Expect::Changed(behind_ping),
            &[("ODD_OPTIONS", 1), ("MARK_TAKEN", 1), ("UP_TRANSLATED", 1)],
        ));
        rows.push(Row::xdp(
            "padding behind the packet stays",
            shape,
            spliced,
            |s| {
                let mut segment = s.segment(SET);
                segment.pad_to = 200;
                segment
            },
            Expect::Changed(behind_ping),
            &[
                ("REFUSE_COMMAND", 1),
                ("MARK_TAKEN", 1),
                ("UP_TRANSLATED", 1),
            ],
        ));
    }
    check(rows);
}

/// The body of a large value counts as scanned once its length is known: any order will do.
#[test]
fn a_large_value_in_any_order() {
    fn begun(scene: &mut Scene) {
        spliced(scene);
        let head = scene.segment(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3000\r\n");
        scene.up(&head);
    }
    check(vec![
        Row::xdp(
            "its last bytes first",
            V4,
            begun,
            |s| shifted(s, &[&[b'v'; 1000][..], b"\r\n"].concat(), 2000, 0),
            Expect::Changed(behind_ping),
            &[("MARK_TAKEN", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "all but its last byte: half a write marks nothing",
            V4,
            begun,
            |s| shifted(s, &[&[b'v'; 1000][..], b"\r"].concat(), 2000, 0),
            Expect::Changed(behind_ping),
            UP,
        ),
        Row::xdp(
            "beyond its end: a gap",
            V4,
            begun,
            |s| shifted(s, PING, 3003, 0),
            Expect::ToTc,
            &[("TO_TC", 1)],
        ),
        Row::xdp(
            "behind its end, which has not come",
            V4,
            begun,
            |s| shifted(s, SET_OTHER, 3002, 0),
            Expect::ToTc,
            &[("TO_TC", 1)],
        ),
        Row::xdp(
            "which keeps it",
            V4,
            begun,
            |s| shifted(s, SET_OTHER, 3002, 0),
            Expect::Changed(behind_ping),
            &[("AHEAD_KEPT", 1), ("UP_TRANSLATED", 1)],
        )
        .on(Program::Ingress),
    ]);
}
