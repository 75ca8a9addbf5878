// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came of each attack: text and JSON.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::attack::Attack;

/// What the honest clients got in one phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Phase {
    /// GETs that were answered, by whomever.
    pub gets: u64,
    /// Of these, by ERB.
    pub fast: u64,
    /// GETs a second.
    pub gets_per_s: f64,
}

impl Phase {
    /// Counts of one phase.
    pub fn new(gets: u64, fast: u64, length: Duration) -> Self {
        Self {
            gets,
            fast,
            gets_per_s: gets as f64 / length.as_secs_f64(),
        }
    }

    /// Share of the GETs that ERB answered.
    fn share(&self) -> f64 {
        if self.gets == 0 {
            return 0.0;
        }
        self.fast as f64 / self.gets as f64
    }
}

/// One attack.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub attack: Attack,
    /// Before, during, after.
    pub phases: [Phase; 3],
    /// Share of the GETs that ERB answered, of what it was before: during and after.
    pub kept: [f64; 2],
    /// Connections opened, or packets or scripts sent.
    pub done: u64,
    /// What honest clients read that cannot be, or where they were stuck.
    pub wrong: Vec<String>,
    /// Broken invariants that the data path has counted.
    pub broken_invariants: u64,
}

impl Row {
    /// The result of one attack.
    pub fn new(
        attack: Attack,
        phases: [Phase; 3],
        wrong: Vec<String>,
        broken_invariants: u64,
        done: u64,
    ) -> Self {
        let before = phases[0].share();
        let kept = |phase: &Phase| {
            if before > 0.0 {
                phase.share() / before
            } else {
                0.0
            }
        };
        Self {
            kept: [kept(&phases[1]), kept(&phases[2])],
            attack,
            phases,
            done,
            wrong,
            broken_invariants,
        }
    }

    /// Whether nobody lost more than `keep` allows and no byte was wrong.
    fn passed(&self, keep: f64) -> bool {
        self.wrong.is_empty()
            && self.broken_invariants == 0
            && self.kept.iter().all(|kept| *kept >= keep)
    }

    /// The row as text.
    pub fn line(&self) -> String {
        let shares: Vec<String> = self
            .phases
            .iter()
            .map(|phase| {
                format!(
                    "{:5.1} % of {:6.0}/s",
                    phase.share() * 100.0,
                    phase.gets_per_s
                )
            })
            .collect();
        format!(
            "{:<21} before {}  during {}  after {}  wrong {}",
            self.attack.name(),
            shares[0],
            shares[1],
            shares[2],
            self.wrong.len() as u64 + self.broken_invariants
        )
    }
}

/// All attacks.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seed of everything random.
    pub seed: u64,
    /// What must be kept.
    pub keep: f64,
    /// Whether every attack passed.
    passed: bool,
    /// One per attack.
    pub attacks: Vec<Row>,
}

impl Report {
    /// Nothing yet.
    pub const fn new(seed: u64, keep: f64) -> Self {
        Self {
            seed,
            keep,
            passed: true,
            attacks: Vec::new(),
        }
    }

    /// Adds an attack's result.
    pub fn add(&mut self, row: Row) {
        self.passed &= row.passed(self.keep);
        self.attacks.push(row);
    }

    /// Whether every attack passed.
    pub const fn passed(&self) -> bool {
        self.passed
    }

    /// The table.
    pub fn to_text(&self) -> String {
        let mut text = String::from("GETs of the honest clients that ERB answered\n");
        for row in &self.attacks {
            let good = if row.passed(self.keep) {
                "ok  "
            } else {
                "FAIL"
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{good} {}", row.line());
            for wrong in &row.wrong {
                let _ = writeln!(text, "       {wrong}");
            }
        }
        let verdict = if self.passed { "passed" } else { "failed" };
        let _ = writeln!(
            text,
            "{verdict}: at least {:.0} % of what was answered before must be, during and after; seed {}",
            self.keep * 100.0,
            self.seed
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(gets: u64, fast: u64) -> Phase {
        Phase::new(gets, fast, Duration::from_secs(1))
    }

    fn row(during: Phase, after: Phase, wrong: Vec<String>) -> Row {
        Row::new(
            Attack::Scripts,
            [phase(100, 80), during, after],
            wrong,
            0,
            1,
        )
    }

    #[test]
    fn the_share_of_before_is_what_counts() {
        assert!(row(phase(50, 37), phase(100, 80), Vec::new()).passed(0.9));
        assert!(!row(phase(100, 71), phase(100, 80), Vec::new()).passed(0.9));
        assert!(!row(phase(100, 80), phase(100, 0), Vec::new()).passed(0.9));
    }

    #[test]
    fn a_wrong_byte_or_no_answer_at_all_fails() {
        let good = phase(100, 80);
        assert!(!row(good, good, vec!["wrong".to_owned()]).passed(0.0));
        let silent = Row::new(Attack::Crowd, [phase(100, 0), good, good], Vec::new(), 0, 1);
        assert!(!silent.passed(0.9), "nothing was answered before");
    }
}
