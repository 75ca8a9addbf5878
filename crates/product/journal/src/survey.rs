// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What lies in a folder, or in one file: for people, and for a daemon that begins.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg, OFlag};

use crate::disk::{Disk, locked_segment, sync_folder_of};
use crate::format::{Header, Identity};
use crate::read::{Entry, Fault, SegmentReader};

/// How long a write may take that has begun: milliseconds between looks at a record that is not whole.
const COMPLETES_MS: [u64; 5] = [10, 40, 100, 250, 600];

/// What a segment is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Every byte is right.
    Sound,
    /// It was being made: it has nothing, and never had.
    Unmade,
    /// It ends before its file does, and why.
    Ends(String),
    /// What it has is not known, and why: who looks may not read it, it is no file, or a later build has written it.
    Unread(String),
}

/// One segment.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its file.
    pub path: PathBuf,
    /// Its number, as its name says, or its header where the name says none.
    pub number: u64,
    /// Its header; none: it has none that is right.
    pub header: Option<Header>,
    /// Whether it is whole.
    pub state: State,
    /// A process has it at work.
    pub is_at_work: bool,
    /// Records that are right.
    pub records: u64,
    /// LSNs of the first and the last of them.
    pub lsns: Option<(u64, u64)>,
    /// Bytes that are right.
    pub bytes: u64,
}

impl Segment {
    /// Whether anything may be in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0 && self.is_sound()
    }

    /// Whether it ends before its file does.
    #[must_use]
    pub const fn is_damaged(&self) -> bool {
        matches!(self.state, State::Ends(_))
    }

    /// Whether nobody knows what it has.
    #[must_use]
    pub const fn is_unread(&self) -> bool {
        matches!(self.state, State::Unread(_))
    }

    /// Whether nothing speaks against it.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        matches!(self.state, State::Sound | State::Unmade)
    }

    /// Whether it is one at all: by its header, or by its name. Anything else that a path may name is not ours to delete.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.header.is_some() || Disk::number(&self.path).is_some()
    }

    /// Whose it is, if its header is right.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.header.map(|header| header.identity)
    }

    /// Tells its records in their order; those that are right.
    ///
    /// # Errors
    /// Its file cannot be opened, has fewer than it had when it was looked at, or who listens says so.
    pub fn tell<E: From<io::Error>>(
        &self,
        mut told: impl FnMut(Entry) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut reader = match SegmentReader::open(BufReader::new(open(&self.path)?)) {
            Ok(reader) => reader,
            Err(why) => return self.lacks(0, Some(why)),
        };
        let mut records = 0;
        loop {
            match reader.next_entry() {
                Ok(Some(entry)) => told(entry)?,
                Ok(None) => return self.lacks(records, None),
                Err(why) => return self.lacks(records, Some(why)),
            }
            records += 1;
        }
    }

    /// What is missing when so many were told: another process has cut it, or the disk does not give it any more.
    fn lacks<E: From<io::Error>>(&self, told: u64, why: Option<Fault>) -> Result<(), E> {
        if told >= self.records {
            return Ok(());
        }
        let why = why.map_or_else(|| "it is shorter by now".to_owned(), |why| why.to_string());
        let had = self.records;
        let text = format!("{told} of the {had} records that it had could be read: {why}");
        Err(io::Error::other(text).into())
    }
}

/// A file that is one: neither a link's other end nor a pipe that never answers.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
    }
}

/// The segments of a folder in the order of their numbers, or the one that a path names. A boost at work deletes what
/// is drained meanwhile: what of a folder is gone by the end is left out, or it would seem to be missing between others.
///
/// # Errors
/// The path cannot be read. A segment that cannot be is told as such.
pub fn segments(path: &Path) -> io::Result<Vec<Segment>> {
    if !fs::metadata(path)?.is_dir() {
        let one = survey(path, None).ok_or(io::ErrorKind::NotFound)?;
        return Ok(vec![one]);
    }
    let mut found: Vec<_> = named(path)?
        .into_iter()
        .filter_map(|number| survey(&Disk::segment(path, number), Some(number)))
        .collect();
    let still = named(path)?;
    found.retain(|segment| still.binary_search(&segment.number).is_ok());
    Ok(found)
}

