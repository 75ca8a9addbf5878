// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal's thread: what has waited for Redis for long goes to a disk, for the case that the machine loses
//! its power. It reads the pinned rings beside the drain, so the daemon's one thread never waits for a disk, and memory
//! is bounded by what one write takes.
//!
//! Invariants:
//! 1. What is not drained and has waited for [`LATE_NS`] is written and synced. All of it is, at once, while Redis is
//!    away or a detach waits.
//! 2. While the journal could not take what waits, nothing is answered (`Condition::Journal`). Nothing is lost by that:
//!    the rings have it, as long as the machine runs.
//! 3. Segments of other maps are told and never touched: what they have may be older than what Redis has.
//! 4. Those of the same maps are an earlier daemon's. They go when all that was answered before this one began is
//!    settled.
//! 5. A segment stays until what it has is settled ([`Settled`]): what has waited for long is drained at once, and until
//!    Redis has synced its log nothing else has it.
//! 6. What lies in the folder is looked at beside all this, for [`SURVEY_MAX`] a turn: however much it is, it keeps
//!    nothing waiting.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use erb_abi::{Logs, Written};
use erb_datapath::open_logs;
use erb_journal::{Disk, Found, Identity, Journal, Segment, Survey, Write, summary};
use erb_redis::drain::Follower;
use erb_report::JournalReport;

use crate::clock::monotonic_ns;
use crate::journal::{END_MAX, End, Shared, tell_left};
use crate::journal_all::{BUSY_LOOK, Everything, put_up_to};
use crate::journal_disk::{room_against, unusable};
use crate::kmod::Module;
use crate::kmod_keeper::{ByModule, take_left, until_module_ended};
use crate::settled::Settled;
use crate::teller::Teller;

/// What has waited for so long is written.
const LATE_NS: u64 = 500_000_000;

/// Between looks.
const LOOK: Duration = Duration::from_millis(200);

/// Between tries of what failed, and looks at the disk's room.
const RETRY: Duration = Duration::from_secs(1);

/// Of a turn, for what lies in the folder.
const SURVEY_MAX: Duration = Duration::from_millis(50);

/// The thread's side.
pub(crate) struct Keeper {
    folder: PathBuf,
    identity: Identity,
    journal: Option<Journal<Disk>>,
    follower: Follower,
    /// Every write is kept.
    all: Option<Everything>,
    pub(crate) settled: Settled,
    /// The kernel module writes it.
    by_module: Option<ByModule>,
    /// The module may have what it wrote before for this boost.
    has_left: bool,
    /// What was there when it was opened, and is not looked at yet.
    survey: Option<Survey>,
    /// All that a former daemon has kept was answered by then.
    lsn_before: u64,
    /// Segments of others.
    left: Vec<Segment>,
    /// Why it cannot work, but for what the journal itself tells.
    trouble: Option<String>,
    /// A ring holds what cannot be.
    broken: Option<String>,
    /// What journals have written that were given up, and how often they and the folder failed.
    before: (u64, u64),
    next_try: Instant,
    next_look: Instant,
}

impl Keeper {
    pub(crate) fn new(folder: PathBuf, identity: Identity, all: Option<Everything>) -> Self {
        let now = Instant::now();
        Self {
            folder,
            identity,
            journal: None,
            follower: Follower::default(),
            all,
            settled: Settled::new(),
            by_module: None,
            has_left: true,
            survey: None,
            lsn_before: 0,
            left: Vec::new(),
            trouble: None,
            broken: None,
            before: (0, 0),
            next_try: now,
            next_look: now,
        }
    }

    /// From the first turn on the kernel module writes it.
    pub(crate) fn by_module(mut self) -> Self {
        self.by_module = Some(ByModule::new(self.identity));
        self
    }

    pub(crate) fn run(mut self, pins: &Path, shared: &Shared) {
        let logs = match open_logs(pins) {
            Ok(logs) => logs,
            Err(error) => {
                tracing::error!("the journal cannot read what is answered: {error}");
                return;
            }
        };
        let (mut told, mut teller) = (None, Teller::default());
        loop {
            shared.turned_ns.store(monotonic_ns(), Ordering::Relaxed);
            self.turn(&logs, shared.hurry.load(Ordering::Relaxed));
            let against = self.against();
            match (
                against.as_deref(),
                teller.may_say(against.is_some(), Instant::now()),
            ) {
                (_, false) => {}
                (Some(why), true) => tracing::error!("{why}"),
                (None, true) => tracing::info!("the journal in {} works", self.folder.display()),
            }
            let mut words = shared.words();
            words.report = self.report(&logs, against.as_deref());
            if told.as_ref() != Some(&against) {
                words.against.clone_from(&against);
                shared.version.fetch_add(1, Ordering::Release);
                told = Some(against);
            }
            let end = words.end;
            drop(words);
            match end {
                End::NotYet => thread::park_timeout(match self.survey {
                    Some(_) => SURVEY_MAX,
                    None if self.is_busy() => BUSY_LOOK,
                    None => LOOK,
                }),
                End::Keep => return self.hand_over(),
                End::Remove => return self.remove(),
            }
        }
    }

