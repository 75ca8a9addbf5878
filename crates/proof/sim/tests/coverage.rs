// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every verdict, reason and kind of fault is reached by runs or scenarios, or stands in the table
//! with why it cannot be.

use std::time::{Duration, Instant};

use erb_sim::campaign::{Campaign, Report, all_profiles};

/// Enough for several times the runs that it takes.
const TIME_MAX: Duration = Duration::from_secs(180);

#[test]
fn scenarios_and_some_runs_of_each_profile_reach_everything() {
    let began = Instant::now();
    let mut all = Report::default();
    all.play_scenarios();
    for seed in 1.. {
        let campaign = Campaign {
            profiles: all_profiles(),
            first_seed: seed,
            seeds: 1,
            time_max: None,
            jobs: 1,
            progress: false,
        };
        all.reached.merge(&campaign.run(usize::MAX).reached);
        if all.reached.missing().is_empty() || began.elapsed() > TIME_MAX {
            println!("{seed} seeds, {:.1} s", began.elapsed().as_secs_f32());
            break;
        }
    }
    println!("{}", all.reached.text());
    assert!(all.failures.is_empty(), "{}", all.text());
    assert!(all.reached.missing().is_empty(), "{}", all.text());
    assert!(all.reached.impossible().is_empty(), "{}", all.text());
}
