// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists, hashes and sets: as much as is needed for WRONGTYPE, and writes that change no string.

use std::collections::{BTreeSet, VecDeque};

use crate::client::Argv;
use crate::db::Value;
use crate::dispatch::{bytes, lower};
use crate::resp::parse_i64;
use crate::server::Redis;
use crate::strings::WRONGTYPE;
use crate::types::{Bytes, Cause, ClientId};

/// Looks up a value of one type; None: the error is answered.
macro_rules! typed {
    ($name:ident, $variant:ident, $type:ty) => {
        pub(crate) fn $name(
            redis: &mut Redis,
            id: ClientId,
            key: &Bytes,
            read: bool,
        ) -> Option<Option<$type>> {
            let db = redis.client(id).db;
            let found = if read {
                redis.look_read(db, key)
            } else {
                redis.look(db, key)
            };
            match found.map(|entry| &entry.value) {
                None => Some(None),
                Some(Value::$variant(value)) => Some(Some(value.clone())),
                Some(_) => {
                    redis.client(id).add_error(WRONGTYPE);
                    None
                }
            }
        }
    };
}
typed!(list, List, VecDeque<Bytes>);
typed!(hash, Hash, Vec<(Bytes, Bytes)>);
typed!(set, Set, BTreeSet<Bytes>);

impl Redis {
    /// Stores a collection, or deletes it when it is empty, and tells everybody.
    pub(crate) fn put(&mut self, id: Option<ClientId>, db: u32, key: &Bytes, value: Value) {
        let is_empty = match &value {
            Value::Str(_) => false,
            Value::List(items) => items.is_empty(),
            Value::Hash(pairs) => pairs.is_empty(),
            Value::Set(members) => members.is_empty(),
        };
        if is_empty {
            self.db(db).remove(key);
        } else {
            self.store(db, key, value, true);
        }
        self.changed(id, db, key, Cause::Command);
    }
}

fn push(redis: &mut Redis, id: ClientId, argv: &Argv, front: bool) {
    let Some(found) = list(redis, id, &argv[1], false) else {
        return;
    };
    let mut items = found.unwrap_or_default();
    for item in &argv[2..] {
        if front {
            items.push_front(item.clone());
        } else {
            items.push_back(item.clone());
        }
        redis.dirty += 1;
    }
    redis.client(id).add_count(items.len());
    let db = redis.client(id).db;
    redis.put(Some(id), db, &argv[1], Value::List(items));
    redis.list_grew(db, &argv[1]);
}

pub(crate) fn lpush(redis: &mut Redis, id: ClientId, argv: &Argv) {
    push(redis, id, argv, true);
}

pub(crate) fn rpush(redis: &mut Redis, id: ClientId, argv: &Argv) {
    push(redis, id, argv, false);
}

fn pop(redis: &mut Redis, id: ClientId, argv: &Argv, front: bool) {
    if argv.len() > 3 {
        return redis.add_arity_error(id);
    }
    let mut count = None;
    if let Some(text) = argv.get(2) {
        match parse_i64(text).and_then(|number| usize::try_from(number).ok()) {
            Some(number) => count = Some(number),
            None => {
                let text = "ERR value is out of range, must be positive";
                return redis.client(id).add_error(text);
            }
        }
    }
    let Some(found) = list(redis, id, &argv[1], false) else {
        return;
    };
    let Some(mut items) = found else {
        return match count {
            Some(_) => redis.client(id).add_null_array(),
            None => redis.client(id).add_null(),
        };
    };
    let taken: Vec<Bytes> = (0..count.unwrap_or(1))
        .map_while(|_| {
            if front {
                items.pop_front()
            } else {
                items.pop_back()
            }
        })
        .collect();
    if count.is_some() {
        redis.client(id).add_array(taken.len());
    }
    for item in &taken {
        redis.client(id).add_bulk(item);
    }
    if !taken.is_empty() {
        let db = redis.client(id).db;
        redis.dirty += 1;
        redis.put(Some(id), db, &argv[1], Value::List(items));
    }
}

pub(crate) fn lpop(redis: &mut Redis, id: ClientId, argv: &Argv) {
    pop(redis, id, argv, true);
}

pub(crate) fn rpop(redis: &mut Redis, id: ClientId, argv: &Argv) {
    pop(redis, id, argv, false);
}

pub(crate) fn lrange(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(start) = redis.integer_or_reply(id, &argv[2]) else {
        return;
    };
    let Some(end) = redis.integer_or_reply(id, &argv[3]) else {
        return;
    };
    let Some(found) = list(redis, id, &argv[1], true) else {
        return;
    };
    let items = found.unwrap_or_default();
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let from_end = |at: i64| {
        if at < 0 {
            at.saturating_add(length)
        } else {
            at
        }
    };
    let (start, end) = (from_end(start).max(0), from_end(end).min(length - 1));
    let range = match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if start <= end => start..end + 1,
        _ => 0..0,
    };
    redis.client(id).add_array(range.len());
    for item in items.range(range) {
        redis.client(id).add_bulk(item);
    }
}

