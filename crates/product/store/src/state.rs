// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the control log says: all that concerns the whole store, but keys and values.
//!
//! Invariants:
//! 1. The state follows from the entries alone, and [`State::entries`] make the same state again.
//! 2. It is bounded: rows, snapshots, samples, checkpoints and commits by constants, the rest by segments.
//! 3. The ceiling, floors, the lock's end, the generation of hosts, how far a log is durable and the number of uses of
//!    a segment never go back.
//! 4. A segment's place in a log or checkpoint is its own: no two have the same.
//! 5. Roll backs rise by their id, past ones before those that are live; together they are at most [`ROWS_MAX`], and the
//!    oldest past ones go first.

use std::collections::{BTreeMap, VecDeque};

use crate::entry::{Checkpoint, Entry, SegmentState, UsedFor};
use crate::layout::Layout;
use crate::log::{Segment, Start};
use crate::record::Seat;
use crate::retention::{Retention, Settings};
use crate::retention_clock::{SAMPLES_MAX, Sample};
use crate::rows::{ROWS_MAX, RollBack};
use crate::scan::Logged;
use crate::shortening::Shortening;
use crate::superblock::Superblock;
use crate::version::Version;

/// Checkpoints of a shard that are kept.
pub const CHECKPOINTS_KEPT: usize = 2;
/// Most batches over shards that some shard is not done with.
pub const COMMITS_MAX: usize = 4096;

/// An entry that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the control log has an entry that cannot be: it was written by another program, or is damaged"
)]
pub struct Impossible;

/// What the control log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// No version above it is given.
    pub ceiling: Version,
    /// The wall clock when that was written.
    pub wall_us: u64,
    /// Microseconds that the retention clock had run by then.
    pub run_us: u64,
    /// Moments of the retention clock, oldest first.
    pub samples: VecDeque<Sample>,
    /// What is kept.
    pub retention: Retention,
    /// What will be, if that is less.
    pub shortening: Option<Shortening>,
    /// Nothing becomes less until the retention clock has run so many microseconds.
    pub locked_until_us: u64,
    /// Roll backs that not all checkpoints have, oldest first.
    pub rows: Vec<RollBack>,
    /// Rows up to this one have gone: who has no checkpoint cannot know them.
    pub forgotten: Version,
    /// The newest of these, oldest first: no key waits for them, but they can still be undone.
    past: VecDeque<RollBack>,
    /// By number.
    pub segments: Vec<SegmentState>,
    /// By shard: the newest last.
    pub checkpoints: Vec<Vec<Checkpoint>>,
    /// The newest batch over shards that was ever committed.
    pub last_commit: Version,
    /// Batches over shards: bits of those that are not done with them.
    pub commits: BTreeMap<Version, u64>,
    /// The newest generation of hosts that the store was served to: no older one is let in again.
    pub hosts: u64,
    /// By shard: batches of its log below this one were durable when that was noted.
    pub durable_lsns: Vec<u64>,
    /// By time of the retention clock and moment: snapshots that end then by themselves.
    endings: BTreeMap<(u64, Version), u32>,
}

impl State {
    /// Of a store that was just formatted, and keeps this.
    #[must_use]
    pub fn new(layout: &Layout, settings: Settings) -> Self {
        let mut retention = Retention::new(1);
        retention.set(settings);
        Self {
            ceiling: Version::ZERO,
            wall_us: 0,
            run_us: 0,
            samples: VecDeque::new(),
            retention,
            shortening: None,
            locked_until_us: 0,
            rows: Vec::new(),
            forgotten: Version::ZERO,
            past: VecDeque::new(),
            segments: vec![SegmentState::default(); layout.segments() as usize],
            checkpoints: vec![Vec::new(); usize::from(layout.shards)],
            last_commit: Version::ZERO,
            commits: BTreeMap::new(),
            hosts: 0,
            durable_lsns: vec![0; usize::from(layout.shards)],
            endings: BTreeMap::new(),
        }
    }

