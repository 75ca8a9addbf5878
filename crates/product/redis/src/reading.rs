// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fills as transactions: what is asked of Redis, and what its answers mean for the cache.
//!
//! Invariants:
//! 1. No answer is longer than what was asked for, whatever the key holds by then: sizes are numbers,
//!    a string is read up to one byte more than it had, of a hash so many fields at most, however long (E-1).
//! 2. Where Redis tells subscribers of keys that were looked for and not there (`quiet`), the size is asked
//!    for by commands that it does not tell of, and an absent key is asked nothing else.
//! 3. A string that is longer than it was is not inserted: part of it may be missing.
//! 4. A key is absent if PEXPIRETIME says so, in the transaction whose token was noted before.
//! 5. A hash's fields come in the order that HGETALL gives until the hash is written. Redis moves the fields
//!    of a table that grows or shrinks little by little, with each look-up, and tells nobody. So it is looked
//!    into, in the same transaction and before it is read, until nothing is left to be moved. How often that
//!    is follows from what was read, and where it was not often enough no table is cached; nor while a
//!    child of Redis runs, when nothing is moved.

use std::borrow::Cow;
use std::io;

use erb_abi as abi;
use erb_abi::{FillEntry, FillToken, ValueKind, Wanted};

use crate::cached_hash::{self, Encoding, Tables};
use crate::fill::Filled;
use crate::outside::DataPath;
use crate::resp::{Frame, broken, integer, is_simple, text};
use crate::size::{Reading, Size, Steps};

/// Longest answer to a batch, some times what its bytes are bounded to (`fill.rs`). A hash that was made
/// that much larger since it was asked for its size ends the feed, and with it Redis's memory for it.
pub(crate) const BATCH_REPLY_MAX: usize = 1 << 20;

/// What PEXPIRETIME says of a key that is not there.
const NO_KEY: i64 = -2;

/// Encodings of strings (Redis src/object.c strEncoding).
const STRING_ENCODINGS: [&[u8]; 3] = [b"raw", b"embstr", b"int"];

/// Elements that MEMORY USAGE looks at: all of a hash table that is small enough. Of more elements the
/// estimate is too large, as each takes an allocation at least (`size.rs`, `QUIET_TABLE_MEMORY_MAX`).
const MEMORY_SAMPLES: u32 = 2 * abi::HASH_FIELDS_MAX;

/// One key of a fill under way.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) wanted: Wanted,
    pub(crate) reading: Reading,
    pub(crate) token: FillToken,
}

/// A command.
pub(crate) type Words<'a> = Vec<Cow<'a, [u8]>>;

fn words<'a>(before: &[&'a [u8]], key: &'a [u8], behind: &[&str]) -> Words<'a> {
    let before = before.iter().map(|word| Cow::Borrowed(*word));
    let behind = behind
        .iter()
        .map(|word| Cow::Owned(word.as_bytes().to_vec()));
    before.chain([Cow::Borrowed(key)]).chain(behind).collect()
}

/// The commands that ask for the size of a value. OBJECT looks a key up without an event of its absence
/// (LOOKUP_NONOTIFY, Redis src/object.c), MEMORY USAGE without a look-up; no other reading command does.
/// `whole`: all elements are looked at.
pub(crate) fn sizes_of(wanted: &Wanted, quiet: bool, whole: bool) -> Vec<Words<'_>> {
    let key = &wanted.key;
    let encoding = || words(&[b"OBJECT", b"ENCODING"], key, &[]);
    let memory = || memory_of(key, whole);
    match wanted.kind {
        _ if quiet => vec![encoding(), memory()],
        ValueKind::String => vec![words(&[b"STRLEN"], key, &[])],
        ValueKind::Hash => vec![encoding(), words(&[b"HLEN"], key, &[]), memory()],
    }
}

/// Asks for the memory of a value. `whole`: all elements are looked at, else one.
fn memory_of(key: &[u8], whole: bool) -> Words<'_> {
    let samples = if whole { MEMORY_SAMPLES } else { 1 }.to_string();
    words(&[b"MEMORY", b"USAGE"], key, &["SAMPLES", &samples])
}

/// The commands that read a value, and when it expires. Of a table also its memory, before it is looked into:
/// it may have grown since it was measured.
pub(crate) fn reads_of<'a>(asked: &'a Asked, steps: &Steps) -> Vec<Words<'a>> {
    let key = &asked.wanted.key;
    let mut reads = match asked.wanted.kind {
        // Up to the byte behind its last one.
        ValueKind::String => vec![words(
            &[b"GETRANGE"],
            key,
            &["0", &asked.reading.bytes.to_string()],
        )],
        ValueKind::Hash => [
            Some(words(&[b"OBJECT", b"ENCODING"], key, &[])),
            (asked.reading.table_memory > 0).then(|| memory_of(key, true)),
            steps_of(asked, steps),
            // A hash with fewer fields than that comes whole, in the order of HGETALL (Redis
            // src/t_hash.c, hrandfieldWithCountCommand, case 2).
            Some(words(
                &[b"HRANDFIELD"],
                key,
                &[&(abi::HASH_FIELDS_MAX + 1).to_string(), "WITHVALUES"],
            )),
        ]
        .into_iter()
        .flatten()
        .collect(),
    };
    reads.push(words(&[b"PEXPIRETIME"], key, &[]));
    reads
}