    fn is_busy(&self) -> bool {
        let reads_all = self.all.as_ref().filter(|_| self.by_module.is_none());
        reads_all.is_some_and(|all| all.is_busy)
    }

    /// Opens the folder. What lies there is looked at later.
    fn open(&mut self, logs: &Logs) -> io::Result<Journal<Disk>> {
        let disk = Disk::open(&self.folder)?;
        self.lsn_before = logs.lsn();
        self.left.clear();
        let survey = Survey::begin(&self.folder, self.identity)?;
        let next = survey.next_number();
        self.survey = Some(survey);
        Ok(Journal::new(disk, self.identity, next))
    }

    /// Sorts what lies in the folder, for a while.
    fn sort(&mut self, until: Instant) {
        let Some((survey, journal)) = self.survey.as_mut().zip(self.journal.as_mut()) else {
            return;
        };
        while !survey.is_over() {
            match survey.step() {
                Some(Found::Own(number)) => match journal.sink().take(number) {
                    Ok(file) => journal.inherit(file, number, self.lsn_before),
                    Err(_) => {
                        // Who looks at it has it for a moment.
                        survey.put_back(number);
                        return;
                    }
                },
                // Made, and never needed: it tells nothing, and may stay as well.
                Some(Found::Other(segment)) if segment.is_empty() => {
                    let _ = erb_journal::discard(&segment);
                }
                // Somebody was faster.
                Some(Found::Other(segment)) if !segment.path.exists() => {}
                Some(Found::Other(segment)) => self.left.push(segment),
                None => {}
            }
            if Instant::now() >= until {
                return;
            }
        }
        self.survey = None;
        if let Some(text) = tell_left(&self.folder, &self.left) {
            tracing::warn!("{text}");
        }
    }

    /// Everything that is due, and then what has time.
    fn turn(&mut self, logs: &Logs, hurry: bool) {
        self.keep_late(logs, hurry);
        self.sort(Instant::now() + SURVEY_MAX);
    }

    fn keep_late(&mut self, logs: &Logs, hurry: bool) {
        let now = Instant::now();
        let may_try = now >= self.next_try;
        if self.journal.is_none() && may_try {
            match self.open(logs) {
                Ok(journal) => (self.journal, self.trouble) = (Some(journal), None),
                Err(error) => {
                    self.next_try = now + RETRY;
                    // Another daemon that has it still is no failure of the disk's.
                    self.before.1 += u64::from(error.kind() != io::ErrorKind::WouldBlock);
                    self.trouble = Some(unusable(&error));
                }
            }
        }
        let Some(journal) = &mut self.journal else {
            return;
        };
        if now >= self.next_look {
            self.next_look = now + RETRY;
            if let Some(path) = journal.sink().missing() {
                self.before.0 += journal.records();
                self.before.1 += journal.failures() + 1;
                return self.begin_elsewhere(&path, logs, now);
            }
            self.trouble = room_against(journal.sink(), logs);
            if self.has_left && self.by_module.is_none() {
                match take_left(Module::open, journal, self.identity) {
                    Ok(is_all) => self.has_left = !is_all,
                    Err(error) => {
                        self.trouble = Some(format!("what the kernel module has: {error}"));
                    }
                }
            }
            self.left.retain(|segment| segment.path.exists());
        }
        // What fails is kept by the journal as its fault.
        let drained = logs.drained();
        let settled = self.settled.of(drained, now);
        // A segment of all takes what is answered meanwhile, too.
        let ends = if self.all.is_some() { settled } else { drained };
        let _ = journal.drained(ends, settled);
        let is_ill = !is_ready(self.by_module.as_ref(), journal) || self.broken.is_some();
        if is_ill && !may_try {
            return;
        }
        let waits = logs.lsn() > drained;
        let is_late = hurry || monotonic_ns().saturating_sub(logs.fresh_ns()) > LATE_NS;
        let is_late = waits && is_late;
        let next = match &self.all {
            Some(all) => all.next_lsn(),
            None => drained + 1,
        };
        let kept = match (&mut self.by_module, &mut self.all) {
            (Some(by_module), Some(all)) => by_module.keep(journal, logs, all, is_late),
            (_, all) => journal.prepare(next).and_then(|()| match (all, is_late) {
                (Some(all), _) => all.keep(journal, logs, is_late),
                (None, true) => keep(journal, &mut self.follower, logs),
                (None, false) => Ok(()),
            }),
        };
        let failed = kept.err();
        if failed.is_some() {
            self.next_try = now + RETRY;
        }
        // What is not the disk's fault is the rings': they hold what cannot be.
        let of_rings = failed.filter(|_| journal.fault().is_none());
        self.broken = of_rings.map(|error| error.to_string());
    }

