// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands on strings (Redis's `t_string.c` and the two bit commands that change single keys).

use crate::cast::Signed;
use crate::client::Argv;
use crate::db::Value;
use crate::dispatch::{bytes, lower};
use crate::ldouble::LongDouble;
use crate::resp::parse_i64;
use crate::server::Redis;
use crate::types::{Bytes, Cause, ClientId};

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const WRONGTYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";
const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
const BIT_OFFSET: &str = "ERR bit offset is not an integer or out of range";
const BIT_VALUE: &str = "ERR bit is not an integer or out of range";
/// `proto-max-bulk-len`.
const STRING_BYTES_MAX: i64 = 512 * 1024 * 1024;

/// How an expiry was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpiryUnit {
    pub(crate) seconds: bool,
    pub(crate) absolute: bool,
}

/// Options of SET and GETEX.
#[derive(Default)]
struct SetOptions {
    nx: bool,
    xx: bool,
    get: bool,
    keep_ttl: bool,
    persist: bool,
    expiry: Option<(ExpiryUnit, Bytes)>,
}

fn parse_options(words: &[Bytes], is_set: bool) -> Option<SetOptions> {
    let mut options = SetOptions::default();
    let mut at = 0;
    while at < words.len() {
        let other_unit = |unit: ExpiryUnit| {
            options
                .expiry
                .as_ref()
                .is_some_and(|(found, _)| *found != unit)
        };
        let unit = |seconds, absolute| ExpiryUnit { seconds, absolute };
        let word = lower(&words[at]);
        let expiry = match word.as_str() {
            "ex" => Some(unit(true, false)),
            "px" => Some(unit(false, false)),
            "exat" => Some(unit(true, true)),
            "pxat" => Some(unit(false, true)),
            _ => None,
        };
        match (word.as_str(), expiry) {
            ("nx", _) if is_set && !options.xx => options.nx = true,
            ("xx", _) if is_set && !options.nx => options.xx = true,
            ("get", _) if is_set => options.get = true,
            ("keepttl", _) if is_set && options.expiry.is_none() => options.keep_ttl = true,
            ("persist", _) if !is_set && options.expiry.is_none() => options.persist = true,
            (_, Some(unit))
                if !options.keep_ttl
                    && !options.persist
                    && !other_unit(unit)
                    && at + 1 < words.len() =>
            {
                at += 1;
                options.expiry = Some((unit, words[at].clone()));
            }
            _ => return None,
        }
        at += 1;
    }
    Some(options)
}

impl Redis {
    /// `getExpireMillisecondsOrReply`.
    fn expiry_or_reply(&mut self, id: ClientId, unit: ExpiryUnit, text: &[u8]) -> Option<i64> {
        let Some(number) = parse_i64(text) else {
            self.client(id).add_error(NOT_INTEGER);
            return None;
        };
        let at = Some(number)
            .filter(|number| *number > 0)
            .and_then(|number| number.checked_mul(if unit.seconds { 1000 } else { 1 }))
            .and_then(|ms| {
                if unit.absolute {
                    Some(ms)
                } else {
                    ms.checked_add(self.now_ms())
                }
            });
        if at.is_none() {
            self.add_expire_error(id);
        }
        at
    }

    pub(crate) fn add_expire_error(&mut self, id: ClientId) {
        let text = format!("ERR invalid expire time in '{}' command", self.running);
        self.client(id).add_error(&text);
    }

