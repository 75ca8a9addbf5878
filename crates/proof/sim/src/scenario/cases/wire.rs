// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is on the wire: path MTU, timestamps, checksums, acceptance, merged and marked packets (T-12
//! to T-17, T-24, T-25, T-27, T-28, T-31).

use erb_abi as abi;
use erb_sim_tcp::{Macs, Segment, flags};

use crate::client::machine::{SERVER_MAC, machine_mac};
use crate::client::resp::request;
use crate::link::Frame;
use crate::profile::Tier;
use crate::scenario::tools::{Talk, len, tap};
use crate::scenario::{RAW_MACHINE, Scenario, Setup};
use crate::time::{MS, SECOND};

pub(crate) fn small_path_mtu() {
    let mut s = Scenario::new(Setup {
        veth: false,
        ..Setup::default()
    });
    s.cached(b"k", &[b'x'; 1400]);
    s.unseen(&[b"SET", b"big", &[b'y'; 9000]]);
    let client = s.fast();
    s.call(client, &[b"PING"]);
    s.world.inner.down.borrow_mut()[0].set_path_mtu(1280);
    let fast = s.stat(abi::STAT_FAST_GET);
    assert_eq!(s.call(client, &[b"GET", b"k"]).len(), 1409);
    assert!(
        s.stat(abi::STAT_FAST_GET) > fast,
        "it was not fast: {}",
        s.counters()
    );
    assert!(s.stat(abi::STAT_ICMP_TRANSLATED) > 0, "no error came");
    let began = s.now();
    assert_eq!(s.call(client, &[b"GET", b"big"]).len(), 9009);
    assert!(s.now() - began < SECOND, "the kernel did not learn");
    let kernel = s.kernel();
    assert_eq!(kernel.icmp_out_of_window, 0, "in the client's numbers");
    assert!(kernel.pmtu_reductions > 0);
    s.finish();
}

pub(crate) fn timestamps_go_on() {
    let mut s = Scenario::new(Setup::default());
    let mut raw = s.raw();
    raw.ts = Some((1_000_000, 0));
    let (filter, log) = tap();
    s.down(RAW_MACHINE, Some(filter));
    let mut talk = Talk::begin(&mut s, raw);
    for _ in 0..50 {
        talk.ask(&mut s, &[b"PING"]);
    }
    let latest = talk.raw.ts.expect("stamps").0 - 1;
    // The kernel has heard nothing of that; its FIN must know it.
    let address = talk.raw.pair().1.to_string();
    s.unseen(&[b"CLIENT", b"KILL", b"ADDR", address.as_bytes()]);
    let log = log.borrow();
    let fin = log.last().expect("a FIN");
    assert!(fin.has(flags::FIN));
    let (_, echoed) = fin.options.ts.expect("stamps");
    assert_eq!(echoed, latest, "an old stamp is echoed");
    let stamps: Vec<u32> = log
        .iter()
        .filter_map(|one| Some(one.options.ts?.0))
        .collect();
    assert!(
        stamps
            .windows(2)
            .all(|pair| pair[1].wrapping_sub(pair[0]) < 1 << 31),
        "TSval went back: {stamps:?}"
    );
}

fn post_bytes(s: &mut Scenario, bytes: Vec<u8>) {
    s.world.inner.send_up(RAW_MACHINE, Frame::new(bytes));
    s.run(MS);
}

fn macs() -> Macs {
    Macs {
        src: machine_mac(RAW_MACHINE),
        dst: SERVER_MAC,
    }
}

