// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control log: [entries](crate::entry) in one of two areas, and the superblock that names the area.
//!
//! The driver takes [writes](ControlLog::write), and says how each [ended](ControlLog::written).
//!
//! Invariants:
//! 1. An entry is durable once its batch and all before it in its area are, and a superblock that names the area
//!    counts. Only then anybody may rest on it.
//! 2. An area begins with a snapshot of the state. The superblock that names it is written when that is durable,
//!    and says how many batches it has. At a clean stop it says so of all batches: what is missing then is rotten.
//! 3. An area is begun anew only when all copies of the superblock name the other one.
//! 4. A start of the node writes a new incarnation to the superblock, then begins an area. So nothing that lies
//!    behind the end of the area before it ever counts, and no two batches of one place, area and incarnation exist.
//! 5. After a write has failed nothing more becomes durable.
//! 6. An area is begun anew only when no write to its former use is under way: a slow one would land on the snapshot.
//! 7. A store that grows has its new segments once the superblock that names them counts. That is written while no
//!    area is being begun, and no other superblock is on its way.

use std::collections::{BTreeMap, VecDeque};

use crate::entry::Entry;
use crate::key::Key;
use crate::layout::{CONTROL_SHARD, Layout, SUPERBLOCKS};
use crate::log::{Log, NotAdded, Start, WriteOf};
use crate::mistake::{Mistake, Rules, Sound};
use crate::record::{Change, Kind};
use crate::state::{Impossible, State};
use crate::superblock::{Superblock, SuperblockWrite};
use crate::version::Version;

/// What a write of the control log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlWriteOf {
    /// A copy of the superblock.
    Superblock,
    /// Entries, in the area with this number.
    Entries(u32, WriteOf),
}

/// A write that the driver shall do: direct, and durable when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlWrite {
    /// What it is.
    pub of: ControlWriteOf,
    /// Byte of the store.
    pub address: u64,
    /// Multiples of 4,096.
    pub bytes: Vec<u8>,
}

/// Why the control log is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlFailed {
    /// A write has failed.
    #[error("a write of the control log has failed: open the store again")]
    Write,
    /// A snapshot does not fit an area.
    #[error("an area of the control log is too small for what the store is: nothing was lost")]
    AreaTooSmall,
}

/// The control log.
#[derive(Debug)]
pub struct ControlLog<R = Sound> {
    block: SuperblockWrite,
    state: State,
    /// None: the area is not begun yet.
    log: Option<Log<R>>,
    /// Entries of the snapshot that are not in the log yet.
    snapshot_left: usize,
    /// The first batch behind the snapshot, once all of it is in the log.
    snapshot_end: Option<u64>,
    /// The area is named by the superblock that is written, or was.
    is_named: bool,
    pending: VecDeque<Entry>,
    /// Entries that were added, that the snapshot covers, that are in the log.
    added: u64,
    covered: u64,
    logged: u64,
    /// Batches, and how many entries are in the log with them.
    marks: VecDeque<(u64, u64)>,
    durable: u64,
    /// By area: writes of entries that have not ended.
    under_way: BTreeMap<u32, usize>,
    failed: Option<ControlFailed>,
    is_ending: bool,
    growth: Growing,
    rules: R,
}

/// What a store is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growing {
    No,
    /// It waits for its superblock.
    Wanted(Layout),
    /// The superblock is on its way.
    Written,
}

impl<R: Rules + Copy> ControlLog<R> {
    /// Goes on behind a state that was found, with the superblock that named it and the order in which its copies
    /// are to be written.
    #[must_use]
    pub fn new(found: Superblock, order: [usize; SUPERBLOCKS], state: State, rules: R) -> Self {
        let started = Superblock {
            generation: found.generation + 1,
            incarnation: found.incarnation + 1,
            ..found
        };
        Self {
            block: SuperblockWrite::new(started, order),
            state,
            log: None,
            snapshot_left: 0,
            snapshot_end: None,
            is_named: false,
            pending: VecDeque::new(),
            added: 0,
            covered: 0,
            logged: 0,
            marks: VecDeque::new(),
            durable: 0,
            under_way: BTreeMap::new(),
            failed: None,
            is_ending: false,
            growth: Growing::No,
            rules,
        }
    }

