// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk that keeps what was synced, and of the rest what chance leaves.
//!
//! Invariants:
//! 1. What a successful fsync covered survives every crash, unless `corrupt_per_million` says otherwise.
//! 2. A crash keeps of unsynced bytes a prefix, possibly with a torn last sector; of unsynced
//!    renames a prefix in their order.
//! 3. After a failed fsync the unsynced bytes count as written but are never made durable by a
//!    later fsync that succeeds (as Linux marks such pages clean).

use std::collections::BTreeMap;

/// Bytes that a disk writes at once.
const SECTOR: usize = 512;

/// How often what goes wrong, per million calls, and how much fits.
#[derive(Clone, Debug)]
pub struct Faults {
    /// fsync fails.
    pub fsync_fails_per_million: u32,
    /// A crash turns a bit of the surviving unsynced tail over.
    pub corrupt_per_million: u32,
    /// A write takes only a part.
    pub short_write_per_million: u32,
    /// Bytes on the whole disk.
    pub capacity: usize,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            fsync_fails_per_million: 0,
            corrupt_per_million: 0,
            short_write_per_million: 0,
            capacity: usize::MAX,
        }
    }
}

/// Errors of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// ENOSPC.
    Full,
    /// EIO.
    Failed,
    /// ENOENT.
    Missing,
}

#[derive(Clone, Debug, Default)]
struct File {
    /// What a reader sees now.
    content: Vec<u8>,
    /// Bytes that the last good fsync covered.
    durable: usize,
    /// Bytes beyond which nothing becomes durable any more (a failed fsync's first lost byte).
    lost_from: Option<usize>,
}

/// What a crash takes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// The process dies: all written bytes stay in the page cache.
    Process,
    /// The machine loses power: unsynced bytes are at the mercy of chance.
    Power,
}

/// Files with faults.
#[derive(Clone, Debug)]
pub struct Disk {
    files: BTreeMap<String, File>,
    /// Renames and removals that no directory sync has covered: the files as they were before.
    unsynced_names: Vec<BTreeMap<String, File>>,
    faults: Faults,
    random: fastrand::Rng,
}

