// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of all profiles from fresh seeds, the first of which is printed. `./test` has a run of each profile in
//! [`coverage`](crate::coverage), from a seed that never changes.

use erb_sim::campaign::{Campaign, all_profiles, args::fresh_seed};

/// Fresh seeds of each profile.
const FRESH: u64 = 20;
/// Violations after which a campaign ends.
const FAILURES_MAX: usize = 3;

#[test]
fn no_run_breaks_a_rule() {
    if !erb_steady::long() {
        erb_steady::left(format_args!("sim: {FRESH} fresh seeds of each profile"));
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
