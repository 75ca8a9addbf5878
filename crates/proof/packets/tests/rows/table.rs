// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of connections: full, and after a connection's end.

use erb_abi as abi;
use erb_packets::fixture::{self, Bench, conn_key, key_bytes};
use erb_packets::frame::{ACK, FIN, Family, SYN, Segment};
use erb_packets::row::moved;
use erb_packets::scene::{META_TRANSLATED, Scene, V4, V4_NO_TS, XDP_DROP, XDP_PASS, XDP_TX};
use libbpf_rs::{MapCore as _, MapFlags};

use crate::{GET_KEY, PING, spliced};

/// Entries of connections that never were, of an address that no row's client has.
fn strangers() -> impl Iterator<Item = Vec<u8>> {
    (0..fixture::CONNECTIONS).map(|number| {
        let mut key = conn_key(Family::V4, number as u16 + 1);
        key.client_addr[14] ^= 1;
        key_bytes(&key)
    })
}

fn fill_table(bench: &Bench) {
    let empty = vec![0; size_of::<abi::conn>()];
    for key in strangers() {
        // The last ones do not fit if another entry is there.
        let _ = bench.conns.update(&key, &empty, MapFlags::NO_EXIST);
    }
}

fn empty_table(bench: &Bench) {
    for key in strangers() {
        let _ = bench.conns.delete(&key);
    }
}

/// The first request of a connection for which there is no room, and of it again when there is.
fn passes_unseen(scene: &mut Scene<'_>, reason: &'static str, make_room: fn(&Bench)) {
    let closed = |scene: &Scene<'_>| {
        let control = scene.bench.dp.control();
        (control.fence(), control.gate_seen(), control.cache_epoch())
    };
    let (first, before, was_closed) = (scene.segment(PING), scene.bench.stats(), closed(scene));
    let outcome = scene.xdp(&first.bytes());
    let counted = moved(&before, &scene.bench.stats());
    make_room(scene.bench);
    assert_eq!(outcome.verdict, XDP_PASS);
    assert_eq!(outcome.frame, first.bytes(), "passed as it came");
    assert_eq!(outcome.meta, Some(META_TRANSLATED), "TC need not look");
    assert_eq!(counted, [(reason, 1)].into_iter().collect());
    assert_eq!(closed(scene), was_closed, "nothing is closed for others");
    assert!(scene.entry().is_none());
    // Bytes that nobody counted may still be on their way to TCP.
    let before = scene.bench.stats();
    assert_eq!(scene.xdp(&first.bytes()).verdict, XDP_PASS);
    let counted = moved(&before, &scene.bench.stats());
    assert_eq!(counted, [("CONN_UNSEEN", 1)].into_iter().collect());
    assert!(scene.entry().is_none(), "it is believed to be new");
}

#[test]
fn full() {
    fixture::with(|bench| {
        fill_table(bench);
        let mut scene = Scene::connect(bench, V4);
        passes_unseen(&mut scene, "CONN_TABLE_FULL", empty_table);
        drop(scene);
        // Nothing of another one has passed unseen.
        let mut scene = Scene::connect(bench, V4);
        let first = scene.segment(PING);
        scene.xdp(&first.bytes());
        let state = scene.entry().map(|entry| entry.state.into());
        assert_eq!(state, Some(abi::CONN_NEW));
    });
}

/// Payload that no entry counts may be any request: it waits until all is drained (order.h).
#[test]
fn payload_that_nobody_counts_waits_for_all() {
    fixture::with(|bench| {
        bench.dp.control().set_client_conns_max(0);
        let mut scene = Scene::connect(bench, V4);
        let control = scene.bench.dp.control();
        control.give_lsns(control.lsn() + 1);
        let first = scene.segment(b"*1\r\n$4\r\nTIME\r\n");
        let before = scene.bench.stats();
        let verdict = scene.xdp(&first.bytes()).verdict;
        let counted = moved(&before, &scene.bench.stats());
        // But for what only asks whether the server is there.
        let probe = scene.segment(PING);
        let probed = scene.xdp(&probe.bytes()).verdict;
        let control = scene.bench.dp.control();
        control.set_drained(control.lsn());
        assert_eq!(verdict, XDP_DROP, "{counted:?}");
        assert_eq!(counted.get("HELD_UNSEEN"), Some(&1), "{counted:?}");
        assert_eq!(probed, XDP_PASS);
        passes_unseen(&mut scene, "CONN_UNSEEN", |bench| {
            bench.dp.control().set_client_conns_max(1);
        });
    });
}

