// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fields of hashes that expire by themselves, as from Redis 7.4 on.
//!
//! Invariants:
//! 1. A field past its end is gone for whoever looks at its key, and nobody is told. (Redis tells of it when
//!    it deletes the field, which is later.)
//! 2. A hash with such a field is a hash table here. (Redis calls a small one `listpackex`.)

use std::collections::BTreeSet;

use crate::client::Argv;
use crate::db::Value;
use crate::dispatch::lower;
use crate::resp::parse_i64;
use crate::server::Redis;
use crate::strings::{NOT_INTEGER, SYNTAX};
use crate::types::{Bytes, Cause, ClientId};

/// HPEXPIRE's answers for a field.
const NO_FIELD: i64 = -2;
const SET: i64 = 1;

impl Redis {
    /// Takes the fields that are past their end out of a hash.
    pub(crate) fn expire_fields(&mut self, db: u32, key: &Bytes) {
        let now = self.now_ms();
        let ends = self.field_ends.iter();
        let past =
            ends.filter(|((of_db, of_key, _), at)| *of_db == db && of_key == key && **at < now);
        let past: Vec<(u32, Bytes, Bytes)> = past.map(|(field, _)| field.clone()).collect();
        for of in &past {
            self.field_ends.remove(of);
            let Some(Value::Hash(pairs)) = self.db(db).get_mut(key).map(|entry| &mut entry.value)
            else {
                continue;
            };
            pairs.retain(|(field, _)| *field != of.2);
            if pairs.is_empty() {
                self.db(db).remove(key);
            }
            self.record(db, key, Cause::Expired);
        }
    }

    /// Hashes of a database that have such fields.
    pub(crate) fn keys_with_field_ends(&self, db: u32) -> usize {
        let fields = self.field_ends.keys();
        let keys: BTreeSet<&Bytes> = fields
            .filter(|(of_db, key, _)| *of_db == db && self.has_field_ends(db, key))
            .map(|(_, key, _)| key)
            .collect();
        keys.len()
    }

    /// Whether a field of this hash has an end.
    pub(crate) fn has_field_ends(&self, db: u32, key: &Bytes) -> bool {
        let Some(Value::Hash(pairs)) = self.dbs[db as usize].get(key).map(|entry| &entry.value)
        else {
            return false;
        };
        let end = |field: &Bytes| self.field_ends.get(&(db, key.clone(), field.clone()));
        pairs.iter().any(|(field, _)| end(field).is_some())
    }
}

/// `HPEXPIRE key ms FIELDS 1 field`, of one field.
pub(crate) fn hpexpire(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let db = redis.client(id).db;
    let is_of_one = lower(&argv[3]) == "fields" && argv.len() == 6 && *argv[4] == b"1"[..];
    if !is_of_one {
        return redis.client(id).add_error(SYNTAX);
    }
    let Some(ms) = parse_i64(&argv[2]).filter(|ms| *ms > 0) else {
        return redis.client(id).add_error(NOT_INTEGER);
    };
    let (key, field) = (&argv[1], &argv[5]);
    let there = match redis.look(db, key).map(|entry| &entry.value) {
        Some(Value::Hash(pairs)) => pairs.iter().any(|pair| pair.0 == *field),
        _ => false,
    };
    if there {
        let at = redis.now_ms().saturating_add(ms);
        redis
            .field_ends
            .insert((db, key.clone(), field.clone()), at);
        redis.dirty += 1;
        redis.changed(Some(id), db, key, Cause::Command);
    }
    let client = redis.client(id);
    client.add_array(1);
    client.add_int(if there { SET } else { NO_FIELD });
}
