// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run: formats, build, both lanes with the steps that go with them, repeats, summary.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use erb_steady::Cause;

use crate::args::Args;
use crate::changed::{self, Uses};
use crate::lanes::{Lane, Plan};
use crate::load::Load;
use crate::machine::{self, Machine};
use crate::priority::IDLE;
use crate::programs::Program;
use crate::results::{Results, commit};
use crate::run::{Ended, Job, Tested};
use crate::steps::{Fate, Step, script, timed};
use crate::summary::{Summary, Unsteady};
use crate::verdict::{self, Verdict};
use crate::{FAILED, programs};

/// Tests that are repeated at most: more do not fail by chance.
const REPEATS_MAX: usize = 10;
/// Good so far, not all is done: EX_TEMPFAIL in the BSD convention.
const GO_ON: u8 = 75;
/// In the names of tests that have to fail where they are told to.
const CANARY: &str = "canary::";
/// Before all else: what fails in seconds.
const FORMATS: [(&str, &str); 2] = [("Rust format", "rust-format"), ("C format", "c-format")];
/// Before the tests of the kernel lane: nothing in an emulated machine may be late.
const BESIDE_KERNEL: [(&str, &str); 1] = [("another kernel", "machines")];
/// After both lanes of `--long`: by itself.
const AFTER_LONG: [(&str, &str); 1] = [("end-to-end tests of the release build", "release")];
/// After the tests of the compute lane, at its priority.
const BESIDE_COMPUTE: [(&str, &str); 5] = [
    ("package", "package"),
    ("kernel module", "module"),
    ("sanitizers and fuzzers", "sanitizers"),
    ("examples in comments", "doc-tests"),
    ("clippy", "clippy"),
];

/// What all of a run shares.
struct Session<'a> {
    args: &'a Args,
    root: PathBuf,
    machine: Machine,
    results: Option<Results>,
    /// Nothing new begins after this.
    until: Option<Instant>,
    /// Something was not begun because of that.
    left: AtomicBool,
}

/// Does what was asked for.
///
/// # Errors
/// What cannot be done.
pub fn run(args: &Args) -> Result<ExitCode> {
    let began = Instant::now();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let root = root.canonicalize().context("the project's root")?;
    let session = Session::new(args, root, began)?;
    let mut summary = Summary::default();
    if args.everything() {
        for (name, word) in FORMATS {
            summary
                .steps
                .push(script(&session.root, name, word, false)?);
        }
    }
    let mut built = Vec::new();
    let without: &[_] = if args.everything() && !args.long {
        &programs::LEFT_TO_LONG
    } else {
        &[]
    };
    summary.left.extend(without.iter().map(|it| (*it).into()));
    summary.steps.push(timed("build", || {
        built = programs::build(&session.root, without)?;
        Ok(true)
    }));
    if !built.is_empty() {
        let tests = session.tests(built)?;
        let _load = Load::start(args.load)?;
        session.lanes(&tests, &mut summary)?;
        session.repeat(&tests, &mut summary)?;
        if args.long && args.everything() && !session.left.load(Ordering::Relaxed) {
            for (name, word) in AFTER_LONG {
                summary.steps.extend(session.step(name, word, false)?);
            }
            summary
                .steps
                .push(timed("canaries", || session.canaries(&tests)));
        }
    }
    println!("{}", summary.text(began.elapsed().as_secs()));
    Ok(session.code(&summary))
}

impl<'a> Session<'a> {
    fn new(args: &'a Args, root: PathBuf, began: Instant) -> Result<Self> {
        ensure!(args.minutes > 0.0, "--minutes must be more than 0");
        ensure!(args.times != Some(0), "--times must be at least 1");
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let kind = match (args.long, args.times) {
            (true, _) => Some("long".to_owned()),
            (_, Some(_)) => Some(format!("times-load-{}", args.load)),
            _ => None,
        };
        let results = match &kind {
            Some(kind) => Some(Results::open(&target, kind, commit(&root)?.as_deref())?),
            None => None,
        };
        if args.long {
            // SAFETY: no other thread runs yet.
            unsafe { env::set_var(erb_steady::LONG, "1") };
        }
        let minutes = Duration::from_secs_f64(args.minutes * 60.0);
        Ok(Self {
            args,
            root,
            machine: Machine::watched(),
            until: results.is_some().then(|| began + minutes),
            results,
            left: AtomicBool::new(false),
        })
    }

