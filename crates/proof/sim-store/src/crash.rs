// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histories of a whole store: several shards and their control log on a simulated disk, with crashes.
//!
//! Invariants that it checks:
//! 1. What the watermark has passed is there after every crash: it may have been acknowledged, or read.
//! 2. Of the rest each shard keeps a beginning of what was written. A batch over shards is there whole or not at all.
//! 3. Each key has what the oracle has of what is there, less what nothing holds; gaps stand where that was.
//! 4. Reads at the watermark see what the oracle has at it.
//! 5. No version is ever given twice.
//! 6. A value that is read is the one that was written, from the disk and from the cache. The cache is bounded.
//! 7. Snapshots that were acknowledged are held, each until its end, and what they hold is there. Those whose end has
//!    come do end.
//! 8. Segments balance, and each shard's count of what is needed in them is what its keys need.
//! 9. Versions expire when the put said whose content they have. What is over counts as absent.
//! 10. However full a store is, writers are answered, and a roll back is done.

use std::collections::{BTreeMap, HashMap};

use erb_sim_disk::CrashMode;
use erb_store::control::Outcome;
use erb_store::message::What;
use erb_store::mistake::{Broken, Mistake};
use erb_store::shard::{NotWritten, Writer, Written};
use erb_store::space::Space;
use erb_store::{Condition, Held, Origin, Refused, RollBack, Selector, Target, Version};
use fastrand::Rng;

use crate::judge::{Judgement, key_of, same};
use crate::node::Node;
use crate::oracle::{self, NEVER, Oracle, Past};
use crate::plan::Plan;
use crate::values::Read;

pub(crate) const KEYS: u32 = 6;
const VALUE_BYTES_MAX: usize = 9000;
/// While space is short a store that grows does so at one of so many steps.
const GROWTH_STEPS: u32 = 60;
/// Not all of them are kept back then.
const GROWTH_SEGMENTS: u64 = 40;
/// Within so many steps it may be stopped.
const STOPPED_STEPS: u32 = 150;

/// What was done to one or several keys.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    Write {
        name: Vec<u8>,
        deleted: bool,
    },
    Restore {
        name: Vec<u8>,
        from: u64,
    },
    /// Keys, and whether each was deleted.
    Batch(Vec<(Vec<u8>, bool)>),
    RollBack(oracle::RollBack),
}

/// What was asked of all shards.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    RollBack(RollBack),
    Batch(Vec<(Vec<u8>, bool)>),
    /// Held until the retention clock has run so long.
    Snapshot {
        until_us: u64,
    },
    /// Of a moment. From this time on it may have ended by itself, and then the release takes another one.
    Release(Version, u64),
    Other,
}

/// A snapshot that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub(crate) moment: Version,
    /// It is held until the retention clock has run so long.
    pub(crate) until_us: u64,
}

/// What a history has met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    /// Bytes that collecting has copied.
    pub copied: u64,
    /// Segments that were scrubbed.
    pub scrubbed: u64,
    /// Segments that were used more than once.
    pub reused: u64,
    /// Writes that were refused for want of space.
    pub refused: u64,
    /// Values that needed no disk.
    pub cached: u64,
    /// What clients have asked.
    pub operations: u64,
    /// How often process or machine have stopped, recoveries that were cut off apart.
    pub crashes: u64,
    /// Segments that a store had more at its end, and how many of those were used.
    pub grown: u64,
    /// See there.
    pub grown_used: u64,
}

pub(crate) struct World {
    pub(crate) random: Rng,
    pub(crate) node: Node,
    pub(crate) oracle: Oracle,
    /// What the oracle does not know yet, by version: it may be lost. Of a write its shard.
    pub(crate) pending: BTreeMap<u64, (Option<u16>, Done)>,
    /// Everything up to here the oracle knows.
    pub(crate) known_to: u64,
    pub(crate) asked: BTreeMap<u64, Asked>,
    pub(crate) next_ticket: u64,
    /// By address and use of its segment: the write that lies there.
    pub(crate) sources: HashMap<(u64, u32), u64>,
    /// Reads of values that are under way.
    pub(crate) reads: Vec<Read>,
    pub(crate) values: HashMap<u64, Vec<u8>>,
    /// By the write that said so: when its value expires.
    pub(crate) expiries: HashMap<u64, u64>,
    pub(crate) snapshots: Vec<Snapshot>,
    /// The highest version that anybody was given.
    pub(crate) highest: u64,
    /// Segments that the store was made with.
    segments: u32,
    /// A growth is stopped behind so many steps.
    stops_in: Option<u32>,
    pub(crate) met: Met,
}

