//! TCP on the way up: order, duplicates, acknowledgements, translation.

use erb_rows::frame::{ECE, Segment};
use erb_rows::row::{Expect, Row, check};
use erb_rows::scene::{Scene, V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS};

use crate::{GET_KEY, PING, SET_OTHER, fast, spliced};

fn shifted(scene: &mut Scene, payload: &[u8], seq: i32, ack: i32) -> Segment {
    let mut segment = scene.segment(payload);
    segment.seq = segment.seq.wrapping_add_signed(seq);
    segment.ack = segment.ack.wrapping_add_signed(ack);
    segment
}

/// As [`spliced`], and an ACK has gone up since the kernel spoke last.
fn spliced_and_quiet(scene: &mut Scene) {
    spliced(scene);
    let ack = shifted(scene, b"", 0, -7);
    scene.up(&ack);
}

fn sent(seq: i32, ack: i32, payload: &[u8]) -> Expect {
    Expect::Sent {
        seq,
        ack,
        payload: payload.to_vec(),
    }
}

const UP: &[(&str, u64)] = &[("UP_TRANSLATED", 1)];

/// The client's numbers in kernel space behind one answered PING.
fn behind_ping(_: &Scene, p: &mut Segment) {
    p.seq = p.seq.wrapping_sub(14);
    p.ack = p.ack.wrapping_sub(7);
}

/// As [`behind_ping`], but the PONG is not acknowledged: floor at the edge, the window shrinks by
/// what the floor added.
fn behind_unacknowledged_ping(_: &Scene, p: &mut Segment) {
    p.seq = p.seq.wrapping_sub(14);
    p.window = (((0xffff_u32 << 7) - 7) >> 7) as u16;
}

