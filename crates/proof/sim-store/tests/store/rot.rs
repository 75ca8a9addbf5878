// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What rots among what a log wrote last is told, and costs what it hits.

use std::panic;

use erb_sim_store::amount;
use erb_sim_store::plan::Plan;
use erb_sim_store::rot::{MetRot, Stop, rot};
use erb_store::mistake::ROT_MISTAKES;

const STOPS: [Stop; 3] = [Stop::Clean, Stop::Crash, Stop::Idle];
/// Histories within which a mistake must be found.
const HISTORIES_PER_MISTAKE: u64 = 6000;
const STEPS: u32 = 900;

fn plan() -> Plan {
    Plan {
        steps: STEPS,
        ..Plan::CALM
    }
}

#[test]
fn what_rots_behind_a_stop_or_a_crash_is_told_and_nothing_else_is_lost() {
    let mut uncertain = 0;
    for stop in STOPS {
        let mut met = MetRot::default();
        for seed in 0..amount(250, 20_000) {
            let one = rot(seed, &plan(), stop, None);
            let one = one.unwrap_or_else(|difference| panic!("{difference}"));
            met.lost += one.lost;
            met.damaged += one.damaged;
            met.uncertain += one.uncertain;
            met.whole += one.whole;
        }
        println!("{stop:?}: {met:?}");
        assert!(met.damaged > 0 && met.whole > 0, "{stop:?}: {met:?}");
        // Behind a clean stop directories have what heads of records have lost.
        let may_lose = stop != Stop::Clean;
        assert!(met.lost > 0 || !may_lose, "{stop:?}: {met:?}");
        uncertain += met.uncertain;
    }
    assert!(uncertain > 0, "no roll back rests on what is lost");
}

#[test]
fn every_mistake_about_rot_is_found() {
    let mut missed = Vec::new();
    for mistake in ROT_MISTAKES {
        let found_with = |seed: u64| {
            let stop = STOPS[(seed % 3) as usize];
            let judged = panic::catch_unwind(|| rot(seed, &plan(), stop, Some(mistake)));
            // Invariants that the engine asserts are checks too.
            judged
                .unwrap_or_else(|_| Err(format!("seed {seed}: an assertion")))
                .err()
        };
        match (0..HISTORIES_PER_MISTAKE).find_map(found_with) {
            Some(found) => println!("{mistake:?}: {found}"),
            None => missed.push(mistake),
        }
    }
    assert_eq!(missed, [], "these are not found");
}
