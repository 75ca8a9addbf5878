// SPDX-License-Identifier: Apache-2.0 OR MIT
//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.

use crate::cast::Signed;
use crate::client::{Argv, Watched};
use crate::dispatch::find_command;
use crate::server::Redis;
use crate::types::{Bytes, ClientId};

impl Redis {
    /// A key has changed: transactions that watch it fail.
    pub(crate) fn touch_watchers(&mut self, db: u32, key: &Bytes) {
        if self.watchers == 0 {
            return;
        }
        let exists = self.db(db).contains_key(key);
        for client in self.clients.values_mut() {
            let found = client
                .watched
                .iter_mut()
                .find(|one| one.db == db && one.key == *key);
            let Some(watched) = found else { continue };
            if watched.expired && !exists {
                watched.expired = false;
                continue;
            }
            client.dirty_cas = true;
        }
    }

    /// All keys of a database go, perhaps replaced by those of another.
    pub(crate) fn touch_watchers_of_db(&mut self, db: u32, replaced_with: Option<u32>) {
        let dbs = &self.dbs;
        let now_ms = (self.now_ns / 1_000_000).signed();
        let has = |db: u32, key: &Bytes| dbs[db as usize].get(key);
        for client in self.clients.values_mut() {
            for watched in client.watched.iter_mut().filter(|one| one.db == db) {
                let new = replaced_with.and_then(|other| has(other, &watched.key));
                if has(db, &watched.key).is_none() && new.is_none() {
                    continue;
                }
                if watched.expired {
                    let Some(entry) = new else {
                        watched.expired = false;
                        continue;
                    };
                    if entry.expire_at_ms.is_some_and(|at| at < now_ms) {
                        continue;
                    }
                }
                client.dirty_cas = true;
            }
        }
    }
}

pub(crate) fn discard_transaction(redis: &mut Redis, id: ClientId) {
    let client = redis.client(id);
    client.multi = None;
    client.dirty_exec = false;
    client.dirty_cas = false;
    unwatch_all(redis, id);
}

pub(crate) fn unwatch_all(redis: &mut Redis, id: ClientId) {
    let count = redis.client(id).watched.drain(..).count();
    redis.watchers -= count;
}

pub(crate) fn multi(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    let client = redis.client(id);
    if client.multi.is_some() {
        return client.add_error("ERR MULTI calls can not be nested");
    }
    client.multi = Some(Vec::new());
    client.add_ok();
}

pub(crate) fn discard(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    if redis.client(id).multi.is_none() {
        return redis.client(id).add_error("ERR DISCARD without MULTI");
    }
    discard_transaction(redis, id);
    redis.client(id).add_ok();
}

pub(crate) fn exec(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    if redis.client(id).multi.is_none() {
        return redis.client(id).add_error("ERR EXEC without MULTI");
    }
    let watched = redis.client(id).watched.clone();
    let now_ms = redis.now_ms();
    let expired = watched.iter().filter(|one| !one.expired).any(|one| {
        let entry = redis.db(one.db).get(&one.key);
        entry.is_some_and(|entry| entry.expire_at_ms.is_some_and(|at| at < now_ms))
    });
    let client = redis.client(id);
    client.dirty_cas |= expired;
    if client.dirty_exec {
        client.add_error("EXECABORT Transaction discarded because of previous errors.");
        return discard_transaction(redis, id);
    }
    if client.dirty_cas {
        client.add_null_array();
        return discard_transaction(redis, id);
    }
    unwatch_all(redis, id);
    let client = redis.client(id);
    let queue = client.multi.take().unwrap_or_default();
    client.in_exec = true;
    client.add_array(queue.len());
    for argv in &queue {
        if let Some(command) = find_command(argv) {
            redis.call(id, command, argv);
        }
    }
    let client = redis.client(id);
    client.in_exec = false;
    client.dirty_cas = false;
}

pub(crate) fn watch(redis: &mut Redis, id: ClientId, argv: &Argv) {
    if redis.client(id).multi.is_some() {
        return redis
            .client(id)
            .add_error("ERR WATCH inside MULTI is not allowed");
    }
    let db = redis.client(id).db;
    let now_ms = redis.now_ms();
    for key in &argv[1..] {
        // Redis 7.0.15 adds no more once the transaction is bound to fail.
        let known = |one: &Watched| one.db == db && one.key == *key;
        if redis.client(id).dirty_cas || redis.client(id).watched.iter().any(known) {
            continue;
        }
        let entry = redis.db(db).get(key);
        let expired = entry.is_some_and(|entry| entry.expire_at_ms.is_some_and(|at| at < now_ms));
        redis.client(id).watched.push(Watched {
            db,
            key: key.clone(),
            expired,
        });
        redis.watchers += 1;
    }
    redis.client(id).add_ok();
}

pub(crate) fn unwatch(redis: &mut Redis, id: ClientId, _argv: &Argv) {
    unwatch_all(redis, id);
    redis.client(id).dirty_cas = false;
    redis.client(id).add_ok();
}
