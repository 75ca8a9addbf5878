// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the engine does with versions, as plainly as it can be said.
//!
//! Invariants:
//! 1. A roll back is one row. A key's history is what it would be if all rows up to its epoch, and none
//!    beyond it, had visited it.
//! 2. Whatever touches a key resolves it first: rows above its epoch are applied in order, then the epoch moves.
//! 3. A row gives a key a version only if that changes its source.
//! 4. The floor moves before anything is trimmed, so every state at or above it is known.
//! 5. A trim in the log names the epoch up to which its key was resolved; replay resolves as far first.
//!
//! Numbers of versions are a sequence. Not here: shards, watermark and freeze, expiry, long deleted keys,
//! space. A delete is a write like any other.

use std::collections::{BTreeMap, BTreeSet};

use crate::oracle::{NEVER, Origin, RollBack, Target};

/// Mistakes in the model, each of which a comparison with the oracle must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A row that changes nothing adds a version.
    NoOpCounts,
    /// A moment is looked up by sources instead of versions.
    TargetBySource,
    /// A write does not resolve its key.
    WriteUnresolved,
    /// A moment below the floor is not refused.
    FloorIgnored,
    /// The floor moves less far than what is trimmed.
    FloorLate,
    /// A row spares what was written since a moment below the floor.
    KeepBelowFloor,
    /// A trim does not resolve its key.
    CollectUnresolved,
    /// A trim does not see snapshots.
    PinsIgnored,
    /// A version's age is counted from its birth, not from its end.
    AgeFromBirth,
    /// A checkpoint drops rows that not all keys know.
    CheckpointUnresolved,
    /// Replay applies rows that are younger than the record.
    ReplayAll,
    /// Replay trims a key that it has not resolved as far.
    ReplayTrimUnresolved,
    /// A restore of one key does not count as a write of it.
    RestoreNotCounted,
}

/// All of them.
pub const MISTAKES: [Mistake; 13] = [
    Mistake::NoOpCounts,
    Mistake::TargetBySource,
    Mistake::WriteUnresolved,
    Mistake::FloorIgnored,
    Mistake::FloorLate,
    Mistake::KeepBelowFloor,
    Mistake::CollectUnresolved,
    Mistake::PinsIgnored,
    Mistake::AgeFromBirth,
    Mistake::CheckpointUnresolved,
    Mistake::ReplayAll,
    Mistake::ReplayTrimUnresolved,
    Mistake::RestoreNotCounted,
];

/// What the caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// What it asks for is not known any more.
    Trimmed,
    /// There is no such version.
    NoSuch,
    /// The head is another one.
    Mismatch,
}

/// A version in a key's array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub version: u64,
    /// The write whose content it has; [`NEVER`]: none.
    pub source: u64,
    /// Who made it.
    pub origin: Origin,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// Oldest first.
    history: Vec<Held>,
    /// The last row that the history has.
    epoch: u64,
}

#[derive(Clone, Debug)]
enum Logged {
    Put(Vec<u8>, Held),
    Trim {
        key: Vec<u8>,
        epoch: u64,
        kept: Vec<Held>,
    },
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    newest: u64,
    keys: BTreeMap<Vec<u8>, Entry>,
    rows: Vec<RollBack>,
    floor: u64,
    snapshots: BTreeMap<u8, u64>,
    /// The last checkpoint, and what was logged since.
    saved: BTreeMap<Vec<u8>, Entry>,
    log: Vec<Logged>,
    min_age: u64,
    min_count: usize,
    mistake: Option<Mistake>,
}

impl Model {
    /// An empty one. `min_age` is a number of versions.
    #[must_use]
    pub fn new(min_age: u64, min_count: usize, mistake: Option<Mistake>) -> Self {
        Self {
            newest: 0,
            keys: BTreeMap::new(),
            rows: Vec::new(),
            floor: 0,
            snapshots: BTreeMap::new(),
            saved: BTreeMap::new(),
            log: Vec::new(),
            min_age,
            min_count,
            mistake,
        }
    }

    /// The newest version of all.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The oldest moment for which every key's state is known.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Versions that a key keeps at least.
    #[must_use]
    pub fn min_count(&self) -> usize {
        self.min_count
    }

    /// The last roll back that is still a row.
    #[must_use]
    pub fn last_row(&self) -> Option<u64> {
        self.rows.last().map(|row| row.id)
    }

    /// Moments that are held.
    #[must_use]
    pub fn snapshots(&self) -> Vec<u64> {
        self.snapshots.values().copied().collect()
    }

