// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random histories, played on the engine and on the oracle at once.
//!
//! Invariants of the engine that it checks at every step:
//! 1. What it has of a key is what the oracle has, less what it said it trimmed; gaps stand where that was.
//! 2. What it trims nothing holds. What it forgets is deleted, long enough, and has no version left.
//! 3. It refuses what is not known, and nothing else.
//! 4. A crash changes nothing: keys from a checkpoint and the log behind it are as they were.

use std::collections::{BTreeMap, BTreeSet};

use erb_store::layout::Layout;
use erb_store::mistake::{Broken, Mistake};
use erb_store::{
    Condition, Held, Key, KeyHasher, Needed, Place, Refused, Retention, RollBack, Saved, Selector,
    Target, Trim, Version, Versions,
};
use fastrand::Rng;

use crate::oracle::{self, NEVER, Oracle, Origin, Past};
use crate::play;

/// What a judge finds.
pub(crate) type Judgement = Result<(), String>;

/// Bytes that a record takes in the store that is not there.
const RECORD_BYTES: u64 = 4096;
const MEMORY_BYTES: usize = 1 << 30;
/// Where they would lie.
const LAYOUT: Layout = Layout {
    store_bytes: 1 << 30,
    segment_bytes: 1 << 20,
    area_bytes: 1 << 20,
    shards: 1,
};

/// What kind of history.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Different keys.
    pub keys: u32,
    /// Operations.
    pub steps: u32,
    /// Every so many of them, all keys are compared.
    pub full_every: u32,
}

/// A record of the log.
enum Logged {
    Change(Vec<u8>, Held),
    Restore(Vec<u8>, Version, Version),
    Trim(Trim),
    Move(Vec<u8>, u64, Place),
}

/// Engine, oracle, and what a crash leaves.
pub(crate) struct Judge {
    pub(crate) random: Rng,
    pub(crate) keys: u32,
    pub(crate) engine: Versions<Broken>,
    pub(crate) oracle: Oracle,
    pub(crate) newest: u64,
    /// Reads below it are none that GC would have to spare.
    pub(crate) lowest_cut: u64,
    mistake: Option<Mistake>,
    next_address: u64,
    /// By address: the write that lies there.
    sources: BTreeMap<u64, u64>,
    /// Keys that lost the hold of min-count once.
    let_go: BTreeSet<Vec<u8>>,
    /// Keys that were forgotten: when they were deleted.
    pub(crate) forgotten: BTreeMap<Vec<u8>, u64>,
    rows: Vec<RollBack>,
    saved: Vec<Saved>,
    log: Vec<Logged>,
}

/// Plays one history.
///
/// # Errors
/// Where the engine errs.
pub fn judge(seed: u64, profile: &Profile, mistake: Option<Mistake>) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    let retention = Retention::new([1, 1, 2, 4][random.usize(..4)]);
    let mut judge = Judge {
        engine: engine(retention, mistake),
        random,
        keys: profile.keys,
        oracle: Oracle::default(),
        newest: 0,
        lowest_cut: 0,
        mistake,
        next_address: LAYOUT.segment_at(0),
        sources: BTreeMap::new(),
        let_go: BTreeSet::new(),
        forgotten: BTreeMap::new(),
        rows: Vec::new(),
        saved: Vec::new(),
        log: Vec::new(),
    };
    let mut play = || {
        for step in 1..=profile.steps {
            play::step(&mut judge)?;
            if step % profile.full_every == 0 {
                judge.all_keys()?;
            }
        }
        judge.all_keys()
    };
    play().map_err(|difference| format!("seed {seed}: {difference}"))
}

fn engine(retention: Retention, mistake: Option<Mistake>) -> Versions<Broken> {
    let hasher = KeyHasher::new([5, 6]);
    let mut engine = Versions::new(hasher, retention, MEMORY_BYTES, Broken(mistake));
    engine.count_segments(LAYOUT);
    engine
}

/// The oracle's name of a key: its namespace before it.
pub(crate) fn name_of(key: Key<'_>) -> Vec<u8> {
    [&key.namespace.to_be_bytes()[..], key.bytes].concat()
}

/// The key of such a name.
pub(crate) fn key_of(name: &[u8]) -> Key<'_> {
    Key {
        namespace: u16::from_be_bytes([name[0], name[1]]),
        bytes: &name[2..],
    }
}

