// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What concerns all shards: roll backs of scopes, batches over shards, snapshots, retention, segments, time. One
//! coordinator, one operation at a time, so nothing can block itself.
//!
//! The driver passes [messages](Control::message) to and fro, [ticks](Control::tick), takes
//! [writes](Control::take_write), and says how each [ended](Control::written).
//!
//! Invariants:
//! 1. Nothing goes to a shard, and no ceiling is raised, before the control log has it durably.
//! 2. A roll back gets its id when every shard has frozen its scope, so nobody writes there above it without knowing
//!    it. The watermark passes it when every shard has it. Only then shards release. What was written before need not
//!    be durable for that: if a crash takes a write and leaves the roll back, nobody has seen either, as the watermark
//!    passes a roll back behind all before it. So it costs one flush.
//! 3. A batch over shards gets its version when every shard has frozen its keys, and is committed when all parts are
//!    durable, and all that its shards had accepted before them: also what a part rests on that changes nothing. The
//!    watermark passes it when every shard has it in its index. It leaves the control log when every shard concerned
//!    has *done* durably in its own.
//! 4. Floors move by the same coordinator, never beyond the watermark or a cut in flight. So no trim overtakes a roll
//!    back, and a snapshot needs no halt: its moment is at or above every floor that any shard has.
//! 5. A segment that is taken has a higher number of uses than ever before.
//! 6. Rows are forgotten when both checkpoints of every shard have them.
//! 7. Whoever waits is overtaken by one of its own operations at most: floors may rise each time that it looks.
//! 8. A shard knows of new segments before one is its own.
//! 9. How far each log is durable is noted once a second, if it has moved. So of an idle store's logs it is known.
//!
//! What it does of space, also when the store grows: `space.rs`; of snapshots: `snapshots.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::control_log::{ControlFailed, ControlLog, ControlWrite, ControlWriteOf};
use crate::entry::{Checkpoint, Entry, SegmentState, UsedFor};
use crate::layout::Layout;
use crate::log::LogEnd;
use crate::message::{Part, Scope, ToControl, ToShard};
use crate::mistake::{Mistake, Rules, Sound};
use crate::retention::Settings;
use crate::retention_clock::RetentionClock;
use crate::rows::{ROWS_MAX, RollBack, Target};
use crate::space::Unneeded;
use crate::state::{CHECKPOINTS_KEPT, segment};
use crate::superblock::Superblock;
use crate::version::{Version, Wall};
use crate::view::Refused;
use crate::watermark::Shared;

/// Most operations that wait for their turn.
pub const WAITING_MAX: usize = 64;
/// So many live rows make checkpoints due.
const ROWS_DUE: usize = ROWS_MAX / 2;

/// What is asked of all shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Roll a scope back. The id is given when it is done.
    RollBack(RollBack),
    /// Change keys of several shards, all or none: parts by shard.
    Batch(Vec<(u16, Vec<Part>)>),
    /// Hold the present moment. It is the answer.
    Snapshot {
        /// For so many microseconds of the retention clock; none: until it is released.
        for_us: Option<u64>,
    },
    /// Let go of a moment that a snapshot holds: of several the one that would end first.
    Release(Version),
    /// Keep this: at once what is more than now, the rest later.
    Settings(Settings),
    /// For so many microseconds of the retention clock keep no less than now.
    Lock {
        /// From now on.
        for_us: u64,
    },
    /// Begin a checkpoint of each shard.
    Checkpoint,
}

/// What came of a request: the version that it made, or the moment.
pub type Outcome = Result<Version, Refused>;

/// What is done now.
#[derive(Debug)]
pub(crate) struct Operation {
    /// None: it is the control log's own.
    pub(crate) ticket: Option<u64>,
    /// None: floors rise.
    pub(crate) request: Option<Request>,
    pub(crate) step: Step,
    /// Shards that have not answered.
    pub(crate) left: BTreeSet<u16>,
    /// Shards that it concerns.
    pub(crate) shards: BTreeSet<u16>,
    pub(crate) version: Version,
    pub(crate) refused: Option<(Refused, Version)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Shards freeze the scope.
    Freezing,
    /// Shards log their parts.
    LoggingParts,
    /// An entry is on its way to the disk.
    Writing,
    /// Shards take it.
    Handing,
}

