// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments of logs that a damaged control log does not name any more: a repair looks for them.
//!
//! Invariants:
//! 1. A segment that counts for free and begins with a batch of its next use is a log's: the entry that gave it is lost.
//!    It is put behind that log's others, in the order of batches.
//! 2. What stays free gets a use more: whatever was written there by a use whose entry is lost counts no more.

use std::collections::VecDeque;

use crate::batch::{BATCH_ALIGN_BYTES, BatchHead};
use crate::entry::{Entry, SegmentState, UsedFor};
use crate::layout::Layout;
use crate::record::Seat;
use crate::state::State;

/// A search under way.
#[derive(Debug)]
pub(crate) struct Strays {
    store_id: u64,
    /// Numbers of free segments, and where they begin in their next use.
    free: VecDeque<(u32, Seat)>,
    /// First batch, shard and number.
    found: Vec<(u64, u16, u32)>,
}

impl Strays {
    pub(crate) fn new(state: &State, layout: &Layout, store_id: u64) -> Self {
        let segments = (0..).zip(&state.segments);
        let free = segments.filter(|(_, it)| it.used_for == UsedFor::Nothing);
        let seat = |number, uses| Seat {
            address: layout.segment_at(number),
            uses,
        };
        let free = free.map(|(number, it)| (number, seat(number, it.uses + 1)));
        Self {
            store_id,
            free: free.collect(),
            found: Vec::new(),
        }
    }

    /// The next read; none: all was looked at.
    pub(crate) fn read(&self) -> Option<(u64, usize)> {
        let (_, seat) = self.free.front()?;
        Some((seat.address, BATCH_ALIGN_BYTES))
    }

    /// What it has brought; none: it cannot be read.
    pub(crate) fn done(&mut self, bytes: Option<&[u8]>) {
        let Some((number, seat)) = self.free.pop_front() else {
            return;
        };
        let head = bytes.and_then(|bytes| BatchHead::decode(bytes, seat).ok());
        let head = head.map(|(head, _)| head);
        let head = head.filter(|head| head.store_id == self.store_id);
        self.found
            .extend(head.map(|head| (head.lsn, head.shard, number)));
    }

    /// Segments become those of their logs again.
    pub(crate) fn finish(mut self, state: &mut State) {
        self.found.sort_unstable();
        for (_, shard, number) in self.found {
            let orders = state.segments.iter().filter_map(|it| match it.used_for {
                UsedFor::Log {
                    shard: whose,
                    order,
                    ..
                } if whose == shard => Some(order + 1),
                _ => None,
            });
            let order = orders.max().unwrap_or(0);
            let used_for = UsedFor::Log {
                shard,
                order,
                end: None,
            };
            // A shard that is not there has none.
            let _ = state.apply(&use_again(state, number, used_for));
        }
        for number in 0..state.segments.len() as u32 {
            if state.segments[number as usize].used_for == UsedFor::Nothing {
                let _ = state.apply(&use_again(state, number, UsedFor::Nothing));
            }
        }
    }
}

fn use_again(state: &State, number: u32, used_for: UsedFor) -> Entry {
    let uses = state.segments[number as usize].uses + 1;
    Entry::Segment(number, SegmentState { uses, used_for })
}
