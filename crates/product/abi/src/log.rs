// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log rings of `bpf/redis/log.h` in the memory of this process: the daemon's side reads, and
//! [`LogWriter`] writes where no program does (tests, measurements).
//!
//! Invariants:
//! 1. What a ring holds is copied out, each byte once. No reference into it is made: who writes it may
//!    be another processor, and wrong.
//! 2. `head` is read before the bytes before it, and the bytes are read before `tail` is written.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    LOG_ALIGN, LOG_BYTES, LOG_OVERRUN_BYTES, LOG_RECORD_BYTES_MAX, LOG_SET, SLOT_HEADER_BYTES,
    Values, log_order, log_record, log_ring,
};

const _: () = assert!((LOG_BYTES as u64).is_power_of_two());
const _: () = assert!(LOG_RECORD_BYTES_MAX <= LOG_OVERRUN_BYTES);
const _: () = assert!(LOG_RECORD_BYTES_MAX % LOG_ALIGN == 0);

/// How far somebody has read each ring who wants to have all of it. Room behind that is not freed.
#[derive(Debug)]
pub struct Kept(Box<[AtomicU64]>);

impl Kept {
    /// Nothing is read.
    #[must_use]
    pub fn of(rings: usize) -> Arc<Self> {
        Arc::new(Self((0..rings).map(|_| AtomicU64::new(0)).collect()))
    }

    /// All before this position is read, of one ring.
    ///
    /// # Panics
    /// If there is no such ring.
    pub fn set(&self, ring: usize, at: u64) {
        self.0[ring].fetch_max(at, Ordering::Release);
    }

    fn at(&self, ring: usize) -> u64 {
        self.0[ring].load(Ordering::Acquire)
    }
}

/// All rings of a boost, and what orders them.
pub struct Logs {
    rings: Values,
    order: Values,
    kept: Option<Arc<Kept>>,
}

impl Logs {
    /// The rings (of [`log_ring`]) and the one [`log_order`].
    ///
    /// # Panics
    /// If these are values of something smaller, or there are none.
    #[must_use]
    pub fn new(rings: Values, order: Values) -> Self {
        let logs = Self {
            rings,
            order,
            kept: None,
        };
        // Looked at once, so that no later call can fail.
        assert!(!logs.order.at::<log_order>(0).is_null());
        assert!(!logs.rings.at::<log_ring>(logs.count() - 1).is_null());
        logs
    }

    /// Empty rings of no map: for who stands in for the programs.
    #[must_use]
    pub fn zeros(count: usize) -> Self {
        Self::new(
            Values::zeros(size_of::<log_ring>(), count),
            Values::zeros(size_of::<log_order>(), 1),
        )
    }

    /// From now on room is freed here only as far as somebody else has read, too.
    pub fn wait_for(&mut self, kept: Arc<Kept>) {
        self.kept = Some(kept);
    }

