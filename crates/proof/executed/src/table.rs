// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of executed instructions, `bpf/executed.txt`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::play::Played;

/// Set to record the table anew from the programs as they are now.
pub const RECORD: &str = "ERB_RECORD_EXECUTED";

/// Case and program.
pub type Row = (String, String);

/// Where the table is.
#[must_use]
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bpf/executed.txt")
}

/// Instructions by case and program.
#[must_use]
pub fn rows(played: &[Played]) -> BTreeMap<Row, u32> {
    let runs = played
        .iter()
        .flat_map(|it| it.runs.iter().map(|run| (&it.case, run)));
    let mut rows = BTreeMap::new();
    for (case, run) in runs {
        *rows
            .entry((case.clone(), run.program.to_owned()))
            .or_default() += run.total();
    }
    rows
}

/// The table as it is committed: the recorded number, a tenth more as budget.
#[must_use]
pub fn text(found: &BTreeMap<Row, u32>) -> String {
    let mut text = String::from(
        "# BPF instructions executed per packet, recorded with clang 19; the budget is a tenth more.\n\
         # Checked by crates/proof/executed; recorded anew by:\n\
         # ERB_RECORD_EXECUTED=1 cargo test -p erb-executed\n\
         # case program executed budget\n",
    );
    for ((case, program), count) in found {
        text += &format!("{case} {program} {count} {}\n", count + count / 10);
    }
    text
}

/// Budgets by case and program.
///
/// # Errors
/// If a line is not of the table's form.
pub fn parse(text: &str) -> Result<BTreeMap<Row, u32>> {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [case, program, _, budget] = fields[..] else {
            return None;
        };
        Some(((case.to_owned(), program.to_owned()), budget.parse().ok()?))
    };
    lines
        .map(|line| row(line).with_context(|| format!("line of bpf/executed.txt: {line:?}")))
        .collect()
}

/// What the table does not allow, a line for each.
#[must_use]
pub fn complaints(found: &BTreeMap<Row, u32>, allowed: &BTreeMap<Row, u32>) -> Vec<String> {
    let over = found.iter().filter_map(|(row, count)| {
        let (case, program) = row;
        match allowed.get(row) {
            None => Some(format!("{case}: {program} is not in bpf/executed.txt")),
            Some(budget) if count > budget => Some(format!(
                "{case}: {program} executes {count} instructions, budget {budget}"
            )),
            Some(_) => None,
        }
    });
    let gone = allowed.keys().filter(|row| !found.contains_key(*row));
    let gone = gone.map(|(case, program)| {
        format!("{case}: {program} is in bpf/executed.txt but does not run")
    });
    over.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, u32)]) -> BTreeMap<Row, u32> {
        let row = |(case, count): &(&str, u32)| (((*case).into(), "erb_xdp".into()), *count);
        rows.iter().map(row).collect()
    }

    #[test]
    fn a_table_reads_back_a_tenth_higher() {
        let text = text(&table(&[("xdp/hit", 2430), ("tc/hit", 9)]));
        assert_eq!(
            parse(&text).unwrap(),
            table(&[("xdp/hit", 2673), ("tc/hit", 9)])
        );
        assert!(parse("xdp/hit erb_xdp 1").is_err());
    }

    #[test]
    fn what_costs_more_is_new_or_is_gone_is_complained_of() {
        let allowed = table(&[("same", 10), ("more", 10), ("gone", 10)]);
        let found = table(&[("same", 10), ("more", 11), ("new", 1)]);
        let complaints = complaints(&found, &allowed);
        let cases: Vec<&str> = complaints
            .iter()
            .filter_map(|it| it.split(':').next())
            .collect();
        assert_eq!(cases, ["more", "new", "gone"]);
    }
}
