// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb-sim scenarios`: plays the scenarios of the known traps and prints the table.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;

use super::exit;
use crate::scenario::{ALL, Case, NOT_IN_MODE_READ};

/// Which scenarios, and how.
#[derive(Args)]
pub struct ScenarioArgs {
    /// Only those whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// With the deliberate mistake that each is said to see
    #[arg(long)]
    wrong: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ScenarioArgs {
    /// Plays them.
    ///
    /// # Errors
    /// If there is none of that name or a mistake cannot be built.
    pub fn run(&self) -> Result<ExitCode> {
        let only = self.only.as_deref().unwrap_or("");
        let cases = ALL.iter().filter(|case| case.name.contains(only));
        let cases: Vec<&Case> = cases
            .filter(|case| !self.wrong || !case.mistake.is_empty())
            .collect();
        ensure!(!cases.is_empty(), "no scenario's name contains {only:?}");
        // What a scenario says when it fails is printed once, below.
        std::panic::set_hook(Box::new(|_| {}));
        let mut bad = 0;
        let mut rows = Vec::new();
        for case in &cases {
            let done = if self.wrong {
                case.play_wrong()?
            } else {
                case.play()
            };
            bad += usize::from(done.is_err() != self.wrong);
            let said = done.err().map(|violation| violation.text);
            let fate = match (&said, case.is_shown()) {
                (_, false) => "not shown",
                (None, _) => "holds",
                (Some(_), _) => "FAILS",
            };
            if !self.json {
                println!("{fate:9} {:35} {}: {}", case.name, case.trap, case.about);
                if let Some(text) = said.as_ref().filter(|_| !self.wrong) {
                    println!("{text}");
                }
            }
            rows.push(serde_json::json!({
                "name": case.name, "trap": case.trap, "about": case.about,
                "mistake": case.mistake, "fate": fate, "said": said,
            }));
        }
        drop(std::panic::take_hook());
        if self.json {
            println!("{}", serde_json::to_string_pretty(&rows)?);
        } else if only.is_empty() && !self.wrong {
            for (trap, why) in NOT_IN_MODE_READ {
                println!("{:9} {:35} {why}", "not here", trap);
            }
        }
        let code = if self.wrong {
            exit::NOT_CAUGHT
        } else {
            exit::VIOLATION
        };
        Ok(if bad == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(code)
        })
    }
}
