// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoints of a shard's index: chunks in segments of their own. All numbers are little endian.
//!
//! ```text
//! chunk                                    slice, in the chunks' contents one after the other
//!  0 u32 magic "ERBC"                       0 u64 first hash
//!  4 u16 shard                              8 u64 batch: all records below it are in the slice
//!  6 u16 zero                              16 u32 keys
//!  8 u64 id of the store                   key
//! 16 u64 number of the checkpoint           0 u16 namespace
//! 24 u32 number of the chunk                2 u16 bytes of the key
//! 28 u32 bytes of its content               4 u32 versions
//! 32 u32 CRC of the content                 8 u64 epoch
//! 36 zeros                                 16 key, then of each version u64 number, u64 place
//! 60 u32 CRC of bytes 0 to 60, seeded          and of one that expires u64 when, ms
//! 64 content, zeros up to a multiple of 4,096
//! ```
//!
//! Invariants:
//! 1. A slice is taken while no batch is open: every record below its batch is in it, and no other. Replay leaves out
//!    of a slice's keys what is below its batch, and nothing else.
//! 2. Slices cover all hashes, by rising hash, each once.
//! 3. A checkpoint counts once all its chunks are durable, all batches below its slices' are, and then the control
//!    log says so.
//! 4. Memory while one is written is at most two chunks, one slice and one key with all its versions.
//! 5. A chunk counts if its checksums are right for its place and it is the next one of its checkpoint.

use std::collections::VecDeque;

use crate::batch::BATCH_ALIGN_BYTES;
use crate::bytes::{Reader, put_at, u16_at, u32_at, u64_at};
use crate::entry::Checkpoint;
use crate::history::Held;
use crate::key::KEY_BYTES_MAX;
use crate::log::{Segment, Start};
use crate::mistake::{Mistake, Rules, Sound};
use crate::place::Place;
use crate::record::Seat;
use crate::sweep::Saved;
use crate::version::Version;

/// Longest chunk.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;
const CHUNK_HEAD_BYTES: usize = 64;
const SLICE_HEAD_BYTES: usize = 20;
const KEY_HEAD_BYTES: usize = 16;
const VERSION_BYTES: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"ERBC");

/// Whose checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Of {
    /// The shard's number.
    pub shard: u16,
    /// The store's id.
    pub store_id: u64,
    /// The checkpoint's.
    pub number: u64,
}

/// A write of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkWrite {
    /// Its number.
    pub chunk: u32,
    /// Byte of the store.
    pub address: u64,
    /// Multiples of 4,096.
    pub bytes: Vec<u8>,
}