/// Plays one history.
///
/// # Errors
/// What it has shown.
pub fn crash(seed: u64, plan: &Plan, mistake: Option<Mistake>) -> Result<Met, String> {
    let said = |difference| format!("seed {seed}, {plan:?}: {difference}");
    let mut world = World::new(seed, plan, mistake).map_err(said)?;
    let mut play = || {
        for step in 0..plan.steps {
            if plan.crash_at == Some(step) {
                world.crash(CrashMode::Power)?;
            }
            world.step(plan)?;
        }
        world.is_not_stuck()?;
        world.crash(CrashMode::Power)
    };
    play().map_err(said)?;
    let state = world.node.store.control.state();
    world.met.grown = state.segments.len() as u64 - u64::from(world.segments);
    let new = state.segments.iter().skip(world.segments as usize);
    world.met.grown_used = new.filter(|segment| segment.uses > 0).count() as u64;
    let segments = state.segments.iter();
    world.met.reused = segments.filter(|segment| segment.uses > 1).count() as u64;
    Ok(world.met)
}

impl World {
    pub(crate) fn new(seed: u64, plan: &Plan, mistake: Option<Mistake>) -> Result<Self, String> {
        let mut random = Rng::with_seed(seed);
        let shards = random.u16(1..=3);
        let node = Node::format(random.fork(), shards, plan.faults, Broken(mistake))?;
        let segments = node.store.layout().segments();
        Ok(Self {
            random,
            node,
            oracle: Oracle::default(),
            pending: BTreeMap::new(),
            known_to: 0,
            asked: BTreeMap::new(),
            next_ticket: 1,
            sources: HashMap::new(),
            reads: Vec::new(),
            values: HashMap::new(),
            expiries: HashMap::new(),
            snapshots: Vec::new(),
            highest: 0,
            segments,
            stops_in: None,
            met: Met::default(),
        })
    }

    pub(crate) fn step(&mut self, plan: &Plan) -> Judgement {
        if self.node.has_failed() {
            return self.crash(CrashMode::Process);
        }
        if plan.grows {
            self.grow()?;
        }
        let what = self.random.u32(..1000);
        self.met.operations += u64::from(matches!(what, 0..260 | 940..980 | 984..990));
        match what {
            0..200 => self.write()?,
            200..230 => self.restore()?,
            230..260 => self.ask(),
            260..450 => self.node.deliver(),
            450..600 => self.node.begin_write(),
            600..800 => self.node.end_write(),
            800..860 => self.node.tick(),
            860..890 => self.sweep()?,
            890..930 => self.node.collect(),
            930..940 => self.node.scrub_fast()?,
            940..980 => self.read()?,
            980..982 if !plan.is_calm => self.crash(CrashMode::Process)?,
            982..984 if !plan.is_calm => self.crash(CrashMode::Power)?,
            984..990 => self.begin_read()?,
            990..994 => self.end_read()?,
            _ => self.accounts_balance()?,
        }
        self.advance()
    }

    /// New segments are used soon where others are short. Some growths are stopped soon.
    fn grow(&mut self) -> Judgement {
        if let Some(left) = self.stops_in {
            self.stops_in = left.checked_sub(1);
            if left == 0 {
                let is_power = self.random.bool();
                let mode = if is_power {
                    CrashMode::Power
                } else {
                    CrashMode::Process
                };
                self.crash(mode)?;
            }
        }
        let is_short = self.node.store.shared.space() >= Space::Short;
        if is_short && self.random.u32(..GROWTH_STEPS) == 0 {
            let segments = self.random.u64(1..GROWTH_SEGMENTS);
            let stops = self.node.grow_running(segments) && self.random.bool();
            self.stops_in = stops.then(|| self.random.u32(..STOPPED_STEPS));
        }
        Ok(())
    }

    pub(crate) fn name(&mut self) -> Vec<u8> {
        name_of(self.random.u32(..KEYS))
    }

    pub(crate) fn value(&mut self) -> Vec<u8> {
        let length = match self.random.u8(..4) {
            0 => self.random.usize(..VALUE_BYTES_MAX),
            _ => self.random.usize(..100),
        };
        vec![self.random.u8(..); length]
    }

