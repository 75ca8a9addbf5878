// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All ways in which a key can be read, and what each reply says of the key's version.
//!
//! A whole hash is one register: HSET writes all its fields with one version, so any field tells it,
//! and two fields of different versions are no state that Redis ever had.

use fastrand::Rng;

use super::drive::{field_bytes, version_of, version_of_field};
use super::linear::{Action, Measure};
use crate::resp::{self, Reply};

/// Fields of a hash; each holds the version as [`field_bytes`] of its own name.
pub const FIELDS: [&str; 2] = ["f", "g"];

/// A way to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// GET, or of a hash HGETALL.
    Whole,
    /// GETRANGE of all.
    Range,
    /// One MGET of all keys of the read.
    Mget,
    /// EXISTS.
    Exists,
    /// TTL, of keys that never have one.
    Ttl,
    /// PTTL of the same.
    Pttl,
    /// STRLEN.
    StrLen,
    /// HGET of the first field.
    HGet,
    /// HMGET of all fields.
    HMGet,
    /// HVALS.
    HVals,
    /// HLEN.
    HLen,
    /// HEXISTS of the first field.
    HExists,
    /// HSTRLEN of the first field.
    HStrLen,
}

const OF_STRINGS: [Form; 5] = [
    Form::Range,
    Form::Exists,
    Form::Ttl,
    Form::Pttl,
    Form::StrLen,
];
const OF_HASHES: [Form; 9] = [
    Form::HGet,
    Form::HMGet,
    Form::HVals,
    Form::HLen,
    Form::HExists,
    Form::HStrLen,
    Form::Exists,
    Form::Ttl,
    Form::Pttl,
];

impl Form {
    /// A form for one key: the most telling one half of the time.
    pub fn draw(rng: &mut Rng, hash: bool) -> Self {
        let others: &[Self] = if hash { &OF_HASHES } else { &OF_STRINGS };
        if rng.bool() {
            Self::Whole
        } else {
            others[rng.usize(..others.len())]
        }
    }

    /// The command.
    pub fn command(self, keys: &[String], hash: bool) -> Vec<Vec<u8>> {
        let words: &[&str] = match (self, hash) {
            (Self::Whole, false) => &["GET"],
            (Self::Whole, true) => &["HGETALL"],
            (Self::Range, _) => &["GETRANGE"],
            (Self::Mget, _) => &["MGET"],
            (Self::Exists, _) => &["EXISTS"],
            (Self::Ttl, _) => &["TTL"],
            (Self::Pttl, _) => &["PTTL"],
            (Self::StrLen, _) => &["STRLEN"],
            (Self::HGet, _) => &["HGET"],
            (Self::HMGet, _) => &["HMGET"],
            (Self::HVals, _) => &["HVALS"],
            (Self::HLen, _) => &["HLEN"],
            (Self::HExists, _) => &["HEXISTS"],
            (Self::HStrLen, _) => &["HSTRLEN"],
        };
        let rest: &[&str] = match self {
            Self::Range => &["0", "-1"],
            Self::HGet | Self::HExists | Self::HStrLen => &FIELDS[..1],
            Self::HMGet => &FIELDS,
            _ => &[],
        };
        let words = words.iter().map(|word| word.as_bytes().to_vec());
        let keys = keys.iter().map(|key| key.as_bytes().to_vec());
        let rest = rest.iter().map(|word| word.as_bytes().to_vec());
        words.chain(keys).chain(rest).collect()
    }

    /// What a reply says of the key; none: Redis cannot have answered that.
    pub fn action(self, key: &str, counter: bool, hash: bool, reply: &[u8]) -> Option<Action> {
        let parsed = Reply::parse(reply);
        let version = |name: &str, value: &[u8]| version_in(name, counter, value);
        match (self, parsed) {
            (Self::Whole, Reply::Nil) if !hash => Some(Action::Get(None)),
            (Self::HGet, Reply::Nil) => Some(Action::Get(None)),
            (Self::Range, Reply::Bulk(b"")) => Some(Action::Get(None)),
            (Self::Whole | Self::Range, Reply::Bulk(value)) if !hash => {
                version(key, value).map(|version| Action::Get(Some(version)))
            }
            (Self::HGet, Reply::Bulk(value)) => {
                version_of_field(FIELDS[0], value).map(|version| Action::Get(Some(version)))
            }
            (Self::Whole | Self::HMGet | Self::HVals, Reply::Other(_)) if hash => {
                self.of_many(resp::elements(reply)?)
            }
            (Self::Exists | Self::HExists, Reply::Int(n @ 0..=1)) => Some(Action::Exists(n == 1)),
            (Self::Ttl | Self::Pttl, Reply::Int(n @ -2..=-1)) => Some(Action::Exists(n == -1)),
            (Self::HLen, Reply::Int(0)) => Some(Action::Exists(false)),
            (Self::HLen, Reply::Int(n)) => {
                (n as usize == FIELDS.len()).then_some(Action::Exists(true))
            }
            (Self::StrLen, Reply::Int(n)) => {
                let of = if counter {
                    Measure::Digits
                } else {
                    Measure::Value { name: key.len() }
                };
                Some(Action::Length(of, u64::try_from(n).ok()?))
            }
            (Self::HStrLen, Reply::Int(n)) => {
                Some(Action::Length(Measure::Field, u64::try_from(n).ok()?))
            }
            _ => None,
        }
    }

