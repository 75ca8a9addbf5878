// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands on keys of any type and on whole databases.

use crate::client::Argv;
use crate::db::KEY_OVERHEAD_BYTES;
use crate::dispatch::{glob, lower};
use crate::resp::parse_i64;
use crate::server::Redis;
use crate::strings::SYNTAX;
use crate::types::{Bytes, Cause, ClientId};

const DB_RANGE: &str = "ERR DB index is out of range";
const SAME: &str = "ERR source and destination objects are the same";
const INT_RANGE: &str = "ERR value is out of range, value must between -2147483648 and 2147483647";
const NO_KEY: &str = "ERR no such key";

impl Redis {
    /// An index of a database in 32 bits, or the error is answered.
    pub(crate) fn int_or_reply(&mut self, id: ClientId, text: &[u8], error: &str) -> Option<i32> {
        let wide = parse_i64(text);
        let number = wide.and_then(|number| i32::try_from(number).ok());
        if number.is_none() {
            let beyond = wide.is_some() && error == crate::strings::NOT_INTEGER;
            self.client(id)
                .add_error(if beyond { INT_RANGE } else { error });
        }
        number
    }

    pub(crate) fn db_index(&self, number: i32) -> Option<u32> {
        u32::try_from(number)
            .ok()
            .filter(|db| *db < self.config.databases)
    }
}

pub(crate) fn del(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let db = redis.client(id).db;
    let mut count = 0;
    for key in &argv[1..] {
        redis.look(db, key);
        if redis.delete(id, db, key) {
            redis.dirty += 1;
            count += 1;
        }
    }
    redis.client(id).add_int(count);
}

pub(crate) fn exists(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let db = redis.client(id).db;
    let count = argv[1..]
        .iter()
        .filter(|key| redis.look_read(db, key).is_some())
        .count();
    redis.client(id).add_count(count);
}

pub(crate) fn type_of(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let db = redis.client(id).db;
    let name = redis
        .look(db, &argv[1])
        .map_or("none", |entry| entry.value.type_name());
    redis.client(id).add_status(name);
}

fn rename_generic(redis: &mut Redis, id: ClientId, argv: &Argv, nx: bool) {
    let db = redis.client(id).db;
    let (from, to) = (&argv[1], &argv[2]);
    let Some(entry) = redis.look(db, from).cloned() else {
        return redis.client(id).add_error(NO_KEY);
    };
    let answer = |redis: &mut Redis, done: i64| {
        if nx {
            redis.client(id).add_int(done);
        } else {
            redis.client(id).add_ok();
        }
    };
    if from == to {
        return answer(redis, 0);
    }
    if redis.look(db, to).is_some() && nx {
        return answer(redis, 0);
    }
    redis.db(db).remove(from);
    redis.db(db).insert(to.clone(), entry);
    redis.changed(Some(id), db, from, Cause::Command);
    redis.changed(Some(id), db, to, Cause::Command);
    redis.list_grew(db, to);
    redis.dirty += 1;
    answer(redis, 1);
}

pub(crate) fn rename(redis: &mut Redis, id: ClientId, argv: &Argv) {
    rename_generic(redis, id, argv, false);
}

pub(crate) fn renamenx(redis: &mut Redis, id: ClientId, argv: &Argv) {
    rename_generic(redis, id, argv, true);
}

pub(crate) fn copy(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let source = redis.client(id).db;
    let (mut target, mut replace, mut at) = (source, false, 3);
    while at < argv.len() {
        match lower(&argv[at]).as_str() {
            "replace" => replace = true,
            "db" if at + 1 < argv.len() => {
                let text = crate::strings::NOT_INTEGER;
                let Some(number) = redis.int_or_reply(id, &argv[at + 1], text) else {
                    return;
                };
                let Some(db) = redis.db_index(number) else {
                    return redis.client(id).add_error(DB_RANGE);
                };
                target = db;
                at += 1;
            }
            _ => return redis.client(id).add_error(SYNTAX),
        }
        at += 1;
    }
    let (from, to) = (&argv[1], &argv[2]);
    if source == target && from == to {
        return redis.client(id).add_error(SAME);
    }
    let Some(entry) = redis.look_read(source, from).cloned() else {
        return redis.client(id).add_int(0);
    };
    if redis.look(target, to).is_some() && !replace {
        return redis.client(id).add_int(0);
    }
    redis.db(target).insert(to.clone(), entry);
    redis.changed(Some(id), target, to, Cause::Command);
    redis.list_grew(target, to);
    redis.dirty += 1;
    redis.client(id).add_int(1);
}

