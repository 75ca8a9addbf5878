// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store in memory, which completes requests late and in any order.

use std::collections::{BTreeMap, BTreeSet};

use erb_nvme::backend::{
    Answer, Backend, Change, Condition, Damage, Head, Health, Kept, Key, Listed, Log, Mark,
    MarkKind, Operation, Refused, Request, Retention, RollBack, Selector, Target, Ticket, Write,
};
use erb_nvme::layout;
use erb_nvme::status::Filled;
use sha2::{Digest, Sha256};

use crate::dice::Dice;

/// One version of a key.
#[derive(Clone, Debug)]
struct Version {
    head: Head,
    value: Option<Vec<u8>>,
}

/// The store.
#[derive(Debug)]
pub struct Fake {
    keys: BTreeMap<(u32, Vec<u8>), Vec<Version>>,
    clock: u64,
    waiting: Vec<(Ticket, Request)>,
    /// Requests are done in another order than they came.
    pub dice: Option<Dice>,
    /// Nothing is done while it is set.
    pub is_held: bool,
    /// Requests that were done.
    pub done: u64,
    /// What is done to keys, counted.
    pub puts: BTreeMap<Vec<u8>, u32>,
    snapshots: BTreeSet<u64>,
    marks: Vec<Mark>,
    /// Namespace and prefix of each roll back, by its id.
    rolled: BTreeMap<u64, (u32, Vec<u8>)>,
    kept: Kept,
    /// What the log of damage has.
    pub damage: Vec<Damage>,
    pub is_full: bool,
    pub trimmed_below: u64,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            keys: BTreeMap::new(),
            clock: 1000,
            waiting: Vec::new(),
            dice: None,
            is_held: false,
            done: 0,
            puts: BTreeMap::new(),
            snapshots: BTreeSet::new(),
            marks: Vec::new(),
            rolled: BTreeMap::new(),
            kept: Kept {
                retention: Retention {
                    min_age_us: 7,
                    keep_deleted_us: 30,
                    min_count: 1,
                },
                locked_us: 0,
                less: None,
            },
            damage: Vec::new(),
            is_full: false,
            trimmed_below: 0,
        }
    }
}

