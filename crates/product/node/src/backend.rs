// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine as the protocol's target asks for it: requests come with a ticket, and are answered once.
//!
//! Invariants:
//! 1. A change is answered once the watermark has passed its version; a refusal once it has passed what refused it.
//! 2. A read sees what is at or below the watermark of the turn in which it is begun. So it never waits for writes.
//! 3. Whoever reads over several turns holds its cut: nothing that it may still read is trimmed.
//! 4. What runs over several turns is bounded: [`LONG_MAX`] at a time, others wait in their order. What waits is bounded
//!    by the target, which counts commands and their data.

use std::collections::{BTreeMap, VecDeque};

use erb_nvme::backend::{
    Answer, Backend, Damage, Health, Log, Mark, MarkKind, Operation, Refused, Request, Ticket,
};
use erb_store::control;
use erb_store::shard::Shard;
use erb_store::space::Space;
use erb_store::{Target, Version};

use crate::disk::IoId;
use crate::engine::Engine;
use crate::error::Result;
use crate::listing::Scan;
use crate::reads::{Rows, ValueRead};
use crate::status::Counts;
use crate::words;
use crate::writes::Pending;

/// Listings, dry runs and lists of versions at a time.
const LONG_MAX: usize = 16;
/// A lock, and a snapshot that ends by itself, are for so long at most: ten years. Nobody could take back more.
const AHEAD_MAX_US: u64 = 10 * 366 * 24 * 3600 * 1_000_000;
/// Dry runs whose counts are kept.
const DRY_RUNS_MAX: usize = 64;

/// What came of a request.
pub(crate) type Outcome = std::result::Result<Answer, Refused>;

/// What was asked of all shards.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// It is answered with its version.
    Version,
    /// It is only done.
    Done,
}

/// The store behind the target.
pub(crate) struct Store {
    pub(crate) engine: Engine,
    /// By shard: writes that come later, in their order; those of who may use the reserve apart, as others wait for
    /// space longer.
    pub(crate) waiting: Vec<[VecDeque<Pending>; 2]>,
    /// Answers that wait for the watermark.
    answers: BTreeMap<(Version, Ticket), Outcome>,
    completed: VecDeque<(Ticket, Outcome)>,
    asked: BTreeMap<u64, Asked>,
    pub(crate) reads: BTreeMap<IoId, ValueRead>,
    pub(crate) rows: BTreeMap<Ticket, Rows>,
    pub(crate) scans: VecDeque<Scan>,
    /// What begins when others of its kind have ended.
    long: VecDeque<(Ticket, Request)>,
    dry_runs: VecDeque<Mark>,
    /// Moves with what the log of marks says.
    marks_moved: u64,
    pub(crate) counts: Counts,
}

/// The namespace as the engine counts it.
pub(crate) fn namespace(request: &Request) -> u16 {
    u16::try_from(request.namespace).expect("a target serves the namespaces that it was given")
}

impl Store {
    pub(crate) fn new(engine: Engine) -> Self {
        let shards = engine.store.shards.len();
        Self {
            engine,
            waiting: (0..shards).map(|_| Default::default()).collect(),
            answers: BTreeMap::new(),
            completed: VecDeque::new(),
            asked: BTreeMap::new(),
            reads: BTreeMap::new(),
            rows: BTreeMap::new(),
            scans: VecDeque::new(),
            long: VecDeque::new(),
            dry_runs: VecDeque::new(),
            marks_moved: 0,
            counts: Counts::default(),
        }
    }

    /// Everything that can go on goes on.
    ///
    /// # Errors
    /// The store has to be opened again.
    pub(crate) fn turn(&mut self) -> Result<()> {
        let cuts = self.scans.iter().map(|scan| scan.cut);
        let lowest_cut = cuts.min().unwrap_or(Version::MAX);
        self.write_waiting();
        self.engine.turn(lowest_cut)?;
        while let Some((id, bytes)) = self.engine.value() {
            self.has_read(id, bytes.as_ref());
        }
        while let Some((ticket, outcome)) = self.engine.store.control.take_answer() {
            self.take_answer(ticket, outcome);
        }
        self.begin_long();
        self.scan();
        let watermark = self.watermark();
        while let Some(entry) = self.answers.first_entry() {
            let (version, ticket) = *entry.key();
            if version > watermark {
                break;
            }
            self.completed.push_back((ticket, entry.remove()));
        }
        Ok(())
    }

    pub(crate) fn watermark(&self) -> Version {
        self.engine.store.shared.watermark()
    }

    /// Whether there is something to do at once, although nothing came.
    pub(crate) fn is_busy(&self) -> bool {
        let mut shards = self.engine.store.shards.iter();
        let is_counting = shards.any(Shard::is_counting);
        !self.scans.is_empty() || !self.completed.is_empty() || is_counting
    }

