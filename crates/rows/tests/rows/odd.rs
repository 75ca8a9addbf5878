// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that are odd in themselves: up, each counted by its reason.

use erb_rows::frame::{ACK, AE, CWR, Checksum, ECE, FIN, IpOdd, PSH, RST, SYN, Segment, URG};
use erb_rows::row::{Expect, Row, check};
use erb_rows::scene::{Scene, Shape, V4, V4_NO_TS, V6};

use crate::{GET_KEY, fast};

fn get_with(scene: &mut Scene, change: impl FnOnce(&mut Segment)) -> Segment {
    let mut segment = scene.segment(GET_KEY);
    change(&mut segment);
    segment
}

type Packet = fn(&mut Scene) -> Segment;
type Moved = &'static [(&'static str, u64)];

fn up(name: &'static str, shape: Shape, packet: Packet, moved: Moved) -> Row {
    Row::xdp(name, shape, fast, packet, Expect::Same, moved)
}

#[test]
fn ip_header() {
    const OPTIONS: Moved = &[("ODD_IP_OPTIONS", 1), ("UP_TRANSLATED", 1)];
    const FRAGMENT: Moved = &[
        ("ODD_FRAGMENT", 1),
        ("CONN_BYPASS", 1),
        ("FENCE_TAKEN", 1),
        ("FENCE_PROOF", 1),
        ("GATE_SHUT", 1),
        ("UP_TRANSLATED", 1),
    ];
    const ECN: Moved = &[("ODD_ECN", 1), ("UP_TRANSLATED", 1)];
    let mut rows = Vec::new();
    for shape in [V4, V6] {
        let odd = |name, packet: Packet, moved| up(name, shape, packet, moved);
        rows.extend([
            odd(
                "IP options",
                |s| get_with(s, |p| p.ip = IpOdd::Options),
                OPTIONS,
            ),
            odd(
                "first fragment",
                |s| get_with(s, |p| p.ip = IpOdd::FirstFragment),
                FRAGMENT,
            ),
            odd(
                "congestion experienced",
                |s| get_with(s, |p| p.ip = IpOdd::Ce),
                ECN,
            ),
        ]);
        rows.push(Row::xdp(
            "fragment from the middle: no ports in it",
            shape,
            fast,
            |s| get_with(s, |p| p.ip = IpOdd::LaterFragment),
            Expect::Ignored,
            &[],
        ));
    }
    rows.push(up(
        "wrong IPv4 header sum",
        V4,
        |s| get_with(s, |p| p.ip = IpOdd::BadSum),
        &[("ODD_CHECKSUM", 1)],
    ));
    rows.push(Row::xdp(
        "frame shorter than its IP header says",
        V4,
        fast,
        |s| get_with(s, |p| p.cut = 1),
        Expect::Ignored,
        &[],
    ));
    rows.push(Row::xdp(
        "two VLAN tags",
        V4,
        fast,
        |s| get_with(s, |p| p.vlan = vec![1, 2]),
        Expect::Ignored,
        &[],
    ));
    check(rows);
}

