// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the fast path may say to a read, and when that would have been Redis's answer.
//!
//! A reply is taken apart into what it says of each key; the command is right iff there is one
//! point at which all of that held. Nil and replies that count a missing key are never fast.

use erb_sim_redis::Bytes;

use crate::time::Ns;

use super::versions::{Fits, Held};
use super::wire::{bulk, bulks, integer, is};
use super::{Point, Read, Versions};

/// The reads that the fast path knows, and how their replies begin.
const READS: [(&str, u8); 8] = [
    ("get", b'$'),
    ("mget", b'*'),
    ("exists", b':'),
    ("strlen", b':'),
    ("ttl", b':'),
    ("pttl", b':'),
    ("getrange", b'$'),
    ("substr", b'$'),
];

/// Whether the fast path may answer the command from its cache.
pub(super) fn is_read(argv: &[Bytes]) -> bool {
    READS.iter().any(|(name, _)| is(argv, name))
}

/// Whether it may by a reply of this kind.
pub(super) fn is_answer(argv: &[Bytes], reply: &[u8]) -> bool {
    READS
        .iter()
        .any(|(name, kind)| is(argv, name) && reply.first() == Some(kind))
}

/// The earliest point, not before `from`, at which `frame` was Redis's answer; read at `now`.
pub(super) fn point(
    argv: &[Bytes],
    frame: &[u8],
    versions: &Versions,
    from: Point,
    now: Ns,
) -> Option<Read> {
    let keys = argv.get(1..).filter(|keys| !keys.is_empty())?;
    let one = |fits: Fits<'_>| versions.find(&keys[0], from, fits);
    if is(argv, "get") && keys.len() == 1 {
        return versions.read(&keys[0], bulk(frame)?, from);
    }
    if is(argv, "mget") {
        let values = bulks(frame).filter(|values| values.len() == keys.len())?;
        return all(keys, versions, from, &|at, held| {
            held.is_some_and(|held| held.value == values[at])
        });
    }
    if is(argv, "exists") {
        let right = integer(frame)? == keys.len() as i64;
        return all(keys, versions, from, &|_, held| right && held.is_some());
    }
    if is(argv, "strlen") && keys.len() == 1 {
        let len = integer(frame)?;
        return one(&|held| held.is_some_and(|held| held.value.len() as i64 == len));
    }
    if (is(argv, "ttl") || is(argv, "pttl")) && keys.len() == 1 {
        let (left, seconds) = (integer(frame)?, is(argv, "ttl"));
        let unsure = versions.is_unsure(now);
        let (first, last) = (versions.wall_ms(from.at), versions.wall_ms(now));
        return one(&|held: Option<Held<'_>>| {
            held.is_some_and(|held| match held.expire_at_ms {
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
        return one(&|held| held.is_some_and(|held| range(held.value, start, end) == part));
    }
    None
}

/// Whether at a moment between two there were so many milliseconds (or seconds, rounded as Redis
/// does) left until `end`.
fn is_left(end: i64, left: i64, seconds: bool, first: i64, last: i64) -> bool {
    let shown = |now: i64| {
        let ms = (end - now).max(0);
        if seconds { (ms + 500) / 1000 } else { ms }
    };
    (shown(last)..=shown(first)).contains(&left)
}

/// Redis's GETRANGE.
fn range(value: &[u8], start: i64, end: i64) -> &[u8] {
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
    versions: &Versions,
    from: Point,
    fits: &dyn Fn(usize, Option<Held<'_>>) -> bool,
) -> Option<Read> {
    let mut read = Read {
        point: from,
        stale: false,
    };
    loop {
        let before = read.point;
        for (at, key) in keys.iter().enumerate() {
            let found = versions.find(key, read.point, &|held| fits(at, held))?;
            read.point = found.point;
            read.stale |= found.stale;
        }
        if read.point == before {
            return Some(read);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_redis() {
        let cases: [(i64, i64, &[u8]); 10] = [
            (0, -1, b"value"),
            (1, 3, b"alu"),
            (-3, -2, b"lu"),
            (-100, 2, b"val"),
            (3, 99, b"ue"),
            (5, 9, b""),
            (3, 2, b""),
            (-2, -3, b""),
            (0, -100, b"v"),
            (4, -5, b""),
        ];
        for (start, end, part) in cases {
            assert_eq!(range(b"value", start, end), part, "{start} {end}");
        }
        assert_eq!(range(b"", 0, -1), b"");
    }

    #[test]
    fn times_left_are_exact() {
        assert!(is_left(10_000, 400, false, 9_600, 9_600));
        assert!(!is_left(10_000, 401, false, 9_600, 9_605));
        assert!(!is_left(10_000, 394, false, 9_600, 9_605));
        assert!(is_left(10_000, 1, true, 9_500, 9_500));
        assert!(!is_left(10_000, 1, true, 9_501, 9_501));
    }
}
