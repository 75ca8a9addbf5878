// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of `./test`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use regex::Regex;

use crate::lanes::Lane;
use crate::programs::BOOK;

/// Everything that must hold before a change is merged, unattended.
///
/// Without options: formats, one build, all tests, the package, the kernel module, another kernel,
/// sanitizers, clippy. What searches (simulator, fuzzers, long histories, mutations) is a smoke of seconds.
#[derive(Debug, Parser)]
#[command(name = "./test", bin_name = "./test", after_help = AFTER)]
pub struct Args {
    /// Complete campaigns instead of smokes; a part of them, until all are done at this commit
    #[arg(long, conflicts_with = "times")]
    pub long: bool,
    /// With --long or --times: begin nothing after so many minutes; the next call goes on from there [default: 30]
    #[arg(long, value_name = "N", value_parser = minutes)]
    pub minutes: Option<Duration>,
    /// Only the crates that the changes since this commit can reach, committed or not [default: HEAD]
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "HEAD")]
    pub changed: Option<String>,
    /// Each test so often, every time in a new process
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub times: Option<u32>,
    /// Busy processes beside the tests
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub load: usize,
    /// Only the tests of this lane, and no other step
    #[arg(long)]
    pub lane: Option<Lane>,
    /// Only the tests with a name that this regular expression matches, and no other step
    #[arg(long, value_name = "REGEX")]
    pub only: Option<Regex>,
}

const AFTER: &str = "\
A test that fails for set-up, pace or patience alone is repeated once, alone. If it passes then, it is
listed as unsteady and the run is good; docs/unsteady.md gets a row. Anything else is red at once.

Exit codes: 0 good; 1 something failed, or nothing passed; 2 wrong words, or something needed cannot be had;
75 good so far, but not all is done: call it again; 128 and its number: ended by a signal.";

/// Nothing begins after so long without --minutes.
const DEFAULT: Duration = Duration::from_secs(30 * 60);
/// A year.
const MINUTES_MAX: f64 = 365.0 * 24.0 * 60.0;

/// `--minutes`: more than none, parts of minutes too.
fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if minutes > 0.0 && minutes <= MINUTES_MAX {
        Ok(Duration::from_secs_f64(minutes * 60.0))
    } else {
        Err(format!("more than 0 and at most {MINUTES_MAX}"))
    }
}

impl Args {
    /// The options, if they have a meaning together.
    ///
    /// # Errors
    /// If they have none.
    pub fn checked(self) -> Result<Self> {
        let is_resumable = self.long || self.times.is_some();
        ensure!(
            self.minutes.is_none() || is_resumable,
            "--minutes is of --long and --times: without them all is done in one part"
        );
        Ok(self)
    }

    /// Nothing begins after so long.
    pub fn limit(&self) -> Duration {
        self.minutes.unwrap_or(DEFAULT)
    }

    /// Whether the book is built, and tested: it is asked for, or one of the crates that a change reaches (`None` is
    /// all of them).
    pub fn takes_book(&self, reached: Option<&BTreeSet<String>>) -> bool {
        match (&self.only, &self.changed) {
            _ if self.long => true,
            (Some(only), _) => only.as_str().contains(BOOK),
            (None, Some(_)) => reached.is_none_or(|reached| reached.contains(BOOK)),
            (None, None) => false,
        }
    }

    /// Whether all steps are wanted, not chosen tests.
    pub const fn everything(&self) -> bool {
        self.times.is_none() && self.lane.is_none() && self.only.is_none() && self.changed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<Args> {
        let words = ["./test"].into_iter().chain(words.split_whitespace());
        Args::try_parse_from(words)?.checked()
    }

    #[test]
    fn minutes_are_more_than_none_and_have_a_run_to_limit() {
        let args = parsed("--long --minutes 0.5").expect("right words");
        assert_eq!(args.limit(), Duration::from_secs(30));
        for wrong in [
            "--long --minutes inf",
            "--long --minutes 1e300",
            "--long --minutes NaN",
            "--long --minutes 0",
            "--minutes 5",
            "--only x --minutes 5",
            "--times 0",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_book_is_built_where_it_is_asked_for() {
        let takes = |words: &str, reached: &[&str]| {
            let reached = reached.iter().map(|it| (*it).to_owned()).collect();
            parsed(words)
                .expect("right words")
                .takes_book(Some(&reached))
        };
        for words in ["--long", "--only ^book::", "--long --only x"] {
            assert!(takes(words, &[]), "{words}");
        }
        for words in ["", "--only x", "--lane kernel", "--times 2", "--changed"] {
            assert!(!takes(words, &["tidy"]), "{words}");
        }
        assert!(takes("--changed", &["book", "tidy"]));
        assert!(parsed("--changed").expect("right words").takes_book(None));
    }
}