/// A request that TCP would not take is not answered, and what follows is.
fn refused(s: &mut Scenario, talk: &mut Talk, bytes: Vec<u8>) -> Vec<Segment> {
    let fast = s.fast_packets();
    let entry = s.entry_of(talk.raw.pair()).expect("an entry");
    talk.raw.received(s);
    post_bytes(s, bytes);
    assert_eq!(s.fast_packets(), fast, "it was answered");
    let after = s.entry_of(talk.raw.pair()).expect("an entry");
    assert_eq!(
        (entry.next, entry.in_delta, entry.requests),
        (after.next, after.in_delta, after.requests),
        "it counted"
    );
    let answers = talk.raw.received(s);
    assert!(answers.iter().all(|one| one.payload.is_empty()));
    assert_eq!(talk.ask(s, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast + 1, "what followed was not");
    talk.ack(s);
    answers
}

pub(crate) fn wrong_checksum() {
    for veth in [true, false] {
        let mut s = Scenario::new(Setup {
            veth,
            ..Setup::default()
        });
        let mut talk = Talk::fast(&mut s);
        talk.ask(&mut s, &[b"PING"]);
        talk.ack(&mut s);
        let ping = request(&[b"PING"]);
        let segment = talk
            .raw
            .segment(talk.seq, talk.ack, flags::ACK | flags::PSH, &ping);
        let mut bytes = segment.to_frame(macs());
        let at = bytes.len() - 8;
        bytes[at] ^= 0x20; // "PING" becomes "pING", which is the same command
        refused(&mut s, &mut talk, bytes);
        assert!(s.stat(abi::STAT_DROP_CHECKSUM) > 0);
    }
}

pub(crate) fn not_acceptable_to_tcp() {
    let mut s = Scenario::new(Setup::default());
    let mut raw = s.raw();
    raw.ts = Some((1_000_000, 0));
    let mut talk = Talk::begin(&mut s, raw);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let ping = request(&[b"PING"]);
    let usual = flags::ACK | flags::PSH;
    // PAWS.
    let mut old = talk.raw.segment(talk.seq, talk.ack, usual, &ping);
    old.options.ts = old.options.ts.map(|(own, theirs)| (own - 1000, theirs));
    let paws = s.stat(abi::STAT_REFUSE_PAWS);
    refused(&mut s, &mut talk, old.to_frame(macs()));
    assert_eq!(s.stat(abi::STAT_REFUSE_PAWS), paws + 1);
    // Acknowledges what nobody sent, or what was acknowledged long ago.
    for ack in [talk.ack + 50, talk.ack.wrapping_sub(1 << 30)] {
        let wrong = s.stat(abi::STAT_REFUSE_ACK);
        let segment = talk.raw.segment(talk.seq, ack, usual, &ping);
        refused(&mut s, &mut talk, segment.to_frame(macs()));
        assert_eq!(s.stat(abi::STAT_REFUSE_ACK), wrong + 1);
    }
    // The header's own sum is wrong.
    let segment = talk.raw.segment(talk.seq, talk.ack, usual, &ping);
    let mut bytes = segment.to_frame(macs());
    bytes[14 + 8] ^= 1;
    refused(&mut s, &mut talk, bytes);
    assert_eq!(s.stat(abi::STAT_INVARIANT), 0);
}

pub(crate) fn more_than_the_server_offered() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    s.stop_redis(true);
    // A large value fills the window of the stopped Redis.
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", 1_000_000);
    talk.say(&mut s, head.as_bytes());
    let mut sent = 0;
    for _ in 0..200 {
        let view = s.socket_of(talk.raw.pair()).expect("a socket");
        let room = (view.rcv_wup + view.rcv_wnd).wrapping_sub(view.rcv_nxt);
        if room < 1400 {
            break;
        }
        talk.say(&mut s, &[b'x'; 1400]);
        sent += 1;
    }
    assert!(sent > 10 && sent < 200, "the window never filled: {sent}");
    let view = s.socket_of(talk.raw.pair()).expect("a socket");
    let (next, nxt) = (talk.seq, view.rcv_nxt);
    talk.raw.data(&mut s, next, talk.ack, &[b'x'; 1400]);
    let after = s.socket_of(talk.raw.pair()).expect("a socket");
    let taken = after.rcv_nxt.wrapping_sub(nxt);
    assert!(taken <= 1400);
    s.stop_redis(false);
    s.settle();
    assert_eq!(s.stat(abi::STAT_INVARIANT), 0);
}

pub(crate) fn merged_packets() {
    let mut s = Scenario::new(Setup {
        tier: Tier::Tc,
        merge: true,
        ..Setup::default()
    });
    let mut talk = Talk::fast(&mut s);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    let fast = s.fast_packets();
    let mut expected = Vec::new();
    for round in 0..200 {
        if s.stat(abi::STAT_TC_MERGED) > 0 {
            break;
        }
        // Two segments that arrive together.
        let value = vec![b'x'; 1400];
        let set = request(&[b"SET", b"k", &value]);
        let (one, two) = set.split_at(1000);
        for part in [one, two] {
            let bits = flags::ACK | if part.len() < 1000 { flags::PSH } else { 0 };
            let segment = talk.raw.segment(talk.seq, talk.ack, bits, part);
            talk.raw.post(&mut s, &segment);
            talk.seq += len(part);
        }
        s.settle();
        expected.extend_from_slice(b"+OK\r\n");
        assert_eq!(talk.hear(&mut s), b"+OK\r\n", "round {round}");
    }
    assert!(s.stat(abi::STAT_TC_MERGED) > 0, "nothing was merged");
    assert_eq!(s.fast_packets(), fast);
    assert_eq!(talk.ask(&mut s, &[b"PING"]), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast + 1);
}

