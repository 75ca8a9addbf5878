// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recovery: superblock, control log, then of each shard checkpoint and log, then a flush.
//!
//! The driver does what [`Opening::io`] says, one after the other, and brings [what came](Opening::done) of it.
//! What [`Opening::finish`] gives answers nobody before its control log has begun: by then every log's end and a new
//! incarnation are durable.
//!
//! Invariants:
//! 1. What a killed node left in the drive's cache can be read, and then lost. So the device is flushed behind all
//!    reads, before anything that rests on them is written.
//! 2. Every log's end is recorded before anything is answered. What lies behind it never counts again. Segments that
//!    had nothing are free.
//! 3. A checkpoint that is damaged is dropped for the older one, or for the whole log while no row was forgotten.
//!    What is rotten in a shard's log is told, and all else of it counts. Nothing else that is damaged is passed over:
//!    then the store does not open.
//! 4. No version above the ceiling was given, and none at or below it is given again.

use std::sync::Arc;

use crate::checkpoint::{CheckpointReader, DamagedAt, Of, Slices};
use crate::control::Control;
use crate::control_log::{ControlLog, area_start};
use crate::entry::{Checkpoint, Entry, SegmentState, UsedFor};
use crate::key::KeyHasher;
use crate::layout::{ALIGN_BYTES, Layout, SUPERBLOCKS};
use crate::log::Start;
use crate::mending::Mending;
use crate::mistake::{Mistake, Rules, Sound};
pub use crate::open_error::OpenError;
use crate::opened::Opened;
use crate::record::{Kind, Record};
use crate::replay::Replay;
use crate::retention_clock::RetentionClock;
use crate::salvage;
use crate::scan::{FoundAt, Logged, Scan, Scanned};
use crate::shard::{self, Shard};
use crate::state::{CHECKPOINTS_KEPT, State};
use crate::strays::{Stops, Strays};
use crate::superblock::Superblock;
use crate::version::{Clock, Version};
use crate::versions::Versions;
use crate::watermark::Shared;

/// What the driver shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenIo {
    /// Read so many bytes from there; from the drive, not from a cache of the system.
    Read {
        /// Byte of the store.
        address: u64,
        /// A multiple of 4,096.
        bytes: usize,
    },
    /// Make everything durable that can be read.
    Flush,
}

/// What recovery has found of a shard, what the control log has to learn of it, and its newest version.
type Recovered<R> = (shard::Found<R>, Vec<Entry>, Version);

/// A shard's recovery.
#[derive(Debug)]
struct ShardOpening<R> {
    shard: u16,
    /// Checkpoints to try, the newest last; none: the whole log.
    candidates: Vec<Option<Checkpoint>>,
    versions: Versions<R>,
    reader: Option<CheckpointReader>,
    /// The first damage that a checkpoint had.
    damaged: Option<DamagedAt>,
    /// Checkpoints that are damaged.
    dropped: Vec<u64>,
    is_repairing: bool,
    scan: Option<(Scan<R>, Replay<R>)>,
}

#[derive(Debug)]
enum Step<R> {
    Superblocks(Vec<Option<Vec<u8>>>),
    Control(Scan<R>),
    /// Entries of the control log are rotten: what the area before says.
    Earlier(Scan<R>),
    Strays(Strays),
    Shard(Box<ShardOpening<R>>),
    Flush,
    Done,
}

/// What is known once a superblock is.
#[derive(Debug)]
struct Found {
    block: Superblock,
    order: [usize; SUPERBLOCKS],
    state: State,
    is_impossible: bool,
    /// Where entries were durable once and are damaged.
    rotten_at: Option<u64>,
    /// What a repair goes on with then.
    mending: Mending,
    /// What it has found of logs.
    stops: Stops,
}

impl Found {
    fn take_entry(&mut self, at: FoundAt, found: salvage::Found<'_>) {
        let salvage::Found::Record(record) = found else {
            self.rotten_at = self.rotten_at.or(Some(at.address));
            return;
        };
        let entry = entry_of(record);
        let applied = entry.as_ref().map(|entry| self.state.apply(entry));
        self.is_impossible |= applied != Some(Ok(()));
        self.mending.present.extend(entry);
    }

    fn take_earlier(&mut self, at: FoundAt, found: salvage::Found<'_>) {
        if let salvage::Found::Record(record) = found {
            let entry = entry_of(record).map(|entry| (at.lsn, entry));
            self.mending.earlier.extend(entry);
        }
    }
}

