// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where answers go: as the kernel's own packets, not back to who handed the request on.

use std::collections::BTreeMap;

use erb_packets::row::moved;
use erb_packets::run::Outcome;
use erb_packets::scene::{META_TRANSLATED, Scene, V4, V4_VLAN, V6, XDP_PASS, XDP_TX};

use crate::PING;

/// Who hands requests on: the kernel sends nothing to it.
const BALANCER: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// PING as the balancer hands it on.
fn handed_on(scene: &mut Scene) -> Vec<u8> {
    let mut frame = scene.segment(PING).bytes();
    frame[6..12].copy_from_slice(&BALANCER);
    frame
}

/// The request goes up and is answered by the server's process.
fn goes_up(scene: &mut Scene, outcome: &Outcome) {
    assert_eq!(outcome.verdict, XDP_PASS);
    assert_eq!(outcome.meta, Some(META_TRANSLATED));
    scene.to_kernel(&outcome.frame);
    scene.snd = scene.snd.wrapping_add(PING.len() as u32);
    scene.read_request(PING);
    scene.reply(b"+PONG\r\n");
    scene.acknowledge();
}

/// The row's frames are read back by their addresses: those of the kernel's packets.
#[test]
fn answers_leave_as_the_kernels_packets() {
    erb_packets::fixture::with(|bench| {
        for shape in [V4, V4_VLAN, V6] {
            let mut scene = Scene::connect(bench, shape);
            scene.make_fast();
            let before = scene.bench.stats();
            let first = handed_on(&mut scene);
            let outcome = scene.xdp(&first);
            let counted: BTreeMap<_, _> = moved(&before, &scene.bench.stats());
            assert_eq!(counted.get("REFUSE_NO_EGRESS"), Some(&1), "{counted:?}");
            goes_up(&mut scene, &outcome);
            let next = handed_on(&mut scene);
            let outcome = scene.xdp(&next);
            assert_eq!(outcome.verdict, XDP_TX);
            scene.snd = scene.snd.wrapping_add(PING.len() as u32);
            assert_eq!(scene.take_answer(&outcome), b"+PONG\r\n");
            let again = scene.xdp(&next);
            assert_eq!(again.verdict, XDP_TX, "it is repeated");
            assert_eq!(again.frame[..12], outcome.frame[..12]);
        }
    });
}
