// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What lies in the cache: well formed (C3 to C6, C8, C9), and, as far as it would be answered at this
//! moment, true. So a wrong entry is found when it is there, not only when a client happens to read
//! it.

use std::collections::BTreeMap;

use erb_abi as abi;
use erb_sim_kernel::Datapath;

use crate::time::{MS, Ns, coarse};
use crate::violation::Violation;

use super::versions::{Held, Value};
use super::wire::{bulk, show};
use super::{Point, Versions};

/// The tag of a hash.
const fn tag(hash: u64) -> u16 {
    let tag = (hash >> 48) as u16;
    if tag == 0 { 1 } else { tag }
}

/// What the digest keeps of a hash.
const fn digest(hash: u64) -> u8 {
    let byte = tag(hash) as u8;
    if byte == 0 { 1 } else { byte }
}

/// An entry as its way holds it.
pub struct Entry<'a> {
    /// Of the cache when it was put there.
    pub epoch: u32,
    db: u16,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    kind: u32,
    /// When it expires, if it does: wall clock.
    pub expiry_ms: Option<u64>,
    /// Of a SET that Redis has not answered.
    is_awaited: bool,
    /// What a SET said: global version and time until which it is answered.
    written: Option<(u64, u64)>,
}

/// The bytes of a way.
#[must_use]
pub fn way_bytes<'a>(set: &'a abi::cache_set, large: &'a abi::cache_large, way: usize) -> &'a [u8] {
    let classes = [
        (abi::CLASS0_WAYS, abi::CLASS0_BYTES),
        (abi::CLASS1_WAYS, abi::CLASS1_BYTES),
        (abi::CLASS2_WAYS, abi::CLASS2_BYTES),
        (abi::CLASS3_WAYS, abi::CLASS3_BYTES),
    ];
    let (mut at, mut way) = (0, way);
    for (class, (ways, bytes)) in classes.into_iter().enumerate() {
        let (ways, bytes) = (ways as usize, bytes as usize);
        if way < ways {
            let slots: &[u8] = if class == 0 { &set.slots } else { &large.slots };
            return &slots[at + way * bytes..][..bytes];
        }
        way -= ways;
        at = if class == 0 { 0 } else { at + ways * bytes };
    }
    unreachable!("there are sixteen ways")
}

/// Reads a way.
///
/// # Errors
/// Why it is none (C4).
pub fn entry(slot: &[u8]) -> Result<Entry<'_>, String> {
    let u16_at = |at: usize| u16::from_le_bytes([slot[at], slot[at + 1]]);
    let epoch = u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]);
    let is_awaited = u32::from(u16_at(6)) & abi::SLOT_AWAITED != 0;
    let value_len = u16_at(4) as usize;
    let key_len = usize::from(u16_at(6) & !(abi::SLOT_AWAITED as u16));
    let expires = u32::from(slot[8]) & abi::SLOT_F_EXPIRES != 0;
    let is_written = u32::from(slot[8]) & abi::SLOT_F_WRITTEN != 0;
    let data = &slot[abi::SLOT_HEADER_BYTES as usize..];
    let padded = key_len.next_multiple_of(8);
    let tail = match (expires, is_written) {
        (true, true) => return Err("what a SET said expires".to_owned()),
        (true, false) => 8,
        (false, true) => size_of::<abi::written_end>(),
        (false, false) => 0,
    };
    let room = data.len() - tail;
    if key_len == 0 || key_len > abi::KEY_BYTES_MAX as usize || value_len + padded > room {
        return Err(format!(
            "key of {key_len} and value of {value_len} bytes in {room}"
        ));
    }
    if data[value_len + key_len..value_len + padded]
        .iter()
        .any(|byte| *byte != 0)
    {
        return Err("the key is not padded with zeros".to_owned());
    }
    let word = |back: usize| {
        let at = data.len() - back;
        u64::from_le_bytes(data[at..at + 8].try_into().unwrap_or_default())
    };
    let expiry_ms = expires.then(|| word(8));
    let written = is_written.then(|| (word(16), word(8)));
    Ok(Entry {
        epoch,
        db: u16_at(10),
        key: &data[value_len..value_len + key_len],
        value: &data[..value_len],
        kind: slot[9].into(),
        expiry_ms,
        is_awaited,
        written,
    })
}

/// A field and its value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// Fields and values of a cached hash; the text says why it is none (C9).
fn pairs(value: &[u8]) -> Result<Vec<Pair<'_>>, String> {
    let number = |at: usize| {
        let bytes = value.get(at..at + 2).ok_or("cut off")?;
        Ok::<usize, String>(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
    };
    let count = number(0)?;
    let mut at = 8 + 8 * count;
    let mut found = Vec::new();
    for place in (8..8 + 8 * count).step_by(8) {
        let (len, value_at, end) = (number(place)?, number(place + 2)?, number(place + 4)?);
        let field = value.get(at..value_at).and_then(|bytes| bulk(bytes)?);
        let held = value.get(value_at..end).and_then(|bytes| bulk(bytes)?);
        match (field, held) {
            (Some(field), Some(held)) if field.len() == len => found.push((field, held)),
            _ => return Err(format!("field {} is not where it should be", found.len())),
        }
        at = end;
    }
    if count == 0 || count > abi::HASH_FIELDS_MAX as usize || at != value.len() {
        return Err(format!("{count} fields end at {at} of {}", value.len()));
    }
    Ok(found)
}