    /// Whether writes wait for a moment: for a segment, for space, or for the end of a freeze.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting
            .iter()
            .flatten()
            .any(|waiting| !waiting.is_empty())
    }

    /// Nothing was asked that is not answered.
    pub(crate) fn is_idle(&self) -> bool {
        let is_answered = self.answers.is_empty() && self.completed.is_empty();
        let is_long = self.long.is_empty() && self.scans.is_empty() && self.rows.is_empty();
        is_answered
            && is_long
            && self.asked.is_empty()
            && !self.has_waiting()
            && self.reads.is_empty()
    }

    /// Answers when the watermark has passed a version.
    pub(crate) fn answer_at(&mut self, version: Version, ticket: Ticket, outcome: Outcome) {
        self.answers.insert((version, ticket), outcome);
    }

    /// Answers at once.
    pub(crate) fn answer(&mut self, ticket: Ticket, outcome: Outcome) {
        self.completed.push_back((ticket, outcome));
    }

    /// A moment as the engine knows it: one that is over, although nothing was written in it, is the watermark.
    pub(crate) fn moment(&self, number: u64) -> Version {
        let (moment, watermark) = (Version::new(number), self.watermark());
        let over = Version::end_of_micros(self.engine.now_us().saturating_sub(1));
        let is_still = self.engine.store.shared.clock().last() <= watermark;
        if moment > watermark && moment <= over && is_still {
            return watermark;
        }
        moment
    }

    /// Asks all shards.
    pub(crate) fn ask(&mut self, ticket: Ticket, request: control::Request) {
        let asked = match request {
            control::Request::Release(_)
            | control::Request::Settings(_)
            | control::Request::Lock { .. } => Asked::Done,
            _ => Asked::Version,
        };
        if self.engine.store.control.request(ticket.0, request) {
            self.asked.insert(ticket.0, asked);
        } else {
            self.answer(ticket, Err(Refused::Busy));
        }
    }

    fn take_answer(&mut self, ticket: u64, outcome: control::Outcome) {
        let Some(asked) = self.asked.remove(&ticket) else {
            return;
        };
        self.marks_moved += 1;
        let outcome = match (outcome, asked) {
            (Ok(version), Asked::Version) => Ok(Answer::Version(version.number())),
            (Ok(_), Asked::Done) => Ok(Answer::Done),
            (Err(why), _) => Err(words::refused(why)),
        };
        self.answer(Ticket(ticket), outcome);
    }

    fn begin_long(&mut self) {
        while self.scans.len() + self.rows.len() < LONG_MAX {
            let Some((ticket, request)) = self.long.pop_front() else {
                return;
            };
            self.begin_scan(ticket, request);
        }
    }

    /// A dry run has counted. It gets an id of its own.
    pub(crate) fn has_counted(
        &mut self,
        ticket: Ticket,
        namespace: u32,
        target: Target,
        keys: u64,
    ) {
        let last = self.dry_runs.back().map_or(0, |mark| mark.id);
        let id = self.watermark().number().max(last + 1);
        if self.dry_runs.len() >= DRY_RUNS_MAX {
            self.dry_runs.pop_front();
        }
        self.dry_runs.push_back(Mark {
            kind: MarkKind::DryRun,
            id,
            namespace,
            keys,
            target: target_number(target),
        });
        self.marks_moved += 1;
        self.answer(ticket, Ok(Answer::Version(id)));
    }

    fn marks(&self) -> Answer {
        let control = &self.engine.store.control;
        let (state, run_us) = (control.state(), control.run_us());
        let rows = state.rows.iter().map(|row| Mark {
            kind: MarkKind::RollBack,
            id: row.id.number(),
            namespace: u32::from(row.namespace),
            keys: Mark::NOT_COUNTED,
            target: target_number(row.target),
        });
        let mut ends: BTreeMap<Version, (u32, u64)> = BTreeMap::new();
        for (at_us, moment, count) in state.endings() {
            let (ending, last_us) = ends.entry(moment).or_default();
            (*ending, *last_us) = (*ending + count, at_us.max(*last_us));
        }
        let snapshots = state.retention.counts().map(|(moment, count)| Mark {
            kind: MarkKind::Snapshot,
            id: moment.number(),
            namespace: 0,
            keys: 0,
            // One of them that does not end by itself holds the moment.
            target: match ends.get(&moment) {
                Some((ending, last_us)) if *ending == count => {
                    last_us.saturating_sub(run_us).max(1)
                }
                _ => 0,
            },
        });
        let dry_runs = self.dry_runs.iter().copied();
        Answer::Marks(
            self.marks_moved,
            rows.chain(dry_runs).chain(snapshots).collect(),
        )
    }

    /// What the scrub has found, and is still needed.
    fn damage(&self, namespace: u32) -> Answer {
        let shards = || self.engine.store.shards.iter();
        let rows = shards().flat_map(Shard::rotten).map(|rot| {
            let (namespace, key) = rot.key.clone().unwrap_or_default();
            Damage {
                address: rot.address,
                namespace: u32::from(namespace),
                key,
            }
        });
        let rows = rows.filter(|row| row.namespace == namespace || row.key.is_empty());
        let generation = shards().map(|shard| shard.scrubbed().rotten).sum();
        Answer::Damage(generation, rows.collect())
    }

    fn open_moment(&mut self, ticket: Ticket, number: u64) {
        let watermark = self.watermark();
        let moment = if number == 0 {
            watermark
        } else {
            self.moment(number)
        };
        let is_known = self.engine.store.control.state().retention.knows(moment);
        let outcome = match moment {
            moment if moment > watermark => Err(Refused::Future),
            _ if !is_known => Err(Refused::Trimmed),
            moment => Ok(Answer::Version(moment.number())),
        };
        self.answer(ticket, outcome);
    }
}

