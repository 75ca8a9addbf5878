// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that wait for a list: BLPOP, BRPOPLPUSH.
//!
//! Invariant: who waits for a list is served in the order of waiting, after the command that made
//! the list, before any other command.

use std::collections::VecDeque;

use crate::cast::Unsigned;
use crate::client::{Argv, Blocked};
use crate::collections::list;
use crate::db::Value;
use crate::dispatch::bytes;
use crate::server::Redis;
use crate::strings::WRONGTYPE;
use crate::types::{Bytes, ClientId};

impl Redis {
    /// A list may have come into being: who waits for it is served after this command.
    pub(crate) fn list_grew(&mut self, db: u32, key: &Bytes) {
        if self.list_at(db, key).is_ok_and(|list| list.is_some()) {
            self.ready_lists.push((db, key.clone()));
        }
    }

    /// A key's list, if there is one; an error: the key is something else.
    fn list_at(&mut self, db: u32, key: &Bytes) -> Result<Option<VecDeque<Bytes>>, ()> {
        match self.look(db, key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::List(items)) => Ok(Some(items.clone())),
            Some(_) => Err(()),
        }
    }

    /// `handleClientsBlockedOnKeys`.
    pub(crate) fn serve_blocked(&mut self) {
        while !self.ready_lists.is_empty() {
            for (db, key) in std::mem::take(&mut self.ready_lists) {
                while let Some((waiter, to)) = self.waiter(db, &key) {
                    let Ok(Some(items)) = self.list_at(db, &key) else {
                        break;
                    };
                    match to {
                        None => self.serve_pop(waiter, db, &key, items),
                        Some(to) => self.serve_move(waiter, db, &key, &to, items),
                    }
                }
            }
            self.end_of_unit();
        }
    }

    /// `serveClientBlockedOnList` of BLPOP.
    fn serve_pop(&mut self, id: ClientId, db: u32, key: &Bytes, mut items: VecDeque<Bytes>) {
        let Some(item) = items.pop_front() else {
            return;
        };
        self.put(Some(id), db, key, Value::List(items));
        self.log_other(db, vec![bytes("LPOP"), key.clone()]);
        self.unblock(id, |client| {
            client.add_array(2);
            client.add_bulk(key);
            client.add_bulk(&item);
        });
    }

    /// The same of BRPOPLPUSH.
    fn serve_move(
        &mut self,
        id: ClientId,
        db: u32,
        key: &Bytes,
        to: &Bytes,
        items: VecDeque<Bytes>,
    ) {
        let moved = self.move_last(id, db, key, to, items);
        self.unblock(id, |client| match moved {
            Some(item) => client.add_bulk(&item),
            None => client.add_error(WRONGTYPE),
        });
    }

    /// `lmoveGenericCommand` from right to left of the list's items. Returns what was moved; none: the
    /// destination is no list.
    fn move_last(
        &mut self,
        id: ClientId,
        db: u32,
        key: &Bytes,
        to: &Bytes,
        mut items: VecDeque<Bytes>,
    ) -> Option<Bytes> {
        let there = self.list_at(db, to).ok()?;
        let item = items.pop_back()?;
        let mut grown = if key == to {
            items.clone()
        } else {
            there.unwrap_or_default()
        };
        grown.push_front(item.clone());
        self.put(Some(id), db, to, Value::List(grown));
        if key != to {
            self.put(Some(id), db, key, Value::List(items));
        }
        self.log_other(db, vec![bytes("RPOPLPUSH"), key.clone(), to.clone()]);
        self.list_grew(db, to);
        Some(item)
    }

    /// The first who waits for the key, and where it is to be moved.
    fn waiter(&self, db: u32, key: &Bytes) -> Option<(ClientId, Option<Bytes>)> {
        self.waiting.iter().find_map(|id| {
            let client = self.clients.get(id)?;
            match &client.blocked {
                Some(Blocked::List {
                    db: its, keys, to, ..
                }) if *its == db && keys.contains(key) => Some((*id, to.clone())),
                _ => None,
            }
        })
    }

    /// Ends the wait with a reply.
    pub(crate) fn unblock(&mut self, id: ClientId, reply: impl FnOnce(&mut crate::client::Client)) {
        self.waiting.retain(|waiting| *waiting != id);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.blocked = None;
        let start = client.out.len();
        reply(client);
        client.command_ends();
        let text = client.out[start..].to_vec();
        self.served.push((id, text));
        self.unblocked.push_back(id);
    }

    /// `blockForKeys`.
    fn wait_for(&mut self, id: ClientId, keys: &[Bytes], to: Option<Bytes>, seconds: f64) {
        let now = self.now_ms().unsigned();
        let client = self.client(id);
        client.blocked = Some(Blocked::List {
            db: client.db,
            keys: keys.to_vec(),
            to,
            until_ms: (seconds > 0.0).then(|| now + (seconds * 1000.0).ceil() as u64),
        });
        self.waiting.push(id);
    }
}

/// `getTimeoutFromObjectOrReply` of the last argument, in seconds; none: the error is answered.
fn timeout(redis: &mut Redis, id: ClientId, argv: &Argv) -> Option<f64> {
    let text = std::str::from_utf8(&argv[argv.len() - 1]).ok();
    let seconds = text.and_then(|text| text.parse::<f64>().ok());
    let Some(seconds) = seconds.filter(|seconds| seconds.is_finite()) else {
        redis
            .client(id)
            .add_error("ERR timeout is not a float or out of range");
        return None;
    };
    if seconds < 0.0 {
        redis.client(id).add_error("ERR timeout is negative");
        return None;
    }
    Some(seconds)
}

pub(crate) fn blpop(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(seconds) = timeout(redis, id, argv) else {
        return;
    };
    let db = redis.client(id).db;
    let keys = &argv[1..argv.len() - 1];
    for key in keys {
        let Some(found) = list(redis, id, key, false) else {
            return;
        };
        if let Some(mut items) = found {
            let item = items.pop_front().unwrap_or_else(|| bytes(""));
            let client = redis.client(id);
            client.add_array(2);
            client.add_bulk(key);
            client.add_bulk(&item);
            redis.put(Some(id), db, key, Value::List(items));
            redis.dirty += 1;
            return redis.log_other(db, vec![bytes("LPOP"), key.clone()]);
        }
    }
    if redis.client(id).in_exec {
        return redis.client(id).add_null_array();
    }
    redis.wait_for(id, keys, None, seconds);
}

/// RPOPLPUSH, and BRPOPLPUSH where it need not wait.
fn move_now(redis: &mut Redis, id: ClientId, argv: &Argv, items: VecDeque<Bytes>) {
    let db = redis.client(id).db;
    match redis.move_last(id, db, &argv[1], &argv[2], items) {
        Some(item) => {
            redis.dirty += 1;
            redis.client(id).add_bulk(&item);
        }
        None => redis.client(id).add_error(WRONGTYPE),
    }
}

pub(crate) fn rpoplpush(redis: &mut Redis, id: ClientId, argv: &Argv) {
    match list(redis, id, &argv[1], false) {
        None => {}
        Some(None) => redis.client(id).add_null(),
        Some(Some(items)) => move_now(redis, id, argv, items),
    }
}

pub(crate) fn brpoplpush(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let Some(seconds) = timeout(redis, id, argv) else {
        return;
    };
    match list(redis, id, &argv[1], false) {
        None => {}
        Some(Some(items)) => move_now(redis, id, argv, items),
        Some(None) if redis.client(id).in_exec => redis.client(id).add_null(),
        Some(None) => redis.wait_for(id, &argv[1..2], Some(argv[2].clone()), seconds),
    }
}
