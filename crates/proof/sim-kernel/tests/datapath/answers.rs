// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole programs: a hit, a miss, a hand-over to TC, a retransmission.

use std::time::{Duration, Instant};

use erb_abi::{ControlBlock as _, ControlPlane as _};
use erb_sim_kernel::{DatapathConfig, Tc, Xdp, tcp_state};

use erb_wire::Segment;
use erb_wire::layout::payload;

use erb_sim_kernel::scene::{DEVICE, Scene, command, get};

#[test]
fn a_filled_key_is_answered_in_place() {
    let mut scene = warm();
    assert_eq!(scene.fill(b"key", b"value"), erb_abi::FILL_OK);
    let request = get(b"key");
    for round in 1..=3u32 {
        let (verdict, packet) = scene.send(&request);
        assert_eq!(verdict, Xdp::Tx, "{:?}", reasons(&scene));
        assert_eq!(payload(packet.bytes()), b"$5\r\nvalue\r\n");
        assert!(Segment::parse(packet.bytes()).is_ok());
        let conn = scene.conn();
        assert_eq!(conn.in_delta, round * request.len() as u32);
        assert_eq!(conn.out_delta, round * 11);
        scene.ack = scene.ack.wrapping_add(11);
    }
    assert_eq!(scene.path.stat(erb_abi::STAT_FAST_GET), 3);
}

#[test]
fn an_answer_bears_the_time_in_the_unit_of_its_socket() {
    for (usec, per_second) in [(0, 1000), (1, 1_000_000)] {
        let mut scene = Scene::new(DatapathConfig::default()).with_timestamps();
        scene.sock(|sock| sock.usec_ts = usec);
        scene.warm();
        scene.fill(b"key", b"value");
        let (verdict, packet) = scene.send(&get(b"key"));
        assert_eq!(verdict, Xdp::Tx, "{:?}", reasons(&scene));
        let segment = Segment::parse(packet.bytes()).expect("a frame");
        let (value, _) = segment.options.ts.expect("timestamps");
        assert_eq!(value, 10 * per_second, "at the tenth second");
    }
}

/// Misses `key` so often; how often that was reported.
fn reports_of(scene: &mut Scene, key: &[u8], misses: u32) -> usize {
    for _ in 0..misses {
        let (verdict, packet) = scene.send(&get(key));
        assert_eq!(verdict, Xdp::Pass);
        assert_eq!(packet.meta(), 0x4552_4254u32.to_ne_bytes());
        scene.served(get(key).len(), b"$-1\r\n");
        scene.settle();
    }
    let reported = scene.path.take_misses(100);
    assert!(scene.path.take_misses(100).is_empty());
    let wanted = erb_abi::Wanted::string(key.to_vec());
    assert!(reported.iter().all(|one| *one == wanted));
    reported.len()
}

#[test]
fn misses_are_reported_more_and_more_seldom_or_one_of_some() {
    let mut scene = warm();
    drop(scene.path.take_misses(10));
    for (fill_at, key, reports) in [(1, b"a", [1, 1, 1, 0]), (2, b"b", [0, 1, 1, 0])] {
        scene.path.set_miss_fill_at(fill_at);
        let misses = [1, 1, 2, 20];
        let found = misses.map(|misses| reports_of(&mut scene, key, misses));
        assert_eq!(
            found, reports,
            "at the first, second and fourth, from {fill_at} on"
        );
    }
    // Chance is always 4 here.
    scene.path.set_miss_one_of(8);
    assert_eq!(reports_of(&mut scene, b"c", 5), 0);
    scene.path.set_miss_one_of(4);
    assert_eq!(reports_of(&mut scene, b"c", 5), 5);
}

/// Every second set is left out: the key's own, or the others.
fn step_aside(scene: &Scene, key: &[u8], of_it: bool) {
    let set = erb_abi::ControlBlock::control(&scene.path)
        .hash_secret()
        .hash(key) as u8;
    scene.path.set_look_at(if of_it { !set } else { set });
    scene.path.set_look_mask(1);
}

