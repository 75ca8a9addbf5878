// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that are odd in themselves: up, each counted by its reason.

use erb_packets::frame::{ACK, AE, CWR, Checksum, ECE, FIN, IpOdd, PSH, RST, SYN, Segment, URG};
use erb_packets::row::{Expect, Row, check};
use erb_packets::scene::{Scene, Shape, V4, V4_NO_TS, V6};

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
    rows.push(Row::xdp(
        "wrong IPv4 header sum",
        V4,
        fast,
        |s| get_with(s, |p| p.ip = IpOdd::BadSum),
        Expect::Drop,
        &[("DROP_CHECKSUM", 1)],
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
    const FLAGS: Moved = &[("ODD_FLAGS", 1), ("UP_TRANSLATED", 1)];
    const URGENT: Moved = &[
        ("ODD_URGENT", 1),
        ("CONN_BYPASS", 1),
        ("FENCE_TAKEN", 1),
        ("FENCE_PROOF", 1),
        ("GATE_SHUT", 1),
        ("UP_TRANSLATED", 1),
    ];
    let mut rows = Vec::new();
    for shape in [V4, V6] {
        let odd = |name, packet: Packet, moved| up(name, shape, packet, moved);
        rows.extend([
            odd("ECE", |s| get_with(s, |p| p.flags |= ECE), ECN),
            odd("CWR", |s| get_with(s, |p| p.flags |= CWR), ECN),
            odd("AccECN's flag", |s| get_with(s, |p| p.flags |= AE), ECN),
            odd("urgent data", |s| get_with(s, |p| p.flags |= URG), URGENT),
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
        ]);
        rows.push(Row::xdp(
            "wrong checksum",
            shape,
            fast,
            |s| get_with(s, |p| p.checksum = Checksum::Wrong),
            Expect::Drop,
            &[("DROP_CHECKSUM", 1)],
        ));
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
            // Its listening socket has given out no SYN cookie: nothing comes of it but a reset.
            Expect::Same,
            &[("SOCK_LISTEN", 1)],
        ),
    ]);
}

/// The same frame with no hops left.
fn without_hops(segment: &Segment) -> Vec<u8> {
    let mut frame = segment.bytes();
    if frame[14] >> 4 == 6 {
        frame[14 + 7] = 0;
        return frame;
    }
    // What leaves the time to live goes into the header's sum.
    let sum = u16::from_be_bytes([frame[14 + 10], frame[14 + 11]]);
    let (more, carry) = sum.overflowing_add(u16::from(frame[14 + 8]) << 8);
    frame[14 + 8] = 0;
    frame[14 + 10..14 + 12].copy_from_slice(&(more + u16::from(carry)).to_be_bytes());
    frame
}

/// The kernel counts hops only where it forwards (`ip_rcv_core()`, `ip6_rcv_core()`): what arrives
/// with none left is a client's like any other.
#[test]
fn no_hops_left() {
    use erb_packets::scene::XDP_TX;
    erb_packets::fixture::with(|bench| {
        for shape in [V4, V6] {
            let mut scene = Scene::connect(bench, shape);
            fast(&mut scene);
            let set = scene.segment(crate::SET_OTHER);
            let up = scene.ingress(&without_hops(&set), 0);
            scene.to_kernel(&up.frame);
            scene.snd = scene.snd.wrapping_add(set.payload.len() as u32);
            scene.read_request(&set.payload);
            scene.reply(b"+OK\r\n");
            scene.acknowledge();
            let get = scene.segment(GET_KEY);
            let answered = scene.xdp(&without_hops(&get));
            assert_eq!(answered.verdict, XDP_TX, "the kernel takes it: so does ERB");
            assert_eq!(scene.take_answer(&answered), crate::bulk(b"value"));
        }
    });
}

/// A frame that is cut off behind so many bytes, of which its IP header tells.
fn cut_off(mut frame: Vec<u8>, l3: usize, len: usize) -> Vec<u8> {
    frame.truncate(len);
    let (at, says) = match frame[l3] >> 4 {
        4 => (l3 + 2, len - l3),
        _ => (l3 + 4, len - l3 - 40),
    };
    frame[at..at + 2].copy_from_slice(&(says as u16).to_be_bytes());
    frame
}

/// IPv6 with so many extension headers of 8 bytes in front of TCP.
fn behind_headers(segment: &Segment, headers: usize) -> Vec<u8> {
    let mut frame = segment.bytes();
    let len = u16::from_be_bytes([frame[18], frame[19]]) + 8 * headers as u16;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame[20] = 60; // destination options
    for number in 0..headers {
        let next = if number == 0 { 6 } else { 60 };
        frame.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
    }
    frame
}

/// Bytes that the kernel may put together to a write that nobody has seen.
#[test]
fn hidden_bytes() {
    use erb_packets::scene::{XDP_DROP, XDP_PASS, XDP_TX};
    erb_packets::fixture::with(|bench| {
        let hidden = |scene: &Scene, frame: &[u8], verdict: u32, why: &str| {
            let before = scene.bench.stats();
            let found = scene.xdp(frame).verdict;
            let moved = erb_packets::row::moved(&before, &scene.bench.stats());
            assert_eq!(found, verdict, "{why}: {moved:?}");
            assert_eq!(
                moved.contains_key("DROP_HIDDEN"),
                verdict == XDP_DROP,
                "{why}: {moved:?}"
            );
        };
        for (shape, l3, l4) in [(V4, 14, 34), (V6, 14, 62)] {
            let mut scene = Scene::connect(bench, shape);
            fast(&mut scene);
            let first = get_with(&mut scene, |p| p.ip = IpOdd::FirstFragment).bytes();
            for part in [8, 16, 24] {
                let tiny = cut_off(first.clone(), l3, l4 + part);
                hidden(&scene, &tiny, XDP_DROP, "a part of the TCP header");
                let mut other = tiny.clone();
                other[l4 + 2] ^= 0x40;
                hidden(&scene, &other, XDP_PASS, "another port");
            }
            let bare = cut_off(first.clone(), l3, l4 + 32);
            hidden(&scene, &bare, XDP_DROP, "nothing behind the TCP header");
            if l4 == 62 {
                let chain = cut_off(first, l3, l4 - 4);
                hidden(&scene, &chain, XDP_PASS, "no header behind the fragment's");
            }
        }
        let mut scene = Scene::connect(bench, V6);
        fast(&mut scene);
        let get = scene.segment(GET_KEY);
        for headers in [5, 6, 12] {
            let frame = behind_headers(&get, headers);
            hidden(&scene, &frame, XDP_DROP, "more headers than are read");
            let mut other = frame.clone();
            other[54 + 8 * headers + 2] ^= 0x40;
            hidden(&scene, &other, XDP_PASS, "the same for another port");
        }
        let mut endless = behind_headers(&get, 40);
        endless.truncate(14 + 40 + 8 * 40);
        hidden(&scene, &endless, XDP_DROP, "a chain without end");
        assert_eq!(scene.xdp(&get.bytes()).verdict, XDP_TX, "answered still");
    });
}
