// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of all profiles: a part of each from a seed that never changes; `ERB_LONG=1`: fresh seeds, the first of
//! which is printed.

use erb_sim::campaign::{Campaign, all_profiles, args::fresh_seed};
use erb_sim::story::Keep;
use erb_sim::{Options, run};

use crate::runs::{PART, part};

/// Of the smoke.
const SEED: u64 = 2;
/// Fresh seeds of each profile, of the whole.
const FRESH: u64 = 20;
/// Violations after which a campaign ends.
const FAILURES_MAX: usize = 3;

#[test]
fn no_run_breaks_a_rule() {
    if !erb_steady::long() {
        let options = Options {
            keep: Keep::Nothing,
            ..Options::default()
        };
        for profile in all_profiles() {
            if let Some(violation) = run(&part(profile, SEED, PART), &options).violation {
                panic!(
                    "{} seed {SEED}, a part of {PART}: {violation}",
                    profile.name
                );
            }
        }
        return;
    }
    let first_seed = fresh_seed();
    println!("first seed {first_seed}");
    let campaign = Campaign {
        profiles: all_profiles(),
        first_seed,
        seeds: FRESH,
        time_max: None,
        jobs: 2,
        progress: false,
    };
    let report = campaign.run(FAILURES_MAX);
    println!("{}", report.text());
    assert_eq!(report.runs, FRESH * all_profiles().len() as u64);
    // Printed with the command that replays it.
    assert!(report.failures.is_empty(), "{}", report.text());
    assert!(report.reached.impossible().is_empty(), "{}", report.text());
}