/// What follows when an entry is durable.
#[derive(Debug)]
pub(crate) enum Promise {
    Send(u16, ToShard),
    Ceiling(Version),
    /// The operation's entry.
    Operation,
}

/// The control log, and who coordinates by it.
#[derive(Debug)]
pub struct Control<R = Sound> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: ControlLog<R>,
    pub(crate) retention_clock: RetentionClock,
    pub(crate) now_us: u64,
    pub(crate) waiting: VecDeque<(Option<u64>, Request)>,
    /// Floors to be raised when it is their turn.
    pub(crate) floors: Option<(Version, Version)>,
    pub(crate) operation: Option<Operation>,
    /// The last one was the control log's own: who waits comes first.
    pub(crate) was_own: bool,
    pub(crate) promises: VecDeque<(u64, Promise)>,
    pub(crate) outbox: VecDeque<(u16, ToShard)>,
    /// Answers, with the version that the watermark has to pass first.
    pub(crate) answers: VecDeque<(Version, u64, Outcome)>,
    pub(crate) free: BTreeSet<u32>,
    /// Those of them that are not durably free: up to where the control log has to be durable.
    pub(crate) freeing: BTreeMap<u32, u64>,
    /// Segments of logs that nobody needs but checkpoints.
    pub(crate) unneeded: BTreeMap<u32, Unneeded>,
    /// By shard: segments of its larger checkpoint.
    pub(crate) checkpoint_sizes: Vec<u32>,
    /// Shards that wait for a segment: of their log, or of the checkpoint with this number.
    starving: VecDeque<(u16, Option<(u64, u32)>)>,
    /// Shards that have to log something, and no segment for it.
    pub(crate) urgent: BTreeSet<u16>,
    next_orders: Vec<u64>,
    /// By shard: the checkpoint that is being written, and its next segment.
    checkpointing: Vec<Option<(u64, u32)>>,
    has_raised: Option<Version>,
    pub(crate) rules: R,
}

impl<R: Rules + Copy> Control<R> {
    /// Goes on with a log, after recovery. What is no log's or checkpoint's is free.
    #[must_use]
    pub fn new(
        shared: Arc<Shared>,
        log: ControlLog<R>,
        retention_clock: RetentionClock,
        rules: R,
    ) -> Self {
        let state = log.state();
        let shards = state.checkpoints.len();
        let mut next_orders = vec![0; shards];
        for segment in &state.segments {
            if let UsedFor::Log { shard, order, .. } = segment.used_for {
                let next = &mut next_orders[usize::from(shard)];
                *next = (*next).max(order + 1);
            }
        }
        for (next, all) in next_orders.iter_mut().zip(&state.checkpoints) {
            // A log whose segments have all gone goes on behind what its checkpoint names.
            let named = all.iter().map(|checkpoint| checkpoint.order + 1);
            *next = named.fold(*next, u64::max);
        }
        let segments = (0..).zip(&state.segments);
        let free = segments.filter(|(_, state)| state.used_for == UsedFor::Nothing);
        let free = free.map(|(number, _)| number).collect();
        let has_few = |all: &Vec<Checkpoint>| all.len() < CHECKPOINTS_KEPT;
        let lacks: Vec<u16> = (0..)
            .zip(&state.checkpoints)
            .filter(|(shard, all)| has_few(all) && !state.is_log_whole(*shard))
            .map(|(shard, _)| shard)
            .collect();
        let checkpoint_sizes = state.checkpoint_sizes();
        let mut control = Self {
            shared,
            retention_clock,
            now_us: 0,
            waiting: VecDeque::new(),
            floors: None,
            operation: None,
            was_own: false,
            promises: VecDeque::new(),
            outbox: VecDeque::new(),
            answers: VecDeque::new(),
            free,
            freeing: BTreeMap::new(),
            unneeded: BTreeMap::new(),
            checkpoint_sizes,
            starving: VecDeque::new(),
            urgent: BTreeSet::new(),
            next_orders,
            checkpointing: vec![None; shards],
            has_raised: None,
            log,
            rules,
        };
        // One was damaged: another takes its place.
        lacks
            .into_iter()
            .for_each(|shard| control.begin_checkpoint(shard));
        control.note_space();
        control
    }

