// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole runs: equal seeds are equal runs, and hot keys are answered fast.

use erb_sim::story::Keep;
use erb_sim::{Options, PROFILES, Plan, profile, run};

use crate::runs::part;

/// In `./test` a profile is played for so small a part of its time, by so small a part of its connections.
const SMALL: u32 = 16;

#[test]
fn equal_seeds_are_equal_runs() {
    let options = Options {
        keep: Keep::All,
        ..Options::default()
    };
    for profile in PROFILES {
        let plan = part(profile, 5, erb_steady::scaled(SMALL, 1));
        let (one, two) = (run(&plan, &options), run(&plan, &options));
        let differs = one
            .story
            .lines()
            .zip(two.story.lines())
            .find(|(a, b)| a != b);
        assert_eq!(differs, None, "{}", profile.name);
        assert_eq!(one.coverage, two.coverage, "{}", profile.name);
    }
}

#[test]
fn the_fast_path_answers_many_reads_of_a_hot_world() {
    let mut fast = 0;
    let mut asked = 0;
    for seed in 1..6 {
        let plan = Plan::new(profile::find("hot").expect("a profile"), seed);
        let outcome = run(&plan, &Options::default());
        let count = |kind, name: &str| outcome.coverage.get(&(kind, name.to_owned())).copied();
        fast += count("reason", "FAST_GET").unwrap_or(0);
        asked += count("command", "get").unwrap_or(0);
    }
    assert!(
        fast * 5 > asked,
        "{fast} of {asked} reads were answered fast"
    );
}
