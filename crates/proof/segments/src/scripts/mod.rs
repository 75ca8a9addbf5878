// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All scripts, by subject. Names in brackets are traps (docs/internals/traps.md).

mod acceptance;
mod acks;
mod counting;
mod duplicates;
mod ends;
mod overlaps;
mod time_wait;

use crate::script::Script;

/// All of them.
#[must_use]
pub fn all() -> Vec<Script> {
    [
        duplicates::scripts(),
        overlaps::scripts(),
        acceptance::scripts(),
        acks::scripts(),
        ends::scripts(),
        time_wait::scripts(),
        counting::scripts(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::all;

    #[test]
    fn names_are_unique_and_every_rule_is_one_line() {
        let scripts = all();
        let names: BTreeSet<&str> = scripts.iter().map(|script| script.name).collect();
        assert_eq!(names.len(), scripts.len());
        for script in &scripts {
            assert!(!script.rule.is_empty() && !script.rule.contains('\n'));
        }
    }

    #[test]
    fn every_stored_log_belongs_to_a_script() {
        let stored = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/expected"));
        let stored: BTreeSet<String> = stored
            .expect("expected/")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("a name")
            })
            .collect();
        let wanted: BTreeSet<String> = all()
            .iter()
            .map(|script| format!("{}.txt", script.name))
            .collect();
        assert_eq!(stored, wanted);
    }
}
