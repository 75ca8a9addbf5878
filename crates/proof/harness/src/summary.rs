// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is told at the end: slowest tests, steps, what was unsteady, skipped or failed, and one line for all.

use std::fmt::Write as _;

use crate::history::{Standing, Unsteady};
use crate::run::{Ended, Tested};
use crate::steps::{Fate, Step};

/// Tests that are named with their times.
const SLOWEST: usize = 20;

/// All that was done.
#[derive(Debug, Default)]
pub struct Summary {
    /// Steps in the order of their ends.
    pub steps: Vec<Step>,
    /// Results of tests, of parts before this run.
    pub before: Vec<Tested>,
    /// Results of tests, with those that were repeated.
    pub tested: Vec<Tested>,
    /// What was not built.
    pub left: Vec<String>,
}

impl Summary {
    fn all(&self) -> impl Iterator<Item = &Tested> {
        self.before.iter().chain(&self.tested)
    }

    /// How all tests stand.
    pub fn standing(&self) -> Standing<'_> {
        Standing::of(self.all())
    }

    /// Whether a test or a step has failed, and is not unsteady.
    pub fn has_failed(&self) -> bool {
        let failed_steps = self.steps.iter().any(|step| step.fate == Fate::Failed);
        failed_steps || !self.standing().failed().is_empty()
    }

    /// Whether anything has passed.
    pub fn has_passed(&self) -> bool {
        self.all().any(|it| it.ended == Ended::Passed)
    }

    /// For people; the last line counts tests, and skipped steps among what was skipped.
    pub fn text(&self, seconds: u64) -> String {
        let standing = self.standing();
        let mut text = String::new();
        self.times(&mut text);
        self.told_apart(&mut text, &standing);
        let unsteady = standing.unsteady.len();
        let first = || self.all().filter(|it| !it.repeats);
        let passed = first().filter(|it| it.ended == Ended::Passed).count() + unsteady;
        let skipped = first().filter(|it| matches!(it.ended, Ended::Skipped(_)));
        let skipped = skipped.count() + self.skipped_steps().count();
        let failed = standing.failed().len();
        let of = if self.before.is_empty() {
            ""
        } else {
            ", with the parts before"
        };
        let _ = writeln!(text, "\n{unsteady} unsteady; {seconds} s");
        let _ = writeln!(
            text,
            "{passed} passed, {failed} failed, {skipped} skipped{of}"
        );
        text
    }

    fn times(&self, text: &mut String) {
        let mut slow: Vec<&Tested> = self.all().collect();
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
    fn told_apart(&self, text: &mut String, standing: &Standing) {
        let mut skipped: Vec<String> = self
            .skipped_steps()
            .map(|(name, why)| format!("{name}: {why}"))
            .collect();
        for tested in self.all().filter(|it| !it.repeats) {
            if let Ended::Skipped(why) = &tested.ended {
                skipped.push(format!("{}: {}", tested.name, why.join("; ")));
            }
        }
        let mut left = self.left.clone();
        left.extend(self.tested.iter().flat_map(Tested::left).map(str::to_owned));
        list(text, "Left to ./test --long:", &left);
        list(text, "Skipped:", &skipped);
        let unsteady: Vec<String> = standing.unsteady.iter().map(unsteady_text).collect();
        list(
            text,
            "Unsteady, passed when repeated alone (add each to docs/unsteady.md):",
            &unsteady,
        );
        let failed: Vec<String> = standing.failed().into_iter().map(str::to_owned).collect();
        list(text, "Failed:", &failed);
        let steps = self.steps.iter().filter(|step| step.fate == Fate::Failed);
        let steps: Vec<String> = steps.map(|step| step.name.clone()).collect();
        list(text, "Steps that failed:", &steps);
    }
}

/// Both outputs, below the name.
fn unsteady_text(unsteady: &Unsteady) -> String {
    let (failed, passed) = (unsteady.failed, unsteady.passed);
    format!(
        "{} ({}, {:.1} s, then {:.1} s)\n--- failed:\n{}\n--- passed:\n{}",
        failed.name, unsteady.cause, failed.seconds, passed.seconds, failed.output, passed.output
    )
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
            ..Tested::default()
        }
    }

    fn step(name: &str, fate: Fate) -> Step {
        Step {
            name: name.to_owned(),
            fate,
            seconds: 3,
        }
    }

    /// A result that may be repeated, and its repetition.
    fn unsteady() -> [Tested; 2] {
        let failed = Tested {
            output: "thread 'x' (7) panicked at x.rs:1:2:\n[patience] no reply\n".to_owned(),
            ..tested("c", Ended::Failed)
        };
        let passed = Tested {
            repeats: true,
            ..tested("c", Ended::Passed)
        };
        [failed, passed]
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
            left: vec!["a crate".into()],
            ..Summary::default()
        };
        summary.tested.extend(unsteady());
        assert!(!summary.has_failed());
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
        assert!(summary.has_failed());
        assert!(summary.text(9).contains("Failed:\n  d\n"));
    }

    #[test]
    fn what_failed_in_a_part_before_is_named_and_what_it_left_to_repeat_is_repeated() {
        let [failed, passed] = unsteady();
        let mut summary = Summary {
            before: vec![failed],
            tested: vec![tested("a", Ended::Passed)],
            ..Summary::default()
        };
        assert!(summary.has_failed());
        let text = summary.text(9);
        assert!(text.contains("Failed:\n  c\n"), "{text}");
        summary.tested.push(passed);
        assert!(!summary.has_failed());
        let text = summary.text(9);
        assert!(
            text.ends_with("\n2 passed, 0 failed, 0 skipped, with the parts before\n"),
            "{text}"
        );
    }

    #[test]
    fn nothing_done_has_not_passed_and_a_failed_step_has_failed() {
        assert!(!Summary::default().has_passed());
        let mut summary = Summary {
            before: vec![tested("a", Ended::Passed)],
            ..Summary::default()
        };
        assert!(summary.has_passed() && !summary.has_failed());
        summary.steps.push(step("clippy", Fate::Failed));
        assert!(summary.has_failed());
    }
}
