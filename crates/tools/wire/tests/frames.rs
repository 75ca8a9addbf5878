// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Goal: frames say what segments say, to us and to another implementation, and nothing damaged is
//! read. Method: random segments through our writer, read by our parser and by etherparse's
//! other one, which takes a packet whole.

use erb_wire::{Checksum, IcmpError, IcmpKind, Macs, Options, ParseError, Segment};
use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use std::net::SocketAddr;

fn client() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 40_000))
}

fn server() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 6379))
}

fn random_segment(rng: &mut fastrand::Rng) -> Segment {
    let v4 = rng.bool();
    let mut addr = || {
        let port = rng.u16(1..);
        match v4 {
            true => SocketAddr::from((rng.u32(..).to_be_bytes(), port)),
            false => SocketAddr::from((rng.u128(..).to_be_bytes(), port)),
        }
    };
    let mut seg = Segment::new(addr(), addr());
    seg.vlan = rng.bool().then(|| rng.u16(..4096));
    seg.ecn = rng.u8(..4);
    seg.seq = rng.u32(..);
    seg.ack = rng.u32(..);
    seg.flags = rng.u16(..512);
    seg.window = rng.u16(..);
    seg.urgent = rng.u16(..);
    let ts = rng.bool().then(|| (rng.u32(..), rng.u32(..)));
    let mut options = Options {
        ts,
        ..Options::default()
    };
    if rng.bool() {
        options.mss = Some(rng.u16(..));
        options.sack_ok = rng.bool();
        options.wscale = rng.bool().then(|| rng.u8(..15));
    } else {
        for _ in 0..rng.u8(..4) {
            options.sack.push(rng.u32(..), rng.u32(..));
        }
    }
    seg.options = options;
    seg.payload = (0..rng.usize(..1400)).map(|_| rng.u8(..)).collect();
    seg
}

#[test]
fn a_frame_reads_back_as_its_segment() {
    let mut rng = fastrand::Rng::with_seed(1);
    for i in 0..2000 {
        let seg = random_segment(&mut rng);
        assert_eq!(
            Segment::parse(&seg.to_frame(Macs::default())),
            Ok(seg),
            "round {i}"
        );
    }
}

#[test]
fn etherparse_reads_the_same() {
    let mut rng = fastrand::Rng::with_seed(2);
    for i in 0..500 {
        let seg = random_segment(&mut rng);
        let frame = seg.to_frame(Macs {
            src: [2; 6],
            dst: [4; 6],
        });
        let packet = PacketHeaders::from_ethernet_slice(&frame).expect("a packet");
        let Some(TransportHeader::Tcp(tcp)) = packet.transport else {
            panic!("round {i}: no TCP")
        };
        assert_eq!(
            (tcp.source_port, tcp.destination_port),
            (seg.src.port(), seg.dst.port())
        );
        assert_eq!(
            (tcp.sequence_number, tcp.acknowledgment_number),
            (seg.seq, seg.ack)
        );
        assert_eq!(
            (tcp.window_size, tcp.urgent_pointer),
            (seg.window, seg.urgent)
        );
        assert_eq!(
            (tcp.syn, tcp.fin, tcp.rst),
            (seg.has(2), seg.has(1), seg.has(4))
        );
        assert_eq!(packet.payload.slice(), seg.payload, "round {i}");
        let sum = match packet.net.expect("an IP header") {
            NetHeaders::Ipv4(ip, _) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                tcp.calc_checksum_ipv4(&ip, &seg.payload)
            }
            NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(&ip, &seg.payload),
            other => panic!("round {i}: {other:?}"),
        };
        assert_eq!(tcp.checksum, sum.expect("short enough"), "round {i}");
    }
}