/// Order of keys in listings: not theirs.
fn place(key: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in key {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash.max(1)
}

impl Fake {
    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The value of a key now.
    pub fn value(&self, namespace: u32, key: &[u8]) -> Option<&[u8]> {
        let versions = self.keys.get(&(namespace, key.to_vec()))?;
        versions.last()?.value.as_deref()
    }

    /// Versions that a key has.
    pub fn versions(&self, namespace: u32, key: &[u8]) -> usize {
        let versions = self.keys.get(&(namespace, key.to_vec()));
        versions.map_or(0, Vec::len)
    }

    fn key(&self, namespace: u32, key: &Key) -> Option<Vec<u8>> {
        match key {
            Key::Plain(key) => Some(key.clone()),
            Key::Digest(digest) => {
                let all = self.keys.keys().filter(|(of, _)| *of == namespace);
                let mut long = all.map(|(_, key)| key).filter(|key| key.len() > 16);
                let found = long.find(|key| Sha256::digest(key)[..16] == digest[..]);
                found.cloned()
            }
        }
    }

    fn find(&self, namespace: u32, key: &Key, at: Selector) -> Result<&Version, Refused> {
        let key = self.key(namespace, key).ok_or(Refused::Absent)?;
        let versions = self.keys.get(&(namespace, key)).ok_or(Refused::Absent)?;
        let found = match at {
            Selector::Head => versions.last(),
            Selector::Version(version) if version < self.trimmed_below => {
                return Err(Refused::Trimmed);
            }
            Selector::Version(version) => versions.iter().find(|it| it.head.version == version),
            Selector::Back(back) => versions.iter().rev().nth(back as usize),
            Selector::AsOf(moment) if moment > self.clock => return Err(Refused::Future),
            Selector::AsOf(moment) => {
                let found = versions.iter().rev().find(|it| it.head.version <= moment);
                return found.ok_or(Refused::Absent);
            }
        };
        found.ok_or(Refused::NoSuchVersion)
    }

    fn check(&self, namespace: u32, write: &Write, must_exist: bool) -> Result<Vec<u8>, Refused> {
        let key = self.key(namespace, &write.key).ok_or(Refused::Absent)?;
        let head = self.keys.get(&(namespace, key.clone()));
        let head = head.and_then(|versions| versions.last());
        let version = head.filter(|it| it.value.is_some());
        let version = version.map_or(0, |it| it.head.version);
        match write.condition {
            Condition::Head(expected) if expected != version => {
                return Err(Refused::Mismatch(version));
            }
            Condition::Present if version == 0 => return Err(Refused::Absent),
            Condition::Absent if version != 0 => return Err(Refused::Present),
            _ => {}
        }
        if must_exist && version == 0 {
            return Err(Refused::Absent);
        }
        if let Change::Restore(from) = write.change {
            self.find(namespace, &Key::Plain(key.clone()), from)?;
        }
        Ok(key)
    }

    fn apply(&mut self, request: &Request, key: Vec<u8>, change: &Change, version: u64) {
        let namespace = request.namespace;
        let (value, source, flags) = match change {
            Change::Put(value) => (Some(value.clone()), version, 0),
            Change::Delete => (None, version, Head::DELETED),
            Change::Restore(from) => {
                let found = self.find(namespace, &Key::Plain(key.clone()), *from);
                let found = found.expect("it was checked").clone();
                (found.value, found.head.source, Head::RESTORED)
            }
        };
        *self.puts.entry(key.clone()).or_default() += 1;
        let head = Head {
            version,
            source,
            bytes: u32::try_from(value.as_ref().map_or(0, Vec::len)).expect("1 MiB at most"),
            flags,
            writer: request.writer,
            expiry_ms: 0,
        };
        let versions = self.keys.entry((namespace, key)).or_default();
        versions.push(Version { head, value });
    }

    fn write(
        &mut self,
        request: &Request,
        writes: &[Write],
        must: bool,
    ) -> Result<Answer, Refused> {
        if self.is_full && !request.may_use_reserve {
            return Err(Refused::Full(Filled::Retained));
        }
        let keys = writes.iter();
        let keys = keys.map(|write| self.check(request.namespace, write, must));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        self.clock += 1;
        let version = self.clock;
        for (write, key) in writes.iter().zip(keys) {
            self.apply(request, key, &write.change, version);
        }
        Ok(Answer::Version(version))
    }

    /// Keys behind a place, in the order of listings.
    fn behind(&self, namespace: u32, from: u64) -> Vec<(u64, &Vec<u8>, &Vec<Version>)> {
        let all = self.keys.iter().filter(|((of, _), _)| *of == namespace);
        let all = all.map(|((_, key), versions)| (place(key), key, versions));
        let mut all: Vec<_> = all.filter(|(place, ..)| *place >= from).collect();
        all.sort_unstable_by_key(|(place, ..)| *place);
        all
    }

    fn list(&self, namespace: u32, from: &[u8], bytes: usize) -> Answer {
        let from = if from.is_empty() { 0 } else { place(from) };
        let (mut keys, mut left) = (Vec::new(), bytes);
        for (_, key, versions) in self.behind(namespace, from) {
            let is_there = versions.last().is_some_and(|it| it.value.is_some());
            if key.len() > 16 || !is_there {
                continue;
            }
            let Some(rest) = left.checked_sub(layout::list_row_bytes(key)) else {
                break;
            };
            left = rest;
            keys.push(key.clone());
        }
        Answer::Keys(keys)
    }

    fn page(
        &self,
        namespace: u32,
        prefix: &[u8],
        cursor: u64,
        moment: Option<u64>,
        (changed_since, has_deleted): (u64, bool),
        bytes: usize,
    ) -> Answer {
        let moment = moment.unwrap_or(self.clock);
        let (mut rows, mut left, mut next) = (Vec::new(), bytes, 0);
        for (place, key, versions) in self.behind(namespace, cursor) {
            let found = versions.iter().rev().find(|it| it.head.version <= moment);
            let found = found.filter(|it| {
                (it.value.is_some() || has_deleted) && it.head.version > changed_since
            });
            let Some(found) = found.filter(|_| key.starts_with(prefix)) else {
                continue;
            };
            let Some(rest) = left.checked_sub(layout::page_row_bytes(key)) else {
                next = place;
                break;
            };
            left = rest;
            rows.push(Listed {
                key: key.clone(),
                version: found.head.version,
                bytes: found.head.bytes,
                flags: found.head.flags as u16,
            });
        }
        Answer::Page {
            rows,
            cursor: next,
            cut: moment,
        }
    }

    fn roll_back(&mut self, namespace: u32, roll_back: &RollBack) -> Result<Answer, Refused> {
        let mut prefix = roll_back.prefix.clone();
        let target = match roll_back.target {
            Target::Moment(moment) if moment >= self.clock => return Err(Refused::Future),
            Target::Undo(id) => match self.rolled.get(&id) {
                Some((of, found)) if *of == namespace => {
                    prefix = found.clone();
                    Target::Moment(id - 1)
                }
                _ => return Err(Refused::NoSuchVersion),
            },
            target => target,
        };
        let id = self.clock + 1;
        let mut changed = Vec::new();
        for ((of, key), versions) in &self.keys {
            let head = versions.last().expect("a key has a version");
            let is_spared = roll_back.unless_written_since;
            let is_spared = is_spared.is_some_and(|moment| head.head.version > moment);
            if *of != namespace || !key.starts_with(&prefix) || is_spared {
                continue;
            }
            let mut back = versions.iter().rev();
            let found = match target {
                Target::Moment(moment) => back.find(|it| it.head.version <= moment),
                Target::Back(number) => back.nth(number as usize),
                Target::Undo(_) => unreachable!("it has become a moment"),
            };
            let value = found.and_then(|it| it.value.clone());
            if value == head.value {
                continue;
            }
            let flags = Head::ROLLED_BACK | if value.is_none() { Head::DELETED } else { 0 };
            let head = Head {
                version: id,
                source: found.map_or(0, |it| it.head.source),
                bytes: u32::try_from(value.as_ref().map_or(0, Vec::len)).expect("1 MiB"),
                flags,
                ..Head::default()
            };
            changed.push((key.clone(), Version { head, value }));
        }
        self.clock = id;
        let kind = if roll_back.is_dry_run {
            MarkKind::DryRun
        } else {
            MarkKind::RollBack
        };
        self.marks.push(Mark {
            kind,
            id,
            namespace,
            keys: changed.len() as u64,
            target: 0,
        });
        if !roll_back.is_dry_run {
            self.rolled.insert(id, (namespace, prefix));
            for (key, version) in changed {
                let versions = self.keys.get_mut(&(namespace, key));
                versions.expect("it was there").push(version);
            }
        }
        Ok(Answer::Version(id))
    }

    fn rows(&self, namespace: u32, key: &Key, below: u64, most: usize) -> Result<Answer, Refused> {
        let key = self.key(namespace, key).ok_or(Refused::Absent)?;
        let versions = self.keys.get(&(namespace, key)).ok_or(Refused::Absent)?;
        let all = versions.iter().rev().map(|it| it.head);
        let mut rows: Vec<Head> = all
            .filter(|head| below == 0 || head.version < below)
            .collect();
        let has_more = rows.len() > most;
        rows.truncate(most);
        Ok(Answer::Versions {
            rows,
            has_more,
            floor: self.trimmed_below,
        })
    }

    fn perform(&mut self, request: &Request) -> Result<Answer, Refused> {
        let namespace = request.namespace;
        match &request.operation {
            Operation::Write { write, must_exist } => {
                self.write(request, std::slice::from_ref(write), *must_exist)
            }
            Operation::Batch(writes) => self.write(request, writes, false),
            Operation::Get { key, at, bytes } => {
                let found = self.find(namespace, key, *at)?;
                let value = found.value.as_ref().ok_or(Refused::Absent)?;
                let bytes = value[..value.len().min(*bytes)].to_vec();
                Ok(Answer::Value {
                    head: found.head,
                    bytes,
                })
            }
            Operation::Exist(key) => {
                let found = self.find(namespace, key, Selector::Head)?;
                found.value.as_ref().ok_or(Refused::Absent)?;
                Ok(Answer::Done)
            }
            Operation::List { from, bytes } => Ok(self.list(namespace, from, *bytes)),
            Operation::Versions { key, below, rows } => self.rows(namespace, key, *below, *rows),
            Operation::Keys {
                prefix,
                cursor,
                moment,
                changed_since,
                has_deleted,
                bytes,
            } => {
                let since = (*changed_since, *has_deleted);
                Ok(self.page(namespace, prefix, *cursor, *moment, since, *bytes))
            }
            Operation::Moment(0) => Ok(Answer::Version(self.clock)),
            Operation::Moment(moment) if *moment > self.clock => Err(Refused::Future),
            Operation::Moment(moment) => Ok(Answer::Version(*moment)),
            Operation::RollBack(roll_back) => self.roll_back(namespace, roll_back),
            Operation::Snapshot(_) => {
                self.clock += 1;
                self.snapshots.insert(self.clock);
                Ok(Answer::Version(self.clock))
            }
            Operation::Release(version) if self.snapshots.remove(version) => Ok(Answer::Done),
            Operation::Release(_) => Err(Refused::NoSuchVersion),
            Operation::Log(Log::Status) => Ok(Answer::Health(self.health())),
            Operation::Log(Log::Marks) => {
                Ok(Answer::Marks(self.marks.len() as u64, self.marks.clone()))
            }
            Operation::Log(Log::Damage) => Ok(Answer::Damage(1, self.damage.clone())),
            Operation::Retention => Ok(Answer::Retention(self.kept)),
            Operation::Lock(for_us) => {
                self.kept.locked_us = self.kept.locked_us.max(*for_us);
                Ok(Answer::Done)
            }
            Operation::SetRetention(_) if self.kept.locked_us > 0 => Err(Refused::Locked),
            Operation::SetRetention(retention) => {
                self.kept.retention = *retention;
                Ok(Answer::Done)
            }
        }
    }
}

impl Backend for Fake {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.waiting.push((ticket, request));
    }

    fn completed(&mut self) -> Option<(Ticket, Result<Answer, Refused>)> {
        if self.is_held || self.waiting.is_empty() {
            return None;
        }
        let count = self.waiting.len();
        let at = self.dice.as_mut().map_or(0, |dice| dice.below(count));
        let (ticket, request) = self.waiting.remove(at);
        self.done += 1;
        let result = self.perform(&request);
        Some((ticket, result))
    }

    fn health(&self) -> Health {
        Health {
            watermark: self.clock,
            floor: self.trimmed_below,
            size_bytes: 1 << 30,
            used_bytes: 1 << 20,
            keys: self.keys.len() as u64,
            is_full: self.is_full,
            is_read_only: false,
            damaged: 7,
            ..Health::default()
        }
    }
}