/// How long the chunk at this place of a segment is, if it is full. 0: none fits.
fn chunk_room(segment: &Segment, used: u64) -> usize {
    let left = segment.bytes.saturating_sub(used);
    usize::try_from(left)
        .unwrap_or(usize::MAX)
        .min(CHUNK_BYTES_MAX)
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub(crate) struct CheckpointWriter<R = Sound> {
    of: Of,
    begin: (u64, Start),
    rows_up_to: Version,
    /// Slices that no chunk has taken.
    content: Vec<u8>,
    /// The next slice; none: there is none.
    next_hash: Option<u64>,
    /// Batches below it must be durable.
    needs_lsn: u64,
    keys: u64,
    segment: Option<(Segment, u64)>,
    given: VecDeque<Segment>,
    has_asked: bool,
    chunks: u32,
    under_way: u32,
    rules: R,
}

/// Chunks under way.
const IN_FLIGHT_MAX: u32 = 2;

impl<R: Rules> CheckpointWriter<R> {
    /// Begins one; replay behind it begins with this segment of the log.
    pub(crate) fn new(of: Of, begin: (u64, Start), rows_up_to: Version, rules: R) -> Self {
        Self {
            of,
            begin,
            rows_up_to,
            content: Vec::new(),
            next_hash: Some(0),
            needs_lsn: 0,
            keys: 0,
            segment: None,
            given: VecDeque::new(),
            has_asked: false,
            chunks: 0,
            under_way: 0,
            rules,
        }
    }

    /// The hash from which on a slice may be taken now.
    pub(crate) fn wants_slice(&self) -> Option<u64> {
        self.next_hash
            .filter(|_| self.content.len() < CHUNK_BYTES_MAX)
    }

    /// Takes a slice. `lsn` is the first batch that has nothing of it.
    pub(crate) fn take(&mut self, slice: &[Saved], next_hash: Option<u64>, lsn: u64) {
        let from_hash = self.next_hash.unwrap_or(0);
        let out = &mut self.content;
        out.extend_from_slice(&from_hash.to_le_bytes());
        out.extend_from_slice(&lsn.to_le_bytes());
        out.extend_from_slice(&(slice.len() as u32).to_le_bytes());
        for key in slice {
            out.extend_from_slice(&key.namespace.to_le_bytes());
            out.extend_from_slice(&(key.bytes.len() as u16).to_le_bytes());
            out.extend_from_slice(&(key.versions.len() as u32).to_le_bytes());
            out.extend_from_slice(&key.epoch.number().to_le_bytes());
            out.extend_from_slice(&key.bytes);
            let mut expiries = key.expiries.iter();
            for held in &key.versions {
                out.extend_from_slice(&held.version.number().to_le_bytes());
                out.extend_from_slice(&held.place.to_bits().to_le_bytes());
                if held.place.expires() {
                    let is_lost = self.rules.makes(Mistake::ExpiryNotSaved);
                    let expiry_ms = expiries.next().copied().filter(|_| !is_lost);
                    out.extend_from_slice(&expiry_ms.unwrap_or(0).to_le_bytes());
                }
            }
        }
        self.keys += slice.len() as u64;
        self.needs_lsn = self.needs_lsn.max(lsn);
        self.next_hash = next_hash;
    }

    /// Whether a segment is to be asked for, now.
    pub(crate) fn asks_segment(&mut self) -> bool {
        let has_room = self
            .segment
            .is_some_and(|(segment, used)| chunk_room(&segment, used) > CHUNK_HEAD_BYTES);
        let asks = !has_room && self.given.is_empty() && !self.has_asked && !self.is_written();
        self.has_asked |= asks;
        asks
    }

    pub(crate) fn give_segment(&mut self, segment: Segment) {
        self.has_asked = false;
        self.given.push_back(segment);
    }

    /// The next write: a full chunk, or the last one.
    pub(crate) fn write(&mut self) -> Option<ChunkWrite> {
        let is_last = self.next_hash.is_none();
        if self.under_way >= IN_FLIGHT_MAX || self.content.is_empty() {
            return None;
        }
        let (mut segment, mut used) = self
            .segment
            .or_else(|| Some((self.given.pop_front()?, 0)))?;
        if chunk_room(&segment, used) <= CHUNK_HEAD_BYTES {
            self.segment = Some((segment, used));
            (segment, used) = (self.given.pop_front()?, 0);
        }
        self.segment = Some((segment, used));
        let room = chunk_room(&segment, used) - CHUNK_HEAD_BYTES;
        if self.content.len() < room && !is_last {
            return None;
        }
        let rest = self.content.split_off(self.content.len().min(room));
        let content = std::mem::replace(&mut self.content, rest);
        let seat = segment.seat.plus(used as usize);
        let bytes = encode_chunk(&self.of, self.chunks, seat, &content);
        self.segment = Some((segment, used + bytes.len() as u64));
        let write = ChunkWrite {
            chunk: self.chunks,
            address: seat.address,
            bytes,
        };
        self.chunks += 1;
        self.under_way += 1;
        Some(write)
    }

    pub(crate) fn written(&mut self) {
        assert!(self.under_way > 0, "only what is under way can end");
        self.under_way -= 1;
    }

    fn is_written(&self) -> bool {
        let is_hasty = self.rules.makes(Mistake::CheckpointUnwritten);
        self.next_hash.is_none() && self.content.is_empty() && (self.under_way == 0 || is_hasty)
    }

    /// The checkpoint, if it counts.
    pub(crate) fn finished(&self, durable_lsn: u64) -> Option<Checkpoint> {
        let is_covered =
            self.needs_lsn <= durable_lsn || self.rules.makes(Mistake::CheckpointBeforeLog);
        let (order, start) = self.begin;
        (self.is_written() && is_covered).then_some(Checkpoint {
            number: self.of.number,
            order,
            lsn: start.lsn,
            crc_before: start.crc_before,
            incarnation: start.incarnation,
            keys: self.keys,
            chunks: self.chunks,
            rows_up_to: self.rows_up_to,
        })
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.content.capacity()
    }
}

fn encode_chunk(of: &Of, chunk: u32, seat: Seat, content: &[u8]) -> Vec<u8> {
    let mut out = vec![0; CHUNK_HEAD_BYTES];
    put_at(&mut out, 0, &MAGIC.to_le_bytes());
    put_at(&mut out, 4, &of.shard.to_le_bytes());
    put_at(&mut out, 8, &of.store_id.to_le_bytes());
    put_at(&mut out, 16, &of.number.to_le_bytes());
    put_at(&mut out, 24, &chunk.to_le_bytes());
    put_at(&mut out, 28, &(content.len() as u32).to_le_bytes());
    put_at(&mut out, 32, &crc32c::crc32c(content).to_le_bytes());
    let crc = crc32c::crc32c_append(seat.seed(), &out[..60]);
    put_at(&mut out, 60, &crc.to_le_bytes());
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BATCH_ALIGN_BYTES), 0);
    out
}

