// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the control programs take and give, as Rust sees it. [`crate::fill_io`], [`crate::sweep_io`]
//! and the like are the same in the programs' own layout.

use crate::{
    CONN_STATE_MAX, HELD_ROWS, KEY_BYTES_MAX, PLACE_LINE, SLOT_HASH, SLOT_STRING, SWEEP_F_CLOSED,
    SWEEP_F_COUNTED, WALK_PLACES, admit_row, conn, conn_key, fill_io, fill_slot, held_row, miss,
    release_io, slot_type, sweep_io, sweep_row,
};

/// Places of the table that are on a list, read from the bytes of each line on that list: from this
/// place on, so many at most, in order. Fewer than that: these are the last.
pub(crate) fn places_on(
    lines: usize,
    from: u32,
    most: usize,
    line: impl Fn(usize) -> [u8; PLACE_LINE as usize],
) -> Vec<u32> {
    let first = (from.max(1) - 1) / PLACE_LINE;
    let on = (first as usize..lines).flat_map(|index| {
        let bytes = line(index);
        let is_empty = bytes.iter().all(|byte| *byte == 0);
        let count = if is_empty { 0 } else { bytes.len() };
        (0..count).filter_map(move |at| {
            (bytes[at] != 0).then_some(index as u32 * PLACE_LINE + at as u32 + 1)
        })
    });
    on.filter(|place| *place >= from).take(most).collect()
}

/// What a sweep over places of the connection table found.
#[derive(Clone, Debug, Default)]
pub struct SweepReport {
    /// Connections that the daemon must act on.
    pub rows: Vec<sweep_row>,
    /// Connections that a list could make fast.
    pub admit: Vec<admit_row>,
    /// Such connections that are left out for now.
    pub admit_more: u32,
    /// Connections that may be admitted once they are quiet or answered.
    pub waiting: u32,
    /// Entries in the table.
    pub conns: u32,
    /// Entries by `enum erb_conn_state`.
    pub by_state: [u32; CONN_STATE_MAX as usize],
    /// Entries on which FIN or RST was seen.
    pub closing: u32,
    /// Entries that still need translation.
    pub translated: u32,
    /// Entries with unacknowledged fast-path bytes.
    pub unacked: u32,
    /// Entries that have held marks or shares of the fence for long: the first ones.
    pub held: Vec<held_row>,
    /// How many they are.
    pub helds: u32,
}

/// The request to release what there is proof for, by the sweep's row.
pub(crate) const fn release_request(row: &sweep_row, remove: bool) -> release_io {
    release_io {
        key: row.key,
        cookie: row.cookie,
        proof_pos: row.proof_pos,
        remove: remove as u32,
        closed: (row.flags & SWEEP_F_CLOSED != 0) as u32,
        done: 0,
        requests: row.requests,
        counted: (row.flags & SWEEP_F_COUNTED != 0) as u32,
    }
}

impl SweepReport {
    /// Takes the counts of another piece of the table in; its rows are the caller's.
    pub fn count(&mut self, piece: &Self) {
        self.waiting += piece.waiting;
        self.conns += piece.conns;
        for (sum, found) in self.by_state.iter_mut().zip(piece.by_state) {
            *sum += found;
        }
        self.closing += piece.closing;
        self.translated += piece.translated;
        self.unacked += piece.unacked;
        let room = (HELD_ROWS as usize).saturating_sub(self.held.len());
        self.held.extend(piece.held.iter().take(room));
        self.helds += piece.helds;
    }

    /// What the program has answered.
    pub(crate) fn of(io: &sweep_io) -> Self {
        let count = io.count.min(WALK_PLACES) as usize;
        let admits = io.admits.min(WALK_PLACES) as usize;
        Self {
            rows: io.rows[..count].to_vec(),
            admit: io.admit[..admits].to_vec(),
            admit_more: 0,
            waiting: io.waiting,
            conns: io.conns,
            by_state: io.by_state,
            closing: io.closing,
            translated: io.translated,
            unacked: io.unacked,
            held: io.held[..io.helds.min(HELD_ROWS) as usize].to_vec(),
            helds: io.helds,
        }
    }
}

/// The kind of value that a look-up asks for and a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ValueKind {
    /// A string.
    #[default]
    String,
    /// A whole hash.
    Hash,
}

impl ValueKind {
    /// The kind of an `enum slot_type`.
    #[must_use]
    pub const fn of(slot_type: slot_type) -> Option<Self> {
        match slot_type {
            SLOT_STRING => Some(Self::String),
            SLOT_HASH => Some(Self::Hash),
            _ => None,
        }
    }

    /// Its `enum slot_type`, as slots and requests hold it.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::String => SLOT_STRING as u8,
            Self::Hash => SLOT_HASH as u8,
        }
    }
}

/// What was reported to be written, and is worth reading again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// At once.
    pub now: Vec<Wanted>,
    /// Not yet: what a SET said is answered for a while.
    pub later: Vec<Wanted>,
    /// The same, and only if it is answered: the key is written again and again with no read between.
    pub if_read: Vec<Wanted>,
}

/// A key that is wanted in the cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wanted {
    /// Its database.
    pub db: u16,
    /// What was asked for.
    pub kind: ValueKind,
    /// The key.
    pub key: Vec<u8>,
}

impl Wanted {
    /// A string of database 0.
    #[must_use]
    pub const fn string(key: Vec<u8>) -> Self {
        Self {
            db: 0,
            kind: ValueKind::String,
            key,
        }
    }

