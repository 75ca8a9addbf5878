// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The coordinator's operations, step by step. Its invariants stand in `control.rs`.

use std::collections::BTreeSet;

use crate::control::{Control, Operation, Promise, Request, Step};
use crate::entry::Entry;
use crate::message::{Part, ToControl, ToShard};
use crate::mistake::{Mistake, Rules};
use crate::rows::RollBack;
use crate::state::COMMITS_MAX;
use crate::version::Version;
use crate::view::Refused;

impl<R: Rules + Copy> Control<R> {
    /// Begins the next operation, if none is under way.
    pub(crate) fn begin_operation(&mut self) {
        // Nothing is promised to anybody before recovery's end is durable.
        while self.operation.is_none() && self.shared.is_open() {
            let is_turn_of_own = !self.was_own || self.waiting.is_empty();
            self.was_own = is_turn_of_own && self.begin_own();
            if self.was_own {
                continue;
            }
            let Some((ticket, request)) = self.waiting.pop_front() else {
                return;
            };
            self.begin(ticket, request);
        }
    }

    /// Begins what time has brought, if there is something.
    fn begin_own(&mut self) -> bool {
        // Of these there are few. Floors may be due again each time.
        if self.shorten() || self.end_snapshots() {
            return true;
        }
        let Some((floor, deleted)) = self.floors.take() else {
            return false;
        };
        let entry = Entry::Floors(floor, deleted);
        self.begin_writing((None, None), entry, None, floor);
        true
    }

    fn begin(&mut self, ticket: Option<u64>, request: Request) {
        match &request {
            Request::RollBack(row) if self.is_future(row) => {
                self.answer(ticket, Version::ZERO, Err(Refused::Future));
            }
            Request::Batch(parts) if !is_possible(parts, &self.all_shards()) => {
                self.answer(ticket, Version::ZERO, Err(Refused::Twice));
            }
            Request::Batch(_) if self.state().commits.len() >= COMMITS_MAX => {
                self.answer(ticket, Version::ZERO, Err(Refused::Busy));
            }
            Request::RollBack(_) | Request::Batch(_) => self.freeze(ticket, request),
            Request::Snapshot { for_us } => self.take_snapshot(ticket, *for_us),
            Request::Release(moment) => self.release_snapshot(ticket, *moment),
            Request::Settings(settings) => self.choose(ticket, *settings),
            Request::Lock { for_us } => self.lock(ticket, *for_us),
            Request::Checkpoint => {
                for shard in self.all_shards() {
                    self.begin_checkpoint(shard);
                }
                self.answer(ticket, Version::ZERO, Ok(self.shared.watermark()));
            }
        }
    }

    /// Something that shards only have to be told of, and what else has to be durable before that is answered.
    pub(crate) fn begin_writing(
        &mut self,
        (ticket, request): (Option<u64>, Option<Request>),
        entry: Entry,
        also: Option<Entry>,
        version: Version,
    ) {
        let is_hasty =
            matches!(entry, Entry::Floors(..)) && self.rules.makes(Mistake::FloorsNotDurable);
        let message = ToShard::Retain(entry.clone());
        let mut needed = self.note(entry);
        if let Some(also) = also {
            needed = self.note(also);
        }
        let shards = self.all_shards();
        self.operation = Some(Operation {
            ticket,
            request,
            step: Step::Writing,
            left: shards.clone(),
            shards: shards.clone(),
            version,
            refused: None,
        });
        for shard in shards {
            if is_hasty {
                self.outbox.push_back((shard, message.clone()));
            } else {
                self.send_after(needed, shard, message.clone());
            }
        }
        self.promises.push_back((needed, Promise::Operation));
    }

    fn freeze(&mut self, ticket: Option<u64>, request: Request) {
        let scopes = self.scopes(&request);
        let shards: BTreeSet<u16> = scopes.iter().map(|(shard, _)| *shard).collect();
        let freezes = scopes.into_iter();
        self.outbox
            .extend(freezes.map(|(shard, scope)| (shard, ToShard::Freeze(scope))));
        self.operation = Some(Operation {
            ticket,
            request: Some(request),
            step: Step::Freezing,
            left: shards.clone(),
            shards,
            version: Version::ZERO,
            refused: None,
        });
    }

