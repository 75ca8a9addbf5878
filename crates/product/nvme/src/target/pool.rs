// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room for commands' data, and the hosts that wait for it. Nothing is allocated here: bytes are counted before they are
//! allocated elsewhere.
//!
//! Invariants:
//! 1. What is reserved is at most the pool. A host has at most a part of what the others leave, or one command where it
//!    has nothing. So hosts that give nothing back leave room for others, whatever they ask for.
//! 2. What was reserved comes back once.
//! 3. A host that waits is before all that have more than it. Of those that have as much, the one that has waited longer
//!    is first, counted anew from when it got something, or gave back its last. So whatever others ask for meanwhile, the first one gets what comes back. Data that is here already has
//!    no place in that order: it is small, and leaves when the backend is done.

use std::collections::{BTreeSet, HashMap};

use super::subsystem::ConnectionId;

/// What may be reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// By all.
    pub(super) pool_bytes: usize,
    /// By a host: what the others leave, divided by this.
    pub(super) host_part: usize,
}

/// A host that waits for room.
#[derive(Debug)]
struct Waits {
    /// Rises with each time that a host begins to wait.
    since: u64,
    connections: BTreeSet<ConnectionId>,
}

/// Room for commands' data.
#[derive(Debug, Default)]
pub(super) struct Pool {
    reserved: usize,
    by_host: HashMap<String, usize>,
    waiting: HashMap<String, Waits>,
    next_wait: u64,
}

impl Pool {
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    fn held(&self, host: &str) -> usize {
        self.by_host.get(host).copied().unwrap_or_default()
    }

    /// Whether there was room, which is now taken. `is_here`: for data that has come with its command.
    pub(super) fn reserve(
        &mut self,
        host: &str,
        bytes: usize,
        bounds: Bounds,
        is_here: bool,
    ) -> bool {
        if bytes == 0 {
            return true;
        }
        let has = self.held(host);
        let left_by_others = bounds.pool_bytes.saturating_sub(self.reserved - has);
        let most = left_by_others / bounds.host_part.max(1);
        let is_within = self.reserved + bytes <= bounds.pool_bytes;
        let is_its_part = has == 0 || has + bytes <= most;
        if !is_within || !is_its_part || !is_here && self.is_behind_others(host) {
            return false;
        }
        self.reserved += bytes;
        self.by_host.insert(host.to_owned(), has + bytes);
        self.waits_anew(host);
        true
    }

    /// If it waits still, all that have as much and waited before are to be before it.
    fn waits_anew(&mut self, host: &str) {
        if let Some(waits) = self.waiting.get_mut(host) {
            self.next_wait += 1;
            waits.since = self.next_wait;
        }
    }

    /// Whether another host waits that is to have room first.
    fn is_behind_others(&self, host: &str) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let since = self.waiting.get(host).map_or(u64::MAX, |it| it.since);
        let own = (self.held(host), since);
        self.waiting
            .iter()
            .any(|(other, waits)| other != host && (self.held(other), waits.since) < own)
    }

    /// Whether another host waits that has less.
    pub(super) fn keeps_from_others(&self, host: &str) -> bool {
        let has = self.held(host);
        let mut others = self.waiting.keys();
        others.any(|other| other != host && self.held(other) < has)
    }

    /// A connection of a host's waits for room.
    pub(super) fn wait(&mut self, host: &str, connection: ConnectionId) {
        if let Some(waits) = self.waiting.get_mut(host) {
            waits.connections.insert(connection);
            return;
        }
        self.next_wait += 1;
        let waits = Waits {
            since: self.next_wait,
            connections: [connection].into(),
        };
        self.waiting.insert(host.to_owned(), waits);
    }

    /// It does not wait any more: it has got room, or it has ended. Whether it did.
    pub(super) fn leave(&mut self, host: &str, connection: ConnectionId) -> bool {
        let Some(waits) = self.waiting.get_mut(host) else {
            return false;
        };
        let has_waited = waits.connections.remove(&connection);
        if waits.connections.is_empty() {
            self.waiting.remove(host);
        }
        has_waited
    }

    pub(super) fn release(&mut self, host: &str, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.reserved -= bytes;
        let has = self.by_host.get_mut(host);
        let has = has.expect("a host gives back what it took");
        *has -= bytes;
        if *has == 0 {
            self.by_host.remove(host);
            self.waits_anew(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        pool_bytes: 256,
        host_part: 4,
    };

    fn takes_all(pool: &mut Pool, host: &str) -> usize {
        (0..)
            .take_while(|_| pool.reserve(host, 1, BOUNDS, false))
            .count()
    }

    #[test]
    fn a_host_leaves_the_next_one_room_however_many_there_are() {
        let mut pool = Pool::default();
        let taken: Vec<usize> = (0..8)
            .map(|number| takes_all(&mut pool, &format!("host {number}")))
            .collect();
        assert_eq!(taken, [64, 48, 36, 27, 20, 15, 11, 8]);
        // What comes back is there for all.
        pool.release("host 0", 64);
        assert_eq!(takes_all(&mut pool, "host 8"), 22);
    }

    #[test]
    fn hosts_that_wait_have_room_in_their_order_whatever_those_with_more_ask_for() {
        let mut pool = Pool::default();
        for number in 0..256 {
            assert!(takes_all(&mut pool, &format!("host {number}")) > 0 || pool.reserved() == 256);
        }
        let connection = ConnectionId;
        pool.wait("first", connection(1));
        pool.wait("second", connection(2));
        assert!(pool.keeps_from_others("host 0") && !pool.keeps_from_others("first"));
        pool.release("host 0", 2);
        let others = ["host 0", "host 1", "second", "third"];
        assert!(
            others
                .iter()
                .all(|host| !pool.reserve(host, 1, BOUNDS, false))
        );
        assert!(pool.reserve("first", 1, BOUNDS, false) && pool.leave("first", connection(1)));
        assert!(!pool.reserve("third", 1, BOUNDS, false));
        assert!(pool.reserve("second", 1, BOUNDS, false) && pool.leave("second", connection(2)));
        assert!(!pool.leave("second", connection(2)));
        assert!(!pool.keeps_from_others("host 1"));
    }
}