#[test]
fn order() {
    let gap: &[(&str, u64)] = &[("DROP_OUT_OF_ORDER", 1), ("DUP_ACK_SENT", 1)];
    let mut rows = Vec::new();
    for shape in [V4, V4_NO_TS, V4_VLAN, V6, V6_NO_TS] {
        rows.push(Row::xdp(
            "payload beyond the next byte: a bare duplicate ACK",
            shape,
            fast,
            |s| shifted(s, GET_KEY, 10, 0),
            sent(0, 0, b""),
            gap,
        ));
        rows.push(Row::xdp(
            "the same behind answered bytes",
            shape,
            spliced,
            |s| shifted(s, GET_KEY, 1, 0),
            sent(0, 0, b""),
            gap,
        ));
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
            Expect::Changed(behind_ping),
            &[("REFUSE_ACK", 1), ("UP_TRANSLATED", 1)],
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
            Expect::Changed(behind_ping),
            &[("REFUSE_PAWS", 1), ("UP_TRANSLATED", 1)],
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
                segment.checksum = erb_rows::frame::Checksum::Pseudo;
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
                segment.ip = erb_rows::frame::IpOdd::Options;
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
            UP,
        ),
        Row::xdp(
            "beyond its end: a gap",
            V4,
            begun,
            |s| shifted(s, PING, 3003, 0),
            // The kernel has taken the 34 bytes before the value.
            sent(0, 0, b""),
            &[("DROP_OUT_OF_ORDER", 1), ("DUP_ACK_SENT", 1)],
        ),
        Row::xdp(
            "behind its end: scanned",
            V4,
            begun,
            |s| shifted(s, SET_OTHER, 3002, 0),
            Expect::Changed(behind_ping),
            &[
                ("REFUSE_COMMAND", 1),
                ("MARK_TAKEN", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
    ]);
}

#[test]
fn pure_acks_dropped() {
    let dropped: &[(&str, u64)] = &[("PURE_ACK_DROPPED", 1)];
    let mut rows = Vec::new();
    for shape in [V4, V4_NO_TS, V4_VLAN, V6] {
        rows.push(Row::xdp(
            "ACK of an answer: nothing new to the kernel",
            shape,
            spliced_and_quiet,
            |s| s.segment(b""),
            Expect::Drop,
            dropped,
        ));
        rows.push(Row::xdp(
            "the same padded to Ethernet's least length",
            shape,
            spliced_and_quiet,
            |s| {
                let mut segment = s.segment(b"");
                segment.pad_to = 60;
                segment
            },
            Expect::Drop,
            dropped,
        ));
    }
    check(rows);
}

#[test]
fn pure_acks_not_dropped() {
    let up: &[(&str, u64)] = &[("PURE_ACK_UP", 1)];
    let row = |name, before, packet, expect| Row::xdp(name, V4, before, packet, expect, up);
    check(vec![
        row(
            "ACK without any answered request",
            fast,
            |s| s.segment(b""),
            Expect::Same,
        ),
        row(
            "keepalive: one byte below the next",
            spliced_and_quiet,
            |s| shifted(s, b"", -1, 0),
            Expect::Changed(behind_ping),
        ),
        row(
            "no ACK went up in the last second",
            |s| {
                spliced_and_quiet(s);
                s.edit(|entry| entry.ack_up_ns = 0);
            },
            |s| s.segment(b""),
            Expect::Changed(behind_ping),
        ),
        row(
            "the kernel has spoken since",
            |s| {
                spliced_and_quiet(s);
                s.edit(|entry| entry.spoke = 1);
            },
            |s| s.segment(b""),
            Expect::Changed(behind_ping),
        ),
        row(
            "bypass",
            |s| {
                spliced_and_quiet(s);
                s.edit(|entry| entry.state = erb_abi::CONN_BYPASS as u8);
            },
            |s| s.segment(b""),
            Expect::Changed(behind_ping),
        ),
        row(
            "ECE",
            spliced_and_quiet,
            |s| {
                let mut segment = s.segment(b"");
                segment.flags |= ECE;
                segment
            },
            Expect::Changed(behind_ping),
        ),
        row(
            "an acknowledgement of what nobody sent",
            spliced_and_quiet,
            |s| shifted(s, b"", 0, 1),
            Expect::Changed(behind_ping),
        ),
        row(
            "window update while the kernel has unacknowledged bytes",
            |s| {
                spliced_and_quiet(s);
                s.request(SET_OTHER);
                s.reply(b"+OK\r\n");
                let first = shifted(s, b"", 0, -5);
                s.up(&first);
            },
            |s| {
                let mut segment = shifted(s, b"", 0, -5);
                segment.window = 0x7000;
                segment
            },
            Expect::Changed(behind_ping),
        ),
        row(
            "duplicate ACK while the kernel has unacknowledged bytes",
            |s| {
                spliced_and_quiet(s);
                s.request(SET_OTHER);
                s.reply(b"+OK\r\n");
                let first = shifted(s, b"", 0, -5);
                s.up(&first);
            },
            |s| shifted(s, b"", 0, -5),
            Expect::Changed(behind_ping),
        ),
        row(
            "the acknowledgement of a reply of the kernel",
            |s| {
                spliced_and_quiet(s);
                s.request(SET_OTHER);
                s.reply(b"+OK\r\n");
            },
            |s| s.segment(b""),
            Expect::Changed(behind_ping),
        ),
    ]);
}

#[test]
fn selective_acks() {
    check(vec![
        Row::xdp(
            "SACK above the edge: translated",
            V4,
            spliced,
            |s| {
                let segment = s.segment(b"");
                let ack = segment.ack;
                segment.sack(&[(ack.wrapping_add(10), ack.wrapping_add(20))])
            },
            Expect::Changed(|_, p| {
                let ack = p.ack.wrapping_sub(7);
                p.options.clear();
                *p = p
                    .clone()
                    .sack(&[(ack.wrapping_add(10), ack.wrapping_add(20))]);
                behind_ping_only(p);
            }),
            &[("PURE_ACK_UP", 1)],
        ),
        Row::xdp(
            "D-SACK of an answer's bytes: replaced by NOPs",
            V4,
            spliced,
            |s| {
                let segment = s.segment(b"");
                let ack = segment.ack;
                segment.sack(&[(ack.wrapping_sub(7), ack)])
            },
            Expect::Changed(|_, p| {
                p.options.fill(1);
                behind_ping_only(p);
            }),
            &[("PURE_ACK_UP", 1)],
        ),
        Row::xdp(
            "two blocks, one below the edge: all NOPs",
            V6,
            spliced,
            |s| {
                let segment = s.segment(b"");
                let ack = segment.ack;
                segment.sack(&[
                    (ack.wrapping_add(10), ack.wrapping_add(20)),
                    (ack.wrapping_sub(7), ack.wrapping_sub(2)),
                ])
            },
            Expect::Changed(|_, p| {
                p.options.fill(1);
                behind_ping_only(p);
            }),
            &[("PURE_ACK_UP", 1)],
        ),
        Row::xdp(
            "SACK above a lost answer: the answer again",
            V4,
            spliced,
            |s| {
                let segment = shifted(s, b"", 0, -7);
                let end = s.rcv;
                segment.sack(&[(end, end.wrapping_add(10))])
            },
            Expect::Sent {
                seq: -7,
                ack: 0,
                payload: b"+PONG\r\n".to_vec(),
            },
            &[("REPLAY_ACK", 1)],
        ),
        Row::xdp(
            "SACK above a lost answer while the kernel has bytes too: up without blocks",
            V4,
            |s| {
                spliced(s);
                s.request(SET_OTHER);
                s.reply(b"+OK\r\n");
            },
            |s| {
                let segment = shifted(s, b"", 0, -12);
                let end = s.rcv;
                segment.sack(&[(end.wrapping_sub(5), end)])
            },
            Expect::Changed(|_, p| {
                p.options.fill(1);
                behind_unacknowledged_ping_only(p);
            }),
            &[("PURE_ACK_UP", 1)],
        ),
        Row::xdp(
            "SACK behind a hole of three bytes: these only",
            V4,
            spliced,
            |s| {
                let segment = shifted(s, b"", 0, -7);
                let end = s.rcv;
                segment.sack(&[(end.wrapping_sub(4), end)])
            },
            sent(-7, 0, b"+PO"),
            &[("REPLAY_ACK", 1)],
        ),
        Row::xdp(
            "the same SACK again within one RTT: no second replay",
            V6,
            |s| {
                spliced(s);
                let segment = shifted(s, b"", 0, -7);
                let end = s.rcv;
                let sack = segment.sack(&[(end, end.wrapping_add(10))]);
                assert_eq!(s.xdp(&sack.bytes()).verdict, erb_rows::scene::XDP_TX);
            },
            |s| {
                let segment = shifted(s, b"", 0, -7);
                let end = s.rcv;
                segment.sack(&[(end, end.wrapping_add(10))])
            },
            Expect::Changed(|_, p| {
                p.options.fill(1);
                behind_unacknowledged_ping_only(p);
            }),
            &[("PURE_ACK_UP", 1)],
        ),
        Row::xdp(
            "D-SACK while an answer is unacknowledged: no replay",
            V4,
            spliced,
            |s| {
                let segment = shifted(s, b"", 0, -7);
                let end = s.rcv;
                segment.sack(&[(end.wrapping_sub(11), end.wrapping_sub(7))])
            },
            Expect::Changed(|_, p| {
                p.options.fill(1);
                behind_unacknowledged_ping_only(p);
            }),
            &[("PURE_ACK_UP", 1)],
        ),
        Row::xdp(
            "third duplicate ACK: the answer again",
            V4_NO_TS,
            |s| {
                spliced(s);
                for _ in 0..2 {
                    let dup = shifted(s, b"", 0, -7);
                    s.up(&dup);
                }
            },
            |s| shifted(s, b"", 0, -7),
            sent(-7, 0, b"+PONG\r\n"),
            &[("REPLAY_ACK", 1)],
        ),
    ]);
}

fn behind_ping_only(p: &mut Segment) {
    p.seq = p.seq.wrapping_sub(14);
    p.ack = p.ack.wrapping_sub(7);
}

fn behind_unacknowledged_ping_only(p: &mut Segment) {
    p.seq = p.seq.wrapping_sub(14);
    p.window = (((0xffff_u32 << 7) - 7) >> 7) as u16;
}
