// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same run with one data path and with another: whether both do the same.

use erb_sim::mutate::source::{self, Edit};
use erb_sim::profile::{Events, ServerRates};
use erb_sim::story::Keep;
use erb_sim::{Options, Outcome, PROFILES, Plan, Profile, run};
use erb_sim_kernel::Library;
use erb_sim_kernel::compile::Flavour;

/// The data path with these edits.
pub fn build(name: &str, edits: &[Edit]) -> Library {
    source::build(name, edits, Flavour::Hasty).unwrap_or_else(|error| panic!("{name}: {error:#}"))
}

/// The profile without switches between helpers, and without processors that stand still at some point of a program: of
/// both the two may have other numbers.
pub fn in_turns(profile: &'static Profile) -> &'static Profile {
    Box::leak(Box::new(Profile {
        server: ServerRates {
            switch: 0,
            ..profile.server
        },
        events: Events {
            still: 0,
            ..profile.events
        },
        ..*profile
    }))
}

/// In a smoke a profile is played for so small a part of its time, by so small a part of its connections.
const PART: u32 = 4;

/// The plan of a part of a run.
pub fn part(profile: &'static Profile, seed: u64, part: u32) -> Plan {
    let mut plan = Plan::new(profile, seed);
    plan.connections = (plan.connections / part).max(4);
    plan.duration /= u64::from(part);
    plan
}

/// A run, with all of its story.
pub fn outcome(profile: &'static Profile, seed: u64, library: &Library) -> Outcome {
    outcome_of(&Plan::new(profile, seed), library)
}

fn outcome_of(plan: &Plan, library: &Library) -> Outcome {
    let options = Options {
        library: Some(library.clone()),
        keep: Keep::All,
        ..Options::default()
    };
    run(plan, &options)
}

/// Where both runs differ first.
pub fn difference(one: &Outcome, other: &Outcome) -> Option<String> {
    let mut lines = one.story.lines().zip(other.story.lines());
    if let Some((left, right)) = lines.find(|(left, right)| left != right) {
        return Some(format!("one: {left}\nother: {right}"));
    }
    let counts = erb_abi::REASONS
        .iter()
        .zip(one.stats.iter().zip(&other.stats));
    let differ = counts.filter(|(_, (left, right))| left != right);
    let said: Vec<_> = differ
        .map(|(reason, (left, right))| format!("{}: one {left}, other {right}", reason.name))
        .collect();
    if !said.is_empty() {
        return Some(said.join("; "));
    }
    (one.coverage != other.coverage || one.story.len() != other.story.len())
        .then(|| "the runs reach other things".to_owned())
}

/// Runs of each profile are the same with both: so many seeds if all is wanted, else a part of one.
///
/// # Panics
/// If they are not.
pub fn are_the_same(one: &Library, other: &Library, seeds: u64) {
    let (seeds, share) = erb_steady::scaled((1, PART), (seeds, 1));
    for profile in PROFILES {
        let profile = in_turns(profile);
        for seed in 1..=seeds {
            let plan = part(profile, seed, share);
            let (one, other) = (outcome_of(&plan, one), outcome_of(&plan, other));
            if let Some(text) = difference(&one, &other) {
                panic!("{} seed {seed}: {text}", profile.name);
            }
        }
    }
}
