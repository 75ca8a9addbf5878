// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run: formats, build, both lanes with the steps that go with them, repeats, summary.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use erb_steady::{CANARY, LONG};

use crate::args::Args;
use crate::changed::{self, Uses};
use crate::lanes::{Lane, Plan};
use crate::load::Load;
use crate::machine::{self, Machine};
use crate::priority::IDLE;
use crate::programs::{self, BOOK_PACKAGE, Program};
use crate::results::{Results, commit};
use crate::run::{Ended, Job, Tested};
use crate::steps::{Fate, Step, script, timed};
use crate::stop::{Stop, Why};
use crate::summary::Summary;
use crate::{CANNOT, FAILED, out, tell, verdict};

/// Good so far, not all is done: EX_TEMPFAIL in the BSD convention.
const GO_ON: u8 = 75;
/// What a process ends with that a signal has ended, but for the signal's number.
const BY_SIGNAL: u8 = 128;
/// What the results of steps are kept as.
const STEP: &str = "step ";
/// The program that end-to-end tests start, if it is not that of this build.
const ERB_BIN: &str = "ERB_BIN";
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

/// Tests, by program.
pub type Tests = Vec<(Program, Vec<String>)>;

/// What all of a run shares.
pub struct Session<'a> {
    pub args: &'a Args,
    pub root: PathBuf,
    pub machine: Machine,
    pub results: Option<Results>,
    pub load: Mutex<Load>,
    /// Ends the run early.
    pub stop: Stop,
    /// Nothing new begins after this.
    pub until: Option<Instant>,
    /// Something was not begun because of that, or is to go on in the next part.
    pub left: AtomicBool,
}

/// Does what was asked for, and returns the exit code.
///
/// # Errors
/// What cannot be done.
pub fn run(args: &Args) -> Result<u8> {
    let began = Instant::now();
    clear_environment(args.long);
    let stop = Stop::default();
    stop.at_signals()?;
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let root = root.canonicalize().context("the project's root")?;
    let session = Session::new(args, root, began, stop)?;
    let mut summary = session.summary();
    session.formats(&mut summary);
    let reached = session.reached()?;
    let tests = session.build(reached.as_ref(), &mut summary)?;
    if !tests.is_empty() {
        session.work(&tests, &mut summary);
    }
    tell!("{}", summary.text(began.elapsed().as_secs()));
    Ok(session.code(&summary))
}

/// What a run means is said by its options, not by what its shell has set.
fn clear_environment(long: bool) {
    // SAFETY: no other thread runs yet.
    unsafe {
        env::remove_var(CANARY);
        env::remove_var(LONG);
        if long {
            env::set_var(LONG, "1");
        }
    }
    if let Some(program) = env::var_os(ERB_BIN) {
        let program = PathBuf::from(program);
        tell!(
            "{ERB_BIN} is set: end-to-end tests use {}",
            program.display()
        );
    }
}

impl<'a> Session<'a> {
    fn new(args: &'a Args, root: PathBuf, began: Instant, stop: Stop) -> Result<Self> {
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
        Ok(Self {
            args,
            root,
            machine: Machine::watched(),
            until: results.is_some().then(|| began + args.limit()),
            results,
            load: Mutex::default(),
            stop,
            left: AtomicBool::new(false),
        })
    }

    /// What is known before anything is done: the parts before.
    pub fn summary(&self) -> Summary {
        let before = self.results.as_ref().map_or(&[][..], Results::before);
        let (steps, tests) = before
            .iter()
            .cloned()
            .partition::<Vec<_>, _>(|it| it.name.starts_with(STEP));
        let steps = steps.into_iter().map(|it| Step {
            name: format!("{} (in a part before)", &it.name[STEP.len()..]),
            fate: match it.ended {
                Ended::Passed => Fate::Passed,
                _ => Fate::Failed,
            },
            seconds: it.seconds as u64,
        });
        Summary {
            steps: steps.collect(),
            before: tests,
            ..Summary::default()
        }
    }

    fn formats(&self, summary: &mut Summary) {
        if self.args.everything() {
            let formats = FORMATS
                .iter()
                .filter_map(|(name, word)| script(&self.root, name, word, false, &self.stop));
            summary.steps.extend(formats);
        }
    }