fn target_number(target: Target) -> u64 {
    match target {
        Target::Moment(moment) => moment.number(),
        Target::Back(back) => u64::from(back),
    }
}

impl Backend for Store {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.counts.asked(&request.operation);
        match request.operation {
            Operation::Write { .. } => self.begin_write(ticket, request),
            Operation::Batch(_) => self.begin_batch(ticket, request),
            Operation::Get { .. } | Operation::Exist(_) => self.begin_get(ticket, &request),
            Operation::List { .. } | Operation::Versions { .. } | Operation::Keys { .. } => {
                self.long.push_back((ticket, request));
            }
            Operation::RollBack(ref row) if row.is_dry_run => {
                self.long.push_back((ticket, request))
            }
            Operation::RollBack(ref row) => match self.row(namespace(&request), row) {
                Ok(row) => self.ask(ticket, control::Request::RollBack(row)),
                Err(refused) => self.answer(ticket, Err(refused)),
            },
            Operation::Moment(number) => self.open_moment(ticket, number),
            Operation::Snapshot(0) => self.ask(ticket, control::Request::Snapshot { for_us: None }),
            Operation::Snapshot(seconds) => match seconds.checked_mul(1_000_000) {
                Some(for_us) if for_us <= AHEAD_MAX_US => {
                    let for_us = Some(for_us);
                    self.ask(ticket, control::Request::Snapshot { for_us });
                }
                _ => self.answer(ticket, Err(Refused::Invalid)),
            },
            Operation::Release(version) => {
                self.ask(ticket, control::Request::Release(Version::new(version)));
            }
            Operation::Log(Log::Status) => {
                let health = self.health();
                self.answer(ticket, Ok(Answer::Health(health)));
            }
            Operation::Log(Log::Marks) => {
                let marks = self.marks();
                self.answer(ticket, Ok(marks));
            }
            Operation::Log(Log::Damage) => {
                let damage = self.damage(request.namespace);
                self.answer(ticket, Ok(damage));
            }
            Operation::Retention => {
                let kept = words::kept(&self.engine.store.control);
                self.answer(ticket, Ok(Answer::Retention(kept)));
            }
            Operation::Lock(for_us) if for_us > AHEAD_MAX_US => {
                self.answer(ticket, Err(Refused::Invalid));
            }
            Operation::Lock(for_us) => self.ask(ticket, control::Request::Lock { for_us }),
            Operation::SetRetention(wanted) => {
                // What is longer is in force at once, what is shorter when the min-age of now has passed.
                self.ask(ticket, control::Request::Settings(words::settings(wanted)));
            }
        }
    }

    fn completed(&mut self) -> Option<(Ticket, Outcome)> {
        let (ticket, outcome) = self.completed.pop_front()?;
        if let Err(why) = outcome {
            self.counts.refused(why);
        }
        Some((ticket, outcome))
    }

    fn health(&self) -> Health {
        let store = &self.engine.store;
        let state = store.control.state();
        let account = state.account();
        let segments = |count: u32| u64::from(count) * store.layout().segment_bytes;
        let keys = store
            .shards
            .iter()
            .map(|shard| shard.versions().keys_len() as u64);
        let caches = || store.shards.iter().map(Shard::value_cache);
        Health {
            watermark: store.shared.watermark().number(),
            floor: state.retention.floor().number(),
            now_us: self.engine.now_us(),
            size_bytes: segments(store.layout().segments()),
            used_bytes: segments(account.logs + account.checkpoints),
            keys: keys.sum(),
            is_full: store.shared.space() >= Space::Full,
            is_read_only: store.has_failed(),
            damaged: store.shards.iter().map(damage).sum(),
            cached_bytes: caches().map(|it| it.bytes).sum(),
            cache_hits: caches().map(|it| it.hits).sum(),
            cache_misses: caches().map(|it| it.misses).sum(),
        }
    }
}

/// How often readers, collecting and the scrub have found damage.
fn damage(shard: &Shard) -> u64 {
    shard.collected().1 + shard.scrubbed().rotten
}
