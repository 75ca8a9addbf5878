// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fault engine: what happens to frame number k of a direction.
//!
//! 1. A decision depends on (seed, direction, frame number) and the chances set, on nothing
//!    else: the same traffic meets the same faults again.
//! 2. A frame is lost, or leaves exactly once, plus once more if duplicated; nothing stays behind
//!    longer than `REORDER_HOLD` + the delay.
//! 3. Time comes from the caller (nanoseconds of one clock), so that tests need none.
//!
//! Order of work: lost? then corrupt the frame; a duplicate (intact) goes on at once; the frame
//! itself may be held back; what goes on waits for the delay, then leaves.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use crate::settings::{LinkSettings, PPM_MAX};

/// Bytes of an Ethernet header, which corruption spares: a wrong address would only be loss.
const ETHERNET_HEADER: usize = 14;
/// A frame is held back by 1 to this many later frames: enough for TCP to see 3 duplicate ACKs.
const REORDER_FRAMES_MAX: u64 = 6;
/// ... but never longer than this, or the last frame of an exchange would look lost.
const REORDER_HOLD_NS: u64 = 5_000_000;
/// Frames that may wait in one direction (delay 10 s at 20,000/s); more are dropped and counted.
const WAITING_FRAMES_MAX: usize = 200_000;

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// What the middle box did in one direction, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Taken from the wire.
    pub received: u64,
    /// Put on the wire, duplicates included.
    pub forwarded: u64,
    /// Dropped by the `loss` setting.
    pub lost: u64,
    /// Sent a second time by the `dup` setting.
    pub duplicated: u64,
    /// Held back by the `reorder` setting.
    pub reordered: u64,
    /// With one bit flipped by the `corrupt` setting.
    pub corrupted: u64,
    /// That waited for the `delay` setting.
    pub delayed: u64,
    /// Dropped against the settings: queue full, longer than the MTU, or refused by the device.
    pub failed: u64,
    /// Dropped by the kernel before the middle box saw them (its socket's buffer was full).
    pub missed: u64,
}

/// What happens to one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Dropped; the rest then does not matter.
    pub lose: bool,
    /// Sent twice.
    pub duplicate: bool,
    /// Number of later frames to let pass first; 0: not held back.
    pub hold_frames: u32,
    /// Flip a bit: this value modulo the number of bits that may be hit.
    pub corrupt: Option<u64>,
}

/// Kinds of draws; each has a stream of its own, so that one chance does not shift another's.
#[derive(Clone, Copy)]
enum Draw {
    Lose = 1,
    Duplicate,
    Reorder,
    HoldFrames,
    Corrupt,
    CorruptBit,
}

/// A fixed 64-bit mix (SplitMix64's finaliser). Own code because a crate's generator may change
/// its stream with a version, and then a seed in an old report would replay nothing.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The decision for frame `number` (from 0) of `direction`.
pub fn decide(settings: &LinkSettings, direction: Direction, number: u64) -> Decision {
    let stream = mix(settings.seed ^ mix(direction as u64));
    let draw = |kind: Draw| mix(mix(stream ^ number).wrapping_add(kind as u64));
    let hit = |kind: Draw, ppm: u32| {
        let scaled = (u128::from(draw(kind)) * u128::from(PPM_MAX)) >> 64;
        (scaled as u32) < ppm
    };
    let hold = hit(Draw::Reorder, settings.reorder_ppm);
    Decision {
        lose: hit(Draw::Lose, settings.loss_ppm),
        duplicate: hit(Draw::Duplicate, settings.dup_ppm),
        hold_frames: if hold {
            (1 + draw(Draw::HoldFrames) % REORDER_FRAMES_MAX) as u32
        } else {
            0
        },
        corrupt: hit(Draw::Corrupt, settings.corrupt_ppm).then(|| draw(Draw::CorruptBit)),
    }
}

/// A frame held back until `frames_left` later ones have passed or `deadline_ns` is there.
struct Held {
    frames_left: u32,
    deadline_ns: u64,
    frame: Vec<u8>,
}

/// A frame that leaves at `due_ns`; `order` keeps equals in the order they came.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due_ns: u64,
    order: u64,
    frame: Vec<u8>,
}

/// One direction of the middle box.
pub struct Pipe {
    direction: Direction,
    settings: LinkSettings,
    number: u64,
    order: u64,
    held: Vec<Held>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// What was done so far; the caller adds what it alone knows (forwarded, failed, missed).
    pub counters: Counters,
}