    /// Takes an entry in.
    ///
    /// # Errors
    /// It cannot be; nothing has changed.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), Impossible> {
        match entry {
            Entry::Time {
                ceiling,
                wall_us,
                run_us,
            } => {
                self.ceiling = self.ceiling.max(*ceiling);
                self.wall_us = *wall_us;
                self.run_us = self.run_us.max(*run_us);
            }
            Entry::Sample(sample) => self.add_sample(*sample),
            Entry::Segment(number, state) => self.set_segment(*number, *state)?,
            Entry::RollBack(row) => self.add_row(row)?,
            Entry::RowsForgotten(up_to) => {
                self.forgotten = self.forgotten.max(*up_to);
                let count = self.rows.partition_point(|row| row.id <= *up_to);
                self.past.extend(self.rows.drain(..count));
            }
            Entry::Floors(floor, deleted) => self.retention.raise(*floor, *deleted),
            Entry::Settings(settings) => {
                self.retention.set(*settings);
                self.shortening = None;
            }
            Entry::Shortening(shortening) => self.shortening = Some(*shortening),
            Entry::Locked(until_us) => {
                self.locked_until_us = self.locked_until_us.max(*until_us);
            }
            Entry::Snapshot(moment, count) => self.set_snapshots(*moment, *count, None)?,
            Entry::Ending {
                moment,
                count,
                at_us,
                ending,
            } => self.set_snapshots(*moment, *count, Some((*at_us, *ending)))?,
            Entry::Checkpoint(shard, checkpoint) => self.add_checkpoint(*shard, *checkpoint)?,
            Entry::CheckpointDropped(shard, number) => {
                let all = self.checkpoints.get_mut(usize::from(*shard));
                all.ok_or(Impossible)?.retain(|it| it.number != *number);
            }
            Entry::LastCommit(version) => self.last_commit = self.last_commit.max(*version),
            Entry::Commit(version, 0) => {
                self.last_commit = self.last_commit.max(*version);
                self.commits.remove(version);
            }
            Entry::Commit(version, owing) => {
                let is_new = !self.commits.contains_key(version);
                if is_new && self.commits.len() >= COMMITS_MAX {
                    return Err(Impossible);
                }
                self.last_commit = self.last_commit.max(*version);
                self.commits.insert(*version, *owing);
            }
            Entry::Hosts(generation) => self.hosts = self.hosts.max(*generation),
            Entry::Durable(shard, lsn) => {
                let known = self.durable_lsns.get_mut(usize::from(*shard));
                let known = known.ok_or(Impossible)?;
                *known = (*known).max(*lsn);
            }
        }
        Ok(())
    }

    /// Those that end by themselves are among those that hold a moment.
    fn set_snapshots(
        &mut self,
        moment: Version,
        count: u32,
        end: Option<(u64, u32)>,
    ) -> Result<(), Impossible> {
        let at_us = end.map(|(at_us, _)| at_us);
        let others = self
            .endings()
            .filter(|it| it.1 == moment && Some(it.0) != at_us);
        let ending = end.map_or(0, |(_, ending)| u64::from(ending));
        let all = others.fold(ending, |all, it| all + u64::from(it.2));
        if all > u64::from(count) || !self.retention.set_snapshots(moment, count) {
            return Err(Impossible);
        }
        match end {
            Some((at_us, 0)) => self.endings.remove(&(at_us, moment)),
            Some((at_us, ending)) => self.endings.insert((at_us, moment), ending),
            None => None,
        };
        Ok(())
    }

    /// Snapshots that end by themselves, soonest first: microseconds that the retention clock has run by then, the
    /// moment, and how many.
    pub fn endings(&self) -> impl Iterator<Item = (u64, Version, u32)> + '_ {
        let endings = self.endings.iter();
        endings.map(|((at_us, moment), ending)| (*at_us, *moment, *ending))
    }

    /// How many of a moment's snapshots end at this time.
    pub(crate) fn ending(&self, moment: Version, at_us: u64) -> u32 {
        self.endings.get(&(at_us, moment)).copied().unwrap_or(0)
    }

    fn add_sample(&mut self, sample: Sample) {
        if self.samples.len() >= SAMPLES_MAX {
            // The clock that begins with them thins them out by age; here only their number counts.
            let mut is_kept = false;
            self.samples.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        self.samples.push_back(sample);
    }

    fn set_segment(&mut self, number: u32, state: SegmentState) -> Result<(), Impossible> {
        let shards = self.checkpoints.len();
        let is_shard = match state.used_for {
            UsedFor::Nothing => true,
            UsedFor::Log { shard, .. } | UsedFor::Checkpoint { shard, .. } => {
                usize::from(shard) < shards
            }
        };
        let segment = self.segments.get_mut(number as usize).ok_or(Impossible)?;
        if !is_shard || state.uses < segment.uses {
            return Err(Impossible);
        }
        *segment = state;
        Ok(())
    }

    fn add_checkpoint(&mut self, shard: u16, checkpoint: Checkpoint) -> Result<(), Impossible> {
        let all = self.checkpoints.get_mut(usize::from(shard));
        let all = all.ok_or(Impossible)?;
        if all
            .last()
            .is_some_and(|last| last.number > checkpoint.number)
        {
            return Err(Impossible);
        }
        all.retain(|it| it.number != checkpoint.number);
        all.push(checkpoint);
        let surplus = all.len().saturating_sub(CHECKPOINTS_KEPT);
        all.drain(..surplus);
        Ok(())
    }

    /// There are more segments, and they are for nothing yet.
    pub(crate) fn grow(&mut self, layout: &Layout) {
        let segments = layout.segments() as usize;
        let segments = segments.max(self.segments.len());
        self.segments.resize(segments, SegmentState::default());
    }

    fn add_row(&mut self, row: &RollBack) -> Result<(), Impossible> {
        let newest = self.rows.last().or(self.past.back());
        let is_newer = newest.is_none_or(|newest| row.id > newest.id);
        if !is_newer || self.rows.len() >= ROWS_MAX {
            return Err(Impossible);
        }
        self.rows.push(row.clone());
        if self.past.len() + self.rows.len() > ROWS_MAX {
            self.past.pop_front();
        }
        Ok(())
    }

    /// The roll back with this id, if it is one of the newest.
    #[must_use]
    pub fn roll_back(&self, id: Version) -> Option<&RollBack> {
        let live = self.rows.binary_search_by_key(&id, |row| row.id);
        let past = || self.past.binary_search_by_key(&id, |row| row.id);
        match live {
            Ok(at) => Some(&self.rows[at]),
            Err(_) => past().ok().map(|at| &self.past[at]),
        }
    }

    /// Entries that make this state.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = vec![
            Entry::Time {
                ceiling: self.ceiling,
                wall_us: self.wall_us,
                run_us: self.run_us,
            },
            Entry::Settings(self.retention.settings()),
            Entry::Floors(self.retention.floor(), self.retention.deleted_floor()),
        ];
        // They become past ones by what follows.
        entries.extend(self.past.iter().cloned().map(Entry::RollBack));
        entries.extend([
            Entry::RowsForgotten(self.forgotten),
            Entry::Locked(self.locked_until_us),
        ]);
        entries.extend((self.hosts > 0).then_some(Entry::Hosts(self.hosts)));
        let is_known = self.last_commit > Version::ZERO;
        entries.extend(is_known.then_some(Entry::LastCommit(self.last_commit)));
        let lsns = (0..).zip(&self.durable_lsns).filter(|(_, lsn)| **lsn > 0);
        entries.extend(lsns.map(|(shard, lsn)| Entry::Durable(shard, *lsn)));
        entries.extend(self.shortening.map(Entry::Shortening));
        entries.extend(self.samples.iter().copied().map(Entry::Sample));
        let snapshots = self.retention.counts();
        entries.extend(snapshots.map(|(moment, count)| Entry::Snapshot(moment, count)));
        let counts: BTreeMap<Version, u32> = self.retention.counts().collect();
        entries.extend(self.endings().map(|(at_us, moment, ending)| Entry::Ending {
            moment,
            count: counts.get(&moment).copied().unwrap_or(0),
            at_us,
            ending,
        }));
        entries.extend(self.rows.iter().cloned().map(Entry::RollBack));
        let segments = (0..).zip(&self.segments);
        let used = segments.filter(|(_, state)| **state != SegmentState::default());
        entries.extend(used.map(|(number, state)| Entry::Segment(number, *state)));
        for (shard, all) in (0..).zip(&self.checkpoints) {
            entries.extend(all.iter().map(|it| Entry::Checkpoint(shard, *it)));
        }
        let commits = self.commits.iter();
        entries.extend(commits.map(|(version, owing)| Entry::Commit(*version, *owing)));
        entries
    }

    /// What frees the segments of checkpoints that were not finished.
    pub(crate) fn unfinished_checkpoints(&self) -> Vec<Entry> {
        let segments = (0..).zip(&self.segments);
        let surplus = segments.filter(|(_, segment)| match segment.used_for {
            UsedFor::Checkpoint { shard, number, .. } => {
                let kept = &self.checkpoints[usize::from(shard)];
                !kept.iter().any(|checkpoint| checkpoint.number == number)
            }
            _ => false,
        });
        surplus
            .map(|(number, it)| Entry::freed(number, it.uses))
            .collect()
    }

    /// The segments of a shard's log from an order on, oldest first.
    #[must_use]
    pub fn log_segments(&self, layout: &Layout, shard: u16, from_order: u64) -> Vec<Logged> {
        let mut found: Vec<Logged> = (0..)
            .zip(&self.segments)
            .filter_map(|(number, state)| match state.used_for {
                UsedFor::Log {
                    shard: whose,
                    order,
                    end,
                } if whose == shard && order >= from_order => Some(Logged {
                    segment: segment(layout, number, state.uses, order),
                    end,
                }),
                _ => None,
            })
            .collect();
        found.sort_by_key(|logged| logged.segment.order);
        found
    }

    /// The keys follow from the shard's log alone: no row and no segment of it has gone.
    #[must_use]
    pub fn is_log_whole(&self, shard: u16) -> bool {
        let orders = self
            .segments
            .iter()
            .filter_map(|state| match state.used_for {
                UsedFor::Log {
                    shard: whose,
                    order,
                    ..
                } if whose == shard => Some(order),
                _ => None,
            });
        let has_none = self.checkpoints[usize::from(shard)].is_empty();
        let has_first = orders.min().map_or(has_none, |order| order == 0);
        has_first && self.forgotten == Version::ZERO
    }

    /// The segments of a shard's checkpoint, in their order.
    #[must_use]
    pub fn checkpoint_segments(&self, layout: &Layout, shard: u16, number: u64) -> Vec<Segment> {
        let mut found: Vec<Segment> = (0..)
            .zip(&self.segments)
            .filter_map(|(at, state)| match state.used_for {
                UsedFor::Checkpoint {
                    shard: whose,
                    number: which,
                    order,
                } if whose == shard && which == number => {
                    Some(segment(layout, at, state.uses, u64::from(order)))
                }
                _ => None,
            })
            .collect();
        found.sort_by_key(|segment| segment.order);
        found
    }

    /// From where a shard's log is to be replayed behind one of its checkpoints; none: from its first segment.
    #[must_use]
    pub fn log_start(block: &Superblock, shard: u16, from: Option<&Checkpoint>) -> (u64, Start) {
        let start = Start {
            shard,
            store_id: block.store_id,
            incarnation: from.map_or(0, |it| it.incarnation),
            lsn: from.map_or(1, |it| it.lsn),
            crc_before: from.map_or(0, |it| it.crc_before),
        };
        (from.map_or(0, |it| it.order), start)
    }
}

/// A segment in its present use.
pub(crate) fn segment(layout: &Layout, number: u32, uses: u32, order: u64) -> Segment {
    Segment {
        number,
        order,
        seat: Seat {
            address: layout.segment_at(number),
            uses,
        },
        bytes: layout.segment_bytes,
    }
}

impl State {
    /// What is kept, as a shard begins with it.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.retention.settings()
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