fn entry_of(record: &Record<'_>) -> Option<Entry> {
    let is_entry = record.head.kind == Kind::Control;
    Entry::decode(record.value).filter(|_| is_entry)
}

/// A recovery under way.
#[derive(Debug)]
pub struct Opening<R = Sound> {
    step: Step<R>,
    found: Option<Found>,
    recovered: Vec<Recovered<R>>,
    memory_limit_bytes: usize,
    /// The last read has failed once.
    is_repeated: bool,
    is_repairing: bool,
    rules: R,
}

impl<R: Rules + Copy> Opening<R> {
    /// Begins a recovery. Memory is for each shard.
    #[must_use]
    pub fn new(memory_limit_bytes: usize, rules: R) -> Self {
        Self {
            step: Step::Superblocks(Vec::new()),
            found: None,
            recovered: Vec::new(),
            memory_limit_bytes,
            is_repeated: false,
            is_repairing: false,
            rules,
        }
    }

    /// The same, which goes on where something cannot be read, and without entries of the control log that are rotten.
    /// What is lost by that is [told](Opened::lost_entries_at), and by the shards.
    #[must_use]
    pub fn repairing(self) -> Self {
        Self {
            is_repairing: true,
            ..self
        }
    }

    /// What is to be done next; none: recovery is over.
    ///
    /// # Errors
    /// The store cannot be opened.
    pub fn io(&mut self) -> Result<Option<OpenIo>, OpenError> {
        loop {
            let read = match &mut self.step {
                Step::Superblocks(copies) if copies.len() < SUPERBLOCKS => Some(OpenIo::Read {
                    address: Layout::superblock_at(copies.len()),
                    bytes: ALIGN_BYTES as usize,
                }),
                Step::Superblocks(_) => None,
                Step::Control(scan) | Step::Earlier(scan) => scan.read().map(|read| OpenIo::Read {
                    address: read.address,
                    bytes: read.bytes as usize,
                }),
                Step::Strays(strays) => strays
                    .read()
                    .map(|(address, bytes)| OpenIo::Read { address, bytes }),
                Step::Shard(shard) => shard.read(),
                Step::Flush => Some(OpenIo::Flush),
                Step::Done => return Ok(None),
            };
            if read.is_some() {
                return Ok(read);
            }
            self.go_on()?;
        }
    }

    /// What came of it: the bytes of a read, nothing of a flush; none: it failed.
    ///
    /// # Errors
    /// The store cannot be opened.
    pub fn done(&mut self, result: Option<&[u8]>) -> Result<(), OpenError> {
        if result.is_none() && !self.is_repeated && !matches!(self.step, Step::Flush) {
            self.is_repeated = true;
            return Ok(());
        }
        self.is_repeated = false;
        match &mut self.step {
            Step::Superblocks(copies) => copies.push(result.map(<[u8]>::to_vec)),
            Step::Control(scan) => {
                if let Some(known) = &mut self.found {
                    scan.take(result, |at, found| known.take_entry(at, found));
                }
            }
            Step::Earlier(scan) => {
                if let Some(known) = &mut self.found {
                    scan.take(result, |at, found| known.take_earlier(at, found));
                }
            }
            Step::Strays(strays) => strays.done(result),
            Step::Shard(shard) => shard.done(result),
            Step::Flush if result.is_none() => return Err(OpenError::Flush),
            Step::Flush => self.step = Step::Done,
            Step::Done => {}
        }
        Ok(())
    }

