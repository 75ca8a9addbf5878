// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data of commands that change something. The layouts stand at the head of `layout/mod.rs`.

use std::collections::HashSet;

use super::{flag, selector_numbers, selector_of};
use crate::backend::{Change, Condition, Kept, Key, Retention, RollBack, Target, Write};
use crate::bytes::{pad_to, put_u16, put_u32, put_u64, take, u16_at, u32_at, u64_at};
use crate::limits::{KEY_BYTES_MAX, ROWS_MAX};

const BATCH_HEAD_BYTES: usize = 16;
const BATCH_ROW_BYTES: usize = 32;
const ROLL_BACK_BYTES: usize = 64;
const LISTING_BYTES: usize = 32;
/// Bytes of the retention feature.
pub const RETENTION_BYTES: usize = 64;
const LOCK_AT: usize = 24;
const LESS_AT: usize = 32;

fn is_key(length: usize) -> bool {
    (1..=KEY_BYTES_MAX).contains(&length)
}

fn key_length(key: &[u8]) -> u16 {
    u16::try_from(key.len()).expect("a key or prefix has at most 1,024 bytes")
}

/// Key and value of a put LONG.
#[must_use]
pub fn long_bytes(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = key_length(key).to_le_bytes().to_vec();
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    bytes
}

/// Key and value of a put LONG.
#[must_use]
pub fn long_of(mut bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(u16_at(take(&mut bytes, 2)?, 0));
    let key = take(&mut bytes, length)?;
    is_key(length).then_some((key, bytes))
}

/// A batch.
///
/// # Panics
/// A key is a digest: a batch names keys in full.
#[must_use]
pub fn batch_bytes(rows: &[Write]) -> Vec<u8> {
    let mut bytes = vec![0; BATCH_HEAD_BYTES];
    put_u32(&mut bytes, 0, u32::try_from(rows.len()).unwrap_or(u32::MAX));
    for row in rows {
        let Key::Plain(key) = &row.key else {
            panic!("a batch names keys in full");
        };
        let mut head = [0; BATCH_ROW_BYTES];
        let value: &[u8] = match &row.change {
            Change::Put(value) => value,
            _ => &[],
        };
        head[0] = match &row.change {
            Change::Put(_) => 1,
            Change::Delete => 2,
            Change::Restore(_) => 3,
        };
        if let Condition::Head(version) = row.condition {
            head[1] = flag::IF_VERSION;
            put_u64(&mut head, 8, version);
        }
        put_u16(&mut head, 2, key_length(key));
        put_u32(&mut head, 4, u32::try_from(value.len()).unwrap_or(u32::MAX));
        if let Change::Restore(from) = row.change {
            let (number, argument) = selector_numbers(from);
            head[16] = number;
            put_u64(&mut head, 24, argument);
        }
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        pad_to(&mut bytes, 8);
    }
    bytes
}

/// The rows of a batch: 1 to 4,096, each key once.
#[must_use]
pub fn batch_of(mut bytes: &[u8]) -> Option<Vec<Write>> {
    let rest = &mut bytes;
    let count = u32_at(take(rest, BATCH_HEAD_BYTES)?, 0) as usize;
    if count == 0 || count > ROWS_MAX {
        return None;
    }
    let (mut rows, mut keys) = (Vec::new(), HashSet::new());
    for _ in 0..count {
        let head = take(rest, BATCH_ROW_BYTES)?;
        let key_bytes = usize::from(u16_at(head, 2));
        let value_bytes = u32_at(head, 4) as usize;
        let key = take(rest, key_bytes)?.to_vec();
        let value = take(rest, value_bytes)?.to_vec();
        // The last row may end without its padding.
        let pad = (key_bytes + value_bytes).next_multiple_of(8) - key_bytes - value_bytes;
        take(rest, pad.min(rest.len()))?;
        let change = match head[0] {
            1 => Change::Put(value),
            2 if value.is_empty() => Change::Delete,
            3 if value.is_empty() => Change::Restore(selector_of(head[16], u64_at(head, 24))?),
            _ => return None,
        };
        let condition = match head[1] {
            0 => Condition::Any,
            flag::IF_VERSION => Condition::Head(u64_at(head, 8)),
            _ => return None,
        };
        if !is_key(key_bytes) || !keys.insert(key.clone()) {
            return None;
        }
        rows.push(Write {
            key: Key::Plain(key),
            change,
            condition,
        });
    }
    Some(rows)
}

/// A roll back.
#[must_use]
pub fn roll_back_bytes(roll_back: &RollBack) -> Vec<u8> {
    let mut bytes = vec![0; ROLL_BACK_BYTES];
    match roll_back.target {
        Target::Moment(moment) => {
            bytes[0] = 1;
            put_u64(&mut bytes, 8, moment);
        }
        Target::Back(back) => {
            bytes[0] = 2;
            put_u32(&mut bytes, 4, back);
        }
        Target::Undo(id) => {
            bytes[0] = 3;
            put_u64(&mut bytes, 8, id);
        }
    }
    bytes[1] = u8::from(roll_back.is_dry_run);
    if let Some(moment) = roll_back.unless_written_since {
        bytes[1] |= 2;
        put_u64(&mut bytes, 16, moment);
    }
    put_u16(&mut bytes, 2, key_length(&roll_back.prefix));
    bytes.extend_from_slice(&roll_back.prefix);
    bytes
}

