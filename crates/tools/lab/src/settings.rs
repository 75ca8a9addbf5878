// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the middle box shall do to packets: parsing and validation.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// 100 % in parts per million, the unit in which chances are kept (integers: the same decision
/// on every machine).
pub const PPM_MAX: u32 = 1_000_000;
/// Longest delay that can be set: beyond it every TCP has given up, so it is a typing mistake.
pub const DELAY_MAX: Duration = Duration::from_secs(10);
/// Seed unless one is named.
pub const SEED_DEFAULT: u64 = 42;

/// What the middle box does to each frame, both ways. All zero: it only forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    /// Chance that a frame is lost, parts per million.
    pub loss_ppm: u32,
    /// Chance that a frame is sent twice, parts per million.
    pub dup_ppm: u32,
    /// Chance that a frame is held back until a few later ones have passed, parts per million.
    pub reorder_ppm: u32,
    /// Chance that one bit behind the Ethernet header is flipped, parts per million.
    pub corrupt_ppm: u32,
    /// Time every frame spends in the middle box, microseconds.
    pub delay_us: u64,
    /// Seed of all decisions.
    pub seed: u64,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            loss_ppm: 0,
            dup_ppm: 0,
            reorder_ppm: 0,
            corrupt_ppm: 0,
            delay_us: 0,
            seed: SEED_DEFAULT,
        }
    }
}

impl LinkSettings {
    /// Whether frames pass untouched and at once.
    pub fn is_clean(&self) -> bool {
        let Self {
            loss_ppm,
            dup_ppm,
            reorder_ppm,
            corrupt_ppm,
            delay_us,
            seed: _,
        } = *self;
        loss_ppm == 0 && dup_ppm == 0 && reorder_ppm == 0 && corrupt_ppm == 0 && delay_us == 0
    }
}

/// A change of some settings; what is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkChange {
    /// See [`LinkSettings::loss_ppm`].
    pub loss_ppm: Option<u32>,
    /// See [`LinkSettings::dup_ppm`].
    pub dup_ppm: Option<u32>,
    /// See [`LinkSettings::reorder_ppm`].
    pub reorder_ppm: Option<u32>,
    /// See [`LinkSettings::corrupt_ppm`].
    pub corrupt_ppm: Option<u32>,
    /// See [`LinkSettings::delay_us`].
    pub delay_us: Option<u64>,
    /// See [`LinkSettings::seed`]; naming one also starts the packet counters of the decisions
    /// anew, so that the same traffic meets the same faults again.
    pub seed: Option<u64>,
}

/// Why link settings were refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// Not of the form key=value.
    #[error("`{0}` is not KEY=VALUE; settings look like loss=1% delay=2ms, or the word reset")]
    NotKeyValue(String),
    /// A key nobody knows.
    #[error("unknown link setting `{0}`; there are loss, dup, reorder, corrupt, delay and seed")]
    UnknownKey(String),
    /// The same key twice.
    #[error("link setting `{0}` is given twice")]
    Twice(String),
    /// Not a percentage.
    #[error("{key}={value}: not a percentage from 0% to 100% with at most 4 decimals, like 0.5%")]
    BadPercent {
        /// The key.
        key: String,
        /// What was given.
        value: String,
    },
    /// Not a duration.
    #[error("delay={0}: not a duration from 0ms to 10s in us, ms or s, like 2ms or 500us")]
    BadDelay(String),
    /// Not a seed.
    #[error("seed={0}: not a whole number from 0 to 18446744073709551615")]
    BadSeed(String),
    /// Out of range, where numbers come from a program and not from text.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
    /// reset takes no further words.
    #[error("`reset` stands alone: it takes all faults away and sets the counters to zero")]
    ResetWithMore,
}

