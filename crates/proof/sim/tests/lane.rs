// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The express lane says what the general path would say: Q1. Without it every run is the same run,
//! as long as CPUs take turns at its own waits alone: the lane has other points at which they switch.

use erb_sim::mutate::source::{self, Edit};
use erb_sim::profile::ServerRates;
use erb_sim::story::Keep;
use erb_sim::{Options, Outcome, PROFILES, Plan, Profile, run};
use erb_sim_kernel::Library;
use erb_sim_kernel::compile::Flavour;

/// Of each profile.
const SEEDS: u64 = 6;
/// Seeds within which a mistake in the lane shows.
const SEEDS_OF_MISTAKE: u64 = 10;

const OFF: Edit = Edit {
    file: "splice/lane.h",
    find: "#define LANE\t     1",
    replace: "#define LANE\t     0",
};

fn build(name: &str, edits: &[Edit]) -> Library {
    source::build(name, edits, Flavour::Plain).unwrap_or_else(|error| panic!("{name}: {error:#}"))
}

/// The profile without switches between helpers.
fn in_turns(profile: &'static Profile) -> &'static Profile {
    Box::leak(Box::new(Profile {
        server: ServerRates {
            switch: 0,
            ..profile.server
        },
        ..*profile
    }))
}

fn outcome(profile: &'static Profile, seed: u64, library: &Library) -> Outcome {
    let options = Options {
        library: Some(library.clone()),
        keep: Keep::All,
        ..Options::default()
    };
    run(&Plan::new(profile, seed), &options)
}

/// Where both runs differ first.
fn difference(one: &Outcome, other: &Outcome) -> Option<String> {
    let mut lines = one.story.lines().zip(other.story.lines());
    if let Some((left, right)) = lines.find(|(left, right)| left != right) {
        return Some(format!("with: {left}\nwithout: {right}"));
    }
    for (reason, (left, right)) in erb_abi::REASONS
        .iter()
        .zip(one.stats.iter().zip(&other.stats))
    {
        if left != right {
            return Some(format!("{}: with {left}, without {right}", reason.name));
        }
    }
    (one.coverage != other.coverage || one.story.len() != other.story.len())
        .then(|| "the runs reach other things".to_owned())
}

#[test]
fn runs_without_the_lane_are_the_same_runs() {
    let (with, without) = (build("lane-on", &[]), build("lane-off", &[OFF]));
    for profile in PROFILES {
        let profile = in_turns(profile);
        for seed in 1..=SEEDS {
            let one = outcome(profile, seed, &with);
            let other = outcome(profile, seed, &without);
            if let Some(text) = difference(&one, &other) {
                panic!("{} seed {seed}: {text}", profile.name);
            }
        }
    }
}

/// What the lane must not forget: what it leaves to the general path, and what it writes.
#[rustfmt::skip]
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    ("sum-unread", "if (!lane_sum_ok(&sum))", "if (0)", "corrupt"),
    ("tail-forgotten", "\t*(u64 *)(at + body_at + from) = *(u64 *)(w->reply + from);\n", "", "hot"),
    ("place-uncalled", "\tplace_call(w, PLACES_TIMER);\n", "", "lossy"),
];

#[test]
fn mistakes_in_the_lane_make_other_runs() {
    let without = build("lane-off-again", &[OFF]);
    for (name, find, replace, profile) in MISTAKES {
        let edit = Edit {
            file: "splice/lane.h",
            find,
            replace,
        };
        let wrong = build(name, &[edit]);
        let profile = in_turns(erb_sim::profile::find(profile).expect("a profile"));
        let seen = (1..=SEEDS_OF_MISTAKE).find_map(|seed| {
            difference(
                &outcome(profile, seed, &wrong),
                &outcome(profile, seed, &without),
            )
        });
        println!("{name}: {}", seen.as_deref().unwrap_or("NOT SEEN"));
        assert!(seen.is_some(), "{name} is not seen");
    }
}
