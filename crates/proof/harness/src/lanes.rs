// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which tests run beside which. Two lanes run side by side.
//!
//! The kernel lane has the tests that share a kernel: namespaces, devices, programs, time. They wait most of
//! the time. The compute lane has what needs a processor and nothing else. It runs at idle priority and
//! takes what the kernel lane leaves; when the kernel lane has ended, at normal priority.
//!
//! A lane is a queue or two of jobs, with some workers. Tests that measure pace, or take the whole machine, come
//! first, one at a time: the compute lane has work then, and takes what they leave. Next is what is long, so that
//! no worker is left alone with it at the end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use regex::Regex;

use crate::programs::Program;
use crate::run::{Job, Tested};
use crate::stop::Stop;

/// A test that takes longer hangs: ten times what the longest needs on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(3600);
/// Crates with tests that need a processor and nothing else.
const COMPUTE: [&str; 12] = [
    "executed",
    "harness",
    "kmod",
    "nvme",
    "segments",
    "sim",
    "sim-disk",
    "sim-kernel",
    "sim-store",
    "sim-tcp",
    "store",
    "tidy",
];
/// Programs in which each test runs in a process of its own: what one closes shall not stay open in a child
/// that another is about to start, and one that is long keeps no other from a second processor.
const EACH: [&str; 3] = ["e2e::e2e", "sim::sim", "sim-store::store"];
/// Programs that stay together where each test of others has a process of its own, in `--times` and `--long`: all
/// their tests share data paths that take the kernel many seconds to verify.
const TOGETHER: [&str; 2] = ["packets::echo", "packets::rows"];
/// The crate of the tests that have labs, and take turns.
const LABS: &str = "e2e";
/// Tests that wait until no other is at work (`Turn::alone`): before the others, so that none waits.
const ALONE: &str = "^e2e::e2e::(bench|hostile|master|mixed|other_end|pipelines)::|who_changes_many\
                     |trace_that_is_killed|replacement_and_a_detach";
/// Long ones, or such that take one turn after the other: first.
const FIRST: &str = "^e2e::e2e::(suite|kills|reports)::|^sim::sim::(judged|coverage)::";

/// A lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Lane {
    /// Tests that share a kernel.
    Kernel,
    /// Tests that only compute.
    Compute,
}

impl Lane {
    /// The lane of a program's tests.
    pub fn of(program: &Program) -> Self {
        if COMPUTE.contains(&program.package.as_str()) {
            Self::Compute
        } else {
            Self::Kernel
        }
    }
}

/// The jobs of a lane: those that may run side by side, in queues, and those that run alone.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    beside: [VecDeque<Job<'a>>; 2],
    alone: VecDeque<Job<'a>>,
}

/// Workers of a lane's queues. Labs take turns, two at a time (`Turn`): so many as the fewest processors that
/// tests are run on. Beside them other programs run one after the other.
const WORKERS: [usize; 2] = [2, 1];

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

impl<'a> Plan<'a> {
    /// The jobs of these tests in the lane. `apart`: each test in a process of its own.
    pub fn new(tests: &'a [(Program, Vec<String>)], lane: Lane, apart: bool) -> Self {
        let (alone, first) = (regex(ALONE), regex(FIRST));
        let mut plan = Self::default();
        let mut later: [VecDeque<Job>; 2] = Default::default();
        for (program, tests) in tests
            .iter()
            .filter(|(program, _)| Lane::of(program) == lane)
        {
            let name = program.name();
            let (last, side): (Vec<_>, Vec<_>) = tests
                .iter()
                .cloned()
                .partition(|test| alone.is_match(&format!("{name}::{test}")));
            let job = |tests| Job {
                idle: lane == Lane::Compute,
                ..Job::new(program, tests)
            };
            plan.alone
                .extend(last.into_iter().map(|test| job(vec![test])));
            let apart = apart && !TOGETHER.contains(&name.as_str());
            let jobs: Vec<Job> = if apart || EACH.contains(&name.as_str()) {
                side.into_iter().map(|test| job(vec![test])).collect()
            } else if side.is_empty() {
                Vec::new()
            } else {
                vec![job(side)]
            };
            let queue = usize::from(lane == Lane::Kernel && program.package != LABS);
            for job in jobs {
                if first.is_match(&format!("{name}::{}", job.tests[0])) {
                    plan.beside[queue].push_back(job);
                } else {
                    later[queue].push_back(job);
                }
            }
        }
        for (queue, later) in plan.beside.iter_mut().zip(&mut later) {
            queue.append(later);
        }
        plan
    }

