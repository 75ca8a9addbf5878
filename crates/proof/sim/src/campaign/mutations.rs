// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs each mutation until a check sees it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use erb_sim_kernel::Library;
use erb_sim_kernel::compile::Flavour;
use serde::Serialize;

use crate::mutate::{Change, DaemonMistake, Mutation, Way, profiles, source};
use crate::plan::{Options, Plan};
use crate::run;
use crate::scenario::{self, Played};
use crate::story::Keep;

/// Events after which a mutation counts as not caught: some ten seconds.
pub const EVENTS_MAX: u64 = 4_000_000;

/// A check that any change of a run may trip by chance: one full sum in 65,536 is the bare one.
const BY_CHANCE: &str = "partial-sum";

/// How a mutation fared.
#[derive(Clone, Debug, Serialize)]
pub struct Fate {
    /// Its name.
    pub name: &'static str,
    /// The rule that it breaks.
    pub rule: &'static str,
    /// The profile, or the scenario.
    pub way: String,
    /// Seeds run; of a scenario, worlds played.
    pub seeds: u64,
    /// Events until it was caught, or in all.
    pub events: u64,
    /// The check that caught it.
    pub caught: Option<String>,
    /// What that check said.
    pub text: String,
}

/// What a run or a scenario is to have in it.
struct Wrong {
    library: Option<Library>,
    mistake: Option<DaemonMistake>,
}

/// Runs seeds from `first_seed` on until the mutation is caught or has had `events_max` events; or
/// plays its scenario.
///
/// # Errors
/// If it cannot be built, or its profile or scenario does not exist.
pub fn try_one(mutation: &Mutation, first_seed: u64, events_max: u64) -> Result<Fate> {
    let wrong = match mutation.change {
        Change::Source(edits) => {
            // Most are caught in less time than the compiler takes to optimise.
            let library = source::build(mutation.name, edits, Flavour::Hasty);
            Wrong {
                library: Some(library.with_context(|| mutation.name.to_owned())?),
                mistake: None,
            }
        }
        Change::Daemon(mistake) => Wrong {
            library: None,
            mistake: Some(mistake),
        },
    };
    let mut fate = Fate {
        name: mutation.name,
        rule: mutation.rule,
        way: mutation.way.to_string(),
        seeds: 0,
        events: 0,
        caught: None,
        text: String::new(),
    };
    match mutation.way {
        Way::Profile(name) => run_seeds(&mut fate, name, wrong, first_seed, events_max)?,
        Way::Scenario(name) => play(&mut fate, name, wrong)?,
    }
    Ok(fate)
}

fn run_seeds(
    fate: &mut Fate,
    profile: &str,
    wrong: Wrong,
    first_seed: u64,
    events_max: u64,
) -> Result<()> {
    let profile =
        profiles::find(profile).with_context(|| format!("{}: no profile {profile}", fate.name))?;
    let options = Options {
        keep: Keep::Nothing,
        library: wrong.library,
        mistake: wrong.mistake,
    };
    while fate.caught.is_none() && fate.events < events_max {
        let plan = Plan::new(profile, first_seed + fate.seeds);
        let outcome = run(&plan, &options);
        fate.seeds += 1;
        fate.events += outcome.events.max(1);
        // A run that fails without the mistake says nothing about it.
        if let Some(violation) = outcome.violation
            && violation.check != BY_CHANCE
            && run(&plan, &Options::default()).violation.is_none()
        {
            fate.caught = Some(violation.check.to_owned());
            fate.text = violation.text;
        }
    }
    Ok(())
}

fn play(fate: &mut Fate, name: &str, wrong: Wrong) -> Result<()> {
    let case =
        scenario::find(name).with_context(|| format!("{}: no scenario {name}", fate.name))?;
    // A scenario that fails without the mistake says nothing about it.
    let right = case.play_with(None, None);
    ensure!(right.is_ok(), "{name} fails as it is");
    let before = Played::so_far();
    let done = case.play_with(wrong.library, wrong.mistake);
    let played = Played::so_far().since(before);
    fate.seeds = played.worlds;
    fate.events = played.events;
    if let Err(violation) = done {
        fate.caught = Some(violation.check.to_owned());
        fate.text = violation.text;
    }
    Ok(())
}

/// What was tried as a table: how long each took, and what caught it.
#[must_use]
pub fn markdown(fates: &[Fate]) -> String {
    let mut text = String::from(
        "| mutation | rule that it breaks | where | seeds | events | caught by |\n\
         | --- | --- | --- | ---: | ---: | --- |\n",
    );
    for fate in fates {
        let caught = fate.caught.as_deref().unwrap_or("**not caught**");
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {caught} |\n",
            fate.name, fate.rule, fate.way, fate.seeds, fate.events
        ));
    }
    text
}

/// Tries all of them, several at a time; the fates are in the order of the table.
///
/// # Errors
/// The first mutation that cannot be tried.
pub fn try_all(
    mutations: &[&Mutation],
    jobs: usize,
    first_seed: u64,
    events_max: u64,
    each: impl Fn(&Fate) + Sync,
) -> Result<Vec<Fate>> {
    let next = AtomicUsize::new(0);
    let fates = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(mutation) = mutations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fate = try_one(mutation, first_seed, events_max);
                    if let Ok(fate) = &fate {
                        each(fate);
                    }
                    fates
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((mutation.name, fate));
                }
            });
        }
    });
    let fates = fates
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut found: Vec<Fate> = fates
        .into_iter()
        .map(|(_, fate)| fate)
        .collect::<Result<_>>()?;
    found.sort_by_key(|fate| mutations.iter().position(|m| m.name == fate.name));
    Ok(found)
}
