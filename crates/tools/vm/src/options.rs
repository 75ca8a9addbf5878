// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What some checks are told by whoever wants them.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use clap::Args;

use crate::checks::Check;

/// Options of single checks.
#[derive(Args, Debug)]
pub struct Options {
    /// Of all that is random in `dax`, `power` and `writes`; another one each time, if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// `dax`: senders that are killed, with a guard, on each of two file systems.
    #[arg(long, value_name = "N", default_value_t = 48)]
    kills: u32,
    /// `power`: cuts of the machine.
    #[arg(long, value_name = "N", default_value_t = 6)]
    boots: u32,
    /// `power`: cuts of the drive alone before each second one of the machine.
    #[arg(long, value_name = "N", default_value_t = 4)]
    drive_cuts: u32,
    /// `writes`: the cuts, in their order: alone, at-work, young, stopped, synced, resumed, all, kmod.
    #[arg(
        long,
        value_name = "CUTS",
        default_value = "at-work,resumed,stopped,synced,all"
    )]
    cuts: String,
    /// `power`, `writes`: drives that say they have flushed, and have not; passes if the check finds that out.
    #[arg(long)]
    lying: bool,
}

impl Options {
    /// Of all that is random.
    #[must_use]
    pub fn seed(&self) -> u64 {
        // A state is seeded by the system.
        let other = || RandomState::new().build_hasher().finish() % 100_000;
        self.seed.unwrap_or_else(other)
    }

    /// Words of the kernel's command line, by which guests are told.
    #[must_use]
    pub fn words(&self, seed: u64) -> Vec<String> {
        vec![
            format!("erb_kills={}", self.kills),
            format!("erb_seed={seed}"),
        ]
    }

    /// Whether `writes` needs the kernel module.
    #[must_use]
    pub fn has_module(&self) -> bool {
        self.cuts.split(',').any(|cut| cut == "kmod")
    }

    /// Arguments of the program that makes this check.
    #[must_use]
    pub fn arguments(&self, check: Check, seed: u64) -> Vec<String> {
        let mut words = match check {
            Check::Power => vec![
                format!("--boots={}", self.boots),
                format!("--drive-cuts={}", self.drive_cuts),
            ],
            _ => vec![format!("--cuts={}", self.cuts)],
        };
        words.push(format!("--seed={seed}"));
        if self.lying {
            words.push("--lying".to_owned());
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        let words = ["test"].iter().chain(words);
        Command::parse_from(words).options
    }

    #[test]
    fn who_cuts_power_is_told_which_cuts() {
        let seed = options(&[]).seed();
        assert!(seed < 100_000);
        let other = options(&["--seed=7", "--boots=2", "--lying", "--cuts=all,kmod"]);
        assert_eq!(other.seed(), 7);
        let power = other.arguments(Check::Power, 7);
        assert_eq!(
            power,
            ["--boots=2", "--drive-cuts=4", "--seed=7", "--lying"]
        );
        let writes = other.arguments(Check::Writes, 7);
        assert_eq!(writes, ["--cuts=all,kmod", "--seed=7", "--lying"]);
        assert!(other.has_module() && !options(&[]).has_module());
    }
}