/// Numbers of a folder's segments, as their names say, in their order.
fn named(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        numbers.extend(Disk::number(&entry?.path()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Folders in a folder that have segments, as their names say: who names the one above may mean one of them.
#[must_use]
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let has_some = |path: &PathBuf| named(path).is_ok_and(|numbers| !numbers.is_empty());
    let mut found: Vec<_> = entries.map(|entry| entry.path()).filter(has_some).collect();
    found.sort();
    found
}

/// None: there is no such file.
///
/// A reader sees a write's first pages before the others (ext4: the file's length grows by them), and who writes may be held up
/// between them (`balance_dirty_pages`). So what somebody has at work ends there only if its next record does not come.
fn survey(path: &Path, number: Option<u64>) -> Option<Segment> {
    let mut found = look(path, number)?;
    for pause_ms in COMPLETES_MS {
        if !found.is_at_work || !found.is_damaged() {
            break;
        }
        thread::sleep(Duration::from_millis(pause_ms));
        if look(path, number)?.bytes > found.bytes {
            found.state = State::Sound;
        }
    }
    Some(found)
}

fn look(path: &Path, number: Option<u64>) -> Option<Segment> {
    let mut reading = Reading::begin(path, number)?;
    while !reading.go_on(u64::MAX) {}
    Some(reading.segment)
}

/// A segment that is being read.
struct Reading {
    segment: Segment,
    /// None: it is read.
    reader: Option<SegmentReader<BufReader<File>>>,
}

impl Reading {
    /// Reads the head alone. None: there is no such file.
    fn begin(path: &Path, number: Option<u64>) -> Option<Self> {
        let mut reading = Self {
            segment: Segment {
                path: path.to_path_buf(),
                number: number.unwrap_or(0),
                header: None,
                state: State::Sound,
                is_at_work: false,
                records: 0,
                lsns: None,
                bytes: 0,
            },
            reader: None,
        };
        match reading.open(number) {
            Ok(()) => {}
            Err(Fault::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotFound => {
                return None;
            }
            Err(Fault::Io { reason, .. }) => {
                reading.segment.state = State::Unread(reason.to_string());
            }
            Err(fault) => reading.ends(&fault),
        }
        Some(reading)
    }

    fn open(&mut self, number: Option<u64>) -> Result<(), Fault> {
        let failed = |reason| Fault::Io { at: 0, reason };
        let file = open(&self.segment.path).map_err(failed)?;
        // Before it is read: it may begin to be somebody's meanwhile, but it does not cease to be.
        self.segment.is_at_work = is_locked(&file).map_err(failed)?;
        let reader = SegmentReader::open(BufReader::new(file))?;
        let header = *reader.header();
        if number.is_some_and(|number| number != header.number) {
            return Err(Fault::Header);
        }
        self.segment.header = Some(header);
        self.segment.number = header.number;
        self.segment.bytes = reader.good_bytes();
        self.reader = Some(reader);
        Ok(())
    }

    fn ends(&mut self, fault: &Fault) {
        self.reader = None;
        self.segment.state = match fault {
            Fault::Unmade => State::Unmade,
            Fault::Version(_) => State::Unread(fault.to_string()),
            fault => State::Ends(fault.to_string()),
        };
    }

    /// Reads records of so many bytes, and perhaps one more; whether all is read.
    fn go_on(&mut self, bytes: u64) -> bool {
        let until = self.segment.bytes.saturating_add(bytes);
        while self.segment.bytes < until {
            let Some(reader) = &mut self.reader else {
                return true;
            };
            match reader.next_entry() {
                Ok(Some(entry)) => {
                    let segment = &mut self.segment;
                    segment.records += 1;
                    let first = segment.lsns.map_or(entry.lsn, |(first, _)| first);
                    segment.lsns = Some((first, entry.lsn));
                    segment.bytes = reader.good_bytes();
                }
                Ok(None) => self.reader = None,
                Err(fault) => self.ends(&fault),
            }
        }
        self.reader.is_none()
    }
}

/// A step of a [`Survey`] reads so much at most, and a record more.
const STEP_BYTES: u64 = 1 << 20;

/// A folder's segments, bit by bit, for who has more to do. The newest come first: a dead daemon's are among them.
pub struct Survey {
    folder: PathBuf,
    /// What is not begun.
    numbers: Vec<u64>,
    reading: Option<Reading>,
    own: Identity,
}

/// What a step of a survey has found.
#[derive(Debug)]
pub enum Found {
    /// A segment of one's own; its records are not read.
    Own(u64),
    /// Somebody else's, read to its end.
    Other(Segment),
}

impl Survey {
    /// Reads the names alone.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn begin(folder: &Path, own: Identity) -> io::Result<Self> {
        Ok(Self {
            folder: folder.to_path_buf(),
            numbers: named(folder)?,
            reading: None,
            own,
        })
    }

    /// A number that is beyond all of them.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        let last = self.numbers.last().copied().unwrap_or(0);
        last.saturating_add(1)
    }

    /// Whether all is found.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.numbers.is_empty() && self.reading.is_none()
    }

    /// This one comes again, as the next one.
    pub fn put_back(&mut self, number: u64) {
        self.numbers.push(number);
    }

    /// Reads a head, or some records.
    pub fn step(&mut self) -> Option<Found> {
        if let Some(mut reading) = self.reading.take() {
            if reading.go_on(STEP_BYTES) {
                return Some(Found::Other(reading.segment));
            }
            self.reading = Some(reading);
            return None;
        }
        let number = self.numbers.pop()?;
        let reading = Reading::begin(&Disk::segment(&self.folder, number), Some(number))?;
        if reading.segment.identity() == Some(self.own) {
            return Some(Found::Own(number));
        }
        self.reading = Some(reading);
        None
    }
}

