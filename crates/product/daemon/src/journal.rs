// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The late journal's thread: what has waited for Redis for long goes to a disk, for the case that the machine loses
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
//!    drained.
//! 5. What lies in the folder is looked at beside all this, for [`SURVEY_MAX`] a turn: however much it is, it keeps
//!    nothing waiting.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use erb_abi::{Kept, LOG_BYTES, Logs, Written};
use erb_datapath::open_logs;
use erb_journal::{Disk, Found, Id, Identity, Journal, Segment, Survey, Write, segments, summary};
use erb_redis::drain::Follower;
use erb_report::JournalReport;

use crate::clock::monotonic_ns;
use crate::holder::JOURNAL_THREAD;
use crate::journal_all::{BUSY_LOOK, Everything, put_up_to};
use crate::rundir::{Notes, could_not};
use crate::teller::Teller;
use crate::{Error, Result};

/// What keeps state over starts of the machine, if there is such a folder.
pub const STATE_ROOT: &str = "/var/lib/erb";

/// What has waited for so long is written.
const LATE_NS: u64 = 500_000_000;

/// Between looks.
const LOOK: Duration = Duration::from_millis(200);

/// Between tries of what failed, and looks at the disk's room.
const RETRY: Duration = Duration::from_secs(1);

/// A thread that has not turned for so long waits for its disk: what waits could not be kept.
const HUNG_NS: u64 = 1_000_000_000;

/// What the gate is told then.
const HUNG: &str = "the journal's disk does not answer";

/// Of a turn, for what lies in the folder.
const SURVEY_MAX: Duration = Duration::from_millis(50);

/// The thread has so long to delete its segments when all is drained.
const END_MAX: Duration = Duration::from_secs(2);

/// Where the journal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalPlace {
    /// A folder below [`STATE_ROOT`], of the first device and the port.
    Default,
    /// This folder.
    Folder(PathBuf),
}

impl JournalPlace {
    /// Where it is for this boost.
    pub(crate) fn folder(&self, device: &str, port: u16) -> PathBuf {
        match self {
            Self::Folder(path) => path.clone(),
            Self::Default => Path::new(STATE_ROOT)
                .join("journal")
                .join(format!("{device}-{port}")),
        }
    }
}

/// An identity for new maps.
pub(crate) fn new_id() -> Result<String> {
    use io::Read;
    let mut bytes = [0; 16];
    let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(Error::io("could not read /dev/urandom"))?;
    Ok(Id(bytes).to_string())
}

/// This start of the machine.
///
/// # Errors
/// [`Error::Io`]: the kernel does not tell.
pub fn boot_id() -> Result<Id> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path).map_err(Error::io(format!("could not read {path}")))?;
    Id::parse(&text).ok_or_else(|| Error::Kernel(format!("{path} does not say an id: {text:?}")))
}

/// Whose a boost's records are; none: its notes are an older build's.
fn identity(notes: &Notes) -> Option<Identity> {
    Some(Identity {
        journal: Id::parse(&notes.journal)?,
        boot: boot_id().ok()?,
    })
}

/// Deletes what a daemon that is dead has left of a boost that is taken away.
pub(crate) fn forget(notes: &Notes) {
    let (Some(folder), Some(own)) = (&notes.journal_folder, identity(notes)) else {
        return;
    };
    let found = segments(folder).unwrap_or_default();
    for segment in found.iter().filter(|one| one.identity() == Some(own)) {
        if let Err(error) = erb_journal::discard(segment) {
            tracing::warn!("could not delete {}: {error}", segment.path.display());
        }
    }
}

/// What was found of others, for people; none: nothing.
#[must_use]
pub fn tell_left(folder: &Path, left: &[Segment]) -> Option<String> {
    let (records, damaged) = summary(left);
    let damage = match damaged {
        0 => String::new(),
        _ => format!(
            " ({damaged} of {} segments end before their files do)",
            left.len()
        ),
    };
    let folder = folder.display();
    (!left.is_empty()).then(|| {
        format!(
            "the journal in {folder} has {records} SETs that were answered before the machine lost its power, or before \
             a boost was lost, and that may not be in Redis{damage}: `erb journal show {folder}` lists them, \
             `erb journal apply` brings them to Redis, `erb journal discard` deletes them"
        )
    })
}

/// How the thread ends.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum End {
    #[default]
    NotYet,
    /// Another daemon goes on with the same maps.
    Keep,
    /// All is drained, or given up.
    Remove,
}

