// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--journal-sink kmod`: the kernel module writes the segments of `--journal all`. The programs hand it each record, so
//! the daemon's thread only gives it files, and sees to what it cannot write.
//!
//! Invariants:
//! 1. Nothing is answered while the module has no file: its own gate refuses each record before it has an LSN. So while
//!    it is idle no LSN is given, and `lsn` is the last one.
//! 2. Before its first file all that the rings have is in a segment of the daemon's own: what was answered before it was
//!    there, by whoever wrote the journal then.
//! 3. What it retains goes first into its next file. What a dead daemon has left there, the next one writes down
//!    itself, for its LSNs need not be followed by those that come.
//! 4. A segment that the module has left goes when the last LSN that it may have is drained for long enough: the module
//!    says which that is (`before_lsn`), and behind a failure it is `lsn`.
//! 5. The device is kept open: who closes it says that the daemon is gone.
//! 6. What it retains of a boost whose journal the daemon writes by now, that daemon's thread writes down as well: it may
//!    be drained, and then no ring has it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_abi::Logs;
use erb_journal::{
    Disk, DiskFile, Header, Identity, Journal, SEGMENT_BYTES, Sink, Write, encode_record,
};

use crate::journal_all::Everything;
use crate::kmod::{Calls, GATE_BACKWARD, GATE_GAP, GATE_OPEN, IDLE, IoStatus, Module, against};

/// Between looks whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A segment that the module has.
struct Given {
    file: DiskFile,
    header: Header,
}

impl AsFd for Given {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// See the module.
pub(crate) struct ByModule {
    identity: Identity,
    device: Option<Module>,
    live: Option<Given>,
    /// Given beside that one, and not begun.
    next: Option<Given>,
    /// Files that were begun when `live` was.
    files: u64,
    /// What the rings have is in a segment: invariant 2.
    is_caught_up: bool,
    status: IoStatus,
    /// Records and failures that it had counted before.
    before: Option<(u64, u64)>,
    is_at_work: bool,
}

impl ByModule {
    pub(crate) fn new(identity: Identity) -> Self {
        Self {
            identity,
            device: None,
            live: None,
            next: None,
            files: 0,
            is_caught_up: false,
            status: IoStatus::default(),
            before: None,
            is_at_work: false,
        }
    }

    /// Whether each record has a place.
    pub(crate) const fn is_at_work(&self) -> bool {
        self.is_at_work
    }

    /// Its segments, beside those that it has left.
    pub(crate) fn segments(&self) -> u64 {
        [&self.live, &self.next].into_iter().flatten().count() as u64
    }

    /// Records that it has written, and how often it failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let (records, failures) = self.before.unwrap_or_default();
        let status = &self.status;
        (
            status.records.saturating_sub(records),
            status.failures.saturating_sub(failures),
        )
    }

    /// Batches, syncs and wake-ups, as the module counts them.
    pub(crate) const fn work(&self) -> (u64, u64, u64) {
        let status = &self.status;
        (status.batches, status.syncs, status.wakes)
    }

    /// All that is not drained up to here is on the disk.
    pub(crate) const fn durable(&self) -> u64 {
        self.status.synced_lsn
    }

