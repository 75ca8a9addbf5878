// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames that are no packets of a client, or were once.

use erb_abi as abi;
use erb_packets::fixture;
use erb_packets::frame::{Checksum, Segment};
use erb_packets::scene::{Scene, TCX_DROP, TCX_NEXT, V4, V4_VLAN, V6, XDP_DROP, XDP_PASS, XDP_TX};
use fastrand::Rng;

use crate::{GET_KEY, SET_OTHER, seed, spliced};

/// About two seconds.
const FRAMES: u32 = 100_000;
/// The kernel's test run takes no shorter frame.
const FRAME_BYTES_MIN: usize = 14;
/// Nor, for a TC program, one without a whole IP header.
const TC_FRAME_BYTES_MIN: usize = 14 + 40;
/// A fresh connection after so many: one that a mutant has ended teaches nothing more.
const FRAMES_PER_CONNECTION: u32 = 500;

fn mutate(rng: &mut Rng, frame: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..4) {
        match rng.u8(..6) {
            0 => frame.truncate(rng.usize(FRAME_BYTES_MIN..=frame.len())),
            1 => frame.extend(vec![rng.u8(..); rng.usize(..300)]),
            2 => {
                // Most of what decides is in the headers.
                let at = rng.usize(12..frame.len().min(90));
                frame[at] = rng.u8(..);
            }
            _ => {
                let at = rng.usize(12..frame.len());
                frame[at] ^= 1 << rng.u8(..8);
            }
        }
        if frame.len() < FRAME_BYTES_MIN {
            frame.resize(FRAME_BYTES_MIN, 0);
        }
    }
}

/// Right again in what a mutant broke: else most would stop at the checksum.
fn repair(frame: &[u8]) -> Option<Vec<u8>> {
    let mut segment = Segment::parse(frame).ok()?;
    segment.checksum = Checksum::Full;
    Some(segment.bytes())
}

fn random_frame(rng: &mut Rng, scene: &mut Scene) -> Vec<u8> {
    let mut frame = match rng.u8(..8) {
        0 => {
            let length = rng.usize(FRAME_BYTES_MIN..1600);
            return (0..length).map(|_| rng.u8(..)).collect();
        }
        1..=3 => scene.segment(GET_KEY),
        4 => scene.segment(b""),
        5 => scene
            .segment(b"")
            .sack(&[(scene.rcv, scene.rcv.wrapping_add(9))]),
        _ => scene.segment(SET_OTHER),
    };
    frame.seq = frame.seq.wrapping_add_signed(rng.i32(-40..20));
    frame.ack = frame.ack.wrapping_add_signed(rng.i32(-20..5));
    let mut bytes = frame.bytes();
    mutate(rng, &mut bytes);
    if rng.bool() {
        return repair(&bytes).unwrap_or(bytes);
    }
    bytes
}

#[test]
fn frames() {
    let seed = seed();
    fixture::with(move |bench| {
        let mut rng = Rng::with_seed(seed);
        let invariant = abi::STAT_INVARIANT as usize;
        let before = bench.stats()[invariant];
        for _ in 0..FRAMES / FRAMES_PER_CONNECTION {
            let shape = [V4, V6, V4_VLAN][rng.usize(..3)];
            let mut scene = Scene::connect(bench, shape);
            spliced(&mut scene);
            for _ in 0..FRAMES_PER_CONNECTION {
                one_frame(&mut rng, &mut scene, seed);
            }
        }
        assert_eq!(
            bench.stats()[invariant],
            before,
            "INVARIANT moved, seed {seed}"
        );
    });
}

/// Whether the frame is dropped, whoever it is of, as one that hides what it says (`bpf/splice/hidden.h`) or cannot
/// be believed (`bpf/net/checksum.h`).
fn hides(scene: &Scene, frame: &[u8]) -> bool {
    let stats = || scene.bench.stats();
    let hidden = || {
        let reasons = [abi::STAT_DROP_HIDDEN, abi::STAT_DROP_CHECKSUM];
        reasons
            .map(|reason| stats()[reason as usize])
            .iter()
            .sum::<u64>()
    };
    let before = hidden();
    scene.xdp(frame).verdict == XDP_DROP && hidden() == before + 1
}

fn one_frame(rng: &mut Rng, scene: &mut Scene, seed: u64) {
    let frame = random_frame(rng, scene);
    let ours = Segment::parse(&frame);
    let context = || format!("seed {seed}, frame {frame:02x?}");
    if frame.len() >= TC_FRAME_BYTES_MIN && rng.u8(..4) == 0 {
        let verdict = scene.ingress(&frame, 0).verdict;
        assert!([TCX_NEXT, TCX_DROP].contains(&verdict), "{}", context());
        scene.from_kernel();
        return;
    }
    let outcome = scene.xdp(&frame);
    match outcome.verdict {
        XDP_PASS => assert_eq!(outcome.frame.len(), frame.len(), "{}", context()),
        XDP_DROP => assert!(
            ours.is_ok_and(|s| s.up) || hides(scene, &frame),
            "drop of a stranger; {}",
            context()
        ),
        XDP_TX => {
            assert!(
                ours.is_ok_and(|s| s.up),
                "answer to a stranger; {}",
                context()
            );
            let answer = Segment::parse(&outcome.frame).expect("a whole frame");
            assert_eq!(answer.checksum, Checksum::Full, "{}", context());
            assert!(
                !answer.up && answer.client_port == scene.port,
                "{}",
                context()
            );
        }
        other => panic!("verdict {other}; {}", context()),
    }
}