    /// A version has been given.
    pub(crate) fn given(&mut self, version: Version) -> Judgement {
        let number = version.number();
        if number <= self.highest {
            return Err(format!("version {number} is not above {}", self.highest));
        }
        self.highest = number;
        Ok(())
    }

    fn change(
        &mut self,
        name: &[u8],
        what: What<'_>,
        expiry_ms: u64,
    ) -> Result<Option<Version>, String> {
        let (key, now_us) = (key_of(name), self.node.now_us());
        let writer = Writer {
            may_use_reserve: self.random.u8(..4) == 0,
            expiry_ms,
            ..Writer::default()
        };
        let condition = match self.random.u8(..8) {
            0 => Condition::Absent,
            1 => Condition::Present,
            _ => Condition::Any,
        };
        let is_met = self.is_met(name, condition)?;
        let written = self
            .node
            .shard(key)
            .write(key, what, condition, writer, now_us);
        if let (Ok(_), false) = (&written, is_met) {
            return Err(format!(
                "{condition:?} of {name:?} is not met, and it is written"
            ));
        }
        match written {
            Err(NotWritten::Refused(Refused::Mismatch, _)) => {
                same("a condition that is not met", &is_met, &false)?;
                Ok(None)
            }
            Ok(Written::Version(version)) => {
                self.given(version)?;
                Ok(Some(version))
            }
            Ok(Written::Absent(_)) => Ok(None),
            Err(NotWritten::Busy | NotWritten::Frozen | NotWritten::Failed) => Ok(None),
            Err(NotWritten::Refused(Refused::NoSpace | Refused::NoSpaceForLive, _)) => {
                self.met.refused += 1;
                Ok(None)
            }
            Err(NotWritten::Refused(Refused::NoSuch | Refused::Trimmed, _)) => Ok(None),
            Err(NotWritten::Refused(refused, _)) => Err(format!("a write is refused: {refused:?}")),
        }
    }

    fn write(&mut self) -> Judgement {
        let name = self.name();
        let deleted = self.random.u8(..5) == 0;
        let value = self.value();
        let what = if deleted {
            What::Delete
        } else {
            What::Put(&value)
        };
        let expiry_ms = match self.random.u8(..3) {
            0 if !deleted => self.node.now_us() / 1000 + self.random.u64(..20_000),
            _ => 0,
        };
        let Some(version) = self.change(&name, what, expiry_ms)? else {
            return Ok(());
        };
        if deleted {
            self.learn(&name)?;
            let shard = self.node.shard_of(key_of(&name));
            let done = Done::Write { name, deleted };
            self.pending.insert(version.number(), (Some(shard), done));
            return Ok(());
        }
        if expiry_ms > 0 {
            self.expiries.insert(version.number(), expiry_ms);
        }
        self.written(&name, version, value)
    }

    /// A value was put.
    pub(crate) fn written(&mut self, name: &[u8], version: Version, value: Vec<u8>) -> Judgement {
        self.learn(name)?;
        self.values.insert(version.number(), value);
        let shard = self.node.shard_of(key_of(name));
        let done = Done::Write {
            name: name.to_vec(),
            deleted: false,
        };
        self.pending.insert(version.number(), (Some(shard), done));
        Ok(())
    }

    fn restore(&mut self) -> Judgement {
        let name = self.name();
        let from = Selector::Back(self.random.u32(..3));
        let found = self
            .node
            .shard(key_of(&name))
            .read(key_of(&name), from, Version::MAX);
        let Some(version) = self.change(&name, What::Restore(from), 0)? else {
            return Ok(());
        };
        let found = found.ok().flatten().ok_or("a restore of nothing")?;
        let shard = self.node.shard_of(key_of(&name));
        let from = found.version.number();
        let done = Done::Restore { name, from };
        self.pending.insert(version.number(), (Some(shard), done));
        Ok(())
    }

    /// Everything that the engine has of a key, oldest first.
    pub(crate) fn listed(&mut self, name: &[u8], cut: Version) -> Result<Vec<Held>, String> {
        let key = key_of(name);
        let versions = self.node.shard(key).versions_mut();
        let listed = versions.list(key, Version::MAX, cut, usize::MAX);
        let mut listed = listed.map_err(|refused| format!("{refused:?}"))?.versions;
        listed.reverse();
        Ok(listed)
    }

