// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a report says of counters: what is missing, what only a scenario reached, what cannot be.

use erb_sim::campaign::coverage::{Reached, UNREACHABLE, count};

#[test]
fn what_is_missing_and_what_should_not_be_there_is_told() {
    let mut reached = Reached::default();
    assert!(reached.missing().contains(&"reason FAST_GET".to_owned()));
    assert!(!reached.missing().contains(&"reason INVARIANT".to_owned()));
    assert!(reached.impossible().is_empty());
    count(&mut reached.counts, "reason", "FAST_GET", 3);
    count(&mut reached.counts, "reason", "INVARIANT", 1);
    assert!(!reached.missing().contains(&"reason FAST_GET".to_owned()));
    assert_eq!(reached.impossible().len(), 1);
    assert!(reached.text().contains("REACHED AFTER ALL"));
}

#[test]
fn what_only_a_scenario_reaches_is_told_apart() {
    let mut reached = Reached::default();
    count(&mut reached.counts, "reason", "FAST_GET", 3);
    count(&mut reached.scenarios, "reason", "FAST_GET", 1);
    count(&mut reached.scenarios, "reason", "LONG_PACKET", 1);
    assert_eq!(reached.scenarios_only(), ["reason LONG_PACKET"]);
    assert!(!reached.missing().contains(&"reason LONG_PACKET".to_owned()));
    assert_eq!(reached.times("reason", "LONG_PACKET"), 0);
    assert!(reached.text().contains("by scenarios only (1)"));
    count(&mut reached.scenarios, "reason", "INVARIANT", 1);
    assert_eq!(reached.impossible().len(), 1);
}

#[test]
fn the_table_names_what_exists() {
    let known = Reached::known();
    for (kind, name, _) in UNREACHABLE {
        let found = known.iter().any(|(k, n)| k == kind && n == name);
        assert!(found || *name == "xdp aborted", "{kind} {name}");
    }
}
