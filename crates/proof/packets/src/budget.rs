// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of verified instructions, `bpf/budget.txt`.

use std::collections::BTreeMap;

/// The table as it is committed: program, recorded number, a tenth more as budget.
#[must_use]
pub fn table(found: &BTreeMap<String, u32>) -> String {
    let mut text = String::from(
        "# Instructions verified per program (the verifier's limit is 1,000,000), recorded on\n\
         # Linux 6.18 with clang 19; the budget is a tenth more. Checked by crates/proof/packets; recorded\n\
         # anew by: ERB_RECORD_BUDGET=1 cargo test -p erb-packets instructions_verified\n\
         # program verified budget\n",
    );
    for (program, count) in found {
        text += &format!("{program} {count} {}\n", count + count / 10);
    }
    text
}

/// Budgets by program.
///
/// # Panics
/// If a line is not of the table's form.
#[must_use]
pub fn parse(text: &str) -> BTreeMap<String, u32> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            assert_eq!(fields.len(), 3, "line of bpf/budget.txt: {line:?}");
            (fields[0].to_owned(), fields[2].parse().expect("a number"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_back_a_tenth_higher() {
        let found = BTreeMap::from([("a".to_owned(), 100), ("b".to_owned(), 7)]);
        let expected = BTreeMap::from([("a".to_owned(), 110), ("b".to_owned(), 7)]);
        assert_eq!(parse(&table(&found)), expected);
    }
}
