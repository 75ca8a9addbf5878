// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a record counts, and what ends a segment.
//!
//! Invariants:
//! 1. A segment takes its first record when its header and its name are synced ([`Journal::prepare`]).
//! 2. [`Journal::durable`] is an LSN up to which all that is not drained is in segments that were synced.
//! 3. A failed or short write, or a failed sync, ends the segment: after a failed sync nobody knows what is on the disk
//!    (the kernel forgets that it is not). It is never written again, and nothing counts as durable until another
//!    segment has *all* that is not drained.
//! 4. A segment that failed may have what no other one has yet. That is a fault until a later one has all of it, or it
//!    is drained; the segment stays as all others do (6).
//! 5. LSNs of a segment have no gaps. Where one must come (what lies between was drained), a new segment begins.
//! 6. A segment takes no more when all that it has is drained, and goes when that is settled too: Redis's own log
//!    outlives a loss of power by then. Its name is synced away, so that it does not come back. Each number is used once.

use std::io;

use crate::format::{HEADER_BYTES, Header, Identity, Write, encode_header, encode_record};
use crate::sink::Sink;

/// A segment ends at so many bytes, so that some can go before all can.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// So many bytes are gathered for one write.
const GATHER_BYTES: usize = 1 << 20;

/// A segment that takes records.
struct Live<F> {
    file: F,
    header: Header,
    /// First and last record that were appended; none: it has none.
    first: Option<u64>,
    last: Option<u64>,
    bytes: u64,
}

/// One that takes none any more. Its file is kept open: who holds it, holds its lock.
struct Ended<F> {
    _file: Option<F>,
    number: u64,
    /// Its first record; 0: not known, or there is none.
    first: u64,
    /// It goes when this is settled.
    last: u64,
    failed: bool,
}

/// See the module.
pub struct Journal<S: Sink> {
    sink: S,
    identity: Identity,
    next_number: u64,
    live: Option<Live<S::File>>,
    ended: Vec<Ended<S::File>>,
    gathered: Vec<u8>,
    /// Last record that was put in; 0: none since the last failure.
    put: u64,
    durable: u64,
    records: u64,
    batches: u64,
    syncs: u64,
    failures: u64,
    fault: Option<String>,
    /// The same of what should be deleted. It says nothing of the segment at work, which may be somebody else's.
    undeleted: Option<String>,
    /// Something was deleted, and the folder is not synced.
    owes_names: bool,
}

impl<S: Sink> Journal<S> {
    /// A journal without segments; none that is there may have this number or a later one.
    pub const fn new(sink: S, identity: Identity, next_number: u64) -> Self {
        Self {
            sink,
            identity,
            next_number,
            live: None,
            ended: Vec::new(),
            gathered: Vec::new(),
            put: 0,
            durable: 0,
            records: 0,
            batches: 0,
            syncs: 0,
            failures: 0,
            fault: None,
            undeleted: None,
            owes_names: false,
        }
    }

    /// A segment of an earlier process, of the same maps: it goes when this LSN is settled.
    pub fn inherit(&mut self, file: S::File, number: u64, last: u64) {
        self.next_number = self.next_number.max(number.saturating_add(1));
        self.ended.push(Ended {
            _file: Some(file),
            number,
            first: 0,
            last,
            failed: false,
        });
    }

    /// Sees to it that there is a segment for the next record, whose LSN is this or a later one.
    ///
    /// # Errors
    /// There is none; the text is kept as [`Self::fault`].
    pub fn prepare(&mut self, first_lsn: u64) -> io::Result<()> {
        if self.live.is_some() {
            return Ok(());
        }
        let (file, header) = self.hand_out(self.identity, first_lsn)?;
        self.live = Some(Live {
            file,
            header,
            first: None,
            last: None,
            bytes: HEADER_BYTES as u64,
        });
        Ok(())
    }

    fn make(&mut self, header: &Header) -> io::Result<S::File> {
        let mut file = self.sink.create(header.number)?;
        let bytes = encode_header(header);
        let written = self.sink.append(&mut file, &bytes)?;
        whole(written, bytes.len())?;
        self.sink.sync(&mut file)?;
        self.sink.sync_names()?;
        Ok(file)
    }