    /// What a `struct miss` reports, if the record is whole.
    #[must_use]
    pub fn of_miss(record: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            record[at..]
                .first_chunk()
                .map(|two| u16::from_ne_bytes(*two))
        };
        if record.len() < size_of::<miss>() {
            return None;
        }
        let length = usize::from(word(std::mem::offset_of!(miss, key_len))?);
        let start = std::mem::offset_of!(miss, key);
        (length <= KEY_BYTES_MAX as usize).then_some(())?;
        Some(Self {
            db: word(std::mem::offset_of!(miss, db))?,
            kind: ValueKind::of(record[std::mem::offset_of!(miss, type_)].into())?,
            key: record[start..start + length].to_vec(),
        })
    }
}

/// What `erb_fill_begin` noted about a key before Redis was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillToken {
    /// `enum fill_status`; only `FILL_OK` may be asked for.
    pub status: u32,
    /// Index of the key's set.
    pub set: u32,
    /// Cache epoch.
    pub cache_epoch: u32,
    /// Version of the set.
    pub version: u64,
    /// Global version.
    pub global_version: u64,
}

impl FillToken {
    /// What stands in a slot of the batch.
    pub(crate) const fn of(slot: &fill_slot) -> Self {
        Self {
            status: slot.status,
            set: slot.set,
            cache_epoch: slot.cache_epoch,
            version: slot.version,
            global_version: slot.global_version,
        }
    }
}

/// What Redis has said of a key, to be inserted.
#[derive(Clone, Copy, Debug)]
pub struct FillEntry<'a> {
    /// The key, at most `KEY_BYTES_MAX` bytes.
    pub key: &'a [u8],
    /// Its database.
    pub db: u16,
    /// What the value is, or what was asked for.
    pub kind: ValueKind,
    /// The value, at most `CLASS3_BYTES` bytes; none: there is no such key.
    pub value: Option<&'a [u8]>,
    /// Expiry by the wall clock, ms; 0 = none.
    pub expiry_ms: u64,
    /// The token noted before the value was asked for.
    pub token: FillToken,
}

/// What `erb_touched` found in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Database and key of entries that were answered since it last looked.
    pub keys: Vec<(u16, Vec<u8>)>,
    /// The set to go on with; 0: the whole cache was looked at.
    pub next_set: u32,
}

impl Touched {
    /// Takes the answer out of the map's value.
    pub(crate) fn of(io: &fill_io) -> Self {
        let slots = io.slots.iter().take(io.count as usize);
        let key = |slot: &fill_slot| {
            let length = usize::from(slot.key_len).min(slot.key.len());
            (slot.db, slot.key[..length].to_vec())
        };
        Self {
            keys: slots.map(key).collect(),
            next_set: io.set,
        }
    }
}

macro_rules! read_plain {
    ($($type:ident)*) => {$(
        impl $type {
            /// What a map's bytes say; none if they are of another length.
            pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
                if bytes.len() != size_of::<Self>() {
                    return None;
                }
                // SAFETY: the length was checked; the type is plain data for which any bytes are
                // valid, and the read asks for no alignment.
                Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
            }
        }
    )*};
}

read_plain! { conn_key conn }

/// One tracked connection, without its replay buffer.
#[derive(Clone, Copy)]
pub struct ConnView {
    /// Address pair.
    pub key: conn_key,
    /// Cookie of the socket.
    pub cookie: u64,
    /// `enum erb_conn_state`.
    pub state: u8,
    /// `CONN_F_*`.
    pub flags: u8,
    /// Request bytes consumed.
    pub in_delta: u32,
    /// Reply bytes inserted.
    pub out_delta: u32,
    /// Requests that went up.
    pub requests: u32,
    /// Replies that came back.
    pub replies: u32,
    /// `CONN_K_*`.
    pub kept: u16,
    /// `control.rights` under which it became FAST.
    pub rights: u32,
    /// Version of its replies; less than 2: not known.
    pub resp: u8,
    /// `enum slow_why`, as far as it is noted.
    pub slow: u8,
}

impl From<&conn> for ConnView {
    fn from(entry: &conn) -> Self {
        Self {
            key: entry.key,
            cookie: entry.cookie,
            state: entry.state,
            flags: entry.flags,
            in_delta: entry.in_delta,
            out_delta: entry.out_delta,
            requests: entry.requests,
            replies: entry.replies,
            kept: entry.h.kept,
            rights: entry.h.rights,
            resp: entry.h.resp,
            slow: entry.h.slow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn miss_records() {
        let mut record = vec![0u8; size_of::<miss>()];
        let start = std::mem::offset_of!(miss, key);
        record[0..2].copy_from_slice(&3u16.to_ne_bytes());
        record[2..4].copy_from_slice(&7u16.to_ne_bytes());
        record[4] = 1;
        record[start..start + 3].copy_from_slice(b"abc");
        let wanted = Wanted {
            db: 7,
            kind: ValueKind::Hash,
            key: b"abc".to_vec(),
        };
        assert_eq!(Wanted::of_miss(&record), Some(wanted));
        record[4] = 2;
        assert_eq!(Wanted::of_miss(&record), None, "no such kind");
        record[4] = 0;
        record[0..2].copy_from_slice(&257u16.to_ne_bytes());
        assert_eq!(Wanted::of_miss(&record), None, "too long");
        assert_eq!(Wanted::of_miss(&[1]), None, "cut off");
    }
}
