// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/unsteady.md: a test that was unsteady twice is fixed before anything else lands.

use std::collections::BTreeMap;

use crate::assert_none;
use crate::files;

const DOCUMENT: &str = "docs/unsteady.md";
/// What the last column of a row begins with.
const STATES: [&str; 3] = ["open", "fixed", "measurement"];
/// Cells of a row.
const CELLS: usize = 4;

fn complaints(text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    let rows = text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.starts_with('|'));
    // The heading, and the line below it.
    for (index, line) in rows.skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let at = format!("{DOCUMENT}:{}", index + 1);
        let [test, seen, what, state] = cells[..] else {
            complaints.push(format!("{at}: {} cells, not {CELLS}", cells.len()));
            continue;
        };
        if [test, seen, what].contains(&"") {
            complaints.push(format!("{at}: an empty cell"));
        }
        if !STATES.iter().any(|word| state.starts_with(word)) {
            complaints.push(format!("{at}: {state:?} is none of {STATES:?}"));
        }
        if let Some(first) = open.get(test) {
            complaints.push(format!(
                "{at}: {test} is open since line {first}: fix it, or make it a measurement"
            ));
        } else if state.starts_with("open") {
            open.insert(test, index + 1);
        }
    }
    complaints
}

#[test]
fn no_test_is_unsteady_twice() {
    let files = files::all();
    let file = files.iter().find(|file| file.name == DOCUMENT);
    let text = &file.expect("the document is there").text;
    assert!(text.contains("| test |"), "no table");
    assert_none("unsteady tests are fixed", &complaints(text));
}

#[test]
fn a_second_row_is_found_while_the_first_is_open() {
    let table =
        |rows: &str| format!("| test | seen | what | state |\n| --- | --- | --- | --- |\n{rows}");
    let open = "| `a` | 28 Nov | late | open |\n";
    let fixed = "| `a` | 27 Nov | late | fixed: waits |\n";
    assert!(complaints(&table(&[fixed, open].concat())).is_empty());
    assert_eq!(complaints(&table(&[open, open].concat())).len(), 1);
    assert_eq!(complaints(&table(&[open, fixed].concat())).len(), 1);
    assert_eq!(complaints(&table("| `a` | | late | perhaps |\n")).len(), 2);
    assert_eq!(complaints(&table("| `a` | late |\n")).len(), 1);
}
