// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What docs/internals/simulator.md lists is what there is. `ERB_RECORD=1` writes it anew.

use std::fmt::Write as _;

use erb_sim::mutate;

#[test]
fn the_mutations_are_those_of_the_table() {
    let mut table =
        String::from("| mutation | rule that it breaks | caught in |\n| --- | --- | --- |\n");
    for mutation in mutate::all() {
        writeln!(
            table,
            "| `{}` | {} | {} |",
            mutation.name, mutation.rule, mutation.way
        )
        .expect("a string");
    }
    if let Err(problem) = erb_tidy::generated("docs/internals/simulator.md", "mutations", &table) {
        panic!("{problem}");
    }
}
