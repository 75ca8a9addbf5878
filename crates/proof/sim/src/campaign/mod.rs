// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many runs: campaigns over seeds and profiles, what they reached, replay and shrinking.

pub mod args;
pub mod coverage;
pub mod exit;
pub mod mutations;
pub mod scenarios;
pub mod shrink;

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::plan::{Options, Outcome, Plan};
use crate::profile::{PROFILES, Profile};
use crate::run;
use crate::scenario::ALL;
use crate::story::Keep;
use crate::violation::Violation;

use coverage::Reached;

/// What a campaign is to do.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Profiles, each with the same seeds.
    pub profiles: Vec<&'static Profile>,
    /// First seed.
    pub first_seed: u64,
    /// Seeds per profile.
    pub seeds: u64,
    /// Stop after this long, whatever is left.
    pub time_max: Option<Duration>,
    /// Threads.
    pub jobs: usize,
    /// Say on stderr how far it is.
    pub progress: bool,
}

/// A run that broke a rule.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// Profile.
    pub profile: &'static str,
    /// Seed.
    pub seed: u64,
    /// Name of the check.
    pub check: &'static str,
    /// What it said.
    pub text: String,
    /// The command that shows it again.
    pub replay: String,
}

/// What a campaign found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Runs made.
    pub runs: u64,
    /// Steps of their worlds.
    pub events: u64,
    /// Frames that reached a machine.
    pub packets: u64,
    /// Virtual seconds.
    pub virtual_seconds: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Threads.
    pub jobs: usize,
    /// Packets per minute and thread.
    pub packets_per_minute: f64,
    /// The runs that broke a rule.
    pub failures: Vec<Failure>,
    /// What was reached.
    pub reached: Reached,
}

/// The command that shows a run again.
#[must_use]
pub fn replay_command(profile: &str, seed: u64) -> String {
    format!("erb-sim replay {seed} --profile {profile}")
}

/// All profiles that `all` stands for.
#[must_use]
pub fn all_profiles() -> Vec<&'static Profile> {
    PROFILES
        .iter()
        .chain(crate::mutate::profiles::PROFILES)
        .collect()
}

impl Campaign {
    /// Makes the runs. Ends early at `failures_max` failures.
    #[must_use]
    pub fn run(&self, failures_max: usize) -> Report {
        let started = Instant::now();
        let next = AtomicU64::new(0);
        let enough = AtomicBool::new(false);
        let report = Mutex::new(Report {
            jobs: self.jobs,
            ..Report::default()
        });
        let total = self.seeds * self.profiles.len() as u64;
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    while !enough.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let late = self.time_max.is_some_and(|max| started.elapsed() > max);
                        if number >= total || late {
                            break;
                        }
                        let failures = self.one(number, &report, started);
                        enough.fetch_or(failures >= failures_max, Ordering::Relaxed);
                    }
                });
            }
        });
        if self.progress && std::io::stderr().is_terminal() {
            eprintln!();
        }
        let mut report = report
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        report
            .failures
            .sort_by_key(|failure| (failure.profile, failure.seed));
        report.take_time(started.elapsed());
        report
    }

    /// Run `number`, with the profiles in turn; returns the failures so far.
    fn one(&self, number: u64, report: &Mutex<Report>, started: Instant) -> usize {
        let count = self.profiles.len() as u64;
        let profile = self.profiles[(number % count) as usize];
        let seed = self.first_seed + number / count;
        let options = Options {
            keep: Keep::Nothing,
            ..Options::default()
        };
        let outcome = run(&Plan::new(profile, seed), &options);
        let mut report = report
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        report.runs += 1;
        report.events += outcome.events;
        report.packets += outcome.packets;
        report.virtual_seconds += outcome.virtual_ns as f64 / 1e9;
        report.reached.add(&outcome);
        if let Some(violation) = outcome.violation {
            if self.progress {
                let replay = replay_command(profile.name, seed);
                eprintln!("\nVIOLATION {}: {replay}", violation.check);
            }
            report.failures.push(Failure {
                profile: profile.name,
                seed,
                check: violation.check,
                text: violation.text,
                replay: replay_command(profile.name, seed),
            });
        }
        report.take_time(started.elapsed());
        if self.progress && std::io::stderr().is_terminal() {
            eprint!("\r{}", report.progress());
        }
        report.failures.len()
    }
}

impl Report {
    fn take_time(&mut self, elapsed: Duration) {
        self.seconds = elapsed.as_secs_f64();
        let minutes = self.seconds / 60.0 * self.jobs.max(1) as f64;
        self.packets_per_minute = self.packets as f64 / minutes.max(1e-9);
    }

    /// Plays every named scenario once, beside the runs, several at a time.
    pub fn play_scenarios(&mut self, jobs: usize) {
        let next = AtomicUsize::new(0);
        let report = Mutex::new(self);
        std::thread::scope(|scope| {
            for _ in 0..jobs.max(1) {
                scope.spawn(|| {
                    while let Some(case) = ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let (done, outcomes) = case.play_counted();
                        let mut report = report
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        report.take_scenario(case.name, done, &outcomes);
                    }
                });
            }
        });
    }

    fn take_scenario(&mut self, name: &str, done: Result<(), Violation>, outcomes: &[Outcome]) {
        for outcome in outcomes {
            self.reached.add_scenario(outcome);
        }
        if let Err(violation) = done {
            self.failures.push(Failure {
                profile: "scenario",
                seed: 0,
                check: violation.check,
                text: violation.text,
                replay: format!("erb-sim scenarios --only {name}"),
            });
        }
    }

    /// How far it is, in one line.
    #[must_use]
    pub fn progress(&self) -> String {
        format!(
            "{} runs, {} events ({:.0}/s), {} packets ({:.2} million a minute and thread), \
             {:.1} s for {:.0} virtual s, {} failures",
            self.runs,
            self.events,
            self.events as f64 / self.seconds.max(1e-9),
            self.packets,
            self.packets_per_minute / 1e6,
            self.seconds,
            self.virtual_seconds,
            self.failures.len()
        )
    }

    /// Everything, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n{}", self.progress(), self.reached.text());
        for failure in &self.failures {
            text.push_str(&format!(
                "\nVIOLATION {} (profile {}, seed {}): {}\n  {}\n",
                failure.check, failure.profile, failure.seed, failure.text, failure.replay
            ));
        }
        text
    }
}