    /// A shard has done its part of the present step.
    pub(crate) fn shard_answered(&mut self, shard: u16, message: ToControl) {
        let operation = self.operation.as_mut();
        let operation = operation.expect("shards answer what was asked of them");
        assert!(operation.left.remove(&shard), "a shard answers once");
        if let ToControl::Frozen(Err((refused, seen))) = message {
            let before = operation.refused.map_or(Version::ZERO, |it| it.1);
            operation.refused = Some((refused, seen.max(before)));
        }
        if !operation.left.is_empty() {
            return;
        }
        match operation.step {
            Step::Freezing => self.all_frozen(),
            Step::LoggingParts => self.all_parts_durable(),
            Step::Writing if self.rules.makes(Mistake::RowNotDurable) => self.all_have_it(),
            // Only a mistake lets shards take what is not durable.
            Step::Writing => {}
            Step::Handing => self.all_have_it(),
        }
    }

    fn all_frozen(&mut self) {
        let Some(mut operation) = self.operation.take() else {
            return;
        };
        if let Some((refused, seen)) = operation.refused {
            self.end(operation, seen, Err(refused));
            return;
        }
        self.shared.hold(self.shared.control());
        let version = self.shared.clock().next(self.now_us);
        let Ok(version) = version else {
            // No ceiling yet: it is as if the request came later.
            self.shared.publish(self.shared.control(), None);
            self.end(operation, Version::ZERO, Err(Refused::Busy));
            return;
        };
        operation.version = version;
        if let Some(Request::RollBack(row)) = &operation.request {
            let row = RollBack {
                id: version,
                ..row.clone()
            };
            operation.step = Step::Writing;
            let needed = self.note(Entry::RollBack(row.clone()));
            let is_hasty = self.rules.makes(Mistake::RowNotDurable);
            operation.left = operation.shards.clone();
            for shard in operation.shards.clone() {
                let message = ToShard::RollBack(row.clone());
                if is_hasty {
                    self.outbox.push_back((shard, message));
                } else {
                    self.send_after(needed, shard, message);
                }
            }
            self.promises.push_back((needed, Promise::Operation));
        } else {
            operation.step = Step::LoggingParts;
            operation.left = operation.shards.clone();
            let shards = operation.shards.iter();
            self.outbox
                .extend(shards.map(|shard| (*shard, ToShard::LogParts(version))));
        }
        self.operation = Some(operation);
    }

    fn all_parts_durable(&mut self) {
        let Some(operation) = &mut self.operation else {
            return;
        };
        operation.step = Step::Writing;
        operation.left = operation.shards.clone();
        let version = operation.version;
        let shards = operation.shards.clone();
        let owing = shards.iter().fold(0, |bits, shard| bits | 1u64 << shard);
        let needed = self.note(Entry::Commit(version, owing));
        for shard in shards {
            self.send_after(needed, shard, ToShard::Commit(version));
        }
        self.promises.push_back((needed, Promise::Operation));
    }

    /// The operation's entry is durable, and the shards are being told.
    pub(crate) fn entry_is_durable(&mut self) {
        let Some(operation) = &mut self.operation else {
            return;
        };
        operation.step = Step::Handing;
        let is_roll_back = matches!(operation.request, Some(Request::RollBack(_)));
        let is_all = operation.left.is_empty();
        if is_roll_back && self.rules.makes(Mistake::RowPassedEarly) {
            self.shared.publish(self.shared.control(), None);
        }
        if is_all {
            self.all_have_it();
        }
    }

    fn all_have_it(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.shared.publish(self.shared.control(), None);
            let version = operation.version;
            self.end(operation, version, Ok(version));
        }
    }

    /// Releases what is frozen, and answers once the watermark has passed a version.
    fn end(&mut self, operation: Operation, seen: Version, outcome: Result<Version, Refused>) {
        if matches!(
            operation.request,
            Some(Request::RollBack(_) | Request::Batch(_))
        ) {
            let shards = operation.shards.iter();
            self.outbox
                .extend(shards.map(|shard| (*shard, ToShard::Release)));
        }
        self.answer(operation.ticket, seen, outcome);
    }

    pub(crate) fn answer(
        &mut self,
        ticket: Option<u64>,
        seen: Version,
        outcome: Result<Version, Refused>,
    ) {
        self.answers
            .extend(ticket.map(|ticket| (seen, ticket, outcome)));
    }
}

/// Whether each shard and each key is in a batch once.
fn is_possible(parts: &[(u16, Vec<Part>)], shards: &BTreeSet<u16>) -> bool {
    let mut seen = BTreeSet::new();
    let mut keys = BTreeSet::new();
    parts.iter().all(|(shard, parts)| {
        let mut parts = parts.iter();
        shards.contains(shard)
            && seen.insert(*shard)
            && parts.all(|part| keys.insert((part.namespace, &part.key[..])))
    })
}
