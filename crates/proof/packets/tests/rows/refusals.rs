// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a good GET is not answered: the moment, the connection, the command.

use erb_abi::{self as abi, ControlPlane as _};
use erb_packets::row::{Expect, Row, check};
use erb_packets::scene::{Scene, Shape, V4, V6};

use crate::{GET_KEY, PING, SET_KEY, SET_OTHER, bulk, fast, get};

type Moved = &'static [(&'static str, u64)];

/// A GET that goes up unchanged.
fn get_up(name: &'static str, before: fn(&mut Scene), moved: Moved) -> Row {
    Row::xdp(
        name,
        V4,
        before,
        |s| s.segment(GET_KEY),
        Expect::Same,
        moved,
    )
}

#[test]
fn the_moment() {
    const NOT_SERVING: Moved = &[("REFUSE_NOT_SERVING", 1), ("UP_TRANSLATED", 1)];
    check(vec![
        get_up(
            "lease over",
            |s| {
                fast(s);
                s.bench.dp.control().set_lease_until_ns(1);
            },
            &[("REFUSE_LEASE", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "not serving",
            |s| {
                fast(s);
                s.bench.dp.control().set_serving(0);
            },
            NOT_SERVING,
        ),
        get_up(
            "stopping",
            |s| {
                fast(s);
                s.bench.dp.control().set_stopping(1);
            },
            NOT_SERVING,
        ),
        get_up(
            "Redis's state must be read again",
            |s| {
                fast(s);
                let control = s.bench.dp.control();
                control.set_gate_ack(control.gate_seen() + 1);
            },
            &[("REFUSE_FENCE", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "heartbeat due",
            |s| {
                fast(s);
                s.bench.dp.control().set_heartbeat_up_ns(900_000_000);
                s.edit(|entry| entry.request_up_ns -= 1_000_000_000);
            },
            &[("REFUSE_HEARTBEAT", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "write to the key on its way",
            |s| {
                fast(s);
                s.request(SET_KEY);
            },
            &[("REFUSE_MARKED", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "command with unknown keys on its way",
            |s| {
                fast(s);
                s.request(b"*1\r\n$8\r\nFLUSHALL\r\n");
            },
            &[("REFUSE_FENCE", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "cache cleared",
            |s| {
                fast(s);
                s.bench.dp.clear().unwrap();
            },
            &[("REFUSE_MISS", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "key invalidated",
            |s| {
                fast(s);
                s.bench.dp.invalidate(&[b"key"]).unwrap();
            },
            &[("REFUSE_MISS", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "set left out",
            |s| {
                fast(s);
                s.bench.step_aside(b"key", true);
            },
            &[("REFUSE_ASIDE", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "set of the sample, key invalidated",
            |s| {
                fast(s);
                s.bench.dp.invalidate(&[b"key"]).unwrap();
                s.bench.step_aside(b"key", false);
            },
            &[
                ("REFUSE_MISS", 1),
                ("SAMPLE_MISSED", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
        Row::xdp(
            "PING while a fence stands",
            V4,
            |s| {
                fast(s);
                s.request(b"*1\r\n$8\r\nFLUSHALL\r\n");
                s.reply(b"+OK\r\n");
                s.acknowledge();
            },
            |s| s.segment(PING),
            Expect::Same,
            &[("REFUSE_FENCE", 1), ("UP_TRANSLATED", 1)],
        ),
    ]);
}

#[test]
fn the_connection() {
    check(vec![
        get_up(
            "first packet of a connection",
            |_| (),
            &[("CONN_CREATED", 1), ("REFUSE_NEW", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "no reply yet",
            |s| s.request(PING),
            &[("REFUSE_NEW", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "an error alone makes it not fast",
            |s| {
                s.request(PING);
                s.reply(b"-ERR what\r\n");
                s.acknowledge();
            },
            &[("REFUSE_NEW", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "an error that bars",
            |s| {
                s.request(PING);
                s.reply(b"-NOAUTH Authentication required.\r\n");
                s.acknowledge();
            },
            &[("REFUSE_BYPASS", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "a stateful command",
            |s| {
                fast(s);
                s.request(b"*1\r\n$5\r\nMULTI\r\n");
                s.reply(b"+OK\r\n");
                s.acknowledge();
            },
            &[("REFUSE_BYPASS", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "closing",
            |s| {
                fast(s);
                s.edit(|entry| entry.flags |= abi::CONN_F_CLOSING as u8);
            },
            &[("REFUSE_CLOSING", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "egress has seen nothing",
            |s| {
                fast(s);
                s.edit(|entry| entry.flags &= !(abi::CONN_F_EGRESS_SEEN as u8));
            },
            &[("REFUSE_NO_EGRESS", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "older than ERB: each packet holds the fence by proof",
            |s| s.bench.dp.control().set_admit(0),
            &[
                ("CONN_OLD", 1),
                ("FENCE_TAKEN", 1),
                ("FENCE_PROOF", 1),
                ("GATE_SHUT", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
        get_up(
            "older than ERB, second packet: the share is held already",
            |s| {
                s.bench.dp.control().set_admit(0);
                s.request(PING);
            },
            &[("GATE_SHUT", 1), ("UP_TRANSLATED", 1)],
        ),
    ]);
}

#[test]
fn the_command() {
    const MISS: Moved = &[("REFUSE_MISS", 1), ("UP_TRANSLATED", 1)];
    const COMMAND: Moved = &[("REFUSE_COMMAND", 1), ("UP_TRANSLATED", 1)];
    const INCOMPLETE: Moved = &[("REFUSE_INCOMPLETE", 1), ("UP_TRANSLATED", 1)];
    let row = |name, packet: fn(&mut Scene) -> erb_packets::frame::Segment, moved| {
        Row::xdp(name, V4, fast, packet, Expect::Same, moved)
    };
    check(vec![
        row("GET miss", |s| s.segment(&get("nobody")), MISS),
        Row::xdp(
            "second GET miss is reported",
            V4,
            |s| {
                fast(s);
                s.request(&get("twice"));
            },
            |s| s.segment(&get("twice")),
            Expect::Same,
            &[
                ("REFUSE_MISS", 1),
                ("MISS_REPORTED", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
        row(
            "hit and miss",
            |s| s.segment(&[GET_KEY, &get("no")].concat()),
            MISS,
        ),
        row(
            "GET with one argument more",
            |s| s.segment(b"*3\r\n$3\r\nGET\r\n$3\r\nkey\r\n$1\r\na\r\n"),
            COMMAND,
        ),
        row(
            "PING with an argument",
            |s| s.segment(b"*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n"),
            COMMAND,
        ),
        row(
            "key of 257 bytes",
            |s| s.segment(&get(&"k".repeat(257))),
            COMMAND,
        ),
        row("empty key", |s| s.segment(&get("")), COMMAND),
        row("GET cut off", |s| s.segment(&GET_KEY[..15]), COMMAND),
        row(
            "GET and the beginning of another",
            |s| s.segment(&[GET_KEY, &GET_KEY[..9]].concat()),
            INCOMPLETE,
        ),
        row(
            "one command more than the limit",
            |s| s.segment(&b"PING\r\n".repeat(65)),
            &[("REFUSE_COMMANDS", 1), ("UP_TRANSLATED", 1)],
        ),
        row(
            "SET marks the key's set and drops its entry",
            |s| s.segment(SET_KEY),
            &[
                ("REFUSE_COMMAND", 1),
                ("MARK_TAKEN", 1),
                ("CACHE_INVALIDATED", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
        Row::xdp(
            "GET of a key filled again after several clears",
            V4,
            |s| {
                for _ in 0..6 {
                    s.bench.fill(b"key", b"value", 0);
                    s.bench.dp.clear().unwrap();
                }
                fast(s);
            },
            |s| s.segment(GET_KEY),
            Expect::Answer(b"$5\r\nvalue\r\n".to_vec()),
            &[("FAST_PACKET", 1), ("FAST_GET", 1)],
        ),
        row(
            "SET of a key that is not cached",
            |s| s.segment(SET_OTHER),
            &[
                ("REFUSE_COMMAND", 1),
                ("MARK_TAKEN", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
        row(
            "CONFIG SET shuts the gate",
            |s| s.segment(b"*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n"),
            &[
                ("REFUSE_COMMAND", 1),
                ("FENCE_TAKEN", 1),
                ("GATE_SHUT", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
        row(
            "what is no RESP",
            |s| s.segment(b"*1\r\n+PING\r\n"),
            &[
                ("REFUSE_COMMAND", 1),
                ("SCAN_LOST", 1),
                ("GATE_SHUT", 1),
                ("CONN_BYPASS", 1),
                ("FENCE_TAKEN", 1),
                ("FENCE_PROOF", 1),
                ("UP_TRANSLATED", 1),
            ],
        ),
    ]);
}

#[test]
fn the_room() {
    const SMALL: Shape = Shape { mss: 536, ..V4 };
    fn long_value(scene: &mut Scene) {
        scene.bench.fill(b"long", &[b'x'; 1400], 0);
        scene.make_fast();
    }
    fn ask_long(scene: &mut Scene) -> erb_packets::frame::Segment {
        scene.segment(&get("long"))
    }
    check(vec![
        Row::xdp(
            "a long reply",
            V6,
            long_value,
            ask_long,
            Expect::Answer(bulk(&[b'x'; 1400])),
            &[("FAST_PACKET", 1), ("FAST_GET", 1)],
        ),
        Row::xdp(
            "longer than the client's MSS",
            SMALL,
            long_value,
            ask_long,
            Expect::Same,
            &[("REFUSE_MSS", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "two values that do not fit one segment",
            V4,
            long_value,
            |s| s.segment(&[get("long"), get("long")].concat()),
            Expect::Same,
            &[("REFUSE_MSS", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "limit set by Packet Too Big",
            V4,
            |s| {
                long_value(s);
                s.edit(|entry| entry.mss_limit = 1200);
            },
            ask_long,
            Expect::Same,
            &[("REFUSE_MSS", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "client's window is full",
            V4,
            fast,
            |s| {
                let mut segment = s.segment(GET_KEY);
                segment.window = 0;
                segment
            },
            Expect::Same,
            &[("REFUSE_WINDOW_CLIENT", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "client's window is smaller than the kernel knows",
            V4,
            fast,
            |s| {
                let mut segment = s.segment(GET_KEY);
                segment.window /= 4;
                segment
            },
            Expect::Same,
            &[("REFUSE_WINDOW_STALE", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "replay buffer is full",
            V4,
            |s| {
                long_value(s);
                let acknowledged = s.rcv;
                for _ in 0..2 {
                    let mut segment = s.segment(&get("long"));
                    segment.ack = acknowledged;
                    assert_eq!(s.up(&segment).verdict, erb_packets::scene::XDP_TX);
                }
            },
            |s| {
                let mut segment = s.segment(&get("long"));
                segment.ack = s.rcv;
                segment
            },
            Expect::Changed(|s, p| {
                // Two requests consumed; the acknowledgement is floored at the edge.
                p.seq = s.snd.wrapping_sub(2 * get("long").len() as u32);
                p.window = (((0xffff_u32 << 7) - 2 * 1409) >> 7) as u16;
            }),
            &[("REFUSE_REPLAY_FULL", 1), ("UP_TRANSLATED", 1)],
        ),
    ]);
}

#[test]
fn the_kernel() {
    check(vec![
        get_up(
            "an earlier request is on its way to the kernel",
            |s| {
                fast(s);
                let segment = s.segment(SET_OTHER);
                s.xdp(&segment.bytes());
                s.snd = s.snd.wrapping_add(SET_OTHER.len() as u32);
            },
            &[("REFUSE_KERNEL_BEHIND", 1), ("UP_TRANSLATED", 1)],
        ),
        get_up(
            "an earlier request is unanswered",
            |s| {
                fast(s);
                s.request(SET_OTHER);
            },
            &[("REFUSE_UNANSWERED", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "a reply of the kernel is not acknowledged by the packet",
            V4,
            |s| {
                s.bench.fill(b"key", b"value", 0);
                s.make_answered();
            },
            |s| {
                let mut segment = s.segment(GET_KEY);
                segment.ack = segment.ack.wrapping_sub(4);
                segment
            },
            Expect::Same,
            &[("REFUSE_OWED", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "the kernel must get the ACK: left to TC",
            V4,
            |s| {
                s.bench.fill(b"key", b"value", 0);
                s.make_answered();
            },
            |s| s.segment(GET_KEY),
            Expect::ToTc,
            &[("TO_TC", 1)],
        ),
        Row::xdp(
            "behind a packet left to TC: left to TC too",
            V6,
            |s| {
                s.bench.fill(b"key", b"value", 0);
                s.make_answered();
                let first = s.segment(GET_KEY);
                s.xdp(&first.bytes());
                s.snd = s.snd.wrapping_add(GET_KEY.len() as u32);
            },
            |s| s.segment(SET_OTHER),
            Expect::ToTc,
            &[("TO_TC", 1)],
        ),
    ]);
}