#[test]
fn tcp_header() {
    const ECN: Moved = &[("ODD_ECN", 1), ("UP_TRANSLATED", 1)];
    const OPTION: Moved = &[("ODD_OPTIONS", 1), ("UP_TRANSLATED", 1)];
    const SUM: Moved = &[("ODD_CHECKSUM", 1)]; // the kernel drops it: not scanned
    const FLAGS: Moved = &[("ODD_FLAGS", 1), ("UP_TRANSLATED", 1)];
    let mut rows = Vec::new();
    for shape in [V4, V6] {
        let odd = |name, packet: Packet, moved| up(name, shape, packet, moved);
        rows.extend([
            odd("ECE", |s| get_with(s, |p| p.flags |= ECE), ECN),
            odd("CWR", |s| get_with(s, |p| p.flags |= CWR), ECN),
            odd("AccECN's flag", |s| get_with(s, |p| p.flags |= AE), ECN),
            odd(
                "urgent data",
                |s| get_with(s, |p| p.flags |= URG),
                &[("ODD_URGENT", 1), ("UP_TRANSLATED", 1)],
            ),
            odd(
                "no ACK flag: the kernel drops it, so nothing of it counts",
                |s| get_with(s, |p| p.flags = PSH),
                &[("REFUSE_ACK", 1)],
            ),
            odd("FIN with data", |s| get_with(s, |p| p.flags |= FIN), FLAGS),
            odd(
                "MPTCP's option",
                |s| get_with(s, |p| p.options = vec![30, 4, 0, 0]),
                OPTION,
            ),
            odd(
                "option longer than the header",
                |s| get_with(s, |p| p.options = vec![30, 40, 0, 0]),
                OPTION,
            ),
            odd(
                "option of length 0",
                |s| get_with(s, |p| p.options = vec![30, 0, 0, 0]),
                OPTION,
            ),
            odd(
                "SACK beside data",
                |s| get_with(s, |p| *p = p.clone().sack(&[(p.ack + 20, p.ack + 30)])),
                OPTION,
            ),
            odd(
                "wrong checksum",
                |s| get_with(s, |p| p.checksum = Checksum::Wrong),
                SUM,
            ),
        ]);
    }
    rows.push(up(
        "no timestamps although the connection has them",
        V4,
        |s| get_with(s, |p| p.ts = None),
        &[("REFUSE_PAWS", 1), ("UP_TRANSLATED", 1)],
    ));
    rows.push(up(
        "timestamps although the connection has none",
        V4_NO_TS,
        |s| get_with(s, |p| p.ts = Some((5, 6))),
        &[("REFUSE_PAWS", 1), ("UP_TRANSLATED", 1)],
    ));
    rows.push(up(
        "longer than one MTU",
        V4,
        |s| s.segment(&b"PING\r\n".repeat(244)),
        &[("LONG_PACKET", 1), ("UP_TRANSLATED", 1)],
    ));
    check(rows);
}

#[test]
fn connection_control() {
    check(vec![
        Row::xdp(
            "SYN on a tracked connection: no state, no translation",
            V4,
            crate::spliced,
            |s| {
                let mut segment = s.segment(b"");
                segment.flags = SYN;
                segment
            },
            Expect::Same,
            &[],
        ),
        Row::xdp(
            "FIN: translated",
            V4,
            crate::spliced,
            |s| {
                let mut segment = s.segment(b"");
                segment.flags = FIN | ACK;
                segment
            },
            Expect::Changed(|_, p| {
                p.seq = p.seq.wrapping_sub(14);
                p.ack = p.ack.wrapping_sub(7);
            }),
            &[("PURE_ACK_UP", 1)],
        ),
        Row::xdp(
            "RST without ACK: sequence number translated, acknowledgement field left",
            V4,
            crate::spliced,
            |s| {
                let mut segment = s.segment(b"");
                segment.flags = RST;
                segment.ack = 0;
                segment
            },
            Expect::Changed(|_, p| p.seq = p.seq.wrapping_sub(14)),
            &[("PURE_ACK_UP", 1)],
        ),
        Row::xdp(
            "GET after a FIN of the client",
            V4,
            |scene| {
                fast(scene);
                let mut fin = scene.segment(b"");
                fin.flags = FIN | ACK;
                scene.xdp(&fin.bytes());
            },
            |s| s.segment(GET_KEY),
            Expect::Same,
            &[("REFUSE_CLOSING", 1), ("UP_TRANSLATED", 1)],
        ),
        Row::xdp(
            "packet without socket",
            V4,
            |_| (),
            |s| {
                let mut segment = s.segment(GET_KEY);
                segment.client_port = 1;
                segment
            },
            // Its listening socket may complete the handshake by SYN cookie.
            Expect::Same,
            &[("SOCK_LISTEN", 1), ("GATE_SHUT", 1)],
        ),
    ]);
}