    /// Whether every key's state at this moment is known.
    #[must_use]
    pub fn knows(&self, moment: u64) -> bool {
        moment >= self.floor || self.snapshots.values().any(|held| *held == moment)
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn next(&mut self) -> u64 {
        self.newest += 1;
        self.newest
    }

    /// A key's history after all rows below `before`; of an unknown key nothing.
    fn resolve(&mut self, key: &[u8], before: u64) -> &[Held] {
        if let Some(mut entry) = self.keys.remove(key) {
            let epoch = entry.epoch;
            for row in self.rows.iter().filter(|row| row.id > epoch) {
                if row.id > before && !self.makes(Mistake::ReplayAll) {
                    break;
                }
                if key.starts_with(&row.prefix) {
                    self.apply(&mut entry.history, row);
                }
                entry.epoch = row.id;
            }
            self.keys.insert(key.to_vec(), entry);
        }
        self.keys.get(key).map_or(&[], |entry| &entry.history)
    }

    fn apply(&self, history: &mut Vec<Held>, row: &RollBack) {
        let counts = |one: &Held| match one.origin {
            Origin::Written => true,
            Origin::Restored => !self.makes(Mistake::RestoreNotCounted),
            Origin::RolledBack => false,
        };
        let since = row.unless_written_since;
        if since.is_some_and(|since| history.iter().any(|one| counts(one) && one.version > since)) {
            return;
        }
        let source = self.source(history, row.target);
        let head = history.last().map_or(NEVER, |head| head.source);
        if source != head || self.makes(Mistake::NoOpCounts) {
            history.push(Held {
                version: row.id,
                source,
                origin: Origin::RolledBack,
            });
        }
    }

    fn source(&self, history: &[Held], target: Target) -> u64 {
        let moment = match target {
            Target::Back(back) => {
                let found = history.iter().rev().nth(back as usize);
                return found.map_or(NEVER, |one| one.source);
            }
            Target::Moment(moment) => moment,
        };
        if self.makes(Mistake::TargetBySource) {
            let sources = history.iter().map(|one| one.source);
            return sources.filter(|it| *it <= moment).max().unwrap_or(NEVER);
        }
        let older = history.partition_point(|one| one.version <= moment);
        older.checked_sub(1).map_or(NEVER, |at| history[at].source)
    }

    fn log_and_add(&mut self, key: &[u8], held: Held) {
        self.log.push(Logged::Put(key.to_vec(), held));
        self.add(key, held);
    }

    /// A new key is as if resolved: it was not there before.
    fn add(&mut self, key: &[u8], held: Held) {
        let older = self.rows.iter().filter(|row| row.id < held.version);
        let epoch = older.map(|row| row.id).max().unwrap_or(0);
        let entry = self.keys.entry(key.to_vec()).or_insert_with(|| Entry {
            epoch,
            ..Entry::default()
        });
        entry.history.push(held);
    }

    /// A write, perhaps on condition that the head is this one.
    ///
    /// # Errors
    /// It is another one.
    pub fn write(&mut self, key: &[u8], if_version: Option<u64>) -> Result<u64, Refused> {
        let head = if self.makes(Mistake::WriteUnresolved) {
            self.keys.get(key).and_then(|it| it.history.last().copied())
        } else {
            self.resolve(key, u64::MAX).last().copied()
        };
        let head = head.map_or(0, |head| head.version);
        if if_version.is_some_and(|wanted| wanted != head) {
            return Err(Refused::Mismatch);
        }
        let version = self.next();
        let held = Held {
            version,
            source: version,
            origin: Origin::Written,
        };
        self.log_and_add(key, held);
        Ok(version)
    }

    /// One key gets the content of one of its versions again: an ordinary write.
    ///
    /// # Errors
    /// There is no such version.
    pub fn restore(&mut self, key: &[u8], from: u64) -> Result<u64, Refused> {
        let history = self.resolve(key, u64::MAX);
        let found = history.iter().find(|one| one.version == from).copied();
        let source = found.ok_or(Refused::NoSuch)?.source;
        let version = self.next();
        let held = Held {
            version,
            source,
            origin: Origin::Restored,
        };
        self.log_and_add(key, held);
        Ok(version)
    }

    /// A roll back of all keys with a prefix.
    ///
    /// # Errors
    /// What it needs is not known any more.
    pub fn roll_back(
        &mut self,
        prefix: &[u8],
        target: Target,
        unless_written_since: Option<u64>,
    ) -> Result<RollBack, Refused> {
        let is_known = match target {
            Target::Moment(moment) => self.knows(moment) || self.makes(Mistake::FloorIgnored),
            Target::Back(back) => (back as usize) < self.min_count,
        };
        let since = unless_written_since.unwrap_or(u64::MAX);
        if !is_known || since < self.floor && !self.makes(Mistake::KeepBelowFloor) {
            return Err(Refused::Trimmed);
        }
        let row = RollBack {
            id: self.next(),
            prefix: prefix.to_vec(),
            target,
            unless_written_since,
        };
        self.rows.push(row.clone());
        Ok(row)
    }

    /// A key's versions that are kept, oldest first.
    pub fn list(&mut self, key: &[u8]) -> Vec<Held> {
        self.resolve(key, u64::MAX).to_vec()
    }

    /// The source of what a key was at a moment.
    ///
    /// # Errors
    /// That is not known any more.
    pub fn as_of(&mut self, key: &[u8], moment: u64) -> Result<u64, Refused> {
        if !self.knows(moment) {
            return Err(Refused::Trimmed);
        }
        let history = self.resolve(key, u64::MAX).to_vec();
        Ok(self.source(&history, Target::Moment(moment)))
    }

    /// The version `back` before the head.
    pub fn back(&mut self, key: &[u8], back: usize) -> Option<Held> {
        self.resolve(key, u64::MAX).iter().rev().nth(back).copied()
    }

    /// Holds the present moment under this name.
    pub fn snapshot(&mut self, name: u8) {
        self.snapshots.insert(name, self.newest);
    }

    /// Lets go of what this name holds.
    pub fn release(&mut self, name: u8) {
        self.snapshots.remove(&name);
    }

    /// Trims whatever nothing holds: not min-age, not min-count, no snapshot.
    pub fn collect(&mut self) {
        let late = if self.makes(Mistake::FloorLate) { 3 } else { 0 };
        let moment = self.newest.saturating_sub(self.min_age);
        self.floor = self.floor.max(moment.saturating_sub(late));
        let keys: Vec<Vec<u8>> = self.keys.keys().cloned().collect();
        for key in keys {
            if !self.makes(Mistake::CollectUnresolved) {
                self.resolve(&key, u64::MAX);
            }
            let Some(entry) = self.keys.get(&key) else {
                continue;
            };
            let (epoch, kept) = (entry.epoch, self.kept(&entry.history, moment));
            self.log.push(Logged::Trim {
                key: key.clone(),
                epoch,
                kept: kept.clone(),
            });
            if let Some(entry) = self.keys.get_mut(&key) {
                entry.history = kept;
            }
        }
    }

    fn kept(&self, history: &[Held], moment: u64) -> Vec<Held> {
        let is_kept = |position: usize| {
            let held = history[position];
            let ended = history.get(position + 1).map_or(u64::MAX, |it| it.version);
            let life = held.version..ended;
            let is_held = self.snapshots.values().any(|it| life.contains(it))
                && !self.makes(Mistake::PinsIgnored);
            let is_young = if self.makes(Mistake::AgeFromBirth) {
                held.version > moment
            } else {
                ended > moment
            };
            let is_new = history.len() - position <= self.min_count;
            is_young || is_new || is_held || ended == u64::MAX
        };
        let positions = (0..history.len()).filter(|position| is_kept(*position));
        positions.map(|position| history[position]).collect()
    }

    /// Writes resolved arrays: older rows may go.
    pub fn checkpoint(&mut self) {
        if !self.makes(Mistake::CheckpointUnresolved) {
            let keys: BTreeSet<Vec<u8>> = self.keys.keys().cloned().collect();
            for key in keys {
                self.resolve(&key, u64::MAX);
            }
        }
        self.rows.clear();
        self.log.clear();
        self.saved = self.keys.clone();
    }

    /// A crash: memory is gone. Rows, floor and snapshots are durable; keys come from checkpoint and log.
    pub fn recover(&mut self) {
        self.keys = self.saved.clone();
        for record in self.log.clone() {
            match record {
                Logged::Put(key, held) => {
                    self.resolve(&key, held.version);
                    self.add(&key, held);
                }
                Logged::Trim { key, epoch, kept } => {
                    if !self.makes(Mistake::ReplayTrimUnresolved) {
                        self.resolve(&key, epoch);
                    }
                    if let Some(entry) = self.keys.get_mut(&key) {
                        entry.history.retain(|held| kept.contains(held));
                    }
                }
            }
        }
    }
}
