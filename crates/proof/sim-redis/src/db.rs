// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The key space: values, look-up with lazy expiry, and the record of every change.
//!
//! Invariants:
//! 1. Every change of a key is recorded in `changes` at once, with its cause, and touches watchers
//!    and tracking clients as Redis's `signalModifiedKey` does (SWAPDB alone tells nobody).
//! 2. A key with an expiry in the past exists until somebody looks it up or the cron finds it.

use crate::cast::{Signed, Unsigned};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::server::Redis;
use crate::types::{Bytes, Cause, Change, ClientId, Stored};

/// What a key holds.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Str(Bytes),
    List(VecDeque<Bytes>),
    Hash(Vec<(Bytes, Bytes)>),
    Set(BTreeSet<Bytes>),
}

impl Value {
    pub(crate) const fn type_name(&self) -> &'static str {
        match self {
            Self::Str(_) => "string",
            Self::List(_) => "list",
            Self::Hash(_) => "hash",
            Self::Set(_) => "set",
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Str(text) => text.len(),
            Self::List(items) => items.iter().map(|item| item.len() + 16).sum(),
            Self::Hash(pairs) => pairs.iter().map(|(f, v)| f.len() + v.len() + 32).sum(),
            Self::Set(members) => members.iter().map(|member| member.len() + 32).sum(),
        }
    }
}

/// A key's content and end.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    pub(crate) expire_at_ms: Option<i64>,
    /// When it was last looked at, and how often.
    pub(crate) used_ns: u64,
    pub(crate) uses: u32,
}

impl Entry {
    /// What a policy that is not random compares: the least is evicted first. Redis takes the least
    /// of a sample, this model the least of all.
    fn worth(&self, policy: &str) -> u64 {
        match policy {
            "volatile-ttl" => self.expire_at_ms.map_or(u64::MAX, Unsigned::unsigned),
            "allkeys-lfu" | "volatile-lfu" => self.uses.into(),
            _ => self.used_ns,
        }
    }
}

/// One database.
pub(crate) type Db = BTreeMap<Bytes, Entry>;

/// Bytes that a key costs beside its own and its value's, roughly as in Redis with jemalloc.
pub(crate) const KEY_OVERHEAD_BYTES: usize = 72;
/// What an empty server uses (`used_memory_startup`).
const STARTUP_BYTES: usize = 876_232;

impl Redis {
    pub(crate) fn now_ms(&self) -> i64 {
        (self.now_ns / 1_000_000).signed()
    }

    pub(crate) fn db(&mut self, index: u32) -> &mut Db {
        &mut self.dbs[index as usize]
    }

    /// Looks a key up; a key past its end is deleted first, on a replica only hidden, and not from its
    /// master.
    pub(crate) fn look(&mut self, db: u32, key: &Bytes) -> Option<&Entry> {
        if !self.field_ends.is_empty() {
            self.expire_fields(db, key);
        }
        let expire = self.dbs[db as usize].get(key)?.expire_at_ms;
        let by_master = self.executing.is_some_and(|id| self.obeys(id));
        if expire.is_some_and(|at| at < self.now_ms()) && !self.loading && !by_master {
            if !self.replica && !self.is_paused() {
                self.expire_key(db, key);
            }
            return None;
        }
        let now_ns = self.now_ns;
        let entry = self.db(db).get_mut(key)?;
        entry.used_ns = now_ns;
        entry.uses = entry.uses.saturating_add(1);
        Some(entry)
    }

    /// As [`Redis::look`], for reading: hits and misses are counted.
    pub(crate) fn look_read(&mut self, db: u32, key: &Bytes) -> Option<&Entry> {
        let found = self.look(db, key).is_some();
        if found {
            self.stats.hits += 1;
        } else {
            self.stats.misses += 1;
        }
        self.dbs[db as usize].get(key).filter(|_| found)
    }

    pub(crate) fn expire_key(&mut self, db: u32, key: &Bytes) {
        self.db(db).remove(key);
        self.stats.expired += 1;
        self.log_other(db, vec![Bytes::from(&b"DEL"[..]), key.clone()]);
        self.changed(None, db, key, Cause::Expired);
    }

    /// Sets a key's value; keeps its end only if told to.
    pub(crate) fn store(&mut self, db: u32, key: &Bytes, value: Value, keep_ttl: bool) {
        let old = self.db(db).get(key);
        let entry = Entry {
            value,
            expire_at_ms: old
                .and_then(|entry| entry.expire_at_ms)
                .filter(|_| keep_ttl),
            used_ns: self.now_ns,
            uses: 1,
        };
        self.db(db).insert(key.clone(), entry);
    }

