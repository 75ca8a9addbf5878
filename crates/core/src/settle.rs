// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settling: the fence that a command with unknown keys has closed opens when all that Redis reports
//! of it is handled, and the cache is kept (`bpf/cache.h`, C10).
//!
//! Invariants:
//! 1. The count of answered shares is read before the PING is queued. Redis queues a command's
//!    reports on the feed no later than it lets the command's reply go (`beforeSleep`, Redis
//!    src/server.c): so they all stand before this PING's answer.
//! 2. Only a `+PONG` settles, for the same reasons as only that renews the lease: before it pushes
//!    and the calls of what pushes nothing (SWAPDB) were taken into account.
//! 3. Where Redis lets replies go before it queues reports, the cache is emptied first.

use crate::outside::{DataPath, Machine, Result};
use crate::turn::{Core, MS, PINGS_MAX, Stage};

/// Between two PINGs for this: INFO costs Redis 15 us, so under a storm of scripts one and a half
/// per cent of its time.
const SETTLE_PAUSE_NS: u64 = MS;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Whether shares wait for which no PING was sent.
    pub(crate) fn wants_settle(&self) -> bool {
        let answered = self.path.fence_answered();
        answered != self.path.fence_settled()
            && answered != self.settle_asked
            && self.stage == Stage::Running
            && self
                .feed
                .as_ref()
                .is_some_and(|feed| feed.is_ready() && feed.pings_in_flight() < PINGS_MAX)
    }

    /// Whether a PING for waiting shares is under way: its answer is read at once.
    pub(crate) fn is_settling(&self) -> bool {
        self.settle_asked > self.path.fence_settled()
    }

    /// Sends a PING for shares that wait, at once for the first of them.
    pub(crate) fn ask_settle(&mut self, now: u64) {
        if now < self.settle_next_ns || !self.wants_settle() {
            return;
        }
        self.settle_next_ns = now + SETTLE_PAUSE_NS;
        let answered = self.path.fence_answered();
        self.settle_asked = answered;
        if let Some(feed) = &mut self.feed {
            feed.ping(self.machine.monotonic_ns(), answered);
        }
    }

    /// `+PONG` came: all reports of before are handled.
    pub(crate) fn settle(&mut self, answered: u64) -> Result<()> {
        if answered <= self.path.fence_settled() {
            return Ok(());
        }
        if self.watch.may_reply_early() {
            self.path.clear()?;
        }
        self.path.settle(answered)?;
        // What shuts the gate closes the fence too: it can be acknowledged now.
        self.watch_gate();
        Ok(())
    }
}