#[test]
fn what_is_left_out_is_kept_true() {
    let mut scene = warm();
    assert_eq!(scene.fill(b"key", b"value"), erb_abi::FILL_OK);
    step_aside(&scene, b"key", true);
    assert_eq!(scene.send(&get(b"key")).0, Xdp::Pass);
    scene.served(get(b"key").len(), b"$5\r\nvalue\r\n");
    scene.settle();
    assert_eq!(scene.path.stat(erb_abi::STAT_REFUSE_ASIDE), 1);
    let reported = scene.path.take_misses(10);
    assert!(reported.iter().all(|wanted| wanted.key != b"key"));
    step_aside(&scene, b"key", false);
    assert_eq!(scene.send(&get(b"key")).0, Xdp::Tx);
    scene.ack = scene.ack.wrapping_add(11);
    assert_eq!(scene.path.stat(erb_abi::STAT_SAMPLE_FOUND), 1);
    // A write takes its mark, whichever sets are looked into.
    step_aside(&scene, b"key", true);
    let marks = scene.path.stat(erb_abi::STAT_MARK_TAKEN);
    let write = command(&[b"SET" as &[u8], b"key", b"other"]);
    assert_eq!(scene.send(&write).0, Xdp::Pass);
    assert_eq!(scene.path.stat(erb_abi::STAT_MARK_TAKEN), marks + 1);
    scene.served(write.len(), b"+OK\r\n");
    scene.settle();
    scene.path.set_look_mask(0);
    assert_eq!(scene.send(&get(b"key")).0, Xdp::Pass);
    assert!(scene.path.stat(erb_abi::STAT_REFUSE_MISS) > 0);
}

#[test]
fn a_connection_that_only_misses_looks_seldom_until_it_is_answered() {
    let mut scene = warm();
    scene.path.set_vain_mask(1);
    let set = erb_abi::ControlBlock::control(&scene.path)
        .hash_secret()
        .hash(b"key") as u8;
    for at in [!set, set] {
        scene.path.set_look_at(at);
        reports_of(&mut scene, b"nobody", erb_abi::VAIN_MOST + 2);
    }
    let aside = scene.path.stat(erb_abi::STAT_REFUSE_ASIDE);
    assert!(aside > 0 && aside <= u64::from(erb_abi::VAIN_MOST) + 4);
    scene.fill(b"key", b"value");
    assert_eq!(scene.send(&get(b"key")).0, Xdp::Tx, "it is of the sample");
    scene.ack = scene.ack.wrapping_add(11);
    scene.path.set_look_at(!set);
    assert_eq!(
        scene.send(&get(b"key")).0,
        Xdp::Tx,
        "all is looked up again"
    );
}

#[test]
fn the_acknowledgement_of_a_slow_reply_goes_up_through_tc() {
    let mut scene = Scene::new(DatapathConfig::default());
    let first = get(b"warm");
    scene.send(&first);
    scene.served(first.len(), b"$-1\r\n");
    scene.fill(b"key", b"value");
    let mut packet = scene.request(&get(b"key"));
    assert_eq!(scene.path.run_xdp(&mut packet), Xdp::Pass);
    assert_eq!(packet.meta(), 0x4552_4243u32.to_ne_bytes());
    assert_eq!(scene.path.run_tc_ingress(&mut packet), Tc::Next);
    assert_eq!(
        payload(packet.bytes()),
        b"",
        "the original goes up as an ACK"
    );
    let sent = scene.kernel.sent.borrow();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, DEVICE);
    assert_eq!(payload(sent[0].1.bytes()), b"$5\r\nvalue\r\n");
    assert!(Segment::parse(sent[0].1.bytes()).is_ok());
    assert_eq!(scene.path.stat(erb_abi::STAT_EGRESS_CLONE), 1);
}

/// netfilter has given the connection to a proxy: its socket has Redis's address, and is another's.
#[test]
fn a_connection_of_a_transparent_proxy_is_left_alone() {
    for state in [tcp_state::ESTABLISHED, tcp_state::NEW_SYN_RECV] {
        let mut scene = Scene::new(DatapathConfig::default());
        assert_eq!(scene.fill(b"key", b"value"), erb_abi::FILL_OK);
        scene.sock(|sock| {
            sock.transparent = 1;
            sock.state = state;
            sock.snt_isn = sock.write_seq.wrapping_sub(1);
        });
        for _ in 0..3 {
            assert_eq!(scene.send(&get(b"key")).0, Xdp::Pass, "{state}");
        }
        let reasons = reasons(&scene);
        assert_eq!(scene.path.stat(erb_abi::STAT_UP_FOREIGN), 3, "{reasons:?}");
        assert_eq!(
            scene.path.stat(erb_abi::STAT_CONN_CREATED),
            0,
            "{reasons:?}"
        );
    }
}

