// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rest: while nobody asks for anything that could be answered, the lease is left to end, so that
//! neither Redis nor the daemon wake up twenty times a second for it.
//!
//! Who asks during a rest is answered by Redis (the lease is over: refused, correct) and counted;
//! the next tick (100 ms, they are fewer in a rest) sees the count and asks for the lease again. So a
//! rest costs its first requests the fast path, for a tick and a round trip, and nothing else.

use erb_abi as abi;

use crate::outside::{DataPath, Machine, Result};
use crate::turn::{Core, MS};

/// The lease is kept up for this long after somebody asked for something, after the start and after
/// each look at the status: longer than the pauses of a client that is at work.
pub(crate) const AWAKE_NS: u64 = 5000 * MS;

/// Counts that move when the lease is of use: something was answered, was not answered because
/// there was no lease, or may be answered soon.
const ASKED: [abi::erb_stat; 4] = [
    abi::STAT_FAST_PACKET,
    abi::STAT_FAST_PACKET_TC,
    abi::STAT_REFUSE_LEASE,
    abi::STAT_CONN_CREATED,
];

/// The counts, as read last.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Asked([u64; ASKED.len()]);

impl Asked {
    /// Packets answered.
    pub(crate) const fn answered(self) -> u64 {
        self.0[0] + self.0[1]
    }
}

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Reads the counts; what moved keeps the lease up.
    pub(crate) fn look_who_asks(&mut self, now: u64) -> Result<()> {
        let mut asked = Asked::default();
        for (place, stat) in asked.0.iter_mut().zip(ASKED) {
            *place = self.path.stat(stat)?;
        }
        if asked != self.asked {
            self.asked = asked;
            self.stay_awake(now);
        }
        Ok(())
    }

    pub(crate) fn stay_awake(&mut self, now: u64) {
        self.awake_until_ns = now + AWAKE_NS;
    }

    /// Whether the lease may end. Fills want it too: nothing is inserted without.
    pub(crate) fn is_at_rest(&self, now: u64) -> bool {
        now >= self.awake_until_ns && !self.fills.is_busy()
    }
}
