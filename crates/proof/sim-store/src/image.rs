// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes of a disk that are nearly right: a start that reads them ends, well or with an error, and never otherwise.
//!
//! The disk is that of a random history, read whole behind its end. Of each copy some bytes are changed: bits, fields of
//! heads, whole sectors that lie elsewhere. Of a part of the changes the checksums are made right again, so that what lies
//! behind them is met too. Then a start reads it, as a node would, and a repair.
//!
//! Invariant that it checks: a start asks for a bounded number of reads, none beyond the disk. That it neither panics nor grows
//! is seen by whoever runs it.

use std::fmt;

use erb_sim_disk::{CrashMode, Disk, Faults};
use erb_store::batch::{BATCH_ALIGN_BYTES, BATCH_HEAD_BYTES};
use erb_store::layout::{Layout, SUPERBLOCKS};
use erb_store::mistake::Sound;
use erb_store::opening::{OpenIo, Opening};
use erb_store::record::RECORD_HEAD_BYTES;
use fastrand::Rng;

use crate::crash::World;
use crate::plan::Plan;

/// Memory of a start's index.
const MEMORY_BYTES: usize = 64 << 20;
/// Reads of one start, at most: far more than a disk of this size has blocks.
const READS_MAX: u64 = 100_000;
/// A segment of these disks was used less often.
const USES_MAX: u32 = 400;
const BATCH_MAGIC: &[u8; 4] = b"ERB1";
const CHUNK_MAGIC: &[u8; 4] = b"ERBC";

/// What starts have met.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetBytes {
    /// Bytes that starts have read.
    pub bytes: u64,
    /// Starts that ended well, and those that ended with an error.
    pub opened: u64,
    /// See there.
    pub refused: u64,
    /// Changes whose checksums were made right.
    pub sealed: u64,
}

impl fmt::Display for MetBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bytes,
            opened,
            refused,
            sealed,
        } = self;
        write!(
            out,
            "{bytes} bytes read, {opened} starts, {refused} refused, {sealed} changes sealed"
        )
    }
}

/// A batch or a chunk of a checkpoint, as it was written.
struct Block {
    at: usize,
    bytes: usize,
    /// What its head's checksum is seeded with.
    uses: u32,
    is_chunk: bool,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn put_u32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

fn seed(address: usize, uses: u32) -> u32 {
    let seed = crc32c::crc32c(&(address as u64).to_le_bytes());
    crc32c::crc32c_append(seed, &uses.to_le_bytes())
}

impl Block {
    /// What begins here, if its head is right.
    fn at(image: &[u8], at: usize) -> Option<Self> {
        let head = image.get(at..at + BATCH_HEAD_BYTES)?;
        let is_chunk = head.starts_with(CHUNK_MAGIC);
        if !is_chunk && !head.starts_with(BATCH_MAGIC) {
            return None;
        }
        let right =
            |uses: &u32| crc32c::crc32c_append(seed(at, *uses), &head[..60]) == u32_at(head, 60);
        let uses = (0..USES_MAX).find(right)?;
        let bytes = match is_chunk {
            true => {
                (BATCH_HEAD_BYTES + u32_at(head, 28) as usize).next_multiple_of(BATCH_ALIGN_BYTES)
            }
            false => u32_at(head, 8) as usize,
        };
        let is_there = bytes >= BATCH_ALIGN_BYTES && at + bytes <= image.len();
        is_there.then_some(Self {
            at,
            bytes,
            uses,
            is_chunk,
        })
    }

    /// The record that begins so many bytes behind the batch gets checksums that are right, and the next one's begin is told.
    fn seal_record(&self, image: &mut [u8], at: usize) -> Option<usize> {
        let end = self.at + self.bytes;
        let head = image.get(at..end)?;
        let (key, value) = (
            head.get(2..4)?,
            u32_at(head.get(..RECORD_HEAD_BYTES)?, 4) as usize,
        );
        let key = usize::from(u16::from_le_bytes([key[0], key[1]]));
        let value_at = at + RECORD_HEAD_BYTES + key;
        let value = image.get(value_at..value_at.checked_add(value)?)?;
        let value_crc = crc32c::crc32c(value);
        let value_end = value_at + value.len();
        put_u32(image, at + 40, value_crc);
        let crc = crc32c::crc32c_append(seed(at, self.uses), &image[at..at + 44]);
        let crc = crc32c::crc32c_append(crc, &image[at + RECORD_HEAD_BYTES..value_at]);
        put_u32(image, at + 44, crc);
        Some(value_end.next_multiple_of(8))
    }

