// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histories that end with rot: what a log wrote last is damaged while the node is down.
//!
//! Invariants that it checks:
//! 1. What was acknowledged is there, or its place is told. Nothing else of a damaged batch is lost, unless the lengths
//!    of records are damaged.
//! 2. Keys that have nothing in the damaged place have what the oracle has.
//! 3. A value that is read is the one that was written, or refused.
//! 4. A version that a restore or a roll back has made has the content that it had, or is refused, also where what it rests
//!    on is lost.
//! 5. The next start tells the same again.
//!
//! What must be known to have been durable follows from the history alone: behind a clean stop everything; behind a
//! second without writes what had been done before it; else what was done when a batch began that is done too.

use std::collections::{BTreeMap, BTreeSet};

use erb_sim_disk::CrashMode;
use erb_store::batch::{BATCH_HEAD_BYTES, Batch};
use erb_store::mistake::Mistake;
use erb_store::record::{Kind, RECORD_HEAD_BYTES, Seat};
use erb_store::shard::Shard;
use erb_store::{Came, Held, Origin, Refused, Rot, Selector, Version};

use crate::crash::{Asked, KEYS, World, name_of};
use crate::judge::{Judgement, key_of};
use crate::node::Node;
use crate::oracle::{NEVER, Past};
use crate::plan::Plan;

/// Batches of a start that are remembered.
const TRACED: usize = 96;
/// An idle store has noted how far its logs are durable within it.
const IDLE_US: u64 = 3_000_000;
/// Steps within which a store stops.
const PATIENCE: u32 = 20_000;
const SECTOR_BYTES: usize = 512;

/// How the node stops before something rots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is told to.
    Clean,
    /// Process or machine stop.
    Crash,
    /// The same, behind some seconds in which nobody has written.
    Idle,
}

/// A batch that was written since the start.
struct Traced {
    shard: u16,
    lsn: u64,
    address: u64,
    bytes: Vec<u8>,
    /// Batches below it were done when this one began.
    done_below: u64,
    is_done: bool,
}

/// What shards have written since the start.
#[derive(Default)]
pub(crate) struct Trace(Vec<Traced>);

impl Trace {
    pub(crate) fn begun(&mut self, shard: u16, lsn: u64, address: u64, bytes: &[u8]) {
        let undone = self.0.iter().filter(|it| it.shard == shard && !it.is_done);
        let done_below = undone.map(|it| it.lsn).min().unwrap_or(lsn);
        if self.0.len() >= TRACED {
            self.0.remove(0);
        }
        self.0.push(Traced {
            shard,
            lsn,
            address,
            bytes: bytes.to_vec(),
            done_below,
            is_done: false,
        });
    }

    pub(crate) fn ended(&mut self, shard: u16, lsn: u64) {
        let mut all = self.0.iter_mut();
        let it = all.find(|it| it.shard == shard && it.lsn == lsn);
        it.into_iter().for_each(|it| it.is_done = true);
    }

    /// Places of batches that are done, and those of which a later one says so.
    fn done(&self, is_vouched: bool) -> Vec<usize> {
        let says = |it: &Traced| {
            let mut others = self.0.iter().filter(|other| other.shard == it.shard);
            others.any(|other| other.is_done && other.done_below > it.lsn)
        };
        let all = self.0.iter().enumerate().filter(|(_, it)| it.is_done);
        let all = all.filter(|(_, it)| !is_vouched || says(it));
        all.map(|(at, _)| at).collect()
    }
}

/// A record of a batch.
struct Written {
    /// Bytes behind the batch's begin.
    at: usize,
    /// Bytes of its head and key.
    head_bytes: usize,
    /// And of its value.
    bytes: usize,
    name: Vec<u8>,
    version: u64,
    kind: Kind,
}

/// A record that the damage concerns.
struct Hit {
    address: u64,
    name: Vec<u8>,
    version: u64,
    /// It may be lost.
    is_lost: bool,
}

/// What there was before something rotted, by key.
struct Before {
    /// Versions that writes have made.
    written: BTreeMap<Vec<u8>, Vec<u64>>,
    /// What restores and roll backs have made.
    made: BTreeMap<Vec<u8>, BTreeMap<u64, Past>>,
    /// Up to this version all was durable.
    known_to: u64,
}

