// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of sectors, as a storage engine with direct, synchronous writes meets it.
//!
//! Invariants:
//! 1. A write that was completed well survives every crash.
//! 2. Of a write in flight, or one that failed, each sector is old or new, by chance: so writes are reordered and
//!    torn at 512 bytes. Nothing else changes.
//! 3. When only the process dies, such sectors may be read from the drive's cache, and a loss of power may take
//!    each of them back, until [`Disk::flush`].
//! 4. Everything follows from the seed and the calls.

use std::collections::BTreeMap;

use fastrand::Rng;

/// Bytes that a disk writes at once.
pub const SECTOR_BYTES: usize = 512;

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
    bytes: Vec<u8>,
}

/// The disk.
pub struct Disk {
    durable: Vec<u8>,
    /// Sectors that are read and may be lost.
    cached: BTreeMap<usize, Vec<u8>>,
    in_flight: BTreeMap<WriteId, Write>,
    next_id: u64,
    /// How often a write fails, per million.
    fails_per_million: u32,
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
            fails_per_million: 0,
            random: Rng::with_seed(seed),
        }
    }

    /// From now on so many of a million writes fail.
    pub fn set_fails_per_million(&mut self, fails: u32) {
        self.fails_per_million = fails;
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
        self.in_flight.insert(
            id,
            Write {
                first_sector,
                bytes,
            },
        );
        id
    }

    /// Writes under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// One of the writes under way, any of them, ends.
    pub fn complete_one(&mut self) -> Option<(WriteId, Result<(), Failed>)> {
        let ids: Vec<WriteId> = self.in_flight.keys().copied().collect();
        let id = self.random.choice(ids)?;
        let write = self.in_flight.remove(&id)?;
        if self.random.u32(..1_000_000) < self.fails_per_million {
            self.leave_to_chance(&write);
            return Some((id, Err(Failed)));
        }
        for (sector, bytes) in sectors(&write) {
            self.cached.remove(&sector);
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
                self.cached.insert(sector, bytes.to_vec());
            }
        }
    }

    /// All that can be read becomes durable.
    pub fn flush(&mut self) {
        for (sector, bytes) in std::mem::take(&mut self.cached) {
            self.durable[sector * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&bytes);
        }
    }

    /// What is read now.
    ///
    /// # Panics
    /// It is not aligned, or beyond the end.
    #[must_use]
    pub fn read(&self, address: usize, bytes: usize) -> Vec<u8> {
        assert!(
            address % SECTOR_BYTES == 0 && bytes % SECTOR_BYTES == 0,
            "aligned"
        );
        let mut out = self.durable[address..address + bytes].to_vec();
        let first = address / SECTOR_BYTES;
        for (sector, bytes) in self.cached.range(first..first + bytes / SECTOR_BYTES) {
            out[(sector - first) * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(bytes);
        }
        out
    }

    /// Process or machine stop. Nothing is under way behind it.
    pub fn crash(&mut self, mode: CrashMode) {
        for write in std::mem::take(&mut self.in_flight).into_values() {
            self.leave_to_chance(&write);
        }
        if mode == CrashMode::Power {
            let random = &mut self.random;
            self.cached.retain(|_, _| random.bool());
            self.flush();
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
    use std::collections::BTreeSet;

    use super::*;

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
            let read = disk.read(0, 4096);
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
            let before = disk.read(0, 1024);
            read_at_all += usize::from(before[0] == 1);
            if seed % 2 == 0 {
                disk.flush();
            }
            disk.crash(CrashMode::Power);
            lost += usize::from(disk.read(0, 1024) != before);
            assert!(seed % 2 == 1 || disk.read(0, 1024) == before);
        }
        assert!(lost > 10 && read_at_all > 50, "{lost}, {read_at_all}");
    }

    #[test]
    fn a_failed_write_may_be_there_or_not() {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let mut disk = Disk::new(4096, seed);
            disk.set_fails_per_million(1_000_000);
            disk.write(0, of(1));
            assert_eq!(disk.complete_one().unwrap().1, Err(Failed));
            let read = disk.read(0, 1024);
            seen.insert((read[0], read[512]));
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn rot_turns_bits() {
        let mut disk = Disk::new(512, 1);
        disk.rot(7, 0x10);
        assert_eq!(disk.read(0, 512)[7], 0x10);
    }
}