impl Pipe {
    /// A pipe that only forwards.
    pub fn new(direction: Direction) -> Self {
        Self {
            direction,
            settings: LinkSettings::default(),
            number: 0,
            order: 0,
            held: Vec::new(),
            waiting: BinaryHeap::new(),
            counters: Counters::default(),
        }
    }

    /// New settings for the frames to come; `restart` counts frames from 0 again.
    pub fn set(&mut self, settings: LinkSettings, restart: bool) {
        self.settings = settings;
        if restart {
            self.number = 0;
        }
    }

    /// Whether frames may be forwarded without asking this pipe; then tell [`Pipe::skip`].
    pub fn is_transparent(&self) -> bool {
        self.settings.is_clean() && self.held.is_empty() && self.waiting.is_empty()
    }

    /// Counts `frames` that were forwarded untouched past this pipe.
    pub fn skip(&mut self, frames: u64) {
        self.number += frames;
        self.counters.received += frames;
    }

    /// Takes one frame; what leaves at once is appended to `out`.
    pub fn input(&mut self, frame: &[u8], now_ns: u64, out: &mut Vec<Vec<u8>>) {
        let decision = decide(&self.settings, self.direction, self.number);
        self.number += 1;
        self.counters.received += 1;
        if decision.lose {
            self.counters.lost += 1;
            return;
        }
        if self.held.len() + self.waiting.len() >= WAITING_FRAMES_MAX {
            self.counters.failed += 1;
            return;
        }
        if decision.duplicate {
            self.counters.duplicated += 1;
            self.pass(frame.to_vec(), now_ns, out);
        }
        let mut frame = frame.to_vec();
        if let Some(draw) = decision.corrupt {
            self.counters.corrupted += u64::from(flip_bit(&mut frame, draw));
        }
        if decision.hold_frames == 0 {
            self.pass(frame, now_ns, out);
            self.release(1, now_ns, out);
            return;
        }
        self.counters.reordered += 1;
        self.release(1, now_ns, out);
        let deadline_ns = now_ns + REORDER_HOLD_NS;
        self.held.push(Held {
            frames_left: decision.hold_frames,
            deadline_ns,
            frame,
        });
    }

    /// Appends to `out` what is due at `now_ns`.
    pub fn due(&mut self, now_ns: u64, out: &mut Vec<Vec<u8>>) {
        self.release(0, now_ns, out);
        while self
            .waiting
            .peek()
            .is_some_and(|Reverse(first)| first.due_ns <= now_ns)
        {
            if let Some(Reverse(first)) = self.waiting.pop() {
                out.push(first.frame);
            }
        }
    }

    /// When [`Pipe::due`] has to be called next, if anything waits.
    pub fn next_due_ns(&self) -> Option<u64> {
        let held = self.held.iter().map(|held| held.deadline_ns).min();
        let waiting = self.waiting.peek().map(|Reverse(first)| first.due_ns);
        held.into_iter().chain(waiting).min()
    }

    /// Frames inside the pipe.
    pub fn inside(&self) -> usize {
        self.held.len() + self.waiting.len()
    }

    /// Lets `passed` frames count for those held back and moves on what need not wait longer.
    fn release(&mut self, passed: u32, now_ns: u64, out: &mut Vec<Vec<u8>>) {
        let mut index = 0;
        while index < self.held.len() {
            let held = &mut self.held[index];
            held.frames_left = held.frames_left.saturating_sub(passed);
            if held.frames_left == 0 || held.deadline_ns <= now_ns {
                let frame = self.held.remove(index).frame;
                self.pass(frame, now_ns, out);
            } else {
                index += 1;
            }
        }
    }

    /// Sends a frame on: at once or after the delay.
    fn pass(&mut self, frame: Vec<u8>, now_ns: u64, out: &mut Vec<Vec<u8>>) {
        if self.settings.delay_us == 0 {
            out.push(frame);
            return;
        }
        self.counters.delayed += 1;
        self.order += 1;
        let due_ns = now_ns + self.settings.delay_us * 1_000;
        self.waiting.push(Reverse(Waiting {
            due_ns,
            order: self.order,
            frame,
        }));
    }
}

