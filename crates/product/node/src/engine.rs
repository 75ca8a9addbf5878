// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drives the engine over a file: recovery, messages, writes, collecting, time. It does what the table "What a driver
//! does" of docs/internals/store.md says; the simulator's driver does the same in any order.
//!
//! One thread drives all shards and the control log. A thread for each shard needs another one of these, and a way for
//! messages between them: shards know nothing of each other.
//!
//! Invariants:
//! 1. A write's end is told once, to who gave it.
//! 2. After a write has failed nothing more is written: whoever drives this ends.
//! 3. What many write at once becomes several batches that overlap, not a large one: disks do that faster.
//! 4. A read of a value is begun in the turn in which its version was looked up.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use erb_store::control::Request;
use erb_store::control_log::ControlWriteOf;
use erb_store::growth;
use erb_store::log::{IN_FLIGHT_MAX, WriteOf};
use erb_store::mistake::Sound;
use erb_store::opened::Opened;
use erb_store::opening::{OpenError, OpenIo, Opening};
use erb_store::shard::{Shard, ShardWriteOf};
use erb_store::space::Space;
use erb_store::{Reading, Version, Wall};

use crate::buffer::Aligned;
use crate::disk::{Disk, IoEnded, IoId};
use crate::error::{Error, Result, system};
use crate::file::StoreFile;
use crate::hosts::HostsFile;

/// The control log hears of time so often. While a segment is scrubbed each shard reads a piece of 1 MiB of it by then.
const TICK_US: u64 = 100_000;
/// What waits for the disk is forgotten by such a part in each turn.
const WAITING_SHARE: usize = 32;
/// Pieces of the sweep at each tick, for each shard: of 512 keys or so, 200 us.
const SWEEPS: usize = 4;
/// While space is low what nobody needs has to be known soon: so many pieces, so often.
const SWEEPS_LOW: usize = 2;
const SWEEPS_LOW_US: u64 = 10_000;
/// And floors have to move soon.
const TICK_LOW_US: u64 = 25_000;

/// What a recovery does where something cannot be read that should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// It ends.
    Sound,
    /// It goes on without that, and tells of it.
    Repair,
}

/// Whose read or write.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Control(ControlWriteOf),
    Shard(u16, ShardWriteOf, usize),
    Collecting(u16),
    Scrub(u16),
    Value,
}

/// A store that runs.
pub(crate) struct Engine {
    pub(crate) store: Opened<Sound>,
    // It waits for what is under way. Only then the file goes, and with it the lock.
    disk: Disk,
    file: StoreFile,
    owners: BTreeMap<IoId, Owner>,
    /// By shard: bytes of batches under way.
    under_way_bytes: Vec<usize>,
    /// By shard: bytes that wait for the disk, the most of the last turns.
    waiting_bytes: Vec<usize>,
    /// Shards that read for collecting.
    is_collecting: Vec<bool>,
    /// Reads of values that have ended.
    values: VecDeque<(IoId, Option<Aligned>)>,
    wall: Wall,
    begun: Instant,
    tick_us: u64,
    sweep_us: u64,
    is_ending: bool,
}

fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

pub(crate) fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Recovers a store. Nothing is written yet.
pub(crate) fn recover(
    file: &StoreFile,
    memory_bytes: u64,
    monotonic_us: u64,
    recovery: Recovery,
) -> Result<Opened<Sound>> {
    let failed = |source| Error::Open {
        path: file.path().to_owned(),
        source,
    };
    let block = file.superblock();
    let block = block.map_err(|error| failed(OpenError::NoSuperblock(error)))?;
    let (has, wants) = (file.bytes()?, block.layout.store_bytes);
    if has < wants {
        let path = file.path().to_owned();
        return Err(Error::Short { path, has, wants });
    }
    let memory = memory_bytes / u64::from(block.layout.shards);
    let memory = usize::try_from(memory).unwrap_or(usize::MAX);
    let mut opening = Opening::new(memory, Sound);
    if recovery == Recovery::Repair {
        opening = opening.repairing();
    }
    while let Some(io) = opening.io().map_err(failed)? {
        match io {
            OpenIo::Flush => {
                let flushed = file.flush().ok();
                opening.done(flushed.map(|()| &[][..])).map_err(failed)?;
            }
            OpenIo::Read { address, bytes } => {
                let read = file.read(address, bytes);
                let read = read.as_ref().map(Aligned::slice);
                opening.done(read).map_err(failed)?;
            }
        }
    }
    opening.finish(monotonic_us).map_err(failed)
}

