// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes behind something that was answered in Redis's place and is not drained (bpf/splice/order.h).

use erb_abi::{ControlPlane as _, HeldPacket, Injected};
use erb_datapath::HeldRing;
use erb_packets::fixture::{self, Bench};
use erb_packets::frame::{Checksum, Segment};
use erb_packets::row::moved;
use erb_packets::scene::{META_TRANSLATED, Scene, TCX_DROP, V4, V4_VLAN, V6, XDP_DROP, XDP_PASS};

use crate::{GET_KEY, SET_OTHER, fast, spliced};

const GET_NONE: &[u8] = b"*2\r\n$3\r\nGET\r\n$4\r\nnone\r\n";
const SET_NONE: &[u8] = b"*3\r\n$3\r\nSET\r\n$4\r\nnone\r\n$1\r\nv\r\n";

/// Something is answered, and not drained.
fn absorb(bench: &Bench) {
    let control = bench.dp.control();
    control.give_lsns(control.lsn() + 1);
}

fn drain(bench: &Bench) {
    let control = bench.dp.control();
    control.set_drained(control.lsn());
}

/// What XDP says to a segment, and what it counts.
fn xdp(scene: &Scene, segment: &Segment) -> (u32, Vec<(&'static str, u64)>) {
    let before = scene.bench.stats();
    let outcome = scene.xdp(&segment.bytes());
    let mut counted = moved(&before, &scene.bench.stats());
    counted.retain(|name, _| !name.starts_with("EGRESS_"));
    (outcome.verdict, counted.into_iter().collect())
}

#[test]
fn a_write_waits_until_all_is_drained() {
    for shape in [V4, V4_VLAN, V6] {
        fixture::with(move |bench| {
            for (begin, request) in [(fast as fn(&mut Scene), SET_OTHER), (spliced, SET_OTHER)] {
                let mut scene = Scene::connect(bench, shape);
                begin(&mut scene);
                absorb(scene.bench);
                let segment = scene.segment(request);
                let (verdict, counted) = xdp(&scene, &segment);
                assert_eq!(verdict, XDP_DROP, "{counted:?}");
                assert!(counted.contains(&("HELD", 1)), "{counted:?}");
                // It counts as if it had gone up.
                let entry = scene.entry().expect("tracked");
                assert_eq!(entry.requests, entry.replies + 1);
                assert_eq!(entry.waits_for, scene.bench.dp.control().lsn());
                assert_eq!(xdp(&scene, &segment), (XDP_DROP, vec![("HELD_AGAIN", 1)]));
                let before = scene.bench.stats();
                let outcome = scene.ingress(&segment.bytes(), 0);
                let counted = moved(&before, &scene.bench.stats());
                assert_eq!(outcome.verdict, TCX_DROP);
                assert_eq!(counted.get("HELD_AGAIN"), Some(&1), "{counted:?}");
                // What is answered later holds nothing that waits.
                drain(scene.bench);
                absorb(scene.bench);
                let outcome = scene.up(&segment);
                assert_eq!(
                    (outcome.verdict, outcome.meta),
                    (XDP_PASS, Some(META_TRANSLATED))
                );
                scene.read_request(request);
                drain(scene.bench);
                scene.reply(b"+OK\r\n");
                scene.acknowledge();
                let entry = scene.entry().expect("tracked");
                assert_eq!(entry.requests, entry.replies);
            }
        });
    }
}

#[test]
fn what_tells_of_the_server_or_cures_it_passes() {
    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const INFO: &[u8] = b"*1\r\n$4\r\nINFO\r\n";
    const NO_MASTER: &[u8] = b"*3\r\n$9\r\nREPLICAOF\r\n$2\r\nNO\r\n$3\r\nONE\r\n";
    const MASTER: &[u8] = b"*3\r\n$9\r\nREPLICAOF\r\n$1\r\nh\r\n$1\r\n1\r\n";
    const SHUTDOWN: &[u8] = b"*1\r\n$8\r\nSHUTDOWN\r\n";
    const NOSAVE: &[u8] = b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n";
    for (request, passes) in [
        (INFO.to_vec(), true),
        (NO_MASTER.to_vec(), true),
        (MASTER.to_vec(), false),
        (NOSAVE.to_vec(), true),
        (SHUTDOWN.to_vec(), false),
        // What is named in it alone counts.
        ([PING, INFO].concat(), true),
        ([INFO, SET_OTHER].concat(), false),
        ([INFO, &INFO[..12]].concat(), false),
    ] {
        fixture::with(move |bench| {
            let mut scene = Scene::connect(bench, V4);
            fast(&mut scene);
            absorb(scene.bench);
            let segment = scene.segment(&request);
            let (verdict, counted) = xdp(&scene, &segment);
            let expected = if passes { XDP_PASS } else { XDP_DROP };
            let text = String::from_utf8_lossy(&request);
            assert_eq!(verdict, expected, "{text}: {counted:?}");
            drain(scene.bench);
        });
    }
}

#[test]
fn a_read_of_drained_sets_passes_unless_its_key_may_still_be_written() {
    for begin in [fast as fn(&mut Scene), spliced] {
        fixture::with(move |bench| {
            let mut scene = Scene::connect(bench, V4);
            begin(&mut scene);
            absorb(scene.bench);
            let get = scene.segment(GET_NONE);
            let (verdict, counted) = xdp(&scene, &get);
            assert_eq!(verdict, XDP_PASS, "{counted:?}");
            drain(scene.bench);
        });
        fixture::with(move |bench| {
            let mut scene = Scene::connect(bench, V4);
            begin(&mut scene);
            let set = scene.segment(SET_NONE);
            scene.up(&set);
            absorb(scene.bench);
            let get = scene.segment(GET_NONE);
            let (verdict, counted) = xdp(&scene, &get);
            assert_eq!(verdict, XDP_DROP, "{counted:?}");
            assert!(counted.contains(&("HELD", 1)), "{counted:?}");
            drain(scene.bench);
        });
    }
}

#[test]
fn what_has_no_bytes_passes_and_hits_are_answered_meanwhile() {
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        spliced(&mut scene);
        scene.bench.fill(b"key", b"value", 0);
        absorb(scene.bench);
        let hit = scene.segment(GET_KEY);
        let (_, counted) = xdp(&scene, &hit);
        assert!(counted.contains(&("FAST_GET", 1)), "{counted:?}");
        drain(scene.bench);
    });
    fixture::with(|bench| {
        let mut scene = Scene::connect(bench, V4);
        scene.make_answered();
        absorb(scene.bench);
        let set = scene.segment(SET_OTHER);
        let ack_up_ns = scene.entry().expect("tracked").ack_up_ns;
        assert_eq!(xdp(&scene, &set).0, XDP_DROP);
        assert_eq!(
            scene.entry().expect("tracked").ack_up_ns,
            ack_up_ns,
            "the kernel has no acknowledgement of it"
        );
        let ack = scene.segment(b"");
        assert_eq!(xdp(&scene, &ack).0, XDP_PASS);
        drain(scene.bench);
    });
}

