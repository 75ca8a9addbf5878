// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a test program, all of it or one test, and reads what libtest says of each test.
//!
//! Invariants: 1. Each test that a run was to have gets exactly one result. 2. A program that ends before it
//! has told the result of a test fails that test. 3. Nothing of a run is left when it returns but what left
//! its process group.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use erb_steady::{CANARY, LEFT, SKIPPED};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::priority::IDLE;
use crate::programs::Program;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// As it should.
    Passed,
    /// With a panic, or in another way.
    Failed,
    /// It says that it has not looked at what it is for, and why.
    Skipped(Vec<String>),
}

/// The result of one test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tested {
    /// `PROGRAM::PATH`, as in `sim::lane::upset_sockets_are_treated_alike`.
    pub name: String,
    /// How it ended.
    pub ended: Ended,
    /// How long it took.
    pub seconds: f64,
    /// What it and what it started printed.
    pub output: String,
}

impl Tested {
    /// What it leaves to `./test --long`, or to the next part of it.
    pub fn left(&self) -> impl Iterator<Item = &str> {
        self.output
            .lines()
            .filter_map(|line| line.strip_prefix(LEFT))
    }
}

/// What to run of a program, and how.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The program.
    pub program: &'a Program,
    /// Its tests that are to run.
    pub tests: Vec<String>,
    /// Tests side by side.
    pub threads: usize,
    /// At idle priority, until that ends for all.
    pub idle: bool,
    /// Canaries have to fail.
    pub canary: bool,
    /// After this long it is ended: a guard against hanging.
    pub limit: Duration,
}

#[derive(Deserialize)]
struct Event {
    r#type: String,
    event: String,
    name: Option<String>,
    exec_time: Option<f64>,
    stdout: Option<String>,
}

/// Which pipe a line came from is not told apart; `None` is the end of one.
type Line = Option<String>;

impl Job<'_> {
    /// Runs it and returns the results of its tests, sorted by name.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn run(&self) -> Result<Vec<Tested>> {
        ensure!(
            !self.tests.is_empty(),
            "{} has no test to run",
            self.program.name()
        );
        let began = Instant::now();
        let mut child = self
            .command()
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.path.display()))?;
        let group = Pid::from_raw(i32::try_from(child.id()).context("a process id")?);
        if self.idle {
            IDLE.started(group);
        }
        let mut said = Said::default();
        let in_time = said.read(&mut child, self.tests.len(), || {
            if self.idle {
                IDLE.left(began, self.limit)
            } else {
                self.limit.saturating_sub(began.elapsed())
            }
        });
        if !in_time {
            said.raw
                .push_str(&format!("ended by the harness after {:?}\n", self.limit));
        }
        // What the program started and left behind; the program itself if it hangs.
        let _ = killpg(group, Signal::SIGKILL);
        let status = child.wait().context("a test program")?;
        if self.idle {
            IDLE.gone(group);
        }
        Ok(self.results(said, status, began.elapsed()))
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
        command.env("RUST_TEST_THREADS", self.threads.to_string());
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        in_a_session(&mut command);
        command
    }

    /// Each test's result: what libtest said, or that the program ended without a word of it.
    fn results(&self, mut said: Said, status: ExitStatus, took: Duration) -> Vec<Tested> {
        let name = |test: &str| format!("{}::{test}", self.program.name());
        let mut results = Vec::new();
        for test in &self.tests {
            let told = said.told.iter().position(|told| told.name == *test);
            let mut tested = match told {
                Some(at) => said.told.swap_remove(at),
                None => Tested {
                    name: test.clone(),
                    ended: Ended::Failed,
                    seconds: took.as_secs_f64(),
                    output: format!("no result was told; the program {}\n", ending(status)),
                },
            };
            tested.name = name(test);
            // Whose lines they are is known only of a test that is alone in its process.
            if self.tests.len() == 1 || tested.ended == Ended::Failed {
                tested.output.push_str(&said.raw);
            }
            if tested.ended == Ended::Passed {
                tested.ended = skipped(&tested.output);
            }
            results.push(tested);
        }
        results.sort_by(|one, other| one.name.cmp(&other.name));
        results
    }
}