    /// Builds and lists the tests that are wanted; none if that fails, or `--changed` reaches none.
    fn build(&self, reached: Option<&BTreeSet<String>>, summary: &mut Summary) -> Result<Tests> {
        let without: &[_] = if self.args.takes_book(reached) {
            &[]
        } else {
            &[BOOK_PACKAGE]
        };
        summary.left.extend(without.iter().map(|it| (*it).into()));
        let mut built = Vec::new();
        let build = timed("build", || {
            built = programs::build(&self.root, without, &self.stop)?;
            Ok(true)
        });
        if self.stop.is_now() {
            return Ok(Vec::new());
        }
        summary.steps.push(build);
        if built.is_empty() {
            return Ok(Vec::new());
        }
        let mut tests = Vec::new();
        let listed = timed("list of tests", || {
            tests = self.tests(built, reached)?;
            Ok(true)
        });
        if listed.fate == Fate::Failed {
            summary.steps.push(listed);
        } else if tests.is_empty() {
            let is_choice = self.args.lane.is_some() || self.args.only.is_some();
            ensure!(reached.is_some() || !is_choice, "no test has such a name");
            tell!("no test is both reached by the changes and chosen");
        }
        Ok(tests)
    }

    /// The tests that are wanted.
    fn tests(&self, built: Vec<Program>, reached: Option<&BTreeSet<String>>) -> Result<Tests> {
        let mut wanted = Vec::new();
        let is_wanted = |program: &Program| {
            reached.is_none_or(|reached| reached.contains(&program.package))
                && self.args.lane.is_none_or(|lane| lane == Lane::of(program))
        };
        for program in built.into_iter().filter(is_wanted) {
            let name = program.name();
            let mut tests = program.tests(&self.stop)?;
            if let Some(only) = &self.args.only {
                tests.retain(|test| only.is_match(&format!("{name}::{test}")));
            }
            if !tests.is_empty() {
                wanted.push((program, tests));
            }
        }
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
        tell!(
            "{} files differ from {base}; reached: {}",
            files.len(),
            names.collect::<Vec<_>>().join(" ")
        );
        Ok(reached)
    }

    /// All that is done with tests.
    pub fn work(&self, tests: &Tests, summary: &mut Summary) {
        match Load::start(self.args.load, &self.stop) {
            Ok(load) => *self.load.lock().unwrap_or_else(PoisonError::into_inner) = load,
            Err(error) => self.stop.now(Why::Error(format!("--load: {error:#}"))),
        }
        self.lanes(tests, summary);
        self.repeat(tests, summary);
        if self.args.long && self.args.everything() && !self.is_over() {
            for (name, word) in AFTER_LONG {
                summary.steps.extend(self.step(name, word, false));
            }
            let canaries = timed("canaries", || self.canaries(tests));
            if !self.stop.is_now() {
                summary.steps.push(canaries);
            }
        }
        // It ends.
        drop(std::mem::take(
            &mut *self.load.lock().unwrap_or_else(PoisonError::into_inner),
        ));
    }

    /// Whether nothing more is to begin.
    pub fn is_over(&self) -> bool {
        self.left.load(Ordering::Relaxed) || self.stop.is_now()
    }

    /// Both lanes side by side, each with its steps.
    fn lanes(&self, tests: &Tests, summary: &mut Summary) {
        let steps = Mutex::new(Vec::new());
        let note = |step: Step| {
            steps
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(step);
        };
        let scripts = |of: &[(&str, &str)], idle| {
            let wanted = of.iter().filter(|_| self.args.everything());
            wanted
                .filter_map(|(name, word)| self.step(name, word, idle))
                .for_each(note);
        };
        let (kernel, compute) = thread::scope(|scope| {
            let compute = scope.spawn(|| {
                let tested = self.lane(tests, Lane::Compute, "tests that compute", &note);
                scripts(&BESIDE_COMPUTE, true);
                tested
            });
            scripts(&BESIDE_KERNEL, false);
            let kernel = self.lane(tests, Lane::Kernel, "tests that share a kernel", &note);
            IDLE.end();
            (kernel, compute.join())
        });
        summary.tested.extend(kernel);
        match compute {
            Ok(compute) => summary.tested.extend(compute),
            Err(_) => note(timed("the compute lane", || anyhow::bail!("it panicked"))),
        }
        summary
            .steps
            .extend(steps.into_inner().unwrap_or_else(PoisonError::into_inner));
    }

    /// A step of a lane; none if it was done before, begins too late or is stopped: its results are kept as those of
    /// tests are.
    fn step(&self, name: &str, word: &str, idle: bool) -> Option<Step> {
        let kept = format!("{STEP}{word}");
        let results = self.results.as_ref();
        if self.stop.is_now() || results.is_some_and(|results| results.times(&kept) > 0) {
            return None;
        }
        if self.until.is_some_and(|until| Instant::now() >= until) {
            self.left.store(true, Ordering::Relaxed);
            return None;
        }
        let step = script(&self.root, name, word, idle, &self.stop)?;
        let ended = match step.fate {
            Fate::Passed => Some(Ended::Passed),
            Fate::Failed => Some(Ended::Failed),
            // It is told again in the next part.
            Fate::Skipped(_) => None,
        };
        if let Some(ended) = ended {
            self.keep(&[Tested {
                name: kept,
                ended,
                seconds: step.seconds as f64,
                ..Tested::default()
            }]);
        }
        self.is_told();
        Some(step)
    }