fn tick(scene: &Scene) -> u32 {
    let places = scene.path.places(erb_abi::PLACES_TIMER, 1, 8);
    scene.path.tick(&places).expect("it runs")
}

#[test]
fn an_answer_that_nobody_acknowledges_is_sent_again() {
    let mut scene = warm();
    scene.fill(b"key", b"value");
    assert_eq!(scene.send(&get(b"key")).0, Xdp::Tx);
    assert_eq!(tick(&scene), 1);
    assert!(scene.kernel.sent.borrow().is_empty(), "too early");
    scene.kernel.now.set(scene.kernel.now.get() + 300_000_000);
    assert_eq!(tick(&scene), 1);
    let sent = scene.kernel.sent.borrow();
    assert_eq!(sent.len(), 1);
    assert_eq!(payload(sent[0].1.bytes()), b"$5\r\nvalue\r\n");
    assert!(Segment::parse(sent[0].1.bytes()).is_ok());
}

/// A way that has become narrower without a word, as when a device's MTU is lowered while the kernel
/// has nothing to send.
#[test]
fn an_answer_that_is_too_long_for_the_way_comes_in_pieces() {
    let mut scene = warm();
    let value = [b'v'; 1000];
    scene.fill(b"key", &value);
    // The card has no room for so much: TC answers.
    let (verdict, mut packet) = scene.send(&get(b"key"));
    assert_eq!(verdict, Xdp::Pass);
    assert_eq!(scene.path.run_tc_ingress(&mut packet), Tc::Next);
    let whole = payload(scene.kernel.sent.borrow_mut().remove(0).1.bytes()).to_vec();
    assert_eq!(whole.len(), 7 + value.len() + 2);
    let limit = erb_abi::NARROW_MSS as usize;
    let mut received = Vec::new();
    for _ in 0..20 {
        scene.kernel.now.set(scene.kernel.now.get() + 300_000_000);
        tick(&scene);
        let sent: Vec<_> = scene.kernel.sent.borrow_mut().drain(..).collect();
        for (_, packet) in sent {
            let piece = payload(packet.bytes());
            if piece.len() > limit {
                continue; // lost
            }
            received.extend_from_slice(piece);
            scene.ack = scene.ack.wrapping_add(piece.len() as u32);
            scene.send(b"");
        }
    }
    assert_eq!(received, whole);
    // What is longer is Redis's from now on: the kernel knows its ways.
    assert_eq!(scene.send(&get(b"key")).0, Xdp::Pass);
    assert_eq!(scene.path.stat(erb_abi::STAT_REFUSE_MSS), 1);
}

/// A hit may not cost more than what goes up and comes back, or the simulator's millions of packets take hours.
/// Of each the shortest part counts: a part is a millisecond, and other work of the machine does not fall into all.
#[test]
fn a_hit_leaves_time_for_the_rest() {
    // So many replies that are not acknowledged fit a window.
    const PARTS: u32 = 40;
    const ROUNDS: u32 = 50;
    let (mut hits, mut misses) = (warm(), warm());
    hits.fill(b"key", b"value");
    let (request, absent) = (get(b"key"), get(b"absent"));
    let (mut hit, mut miss) = (Duration::MAX, Duration::MAX);
    for _ in 0..PARTS {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            assert_eq!(hits.send(&request).0, Xdp::Tx);
            hits.ack = hits.ack.wrapping_add(11);
        }
        hit = hit.min(start.elapsed() / ROUNDS);
        let start = Instant::now();
        for _ in 0..ROUNDS {
            assert_eq!(misses.send(&absent).0, Xdp::Pass, "{:?}", reasons(&misses));
            misses.served(absent.len(), b"$-1\r\n");
            misses.settle();
        }
        miss = miss.min(start.elapsed() / ROUNDS);
    }
    println!("{hit:?} per hit, {miss:?} per miss, frames built and checked included");
    if hit > miss {
        erb_steady::too_slow(format_args!("{hit:?} per hit, {miss:?} per miss"));
    }
}

fn warm() -> Scene {
    let mut scene = Scene::new(DatapathConfig::default());
    scene.warm();
    scene
}

fn reasons(scene: &Scene) -> Vec<(&'static str, u64)> {
    let stats = scene.path.stats();
    let names = erb_abi::REASONS.iter().map(|reason| reason.name);
    names.zip(stats).filter(|(_, count)| *count > 0).collect()
}
