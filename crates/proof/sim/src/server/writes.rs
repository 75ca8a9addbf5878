// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SETs are answered in Redis's place (`bpf/splice/absorb.h`), and the daemon drains what they said. Each write enters
//! the history with its LSN, whatever Redis knows by then; what the drain writes into Redis is no change of the history.

use std::collections::BTreeMap;

use erb_abi::Logs;
use erb_sim_kernel::Datapath;
use erb_sim_redis::{Bytes, Cause, Change, Executed};

use super::absorbed::set_of;
use super::{Server, Way};
use crate::story::Place;

/// A write that was answered.
pub(crate) struct Written {
    /// Database.
    pub(crate) db: u32,
    /// Key.
    pub(crate) key: Bytes,
    /// Value.
    pub(crate) value: Bytes,
    /// When it expires: wall clock, ms.
    pub(crate) expire_at_ms: Option<u64>,
    /// Set of the key.
    pub(super) set: usize,
}

/// What is answered.
pub(super) struct Writes {
    path: Datapath,
    logs: Logs,
    /// How far each ring was read for the history, and the last LSN that it has.
    read_to: Vec<u64>,
    told: u64,
    early: BTreeMap<u64, Written>,
}

impl Writes {
    fn new(path: &Datapath) -> Self {
        let logs = path.logs();
        let read_to = (0..logs.count()).map(|ring| logs.tail(ring)).collect();
        let told = logs.drained();
        Self {
            path: path.clone(),
            logs,
            read_to,
            told,
            early: BTreeMap::new(),
        }
    }

    /// The writes that have come since the last call, in the order of their LSNs; one whose predecessor's record is
    /// not whole yet waits for it.
    fn news(&mut self) -> Vec<(u64, Written)> {
        for ring in 0..self.logs.count() {
            while self.read_to[ring] < self.logs.head(ring) {
                let (record, next) = self.logs.record(ring, self.read_to[ring]);
                let written = Written {
                    set: set_of(&self.path, &record.key),
                    db: record.db.into(),
                    key: record.key.into(),
                    value: record.value.into(),
                    expire_at_ms: Some(record.expiry_ms).filter(|expiry| *expiry > 0),
                };
                self.early.insert(record.lsn, written);
                self.read_to[ring] = next;
            }
        }
        let mut news = Vec::new();
        while let Some(written) = self.early.remove(&(self.told + 1)) {
            self.told += 1;
            news.push((self.told, written));
        }
        news
    }
}

impl Server {
    /// What was answered enters the history.
    pub fn note_writes(&self) {
        if !self.inner.plan.profile.server.absorbs {
            return;
        }
        let Some(path) = self.path.borrow().clone() else {
            return;
        };
        let mut slot = self.writes.borrow_mut();
        let same = |writes: &&mut Writes| writes.path.control() == path.control();
        if slot.as_mut().filter(same).is_none() {
            *slot = Some(Writes::new(&path));
        }
        let Some(writes) = slot.as_mut() else { return };
        let now = self.inner.now();
        // Read before: what is drained by then was read by the drain, and is whole.
        let drained = writes.logs.drained();
        let news = writes.news();
        drop(slot);
        for (lsn, written) in news {
            self.inner.tell_with(Place::World, None, || {
                let key = String::from_utf8_lossy(&written.key).into_owned();
                format!("LSN {lsn} is of {key:?}, set {}", written.set)
            });
            self.arrivals.borrow_mut().give(lsn, written.set);
            self.inner.checks.borrow_mut().absorbed(now, lsn, written);
        }
        self.inner.checks.borrow_mut().drained(drained);
    }

    /// Redis begins with what its log has. One whose process was killed has all that it had, unless writes waited in its
    /// memory for a sync that takes long.
    pub(super) fn has_read_log(&self, content: &[Change]) {
        self.note_writes();
        let (now, profile) = (self.inner.now(), &self.inner.plan.profile);
        let postpones = profile.events.disk > 0 || profile.events.machine_crash > 0;
        if profile.server.absorbs && !postpones {
            let kept = self.inner.checks.borrow().kept(now, content);
            kept.unwrap_or_else(|violation| self.inner.fail(violation));
        }
        self.inner.checks.borrow_mut().restarted(now, content);
    }

    /// Whether SETs were answered in Redis's place.
    pub fn has_absorbed(&self) -> bool {
        let slot = self.writes.borrow();
        slot.as_ref().is_some_and(|writes| writes.told > 0)
    }

    /// Whether that was the drain, of this daemon or of a dead one: nothing but that writes on a feed.
    pub(super) fn is_of_drain(&self, executed: &Executed) -> bool {
        let writes = |change: &Change| change.cause == Cause::Command;
        if !executed.changes.iter().any(writes) {
            return false;
        }
        let peers = self.peers.borrow();
        match peers.get(&executed.client).map(|peer| &peer.way) {
            Some(Way::Inside(pipe)) => self.boost.was_feed(pipe),
            _ => false,
        }
    }
}
