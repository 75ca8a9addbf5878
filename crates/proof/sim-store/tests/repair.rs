// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A repair of a rotten control log loses nothing that can be read, or is refused.

use std::collections::BTreeMap;

use erb_sim_store::amount;
use erb_sim_store::plan::Plan;
use erb_sim_store::repair::{Repaired, repair};

#[test]
fn a_repair_of_a_rotten_control_log_loses_nothing_that_can_be_read() {
    let plan = Plan {
        steps: 3600,
        ..Plan::CALM
    };
    let mut met = BTreeMap::new();
    for seed in 0..amount(250, 20_000) {
        let came = repair(seed, &plan).unwrap_or_else(|difference| panic!("{difference}"));
        *met.entry(came).or_insert(0_u64) += 1;
    }
    println!("{met:?}");
    assert!(met[&Repaired::Yes] > 50, "{met:?}");
    for rare in [Repaired::Refused, Repaired::Told] {
        let count = met.get(&rare).copied().unwrap_or(0);
        assert!(count * 5 < met[&Repaired::Yes], "{met:?}");
    }
}