pub(crate) fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    engine: &T,
    oracle: &T,
) -> Judgement {
    if engine == oracle {
        return Ok(());
    }
    Err(format!("{what}: engine {engine:?}, oracle {oracle:?}"))
}

impl Judge {
    /// A version above all others; sometimes some are left out.
    pub(crate) fn next(&mut self) -> Version {
        self.newest += self.random.u64(1..3);
        Version::new(self.newest)
    }

    pub(crate) fn now(&self) -> Version {
        Version::new(self.newest)
    }

    /// What the engine holds, in the oracle's words.
    pub(crate) fn past_of(&self, held: Held) -> Past {
        let source = held
            .place
            .address()
            .map_or(Some(NEVER), |address| self.sources.get(&address).copied());
        Past {
            version: held.version.number(),
            source: source.unwrap_or(u64::MAX),
            origin: match held.place.origin() {
                erb_store::Origin::Written => Origin::Written,
                erb_store::Origin::Restored => Origin::Restored,
                erb_store::Origin::RolledBack => Origin::RolledBack,
            },
            deleted: held.place.is_deleted(),
            trimmed: false,
        }
    }

    /// A put or a delete whose condition is met.
    pub(crate) fn write(&mut self, name: &[u8], is_delete: bool) -> Judgement {
        let version = self.next();
        self.next_address += RECORD_BYTES;
        let place = Place::written(self.next_address, RECORD_BYTES, is_delete);
        self.sources.insert(self.next_address, version.number());
        let held = Held { version, place };
        let applied = self.engine.apply(key_of(name), held);
        applied.map_err(|refused| format!("a change was refused: {refused:?}"))?;
        self.log.push(Logged::Change(name.to_vec(), held));
        self.oracle.write(name, version.number(), is_delete);
        self.one_key(name)
    }

    /// A restore of what the engine has found.
    pub(crate) fn restore(&mut self, name: &[u8], place: Place, from: Version) -> Judgement {
        let version = self.next();
        let applied = self.engine.apply(key_of(name), Held { version, place });
        applied.map_err(|refused| format!("a restore was refused: {refused:?}"))?;
        self.log.push(Logged::Restore(name.to_vec(), version, from));
        let known = self.oracle.restore(name, version.number(), from.number());
        same("a restore takes what was there", &known, &true)?;
        self.one_key(name)
    }

    /// The content of one of a key's versions is copied elsewhere.
    pub(crate) fn move_one(&mut self, name: &[u8]) -> Judgement {
        let listed = self
            .engine
            .list(key_of(name), Version::MAX, Version::MAX, usize::MAX);
        let listed = listed.map_err(|refused| format!("{refused:?}"))?.versions;
        let places = listed
            .iter()
            .filter_map(|held| Some((held.place.address()?, held.place)));
        let Some((from, place)) = self.random.choice(places.collect::<Vec<_>>()) else {
            return Ok(());
        };
        self.next_address += RECORD_BYTES;
        let to = Place::written(self.next_address, RECORD_BYTES, place.is_deleted());
        let source = self.sources.get(&from).copied().unwrap_or(u64::MAX);
        self.sources.insert(self.next_address, source);
        let is_moved = self.engine.move_place(key_of(name), from, to);
        same("a move of what is needed", &is_moved, &true)?;
        self.log.push(Logged::Move(name.to_vec(), from, to));
        self.one_key(name)
    }

    /// What segments hold that is needed is what keys have.
    fn usage(&mut self, names: &[Vec<u8>]) -> Judgement {
        let mut wanted: BTreeMap<u32, Needed> = BTreeMap::new();
        for name in names {
            let listed = self
                .engine
                .list(key_of(name), Version::MAX, Version::MAX, usize::MAX);
            let listed = listed.map_err(|refused| format!("{refused:?}"))?.versions;
            let places = listed.iter().map(|held| held.place);
            let places: BTreeMap<Option<u64>, Place> =
                places.map(|place| (place.address(), place)).collect();
            for (address, place) in places {
                if let Some(segment) = address.and_then(|it| LAYOUT.segment_of(it)) {
                    let needed = wanted.entry(segment).or_default();
                    needed.records += 1;
                    needed.sectors += place.sectors() as u32;
                }
            }
        }
        for segment in 0..LAYOUT.segments() {
            let wanted = wanted.get(&segment).copied().unwrap_or_default();
            let what = format!("what is needed of segment {segment}");
            same(&what, &self.engine.needed(segment), &wanted)?;
        }
        Ok(())
    }

