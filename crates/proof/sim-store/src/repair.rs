// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histories that end with rot in the control log, and a repair if the store does not open.
//!
//! Invariants that it checks:
//! 1. Every version that was written before a clean stop is there and has its value, or the repair is refused. A part of
//!    a batch over shards whose commit is lost is told by its key.
//! 2. The next start, which needs no repair, has the same.
//!
//! Left out are batches that one start cannot read and a later one can: without the entry that says where the first
//! has ended their log they count again.

use std::collections::{BTreeMap, BTreeSet};

use erb_sim_disk::{CrashMode, Faults};
use erb_store::batch::{BATCH_ALIGN_BYTES, BATCH_HEAD_BYTES, Batch};
use erb_store::entry::UsedFor;
use erb_store::layout::{ALIGN_BYTES, Layout};
use erb_store::opening::Opening;
use erb_store::record::Seat;
use erb_store::superblock::Superblock;
use erb_store::{Origin, SCRUB_PERIOD_US, Version};

use crate::crash::{KEYS, World, name_of};
use crate::judge::Judgement;
use crate::node::{Hidden, Node, open_once};
use crate::plan::Plan;

/// Starts of the node, each behind a clean stop or a crash.
const STARTS: u32 = 4;
/// By then all segments were scrubbed.
const SCRUB_READS: u32 = 2000;

/// What came of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repaired {
    /// A write had failed.
    Nothing,
    /// The damage has cost nothing.
    Opened,
    /// It was repaired.
    Yes,
    /// The same, and a part of a batch was told to have lost its commit.
    Told,
    /// The repair was refused.
    Refused,
}

/// Plays one history to its repair.
///
/// # Errors
/// What it has shown.
pub fn repair(seed: u64, plan: &Plan) -> Result<Repaired, String> {
    let said = |difference| format!("seed {seed}, {plan:?}: {difference}");
    let mut world = World::new(seed, plan, None).map_err(said)?;
    let mut play = || {
        world.play_until(plan, |_| Ok(None::<()>))?;
        world.repair()
    };
    play().map_err(said)
}

/// Plays the same history. Of a segment that was left without an end the last batch is damaged, if somebody needs it.
/// False: there is none such.
///
/// # Errors
/// The scrub does not tell of it.
pub fn rot_without_end(seed: u64, plan: &Plan) -> Result<bool, String> {
    let said = |difference| format!("seed {seed}, {plan:?}: {difference}");
    let mut world = World::new(seed, plan, None).map_err(said)?;
    let mut play = || match world.play_until(plan, World::last_without_end)? {
        Some(at) => world.is_told_by_scrub(at).map(|()| true),
        None => Ok(false),
    };
    play().map_err(said)
}

impl Node {
    /// The store is opened, and repaired if it does not open: whether it was. None: that is refused.
    fn open_rotten(&mut self) -> Result<Option<bool>, String> {
        self.halt(CrashMode::Power);
        self.disk.set_faults(Faults::default());
        let mut is_repairing = false;
        loop {
            let (random, disk, hidden) = (&mut self.random, &mut self.disk, &mut Hidden::new());
            let (now_us, opening) = (self.monotonic_us, Opening::new(usize::MAX, self.rules));
            match open_once(random, disk, hidden, now_us, opening, is_repairing) {
                Ok(Some(store)) => {
                    self.go_on(store)?;
                    return Ok(Some(is_repairing));
                }
                // A repair is not cut off here: that may take from it what the area before has.
                Ok(None) => self.disk.crash(CrashMode::Power),
                Err(_) if is_repairing => return Ok(None),
                Err(_) => is_repairing = true,
            }
        }
    }
}