    /// A string's value; the error is answered. Ok(None): no key.
    pub(crate) fn string_or_reply(
        &mut self,
        id: ClientId,
        key: &Bytes,
        read: bool,
    ) -> Result<Option<Bytes>, ()> {
        let db = self.client(id).db;
        let found = if read {
            self.look_read(db, key)
        } else {
            self.look(db, key)
        };
        match found.map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Str(text)) => Ok(Some(text.clone())),
            Some(_) => {
                self.client(id).add_error(WRONGTYPE);
                Err(())
            }
        }
    }

    pub(crate) fn integer_or_reply(&mut self, id: ClientId, text: &[u8]) -> Option<i64> {
        let number = parse_i64(text);
        if number.is_none() {
            self.client(id).add_error(NOT_INTEGER);
        }
        number
    }

    /// Stores a string for a command, keeping the end, and tells everybody.
    fn put_string(&mut self, id: ClientId, key: &Bytes, value: Bytes, keep_ttl: bool) {
        let db = self.client(id).db;
        self.store(db, key, Value::Str(value), keep_ttl);
        self.dirty += 1;
        self.changed(Some(id), db, key, Cause::Command);
    }

    /// Answers a string or null; true: go on.
    fn get_generic(&mut self, id: ClientId, key: &Bytes) -> bool {
        let Ok(found) = self.string_or_reply(id, key, true) else {
            return false;
        };
        match found {
            Some(text) => self.client(id).add_bulk(&text),
            None => self.client(id).add_null(),
        }
        true
    }

    fn set_generic(
        &mut self,
        id: ClientId,
        key: &Bytes,
        value: &Bytes,
        options: &SetOptions,
        replies: Option<(i64, i64)>,
    ) {
        let at = match &options.expiry {
            None => None,
            Some((unit, text)) => match self.expiry_or_reply(id, *unit, text) {
                None => return,
                at => at,
            },
        };
        if options.get && !self.get_generic(id, key) {
            return;
        }
        let db = self.client(id).db;
        let there = self.look(db, key).is_some();
        if (options.nx && there) || (options.xx && !there) {
            if !options.get {
                match replies {
                    Some((no, _)) => self.client(id).add_int(no),
                    None => self.client(id).add_null(),
                }
            }
            return;
        }
        self.store(db, key, Value::Str(value.clone()), options.keep_ttl);
        if let (Some(at), Some(entry)) = (at, self.db(db).get_mut(key)) {
            entry.expire_at_ms = Some(at);
            self.log_as(vec![
                bytes("SET"),
                key.clone(),
                value.clone(),
                bytes("PXAT"),
                bytes(&at.to_string()),
            ]);
        }
        self.dirty += 1;
        self.changed(Some(id), db, key, Cause::Command);
        if !options.get {
            match replies {
                Some((_, yes)) => self.client(id).add_int(yes),
                None => self.client(id).add_ok(),
            }
        }
    }

    fn incr_by(&mut self, id: ClientId, key: &Bytes, by: i64) {
        let Ok(found) = self.string_or_reply(id, key, false) else {
            return;
        };
        let Some(old) = found.map_or(Some(0), |text| parse_i64(&text)) else {
            return self.client(id).add_error(NOT_INTEGER);
        };
        let Some(new) = old.checked_add(by) else {
            let text = "ERR increment or decrement would overflow";
            return self.client(id).add_error(text);
        };
        self.put_string(id, key, bytes(&new.to_string()), true);
        self.client(id).add_int(new);
    }

    fn bit_offset(&mut self, id: ClientId, text: &[u8]) -> Option<usize> {
        let offset = parse_i64(text).filter(|at| *at >= 0 && (at >> 3) < STRING_BYTES_MAX);
        if offset.is_none() {
            self.client(id).add_error(BIT_OFFSET);
        }
        offset.and_then(|at| usize::try_from(at).ok())
    }
}

pub(crate) fn get(redis: &mut Redis, id: ClientId, argv: &Argv) {
    redis.get_generic(id, &argv[1]);
}

pub(crate) fn set(redis: &mut Redis, id: ClientId, argv: &Argv) {
    match parse_options(&argv[3..], true) {
        Some(options) => redis.set_generic(id, &argv[1], &argv[2], &options, None),
        None => redis.client(id).add_error(SYNTAX),
    }
}

pub(crate) fn setnx(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let options = SetOptions {
        nx: true,
        ..SetOptions::default()
    };
    redis.set_generic(id, &argv[1], &argv[2], &options, Some((0, 1)));
}

fn set_with_expiry(redis: &mut Redis, id: ClientId, argv: &Argv, seconds: bool) {
    let unit = ExpiryUnit {
        seconds,
        absolute: false,
    };
    let options = SetOptions {
        expiry: Some((unit, argv[2].clone())),
        ..SetOptions::default()
    };
    redis.set_generic(id, &argv[1], &argv[3], &options, None);
}

pub(crate) fn setex(redis: &mut Redis, id: ClientId, argv: &Argv) {
    set_with_expiry(redis, id, argv, true);
}

pub(crate) fn psetex(redis: &mut Redis, id: ClientId, argv: &Argv) {
    set_with_expiry(redis, id, argv, false);
}

pub(crate) fn getset(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if redis.get_generic(id, &argv[1]) {
        redis.put_string(id, &argv[1], argv[2].clone(), false);
        redis.log_as(vec![bytes("SET"), argv[1].clone(), argv[2].clone()]);
    }
}

