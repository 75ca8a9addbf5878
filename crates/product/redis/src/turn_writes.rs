// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is answered in Redis's place, for whoever drives the core.

use super::Core;
use crate::feed::Feed;
use crate::gate::{Against, Seen};
use crate::holding::Asking;
use crate::outside::{DataPath, Machine, Result};
use crate::redis_state::RedisState;
use crate::rights::WRITE_RIGHTS;
use crate::writes::WritesState;

impl<P: DataPath, M: Machine> Core<P, M> {
    /// What is answered in Redis's place; none: the data path has no log, so nothing is.
    #[must_use]
    pub fn writes(&self) -> Option<WritesState> {
        self.writes.state(self.machine.monotonic_ns())
    }

    /// Whoever asks takes it upon himself that what was answered and is not in Redis is lost.
    pub const fn give_up_writes(&mut self) {
        self.writes.give_up();
    }

    /// Why what waits for long cannot be kept on a disk, by whoever keeps it; none: it can, or need not.
    pub fn set_journal(&mut self, against: Option<String>) {
        self.writes.set_journal(&self.path, against);
    }

    /// Somebody asks who has his writes: as soon as all replicas have what was drained, [`Self::set_synced`] is to be said.
    /// None: nobody asks.
    pub fn asking(&mut self) -> Option<Asking> {
        self.holding.asking(&self.path)
    }

    /// All replicas of Redis have what was drained when this asking began.
    pub fn set_synced(&mut self, answered: Asking) {
        self.path
            .control()
            .set_synced(answered.number, answered.lsn);
        self.holding.look();
    }

    /// Why MSET and the others may not be what they are called; none: they are.
    fn names_against(&self) -> Option<String> {
        let known = self
            .watch
            .commands()
            .filter(|_| self.link.feed().is_some_and(Feed::trusts_names));
        let Some(known) = known else {
            return Some("what Redis calls its commands is not known".to_owned());
        };
        let is_lost = |name: &&&str| known.renamed.iter().any(|lost| lost == **name);
        let lost: Vec<&str> = WRITE_RIGHTS.iter().filter(is_lost).copied().collect();
        (!lost.is_empty()).then(|| {
            format!(
                "Redis knows no {} under this name: see rename-command in redis.conf",
                lost.join(", ").to_ascii_uppercase()
            )
        })
    }

    fn may_write(&self) -> bool {
        self.names_against().is_none()
    }

    /// Whether a trial goes before the question about Redis's state.
    pub(super) fn may_try(&self) -> bool {
        self.writes.is_wanted() && self.may_write()
    }

    /// Whether batches may be sent: it is known what Redis this is, which is its state.
    fn may_drain(&self) -> bool {
        let is_ready = |state: &RedisState| state.role == "master" && !state.loading;
        self.watch.state().is_some_and(is_ready) && !self.writes.is_stranded() && self.may_write()
    }

    /// When the next batch is due, if it could be sent.
    pub(super) fn next_batch_ns(&self) -> Option<u64> {
        self.writes.next_ns().filter(|_| self.may_drain())
    }

    /// Begins the next batch, if it is due.
    pub(super) fn drain_writes(&mut self, now: u64) {
        let may = self.may_drain();
        let hurry = self.holding.next_ns().is_some() || !self.may_answer();
        let Some(drain) = self.writes.drain().filter(|_| may) else {
            return;
        };
        if hurry {
            drain.hurry();
        }
        let Some(feed) = self.link.ready() else {
            return;
        };
        if let Err(error) = feed.begin_batch(drain, now) {
            self.writes.broke(&self.path, error);
        }
    }

    /// Asks for Redis's state, which acknowledges this gate, behind a trial of a batch.
    pub(super) fn ask_state_of(&mut self, gate: u64, now: u64) {
        let tries = self.may_try();
        let Some(feed) = self.link.ready() else {
            return;
        };
        if tries {
            feed.try_batch();
            self.writes.gate().trial_sent(now);
        }
        feed.ask_state(gate);
    }

    /// Redis's state was read. What it has against answering writes shuts the gate before what has made it so is
    /// acknowledged.
    pub(super) fn judge_state(&mut self, state: &RedisState, now: u64) {
        self.writes.take_state(&self.path, state, now);
        self.decide(Some(state), now);
    }

    /// Each tick: opens the gate, or shuts it.
    pub(super) fn decide_gate(&mut self, now: u64) -> Result<()> {
        if self.writes.is_wanted() {
            self.writes.tell_refused(&self.path, now);
            self.writes.gate().tick(&self.path, now)?;
        }
        self.decide(None, now);
        Ok(())
    }

    /// `state`: instead of the one that was read before.
    fn decide(&mut self, state: Option<&RedisState>, now: u64) {
        if self.writes.is_wanted() && self.detach.is_running() {
            let against = self.found_against(state.or(self.watch.state()), now);
            self.writes.gate().decide(&self.path, against);
        }
    }

    fn found_against(&self, state: Option<&RedisState>, now: u64) -> Vec<Against> {
        let seen = Seen {
            is_serving: self.path.serving() == 1,
            state,
            no_feed: (!self.link.is_up()).then(|| {
                let reasons = self.watch.reasons().join("; ");
                format!("there is no feed from Redis: {reasons}")
            }),
            names: self.names_against(),
            tells_all: self.link.feed().is_some_and(Feed::tells_all),
            unseen: self.connections.unseen().count,
            port: self.settings.port,
            refusal: None,
            journal: None,
            age_ns: 0,
        };
        self.writes.found_against(seen, now)
    }

    /// Once a second.
    pub(super) fn look_at_writes(&mut self, now: u64) -> Result<()> {
        if self.writes.is_wanted() {
            let view = self.machine.view()?;
            self.writes.gate().second(&self.path, view, now)?;
        }
        Ok(())
    }

    /// Whether something that was answered is not in Redis: invariant 3 of `writes.rs`.
    pub(super) fn owes(&self) -> bool {
        self.writes.owes(&self.path)
    }

    /// Whether all that was answered until nothing was answered any more is in Redis.
    pub(super) fn has_paid(&self, now: u64) -> bool {
        !self.writes.is_wanted() || (self.detach.is_settled(now) && !self.owes())
    }

    /// Leaves without waiting for anybody, but for what was answered in Redis's place.
    pub(super) fn leave_if_insisted(&mut self, now: u64) {
        if self.has_paid(now) {
            self.detach.leave_if_insisted();
        }
    }

    /// Whether Redis's answer is waited for.
    pub(super) fn is_awaited(&self) -> bool {
        self.filling.is_under_way() || self.writes.is_under_way()
    }
}
