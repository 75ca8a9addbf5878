// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a test program, all of it or one test, and reads what libtest says of each test.
//!
//! Invariants: 1. Each test that a run was to have gets exactly one result. 2. A program that ends before it
//! has told the result of a test fails that test; one that ends otherwise than its results say has a failed result
//! of its own ([`END`]). 3. Nothing of a run is left when it returns but what left its session.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use erb_steady::{CANARY, LEFT, SKIPPED};
use serde::{Deserialize, Serialize};

use crate::child::Run;
use crate::lanes::LIMIT;
use crate::priority::IDLE;
use crate::programs::Program;
use crate::said::Said;
use crate::stop::Stop;
use crate::verdict::{self, Verdict};

/// What the name of a result ends with that is of no test: its program told good results, and ended badly.
pub const END: &str = "(the program's end)";

/// How a test ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// As it should.
    Passed,
    /// With a panic, or in another way.
    #[default]
    Failed,
    /// It says that it has not looked at what it is for, and why.
    Skipped(Vec<String>),
}

/// The result of one test.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tested {
    /// `PROGRAM::PATH`, as in `sim::lane::upset_sockets_are_treated_alike`.
    pub name: String,
    /// How it ended.
    pub ended: Ended,
    /// How long it took.
    pub seconds: f64,
    /// What it and what it started printed.
    pub output: String,
    /// It failed by more than panics that are known: the program crashed, hung, told no result or printed too much. Never
    /// repeated.
    #[serde(default)]
    pub crashed: bool,
    /// It is the repetition, alone, of one that had failed.
    #[serde(default)]
    pub repeats: bool,
}

impl Tested {
    /// What it leaves to `./test --long`, or to the next part of it.
    pub fn left(&self) -> impl Iterator<Item = &str> {
        self.output
            .lines()
            .filter_map(|line| line.strip_prefix(LEFT))
    }

    /// What becomes of it if it failed.
    pub fn verdict(&self) -> Verdict {
        if self.crashed {
            Verdict::Red
        } else {
            verdict::of(&self.output)
        }
    }
}

/// What to run of a program, and how.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The program.
    pub program: &'a Program,
    /// Its tests that are to run.
    pub tests: Vec<String>,
    /// At idle priority, until that ends for all.
    pub idle: bool,
    /// Canaries have to fail.
    pub canary: bool,
    /// After this long it is ended: a guard against hanging.
    pub limit: Duration,
}

/// How a program ended.
#[derive(Clone, Copy, Debug)]
enum End {
    /// By itself.
    Status(ExitStatus),
    /// The harness ended it after its limit.
    Limit(Duration),
}

impl<'a> Job<'a> {
    /// One test after the other, at normal priority.
    pub const fn new(program: &'a Program, tests: Vec<String>) -> Self {
        Self {
            program,
            tests,
            idle: false,
            canary: false,
            limit: LIMIT,
        }
    }

    /// Runs it and returns the results of its tests, sorted by name; `None` if the run was stopped meanwhile.
    pub fn run(&self, stop: &Stop) -> Option<Vec<Tested>> {
        let began = Instant::now();
        let run = Run {
            command: self.command(),
            results: self.tests.len(),
            idle: self.idle,
            limit: self.limit,
        };
        let results = match run.whole(stop) {
            Ok((said, status)) => {
                let end = status.map_or(End::Limit(self.limit), End::Status);
                self.results(said, end, began.elapsed())
            }
            Err(error) => self.not_run(&format!("{error:#}\n")),
        };
        (!stop.is_now()).then_some(results)
    }

    fn command(&self) -> Command {
        let mut command = if self.idle {
            let test = self.program.command();
            let mut shell = IDLE.command();
            shell.arg(test.get_program());
            shell.current_dir(&self.program.folder);
            shell.envs(
                test.get_envs()
                    .filter_map(|(key, value)| Some((key, value?))),
            );
            shell
        } else {
            self.program.command()
        };
        command.args(["--exact"]).args(&self.tests);
        command.args(["-Z", "unstable-options", "--format", "json"]);
        command.args(["--report-time", "--show-output"]);
        if self.canary {
            command.env(CANARY, "1");
        }
        command.env("RUST_TEST_THREADS", "1");
        command
    }

    /// Each test's result: what libtest said, or that the program ended without a word of it.
    fn results(&self, said: Said, end: End, took: Duration) -> Vec<Tested> {
        let raw = said.raw.text();
        let mut results: Vec<Tested> = self
            .tests
            .iter()
            .map(|test| self.result(test, &said.told, end, took))
            .collect();
        for tested in &mut results {
            // Whose lines they are is known only of a test that is alone in its process.
            if self.tests.len() == 1 || tested.ended == Ended::Failed {
                tested.output.push_str(&raw);
            }
            // What was left out may be worse than what is there.
            tested.crashed |= tested.ended == Ended::Failed && said.raw.is_cut();
            if tested.ended == Ended::Passed {
                tested.ended = skipped(&tested.output);
            }
        }
        if !results.iter().any(|it| it.crashed) && !is_as_told(end, &results) {
            results.push(Tested {
                name: self.name(END),
                seconds: took.as_secs_f64(),
                output: format!("its tests had told their results; the program {end}\n{raw}"),
                crashed: true,
                ..Tested::default()
            });
        }
        results.sort_by(|one, other| one.name.cmp(&other.name));
        results
    }

