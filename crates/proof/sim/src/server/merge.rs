// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receive offload: packets of a flow become one.

use erb_sim_kernel::{Csum, Packet};
use erb_sim_tcp::Segment;
use erb_wire::layout::{self, Layout};

use crate::fault::Fault;
use crate::server::Server;

/// A merged packet holds at most this much payload.
const MERGED_BYTES_MAX: usize = 60_000;

impl Server {
    /// Receive offload: appends the packet to the last of its flow, if it continues it.
    pub(super) fn merge(&self, merged: &mut Vec<Packet>, packet: Packet) {
        let rate = self.inner.plan.profile.server.merge;
        if rate > 0
            && let Some(at) = Layout::of(packet.bytes())
            && at.payload_len() > 0
        {
            let last = merged.iter_mut().rev().find(|other| {
                other.ifindex == packet.ifindex
                    && Layout::of(other.bytes())
                        .is_some_and(|there| there.flow(other.bytes()) == at.flow(packet.bytes()))
            });
            if let Some(last) = last
                && let Some(whole) = merge_two(last, &packet, &at)
                && self.inner.happens(Fault::Merge, rate)
            {
                *last = whole;
                return;
            }
        }
        merged.push(packet);
    }
}

/// One packet for two that receive offload merges: same headers but for the numbers, no flags but
/// ACK and PSH, the same metadata, and the second continues the first.
fn merge_two(first: &Packet, next: &Packet, at: &Layout) -> Option<Packet> {
    let (a, b) = (first.bytes(), next.bytes());
    let there = Layout::of(a)?;
    let end = there
        .seq(a)
        .wrapping_add(u32::try_from(there.payload_len()).ok()?);
    // An odd tail: a shorter segment ends the merging, and so does PSH.
    let plain = there.flags(a) == 0x10 && at.flags(b) & !8 == 0x10;
    let right =
        |packet: &Packet| packet.csum != Csum::None || Segment::parse(packet.bytes()).is_ok();
    if end != at.seq(b)
        || !plain
        || !right(first)
        || !right(next)
        || first.meta() != next.meta()
        || there.payload != at.payload
        || there.ack(a) != at.ack(b)
        || a[there.l4 + 20..there.payload] != b[at.l4 + 20..at.payload]
        || there.payload_len() + at.payload_len() > MERGED_BYTES_MAX
        || a[there.l3 + 1] != b[at.l3 + 1]
    {
        return None;
    }
    let mut payload = a[there.payload..there.end].to_vec();
    payload.extend_from_slice(&b[at.payload..at.end]);
    let mut bytes = layout::with_payload(a, &there, 0, &payload);
    let whole = Layout::of(&bytes)?;
    bytes[whole.l4 + 13] |= at.flags(b);
    // As tcp_gro_complete() leaves it: to be completed, whatever it was.
    layout::seal_bare(&mut bytes, &whole);
    let mut merged = first.replaced(&bytes);
    merged.csum = Csum::Partial;
    merged.gso_segs = first.gso_segs.max(1) + next.gso_segs.max(1);
    Some(merged)
}
