// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All plays of a sequence, by several players where plays do not disturb each other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use erb_check::pair::Trouble;
use erb_check::resp;
use serde::Serialize;

use crate::cut::{self, Cuts, Form};
use crate::ground::Ground;
use crate::play::{Player, Way};
use crate::sequence::{Said, Sequence, Step};
use crate::words::PREFIX_BYTES;

/// How all sequences of a run are played.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Where they are cut.
    pub cuts: Cuts,
    /// Plays at a time.
    pub workers: usize,
    /// Silence that counts as stuck.
    pub stall: Duration,
    /// Names the keys, and chooses places in long sequences.
    pub seed: u64,
}

/// What came of a sequence.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Bytes that it says.
    pub bytes: usize,
    /// Places at which these were cut.
    pub cuts: usize,
    /// Plays that were to be done.
    pub plays: usize,
    /// Of these in the warm world.
    pub warm_plays: usize,
    /// Of the warm ones those whose reads were all answered in front of the server when the steps began.
    pub answered_in_front: usize,
    /// Where the first difference is, and what both said.
    pub difference: Option<String>,
    /// Why it could not be played to the end.
    pub broken: Option<String>,
    /// Why it was not played.
    pub skipped: Option<String>,
    /// Seconds.
    pub seconds: f64,
}

/// Gives each play a prefix of its own.
#[derive(Debug, Default)]
pub struct Prefixes(AtomicU32);

impl Prefixes {
    fn next(&self, seed: u64) -> String {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{:08x}{number:07x}:", seed as u32);
        debug_assert_eq!(prefix.len(), PREFIX_BYTES);
        prefix
    }
}

/// Why a play ended a sequence.
enum Ended {
    Differs(String),
    Broken(String),
}

/// Plays it in both worlds and all forms, until something differs or `ended` says so.
///
/// # Errors
/// If a server cannot be asked.
pub fn play(
    sequence: &Sequence,
    ground: &Ground,
    plan: &Plan,
    prefixes: &Prefixes,
    ended: &(dyn Fn() -> bool + Sync),
) -> Result<Outcome> {
    let began = Instant::now();
    let mut outcome = Outcome {
        bytes: cut::length(sequence),
        ..Outcome::default()
    };
    for need in &sequence.needs {
        if let Some(why) = ground.lacks(need)? {
            outcome.skipped = Some(why);
            return Ok(outcome);
        }
    }
    let forms = cut::forms(sequence, plan.cuts, plan.seed);
    let is_cut = |form: &&Form| matches!(form, Form::Cut(..));
    outcome.cuts = forms.iter().filter(is_cut).count();
    let ways: Vec<Way> = [true, false]
        .into_iter()
        .flat_map(|warm| forms.iter().map(move |&form| (warm, form)))
        .enumerate()
        .map(|(number, (warm, form))| Way { warm, form, number })
        .collect();
    outcome.plays = ways.len();
    outcome.warm_plays = forms.len();
    let crew = Crew {
        sequence,
        ground,
        plan,
        prefixes,
        ended,
        in_front: AtomicUsize::new(0),
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    match crew.play(&ways) {
        None => {}
        Some(Ended::Differs(what)) => outcome.difference = Some(what),
        Some(Ended::Broken(what)) => outcome.broken = Some(what),
    }
    outcome.answered_in_front = crew.in_front.into_inner();
    outcome.seconds = began.elapsed().as_secs_f64();
    Ok(outcome)
}

struct Crew<'a> {
    sequence: &'a Sequence,
    ground: &'a Ground,
    plan: &'a Plan,
    prefixes: &'a Prefixes,
    ended: &'a (dyn Fn() -> bool + Sync),
    in_front: AtomicUsize,
    next: AtomicUsize,
    stop: AtomicBool,
}

impl Crew<'_> {
    fn play(&self, ways: &[Way]) -> Option<Ended> {
        let workers = if self.sequence.alone {
            1
        } else {
            self.plan.workers.min(ways.len())
        };
        let found = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    if let Err(ended) = self.work(ways) {
                        self.stop.store(true, Ordering::Relaxed);
                        let mut found = found.lock().expect("no worker panics");
                        // What was said first, others may have come of.
                        found.get_or_insert(ended);
                    }
                });
            }
        });
        found.into_inner().expect("no worker panics")
    }

    fn work(&self, ways: &[Way]) -> std::result::Result<(), Ended> {
        let mut player = Player::new(self.ground, self.plan.stall)
            .map_err(|error| Ended::Broken(format!("{error:#}")))?;
        while let Some(&way) = ways.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if self.stop.load(Ordering::Relaxed) || (self.ended)() {
                break;
            }
            let prefix = self.prefixes.next(self.plan.seed);
            let done = player.play(self.sequence, way, prefix);
            let warm = done.map_err(|trouble| {
                let place = told(self.sequence, way);
                match trouble {
                    Trouble::Differs(what) => Ended::Differs(format!("{place}: {what}")),
                    Trouble::Shadow(error) => {
                        Ended::Broken(format!("{place}: the plain server failed: {error}"))
                    }
                }
            })?;
            self.in_front
                .fetch_add(usize::from(warm), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// How a play was done, so that it can be found again.
fn told(sequence: &Sequence, way: Way) -> String {
    let world = if way.warm { "warm" } else { "cold" };
    let Form::Cut(turn, at) = way.form else {
        let form = match way.form {
            Form::Apart => "each command a segment",
            _ => "uncut",
        };
        return format!("{world}, {form}");
    };
    let mut said = sequence.steps.iter().filter_map(|step| match step {
        Step::Say(who, said) => Some((*who, said)),
        _ => None,
    });
    let Some((who, said)) = said.nth(turn) else {
        return world.to_owned();
    };
    let prefix = "p".repeat(PREFIX_BYTES);
    let said = match said {
        Said::Words(text) => Said::Words(text.replace(crate::words::PREFIX, &prefix)),
        Said::Bytes(_) => said.clone(),
    };
    let bytes = cut::bytes(&said, &prefix);
    let at = at.min(bytes.len());
    let before = resp::show(&bytes[at.saturating_sub(24)..at], 24);
    let behind = resp::show(&bytes[at..(at + 24).min(bytes.len())], 24);
    format!("{world}, {who:?} cut after byte {at} ({before} | {behind})")
}