    /// How many rings there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.rings.count()
    }

    fn word(&self, ring: usize, of: impl Fn(*mut log_ring) -> *mut u64) -> &AtomicU64 {
        // SAFETY: an aligned word of a value that lives as long as `self`, and that is only ever
        // accessed as an atomic.
        unsafe { AtomicU64::from_ptr(of(self.rings.at(ring))) }
    }

    fn order(&self, of: impl Fn(*mut log_order) -> *mut u64) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(of(self.order.at(0))) }
    }

    fn head_word(&self, ring: usize) -> &AtomicU64 {
        // SAFETY: the pointer is to a whole ring.
        self.word(ring, |log| unsafe { &raw mut (*log).head })
    }

    fn tail_word(&self, ring: usize) -> &AtomicU64 {
        // SAFETY: the pointer is to a whole ring.
        self.word(ring, |log| unsafe { &raw mut (*log).tail })
    }

    fn drained_word(&self) -> &AtomicU64 {
        // SAFETY: the pointer is to the whole order.
        self.order(|order| unsafe { &raw mut (*order).drained })
    }

    fn fresh_word(&self) -> &AtomicU64 {
        // SAFETY: the pointer is to the whole order.
        self.order(|order| unsafe { &raw mut (*order).fresh_ns })
    }

    fn lsn_word(&self) -> &AtomicU64 {
        // SAFETY: the pointer is to the whole order.
        self.order(|order| unsafe { &raw mut (*order).lsn })
    }

    /// Position behind the last whole record of a ring.
    #[must_use]
    pub fn head(&self, ring: usize) -> u64 {
        self.head_word(ring).load(Ordering::Acquire)
    }

    /// Position of the first record whose room is not free.
    #[must_use]
    pub fn tail(&self, ring: usize) -> u64 {
        self.tail_word(ring).load(Ordering::Acquire)
    }

    /// Frees the room before this position, as far as nobody else waits for it; what is free stays so, whoever else drains
    /// this ring.
    pub fn set_tail(&self, ring: usize, at: u64) {
        let at = self.kept.as_ref().map_or(at, |kept| kept.at(ring).min(at));
        self.tail_word(ring).fetch_max(at, Ordering::Release);
    }

    /// The last LSN given.
    #[must_use]
    pub fn lsn(&self) -> u64 {
        self.lsn_word().load(Ordering::Acquire)
    }

    /// The last LSN of which all before it and it are in Redis.
    #[must_use]
    pub fn drained(&self) -> u64 {
        self.drained_word().load(Ordering::Acquire)
    }

    /// When all that was answered before was in Redis, `CLOCK_MONOTONIC`; 0: not known.
    #[must_use]
    pub fn fresh_ns(&self) -> u64 {
        self.fresh_word().load(Ordering::Acquire)
    }

    /// Moves both on; `drained` never goes back, and the time only by what the data path's own notes of it (the first
    /// write after a rest) are earlier.
    pub fn set_drained(&self, lsn: u64, fresh_ns: u64) {
        self.fresh_word().fetch_max(fresh_ns, Ordering::Release);
        self.drained_word().fetch_max(lsn, Ordering::Release);
    }

    /// Copies, of the record that begins at a position, the bytes from one of its own on: it may run over
    /// the ring's end, where positions do not.
    ///
    /// # Panics
    /// If that is not within a ring and what lies behind its end.
    pub fn copy(&self, ring: usize, at: u64, from: usize, to: &mut [u8]) {
        let place = (at % u64::from(LOG_BYTES)) as usize + from;
        assert!(place + to.len() <= (LOG_BYTES + LOG_OVERRUN_BYTES) as usize);
        let log: *const log_ring = self.rings.at(ring);
        // SAFETY: the bytes are within the ring, as was asserted; `to` is nobody else's.
        unsafe {
            let bytes = (&raw const (*log).bytes).cast::<u8>();
            ptr::copy_nonoverlapping(bytes.add(place), to.as_mut_ptr(), to.len());
        }
    }
}

/// How far before a reader lines are fetched: five of the usual records, whose next one's place each tells only when
/// it has come. Lines at the head are left to who writes them.
const PREFETCH_BYTES: u64 = 1024;
/// Lines that are fetched for each record: those of the usual one.
const PREFETCH_LINES: u64 = 3;

impl Logs {
    /// Has the processor fetch some lines behind this position, as far as they are whole before the head. A reader
    /// waits for memory more than for anything else: measured.md.
    pub fn prefetch(&self, ring: usize, at: u64, head: u64) {
        let line = u64::from(LOG_ALIGN);
        let from = at.wrapping_add(PREFETCH_BYTES);
        for at in (0..PREFETCH_LINES).map(|n| from.wrapping_add(n * line)) {
            if head.checked_sub(at).is_none_or(|whole| whole < line) {
                return;
            }
            prefetch_line(self.bytes_at(ring, (at % u64::from(LOG_BYTES)) as usize));
        }
    }

    /// A byte of a ring, which is in it or in what lies behind its end.
    fn bytes_at(&self, ring: usize, place: usize) -> *const u8 {
        assert!(place < (LOG_BYTES + LOG_OVERRUN_BYTES) as usize);
        let log: *const log_ring = self.rings.at(ring);
        // SAFETY: the ring is whole, and the place within its bytes, as was asserted.
        unsafe { (&raw const (*log).bytes).cast::<u8>().add(place) }
    }
}

