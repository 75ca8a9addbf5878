// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The second opinion: replies alone, without what the Redis model says about order and time,
//! judged per key by the linearizability checker of `erb-check`.
//!
//! Only keys of which every change is one of SET, DEL and INCR by a client that was recorded: a
//! key that anything else may have touched is left to the first opinion.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use erb_check::history::linear::{self, Action, Op, Verdict};

use erb_sim_redis::Bytes;

use crate::ConnId;
use crate::time::Ns;
use crate::violation::Violation;

use super::session::Mode;
use super::wire::{Argv, bulk, is, show};

/// Operations judged per key; the work grows with overlap, and the first ones tell as much.
const OPERATIONS_MAX: usize = 2_000;

/// Values that are no small numbers begin here.
const NAMES_FROM: u64 = 1 << 62;

/// Operations by key.
#[derive(Default)]
pub(super) struct Blackbox {
    keys: BTreeMap<Bytes, Key>,
    excluded: BTreeSet<Bytes>,
}

#[derive(Default)]
struct Key {
    operations: Vec<Op>,
    names: BTreeMap<Vec<u8>, u64>,
}

impl Key {
    /// Numbers stand for themselves, so that INCR means the same; other values get a name.
    fn name(&mut self, value: &[u8]) -> u64 {
        let number = std::str::from_utf8(value).ok().and_then(|text| {
            let number: u64 = text.parse().ok()?;
            (number < NAMES_FROM && number.to_string() == text).then_some(number)
        });
        let next = NAMES_FROM + self.names.len() as u64;
        number.unwrap_or_else(|| *self.names.entry(value.to_vec()).or_insert(next))
    }
}

impl Blackbox {
    /// Something else changed the key.
    pub(super) fn exclude(&mut self, db: u32, key: &Bytes) {
        if db == 0 {
            self.excluded.insert(Arc::clone(key));
        }
    }

    /// A request was answered.
    pub(super) fn answered(
        &mut self,
        session: ConnId,
        argv: &Argv,
        mode: Mode,
        invoked: u64,
        answered: u64,
        reply: &[u8],
    ) {
        let queued = reply == b"+QUEUED\r\n";
        self.add(
            session,
            argv,
            mode,
            invoked,
            (!queued).then_some((answered, reply)),
        );
    }

    /// A request may have been executed, or may be at any time, or never.
    pub(super) fn unknown(&mut self, session: ConnId, argv: &Argv, mode: Mode, invoked: u64) {
        self.add(session, argv, mode, invoked, None);
    }

    fn add(
        &mut self,
        session: ConnId,
        argv: &Argv,
        mode: Mode,
        invoked: u64,
        answer: Option<(u64, &[u8])>,
    ) {
        if !is_plain(argv) || mode.db != 0 {
            return;
        }
        let key = self.keys.entry(Arc::clone(&argv[1])).or_default();
        let reply = answer.map(|(_, reply)| reply);
        let Some(action) = action(key, argv, reply) else {
            return;
        };
        key.operations.push(Op {
            conn: session,
            invoked,
            answered: answer.map(|(at, _)| at),
            action,
        });
    }

    /// Judges all keys: how many, and operations on them.
    pub(super) fn check(&self, now: Ns) -> Result<(u64, u64), Violation> {
        let (mut keys, mut operations) = (0, 0);
        for (name, key) in &self.keys {
            if self.excluded.contains(name) {
                continue;
            }
            // A prefix by time of answer is a history of its own, if what comes later is unknown.
            let mut all = key.operations.clone();
            all.sort_by_key(|op| op.invoked);
            all.truncate(OPERATIONS_MAX);
            let Verdict::Violation(at) = linear::check(&all, None) else {
                keys += 1;
                operations += all.len() as u64;
                continue;
            };
            let from = at.saturating_sub(6);
            let around: Vec<String> = all[from..=at].iter().map(|op| format!("{op:?}")).collect();
            let text = format!(
                "the replies about key {} fit no order; the last operations: {}",
                show(name),
                around.join("; ")
            );
            return Err(Violation::new("blackbox", now, text));
        }
        Ok((keys, operations))
    }
}

/// Whether the command is one of those whose effect the checker knows. What another kind changes is
/// to be excluded.
pub(super) fn is_plain(argv: &[Bytes]) -> bool {
    (is(argv, "get") && argv.len() == 2)
        || (is(argv, "set") && argv.len() == 3)
        || ((is(argv, "del") || is(argv, "incr")) && argv.len() == 2)
}

/// What the operation says, `None` if nothing.
fn action(key: &mut Key, argv: &Argv, reply: Option<&[u8]>) -> Option<Action> {
    if reply.is_some_and(|reply| reply.starts_with(b"-")) {
        return None;
    }
    let number = |reply: &[u8]| -> Option<u64> {
        let text = std::str::from_utf8(reply.get(1..reply.len() - 2)?).ok()?;
        text.parse().ok()
    };
    if is(argv, "get") {
        let reply = reply?;
        return match bulk(reply) {
            Some(None) => Some(Action::Get(None)),
            Some(Some(value)) => Some(Action::Get(Some(key.name(value)))),
            None => None,
        };
    }
    if is(argv, "set") {
        return Some(Action::Set(key.name(&argv[2])));
    }
    if is(argv, "del") {
        return Some(Action::Del(reply.and_then(number).map(|n| n > 0)));
    }
    Some(Action::Incr(reply.and_then(number)))
}
