// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of `erb status --json` that scenarios look at.

use std::collections::BTreeMap;

use serde::Deserialize;

/// `erb status --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// `running`, `detaching` or `dead`.
    pub daemon: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Boosted devices.
    pub devices: Vec<Device>,
    /// The programs at work.
    pub programs: Programs,
    /// Whether fast answers are given.
    pub serving: bool,
    /// Why not.
    pub not_serving: Vec<String>,
    /// What else is said.
    pub notes: Vec<String>,
    /// Whether new connections can become fast.
    pub admitting: bool,
    /// Lease still left, ms.
    pub lease_left_ms: i64,
    /// Commands with unknown keys on their way.
    pub fence: u64,
    /// Redis.
    pub redis: Redis,
    /// Connections by state.
    pub connections: Connections,
    /// Whose commands keep keys from everybody for long.
    pub held: Held,
    /// All counters.
    pub counters: Vec<Counter>,
}

/// The programs at work.
#[derive(Clone, Debug, Deserialize)]
pub struct Programs {
    /// Their build.
    pub build: String,
    /// Whether all links run them.
    pub whole: bool,
    /// Whether `erb trace` is at work.
    pub traced: bool,
}

/// A boosted device.
#[derive(Clone, Debug, Deserialize)]
pub struct Device {
    /// How XDP is attached, or that only the TC tier is.
    pub mode: String,
}

/// Redis as the daemon sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct Redis {
    /// Whether the feed is up.
    pub feed_up: bool,
    /// Feeds made since the daemon began.
    pub feeds_made: u64,
    /// Commands that Redis has under their own names.
    pub commands: usize,
    /// Fast commands that are left to Redis.
    pub fast_off: Vec<String>,
    /// Commands that only a new name reaches.
    pub renamed: Vec<String>,
}

/// Tracked connections.
#[derive(Clone, Debug, Deserialize)]
pub struct Connections {
    /// Entries in the table.
    pub total: u32,
    /// May be answered.
    pub fast: u32,
    /// Not answered any more.
    pub bypass: u32,
    /// Older than ERB.
    pub old: u32,
    /// Need translation.
    pub translated: u32,
    /// Have unacknowledged fast-path bytes.
    pub unacked: u32,
    /// Not seen: there was no room for them.
    pub unseen: u32,
}

/// Connections whose commands keep keys from everybody for long.
#[derive(Clone, Debug, Deserialize)]
pub struct Held {
    /// How many.
    pub total: u32,
    /// The first of them.
    pub clients: Vec<HeldLine>,
}

/// One of them.
#[derive(Clone, Debug, Deserialize)]
pub struct HeldLine {
    /// Client's address.
    pub client: String,
    /// For how long at least, ms.
    pub held_ms: u32,
    /// Whether nothing is answered from the cache meanwhile.
    pub all_keys: bool,
    /// What is waited for.
    pub why: String,
}

/// One counter.
#[derive(Clone, Debug, Deserialize)]
pub struct Counter {
    /// Name as in `reasons.def`.
    pub name: String,
    /// The count since the data path was loaded.
    pub count: u64,
}

/// One line of `erb status --conns --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct ConnLine {
    /// Client's address.
    pub client: String,
    /// `new`, `fast`, `bypass` or `old`.
    pub state: String,
    /// Request bytes answered without Redis.
    pub in_delta: u32,
    /// Reply bytes sent without Redis.
    pub out_delta: u32,
}

impl Status {
    /// What a failed wait shows.
    #[must_use]
    pub fn brief(&self) -> String {
        format!(
            "daemon {}, serving {} {:?}, admitting {}, lease {} ms, fence {}, {:?}",
            self.daemon,
            self.serving,
            self.not_serving,
            self.admitting,
            self.lease_left_ms,
            self.fence,
            self.connections
        )
    }
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