pub(crate) fn large_reply_in_one_packet() {
    let mut s = Scenario::new(Setup {
        offload: true,
        ..Setup::default()
    });
    s.unseen(&[b"SET", b"big", &[b'y'; 40_000]]);
    let client = s.fast();
    for _ in 0..3 {
        s.call(client, &[b"PING"]);
        assert_eq!(s.call(client, &[b"GET", b"big"]).len(), 40_010);
    }
    let entry = s.entry(client).expect("an entry");
    assert!(entry.out_delta > 0);
    assert_eq!(u32::from(entry.state), abi::CONN_FAST, "not counted");
    s.lose_down(3);
    assert_eq!(s.call(client, &[b"GET", b"big"]).len(), 40_010);
    s.finish();
}

pub(crate) fn replies_by_another_device() {
    let mut s = Scenario::new(Setup::default());
    s.world.server.route_by(99);
    let other = s.open();
    for _ in 0..5 {
        assert_eq!(s.call(other, &[b"PING"]), b"+PONG\r\n");
    }
    assert!(s.stat(abi::STAT_EGRESS_OTHER_DEVICE) > 0);
    assert_eq!(s.fast_packets(), 0, "answered without a view of egress");
    s.world.server.route_by(crate::server::IFINDEX);
    s.finish();
}

pub(crate) fn congestion_marks() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let ping = request(&[b"PING"]);
    let usual = flags::ACK | flags::PSH;
    for (ecn, bits) in [(3, 0), (0, flags::ECE), (0, flags::CWR)] {
        let (fast, odd) = (s.fast_packets(), s.stat(abi::STAT_ODD_ECN));
        let mut segment = talk.raw.segment(talk.seq, talk.ack, usual | bits, &ping);
        segment.ecn = ecn;
        talk.seq += len(&ping);
        let answers = talk.raw.send(&mut s, &segment);
        assert_eq!(talk.take(&answers), b"+PONG\r\n");
        assert_eq!(s.fast_packets(), fast, "a congestion mark was swallowed");
        assert_eq!(s.stat(abi::STAT_ODD_ECN), odd + 1);
        let mut segment = talk.raw.segment(talk.seq, talk.ack, usual, &ping);
        segment.ecn = 2;
        talk.seq += len(&ping);
        let answers = talk.raw.send(&mut s, &segment);
        assert_eq!(talk.take(&answers), b"+PONG\r\n");
        assert_eq!(s.fast_packets(), fast + 1);
        assert!(answers.iter().all(|one| one.ecn == 0), "not Not-ECT");
    }
}

pub(crate) fn tagged_frames() {
    for ipv6 in [false, true] {
        let mut s = Scenario::new(Setup {
            vlan: Some(100),
            ipv6,
            ..Setup::default()
        });
        let (filter, log) = tap();
        s.down(0, Some(filter));
        let client = s.fast();
        s.call(client, &[b"ECHO", b"a"]);
        for _ in 0..3 {
            s.call(client, &[b"PING"]);
        }
        assert_eq!(s.fast_packets(), 3);
        let tags: Vec<_> = log.borrow().iter().map(|one| one.vlan).collect();
        assert!(tags.iter().all(|tag| *tag == Some(100)), "{tags:?}");
        s.down(0, None);
        s.finish();
    }
}

pub(crate) fn unknown_options_and_urgent_data() {
    let mut s = Scenario::new(Setup::default());
    let mut talk = Talk::fast(&mut s);
    talk.ask(&mut s, &[b"PING"]);
    talk.ack(&mut s);
    let ping = request(&[b"PING"]);
    let usual = flags::ACK | flags::PSH;
    let others: [&[u8]; 2] = [&[30, 4, 0, 0], &[253, 4, 1, 2]];
    for other in others {
        let (fast, odd) = (s.fast_packets(), s.stat(abi::STAT_ODD_OPTIONS));
        let mut segment = talk.raw.segment(talk.seq, talk.ack, usual, &ping);
        segment.options.other = other.to_vec();
        talk.seq += len(&ping);
        let answers = talk.raw.send(&mut s, &segment);
        assert_eq!(talk.take(&answers), b"+PONG\r\n");
        assert_eq!(s.fast_packets(), fast);
        assert_eq!(s.stat(abi::STAT_ODD_OPTIONS), odd + 1);
        talk.ack(&mut s);
    }
    let (fast, odd) = (s.fast_packets(), s.stat(abi::STAT_ODD_URGENT));
    let mut odd_ping = ping;
    odd_ping.insert(2, b'x'); // Redis does not read it
    let mut segment = talk
        .raw
        .segment(talk.seq, talk.ack, usual | flags::URG, &odd_ping);
    segment.urgent = 3;
    talk.seq += len(&odd_ping);
    let answers = talk.raw.send(&mut s, &segment);
    assert_eq!(talk.take(&answers), b"+PONG\r\n");
    assert_eq!(s.fast_packets(), fast);
    assert_eq!(s.stat(abi::STAT_ODD_URGENT), odd + 1);
}
