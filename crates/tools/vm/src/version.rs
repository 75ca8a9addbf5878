// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernels by name: a version like `6.12.117+deb12`, and what is wanted of them.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// The first two numbers of a version.
pub type Series = (u32, u32);

/// A kernel's version as Debian's packages name it, without the processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Version(String);

impl Version {
    /// From the end of a package's name, without the processor; none if that is no version.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let known = |c: char| c.is_ascii_digit() || c.is_ascii_lowercase() || ".+-".contains(c);
        // `6.12.117+deb12-cloud`, `6.12.117+deb12-rt`: other builds than the usual one.
        let usual = |rest: &str| rest.chars().all(|c| c.is_ascii_digit());
        let good = text.chars().all(known) && text.split('-').skip(1).all(usual);
        let version = Self(text.to_owned());
        // A series alone is the name of a package that only names the newest.
        let numbers = text.split(['.', '+', '-']).take(3);
        let all_numbers = numbers.clone().count() == 3
            && numbers.clone().all(|number| number.parse::<u32>().is_ok());
        (good && all_numbers).then_some(version)
    }

    /// The first two numbers.
    #[must_use]
    pub fn series(&self) -> Series {
        let mut numbers = self.0.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Debian's release that it was built by, if its name says so.
    #[must_use]
    pub fn release(&self) -> Option<u32> {
        let (_, rest) = self.0.split_once("+deb")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }

    /// As the kernel's packages and folders have it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Numbers and what is between them, by which versions have their order.
    fn runs(&self) -> Vec<Run<'_>> {
        let mut runs = Vec::new();
        let mut rest = self.0.as_str();
        while let Some(first) = rest.chars().next() {
            let digits = first.is_ascii_digit();
            let end = rest.find(|c: char| c.is_ascii_digit() != digits);
            let (run, after) = rest.split_at(end.unwrap_or(rest.len()));
            runs.push(match run.parse() {
                Ok(number) => Run::Number(number),
                Err(_) => Run::Text(run),
            });
            rest = after;
        }
        runs
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Run<'a> {
    Text(&'a str),
    Number(u64),
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.runs().cmp(&other.runs())
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which kernel somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The newest of all.
    Newest,
    /// The newest of a series.
    Series(Series),
    /// This one.
    Version(Version),
    /// The one that scripts/vm/debug-kernel.sh has built, which looks for mistakes itself.
    Debug,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "newest" {
            return Ok(Self::Newest);
        }
        if text == "debug" {
            return Ok(Self::Debug);
        }
        if let Some(version) = Version::parse(text) {
            return Ok(Self::Version(version));
        }
        let series = text.split_once('.').and_then(|(major, minor)| {
            let numbers = (major.parse().ok()?, minor.parse().ok()?);
            Some(Self::Series(numbers))
        });
        series.ok_or_else(|| {
            format!("`{text}` is no kernel: a series like 6.12, a version like 6.12.117+deb12, newest, or debug")
        })
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest => f.write_str("newest"),
            Self::Debug => f.write_str("debug"),
            Self::Series((major, minor)) => write!(f, "{major}.{minor}"),
            Self::Version(version) => version.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap_or_else(|| panic!("{text} is a version"))
    }

    #[test]
    fn versions_have_the_order_of_their_numbers() {
        let order = [
            "6.1.0-47",
            "6.1.0-56",
            "6.12.43+deb12",
            "6.12.90+deb13",
            "6.12.90+deb13.1",
            "6.12.117+deb12",
            "6.12.117+deb13",
            "6.19.6+deb13",
            "7.3.4+deb13",
        ];
        for pair in order.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn other_builds_and_mere_series_are_no_versions() {
        for text in [
            "6.12",
            "6.12.117+deb12-cloud",
            "6.12.117+deb12-rt",
            "amd64",
            "",
        ] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert_eq!(version("6.12.90+deb12.1").release(), Some(12));
        assert_eq!(version("6.1.0-47").release(), None);
    }

    #[test]
    fn what_is_wanted_reads_as_it_is_written() {
        for text in [
            "newest",
            "debug",
            "6.12",
            "7.3",
            "6.12.117+deb12",
            "6.1.0-47",
        ] {
            assert_eq!(text.parse::<Wanted>().unwrap().to_string(), text);
        }
        assert!("load".parse::<Wanted>().is_err());
        assert!("6.x".parse::<Wanted>().is_err());
    }
}
