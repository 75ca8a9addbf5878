// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of versions and roll back, the naive way.
//!
//! Invariants:
//! 1. A key's past rises strictly by version, and nothing is ever taken out of it.
//! 2. A roll back visits every key of its prefix when it is given.
//! 3. What a judged engine trimmed is marked, never forgotten: so a trim that was not allowed is seen.
//!
//! A namespace is a prefix like any other: whoever has namespaces puts their number before the key.

use std::collections::BTreeMap;

/// The source of a key that was never written.
pub const NEVER: u64 = 0;

/// Where a roll back of a scope leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// What each key was at this version.
    Moment(u64),
    /// What each key was so many versions before its head.
    Back(u32),
}

/// A roll back of all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollBack {
    /// Its version, which each key has afterwards that it changed.
    pub id: u64,
    /// Keys that it concerns.
    pub prefix: Vec<u8>,
    /// Where it leads.
    pub target: Target,
    /// It spares a key that was written (put, deleted or restored by itself) after this version.
    pub unless_written_since: Option<u64>,
}

/// Who made a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A put or a delete.
    Written,
    /// A restore of this key alone. It counts as a write.
    Restored,
    /// A roll back of a scope. It does not.
    RolledBack,
}

/// One version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Its number.
    pub version: u64,
    /// The put or delete whose content it has; [`NEVER`] if it has none.
    pub source: u64,
    /// Who made it.
    pub origin: Origin,
    /// There is no value: never written, or its source is a delete.
    pub deleted: bool,
    /// The judged engine has trimmed it.
    pub trimmed: bool,
}

/// All keys with all that ever was.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    keys: BTreeMap<Vec<u8>, Vec<Past>>,
}

impl Oracle {
    /// All versions of a key, oldest first.
    #[must_use]
    pub fn past(&self, key: &[u8]) -> &[Past] {
        self.keys.get(key).map_or(&[], Vec::as_slice)
    }

    /// All keys that ever had a version, in their order.
    pub fn keys(&self) -> impl Iterator<Item = (&[u8], &[Past])> {
        self.keys
            .iter()
            .map(|(key, past)| (key.as_slice(), past.as_slice()))
    }

    /// What a key was at a moment: the version that was its head.
    #[must_use]
    pub fn at(&self, key: &[u8], moment: u64) -> Option<Past> {
        let past = self.past(key);
        past.iter().rev().find(|one| one.version <= moment).copied()
    }

    /// A put, or a delete.
    pub fn write(&mut self, key: &[u8], version: u64, deleted: bool) {
        self.push(
            key,
            Past {
                version,
                source: version,
                origin: Origin::Written,
                deleted,
                trimmed: false,
            },
        );
    }

    /// The key gets the content of one of its versions again. False: there is no such version.
    pub fn restore(&mut self, key: &[u8], version: u64, from: u64) -> bool {
        let Some(found) = self.past(key).iter().find(|one| one.version == from) else {
            return false;
        };
        let again = Past {
            version,
            origin: Origin::Restored,
            trimmed: false,
            ..*found
        };
        self.push(key, again);
        true
    }

    /// Visits every key of the prefix.
    pub fn roll_back(&mut self, row: &RollBack) {
        for (key, past) in &mut self.keys {
            if !key.starts_with(&row.prefix) {
                continue;
            }
            let spared = row.unless_written_since.is_some_and(|since| {
                past.iter()
                    .any(|one| one.origin != Origin::RolledBack && one.version > since)
            });
            if spared {
                continue;
            }
            if let Some(again) = changed(past, row) {
                past.push(again);
            }
        }
    }

    /// The engine says that it has trimmed a version. False: there is no such version, or it is the head.
    pub fn trim(&mut self, key: &[u8], version: u64) -> bool {
        let Some(past) = self.keys.get_mut(key) else {
            return false;
        };
        let Some(position) = past.iter().position(|one| one.version == version) else {
            return false;
        };
        past[position].trimmed = true;
        position + 1 < past.len()
    }

    /// The engine says that it has forgotten a key. Nothing of it counts any more: it begins anew. False: it
    /// is not known, or not deleted.
    pub fn forget(&mut self, key: &[u8]) -> bool {
        let past = self.keys.remove(key);
        past.and_then(|past| past.last().copied())
            .is_some_and(|head| head.deleted)
    }

    fn push(&mut self, key: &[u8], new: Past) {
        let past = self.keys.entry(key.to_vec()).or_default();
        assert!(past.last().is_none_or(|last| last.version < new.version));
        past.push(new);
    }
}

/// The version that a roll back gives a key with this past, if it changes anything.
fn changed(past: &[Past], row: &RollBack) -> Option<Past> {
    let never = Past {
        version: 0,
        source: NEVER,
        origin: Origin::RolledBack,
        deleted: true,
        trimmed: false,
    };
    let before = match row.target {
        Target::Moment(moment) => past.iter().rev().find(|one| one.version <= moment),
        Target::Back(back) => {
            let back = back as usize;
            // Never counts over what was trimmed: the key stays as it is.
            if past.iter().rev().take(back + 1).any(|one| one.trimmed) {
                return None;
            }
            past.iter().rev().nth(back)
        }
    };
    let again = Past {
        version: row.id,
        origin: Origin::RolledBack,
        trimmed: false,
        ..before.copied().unwrap_or(never)
    };
    let source = past.last().map_or(NEVER, |head| head.source);
    (again.source != source).then_some(again)
}
