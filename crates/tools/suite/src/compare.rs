// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Outcomes of both servers beside each other, over all rounds.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::parse::{Outcome, Outcomes, TestId};

/// Which server was tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// Redis without ERB.
    Alone,
    /// Redis without ERB, with one more client, which is told of all changes.
    Watched,
    /// Redis with ERB.
    Boosted,
}

impl Server {
    /// In one word, for names of files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Watched => "watched",
            Self::Boosted => "boosted",
        }
    }

    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Alone => "Redis alone",
            Self::Watched => "Redis with one more client",
            Self::Boosted => "Redis boosted",
        }
    }
}

/// How often each outcome was seen.
pub type Seen = BTreeMap<Outcome, u32>;

/// One test on both servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// Outcomes with Redis alone.
    pub alone: Seen,
    /// Outcomes with Redis and one more client; empty if that was not needed.
    pub watched: Seen,
    /// Outcomes with Redis boosted.
    pub boosted: Seen,
    /// What the suite said of the last failure with Redis boosted.
    pub detail: String,
}

impl Pair {
    /// Whether the boosted Redis showed what Redis without ERB never did.
    pub fn differs(&self) -> bool {
        let unseen = |outcome| !self.alone.contains_key(outcome);
        self.boosted
            .keys()
            .any(|outcome| unseen(outcome) && !self.watched.contains_key(outcome))
    }

    /// Whether the boosted Redis showed what Redis shows with one more client, but not alone.
    pub fn sees_client(&self) -> bool {
        !self.differs() && self.unlike_alone()
    }

    /// Whether Redis alone does not always end the same way, and the boosted one no other way.
    pub fn flickers(&self) -> bool {
        !self.unlike_alone() && self.alone.len() > 1
    }

    fn unlike_alone(&self) -> bool {
        self.boosted
            .keys()
            .any(|outcome| !self.alone.contains_key(outcome))
    }

    fn seen(&mut self, server: Server) -> &mut Seen {
        match server {
            Server::Alone => &mut self.alone,
            Server::Watched => &mut self.watched,
            Server::Boosted => &mut self.boosted,
        }
    }
}

/// All tests of a file over all rounds.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    tests: BTreeMap<TestId, Pair>,
    rounds: [u32; 3],
}

impl Comparison {
    /// Adds the outcomes of one run.
    pub fn add(&mut self, server: Server, outcomes: &Outcomes) {
        let rounds = self.rounds[server as usize];
        let known: BTreeSet<_> = self.tests.keys().chain(outcomes.keys()).cloned().collect();
        for id in known {
            let earlier = self.rounds;
            let pair = self.tests.entry(id.clone()).or_insert_with(|| {
                // Nobody came to it in the runs before.
                let mut pair = Pair::default();
                for (seen, count) in [&mut pair.alone, &mut pair.watched, &mut pair.boosted]
                    .into_iter()
                    .zip(earlier)
                {
                    if count > 0 {
                        seen.insert(Outcome::Missing, count);
                    }
                }
                pair
            });
            let ended = outcomes.get(&id);
            let outcome = ended.map_or(Outcome::Missing, |ended| ended.outcome);
            *pair.seen(server).entry(outcome).or_default() += 1;
            if let (Server::Boosted, Some(ended)) = (server, ended)
                && !ended.detail.is_empty()
            {
                pair.detail.clone_from(&ended.detail);
            }
        }
        self.rounds[server as usize] = rounds + 1;
    }

    /// Tests for which [`Pair::differs`].
    pub fn differing(&self) -> impl Iterator<Item = (&TestId, &Pair)> {
        self.tests.iter().filter(|(_, pair)| pair.differs())
    }

    /// Tests for which [`Pair::sees_client`].
    pub fn seeing_client(&self) -> impl Iterator<Item = (&TestId, &Pair)> {
        self.tests.iter().filter(|(_, pair)| pair.sees_client())
    }

    /// Tests for which [`Pair::flickers`].
    pub fn flickering(&self) -> impl Iterator<Item = (&TestId, &Pair)> {
        self.tests.iter().filter(|(_, pair)| pair.flickers())
    }