    /// The oracle learns what the watermark has passed.
    pub(crate) fn advance(&mut self) -> Judgement {
        self.end_snapshots();
        while let Some((ticket, outcome)) = self.node.store.control.take_answer() {
            let asked = self.asked.remove(&ticket).ok_or("an answer to nothing")?;
            self.answered(&asked, outcome)?;
        }
        self.end_snapshots();
        let watermark = self.node.watermark().number();
        while let Some(entry) = self.pending.first_entry() {
            if *entry.key() > watermark {
                break;
            }
            let (version, (_, done)) = entry.remove_entry();
            self.apply(version, &done)?;
        }
        self.known_to = self.known_to.max(watermark);
        Ok(())
    }

    /// Nobody may rely on what has ended by itself, or was released in place of such a one.
    fn end_snapshots(&mut self) {
        let run_us = self.node.store.control.run_us();
        let is_doubtful = |moment: Version| {
            let mut asked = self.asked.values();
            asked.any(
                |it| matches!(it, Asked::Release(of, at_us) if *of == moment && *at_us <= run_us),
            )
        };
        let mut snapshots = std::mem::take(&mut self.snapshots);
        snapshots.retain(|it| run_us < it.until_us && !is_doubtful(it.moment));
        self.snapshots = snapshots;
    }

    fn answered(&mut self, asked: &Asked, outcome: Outcome) -> Judgement {
        match (asked, outcome) {
            (Asked::RollBack(row), Ok(id)) => {
                self.add_late(id, Done::RollBack(oracle_row(row, id)))
            }
            (Asked::RollBack(row), Err(Refused::Trimmed)) => {
                let retention = &self.node.store.control.state().retention;
                let is_known = match row.target {
                    Target::Moment(moment) => retention.knows(moment),
                    Target::Back(back) => back == 0,
                };
                same(
                    "a roll back that is refused is not known",
                    &is_known,
                    &false,
                )
            }
            (Asked::Batch(parts), Ok(version)) => {
                let done = self.done_of(parts, version.number())?;
                self.add_late(version, Done::Batch(done))
            }
            (Asked::Snapshot { until_us }, Ok(moment)) => {
                let until_us = *until_us;
                self.snapshots.push(Snapshot { moment, until_us });
                self.end_snapshots();
                Ok(())
            }
            (_, Err(Refused::Busy))
            | (Asked::Batch(_), Err(Refused::NoSpace | Refused::NoSpaceForLive)) => Ok(()),
            (Asked::Other | Asked::Release(..), Ok(_) | Err(Refused::Locked)) => Ok(()),
            (Asked::Release(_, until_us), Err(Refused::NoSuch))
                if self.node.store.control.run_us() >= *until_us =>
            {
                Ok(())
            }
            (asked, outcome) => Err(format!("{asked:?} has come to {outcome:?}")),
        }
    }

    /// What is known only when it is done: nothing behind it may have been seen before.
    pub(crate) fn add_late(&mut self, version: Version, done: Done) -> Judgement {
        let number = version.number();
        if number <= self.known_to {
            return Err(format!(
                "{done:?} came at {number}, {} had been read",
                self.known_to
            ));
        }
        self.highest = self.highest.max(number);
        match self.pending.insert(number, (None, done)) {
            None => Ok(()),
            Some(_) => Err(format!("version {number} was given twice")),
        }
    }

    fn apply(&mut self, version: u64, done: &Done) -> Judgement {
        match done {
            Done::Write { name, deleted } => self.oracle.write(name, version, *deleted),
            Done::Restore { name, from } => {
                let known = self.oracle.restore(name, version, *from);
                return same("a restore takes what was there", &known, &true);
            }
            Done::Batch(parts) => {
                for (name, deleted) in parts {
                    let head = self.oracle.past(name).last();
                    if !deleted || head.is_some_and(|head| !head.deleted) {
                        self.oracle.write(name, version, *deleted);
                    }
                }
            }
            Done::RollBack(row) => self.oracle.roll_back(row),
        }
        Ok(())
    }

