// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments that no kernel would send, played against the programs in the kernel: what comes back
//! is what the simulator says.

use std::time::Instant;

use erb_e2e::lab::TestLab;
use erb_e2e::wire::LabWire;
use erb_segments::expected::agree;
use erb_segments::scripts;

/// Plays only scripts with this in their names.
const ONLY: &str = "ERB_SCRIPT";

#[test]
fn raw_segments_give_the_stored_logs() {
    let lab = TestLab::boosted_with("script", &["--direct"]);
    let mut wire = LabWire::new(&lab);
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut failures = Vec::new();
    for script in scripts::all() {
        if script.name.contains(&only) {
            let began = Instant::now();
            failures.extend(agree(&mut wire, &script).err());
            println!("{}: {:?}", script.name, began.elapsed());
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