/// A client's address has as many entries as it may have: of IPv6, its network of 64 bits.
#[test]
fn share_of_an_address() {
    fixture::with(|bench| {
        for shape in [V4, erb_packets::scene::V6] {
            bench.dp.control().set_client_conns_max(0);
            let mut scene = Scene::connect(bench, shape);
            passes_unseen(&mut scene, "CONN_SHARE_FULL", |bench| {
                bench.dp.control().set_client_conns_max(1);
            });
            drop(scene);
            for _ in 0..3 {
                bench.dp.control().set_client_conns_max(1);
                // Each gives its place back when it ends.
                let mut scene = Scene::connect(bench, shape);
                let first = scene.segment(PING);
                scene.xdp(&first.bytes());
                assert!(scene.entry().is_some(), "{shape:?}");
            }
        }
    });
}

/// The server closes first and is in TIME_WAIT.
fn time_wait(scene: &mut Scene) {
    spliced(scene);
    let ack = scene.segment(b"");
    scene.up(&ack);
    drop(scene.server.take());
    let fin = scene.expect_from_kernel(|segment| segment.flags & FIN != 0);
    assert_eq!(
        (fin.seq, fin.ack),
        (scene.rcv, scene.snd),
        "FIN is translated"
    );
    scene.rcv = scene.rcv.wrapping_add(1);
    let mut answer = scene.segment(b"");
    answer.flags = FIN | ACK;
    scene.up(&answer);
    scene.snd = scene.snd.wrapping_add(1);
    let last = scene.expect_from_kernel(|_| true);
    assert_eq!(
        (last.seq, last.ack),
        (scene.rcv, scene.snd),
        "TIME_WAIT's ACK is translated"
    );
}

fn syn(scene: &mut Scene) -> Segment {
    let mut segment = scene.segment(b"");
    segment.flags = SYN;
    segment.ack = 0;
    segment.seq = scene.snd.wrapping_add(100_000);
    segment
}

#[test]
fn in_time_wait() {
    fixture::with(|bench| {
        for shape in [V4_NO_TS, V4] {
            let mut scene = Scene::connect(bench, shape);
            time_wait(&mut scene);
            // The client repeats its FIN: TIME_WAIT must recognise it.
            let mut again = scene.segment(b"");
            again.flags = FIN | ACK;
            again.seq = again.seq.wrapping_sub(1);
            let outcome = scene.xdp(&again.bytes());
            assert_eq!(outcome.meta, Some(META_TRANSLATED));
            let got = Segment::parse(&outcome.frame).unwrap();
            assert_eq!(got.seq, again.seq.wrapping_sub(14), "{shape:?}");
            assert_eq!(got.ack, again.ack.wrapping_sub(7), "{shape:?}");
            let late = scene.segment(GET_KEY);
            let outcome = scene.xdp(&late.bytes());
            assert_ne!(outcome.verdict, XDP_TX, "no answer in TIME_WAIT");
        }
    });
}

#[test]
fn syn_on_time_wait() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4_NO_TS);
        time_wait(&mut scene);
        let early = syn(&mut scene);
        assert_eq!(
            scene.xdp(&early.bytes()).verdict,
            XDP_PASS,
            "short deltas: reuse is safe"
        );
        scene.edit(|entry| entry.out_delta = 65_537);
        let before = scene.bench.stats();
        assert_eq!(scene.xdp(&early.bytes()).verdict, XDP_DROP);
        let counted = moved(&before, &scene.bench.stats());
        assert_eq!(counted, [("DROP_SYN_TIME_WAIT", 1)].into_iter().collect());
        let mut with_ts = early.clone();
        with_ts.ts = Some((1, 0));
        assert_eq!(
            scene.xdp(&with_ts.bytes()).verdict,
            XDP_PASS,
            "PAWS protects it"
        );
    });
}

