// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is answered in Redis's place, and its way there: the gate, and the drain on the feed.
//!
//! Invariants:
//! 1. Where the data path has no log there is neither, and nothing is answered.
//! 2. A batch is begun only on a feed that is ready: whoever drained before is dead in Redis by then, as the answer
//!    to its CLIENT KILL came before (`feed.rs`).
//! 3. The feed is kept, and nobody leaves, while something is not drained ([`Writes::owes`]), unless who asks gives
//!    it up.
//! 4. What Redis lost, or got from elsewhere, is not written over: while something was not drained it became a
//!    replica, or was started anew without a log. Then nothing is drained any more, until somebody decides.
//! 5. Each feed's drain begins with the number of databases that its own Redis told over it (`drain`, 7).

use std::collections::VecDeque;

use erb_abi::Logs;

use crate::clock::SECOND_NS;
use crate::drain::{
    BATCH_NS, Backlog, Drain, DrainSettings, Drained, LogError, Refusal, RefusedWrite,
};
use crate::gate::{Against, Allowed, Condition, Gate, Seen};
use crate::outside::{DataPath, Result};
use crate::redis_state::RedisState;
use crate::write_state::WriteState;

/// Writes that Redis will never take, of which people are told: the last ones.
const REFUSED_SHOWN: usize = 32;

/// Redis has refused for long what is to be drained.
const REFUSED_LONG_NS: u64 = SECOND_NS;

/// What is known of writes that are answered in Redis's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritesState {
    /// Whether they are.
    pub is_open: bool,
    /// How often that began.
    pub opened: u64,
    /// What speaks against it.
    pub against: Vec<Against>,
    /// What waits to be drained.
    pub backlog: Backlog,
    /// What was drained.
    pub drained: Drained,
    /// The last ones of those that Redis will never take.
    pub refused: Vec<RefusedWrite>,
}

/// The rings, and what empties them.
struct Draining {
    drain: Drain<Logs>,
    broken: Option<LogError>,
    refused: VecDeque<RefusedWrite>,
}

/// See the module.
pub(crate) struct Writes {
    gate: Gate,
    has_log: bool,
    /// Until Redis has told how many databases it has.
    logs: Option<Logs>,
    draining: Option<Draining>,
    /// Which start of Redis it was that was drained into.
    run_id: Option<String>,
    /// Why nothing is drained: 4.
    stranded: Option<&'static str>,
    /// What is not drained is to be lost.
    is_given_up: bool,
    /// Why what waits for long could not be kept: whoever drives the core says so.
    journal: Option<String>,
}

impl Writes {
    /// Whatever a former daemon allowed, nothing is answered before [`Gate::decide`].
    pub(crate) fn new(path: &mut impl DataPath, allowed: Allowed) -> Self {
        let logs = path.take_logs();
        path.control().set_absorb(false);
        if let Some(logs) = &logs {
            let rings = u32::try_from(logs.count()).unwrap_or(u32::MAX);
            path.control().set_watch(rings);
        }
        Self {
            gate: Gate::new(allowed),
            has_log: logs.is_some(),
            logs,
            draining: None,
            run_id: None,
            stranded: None,
            is_given_up: false,
            journal: None,
        }
    }

    pub(crate) const fn is_wanted(&self) -> bool {
        self.has_log
    }

    pub(crate) const fn gate(&mut self) -> &mut Gate {
        &mut self.gate
    }

    /// Whether something is answered and not drained.
    pub(crate) fn owes(&self, path: &impl DataPath) -> bool {
        self.has_log && !self.is_given_up && path.outstanding()
    }

    /// What is not drained is lost, as somebody has decided.
    pub(crate) const fn give_up(&mut self) {
        self.is_given_up = true;
    }

    pub(crate) const fn is_stranded(&self) -> bool {
        self.stranded.is_some()
    }

    /// Whether Redis is to tell of all changes, as nothing else speaks against answering writes.
    pub(crate) fn wants_all_reports(&self) -> bool {
        let speaks = |one: &Against| one.condition != Condition::Reports;
        self.has_log && !self.gate.against().iter().any(speaks)
    }

    /// Redis's state was read: draining can begin, or has to end.
    pub(crate) fn take_state(&mut self, path: &impl DataPath, state: &RedisState, now: u64) {
        let writes = &state.writes;
        if state.loading || writes.run_id.is_none() {
            return; // a Redis that loads its log has none for that time
        }
        let is_anew = match &self.run_id {
            Some(_) => self.run_id != writes.run_id,
            None => self.is_younger(writes, now),
        };
        if !self.has_log || !path.outstanding() {
            self.stranded = None;
        } else if state.role != "master" {
            self.strand("Redis became a replica before it was there");
        } else if is_anew && writes.has_log == Some(false) {
            self.strand("Redis was started anew, without its log, before it was there");
        }
        self.run_id.clone_from(&writes.run_id);
        self.take_databases(path, writes.databases);
    }

    /// Whether this start of Redis may be later than what is not drained: for a daemon that has seen no other one.
    fn is_younger(&self, writes: &WriteState, now: u64) -> bool {
        // The drain has the log only behind the first state.
        let waits_since_ns = self.logs.as_ref().map_or(0, Logs::fresh_ns);
        let up_ns = writes.uptime_s.unwrap_or(0).saturating_mul(SECOND_NS);
        up_ns < now.saturating_sub(waits_since_ns)
    }

