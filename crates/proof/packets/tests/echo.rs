// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The echo handler, compiled with the same splice: answered, passed up, scanned over packets, replayed.
//! The server's socket is the kernel's; who reads and writes it is the row.

use std::os::fd::AsFd as _;

use erb_abi as abi;
use erb_datapath::Front;
use erb_echo::{fast, slow};
use erb_packets::fixture;
use erb_packets::frame::PORT;
use erb_packets::row::moved;
use erb_packets::run::run_xdp;
use erb_packets::scene::{META_TO_TC, Scene, Shape, V4, V4_NO_TS, V6, XDP_PASS, XDP_TX};

const SHAPES: [Shape; 3] = [V4, V4_NO_TS, V6];

/// Runs a row on a connection whose first frame the server has answered, in each shape.
fn rows(row: impl Fn(&mut Scene) + Send + Copy + 'static) {
    fixture::load_from(erb_echo::objects());
    fixture::with(move |bench| {
        for shape in SHAPES {
            let mut scene = Scene::connect(bench, shape);
            served(&mut scene, &slow(b"first"));
            scene.acknowledge();
            assert_eq!(u32::from(scene.entry().unwrap().state), abi::CONN_FAST);
            row(&mut scene);
        }
    });
}

/// Goes up, and the server echoes it.
fn served(scene: &mut Scene, bytes: &[u8]) {
    scene.request(bytes);
    scene.reply(bytes);
}

/// Is answered by XDP.
fn answered(scene: &mut Scene, bytes: &[u8]) {
    let segment = scene.segment(bytes);
    let outcome = scene.up(&segment);
    assert_eq!(outcome.verdict, XDP_TX, "{bytes:?} is answered");
    assert_eq!(scene.take_answer(&outcome), bytes);
}

/// Goes up for this reason; the server reads it.
fn refused(scene: &mut Scene, bytes: &[u8], reason: &str) {
    let before = scene.bench.stats();
    scene.request(bytes);
    let counted = moved(&before, &scene.bench.stats());
    assert_eq!(counted.get(reason), Some(&1), "{bytes:?}: {counted:?}");
}

#[test]
fn frames_are_answered_at_the_card() {
    rows(|scene| {
        for body in [&b""[..], b"x", &[b'b'; 500], &[b'c'; 1400]] {
            answered(scene, &fast(body));
        }
        answered(scene, &[fast(b"one"), fast(b""), fast(b"three")].concat());
        let entry = scene.entry().unwrap();
        assert_eq!(
            entry.in_delta, entry.out_delta,
            "as many bytes as were taken"
        );
    });
}

#[test]
fn what_only_the_server_answers_goes_up() {
    rows(|scene| {
        answered(scene, &fast(b"before"));
        let both = [fast(b"fast"), slow(b"slow")].concat();
        refused(scene, &both, "REFUSE_COMMAND");
        // While a reply is owed nothing is answered, or streams would change their order.
        let early = fast(b"early");
        refused(scene, &early, "REFUSE_UNANSWERED");
        scene.reply(&both);
        scene.reply(&early);
        // The acknowledgement is news to the kernel: XDP leaves this one to TC.
        let next = scene.segment(&fast(b"next"));
        let outcome = scene.xdp(&next.bytes());
        assert_eq!(
            (outcome.verdict, outcome.meta),
            (XDP_PASS, Some(META_TO_TC))
        );
        scene.acknowledge();
        answered(scene, &fast(b"next"));
        let entry = scene.entry().unwrap();
        assert_eq!((entry.requests, entry.replies), (4, 4));
    });
}

#[test]
fn frames_are_counted_over_packets() {
    rows(|scene| {
        let frame = slow(&[b'y'; 300]);
        for cut in [1, 3, 4, 150, 303] {
            let (head, tail) = frame.split_at(cut);
            refused(scene, head, "REFUSE_INCOMPLETE");
            assert_eq!(u32::from(scene.entry().unwrap().in_at), abi::STREAM_WITHIN);
            scene.request(tail);
            assert_eq!(u32::from(scene.entry().unwrap().in_at), abi::STREAM_BETWEEN);
            // The reply in two parts: owed until its last byte.
            scene.reply(&frame[..cut]);
            assert_eq!(u32::from(scene.entry().unwrap().out_at), abi::STREAM_WITHIN);
            scene.reply(&frame[cut..]);
            scene.acknowledge();
            answered(scene, &fast(b"between"));
        }
    });
}

#[test]
fn a_repeated_request_gets_the_same_answer() {
    rows(|scene| {
        let segment = scene.segment(&fast(b"again"));
        let first = scene.up(&segment);
        assert_eq!(first.verdict, XDP_TX);
        let before = scene.bench.stats();
        let second = scene.up(&segment);
        assert_eq!(second.verdict, XDP_TX, "from the replay buffer");
        assert_eq!(scene.take_answer(&second), fast(b"again"));
        let counted = moved(&before, &scene.bench.stats());
        assert_eq!(counted.get("REPLAY_REQUEST"), Some(&1), "{counted:?}");
    });
}

#[test]
fn what_is_no_frame_is_never_answered_again() {
    rows(|scene| {
        answered(scene, &fast(b"before"));
        scene.request(b"no frame");
        let entry = scene.entry().unwrap();
        let lost = abi::CONN_F_SCAN_LOST | abi::CONN_F_UNCOUNTABLE;
        assert_eq!(u32::from(entry.flags) & lost, lost);
        // Translated all the same: the server reads on.
        scene.request(&fast(b"after"));
        let reply = scene.reply(b"whatever");
        assert_eq!(reply.ack, scene.snd);
    });
}

#[test]
fn the_front_finds_it() {
    rows(|scene| {
        let front = Front::load().expect("the front");
        let program = front.program().try_clone_to_owned().expect("a descriptor");
        let echo = scene.bench.programs.xdp.as_fd();
        front.add(3, PORT, echo).expect("a slot");
        let segment = scene.segment(&fast(b"behind the front"));
        let ifindex = scene.bench.ifindex;
        let outcome = run_xdp(&program, &segment.bytes(), ifindex).expect("the front runs");
        assert_eq!(outcome.verdict, XDP_TX);
        scene.snd = scene.snd.wrapping_add(segment.payload.len() as u32);
        assert_eq!(scene.take_answer(&outcome), fast(b"behind the front"));
    });
}
