// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is made of `erb status --json`.

use std::collections::BTreeMap;

use erb_report::Status;

/// What a failed wait shows.
#[must_use]
pub fn brief(status: &Status) -> String {
    format!(
        "daemon {}, serving {} {:?}, admitting {}, lease {} ms, fence {}, {:?}",
        status.daemon,
        status.serving,
        status.not_serving,
        status.admitting,
        status.lease_left_ms,
        status.fence,
        status.connections
    )
}

/// The data path's counters at one moment.
#[derive(Clone, Debug)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Those of a status.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        let pairs = status.counters.iter().map(|c| (c.name.clone(), c.count));
        Self(pairs.collect())
    }

    /// One counter.
    ///
    /// # Panics
    /// If there is none of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        *self
            .0
            .get(name)
            .unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// How far one counter has moved since.
    #[must_use]
    pub fn since(&self, before: &Self, name: &str) -> u64 {
        self.get(name) - before.get(name)
    }

    /// Counters whose name begins with one of the words and that are not zero.
    #[must_use]
    pub fn text(&self, words: &str) -> String {
        let wanted = |name: &str| words.split_whitespace().any(|word| name.starts_with(word));
        let shown = self
            .0
            .iter()
            .filter(|(name, count)| **count > 0 && wanted(name));
        shown
            .map(|(name, count)| format!("{name}={count} "))
            .collect()
    }

    /// Counters that moved since, all of them.
    #[must_use]
    pub fn moved(&self, before: &Self) -> String {
        let moved = self
            .0
            .iter()
            .filter(|(name, count)| **count != before.get(name));
        moved
            .map(|(name, count)| format!("{name}+{} ", count - before.get(name)))
            .collect()
    }
}