    /// A new segment of these records, made as one of one's own is, that somebody else writes. Its number is used. What he
    /// has written goes behind [`Self::inherit`].
    ///
    /// # Errors
    /// There is none; the text is kept as [`Self::fault`].
    pub fn hand_out(
        &mut self,
        identity: Identity,
        first_lsn: u64,
    ) -> io::Result<(S::File, Header)> {
        let number = self.next_number;
        self.next_number = number.saturating_add(1);
        let header = Header {
            identity,
            number,
            first_lsn,
        };
        match self.make(&header) {
            Ok(file) => {
                self.mend();
                Ok((file, header))
            }
            Err(error) => {
                // It has no record. That it cannot be deleted either is tried again.
                if self.sink.remove(number).is_err() {
                    self.ended.push(Ended {
                        _file: None,
                        number,
                        first: 0,
                        last: 0,
                        failed: false,
                    });
                }
                Err(self.failed(&format!("segment {number:016x} could not be made"), error))
            }
        }
    }

    /// What was put in is synced, and its segment takes no more; nothing was: it goes.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn close(&mut self) -> io::Result<()> {
        self.flush()?;
        self.end_live(false);
        Ok(())
    }

    /// The last LSN that was put in; 0: none since the last failure. The next one comes behind it.
    pub const fn last_put(&self) -> u64 {
        self.put
    }

    /// Puts a write in. It counts behind [`Self::flush`].
    ///
    /// # Errors
    /// The segment has ended: begin again, with the first that is not drained.
    pub fn put(&mut self, write: &Write<'_>) -> io::Result<()> {
        let is_next = |live: &Live<S::File>| {
            live.last.is_none_or(|last| last + 1 == write.lsn) && live.bytes < SEGMENT_BYTES
        };
        if !self.live.as_ref().is_some_and(is_next) {
            self.flush()?;
            self.end_live(false);
            self.prepare(write.lsn)?;
        }
        if let Some(live) = &mut self.live {
            let before = self.gathered.len();
            encode_record(&live.header, write, &mut self.gathered);
            live.bytes += (self.gathered.len() - before) as u64;
            live.first.get_or_insert(write.lsn);
            live.last = Some(write.lsn);
            self.put = write.lsn;
            self.records += 1;
        }
        match self.gathered.len() < GATHER_BYTES {
            true => Ok(()),
            false => self.append(),
        }
    }

    fn append(&mut self) -> io::Result<()> {
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        let written = self.sink.append(&mut live.file, &self.gathered);
        self.batches += u64::from(!self.gathered.is_empty());
        let done = written.and_then(|written| whole(written, self.gathered.len()));
        self.gathered.clear();
        done.map_err(|error| self.broke("a segment could not be written", error))
    }

    /// All that was put in is the kernel's: it outlives this process.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn write_out(&mut self) -> io::Result<()> {
        match self.gathered.is_empty() {
            true => Ok(()),
            false => self.append(),
        }
    }

    /// All that was put in outlives a loss of power.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn flush(&mut self) -> io::Result<()> {
        if self.put == self.durable {
            return Ok(());
        }
        self.append()?;
        if let Some(live) = &mut self.live {
            let synced = self.sink.sync(&mut live.file);
            self.syncs += 1;
            synced.map_err(|error| self.broke("a segment could not be synced", error))?;
        }
        self.durable = self.put;
        self.mend();
        // This segment has all that was not drained when it began. What one that failed has besides stands there alone: 6.
        let durable = self.durable;
        let begins = self.live.as_ref().and_then(|live| live.first);
        let done = self.remove_where(|one| {
            one.failed && one.last <= durable && begins.is_some_and(|begins| begins <= one.first)
        });
        self.not_owed(durable);
        done
    }

    /// Of a segment that has nothing behind this LSN nothing is owed to anybody, whether it failed or not.
    fn not_owed(&mut self, lsn: u64) {
        let those = self.ended.iter_mut().filter(|one| one.last <= lsn);
        those.for_each(|one| one.failed = false);
    }

    /// All up to the first LSN is in Redis: a segment that has nothing else takes no more. All up to the second one is in
    /// its log, too, for good: such a segment goes.
    ///
    /// # Errors
    /// Something could not be deleted, which is tried again.
    pub fn drained(&mut self, drained: u64, settled: u64) -> io::Result<()> {
        let is_done = |live: &Live<S::File>| live.last.is_some_and(|last| last <= drained);
        if self.live.as_ref().is_some_and(is_done) {
            self.gathered.clear();
            self.end_live(false);
            self.durable = self.put;
        }
        self.not_owed(drained);
        if self.live.is_some() {
            self.mend();
        }
        self.remove_where(|one| one.last <= settled)
    }

    /// Nothing is wanted any more: all segments go.
    ///
    /// # Errors
    /// Something could not be deleted.
    pub fn discard(&mut self) -> io::Result<()> {
        self.gathered.clear();
        self.end_live(false);
        self.durable = self.put;
        self.remove_where(|_| true)
    }

    fn remove_where(&mut self, goes: impl Fn(&Ended<S::File>) -> bool) -> io::Result<()> {
        let before = self.ended.len();
        let mut first = None;
        let sink = &mut self.sink;
        self.ended.retain(|one| {
            if !goes(one) {
                return true;
            }
            let removed = sink.remove(one.number);
            let stays = removed.is_err();
            first = first.take().or(removed.err());
            stays
        });
        self.owes_names |= self.ended.len() < before;
        if self.owes_names {
            match self.sink.sync_names() {
                Ok(()) => self.owes_names = false,
                Err(error) => first = Some(error),
            }
        }
        let Some(error) = first else {
            self.undeleted = None;
            return Ok(());
        };
        self.failures += 1;
        self.undeleted = Some(format!("a segment could not be deleted: {error}"));
        Err(error)
    }

    fn end_live(&mut self, failed: bool) {
        if let Some(live) = self.live.take() {
            self.ended.push(Ended {
                number: live.header.number,
                first: live.first.unwrap_or(0),
                last: live.last.unwrap_or(0),
                _file: Some(live.file),
                failed,
            });
        }
    }

    /// Invariant 3.
    fn broke(&mut self, what: &str, error: io::Error) -> io::Error {
        self.gathered.clear();
        self.end_live(true);
        (self.put, self.durable) = (0, 0);
        self.failed(what, error)
    }

    fn failed(&mut self, what: &str, error: io::Error) -> io::Error {
        self.failures += 1;
        self.fault = Some(format!("{what}: {error}"));
        error
    }

    /// A segment works, and has all that it must.
    fn mend(&mut self) {
        let owes = self.put != self.durable
            || self
                .ended
                .iter()
                .any(|one| one.failed && one.last > self.durable);
        if !owes {
            self.fault = None;
        }
    }

    /// All that is not drained up to here is on the disk; 0: nothing is.
    pub const fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether the next record has a place that was tried, and nothing that failed is to be made good.
    pub fn is_sound(&self) -> bool {
        self.live.is_some() && self.fault().is_none()
    }

    /// What failed last, until it is made good.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref().or(self.undeleted.as_deref())
    }

    /// How often something failed.
    pub const fn failures(&self) -> u64 {
        self.failures
    }

    /// Records that were put in.
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Writes of records, each of one or more.
    pub const fn batches(&self) -> u64 {
        self.batches
    }

    /// Syncs of records.
    pub const fn syncs(&self) -> u64 {
        self.syncs
    }

    /// Numbers of the segments that are there.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let live = self.live.iter().map(|live| live.header.number);
        self.ended.iter().map(|one| one.number).chain(live)
    }

    /// What keeps them.
    pub const fn sink(&mut self) -> &mut S {
        &mut self.sink
    }
}

fn whole(written: usize, wanted: usize) -> io::Result<()> {
    match written == wanted {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::WriteZero,
            format!("{written} of {wanted} bytes were written"),
        )),
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
