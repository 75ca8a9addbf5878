// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Corrupted frames differ from what was sent.

use erb_sim::link::mangle::corrupt;
use erb_wire::layout::{self, Layout};
use erb_wire::{Macs, Segment};
use fastrand::Rng;

#[test]
fn a_right_sum_that_looks_bare_can_be_corrupted() {
    let mut random = Rng::with_seed(1);
    let ends = ["10.0.0.1:0", "10.0.0.2:0"].map(|end| end.parse().expect("an address"));
    let mut segment = Segment::new(ends[0], ends[1]);
    let mut frames = (0..=u16::MAX).map(|word| {
        segment.payload = word.to_be_bytes().to_vec();
        segment.to_frame(Macs::default())
    });
    let bare = frames.find(|frame| {
        let at = Layout::of(frame).expect("a TCP frame");
        layout::is_bare(frame, &at)
    });
    let bare = bare.expect("one of 65,536");
    let at = Layout::of(&bare).expect("a TCP frame");
    for _ in 0..100 {
        let mut corrupted = bare.clone();
        corrupt(&mut corrupted, &at, &mut random);
        assert_ne!(corrupted, bare);
    }
}