/// Look-ups of a field that is not there, if it is a table. Nobody can have made one of that name: making it
/// would have changed the version.
fn steps_of<'a>(asked: &'a Asked, steps: &Steps) -> Option<Words<'a>> {
    let name = format!("{:08x}", asked.token.version & u64::from(u32::MAX));
    let names = vec![&name[..]; steps.of(&asked.reading)];
    (asked.reading.table_memory > 0).then(|| words(&[b"HMGET"], &asked.wanted.key, &names))
}

/// Of each key that was asked about its database, and how many answers come.
pub(crate) type Answered = Vec<(u16, usize)>;

/// The answers to a key's questions; none: its database could not be selected.
type Answers<'a> = Option<&'a [Frame]>;

/// EXEC's replies; none: nothing was asked (EXECABORT, nil).
fn replies(exec: &Frame) -> Option<&[Frame]> {
    match exec {
        Frame::Array { data, .. } => Some(data),
        _ => None,
    }
}

/// Takes EXEC's replies apart: of each database SELECT, then so many answers for each key.
fn by_key<'a>(data: &'a [Frame], keys: &Answered) -> io::Result<Vec<Answers<'a>>> {
    let selects = |index: usize| index == 0 || keys[index - 1].0 != keys[index].0;
    let answers: usize = keys.iter().map(|(_, answers)| answers).sum();
    if data.len() != answers + (0..keys.len()).filter(|index| selects(*index)).count() {
        return Err(broken(
            "EXEC answered another number of replies than was asked for",
        ));
    }
    let (mut rest, mut selected, mut found) = (data, false, Vec::new());
    for (index, (_, answers)) in keys.iter().enumerate() {
        if selects(index) {
            selected = is_simple(&rest[0], b"OK");
            rest = &rest[1..];
        }
        let (own, behind) = rest.split_at(*answers);
        found.push(selected.then_some(own));
        rest = behind;
    }
    Ok(found)
}

/// What the answers to [`sizes_of`] say; none: nothing was asked.
pub(crate) fn sizes(
    asked: Vec<Wanted>,
    answers: &Answered,
    whole: bool,
    reply: &Frame,
) -> io::Result<Vec<(Wanted, Option<Size>)>> {
    let Some(data) = replies(reply) else {
        return Ok(asked.into_iter().map(|one| (one, None)).collect());
    };
    let sizes = by_key(data, answers)?
        .into_iter()
        .zip(&asked)
        .map(|(answers, one)| {
            Some(match (one.kind, answers) {
                (ValueKind::String, Some([length])) => {
                    integer(length).map_or(Size::None, Size::String)
                }
                (_, Some([Frame::Null, ..])) => Size::Absent,
                (ValueKind::Hash, Some([encoding, fields @ .., memory])) => {
                    hash_size(encoding, fields.first(), memory, whole).unwrap_or(Size::None)
                }
                (ValueKind::String, Some([encoding, memory])) if is_string(encoding) => {
                    integer(memory).map_or(Size::None, Size::StringMemory)
                }
                _ => Size::None,
            })
        });
    let sizes: Vec<Option<Size>> = sizes.collect();
    Ok(asked.into_iter().zip(sizes).collect())
}

/// None: no hash that may be cached.
fn hash_size(
    encoding: &Frame,
    fields: Option<&Frame>,
    memory: &Frame,
    whole: bool,
) -> Option<Size> {
    let (encoding, memory) = (Encoding::of(encoding)?, integer(memory)?);
    let fields = match fields {
        Some(fields) => Some(integer(fields)?),
        None => None,
    };
    if encoding == Encoding::Table && !whole {
        return Some(Size::of_unmeasured(fields, memory));
    }
    Some(Size::Hash {
        encoding,
        fields,
        memory,
    })
}

/// Whether the reply to OBJECT ENCODING is of a string.
fn is_string(encoding: &Frame) -> bool {
    text(encoding).is_some_and(|encoding| STRING_ENCODINGS.iter().any(|one| encoding == one))
}

/// A value; none: there is no such key.
type Held<'a> = Option<Cow<'a, [u8]>>;

/// What was read of a value.
enum Read<'a> {
    Whole(Cow<'a, [u8]>, u64),
    Absent,
    Later,
    Never,
}