/// Flips one bit behind the Ethernet header; false if there is none.
fn flip_bit(frame: &mut [u8], draw: u64) -> bool {
    let Some(body) = frame
        .get_mut(ETHERNET_HEADER..)
        .filter(|body| !body.is_empty())
    else {
        return false;
    };
    let bit = (draw % (body.len() as u64 * 8)) as usize;
    body[bit / 8] ^= 1 << (bit % 8);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: [u8; 60] = [0x5a; 60];

    fn settings() -> LinkSettings {
        LinkSettings {
            loss_ppm: 10_000,
            dup_ppm: 5_000,
            reorder_ppm: 20_000,
            corrupt_ppm: 1_000,
            delay_us: 0,
            seed: 42,
        }
    }

    /// Numbered frames, so that order and identity can be told.
    fn frame(number: u32) -> Vec<u8> {
        let mut frame = FRAME.to_vec();
        frame[20..24].copy_from_slice(&number.to_be_bytes());
        frame
    }

    fn number(frame: &[u8]) -> u32 {
        u32::from_be_bytes(frame[20..24].try_into().unwrap())
    }

    fn run(settings: LinkSettings, direction: Direction, frames: u32) -> (Vec<Vec<u8>>, Counters) {
        let mut pipe = Pipe::new(direction);
        pipe.set(settings, true);
        let mut out = Vec::new();
        for index in 0..frames {
            pipe.input(&frame(index), u64::from(index) * 1_000, &mut out);
        }
        pipe.due(u64::MAX, &mut out);
        pipe.due(u64::MAX, &mut out);
        assert_eq!(pipe.inside(), 0);
        assert_eq!(pipe.next_due_ns(), None);
        (out, pipe.counters)
    }

    #[test]
    fn a_decision_depends_on_seed_direction_and_number_only() {
        let all = |settings: &LinkSettings, direction| {
            (0..10_000)
                .map(|number| decide(settings, direction, number))
                .collect::<Vec<_>>()
        };
        let first = all(&settings(), Direction::ToServer);
        assert_eq!(first, all(&settings(), Direction::ToServer));
        assert_ne!(first, all(&settings(), Direction::ToClient));
        assert_ne!(
            first,
            all(
                &LinkSettings {
                    seed: 43,
                    ..settings()
                },
                Direction::ToServer
            )
        );
        // Another chance of one kind leaves the other kinds as they were.
        let lossy = all(
            &LinkSettings {
                loss_ppm: 500_000,
                ..settings()
            },
            Direction::ToServer,
        );
        for (before, after) in first.iter().zip(&lossy) {
            assert_eq!(
                Decision {
                    lose: false,
                    ..*before
                },
                Decision {
                    lose: false,
                    ..*after
                }
            );
            assert!(
                after.lose || !before.lose,
                "a higher chance lost fewer frames"
            );
        }
    }

    #[test]
    fn decisions_never_change_between_versions() {
        // Reports name a seed; it must replay the same faults for ever.
        let lost: Vec<u64> = (0..1_000)
            .filter(|number| decide(&settings(), Direction::ToServer, *number).lose)
            .collect();
        assert_eq!(lost, LOST_OF_SEED_42);
    }

    /// Which of the first 1,000 frames towards the server seed 42 loses at 1 %.
    const LOST_OF_SEED_42: [u64; 12] = [10, 131, 173, 187, 327, 339, 456, 486, 512, 533, 820, 936];

    #[test]
    fn chances_are_met() {
        const FRAMES: u32 = 200_000;
        let (out, counters) = run(settings(), Direction::ToClient, FRAMES);
        // Five standard deviations of a binomial distribution; the seed is fixed.
        let near = |count: u64, ppm: u32| {
            let chance = f64::from(ppm) / 1e6;
            let mean = f64::from(FRAMES) * chance;
            let deviation = (mean * (1.0 - chance)).sqrt();
            assert!(
                (count as f64 - mean).abs() < 5.0 * deviation,
                "{count} against {mean}"
            );
        };
        near(counters.lost, 10_000);
        near(counters.duplicated, 5_000);
        near(counters.reordered, 20_000);
        near(counters.corrupted, 1_000);
        assert_eq!(counters.received, u64::from(FRAMES));
        let expected = counters.received - counters.lost + counters.duplicated;
        assert_eq!(out.len() as u64, expected);
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let delayed = LinkSettings {
            delay_us: 2_000,
            ..settings()
        };
        let (first, _) = run(delayed, Direction::ToServer, 5_000);
        let (second, _) = run(delayed, Direction::ToServer, 5_000);
        assert_eq!(first, second);
    }

    #[test]
    fn corruption_flips_one_bit_behind_the_ethernet_header() {
        let all = LinkSettings {
            corrupt_ppm: PPM_MAX,
            ..LinkSettings::default()
        };
        let mut hit = [false; 60];
        for index in 0..5_000 {
            let mut pipe = Pipe::new(Direction::ToServer);
            pipe.set(LinkSettings { seed: index, ..all }, true);
            let mut out = Vec::new();
            pipe.input(&FRAME, 0, &mut out);
            let differing: Vec<usize> = (0..60).filter(|at| out[0][*at] != FRAME[*at]).collect();
            assert_eq!(differing.len(), 1);
            assert_eq!((out[0][differing[0]] ^ FRAME[differing[0]]).count_ones(), 1);
            hit[differing[0]] = true;
        }
        assert!(
            hit[..14].iter().all(|hit| !hit),
            "the Ethernet header was hit"
        );
        assert!(hit[14..].iter().all(|hit| *hit), "some byte is never hit");
    }

    #[test]
    fn a_bare_header_is_left_alone() {
        assert!(!flip_bit(&mut [0; 14], 7));
        assert!(!flip_bit(&mut [0; 3], 7));
    }

    #[test]
    fn reordering_changes_the_order_within_bounds() {
        let settings = LinkSettings {
            reorder_ppm: 20_000,
            ..LinkSettings::default()
        };
        let (out, counters) = run(settings, Direction::ToServer, 10_000);
        assert_eq!(out.len(), 10_000);
        let mut late = 0;
        for (place, frame) in out.iter().enumerate() {
            let moved = (place as i64 - i64::from(number(frame))).abs();
            // A few frames may be held at the same time, each by at most six.
            assert!(moved <= 3 * REORDER_FRAMES_MAX as i64, "moved by {moved}");
            late += u64::from(place as u32 > number(frame));
        }
        assert!(
            late >= counters.reordered * 9 / 10,
            "{late} late of {}",
            counters.reordered
        );
    }

    #[test]
    fn a_held_frame_leaves_in_time_without_company() {
        let mut pipe = Pipe::new(Direction::ToServer);
        pipe.set(
            LinkSettings {
                reorder_ppm: PPM_MAX,
                ..LinkSettings::default()
            },
            true,
        );
        let mut out = Vec::new();
        pipe.input(&FRAME, 1_000, &mut out);
        assert!(out.is_empty());
        assert_eq!(pipe.next_due_ns(), Some(1_000 + REORDER_HOLD_NS));
        pipe.due(REORDER_HOLD_NS, &mut out);
        assert!(out.is_empty());
        pipe.due(1_000 + REORDER_HOLD_NS, &mut out);
        assert_eq!(out.len(), 1);
        assert!(!pipe.is_transparent());
    }

    #[test]
    fn delay_holds_every_frame_for_its_time_and_keeps_the_order() {
        let mut pipe = Pipe::new(Direction::ToServer);
        pipe.set(
            LinkSettings {
                delay_us: 2_000,
                ..LinkSettings::default()
            },
            true,
        );
        let mut out = Vec::new();
        for index in 0..10 {
            pipe.input(&frame(index), 500, &mut out);
        }
        pipe.due(2_000_499, &mut out);
        assert!(out.is_empty());
        assert_eq!(pipe.next_due_ns(), Some(2_000_500));
        pipe.due(2_000_500, &mut out);
        let numbers: Vec<u32> = out.iter().map(|frame| number(frame)).collect();
        assert_eq!(numbers, (0..10).collect::<Vec<_>>());
        assert_eq!(pipe.counters.delayed, 10);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut pipe = Pipe::new(Direction::ToServer);
        pipe.set(
            LinkSettings {
                delay_us: 2_000,
                ..LinkSettings::default()
            },
            true,
        );
        let mut out = Vec::new();
        for _ in 0..WAITING_FRAMES_MAX + 10 {
            pipe.input(&[0; 14], 0, &mut out);
        }
        assert_eq!(pipe.inside(), WAITING_FRAMES_MAX);
        assert_eq!(pipe.counters.failed, 10);
    }

    #[test]
    fn transparent_frames_count_for_the_decisions_to_come() {
        let mut pipe = Pipe::new(Direction::ToServer);
        assert!(pipe.is_transparent());
        pipe.skip(3);
        assert_eq!(pipe.counters.received, 3);
        assert_eq!(pipe.number, 3);
        pipe.set(settings(), false);
        assert!(!pipe.is_transparent());
        assert_eq!(pipe.number, 3);
        pipe.set(settings(), true);
        assert_eq!(pipe.number, 0);
    }
}
