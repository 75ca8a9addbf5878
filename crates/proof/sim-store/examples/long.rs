// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays histories of a whole store until so many operations were asked of it, and counts them.
//!
//! `cargo run --release -p erb-sim-store --example long [operations] [first seed]`
//!
//! Operations are what clients ask: writes, restores, reads, roll backs, batches, snapshots and settings. Steps are all
//! events: messages, writes and reads of the disk that begin or end, ticks and crashes too. It ends at what it finds,
//! with the seed.

use std::process::ExitCode;
use std::time::Instant;

use erb_sim_store::crash::crash;
use erb_sim_store::plan::{Plan, STEPS};

const OPERATIONS: u64 = 100_000_000;
/// It says how far it has come after so many histories.
const TOLD: u64 = 1000;

/// Four kinds in turn: crashes by chance; a loss of power at one step of a short history; a long one without crashes,
/// in which segments are used again and again; one of a store that grows while it runs.
fn plan(seed: u64) -> Plan {
    let step = u32::try_from(seed % u64::from(STEPS)).expect("fewer steps than that");
    match seed % 4 {
        0 => Plan::LONG,
        1 => Plan::LONG.stopped_at(step),
        2 => Plan::CALM,
        _ => Plan::GROWING,
    }
}

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let wanted = numbers.next().and_then(Result::ok).unwrap_or(OPERATIONS);
    let first = numbers.next().and_then(Result::ok).unwrap_or(0);
    let begun = Instant::now();
    let (mut operations, mut steps, mut crashes, mut seed) = (0, 0, 0, first);
    while operations < wanted {
        let plan = plan(seed);
        match crash(seed, &plan, None) {
            Ok(met) => {
                operations += met.operations;
                crashes += met.crashes;
                steps += u64::from(plan.steps);
            }
            Err(difference) => {
                println!("{difference}");
                return ExitCode::FAILURE;
            }
        }
        seed += 1;
        if seed % TOLD == 0 || operations >= wanted {
            println!(
                "{operations} operations, {steps} steps, {crashes} crashes, {} histories in {} s: nothing found",
                seed - first,
                begun.elapsed().as_secs()
            );
        }
    }
    ExitCode::SUCCESS
}
