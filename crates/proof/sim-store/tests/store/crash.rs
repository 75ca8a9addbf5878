// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store loses nothing that was acknowledged, wherever they are stopped.

use std::panic;

use erb_sim_store::amount;
use erb_sim_store::crash::{Met, crash};
use erb_sim_store::plan::Plan;
use erb_store::mistake::{
    CACHE_MISTAKES, EXPIRY_MISTAKES, LOG_MISTAKES, Mistake, SPACE_MISTAKES, STORE_MISTAKES,
};

/// Steps of a history that is stopped at every one.
const SHORT_STEPS: u32 = 400;
/// Behind it are histories in which all is met that may be, also a writer that is refused for want of space.
const FIRST_SEED: u64 = 200;
/// Histories within which a mistake must be found.
const HISTORIES_PER_MISTAKE: u64 = 2000;

fn no_error(result: Result<Met, String>) -> Met {
    result.unwrap_or_else(|difference| panic!("{difference}"))
}

#[test]
fn nothing_acknowledged_is_lost_by_crashes_and_failed_writes() {
    let mut met = Met::default();
    for seed in FIRST_SEED..FIRST_SEED + amount(300, 20_000) {
        let one = no_error(crash(seed, &Plan::LONG, None));
        met.copied += one.copied;
        met.scrubbed += one.scrubbed;
        met.reused += one.reused;
        met.refused += one.refused;
        met.cached += one.cached;
    }
    println!("{met:?}");
    assert!(
        met.copied > 0 && met.scrubbed > 0 && met.reused > 0 && met.refused > 0 && met.cached > 0,
        "{met:?}"
    );
}

#[test]
fn nothing_is_lost_while_space_is_used_again_and_again() {
    for seed in 0..amount(60, 5000) {
        no_error(crash(seed, &Plan::CALM, None));
    }
}

#[test]
fn nothing_acknowledged_is_lost_wherever_power_goes() {
    for seed in 0..amount(6, 500) {
        for step in 0..SHORT_STEPS {
            let plan = Plan {
                steps: SHORT_STEPS,
                ..Plan::LONG.stopped_at(step)
            };
            no_error(crash(seed, &plan, None));
        }
    }
}

/// Four kills of a full store, each before a checkpoint was whole: of many millions of histories one had that. A shorter way to
/// it, with the mistake, stands in `tests/store/space.rs`.
#[test]
fn a_full_store_that_is_killed_again_and_again_has_space_for_checkpoints() {
    let (seed, plan) = (5_003_776, Plan::LONG.stopped_at(2776));
    no_error(crash(seed, &plan, None));
}

/// A sweep found all keys to have two versions in a row. One of them had been trimmed, and written again by what was not
/// durable. A roll back by one was let in, was durable, and the kill took those writes back. Some 40 million operations met
/// that once.
#[test]
fn a_roll_back_counts_only_over_versions_that_no_kill_takes_back() {
    let (seed, plan) = (50_018_945, Plan::LONG.stopped_at(2945));
    no_error(crash(seed, &plan, None));
    let mistaken = crash(seed, &plan, Some(Mistake::CountNotDurable));
    let difference = mistaken.expect_err("the mistake is seen");
    assert!(difference.contains("which is held"), "{difference}");
}

#[test]
fn a_store_that_grows_while_it_runs_loses_nothing_wherever_it_is_stopped() {
    let (mut grown, mut used) = (0, 0);
    for seed in 0..amount(200, 20_000) {
        let met = no_error(crash(seed, &Plan::GROWING, None));
        grown += met.grown;
        used += met.grown_used;
    }
    println!("{grown} segments more, {used} of them used");
    assert!(used > 0, "{grown}");
    for seed in 0..amount(2, 200) {
        for step in 0..SHORT_STEPS {
            let plan = Plan {
                steps: SHORT_STEPS,
                ..Plan::GROWING.stopped_at(step)
            };
            no_error(crash(seed, &plan, None));
        }
    }
}

#[test]
fn every_mistake_of_the_store_is_found() {
    let mut missed = Vec::new();
    let all = LOG_MISTAKES.into_iter().chain(STORE_MISTAKES);
    let all = all.chain(SPACE_MISTAKES).chain(EXPIRY_MISTAKES);
    // What comes from the disk there is right: damage is for `tests/store/cache.rs`.
    let of_cache = CACHE_MISTAKES.into_iter();
    let of_cache = of_cache.filter(|it| *it != Mistake::CachedUnchecked);
    // The others of snapshots need one moment that is held twice, or a lock: `tests/store/retention.rs`.
    let of_snapshots = [Mistake::SnapshotEndsAtOnce, Mistake::SnapshotEndsAll];
    for mistake in all.chain(of_snapshots).chain(of_cache) {
        let found_with = |seed| {
            let plan = if seed % 2 == 0 {
                &Plan::LONG
            } else {
                &Plan::CALM
            };
            let judged = panic::catch_unwind(|| crash(seed, plan, Some(mistake)));
            // Invariants that the engine asserts are checks too.
            judged
                .unwrap_or_else(|_| Err(format!("seed {seed}: an assertion")))
                .err()
        };
        let found = (0..HISTORIES_PER_MISTAKE).find_map(found_with);
        match found {
            Some(found) => println!("{mistake:?}: {found}"),
            None => missed.push(mistake),
        }
    }
    assert_eq!(missed, [], "these are not found");
}
