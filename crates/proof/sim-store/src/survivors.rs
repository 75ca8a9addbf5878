// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a crash has left of a history, and whether that may be. The invariants stand in `crash.rs`.

use std::collections::{BTreeMap, BTreeSet};

use erb_sim_disk::CrashMode;
use erb_store::{RollBack, Version};

use crate::crash::{Asked, Done, KEYS, World, name_of, oracle_row};
use crate::judge::Judgement;

impl World {
    pub(crate) fn crash(&mut self, mode: CrashMode) -> Judgement {
        self.advance()?;
        let shards = self.node.store.shards.iter();
        self.met.copied += shards.clone().map(|shard| shard.collected().0).sum::<u64>();
        self.met.scrubbed += shards.map(|shard| shard.scrubbed().segments).sum::<u64>();
        self.reads.clear();
        self.met.crashes += 1;
        self.node.crash(mode)?;
        self.survivors(&BTreeSet::new())?;
        self.asked.clear();
        // No version below may be given again, whether it is there or not.
        let ceiling = self.node.store.control.state().ceiling.number();
        if ceiling < self.highest {
            return Err(format!(
                "{} was given above the ceiling {ceiling}",
                self.highest
            ));
        }
        self.highest = self.highest.max(self.node.watermark().number());
        self.advance()?;
        self.are_held()?;
        self.accounts_balance()?;
        for number in 0..KEYS {
            let name = name_of(number);
            self.compare(&name, Version::MAX)?;
            for held in self.listed(&name, Version::MAX)? {
                self.check_value(&name, &held)?;
            }
        }
        Ok(())
    }

    /// Each moment is held at least as often as was acknowledged.
    fn are_held(&self) -> Judgement {
        let state = self.node.store.control.state();
        let held: BTreeMap<Version, u32> = state.retention.counts().collect();
        let mut wanted: BTreeMap<Version, u32> = BTreeMap::new();
        for snapshot in &self.snapshots {
            *wanted.entry(snapshot.moment).or_default() += 1;
        }
        for (moment, wanted) in wanted {
            let found = held.get(&moment).copied().unwrap_or(0);
            if found < wanted {
                return Err(format!(
                    "of {wanted} snapshots of {moment} there are {found}"
                ));
            }
        }
        Ok(())
    }

    /// Which of what nobody was told of is there. Nothing is known of damaged keys.
    pub(crate) fn survivors(&mut self, damaged: &BTreeSet<Vec<u8>>) -> Judgement {
        let mut there: BTreeMap<Vec<u8>, BTreeSet<u64>> = BTreeMap::new();
        for number in 0..KEYS {
            let name = name_of(number);
            if damaged.contains(&name) {
                continue;
            }
            self.learn(&name)?;
            let listed = self.listed(&name, Version::MAX)?;
            let versions = listed.iter().map(|held| held.version.number()).collect();
            there.insert(name, versions);
        }
        let mut lost = BTreeSet::new();
        for (version, (shard, done)) in std::mem::take(&mut self.pending) {
            let (Done::Write { name, .. } | Done::Restore { name, .. }) = &done else {
                return Err(format!("{done:?} was acknowledged above the watermark"));
            };
            if damaged.contains(name) {
                continue;
            }
            if !there.get(name).is_some_and(|it| it.contains(&version)) {
                lost.insert(shard);
            } else if lost.contains(&shard) {
                return Err(format!("{done:?} is there, one before it is not"));
            } else {
                self.pending.insert(version, (shard, done));
            }
        }
        self.find_row()?;
        self.find_batch(&there)
    }

    /// A roll back that nobody was told of, and that is there.
    fn find_row(&mut self) -> Judgement {
        let rows = &self.node.store.control.state().rows;
        let late = rows.iter().filter(|row| row.id.number() > self.known_to);
        let late: Vec<RollBack> = late.cloned().collect();
        for row in late {
            let anonymous = RollBack {
                id: Version::ZERO,
                ..row.clone()
            };
            let mut asked = self.asked.values();
            if !asked.any(|it| matches!(it, Asked::RollBack(asked) if *asked == anonymous)) {
                return Err(format!("nobody has asked for {row:?}"));
            }
            self.add_late(row.id, Done::RollBack(oracle_row(&row, row.id)))?;
        }
        Ok(())
    }

    /// A batch that nobody was told of: whole, or not at all.
    fn find_batch(&mut self, there: &BTreeMap<Vec<u8>, BTreeSet<u64>>) -> Judgement {
        let asked = self.asked.values().find_map(|asked| match asked {
            Asked::Batch(parts) => Some(parts.clone()),
            _ => None,
        });
        let Some(parts) = asked else { return Ok(()) };
        if parts.iter().any(|(name, _)| !there.contains_key(name)) {
            return Ok(());
        }
        let unknown = |name: &Vec<u8>| {
            let late = there.get(name).into_iter().flatten();
            let mut late = late.filter(|it| **it > self.known_to);
            late.find(|version| !self.pending.contains_key(version))
                .copied()
        };
        let Some(version) = parts.iter().find_map(|(name, _)| unknown(name)) else {
            return Ok(());
        };
        for (name, deleted) in &parts {
            if !deleted && !there.get(name).is_some_and(|it| it.contains(&version)) {
                return Err(format!(
                    "a batch over shards is torn: {version} of {parts:?}"
                ));
            }
        }
        let done = self.done_of(&parts, version)?;
        self.add_late(Version::new(version), Done::Batch(done))
    }
}
