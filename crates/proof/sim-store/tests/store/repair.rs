// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A repair of a rotten control log loses nothing that can be read, or is refused.

use std::collections::BTreeMap;

use erb_sim_store::amount;
use erb_sim_store::plan::Plan;
use erb_sim_store::repair::{Repaired, repair, rot_without_end};

const PLAN: Plan = Plan {
    steps: 3600,
    ..Plan::CALM
};

/// Histories that have a segment without an end.
const WITHOUT_END: [u64; 8] = [2, 297, 781, 823, 1003, 1366, 1586, 2076];

/// A checkpoint was whole, and power went while the directory of a segment before it was on its way: nobody says where
/// that segment ends. The scrub took what lies behind its last batch for rot.
#[test]
fn a_segment_without_an_end_has_no_rot_behind_its_last_batch() {
    for seed in WITHOUT_END {
        repair(seed, &PLAN).unwrap_or_else(|difference| panic!("{difference}"));
    }
}

#[test]
fn rot_in_the_last_batch_of_a_segment_without_an_end_is_told() {
    for seed in WITHOUT_END {
        let came = rot_without_end(seed, &PLAN);
        let is_met = came.unwrap_or_else(|difference| panic!("{difference}"));
        assert!(is_met, "{seed} has none such any more: look for another");
    }
}

#[test]
fn a_repair_of_a_rotten_control_log_loses_nothing_that_can_be_read() {
    let mut met = BTreeMap::new();
    for seed in 0..amount(250, 20_000) {
        let came = repair(seed, &PLAN).unwrap_or_else(|difference| panic!("{difference}"));
        *met.entry(came).or_insert(0_u64) += 1;
    }
    println!("{met:?}");
    assert!(met[&Repaired::Yes] > 50, "{met:?}");
    for rare in [Repaired::Refused, Repaired::Told] {
        let count = met.get(&rare).copied().unwrap_or(0);
        assert!(count * 5 < met[&Repaired::Yes], "{met:?}");
    }
}