/// What an entry says.
enum Content<'a> {
    String(&'a [u8]),
    Hash(Vec<Pair<'a>>),
    Absent,
}

impl<'a> Content<'a> {
    /// Reads it; the text says why it is none (C9).
    fn of(entry: &Entry<'a>) -> Result<Self, String> {
        Ok(match entry.kind {
            abi::SLOT_HASH => Self::Hash(pairs(entry.value)?),
            abi::SLOT_ABSENT if entry.value.is_empty() && entry.expiry_ms.is_none() => Self::Absent,
            abi::SLOT_ABSENT => return Err("an absent key has a value".to_owned()),
            _ => Self::String(entry.value),
        })
    }

    /// Whether a key that held this is what it says.
    fn is(&self, held: Option<Held<'_>>) -> bool {
        match (held.map(|held| held.value), self) {
            (None, Self::Absent) => true,
            (Some(Value::String(value)), Self::String(own)) => value == *own,
            (Some(Value::Hash(held)), Self::Hash(pairs)) => {
                let held = held.iter().map(|(field, value)| (&**field, &**value));
                held.eq(pairs.iter().copied())
            }
            _ => false,
        }
    }
}

/// Whether a GET could be answered at all at this moment.
const fn is_open(control: &abi::control, now: Ns) -> bool {
    control.serving == 1
        && control.stopping == 0
        && control.fence == 0
        && control.gate_seen == control.gate_ack
        && coarse(now) < control.lease_until_ns
}

/// Looks at every entry. Call it while no program is under way.
///
/// # Errors
/// The rule that is broken: C3, C4, C6, C8, C9, or `cache` for an entry that is not true.
pub fn check(now: Ns, path: &Datapath, versions: &Versions, here: Point) -> Result<(), Violation> {
    // SAFETY: the map has one value, which stays where it is; no program runs.
    let control = unsafe { *path.control() };
    let open = is_open(&control, now);
    for index in 0..path.set_count() {
        let (set, large) = path.set(index);
        let broken = |rule, way: usize, text: String| {
            Violation::new(rule, now, format!("set {index}, way {way}: {text}"))
        };
        let mut keys = BTreeMap::new();
        for (way, way_tag) in set.tags.iter().enumerate().filter(|(_, tag)| **tag != 0) {
            let bytes = way_bytes(set, large, way);
            // Of an older epoch nothing is promised but that nobody looks at it.
            let epoch = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            if epoch != control.cache_epoch {
                continue;
            }
            let found = entry(bytes).map_err(|text| broken("C4", way, text))?;
            debug_assert_eq!(found.epoch, epoch);
            let key_hash = control.hash.hash(found.key);
            if key_hash & control.set_mask != index as u64 || tag(key_hash) != *way_tag {
                return Err(broken(
                    "C3",
                    way,
                    format!("not the place of {}", show(found.key)),
                ));
            }
            if path.digest(index).tags[way] != digest(key_hash) {
                let text = format!("the digest lacks {}", show(found.key));
                return Err(broken("C8", way, text));
            }
            if let Some(other) = keys.insert((found.db, found.key), way) {
                return Err(broken(
                    "C6",
                    way,
                    format!("{} is in way {other} too", show(found.key)),
                ));
            }
            let from = Point { at: now, ..here };
            let content = Content::of(&found).map_err(|text| broken("C9", way, text))?;
            let answered = open
                && set.marks == 0
                && !found.is_awaited
                && !is_guarded(&control, &found, now)
                && (control.absent == 1 || !matches!(content, Content::Absent));
            let right = |held: Option<Held<'_>>| content.is(held);
            if answered
                && versions
                    .find(found.db.into(), found.key, (from, now), &right)
                    .is_none()
            {
                let text = format!(
                    "{} would be answered by {}; {}",
                    show(found.key),
                    show(found.value),
                    versions.describe(found.key)
                );
                return Err(broken("cache", way, text));
            }
        }
    }
    Ok(())
}

/// Whether the entry is too close to its expiry to be answered, or behind the end of what a SET said.
fn is_guarded(control: &abi::control, entry: &Entry<'_>, now: Ns) -> bool {
    if let Some((version, until)) = entry.written {
        return version != control.global_version || coarse(now) >= until;
    }
    let wall_ms = (coarse(now) as i64 + control.wall_minus_mono_ns) / MS as i64;
    let guard = i64::from(abi::EXPIRY_GUARD_MS + abi::CLOCK_LAG_MS);
    entry
        .expiry_ms
        .is_some_and(|expiry| wall_ms + guard >= expiry as i64)
}
