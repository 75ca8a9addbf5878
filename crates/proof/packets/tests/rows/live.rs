// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All three programs attached to the device, as `erb boost` does it: what only real frames show.

use erb_packets::fixture;
use erb_packets::frame::{Checksum, Segment};
use erb_packets::row::moved;
use erb_packets::scene::{Scene, V4, V4_NO_TS, V6};

use crate::{GET_KEY, SET_OTHER, bulk, get};

/// Sends a segment over the wire and gives the answer of whoever answers first.
fn ask(scene: &mut Scene, segment: &Segment) -> Segment {
    scene.snd = segment.seq.wrapping_add(segment.payload.len() as u32);
    scene.to_kernel(&segment.bytes());
    let answer = scene.expect_from_kernel(|answer| !answer.payload.is_empty());
    assert_eq!(answer.seq, scene.rcv);
    assert_eq!(answer.ack, scene.snd);
    assert_eq!(answer.checksum, Checksum::Full);
    scene.rcv = scene.rcv.wrapping_add(answer.payload.len() as u32);
    answer
}

fn first_exchange(scene: &mut Scene) {
    let request = scene.segment(b"PING\r\n");
    scene.snd = scene.snd.wrapping_add(6);
    scene.to_kernel(&request.bytes());
    scene.read_request(b"PING\r\n");
    scene.reply(b"+PONG\r\n");
}

#[test]
fn answers_on_the_wire() {
    fixture::with(|bench| {
        bench.live(|bench| {
            for shape in [V4, V4_NO_TS, V6] {
                let mut scene = Scene::connect(bench, shape);
                scene.bench.fill(b"key", b"value", 0);
                first_exchange(&mut scene);
                // This packet brings the kernel its ACK: XDP leaves it to TC, TC answers.
                let before = scene.bench.stats();
                let first = scene.segment(GET_KEY);
                assert_eq!(ask(&mut scene, &first).payload, b"$5\r\nvalue\r\n");
                let second = scene.segment(GET_KEY);
                assert_eq!(ask(&mut scene, &second).payload, b"$5\r\nvalue\r\n");
                let counted = moved(&before, &scene.bench.stats());
                assert_eq!(counted.get("FAST_PACKET_TC"), Some(&1), "{counted:?}");
                assert_eq!(counted.get("FAST_PACKET"), Some(&1), "{counted:?}");
                assert_eq!(counted.get("EGRESS_CLONE"), Some(&1), "{counted:?}");
                // Translated once, not by both tiers: else the kernel would not take it.
                let set = scene.segment(SET_OTHER);
                scene.snd = scene.snd.wrapping_add(SET_OTHER.len() as u32);
                scene.to_kernel(&set.bytes());
                scene.read_request(SET_OTHER);
                let reply = scene.reply(b"+OK\r\n");
                assert_eq!(reply.ack, scene.snd, "{shape:?}");
            }
        });
    });
}

#[test]
fn no_room_on_veth() {
    fixture::with(|bench| {
        bench.live(|bench| {
            let mut scene = Scene::connect(bench, V4);
            scene.bench.fill(b"short", &[b's'; 120], 0);
            scene.bench.fill(b"long", &[b'l'; 1400], 0);
            first_exchange(&mut scene);
            let first = scene.segment(&get("short"));
            ask(&mut scene, &first);
            let short = scene.segment(&get("short"));
            assert_eq!(ask(&mut scene, &short).payload, bulk(&[b's'; 120]));
            let before = scene.bench.stats();
            let long = scene.segment(&get("long"));
            assert_eq!(ask(&mut scene, &long).payload, bulk(&[b'l'; 1400]));
            let short = scene.segment(&get("short"));
            assert_eq!(ask(&mut scene, &short).payload, bulk(&[b's'; 120]));
            let counted = moved(&before, &scene.bench.stats());
            for (name, times) in [
                ("NO_ROOM", 1),
                ("TO_TC", 1),
                ("FAST_PACKET_TC", 1),
                ("FAST_PACKET", 1),
                ("FAST_GET", 2),
            ] {
                assert_eq!(counted.get(name), Some(&times), "{name}: {counted:?}");
            }
            assert_eq!(counted.get("UP_TRANSLATED"), None, "{counted:?}");
        });
    });
}