impl Engine {
    /// Opens a store. When this returns it answers.
    pub(crate) fn open(
        path: &Path,
        memory_bytes: u64,
        is_clock_sure: bool,
        recovery: Recovery,
    ) -> Result<Self> {
        let file = StoreFile::open(path)?;
        let begun = Instant::now();
        let store = recover(&file, memory_bytes, 0, recovery)?;
        let monotonic_us = micros(begun);
        let wall = store.wall(wall_us(), monotonic_us, is_clock_sure);
        let wall = wall.map_err(Error::Clock)?;
        let disk = Disk::new(file.file());
        let disk = disk.map_err(system("io_uring is not to be had"))?;
        let mut engine = Self {
            under_way_bytes: vec![0; store.shards.len()],
            waiting_bytes: vec![0; store.shards.len()],
            is_collecting: vec![false; store.shards.len()],
            store,
            disk,
            file,
            owners: BTreeMap::new(),
            values: VecDeque::new(),
            wall,
            begun,
            tick_us: 0,
            sweep_us: 0,
            is_ending: false,
        };
        // Before the end of recovery is durable nothing else begins; then a ceiling has to be.
        while !engine.store.shared.is_open() || engine.lacks_ceiling() {
            engine.turn(Version::MAX)?;
            engine.wait()?;
        }
        Ok(engine)
    }

    /// Keeps values of so many bytes in memory, a share of each shard.
    pub(crate) fn set_value_cache(&mut self, bytes: u64) {
        let share = bytes / self.store.shards.len() as u64;
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        let shards = self.store.shards.iter_mut();
        shards.for_each(|shard| shard.set_value_cache(share));
    }

    /// Remembers which hosts the store is served to.
    ///
    /// # Errors
    /// It was served to those of a newer file.
    pub(crate) fn serve_hosts(&mut self, path: &Path, hosts: &HostsFile) -> Result<()> {
        let is_newest = self.store.control.serve_hosts(hosts.generation);
        is_newest.then_some(()).ok_or_else(|| Error::OldHosts {
            path: path.to_owned(),
        })
    }

    /// The store begins to become as large as its file is, which has its blocks. False: it grows already.
    ///
    /// # Errors
    /// It cannot become so.
    pub(crate) fn grow(&mut self) -> Result<bool> {
        let bytes = self.file.bytes()?;
        let layout = growth::larger(&self.store.layout(), bytes);
        let layout = layout.map_err(|source| Error::Grow {
            path: self.file.path().to_owned(),
            source,
        })?;
        Ok(self.store.control.grow(layout))
    }

    /// Bytes of all segments that it may use.
    pub(crate) fn size_bytes(&self) -> u64 {
        let segments = self.store.control.state().segments.len() as u64;
        segments * self.store.layout().segment_bytes
    }

    fn lacks_ceiling(&self) -> bool {
        let clock = self.store.shared.clock();
        clock.ceiling_due(self.wall.now_us()).is_some()
    }

    /// Sleeps until a read or write has ended; not if none is under way.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let waited = self.disk.wait();
        waited.map_err(system("io_uring does not work"))
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Microseconds since 1970, as the store follows them.
    pub(crate) fn now_us(&self) -> u64 {
        self.wall.now_us()
    }

    /// Begins to read what a lookup of this turn has given.
    pub(crate) fn read(&mut self, reading: &Reading) -> IoId {
        let id = self.disk.read(reading.address, reading.bytes);
        self.owners.insert(id, Owner::Value);
        id
    }

    /// The next read of a value that has ended.
    pub(crate) fn value(&mut self) -> Option<(IoId, Option<Aligned>)> {
        self.values.pop_front()
    }

