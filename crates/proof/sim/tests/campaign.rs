// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bounded campaign: seeds that never change, and fresh ones, whose seed is printed.

use std::time::Duration;

use erb_sim::campaign::{Campaign, Report, all_profiles, args::fresh_seed};

/// Seconds for each half.
const HALF: Duration = Duration::from_secs(30);

fn campaign(first_seed: u64, seeds: u64) -> Report {
    let campaign = Campaign {
        profiles: all_profiles(),
        first_seed,
        seeds,
        time_max: Some(HALF),
        jobs: 1,
        progress: false,
    };
    println!("first seed {first_seed}");
    let report = campaign.run(3);
    println!("{}", report.text());
    report
}

#[test]
fn fixed_seeds_break_no_rule_and_reach_much() {
    let report = campaign(1, 4);
    assert!(report.failures.is_empty(), "{}", report.text());
    assert!(report.reached.impossible().is_empty(), "{}", report.text());
    assert!(report.reached.times("reason", "FAST_GET") > 1_000);
    assert!(report.reached.times("reason", "REPLAY_REQUEST") > 0);
    assert!(report.reached.times("reason", "FENCE_TAKEN") > 0);
}

#[test]
fn fresh_seeds_break_no_rule() {
    let report = campaign(fresh_seed(), 1_000);
    assert!(report.runs > 0);
    // Printed with the command that replays it.
    assert!(report.failures.is_empty(), "{}", report.text());
}