/// The same address pair again: another socket, another cookie, deltas of zero.
#[test]
fn reused_address_pair() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        spliced(&mut scene);
        let old = scene.entry().unwrap();
        scene.reconnect();
        let before = scene.bench.stats();
        scene.request(PING);
        let counted = moved(&before, &scene.bench.stats());
        assert_eq!(counted.get("CONN_CREATED"), Some(&1), "{counted:?}");
        let new = scene.entry().unwrap();
        assert_ne!(new.cookie, old.cookie);
        assert_eq!((new.in_delta, new.out_delta), (0, 0));
        scene.reply(b"+PONG\r\n");
        scene.acknowledge();
        assert_eq!(u32::from(scene.entry().unwrap().state), abi::CONN_FAST);
    });
}

/// The handshake's last ACK of a new incarnation must not be translated by the old one's deltas.
#[test]
fn first_ack_on_a_reused_address_pair() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        spliced(&mut scene);
        scene.reconnect();
        let ack = scene.segment(b"");
        let before = scene.bench.stats();
        let outcome = scene.xdp(&ack.bytes());
        assert_eq!(outcome.frame, ack.bytes());
        let counted = moved(&before, &scene.bench.stats());
        assert_eq!(counted, [("SOCK_OTHER_COOKIE", 1)].into_iter().collect());
    });
}

#[test]
fn no_socket_at_all() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        let mut frame = scene.segment(PING).bytes();
        // From 10.77.0.0 to 10.77.0.3: the sums stay what they are.
        frame[29] -= 1;
        frame[33] += 1;
        let before = scene.bench.stats();
        let outcome = scene.xdp(&frame);
        assert_eq!((outcome.verdict, &outcome.frame), (XDP_PASS, &frame));
        let counted = moved(&before, &scene.bench.stats());
        assert_eq!(counted, [("SOCK_NONE", 1)].into_iter().collect());
    });
}

/// A packet that the kernel would cut at the window it has advertised is the kernel's.
#[test]
fn beyond_the_advertised_window() {
    use nix::sys::socket::{getsockopt, setsockopt, sockopt::RcvBuf};
    fixture::with(|bench| {
        let listener = bench.listener(Family::V4);
        let usual = getsockopt(listener, RcvBuf).unwrap();
        setsockopt(listener, RcvBuf, &1).unwrap();
        let mut scene = Scene::connect(bench, V4);
        setsockopt(scene.bench.listener(Family::V4), RcvBuf, &(usual / 2)).unwrap();
        let keys: Vec<String> = (0..5)
            .map(|number| number.to_string().repeat(256))
            .collect();
        for key in &keys {
            scene.bench.fill(key.as_bytes(), b"v", 0);
        }
        scene.make_fast();
        let all: Vec<u8> = keys.iter().flat_map(|key| crate::get(key)).collect();
        assert!(scene.info().tcpi_rcv_space > 0);
        let before = scene.bench.stats();
        let segment = scene.segment(&all);
        let outcome = scene.xdp(&segment.bytes());
        let counted = moved(&before, &scene.bench.stats());
        let expected = [
            ("REFUSE_WINDOW_SERVER", 1),
            ("DROP_OUT_OF_ORDER", 1),
            ("DUP_ACK_SENT", 1),
        ];
        assert_eq!(counted, expected.into_iter().collect());
        assert_ne!(outcome.frame, segment.bytes(), "it went up");
    });
}

