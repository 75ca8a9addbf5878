// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What runs have reached, what they have not, and what they cannot.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::fault::Fault;
use crate::plan::Outcome;

/// Counters of all runs by kind and name.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Reached {
    counts: BTreeMap<String, BTreeMap<String, u64>>,
}

/// What no run can reach, and why. Checked: if one is reached, the report says so.
const UNREACHABLE: &[(&str, &str, &str)] = &[
    ("reason", "INVARIANT", "broken invariants end the run"),
    ("reason", "EGRESS_OTHER_DEVICE", "the server has one device"),
    (
        "reason",
        "EGRESS_REWRITE_FAILED",
        "the kernel has memory for a header",
    ),
    (
        "reason",
        "MISS_RING_FULL",
        "a run has fewer misses than the ring holds",
    ),
    (
        "reason",
        "CONN_TABLE_FULL",
        "a run has fewer connections than the table holds",
    ),
    (
        "reason",
        "REXMIT_GAVE_UP",
        "15 tries with doubled pauses take longer than a run",
    ),
    ("verdict", "xdp aborted", "no program returns it"),
];

impl Reached {
    /// Adds a run.
    pub fn add(&mut self, outcome: &Outcome) {
        // The counters of the data path are taken from `stats`, once.
        let others = outcome
            .coverage
            .iter()
            .filter(|((kind, _), _)| *kind != "reason");
        for ((kind, name), count) in others {
            self.count(kind, name, *count);
        }
        for (reason, count) in erb_abi::REASONS.iter().zip(&outcome.stats) {
            self.count("reason", reason.name, *count);
        }
    }

    fn count(&mut self, kind: &str, name: &str, count: u64) {
        let names = self.counts.entry(kind.to_owned()).or_default();
        *names.entry(name.to_owned()).or_default() += count;
    }

    /// How often something was reached.
    #[must_use]
    pub fn times(&self, kind: &str, name: &str) -> u64 {
        let names = self.counts.get(kind);
        names
            .and_then(|names| names.get(name))
            .copied()
            .unwrap_or(0)
    }

    /// All that is known to exist, by kind.
    fn known() -> Vec<(&'static str, String)> {
        let verdicts = [
            "xdp drop",
            "xdp pass",
            "xdp tx",
            "ingress next",
            "ingress drop",
            "egress next",
            "egress drop",
        ];
        let mut known: Vec<(&str, String)> = Vec::new();
        known.extend(verdicts.map(|name| ("verdict", name.to_owned())));
        known.extend(
            erb_abi::REASONS
                .iter()
                .map(|reason| ("reason", reason.name.to_owned())),
        );
        known.extend(Fault::ALL.map(|fault| ("fault", fault.to_string())));
        known
    }

    /// What exists, could be reached and was not.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        Self::known()
            .into_iter()
            .filter(|(kind, name)| self.times(kind, name) == 0 && why(kind, name).is_none())
            .map(|(kind, name)| format!("{kind} {name}"))
            .collect()
    }

    /// What was reached although the table says that it cannot be.
    #[must_use]
    pub fn impossible(&self) -> Vec<String> {
        UNREACHABLE
            .iter()
            .filter(|(kind, name, _)| self.times(kind, name) > 0)
            .map(|(kind, name, why)| format!("{kind} {name} (\"{why}\")"))
            .collect()
    }

    /// The report for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (kind, names) in &self.counts {
            let shown: Vec<String> = names
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            text.push_str(&format!("{kind} ({}): {}\n", shown.len(), shown.join(", ")));
        }
        let missing = self.missing();
        text.push_str(&format!(
            "not reached ({}): {}\n",
            missing.len(),
            missing.join(", ")
        ));
        for (kind, name, why) in UNREACHABLE {
            text.push_str(&format!("cannot be reached: {kind} {name}: {why}\n"));
        }
        for name in self.impossible() {
            text.push_str(&format!("REACHED AFTER ALL, mend the table: {name}\n"));
        }
        text
    }
}

fn why(kind: &str, name: &str) -> Option<&'static str> {
    UNREACHABLE
        .iter()
        .find(|(k, n, _)| *k == kind && *n == name)
        .map(|(_, _, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_and_what_should_not_be_there_is_told() {
        let mut reached = Reached::default();
        assert!(reached.missing().contains(&"reason FAST_GET".to_owned()));
        assert!(!reached.missing().contains(&"reason INVARIANT".to_owned()));
        assert!(reached.impossible().is_empty());
        reached.count("reason", "FAST_GET", 3);
        reached.count("reason", "INVARIANT", 1);
        assert!(!reached.missing().contains(&"reason FAST_GET".to_owned()));
        assert_eq!(reached.impossible().len(), 1);
        assert!(reached.text().contains("REACHED AFTER ALL"));
    }

    #[test]
    fn the_table_names_what_exists() {
        let known = Reached::known();
        for (kind, name, _) in UNREACHABLE {
            let found = known.iter().any(|(k, n)| k == kind && n == name);
            assert!(found || *name == "xdp aborted", "{kind} {name}");
        }
    }
}