    /// A step is over.
    fn go_on(&mut self) -> Result<(), OpenError> {
        match std::mem::replace(&mut self.step, Step::Done) {
            Step::Superblocks(copies) => {
                let copies: [Option<Vec<u8>>; SUPERBLOCKS] =
                    copies.try_into().map_err(|_| OpenError::Unfinished)?;
                let (block, order) = Superblock::choose(&copies)?;
                let area = block.layout.area(block.area);
                let logged = Logged {
                    segment: area,
                    end: None,
                };
                self.found = Some(Found {
                    block,
                    order,
                    state: State::new(&block.layout, block.settings),
                    is_impossible: false,
                    rotten_at: None,
                    mending: Mending::default(),
                    stops: Stops::default(),
                });
                self.step = match area_start(&block) {
                    Some(start) => {
                        let durable_lsn = block.area_batches + 1;
                        let scan = Scan::new(start, vec![logged], durable_lsn, self.rules);
                        let scan = scan.repairing(self.is_repairing);
                        Step::Control(scan)
                    }
                    None => self.next_shard()?,
                };
            }
            Step::Control(scan) => {
                self.check_control(&scan.finish())?;
                self.step = match self.earlier() {
                    Some(scan) => Step::Earlier(scan),
                    None => self.next_shard()?,
                };
            }
            Step::Earlier(scan) => {
                let found = self.found.as_mut().ok_or(OpenError::Unfinished)?;
                let (block, mending) = (found.block, std::mem::take(&mut found.mending));
                let state = State::new(&block.layout, block.settings);
                found.state = mending.finish(state, scan.durable_lsn);
                self.step = Step::Strays(Strays::new(&found.state, &block.layout, block.store_id));
            }
            Step::Strays(strays) => {
                if let Some(found) = &mut self.found {
                    found.stops = strays.finish(&mut found.state, &found.block.layout)?;
                }
                self.step = self.next_shard()?;
            }
            Step::Shard(mut shard) => {
                let found = self.found.as_ref().ok_or(OpenError::Unfinished)?;
                if let Some(recovered) = shard.finish(found, self.rules)? {
                    self.recovered.push(recovered);
                    self.step = self.next_shard()?;
                } else {
                    // The scan begins behind the checkpoint that was read, or an older one is tried.
                    self.step =
                        Step::Shard(shard.go_on(found, self.memory_limit_bytes, self.rules)?);
                }
            }
            Step::Flush | Step::Done => {}
        }
        Ok(())
    }

    fn check_control(&self, scanned: &Scanned) -> Result<(), OpenError> {
        let found = self.found.as_ref().ok_or(OpenError::Unfinished)?;
        let area = found.block.layout.area(found.block.area).seat.address;
        let rotten_at = found.rotten_at.filter(|_| !self.is_repairing);
        if let Some(address) = scanned.damaged_at.or(rotten_at) {
            return Err(OpenError::Control(address));
        }
        // What is impossible without what is lost, a repair leaves out.
        let is_impossible = found.is_impossible && found.rotten_at.is_none();
        if scanned.lsn <= found.block.area_batches || is_impossible {
            return Err(OpenError::Control(area));
        }
        Ok(())
    }

    /// The area before the present one, if that lacks entries.
    fn earlier(&self) -> Option<Scan<R>> {
        let found = self.found.as_ref();
        let block = &found.filter(|found| found.rotten_at.is_some())?.block;
        let start = Start {
            incarnation: 0,
            ..area_start(block)?
        };
        let segment = block.layout.area(block.area - 1);
        let logged = Logged { segment, end: None };
        Some(Scan::new(start, vec![logged], 0, self.rules).repairing(true))
    }

    fn next_shard(&self) -> Result<Step<R>, OpenError> {
        let Some(found) = &self.found else {
            return Ok(Step::Done);
        };
        let shard = self.recovered.len() as u16;
        if shard >= found.block.layout.shards {
            let is_flushed = !self.rules.makes(Mistake::NotFlushed);
            return Ok(if is_flushed { Step::Flush } else { Step::Done });
        }
        let all = &found.state.checkpoints[usize::from(shard)];
        let mut candidates: Vec<Option<Checkpoint>> = Vec::new();
        if all.len() < CHECKPOINTS_KEPT && found.state.is_log_whole(shard) {
            candidates.push(None);
        }
        candidates.extend(all.iter().copied().map(Some));
        if candidates.is_empty() {
            // Its log does not begin where it began, and what went before is named by nothing.
            let first = found.state.log_segments(&found.block.layout, shard, 0);
            let address = first.first().map_or(0, |it| it.segment.seat.address);
            return Err(OpenError::Unordered { shard, address });
        }
        let mut opening = ShardOpening {
            shard,
            candidates,
            versions: keys(found, self.memory_limit_bytes, self.rules),
            reader: None,
            damaged: None,
            dropped: Vec::new(),
            is_repairing: self.is_repairing,
            scan: None,
        };
        opening.begin(found, self.rules);
        Ok(Step::Shard(Box::new(opening)))
    }