/// What a history has met.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetRot {
    /// Versions that were lost, and told.
    pub lost: u64,
    /// Versions with a damaged value.
    pub damaged: u64,
    /// What roll backs have made and is uncertain.
    pub uncertain: u64,
    /// Damaged batches of which nothing was lost.
    pub whole: u64,
}

impl Node {
    /// The node is told to stop. False: a write has failed.
    pub(crate) fn stop(&mut self) -> Result<bool, String> {
        for _ in 0..PATIENCE {
            if self.has_failed() {
                return Ok(false);
            }
            let shards = &mut self.store.shards;
            shards.iter_mut().for_each(Shard::end_log);
            let have_ended = shards.iter().all(Shard::has_ended);
            if have_ended && self.store.control.end_log() {
                return Ok(true);
            }
            self.deliver();
            self.begin_write();
            self.end_write();
        }
        Err("the node does not stop".to_owned())
    }

    fn wait_for_writes(&mut self) {
        while self.disk.in_flight() > 0 {
            self.end_write();
        }
    }
}

/// Plays one history to its rotten end.
///
/// # Errors
/// What it has shown.
pub fn rot(seed: u64, plan: &Plan, stop: Stop, mistake: Option<Mistake>) -> Result<MetRot, String> {
    let said = |difference| format!("seed {seed}, {stop:?}, {plan:?}: {difference}");
    let mut world = World::new(seed, plan, mistake).map_err(said)?;
    let mut play = || {
        (0..plan.steps).try_for_each(|_| world.step(plan))?;
        world.rot(stop)
    };
    play().map_err(said)
}

impl World {
    fn rot(&mut self, stop: Stop) -> Result<MetRot, String> {
        if self.node.has_failed() {
            return Ok(MetRot::default());
        }
        let mut known = self.node.trace.done(stop == Stop::Crash);
        match stop {
            Stop::Clean => {
                if !self.node.stop()? {
                    return Ok(MetRot::default());
                }
                known = self.node.trace.done(false);
            }
            Stop::Idle => {
                let mut passed_us = 0;
                while passed_us < IDLE_US {
                    self.node.settle_step();
                    self.node.wait_for_writes();
                    let us = self.random.u64(..10_000);
                    self.node.pass(us);
                    passed_us += us;
                }
                let before: BTreeSet<usize> = known.into_iter().collect();
                let is_old = |at: &usize| before.contains(at);
                known = self
                    .node
                    .trace
                    .done(false)
                    .into_iter()
                    .filter(is_old)
                    .collect();
            }
            Stop::Crash => {}
        }
        self.advance()?;
        let Some(at) = self.choose(&known) else {
            return Ok(MetRot::default());
        };
        let before = Before {
            written: self.versions()?,
            made: self.made()?,
            known_to: self.known_to,
        };
        let hits = self.damage(at);
        self.reads.clear();
        let shard = self.node.trace.0[at].shard;
        self.node.crash_sound(CrashMode::Power)?;
        let mut touched: BTreeSet<Vec<u8>> = hits.iter().map(|hit| hit.name.clone()).collect();
        touched.extend(self.asked_with(&touched));
        self.survivors(&touched)?;
        self.asked.clear();
        self.highest = self.highest.max(self.node.watermark().number());
        self.advance()?;
        let met = self.judge(&before, &hits, &touched, shard)?;
        self.node.crash_sound(CrashMode::Power)?;
        self.judge(&before, &hits, &touched, shard)?;
        Ok(met)
    }

    /// Keys of a batch that nobody was told of, and that has one of these: whether it is there is not known.
    fn asked_with(&self, touched: &BTreeSet<Vec<u8>>) -> Vec<Vec<u8>> {
        let batches = self.asked.values().filter_map(|asked| match asked {
            Asked::Batch(parts) => Some(parts),
            _ => None,
        });
        let batches = batches.filter(|parts| parts.iter().any(|(name, _)| touched.contains(name)));
        batches.flatten().map(|(name, _)| name.clone()).collect()
    }

    /// What writes have made of each key. What a roll back makes follows from that.
    pub(crate) fn versions(&mut self) -> Result<BTreeMap<Vec<u8>, Vec<u64>>, String> {
        let names = (0..KEYS).map(name_of);
        names
            .map(|name| {
                let listed = self.listed(&name, Version::MAX)?;
                let is_written = |held: &&Held| held.place.origin() != Origin::RolledBack;
                let written = listed.iter().filter(is_written);
                let versions = written.map(|held| held.version.number()).collect();
                Ok((name, versions))
            })
            .collect()
    }

