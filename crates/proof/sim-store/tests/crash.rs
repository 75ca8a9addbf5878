// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Engine and log lose nothing that was acknowledged, wherever they are stopped.

use std::panic;

use erb_sim_store::amount;
use erb_sim_store::crash::{Plan, crash};
use erb_store::mistake::LOG_MISTAKES;

const STEPS: u32 = 500;
/// Steps of a history that is stopped at every one.
const SHORT_STEPS: u32 = 90;
const FAILS_PER_MILLION: u32 = 10_000;
/// Histories within which a mistake must be found.
const HISTORIES_PER_MISTAKE: u64 = 2000;

const LONG: Plan = Plan {
    steps: STEPS,
    crash_at: None,
    fails_per_million: FAILS_PER_MILLION,
};

fn no_error(result: Result<(), String>) {
    if let Err(difference) = result {
        panic!("{difference}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_crashes_and_failed_writes() {
    for seed in 0..amount(400, 20_000) {
        no_error(crash(seed, &LONG, None));
    }
}

#[test]
fn nothing_acknowledged_is_lost_wherever_power_goes() {
    for seed in 0..amount(12, 500) {
        for step in 0..SHORT_STEPS {
            let plan = Plan {
                steps: SHORT_STEPS,
                crash_at: Some(step),
                fails_per_million: 0,
            };
            no_error(crash(seed, &plan, None));
        }
    }
}

#[test]
fn every_mistake_of_the_log_is_found() {
    for mistake in LOG_MISTAKES {
        let found_with = |seed| {
            let judged = panic::catch_unwind(|| crash(seed, &LONG, Some(mistake)));
            // Invariants that the engine asserts are checks too.
            judged
                .unwrap_or_else(|_| Err(format!("seed {seed}: an assertion")))
                .err()
        };
        let found = (0..HISTORIES_PER_MISTAKE).find_map(found_with);
        let found = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: {found}");
    }
}
