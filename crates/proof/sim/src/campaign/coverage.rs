// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What runs have reached, what they have not, and what they cannot.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::fault::Fault;
use crate::plan::Outcome;

/// Counters by kind and name.
pub type Counts = BTreeMap<String, BTreeMap<String, u64>>;

/// Counters of all runs and, apart from them, of all scenarios: what only a scenario reaches, chance
/// does not.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Reached {
    /// Of runs.
    pub counts: Counts,
    /// Of scenarios.
    pub scenarios: Counts,
}

/// What neither a run nor a scenario can reach, and why. Checked: if one is reached, the report says so.
pub const UNREACHABLE: &[(&str, &str, &str)] = &[
    ("reason", "INVARIANT", "broken invariants end the run"),
    (
        "reason",
        "EGRESS_REWRITE_FAILED",
        "the kernel has memory for a header",
    ),
    (
        "reason",
        "SOCK_CLOSING",
        "every full TCP socket is a tcp_sock: only the verifier wants to be told",
    ),
    ("verdict", "xdp aborted", "no program returns it"),
];

impl Reached {
    /// Adds a run.
    pub fn add(&mut self, outcome: &Outcome) {
        add(&mut self.counts, outcome);
    }

    /// Adds a world of a scenario.
    pub fn add_scenario(&mut self, outcome: &Outcome) {
        add(&mut self.scenarios, outcome);
    }

    /// Adds what another campaign has reached.
    pub fn merge(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.counts, &other.counts),
            (&mut self.scenarios, &other.scenarios),
        ] {
            for (kind, names) in from {
                for (name, number) in names {
                    count(to, kind, name, *number);
                }
            }
        }
    }

    /// How often runs have reached something.
    #[must_use]
    pub fn times(&self, kind: &str, name: &str) -> u64 {
        times(&self.counts, kind, name)
    }

    fn by_chance(&self, kind: &str, name: &str) -> bool {
        self.times(kind, name) > 0
    }

    fn by_scenario(&self, kind: &str, name: &str) -> bool {
        times(&self.scenarios, kind, name) > 0
    }

    /// All that is known to exist, by kind.
    #[must_use]
    pub fn known() -> Vec<(&'static str, String)> {
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
            .filter(|(kind, name)| !self.by_chance(kind, name) && !self.by_scenario(kind, name))
            .filter(|(kind, name)| why(kind, name).is_none())
            .map(|(kind, name)| format!("{kind} {name}"))
            .collect()
    }

    /// What no run has reached, but a scenario.
    #[must_use]
    pub fn scenarios_only(&self) -> Vec<String> {
        Self::known()
            .into_iter()
            .filter(|(kind, name)| !self.by_chance(kind, name) && self.by_scenario(kind, name))
            .map(|(kind, name)| format!("{kind} {name}"))
            .collect()
    }

    /// What was reached although the table says that it cannot be.
    #[must_use]
    pub fn impossible(&self) -> Vec<String> {
        UNREACHABLE
            .iter()
            .filter(|(kind, name, _)| self.by_chance(kind, name) || self.by_scenario(kind, name))
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
        let only = self.scenarios_only();
        if !self.scenarios.is_empty() {
            text.push_str(&format!(
                "by scenarios only ({}): {}\n",
                only.len(),
                only.join(", ")
            ));
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

fn add(counts: &mut Counts, outcome: &Outcome) {
    // The counters of the data path are taken from `stats`, once.
    let others = outcome
        .coverage
        .iter()
        .filter(|((kind, _), _)| *kind != "reason");
    for ((kind, name), number) in others {
        count(counts, kind, name, *number);
    }
    for (reason, number) in erb_abi::REASONS.iter().zip(&outcome.stats) {
        count(counts, "reason", reason.name, *number);
    }
}

/// Adds to a counter.
pub fn count(counts: &mut Counts, kind: &str, name: &str, number: u64) {
    let names = counts.entry(kind.to_owned()).or_default();
    *names.entry(name.to_owned()).or_default() += number;
}

fn times(counts: &Counts, kind: &str, name: &str) -> u64 {
    let names = counts.get(kind);
    names
        .and_then(|names| names.get(name))
        .copied()
        .unwrap_or(0)
}

fn why(kind: &str, name: &str) -> Option<&'static str> {
    UNREACHABLE
        .iter()
        .find(|(k, n, _)| *k == kind && *n == name)
        .map(|(_, _, why)| *why)
}
