// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of keys. The invariants stand in `backend.rs`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use erb_nvme::backend::{
    Answer, Change, Condition, Key as AskedKey, Operation, Refused, Request, RollBack, Target,
    Ticket, Write,
};
use erb_store::key::Name;
use erb_store::message::{Part, PartWhat, What};
use erb_store::shard::{NotWritten, Writer, Written};
use erb_store::{self as store, Key, Selector, Version, control};

use crate::backend::{Outcome, Store, namespace};
use crate::words;

/// A write that waits for a segment, for space or for the end of a freeze is refused then: it may be repeated.
const PATIENCE: Duration = Duration::from_secs(5);

/// A write that is to be done, or done again.
#[derive(Debug)]
pub(crate) struct Pending {
    ticket: Ticket,
    namespace: u16,
    key: Vec<u8>,
    write: Write,
    must_exist: bool,
    writer: Writer,
    until: Instant,
}

fn writer(request: &Request) -> Writer {
    Writer {
        writer: request.writer,
        expiry_ms: 0,
        may_use_reserve: request.may_use_reserve,
    }
}

impl Store {
    /// A key in full, and its shard. None: nobody has a long key with that digest.
    pub(crate) fn key(&mut self, namespace: u16, key: &AskedKey) -> (u16, Option<Vec<u8>>) {
        match key {
            AskedKey::Plain(bytes) => {
                let shard = self.engine.store.shard_of(Key { namespace, bytes });
                (shard, Some(bytes.clone()))
            }
            AskedKey::Digest(digest) => {
                let name = Name::of_digest(namespace, *digest);
                let shard = self.engine.store.shard_of_name(&name);
                let versions = self.engine.store.shards[usize::from(shard)].versions_mut();
                let found = versions.read_digest(namespace, *digest, Version::MAX);
                (shard, found.map(|(key, _)| key))
            }
        }
    }

    pub(crate) fn begin_write(&mut self, ticket: Ticket, request: Request) {
        let (namespace, writer) = (namespace(&request), writer(&request));
        let Operation::Write { write, must_exist } = request.operation else {
            return;
        };
        let (shard, key) = self.key(namespace, &write.key);
        let Some(key) = key else {
            // Nothing refuses it that a crash could take back: the key is not there.
            let is_met = matches!(write.condition, Condition::Any | Condition::Head(0));
            let outcome = match write.change {
                Change::Delete if is_met && !must_exist => Ok(Answer::Version(0)),
                _ => Err(Refused::Absent),
            };
            return self.answer(ticket, outcome);
        };
        let pending = Pending {
            ticket,
            namespace,
            key,
            write,
            must_exist,
            writer,
            until: Instant::now() + PATIENCE,
        };
        // Who came before goes before.
        let queue = usize::from(pending.writer.may_use_reserve);
        let at = usize::from(shard);
        if self.waiting[at][queue].is_empty() {
            if let Some(pending) = self.write(shard, pending) {
                self.waiting[at][queue].push_back(pending);
            }
            self.engine.write_early(shard);
        } else {
            self.waiting[at][queue].push_back(pending);
        }
    }

    /// Writes that have waited are tried again.
    pub(crate) fn write_waiting(&mut self) {
        for shard in 0..self.waiting.len() {
            for queue in [1, 0] {
                self.write_queue(shard, queue);
            }
        }
    }

    fn write_queue(&mut self, shard: usize, queue: usize) {
        while let Some(pending) = self.waiting[shard][queue].pop_front() {
            if pending.until < Instant::now() {
                self.answer(pending.ticket, Err(Refused::Busy));
                continue;
            }
            if let Some(pending) = self.write(shard as u16, pending) {
                self.waiting[shard][queue].push_front(pending);
                break;
            }
        }
    }