/// With threaded NAPI the first payload meets a request socket: the entry is made from it and
/// belongs to the socket that it becomes.
#[test]
fn payload_before_the_handshake_is_over() {
    fixture::with(|bench| {
        for shape in [V4, erb_packets::scene::V6_NO_TS] {
            let mut scene = Scene::half_open(bench, shape);
            let mut forged = scene.segment(PING);
            forged.ack = forged.ack.wrapping_add(1);
            let before = scene.bench.stats();
            scene.xdp(&forged.bytes());
            let counted = moved(&before, &scene.bench.stats());
            assert_eq!(counted, [("SOCK_REQUEST", 1)].into_iter().collect());
            assert!(scene.entry().is_none(), "the wrong ACK proves nothing");
            let before = scene.bench.stats();
            let first = scene.segment(PING);
            let outcome = scene.up(&first);
            assert_eq!(outcome.frame, first.bytes());
            let counted = moved(&before, &scene.bench.stats());
            assert_eq!(counted.get("CONN_CREATED"), Some(&1), "{counted:?}");
            scene.accept();
            scene.read_request(PING);
            scene.reply(b"+PONG\r\n");
            scene.acknowledge();
            assert_eq!(u32::from(scene.entry().unwrap().state), abi::CONN_FAST);
            let get = scene.segment(PING);
            assert_eq!(scene.up(&get).verdict, XDP_TX, "{shape:?}");
        }
    });
}

/// The daemon's timer sends what nobody acknowledged, from the state of that moment.
#[test]
fn retransmission_timer() {
    fixture::with(|bench| {
        for shape in [
            V4,
            V4_NO_TS,
            erb_packets::scene::V6,
            erb_packets::scene::V4_VLAN,
        ] {
            let mut scene = Scene::connect(bench, shape);
            spliced(&mut scene);
            assert!(
                scene.bench.dp.walk().unwrap().unacked > 0,
                "bytes are unacknowledged"
            );
            assert!(scene.from_kernel().is_empty(), "not due yet");
            for tries in 1..=3 {
                scene.edit(|entry| entry.resend_due = 1);
                let before = scene.bench.stats();
                assert!(scene.bench.dp.walk().unwrap().unacked > 0);
                let again = scene.expect_from_kernel(|_| true);
                assert_eq!(again.payload, b"+PONG\r\n", "{shape:?}");
                assert_eq!(again.seq, scene.rcv.wrapping_sub(7));
                assert_eq!(again.ack, scene.snd);
                assert_eq!(again.vlan, shape.vlan.into_iter().collect::<Vec<_>>());
                assert_eq!(again.ts.is_some(), shape.ts);
                assert_eq!(again.checksum, erb_packets::frame::Checksum::Full);
                let counted = moved(&before, &scene.bench.stats());
                let expected = [("REPLAY_TIMEOUT", 1), ("EGRESS_CLONE", 1)];
                assert_eq!(counted, expected.into_iter().collect());
                assert_eq!(scene.entry().unwrap().tries, tries);
            }
            let ack = scene.segment(b"");
            scene.up(&ack);
            assert!(
                !scene.bench.dp.walk().unwrap().unacked > 0,
                "acknowledged: nothing is due"
            );
        }
    });
}

/// What an acknowledgement, an answer or a replay settles is not sent again by the timer, then or later.
#[test]
fn what_was_asked_for_is_taken_back() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        spliced(&mut scene);
        scene.edit(|entry| entry.resend_due = 1);
        scene.acknowledge();
        let entry = scene.entry().unwrap();
        assert_eq!((entry.sent_ns, entry.resend_due), (0, 0), "acknowledged");
        let ping = scene.segment(crate::PING);
        let outcome = scene.up(&ping);
        scene.take_answer(&outcome);
        let before = scene.bench.stats();
        assert!(scene.bench.dp.walk().unwrap().unacked > 0);
        let counted = moved(&before, &scene.bench.stats());
        assert_eq!(counted.get("REPLAY_TIMEOUT"), None, "{counted:?}");
        assert_eq!(scene.entry().unwrap().tries, 0);
    });
}
