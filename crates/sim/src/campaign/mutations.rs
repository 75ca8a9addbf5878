// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs each mutation until a check sees it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::mutate::{Change, Mutation, profiles, source};
use crate::plan::{Options, Plan};
use crate::run;
use crate::trace::Keep;

/// Events after which a mutation counts as not caught: some ten seconds.
pub const EVENTS_MAX: u64 = 1_500_000;

/// A check that any change of a run may trip by chance: one full sum in 65,536 is the bare one.
const BY_CHANCE: &str = "partial-sum";

/// How a mutation fared.
#[derive(Clone, Debug, Serialize)]
pub struct Fate {
    /// Its name.
    pub name: &'static str,
    /// The rule that it breaks.
    pub rule: &'static str,
    /// The profile.
    pub profile: &'static str,
    /// Seeds run.
    pub seeds: u64,
    /// Events until it was caught, or in all.
    pub events: u64,
    /// The check that caught it.
    pub caught: Option<String>,
    /// What that check said.
    pub text: String,
    /// It is known not to be caught yet.
    pub open: bool,
}

/// Runs seeds from `first_seed` on until the mutation is caught or has had `events_max` events.
///
/// # Errors
/// If it cannot be built, or its profile does not exist.
pub fn try_one(mutation: &Mutation, first_seed: u64, events_max: u64) -> Result<Fate> {
    let profile = profiles::find(mutation.profile)
        .with_context(|| format!("{}: no profile {}", mutation.name, mutation.profile))?;
    let mut options = Options {
        keep: Keep::Nothing,
        ..Options::default()
    };
    match mutation.change {
        Change::Source(edits) => {
            let library = source::build(mutation.name, edits);
            options.library = Some(library.with_context(|| mutation.name.to_owned())?);
        }
        Change::Daemon(mistake) => options.mistake = Some(mistake),
    }
    let mut fate = Fate {
        name: mutation.name,
        rule: mutation.rule,
        profile: mutation.profile,
        seeds: 0,
        events: 0,
        caught: None,
        text: String::new(),
        open: mutation.is_open(),
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
    Ok(fate)
}

/// The table for docs/SIMULATOR.md.
#[must_use]
pub fn markdown(fates: &[Fate]) -> String {
    let mut text = String::from(
        "| mutation | rule that it breaks | profile | seeds | events | caught by |\n\
         | --- | --- | --- | ---: | ---: | --- |\n",
    );
    for fate in fates {
        let caught = fate.caught.as_deref().unwrap_or("**not caught yet**");
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {caught} |\n",
            fate.name, fate.rule, fate.profile, fate.seeds, fate.events
        ));
    }
    text
}

/// Tries all of them, several at a time; the fates are in the order of the table.
///
/// # Errors
/// The first mutation that cannot be tried.
pub fn try_all(
    mutations: &[&'static Mutation],
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