    /// The tests that are wanted, by program.
    fn tests(&self, built: Vec<Program>) -> Result<Vec<(Program, Vec<String>)>> {
        let mut wanted = Vec::new();
        let reached = self.reached()?;
        for program in built {
            if reached
                .as_ref()
                .is_some_and(|reached| !reached.contains(&program.package))
            {
                continue;
            }
            if self
                .args
                .lane
                .is_some_and(|lane| lane != Lane::of(&program))
            {
                continue;
            }
            let name = program.name();
            let mut tests = program.tests()?;
            if let Some(only) = &self.args.only {
                tests.retain(|test| only.is_match(&format!("{name}::{test}")));
            }
            if !tests.is_empty() {
                wanted.push((program, tests));
            }
        }
        ensure!(!wanted.is_empty(), "no test has such a name");
        Ok(wanted)
    }

    /// The crates that `--changed` leaves; none if all are wanted.
    fn reached(&self) -> Result<Option<BTreeSet<String>>> {
        let Some(base) = &self.args.changed else {
            return Ok(None);
        };
        let files = changed::files(&self.root, base)?;
        let reached = Uses::of(&self.root)?.reached(files.iter().map(String::as_str));
        let names = reached.iter().flatten().map(String::as_str);
        println!(
            "{} files differ from {base}; reached: {}",
            files.len(),
            names.collect::<Vec<_>>().join(" ")
        );
        Ok(reached)
    }

    /// Both lanes side by side, each with its steps.
    fn lanes(&self, tests: &[(Program, Vec<String>)], summary: &mut Summary) -> Result<()> {
        let steps = Mutex::new(Vec::new());
        let note = |step: Step| steps.lock().map(|mut steps| steps.push(step)).ok();
        let scripts = |of: &[(&str, &str)], idle| -> Result<()> {
            let wanted = of.iter().filter(|_| self.args.everything());
            for (name, word) in wanted {
                if let Some(step) = self.step(name, word, idle)? {
                    note(step);
                }
            }
            Ok(())
        };
        let (kernel, compute) = thread::scope(|scope| {
            let compute = scope.spawn(|| {
                let tested = self.lane(tests, Lane::Compute, "tests that compute", &note)?;
                scripts(&BESIDE_COMPUTE, true)?;
                anyhow::Ok(tested)
            });
            let kernel = scripts(&BESIDE_KERNEL, false)
                .and_then(|()| self.lane(tests, Lane::Kernel, "tests that share a kernel", &note));
            IDLE.end();
            (kernel, compute.join())
        });
        let compute = compute.map_err(|_| anyhow::anyhow!("the compute lane panicked"))?;
        summary.tested.extend(kernel?);
        summary.tested.extend(compute?);
        summary.steps.extend(steps.into_inner().unwrap_or_default());
        Ok(())
    }

    /// A step of a lane; none if it was done before, or begins too late: its results are kept as those of tests are.
    fn step(&self, name: &str, word: &str, idle: bool) -> Result<Option<Step>> {
        let kept = format!("step {word}");
        let results = self.results.as_ref();
        if results.is_some_and(|results| results.times(&kept) > 0) {
            return Ok(None);
        }
        if self.until.is_some_and(|until| Instant::now() >= until) {
            self.left.store(true, Ordering::Relaxed);
            return Ok(None);
        }
        let step = script(&self.root, name, word, idle)?;
        if let Some(results) = results.filter(|_| step.fate != Fate::Failed) {
            results.add(&[Tested {
                name: kept,
                ended: Ended::Passed,
                seconds: step.seconds as f64,
                output: String::new(),
            }])?;
        }
        Ok(Some(step))
    }

