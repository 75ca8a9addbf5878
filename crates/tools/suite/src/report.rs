// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was found: text and JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use erb_lab::{Answers, ServerProgram};
use serde::Serialize;

use crate::compare::{Comparison, Pair, Seen, Server};
use crate::parse::{Outcome, TestId};
use crate::repeat::ReadTable;
use crate::shares::ReadsReport;
use crate::source::Suite;
use crate::stage::{UnitRun, Work};
use crate::{Databases, SuiteArgs};

/// Lines of the suite's own message that the text shows.
const DETAIL_LINES: usize = 6;
/// Reasons for refusals that the text shows.
const REASONS_SHOWN: usize = 6;

/// A test with its outcomes.
#[derive(Clone, Debug, Serialize)]
pub struct TestReport {
    #[serde(flatten)]
    id: TestId,
    #[serde(flatten)]
    pair: Pair,
}

impl TestReport {
    fn of((id, pair): (&TestId, &Pair)) -> Self {
        Self {
            id: id.clone(),
            pair: pair.clone(),
        }
    }

    fn title(&self) -> String {
        let number = match self.id.number {
            1 => String::new(),
            number => format!(" (number {number} of this name)"),
        };
        let watched = match self.pair.watched.is_empty() {
            true => String::new(),
            false => format!("; with one more client {}", text_of(&self.pair.watched)),
        };
        format!(
            "{}{number}: alone {}{watched}; boosted {}",
            self.id.name,
            text_of(&self.pair.alone),
            text_of(&self.pair.boosted)
        )
    }
}

/// One file of the suite.
#[derive(Clone, Debug, Serialize)]
pub struct UnitReport {
    unit: String,
    databases: Databases,
    rounds: u32,
    /// Outcomes of the first round.
    alone: Seen,
    boosted: Seen,
    seconds_alone: f64,
    seconds_boosted: f64,
    /// Commands that ERB answered and packets that it did not, over all rounds.
    answered: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    broken: Vec<String>,
    /// Reads of the fast list by command, with --repeat-reads, in the first round: a file that is repeated
    /// must not count for more than others.
    #[serde(skip_serializing_if = "ReadTable::is_empty")]
    reads: ReadTable,
    differing: Vec<TestReport>,
    seeing_client: Vec<TestReport>,
    flickering: Vec<TestReport>,
    failing_alone: Vec<String>,
}

impl UnitReport {
    /// Of a file that was not run yet.
    pub fn new(unit: &str, databases: Databases) -> Self {
        Self {
            unit: unit.to_owned(),
            databases,
            rounds: 0,
            alone: Seen::new(),
            boosted: Seen::new(),
            seconds_alone: 0.0,
            seconds_boosted: 0.0,
            answered: BTreeMap::new(),
            refused: BTreeMap::new(),
            broken: Vec::new(),
            reads: ReadTable::new(),
            differing: Vec::new(),
            seeing_client: Vec::new(),
            flickering: Vec::new(),
            failing_alone: Vec::new(),
        }
    }

    /// Counts one run.
    pub fn count(&mut self, server: Server, run: &UnitRun) {
        let (seen, seconds) = match server {
            Server::Alone => (&mut self.alone, &mut self.seconds_alone),
            Server::Boosted => (&mut self.boosted, &mut self.seconds_boosted),
            Server::Watched => return,
        };
        if seen.is_empty() {
            for ended in run.outcomes.values() {
                *seen.entry(ended.outcome).or_default() += 1;
            }
        }
        *seconds += run.seconds;
        let Some(work) = &run.work else { return };
        if self.rounds == 0 {
            self.reads.clone_from(&work.reads);
        }
        let mut sum = Work {
            answered: std::mem::take(&mut self.answered),
            refused: std::mem::take(&mut self.refused),
            broken: std::mem::take(&mut self.broken),
            reads: ReadTable::new(),
        };
        sum.add(work);
        (self.answered, self.refused) = (sum.answered, sum.refused);
        self.broken = sum.broken;
        self.rounds += 1;
    }

    /// Takes over what the comparison of all rounds found.
    pub fn judge(&mut self, all: &Comparison) {
        self.differing = all.differing().map(TestReport::of).collect();
        self.seeing_client = all.seeing_client().map(TestReport::of).collect();
        self.flickering = all.flickering().map(TestReport::of).collect();
        self.failing_alone = all.failing_alone().map(|id| id.name.clone()).collect();
    }

    /// Whether ERB made no difference.
    fn same(&self) -> bool {
        self.differing.is_empty() && self.broken.is_empty()
    }

    fn passed(&self) -> u32 {
        self.boosted.get(&Outcome::Ok).copied().unwrap_or(0)
    }

    /// The file in one line.
    pub fn line(&self) -> String {
        let verdict = if self.same() { "same" } else { "DIFFERS" };
        let mut more = String::new();
        for (count, what) in [
            (self.seeing_client.len(), "see one more client"),
            (self.flickering.len(), "differ also without ERB"),
        ] {
            if count > 0 {
                let _ = write!(more, ", {count} {what}");
            }
        }
        format!(
            "{verdict} {} (databases: {}): alone {}; boosted {}; {} commands answered by ERB, {} \
             packets refused; {} rounds, {:.0} s{more}",
            self.unit,
            self.databases.name(),
            text_of(&self.alone),
            text_of(&self.boosted),
            self.answered.values().sum::<u64>(),
            self.refused.values().sum::<u64>(),
            self.rounds,
            self.seconds_alone + self.seconds_boosted,
        )
    }
}

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    suite: String,
    fast: bool,
    server: ServerProgram,
    mode: Answers,
    io_threads: Option<u8>,
    logs: PathBuf,
    same: bool,
    tests_passed: u32,
    tests_differing: usize,
    tests_seeing_client: usize,
    tests_flickering: usize,
    tests_failing_alone: usize,
    answered: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reads: Option<ReadsReport>,
    units: Vec<UnitReport>,
}