/// A hint, no access.
#[cfg(target_arch = "x86_64")]
fn prefetch_line(at: *const u8) {
    // SAFETY: every x86-64 has the instruction, which never faults.
    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast()) }
}

/// Stable Rust has none for others.
#[cfg(not(target_arch = "x86_64"))]
const fn prefetch_line(_: *const u8) {}

/// A record, out of its ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its number.
    pub lsn: u64,
    /// Database.
    pub db: u16,
    /// Key.
    pub key: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
    /// When it expires: wall clock, ms; 0: never.
    pub expiry_ms: u64,
}

impl Logs {
    /// The record that begins at a position, and where the next one does: for who looks on while programs write (tests,
    /// the simulator). The drain reads for itself, and believes nothing.
    ///
    /// # Panics
    /// If that is no record.
    #[must_use]
    pub fn record(&self, ring: usize, at: u64) -> (Recorded, u64) {
        let (head, mut bytes) = (size_of::<log_record>(), [0; LOG_RECORD_BYTES_MAX as usize]);
        self.copy(ring, at, 0, &mut bytes);
        let word = |at: usize| {
            let bytes = bytes[at..].first_chunk();
            u64::from_ne_bytes(*bytes.expect("within a record"))
        };
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let (value_len, key_len) = (usize::from(half(head + 4)), usize::from(half(head + 6)));
        let data = head + SLOT_HEADER_BYTES as usize;
        let (value, key) = bytes[data..].split_at(value_len);
        let (key, rest) = key.split_at(key_len);
        let padding = &rest[..key_len.next_multiple_of(8) - key_len];
        assert!(padding.iter().all(|byte| *byte == 0), "a key is padded");
        let end = data + value_len + key_len + padding.len();
        let said = word(16) & u64::from(u32::MAX);
        assert_eq!(said, end as u64, "bytes of head and image");
        let recorded = Recorded {
            lsn: word(0),
            db: half(head + 10),
            key: key.to_vec(),
            value: value.to_vec(),
            expiry_ms: word(8),
        };
        (
            recorded,
            at + end.next_multiple_of(LOG_ALIGN as usize) as u64,
        )
    }
}

/// A write, as a record has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written<'a> {
    /// Its number.
    pub lsn: u64,
    /// Database.
    pub db: u16,
    /// Key, at most `KEY_BYTES_MAX`.
    pub key: &'a [u8],
    /// Value, at most `VALUE_BYTES_MAX`.
    pub value: &'a [u8],
    /// When it expires: wall clock, ms; 0: never.
    pub expiry_ms: u64,
}

/// Writes one ring, as its CPU would.
pub struct LogWriter<'a> {
    logs: &'a Logs,
    ring: usize,
    head: u64,
    record: Vec<u8>,
}

impl<'a> LogWriter<'a> {
    /// Of this ring, whose only writer it must be.
    #[must_use]
    pub fn new(logs: &'a Logs, ring: usize) -> Self {
        Self {
            logs,
            ring,
            head: logs.head(ring),
            record: Vec::new(),
        }
    }

    /// Bytes of room.
    #[must_use]
    pub fn room(&self) -> u64 {
        u64::from(LOG_BYTES).saturating_sub(self.head.wrapping_sub(self.logs.tail(self.ring)))
    }