    /// Deletes for a command; true if it was there.
    pub(crate) fn delete(&mut self, by: ClientId, db: u32, key: &Bytes) -> bool {
        let there = self.db(db).remove(key).is_some();
        if there {
            self.changed(Some(by), db, key, Cause::Command);
        }
        there
    }

    /// `signalModifiedKey`, and the record for the checkers.
    pub(crate) fn changed(&mut self, by: Option<ClientId>, db: u32, key: &Bytes, cause: Cause) {
        self.record(db, key, cause);
        self.touch_watchers(db, key);
        self.track_change(by, key);
    }

    /// Records what a key holds now.
    pub(crate) fn record(&mut self, db: u32, key: &Bytes, cause: Cause) {
        let change = self.snapshot(db, key, cause);
        self.changes.push(change);
    }

    fn snapshot(&self, db: u32, key: &Bytes, cause: Cause) -> Change {
        let entry = self.dbs[db as usize].get(key);
        Change {
            db,
            key: key.clone(),
            value: entry.map_or(Stored::Gone, |entry| match &entry.value {
                Value::Str(text) => Stored::String(text.clone()),
                Value::Hash(pairs) => Stored::Hash(pairs.as_slice().into()),
                other => Stored::Other(other.type_name()),
            }),
            expire_at_ms: entry
                .and_then(|entry| entry.expire_at_ms)
                .map(Unsigned::unsigned),
            cause,
        }
    }

    /// Every key as it is now, expired ones that nobody has noticed included (cause: Loaded).
    #[must_use]
    pub fn contents(&self) -> Vec<Change> {
        (0..self.config.databases)
            .flat_map(|db| {
                self.dbs[db as usize]
                    .keys()
                    .map(move |key| self.snapshot(db, key, Cause::Loaded))
            })
            .collect()
    }

    /// Empties databases: all, or one. Watchers and tracking clients are told before.
    pub(crate) fn flush(&mut self, only: Option<u32>) -> usize {
        let range = only.map_or(0..self.config.databases, |db| db..db + 1);
        for db in range.clone() {
            self.touch_watchers_of_db(db, None);
        }
        self.track_flush();
        let mut removed = 0;
        for db in range {
            let keys: Vec<Bytes> = std::mem::take(self.db(db)).into_keys().collect();
            removed += keys.len();
            for key in keys {
                self.record(db, &key, Cause::Flush);
            }
        }
        removed
    }

    /// `used_memory`, by rule of thumb.
    pub(crate) fn used_memory(&self) -> usize {
        let keys: usize = self
            .dbs
            .iter()
            .flat_map(BTreeMap::iter)
            .map(|(key, entry)| key.len() + entry.value.bytes() + KEY_OVERHEAD_BYTES)
            .sum();
        STARTUP_BYTES + keys
    }

    /// Evicts until memory suffices; false if that cannot be.
    pub(crate) fn make_room(&mut self) -> bool {
        if self.config.maxmemory == 0 {
            return true;
        }
        let limit = usize::try_from(self.config.maxmemory).unwrap_or(usize::MAX);
        while self.used_memory() > limit {
            if !self.evict_one() {
                return false;
            }
        }
        true
    }

    fn evict_one(&mut self) -> bool {
        let policy = self.config.maxmemory_policy.as_str();
        if policy == "noeviction" || self.replica {
            return false;
        }
        let volatile_only = policy.starts_with("volatile");
        let mut found: Vec<(u32, Bytes, u64)> = (0_u32..)
            .zip(&self.dbs)
            .flat_map(|(db, keys)| keys.iter().map(move |(key, entry)| (db, key, entry)))
            .filter(|(_, _, entry)| !volatile_only || entry.expire_at_ms.is_some())
            .map(|(db, key, entry)| (db, key.clone(), entry.worth(policy)))
            .collect();
        if found.is_empty() {
            return false;
        }
        let at = if policy.ends_with("-random") {
            self.random.usize(0..found.len())
        } else {
            (0..found.len()).min_by_key(|at| found[*at].2).unwrap_or(0)
        };
        let (db, key, _) = found.swap_remove(at);
        self.db(db).remove(&key);
        self.stats.evicted += 1;
        self.log_other(db, vec![Bytes::from(&b"DEL"[..]), key.clone()]);
        self.changed(None, db, &key, Cause::Evicted);
        true
    }
}