impl Report {
    /// Without a file yet.
    pub fn new(suite: &Suite, args: &SuiteArgs) -> Self {
        let reads = || ReadsReport::new(args.share_min);
        Self {
            suite: suite.origin.clone(),
            fast: args.fast,
            server: args.server,
            mode: args.mode,
            io_threads: args.io_threads,
            logs: suite.logs().to_owned(),
            same: true,
            tests_passed: 0,
            tests_differing: 0,
            tests_seeing_client: 0,
            tests_flickering: 0,
            tests_failing_alone: 0,
            answered: BTreeMap::new(),
            refused: BTreeMap::new(),
            reads: args.repeat_reads.then(reads),
            units: Vec::new(),
        }
    }

    /// Adds a file.
    pub fn add(&mut self, unit: UnitReport) {
        self.same &= unit.same();
        self.tests_passed += unit.passed();
        self.tests_differing += unit.differing.len();
        self.tests_seeing_client += unit.seeing_client.len();
        self.tests_flickering += unit.flickering.len();
        self.tests_failing_alone += unit.failing_alone.len();
        for (sum, more) in [
            (&mut self.answered, &unit.answered),
            (&mut self.refused, &unit.refused),
        ] {
            for (name, count) in more {
                *sum.entry(name.clone()).or_default() += count;
            }
        }
        if let Some(reads) = &mut self.reads {
            reads.add(&unit.reads);
        }
        self.units.push(unit);
    }

    /// Whether ERB made no difference anywhere, and answered what it was to answer.
    pub fn passed(&self) -> bool {
        self.same && self.reads.as_ref().is_none_or(ReadsReport::enough)
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut text = format!("Redis's own test suite, {}\n", self.suite);
        for unit in &self.units {
            self.add_findings(unit, &mut text);
        }
        // Writing to a String cannot fail; the same below.
        let _ = writeln!(
            text,
            "{} files; {} tests passed boosted, {} ended otherwise than without ERB, {} see that \
             Redis has one more client, {} differ also without ERB, {} fail with Redis alone as well",
            self.units.len(),
            self.tests_passed,
            self.tests_differing,
            self.tests_seeing_client,
            self.tests_flickering,
            self.tests_failing_alone,
        );
        let _ = writeln!(text, "answered by ERB: {}", counts(&self.answered));
        let _ = writeln!(text, "left to Redis:   {}", counts(&self.refused));
        if let Some(reads) = &self.reads {
            reads.add_to(&mut text);
        }
        let _ = writeln!(text, "the suite's own output: {}", self.logs.display());
        text.push_str(match (self.same, self.tests_seeing_client) {
            (true, 0) => "the same result test by test\n",
            (true, _) => "the same result test by test, but for those that see one more client\n",
            (false, _) => "NOT the same\n",
        });
        text
    }

    fn add_findings(&self, unit: &UnitReport, text: &mut String) {
        let place = format!("{} (databases: {})", unit.unit, unit.databases.name());
        for broken in &unit.broken {
            let _ = writeln!(text, "BROKEN in {place}: {broken}");
        }
        for test in &unit.differing {
            let _ = writeln!(text, "DIFFERS in {place}: {}", test.title());
            for line in test.pair.detail.lines().take(DETAIL_LINES) {
                let _ = writeln!(text, "    {line}");
            }
        }
        for test in &unit.seeing_client {
            let _ = writeln!(text, "sees one more client in {place}: {}", test.title());
        }
        for test in &unit.flickering {
            let _ = writeln!(
                text,
                "differs also without ERB in {place}: {}",
                test.title()
            );
        }
        for name in &unit.failing_alone {
            let _ = writeln!(text, "fails with Redis alone in {place}: {name}");
        }
    }
}

/// `ok 12, err 1`.
fn text_of(seen: &Seen) -> String {
    let parts: Vec<String> = seen
        .iter()
        .map(|(outcome, count)| format!("{} {count}", outcome.name()))
        .collect();
    if parts.is_empty() {
        return "nothing".to_owned();
    }
    parts.join(", ")
}

/// The largest counts, largest first.
fn counts(all: &BTreeMap<String, u64>) -> String {
    let mut sorted: Vec<_> = all.iter().collect();
    sorted.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
    let parts: Vec<String> = sorted
        .iter()
        .take(REASONS_SHOWN)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if parts.is_empty() {
        return "nothing".to_owned();
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::Outcomes;
    use crate::repeat::Read;

    #[test]
    fn reads_count_once_however_often_a_file_is_repeated() {
        let mut unit = UnitReport::new("unit/x", Databases::Many);
        for sent in [3, 5] {
            let read = Read {
                sent,
                ..Read::default()
            };
            let work = Work {
                answered: BTreeMap::from([("FAST_GET".to_owned(), 1)]),
                reads: ReadTable::from([("get".to_owned(), read)]),
                ..Work::default()
            };
            let run = UnitRun {
                outcomes: Outcomes::new(),
                seconds: 1.0,
                work: Some(work),
            };
            unit.count(Server::Boosted, &run);
        }
        assert_eq!((unit.reads["get"].sent, unit.rounds), (3, 2));
        assert_eq!(unit.answered["FAST_GET"], 2);
    }
}
