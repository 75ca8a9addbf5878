// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal, as the daemon's one thread sees it: where it lies, whose it is, and what its own thread
//! ([`keeper`](crate::keeper)) tells the gate.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use erb_abi::Kept;
use erb_datapath::JournalSink;
use erb_journal::{Disk, Id, Identity, Segment, segments, summary, unread};
use erb_report::JournalReport;
use erb_report::shell::quoted_path;

use crate::clock::monotonic_ns;
use crate::holder::JOURNAL_THREAD;
use crate::journal_all::Everything;
use crate::keeper::Keeper;
use crate::kmod_keeper::until_module_ended;
use crate::rundir::{Notes, could_not};
use crate::{Error, Result};

/// What keeps state over starts of the machine, if there is such a folder.
pub const STATE_ROOT: &str = "/var/lib/erb";

/// A thread that has not turned for so long waits for its disk: what waits could not be kept.
pub(crate) const HUNG_NS: u64 = 1_000_000_000;

/// What the gate is told then.
const HUNG: &str = "the journal's disk does not answer";

/// The thread has so long to delete its segments when all is drained.
pub(crate) const END_MAX: Duration = Duration::from_secs(2);

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
    // Whoever writes it by now: the module may have had it before.
    until_module_ended(own, Instant::now() + END_MAX);
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
    let some = |count: usize, what: &str| match count {
        0 => String::new(),
        _ => format!(" ({count} of {} segments {what})", left.len()),
    };
    let damage = some(damaged, "end before their files do") + &some(unread(left), "cannot be read");
    let (folder, word) = (folder.display(), quoted_path(folder));
    (!left.is_empty()).then(|| {
        format!(
            "the journal in {folder} has {records} SETs that were answered before the machine lost its power, or before \
             a boost was lost, and that may not be in Redis{damage}: `erb journal show {word}` lists them, \
             `erb journal apply` brings them to Redis, `erb journal discard` deletes them"
        )
    })
}

/// How the thread ends.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum End {
    #[default]
    NotYet,
    /// Another daemon goes on with the same maps.
    Keep,
    /// All is drained, or given up.
    Remove,
}

/// What both threads know.
#[derive(Default)]
pub(crate) struct Words {
    pub(crate) end: End,
    pub(crate) against: Option<String>,
    pub(crate) report: JournalReport,
}

#[derive(Default)]
pub(crate) struct Shared {
    words: Mutex<Words>,
    /// Moves with each change of what speaks against answering writes.
    pub(crate) version: AtomicU64,
    /// All that is not drained is to be written now.
    pub(crate) hurry: AtomicBool,
    /// When the thread began its last turn, `CLOCK_MONOTONIC`.
    pub(crate) turned_ns: AtomicU64,
}

impl Shared {
    pub(crate) fn words(&self) -> std::sync::MutexGuard<'_, Words> {
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
        let keeper = match notes.sink {
            JournalSink::Daemon => Keeper::new(folder, identity, all.map(Everything::new)),
            JournalSink::Kmod => {
                let all = Everything::of_nobody(notes.log_rings as usize);
                Keeper::new(folder, identity, Some(all)).by_module()
            }
        };
        let work = move || keeper.run(&pins, &theirs);
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
