// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sequences, each with the public report that it was made from.
//!
//! A report is named by project and number, so that a failure can be traced to what users saw elsewhere. `{p}w` holds
//! "warm". Connection A does what was reported, B and C are other clients.

mod coherence;
mod connections;
mod numbers;
mod order;
mod roles;

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::sequence::Sequence;

/// Where a further server listens, on the loopback of each server: what some sequences become a replica of.
pub const PRIMARY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 6400);

/// All of them.
#[must_use]
pub fn all() -> Vec<Sequence> {
    [
        order::all(),
        connections::all(),
        numbers::all(),
        coherence::all(),
        roles::all(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sequence::{Need, Step};

    #[test]
    fn names_are_unique_and_each_has_a_report_with_a_number() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|one| one.name).collect();
        assert_eq!(names.len(), all.len());
        for one in &all {
            let numbered = one.report.split('#').nth(1);
            let numbered = numbered.is_some_and(|it| it.starts_with(|c: char| c.is_ascii_digit()));
            assert!(numbered, "{}: {}", one.name, one.report);
        }
    }

    /// One that cannot be played has no steps; every other one says something and compares what comes.
    #[test]
    fn every_sequence_that_can_be_played_compares_replies() {
        for one in all() {
            let nowhere = one.needs.iter().any(|it| matches!(it, Need::Nowhere(_)));
            let compares = one.steps.iter().any(|step| {
                matches!(
                    step,
                    Step::Get(..) | Step::Until(..) | Step::All(_) | Step::Crowd(..)
                )
            });
            assert_eq!(nowhere, one.steps.is_empty(), "{}", one.name);
            assert_ne!(nowhere, compares, "{}", one.name);
        }
    }
}