    /// A roll back that was not refused.
    pub(crate) fn roll_back(&mut self, row: RollBack) -> Judgement {
        let prefix = name_of(Key {
            namespace: row.namespace,
            bytes: &row.prefix,
        });
        if let Target::Back(back) = row.target {
            self.back_is_known(&prefix, back as usize)?;
        }
        self.oracle.roll_back(&oracle::RollBack {
            id: row.id.number(),
            prefix,
            target: match row.target {
                Target::Moment(moment) => oracle::Target::Moment(moment.number()),
                Target::Back(back) => oracle::Target::Back(back),
            },
            unless_written_since: row.unless_written_since.map(Version::number),
        });
        self.rows.push(row.clone());
        self.engine.roll_back(row);
        Ok(())
    }

    /// No key would have been counted back over a gap, but those that were deleted for long.
    fn back_is_known(&self, prefix: &[u8], back: usize) -> Judgement {
        let mut keys = self
            .oracle
            .keys()
            .filter(|(name, _)| name.starts_with(prefix));
        let broken = keys.find(|(name, past)| {
            let mut newest = past.iter().rev().take(back + 1);
            newest.any(|one| one.trimmed) && !self.let_go.contains(*name)
        });
        match broken {
            None => Ok(()),
            Some((name, _)) => Err(format!("{back} back was not refused, {name:?} has a gap")),
        }
    }

    /// The last row, if it is live.
    pub(crate) fn last_row(&self) -> Option<&RollBack> {
        self.rows.last()
    }

    /// Takes note of a trim, if nothing holds what it took.
    pub(crate) fn trimmed(&mut self, trim: Trim, below: Version) -> Judgement {
        let name = name_of(Key {
            namespace: trim.namespace,
            bytes: &trim.bytes,
        });
        let retention = self.engine.retention().clone();
        let bound = retention.floor().min(below).number();
        let past = self.oracle.past(&name).to_vec();
        let head = *past.last().ok_or("a trim of an unknown key")?;
        let deleted_bound = bound.min(retention.deleted_floor().number());
        let is_let_go = head.deleted && head.version <= deleted_bound;
        for version in trim.versions.iter().map(|version| version.number()) {
            if version == head.version {
                continue;
            }
            let position = past.iter().position(|one| one.version == version);
            let position = position.ok_or("a trim of an unknown version")?;
            let ended = past[position + 1].version;
            let is_counted = past.len() - position <= retention.min_count() as usize;
            let mut snapshots = retention.snapshots().map(Version::number);
            let is_held = snapshots.any(|moment| (version..ended).contains(&moment));
            if ended > bound || is_counted && !is_let_go || is_held || past[position].trimmed {
                return Err(format!("{name:?}: version {version} was trimmed: {past:?}"));
            }
            self.oracle.trim(&name, version);
        }
        if is_let_go {
            self.let_go.insert(name.clone());
        }
        if trim.versions.last().map(|version| version.number()) == Some(head.version) {
            let past = self.oracle.past(&name);
            let has_others = past[..past.len() - 1].iter().any(|one| !one.trimmed);
            if has_others || !is_let_go || !self.oracle.forget(&name) {
                return Err(format!(
                    "{name:?} was forgotten: {past:?}",
                    past = self.oracle.past(&name)
                ));
            }
            self.forgotten.insert(name.clone(), head.version);
        }
        self.log.push(Logged::Trim(trim));
        self.one_key(&name)
    }

    /// All keys are saved: rows and log may go.
    pub(crate) fn checkpoint(&mut self) {
        let rows_up_to = self.rows.last().map_or(Version::ZERO, |row| row.id);
        self.saved.clear();
        let mut from = Some(0);
        while let Some(hash) = from {
            let (saved, next) = self.engine.save(hash);
            self.saved.extend(saved);
            from = next;
        }
        self.engine.forget_rows(rows_up_to);
        self.rows.clear();
        self.log.clear();
    }