/// What both threads know.
#[derive(Default)]
struct Words {
    end: End,
    against: Option<String>,
    report: JournalReport,
}

#[derive(Default)]
struct Shared {
    words: Mutex<Words>,
    /// Moves with each change of what speaks against answering writes.
    version: AtomicU64,
    /// All that is not drained is to be written now.
    hurry: AtomicBool,
    /// When the thread began its last turn, `CLOCK_MONOTONIC`.
    turned_ns: AtomicU64,
}

impl Shared {
    fn words(&self) -> std::sync::MutexGuard<'_, Words> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_hung(&self) -> bool {
        monotonic_ns().saturating_sub(self.turned_ns.load(Ordering::Relaxed)) > HUNG_NS
    }
}

/// The daemon's side.
pub(crate) struct LateJournal {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    seen: Option<u64>,
    /// Every write is to be kept: the last one that the thread was woken for.
    last_lsn: Option<u64>,
}

impl LateJournal {
    /// Whether its folder can be there: made, if there is none. Before anything is changed.
    pub(crate) fn make_folder(folder: &Path) -> Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        let what = could_not("make the journal's folder", folder);
        Disk::make(folder).map_err(Error::io(format!("{what} (--journal-dir names another)")))
    }

    /// Starts the thread; behind the drop of privileges, for a thread has those of who makes it.
    /// `all`: every write is kept, and waited for by who frees the rings.
    pub(crate) fn start(
        pins: PathBuf,
        notes: &Notes,
        all: Option<Arc<Kept>>,
    ) -> Result<Option<Self>> {
        let Some(folder) = notes.journal_folder.clone() else {
            return Ok(None);
        };
        let identity = identity(notes)
            .ok_or_else(|| Error::Usage("the boost's notes name no journal".to_owned()))?;
        let shared = Arc::new(Shared::default());
        shared.turned_ns.store(monotonic_ns(), Ordering::Relaxed);
        let theirs = Arc::clone(&shared);
        let last_lsn = all.is_some().then_some(0);
        let all = all.map(Everything::new);
        let work = move || Keeper::new(folder, identity, all).run(&pins, &theirs);
        let thread = thread::Builder::new()
            .name(JOURNAL_THREAD.to_owned())
            .spawn(work);
        Ok(Some(Self {
            shared,
            thread: thread.map_err(Error::io("could not start the journal's thread"))?,
            seen: None,
            last_lsn,
        }))
    }

    /// What speaks against answering writes, where that has changed. `hurry`: all that waits is to be written now; `lsn`:
    /// of the last write that was answered.
    pub(crate) fn look(&mut self, hurry: bool, lsn: u64) -> Option<Option<String>> {
        if self.last_lsn.is_some_and(|last| last != lsn) {
            self.last_lsn = Some(lsn);
            self.thread.thread().unpark();
        }
        if self.shared.hurry.swap(hurry, Ordering::Relaxed) != hurry && hurry {
            self.thread.thread().unpark();
        }
        let version = self.shared.version.load(Ordering::Acquire);
        let is_gone = self.thread.is_finished();
        let is_hung = self.shared.is_hung();
        let now = match (is_gone, is_hung) {
            (true, _) => u64::MAX,
            (false, true) => u64::MAX - 1,
            (false, false) => version,
        };
        if self.seen.replace(now) == Some(now) {
            return None;
        }
        if is_hung && !is_gone {
            tracing::error!("{HUNG}");
        }
        Some(match (is_gone, is_hung, version) {
            (true, ..) => Some("the journal's thread has ended: see the log".to_owned()),
            (_, true, _) => Some(HUNG.to_owned()),
            (.., 0) => Some("the journal is being opened".to_owned()),
            _ => self.shared.words().against.clone(),
        })
    }

    /// For people.
    pub(crate) fn report(&self) -> JournalReport {
        let mut report = self.shared.words().report.clone();
        if self.shared.is_hung() {
            (report.sound, report.why) = (false, HUNG.to_owned());
        }
        report
    }

    fn end(self, end: End) {
        self.shared.words().end = end;
        self.thread.thread().unpark();
        let until = Instant::now() + END_MAX;
        while !self.thread.is_finished() {
            if Instant::now() >= until {
                tracing::warn!("the journal's disk does not answer: its segments stay");
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The next daemon goes on with the same maps.
    pub(crate) fn hand_over(self) {
        self.end(End::Keep);
    }

    /// All is drained, or given up.
    pub(crate) fn remove(self) {
        self.end(End::Remove);
    }
}

/// The thread's side.
struct Keeper {
    folder: PathBuf,
    identity: Identity,
    journal: Option<Journal<Disk>>,
    follower: Follower,
    /// Every write is kept.
    all: Option<Everything>,
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
    fn new(folder: PathBuf, identity: Identity, all: Option<Everything>) -> Self {
        let now = Instant::now();
        Self {
            folder,
            identity,
            journal: None,
            follower: Follower::default(),
            all,
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

    fn run(mut self, pins: &Path, shared: &Shared) {
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
                    None if self.all.as_ref().is_some_and(|all| all.is_busy) => BUSY_LOOK,
                    None => LOOK,
                }),
                End::Keep => return,
                End::Remove => return self.remove(),
            }
        }
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
                // What counted as kept is not: another segment gets all that waits.
                self.trouble = Some(format!("{} was taken away", path.display()));
                self.before.0 += journal.records();
                self.before.1 += journal.failures() + 1;
                (self.journal, self.survey, self.next_try) = (None, None, now);
                return;
            }
            self.trouble = room_against(journal.sink(), logs);
            self.left.retain(|segment| segment.path.exists());
        }
        // What fails is kept by the journal as its fault.
        let drained = logs.drained();
        let settled = match &mut self.all {
            Some(all) => all.settled(drained, now),
            None => drained,
        };
        let _ = journal.drained(settled);
        let is_ill = !journal.is_sound() || self.broken.is_some();
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
        let kept = journal
            .prepare(next)
            .and_then(|()| match (&mut self.all, is_late) {
                (Some(all), _) => all.keep(journal, logs, is_late),
                (None, true) => keep(journal, &mut self.follower, logs),
                (None, false) => Ok(()),
            });
        let failed = kept.err();
        if failed.is_some() {
            self.next_try = now + RETRY;
        }
        // What is not the disk's fault is the rings': they hold what cannot be.
        let of_rings = failed.filter(|_| journal.fault().is_none());
        self.broken = of_rings.map(|error| error.to_string());
    }

    /// Why writes may not be answered.
    fn against(&self) -> Option<String> {
        let folder = self.folder.display();
        let journal = self.journal.as_ref();
        let fault = journal.and_then(|journal| journal.fault());
        let unready = || {
            let is_ready = journal.is_some_and(Journal::is_sound);
            (!is_ready).then(|| "no segment is ready".to_owned())
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
        let (left, _) = summary(&self.left);
        JournalReport {
            keeps: if self.all.is_some() { "all" } else { "late" }.to_owned(),
            folder: self.folder.display().to_string(),
            sound: against.is_none(),
            why: against.unwrap_or_default().to_owned(),
            waiting: count(Journal::durable).saturating_sub(logs.drained()),
            segments: count(|journal| journal.numbers().count() as u64),
            written: self.before.0 + count(Journal::records),
            failures: self.before.1 + count(Journal::failures),
            left_segments: self.left.len() as u64,
            left,
            left_what: tell_left(&self.folder, &self.left).unwrap_or_default(),
        }
    }

    fn remove(&mut self) {
        // What a former daemon has kept goes, too.
        self.sort(Instant::now() + END_MAX / 2);
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Err(error) = journal.discard() {
            tracing::warn!(
                "a segment in {} stays, whose writes are in Redis: {error}",
                self.folder.display()
            );
        }
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

fn unusable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            "another daemon has it: give one of them another --journal-dir".to_owned()
        }
        // It may be a disk that is not mounted: nothing is made in its place.
        io::ErrorKind::NotFound => "it is gone: make it, or mount its disk".to_owned(),
        _ => error.to_string(),
    }
}

/// Whether the disk has room for all that may wait, and as much again for what is written a second time.
fn room_against(disk: &Disk, logs: &Logs) -> Option<String> {
    let wanted = 2 * logs.count() as u64 * u64::from(LOG_BYTES);
    match disk.room() {
        Ok(room) if room >= wanted => None,
        Ok(room) => Some(format!(
            "its disk has room for {} MiB, and {} may be needed: make room",
            room >> 20,
            wanted >> 20
        )),
        Err(error) => Some(format!(
            "its disk does not tell how much room it has: {error}"
        )),
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