impl LinkChange {
    /// Parses words like `loss=1%`, `delay=2ms`, `seed=7`.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self, SettingsError> {
        let mut change = Self::default();
        for word in words {
            change.parse_word(word.as_ref())?;
        }
        Ok(change)
    }

    fn parse_word(&mut self, word: &str) -> Result<(), SettingsError> {
        if word == "reset" {
            return Err(SettingsError::ResetWithMore);
        }
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| SettingsError::NotKeyValue(word.to_owned()))?;
        match key {
            "loss" => set_once(&mut self.loss_ppm, key, parse_percent(key, value)?),
            "dup" => set_once(&mut self.dup_ppm, key, parse_percent(key, value)?),
            "reorder" => set_once(&mut self.reorder_ppm, key, parse_percent(key, value)?),
            "corrupt" => set_once(&mut self.corrupt_ppm, key, parse_percent(key, value)?),
            "delay" => set_once(&mut self.delay_us, key, parse_delay_us(value)?),
            "seed" => set_once(&mut self.seed, key, parse_seed(value)?),
            _ => Err(SettingsError::UnknownKey(key.to_owned())),
        }
    }

    /// The settings that result from `present`, if all are in range.
    pub fn apply(&self, present: LinkSettings) -> Result<LinkSettings, SettingsError> {
        let new = LinkSettings {
            loss_ppm: self.loss_ppm.unwrap_or(present.loss_ppm),
            dup_ppm: self.dup_ppm.unwrap_or(present.dup_ppm),
            reorder_ppm: self.reorder_ppm.unwrap_or(present.reorder_ppm),
            corrupt_ppm: self.corrupt_ppm.unwrap_or(present.corrupt_ppm),
            delay_us: self.delay_us.unwrap_or(present.delay_us),
            seed: self.seed.unwrap_or(present.seed),
        };
        let chances = [
            ("loss", new.loss_ppm),
            ("dup", new.dup_ppm),
            ("reorder", new.reorder_ppm),
            ("corrupt", new.corrupt_ppm),
        ];
        for (key, ppm) in chances {
            if ppm > PPM_MAX {
                return Err(SettingsError::OutOfRange(key));
            }
        }
        if Duration::from_micros(new.delay_us) > DELAY_MAX {
            return Err(SettingsError::OutOfRange("delay"));
        }
        Ok(new)
    }
}

impl From<LinkSettings> for LinkChange {
    fn from(settings: LinkSettings) -> Self {
        Self {
            loss_ppm: Some(settings.loss_ppm),
            dup_ppm: Some(settings.dup_ppm),
            reorder_ppm: Some(settings.reorder_ppm),
            corrupt_ppm: Some(settings.corrupt_ppm),
            delay_us: Some(settings.delay_us),
            seed: Some(settings.seed),
        }
    }
}

fn set_once<T>(slot: &mut Option<T>, key: &str, value: T) -> Result<(), SettingsError> {
    if slot.replace(value).is_some() {
        return Err(SettingsError::Twice(key.to_owned()));
    }
    Ok(())
}

/// `1%`, `0.5%`, `100%` to parts per million.
fn parse_percent(key: &str, value: &str) -> Result<u32, SettingsError> {
    let ppm = value.strip_suffix('%').and_then(ten_thousandths);
    match ppm {
        Some(ppm) if ppm <= u64::from(PPM_MAX) => Ok(ppm as u32),
        _ => Err(SettingsError::BadPercent {
            key: key.to_owned(),
            value: value.to_owned(),
        }),
    }
}

/// `2ms`, `500us`, `0.5ms`, `1s` to microseconds.
fn parse_delay_us(value: &str) -> Result<u64, SettingsError> {
    match humantime::parse_duration(value) {
        Ok(delay) if delay <= DELAY_MAX && delay.subsec_nanos() % 1000 == 0 => {
            Ok(delay.as_micros() as u64)
        }
        _ => Err(SettingsError::BadDelay(value.to_owned())),
    }
}

fn parse_seed(value: &str) -> Result<u64, SettingsError> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let seed = if digits { value.parse().ok() } else { None };
    seed.ok_or_else(|| SettingsError::BadSeed(value.to_owned()))
}

