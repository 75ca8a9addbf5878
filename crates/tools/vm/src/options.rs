// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What some checks are told by whoever wants them.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::checks::Check;

/// Cuts of `writes`.
pub const CUTS: [&str; 8] = [
    "alone", "at-work", "young", "stopped", "synced", "resumed", "all", "kmod",
];
/// Those that are made if none is named.
const USUAL_CUTS: [&str; 5] = ["at-work", "resumed", "stopped", "synced", "all"];
const KILLS: u32 = 48;
const BOOTS: u32 = 6;
const DRIVE_CUTS: u32 = 4;

/// An option, whether it was given, and whether a check takes it.
pub(crate) type Given = (&'static str, bool, fn(Check) -> bool);

/// Options of single checks.
#[derive(Args, Debug)]
pub struct Options {
    /// Of all that is random in `dax`, `power` and `writes`; another one each time, if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// `dax`: senders that are killed, with a guard, on each of two file systems (48).
    #[arg(long, value_name = "N")]
    kills: Option<u32>,
    /// `power`: cuts of the machine (6).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    boots: Option<u32>,
    /// `power`: cuts of the drive alone before each second one of the machine (4).
    #[arg(long, value_name = "N")]
    drive_cuts: Option<u32>,
    /// `writes`: the cuts, in their order (at-work,resumed,stopped,synced,all).
    #[arg(long, value_name = "CUTS", value_delimiter = ',', value_parser = PossibleValuesParser::new(CUTS))]
    cuts: Vec<String>,
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

    /// Options, whether they were given, and the checks that take them.
    pub(crate) fn given(&self) -> [Given; 6] {
        [
            ("--seed", self.seed.is_some(), Check::is_random),
            ("--kills", self.kills.is_some(), |check| check == Check::Dax),
            ("--boots", self.boots.is_some(), |check| {
                check == Check::Power
            }),
            ("--drive-cuts", self.drive_cuts.is_some(), |check| {
                check == Check::Power
            }),
            ("--cuts", !self.cuts.is_empty(), |check| {
                check == Check::Writes
            }),
            ("--lying", self.lying, |check| {
                matches!(check, Check::Power | Check::Writes)
            }),
        ]
    }

    fn cuts(&self) -> String {
        if self.cuts.is_empty() {
            USUAL_CUTS.join(",")
        } else {
            self.cuts.join(",")
        }
    }

    /// Words of the kernel's command line, by which guests are told.
    #[must_use]
    pub fn words(&self, seed: u64) -> Vec<String> {
        vec![
            format!("erb_kills={}", self.kills.unwrap_or(KILLS)),
            format!("erb_seed={seed}"),
        ]
    }

    /// Whether `writes` needs the kernel module.
    #[must_use]
    pub fn has_module(&self) -> bool {
        self.cuts.iter().any(|cut| cut == "kmod")
    }

    /// Arguments of the program that makes this check.
    #[must_use]
    pub fn arguments(&self, check: Check, seed: u64) -> Vec<String> {
        let mut words = match check {
            Check::Power => vec![
                format!("--boots={}", self.boots.unwrap_or(BOOTS)),
                format!("--drive-cuts={}", self.drive_cuts.unwrap_or(DRIVE_CUTS)),
            ],
            _ => vec![format!("--cuts={}", self.cuts())],
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
        let usual = options(&[]).arguments(Check::Writes, 7);
        assert_eq!(
            usual,
            ["--cuts=at-work,resumed,stopped,synced,all", "--seed=7"]
        );
        let writes = other.arguments(Check::Writes, 7);
        assert_eq!(writes, ["--cuts=all,kmod", "--seed=7", "--lying"]);
        assert!(other.has_module() && !options(&[]).has_module());
    }

    #[test]
    fn what_cannot_be_cut_or_would_cut_nothing_is_refused_before_anything_begins() {
        for words in [&["--cuts=all,bogus"][..], &["--cuts="], &["--boots=0"]] {
            let words = ["test"].iter().chain(words);
            assert!(Command::try_parse_from(words).is_err());
        }
    }
}