    /// Everything that can go on goes on. `lowest_cut` is the lowest that anybody still reads at.
    pub(crate) fn turn(&mut self, lowest_cut: Version) -> Result<()> {
        while let Some((id, ended)) = self.disk.ended() {
            self.ended(id, ended);
        }
        self.time(lowest_cut);
        while self.messages() | self.writes() {}
        self.collect();
        if self.store.has_failed() {
            return Err(Error::Failed);
        }
        let submitted = self.disk.submit();
        submitted.map_err(system("io_uring does not work"))
    }

    /// Writes a checkpoint of each shard: nothing older is read by the next start.
    pub(crate) fn checkpoint(&mut self, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        let numbers = |engine: &Self| {
            let all = engine.store.control.state().checkpoints.iter();
            let last = all.map(|all| all.last().map_or(0, |last| last.number));
            last.collect::<Vec<_>>()
        };
        let before = numbers(self);
        self.store.control.request(0, Request::Checkpoint);
        while numbers(self)
            .iter()
            .zip(&before)
            .any(|(now, then)| now <= then)
        {
            if begun.elapsed() > patience {
                return Err(Error::Late);
            }
            self.turn(Version::MAX)?;
            self.wait()?;
        }
        Ok(())
    }

    /// Records durably where all logs end: what is missing then at the next start is rotten, not torn. Nothing more is
    /// taken. It gives up behind so long, which costs nothing but that.
    pub(crate) fn end(&mut self, patience: Duration) -> Result<()> {
        self.is_ending = true;
        let begun = Instant::now();
        while begun.elapsed() < patience {
            let shards = &mut self.store.shards;
            shards.iter_mut().for_each(Shard::end_log);
            self.turn(Version::MAX)?;
            let have_ended = self.store.shards.iter().all(Shard::has_ended);
            if have_ended && self.store.control.end_log() {
                return Ok(());
            }
            self.turn(Version::MAX)?;
            self.wait()?;
        }
        Ok(())
    }

    fn ended(&mut self, id: IoId, ended: IoEnded) {
        let owner = self.owners.remove(&id);
        let shards = &mut self.store.shards;
        match (owner, ended) {
            (Some(Owner::Shard(at, of, bytes)), IoEnded::Write(is_well)) => {
                self.under_way_bytes[usize::from(at)] -= bytes;
                shards[usize::from(at)].written(of, is_well);
            }
            (Some(Owner::Control(of)), IoEnded::Write(is_well)) => {
                self.store.control.written(of, is_well);
            }
            (Some(Owner::Collecting(at)), IoEnded::Read(bytes)) => {
                let watermark = self.store.shared.watermark();
                let bytes = bytes.as_ref().map(Aligned::slice);
                shards[usize::from(at)].read_done(bytes, watermark);
                self.is_collecting[usize::from(at)] = false;
            }
            (Some(Owner::Scrub(at)), IoEnded::Read(bytes)) => {
                let bytes = bytes.as_ref().map(Aligned::slice);
                shards[usize::from(at)].scrub_done(bytes);
            }
            (Some(Owner::Value), IoEnded::Read(bytes)) => self.values.push_back((id, bytes)),
            (owner, ended) => unreachable!("{owner:?} has asked for nothing like {ended:?}"),
        }
    }

    fn time(&mut self, lowest_cut: Version) {
        let monotonic_us = micros(self.begun);
        self.wall.tick(wall_us(), monotonic_us);
        if !self.store.shared.is_open() || self.is_ending {
            return;
        }
        self.sweep(monotonic_us, lowest_cut);
        if monotonic_us < self.tick_us {
            return;
        }
        let is_low = self.store.shared.space() >= Space::Low;
        self.tick_us = monotonic_us + if is_low { TICK_LOW_US } else { TICK_US };
        self.store
            .control
            .tick(&self.wall, monotonic_us, lowest_cut);
        let run_us = self.store.control.run_us();
        for (number, shard) in (0..).zip(&mut self.store.shards) {
            if let Some(read) = shard.take_scrub(run_us) {
                let id = self.disk.read(read.address, read.bytes);
                self.owners.insert(id, Owner::Scrub(number));
            }
        }
    }

