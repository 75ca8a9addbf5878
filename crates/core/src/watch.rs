// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether ERB may answer, and why not: Redis's state, the gate, the feed.

use crate::commands::CommandsReport;
use crate::outside::{DataPath, Machine, Result};
use crate::pace::Pace;
use crate::redis_state::{Calls, RedisState};
use crate::turn::{Core, MS, SECOND_NS, Stage};

/// Every connection sends a command up this often at least, also where Redis closes no idle client:
/// what CLIENT LIST says of its idle time is then true to a minute, for those who kill by it, and for
/// a `timeout` of minutes that is set tomorrow.
const HEARTBEAT_NS: u64 = 60 * SECOND_NS;

/// A third of Redis's idle limit at most: two may be lost on the way.
fn heartbeat_ns(timeout_s: u64) -> u64 {
    match timeout_s {
        0 => HEARTBEAT_NS,
        _ => (timeout_s.saturating_mul(SECOND_NS) / 3).min(HEARTBEAT_NS),
    }
}

/// What is known of Redis now.
#[derive(Default)]
pub(crate) struct Watch {
    /// Last state read over the present feed.
    pub(crate) state: Option<RedisState>,
    /// Last calls read over the present feed; the cache was emptied when that was made.
    calls: Option<Calls>,
    /// What came of Redis's command table, or why ERB cannot work with it; before a feed is ready.
    pub(crate) commands: Option<std::result::Result<CommandsReport, String>>,
    feed: Option<String>,
    lease: Option<String>,
    /// Of questions about the state: ACL LIST takes Redis 7.0 some 0.6 ms for each user that ACL LOAD
    /// has made anew, and everybody waits.
    pace: Pace,
}

impl Watch {
    /// There is no feed, for this reason.
    pub(crate) fn no_feed(&mut self, reason: &str) {
        self.state = None;
        self.commands = None;
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
        *self = Self {
            commands: self.commands.take(),
            pace: std::mem::take(&mut self.pace),
            ..Self::default()
        };
    }

    /// PING was answered by this error, or by PONG again.
    pub(crate) fn lease_refused(&mut self, reason: Option<String>) {
        self.lease = reason;
    }

    /// Whether replies may leave Redis before what they report to the feed is queued.
    pub(crate) fn may_reply_early(&self) -> bool {
        self.state.as_ref().is_none_or(RedisState::may_reply_early)
    }

    /// Whether CLIENT LIST may be silent of commands that are parsed and not run.
    pub(crate) fn parses_ahead(&self) -> bool {
        self.state.as_ref().is_none_or(RedisState::parses_ahead)
    }

    /// What Redis's state and its command table say against answers.
    fn reasons_of(&self, state: &RedisState) -> Vec<String> {
        let mut reasons = state.reasons_against_serving();
        match &self.commands {
            Some(Ok(_)) => {}
            Some(Err(reason)) => reasons.push(reason.clone()),
            None => reasons.push("Redis's command table is not read yet".to_owned()),
        }
        reasons
    }

    /// Why ERB must not answer; empty: it may.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons = match (&self.state, &self.commands) {
            (Some(state), _) => self.reasons_of(state),
            (None, Some(Err(reason))) => vec![reason.clone()],
            (None, _) => vec![
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
        let before_us = before.map_or(calls.acl_list_us, |before| before.acl_list_us);
        if calls.acl_list_us > before_us {
            let cost_ns = (calls.acl_list_us - before_us) * (MS / 1_000);
            let now = self.machine.monotonic_ns();
            self.watch.pace.ran(now.saturating_sub(cost_ns), now);
        }
        let changed = before.is_some_and(|before| calls.may_hide_a_module(&before));
        if let Some(feed) = self.feed.as_mut().filter(|feed| changed && feed.is_ready())
            && !feed.is_asking_commands()
        {
            feed.ask_commands();
        }
        Ok(())
    }

    /// What came of Redis's command table, if it could be read.
    #[must_use]
    pub const fn commands(&self) -> Option<&CommandsReport> {
        match &self.watch.commands {
            Some(Ok(report)) => Some(report),
            _ => None,
        }
    }

    /// Redis's command table was loaded, or could not be. Another one has ended serving, until the
    /// state is read.
    pub(crate) fn take_commands(
        &mut self,
        end: std::result::Result<CommandsReport, String>,
        again: bool,
    ) {
        match &end {
            Ok(report) => {
                for off in &report.off {
                    tracing::warn!("not answered by ERB: {off}");
                }
                if !report.renamed.is_empty() {
                    let names = report.renamed.join(" ");
                    tracing::info!("renamed commands, known by no name: {names}");
                }
            }
            Err(reason) => {
                tracing::warn!("not serving: {reason}");
                self.path.set_serving(0);
            }
        }
        self.watch.commands = Some(end);
        if again {
            self.ask_state();
        }
    }

    /// Asks for Redis's state, if that is not done already and Redis has rested from the last time:
    /// else the next second does.
    pub(crate) fn ask_state(&mut self) {
        let gate = self.gate_executed();
        let may = self.watch.pace.may(self.machine.monotonic_ns());
        if let Some(feed) = self.feed.as_mut().filter(|_| may)
            && feed.is_ready()
            && !feed.is_asking_state()
        {
            feed.ask_state(gate);
        }
    }

    /// A state was read, and its calls were taken when they came: says whether ERB serves, then
    /// acknowledges the gate.
    pub(crate) fn take_state(&mut self, state: RedisState, gate: u64) {
        if state.acl_is_read() {
            self.take_rights(&state.acl);
        }
        let reasons = self.watch.reasons_of(&state);
        self.path.set_heartbeat_up_ns(heartbeat_ns(state.timeout_s));
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
    }

    /// Up to where Redis has surely executed the commands of the gate: they close the fence until
    /// answered, so an open fence, read after the count, means that it has executed them all.
    pub(crate) fn gate_executed(&self) -> u64 {
        let seen = self.path.gate_seen();
        if self.path.fence() == 0 {
            seen
        } else {
            self.path.gate_ack()
        }
    }

    /// Reads the state again while commands that may have changed it are not acknowledged.
    pub(crate) fn watch_gate(&mut self) {
        if self.gate_executed() != self.path.gate_ack() {
            self.ask_state();
        }
    }
}
