// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model agrees with the oracle, and every mistake in it is found.

use erb_sim_store::amount;
use erb_sim_store::compare::compare;
use erb_sim_store::model::MISTAKES;

const STEPS: u32 = 120;
/// Histories within which a mistake must be found: the rarest needs some hundreds.
const HISTORIES_PER_MISTAKE: u64 = 20_000;

#[test]
fn model_and_oracle_agree() {
    for seed in 0..amount(20_000, 1_000_000) {
        if let Err(difference) = compare(seed, STEPS, None) {
            panic!("{difference}");
        }
    }
}

#[test]
fn every_mistake_is_found() {
    for mistake in MISTAKES {
        let mut seeds = 0..HISTORIES_PER_MISTAKE;
        let found = seeds.find_map(|seed| compare(seed, STEPS, Some(mistake)).err());
        let found = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: {found}");
    }
}