/// A session of its own: a group of processes that can be ended, and a group of the scheduler.
pub fn in_a_session(command: &mut Command) {
    // SAFETY: between fork and exec only setsid(2) is called, which is safe in signal handlers.
    unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
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

/// What a program has said.
#[derive(Default)]
struct Said {
    /// Of its tests, by libtest's name.
    told: Vec<Tested>,
    /// All that is not of libtest: what threads, and processes that it started, print.
    raw: String,
}

impl Said {
    /// Reads until both pipes end, or the program has ended and told the results of so many tests; false if no
    /// time is left before.
    fn read(&mut self, child: &mut Child, tests: usize, left: impl Fn() -> Duration) -> bool {
        let (to, lines) = mpsc::channel::<Line>();
        let pipes: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        let mut open = 0;
        for pipe in pipes.into_iter().flatten() {
            let to = to.clone();
            open += 1;
            thread::spawn(move || pass_lines(pipe, &to));
        }
        let mut ended: Option<Instant> = None;
        while open > 0 {
            let left = left();
            match lines.recv_timeout(left.min(LOOK)) {
                Ok(Some(line)) => self.line(&line),
                Ok(None) => open -= 1,
                Err(RecvTimeoutError::Disconnected) => break,
                // A process that the test left behind may hold the pipes for ever. What the program said last
                // may still be in them.
                Err(RecvTimeoutError::Timeout) if matches!(child.try_wait(), Ok(Some(_))) => {
                    let ended = ended.get_or_insert_with(Instant::now);
                    if self.told.len() >= tests || ended.elapsed() > DRAIN {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return false,
                Err(RecvTimeoutError::Timeout) => (),
            }
        }
        true
    }

    fn line(&mut self, line: &str) {
        let event = line
            .starts_with('{')
            .then(|| serde_json::from_str::<Event>(line));
        let Some(Ok(event)) = event else {
            self.raw.push_str(line);
            self.raw.push('\n');
            return;
        };
        let ended = match (event.r#type.as_str(), event.event.as_str()) {
            ("test", "ok") => Ended::Passed,
            ("test", "failed" | "timeout") => Ended::Failed,
            _ => return,
        };
        self.told.push(Tested {
            name: event.name.unwrap_or_default(),
            ended,
            seconds: event.exec_time.unwrap_or(0.0),
            output: event.stdout.unwrap_or_default(),
        });
    }
}

/// For so long what a program has said is read after its end, if a result is missing: the reader may be starved.
const DRAIN: Duration = Duration::from_secs(10);
/// Between two looks whether the program has ended.
const LOOK: Duration = Duration::from_millis(500);

fn pass_lines(pipe: impl Read, to: &mpsc::Sender<Line>) {
    let mut pipe = BufReader::new(pipe);
    let mut bytes = Vec::new();
    while pipe
        .read_until(b'\n', &mut bytes)
        .is_ok_and(|count| count > 0)
    {
        let line = String::from_utf8_lossy(&bytes);
        let sent = to.send(Some(line.trim_end_matches('\n').to_owned()));
        if sent.is_err() {
            return;
        }
        bytes.clear();
    }
    let _ = to.send(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lines: &[&str]) -> Said {
        let mut said = Said::default();
        lines.iter().for_each(|line| said.line(line));
        said
    }

    fn job<'a>(program: &'a Program, tests: &[&str]) -> Job<'a> {
        Job {
            program,
            tests: tests.iter().map(|it| (*it).to_owned()).collect(),
            threads: 1,
            idle: false,
            canary: false,
            limit: Duration::from_secs(600),
        }
    }

    fn program(path: &str) -> Program {
        Program {
            package: "sim".to_owned(),
            target: Some("lane".to_owned()),
            path: path.into(),
            folder: "/".into(),
        }
    }

    const OK: &str = r#"{ "type": "test", "name": "a", "event": "ok", "exec_time": 1.5, "stdout": "skipped: no tshark\n" }"#;
    const FAILED: &str =
        r#"{ "type": "test", "name": "b", "event": "failed", "stdout": "boom\n" }"#;

    #[test]
    fn each_test_gets_one_result() {
        let program = program("/bin/true");
        let job = job(&program, &["a", "b", "c"]);
        let said = said(&[OK, "a line of a child", FAILED]);
        let results = job.results(said, ExitStatus::from_raw(6), Duration::from_secs(9));
        let ended: Vec<_> = results.iter().map(|it| it.ended.clone()).collect();
        let skipped = Ended::Skipped(vec!["no tshark".to_owned()]);
        assert_eq!(ended, [skipped, Ended::Failed, Ended::Failed]);
        assert_eq!(results[0].name, "sim::lane::a");
        assert!(results[1].output.contains("boom\na line of a child"));
        assert!(results[2].output.contains("was ended by signal 6"));
    }

    #[test]
    fn a_program_that_says_nothing_fails_its_tests() {
        let program = program("/bin/true");
        let results = job(&program, &["a"]).run().expect("it can be run");
        assert_eq!(results[0].ended, Ended::Failed, "{results:?}");
        assert!(results[0].output.contains("ended with 0"));
    }

    /// The results of one test of a program that is this shell script, with this limit.
    fn results_of(name: &str, script: &str, limit: Duration) -> Vec<Tested> {
        let folder =
            std::env::temp_dir().join(format!("erb-harness-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("script");
        // Another process writes it: a descriptor of this one, in a child that another thread forks meanwhile,
        // would keep the file from being run (ETXTBSY).
        let write = "printf '%s\\n' '#!/bin/sh' \"$1\" >\"$2\" && chmod 700 \"$2\"";
        let mut sh = Command::new("sh");
        let written = sh.args(["-c", write, "sh", script]).arg(&path).status();
        assert!(written.expect("sh").success());
        let program = program(path.to_str().expect("UTF-8"));
        let mut job = job(&program, &["a"]);
        job.limit = limit;
        let results = job.run().expect("it can be run");
        std::fs::remove_dir_all(&folder).expect("removed");
        results
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let results = results_of("hangs", "sleep 1000", Duration::from_millis(10));
        assert_eq!(results[0].ended, Ended::Failed);
        assert!(
            results[0].output.contains("ended by the harness"),
            "{results:?}"
        );
    }

    #[test]
    fn a_result_that_is_read_after_the_programs_end_counts() {
        let late = format!("(sleep 1.5; printf '%s\\n' '{OK}') &");
        let results = results_of("late", &late, Duration::from_secs(600));
        let skipped = Ended::Skipped(vec!["no tshark".to_owned()]);
        assert_eq!(results[0].ended, skipped, "{results:?}");
    }
}