    /// What counted as kept is not: another segment gets all that waits.
    fn begin_elsewhere(&mut self, missing: &Path, logs: &Logs, now: Instant) {
        self.trouble = Some(format!("{} was taken away", missing.display()));
        (self.journal, self.survey, self.next_try) = (None, None, now);
        if let Some(all) = &mut self.all {
            all.begin_anew();
        }
        if let Some(by_module) = &mut self.by_module {
            let (records, failures) = by_module.counts();
            self.before = (self.before.0 + records, self.before.1 + failures);
            by_module.reset();
            self.all = Some(Everything::of_nobody(logs.count()));
        }
    }

    /// Why writes may not be answered.
    fn against(&self) -> Option<String> {
        let folder = self.folder.display();
        let journal = self.journal.as_ref();
        let fault = journal.and_then(|journal| journal.fault());
        let unready = || {
            let is_one = journal.is_some_and(|journal| is_ready(self.by_module.as_ref(), journal));
            (!is_one).then(|| "no segment is ready".to_owned())
        };
        let known = fault.map(str::to_owned).or_else(|| self.broken.clone());
        let known = known.or_else(|| self.trouble.clone());
        let why = known.or_else(unready)?;
        Some(format!(
            "the journal in {folder} cannot keep what waits for Redis: {why}; it is tried again each second"
        ))
    }

    fn report(&self, logs: &Logs, against: Option<&str>) -> JournalReport {
        let journal = self.journal.as_ref();
        let count = |of: fn(&Journal<Disk>) -> u64| journal.map_or(0, of);
        let module = self.by_module.as_ref();
        let (records, failures) = module.map(ByModule::counts).unwrap_or_default();
        let durable = module.map_or_else(|| count(Journal::durable), ByModule::durable);
        let own = (count(Journal::batches), count(Journal::syncs), 0);
        let (batches, syncs, wakes) = module.map_or(own, ByModule::work);
        let segments = count(|journal| journal.numbers().count() as u64);
        let (left, _) = summary(&self.left);
        JournalReport {
            keeps: if self.all.is_some() { "all" } else { "late" }.to_owned(),
            sink: if module.is_some() { "kmod" } else { "daemon" }.to_owned(),
            folder: self.folder.display().to_string(),
            sound: against.is_none(),
            why: against.unwrap_or_default().to_owned(),
            waiting: durable.min(logs.lsn()).saturating_sub(logs.drained()),
            segments: segments + module.map_or(0, ByModule::segments),
            written: self.before.0 + count(Journal::records) + records,
            durable_lsn: durable,
            batches,
            syncs,
            wakes,
            failures: self.before.1 + count(Journal::failures) + failures,
            left_segments: self.left.len() as u64,
            left,
            left_what: tell_left(&self.folder, &self.left).unwrap_or_default(),
        }
    }

    /// What was written is synced, for the next daemon does not know of it.
    fn hand_over(&mut self) {
        if let Some(Err(error)) = self.journal.as_mut().map(Journal::flush) {
            tracing::warn!("the journal's last records may not be synced: {error}");
        }
    }

    fn remove(&mut self) {
        // What a former daemon has kept goes, too.
        self.sort(Instant::now() + END_MAX / 2);
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Some(by_module) = &mut self.by_module {
            by_module.end(journal);
        }
        if self.has_left {
            until_module_ended(self.identity, Instant::now() + END_MAX / 2);
        }
        if let Err(error) = journal.discard() {
            tracing::warn!(
                "a segment in {} stays, whose writes are in Redis: {error}",
                self.folder.display()
            );
        }
    }
}

/// Whether a segment is at work, whoever writes it, and nothing that failed is to be made good.
fn is_ready(by_module: Option<&ByModule>, journal: &Journal<Disk>) -> bool {
    match by_module {
        Some(by_module) => by_module.is_at_work() && journal.fault().is_none(),
        None => journal.is_sound(),
    }
}

/// A write of a ring, as a segment has it.
pub(crate) const fn as_kept(one: Written<'_>) -> Write<'_> {
    Write {
        lsn: one.lsn,
        db: one.db,
        expiry_ms: one.expiry_ms,
        key: one.key,
        value: one.value,
    }
}

/// Writes what is not drained, up to what is answered by now.
fn keep(journal: &mut Journal<Disk>, follower: &mut Follower, logs: &Logs) -> io::Result<()> {
    let lsn = logs.lsn();
    let last = journal.last_put().max(logs.drained());
    if last < lsn {
        follower.begin(logs, last);
        put_up_to(journal, follower, logs, (last, lsn))?;
    }
    journal.flush()
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
