// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine does what the oracle does, and every mistake in it is found.

use std::panic;

use erb_sim_store::amount;
use erb_sim_store::judge::{Profile, judge};
use erb_store::mistake::{MISTAKES, Mistake};

/// Few keys, so that much happens to each.
const NARROW: Profile = Profile {
    keys: 8,
    steps: 400,
    full_every: 100,
};
/// So many keys that sub-tables split, and rows are many to a key.
const WIDE: Profile = Profile {
    keys: 9000,
    steps: 25_000,
    full_every: 12_500,
};
/// Histories within which a mistake must be found.
const HISTORIES_PER_MISTAKE: u64 = 4000;

#[test]
fn the_engine_does_what_the_oracle_does() {
    for seed in 0..amount(2000, 100_000) {
        if let Err(difference) = judge(seed, &NARROW, None) {
            panic!("{difference}");
        }
    }
}

#[test]
fn the_engine_does_so_with_many_keys() {
    for seed in 0..amount(1, 60) {
        if let Err(difference) = judge(seed, &WIDE, None) {
            panic!("{difference}");
        }
    }
}

#[test]
fn every_mistake_of_the_engine_is_found() {
    let of_places = [Mistake::SharedPlaceStays, Mistake::SharedPlaceCeases];
    for mistake in MISTAKES.into_iter().chain(of_places) {
        let found_with = |seed| {
            let judged = panic::catch_unwind(|| judge(seed, &NARROW, Some(mistake)));
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
