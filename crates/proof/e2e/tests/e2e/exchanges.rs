// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments that no kernel would send, played against the programs in the kernel: what comes back
//! is what the simulator says.

use std::time::Instant;

use erb_e2e::lab::TestLab;
use erb_e2e::wire::LabWire;
use erb_segments::exchanges;
use erb_segments::expected::agree;
use erb_steady::{Cause, out_of_patience};

/// Plays only exchanges with this in their names.
const ONLY: &str = "ERB_EXCHANGE";

#[test]
fn raw_segments_give_the_stored_logs() {
    let lab = TestLab::boosted_with("exchange", &["--direct"]);
    let mut wire = LabWire::new(&lab);
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut failures = Vec::new();
    for exchange in exchanges::all() {
        if exchange.name.contains(&only) {
            let began = Instant::now();
            failures.extend(agree(&mut wire, &exchange).err());
            println!("{}: {:?}", exchange.name, began.elapsed());
        }
    }
    let (late, wrong): (Vec<String>, Vec<_>) = failures
        .into_iter()
        .partition(|failure: &String| Cause::of(failure) == Some(Cause::Patience));
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    if !late.is_empty() {
        out_of_patience(late.join("\n\n"));
    }
}
