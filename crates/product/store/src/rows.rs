// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Roll backs of scopes, each one row.
//!
//! Invariants:
//! 1. Rows rise by their id, and there are at most [`ROWS_MAX`].
//! 2. `by_prefix` has each row once, under its namespace and prefix; `lengths` has the lengths of those.
//! 3. A row goes only after every key has been resolved beyond it: the caller sees to it.

use std::collections::{BTreeSet, HashMap};

use crate::key::Key;
use crate::version::Version;

/// Most live rows. A checkpoint is due before there are as many; then they go.
pub const ROWS_MAX: usize = 4096;

/// Bytes of a namespace before a prefix.
const NAMESPACE_BYTES: usize = 2;

/// Where a roll back leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// What each key was at this moment.
    Moment(Version),
    /// What each key was so many versions before its head.
    Back(u32),
}

/// A roll back of all keys of a namespace with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollBack {
    /// Its version, which each key has afterwards that it changed.
    pub id: Version,
    /// Whose keys.
    pub namespace: u16,
    /// What they begin with; nothing: all of them.
    pub prefix: Vec<u8>,
    /// Where it leads.
    pub target: Target,
    /// It spares keys that were put, deleted or restored by themselves after this moment.
    pub unless_written_since: Option<Version>,
}

impl RollBack {
    /// What undoes it, as `id`. `spares` leaves alone what was written since.
    #[must_use]
    pub fn undo(&self, id: Version, spares: bool) -> Self {
        Self {
            id,
            target: Target::Moment(self.id.before()),
            unless_written_since: spares.then_some(self.id),
            ..self.clone()
        }
    }
}

/// The live rows of a shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    rows: Vec<RollBack>,
    by_prefix: HashMap<Vec<u8>, Vec<u32>>,
    lengths: BTreeSet<usize>,
    /// The last one's id, also when it has gone.
    newest: Version,
}

fn name_of(namespace: u16, bytes: &[u8]) -> Vec<u8> {
    [&namespace.to_be_bytes()[..], bytes].concat()
}

impl Rows {
    /// The last row's id.
    pub(crate) fn newest(&self) -> Version {
        self.newest
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= ROWS_MAX
    }

    /// The last row with an id up to this one.
    pub(crate) fn newest_up_to(&self, version: Version) -> Version {
        if version >= self.newest {
            return self.newest;
        }
        let count = self.rows.partition_point(|row| row.id <= version);
        count
            .checked_sub(1)
            .map_or(Version::ZERO, |at| self.rows[at].id)
    }

    pub(crate) fn all(&self) -> &[RollBack] {
        &self.rows
    }

    pub(crate) fn get(&self, at: u32) -> &RollBack {
        &self.rows[at as usize]
    }

    pub(crate) fn add(&mut self, row: RollBack) {
        assert!(
            !self.is_full() && row.id > self.newest,
            "rows rise and are bounded"
        );
        self.newest = row.id;
        self.enter(&row, self.rows.len() as u32);
        self.rows.push(row);
    }

    fn enter(&mut self, row: &RollBack, at: u32) {
        let name = name_of(row.namespace, &row.prefix);
        self.by_prefix.entry(name).or_default().push(at);
        self.lengths.insert(row.prefix.len());
    }

    /// Rows up to this one go.
    pub(crate) fn forget(&mut self, up_to: Version) {
        let count = self.rows.partition_point(|row| row.id <= up_to);
        self.rows.drain(..count);
        self.by_prefix.clear();
        self.lengths.clear();
        let rows = std::mem::take(&mut self.rows);
        for (at, row) in (0..).zip(&rows) {
            self.enter(row, at);
        }
        self.rows = rows;
    }

    /// Rows above `epoch`, up to `until`, that concern a key; in their order.
    pub(crate) fn of(&self, key: Key<'_>, epoch: Version, until: Version) -> Vec<u32> {
        let name = name_of(key.namespace, key.bytes);
        let mut found = Vec::new();
        for length in self.lengths.range(..=key.bytes.len()) {
            let rows = self.by_prefix.get(&name[..NAMESPACE_BYTES + length]);
            let Some(rows) = rows else { continue };
            let from = rows.partition_point(|at| self.get(*at).id <= epoch);
            let end = rows.partition_point(|at| self.get(*at).id <= until);
            found.extend_from_slice(rows.get(from..end).unwrap_or_default());
        }
        found.sort_unstable();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u64, namespace: u16, prefix: &[u8]) -> RollBack {
        RollBack {
            id: Version::new(id),
            namespace,
            prefix: prefix.to_vec(),
            target: Target::Back(1),
            unless_written_since: None,
        }
    }

    fn ids(rows: &Rows, namespace: u16, bytes: &[u8], epoch: u64, until: u64) -> Vec<u64> {
        let found = rows.of(
            Key { namespace, bytes },
            Version::new(epoch),
            Version::new(until),
        );
        found
            .into_iter()
            .map(|at| rows.get(at).id.number())
            .collect()
    }

    #[test]
    fn a_keys_rows_are_those_of_its_prefixes_in_their_order() {
        let mut rows = Rows::default();
        let given: [(u64, u16, &[u8]); 7] = [
            (10, 1, b"a"),
            (11, 1, b""),
            (12, 2, b"a"),
            (13, 1, b"abc"),
            (14, 1, b"ab"),
            (15, 1, b"abcd"),
            (16, 1, b"a"),
        ];
        for (id, namespace, prefix) in given {
            rows.add(row(id, namespace, prefix));
        }
        assert_eq!(ids(&rows, 1, b"abc", 0, 99), [10, 11, 13, 14, 16]);
        assert_eq!(ids(&rows, 1, b"abc", 11, 14), [13, 14]);
        assert_eq!(ids(&rows, 1, b"", 0, 99), [11]);
        assert_eq!(ids(&rows, 2, b"abc", 0, 99), [12]);
        assert_eq!(ids(&rows, 3, b"abc", 0, 99), [0; 0]);
        assert_eq!(ids(&rows, 1, b"abc", 14, 11), [0; 0]);
        rows.forget(Version::new(13));
        assert_eq!(ids(&rows, 1, b"abc", 0, 99), [14, 16]);
        assert_eq!(rows.newest_up_to(Version::new(15)), Version::new(15));
        assert_eq!(rows.newest_up_to(Version::new(13)), Version::ZERO);
        rows.forget(Version::new(99));
        assert_eq!((rows.len(), rows.newest()), (0, Version::new(16)));
    }

    #[test]
    fn an_undo_leads_to_the_moment_before() {
        let undone = row(10, 1, b"a").undo(Version::new(20), true);
        assert_eq!(undone.target, Target::Moment(Version::new(9)));
        assert_eq!(undone.unless_written_since, Some(Version::new(10)));
        assert_eq!(
            (undone.id, undone.prefix),
            (Version::new(20), b"a".to_vec())
        );
    }
}