    fn strand(&mut self, why: &'static str) {
        if self.stranded.replace(why).is_none() {
            tracing::error!(
                "what was answered in Redis's place is kept from it: {why}; \
                 `erb detach --undrained-to FILE` writes it to a file, --discard-undrained loses it"
            );
        }
    }

    fn take_databases(&mut self, path: &impl DataPath, databases: Option<u32>) {
        let Some(databases) = databases else { return };
        if let Some(logs) = self.logs.take() {
            let settings = DrainSettings {
                batch_ns: BATCH_NS,
                secret: path.control().hash_secret(),
            };
            self.draining = Some(Draining {
                drain: Drain::new(logs, &settings),
                broken: None,
                refused: VecDeque::new(),
            });
        }
        if let Some(drain) = self.drain() {
            drain.set_databases(databases);
        }
    }

    /// The drain; before Redis is known, none.
    pub(crate) fn drain(&mut self) -> Option<&mut Drain<Logs>> {
        self.draining.as_mut().map(|of| &mut of.drain)
    }

    /// Whether what is drained waits in the rings for the journal, which wakes nobody.
    pub(crate) fn owes_room(&self) -> bool {
        self.draining
            .as_ref()
            .is_some_and(|of| of.drain.owes_room())
    }

    /// When a batch is due; none: nothing waits, or an answer is awaited.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.draining.as_ref().and_then(|of| of.drain.next_ns())
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.draining
            .as_ref()
            .is_some_and(|of| of.drain.is_under_way())
    }

    /// A ring holds what cannot be.
    pub(crate) fn broke(&mut self, path: &impl DataPath, error: LogError) {
        self.gate.shut(path);
        let Some(of) = &mut self.draining else { return };
        if of.broken.replace(error).is_none() {
            tracing::error!("what was answered in Redis's place cannot be drained: {error}");
        }
    }

    /// A batch was answered. What Redis will never take is in the cache no more.
    pub(crate) fn batch_came(&mut self, path: &impl DataPath) -> Result<()> {
        let Some(of) = &mut self.draining else {
            return Ok(());
        };
        let refused = of.drain.take_refused_writes();
        if refused.is_empty() {
            return Ok(());
        }
        let keys: Vec<&[u8]> = refused.iter().map(|write| &write.key[..]).collect();
        path.invalidate(&keys)?;
        for write in refused {
            tracing::error!(
                "a SET that was answered was refused by Redis: key {:?} of database {}: {}",
                String::from_utf8_lossy(&write.key),
                write.db,
                write.why
            );
            if of.refused.len() == REFUSED_SHOWN {
                of.refused.pop_front();
            }
            of.refused.push_back(write);
        }
        Ok(())
    }

    /// The feed is gone.
    pub(crate) fn forget_feed(&mut self, path: &impl DataPath) {
        self.gate.forget(path);
        if let Some(drain) = self.drain() {
            drain.lost();
        }
    }

    /// Tells the data path whether Redis has refused what is to be drained for long, or nothing is drained any more:
    /// what may cure it waits for nothing then (`bpf/splice/order.h`, Y6).
    pub(crate) fn tell_refused(&self, path: &impl DataPath, now: u64) {
        let has = self.draining.as_ref().is_some_and(|of| {
            let is_long =
                |refusal: &Refusal| now.saturating_sub(refusal.since_ns) >= REFUSED_LONG_NS;
            of.broken.is_some() || of.drain.refusal().is_some_and(is_long)
        });
        path.control()
            .set_refused(path.outstanding() && (has || self.is_stranded()));
    }

    /// Why what waits for long cannot be kept on a disk: nothing is answered from here on. None: it can, or need not.
    pub(crate) fn set_journal(&mut self, path: &impl DataPath, against: Option<String>) {
        if against.is_some() && self.gate.is_open() {
            self.gate.shut(path);
        }
        self.journal = against;
    }

    /// What speaks against answering writes; what the drain knows of that is put in here.
    pub(crate) fn found_against(&self, mut seen: Seen<'_>, now: u64) -> Vec<Against> {
        seen.journal.clone_from(&self.journal);
        if let Some(of) = &self.draining {
            seen.age_ns = of.drain.backlog(now).age_ns;
            seen.refusal = match (&of.broken, self.stranded) {
                (Some(error), _) => Some(error.to_string()),
                (None, Some(why)) => Some(why.to_owned()),
                (None, None) => of.drain.refusal().map(|refusal| refusal.text.clone()),
            };
        }
        let known = self.draining.as_ref().and_then(|of| of.drain.databases());
        if known.is_none() {
            let text = "Redis has not told how many databases it has";
            seen.refusal.get_or_insert_with(|| text.to_owned());
        }
        self.gate.found_against(&seen, now)
    }

    /// For people; none: nothing is ever answered.
    pub(crate) fn state(&self, now: u64) -> Option<WritesState> {
        let of = self.draining.as_ref();
        self.has_log.then(|| WritesState {
            is_open: self.gate.is_open(),
            opened: self.gate.opened(),
            against: self.gate.against().to_vec(),
            backlog: of.map_or_else(Backlog::default, |of| of.drain.backlog(now)),
            drained: of.map_or_else(Drained::default, |of| of.drain.done()),
            refused: of.map_or_else(Vec::new, |of| of.refused.iter().cloned().collect()),
        })
    }
}