/// Whether a table was looked into often enough, by the answers that were asked for on top; learns how often
/// it had to be. None: they are not such.
fn rests(of_table: &[Frame], read: &Frame, steps: &mut Steps) -> Option<bool> {
    let [memory, Frame::Array { data: looks, .. }] = of_table else {
        return None;
    };
    let (memory, (fields, bytes)) = (integer(memory)?, cached_hash::content(read)?);
    let needed = Steps::needed(fields, bytes, memory);
    steps.learn(needed, memory);
    Some(looks.len() as u64 >= needed)
}

fn read_of<'a>(
    one: &Asked,
    answers: &'a [Frame],
    tables: Option<&Tables<'_>>,
    steps: &mut Steps,
) -> Read<'a> {
    if let Some(Frame::Number { data: NO_KEY, .. }) = answers.last() {
        return Read::Absent;
    }
    let (value, expiry) = match (one.wanted.kind, answers) {
        (ValueKind::String, [Frame::BlobString { data, .. }, expiry]) => {
            if data.len() > one.reading.bytes {
                return Read::Later;
            }
            (Some(Cow::Borrowed(&data[..])), expiry)
        }
        (ValueKind::Hash, [encoding, of_table @ .., read, expiry]) => {
            if Encoding::of(encoding) == Some(Encoding::Table) {
                let tables = tables.filter(|tables| tables.rest());
                // It was none when it was measured, or its order may change.
                let (Some(tables), Some(true)) = (tables, rests(of_table, read, steps)) else {
                    return Read::Later;
                };
                if !tables.are_sure(one.wanted.db) {
                    return Read::Never;
                }
            }
            let value = cached_hash::encode(encoding, read);
            (value.map(Cow::Owned), expiry)
        }
        _ => return Read::Never,
    };
    match value.zip(expiry_of(expiry)) {
        Some((value, expiry_ms)) => Read::Whole(value, expiry_ms),
        None => Read::Never,
    }
}

/// What is asked before all keys where one is a hash table.
pub(crate) const TABLES_ASKED: [&[u8]; 3] = [b"INFO", b"keyspace", b"persistence"];

/// Inserts what the answers to [`reads_of`] say. `tables`: behind the answer to [`TABLES_ASKED`], and
/// whether fields may expire.
pub(crate) fn insert(
    cache: &impl DataPath,
    asked: Vec<Asked>,
    (answers, tables): (&Answered, Option<bool>),
    steps: &mut Steps,
    reply: &Frame,
) -> io::Result<Vec<(Wanted, Filled)>> {
    let mut ends = vec![Filled::Later; asked.len()];
    let mut values: Vec<(usize, Held<'_>, u64)> = Vec::new();
    let (tables, data) = match (replies(reply), tables) {
        (Some([info, data @ ..]), Some(fields_expire)) => (Tables::of(info, fields_expire), data),
        (Some(data), _) => (None, data),
        (None, _) => {
            return Ok(asked
                .into_iter()
                .map(|one| (one.wanted, Filled::Later))
                .collect());
        }
    };
    for (index, answers) in by_key(data, answers)?.into_iter().enumerate() {
        match answers.map_or(Read::Never, |answers| {
            read_of(&asked[index], answers, tables.as_ref(), steps)
        }) {
            Read::Whole(value, expiry_ms) => values.push((index, Some(value), expiry_ms)),
            Read::Absent if cache.absent() == 1 => values.push((index, None, 0)),
            Read::Later => {}
            Read::Absent | Read::Never => ends[index] = Filled::Never,
        }
    }
    let entries: Vec<FillEntry<'_>> = values
        .iter()
        .map(|(index, value, expiry_ms)| entry_of(&asked[*index], value.as_deref(), *expiry_ms))
        .collect();
    if !entries.is_empty() {
        let found = cache.fill_insert(&entries).map_err(io::Error::other)?;
        for ((place, ..), status) in values.iter().zip(found) {
            ends[*place] = match status {
                abi::FILL_OK => Filled::Inserted,
                abi::FILL_BIG => Filled::Never,
                _ => Filled::Later,
            };
        }
    }
    Ok(asked.into_iter().map(|one| one.wanted).zip(ends).collect())
}

/// What PEXPIRETIME says, 0 = no expiry; none: nothing that counts.
fn expiry_of(reply: &Frame) -> Option<u64> {
    match reply {
        Frame::Number { data: -1, .. } => Some(0),
        Frame::Number { data, .. } if *data > 0 => Some(data.unsigned_abs()),
        _ => None,
    }
}

fn entry_of<'a>(one: &'a Asked, value: Option<&'a [u8]>, expiry_ms: u64) -> FillEntry<'a> {
    FillEntry {
        key: &one.wanted.key,
        db: one.wanted.db,
        kind: one.wanted.kind,
        value,
        expiry_ms,
        token: one.token,
    }
}
