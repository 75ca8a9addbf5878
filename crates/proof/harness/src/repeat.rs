// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What runs alone after the lanes: what failed for set-up, pace or patience, once more; canaries.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};

use crate::lanes::Lane;
use crate::programs::Program;
use crate::run::{Ended, Job};
use crate::session::{Session, Tests};
use crate::summary::Summary;
use crate::tell;
use crate::verdict::Verdict;

/// Tests that are repeated at most: more do not fail by chance.
const REPEATS_MAX: usize = 10;
/// In the names of tests that have to fail where they are told to.
const CANARY: &str = "canary::";

impl Session<'_> {
    /// Repeats alone, once, what failed for set-up, pace or patience, in this part or in one before.
    pub fn repeat(&self, tests: &Tests, summary: &mut Summary) {
        let programs = by_name(tests);
        let standing = summary.standing();
        let to_repeat = standing.to_repeat.iter();
        let to_repeat: Vec<_> = to_repeat
            .map(|(failed, cause)| (failed.name.clone(), *cause))
            .collect();
        if to_repeat.len() > REPEATS_MAX {
            tell!(
                "{} tests failed for set-up, pace or patience: too many for chance, none is repeated",
                to_repeat.len()
            );
            return;
        }
        for (name, cause) in to_repeat {
            let Some(job) = alone(&programs, &name) else {
                continue;
            };
            if self.stop.is_now() {
                return;
            }
            tell!("\n== repeated alone ({cause}): {name}");
            let Some(mut results) = job.run(&self.stop) else {
                return;
            };
            results.iter_mut().for_each(|it| it.repeats = true);
            self.heard(&job, &results);
            summary.tested.extend(results);
        }
    }

    /// Deliberate mistakes, one in each lane, are red: nothing of all this has become unable to fail.
    pub fn canaries(&self, tests: &Tests) -> Result<bool> {
        let programs = by_name(tests);
        let mut red = BTreeMap::from([Lane::Kernel, Lane::Compute].map(|lane| (lane, 0)));
        for (program, tests) in tests {
            for test in tests.iter().filter(|test| test.contains(CANARY)) {
                let name = format!("{}::{test}", program.name());
                let mut job = alone(&programs, &name).context("a test of its program")?;
                job.canary = true;
                let Some(results) = job.run(&self.stop) else {
                    return Ok(false);
                };
                // By its panic: a program that crashes is red for another reason.
                let is_red = results.iter().all(|it| {
                    it.ended == Ended::Failed && !it.crashed && it.verdict() == Verdict::Red
                });
                let word = if is_red {
                    "red, as it should be"
                } else {
                    "NOT RED"
                };
                tell!("{name}: {word}");
                ensure!(is_red, "{name}: a deliberate mistake passes: {results:?}");
                *red.entry(Lane::of(program)).or_default() += 1;
            }
        }
        ensure!(
            red.values().all(|count| *count > 0),
            "a lane has no canary: {red:?}"
        );
        Ok(true)
    }
}

fn by_name(tests: &Tests) -> BTreeMap<String, &Program> {
    let pairs = tests.iter().map(|(program, _)| (program.name(), program));
    pairs.collect()
}

/// The job of one test by its name.
pub fn alone<'a>(programs: &BTreeMap<String, &'a Program>, name: &str) -> Option<Job<'a>> {
    // The longest name fits: `sim::lane` and not `sim`.
    let found = programs.iter().rev().find_map(|(program, found)| {
        let test = name.strip_prefix(program.as_str())?.strip_prefix("::")?;
        Some((*found, test.to_owned()))
    });
    found.map(|(program, test)| Job::new(program, vec![test]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn a_test_is_found_in_the_program_with_the_longest_name() {
        let (unit, lane) = (fake::named("sim", None), fake::named("sim", Some("lane")));
        let programs = BTreeMap::from([(unit.name(), &unit), (lane.name(), &lane)]);
        let found = alone(&programs, "sim::lane::a::b").expect("a job");
        assert_eq!((found.program, &found.tests[0][..]), (&lane, "a::b"));
        let found = alone(&programs, "sim::other::a").expect("a job");
        assert_eq!((found.program, &found.tests[0][..]), (&unit, "other::a"));
        assert!(alone(&programs, "wire::a").is_none());
    }
}