    /// What it says, with what is not durable yet.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The superblock that was last begun to be written.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.block.block()
    }

    /// Adds an entry: how many must be [durable](ControlLog::durable) for it to be.
    ///
    /// # Errors
    /// It cannot be.
    pub fn add(&mut self, entry: Entry) -> Result<u64, Impossible> {
        self.state.apply(&entry)?;
        self.pending.push_back(entry);
        self.added += 1;
        Ok(self.added)
    }

    /// Entries that are durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The state that it began with is durable under the new incarnation.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        let has_area = self.is_named && self.block.counts(&self.rules);
        self.failed.is_none() && has_area
    }

    /// Why it is at its end.
    #[must_use]
    pub fn failed(&self) -> Option<ControlFailed> {
        self.failed
    }

    /// The next write, if there is one.
    pub fn write(&mut self, retention_us: u64) -> Option<ControlWrite> {
        if self.failed.is_some() {
            return None;
        }
        self.name_area();
        self.name_layout();
        if let Some((copy, bytes)) = self.block.write() {
            return Some(ControlWrite {
                of: ControlWriteOf::Superblock,
                address: Layout::superblock_at(copy),
                bytes,
            });
        }
        if self.log.is_none() && self.block.is_over() && self.is_next_area_still() {
            self.begin_area();
        }
        self.fill();
        let area = self.next_area();
        let write = self.log.as_mut()?.write(retention_us)?;
        *self.under_way.entry(area).or_default() += 1;
        Some(ControlWrite {
            of: ControlWriteOf::Entries(area, write.of),
            address: write.address,
            bytes: write.bytes,
        })
    }

    /// The number of the area that the log is in.
    fn next_area(&self) -> u32 {
        let block = self.block.block();
        if self.is_named {
            block.area
        } else {
            block.area + 1
        }
    }

    /// Nobody writes any more to what the next area was before.
    fn is_next_area_still(&self) -> bool {
        let left = self.block.block().area;
        let mut former = self.under_way.range(..left);
        former.next().is_none() || self.rules.makes(Mistake::AreaBegunUnderWrite)
    }

    /// Begins the other area with a snapshot.
    fn begin_area(&mut self) {
        let block = self.block.block();
        let start = Start {
            shard: CONTROL_SHARD,
            store_id: block.store_id,
            incarnation: block.incarnation,
            lsn: 1,
            crc_before: 0,
        };
        let mut log = Log::without_directories(start, self.rules);
        log.give_segment(block.layout.area(block.area + 1));
        self.log = Some(log);
        self.is_named = false;
        self.snapshot_end = None;
        // The snapshot has what was waiting.
        self.pending = self.state.entries().into();
        self.snapshot_left = self.pending.len();
        self.covered = self.added;
        self.logged = self.added;
        self.marks.clear();
    }

    /// Puts what is waiting into the log.
    fn fill(&mut self) {
        while let (Some(entry), Some(log)) = (self.pending.front(), &mut self.log) {
            let value = entry.encode();
            let added = log.add(&Change {
                kind: Kind::Control,
                is_part: false,
                version: Version::ZERO,
                source: Version::ZERO,
                writer: 0,
                expiry_ms: 0,
                key: Key {
                    namespace: 0,
                    bytes: &[],
                },
                value: &value,
            });
            match added {
                Ok((_, lsn)) => self.entered(lsn),
                Err(NotAdded::NeedsSegment) => {
                    self.area_is_full();
                    return;
                }
                Err(NotAdded::Busy | NotAdded::Failed) => return,
            }
        }
    }

    fn entered(&mut self, lsn: u64) {
        self.pending.pop_front();
        if self.snapshot_left > 0 {
            self.snapshot_left -= 1;
            if self.snapshot_left == 0 {
                self.snapshot_end = Some(lsn + 1);
            }
            return;
        }
        self.logged += 1;
        match self.marks.back_mut() {
            Some((last, count)) if *last == lsn => *count = self.logged,
            _ => self.marks.push_back((lsn, self.logged)),
        }
    }

    fn area_is_full(&mut self) {
        if self.snapshot_left > 0 {
            self.failed = Some(ControlFailed::AreaTooSmall);
        } else if self.is_named && self.block.is_over() {
            // Batches under way belong to the area that is left; its entries are in the snapshot.
            self.log = None;
        }
    }

    /// A write has ended.
    pub fn written(&mut self, of: ControlWriteOf, is_well: bool) {
        if !is_well && !self.rules.makes(Mistake::FailureForgotten) {
            self.failed = Some(ControlFailed::Write);
        }
        match of {
            ControlWriteOf::Superblock => self.block.written(),
            ControlWriteOf::Entries(area, of) => {
                let count = self.under_way.remove(&area).unwrap_or(0);
                let left = count.saturating_sub(1);
                self.under_way.extend((left > 0).then_some((area, left)));
                let is_present = area == self.next_area();
                if let Some(log) = self.log.as_mut().filter(|_| is_present) {
                    log.written(of, is_well);
                }
            }
        }
        if self.failed.is_none() {
            self.name_area();
            self.count_durable();
        }
    }

    /// The snapshot is durable: the superblock names its area.
    fn name_area(&mut self) {
        let Some(log) = self.log.as_ref().filter(|_| !self.is_named) else {
            return;
        };
        let is_hasty = self.rules.makes(Mistake::AreaNamedEarly);
        let is_durable = |end: &u64| log.durable_lsn() >= *end || is_hasty;
        let Some(end) = self.snapshot_end.filter(is_durable) else {
            return;
        };
        let block = *self.block.block();
        let named = Superblock {
            generation: block.generation + 1,
            area: block.area + 1,
            area_incarnation: block.incarnation,
            area_batches: end - 1,
            ..block
        };
        self.block = SuperblockWrite::new(named, std::array::from_fn(|copy| copy));
        self.is_named = true;
    }

    /// The store becomes larger, once the superblock says so. What is added is there, durably. False: it becomes larger
    /// already, or ends.
    pub fn grow(&mut self, layout: Layout) -> bool {
        let may = self.growth == Growing::No && !self.is_ending && self.failed.is_none();
        if may {
            self.growth = Growing::Wanted(layout);
        }
        may
    }

    /// The superblock names the larger layout.
    fn name_layout(&mut self) {
        let Growing::Wanted(layout) = self.growth else {
            return;
        };
        if !self.is_named || !self.block.is_over() || self.is_ending {
            return;
        }
        let block = *self.block.block();
        let grown = Superblock {
            generation: block.generation + 1,
            layout,
            ..block
        };
        self.block = SuperblockWrite::new(grown, std::array::from_fn(|copy| copy));
        self.growth = Growing::Written;
    }

    /// The larger layout counts: told once, when the state has its segments.
    pub fn take_grown(&mut self) -> Option<Layout> {
        if self.growth != Growing::Written || !self.block_counts() || self.failed.is_some() {
            return None;
        }
        self.growth = Growing::No;
        let layout = self.block.block().layout;
        self.state.grow(&layout);
        Some(layout)
    }

    fn block_counts(&self) -> bool {
        self.block.counts(&self.rules) || self.rules.makes(Mistake::GrowthCountsAtOnce)
    }

    fn count_durable(&mut self) {
        let counts = self.is_named && self.block_counts();
        let Some(log) = self.log.as_ref().filter(|_| counts) else {
            return;
        };
        self.durable = self.durable.max(self.covered);
        while let Some((lsn, count)) = self.marks.front() {
            if *lsn >= log.durable_lsn() {
                return;
            }
            self.durable = *count;
            self.marks.pop_front();
        }
    }

    /// Once all that was added is durable, a superblock says how far this area goes. True: that is durable too.
    pub fn end(&mut self) -> bool {
        if self.is_ending || self.rules.makes(Mistake::StopUnrecorded) {
            return self.is_idle();
        }
        let durable_lsn = self.log.as_ref().map(Log::durable_lsn);
        if let Some(lsn) = durable_lsn.filter(|_| self.is_idle()) {
            self.is_ending = true;
            let block = *self.block.block();
            let ended = Superblock {
                generation: block.generation + 1,
                area_batches: lsn - 1,
                ..block
            };
            self.block = SuperblockWrite::new(ended, std::array::from_fn(|copy| copy));
        }
        false
    }

    /// Nothing is left to be written or waited for.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_still = self.block.is_over() && self.growth == Growing::No;
        self.durable == self.added && self.has_begun() && is_still
    }
}

