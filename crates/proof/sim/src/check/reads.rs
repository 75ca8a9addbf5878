// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the fast path may say to a read, and when that would have been Redis's answer.
//!
//! A reply is taken apart into what it says of each key; the command is right iff there is one
//! point at which all of that held.

use erb_sim_redis::Bytes;

use crate::time::Ns;

use super::versions::{Fits, Held};
use super::wire::{bulk, integer, is, nil_or_bulks};
use super::{Point, Read, Versions};

/// The reads that the fast path knows, and how their replies begin.
const READS: [(&str, &[u8]); 16] = [
    ("get", b"$_"),
    ("mget", b"*"),
    ("exists", b":"),
    ("strlen", b":"),
    ("ttl", b":"),
    ("pttl", b":"),
    ("getrange", b"$"),
    ("substr", b"$"),
    ("hget", b"$_"),
    ("hmget", b"*"),
    ("hgetall", b"*%"),
    ("hlen", b":"),
    ("hexists", b":"),
    ("hstrlen", b":"),
    ("hkeys", b"*"),
    ("hvals", b"*"),
];

/// Whether the fast path may answer the command from its cache.
pub(super) fn is_read(argv: &[Bytes]) -> bool {
    READS.iter().any(|(name, _)| is(argv, name))
}

/// Whether it may by a reply of this kind.
pub(super) fn is_answer(argv: &[Bytes], reply: &[u8]) -> bool {
    READS.iter().any(|(name, kinds)| {
        is(argv, name) && reply.first().is_some_and(|kind| kinds.contains(kind))
    })
}

/// A reply, and what else is known of it.
#[derive(Clone, Copy)]
pub(super) struct Says<'a> {
    pub(super) frame: &'a [u8],
    pub(super) resp3: bool,
    /// It may say that a key is absent.
    pub(super) absent: bool,
}

/// The earliest point, not before `from`, at which the frame was Redis's answer; read at `now`.
pub(super) fn point(
    argv: &[Bytes],
    says: Says<'_>,
    (versions, db): (&Versions, u32),
    (from, now): (Point, Ns),
) -> Option<Read> {
    let (keys, frame) = (argv.get(1..).filter(|keys| !keys.is_empty())?, says.frame);
    let nil: &[u8] = if says.resp3 { b"_\r\n" } else { b"$-1\r\n" };
    let one = |fits: Fits<'_>| {
        let fits = |held: Option<Held<'_>>| (says.absent || held.is_some()) && fits(held);
        versions.find(db, &keys[0], (from, now), &fits)
    };
    if is(argv, "get") && keys.len() == 1 {
        let value = bulk(frame)?;
        return one(&|held| match held {
            None => frame == nil,
            Some(held) => held.string().is_some() && held.string() == value,
        });
    }
    if is(argv, "mget") {
        let values = nil_or_bulks(frame, nil).filter(|values| values.len() == keys.len())?;
        return all(keys, (versions, db), (from, now), &|at, held| {
            (says.absent || values[at].is_some()) && held.and_then(Held::string) == values[at]
        });
    }
    if is(argv, "exists") {
        let count = integer(frame)?;
        return exists(keys, count, says.absent, (versions, db), (from, now));
    }
    if is(argv, "strlen") && keys.len() == 1 {
        let len = integer(frame)?;
        return one(&|held| {
            let value = held.map_or(Some(&b""[..]), Held::string);
            value.is_some_and(|value| value.len() as i64 == len)
        });
    }
    if (is(argv, "ttl") || is(argv, "pttl")) && keys.len() == 1 {
        let (left, seconds) = (integer(frame)?, is(argv, "ttl"));
        let unsure = versions.is_unsure(now);
        let (first, last) = (versions.wall_ms(from.at), versions.wall_ms(now));
        return one(&|held: Option<Held<'_>>| {
            held.map_or(left == -2, |held| match held.expire_at_ms {
                None => left == -1,
                Some(_) if unsure => left >= 0,
                Some(end) => is_left(end as i64, left, seconds, first, last),
            })
        });
    }
    if (is(argv, "getrange") || is(argv, "substr")) && keys.len() == 3 {
        let part = bulk(frame)??;
        let number = |at: usize| {
            let text = std::str::from_utf8(&keys[at]).ok()?;
            let number: i64 = text.parse().ok()?;
            (number.to_string() == text).then_some(number)
        };
        let (start, end) = (number(1)?, number(2)?);
        return one(&|held| {
            let value = held.map_or(Some(&b""[..]), Held::string);
            value.is_some_and(|value| range(value, start, end) == part)
        });
    }
    one(&|held| {
        let reply = held
            .map_or(Some(&[][..]), Held::hash)
            .and_then(|pairs| of_hash(argv, pairs, says.resp3));
        reply.is_some_and(|reply| reply == frame)
    })
}