    /// Its checksums become right, perhaps those of its records before.
    fn seal(&self, image: &mut [u8], with_records: bool) {
        if with_records && !self.is_chunk {
            let records = u32_at(image, self.at + 4) >> 16;
            let mut next = Some(self.at + BATCH_HEAD_BYTES);
            for _ in 0..records {
                next = next.filter(|at| *at + RECORD_HEAD_BYTES <= self.at + self.bytes);
                next = next.and_then(|at| self.seal_record(image, at));
            }
        }
        let (content, crc_at) = match self.is_chunk {
            true => (u32_at(image, self.at + 28) as usize, 32),
            false => (self.bytes - BATCH_HEAD_BYTES, 36),
        };
        let begin = self.at + BATCH_HEAD_BYTES;
        let end = begin.saturating_add(content).min(self.at + self.bytes);
        let crc = crc32c::crc32c(&image[begin..end]);
        put_u32(image, self.at + crc_at, crc);
        let crc = crc32c::crc32c_append(seed(self.at, self.uses), &image[self.at..self.at + 60]);
        put_u32(image, self.at + 60, crc);
    }
}

/// A disk behind a history.
fn image(seed: u64) -> Result<(Vec<u8>, Vec<Block>), String> {
    let plan = if seed % 2 == 0 {
        Plan::LONG
    } else {
        Plan::CALM
    };
    let mut world = World::new(seed, &plan, None)?;
    for _ in 0..plan.steps {
        world.step(&plan)?;
    }
    world.crash(CrashMode::Power)?;
    let disk: &mut Disk = &mut world.node.disk;
    disk.set_faults(Faults::default());
    let image = disk.read(0, disk.bytes()).map_err(|_| "the disk fails")?;
    let places = (0..image.len()).step_by(BATCH_ALIGN_BYTES);
    let blocks = places.filter_map(|at| Block::at(&image, at)).collect();
    Ok((image, blocks))
}

/// Where something is changed: often in what is always read.
fn place(random: &mut Rng, image: &[u8]) -> usize {
    let copy = Layout::superblock_at(random.usize(..SUPERBLOCKS)) as usize;
    match random.u8(..8) {
        0 => copy + random.usize(..512),
        _ => random.usize(..image.len()),
    }
}

fn change_bytes(random: &mut Rng, image: &mut [u8], at: usize) {
    match random.u8(..4) {
        0 => image[at] ^= 1 << random.u8(..8),
        1 => image[at] = 0xff,
        2 => image[at] = 0,
        _ => image[at] = random.u8(..),
    }
}

/// One change. True: its checksums are right again.
fn change(random: &mut Rng, image: &mut [u8], blocks: &[Block]) -> bool {
    let block = random.choice(blocks);
    match (random.u8(..8), block) {
        (0, _) => {
            let (from, to) = (place(random, image), place(random, image));
            let sector = |at: usize| at / BATCH_ALIGN_BYTES * BATCH_ALIGN_BYTES;
            image.copy_within(sector(from)..sector(from) + BATCH_ALIGN_BYTES, sector(to));
            false
        }
        (1..6, Some(block)) => {
            for _ in 0..random.usize(1..5) {
                // Heads are met more often than values.
                let within = match random.u8(..3) {
                    0 => random.usize(4..BATCH_HEAD_BYTES),
                    1 => random.usize(BATCH_HEAD_BYTES..BATCH_HEAD_BYTES + 256),
                    _ => random.usize(BATCH_HEAD_BYTES..block.bytes),
                };
                change_bytes(random, image, block.at + within);
            }
            let with_records = random.bool();
            block.seal(image, with_records);
            true
        }
        _ => {
            let at = place(random, image);
            change_bytes(random, image, at);
            false
        }
    }
}

/// A start, or a repair, that reads this.
fn start(image: &[u8], is_repair: bool, met: &mut MetBytes) -> Result<(), String> {
    let mut opening = Opening::new(MEMORY_BYTES, Sound);
    if is_repair {
        opening = opening.repairing();
    }
    for _ in 0..READS_MAX {
        let asked = match opening.io() {
            Ok(Some(asked)) => asked,
            Ok(None) => {
                match opening.finish(0) {
                    Ok(_) => met.opened += 1,
                    Err(_) => met.refused += 1,
                }
                return Ok(());
            }
            Err(_) => {
                met.refused += 1;
                return Ok(());
            }
        };
        let done = match asked {
            OpenIo::Flush => opening.done(Some(&[])),
            // What lies behind the disk's end is an error of the disk.
            OpenIo::Read { address, bytes } => {
                met.bytes += bytes as u64;
                let at = usize::try_from(address).unwrap_or(usize::MAX);
                opening.done(image.get(at..at.saturating_add(bytes)))
            }
        };
        if done.is_err() {
            met.refused += 1;
            return Ok(());
        }
    }
    Err("a start does not end".to_owned())
}

/// Changes copies of one disk until starts have read so many bytes.
///
/// # Errors
/// A start does not end.
pub fn changed(seed: u64, bytes: u64) -> Result<MetBytes, String> {
    let (whole, blocks) = image(seed)?;
    let (mut random, mut met) = (Rng::with_seed(!seed), MetBytes::default());
    let mut round = 0;
    while met.bytes < bytes {
        let mut image = whole.clone();
        for _ in 0..random.usize(1..5) {
            met.sealed += u64::from(change(&mut random, &mut image, &blocks));
        }
        start(&image, round % 2 == 1, &mut met)
            .map_err(|what| format!("seed {seed}, round {round}: {what}"))?;
        round += 1;
    }
    Ok(met)
}