/// Takes the copy of the only packet that waits.
pub(crate) fn the_copy(ring: &mut HeldRing) -> HeldPacket {
    let mut copies = ring.drain();
    assert_eq!(copies.len(), 1, "{copies:?}");
    copies.remove(0)
}

/// With all programs at work: a copy comes again by its device, the kernel takes it, and its reply leaves.
#[test]
fn a_copy_of_what_waits_comes_again_and_the_kernel_takes_it() {
    for (shape, checksum) in [
        (V4, Checksum::Full),
        (V4, Checksum::Pseudo),
        (V6, Checksum::Full),
        (V6, Checksum::Pseudo),
    ] {
        fixture::with(move |bench| {
            bench.live(|bench| {
                let mut ring = bench.dp.held_ring().expect("erb_held");
                ring.drain();
                let mut scene = Scene::connect(bench, shape);
                spliced(&mut scene);
                absorb(scene.bench);
                let before = scene.bench.stats();
                let mut segment = scene.segment(SET_OTHER);
                segment.checksum = checksum;
                scene.snd = scene.snd.wrapping_add(SET_OTHER.len() as u32);
                scene.to_kernel(&segment.bytes());
                let copy = the_copy(&mut ring);
                assert_eq!(copy.waits_for, scene.bench.dp.control().lsn());
                // Without its checksum it is the frame that came.
                segment.checksum = Checksum::Full;
                assert_eq!(copy.frame, segment.bytes());
                // Too early it goes nowhere.
                let inject = |scene: &Scene| scene.bench.dp.inject(&copy).expect("erb_inject");
                assert_eq!(inject(&scene), Injected::Waits(copy.waits_for));
                drain(scene.bench);
                assert_eq!(inject(&scene), Injected::Done);
                scene.read_request(SET_OTHER);
                let reply = scene.reply(b"+OK\r\n");
                assert_eq!(reply.ack, scene.snd, "{shape:?}");
                let counted = moved(&before, &scene.bench.stats());
                for name in ["HELD", "HELD_COPIED", "HELD_INJECTED"] {
                    assert_eq!(counted.get(name), Some(&1), "{name}: {counted:?}");
                }
                assert_eq!(counted.get("HELD_AGAIN"), None, "{counted:?}");
                let gone = HeldPacket {
                    cookie: copy.cookie + 1,
                    ..copy.clone()
                };
                let said = scene.bench.dp.inject(&gone).expect("erb_inject");
                assert_eq!(said, Injected::Gone);
            });
        });
    }
}

/// Both tiers copy, with tags; who waits is known without a copy, too.
#[test]
fn both_tiers_copy_and_what_is_long_has_a_record_alone() {
    for shape in [V4, V4_VLAN, V6] {
        fixture::with(move |bench| {
            let mut ring = bench.dp.held_ring().expect("erb_held");
            ring.drain();
            let mut scene = Scene::connect(bench, shape);
            spliced(&mut scene);
            absorb(scene.bench);
            let short = scene.segment(SET_OTHER);
            if shape.vlan.is_some() {
                assert_eq!(xdp(&scene, &short).0, XDP_DROP);
            } else {
                assert_eq!(scene.ingress(&short.bytes(), 0).verdict, TCX_DROP);
            }
            assert_eq!(the_copy(&mut ring).frame, short.bytes());
            // The same once more is no news.
            assert_eq!(xdp(&scene, &short).0, XDP_DROP);
            assert!(ring.drain().is_empty());
            scene.snd = scene.snd.wrapping_add(SET_OTHER.len() as u32);
            let value = vec![b'v'; 2_100];
            let head = b"*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$2100\r\n";
            let long = scene.segment(&[head.as_slice(), &value, b"\r\n"].concat());
            let before = scene.bench.stats();
            assert_eq!(scene.ingress(&long.bytes(), 0).verdict, TCX_DROP);
            let counted = moved(&before, &scene.bench.stats());
            assert_eq!(counted.get("HELD_UNCOPIED"), Some(&1), "{counted:?}");
            let copy = the_copy(&mut ring);
            assert!(copy.frame.is_empty() && copy.payload_bytes > 2_100);
            drain(scene.bench);
        });
    }
}