fn decode_chunk<'a>(of: &Of, chunk: u32, seat: Seat, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let head = bytes.get(..CHUNK_HEAD_BYTES)?;
    let is_it = u32_at(head, 0) == MAGIC
        && u16_at(head, 4) == of.shard
        && u64_at(head, 8) == of.store_id
        && u64_at(head, 16) == of.number
        && u32_at(head, 24) == chunk;
    let crc = crc32c::crc32c_append(seat.seed(), &head[..60]);
    if !is_it || crc != u32_at(head, 60) {
        return None;
    }
    let content = bytes[CHUNK_HEAD_BYTES..].get(..u32_at(head, 28) as usize)?;
    (crc32c::crc32c(content) == u32_at(head, 32)).then_some(content)
}

/// Which batches are in which slices of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slices(Vec<(u64, u64)>);

impl Slices {
    /// Whether a record of this batch is in the slice of keys with this hash.
    #[must_use]
    pub fn has(&self, hash: u64, lsn: u64) -> bool {
        let count = self.0.partition_point(|(from_hash, _)| *from_hash <= hash);
        count.checked_sub(1).is_some_and(|at| lsn < self.0[at].1)
    }
}

/// A checkpoint is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a checkpoint is damaged at byte {0} of the store")]
pub struct DamagedAt(pub u64);

/// A checkpoint that is being read.
#[derive(Debug)]
pub struct CheckpointReader {
    of: Of,
    wanted: Checkpoint,
    segments: VecDeque<Segment>,
    used: u64,
    chunk: u32,
    content: Vec<u8>,
    /// Keys of the slice that are to come.
    slice_left: u32,
    keys: u64,
    slices: Slices,
}

impl CheckpointReader {
    /// Of this checkpoint, in these segments.
    #[must_use]
    pub fn new(of: Of, wanted: Checkpoint, segments: Vec<Segment>) -> Self {
        Self {
            of,
            wanted,
            segments: segments.into(),
            used: 0,
            chunk: 0,
            content: Vec::new(),
            slice_left: 0,
            keys: 0,
            slices: Slices::default(),
        }
    }