    /// Does a write; what comes back is to be done again.
    fn write(&mut self, shard: u16, pending: Pending) -> Option<Pending> {
        let now_us = self.engine.now_us();
        let what = match &pending.write.change {
            Change::Put(value) => What::Put(value),
            Change::Delete => What::Delete,
            Change::Restore(from) => What::Restore(self.selector(*from)),
        };
        let key = Key {
            namespace: pending.namespace,
            bytes: &pending.key,
        };
        let condition = words::condition(pending.write.condition);
        let shard = &mut self.engine.store.shards[usize::from(shard)];
        let (seen, outcome): (Version, Outcome) =
            match shard.write(key, what, condition, pending.writer, now_us) {
                Ok(Written::Version(version)) => (version, Ok(Answer::Version(version.number()))),
                Ok(Written::Absent(seen)) if pending.must_exist => (seen, Err(Refused::Absent)),
                Ok(Written::Absent(seen)) => (seen, Ok(Answer::Version(0))),
                Err(NotWritten::Refused(store::Refused::Mismatch, seen)) => {
                    let head = shard.versions_mut().read(key, Selector::Head, Version::MAX);
                    let head = head.ok().flatten().filter(|it| !it.place.is_deleted());
                    let head = head.map_or(0, |it| it.version.number());
                    (seen, Err(mismatch(pending.write.condition, head)))
                }
                Err(NotWritten::Refused(why, seen)) => (seen, Err(words::refused(why))),
                Err(NotWritten::Frozen | NotWritten::Busy) => return Some(pending),
                Err(NotWritten::Failed) => (Version::ZERO, Err(Refused::Failed)),
            };
        self.answer_at(seen, pending.ticket, outcome);
        None
    }

    /// What is meant, with a moment that is over as the engine knows it.
    pub(crate) fn selector(&self, at: erb_nvme::backend::Selector) -> Selector {
        match words::selector(at) {
            Selector::AsOf(moment) => Selector::AsOf(self.moment(moment.number())),
            other => other,
        }
    }

    pub(crate) fn begin_batch(&mut self, ticket: Ticket, request: Request) {
        let (namespace, writer) = (namespace(&request), writer(&request));
        let Operation::Batch(writes) = request.operation else {
            return;
        };
        let mut parts: BTreeMap<u16, Vec<Part>> = BTreeMap::new();
        for write in writes {
            let (shard, key) = self.key(namespace, &write.key);
            let Some(key) = key else {
                return self.answer(ticket, Err(Refused::Invalid));
            };
            let what = match write.change {
                Change::Put(value) => PartWhat::Put(value),
                Change::Delete => PartWhat::Delete,
                Change::Restore(from) => PartWhat::Restore(self.selector(from)),
            };
            parts.entry(shard).or_default().push(Part {
                namespace,
                key,
                what,
                condition: words::condition(write.condition),
                writer: writer.writer,
                expiry_ms: 0,
                may_use_reserve: writer.may_use_reserve,
            });
        }
        self.ask(ticket, control::Request::Batch(parts.into_iter().collect()));
    }

    /// A roll back as the engine knows it. Its id is not given yet.
    ///
    /// # Errors
    /// It undoes one that is not known, or not of this scope.
    pub(crate) fn row(
        &self,
        namespace: u16,
        wanted: &RollBack,
    ) -> Result<store::RollBack, Refused> {
        let (prefix, target) = match wanted.target {
            Target::Moment(moment) => (&wanted.prefix, store::Target::Moment(self.moment(moment))),
            Target::Back(back) => (&wanted.prefix, store::Target::Back(back)),
            Target::Undo(id) => {
                let found = self
                    .engine
                    .store
                    .control
                    .state()
                    .roll_back(Version::new(id));
                let is_meant = |found: &&store::RollBack| {
                    let is_scope = wanted.prefix.is_empty() || wanted.prefix == found.prefix;
                    found.namespace == namespace && is_scope
                };
                let found = found.filter(is_meant).ok_or(Refused::NoSuchVersion)?;
                (&found.prefix, store::Target::Moment(found.id.before()))
            }
        };
        Ok(store::RollBack {
            id: Version::ZERO,
            namespace,
            prefix: prefix.clone(),
            target,
            unless_written_since: wanted.unless_written_since.map(Version::new),
        })
    }
}

/// Why a condition is not met, whose head is this version.
fn mismatch(condition: Condition, head: u64) -> Refused {
    match condition {
        Condition::Present => Refused::Absent,
        Condition::Absent => Refused::Present,
        Condition::Any | Condition::Head(_) => Refused::Mismatch(head),
    }
}
