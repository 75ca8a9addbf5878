// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The disk alone: what any store on it can reach at most.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use erb_node::Bare;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Bytes of the file: read at random, and written from front to back again and again.
const FILE_BYTES: u64 = 256 << 20;
/// What a disk writes at least.
const BLOCK: usize = 4096;

/// A file without a store.
pub struct Raw {
    bare: Bare,
    at: u64,
    random: SmallRng,
}

impl Raw {
    pub fn make(folder: &Path) -> Result<Self> {
        Ok(Self {
            bare: Bare::make(&folder.join("raw"), FILE_BYTES)?,
            at: 0,
            random: SmallRng::seed_from_u64(1),
        })
    }

    fn next(&mut self, bytes: usize) -> u64 {
        if self.at + bytes as u64 > self.bare.bytes() {
            self.at = 0;
        }
        let at = self.at;
        self.at += bytes as u64;
        at
    }

    fn anywhere(&mut self, bytes: usize) -> u64 {
        let last = (self.bare.bytes() - bytes as u64) / BLOCK as u64;
        self.random.random_range(0..=last) * BLOCK as u64
    }

    /// Durable writes of so many bytes, so many at a time: writes a second.
    pub fn writes(&mut self, bytes: usize, depth: u64, count: u64) -> Result<f64> {
        let content = vec![7; bytes];
        self.many(depth, count, |raw| {
            let at = raw.next(bytes);
            raw.bare.write(at, &content);
        })
    }

    /// Reads of so many bytes from anywhere, so many at a time: reads a second.
    pub fn reads(&mut self, bytes: usize, depth: u64, count: u64) -> Result<f64> {
        self.many(depth, count, |raw| {
            let at = raw.anywhere(bytes);
            raw.bare.read(at, bytes);
        })
    }

    fn many(&mut self, depth: u64, count: u64, mut begin: impl FnMut(&mut Self)) -> Result<f64> {
        let begun = Instant::now();
        let (mut started, mut ended) = (0, 0);
        while ended < count {
            while started < count && started - ended < depth {
                begin(self);
                started += 1;
            }
            ended += self.bare.ended()? as u64;
        }
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }

    /// So many durable writes of 4 KiB in a row: how long they take together.
    pub fn write_in_a_row(&mut self, count: u64) -> Result<Duration> {
        let begun = Instant::now();
        self.writes(BLOCK, 1, count)?;
        Ok(begun.elapsed())
    }

    /// One read.
    pub fn read(&mut self, bytes: usize) -> Result<Duration> {
        let begun = Instant::now();
        self.reads(bytes, 1, 1)?;
        Ok(begun.elapsed())
    }
}

/// Bytes that a file system has left.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let found = nix::sys::statvfs::statvfs(folder);
    let found = found.with_context(|| format!("{}: its space cannot be told", folder.display()))?;
    Ok(found.blocks_available() as u64 * found.fragment_size() as u64)
}

/// Bytes that this process has had written to disks.
pub fn written_bytes() -> Result<u64> {
    let io = procfs::process::Process::myself().and_then(|it| it.io());
    Ok(io.context("/proc/self/io")?.write_bytes)
}

/// What the system says of how busy it is: tasks that run or wait for the disk, mean of a minute.
pub fn load() -> f64 {
    use procfs::Current;
    procfs::LoadAverage::current().map_or(f64::NAN, |load| f64::from(load.one))
}