pub(crate) fn getdel(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if !redis.get_generic(id, &argv[1]) {
        return;
    }
    let db = redis.client(id).db;
    if redis.look(db, &argv[1]).is_some() && redis.delete(id, db, &argv[1]) {
        redis.log_as(vec![bytes("DEL"), argv[1].clone()]);
        redis.dirty += 1;
    }
}

pub(crate) fn getex(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(options) = parse_options(&argv[2..], false) else {
        return redis.client(id).add_error(SYNTAX);
    };
    let key = &argv[1];
    let text = match redis.string_or_reply(id, key, true) {
        Ok(Some(text)) => text,
        Ok(None) => return redis.client(id).add_null(),
        Err(()) => return,
    };
    let db = redis.client(id).db;
    if let Some((unit, text_of_expiry)) = &options.expiry {
        let Some(at) = redis.expiry_or_reply(id, *unit, text_of_expiry) else {
            return;
        };
        redis.client(id).add_bulk(&text);
        if unit.absolute && redis.is_past(at) {
            redis.delete(id, db, key);
            redis.log_as(vec![bytes("DEL"), key.clone()]);
            redis.dirty += 1;
        } else {
            redis.set_expiry(id, db, key, Some(at));
        }
        return;
    }
    redis.client(id).add_bulk(&text);
    let has_end = redis
        .look(db, key)
        .is_some_and(|entry| entry.expire_at_ms.is_some());
    if options.persist && has_end {
        redis.set_expiry(id, db, key, None);
    }
}

pub(crate) fn mset(redis: &mut Redis, id: ClientId, argv: &Argv) {
    mset_generic(redis, id, argv, false);
}

pub(crate) fn msetnx(redis: &mut Redis, id: ClientId, argv: &Argv) {
    mset_generic(redis, id, argv, true);
}

fn mset_generic(redis: &mut Redis, id: ClientId, argv: &Argv, nx: bool) {
    if argv.len() % 2 == 0 {
        return redis.add_arity_error(id);
    }
    let db = redis.client(id).db;
    if nx
        && argv[1..]
            .chunks_exact(2)
            .any(|pair| redis.look(db, &pair[0]).is_some())
    {
        return redis.client(id).add_int(0);
    }
    for pair in argv[1..].chunks_exact(2) {
        redis.look(db, &pair[0]);
        redis.put_string(id, &pair[0], pair[1].clone(), false);
    }
    if nx {
        redis.client(id).add_int(1);
    } else {
        redis.client(id).add_ok();
    }
}

pub(crate) fn mget(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let db = redis.client(id).db;
    redis.client(id).add_array(argv.len() - 1);
    for key in &argv[1..] {
        let found = match redis.look_read(db, key).map(|entry| &entry.value) {
            Some(Value::Str(text)) => Some(text.clone()),
            _ => None,
        };
        match found {
            Some(text) => redis.client(id).add_bulk(&text),
            None => redis.client(id).add_null(),
        }
    }
}

pub(crate) fn append(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Ok(found) = redis.string_or_reply(id, &argv[1], false) else {
        return;
    };
    let mut value = found.map(|text| text.to_vec()).unwrap_or_default();
    value.extend_from_slice(&argv[2]);
    let length = value.len();
    if i64::try_from(length).is_ok_and(|length| length > STRING_BYTES_MAX) {
        return redis.client(id).add_error(TOO_LONG);
    }
    redis.put_string(id, &argv[1], Bytes::from(value), true);
    redis.client(id).add_count(length);
}

pub(crate) fn setrange(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(offset) = redis.integer_or_reply(id, &argv[2]) else {
        return;
    };
    let Ok(offset) = usize::try_from(offset) else {
        return redis.client(id).add_error("ERR offset is out of range");
    };
    let Ok(found) = redis.string_or_reply(id, &argv[1], false) else {
        return;
    };
    let patch = &argv[3];
    let old = found.as_deref().unwrap_or_default();
    if patch.is_empty() {
        return redis.client(id).add_count(old.len());
    }
    let end = offset.saturating_add(patch.len());
    if end as u64 > STRING_BYTES_MAX.unsigned_abs() {
        return redis.client(id).add_error(TOO_LONG);
    }
    let mut value = old.to_vec();
    value.resize(value.len().max(end), 0);
    value[offset..end].copy_from_slice(patch);
    let length = value.len();
    redis.put_string(id, &argv[1], Bytes::from(value), true);
    redis.client(id).add_count(length);
}

