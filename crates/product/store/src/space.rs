// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Space of the store: how much is free, who may still write, and when a segment is free again.
//!
//! Invariants:
//! 1. A segment of a log is free again only once both checkpoints that are kept of its shard began after nothing in
//!    it was needed any more, and no read of it is under way.
//! 2. What is free is never so little that checkpoints could not be written, nor the shards log what frees more:
//!    writers stop first, then restorers, then collecting.
//! 3. A log that can go on gets nothing of the last space: only checkpoints free any. A checkpoint that can come to its
//!    end takes the last one, once each log has one to go on with.
//! 4. The segments balance: each is free, or of one log or checkpoint.
//! 5. Kills do not use up the last space. What would be free behind one is never less than it, but for one segment of
//!    each log that has nothing but trims:
//!    - By 3 a life of the node that is given a second segment for a log leaves the last space whole.
//!    - The first one of each life is written there with trims alone, and only while none with nothing needed in it
//!      waits to be durably free. The next life finds those trims to be such a one, which checkpoints free.
//!    - A batch over shards that the log is known to be done with is not logged as done again.
//!
//!    So behind any number of kills each log has a segment to begin with, each checkpoint its own, and the last space is
//!    whole again.
//!
//! Who writes how fast while space is short: `pacing.rs`.

use crate::control::Control;
use crate::entry::{SegmentState, UsedFor};
use crate::layout::Layout;
use crate::message::ToShard;
use crate::mistake::{Mistake, Rules};
use crate::pacing::SHARE_MAX;
use crate::state::{CHECKPOINTS_KEPT, State};

/// How much is free, in steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Space {
    /// Enough: only what is nearly unneeded is collected.
    #[default]
    Plenty = 0,
    /// Segments are collected.
    Low = 1,
    /// Collecting goes first, and writers are slowed.
    Short = 2,
    /// Writers wait while collecting makes room, and are refused when it cannot. The rest is for restorers.
    Full = 3,
    /// They wait and are refused too. The rest is for collecting.
    Reserve = 4,
    /// Nothing is copied: the rest is for checkpoints, and for trims while nothing else can free anything.
    Last = 5,
}

impl Space {
    pub(crate) fn from_byte(byte: u8) -> Self {
        let all = [
            Self::Plenty,
            Self::Low,
            Self::Short,
            Self::Full,
            Self::Reserve,
        ];
        let found = all.into_iter().find(|space| *space as u8 == byte);
        found.unwrap_or(Self::Last)
    }
}

/// Of a hundred segments so many are free when space is low, short, full.
const LOW_PERCENT: u32 = 15;
const SHORT_PERCENT: u32 = 10;
const FULL_PERCENT: u32 = 3;
/// What waits for checkpoints makes them due, this part of all segments: while there is plenty or little, and while
/// space is short. A checkpoint writes the whole index, so one for each segment would cost more than that wins.
const WAITING_SHARE: usize = 16;
const WAITING_SHARE_SHORT: usize = 32;

/// A segment of a log that nobody needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unneeded {
    shard: u16,
    /// The last checkpoint that had begun by then.
    behind: u64,
}

/// The segments of a store, counted by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// For nothing.
    pub free: u32,
    /// Of logs.
    pub logs: u32,
    /// Of checkpoints.
    pub checkpoints: u32,
}

impl State {
    /// What the segments are for.
    #[must_use]
    pub fn account(&self) -> Account {
        let mut account = Account::default();
        for segment in &self.segments {
            match segment.used_for {
                UsedFor::Nothing => account.free += 1,
                UsedFor::Log { .. } => account.logs += 1,
                UsedFor::Checkpoint { .. } => account.checkpoints += 1,
            }
        }
        account
    }

    /// Segments of each shard's larger checkpoint.
    pub(crate) fn checkpoint_sizes(&self) -> Vec<u32> {
        let mut sizes = vec![0; self.checkpoints.len()];
        let mut of_number = std::collections::BTreeMap::new();
        for segment in &self.segments {
            if let UsedFor::Checkpoint { shard, number, .. } = segment.used_for {
                let size: &mut u32 = of_number.entry((shard, number)).or_default();
                *size += 1;
                sizes[usize::from(shard)] = (*size).max(sizes[usize::from(shard)]);
            }
        }
        sizes
    }
}

impl<R: Rules + Copy> Control<R> {
    /// A segment is there into which the shard's log can go on.
    fn has_log_segment(&self, shard: u16) -> bool {
        let mut segments = self.state().segments.iter();
        segments.any(|it| match it.used_for {
            UsedFor::Log { shard: of, end, .. } => of == shard && end.is_none(),
            _ => false,
        })
    }

    /// So many free segments are not for a checkpoint, of which so many segments are there.
    pub(crate) fn kept_from_checkpoint(&self, shard: u16, order: u32) -> usize {
        let shards = self.checkpoint_sizes.len();
        let needs = self.checkpoint_sizes[usize::from(shard)]
            .saturating_sub(order)
            .max(1);
        let lacking = (0..shards as u16).filter(|shard| !self.has_log_segment(*shard));
        let lacking = lacking.count();
        let is_starved = self.rules.makes(Mistake::CheckpointsStarved);
        if self.free.len() >= lacking + needs as usize && !is_starved {
            lacking
        } else {
            shards
        }
    }

    /// So many free segments are not for this shard's log.
    pub(crate) fn kept_from_log(&self, shard: u16) -> usize {
        let is_hasty = self.rules.makes(Mistake::CheckpointsStarved);
        if is_hasty || self.urgent.contains(&shard) || !self.has_log_segment(shard) {
            return 0;
        }
        self.last_space() as usize
    }