    /// Tests that Redis alone always fails.
    pub fn failing_alone(&self) -> impl Iterator<Item = &TestId> {
        let failed = |pair: &Pair| {
            pair.alone
                .keys()
                .all(|outcome| matches!(outcome, Outcome::Err | Outcome::Exception))
        };
        self.tests
            .iter()
            .filter(move |(_, pair)| failed(pair))
            .map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::Ended;

    fn run(outcomes: &[(&str, Outcome)]) -> Outcomes {
        outcomes
            .iter()
            .map(|(name, outcome)| {
                let id = TestId {
                    name: (*name).to_owned(),
                    number: 1,
                };
                let detail = String::new();
                (
                    id,
                    Ended {
                        outcome: *outcome,
                        detail,
                    },
                )
            })
            .collect()
    }

    fn names<'a>(found: impl Iterator<Item = (&'a TestId, &'a Pair)>) -> Vec<&'a str> {
        found.map(|(id, _)| id.name.as_str()).collect()
    }

    #[test]
    fn only_what_redis_alone_never_showed_differs() {
        let mut all = Comparison::default();
        let good = run(&[("a", Outcome::Ok), ("b", Outcome::Ok), ("c", Outcome::Err)]);
        all.add(Server::Alone, &good);
        all.add(
            Server::Boosted,
            &run(&[("a", Outcome::Ok), ("b", Outcome::Err), ("c", Outcome::Ok)]),
        );
        assert_eq!(names(all.differing()), ["b", "c"]);
        all.add(
            Server::Alone,
            &run(&[("a", Outcome::Ok), ("b", Outcome::Err), ("c", Outcome::Err)]),
        );
        all.add(Server::Boosted, &good);
        assert_eq!(names(all.differing()), ["c"]);
        assert_eq!(names(all.flickering()), ["b"]);
        assert_eq!(all.failing_alone().count(), 1);
    }

    #[test]
    fn what_any_further_client_shows_is_told_apart() {
        let mut all = Comparison::default();
        let good = run(&[("a", Outcome::Ok), ("b", Outcome::Ok)]);
        all.add(Server::Alone, &good);
        all.add(
            Server::Boosted,
            &run(&[("a", Outcome::Err), ("b", Outcome::Err)]),
        );
        assert_eq!(names(all.differing()), ["a", "b"]);
        all.add(
            Server::Watched,
            &run(&[("a", Outcome::Err), ("b", Outcome::Ok)]),
        );
        assert_eq!(names(all.differing()), ["b"]);
        assert_eq!(names(all.seeing_client()), ["a"]);
        assert_eq!(names(all.flickering()), [""; 0]);
    }

    #[test]
    fn a_test_that_is_come_to_late_was_missing_on_each_server() {
        let mut all = Comparison::default();
        let (few, more) = (run(&[]), run(&[("a", Outcome::Ok)]));
        for server in [Server::Alone, Server::Boosted, Server::Alone] {
            all.add(server, &few);
        }
        all.add(Server::Watched, &more);
        let pair = all.tests.values().next().unwrap();
        assert_eq!(pair.alone[&Outcome::Missing], 2);
        assert_eq!(pair.watched, Seen::from([(Outcome::Ok, 1)]));
        assert_eq!(pair.boosted[&Outcome::Missing], 1);
    }

    #[test]
    fn a_test_that_is_not_come_to_differs() {
        let mut all = Comparison::default();
        let good = run(&[("a", Outcome::Ok), ("b", Outcome::Ok)]);
        all.add(Server::Alone, &good);
        all.add(Server::Boosted, &run(&[("a", Outcome::Ok)]));
        assert_eq!(names(all.differing()), ["b"]);
        // And one that only the boosted Redis comes to.
        let mut all = Comparison::default();
        all.add(Server::Alone, &run(&[("a", Outcome::Ok)]));
        all.add(Server::Boosted, &good);
        assert_eq!(names(all.differing()), ["b"]);
    }
}
