// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of sectors, as a storage engine with direct, synchronous writes meets it.
//!
//! Invariants:
//! 1. A write that was completed well survives every crash, unless [`Faults`] let it go astray or be lost.
//! 2. Of a write in flight, or one that failed, each sector is old or new, by chance: so writes are reordered and
//!    torn at 512 bytes. Nothing else changes.
//! 3. When only the process dies, such sectors may be read from the drive's cache, and a loss of power may take
//!    each of them back, until [`Disk::flush`] ends well.
//! 4. What a failed flush leaves can be read, and no later flush makes it durable, as Linux marks such pages clean.
//! 5. A sector that cannot be read can be written, and then be read again.
//! 6. A device that is gone does nothing any more.
//! 7. Everything follows from the seed and the calls.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

/// Bytes that a disk writes at once.
pub const SECTOR_BYTES: usize = 512;

/// One of so many completions may be a slow write's.
const SLOW_ODDS: u8 = 40;

/// Writes go astray to multiples of so many sectors: 4,096 bytes.
const SECTORS_ALIGNED: usize = 8;

/// What a crash takes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// The process dies: the drive keeps its cache.
    Process,
    /// The machine loses power.
    Power,
}

/// Number of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(u64);

/// The device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

struct Write {
    first_sector: usize,
    is_slow: bool,
    bytes: Vec<u8>,
}

/// How often what goes wrong, of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Writes fail.
    pub writes_fail: u32,
    /// Writes end well, and lie elsewhere.
    pub writes_astray: u32,
    /// Writes end well, and nothing was written.
    pub writes_lost: u32,
    /// Reads fail, and would not a second time.
    pub reads_fail: u32,
    /// Flushes fail.
    pub flushes_fail: u32,
    /// Writes take long: most others overtake them.
    pub writes_slow: u32,
}

/// The disk.
pub struct Disk {
    durable: Vec<u8>,
    /// Sectors that are read and may be lost.
    cached: BTreeMap<usize, Vec<u8>>,
    in_flight: BTreeMap<WriteId, Write>,
    next_id: u64,
    /// Sectors that are read, and no flush makes durable.
    doomed: BTreeMap<usize, Vec<u8>>,
    /// Sectors that cannot be read.
    unreadable: BTreeSet<usize>,
    is_gone: bool,
    faults: Faults,
    random: Rng,
}

impl Disk {
    /// A disk of zeros.
    ///
    /// # Panics
    /// It is no whole number of sectors.
    #[must_use]
    pub fn new(bytes: usize, seed: u64) -> Self {
        assert!(bytes % SECTOR_BYTES == 0, "a disk has whole sectors");
        Self {
            durable: vec![0; bytes],
            cached: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_id: 0,
            doomed: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            is_gone: false,
            faults: Faults::default(),
            random: Rng::with_seed(seed),
        }
    }

