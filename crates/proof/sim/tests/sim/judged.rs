// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deliberate mistakes, all lists of them: each is seen by a check.
//!
//! `./test` judges those in files that have changed since the last complete run first, then others, in an order
//! that each commit draws anew, for a limited time; what it does not come to is listed. `ERB_LONG=1` judges all,
//! in as many parts as it takes, and records the files' hashes (`erb_sim::mutate::judged`). A mistake whose text
//! is no longer there fails at once, in tests of the lists.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use erb_sim::mutate::judged::{Progress, Sources, draw_of_commit, order};

use crate::{lane_mistakes, latency, mutations, scenarios};

/// For which mistakes are judged if files have changed in which some are made, or what judges.
const CHANGED_MAX: Duration = Duration::from_secs(180);
/// The same if none has: a smoke.
const SMOKE_MAX: Duration = Duration::from_secs(10);
/// A part of a complete run.
const PART_MAX: Duration = Duration::from_secs(25 * 60);
/// Mistakes judged at once.
const JOBS: usize = 2;
/// What is left over is named up to so many.
const NAMED_MAX: usize = 40;

/// A deliberate mistake.
pub struct Deliberate {
    /// Its list and its name there.
    pub name: String,
    /// What it changes: files from `bpf/`, or the daemon.
    pub files: Vec<&'static str>,
    /// Makes it. `Ok`: what saw it; `Err`: that nothing did.
    pub judge: Box<dyn Fn() -> Result<String, String> + Send + Sync>,
}

fn all() -> Vec<Deliberate> {
    let lists = mutations::mistakes().chain(scenarios::all_mistakes());
    lists
        .chain(lane_mistakes::mistakes())
        .chain(latency::mistakes())
        .collect()
}

#[test]
fn names_are_unique() {
    let all = all();
    let names: BTreeSet<&str> = all.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names.len(), all.len());
    assert!(
        all.iter().all(|it| !it.files.is_empty()),
        "a mistake changes something"
    );
}

/// What was judged.
struct Judged {
    missed: Vec<String>,
    /// How many of the order were begun; all of them have ended.
    begun: usize,
}

/// Judges in this order for `time`; those of `progress` were judged before.
fn judge(
    all: &[Deliberate],
    order: &[usize],
    time: Duration,
    progress: &Mutex<Option<Progress>>,
) -> Judged {
    let (began, next) = (Instant::now(), AtomicUsize::new(0));
    let missed = Mutex::new(Vec::new());
    let is_done = |name: &str| {
        let progress = progress.lock().expect("no panic under it");
        progress.as_ref().is_some_and(|progress| progress.has(name))
    };
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                while began.elapsed() < time {
                    let Some(number) = order.get(next.fetch_add(1, Ordering::SeqCst)) else {
                        return;
                    };
                    let one = &all[*number];
                    if is_done(&one.name) {
                        continue;
                    }
                    let seen = (one.judge)();
                    println!("{}: {}", one.name, seen.as_ref().unwrap_or_else(|why| why));
                    match seen {
                        Ok(_) => {
                            if let Some(progress) =
                                progress.lock().expect("no panic under it").as_mut()
                            {
                                progress.add(&one.name).expect("progress is written");
                            }
                        }
                        Err(why) => missed
                            .lock()
                            .expect("no panic under it")
                            .push(format!("{}: {why}", one.name)),
                    }
                }
            });
        }
    });
    Judged {
        missed: missed.into_inner().expect("no panic under it"),
        begun: next.into_inner().min(order.len()),
    }
}

#[test]
fn deliberate_mistakes_are_seen() {
    let all = all();
    let now = Sources::now().expect("sources");
    let before = Sources::recorded().expect("the record of the last complete run");
    let files: Vec<_> = all.iter().map(|it| it.files.clone()).collect();
    let (order, changed) = order(&files, &now, &before, draw_of_commit());
    let long = erb_steady::long();
    let time = match (long, changed > 0 || now.judges_differ(&before)) {
        (true, _) => PART_MAX,
        (false, true) => CHANGED_MAX,
        (false, false) => SMOKE_MAX,
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let progress = Mutex::new(long.then(|| Progress::open(folder, &now)));
    let judged = judge(&all, &order, time, &progress);
    println!(
        "{} of {} judged, {changed} of them in changed files",
        judged.begun,
        all.len()
    );
    assert!(judged.missed.is_empty(), "not seen: {:#?}", judged.missed);
    assert!(judged.begun > 0, "none was judged");
    let left = &order[judged.begun..];
    let of_changed = changed.saturating_sub(judged.begun);
    for number in left.iter().take(of_changed.min(NAMED_MAX)) {
        erb_steady::left(format_args!("{} (its file has changed)", all[*number].name));
    }
    if !left.is_empty() {
        erb_steady::left(format_args!(
            "{} deliberate mistakes, {of_changed} of them in changed files",
            left.len()
        ));
    } else if long {
        now.record(&format!("{} mistakes", all.len()))
            .expect("the record is written");
    }
}
