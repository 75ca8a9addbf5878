// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All exchanges, by subject. Names in brackets are traps (docs/internals/traps.md).

mod acceptance;
mod acks;
mod counting;
mod duplicates;
mod ends;
mod overlaps;
mod time_wait;

use crate::exchange::Exchange;

/// All of them.
#[must_use]
pub fn all() -> Vec<Exchange> {
    [
        duplicates::exchanges(),
        overlaps::exchanges(),
        acceptance::exchanges(),
        acks::exchanges(),
        ends::exchanges(),
        time_wait::exchanges(),
        counting::exchanges(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::all;

    #[test]
    fn names_are_unique_and_every_rule_is_one_line() {
        let exchanges = all();
        let names: BTreeSet<&str> = exchanges.iter().map(|exchange| exchange.name).collect();
        assert_eq!(names.len(), exchanges.len());
        for exchange in &exchanges {
            assert!(!exchange.rule.is_empty() && !exchange.rule.contains('\n'));
        }
    }

    #[test]
    fn every_stored_log_belongs_to_an_exchange() {
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
            .map(|exchange| format!("{}.txt", exchange.name))
            .collect();
        assert_eq!(stored, wanted);
    }
}
