// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came of each sequence: text and JSON.

use std::fmt::Write;

use erb_lab::{Answers, ServerProgram};
use serde::Serialize;

use crate::crew::Outcome;
use crate::sequence::Sequence;

/// Where a sequence was played.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Place {
    /// The server.
    pub server: ServerProgram,
    /// What ERB answers.
    pub mode: Answers,
}

/// A sequence on one server in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// Name.
    pub sequence: &'static str,
    /// Project and number.
    pub report: &'static str,
    /// In no warm play ERB answered what is read, so it was not tried.
    pub slow: bool,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Row {
    /// The row of a sequence.
    pub fn new(place: Place, sequence: &Sequence, outcome: Outcome) -> Self {
        let played = outcome.skipped.is_none() && outcome.difference.is_none();
        Self {
            place,
            sequence: sequence.name,
            report: sequence.report,
            slow: played && outcome.broken.is_none() && outcome.answered_in_front == 0,
            outcome,
        }
    }

    /// What the line begins with.
    const fn word(&self) -> &'static str {
        let outcome = &self.outcome;
        if outcome.difference.is_some() {
            "DIFFERENT"
        } else if outcome.broken.is_some() {
            "BROKEN"
        } else if outcome.skipped.is_some() {
            "skipped"
        } else if self.slow {
            "SLOW"
        } else {
            "same"
        }
    }

    /// The row as text.
    pub fn line(&self) -> String {
        let outcome = &self.outcome;
        let what = match (&outcome.difference, &outcome.broken, &outcome.skipped) {
            (Some(what), ..) | (_, Some(what), _) | (_, _, Some(what)) => what.clone(),
            _ => format!(
                "{} B, {} cuts, {} plays, {} of {} warm ones answered by ERB, {:.1} s",
                outcome.bytes,
                outcome.cuts,
                outcome.plays,
                outcome.answered_in_front,
                outcome.warm_plays,
                outcome.seconds
            ),
        };
        format!(
            "{:<9} {} {} ({}): {what}",
            self.word(),
            place(self.place),
            self.sequence,
            self.report
        )
    }
}

/// A server and a mode as text.
pub fn place(place: Place) -> String {
    format!("{} {}", word(&place.server), word(&place.mode))
}

/// The value's word on the command line.
fn word(value: &impl clap::ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

/// All rows.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Names the keys, and chooses places in long sequences.
    pub seed: u64,
    /// Nothing differs, and nothing was left undone.
    passed: bool,
    /// Servers that could not be had, with the reason.
    pub missing: Vec<String>,
    /// Invariants of ERB that were broken, by place.
    pub broken_invariants: Vec<String>,
    /// One per sequence, server and mode.
    pub rows: Vec<Row>,
}

impl Report {
    /// Nothing yet.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            passed: true,
            missing: Vec::new(),
            broken_invariants: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds a sequence's result.
    pub fn add(&mut self, row: Row) {
        let outcome = &row.outcome;
        self.passed &= outcome.difference.is_none() && outcome.broken.is_none() && !row.slow;
        self.rows.push(row);
    }

    /// Adds what the data path has counted at one place.
    pub fn invariants(&mut self, of: Place, broken: u64) {
        if broken > 0 {
            self.passed = false;
            let text = format!("{}: {broken} invariants were broken", place(of));
            self.broken_invariants.push(text);
        }
    }

    fn count(&self, is_it: impl Fn(&Row) -> bool) -> usize {
        self.rows.iter().filter(|row| is_it(row)).count()
    }

    /// Sequences that could not be played to the end.
    pub fn broken(&self) -> usize {
        self.count(|row| row.outcome.broken.is_some() && row.outcome.difference.is_none())
    }

    /// Sequences that were played.
    pub fn played(&self) -> usize {
        self.count(|row| row.outcome.skipped.is_none())
    }

    /// Whether what was played says something against ERB.
    pub fn has_faults(&self) -> bool {
        !self.broken_invariants.is_empty()
            || self.count(|row| row.slow || row.outcome.difference.is_some()) > 0
    }

    /// Nothing differs, and nothing was left undone.
    pub const fn passed(&self) -> bool {
        self.passed
    }

    /// The table.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        for row in &self.rows {
            let _ = writeln!(text, "{}", row.line());
        }
        for missing in &self.missing {
            let _ = writeln!(text, "skipped   {missing}");
        }
        for broken in &self.broken_invariants {
            let _ = writeln!(text, "INVARIANT {broken}");
        }
        let plays: usize = self.rows.iter().map(|row| row.outcome.plays).sum();
        let _ = writeln!(
            text,
            "{}: {} sequences played {plays} times, {} skipped; {} differ, {} slow, {} broken; seed {}",
            if self.passed { "passed" } else { "FAILED" },
            self.played(),
            self.count(|row| row.outcome.skipped.is_some()),
            self.count(|row| row.outcome.difference.is_some()),
            self.count(|row| row.slow),
            self.broken(),
            self.seed
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome) -> Report {
        let place = Place {
            server: ServerProgram::Redis7,
            mode: Answers::WriteBack,
        };
        let mut report = Report::new(7);
        let sequence = Sequence::new("name", "project #1");
        report.add(Row::new(place, &sequence, outcome));
        report
    }

    #[test]
    fn a_difference_fails_and_is_told_with_its_report() {
        let outcome = Outcome {
            difference: Some("target: a; shadow: b".to_owned()),
            ..Outcome::default()
        };
        let report = report(outcome);
        assert!(!report.passed() && report.has_faults());
        let text = report.to_text();
        let line = "DIFFERENT redis7 write-back name (project #1): target: a; shadow: b\n";
        assert!(text.starts_with(line), "{text}");
    }

    #[test]
    fn what_is_skipped_passes_and_what_was_not_answered_in_front_does_not() {
        let skipped = Outcome {
            skipped: Some("no such command".to_owned()),
            ..Outcome::default()
        };
        let skipped = report(skipped);
        assert!(skipped.passed() && skipped.played() == 0);
        let slow = report(Outcome::default());
        assert!(!slow.passed() && slow.has_faults(), "{}", slow.to_text());
        let broken = Outcome {
            broken: Some("the plain server failed".to_owned()),
            answered_in_front: 1,
            ..Outcome::default()
        };
        let broken = report(broken);
        assert!(!broken.passed() && !broken.has_faults() && broken.broken() == 1);
    }
}