/// The earliest point at which so many of the keys existed: of all choices of those that did.
fn exists(
    keys: &[Bytes],
    count: i64,
    absent: bool,
    at: (&Versions, u32),
    span: (Point, Ns),
) -> Option<Read> {
    let most = u32::try_from(keys.len()).ok().filter(|keys| *keys < 16)?;
    let choices = (0u32..1 << most).filter(|choice| i64::from(choice.count_ones()) == count);
    let choices = choices.filter(|choice| absent || choice.count_ones() == most);
    let found = choices.filter_map(|choice| {
        all(keys, at, span, &|place, held| {
            held.is_some() == (choice & 1 << place != 0)
        })
    });
    found.min_by_key(|read| (read.point, read.stale))
}

/// Redis's answer to a command on a hash.
fn of_hash(argv: &[Bytes], pairs: &[(Bytes, Bytes)], resp3: bool) -> Option<Vec<u8>> {
    let nil: &[u8] = if resp3 { b"_\r\n" } else { b"$-1\r\n" };
    let bulk =
        |bytes: &Bytes| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let number = |number: usize| format!(":{number}\r\n").into_bytes();
    let value = |field: &Bytes| {
        pairs
            .iter()
            .find(|pair| pair.0 == *field)
            .map(|pair| &pair.1)
    };
    let or_nil = |field: &Bytes| value(field).map_or_else(|| nil.to_vec(), bulk);
    let array = |mark: char, count: usize, elements: Vec<Vec<u8>>| {
        let head = format!("{mark}{count}\r\n").into_bytes();
        [head, elements.concat()].concat()
    };
    let count = pairs.len();
    let name = argv[0].to_ascii_lowercase();
    Some(match (name.as_slice(), &argv[2..]) {
        (b"hget", [field]) => or_nil(field),
        (b"hmget", fields @ [_, ..]) => {
            array('*', fields.len(), fields.iter().map(or_nil).collect())
        }
        (b"hexists", [field]) => number(usize::from(value(field).is_some())),
        (b"hstrlen", [field]) => number(value(field).map_or(0, |value| value.len())),
        (b"hlen", []) => number(count),
        (b"hkeys", []) => array('*', count, pairs.iter().map(|pair| bulk(&pair.0)).collect()),
        (b"hvals", []) => array('*', count, pairs.iter().map(|pair| bulk(&pair.1)).collect()),
        (b"hgetall", []) => {
            let both = pairs
                .iter()
                .map(|pair| [bulk(&pair.0), bulk(&pair.1)].concat());
            let (mark, count) = if resp3 {
                ('%', count)
            } else {
                ('*', 2 * count)
            };
            array(mark, count, both.collect())
        }
        _ => return None,
    })
}

/// Whether at a moment between two there were so many milliseconds (or seconds, rounded as Redis
/// does) left until `end`.
#[must_use]
pub fn is_left(end: i64, left: i64, seconds: bool, first: i64, last: i64) -> bool {
    let shown = |now: i64| {
        let ms = (end - now).max(0);
        if seconds { (ms + 500) / 1000 } else { ms }
    };
    (shown(last)..=shown(first)).contains(&left)
}

/// Redis's GETRANGE.
#[must_use]
pub fn range(value: &[u8], start: i64, end: i64) -> &[u8] {
    let len = value.len() as i64;
    if start < 0 && end < 0 && start > end {
        return b"";
    }
    let from_end = |index: i64| if index < 0 { index + len } else { index }.max(0);
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end || len == 0 {
        return b"";
    }
    &value[start as usize..=end as usize]
}

/// The earliest point at which what is said of all keys held.
fn all(
    keys: &[Bytes],
    (versions, db): (&Versions, u32),
    (from, now): (Point, Ns),
    fits: &dyn Fn(usize, Option<Held<'_>>) -> bool,
) -> Option<Read> {
    let mut read = Read {
        point: from,
        stale: false,
    };
    loop {
        let before = read.point;
        for (at, key) in keys.iter().enumerate() {
            let found = versions.find(db, key, (read.point, now), &|held| fits(at, held))?;
            read.point = found.point;
            read.stale |= found.stale;
        }
        if read.point == before {
            return Some(read);
        }
    }
}
