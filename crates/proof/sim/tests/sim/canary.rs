// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compute lane's canary: a mistake in the splice that runs see within seconds.

use erb_sim::campaign::mutations::{EVENTS_MAX, try_one};
use erb_sim::mutate;

/// Both deltas move by what was consumed and inserted, but for a byte.
const MISTAKE: &str = "delta-short";

#[test]
fn a_splice_that_counts_a_byte_too_few_is_red() {
    let mutation = mutate::all().find(|mutation| mutation.name == MISTAKE);
    let fate = try_one(mutation.expect("the mistake"), 1, EVENTS_MAX).expect("it can be built");
    println!("{:?}: {}", fate.caught, fate.text);
    assert_eq!(
        fate.caught.is_none(),
        erb_steady::is_canary(),
        "seen by a check"
    );
}