    fn name(&self, test: &str) -> String {
        format!("{}::{test}", self.program.name())
    }

    /// What was told of one test.
    fn result(&self, test: &str, told: &[Tested], end: End, took: Duration) -> Tested {
        let told: Vec<&Tested> = told.iter().filter(|told| told.name == test).collect();
        let mut tested = match told[..] {
            [one] => one.clone(),
            [] => Tested {
                seconds: took.as_secs_f64(),
                output: format!("no result was told; the program {end}\n"),
                crashed: true,
                ..Tested::default()
            },
            // A child of the test prints what libtest does.
            _ => Tested {
                seconds: took.as_secs_f64(),
                output: format!("{} results were told\n", told.len()),
                crashed: true,
                ..Tested::default()
            },
        };
        tested.name = self.name(test);
        tested
    }

    /// The results of a program that cannot be started.
    fn not_run(&self, why: &str) -> Vec<Tested> {
        let failed = |test: &String| Tested {
            name: self.name(test),
            output: why.to_owned(),
            crashed: true,
            ..Tested::default()
        };
        self.tests.iter().map(failed).collect()
    }
}

/// Whether the program ended as libtest does after these results.
fn is_as_told(end: End, results: &[Tested]) -> bool {
    /// What libtest ends with if a test has failed.
    const FAILED: i32 = 101;
    let has_failed = results.iter().any(|it| it.ended == Ended::Failed);
    let code = if has_failed { FAILED } else { 0 };
    matches!(end, End::Status(status) if status.code() == Some(code))
}

impl fmt::Display for End {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(limit) => write!(to, "was ended by the harness after {limit:?}"),
            Self::Status(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(to, "ended with {code}"),
                (None, Some(signal)) => write!(to, "was ended by signal {signal}"),
                (None, None) => to.write_str("ended"),
            },
        }
    }
}