    /// What restores and roll backs have made of each key.
    fn made(&mut self) -> Result<BTreeMap<Vec<u8>, BTreeMap<u64, Past>>, String> {
        let names = (0..KEYS).map(name_of);
        names
            .map(|name| {
                self.learn(&name)?;
                let listed = self.listed(&name, Version::MAX)?;
                let is_made = |held: &&Held| held.place.origin() != Origin::Written;
                let made = listed.iter().filter(is_made);
                let made = made.map(|held| (held.version.number(), self.of(held)));
                Ok((name, made.collect()))
            })
            .collect()
    }

    /// One of the last batches; sometimes one that says that a batch over shards is done.
    fn choose(&mut self, known: &[usize]) -> Option<usize> {
        let says_done = |at: &&usize| {
            let records = self.records(**at);
            records.iter().any(|record| record.kind == Kind::Done)
        };
        let done: Vec<usize> = known.iter().filter(says_done).copied().collect();
        if self.random.u8(..3) == 0 && !done.is_empty() {
            return self.random.choice(done);
        }
        let last = &known[known.len().saturating_sub(8)..];
        self.random.choice(last).copied()
    }

    fn records(&self, at: usize) -> Vec<Written> {
        let traced = &self.node.trace.0[at];
        let (address, uses) = self.node.seat(traced.address);
        let Ok(batch) = Batch::decode(&traced.bytes, Seat { address, uses }) else {
            return Vec::new();
        };
        let records = batch.records().flatten();
        records
            .map(|(address, record)| {
                let head_bytes = RECORD_HEAD_BYTES + record.key.bytes.len();
                Written {
                    at: (address - traced.address) as usize,
                    head_bytes,
                    bytes: head_bytes + record.value.len(),
                    name: [&record.key.namespace.to_be_bytes()[..], record.key.bytes].concat(),
                    version: record.head.version.number(),
                    kind: record.head.kind,
                }
            })
            .collect()
    }

    /// Damages a byte or a sector: what of the batch that concerns.
    fn damage(&mut self, at: usize) -> Vec<Hit> {
        let records = self.records(at);
        let (address, length) = {
            let traced = &self.node.trace.0[at];
            (traced.address, traced.bytes.len())
        };
        let done = records.iter().find(|record| record.kind == Kind::Done);
        let range = match (self.random.u8(..6), done) {
            (0, _) => {
                let sector = self.random.usize(..length / SECTOR_BYTES) * SECTOR_BYTES;
                sector..sector + SECTOR_BYTES
            }
            (1, _) => {
                let byte = self.random.usize(..BATCH_HEAD_BYTES);
                byte..byte + 1
            }
            (2..4, Some(done)) => done.at + 9..done.at + 10,
            _ => {
                let end = records.last().map_or(length, |last| last.at + last.bytes);
                let byte = self.random.usize(..end);
                byte..byte + 1
            }
        };
        for byte in range.clone() {
            self.node
                .disk
                .rot(address as usize + byte, 1 << self.random.u8(..8));
        }
        let hits = |from: usize, bytes: usize| range.start < from + bytes && from < range.end;
        let (mut hit, mut rest_is_lost) = (Vec::new(), false);
        let is_headless = hits(0, BATCH_HEAD_BYTES);
        // Of what a segment begins with only its head, or what lies behind, says which batch it is.
        let begin = self
            .node
            .store
            .layout()
            .segment_at(self.node.segment_of(address));
        let is_nameless = is_headless && address == begin;
        let mut before_is_hit = is_headless;
        for record in records {
            let is_hit = hits(record.at, record.head_bytes);
            // Where the next one begins is not known any more.
            rest_is_lost |= is_hit && (hits(record.at + 2, 6) || before_is_hit);
            if is_hit || rest_is_lost || is_nameless || hits(record.at, record.bytes) {
                hit.push(Hit {
                    address: address + record.at as u64,
                    name: record.name,
                    version: record.version,
                    is_lost: is_hit || rest_is_lost || is_nameless,
                });
            }
            before_is_hit = is_hit || is_headless;
        }
        hit
    }