    /// The next LSN, given to nobody else.
    #[must_use]
    pub fn next_lsn(&self) -> u64 {
        self.logs.lsn_word().fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Where the next record begins: for who begins elsewhere than a new boost. Only an empty ring.
    pub fn begin_at(&mut self, at: u64) {
        self.head = at;
        self.logs.set_tail(self.ring, at);
        self.logs.head_word(self.ring).store(at, Ordering::Release);
    }

    /// The LSN and `drained` to begin with. Only before the first record.
    pub fn begin_behind(&self, lsn: u64) {
        self.logs.lsn_word().store(lsn, Ordering::Release);
        self.logs.drained_word().store(lsn, Ordering::Release);
    }

    /// Puts a record in, for which there must be room.
    pub fn put(&mut self, write: &Written<'_>) {
        let padded = write.key.len().next_multiple_of(8);
        let image = SLOT_HEADER_BYTES as usize + write.value.len() + padded;
        let head = log_record {
            lsn: write.lsn,
            expiry_ms: write.expiry_ms,
            bytes: (size_of::<log_record>() + image) as u32,
            kind: LOG_SET as u16,
            pad: 0,
        };
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        record.extend_from_slice(&head.lsn.to_ne_bytes());
        record.extend_from_slice(&head.expiry_ms.to_ne_bytes());
        record.extend_from_slice(&head.bytes.to_ne_bytes());
        record.extend_from_slice(&head.kind.to_ne_bytes());
        record.extend_from_slice(&head.pad.to_ne_bytes());
        record.extend_from_slice(&[0; 4]);
        record.extend_from_slice(&(write.value.len() as u16).to_ne_bytes());
        record.extend_from_slice(&(write.key.len() as u16).to_ne_bytes());
        record.extend_from_slice(&[0; 2]);
        record.extend_from_slice(&write.db.to_ne_bytes());
        record.extend_from_slice(write.value);
        record.extend_from_slice(write.key);
        record.resize(size_of::<log_record>() + image, 0);
        self.put_bytes(&record);
        self.record = record;
    }

    /// Puts any bytes in as a record, right or not, and moves the head behind them.
    ///
    /// # Panics
    /// If they are longer than the longest record.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= LOG_OVERRUN_BYTES as usize);
        let place = (self.head % u64::from(LOG_BYTES)) as usize;
        let log: *mut log_ring = self.logs.rings.at(self.ring);
        // SAFETY: within the ring and what lies behind its end; the reader looks at bytes before
        // the head only, which these are not yet.
        unsafe {
            let to = (&raw mut (*log).bytes).cast::<u8>().add(place);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.head += bytes.len().next_multiple_of(LOG_ALIGN as usize) as u64;
        self.logs
            .head_word(self.ring)
            .store(self.head, Ordering::Release);
    }

    /// Moves the head without a record: for who is wrong on purpose.
    pub fn skip_to(&mut self, head: u64) {
        self.head = head;
        self.logs
            .head_word(self.ring)
            .store(head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_of_a_ring_has_its_own_line() {
        let lines = [
            std::mem::offset_of!(log_ring, head),
            std::mem::offset_of!(log_ring, tail),
            std::mem::offset_of!(log_ring, bytes),
        ];
        assert_eq!(lines, [0, 64, 128]);
        assert_eq!(size_of::<log_ring>() % 64, 0, "the next CPU's ring too");
        assert_eq!(std::mem::offset_of!(log_order, lsn), 64);
        assert_eq!(size_of::<log_record>() % 8, 0);
    }

    #[test]
    fn a_record_runs_over_the_end_and_the_next_begins_behind_it() {
        let logs = Logs::zeros(2);
        let mut writer = LogWriter::new(&logs, 1);
        writer.begin_at(u64::from(LOG_BYTES) - 64);
        let value = [7; 200];
        let write = Written {
            lsn: 9,
            key: b"key",
            value: &value,
            ..Written::default()
        };
        writer.put(&write);
        assert_eq!((logs.head(1), logs.tail(1)), (4_194_496, 4_194_240));
        let mut bytes = [0; 256];
        logs.copy(1, 4_194_240, 0, &mut bytes);
        assert_eq!(bytes[..8], 9u64.to_ne_bytes());
        assert_eq!(bytes[36..236], value);
        assert_eq!(&bytes[236..240], b"key\0");
        assert_eq!(writer.room(), u64::from(LOG_BYTES) - 256);
        let mut first = [1; 8];
        logs.copy(1, u64::from(LOG_BYTES), 0, &mut first);
        assert_eq!(first, [0; 8], "the ring's begin is skipped");
    }

    #[test]
    fn what_is_drained_never_goes_back() {
        let logs = Logs::zeros(1);
        logs.set_drained(10, 100);
        logs.set_drained(9, 99);
        assert_eq!((logs.drained(), logs.fresh_ns()), (10, 100));
    }
}
