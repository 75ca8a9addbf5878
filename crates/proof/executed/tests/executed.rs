// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects as they are, interpreted: they do what the compiled C does, and cost what is recorded.

use std::rc::Rc;

use erb_executed::play::{Played, Tier, machine, play};
use erb_executed::table;

fn played() -> Vec<Played> {
    let machine = Rc::new(machine().expect("objects that link"));
    let tiers = [Tier::Xdp, Tier::Tc];
    let of = |tier| play(&machine, tier).unwrap_or_else(|error| panic!("{error:#}"));
    tiers.into_iter().flat_map(of).collect()
}

/// A tenth above the record is allowed, so that small changes and another clang need no new one.
#[test]
fn instructions_executed() {
    let found = table::rows(&played());
    for ((case, program), count) in &found {
        println!("{case:24} {program:16} {count:8} instructions executed");
    }
    if std::env::var_os(table::RECORD).is_some() {
        std::fs::write(table::path(), table::text(&found)).expect("bpf/executed.txt");
    }
    let text = std::fs::read_to_string(table::path()).expect("bpf/executed.txt");
    let complaints = table::complaints(&found, &table::parse(&text).expect("a table"));
    assert!(
        complaints.is_empty(),
        "\n{}\nset {}=1 once to record anew\n",
        complaints.join("\n"),
        table::RECORD
    );
}

#[test]
fn the_same_packets_cost_the_same_each_time() {
    assert_eq!(table::rows(&played()), table::rows(&played()));
}