impl World {
    /// Plays some starts of the plan, until this finds something behind a step.
    fn play_until<T>(
        &mut self,
        plan: &Plan,
        mut found: impl FnMut(&mut Self) -> Result<Option<T>, String>,
    ) -> Result<Option<T>, String> {
        self.node.hides = false;
        for start in 0..self.random.u32(1..=STARTS) {
            if start > 0 {
                self.crash(CrashMode::Power)?;
            }
            for _ in 0..plan.steps / STARTS {
                self.step(plan)?;
                let found = found(self)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    fn repair(&mut self) -> Result<Repaired, String> {
        if self.node.has_failed() || !self.node.stop()? {
            return Ok(Repaired::Nothing);
        }
        self.advance()?;
        let mut before = self.versions()?;
        self.are_there(&before)?;
        self.rot_control()?;
        self.reads.clear();
        let came = match self.node.open_rotten()? {
            None => return Ok(Repaired::Refused),
            Some(false) => Repaired::Opened,
            Some(true) => Repaired::Yes,
        };
        let told: BTreeSet<Vec<u8>> = {
            let shards = self.node.store.shards.iter();
            let met = shards.flat_map(|shard| shard.met_by_start());
            let keys = met.filter_map(|rot| rot.key.as_ref());
            keys.map(|(namespace, key)| [&namespace.to_be_bytes()[..], key].concat())
                .collect()
        };
        before.retain(|name, _| !told.contains(name));
        self.are_there(&before)?;
        self.node.crash_sound(CrashMode::Power)?;
        self.are_there(&before)?;
        Ok(if came == Repaired::Yes && !told.is_empty() {
            Repaired::Told
        } else {
            came
        })
    }

    /// The last batch of a segment that was left without an end, if versions need something of it.
    fn last_without_end(&mut self) -> Result<Option<(u16, u64)>, String> {
        let (state, layout) = (self.node.store.control.state(), self.node.store.layout());
        // Of this start's own segments the end may still come.
        let incarnation = self.node.store.control.superblock().incarnation;
        let mut found = Vec::new();
        for (number, segment) in (0..).zip(&state.segments) {
            let UsedFor::Log { shard, order, end } = segment.used_for else {
                continue;
            };
            let newest = state.checkpoints[usize::from(shard)].last();
            let is_left = newest.is_some_and(|it| it.order > order && it.incarnation < incarnation);
            if end.is_none() && is_left {
                let (address, uses) = (layout.segment_at(number), segment.uses);
                found.push((shard, Seat { address, uses }));
            }
        }
        for (shard, seat) in found {
            let bytes = self
                .node
                .disk
                .read(seat.address as usize, layout.segment_bytes as usize);
            let bytes = bytes.map_err(|_| "a read has failed")?;
            let (mut at, mut last) = (0, None);
            while let Ok(batch) = Batch::decode(&bytes[at..], seat.plus(at)) {
                let begin = at;
                at += batch.head.bytes as usize;
                last = Some(seat.plus(begin).address..seat.plus(at).address);
            }
            let Some(last) = last else { continue };
            for number in 0..KEYS {
                let listed = self.listed(&name_of(number), Version::MAX)?;
                let mut places = listed.iter().filter_map(|held| held.place.address());
                if places.any(|address| last.contains(&address)) {
                    return Ok(Some((shard, last.start)));
                }
            }
        }
        Ok(None)
    }

    fn is_told_by_scrub(&mut self, (shard, address): (u16, u64)) -> Judgement {
        self.node.disk.rot(address as usize + 20, 1);
        // A clock that is ahead of all that this history has scrubbed by.
        let mut run_us = 1000 * SCRUB_PERIOD_US;
        for _ in 0..SCRUB_READS {
            self.node.scrub(shard, run_us);
            run_us += SCRUB_PERIOD_US / 100;
        }
        let mut rotten = self.node.store.shards[usize::from(shard)].rotten();
        if rotten.any(|rot| rot.address == address) {
            return Ok(());
        }
        Err(format!(
            "a batch at {address} is rotten, and nothing says so"
        ))
    }

    /// Damages a bit of what the control log has written since its area was begun.
    fn rot_control(&mut self) -> Judgement {
        let mut read = |address: u64, bytes: usize| {
            let read = self.node.disk.read(address as usize, bytes);
            read.map_err(|_| "a read has failed".to_owned())
        };
        let block = read(Layout::superblock_at(0), ALIGN_BYTES as usize)?;
        let (block, _) = Superblock::choose(&[Some(block), None, None, None])
            .map_err(|error| error.to_string())?;
        let Seat { address, uses } = block.layout.area(block.area).seat;
        let area = read(address, block.layout.area_bytes as usize)?;
        let mut batches: Vec<(usize, usize)> = Vec::new();
        let mut at = 0;
        while let Ok(batch) = Batch::decode(&area[at..], Seat { address, uses }.plus(at)) {
            let last = batch.records().flatten().last();
            let end = last.map_or(BATCH_HEAD_BYTES, |(from, record)| {
                (from - address) as usize - at + record.head.bytes()
            });
            batches.push((at, end));
            at += (batch.head.bytes as usize).max(BATCH_ALIGN_BYTES);
        }
        // The snapshot is the first, so it is chosen as often as all else.
        let chosen = if self.random.bool() {
            batches.first()
        } else {
            batches.get(self.random.usize(..batches.len().max(1)))
        };
        let (at, bytes) = *chosen.ok_or("the control log has no batch")?;
        let byte = at + self.random.usize(..bytes);
        let bit = 1 << self.random.u8(..8);
        self.node.disk.rot(address as usize + byte, bit);
        Ok(())
    }

    fn are_there(&mut self, before: &BTreeMap<Vec<u8>, Vec<u64>>) -> Judgement {
        for (name, versions) in before {
            let listed = self.listed(name, Version::MAX)?;
            let there: BTreeSet<u64> = listed.iter().map(|it| it.version.number()).collect();
            if let Some(lost) = versions.iter().find(|it| !there.contains(it)) {
                return Err(format!("{name:?} lacks {lost} behind the repair"));
            }
            for held in listed {
                let is_written = held.place.origin() != Origin::RolledBack;
                if is_written && !self.is_right(name, &held)? {
                    return Err(format!("{name:?} {held:?} is damaged behind the repair"));
                }
            }
        }
        Ok(())
    }
}