    fn judge(
        &mut self,
        before: &Before,
        hits: &[Hit],
        touched: &BTreeSet<Vec<u8>>,
        shard: u16,
    ) -> Result<MetRot, String> {
        let mut met = MetRot::default();
        for number in 0..KEYS {
            let name = name_of(number);
            let of_key: Vec<&Hit> = hits.iter().filter(|hit| hit.name == name).collect();
            if !touched.contains(&name) {
                self.compare(&name, Version::MAX)?;
                for held in self.listed(&name, Version::MAX)? {
                    self.check_value(&name, &held)?;
                    met.uncertain += u64::from(held.place.is_uncertain());
                }
                continue;
            }
            let listed = self.listed(&name, Version::MAX)?;
            let there: BTreeSet<u64> = listed.iter().map(|it| it.version.number()).collect();
            let known = |version: &&u64| **version <= before.known_to;
            for version in before.written[&name].iter().filter(known) {
                if there.contains(version) {
                    continue;
                }
                let lost = of_key
                    .iter()
                    .find(|hit| hit.version == *version && hit.is_lost);
                let lost = lost.ok_or_else(|| format!("{name:?} lacks {version}, unharmed"))?;
                self.is_told(shard, lost)?;
                met.lost += 1;
            }
            for held in listed {
                let Some(source) = self.source_of(&name, &held)? else {
                    met.damaged += 1;
                    continue;
                };
                if held.version.number() <= before.known_to {
                    met.uncertain +=
                        u64::from(self.is_uncertain_now(&name, &held, source, before)?);
                }
            }
        }
        met.whole = u64::from(met.lost + met.damaged == 0);
        Ok(met)
    }

    /// What was made of a key is what it was; or it is uncertain, and those that ask for it are told.
    fn is_uncertain_now(
        &mut self,
        name: &[u8],
        held: &Held,
        source: u64,
        before: &Before,
    ) -> Result<bool, String> {
        if held.place.origin() == Origin::Written {
            return Ok(false);
        }
        if held.place.is_uncertain() {
            let selector = Selector::Version(held.version);
            let shard = self.node.shard(key_of(name));
            let read = shard.read(key_of(name), selector, Version::MAX);
            return match read {
                Err(Refused::Uncertain) => Ok(true),
                other => Err(format!(
                    "{name:?} {held:?} is uncertain and given: {other:?}"
                )),
            };
        }
        let is = Past {
            source,
            ..self.of(held)
        };
        let was = before.made[name].get(&is.version);
        match was {
            Some(was) if (was.source, was.deleted) == (is.source, is.deleted) => Ok(false),
            // A trim that was lost has brought it back.
            None if self
                .oracle
                .past(name)
                .iter()
                .any(|it| it.version == is.version) =>
            {
                Ok(false)
            }
            _ => Err(format!("{name:?}: {is:?} was {was:?}")),
        }
    }

    fn is_told(&self, shard: u16, lost: &Hit) -> Judgement {
        let shard = &self.node.store.shards[usize::from(shard)];
        let covers = |rot: &Rot| {
            let is_behind = lost.address >= rot.address;
            let is_within = rot.bytes == 0 || lost.address < rot.address + rot.bytes;
            is_behind && is_within
        };
        if shard.rotten().any(covers) {
            return Ok(());
        }
        let told: Vec<_> = shard.rotten().collect();
        Err(format!(
            "{:?} lacks {} at {}, and nothing says so: {told:?}",
            lost.name, lost.version, lost.address
        ))
    }

    /// What is read of a version is what was written; false: it is refused.
    pub(crate) fn is_right(&mut self, name: &[u8], held: &Held) -> Result<bool, String> {
        Ok(self.source_of(name, held)?.is_some())
    }

    /// The same: the version whose content it has.
    fn source_of(&mut self, name: &[u8], held: &Held) -> Result<Option<u64>, String> {
        let shard = self.node.shard(key_of(name));
        let Some(mut reading) = shard.begin_read(held) else {
            return Ok(Some(NEVER));
        };
        loop {
            let bytes = self.node.disk.read(reading.address as usize, reading.bytes);
            let bytes = bytes.map_err(|_| "a read has failed")?;
            let shard = self.node.shard(key_of(name));
            match shard.end_read(reading, key_of(name), Some(&bytes)) {
                Came::Again(again) => reading = again,
                Came::Damaged => return Ok(None),
                Came::Record(record) => {
                    let source = record.head.version.number();
                    let wanted = self.values.get(&source);
                    let is_other = wanted.is_some_and(|it| it != record.value);
                    return if is_other && record.head.kind.has_value() {
                        Err(format!("{name:?} {held:?} has another value"))
                    } else {
                        Ok(Some(source))
                    };
                }
            }
        }
    }
}