    /// What the elements of an array say of a hash: all fields of one version, or none.
    fn of_many(self, elements: Vec<&[u8]>) -> Option<Action> {
        let values: Vec<Reply<'_>> = elements.into_iter().map(Reply::parse).collect();
        let values = match self {
            _ if values.is_empty() && self != Self::HMGet => return Some(Action::Get(None)),
            Self::HMGet if values.iter().all(|value| *value == Reply::Nil) => {
                return (values.len() == FIELDS.len()).then_some(Action::Get(None));
            }
            Self::Whole => by_field(&values)?,
            Self::HVals => by_name(&values)?,
            _ => values,
        };
        let mut versions = values.iter().zip(FIELDS).map(|(value, field)| match value {
            Reply::Bulk(value) => version_of_field(field, value),
            _ => None,
        });
        let first = versions.next()??;
        let same = versions.all(|version| version == Some(first));
        (same && values.len() == FIELDS.len()).then_some(Action::Get(Some(first)))
    }
}

/// The values of HGETALL, whose fields must be those that were written. A hash table has an order of its own.
fn by_field<'a>(all: &[Reply<'a>]) -> Option<Vec<Reply<'a>>> {
    let value_of = |name: &str| {
        let mut pairs = all.chunks_exact(2);
        let pair = pairs.find(|pair| pair[0] == Reply::Bulk(name.as_bytes()));
        pair.map(|pair| pair[1].clone())
    };
    let values: Option<_> = FIELDS.into_iter().map(value_of).collect();
    values.filter(|_| all.len() == 2 * FIELDS.len())
}

/// The same of HVALS: a value begins with its field's name.
fn by_name<'a>(all: &[Reply<'a>]) -> Option<Vec<Reply<'a>>> {
    let is_of = |value: &Reply<'_>, name: &str| match value {
        Reply::Bulk(value) => value.starts_with(name.as_bytes()),
        _ => false,
    };
    let value_of = |name| all.iter().find(|value| is_of(value, name)).cloned();
    let values: Option<_> = FIELDS.into_iter().map(value_of).collect();
    values.filter(|_| all.len() == FIELDS.len())
}

/// The version that a value of a register, or a counter, has.
fn version_in(name: &str, counter: bool, value: &[u8]) -> Option<u64> {
    if counter {
        return std::str::from_utf8(value).ok()?.parse().ok();
    }
    version_of(name, value)
}

/// The arguments that write a version to a hash.
pub fn hset(key: &str, version: u64) -> Vec<Vec<u8>> {
    let mut words = vec![b"HSET".to_vec(), key.as_bytes().to_vec()];
    for field in FIELDS {
        words.push(field.as_bytes().to_vec());
        words.push(field_bytes(field, version));
    }
    words
}

/// The arguments that remove all fields of a hash.
pub fn hdel(key: &str) -> Vec<Vec<u8>> {
    let words = ["HDEL", key].into_iter().chain(FIELDS);
    words.map(|word| word.as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(values: &[&[u8]]) -> Vec<u8> {
        resp::command(values)
    }

    #[test]
    fn a_hash_has_one_version_or_is_no_state_of_redis() {
        let (f, g) = (field_bytes("f", 8), field_bytes("g", 8));
        let whole = |values: &[&[u8]]| Form::Whole.action("k", false, true, &array(values));
        assert_eq!(whole(&[b"f", &f, b"g", &g]), Some(Action::Get(Some(8))));
        assert_eq!(whole(&[]), Some(Action::Get(None)));
        assert_eq!(Form::Whole.action("k", false, true, b"$-1\r\n"), None);
        assert_eq!(Form::Whole.action("k", false, false, b"*0\r\n"), None);
        assert_eq!(whole(&[b"g", &g, b"f", &f]), Some(Action::Get(Some(8))));
        assert_eq!(whole(&[b"f", &g, b"g", &f]), None);
        assert_eq!(whole(&[b"f", &f]), None);
        assert_eq!(whole(&[b"f", &f, b"g", &field_bytes("g", 9)]), None);
        for values in [[&f[..], &g], [&g, &f]] {
            let values = Form::HVals.action("k", false, true, &array(&values));
            assert_eq!(values, Some(Action::Get(Some(8))));
        }
        let twice = Form::HVals.action("k", false, true, &array(&[&f, &f]));
        assert_eq!(twice, None);
        let none = Form::HMGet.action("k", false, true, b"*2\r\n$-1\r\n$-1\r\n");
        assert_eq!(none, Some(Action::Get(None)));
        let half = Form::HMGet.action("k", false, true, b"*2\r\n$3\r\nf=1\r\n$-1\r\n");
        assert_eq!(half, None);
        assert_eq!(Form::HLen.action("k", false, true, b":1\r\n"), None);
    }

    #[test]
    fn lengths_and_times_say_what_they_can() {
        let of = Measure::Value { name: 1 };
        let length = Form::StrLen.action("k", false, false, b":5\r\n");
        assert_eq!(length, Some(Action::Length(of, 5)));
        assert_eq!(
            Form::Ttl.action("k", false, false, b":-1\r\n"),
            Some(Action::Exists(true))
        );
        assert_eq!(Form::Ttl.action("k", false, false, b":7\r\n"), None);
        assert_eq!(
            Form::Range.action("k", false, false, b"$0\r\n\r\n"),
            Some(Action::Get(None))
        );
    }
}