    /// A key as it was at the watermark, or at an earlier moment.
    fn read(&mut self) -> Judgement {
        let (name, cut) = (self.name(), Version::new(self.known_to));
        let head = self
            .node
            .shard(key_of(&name))
            .read(key_of(&name), Selector::Head, cut);
        let head = head.map_err(|refused| format!("{refused:?}"))?;
        let wanted = self.oracle.past(&name).last().map(|past| past.version);
        let found = head.map(|held| held.version.number());
        same(&format!("{name:?} at the watermark"), &found, &wanted)?;
        let moment = match self.random.choice(&self.snapshots) {
            Some(held) if self.random.bool() => held.moment,
            _ => Version::new(self.known_to - self.known_to.min(self.random.u64(..1 << 34))),
        };
        let at = Selector::AsOf(moment);
        match self.node.shard(key_of(&name)).read(key_of(&name), at, cut) {
            Ok(held) => {
                let found = held.map(|held| held.version.number());
                let wanted = self.oracle.at(&name, moment.number());
                let wanted = wanted.map(|past| past.version);
                same(&format!("{name:?} at {moment}"), &found, &wanted)?;
            }
            Err(Refused::Trimmed) if !self.holds(moment) => {}
            Err(refused) => return Err(format!("{name:?} at {moment}: {refused:?}")),
        }
        self.compare(&name, cut)
    }

    /// What the engine has of a key up to a cut is what the oracle has, less what nothing holds.
    pub(crate) fn compare(&mut self, name: &[u8], cut: Version) -> Judgement {
        self.learn(name)?;
        let listed = self.listed(name, cut)?;
        let past = self.oracle.past(name);
        let retention = &self.node.store.control.state().retention;
        let floor = retention.floor().number();
        let mut found = listed.iter().peekable();
        let mut has_gap = false;
        for (position, one) in past.iter().enumerate() {
            let held = found.next_if(|held| held.version.number() == one.version);
            let Some(held) = held else {
                let ended = past.get(position + 1).map_or(u64::MAX, |next| next.version);
                let life = one.version..ended;
                let mut snapshots = self.snapshots.iter().map(|it| it.moment.number());
                let is_held = snapshots.any(|moment| life.contains(&moment));
                if ended > floor || position + 1 == past.len() || is_held {
                    return Err(format!(
                        "{name:?} lacks {one:?}, which is held: {listed:?}, of {past:?}; floor {floor}"
                    ));
                }
                has_gap = true;
                continue;
            };
            same(&format!("a version of {name:?}"), &self.of(held), one)?;
            let expiry_ms = self.expiries.get(&one.source).copied().unwrap_or(0);
            let store = self.node.shard_there(key_of(name));
            let found_ms = store.versions().expiry_ms(held);
            same(&format!("when {one:?} expires"), &found_ms, &expiry_ms)?;
            same(
                &format!("gap before {one:?}"),
                &held.place.has_gap(),
                &has_gap,
            )?;
            has_gap = false;
        }
        match found.next() {
            Some(held) => Err(format!("{name:?} has {held:?}, unknown: {past:?}")),
            None => Ok(()),
        }
    }

    fn holds(&self, moment: Version) -> bool {
        self.snapshots.iter().any(|it| it.moment == moment)
    }

    pub(crate) fn of(&self, held: &Held) -> Past {
        let address = held.place.address();
        let source = address.map_or(NEVER, |it| {
            let there = self.node.seat(it);
            self.sources.get(&there).copied().unwrap_or(u64::MAX)
        });
        Past {
            version: held.version.number(),
            source,
            origin: match held.place.origin() {
                Origin::Written => oracle::Origin::Written,
                Origin::Restored => oracle::Origin::Restored,
                Origin::RolledBack => oracle::Origin::RolledBack,
            },
            deleted: held.place.is_deleted(),
            trimmed: false,
        }
    }
}

pub(crate) fn name_of(number: u32) -> Vec<u8> {
    let long = if number == 0 {
        ", which is longer than its entry"
    } else {
        ""
    };
    format!("\0\u{1}k{number}{long}").into_bytes()
}

pub(crate) fn oracle_row(row: &RollBack, id: Version) -> oracle::RollBack {
    oracle::RollBack {
        id: id.number(),
        prefix: [b"\0\x01", &row.prefix[..]].concat(),
        target: match row.target {
            Target::Moment(moment) => oracle::Target::Moment(moment.number()),
            Target::Back(back) => oracle::Target::Back(back),
        },
        unless_written_since: row.unless_written_since.map(Version::number),
    }
}