pub(crate) fn llen(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if let Some(found) = list(redis, id, &argv[1], true) {
        redis
            .client(id)
            .add_count(found.map_or(0, |items| items.len()));
    }
}

pub(crate) fn hset(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if argv.len() % 2 == 1 {
        return redis.add_arity_error(id);
    }
    let Some(found) = hash(redis, id, &argv[1], false) else {
        return;
    };
    let mut pairs = found.unwrap_or_default();
    let mut created = 0;
    for pair in argv[2..].chunks_exact(2) {
        match pairs.iter_mut().find(|(field, _)| *field == pair[0]) {
            Some((_, value)) => *value = pair[1].clone(),
            None => {
                pairs.push((pair[0].clone(), pair[1].clone()));
                created += 1;
            }
        }
        redis.dirty += 1;
    }
    redis.client(id).add_int(created);
    let db = redis.client(id).db;
    redis.put(Some(id), db, &argv[1], Value::Hash(pairs));
}

pub(crate) fn hget(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(found) = hash(redis, id, &argv[1], true) else {
        return;
    };
    let value = found
        .unwrap_or_default()
        .into_iter()
        .find_map(|(field, value)| (field == argv[2]).then_some(value));
    match value {
        Some(value) => redis.client(id).add_bulk(&value),
        None => redis.client(id).add_null(),
    }
}

pub(crate) fn hgetall(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(found) = hash(redis, id, &argv[1], true) else {
        return;
    };
    let pairs = found.unwrap_or_default();
    redis.client(id).add_map(pairs.len());
    for (field, value) in pairs {
        redis.client(id).add_bulk(&field);
        redis.client(id).add_bulk(&value);
    }
}

fn find_field(pairs: &[(Bytes, Bytes)], wanted: &Bytes) -> Option<Bytes> {
    let found = pairs.iter().find(|(field, _)| field == wanted);
    found.map(|(_, value)| value.clone())
}

pub(crate) fn hmget(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(found) = hash(redis, id, &argv[1], true) else {
        return;
    };
    let pairs = found.unwrap_or_default();
    redis.client(id).add_array(argv.len() - 2);
    for field in &argv[2..] {
        match find_field(&pairs, field) {
            Some(value) => redis.client(id).add_bulk(&value),
            None => redis.client(id).add_null(),
        }
    }
}

pub(crate) fn hexists(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if let Some(found) = hash(redis, id, &argv[1], true) {
        let value = find_field(&found.unwrap_or_default(), &argv[2]);
        redis.client(id).add_int(i64::from(value.is_some()));
    }
}

pub(crate) fn hstrlen(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if let Some(found) = hash(redis, id, &argv[1], true) {
        let value = find_field(&found.unwrap_or_default(), &argv[2]);
        let length = value.map_or(0, |value| value.len());
        redis.client(id).add_count(length);
    }
}

fn halves(redis: &mut Redis, id: ClientId, argv: &Argv, half: fn((Bytes, Bytes)) -> Bytes) {
    let Some(found) = hash(redis, id, &argv[1], true) else {
        return;
    };
    let pairs = found.unwrap_or_default();
    redis.client(id).add_array(pairs.len());
    for pair in pairs {
        redis.client(id).add_bulk(&half(pair));
    }
}

pub(crate) fn hkeys(redis: &mut Redis, id: ClientId, argv: &Argv) {
    halves(redis, id, argv, |(field, _)| field);
}

pub(crate) fn hvals(redis: &mut Redis, id: ClientId, argv: &Argv) {
    halves(redis, id, argv, |(_, value)| value);
}

/// Whether a hash is a listpack, with the usual limits.
fn is_listpack(pairs: &[(Bytes, Bytes)]) -> bool {
    let small = |pair: &(Bytes, Bytes)| pair.0.len() <= 64 && pair.1.len() <= 64;
    pairs.len() <= 128 && pairs.iter().all(small)
}

/// HRANDFIELD key [count [WITHVALUES]]: all fields, in their order, if there are no more than `count`; else
/// the first ones, as good as any.
pub(crate) fn hrandfield(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let count = argv.get(2).map(|count| parse_i64(count));
    if count == Some(None) {
        return redis.client(id).add_error(crate::strings::NOT_INTEGER);
    }
    let with_values = argv.len() == 4 && lower(&argv[3]) == "withvalues";
    if argv.len() > 3 && !with_values {
        return redis.client(id).add_error(crate::strings::SYNTAX);
    }
    let Some(found) = hash(redis, id, &argv[1], true) else {
        return;
    };
    let pairs = found.unwrap_or_default();
    let client = redis.client(id);
    let Some(count) = count.flatten() else {
        return match pairs.first() {
            Some((field, _)) => client.add_bulk(field),
            None => client.add_null(),
        };
    };
    let taken = pairs.len().min(usize::try_from(count).unwrap_or(0));
    let nested = with_values && client.resp == 3;
    let flat = with_values && !nested;
    client.add_array(taken * if flat { 2 } else { 1 });
    for (field, value) in &pairs[..taken] {
        if nested {
            client.add_array(2);
        }
        client.add_bulk(field);
        if with_values {
            client.add_bulk(value);
        }
    }
}