    /// What it says, with what is not durable yet.
    #[must_use]
    pub fn state(&self) -> &crate::state::State {
        self.log.state()
    }

    /// The superblock that was last begun to be written.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.log.superblock()
    }

    /// What lies where. In a store that grows the new segments may not count yet.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.log.superblock().layout
    }

    /// Why it is at its end.
    #[must_use]
    pub fn failed(&self) -> Option<ControlFailed> {
        self.log.failed()
    }

    /// Microseconds that the retention clock has run.
    #[must_use]
    pub fn run_us(&self) -> u64 {
        self.retention_clock.run_us()
    }

    /// Asks for something. False: too much is waiting. The answer bears the ticket.
    pub fn request(&mut self, ticket: u64, request: Request) -> bool {
        if self.waiting.len() >= WAITING_MAX || self.failed().is_some() {
            return false;
        }
        self.waiting.push_back((Some(ticket), request));
        self.turn();
        true
    }

    /// The next answer that may be given.
    pub fn take_answer(&mut self) -> Option<(u64, Outcome)> {
        let watermark = self.shared.watermark();
        let is_visible = |(version, ..): &(Version, u64, Outcome)| *version <= watermark;
        let at = self.answers.iter().position(is_visible)?;
        let (_, ticket, outcome) = self.answers.remove(at)?;
        Some((ticket, outcome))
    }

    /// Time has passed. `lowest_cut` is the lowest cut in flight.
    pub fn tick(&mut self, wall: &Wall, monotonic_us: u64, lowest_cut: Version) {
        self.now_us = wall.now_us();
        let last = self.shared.clock().last();
        if let Some(sample) = self.retention_clock.tick(monotonic_us, last) {
            self.note(Entry::Sample(sample));
        }
        let due = self.shared.clock().ceiling_due(self.now_us);
        if let Some(ceiling) = due.filter(|due| self.has_raised.is_none_or(|it| it < *due)) {
            let entry = Entry::Time {
                ceiling,
                wall_us: wall.now_us(),
                run_us: self.retention_clock.run_us(),
            };
            self.has_raised = Some(ceiling);
            self.note_durable();
            let needed = self.note(entry);
            if self.rules.makes(Mistake::CeilingNotDurable) {
                self.shared.clock().raise(ceiling);
            }
            self.promises.push_back((needed, Promise::Ceiling(ceiling)));
        }
        let settings = self.state().settings();
        let most = self.shared.watermark().min(lowest_cut);
        let floor = |age_us| self.retention_clock.floor(age_us).min(most);
        let floors = (floor(settings.min_age_us), floor(settings.keep_deleted_us));
        let retention = &self.state().retention;
        if floors.0 > retention.floor() || floors.1 > retention.deleted_floor() {
            self.floors = Some(floors);
        }
        self.turn();
    }

    /// How far logs are durable: of one that is idle no later batch says so.
    fn note_durable(&mut self) {
        if self.rules.makes(Mistake::IdleUnmarked) {
            return;
        }
        let known = self.state().durable_lsns.iter();
        let found = (0..).zip(self.shared.durable_lsns().zip(known));
        let risen = found.filter(|(_, (lsn, known))| lsn > known);
        let risen: Vec<(u16, u64)> = risen.map(|(shard, (lsn, _))| (shard, lsn)).collect();
        for (shard, lsn) in risen {
            self.note(Entry::Durable(shard, lsn));
        }
    }

    /// The node stops, and all logs of shards have ended: the superblock will say how far the control log is durable.
    /// It is to be called again until it is true: then that is durable, and nothing more is written.
    pub fn end_log(&mut self) -> bool {
        self.log.end()
    }

    /// The store is served to the hosts of this generation. False: it was served to those of a newer one.
    pub fn serve_hosts(&mut self, generation: u64) -> bool {
        let newest = self.state().hosts;
        if generation > newest && self.failed().is_none() {
            self.note(Entry::Hosts(generation));
        }
        generation >= newest
    }

    /// Adds an entry that is known to be possible.
    pub(crate) fn note(&mut self, entry: Entry) -> u64 {
        let added = self.log.add(entry);
        added.expect("what the coordinator adds is within the bounds")
    }

    /// Sends it once an entry is durable.
    pub(crate) fn send_after(&mut self, needed: u64, shard: u16, message: ToShard) {
        self.promises
            .push_back((needed, Promise::Send(shard, message)));
    }

    /// A message from a shard.
    pub fn message(&mut self, shard: u16, message: ToControl) {
        match message {
            ToControl::WantsLogSegment => self.starving.push_back((shard, None)),
            ToControl::NeedsLogSegment => {
                self.urgent.insert(shard);
            }
            ToControl::WantsCheckpointSegment => {
                let at = &mut self.checkpointing[usize::from(shard)];
                let wanted = *at;
                *at = at.map(|(number, order)| (number, order + 1));
                self.starving.extend(wanted.map(|it| (shard, Some(it))));
            }
            ToControl::Closed(number, end) => self.close(shard, number, end),
            ToControl::Frozen(_) | ToControl::PartsDurable | ToControl::Taken => {
                self.shard_answered(shard, message);
            }
            ToControl::Done(version) => self.shard_is_done(shard, version),
            ToControl::WantsCheckpoint => self.begin_checkpoint(shard),
            ToControl::Checkpointed(checkpoint) => self.checkpointed(shard, checkpoint),
            ToControl::Unneeded(number, behind) => self.unneeded(shard, number, behind),
            ToControl::Left(number) => self.left(shard, number),
        }
        self.give_segments();
        self.note_space();
        self.turn();
    }

    fn close(&mut self, shard: u16, number: u32, end: LogEnd) {
        let state = self.state().segments[number as usize];
        if let UsedFor::Log { order, .. } = state.used_for {
            let used_for = UsedFor::Log {
                shard,
                order,
                end: Some(end),
            };
            self.note(Entry::Segment(number, SegmentState { used_for, ..state }));
        }
    }

    pub(crate) fn give_segments(&mut self) {
        let mut waits = VecDeque::new();
        while let Some((shard, checkpoint)) = self.starving.pop_front() {
            let kept = match checkpoint {
                Some((_, order)) => self.kept_from_checkpoint(shard, order),
                None => self.kept_from_log(shard),
            };
            let number = self.free.first().copied();
            let Some(number) = number.filter(|_| self.free.len() > kept) else {
                waits.push_back((shard, checkpoint));
                continue;
            };
            self.free.remove(&number);
            self.freeing.remove(&number);
            self.give_segment(number, shard, checkpoint);
        }
        self.starving = waits;
    }

    fn give_segment(&mut self, number: u32, shard: u16, checkpoint: Option<(u64, u32)>) {
        let uses = self.state().segments[number as usize].uses + 1;
        let (used_for, order) = match checkpoint {
            Some((number, order)) => {
                let used_for = UsedFor::Checkpoint {
                    shard,
                    number,
                    order,
                };
                (used_for, u64::from(order))
            }
            None => {
                self.urgent.remove(&shard);
                let next = &mut self.next_orders[usize::from(shard)];
                let order = *next;
                *next += 1;
                let used_for = UsedFor::Log {
                    shard,
                    order,
                    end: None,
                };
                (used_for, order)
            }
        };
        let given = segment(&self.layout(), number, uses, order);
        let needed = self.note(Entry::Segment(number, SegmentState { uses, used_for }));
        let message = match checkpoint {
            Some(_) => ToShard::CheckpointSegment(given),
            None => ToShard::LogSegment(given),
        };
        if self.rules.makes(Mistake::SegmentGivenEarly) {
            self.outbox.push_back((shard, message));
        } else {
            self.send_after(needed, shard, message);
        }
    }

    pub(crate) fn begin_checkpoint(&mut self, shard: u16) {
        let at = usize::from(shard);
        if self.checkpointing[at].is_some() {
            return;
        }
        let last = self.state().checkpoints[at].last();
        let number = last.map_or(1, |last| last.number + 1);
        self.checkpointing[at] = Some((number, 0));
        self.outbox
            .push_back((shard, ToShard::BeginCheckpoint(number)));
    }

    fn checkpointed(&mut self, shard: u16, checkpoint: Checkpoint) {
        if let Some((_, segments)) = self.checkpointing[usize::from(shard)].take() {
            self.checkpoint_sizes[usize::from(shard)] = segments;
        }
        self.note(Entry::Checkpoint(shard, checkpoint));
        let kept: Vec<u64> = self.state().checkpoints[usize::from(shard)]
            .iter()
            .map(|it| it.number)
            .collect();
        let old = (0..).zip(&self.state().segments).filter(|(_, state)| {
            matches!(state.used_for, UsedFor::Checkpoint { shard: whose, number, .. }
                if whose == shard && !kept.contains(&number))
        });
        let old: Vec<(u32, SegmentState)> = old.map(|(at, state)| (at, *state)).collect();
        for (number, state) in old {
            self.free_segment(number, state);
        }
        self.forget_rows();
        self.leave_segments();
    }

    fn forget_rows(&mut self) {
        let is_hasty = self.rules.makes(Mistake::RowsForgottenAtOnce);
        let known = self.state().checkpoints.iter().map(|all| match &all[..] {
            [.., last] if is_hasty => last.rows_up_to,
            [older, _] if all.len() == CHECKPOINTS_KEPT => older.rows_up_to,
            _ => Version::ZERO,
        });
        let up_to = known.min().unwrap_or_default();
        let oldest = self.state().rows.first();
        if oldest.is_none_or(|row| row.id > up_to) {
            return;
        }
        let needed = self.note(Entry::RowsForgotten(up_to));
        for shard in 0..self.next_orders.len() as u16 {
            self.send_after(needed, shard, ToShard::ForgetRows(up_to));
        }
    }

    fn shard_is_done(&mut self, shard: u16, version: Version) {
        let owing = self.state().commits.get(&version).copied();
        if let Some(owing) = owing {
            self.note(Entry::Commit(version, owing & !(1 << shard)));
        }
    }

    /// What it has to tell a shard next.
    pub fn take_message(&mut self) -> Option<(u16, ToShard)> {
        self.outbox.pop_front()
    }

    /// The next write, if there is one.
    pub fn take_write(&mut self) -> Option<ControlWrite> {
        self.log.write(self.retention_clock.run_us())
    }

    /// A write has ended.
    pub fn written(&mut self, of: ControlWriteOf, is_well: bool) {
        self.log.written(of, is_well);
        if self.log.has_begun() {
            self.shared.open();
        }
        self.take_growth();
        self.note_space();
        while let Some((needed, _)) = self.promises.front() {
            if *needed > self.log.durable() {
                break;
            }
            match self.promises.pop_front() {
                Some((_, Promise::Send(shard, message))) => {
                    self.outbox.push_back((shard, message));
                }
                Some((_, Promise::Ceiling(ceiling))) => self.shared.clock().raise(ceiling),
                Some((_, Promise::Operation)) => self.entry_is_durable(),
                None => {}
            }
        }
        self.turn();
    }

    /// Begins what is due and what waits.
    pub(crate) fn turn(&mut self) {
        if self.failed().is_some() {
            return;
        }
        if self.state().rows.len() >= ROWS_DUE {
            for shard in 0..self.next_orders.len() as u16 {
                self.begin_checkpoint(shard);
            }
        }
        self.checkpoint_for_space();
        self.begin_operation();
    }

    /// A moment that is not before now.
    pub(crate) fn is_future(&self, row: &RollBack) -> bool {
        matches!(row.target, Target::Moment(moment) if moment > self.shared.clock().last())
    }

    /// All shards.
    pub(crate) fn all_shards(&self) -> BTreeSet<u16> {
        (0..self.next_orders.len() as u16).collect()
    }

    /// What a freeze tells each shard.
    pub(crate) fn scopes(&self, request: &Request) -> Vec<(u16, Scope)> {
        match request {
            Request::RollBack(row) => {
                let id = Version::new(self.shared.clock().last().number() + 1);
                let row = RollBack { id, ..row.clone() };
                let shards = self.all_shards().into_iter();
                shards
                    .map(|shard| (shard, Scope::RollBack(row.clone())))
                    .collect()
            }
            Request::Batch(parts) => parts
                .iter()
                .map(|(shard, parts)| (*shard, Scope::Batch(parts.clone())))
                .collect(),
            _ => Vec::new(),
        }
    }
}
