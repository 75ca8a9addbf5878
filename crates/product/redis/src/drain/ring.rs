// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One record out of a log ring, into memory of our own, and only if it can be one.
//!
//! Invariants:
//! 1. Nothing of a ring is believed: lengths are compared with their bounds and with each other, on the
//!    copy. A byte of the ring is read once.
//! 2. What is no record ends the draining. It is never skipped: behind it would be lost what was promised.

use erb_abi::{self as abi, Logs};

/// The log rings, and what orders them ([`erb_abi::Logs`]). Positions count bytes, and never go back.
pub trait Log {
    /// How many rings there are.
    fn count(&self) -> usize;
    /// Position behind the last whole record.
    fn head(&self, ring: usize) -> u64;
    /// Position of the first record whose room is not free.
    fn tail(&self, ring: usize) -> u64;
    /// Frees the room before this position.
    fn set_tail(&self, ring: usize, at: u64);
    /// Copies, of the record that begins at a position, the bytes from one of its own on.
    fn copy(&self, ring: usize, at: u64, from: usize, to: &mut [u8]);
    /// What lies somewhat behind this position, and before the head, is soon to be copied.
    fn prefetch(&self, _ring: usize, _at: u64, _head: u64) {}
    /// The last LSN given.
    fn lsn(&self) -> u64;
    /// The last LSN of which all before it and it are in Redis.
    fn drained(&self) -> u64;
    /// When all that was answered before was in Redis, `CLOCK_MONOTONIC`; 0: not known.
    fn fresh_ns(&self) -> u64;
    /// Moves both on; neither goes back.
    fn set_drained(&self, lsn: u64, fresh_ns: u64);
}

impl Log for Logs {
    fn count(&self) -> usize {
        self.count()
    }
    fn head(&self, ring: usize) -> u64 {
        self.head(ring)
    }
    fn tail(&self, ring: usize) -> u64 {
        self.tail(ring)
    }
    fn set_tail(&self, ring: usize, at: u64) {
        self.set_tail(ring, at);
    }
    fn copy(&self, ring: usize, at: u64, from: usize, to: &mut [u8]) {
        self.copy(ring, at, from, to);
    }
    fn prefetch(&self, ring: usize, at: u64, head: u64) {
        self.prefetch(ring, at, head);
    }
    fn lsn(&self) -> u64 {
        self.lsn()
    }
    fn drained(&self) -> u64 {
        self.drained()
    }
    fn fresh_ns(&self) -> u64 {
        self.fresh_ns()
    }
    fn set_drained(&self, lsn: u64, fresh_ns: u64) {
        self.set_drained(lsn, fresh_ns);
    }
}

/// What a ring holds cannot be: the draining stops, and what is left stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Head and tail are further apart than a ring is long, or no record can end or begin there.
    #[error(
        "the log ring of CPU {ring} has its head at {head} and is read up to {next}, which cannot be; \
         nothing more is drained: `erb detach --discard-undrained` loses what is left"
    )]
    Head {
        /// Number of the ring.
        ring: usize,
        /// Its head.
        head: u64,
        /// Up to where it was read.
        next: u64,
    },
    /// What lies at a position is no record.
    #[error(
        "the log ring of CPU {ring} holds no record at {at}: {what}; nothing more is drained: \
         `erb detach --discard-undrained` loses what is left"
    )]
    Record {
        /// Number of the ring.
        ring: usize,
        /// Where.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A write, copied out of its ring into an [`Arena`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) lsn: u64,
    /// Wall clock, ms; 0: none.
    pub(crate) expiry_ms: u64,
    /// Position behind it in its ring.
    pub(crate) end: u64,
    /// Where its value begins in the arena; the key follows.
    value_at: u32,
    value_len: u16,
    key_len: u16,
    pub(crate) db: u16,
}

/// Bytes of records that are gathered for one batch: 16,000 of the usual ones, 1,900 of the largest.
const ARENA_BYTES: usize = 4 << 20;

const RECORD_MAX: usize = abi::LOG_RECORD_BYTES_MAX as usize;
const LINE: usize = abi::LOG_ALIGN as usize;
const HEAD: usize = size_of::<abi::log_record>();
const SLOT_HEAD: usize = abi::SLOT_HEADER_BYTES as usize;

// The first line of a record has all that tells its length.
const _: () = assert!(HEAD + SLOT_HEAD <= LINE);

/// Copies of records, until it is emptied.
pub(crate) struct Arena {
    bytes: Box<[u8]>,
    used: usize,
}

impl Default for Arena {
    fn default() -> Self {
        Self {
            bytes: vec![0; ARENA_BYTES].into(),
            used: 0,
        }
    }
}

impl Arena {
    pub(crate) const fn clear(&mut self) {
        self.used = 0;
    }

    /// Whether any record fits.
    pub(crate) const fn has_room(&self) -> bool {
        self.used + RECORD_MAX <= ARENA_BYTES
    }

    pub(crate) fn key(&self, record: &Record) -> &[u8] {
        let at = record.value_at as usize + usize::from(record.value_len);
        &self.bytes[at..at + usize::from(record.key_len)]
    }

    pub(crate) fn value(&self, record: &Record) -> &[u8] {
        let at = record.value_at as usize;
        &self.bytes[at..at + usize::from(record.value_len)]
    }

    /// Copies the record at a position of a ring, whose head is known; there must be room.
    pub(crate) fn read(
        &mut self,
        log: &impl Log,
        (ring, at, head): (usize, u64, u64),
    ) -> Result<Record, LogError> {
        let wrong = |what| LogError::Record { ring, at, what };
        let copy = &mut self.bytes[self.used..self.used + RECORD_MAX];
        log.copy(ring, at, 0, &mut copy[..LINE]);
        let bytes = u32_at(copy, 16) as usize;
        if !(HEAD + SLOT_HEAD..=RECORD_MAX).contains(&bytes) {
            return Err(wrong("its length is beyond what a record has"));
        }
        let whole = bytes.next_multiple_of(LINE);
        if head.wrapping_sub(at) < whole as u64 {
            return Err(wrong("it ends behind the head"));
        }
        if u32::from(u16_at(copy, 20)) != abi::LOG_SET {
            return Err(wrong("its kind is not known"));
        }
        let (value_len, key_len) = (u16_at(copy, HEAD + 4), u16_at(copy, HEAD + 6));
        let db = u16_at(copy, HEAD + 10);
        if u32::from(copy[HEAD + 9]) != abi::SLOT_STRING {
            return Err(wrong("its value is no string"));
        }
        if u32::from(key_len) > abi::KEY_BYTES_MAX || u32::from(value_len) > abi::VALUE_BYTES_MAX {
            return Err(wrong(
                "its key or value is longer than any that is answered",
            ));
        }
        let image = usize::from(value_len) + usize::from(key_len).next_multiple_of(8);
        if bytes != HEAD + SLOT_HEAD + image {
            return Err(wrong("its lengths disagree"));
        }
        let record = Record {
            lsn: u64_at(copy, 0),
            expiry_ms: u64_at(copy, 8),
            end: at + whole as u64,
            value_at: (self.used + HEAD + SLOT_HEAD) as u32,
            value_len,
            key_len,
            db,
        };
        if whole > LINE {
            log.copy(ring, at, LINE, &mut copy[LINE..whole]);
        }
        self.used += whole;
        Ok(record)
    }

    /// Forgets the record that was read last.
    pub(crate) const fn forget(&mut self, record: &Record) {
        self.used = record.value_at as usize - HEAD - SLOT_HEAD;
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}