pub(crate) fn getrange(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(start) = redis.integer_or_reply(id, &argv[2]) else {
        return;
    };
    let Some(end) = redis.integer_or_reply(id, &argv[3]) else {
        return;
    };
    let Ok(found) = redis.string_or_reply(id, &argv[1], true) else {
        return;
    };
    let text = found.as_deref().unwrap_or_default();
    let length = text.len().signed();
    let part = if start < 0 && end < 0 && start > end {
        &[][..]
    } else {
        let from_end = |at: i64| {
            if at < 0 {
                at.saturating_add(length).max(0)
            } else {
                at
            }
        };
        let (start, end) = (from_end(start), from_end(end).min(length - 1));
        match (usize::try_from(start), usize::try_from(end)) {
            (Ok(start), Ok(end)) if start <= end => &text[start..=end],
            _ => &[],
        }
    };
    redis.client(id).add_bulk(part);
}

pub(crate) fn strlen(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if let Ok(found) = redis.string_or_reply(id, &argv[1], true) {
        let length = found.map_or(0, |text| text.len());
        redis.client(id).add_count(length);
    }
}

pub(crate) fn incr(redis: &mut Redis, id: ClientId, argv: &Argv) {
    redis.incr_by(id, &argv[1], 1);
}

pub(crate) fn decr(redis: &mut Redis, id: ClientId, argv: &Argv) {
    redis.incr_by(id, &argv[1], -1);
}

pub(crate) fn incrby(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if let Some(by) = redis.integer_or_reply(id, &argv[2]) {
        redis.incr_by(id, &argv[1], by);
    }
}

pub(crate) fn decrby(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(by) = redis.integer_or_reply(id, &argv[2]) else {
        return;
    };
    match by.checked_neg() {
        Some(by) => redis.incr_by(id, &argv[1], by),
        None => redis.client(id).add_error("ERR decrement would overflow"),
    }
}

pub(crate) fn incrbyfloat(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Ok(found) = redis.string_or_reply(id, &argv[1], false) else {
        return;
    };
    let old = LongDouble::parse(found.as_deref().unwrap_or(b"0"));
    let (Some(old), Some(by)) = (old, LongDouble::parse(&argv[2])) else {
        return redis.client(id).add_error("ERR value is not a valid float");
    };
    let Some(text) = old.add(by).and_then(LongDouble::print) else {
        let text = "ERR increment would produce NaN or Infinity";
        return redis.client(id).add_error(text);
    };
    let value = bytes(&text);
    redis.put_string(id, &argv[1], value.clone(), true);
    redis.log_as(vec![bytes("SET"), argv[1].clone(), value, bytes("KEEPTTL")]);
    redis.client(id).add_bulk(text.as_bytes());
}

pub(crate) fn setbit(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(offset) = redis.bit_offset(id, &argv[2]) else {
        return;
    };
    let on = match parse_i64(&argv[3]) {
        Some(0) => false,
        Some(1) => true,
        _ => return redis.client(id).add_error(BIT_VALUE),
    };
    let Ok(found) = redis.string_or_reply(id, &argv[1], false) else {
        return;
    };
    let created = found.is_none();
    let mut value = found.map(|text| text.to_vec()).unwrap_or_default();
    let (byte, mask) = (offset >> 3, 0x80_u8 >> (offset & 7));
    let grown = byte >= value.len();
    value.resize(value.len().max(byte + 1), 0);
    let was = value[byte] & mask != 0;
    if created || grown || was != on {
        value[byte] = if on {
            value[byte] | mask
        } else {
            value[byte] & !mask
        };
        redis.put_string(id, &argv[1], Bytes::from(value), true);
    }
    redis.client(id).add_int(i64::from(was));
}

pub(crate) fn getbit(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(offset) = redis.bit_offset(id, &argv[2]) else {
        return;
    };
    let Ok(found) = redis.string_or_reply(id, &argv[1], true) else {
        return;
    };
    let byte = found
        .as_deref()
        .and_then(|text| text.get(offset >> 3).copied())
        .unwrap_or(0);
    let set = byte & (0x80 >> (offset & 7)) != 0;
    redis.client(id).add_int(i64::from(set));
}