#[test]
fn options_stand_in_linux_order() {
    let mut seg = Segment::new(client(), server());
    seg.options.ts = Some((0x01020304, 0x05060708));
    seg.options.sack.push(1, 2);
    let frame = seg.to_frame(Macs::default());
    assert_eq!(frame[54..66], [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(frame[66..78], [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    seg.flags = erb_wire::flags::SYN;
    seg.options.sack = Default::default();
    (seg.options.mss, seg.options.sack_ok, seg.options.wscale) = (Some(1460), true, Some(7));
    let frame = seg.to_frame(Macs::default());
    assert_eq!(frame[54..62], [2, 4, 0x05, 0xb4, 4, 2, 8, 10]);
    assert_eq!(frame[70..74], [1, 3, 3, 7]);
}

#[test]
fn one_flipped_bit_behind_ethernet_is_noticed() {
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..2000 {
        let mut seg = random_segment(&mut rng);
        seg.vlan = None;
        let mut frame = seg.to_frame(Macs::default());
        // IPv6 protects neither traffic class nor flow label nor hop limit.
        let from = if seg.src.is_ipv4() { 14 } else { 22 };
        let at = rng.usize(from..frame.len());
        frame[at] ^= 1 << rng.u32(..8);
        assert!(Segment::parse(&frame).is_err(), "byte {at}");
    }
}

#[test]
fn a_bare_pseudo_sum_is_wrong_unless_vouched_for() {
    let mut seg = Segment::new(client(), server());
    seg.payload = b"PING\r\n".to_vec();
    let mut frame = Vec::new();
    seg.write_frame(Macs::default(), Checksum::Pseudo, &mut frame);
    assert_eq!(Segment::parse(&frame), Err(ParseError::TcpChecksum));
    assert_eq!(Segment::parse_vouched(&frame), Ok(seg));
}

#[test]
fn garbage_never_panics() {
    let mut rng = fastrand::Rng::with_seed(4);
    for _ in 0..20_000 {
        let mut frame = random_segment(&mut rng).to_frame(Macs::default());
        for _ in 0..rng.u32(..4) {
            let at = rng.usize(..frame.len().min(90));
            frame[at] = rng.u8(..);
        }
        frame.truncate(rng.usize(..frame.len() + 1));
        let _ = Segment::parse_vouched(&frame);
        let _ = IcmpError::parse(&frame);
    }
}

#[test]
fn splitting_keeps_bytes_and_the_last_flags() {
    let mut seg = Segment::new(client(), server());
    seg.seq = u32::MAX - 10;
    seg.flags = erb_wire::flags::ACK | erb_wire::flags::PSH | erb_wire::flags::FIN;
    seg.payload = (0..250).map(|i| i as u8).collect();
    let end = seg.end_seq();
    let parts = seg.clone().split(100);
    assert_eq!(
        parts.iter().map(|p| p.payload.len()).collect::<Vec<_>>(),
        [100, 100, 50]
    );
    assert_eq!(
        parts.iter().map(|p| p.flags).collect::<Vec<_>>(),
        [0x10, 0x10, 0x19]
    );
    assert_eq!(parts[2].end_seq(), end);
}

#[test]
fn icmp_errors_read_back() {
    let mut rng = fastrand::Rng::with_seed(5);
    for i in 0..500 {
        let seg = random_segment(&mut rng);
        let router = if seg.src.is_ipv4() {
            "10.9.9.9"
        } else {
            "fd00::9"
        };
        let kind = if rng.bool() {
            IcmpKind::TooBig(1280)
        } else {
            IcmpKind::Unreachable(1)
        };
        let from = router.parse().expect("an address");
        let mut frame = IcmpError::frame(from, kind, &seg, Macs::default());
        let expected = IcmpError {
            from,
            kind,
            src: seg.src,
            dst: seg.dst,
            seq: seg.seq,
            vlan: seg.vlan,
        };
        assert_eq!(IcmpError::parse(&frame), Ok(expected), "round {i}");
        let last = frame.len() - 1;
        frame[last] ^= 0x10;
        assert_eq!(
            IcmpError::parse(&frame),
            Err(ParseError::TcpChecksum),
            "round {i}"
        );
    }
}
