// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether ERB may answer, and why not: Redis's state, the gate, the feed.

use std::io::{Read, Write};

use crate::calls::Calls;
use crate::clock::{MS, SECOND_NS};
use crate::commands::CommandsReport;
use crate::feed::Feed;
use crate::outside::{DataPath, Result};
use crate::pace::Pace;
use crate::redis_state::RedisState;

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
    state: Option<RedisState>,
    /// Last calls read over the present feed; the cache was emptied when that was made.
    calls: Option<Calls>,
    /// What came of Redis's command table, or why ERB cannot work with it; before a feed is ready.
    commands: Option<std::result::Result<CommandsReport, String>>,
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

    /// The state that was read last over the present feed.
    pub(crate) const fn state(&self) -> Option<&RedisState> {
        self.state.as_ref()
    }

    /// What came of Redis's command table, if it could be read.
    pub(crate) const fn commands(&self) -> Option<&CommandsReport> {
        match &self.commands {
            Some(Ok(report)) => Some(report),
            _ => None,
        }
    }

    /// Calls were read, before every lease: empties the cache if databases may have been swapped,
    /// which no invalidation reports, and asks for the command table if it may be another one.
    pub(crate) fn take_calls<S: Read + Write>(
        &mut self,
        path: &impl DataPath,
        feed: Option<&mut Feed<S>>,
        calls: Calls,
        now: u64,
    ) -> Result<()> {
        let before = self.calls.replace(calls);
        if before.is_some_and(|before| calls.may_hide_a_swap(&before)) {
            tracing::info!("SWAPDB or CONFIG RESETSTAT was seen: the cache is emptied");
            path.clear()?;
        }
        let filters = self.state.as_ref().is_none_or(RedisState::filters_pushes);
        if filters && before.is_some_and(|before| calls.may_hide_rights(&before)) {
            // They may be what they were again, when ACL LIST is read.
            tracing::info!(
                "access rules may have kept changes from the daemon: the cache is emptied"
            );
            path.clear()?;
        }
        let before_us = before.map_or(calls.acl_list_us, |before| before.acl_list_us);
        if calls.acl_list_us > before_us {
            let cost_ns = (calls.acl_list_us - before_us) * (MS / 1_000);
            self.pace.ran(now.saturating_sub(cost_ns), now);
        }
        let changed = before.is_some_and(|before| calls.may_hide_a_module(&before));
        if changed {
            // It may make another command of a SET. The lease that these calls bring comes behind this.
            path.set_write_through(0);
        }
        if let Some(feed) = feed.filter(|_| changed)
            && !feed.is_asking_commands()
        {
            feed.ask_commands();
        }
        Ok(())
    }

    /// Redis's command table was loaded, or could not be. Another one has ended serving, until the
    /// state is read.
    pub(crate) fn take_commands(
        &mut self,
        path: &impl DataPath,
        end: std::result::Result<CommandsReport, String>,
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
                path.set_serving(0);
            }
        }
        self.commands = Some(end);
    }

    /// The gate that Redis's state would acknowledge, if it may be asked for: it is not asked for already, and Redis
    /// has rested from the last time. Else the next second does.
    pub(crate) fn may_ask_state<S: Read + Write>(
        &self,
        path: &impl DataPath,
        feed: Option<&Feed<S>>,
        now: u64,
    ) -> Option<u64> {
        let gate = gate_executed(path);
        let may = |feed: &&Feed<S>| self.pace.may(now) && !feed.is_asking_state();
        feed.filter(may).map(|_| gate)
    }

    /// A state was read, and its calls were taken when they came: says whether ERB serves, and whether
    /// also of absent keys, if it may, then acknowledges the gate.
    pub(crate) fn take_state(
        &mut self,
        path: &impl DataPath,
        state: RedisState,
        gate: u64,
        (is_running, may_be_absent): (bool, bool),
    ) -> Result<()> {
        let reasons = self.reasons_of(&state);
        let hid_changes = |before: &RedisState| before.hides_changes().is_some();
        if state.hides_changes().is_none() && self.state.as_ref().is_some_and(hid_changes) {
            // Changes of which the daemon was not told. Nothing is served before this.
            path.clear()?;
        }
        path.set_heartbeat_up_ns(heartbeat_ns(state.timeout_s));
        let serving = reasons.is_empty() && is_running;
        if u32::from(serving) != path.serving() {
            if serving {
                tracing::info!("serving");
            } else {
                tracing::warn!("not serving: {}", reasons.join("; "));
            }
        }
        path.set_absent((may_be_absent && state.hides_misses()).into());
        path.set_write_through(state.runs_what_is_sent().into());
        path.set_serving(u32::from(serving));
        path.set_gate_ack(gate);
        self.state = Some(state);
        Ok(())
    }
}

/// Up to where Redis has surely executed the commands of the gate: they close the fence until
/// answered, so an open fence, read after the count, means that it has executed them all.
fn gate_executed(path: &impl DataPath) -> u64 {
    let seen = path.gate_seen();
    if path.fence() == 0 {
        seen
    } else {
        path.gate_ack()
    }
}

/// Whether commands that may have changed Redis's state have run and are not acknowledged.
pub(crate) fn is_gate_to_read(path: &impl DataPath) -> bool {
    gate_executed(path) != path.gate_ack()
}

#[cfg(test)]
mod tests {
    use erb_abi::ControlBlock as _;

    use super::*;
    use crate::doubles::Recorder;

    #[test]
    fn a_heartbeat_is_a_third_of_the_idle_limit_and_a_minute_at_most() {
        let wants = [(0, 60), (9, 3), (180, 60), (u64::MAX, 60)];
        for (timeout_s, seconds) in wants {
            assert_eq!(heartbeat_ns(timeout_s), seconds * SECOND_NS, "{timeout_s}");
        }
    }

    #[test]
    fn the_gate_is_read_when_the_fence_is_open_and_acknowledged_up_to_what_was_asked() {
        let (mut watch, path) = (Watch::default(), Recorder::default());
        path.set(|control| (control.gate_seen, control.fence) = (3, 1));
        assert!(!is_gate_to_read(&path), "they may not have run");
        path.set(|control| control.fence = 0);
        assert!(is_gate_to_read(&path));
        let state = RedisState::default();
        watch.take_state(&path, state, 2, (true, true)).unwrap();
        assert_eq!(path.gate_ack(), 2);
        assert!(is_gate_to_read(&path), "one came behind the question");
    }

    #[test]
    fn nothing_is_served_by_a_daemon_that_leaves_or_knows_no_commands() {
        let (mut watch, path) = (Watch::default(), Recorder::default());
        assert!(watch.reasons()[0].contains("not read yet"));
        watch.no_feed("gone");
        assert_eq!(watch.reasons(), ["gone"]);
        watch.take_commands(&path, Err("no PING".to_owned()));
        assert_eq!(watch.reasons(), ["no PING"]);
        path.set_serving(1);
        watch.take_commands(&path, Err("no PING".to_owned()));
        assert_eq!(path.serving(), 0);
        let state = RedisState::default();
        watch.take_state(&path, state, 0, (false, true)).unwrap();
        assert_eq!(path.serving(), 0);
    }
}