pub(crate) fn move_key(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let source = redis.client(id).db;
    let text = crate::strings::NOT_INTEGER;
    let Some(number) = redis.int_or_reply(id, &argv[2], text) else {
        return;
    };
    let Some(target) = redis.db_index(number) else {
        return redis.client(id).add_error(DB_RANGE);
    };
    if source == target {
        return redis.client(id).add_error(SAME);
    }
    let key = &argv[1];
    let Some(entry) = redis.look(source, key).cloned() else {
        return redis.client(id).add_int(0);
    };
    if redis.look(target, key).is_some() {
        return redis.client(id).add_int(0);
    }
    redis.db(source).remove(key);
    redis.db(target).insert(key.clone(), entry);
    redis.changed(Some(id), source, key, Cause::Command);
    redis.changed(Some(id), target, key, Cause::Command);
    redis.list_grew(target, key);
    redis.dirty += 1;
    redis.client(id).add_int(1);
}

/// Names of keys, without those past their end. Redis's order is that of a hash table.
pub(crate) fn keys(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let db = redis.client(id).db;
    let all: Vec<Bytes> = redis.db(db).keys().cloned().collect();
    let found: Vec<Bytes> = all
        .into_iter()
        .filter(|key| glob(&argv[1], key) && redis.look(db, key).is_some())
        .collect();
    redis.client(id).add_array(found.len());
    for key in found {
        redis.client(id).add_bulk(&key);
    }
}

fn flush_flags_are_valid(argv: &Argv) -> bool {
    argv.len() == 1 || (argv.len() == 2 && matches!(lower(&argv[1]).as_str(), "sync" | "async"))
}

pub(crate) fn flushall(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if !flush_flags_are_valid(argv) {
        return redis.client(id).add_error(SYNTAX);
    }
    redis.flush(None);
    redis.dirty += 1;
    redis.client(id).add_ok();
}

pub(crate) fn flushdb(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if !flush_flags_are_valid(argv) {
        return redis.client(id).add_error(SYNTAX);
    }
    let db = redis.client(id).db;
    redis.flush(Some(db));
    redis.dirty += 1;
    redis.client(id).add_ok();
}

pub(crate) fn dbsize(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let db = redis.client(id).db;
    let size = redis.db(db).len();
    redis.client(id).add_count(size);
}

pub(crate) fn swapdb(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(one) = redis.int_or_reply(id, &argv[1], "ERR invalid first DB index") else {
        return;
    };
    let Some(two) = redis.int_or_reply(id, &argv[2], "ERR invalid second DB index") else {
        return;
    };
    let (Some(one), Some(two)) = (redis.db_index(one), redis.db_index(two)) else {
        return redis.client(id).add_error(DB_RANGE);
    };
    redis.dirty += 1;
    redis.client(id).add_ok();
    if one == two {
        return;
    }
    // What ends here would else be logged before the SWAPDB, of the database that it is in behind it.
    for db in [one, two] {
        let names: Vec<Bytes> = redis.db(db).keys().cloned().collect();
        for key in names {
            redis.look(db, &key);
        }
    }
    redis.touch_watchers_of_db(one, Some(two));
    redis.touch_watchers_of_db(two, Some(one));
    redis.dbs.swap(one as usize, two as usize);
    for db in [one, two] {
        let mut names: Vec<Bytes> = redis.db(one).keys().cloned().collect();
        names.extend(redis.db(two).keys().cloned());
        names.sort();
        names.dedup();
        for key in names {
            redis.record(db, &key, Cause::Swap);
            redis.list_grew(db, &key);
        }
    }
}

pub(crate) fn select(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let text = crate::strings::NOT_INTEGER;
    let Some(number) = redis.int_or_reply(id, &argv[1], text) else {
        return;
    };
    match redis.db_index(number) {
        Some(db) => {
            redis.client(id).db = db;
            redis.client(id).add_ok();
        }
        None => redis.client(id).add_error(DB_RANGE),
    }
}

/// `OBJECT`: only what does not depend on encodings.
pub(crate) fn object_refcount(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let db = redis.client(id).db;
    match redis.look(db, &argv[2]).is_some() {
        true => redis.client(id).add_int(1),
        false => redis.client(id).add_null(),
    }
}

/// `MEMORY USAGE key [SAMPLES count]`, by rule of thumb.
pub(crate) fn memory_usage(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let is_known = match &argv[3..] {
        [] => true,
        [word, count] => lower(word) == "samples" && parse_i64(count).is_some(),
        _ => false,
    };
    if !is_known {
        return redis.client(id).add_error(SYNTAX);
    }
    let db = redis.client(id).db;
    let value = redis.look(db, &argv[2]).map(|entry| entry.value.bytes());
    match value {
        Some(bytes) => {
            let count = bytes + argv[2].len() + KEY_OVERHEAD_BYTES;
            redis.client(id).add_count(count);
        }
        None => redis.client(id).add_null(),
    }
}