/// `OBJECT ENCODING`, of hashes as with the usual limits; of others one that they may have.
pub(crate) fn object_encoding(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let db = redis.client(id).db;
    let has_ends = redis.has_field_ends(db, &argv[2]);
    let encoding: &[u8] = match redis.look(db, &argv[2]).map(|entry| &entry.value) {
        None => return redis.client(id).add_null(),
        Some(Value::Hash(pairs)) if is_listpack(pairs) && !has_ends => b"listpack",
        Some(Value::Hash(_) | Value::Set(_)) => b"hashtable",
        Some(Value::List(_)) => b"quicklist",
        Some(Value::Str(_)) => b"raw",
    };
    redis.client(id).add_bulk(encoding);
}

pub(crate) fn hlen(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if let Some(found) = hash(redis, id, &argv[1], true) {
        redis
            .client(id)
            .add_count(found.map_or(0, |pairs| pairs.len()));
    }
}

pub(crate) fn hdel(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(found) = hash(redis, id, &argv[1], false) else {
        return;
    };
    let mut pairs = found.unwrap_or_default();
    let before = pairs.len();
    pairs.retain(|(field, _)| !argv[2..].contains(field));
    let deleted = before - pairs.len();
    if deleted > 0 {
        let db = redis.client(id).db;
        redis.dirty += deleted as u64;
        redis.put(Some(id), db, &argv[1], Value::Hash(pairs));
    }
    redis.client(id).add_count(deleted);
}

pub(crate) fn hincrby(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(by) = redis.integer_or_reply(id, &argv[3]) else {
        return;
    };
    let Some(found) = hash(redis, id, &argv[1], false) else {
        return;
    };
    let mut pairs = found.unwrap_or_default();
    let at = pairs.iter().position(|(field, _)| *field == argv[2]);
    let Some(old) = at.map_or(Some(0), |at| parse_i64(&pairs[at].1)) else {
        return redis
            .client(id)
            .add_error("ERR hash value is not an integer");
    };
    let Some(new) = old.checked_add(by) else {
        let text = "ERR increment or decrement would overflow";
        return redis.client(id).add_error(text);
    };
    let value = bytes(&new.to_string());
    match at {
        Some(at) => pairs[at].1 = value,
        None => pairs.push((argv[2].clone(), value)),
    }
    redis.client(id).add_int(new);
    let db = redis.client(id).db;
    redis.dirty += 1;
    redis.put(Some(id), db, &argv[1], Value::Hash(pairs));
}

pub(crate) fn sadd(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(found) = set(redis, id, &argv[1], false) else {
        return;
    };
    let mut members = found.unwrap_or_default();
    let added = argv[2..]
        .iter()
        .filter(|member| members.insert((*member).clone()))
        .count();
    if added > 0 {
        let db = redis.client(id).db;
        redis.put(Some(id), db, &argv[1], Value::Set(members));
        redis.dirty += added as u64;
    }
    redis.client(id).add_count(added);
}

pub(crate) fn srem(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(found) = set(redis, id, &argv[1], false) else {
        return;
    };
    let mut members = found.unwrap_or_default();
    let removed = argv[2..]
        .iter()
        .filter(|member| members.remove(*member))
        .count();
    if removed > 0 {
        let db = redis.client(id).db;
        redis.put(Some(id), db, &argv[1], Value::Set(members));
        redis.dirty += removed as u64;
    }
    redis.client(id).add_count(removed);
}

/// Members: numbers in their order, as a set of integers has them; Redis's order of others is that
/// of a hash table.
pub(crate) fn smembers(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(found) = set(redis, id, &argv[1], true) else {
        return;
    };
    let mut members: Vec<Bytes> = found.unwrap_or_default().into_iter().collect();
    members.sort_by_key(|member| parse_i64(member));
    redis.client(id).add_set(members.len());
    for member in members {
        redis.client(id).add_bulk(&member);
    }
}

pub(crate) fn scard(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if let Some(found) = set(redis, id, &argv[1], true) {
        redis
            .client(id)
            .add_count(found.map_or(0, |members| members.len()));
    }
}

pub(crate) fn sismember(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if let Some(found) = set(redis, id, &argv[1], true) {
        let there = found.is_some_and(|members| members.contains(&argv[2]));
        redis.client(id).add_int(i64::from(there));
    }
}
