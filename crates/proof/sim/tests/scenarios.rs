// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every trap of the design that can be shown is gone into, and nothing bad happens.

use std::collections::BTreeSet;

use erb_sim::campaign::args::fresh_seed;
use erb_sim::scenario::{ALL, mistakes};

#[test]
fn no_scenario_breaks_a_rule() {
    let only = std::env::var("SCENARIO").unwrap_or_default();
    let mut bad = Vec::new();
    for case in ALL.iter().filter(|case| case.name.contains(&only)) {
        let began = std::time::Instant::now();
        if let Err(violation) = case.play() {
            eprintln!("{}: {violation}", case.name);
            bad.push(case.name);
        }
        println!("{} {:.2} s", case.name, began.elapsed().as_secs_f32());
    }
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn names_are_unique_and_every_trap_is_there() {
    let names: BTreeSet<&str> = ALL.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), ALL.len());
    for trap in 1..=31 {
        let prefix = format!("tcp-{trap:02}-");
        assert!(
            names.iter().any(|name| name.starts_with(&prefix)),
            "nothing about TCP trap {trap}"
        );
    }
}

/// Mistakes that each run judges, others each time; with `ERB_LONG=1` it judges all. Each is compiled.
const JUDGED: usize = 6;

#[test]
fn every_named_mistake_makes_its_scenario_fail() {
    let only = std::env::var("SCENARIO").unwrap_or_default();
    let all: Vec<_> = mistakes()
        .filter(|case| case.name.contains(&only))
        .collect();
    assert!(!all.is_empty(), "no such scenario names a mistake");
    let long = std::env::var_os("ERB_LONG").is_some();
    let count = if long { all.len() } else { JUDGED };
    let first = usize::try_from(fresh_seed() % all.len() as u64).expect("an index");
    let mut missed = Vec::new();
    for case in all.iter().cycle().skip(first).take(count.min(all.len())) {
        let done = case.play_wrong().expect("the mistake can be made");
        let seen = done.err().map(|violation| violation.text);
        let text = seen.as_deref().unwrap_or("NOT SEEN").lines().last();
        println!("{} {}: {}", case.name, case.mistake, text.unwrap_or(""));
        if seen.is_none() {
            missed.push((case.name, case.mistake));
        }
    }
    assert!(missed.is_empty(), "not seen: {missed:?}");
}
