// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is told at the end: slowest tests, steps, what was unsteady, skipped or failed, and one line for all.

use std::fmt::Write as _;

use crate::run::{Ended, Tested};
use crate::steps::{Fate, Step};

/// Tests that are named with their times.
const SLOWEST: usize = 20;

/// A test that failed, and passed when it was repeated alone.
#[derive(Clone, Debug)]
pub struct Unsteady {
    /// The first time, with the output.
    pub failed: Tested,
    /// Why it was repeated.
    pub cause: erb_steady::Cause,
    /// The second time.
    pub passed: Tested,
}

/// All that was done.
#[derive(Debug, Default)]
pub struct Summary {
    /// Steps in the order of their ends.
    pub steps: Vec<Step>,
    /// Results of tests, but of those that are unsteady.
    pub tested: Vec<Tested>,
    /// What passed the second time.
    pub unsteady: Vec<Unsteady>,
    /// What was not built.
    pub left: Vec<String>,
}

impl Summary {
    fn failed(&self) -> impl Iterator<Item = &Tested> {
        self.tested.iter().filter(|it| it.ended == Ended::Failed)
    }

    /// Whether all is as it should be: something passed, and nothing failed.
    pub fn is_good(&self) -> bool {
        let passed = self.tested.iter().any(|it| it.ended == Ended::Passed);
        let failed_steps = self.steps.iter().any(|step| step.fate == Fate::Failed);
        (passed || !self.unsteady.is_empty()) && self.failed().next().is_none() && !failed_steps
    }

    /// For people; the last line counts tests, and skipped steps among what was skipped.
    pub fn text(&self, seconds: u64) -> String {
        let mut text = String::new();
        self.times(&mut text);
        self.told_apart(&mut text);
        let (mut passed, mut skipped) = (self.unsteady.len(), 0);
        for tested in &self.tested {
            passed += usize::from(tested.ended == Ended::Passed);
            skipped += usize::from(matches!(tested.ended, Ended::Skipped(_)));
        }
        skipped += self.skipped_steps().count();
        let failed = self.failed().count();
        let _ = writeln!(text, "\n{} unsteady; {seconds} s", self.unsteady.len());
        let _ = writeln!(text, "{passed} passed, {failed} failed, {skipped} skipped");
        text
    }

    fn times(&self, text: &mut String) {
        let mut slow: Vec<&Tested> = self.tested.iter().collect();
        slow.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        slow.truncate(SLOWEST);
        let _ = writeln!(text, "\nThe {} slowest tests:", slow.len());
        for tested in slow {
            let _ = writeln!(text, "{:7.1} s  {}", tested.seconds, tested.name);
        }
        let _ = writeln!(text, "\nSteps, those of both lanes:");
        for step in &self.steps {
            let fate = match &step.fate {
                Fate::Passed => "passed ",
                Fate::Failed => "FAILED ",
                Fate::Skipped(_) => "skipped",
            };
            let _ = writeln!(text, "{:7} s  {fate}  {}", step.seconds, step.name);
        }
    }

    fn skipped_steps(&self) -> impl Iterator<Item = (&str, &str)> {
        self.steps.iter().filter_map(|step| match &step.fate {
            Fate::Skipped(why) => Some((step.name.as_str(), why.as_str())),
            _ => None,
        })
    }

    /// What is not simply passed: each with its reason.
    fn told_apart(&self, text: &mut String) {
        let mut skipped: Vec<String> = self
            .skipped_steps()
            .map(|(name, why)| format!("{name}: {why}"))
            .collect();
        for tested in &self.tested {
            if let Ended::Skipped(why) = &tested.ended {
                skipped.push(format!("{}: {}", tested.name, why.join("; ")));
            }
        }
        let mut left = self.left.clone();
        left.extend(self.tested.iter().flat_map(Tested::left).map(str::to_owned));
        list(text, "Left to ./test --long:", &left);
        list(text, "Skipped:", &skipped);
        let unsteady: Vec<String> = self.unsteady.iter().map(Unsteady::text).collect();
        list(
            text,
            "Unsteady, passed when repeated alone (add each to docs/unsteady.md):",
            &unsteady,
        );
        let failed: Vec<String> = self.failed().map(|it| it.name.clone()).collect();
        list(text, "Failed:", &failed);
        let steps = self.steps.iter().filter(|step| step.fate == Fate::Failed);
        let steps: Vec<String> = steps.map(|step| step.name.clone()).collect();
        list(text, "Steps that failed:", &steps);
    }
}

impl Unsteady {
    /// Both outputs, below the name.
    fn text(&self) -> String {
        let (failed, passed) = (&self.failed, &self.passed);
        format!(
            "{} ({}, {:.1} s, then {:.1} s)\n--- failed:\n{}\n--- passed:\n{}",
            failed.name, self.cause, failed.seconds, passed.seconds, failed.output, passed.output
        )
    }
}

fn list(text: &mut String, heading: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{heading}");
    for line in lines {
        let _ = writeln!(text, "  {}", line.trim_end().replace('\n', "\n    "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tested(name: &str, ended: Ended) -> Tested {
        Tested {
            name: name.to_owned(),
            ended,
            seconds: 2.0,
            output: "said".to_owned(),
        }
    }

    fn step(name: &str, fate: Fate) -> Step {
        Step {
            name: name.to_owned(),
            fate,
            seconds: 3,
        }
    }

    #[test]
    fn every_fate_is_counted_once_and_named() {
        let mut summary = Summary {
            steps: vec![
                step("clippy", Fate::Passed),
                step("module", Fate::Skipped("no QEMU".into())),
            ],
            tested: vec![
                tested("a", Ended::Passed),
                tested("b", Ended::Skipped(vec!["no tshark".into()])),
            ],
            unsteady: vec![Unsteady {
                failed: tested("c", Ended::Failed),
                cause: erb_steady::Cause::Patience,
                passed: tested("c", Ended::Passed),
            }],
            left: vec!["a crate".into()],
        };
        assert!(summary.is_good());
        let text = summary.text(9);
        assert!(
            text.ends_with("\n2 passed, 0 failed, 2 skipped\n"),
            "{text}"
        );
        for said in [
            "module: no QEMU",
            "b: no tshark",
            "Left to ./test --long:\n  a crate",
            "c (patience, 2.0 s, then 2.0 s)",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        summary.tested.push(tested("d", Ended::Failed));
        assert!(!summary.is_good());
        assert!(summary.text(9).contains("Failed:\n  d\n"));
    }

    #[test]
    fn nothing_done_or_a_failed_step_is_not_good() {
        assert!(!Summary::default().is_good());
        let mut summary = Summary {
            tested: vec![tested("a", Ended::Passed)],
            ..Summary::default()
        };
        assert!(summary.is_good());
        summary.steps.push(step("clippy", Fate::Failed));
        assert!(!summary.is_good());
    }
}