    fn sweep(&mut self, monotonic_us: u64, lowest_cut: Version) {
        if monotonic_us < self.sweep_us {
            return;
        }
        let (pieces, pause_us) = match self.store.shared.space() {
            Space::Plenty => (SWEEPS, TICK_US),
            _ => (SWEEPS_LOW, SWEEPS_LOW_US),
        };
        let mut were_all = true;
        for shard in &mut self.store.shards {
            were_all &= (0..pieces).all(|_| shard.sweep(lowest_cut));
        }
        // What has to be logged first is soon.
        if were_all || pause_us == TICK_US {
            self.sweep_us = monotonic_us + pause_us;
        }
    }

    /// Messages go to and fro, in their order. True: there were some.
    fn messages(&mut self) -> bool {
        let mut were_some = false;
        let store = &mut self.store;
        while let Some((shard, message)) = store.control.take_message() {
            were_some = true;
            store.shards[usize::from(shard)].message(message);
        }
        for (number, shard) in (0..).zip(&mut store.shards) {
            while let Some(message) = shard.take_message() {
                were_some = true;
                store.control.message(number, message);
            }
        }
        were_some
    }

    /// A write of a shard begins. False: it has none.
    fn write_of(&mut self, number: u16) -> bool {
        let retention_us = self.store.control.run_us();
        let shard = &mut self.store.shards[usize::from(number)];
        let open_bytes = shard.open_bytes();
        let Some(write) = shard.take_write(retention_us) else {
            return false;
        };
        let bytes = match write.of {
            ShardWriteOf::Log(WriteOf::Batch(_)) => open_bytes,
            _ => 0,
        };
        self.under_way_bytes[usize::from(number)] += bytes;
        let id = self.disk.write(write.address, &write.bytes);
        let owner = Owner::Shard(number, write.of, bytes);
        self.owners.insert(id, owner);
        true
    }

    /// A batch is written before its turn ends if it is a fair share of what waits for the disk.
    pub(crate) fn write_early(&mut self, number: u16) {
        let at = usize::from(number);
        let open_bytes = self.store.shards[at].open_bytes();
        let share_bytes = self.waiting_bytes[at] / IN_FLIGHT_MAX;
        if open_bytes > 0 && open_bytes >= share_bytes && self.disk.takes_write() {
            self.write_of(number);
        }
    }

    /// By shard: how many batches are under way.
    #[cfg(test)]
    pub(crate) fn batches_under_way(&self) -> Vec<usize> {
        let shards = 0..self.under_way_bytes.len();
        let is_batch = |owner: &&Owner, at: usize| matches!(owner, Owner::Shard(of, ShardWriteOf::Log(WriteOf::Batch(_)), _) if usize::from(*of) == at);
        let count = |at| {
            self.owners
                .values()
                .filter(|owner| is_batch(owner, at))
                .count()
        };
        shards.map(count).collect()
    }

    /// Writes begin. True: there were some.
    fn writes(&mut self) -> bool {
        let mut were_some = false;
        for at in 0..self.store.shards.len() {
            let now = self.under_way_bytes[at] + self.store.shards[at].open_bytes();
            let before = self.waiting_bytes[at];
            self.waiting_bytes[at] = now.max(before - before.div_ceil(WAITING_SHARE));
            while self.disk.takes_write() && self.write_of(at as u16) {
                were_some = true;
            }
        }
        let store = &mut self.store;
        while self.disk.takes_write() {
            let Some(write) = store.control.take_write() else {
                break;
            };
            were_some = true;
            let id = self.disk.write(write.address, &write.bytes);
            self.owners.insert(id, Owner::Control(write.of));
        }
        were_some
    }

    fn collect(&mut self) {
        for (number, shard) in (0..).zip(&mut self.store.shards) {
            let is_collecting = &mut self.is_collecting[usize::from(number)];
            if *is_collecting {
                continue;
            }
            if let Some(read) = shard.take_read() {
                *is_collecting = true;
                let id = self.disk.read(read.address, read.bytes);
                self.owners.insert(id, Owner::Collecting(number));
            }
        }
    }
}