    /// Bytes that it has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.durable.len()
    }

    /// The disk becomes larger. What is added has any bytes.
    ///
    /// # Panics
    /// It is no whole number of sectors, or fewer.
    pub fn grow(&mut self, bytes: usize) {
        assert!(bytes % SECTOR_BYTES == 0, "a disk has whole sectors");
        let more = bytes.checked_sub(self.durable.len());
        let more = more.expect("a disk does not become smaller");
        let random = &mut self.random;
        self.durable.extend((0..more).map(|_| random.u8(..)));
    }

    /// From now on so much goes wrong.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// From now on everything fails.
    pub fn set_gone(&mut self) {
        self.is_gone = true;
    }

    /// The sector of this byte cannot be read, until it is written.
    pub fn set_unreadable(&mut self, address: usize) {
        self.unreadable.insert(address / SECTOR_BYTES);
    }

    fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.random.u32(..1_000_000) < per_million
    }

    /// Begins a write, direct and synchronous.
    ///
    /// # Panics
    /// It is not aligned, or beyond the end.
    pub fn write(&mut self, address: usize, bytes: Vec<u8>) -> WriteId {
        assert!(
            address % SECTOR_BYTES == 0 && bytes.len() % SECTOR_BYTES == 0,
            "aligned"
        );
        assert!(
            address + bytes.len() <= self.durable.len(),
            "within the disk"
        );
        let id = WriteId(self.next_id);
        self.next_id += 1;
        let first_sector = address / SECTOR_BYTES;
        let slow = self.faults.writes_slow;
        let write = Write {
            first_sector,
            is_slow: self.happens(slow),
            bytes,
        };
        self.in_flight.insert(id, write);
        id
    }

    /// Writes under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// One of the writes under way ends: any of them, but slow ones seldom. None: none has ended yet.
    pub fn complete_one(&mut self) -> Option<(WriteId, Result<(), Failed>)> {
        let fast = self.in_flight.iter().filter(|(_, write)| !write.is_slow);
        let mut ids: Vec<WriteId> = fast.map(|(id, _)| *id).collect();
        if self.random.u8(..SLOW_ODDS) == 0 {
            ids = self.in_flight.keys().copied().collect();
        }
        let id = self.random.choice(ids)?;
        let write = self.in_flight.remove(&id)?;
        if self.is_gone {
            return Some((id, Err(Failed)));
        }
        let faults = self.faults;
        if self.happens(faults.writes_fail) {
            self.leave_to_chance(&write);
            return Some((id, Err(Failed)));
        }
        if self.happens(faults.writes_lost) {
            return Some((id, Ok(())));
        }
        let mut first_sector = write.first_sector;
        if self.happens(faults.writes_astray) {
            let count = write.bytes.len() / SECTOR_BYTES;
            let places = (self.durable.len() / SECTOR_BYTES - count) / SECTORS_ALIGNED + 1;
            first_sector = self.random.usize(..places) * SECTORS_ALIGNED;
        }
        for (sector, bytes) in (first_sector..).zip(write.bytes.chunks_exact(SECTOR_BYTES)) {
            self.cached.remove(&sector);
            self.doomed.remove(&sector);
            self.unreadable.remove(&sector);
            self.durable[sector * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(bytes);
        }
        Some((id, Ok(())))
    }

    /// Some sectors of a write come into the cache.
    fn leave_to_chance(&mut self, write: &Write) {
        // All or none is likelier on real disks than any mixture.
        let odds = self.random.u8(..4);
        for (sector, bytes) in sectors(write) {
            let is_new = match odds {
                0 => false,
                1 => true,
                _ => self.random.bool(),
            };
            if is_new {
                self.doomed.remove(&sector);
                self.unreadable.remove(&sector);
                self.cached.insert(sector, bytes.to_vec());
            }
        }
    }

    /// All that can be read becomes durable.
    ///
    /// # Errors
    /// It does not, some of it perhaps. What is still only in the cache never will.
    pub fn flush(&mut self) -> Result<(), Failed> {
        let faults = self.faults;
        if self.is_gone {
            return Err(Failed);
        }
        let fails = self.happens(faults.flushes_fail);
        for (sector, bytes) in std::mem::take(&mut self.cached) {
            if fails && self.random.bool() {
                self.doomed.insert(sector, bytes);
            } else {
                self.durable[sector * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&bytes);
            }
        }
        if fails { Err(Failed) } else { Ok(()) }
    }

    /// What is read now.
    ///
    /// # Errors
    /// The device fails, this time or always.
    ///
    /// # Panics
    /// It is not aligned, or beyond the end.
    pub fn read(&mut self, address: usize, bytes: usize) -> Result<Vec<u8>, Failed> {
        assert!(
            address % SECTOR_BYTES == 0 && bytes % SECTOR_BYTES == 0,
            "aligned"
        );
        let faults = self.faults;
        let first = address / SECTOR_BYTES;
        let range = first..first + bytes / SECTOR_BYTES;
        let is_bad = self.unreadable.range(range.clone()).next().is_some();
        if self.is_gone || is_bad || self.happens(faults.reads_fail) {
            return Err(Failed);
        }
        let mut out = self.durable[address..address + bytes].to_vec();
        let doomed = self.doomed.range(range.clone());
        for (sector, bytes) in doomed.chain(self.cached.range(range)) {
            out[(sector - first) * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(bytes);
        }
        Ok(out)
    }

    /// Process or machine stop. Nothing is under way behind it.
    pub fn crash(&mut self, mode: CrashMode) {
        for write in std::mem::take(&mut self.in_flight).into_values() {
            self.leave_to_chance(&write);
        }
        if mode == CrashMode::Power {
            let random = &mut self.random;
            self.cached.retain(|_, _| random.bool());
            self.doomed.clear();
            for (sector, bytes) in std::mem::take(&mut self.cached) {
                self.durable[sector * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&bytes);
            }
        }
    }

    /// Turns a bit over: rot.
    pub fn rot(&mut self, address: usize, mask: u8) {
        self.durable[address] ^= mask;
    }
}

fn sectors(write: &Write) -> impl Iterator<Item = (usize, &[u8])> {
    (write.first_sector..).zip(write.bytes.chunks_exact(SECTOR_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALWAYS: u32 = 1_000_000;

    fn of(byte: u8) -> Vec<u8> {
        vec![byte; 2 * SECTOR_BYTES]
    }

    #[test]
    fn a_completed_write_survives_and_one_in_flight_is_torn_at_sectors() {
        let mut seen = BTreeSet::new();
        for seed in 0..300 {
            let mut disk = Disk::new(8192, seed);
            disk.write(1024, of(1));
            assert_eq!(disk.complete_one().unwrap().1, Ok(()));
            disk.write(0, of(2));
            disk.write(2048, of(3));
            assert_eq!(disk.in_flight(), 2);
            disk.crash(CrashMode::Power);
            let read = disk.read(0, 4096).unwrap();
            assert_eq!(read[1024..2048], of(1), "seed {seed}");
            for sector in read.chunks_exact(SECTOR_BYTES) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "seed {seed}");
            }
            seen.insert((read[0], read[512], read[2048], read[2560]));
        }
        assert_eq!(seen.len(), 16, "every mixture is met: {seen:?}");
    }

    #[test]
    fn what_a_killed_process_left_is_read_and_may_be_lost_until_it_is_flushed() {
        let (mut lost, mut read_at_all) = (0, 0);
        for seed in 0..200 {
            let mut disk = Disk::new(4096, seed);
            disk.write(0, of(1));
            disk.crash(CrashMode::Process);
            let before = disk.read(0, 1024).unwrap();
            read_at_all += usize::from(before[0] == 1);
            if seed % 2 == 0 {
                disk.flush().unwrap();
            }
            disk.crash(CrashMode::Power);
            lost += usize::from(disk.read(0, 1024).unwrap() != before);
            assert!(seed % 2 == 1 || disk.read(0, 1024).unwrap() == before);
        }
        assert!(lost > 10 && read_at_all > 50, "{lost}, {read_at_all}");
    }

    #[test]
    fn a_failed_write_may_be_there_or_not() {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let mut disk = Disk::new(4096, seed);
            disk.set_faults(Faults {
                writes_fail: ALWAYS,
                ..Faults::default()
            });
            disk.write(0, of(1));
            assert_eq!(disk.complete_one().unwrap().1, Err(Failed));
            let read = disk.read(0, 1024).unwrap();
            seen.insert((read[0], read[512]));
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn rot_turns_bits() {
        let mut disk = Disk::new(512, 1);
        disk.rot(7, 0x10);
        assert_eq!(disk.read(0, 512).unwrap()[7], 0x10);
    }

    #[test]
    fn a_write_that_went_astray_lies_elsewhere_and_a_lost_one_nowhere() {
        let mut elsewhere = BTreeSet::new();
        for seed in 0..200 {
            let mut disk = Disk::new(64 << 10, seed);
            disk.set_faults(Faults {
                writes_astray: ALWAYS,
                ..Faults::default()
            });
            disk.write(4096, of(1));
            assert_eq!(disk.complete_one().unwrap().1, Ok(()));
            let all = disk.read(0, 64 << 10).unwrap();
            let at = all.iter().position(|byte| *byte == 1).unwrap();
            assert_eq!(at % 4096, 0);
            elsewhere.insert(at);
            disk.set_faults(Faults {
                writes_lost: ALWAYS,
                ..Faults::default()
            });
            disk.write(8192, of(2));
            assert_eq!(disk.complete_one().unwrap().1, Ok(()));
            assert!(!disk.read(0, 64 << 10).unwrap().contains(&2));
        }
        assert_eq!(elsewhere.len(), 16);
    }

    #[test]
    fn a_slow_write_is_overtaken_and_ends_at_last() {
        let mut overtaken = 0;
        for seed in 0..100 {
            let mut disk = Disk::new(64 << 10, seed);
            disk.set_faults(Faults {
                writes_slow: ALWAYS,
                ..Faults::default()
            });
            let slow = disk.write(0, of(1));
            disk.set_faults(Faults::default());
            let others: Vec<WriteId> = (1..9).map(|at| disk.write(at * 4096, of(2))).collect();
            let mut ended = Vec::new();
            while disk.in_flight() > 0 {
                ended.extend(disk.complete_one().map(|(id, _)| id));
            }
            assert_eq!(ended.len(), others.len() + 1);
            overtaken += usize::from(ended.last() == Some(&slow));
        }
        assert!(overtaken > 60, "{overtaken}");
    }

    #[test]
    fn what_a_failed_flush_leaves_is_read_and_never_durable() {
        let mut lost = 0;
        for seed in 0..100 {
            let mut disk = Disk::new(4096, seed);
            disk.write(0, of(1));
            disk.crash(CrashMode::Process);
            let before = disk.read(0, 1024).unwrap();
            disk.set_faults(Faults {
                flushes_fail: ALWAYS,
                ..Faults::default()
            });
            assert_eq!(disk.flush(), Err(Failed));
            disk.set_faults(Faults::default());
            assert_eq!(disk.flush(), Ok(()));
            assert_eq!(disk.read(0, 1024).unwrap(), before);
            disk.crash(CrashMode::Power);
            lost += usize::from(disk.read(0, 1024).unwrap() != before);
        }
        assert!(lost > 20, "{lost}");
    }

    #[test]
    fn reads_fail_once_always_or_until_the_sector_is_written() {
        let mut disk = Disk::new(8192, 3);
        disk.set_faults(Faults {
            reads_fail: ALWAYS,
            ..Faults::default()
        });
        assert_eq!(disk.read(0, 512), Err(Failed));
        disk.set_faults(Faults::default());
        disk.set_unreadable(600);
        assert!(disk.read(0, 512).is_ok() && disk.read(0, 1024).is_err());
        disk.write(0, of(4));
        disk.complete_one().unwrap().1.unwrap();
        assert_eq!(disk.read(0, 1024).unwrap(), of(4));
        disk.set_gone();
        disk.write(0, of(5));
        assert_eq!(disk.complete_one().unwrap().1, Err(Failed));
        assert!(disk.read(0, 512).is_err() && disk.flush().is_err());
    }
}