    /// So many free segments are the last space: for checkpoints, which may have become a quarter larger, and for what
    /// logs begin.
    fn last_space(&self) -> u32 {
        let shards = self.checkpoint_sizes.len() as u32;
        let sizes = self.checkpoint_sizes.iter().map(|size| (*size).max(1));
        let checkpoints = sizes.map(|size| size + size / 4).sum::<u32>();
        checkpoints + 2 * shards + self.checkpoints_to_come()
    }

    /// Segments that checkpoints will have and keep: none of them is replaced before as many are there as are kept.
    fn checkpoints_to_come(&self) -> u32 {
        let all = self.state().checkpoints.iter().zip(&self.checkpoint_sizes);
        let lacking = all.map(|(all, size)| {
            let lacking = CHECKPOINTS_KEPT.saturating_sub(all.len()) as u32;
            lacking * (*size).max(1)
        });
        lacking.sum()
    }

    /// Free segments below which each step begins.
    fn steps(&self) -> [(u32, Space); 5] {
        let shards = self.checkpoint_sizes.len() as u32;
        let last = self.last_space();
        let all = self.state().segments.len() as u32;
        let full = (last + 2 * shards).max(all * FULL_PERCENT / 100);
        [
            (last, Space::Last),
            (last + shards, Space::Reserve),
            (full, Space::Full),
            (
                (full + 3 * shards).max(all * SHORT_PERCENT / 100),
                Space::Short,
            ),
            ((full + 4 * shards).max(all * LOW_PERCENT / 100), Space::Low),
        ]
    }

    /// The store becomes larger. What is added is there, durably, and [fits](crate::growth::larger). False: it becomes
    /// larger already, or ends.
    pub fn grow(&mut self, layout: Layout) -> bool {
        self.log.grow(layout)
    }

    /// New segments that count are free, and shards hear of them first.
    pub(crate) fn take_growth(&mut self) {
        let before = self.state().segments.len() as u32;
        let Some(layout) = self.log.take_grown() else {
            return;
        };
        if !self.rules.makes(Mistake::GrowthUntold) {
            for shard in self.all_shards() {
                self.outbox.push_back((shard, ToShard::Grown(layout)));
            }
        }
        self.free.extend(before..self.state().segments.len() as u32);
        self.give_segments();
        self.note_space();
    }

    /// Free segments have become more or fewer: everybody learns how much there is. What a kill would bring back does
    /// not count.
    pub(crate) fn note_space(&mut self) {
        let (durable, is_hasty) = (self.log.durable(), self.rules.makes(Mistake::FreedEarly));
        self.freeing
            .retain(|_, needed| *needed > durable && !is_hasty);
        let free = (self.free.len() - self.freeing.len()) as u32;
        let steps = self.steps();
        let found = steps.iter().find(|(at_most, _)| free <= *at_most);
        let space = found.map_or(Space::Plenty, |(_, space)| *space);
        let [.., (full, _), (short, _), _] = steps;
        let share = u64::from(SHARE_MAX) * u64::from(free.saturating_sub(full))
            / u64::from((short - full).max(1));
        let share = share.min(u64::from(SHARE_MAX)) as u32;
        if !self.rules.makes(Mistake::SpaceUnknown) {
            self.shared.set_space(space, share);
        }
    }

    /// A shard needs nothing in a segment any more.
    pub(crate) fn unneeded(&mut self, shard: u16, number: u32, behind: u64) {
        self.unneeded.insert(number, Unneeded { shard, behind });
        self.leave_segments();
    }

    /// Segments that no checkpoint needs either: the shard shall leave them.
    pub(crate) fn leave_segments(&mut self) {
        let is_early = self.rules.makes(Mistake::SegmentFreedAtOnce);
        let is_hasty = self.rules.makes(Mistake::SegmentFreedAfterOne);
        let ready = self.unneeded.iter().filter(|(_, it)| {
            let all = &self.state().checkpoints[usize::from(it.shard)];
            let oldest = if is_hasty { all.last() } else { all.first() };
            let is_behind = oldest.is_some_and(|oldest| oldest.number > it.behind);
            is_early || is_behind && (all.len() == CHECKPOINTS_KEPT || is_hasty)
        });
        let ready: Vec<(u32, u16)> = ready.map(|(number, it)| (*number, it.shard)).collect();
        for (number, shard) in ready {
            self.unneeded.remove(&number);
            self.outbox.push_back((shard, ToShard::Leave(number)));
        }
    }

    /// A shard has left a segment. It hears when that is durably free.
    pub(crate) fn left(&mut self, shard: u16, number: u32) {
        let state = self.state().segments[number as usize];
        let needed = self.free_segment(number, state);
        self.send_after(needed, shard, ToShard::Freed(number));
    }

    pub(crate) fn free_segment(&mut self, number: u32, state: SegmentState) -> u64 {
        let used_for = UsedFor::Nothing;
        let needed = self.note(crate::entry::Entry::Segment(
            number,
            SegmentState { used_for, ..state },
        ));
        // Taken again behind this entry in the same log: so not before it.
        self.free.insert(number);
        self.freeing.insert(number, needed);
        needed
    }

    /// Checkpoints that free segments, where enough waits for one that has not begun.
    pub(crate) fn checkpoint_for_space(&mut self) {
        let all = self.state().segments.len();
        let due = match self.shared.space() {
            Space::Plenty | Space::Low => all / WAITING_SHARE,
            Space::Short => all / WAITING_SHARE_SHORT,
            Space::Full | Space::Reserve | Space::Last => 0,
        };
        let mut waiting = vec![0; self.checkpoint_sizes.len()];
        for it in self.unneeded.values() {
            waiting[usize::from(it.shard)] += 1;
        }
        for (shard, count) in (0..).zip(waiting) {
            if count > due {
                self.begin_checkpoint(shard);
            }
        }
    }
}