impl Disk {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            files: BTreeMap::new(),
            unsynced_names: Vec::new(),
            faults,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.random.u32(0..1_000_000) < per_million
    }

    fn used(&self) -> usize {
        self.files.values().map(|file| file.content.len()).sum()
    }

    /// Appends; a short count is a partial write.
    ///
    /// # Errors
    /// The disk is full.
    pub fn append(&mut self, name: &str, bytes: &[u8]) -> Result<usize, DiskError> {
        let room = self.faults.capacity.saturating_sub(self.used());
        let mut count = bytes.len().min(room);
        if count == 0 && !bytes.is_empty() {
            return Err(DiskError::Full);
        }
        if count > 1 && self.chance(self.faults.short_write_per_million) {
            count = self.random.usize(1..count);
        }
        let file = self.files.entry(name.to_owned()).or_default();
        file.content.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The device failed; what was unsynced may be lost.
    pub fn fsync(&mut self, name: &str) -> Result<(), DiskError> {
        let fails = self.chance(self.faults.fsync_fails_per_million);
        let file = self.files.get_mut(name).ok_or(DiskError::Missing)?;
        if fails {
            file.lost_from.get_or_insert(file.durable);
            return Err(DiskError::Failed);
        }
        file.durable = file.lost_from.unwrap_or(file.content.len());
        Ok(())
    }

    /// Renames, replacing what is there. Durable after [`Disk::fsync_dir`].
    ///
    /// # Errors
    /// There is no such file.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        if !self.files.contains_key(from) {
            return Err(DiskError::Missing);
        }
        self.unsynced_names.push(self.files.clone());
        let file = self.files.remove(from).unwrap_or_default();
        self.files.insert(to.to_owned(), file);
        Ok(())
    }

    /// Makes renames and truncations of names durable.
    pub fn fsync_dir(&mut self) {
        self.unsynced_names.clear();
    }

    /// Cuts a file.
    pub fn truncate(&mut self, name: &str, length: usize) {
        if let Some(file) = self.files.get_mut(name) {
            file.content.truncate(length);
            file.durable = file.durable.min(length);
            if file.lost_from.is_some_and(|from| from >= length) {
                file.lost_from = None;
            }
        }
    }

    /// Bytes of a file as a process sees them.
    #[must_use]
    pub fn read(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(|file| file.content.as_slice())
    }

    /// Bytes of a file that surely survive a loss of power.
    #[must_use]
    pub fn durable(&self, name: &str) -> usize {
        self.files.get(name).map_or(0, |file| file.durable)
    }

    /// Writes into the middle of a file: for tests and for bit rot on purpose.
    pub fn corrupt(&mut self, name: &str, offset: usize, mask: u8) {
        if let Some(byte) = self
            .files
            .get_mut(name)
            .and_then(|file| file.content.get_mut(offset))
        {
            *byte ^= mask;
        }
    }

    /// The process or the machine stops.
    pub fn crash(&mut self, mode: CrashMode) {
        if mode == CrashMode::Process {
            return;
        }
        if !self.unsynced_names.is_empty() {
            let kept = self.random.usize(0..=self.unsynced_names.len());
            if kept < self.unsynced_names.len() {
                self.files = self.unsynced_names.swap_remove(kept);
            }
            self.unsynced_names.clear();
        }
        let names: Vec<String> = self.files.keys().cloned().collect();
        for name in names {
            self.crash_file(&name);
        }
    }

    fn crash_file(&mut self, name: &str) {
        let corrupts = self.chance(self.faults.corrupt_per_million);
        let Some(file) = self.files.get_mut(name) else {
            return;
        };
        let end = file.lost_from.unwrap_or(file.content.len());
        let mut kept = self.random.usize(file.durable..=end.max(file.durable));
        // Most file systems lose whole sectors, some tear them.
        if self.random.bool() {
            kept = (kept - kept % SECTOR).max(file.durable);
        }
        file.content.truncate(kept);
        if corrupts && kept > file.durable {
            let at = self.random.usize(file.durable..kept);
            file.content[at] ^= 1 << self.random.u8(0..8);
        }
        file.durable = file.content.len();
        file.lost_from = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_bytes_survive_power_loss_and_others_leave_a_prefix() {
        for seed in 0..200 {
            let mut disk = Disk::new(seed, Faults::default());
            disk.append("a", &[1; 700]).unwrap();
            disk.fsync("a").unwrap();
            disk.append("a", &[2; 900]).unwrap();
            disk.crash(CrashMode::Power);
            let read = disk.read("a").unwrap();
            assert!(read.len() >= 700 && read.len() <= 1600, "seed {seed}");
            assert!(read[..700].iter().all(|byte| *byte == 1), "seed {seed}");
            assert!(read[700..].iter().all(|byte| *byte == 2), "seed {seed}");
        }
    }

    #[test]
    fn a_failed_fsync_loses_for_good() {
        let faults = Faults {
            fsync_fails_per_million: 1_000_000,
            ..Faults::default()
        };
        let mut disk = Disk::new(1, faults);
        disk.append("a", &[1; 100]).unwrap();
        assert_eq!(disk.fsync("a"), Err(DiskError::Failed));
        disk.set_faults(Faults::default());
        assert_eq!(disk.fsync("a"), Ok(()));
        disk.crash(CrashMode::Power);
        assert_eq!(disk.read("a").unwrap().len(), 0);
    }

    #[test]
    fn a_full_disk_takes_a_part_then_nothing() {
        let faults = Faults {
            capacity: 10,
            ..Faults::default()
        };
        let mut disk = Disk::new(1, faults);
        assert_eq!(disk.append("a", &[0; 16]), Ok(10));
        assert_eq!(disk.append("a", &[0; 16]), Err(DiskError::Full));
    }

    #[test]
    fn a_rename_without_directory_sync_may_be_undone() {
        let outcomes: std::collections::BTreeSet<bool> = (0..50)
            .map(|seed| {
                let mut disk = Disk::new(seed, Faults::default());
                disk.append("new", b"x").unwrap();
                disk.rename("new", "old").unwrap();
                disk.crash(CrashMode::Power);
                disk.read("old").is_some()
            })
            .collect();
        assert_eq!(outcomes.len(), 2);
    }
}
