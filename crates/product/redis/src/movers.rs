// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that wait in BLMOVE or BRPOPLPUSH, of whom nobody knows which key they will make: their stream is older
//! than ERB, or cannot be read. Such a command can do nothing but make a list of a key that was absent. So while
//! one waits, absences are not answered, and what it holds of the fence is given back.
//!
//! Invariants:
//! 1. Absences are off before the share is given back, and until the client waits no more and a list was made
//!    after one that showed so. Redis reports a move at the end of its loop's turn, and the second list is made in a
//!    later turn: its answer is behind the report (Redis src/tracking.c, `trackingBroadcastInvalidationMessages`).
//! 2. Lists go on while anybody is waited for, once a second and for 1 % of Redis's time at most.

use std::collections::HashSet;

use crate::client_list::ClientLine;

/// Lists in a row that must show nobody.
const LISTS: u8 = 2;

/// Who waits, by Redis's number of the connection.
#[derive(Debug, Default)]
pub(crate) struct Movers {
    waiting: HashSet<u64>,
    lists_to_come: u8,
}

impl Movers {
    /// Nobody waits: absences may be answered.
    pub(crate) const fn are_gone(&self) -> bool {
        self.lists_to_come == 0
    }

    /// A client waits, as a list shows.
    pub(crate) fn add(&mut self, id: u64) {
        self.waiting.insert(id);
        self.lists_to_come = LISTS;
    }

    /// A list has come, before anybody of it is added.
    pub(crate) fn take(&mut self, list: &[ClientLine]) {
        if self.are_gone() {
            return;
        }
        let moving = list.iter().filter(|line| line.blocks_in_a_move());
        let moving: HashSet<u64> = moving.map(|line| line.id).collect();
        self.waiting.retain(|id| moving.contains(id));
        self.lists_to_come = if self.waiting.is_empty() {
            self.lists_to_come - 1
        } else {
            LISTS
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_list::parse;

    fn list(flags: &str, command: &str) -> Vec<ClientLine> {
        parse(&format!("id=7 flags={flags} cmd={command} qbuf=0\n"))
    }

    #[test]
    fn absences_are_off_until_the_second_list_without_the_client() {
        let mut movers = Movers::default();
        assert!(movers.are_gone());
        movers.add(7);
        for (flags, command, are_gone) in [
            ("b", "blmove", false),
            ("b", "brpoplpush", false),
            ("N", "blmove", false), // it has moved, and its report may be under way
            ("N", "blmove", true),
            ("b", "blmove", true), // another one's, whose marks stand
        ] {
            movers.take(&list(flags, command));
            assert_eq!(movers.are_gone(), are_gone, "{flags} {command}");
        }
        movers.add(7);
        movers.take(&[]);
        movers.add(8);
        movers.take(&[]);
        assert!(!movers.are_gone(), "two lists after the last one came");
        movers.take(&[]);
        assert!(movers.are_gone());
    }
}
