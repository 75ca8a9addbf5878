// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every deliberate mistake is seen by some check.

use erb_sim::campaign::mutations::{EVENTS_MAX, markdown, try_all};
use erb_sim::mutate::source::edited;
use erb_sim::mutate::{self, Change};

/// Told at once, and not by the slow test below.
#[test]
fn every_mutation_has_its_place() {
    for mutation in mutate::all() {
        if let Change::Source(edits) = mutation.change {
            edited(edits).unwrap_or_else(|error| panic!("{}: {error:#}", mutation.name));
        }
    }
}

#[test]
fn every_mutation_is_caught() {
    let all: Vec<_> = mutate::all().collect();
    let fates = try_all(&all, 2, 1, EVENTS_MAX, |_| {}).expect("every mutation can be built");
    println!("{}", markdown(&fates));
    let missed: Vec<&str> = fates
        .iter()
        .filter(|fate| fate.caught.is_none())
        .map(|fate| fate.name)
        .collect();
    assert!(missed.is_empty(), "not caught: {}", missed.join(", "));
}
