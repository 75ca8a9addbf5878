// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite's output: one outcome per test.
//!
//! The suite prints `[STATUS]: text`; for tests that passed the text is the name and `(N ms)`, for
//! failed ones `NAME in FILE` and details on further lines, for those it leaves out the name and
//! the reason, or only the reason where a whole group is left out.

use std::collections::BTreeMap;

use serde::Serialize;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It passed.
    Ok,
    /// It failed.
    Err,
    /// The suite left it out by a tag.
    Ignore,
    /// The suite left it out by an option.
    Skip,
    /// The suite's program broke, or an error outside of any test stopped it.
    Exception,
    /// The suite ended it for its silence, or it was ended for its length.
    Timeout,
    /// It was not come to.
    Missing,
}

impl Outcome {
    const PRINTED: [(&'static str, Self); 6] = [
        ("ok", Self::Ok),
        ("err", Self::Err),
        ("ignore", Self::Ignore),
        ("skip", Self::Skip),
        ("exception", Self::Exception),
        ("TIMEOUT", Self::Timeout),
    ];

    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Err => "err",
            Self::Ignore => "ignore",
            Self::Skip => "skip",
            Self::Exception => "exception",
            Self::Timeout => "timeout",
            Self::Missing => "missing",
        }
    }
}

/// A test: its name, and which of the tests of this name in its file (from 1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TestId {
    /// As the suite prints it.
    pub name: String,
    /// Several tests of one file may have the same name.
    pub number: u32,
}

/// How a test ended, and what the suite said if it did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub outcome: Outcome,
    /// What the suite said.
    pub detail: String,
}

/// Outcomes of one run of one file.
pub type Outcomes = BTreeMap<TestId, Ended>;

/// Reads the output of one file `unit`; `killed` if it was ended for its length.
pub fn parse(output: &str, unit: &str, killed: bool) -> Outcomes {
    let text = without_colours(output);
    let mut outcomes = Outcomes::new();
    let mut current: Option<(Outcome, String)> = None;
    for line in text.lines() {
        match statement(line) {
            Some(Line::Ended(outcome, rest)) => {
                keep(&mut outcomes, current.take(), unit);
                current = Some((outcome, rest.to_owned()));
            }
            Some(Line::Other) => keep(&mut outcomes, current.take(), unit),
            None => {
                if let Some((_, said)) = &mut current {
                    said.push('\n');
                    said.push_str(line);
                }
            }
        }
    }
    keep(&mut outcomes, current, unit);
    let done = text.lines().any(|line| is_done(line, unit));
    if killed {
        insert(&mut outcomes, unit, Outcome::Timeout, "it took too long");
    } else if !done && !broken(&outcomes) {
        let said = text.lines().last().unwrap_or("nothing").to_owned();
        insert(&mut outcomes, unit, Outcome::Exception, &said);
    }
    outcomes
}

fn broken(outcomes: &Outcomes) -> bool {
    let bad = |ended: &Ended| matches!(ended.outcome, Outcome::Exception | Outcome::Timeout);
    outcomes.values().any(bad)
}

enum Line<'a> {
    Ended(Outcome, &'a str),
    Other,
}

/// A line that is a statement of the suite, not the continuation of one.
fn statement(line: &str) -> Option<Line<'_>> {
    if line.starts_with("Testing ") || line.trim() == "The End" || line.starts_with("===== ") {
        return Some(Line::Other);
    }
    let (status, rest) = line.strip_prefix('[')?.split_once("]: ")?;
    let known = Outcome::PRINTED.iter().find(|(name, _)| *name == status);
    if let Some((_, outcome)) = known {
        return Some(Line::Ended(*outcome, rest));
    }
    let other = status.ends_with(" done") || matches!(status, "ready" | "testing");
    other.then_some(Line::Other)
}

/// `[1/1 done]: unit/dump (3 seconds)`.
fn is_done(line: &str, unit: &str) -> bool {
    line.starts_with('[')
        && line
            .split_once(" done]: ")
            .and_then(|(_, rest)| rest.strip_prefix(unit))
            .is_some_and(|rest| rest.starts_with(" ("))
}

fn keep(outcomes: &mut Outcomes, found: Option<(Outcome, String)>, unit: &str) {
    let Some((outcome, said)) = found else { return };
    // What the next test prints comes behind the outcome of this one.
    let first = said.lines().next().unwrap_or_default();
    match outcome {
        Outcome::Ok => insert(outcomes, without_time(first), outcome, ""),
        Outcome::Err => {
            let file = format!(" in tests/{unit}.tcl");
            // An error outside of any test has no name of its own: it is the file's.
            match first.strip_suffix(&file) {
                Some(name) => insert(outcomes, name, outcome, said.trim_end()),
                None => insert(outcomes, unit, outcome, said.trim_end()),
            }
        }
        Outcome::Ignore | Outcome::Skip => insert(outcomes, first, outcome, ""),
        _ => insert(outcomes, unit, outcome, said.trim_end()),
    }
}