/// A roll back.
#[must_use]
pub fn roll_back_of(mut bytes: &[u8]) -> Option<RollBack> {
    let head = take(&mut bytes, ROLL_BACK_BYTES)?;
    let length = usize::from(u16_at(head, 2));
    let prefix = take(&mut bytes, length)?.to_vec();
    let target = match head[0] {
        1 => Target::Moment(u64_at(head, 8)),
        2 => Target::Back(u32_at(head, 4)),
        3 => Target::Undo(u64_at(head, 8)),
        _ => return None,
    };
    (length <= KEY_BYTES_MAX && head[1] < 4 && bytes.is_empty()).then(|| RollBack {
        prefix,
        target,
        unless_written_since: (head[1] & 2 != 0).then(|| u64_at(head, 16)),
        is_dry_run: head[1] & 1 != 0,
    })
}

/// What a listing of a moment shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingRequest {
    /// The moment; 0: now.
    pub moment: u64,
    /// Only keys that changed after it; 0: all.
    pub changed_since: u64,
    /// Also keys that were deleted after it.
    pub has_deleted: bool,
    /// What the keys begin with.
    pub prefix: Vec<u8>,
}

/// Data that opens a listing.
#[must_use]
pub fn listing_bytes(listing: &ListingRequest) -> Vec<u8> {
    let mut bytes = vec![0; LISTING_BYTES];
    put_u64(&mut bytes, 0, listing.moment);
    put_u64(&mut bytes, 8, listing.changed_since);
    put_u16(&mut bytes, 16, key_length(&listing.prefix));
    put_u16(&mut bytes, 18, u16::from(listing.has_deleted));
    bytes.extend_from_slice(&listing.prefix);
    bytes
}

/// Data that opens a listing.
#[must_use]
pub fn listing_of(mut bytes: &[u8]) -> Option<ListingRequest> {
    let head = take(&mut bytes, LISTING_BYTES)?;
    let length = usize::from(u16_at(head, 16));
    let prefix = take(&mut bytes, length)?.to_vec();
    let flags = u16_at(head, 18);
    (length <= KEY_BYTES_MAX && flags < 2 && bytes.is_empty()).then(|| ListingRequest {
        moment: u64_at(head, 0),
        changed_since: u64_at(head, 8),
        has_deleted: flags == 1,
        prefix,
    })
}

fn write_retention(bytes: &mut [u8], retention: &Retention) {
    put_u64(bytes, 0, retention.min_age_us);
    put_u64(bytes, 8, retention.keep_deleted_us);
    put_u32(bytes, 16, retention.min_count);
}

fn read_retention(bytes: &[u8]) -> Retention {
    Retention {
        min_age_us: u64_at(bytes, 0),
        keep_deleted_us: u64_at(bytes, 8),
        min_count: u32_at(bytes, 16),
    }
}

/// The retention feature, as it is set.
#[must_use]
pub fn retention_bytes(retention: &Retention) -> Vec<u8> {
    let mut bytes = vec![0; RETENTION_BYTES];
    write_retention(&mut bytes, retention);
    bytes
}

/// The retention feature, as it is set.
#[must_use]
pub fn retention_of(bytes: &[u8]) -> Option<Retention> {
    (bytes.len() == RETENTION_BYTES).then(|| read_retention(bytes))
}

/// The retention feature, as a lock of it is set.
#[must_use]
pub fn lock_bytes(for_us: u64) -> Vec<u8> {
    let mut bytes = vec![0; RETENTION_BYTES];
    put_u64(&mut bytes, LOCK_AT, for_us);
    bytes
}

/// The retention feature, as a lock of it is set: for how many microseconds.
#[must_use]
pub fn lock_of(bytes: &[u8]) -> Option<u64> {
    (bytes.len() == RETENTION_BYTES).then(|| u64_at(bytes, LOCK_AT))
}

/// The retention feature, as it is read.
#[must_use]
pub fn kept_bytes(kept: &Kept) -> Vec<u8> {
    let mut bytes = retention_bytes(&kept.retention);
    put_u64(&mut bytes, LOCK_AT, kept.locked_us);
    if let Some((less, in_us)) = &kept.less {
        put_u32(&mut bytes, 20, 1);
        put_u64(&mut bytes, LESS_AT, *in_us);
        write_retention(&mut bytes[LESS_AT + 8..], less);
    }
    bytes
}

/// The retention feature, as it is read.
#[must_use]
pub fn kept_of(bytes: &[u8]) -> Option<Kept> {
    (bytes.len() == RETENTION_BYTES).then(|| {
        let less = (
            read_retention(&bytes[LESS_AT + 8..]),
            u64_at(bytes, LESS_AT),
        );
        Kept {
            retention: read_retention(bytes),
            locked_us: u64_at(bytes, LOCK_AT),
            less: (u32_at(bytes, 20) == 1).then_some(less),
        }
    })
}
