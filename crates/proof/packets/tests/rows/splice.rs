// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What rows about a spliced connection share: one PING answered, 14 bytes consumed, 7 inserted.

use erb_packets::frame::Segment;
use erb_packets::row::Expect;
use erb_packets::scene::Scene;

pub fn shifted(scene: &mut Scene, payload: &[u8], seq: i32, ack: i32) -> Segment {
    let mut segment = scene.segment(payload);
    segment.seq = segment.seq.wrapping_add_signed(seq);
    segment.ack = segment.ack.wrapping_add_signed(ack);
    segment
}

pub fn sent(seq: i32, ack: i32, payload: &[u8]) -> Expect {
    Expect::Sent {
        seq,
        ack,
        payload: payload.to_vec(),
    }
}

/// The client's numbers in kernel space behind one answered PING.
pub fn behind_ping(_: &Scene, p: &mut Segment) {
    p.seq = p.seq.wrapping_sub(14);
    p.ack = p.ack.wrapping_sub(7);
}

/// As [`behind_ping`], but the PONG is not acknowledged: floor at the edge, the window shrinks by
/// what the floor added.
pub fn behind_unacknowledged_ping(_: &Scene, p: &mut Segment) {
    p.seq = p.seq.wrapping_sub(14);
    p.window = (((0xffff_u32 << 7) - 7) >> 7) as u16;
}