    /// Runs all of it; `each` hears of each job's results as they come, and says whether to go on.
    pub fn run(self, stop: &Stop, each: &(impl Fn(&Job, &[Tested]) -> bool + Sync)) -> Vec<Tested> {
        let ended = AtomicBool::new(false);
        let run = |job: &Job| {
            let results = job.run(stop);
            let goes_on = results.as_ref().is_some_and(|results| each(job, results));
            (results.unwrap_or_default(), goes_on)
        };
        let mut tested = work(vec![(self.alone, 1)], &run, &ended);
        let queues = self.beside.into_iter().zip(WORKERS).collect();
        tested.extend(work(queues, &run, &ended));
        tested
    }
}

/// Works on some queues at once, each with so many workers, until they are empty or `run` says that nothing more
/// is to begin.
fn work(
    queues: Vec<(VecDeque<Job>, usize)>,
    run: &(impl Fn(&Job) -> (Vec<Tested>, bool) + Sync),
    ended: &AtomicBool,
) -> Vec<Tested> {
    let queues: Vec<_> = queues
        .into_iter()
        .map(|(jobs, workers)| (Mutex::new(jobs), workers))
        .collect();
    let done = Mutex::new(Vec::new());
    let take = |jobs: &Mutex<VecDeque<_>>| {
        jobs.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    };
    thread::scope(|scope| {
        for (jobs, workers) in &queues {
            for _ in 0..*workers {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed)
                        && let Some(job) = take(jobs)
                    {
                        let (results, goes_on) = run(&job);
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        done.extend(results);
                        ended.fetch_or(!goes_on, Ordering::Relaxed);
                    }
                });
            }
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::named as program;

    fn tests(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn every_test_is_in_one_job_of_one_lane() {
        let all = [
            (program("sim", Some("sim")), tests(&["a", "b"])),
            (
                program("e2e", Some("e2e")),
                tests(&["bench::x", "kills::x", "aside::x"]),
            ),
            (program("wire", None), tests(&["a", "b", "c"])),
            (program("tidy", None), Vec::new()),
            (program("packets", Some("rows")), tests(&["a", "b"])),
        ];
        let names = |jobs: &mut dyn Iterator<Item = &Job>| {
            let name = |job: &Job| format!("{} {}", job.program.name(), job.tests.join(" "));
            jobs.map(name).collect::<Vec<_>>()
        };
        let kernel = Plan::new(&all, Lane::Kernel, false);
        assert_eq!(
            names(&mut kernel.beside.iter().flatten()),
            [
                "e2e::e2e kills::x",
                "e2e::e2e aside::x",
                "wire a b c",
                "packets::rows a b"
            ]
        );
        assert_eq!(kernel.beside[1].len(), 2, "beside the labs");
        assert_eq!(names(&mut kernel.alone.iter()), ["e2e::e2e bench::x"]);
        let compute = Plan::new(&all, Lane::Compute, false);
        assert_eq!(
            names(&mut compute.beside.iter().flatten()),
            ["sim::sim a", "sim::sim b"]
        );
        let apart = Plan::new(&all, Lane::Kernel, true);
        assert_eq!(apart.beside.iter().flatten().count(), 6);
    }

    #[test]
    fn a_lane_ends_when_it_is_told_to() {
        let all = [(program("wire", None), tests(&["a", "b", "c"]))];
        let plan = Plan::new(&all, Lane::Kernel, true);
        let results = plan.run(&Stop::default(), &|_, _| false);
        assert!((1..=2).contains(&results.len()), "{results:?}");
        let all = [(
            program("e2e", Some("e2e")),
            tests(&["aside::x", "bench::x", "bench::y"]),
        )];
        let plan = Plan::new(&all, Lane::Kernel, true);
        let results = plan.run(&Stop::default(), &|_, _| false);
        let names: Vec<_> = results.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["e2e::e2e::bench::x"], "nothing begins after it");
    }
}
