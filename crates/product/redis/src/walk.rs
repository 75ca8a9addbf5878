// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walks over the table of connections: retransmission timer and sweep, in pieces, so that no run has
//! softirqs off for longer than a packet's burst, and so many pieces per turn, so that the feed is
//! not kept waiting. A table that is larger goes on with the next turn.
//!
//! Invariants:
//! 1. A round looks at each entry that was there when it began and has not ended since: pieces go up
//!    the places, and an entry keeps its place. What needs the whole table (its counts, who may be
//!    admitted, whether to leave) is judged when a round is over.
//! 2. Leaving is judged by a round that began when nothing was answered any more: an entry that it
//!    has passed does not begin to need translation, and none is made.
//! 3. Who has unacknowledged answers, or holds marks or a share of the fence, is on a list of its own
//!    (`bpf/splice/place.h`), which is walked each time: a large table delays neither.

use erb_abi as abi;

use crate::outside::{DataPath, Result};

/// How much is looked at at once.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    /// Entries per run, at most `WALK_PLACES`.
    pub places: usize,
    /// Runs per turn: sixteen thousand entries take some milliseconds of the daemon's time.
    pub per_turn: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        Self {
            places: abi::WALK_PLACES as usize,
            per_turn: 128,
        }
    }
}

/// A walk along a list of places.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    /// The place from which it goes on; 0: from the first.
    next: u32,
}

impl Walk {
    /// A turn's part of it: each piece goes to `look`. True if the walk is over.
    pub(crate) fn go_on<P: DataPath>(
        &mut self,
        path: &P,
        list: abi::place_list,
        pieces: Pieces,
        mut look: impl FnMut(&P, &[u32]) -> Result<()>,
    ) -> Result<bool> {
        for _ in 0..pieces.per_turn {
            let places = path.places(list, self.next, pieces.places);
            let last = places.last().filter(|_| places.len() == pieces.places);
            self.next = last.map_or(0, |last| last + 1);
            look(path, &places)?;
            if self.next == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
