// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pure ACKs and selective ones: what is dropped, what goes up, what brings an answer again.

use erb_packets::frame::{ECE, Segment, URG};
use erb_packets::row::{Before, Expect, Packet, Row, check};
use erb_packets::scene::{Scene, V4, V4_NO_TS, V4_VLAN, V6};

use crate::splice::{behind_ping, sent, shifted};
use crate::{SET_OTHER, fast, spliced};

/// As [`spliced`], and an ACK has gone up since the kernel spoke last.
fn spliced_and_quiet(scene: &mut Scene) {
    spliced(scene);
    let ack = shifted(scene, b"", 0, -7);
    scene.up(&ack);
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

/// An urgent pointer is of the bytes that it is sent with: an acknowledgement goes on without.
#[test]
fn pure_acks_of_urgent_data() {
    let urgent: Packet = |s| {
        let mut ack = s.segment(b"");
        ack.flags |= URG;
        ack
    };
    let mut rows = Vec::new();
    for shape in [V4, V4_NO_TS, V4_VLAN, V6] {
        rows.push(Row::xdp(
            "urgent pointer in an ACK",
            shape,
            fast,
            urgent,
            Expect::Changed(|_, packet| packet.flags &= !URG),
            &[("URGENT_CLEARED", 1), ("PURE_ACK_UP", 1)],
        ));
        rows.push(Row::xdp(
            "urgent pointer in an ACK that says nothing else that is new",
            shape,
            spliced_and_quiet,
            urgent,
            Expect::Drop,
            &[("URGENT_CLEARED", 1), ("PURE_ACK_DROPPED", 1)],
        ));
    }
    check(rows);
}

#[test]
fn pure_acks_not_dropped() {
    let up: &[(&str, u64)] = &[("PURE_ACK_UP", 1)];
    let row = |name, before: Before, packet: Packet, expect| {
        Row::xdp(name, V4, before, packet, expect, up)
    };
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
                assert_eq!(s.xdp(&sack.bytes()).verdict, erb_packets::scene::XDP_TX);
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