    /// The store. It answers nobody before its control log has begun.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn finish(self, monotonic_us: u64) -> Result<Opened<R>, OpenError> {
        let found = self.found.filter(|_| matches!(self.step, Step::Done));
        let found = found.ok_or(OpenError::Unfinished)?;
        let (block, state) = (found.block, found.state);
        // A ceiling may be lost with an entry.
        let newest = self.recovered.iter().map(|it| it.2).max();
        let newest = newest.unwrap_or_default();
        let clock = RetentionClock::start(
            state.run_us,
            monotonic_us,
            state.settings(),
            state.samples.iter().copied(),
        );
        let ceiling = state.ceiling.max(newest);
        let shared = Clock::behind(ceiling);
        let shared = Arc::new(Shared::new(shared, block.layout.shards));
        let is_above = ceiling > state.ceiling;
        let (wall_us, run_us) = (state.wall_us, state.run_us);
        let mut log = ControlLog::new(block, found.order, state, self.rules);
        let is_recorded = !self.rules.makes(Mistake::EndsUnrecorded);
        let mut shards = Vec::new();
        let mut entries: Vec<Entry> = Vec::new();
        entries.extend(is_above.then_some(Entry::Time {
            ceiling,
            wall_us,
            run_us,
        }));
        let mut recovered = Vec::new();
        for (mut found, mut learnt, _) in self.recovered {
            entries.append(&mut learnt);
            found.start.incarnation = log.superblock().incarnation;
            recovered.push(found);
        }
        for entry in entries.into_iter().filter(|_| is_recorded) {
            let added = log.add(entry);
            added.expect("a segment of the state can be ended or freed");
        }
        for entry in log.state().unfinished_checkpoints() {
            let added = log.add(entry);
            added.expect("a segment of the state can be freed");
        }
        for (number, mut found) in (0..).zip(recovered) {
            found.logged = log.state().log_segments(&block.layout, number, 0);
            let shared = Arc::clone(&shared);
            shards.push(Shard::new(shared, block.layout, found, self.rules));
        }
        Ok(Opened {
            control: Control::new(Arc::clone(&shared), log, clock, self.rules),
            shards,
            shared,
            hasher: KeyHasher::new(block.hash_secret),
            lost_entries_at: found.rotten_at,
        })
    }
}

/// No keys yet, but all that is known before them.
fn keys<R: Rules + Copy>(found: &Found, memory_limit_bytes: usize, rules: R) -> Versions<R> {
    let hasher = KeyHasher::new(found.block.hash_secret);
    let retention = found.state.retention.clone();
    let mut versions = Versions::new(hasher, retention, memory_limit_bytes, rules);
    versions.count_segments(found.block.layout);
    for row in &found.state.rows {
        versions.roll_back(row.clone());
    }
    versions
}

impl<R: Rules + Copy> ShardOpening<R> {
    /// Begins with the newest candidate.
    fn begin(&mut self, found: &Found, rules: R) {
        match self.candidates.last().copied().flatten() {
            Some(checkpoint) => {
                let of = Of {
                    shard: self.shard,
                    store_id: found.block.store_id,
                    number: checkpoint.number,
                };
                let layout = &found.block.layout;
                let segments = found
                    .state
                    .checkpoint_segments(layout, self.shard, of.number);
                self.reader = Some(CheckpointReader::new(of, checkpoint, segments));
            }
            None => self.begin_scan(found, Slices::default(), rules),
        }
    }

    fn begin_scan(&mut self, found: &Found, slices: Slices, rules: R) {
        let from = self.candidates.last().and_then(Option::as_ref);
        let (order, start) = State::log_start(&found.block, self.shard, from);
        let layout = &found.block.layout;
        let segments = found.state.log_segments(layout, self.shard, order);
        let durable_lsn = found.state.durable_lsns[usize::from(self.shard)];
        let stops = segments.iter().map(|it| found.stops.of(&it.segment));
        let stops = stops.collect();
        let scan = Scan::new(start, segments, durable_lsn, rules).repairing(self.is_repairing);
        let scan = scan.stopping(stops);
        let replay = Replay::new(slices, found.state.last_commit, rules);
        let replay = replay.owing(found.state.commits.keys().copied());
        self.scan = Some((scan, replay));
    }

    fn read(&mut self) -> Option<OpenIo> {
        if let Some((scan, _)) = &self.scan {
            return scan.read().map(|read| OpenIo::Read {
                address: read.address,
                bytes: read.bytes as usize,
            });
        }
        let read = self.reader.as_mut()?.read();
        let read = read.map_err(|damaged| self.is_damaged(damaged)).ok()?;
        read.map(|(address, bytes)| OpenIo::Read { address, bytes })
    }

    fn is_damaged(&mut self, damaged: DamagedAt) {
        self.reader = None;
        self.damaged = self.damaged.or(Some(damaged));
    }