/// What a scan of the area that a superblock names begins with. None: the store was never started.
#[must_use]
pub fn area_start(block: &Superblock) -> Option<Start> {
    (block.area > 0).then_some(Start {
        shard: CONTROL_SHARD,
        store_id: block.store_id,
        incarnation: block.area_incarnation,
        lsn: 1,
        crc_before: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistake::Broken;
    use crate::retention::Settings;

    /// A driver that leaves the last writes to the first area under way.
    struct Slow {
        log: ControlLog<Broken>,
        left: Vec<ControlWriteOf>,
        highest: u32,
    }

    impl Slow {
        fn new(mistake: Option<Mistake>) -> Self {
            let areas = (256 << 10) + 2 * (96 << 10);
            let layout = Layout {
                store_bytes: areas + (12 << 16),
                segment_bytes: 64 << 10,
                area_bytes: 96 << 10,
                shards: 1,
            };
            let block = Superblock::format(layout, 7, [7, 8]);
            let state = State::new(&layout, Settings::NEW);
            let order = std::array::from_fn(|copy| copy);
            Self {
                log: ControlLog::new(block, order, state, Broken(mistake)),
                left: Vec::new(),
                highest: 0,
            }
        }

        /// An entry is added, and what can be written is.
        fn step(&mut self, run_us: u64) {
            let added = self.log.add(Entry::Locked(run_us));
            added.expect("an entry that can be");
            while let Some(write) = self.log.write(0) {
                match write.of {
                    ControlWriteOf::Entries(area, _) => {
                        self.highest = self.highest.max(area);
                        if area > 1 || !self.log.has_begun() {
                            self.log.written(write.of, true);
                        } else {
                            self.left.push(write.of);
                        }
                    }
                    ControlWriteOf::Superblock => self.log.written(write.of, true),
                }
            }
            // So many may be under way. The oldest ends.
            if self.left.len() > 2 && self.highest < 2 {
                self.log.written(self.left.remove(0), true);
            }
        }
    }

    #[test]
    fn an_area_is_not_begun_anew_while_a_write_to_its_former_use_is_under_way() {
        for mistake in [None, Some(Mistake::AreaBegunUnderWrite)] {
            let mut slow = Slow::new(mistake);
            (1..300).for_each(|number| slow.step(number));
            assert!(!slow.left.is_empty(), "writes are under way");
            assert_eq!(slow.highest > 2, mistake.is_some());
            for of in std::mem::take(&mut slow.left) {
                slow.log.written(of, true);
            }
            (300..303).for_each(|number| slow.step(number));
            assert!(slow.highest >= 3 && slow.log.is_idle());
        }
    }
}
