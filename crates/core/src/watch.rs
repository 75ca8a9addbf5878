// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether ERB may answer, and why not: Redis's state, the gate, the feed.

use crate::outside::{DataPath, Machine, Result};
use crate::redis_state::{Calls, RedisState};
use crate::turn::{Core, Stage};

/// What is known of Redis now.
#[derive(Default)]
pub(crate) struct Watch {
    /// Last state read over the present feed.
    pub(crate) state: Option<RedisState>,
    /// Last calls read over the present feed; the cache was emptied when that was made.
    calls: Option<Calls>,
    feed: Option<String>,
    lease: Option<String>,
}

impl Watch {
    /// There is no feed, for this reason.
    pub(crate) fn no_feed(&mut self, reason: &str) {
        self.state = None;
        self.calls = None;
        self.lease = None;
        self.feed = Some(reason.to_owned());
    }

    /// Whether that is why there was no feed before.
    pub(crate) fn no_feed_for(&self, reason: &str) -> bool {
        self.feed.as_deref() == Some(reason)
    }

    /// A feed was made; nothing is known of Redis yet.
    pub(crate) fn feed_made(&mut self) {
        *self = Self::default();
    }

    /// PING was answered by this error, or by PONG again.
    pub(crate) fn lease_refused(&mut self, reason: Option<String>) {
        self.lease = reason;
    }

    /// Why ERB must not answer; empty: it may.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons = match &self.state {
            Some(state) => state.reasons_against_serving(),
            None => vec![
                self.feed
                    .clone()
                    .unwrap_or_else(|| "Redis's state is not read yet".to_owned()),
            ],
        };
        reasons.extend(
            self.lease
                .iter()
                .map(|text| format!("Redis answers INFO or PING with {text:?}")),
        );
        reasons
    }
}

impl<P: DataPath, M: Machine> Core<P, M> {
    /// Calls were read, before every lease: empties the cache if databases may have been swapped,
    /// which no invalidation reports.
    pub(crate) fn take_calls(&mut self, calls: Calls) -> Result<()> {
        let before = self.watch.calls.replace(calls);
        if before.is_some_and(|before| calls.may_hide_a_swap(&before)) {
            tracing::info!("SWAPDB or CONFIG RESETSTAT was seen: the cache is emptied");
            self.path.clear()?;
        }
        Ok(())
    }

    /// A state was read: empties the cache if something happened that no invalidation reports,
    /// then says whether ERB serves, then acknowledges the gate.
    pub(crate) fn take_state(&mut self, state: RedisState, gate: u64) -> Result<()> {
        self.take_calls(state.calls)?;
        if state.acl_is_read() {
            self.take_rights(&state.acl);
        }
        let reasons = state.reasons_against_serving();
        // A third of Redis's idle limit: two may be lost on the way.
        self.path
            .set_heartbeat_up_ns(state.timeout_s.saturating_mul(1_000_000_000) / 3);
        let serving = reasons.is_empty() && self.stage == Stage::Running;
        if u32::from(serving) != self.path.serving() {
            if serving {
                tracing::info!("serving");
            } else {
                tracing::warn!("not serving: {}", reasons.join("; "));
            }
        }
        self.path.set_serving(u32::from(serving));
        self.path.set_gate_ack(gate);
        self.watch.state = Some(state);
        Ok(())
    }

    /// Up to where Redis has surely executed the commands of the gate: they close the fence until
    /// answered, so an open fence, read after the count, means that it has executed them all. What
    /// nobody tracks closes it as well.
    pub(crate) fn gate_executed(&self) -> u64 {
        let seen = self.path.gate_seen();
        if self.path.fence() == 0 && self.path.untracked() == 0 {
            seen
        } else {
            self.path.gate_ack()
        }
    }

    /// Reads the state again while commands that may have changed it are not acknowledged.
    pub(crate) fn watch_gate(&mut self) {
        let seen = self.gate_executed();
        if seen == self.path.gate_ack() {
            return;
        }
        if let Some(feed) = self
            .feed
            .as_mut()
            .filter(|feed| feed.is_ready() && !feed.is_asking_state())
        {
            feed.ask_state(seen);
        }
    }
}