/// A plain decimal number times 10^4, exact or not at all: no sign, no exponent.
fn ten_thousandths(text: &str) -> Option<u64> {
    let (whole, part) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some((whole, part)) => (whole, part),
        None => (text, ""),
    };
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(part) || part.len() > 4 {
        return None;
    }
    format!("{whole}{part:0<4}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_settings() {
        let words = [
            "loss=1%",
            "dup=0.5%",
            "reorder=2%",
            "corrupt=0.1%",
            "delay=2ms",
            "seed=7",
        ];
        let settings = LinkChange::parse(&words)
            .unwrap()
            .apply(LinkSettings::default())
            .unwrap();
        let expected = LinkSettings {
            loss_ppm: 10_000,
            dup_ppm: 5_000,
            reorder_ppm: 20_000,
            corrupt_ppm: 1_000,
            delay_us: 2_000,
            seed: 7,
        };
        assert_eq!(settings, expected);
        assert!(!settings.is_clean());
        assert!(LinkSettings::default().is_clean());
    }

    #[test]
    fn what_is_not_named_stays() {
        let before = LinkSettings {
            loss_ppm: 5,
            delay_us: 9,
            ..LinkSettings::default()
        };
        let after = LinkChange::parse(&["dup=100%"])
            .unwrap()
            .apply(before)
            .unwrap();
        assert_eq!(
            after,
            LinkSettings {
                dup_ppm: PPM_MAX,
                ..before
            }
        );
    }

    #[test]
    fn percentages_are_strict() {
        for (text, ppm) in [
            ("0%", 0),
            ("0.0001%", 1),
            ("12.5%", 125_000),
            ("100%", PPM_MAX),
        ] {
            assert_eq!(parse_percent("loss", text).unwrap(), ppm, "{text}");
        }
        let bad = [
            "",
            "%",
            "1",
            "1 %",
            "-1%",
            "+1%",
            "101%",
            "100.0001%",
            "1e1%",
            ".5%",
            "1.%",
            "nan%",
            "0.00001%",
            "1%%",
            "0x1%",
            "99999999999999999999%",
        ];
        for text in bad {
            assert!(parse_percent("loss", text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn delays_are_whole_microseconds_up_to_ten_seconds() {
        for (text, us) in [
            ("0ms", 0),
            ("2ms", 2_000),
            ("500us", 500),
            ("0.25ms", 250),
            ("0.000001s", 1),
            ("10s", 10_000_000),
        ] {
            assert_eq!(parse_delay_us(text).unwrap(), us, "{text}");
        }
        for text in [
            "",
            "ms",
            "2",
            "-2ms",
            "10.000001s",
            "11s",
            "1.5us",
            "1m",
            "2mm",
        ] {
            assert!(parse_delay_us(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn bad_words_are_refused_with_their_reason() {
        let error = |words: &[&str]| LinkChange::parse(words).unwrap_err().to_string();
        assert!(error(&["loss"]).contains("KEY=VALUE"));
        assert!(error(&["los=1%"]).contains("unknown link setting `los`"));
        assert!(error(&["loss=1%", "loss=2%"]).contains("twice"));
        assert!(error(&["loss=1"]).contains("percentage"));
        assert!(error(&["delay=2"]).contains("duration"));
        assert!(error(&["seed=-1"]).contains("whole number"));
        assert!(error(&["seed="]).contains("whole number"));
        assert!(error(&["loss=1%", "reset"]).contains("stands alone"));
    }

    #[test]
    fn numbers_from_programs_are_checked_too() {
        let change = LinkChange {
            loss_ppm: Some(PPM_MAX + 1),
            ..LinkChange::default()
        };
        assert!(change.apply(LinkSettings::default()).is_err());
        let change = LinkChange {
            delay_us: Some(10_000_001),
            ..LinkChange::default()
        };
        assert!(change.apply(LinkSettings::default()).is_err());
    }
}