    /// Whether what was told has been written; if not, the run ends.
    fn is_told(&self) -> bool {
        if let Some(error) = out::lost() {
            self.stop.now(Why::Error(error.to_owned()));
        }
        !self.stop.is_now()
    }

    fn lane(&self, tests: &Tests, lane: Lane, name: &str, note: &impl Fn(Step)) -> Vec<Tested> {
        let mut all = Vec::new();
        let step = timed(name, || {
            for round in 0..self.args.times.unwrap_or(1) {
                let tests = self.not_done(tests, round as usize);
                let plan = Plan::new(&tests, lane, self.results.is_some());
                all.extend(plan.run(&self.stop, &|job, tested| self.heard(job, tested)));
                if self.is_over() {
                    break;
                }
            }
            Ok(true)
        });
        note(step);
        all
    }

    /// Those that have fewer results than rounds up to this one.
    fn not_done(&self, tests: &Tests, round: usize) -> Tests {
        let mut tests = tests.clone();
        if let Some(results) = &self.results {
            for (program, tests) in &mut tests {
                let name = program.name();
                tests.retain(|test| results.times(&format!("{name}::{test}")) <= round);
            }
        }
        tests
    }

    /// Prints and keeps results as they come; false if nothing more is to begin.
    pub fn heard(&self, job: &Job, tested: &[Tested]) -> bool {
        let failed = tested.iter().filter(|it| it.ended == Ended::Failed).count();
        let seconds: f64 = tested.iter().map(|it| it.seconds).sum();
        let what = match tested {
            [one] => one.name.clone(),
            _ => format!("{}, {} tests", job.program.name(), tested.len()),
        };
        let word = if failed > 0 { "FAILED" } else { "ok" };
        tell!("{word:6} {seconds:7.1} s  {what}");
        for one in tested.iter().filter(|it| it.ended == Ended::Failed) {
            tell!("{}", self.report(one).trim_end());
        }
        // What is not complete begins again in the next part.
        let is_whole = |one: &&Tested| {
            !self.args.long || one.ended == Ended::Failed || one.left().next().is_none()
        };
        let mut kept: Vec<Tested> = tested.iter().filter(is_whole).cloned().collect();
        self.left
            .fetch_or(kept.len() < tested.len(), Ordering::Relaxed);
        if !self.has_load() {
            kept.retain(|it| it.ended == Ended::Failed);
        }
        self.keep(&kept);
        let in_time = self.until.is_none_or(|until| Instant::now() < until);
        self.left.fetch_or(!in_time, Ordering::Relaxed);
        self.is_told() && in_time
    }

    /// Whether all busy processes of `--load` are at work; if not, the run ends: what passes without them says nothing.
    fn has_load(&self) -> bool {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.stop.is_now()
            && let Some((ended, all)) = load.ended()
        {
            self.stop.now(Why::Error(format!(
                "{ended} of the {all} busy processes of --load have ended"
            )));
        }
        !self.stop.is_now()
    }

    /// Keeps results; a run whose results cannot be kept ends.
    fn keep(&self, tested: &[Tested]) {
        if let Some(results) = &self.results
            && let Err(error) = results.add(tested)
        {
            self.stop.now(Why::Error(format!("{error:#}")));
        }
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

    /// What the run ends with.
    pub fn code(&self, summary: &Summary) -> u8 {
        self.is_told();
        if let Some(why) = self.stop.why() {
            out::error(format_args!(
                "error: {why}: not all was done, and what was at work then has no result"
            ));
            return match why {
                Why::Signal(signal) => BY_SIGNAL + signal as u8,
                Why::Error(_) => CANNOT,
            };
        }
        if summary.has_failed() {
            if let Some(results) = &self.results {
                let path = results.path().display();
                tell!(
                    "{path} has the results of all parts at this commit; without it all begins anew"
                );
            }
            return FAILED;
        }
        if self.left.load(Ordering::Relaxed) {
            tell!("not all is done: call it again with the same words");
            return GO_ON;
        }
        let is_reached = summary.before.len() + summary.tested.len() > 0;
        if self.args.changed.is_some() && !is_reached {
            return 0;
        }
        if !summary.has_passed() {
            tell!("nothing has passed: what was chosen is skipped, see above");
            return FAILED;
        }
        0
    }
}

#[cfg(test)]
mod tests;