    /// The folder is not what it was: the device is closed, and so the module's gate shut until another folder is there.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.identity);
    }

    /// Sees to it that the module has a file. `is_late`: all is to be synced now.
    ///
    /// # Errors
    /// It has none, and why.
    pub(crate) fn keep(
        &mut self,
        journal: &mut Journal<Disk>,
        logs: &Logs,
        all: &mut Everything,
        is_late: bool,
    ) -> io::Result<()> {
        self.is_at_work = false;
        let device = match self.device.take() {
            Some(device) => device,
            None => opened()?,
        };
        let kept = self.look(&device, journal, logs, all);
        let is_due = self.is_at_work && is_late && self.status.synced_lsn < logs.lsn();
        let asked = if is_due { device.sync() } else { Ok(()) };
        self.device = Some(device);
        kept.and(asked)
    }

    fn look(
        &mut self,
        device: &impl Calls,
        journal: &mut Journal<Disk>,
        logs: &Logs,
        all: &mut Everything,
    ) -> io::Result<()> {
        self.status = device.status()?;
        self.before
            .get_or_insert((self.status.records, self.status.failures));
        self.pass_on(journal);
        let is_idle = self.status.state == IDLE;
        if !is_idle && self.status.gate != GATE_OPEN {
            // It finishes, or waits for its disk.
            return Err(io::Error::other(self.said()));
        }
        if is_idle {
            let had_file = self.live.is_some();
            self.leave(journal, logs.lsn());
            if had_file {
                tracing::error!("{}", self.said());
            }
            // What did not come to it is looked for in the rings.
            self.is_caught_up &= !matches!(self.status.gate, GATE_GAP | GATE_BACKWARD);
            self.begin(device, journal, logs, all)?;
            self.status = device.status()?;
        } else if self.next.is_none() && self.status.file_bytes >= SEGMENT_BYTES {
            let first = self.status.written_lsn + 1;
            self.next = Some(given(device, journal, self.identity, first, true)?);
        }
        self.is_at_work = self.live.is_some() && self.status.gate == GATE_OPEN;
        Ok(())
    }

    fn said(&self) -> String {
        format!("the kernel module takes nothing: {}", self.status.why())
    }

    /// The module goes on with the next file: the one before it has all up to the LSN that it says.
    fn pass_on(&mut self, journal: &mut Journal<Disk>) {
        if self.live.is_none() || self.status.files == self.files {
            return;
        }
        if let (Some(live), Some(next)) = (self.live.take(), self.next.take()) {
            journal.inherit(live.file, live.header.number, self.status.before_lsn);
            self.live = Some(next);
            self.files = self.status.files;
        }
    }

    /// The module has left its file; a next one was not begun. What it may have was answered up to this LSN.
    fn leave(&mut self, journal: &mut Journal<Disk>, lsn: u64) {
        if let Some(live) = self.live.take() {
            journal.inherit(live.file, live.header.number, lsn);
        }
        if let Some(next) = self.next.take() {
            give_up(journal, next);
        }
    }

    fn begin(
        &mut self,
        device: &impl Calls,
        journal: &mut Journal<Disk>,
        logs: &Logs,
        all: &mut Everything,
    ) -> io::Result<()> {
        let mut first = logs.lsn() + 1;
        if self.status.retained_bytes > 0 {
            let synced = self.status.synced_lsn;
            match self.is_caught_up && is_dense(device, synced)? {
                true => first = synced + 1,
                false => write_retained(device, journal, self.status, self.identity)?,
            }
        }
        if !self.is_caught_up {
            catch_up(journal, logs, all)?;
            self.is_caught_up = true;
        }
        self.live = Some(given(device, journal, self.identity, first, false)?);
        self.files = self.status.files + 1;
        Ok(())
    }

    /// Nothing is answered any more, and all is drained or given up: the module lets its file go.
    pub(crate) fn end(&mut self, journal: &mut Journal<Disk>) {
        // Closing says so.
        self.device = None;
        self.leave(journal, u64::MAX);
    }
}

/// Invariant 6. Whether it is known that the module has nothing of this boost. `open`: its device.
///
/// # Errors
/// What it retains could not be written down: it still has that.
pub(crate) fn take_left<D: Calls>(
    open: impl FnOnce() -> io::Result<D>,
    journal: &mut Journal<Disk>,
    own: Identity,
) -> io::Result<bool> {
    let device = match open() {
        Ok(device) => device,
        // Who has it is the daemon before this one, or another boost's, which writes down what it finds.
        Err(error) => return Ok(error.kind() != io::ErrorKind::ResourceBusy),
    };
    let status = device.status()?;
    if status.id() != own.journal {
        return Ok(true);
    }
    let is_idle = status.state == IDLE;
    if is_idle && status.retained_bytes > 0 {
        write_retained(&device, journal, status, own)?;
    }
    Ok(is_idle)
}

/// Waits until the module has let its file go, and has it forget what that one did not take. All of it is drained, or
/// given up.
pub(crate) fn until_module_ended(own: Identity, until: Instant) {
    while Instant::now() < until {
        match has_ended(own) {
            Ok(true) => return,
            Ok(false) => sleep(LOOK),
            // It is another boost's by now, or gone.
            Err(_) => return,
        }
    }
}

/// Whether it has nothing of this boost.
fn has_ended(own: Identity) -> io::Result<bool> {
    let device = Module::open()?;
    let status = device.status()?;
    if status.id() != own.journal {
        return Ok(true);
    }
    if status.state == IDLE && status.retained_bytes > 0 {
        let mut last = 0;
        device.retained(|write| {
            last = last.max(write.lsn);
            Ok(())
        })?;
        device.forget(last)?;
    }
    Ok(status.state == IDLE)
}

fn opened() -> io::Result<Module> {
    Module::open().map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => io::Error::other(
            "another daemon has the kernel module: one boost of a machine can, the others need --journal-sink daemon",
        ),
        _ => io::Error::other(against().unwrap_or_else(|| error.to_string())),
    })
}