fn is_locked(file: &File) -> io::Result<bool> {
    match Flock::lock(file.try_clone()?, FlockArg::LockSharedNonblock) {
        Ok(lock) => {
            // The lock is of what was opened, not of its copy.
            drop(lock.unlock());
            Ok(false)
        }
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, error)) => Err(error.into()),
    }
}

/// Deletes a segment, for good, unless somebody has it at work, or its name is another one's by now; whether it did. Who
/// just looks whether somebody has it is waited for.
///
/// # Errors
/// Of the disk.
pub fn discard(segment: &Segment) -> io::Result<bool> {
    let file = match open(&segment.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        opened => opened?,
    };
    let held = match locked_segment(file) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
        held => held?,
    };
    let header = SegmentReader::open(&*held).map(|reader| *reader.header());
    let is_it = |was: &Header| header.as_ref().is_ok_and(|header| header == was);
    if !segment.header.as_ref().is_none_or(is_it) {
        return Ok(false);
    }
    fs::remove_file(&segment.path)?;
    sync_folder_of(&segment.path)?;
    Ok(true)
}

/// How many records these have, and how many of the segments are damaged.
#[must_use]
pub fn summary(segments: &[Segment]) -> (u64, usize) {
    let records = segments.iter().map(|one| one.records).sum();
    let damaged = segments.iter().filter(|one| one.is_damaged());
    (records, damaged.count())
}

/// How many of them are not known.
#[must_use]
pub fn unread(segments: &[Segment]) -> usize {
    segments.iter().filter(|one| one.is_unread()).count()
}

/// Those that have records, one journal's behind the other's as their numbers are. What has none, whosever it is, parts
/// no journal: its LSNs tell which of two records is the later one, and numbers of segments do not.
#[must_use]
pub fn journals(segments: Vec<Segment>) -> Vec<Vec<Segment>> {
    let mut journals: Vec<Vec<Segment>> = Vec::new();
    for segment in segments.into_iter().filter(|one| one.records > 0) {
        match journals.last_mut() {
            Some(last) if last[0].identity() == segment.identity() => last.push(segment),
            _ => journals.push(vec![segment]),
        }
    }
    journals
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