    /// Memory is gone: rows and retention come from the control log, keys from checkpoint and log.
    pub(crate) fn crash(&mut self) -> Judgement {
        let retention = self.engine.retention().clone();
        self.engine = engine(retention, self.mistake);
        for row in &self.rows {
            self.engine.roll_back(row.clone());
        }
        for saved in &self.saved {
            self.engine.load(saved);
        }
        for logged in &self.log {
            let replayed = match logged {
                Logged::Change(name, held) => self.engine.apply(key_of(name), *held),
                Logged::Restore(name, version, from) => {
                    self.engine.replay_restore(key_of(name), *version, *from)
                }
                Logged::Trim(trim) => {
                    self.engine.replay_trim(trim);
                    Ok(())
                }
                Logged::Move(name, from, to) => {
                    self.engine.move_place(key_of(name), *from, *to);
                    Ok(())
                }
            };
            replayed.map_err(|refused| format!("replay is refused: {refused:?}"))?;
        }
        self.engine.recovered();
        Ok(())
    }

    /// What the engine has of a key is what the oracle has, less what was trimmed.
    pub(crate) fn one_key(&mut self, name: &[u8]) -> Judgement {
        let listed = self
            .engine
            .list(key_of(name), Version::MAX, Version::MAX, usize::MAX);
        let mut listed = listed.map_err(|refused| format!("{refused:?}"))?.versions;
        listed.reverse();
        let found: Vec<Past> = listed.iter().map(|held| self.past_of(*held)).collect();
        let full = self.oracle.past(name);
        let kept: Vec<Past> = full.iter().filter(|one| !one.trimmed).copied().collect();
        same(&format!("{name:?}"), &found, &kept)?;
        let gaps: Vec<bool> = listed.iter().map(|held| held.place.has_gap()).collect();
        let trimmed_before = |position: usize| position > 0 && full[position - 1].trimmed;
        let positions = (0..full.len()).filter(|position| !full[*position].trimmed);
        let wanted: Vec<bool> = positions.map(trimmed_before).collect();
        same(&format!("gaps of {name:?}"), &gaps, &wanted)
    }

    fn all_keys(&mut self) -> Judgement {
        let names: Vec<Vec<u8>> = self.oracle.keys().map(|(name, _)| name.to_vec()).collect();
        for name in &names {
            self.one_key(name)?;
        }
        same("keys", &self.engine.keys_len(), &names.len())?;
        self.usage(&names)?;
        let bytes = names.iter().map(|name| {
            let kept = self
                .oracle
                .past(name)
                .iter()
                .filter(|one| !one.trimmed)
                .count();
            let length = key_of(name).bytes.len();
            let long_bytes = if length > 16 { length + 16 } else { 0 };
            72 + 24 * (kept - 1) + long_bytes
        });
        same(
            "memory by the budget",
            &self.engine.budget_bytes(),
            &bytes.sum(),
        )
    }

    /// Reads as the oracle would; none: refused.
    pub(crate) fn read_by_oracle(
        &self,
        name: &[u8],
        selector: Selector,
        cut: Version,
    ) -> Result<Option<Past>, Refused> {
        let past = self.oracle.past(name).iter();
        let visible: Vec<Past> = past
            .filter(|one| one.version <= cut.number())
            .copied()
            .collect();
        match selector {
            Selector::Head => Ok(visible.last().copied()),
            Selector::AsOf(moment) if moment > cut => Err(Refused::Future),
            Selector::AsOf(moment) if !self.engine.retention().knows(moment) => {
                Err(Refused::Trimmed)
            }
            Selector::AsOf(moment) => Ok(self.oracle.at(name, moment.number())),
            Selector::Version(version) => {
                let found = visible.iter().find(|one| one.version == version.number());
                match found {
                    Some(one) if !one.trimmed => Ok(Some(*one)),
                    Some(_) => Err(Refused::Trimmed),
                    None => Err(Refused::NoSuch),
                }
            }
            Selector::Back(back) => {
                let mut newest = visible.iter().rev().take(back as usize + 1);
                if newest.any(|one| one.trimmed) {
                    return Err(Refused::Trimmed);
                }
                let found = visible.iter().rev().nth(back as usize);
                found.copied().map(Some).ok_or(Refused::NoSuch)
            }
        }
    }

    /// Whether a condition is met, as the oracle has it.
    pub(crate) fn is_met(&self, name: &[u8], condition: Condition) -> bool {
        let head = self.oracle.past(name).last();
        let is_absent = head.is_none_or(|head| head.deleted);
        match condition {
            Condition::Any => true,
            Condition::Absent | Condition::Head(Version::ZERO) => is_absent,
            Condition::Present => !is_absent,
            Condition::Head(version) => head.is_some_and(|head| head.version == version.number()),
        }
    }
}