fn insert(outcomes: &mut Outcomes, name: &str, outcome: Outcome, detail: &str) {
    let mut id = TestId {
        name: name.to_owned(),
        number: 1,
    };
    while outcomes.contains_key(&id) {
        id.number += 1;
    }
    let detail = detail.to_owned();
    outcomes.insert(id, Ended { outcome, detail });
}

/// `NAME (12 ms)` without the time.
fn without_time(text: &str) -> &str {
    text.strip_suffix(" ms)")
        .and_then(|rest| rest.rsplit_once(" ("))
        .filter(|(_, digits)| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(text, |(name, _)| name)
}

/// Without the escape sequences of colours, which the suite prints on some terminals.
fn without_colours(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |mut all, piece| {
        let code = piece
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b';')
            .count();
        let rest = piece.get(code..).unwrap_or_default();
        all.push_str(rest.strip_prefix('m').unwrap_or(rest));
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
Starting test server at port 21079
[\x1b[0;37;49mready\x1b[0m]: 4711
\x1b[1;37;49mTesting unit/dump\x1b[0m
[\x1b[0;32;49mok\x1b[0m]: DUMP / RESTORE (a) (1 ms)
[\x1b[0;31;49merr\x1b[0m]: RESTORE can set LRU in tests/unit/dump.tcl
Expected '3' to be
more than '4'
[ok]: twice (0 ms)
[ok]: twice (12 ms)
[ignore]: MIGRATE: Not supported on external server
[ignore]: Tag: slow denied
[1/1 \x1b[0;33;49mdone\x1b[0m]: unit/dump (15 seconds)

                   The End

\x1b[1;31;49m!!! WARNING\x1b[0m The following tests failed:

*** [\x1b[0;31;49merr\x1b[0m]: RESTORE can set LRU in tests/unit/dump.tcl
Cleanup: may take some time... OK
";

    fn shown(outcomes: &Outcomes) -> Vec<(String, u32, &'static str)> {
        outcomes
            .iter()
            .map(|(id, ended)| (id.name.clone(), id.number, ended.outcome.name()))
            .collect()
    }

    #[test]
    fn each_test_has_its_outcome() {
        let outcomes = parse(OUTPUT, "unit/dump", false);
        let expected = [
            ("DUMP / RESTORE (a)", 1, "ok"),
            ("MIGRATE: Not supported on external server", 1, "ignore"),
            ("RESTORE can set LRU", 1, "err"),
            ("Tag: slow denied", 1, "ignore"),
            ("twice", 1, "ok"),
            ("twice", 2, "ok"),
        ];
        let expected = expected.map(|(name, number, how)| (name.to_owned(), number, how));
        assert_eq!(shown(&outcomes), expected);
        let failed = TestId {
            name: "RESTORE can set LRU".to_owned(),
            number: 1,
        };
        assert!(outcomes[&failed].detail.ends_with("\nmore than '4'"));
    }

    #[test]
    fn a_broken_run_is_an_outcome_of_its_file() {
        let text = "[ok]: a (1 ms)\n[exception]: Executing test client: boom.\nwhile executing\n";
        let outcomes = parse(text, "unit/x", false);
        let expected = [("a", "ok"), ("unit/x", "exception")];
        let found = shown(&outcomes);
        assert_eq!(found.len(), expected.len());
        for ((name, _, how), (wanted, as_what)) in found.iter().zip(expected) {
            assert_eq!((name.as_str(), *how), (wanted, as_what));
        }
        let silent = parse("[ok]: a (1 ms)\n", "unit/x", false);
        assert_eq!(silent.values().last().unwrap().outcome, Outcome::Exception);
        let killed = parse("[ok]: a (1 ms)\n", "unit/x", true);
        assert_eq!(killed.values().last().unwrap().outcome, Outcome::Timeout);
        let waited = "[ok]: a (1 ms)\n[TIMEOUT]: clients state report follows.\nsock1 => (IN \
                      PROGRESS) b\n";
        let waited = parse(waited, "unit/x", false);
        assert_eq!(waited.len(), 2);
        assert!(waited.values().last().unwrap().detail.contains("b"));
    }

    #[test]
    fn what_a_test_prints_is_no_part_of_the_name_before() {
        let text = "[ok]: a (1 ms)\nTime: 1007\n[ok]: b (2 ms)\n[ignore]: c\nx\n[1/1 done]: unit/x (1 seconds)\n";
        let names: Vec<String> = parse(text, "unit/x", false)
            .into_keys()
            .map(|id| id.name)
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn an_error_outside_of_tests_is_the_files() {
        let text = "[err]: I/O error reading reply\nwhile\n[1/1 done]: unit/x (1 seconds)\n";
        let outcomes = parse(text, "unit/x", false);
        assert_eq!(shown(&outcomes), [("unit/x".to_owned(), 1, "err")]);
    }
}