/// A segment that the module has from here on; `beside`: behind the one at work.
fn given(
    device: &impl Calls,
    journal: &mut Journal<Disk>,
    identity: Identity,
    first: u64,
    beside: bool,
) -> io::Result<Given> {
    let given = made(journal, identity, first)?;
    match device.give(&given, &given.header, beside) {
        Ok(()) => Ok(given),
        Err(error) => {
            give_up(journal, given);
            Err(error)
        }
    }
}

/// A segment that somebody else is to write, or what he has left.
fn made(journal: &mut Journal<Disk>, identity: Identity, first: u64) -> io::Result<Given> {
    let (file, header) = journal.hand_out(identity, first)?;
    Ok(Given { file, header })
}

/// Invariant 2. Nothing is answered meanwhile.
fn catch_up(journal: &mut Journal<Disk>, logs: &Logs, all: &mut Everything) -> io::Result<()> {
    all.keep(journal, logs, true)?;
    if all.next_lsn() <= logs.lsn() && logs.drained() < logs.lsn() {
        return Err(io::Error::other(format!(
            "the SET with LSN {} is not in its ring yet",
            all.next_lsn()
        )));
    }
    journal.close()
}

/// Invariant 3: to segments of their own, without gaps, and then they are forgotten.
fn write_retained(
    device: &impl Calls,
    journal: &mut Journal<Disk>,
    status: IoStatus,
    own: Identity,
) -> io::Result<()> {
    let identity = Identity {
        journal: status.id(),
        boot: own.boot,
    };
    let (mut open, mut last): (Option<Given>, u64) = (None, 0);
    // Where an LSN came twice they need not grow.
    let (mut bytes, mut count, mut most) = (Vec::new(), 0, 0);
    let told = device.retained(|write: Write<'_>| {
        if open.is_none() || write.lsn != last + 1 {
            finish(journal, open.take(), (&mut bytes, last), own)?;
            open = Some(made(journal, identity, write.lsn)?);
        }
        if let Some(open) = &open {
            encode_record(&open.header, &write, &mut bytes);
        }
        (last, count, most) = (write.lsn, count + 1, most.max(write.lsn));
        Ok(())
    });
    if told.is_err()
        && let Some(open) = open.take()
    {
        give_up(journal, open);
    }
    told?;
    finish(journal, open, (&mut bytes, last), own)?;
    tracing::warn!(
        "the kernel module still had {count} SETs of {} that its disk did not take: they are in the journal",
        match identity == own {
            true => "this boost",
            false => "another boost, which `erb journal check` tells apart",
        }
    );
    device.forget(most)
}

fn write_whole(journal: &mut Journal<Disk>, open: &mut Given, bytes: &[u8]) -> io::Result<()> {
    let wrote = journal.sink().append(&mut open.file, bytes)?;
    if wrote != bytes.len() {
        return Err(io::Error::new(
            io::ErrorKind::WriteZero,
            "what the kernel module retains finds no room on the disk",
        ));
    }
    journal.sink().sync(&mut open.file)
}

/// A segment that has nothing which the module has not, too: it goes with the next look.
fn give_up(journal: &mut Journal<Disk>, given: Given) {
    journal.inherit(given.file, given.header.number, 0);
}

/// What is gathered is written and synced.
fn finish(
    journal: &mut Journal<Disk>,
    open: Option<Given>,
    (bytes, last): (&mut Vec<u8>, u64),
    own: Identity,
) -> io::Result<()> {
    let Some(mut open) = open else {
        return Ok(());
    };
    if let Err(error) = write_whole(journal, &mut open, bytes) {
        give_up(journal, open);
        return Err(error);
    }
    bytes.clear();
    let number = open.header.number;
    match open.header.identity == own {
        true => journal.inherit(open.file, number, last),
        // It is for a person.
        false => journal.sink().let_go(number),
    }
    Ok(())
}

/// Whether what is retained goes on where the last file ended. Where an LSN never came the module would wait for it
/// again; that record is in a ring, or drained.
fn is_dense(device: &impl Calls, synced: u64) -> io::Result<bool> {
    let (mut last, mut is_dense) = (synced, true);
    device.retained(|write| {
        is_dense &= write.lsn == last + 1;
        last = write.lsn;
        Ok(())
    })?;
    Ok(is_dense)
}

#[cfg(test)]
#[path = "kmod_keeper_tests.rs"]
mod tests;
