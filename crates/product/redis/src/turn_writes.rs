// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is answered in Redis's place, for whoever drives the core.

use super::Core;
use crate::feed::Feed;
use crate::gate::Seen;
use crate::outside::{DataPath, Machine, Result};
use crate::writes::WritesState;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// What is answered in Redis's place; none: the data path has no log, so nothing is.
    #[must_use]
    pub fn writes(&self) -> Option<WritesState> {
        self.writes.state(self.machine.monotonic_ns())
    }

    /// When the next batch is due, if it could be sent.
    pub(super) fn next_batch_ns(&self) -> Option<u64> {
        self.writes.next_ns().filter(|_| self.link.is_up())
    }

    /// Begins the next batch, if it is due.
    pub(super) fn drain_writes(&mut self, now: u64) {
        let Some(drain) = self.writes.drain() else {
            return;
        };
        if self.holding.next_ns().is_some() || !self.detach.is_running() {
            drain.hurry();
        }
        let Some(feed) = self.link.ready() else {
            return;
        };
        if let Err(error) = feed.begin_batch(drain, now) {
            self.writes.broke(&self.path, error);
        }
    }

    /// Each tick: opens the gate, or shuts it.
    pub(super) fn decide_gate(&mut self, now: u64) {
        if !self.writes.is_wanted() || !self.detach.is_running() {
            return;
        }
        let seen = Seen {
            is_serving: self.path.serving() == 1,
            state: self.watch.state(),
            renamed: self
                .watch
                .commands()
                .map_or(&[][..], |found| &found.renamed),
            tells_all: self.link.feed().is_some_and(Feed::tells_all),
            unseen: self.connections.unseen().count,
            port: self.settings.port,
            refusal: None,
            age_ns: 0,
        };
        self.writes.decide(&self.path, seen, now);
    }

    /// Once a second: a batch is tried, and the machine looked at.
    pub(super) fn look_at_writes(&mut self, now: u64) -> Result<()> {
        if !self.writes.is_wanted() {
            return Ok(());
        }
        self.writes.second(&self.path, self.machine.view()?, now)?;
        self.try_batch();
        Ok(())
    }

    /// Asks whether a batch would be executed, unless an answer to that is awaited.
    pub(super) fn try_batch(&mut self) {
        if !self.writes.is_wanted() || !self.writes.gate().wants_trial() {
            return;
        }
        if let Some(feed) = self.link.ready() {
            feed.try_batch();
            self.writes.gate().trial_sent(self.machine.monotonic_ns());
        }
    }

    /// Whether the daemon must stay although it was asked to go: invariant 3 of `writes.rs`.
    pub(super) fn owes(&self) -> bool {
        self.writes.owes(&self.path)
    }

    /// Whether Redis's answer is waited for.
    pub(super) fn is_awaited(&self) -> bool {
        self.filling.is_under_way() || self.writes.is_under_way()
    }
}