fn skipped(output: &str) -> Ended {
    let why = output.lines().filter_map(|line| line.strip_prefix(SKIPPED));
    let why: Vec<String> = why.map(str::to_owned).collect();
    if why.is_empty() {
        Ended::Passed
    } else {
        Ended::Skipped(why)
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;
    use crate::fake;

    const OK: &str = r#"{ "type": "test", "name": "a", "event": "ok", "exec_time": 1.5, "stdout": "skipped: no tshark\n" }"#;
    const FAILED: &str =
        r#"{ "type": "test", "name": "b", "event": "failed", "stdout": "boom\n" }"#;
    const LONG: Duration = Duration::from_secs(600);

    /// The results of tests of a program that is this shell script, with this limit.
    fn results_of(tests: &[&str], script: &str, limit: Duration) -> Vec<Tested> {
        let folder = fake::folder("run");
        let program = fake::program(&folder, "sim", script);
        let job = Job {
            limit,
            ..fake::job(&program, tests)
        };
        job.run(&Stop::default()).expect("not stopped")
    }

    fn ends(results: &[Tested]) -> Vec<(&str, bool, bool)> {
        let end = |it: &'_ Tested| (it.ended == Ended::Failed, it.crashed);
        let ends = results.iter().map(|it| (it.name.as_str(), end(it)));
        ends.map(|(name, (failed, crashed))| (name, failed, crashed))
            .collect()
    }

    #[test]
    fn each_test_gets_one_result() {
        let script = format!("echo '{OK}'; echo a line of a child; echo '{FAILED}'; kill -ABRT $$");
        let results = results_of(&["a", "b", "c"], &script, LONG);
        let names = ["a", "b", "c"].map(|test| format!("sim::fake::{test}"));
        let expected = [
            (&names[0][..], false, false),
            (&names[1][..], true, false),
            (&names[2][..], true, true),
        ];
        assert_eq!(ends(&results), expected);
        let skipped = Ended::Skipped(vec!["no tshark".to_owned()]);
        assert_eq!(results[0].ended, skipped);
        assert!(results[1].output.contains("boom\na line of a child"));
        assert!(results[2].output.contains("was ended by signal 6"));
    }

    #[test]
    fn a_program_that_says_nothing_or_cannot_be_started_fails_its_tests() {
        let results = results_of(&["a"], "true", LONG);
        assert_eq!(ends(&results), [("sim::fake::a", true, true)]);
        assert!(results[0].output.contains("ended with 0"));
        let program = Program {
            path: "/does/not/exist".into(),
            ..fake::named("sim", None)
        };
        let job = fake::job(&program, &["a", "b"]);
        let results = job.run(&Stop::default()).expect("not stopped");
        assert_eq!(
            ends(&results),
            [("sim::a", true, true), ("sim::b", true, true)]
        );
        assert!(results[0].output.contains("cannot run /does/not/exist"));
    }

    #[test]
    fn a_program_that_ends_otherwise_than_its_results_say_has_failed() {
        let end = "sim::fake::(the program's end)";
        let good = [("sim::fake::a", false, false)];
        let bad = [(end, true, true), good[0]];
        let ok = format!("echo '{OK}'");
        assert_eq!(ends(&results_of(&["a"], &ok, LONG)), good);
        for badly in ["exit 101", "exit 1", "kill -SEGV $$"] {
            let results = results_of(&["a"], &format!("{ok}; echo at exit >&2; {badly}"), LONG);
            assert_eq!(ends(&results), bad, "{badly}");
            assert!(results[0].output.contains("at exit"), "{results:?}");
        }
        let failed = [("sim::fake::b", true, false)];
        let script = format!("echo '{FAILED}'; exit 101");
        assert_eq!(ends(&results_of(&["b"], &script, LONG)), failed);
        let script = format!("echo '{FAILED}'; kill -SEGV $$");
        assert_eq!(ends(&results_of(&["b"], &script, LONG)).len(), 2);
    }

    #[test]
    fn two_results_of_one_test_are_none() {
        let script = format!("echo '{OK}'; echo '{OK}'");
        let results = results_of(&["a"], &script, LONG);
        assert_eq!(ends(&results), [("sim::fake::a", true, true)]);
        assert!(results[0].output.contains("2 results were told"));
    }

    #[test]
    fn a_program_that_hangs_or_prints_without_end_is_ended() {
        let limit = Duration::from_millis(700);
        for script in ["sleep 1000", "yes", "tr '\\0' x </dev/zero"] {
            let results = results_of(&["a"], script, limit);
            assert_eq!(ends(&results), [("sim::fake::a", true, true)], "{script}");
            let output = &results[0].output;
            assert!(output.contains("ended by the harness"), "{script}");
            assert!(output.len() < 3 * crate::said::RAW_MAX, "{script}");
        }
    }

    /// The results of test `a` after these lines and this end.
    fn results_after(lines: &[&str], end: End) -> Vec<Tested> {
        let program = fake::named("sim", Some("fake"));
        let job = fake::job(&program, &["a"]);
        let mut said = Said::default();
        lines.iter().for_each(|line| said.line(line));
        job.results(said, end, LONG)
    }

    #[test]
    fn a_program_that_hangs_after_its_results_has_failed() {
        let results = results_after(&[OK], End::Limit(LONG));
        let end = ("sim::fake::(the program's end)", true, true);
        assert_eq!(ends(&results), [end, ("sim::fake::a", false, false)]);
        assert!(results[0].output.contains("ended by the harness"));
    }

    #[test]
    fn a_crash_the_limit_or_output_without_end_beside_a_marked_panic_is_red() {
        const PANICKED: [&str; 2] = ["thread 'x' (7) panicked at x.rs:1:2:", "[pace] 1 of 2"];
        let failed = FAILED.replace("\"b\"", "\"a\"");
        let failed_code = End::Status(ExitStatus::from_raw(101 << 8));
        let marked = [PANICKED[0], PANICKED[1], &failed];
        let results = results_after(&marked, failed_code);
        assert!(matches!(results[0].verdict(), Verdict::Repeat(_)));
        for end in [End::Status(ExitStatus::from_raw(6)), End::Limit(LONG)] {
            let results = results_after(&PANICKED, end);
            assert!(results[0].output.contains("[pace]"), "{results:?}");
            assert_eq!(results[0].verdict(), Verdict::Red);
        }
        let line = "x".repeat(1000);
        let mut lines = vec![line.as_str(); 2 * crate::said::RAW_MAX / line.len()];
        lines.extend(marked);
        let results = results_after(&lines, failed_code);
        assert!(results[0].output.contains("[pace]"));
        assert_eq!(results[0].verdict(), Verdict::Red, "what was left out");
    }

    #[test]
    fn a_result_that_is_read_after_the_programs_end_counts() {
        let late = format!("(sleep 1.5; echo '{OK}') &");
        assert!(!results_of(&["a"], &late, LONG)[0].crashed);
    }

    #[test]
    fn what_is_left_behind_and_prints_keeps_nothing() {
        let script =
            format!("(while echo again; do sleep 0.05; done) & printf 'no newline'; echo '{OK}'");
        let began = Instant::now();
        let results = results_of(&["a"], &script, LONG);
        assert_eq!(ends(&results), [("sim::fake::a", false, false)]);
        assert!(began.elapsed() < LONG, "it waited for its limit");
    }

    #[test]
    fn a_run_that_is_stopped_has_no_results() {
        let folder = fake::folder("stopped");
        let program = fake::program(&folder, "sim", "echo begun >begun; sleep 1000");
        let job = fake::job(&program, &["a"]);
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let run = scope.spawn(|| job.run(&stop));
            while !folder.join("begun").exists() {
                std::thread::yield_now();
            }
            stop.now(crate::stop::Why::Signal(Signal::SIGINT));
            assert!(run.join().expect("no panic").is_none());
        });
    }
}