    /// The next read: byte of the store, and bytes. None: all is read.
    ///
    /// # Errors
    /// Segments are missing.
    pub fn read(&mut self) -> Result<Option<(u64, usize)>, DamagedAt> {
        if self.chunk >= self.wanted.chunks {
            return Ok(None);
        }
        while let Some(segment) = self.segments.front() {
            let room = chunk_room(segment, self.used);
            if room > CHUNK_HEAD_BYTES {
                return Ok(Some((segment.seat.address + self.used, room)));
            }
            self.segments.pop_front();
            self.used = 0;
        }
        Err(DamagedAt(0))
    }

    /// What that read has brought: keys come out.
    ///
    /// # Errors
    /// It is damaged. Keys that came out before are not to be used.
    pub fn take(&mut self, bytes: &[u8], mut each: impl FnMut(&Saved)) -> Result<(), DamagedAt> {
        let segment = *self.segments.front().ok_or(DamagedAt(0))?;
        let seat = segment.seat.plus(self.used as usize);
        let damaged = DamagedAt(seat.address);
        let content = decode_chunk(&self.of, self.chunk, seat, bytes).ok_or(damaged)?;
        let length = (CHUNK_HEAD_BYTES + content.len()).next_multiple_of(BATCH_ALIGN_BYTES);
        self.used += length as u64;
        self.chunk += 1;
        self.content.extend_from_slice(content);
        let taken = self.parse(&mut each).ok_or(damaged)?;
        self.content.drain(..taken);
        Ok(())
    }

    /// Everything that is whole. None: it cannot be.
    fn parse(&mut self, each: &mut impl FnMut(&Saved)) -> Option<usize> {
        let mut from = Reader(&self.content);
        loop {
            let before = from;
            if self.slice_left == 0 {
                let Some(head) = from.take(SLICE_HEAD_BYTES) else {
                    return Some(self.content.len() - before.0.len());
                };
                let (hash, lsn) = (u64_at(head, 0), u64_at(head, 8));
                let last = self.slices.0.last();
                if last.map_or(hash != 0, |last| hash <= last.0) {
                    return None;
                }
                self.slices.0.push((hash, lsn));
                self.slice_left = u32_at(head, 16);
                continue;
            }
            let Some(saved) = read_key(&mut from)? else {
                return Some(self.content.len() - before.0.len());
            };
            each(&saved);
            self.keys += 1;
            self.slice_left -= 1;
        }
    }

    /// All was read: what is in which slice.
    ///
    /// # Errors
    /// Something is missing.
    pub fn finish(self) -> Result<Slices, DamagedAt> {
        let is_whole = self.content.is_empty() && self.slice_left == 0;
        if !is_whole || self.keys != self.wanted.keys || self.slices.0.is_empty() {
            return Err(DamagedAt(0));
        }
        Ok(self.slices)
    }
}

/// Some(None): it is not all there.
fn read_key(from: &mut Reader<'_>) -> Option<Option<Saved>> {
    let mut ahead = *from;
    let Some(head) = ahead.take(KEY_HEAD_BYTES) else {
        return Some(None);
    };
    let (namespace, key_bytes) = (u16_at(head, 0), usize::from(u16_at(head, 2)));
    let (count, epoch) = (u32_at(head, 4) as usize, u64_at(head, 8));
    if key_bytes > KEY_BYTES_MAX || count == 0 {
        return None;
    }
    let Some(bytes) = ahead.take(key_bytes) else {
        return Some(None);
    };
    // As many as are there, whatever the head says.
    let mut versions = Vec::with_capacity(count.min(ahead.0.len() / VERSION_BYTES));
    let mut expiries = Vec::new();
    for _ in 0..count {
        let Some(held) = ahead.take(VERSION_BYTES) else {
            return Some(None);
        };
        let place = Place::from_bits(u64_at(held, 8))?;
        versions.push(Held {
            version: Version::new(u64_at(held, 0)),
            place,
        });
        if place.expires() {
            let Some(expiry_ms) = ahead.u64() else {
                return Some(None);
            };
            expiries.push(expiry_ms);
        }
    }
    *from = ahead;
    Some(Some(Saved {
        namespace,
        bytes: bytes.to_vec(),
        epoch: Version::new(epoch),
        versions,
        expiries,
    }))
}