    fn done(&mut self, result: Option<&[u8]>) {
        let versions = &mut self.versions;
        if let Some((scan, replay)) = &mut self.scan {
            scan.take(result, |at, found| replay.take(versions, at, found));
            return;
        }
        if let Some(reader) = &mut self.reader {
            let at = reader.read().ok().flatten().map_or(0, |(at, _)| at);
            let taken = result.map(|bytes| reader.take(bytes, |saved| versions.load(saved)));
            match taken {
                Some(Ok(())) => {}
                Some(Err(damaged)) => self.is_damaged(damaged),
                None => self.is_damaged(DamagedAt(at)),
            }
        }
    }

    /// The checkpoint was read: its log follows. It is damaged: the one before it does.
    fn go_on(
        mut self: Box<Self>,
        found: &Found,
        memory: usize,
        rules: R,
    ) -> Result<Box<Self>, OpenError> {
        let slices = self.reader.take().map(CheckpointReader::finish);
        match slices {
            Some(Ok(slices)) => self.begin_scan(found, slices, rules),
            other => {
                if let Some(Err(damaged)) = other {
                    self.is_damaged(damaged);
                }
                let dropped = self.candidates.pop().flatten();
                self.dropped
                    .extend(dropped.map(|checkpoint| checkpoint.number));
                if self.candidates.is_empty() {
                    let address = self.damaged.map_or(0, |it| it.0);
                    let shard = self.shard;
                    return Err(OpenError::Checkpoints { shard, address });
                }
                self.versions = keys(found, memory, rules);
                self.begin(found, rules);
            }
        }
        Ok(self)
    }

    /// None: the log was not read yet.
    fn finish(&mut self, found: &Found, rules: R) -> Result<Option<Recovered<R>>, OpenError> {
        let Some((scan, mut replay)) = self.scan.take() else {
            return Ok(None);
        };
        let (shard, scanned) = (self.shard, scan.finish());
        if let Some(address) = scanned.damaged_at {
            return Err(OpenError::Log { shard, address });
        }
        let commits = found.state.commits.iter();
        let owed = commits.filter(|(_, owing)| **owing & (1 << shard) != 0);
        let owed: Vec<Version> = owed.map(|(version, _)| *version).collect();
        let newest = replay.finish(&mut self.versions, &owed, found.rotten_at.is_some());
        let (newest, rot) = newest.map_err(|(address, refused)| OpenError::Replay {
            shard,
            address,
            refused,
        })?;
        if newest > found.state.ceiling && found.rotten_at.is_none() {
            return Err(OpenError::AboveCeiling(shard));
        }
        let start = Start {
            shard,
            store_id: found.block.store_id,
            incarnation: 0,
            lsn: scanned.lsn,
            crc_before: scanned.crc_before,
        };
        let from = self.candidates.last().and_then(Option::as_ref);
        let (from_order, _) = State::log_start(&found.block, shard, from);
        let mut entries = ends(found, shard, from_order, &scanned);
        let damaged = self.dropped.iter();
        entries.extend(damaged.map(|number| Entry::CheckpointDropped(shard, *number)));
        let empty = keys(found, 0, rules);
        let last = found.state.checkpoints[usize::from(shard)].last();
        let (owed, done) = owed.into_iter().partition(|it| replay.is_owing(*it));
        let recovered = shard::Found {
            versions: std::mem::replace(&mut self.versions, empty),
            start,
            owed,
            done,
            logged: Vec::new(),
            last_checkpoint: last.map_or(0, |last| last.number),
            rot,
        };
        Ok(Some((recovered, entries, newest)))
    }
}

/// Ends the log where it ends. Segments that were looked at and have nothing of it are free. Those before them were
/// left by the log, and stay as they are.
fn ends(found: &Found, shard: u16, from_order: u64, scanned: &Scanned) -> Vec<Entry> {
    let (state, layout) = (&found.state, &found.block.layout);
    let logged = state.log_segments(layout, shard, from_order).into_iter();
    let open = logged.filter(|logged| logged.end.is_none());
    open.map(|logged| {
        let (number, uses) = (logged.segment.number, logged.segment.seat.uses);
        let mut ends = scanned.ends.iter();
        match ends.find(|(ended, _)| *ended == number) {
            Some((_, end)) => {
                let order = logged.segment.order;
                let end = Some(*end);
                let used_for = UsedFor::Log { shard, order, end };
                Entry::Segment(number, SegmentState { uses, used_for })
            }
            None => Entry::freed(number, uses),
        }
    })
    .collect()
}