    fn lane(
        &self,
        tests: &[(Program, Vec<String>)],
        lane: Lane,
        name: &str,
        note: &impl Fn(Step) -> Option<()>,
    ) -> Result<Vec<Tested>> {
        let mut all = Vec::new();
        let mut failure = Ok(());
        let step = timed(name, || {
            for round in 0..self.args.times.unwrap_or(1) {
                let tests = self.not_done(tests, round);
                let plan = Plan::new(&tests, lane, self.results.is_some());
                match plan.run(&|job, tested| self.heard(job, tested)) {
                    Ok(tested) => all.extend(tested),
                    Err(error) => failure = Err(error),
                }
                if self.left.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(true)
        });
        note(step);
        failure.map(|()| all)
    }

    /// Those that have fewer results than rounds up to this one.
    fn not_done(
        &self,
        tests: &[(Program, Vec<String>)],
        round: usize,
    ) -> Vec<(Program, Vec<String>)> {
        let mut tests = tests.to_vec();
        if let Some(results) = &self.results {
            for (program, tests) in &mut tests {
                let name = program.name();
                tests.retain(|test| results.times(&format!("{name}::{test}")) <= round);
            }
        }
        tests
    }

    /// Prints and keeps results as they come; false if nothing more is to begin.
    fn heard(&self, job: &Job, tested: &[Tested]) -> bool {
        let failed = tested.iter().filter(|it| it.ended == Ended::Failed).count();
        let seconds: f64 = tested.iter().map(|it| it.seconds).sum();
        let what = match tested {
            [one] => one.name.clone(),
            _ => format!("{}, {} tests", job.program.name(), tested.len()),
        };
        let word = if failed > 0 { "FAILED" } else { "ok" };
        println!("{word:6} {seconds:7.1} s  {what}");
        for one in tested.iter().filter(|it| it.ended == Ended::Failed) {
            print!("{}", self.report(one));
        }
        // What is not complete begins again in the next part.
        let is_whole = |one: &&Tested| !self.args.long || one.left().next().is_none();
        let whole: Vec<Tested> = tested.iter().filter(is_whole).cloned().collect();
        self.left
            .fetch_or(whole.len() < tested.len(), Ordering::Relaxed);
        if let Some(results) = &self.results
            && let Err(error) = results.add(&whole)
        {
            eprintln!("error: {error:#}");
            return false;
        }
        let goes_on = self.until.is_none_or(|until| Instant::now() < until);
        self.left.fetch_or(!goes_on, Ordering::Relaxed);
        goes_on
    }

    /// A failed test: what it said, what the machine lacked meanwhile.
    fn report(&self, tested: &Tested) -> String {
        let took = Duration::from_secs_f64(tested.seconds);
        let began = Instant::now()
            .checked_sub(took)
            .unwrap_or_else(Instant::now);
        let mut lacked = self.machine.short_since(began);
        lacked.extend(
            verdict::short_of(&tested.output)
                .into_iter()
                .map(|what| format!("no {what}")),
        );
        let lacked = if lacked.is_empty() {
            machine::now()
        } else {
            format!(
                "the machine was short: {}; {}",
                lacked.join(", "),
                machine::now()
            )
        };
        format!("---- {}\n{}---- {lacked}\n", tested.name, tested.output)
    }

    /// Repeats alone, once, what failed for set-up, pace or patience.
    fn repeat(&self, tests: &[(Program, Vec<String>)], summary: &mut Summary) -> Result<()> {
        let programs = by_name(tests);
        let again: Vec<_> = summary
            .tested
            .iter()
            .filter_map(|it| Some((it.clone(), may_repeat(it)?)))
            .collect();
        if again.len() > REPEATS_MAX {
            println!(
                "{} tests failed for set-up, pace or patience: too many for chance, none is repeated",
                again.len()
            );
            return Ok(());
        }
        for (failed, cause) in again {
            println!("\n== repeated alone ({cause}): {}", failed.name);
            let Some(job) = alone(&programs, &failed.name) else {
                continue;
            };
            let results = job.run()?;
            self.heard(&job, &results);
            let passed = results.into_iter().find(|it| it.ended != Ended::Failed);
            if let Some(passed) = passed {
                let is_it = |it: &Tested| it.name == failed.name && may_repeat(it).is_some();
                summary.tested.retain(|it| !is_it(it));
                summary.unsteady.push(Unsteady {
                    failed,
                    cause,
                    passed,
                });
            }
        }
        Ok(())
    }

    /// Deliberate mistakes, one in each lane, are red: nothing of all this has become unable to fail.
    fn canaries(&self, tests: &[(Program, Vec<String>)]) -> Result<bool> {
        let programs = by_name(tests);
        let mut red = BTreeMap::from([Lane::Kernel, Lane::Compute].map(|lane| (lane, 0)));
        for (program, tests) in tests {
            for test in tests.iter().filter(|test| test.contains(CANARY)) {
                let name = format!("{}::{test}", program.name());
                let mut job = alone(&programs, &name).context("a test of its program")?;
                job.canary = true;
                let results = job.run()?;
                let is_red = results
                    .iter()
                    .all(|it| it.ended == Ended::Failed && verdict::of(&it.output) == Verdict::Red);
                println!(
                    "{name}: {}",
                    if is_red {
                        "red, as it should be"
                    } else {
                        "NOT RED"
                    }
                );
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

    fn code(&self, summary: &Summary) -> ExitCode {
        let before = self
            .results
            .as_ref()
            .map(Results::before)
            .unwrap_or_default();
        // A part that had nothing left to do is as good as those before it.
        let is_done = summary.tested.is_empty() && !before.is_empty();
        let failed_before = before.iter().enumerate().any(|(at, failed)| {
            // What was repeated has passed since.
            let passed = |it: &Tested| it.name == failed.name && it.ended != Ended::Failed;
            failed.ended == Ended::Failed
                && (may_repeat(failed).is_none() || !before[at..].iter().any(passed))
        });
        if failed_before || !(is_done || summary.is_good()) {
            return ExitCode::from(FAILED);
        }
        if self.left.load(Ordering::Relaxed) {
            println!("not all is done: call it again with the same words");
            return ExitCode::from(GO_ON);
        }
        ExitCode::SUCCESS
    }
}

/// The cause for which a failed test may be repeated.
fn may_repeat(tested: &Tested) -> Option<Cause> {
    match verdict::of(&tested.output) {
        Verdict::Repeat(cause) if tested.ended == Ended::Failed => Some(cause),
        _ => None,
    }
}

fn by_name(tests: &[(Program, Vec<String>)]) -> BTreeMap<String, &Program> {
    let pairs = tests.iter().map(|(program, _)| (program.name(), program));
    pairs.collect()
}

/// The job of one test by its name.
fn alone<'a>(programs: &BTreeMap<String, &'a Program>, name: &str) -> Option<Job<'a>> {
    // The longest name fits: `sim::lane` and not `sim`.
    let found = programs.iter().rev().find_map(|(program, found)| {
        let test = name.strip_prefix(program.as_str())?.strip_prefix("::")?;
        Some((*found, test.to_owned()))
    });
    let (program, test) = found?;
    Some(Job {
        program,
        tests: vec![test],
        threads: 1,
        idle: false,
        canary: false,
        limit: crate::lanes::LIMIT,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_found_in_the_program_with_the_longest_name() {
        let program = |target: Option<&str>| Program {
            package: "sim".to_owned(),
            target: target.map(str::to_owned),
            path: "/bin/true".into(),
            folder: "/".into(),
        };
        let (unit, lane) = (program(None), program(Some("lane")));
        let programs = BTreeMap::from([(unit.name(), &unit), (lane.name(), &lane)]);
        let found = alone(&programs, "sim::lane::a::b").expect("a job");
        assert_eq!((found.program, &found.tests[0][..]), (&lane, "a::b"));
        let found = alone(&programs, "sim::other::a").expect("a job");
        assert_eq!((found.program, &found.tests[0][..]), (&unit, "other::a"));
        assert!(alone(&programs, "wire::a").is_none());
    }
}
