// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a run has touched, counted by kind and name.

use std::collections::BTreeMap;

use crate::fault::Fault;

/// Counters of a run.
#[derive(Clone, Debug)]
pub struct Coverage {
    faults: [u64; Fault::ALL.len()],
    named: BTreeMap<(&'static str, String), u64>,
    verdicts: BTreeMap<(&'static str, i32), u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            faults: [0; Fault::ALL.len()],
            named: BTreeMap::new(),
            verdicts: BTreeMap::new(),
        }
    }
}

impl Coverage {
    /// A fault happened.
    pub fn fault(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    /// How often a fault has happened.
    #[must_use]
    pub fn fault_count(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }

    /// A program of `tier` (`xdp`, `ingress`, `egress`) returned `verdict`.
    pub fn verdict(&mut self, tier: &'static str, verdict: i32) {
        *self.verdicts.entry((tier, verdict)).or_default() += 1;
    }

    /// Something else of `kind` happened.
    pub fn count(&mut self, kind: &'static str, name: &str) {
        self.add(kind, name, 1);
    }

    /// Something else of `kind` happened `n` times.
    pub fn add(&mut self, kind: &'static str, name: &str, n: u64) {
        match self.named.get_mut(&(kind, name.to_owned())) {
            Some(count) => *count += n,
            None => drop(self.named.insert((kind, name.to_owned()), n)),
        }
    }

    /// All counters, by kind and name.
    #[must_use]
    pub fn all(&self) -> BTreeMap<(&'static str, String), u64> {
        let mut all = self.named.clone();
        for fault in Fault::ALL {
            let count = self.faults[fault as usize];
            if count > 0 {
                all.insert(("fault", fault.to_string()), count);
            }
        }
        for ((tier, verdict), count) in &self.verdicts {
            all.insert(
                (
                    "verdict",
                    format!("{tier} {}", verdict_name(tier, *verdict)),
                ),
                *count,
            );
        }
        all
    }
}

fn verdict_name(tier: &str, verdict: i32) -> String {
    match (tier, verdict) {
        ("xdp", 0) => "aborted".to_owned(),
        ("xdp", 1) => "drop".to_owned(),
        ("xdp", 2) => "pass".to_owned(),
        ("xdp", 3) => "tx".to_owned(),
        (_, -1) => "next".to_owned(),
        (_, 0) => "pass".to_owned(),
        (_, 2) => "drop".to_owned(),
        _ => verdict.to_string(),
    }
}
