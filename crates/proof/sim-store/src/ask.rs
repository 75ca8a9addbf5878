// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a history asks of all shards. The invariants stand in `crash.rs`.

use std::collections::{BTreeMap, BTreeSet};

use erb_store::control::Request;
use erb_store::message::{Part, PartWhat};
use erb_store::{Condition, RollBack, Settings, Target, Version};
use fastrand::Rng;

use crate::crash::{Asked, World};
use crate::judge::key_of;

/// Requests that are under way at once.
const ASKED_MAX: usize = 3;
/// Those that end by themselves end within it.
const SNAPSHOT_US_MAX: u64 = 5_000_000;

impl World {
    /// Asks for something that concerns all shards.
    pub(crate) fn ask(&mut self) {
        if self.asked.len() >= ASKED_MAX {
            return;
        }
        let (request, asked) = match self.random.u8(..12) {
            0..4 => self.ask_roll_back(),
            4..7 => {
                let has_one = self.asked.values().any(|it| matches!(it, Asked::Batch(_)));
                if has_one {
                    return;
                }
                self.ask_batch()
            }
            7 => self.ask_snapshot(),
            8 => {
                if self.snapshots.is_empty() {
                    return;
                }
                // From now on nobody may rely on it.
                let at = self.random.usize(..self.snapshots.len());
                let moment = self.snapshots[at].moment;
                let same =
                    (0..self.snapshots.len()).filter(|at| self.snapshots[*at].moment == moment);
                let first = same.min_by_key(|at| self.snapshots[*at].until_us);
                let own_us = self.snapshots.swap_remove(first.unwrap_or(at)).until_us;
                let others = self.asked.values().filter_map(|asked| match asked {
                    Asked::Release(of, until_us) if *of == moment => Some(*until_us),
                    _ => None,
                });
                let until_us = others.fold(own_us, u64::min);
                (Request::Release(moment), Asked::Release(moment, until_us))
            }
            9 => (Request::Settings(settings(&mut self.random)), Asked::Other),
            10 if self.random.u8(..8) == 0 => {
                let for_us = self.random.u64(..3_000_000);
                (Request::Lock { for_us }, Asked::Other)
            }
            _ => (Request::Checkpoint, Asked::Other),
        };
        let ticket = self.next_ticket;
        if self.node.store.control.request(ticket, request) {
            self.next_ticket += 1;
            self.asked.insert(ticket, asked);
        }
    }

    fn ask_snapshot(&mut self) -> (Request, Asked) {
        let for_us = self
            .random
            .bool()
            .then(|| self.random.u64(..SNAPSHOT_US_MAX));
        let run_us = self.node.store.control.run_us();
        let until_us = for_us.map_or(u64::MAX, |for_us| run_us + for_us);
        (Request::Snapshot { for_us }, Asked::Snapshot { until_us })
    }

    fn ask_roll_back(&mut self) -> (Request, Asked) {
        let prefix: &[u8] = [&b""[..], b"k", b"k1"][self.random.usize(..3)];
        let known: Vec<u64> = self
            .oracle
            .keys()
            .flat_map(|(_, past)| past.iter().map(|one| one.version))
            .collect();
        let moment = self.random.choice(known).unwrap_or(self.known_to);
        let target = match self.random.u8(..4) {
            0 => Target::Back(self.random.u32(..2)),
            _ => Target::Moment(Version::new(moment)),
        };
        let row = RollBack {
            id: Version::ZERO,
            namespace: 1,
            prefix: prefix.to_vec(),
            target,
            unless_written_since: None,
        };
        (Request::RollBack(row.clone()), Asked::RollBack(row))
    }

    fn ask_batch(&mut self) -> (Request, Asked) {
        let mut names = BTreeSet::new();
        for _ in 0..self.random.usize(1..4) {
            names.insert(self.name());
        }
        let mut by_shard: BTreeMap<u16, Vec<Part>> = BTreeMap::new();
        let mut all = Vec::new();
        for name in names {
            let deleted = self.random.u8(..4) == 0;
            let what = if deleted {
                PartWhat::Delete
            } else {
                PartWhat::Put(self.value())
            };
            let part = Part {
                namespace: 1,
                key: name[2..].to_vec(),
                what,
                condition: Condition::Any,
                writer: 0,
                expiry_ms: 0,
                may_use_reserve: false,
            };
            let shard = self.node.shard_of(key_of(&name));
            by_shard.entry(shard).or_default().push(part);
            all.push((name, deleted));
        }
        let parts = by_shard.into_iter().collect();
        (Request::Batch(parts), Asked::Batch(all))
    }
}

/// Entries of deleted keys stay: that they go is judged on the engine alone, and so is min-count.
pub(crate) fn settings(random: &mut Rng) -> Settings {
    Settings {
        min_age_us: random.u64(..3) * 1_000_000,
        keep_deleted_us: 600_000_000,
        min_count: random.u32(1..4),
        counted: 1,
    }
}
