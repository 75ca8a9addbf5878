// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How tests stand after all their results: of this run, and of the parts before it.
//!
//! Invariants: 1. A failed result is red, to be repeated, or unsteady, and only one of these. 2. It is unsteady only if
//! a repetition of its own has passed: neither another round of `--times` nor one that skips itself will do.

use std::collections::BTreeMap;

use erb_steady::Cause;

use crate::run::{Ended, Tested};
use crate::verdict::Verdict;

/// A test that failed, and passed when it was repeated alone.
#[derive(Clone, Copy, Debug)]
pub struct Unsteady<'a> {
    /// The first time, with the output.
    pub failed: &'a Tested,
    /// Why it was repeated.
    pub cause: Cause,
    /// The second time.
    pub passed: &'a Tested,
}

/// What failed.
#[derive(Debug, Default)]
pub struct Standing<'a> {
    /// What counts as it is.
    pub red: Vec<&'a Tested>,
    /// What failed for set-up, pace or patience and was not repeated yet.
    pub to_repeat: Vec<(&'a Tested, Cause)>,
    /// What passed when it was repeated.
    pub unsteady: Vec<Unsteady<'a>>,
}

impl<'a> Standing<'a> {
    /// After these results, each test's in the order in which they came.
    pub fn of(results: impl IntoIterator<Item = &'a Tested>) -> Self {
        let mut by_name: BTreeMap<&str, Vec<&Tested>> = BTreeMap::new();
        for tested in results {
            by_name.entry(&tested.name).or_default().push(tested);
        }
        let mut standing = Self::default();
        by_name.values().for_each(|results| standing.add(results));
        standing
    }

    /// Adds all results of one test.
    fn add(&mut self, results: &[&'a Tested]) {
        let first = self.to_repeat.len();
        for tested in results {
            let first_time = if tested.repeats && self.to_repeat.len() > first {
                Some(self.to_repeat.remove(first))
            } else {
                None
            };
            match (first_time, &tested.ended, tested.verdict()) {
                (Some((failed, cause)), Ended::Passed, _) => self.unsteady.push(Unsteady {
                    failed,
                    cause,
                    passed: tested,
                }),
                // It has failed again, or did not look this time.
                (Some(_), _, _) | (None, Ended::Failed, Verdict::Red) => self.red.push(tested),
                (None, Ended::Failed, Verdict::Repeat(cause)) => {
                    self.to_repeat.push((tested, cause));
                }
                (None, Ended::Passed | Ended::Skipped(_), _) => (),
            }
        }
    }

    /// Names of all that is neither passed nor unsteady.
    pub fn failed(&self) -> Vec<&'a str> {
        let to_repeat = self.to_repeat.iter().map(|(failed, _)| *failed);
        let failed = self.red.iter().copied().chain(to_repeat);
        failed.map(|it| it.name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tested(name: &str, ended: Ended, message: &str, repeats: bool) -> Tested {
        Tested {
            name: name.to_owned(),
            ended,
            output: format!("thread 'x' (7) panicked at crates/x.rs:1:2:\n{message}\n"),
            repeats,
            ..Tested::default()
        }
    }

    fn marked(repeats: bool) -> Tested {
        tested("a", Ended::Failed, "[pace] 1 of 2", repeats)
    }

    fn passed(repeats: bool) -> Tested {
        tested("a", Ended::Passed, "", repeats)
    }

    /// Counts of red ones, of those to be repeated, of unsteady ones.
    fn counts(results: &[Tested]) -> [usize; 3] {
        let standing = Standing::of(results);
        let failed = standing.failed().len();
        let counts = [
            standing.red.len(),
            standing.to_repeat.len(),
            standing.unsteady.len(),
        ];
        assert_eq!(failed, counts[0] + counts[1]);
        counts
    }

    #[test]
    fn only_a_repetition_of_its_own_excuses_a_failure() {
        assert_eq!(counts(&[marked(false)]), [0, 1, 0]);
        assert_eq!(counts(&[marked(false), passed(true)]), [0, 0, 1]);
        assert_eq!(
            counts(&[marked(false), passed(false)]),
            [0, 1, 0],
            "a round"
        );
        let rounds = [marked(false), marked(false), passed(true)];
        assert_eq!(counts(&rounds), [0, 1, 1], "one of two");
        assert_eq!(
            counts(&[passed(true), marked(false)]),
            [0, 1, 0],
            "before it"
        );
    }

    #[test]
    fn what_fails_again_or_skips_itself_is_red_whatever_passes_later() {
        let again = [marked(false), marked(true), passed(false), passed(true)];
        assert_eq!(counts(&again), [1, 0, 0]);
        let skips = tested("a", Ended::Skipped(vec!["no lab".into()]), "", true);
        assert_eq!(counts(&[marked(false), skips]), [1, 0, 0]);
    }

    #[test]
    fn unmarked_panics_and_crashes_beside_marked_ones_are_red() {
        let unmarked = tested("a", Ended::Failed, "wrong bytes", false);
        assert_eq!(counts(&[unmarked, passed(false)]), [1, 0, 0]);
        let crashed = Tested {
            crashed: true,
            ..marked(false)
        };
        assert_eq!(counts(&[crashed, passed(true)]), [1, 0, 0]);
    }

    #[test]
    fn tests_stand_apart() {
        let other = tested("b", Ended::Failed, "[set-up] no lab", false);
        let results = [marked(false), other, passed(true)];
        let standing = Standing::of(&results);
        assert_eq!(standing.to_repeat[0].0.name, "b");
        assert_eq!(standing.unsteady[0].failed.name, "a");
    }
}
