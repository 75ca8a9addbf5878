// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends of keys: the EXPIRE family, TTL family, and the active cycle of the cron.

use crate::client::Argv;
use crate::dispatch::{bytes, lower};
use crate::server::Redis;
use crate::types::{Bytes, Cause, ClientId};

/// `ACTIVE_EXPIRE_CYCLE_KEYS_PER_LOOP`.
const KEYS_PER_LOOP: usize = 20;
/// `ACTIVE_EXPIRE_CYCLE_ACCEPTABLE_STALE`, percent.
const STALE_PERCENT: usize = 10;

#[derive(Clone, Copy, Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

fn parse_conditions(words: &[Bytes]) -> Result<Conditions, String> {
    let mut found = Conditions::default();
    for word in words {
        match lower(word).as_str() {
            "nx" => found.nx = true,
            "xx" => found.xx = true,
            "gt" => found.gt = true,
            "lt" => found.lt = true,
            _ => {
                let text: Vec<u8> = word.iter().copied().take_while(|byte| *byte != 0).collect();
                let text = String::from_utf8_lossy(&text).into_owned();
                return Err(format!("ERR Unsupported option {text}"));
            }
        }
    }
    if found.nx && (found.xx || found.gt || found.lt) {
        let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
        return Err(text.to_owned());
    }
    if found.gt && found.lt {
        return Err("ERR GT and LT options at the same time are not compatible".to_owned());
    }
    Ok(found)
}

impl Conditions {
    fn allow(self, current: Option<i64>, at: i64) -> bool {
        !(self.nx && current.is_some()
            || self.xx && current.is_none()
            || self.gt && current.is_none_or(|current| at <= current)
            || self.lt && current.is_some_and(|current| at >= current))
    }
}

impl Redis {
    /// Whether a key with this end is deleted at once: a replica and a load leave that to others.
    pub(crate) fn is_past(&self, at_ms: i64) -> bool {
        at_ms <= self.now_ms() && !self.loading && !self.replica
    }

    /// Gives an existing key an end, or takes it, and tells everybody.
    pub(crate) fn set_expiry(&mut self, id: ClientId, db: u32, key: &Bytes, at: Option<i64>) {
        if let Some(entry) = self.db(db).get_mut(key) {
            entry.expire_at_ms = at;
        }
        self.log_as(match at {
            Some(at) => vec![bytes("PEXPIREAT"), key.clone(), bytes(&at.to_string())],
            None => vec![bytes("PERSIST"), key.clone()],
        });
        self.dirty += 1;
        self.changed(Some(id), db, key, Cause::Command);
    }

    /// The active cycle: samples keys with an end while many of them are past it.
    pub(crate) fn expire_cycle(&mut self) {
        if self.replica || self.loading || self.is_paused() {
            return;
        }
        let now = self.now_ms();
        for db in 0..self.config.databases {
            let mut volatile: Vec<(Bytes, i64)> = self
                .db(db)
                .iter()
                .filter_map(|(key, entry)| Some((key.clone(), entry.expire_at_ms?)))
                .collect();
            self.random.shuffle(&mut volatile);
            for sample in volatile.chunks(KEYS_PER_LOOP) {
                let mut expired = 0;
                for (key, at) in sample {
                    if *at < now {
                        self.expire_key(db, key);
                        self.end_of_unit();
                        expired += 1;
                    }
                }
                if expired * 100 <= sample.len() * STALE_PERCENT {
                    break;
                }
            }
        }
    }
}

fn expire_generic(redis: &mut Redis, id: ClientId, argv: &Argv, seconds: bool, absolute: bool) {
    let conditions = match parse_conditions(&argv[3..]) {
        Ok(conditions) => conditions,
        Err(text) => return redis.client(id).add_error(&text),
    };
    let Some(number) = redis.integer_or_reply(id, &argv[2]) else {
        return;
    };
    let base = if absolute { 0 } else { redis.now_ms() };
    let at = number
        .checked_mul(if seconds { 1000 } else { 1 })
        .and_then(|ms| ms.checked_add(base));
    let Some(at) = at else {
        return redis.add_expire_error(id);
    };
    let (db, key) = (redis.client(id).db, &argv[1]);
    let Some(current) = redis.look(db, key).map(|entry| entry.expire_at_ms) else {
        return redis.client(id).add_int(0);
    };
    if !conditions.allow(current, at) {
        return redis.client(id).add_int(0);
    }
    if redis.is_past(at) {
        redis.delete(id, db, key);
        redis.dirty += 1;
        redis.log_as(vec![bytes("DEL"), key.clone()]);
    } else {
        redis.set_expiry(id, db, key, Some(at));
    }
    redis.client(id).add_int(1);
}

pub(crate) fn expire(redis: &mut Redis, id: ClientId, argv: &Argv) {
    expire_generic(redis, id, argv, true, false);
}

pub(crate) fn pexpire(redis: &mut Redis, id: ClientId, argv: &Argv) {
    expire_generic(redis, id, argv, false, false);
}

pub(crate) fn expireat(redis: &mut Redis, id: ClientId, argv: &Argv) {
    expire_generic(redis, id, argv, true, true);
}

pub(crate) fn pexpireat(redis: &mut Redis, id: ClientId, argv: &Argv) {
    expire_generic(redis, id, argv, false, true);
}

pub(crate) fn persist(redis: &mut Redis, id: ClientId, argv: &Argv) {
    let (db, key) = (redis.client(id).db, &argv[1]);
    let has_end = redis
        .look(db, key)
        .is_some_and(|entry| entry.expire_at_ms.is_some());
    if has_end {
        redis.set_expiry(id, db, key, None);
    }
    redis.client(id).add_int(i64::from(has_end));
}

fn ttl_generic(redis: &mut Redis, id: ClientId, argv: &Argv, seconds: bool, absolute: bool) {
    let db = redis.client(id).db;
    let Some(end) = redis.look(db, &argv[1]).map(|entry| entry.expire_at_ms) else {
        return redis.client(id).add_int(-2);
    };
    let Some(at) = end else {
        return redis.client(id).add_int(-1);
    };
    let ms = if absolute {
        at
    } else {
        (at - redis.now_ms()).max(0)
    };
    let value = if seconds {
        ms.wrapping_add(500) / 1000
    } else {
        ms
    };
    redis.client(id).add_int(value);
}

pub(crate) fn ttl(redis: &mut Redis, id: ClientId, argv: &Argv) {
    ttl_generic(redis, id, argv, true, false);
}

pub(crate) fn pttl(redis: &mut Redis, id: ClientId, argv: &Argv) {
    ttl_generic(redis, id, argv, false, false);
}

pub(crate) fn expiretime(redis: &mut Redis, id: ClientId, argv: &Argv) {
    ttl_generic(redis, id, argv, true, true);
}

pub(crate) fn pexpiretime(redis: &mut Redis, id: ClientId, argv: &Argv) {
    ttl_generic(redis, id, argv, false, true);
}
