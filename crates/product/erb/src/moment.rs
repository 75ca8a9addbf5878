// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Moments as they are typed: a version, a time, or how long ago.
//!
//! How long ago is counted by the node's clock, which gives versions: a client with a clock that is ten seconds late
//! would take back ten seconds too many.

use std::str::FromStr;
use std::sync::Once;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use erb_kv::Client;

use crate::kv::Failed;

/// Bits of a version below its microseconds.
pub const COUNTER_BITS: u32 = 12;
/// A difference of clocks that is told.
const DIFFERENCE_MIN: Duration = Duration::from_secs(1);

/// A moment as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A version.
    Version(u64),
    /// Microseconds since 1970.
    Time(u64),
    /// So long ago.
    Ago(Duration),
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(version) = text.parse() {
            return Ok(Self::Version(version));
        }
        if let Ok(time) = humantime::parse_rfc3339_weak(text) {
            let time_us = micros(time).ok_or_else(|| "times begin in 1970".to_owned())?;
            return end_of(time_us).map(|_| Self::Time(time_us));
        }
        humantime::parse_duration(text)
            .map(Self::Ago)
            .map_err(|error| {
                format!(
                    "{error}; write a version, a time like 2026-11-25T12:00:00Z, or how long ago, like 10m"
                )
            })
    }
}

impl Moment {
    /// Its version: of a time the last one of that microsecond.
    ///
    /// # Errors
    /// The node does not tell its time, or that moment has no version.
    pub fn version(self, client: &mut Client) -> Result<u64, Failed> {
        let moment = match self {
            Self::Version(version) => return Ok(version),
            moment => moment,
        };
        let now_us = now_us(client)?;
        let version = match moment {
            Self::Version(version) => Ok(version),
            Self::Time(time_us) => end_of(time_us),
            Self::Ago(ago) => before(now_us, ago),
        };
        version.map_err(Failed::Usage)
    }
}

/// The version of each moment that is given.
///
/// # Errors
/// As of [`Moment::version`].
pub fn version_of(moment: Option<Moment>, client: &mut Client) -> Result<Option<u64>, Failed> {
    moment.map(|it| it.version(client)).transpose()
}

/// The node's time, in microseconds since 1970; that of this machine if the node is too old to tell it. A difference
/// is told on standard error.
///
/// # Errors
/// The node does not answer.
pub fn now_us(client: &mut Client) -> Result<u64, Failed> {
    let began = SystemTime::now();
    let there_us = client.health()?.now_us;
    // Half of the way there and back later.
    let way = began.elapsed().unwrap_or_default() / 2;
    let here_us = micros(began + way).unwrap_or(0);
    if there_us == 0 {
        return Ok(here_us);
    }
    if let Some(difference) = difference(here_us, there_us) {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            eprintln!("warning: {difference}; how long ago is counted by the node's clock");
        });
    }
    Ok(there_us)
}

/// How clocks differ, if they do by more than is seen on any machine.
fn difference(here_us: u64, there_us: u64) -> Option<String> {
    let by = Duration::from_micros(here_us.abs_diff(there_us));
    if by < DIFFERENCE_MIN {
        return None;
    }
    let word = if there_us > here_us {
        "ahead of"
    } else {
        "behind"
    };
    let by = humantime::format_duration(Duration::from_millis(by.as_millis() as u64));
    Some(format!("the node's clock is {by} {word} this machine's"))
}

fn micros(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    Some(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// The last version of a microsecond.
///
/// # Errors
/// It is beyond the last version.
pub fn end_of(time_us: u64) -> Result<u64, String> {
    let version = time_us.checked_mul(1 << COUNTER_BITS);
    let version = version.ok_or_else(|| "times end in 2112".to_owned())?;
    Ok(version | ((1 << COUNTER_BITS) - 1))
}

fn before(now_us: u64, ago: Duration) -> Result<u64, String> {
    let ago_us = u64::try_from(ago.as_micros()).unwrap_or(u64::MAX);
    let time_us = now_us.checked_sub(ago_us);
    end_of(time_us.ok_or_else(|| "that is before 1970".to_owned())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_typed() {
        assert_eq!("7".parse(), Ok(Moment::Version(7)));
        let second = Ok(Moment::Time(1_000_000));
        assert_eq!("1970-01-01T00:00:01Z".parse(), second);
        assert_eq!("1970-01-01 00:00:01".parse(), second);
        let hour = Ok(Moment::Ago(Duration::from_secs(3600)));
        assert_eq!("1h".parse::<Moment>(), hour);
        for text in ["", "soon", "-1", "1x"] {
            let error = text.parse::<Moment>().expect_err(text);
            assert!(error.contains("write a version"), "{text}: {error}");
        }
        let late = "2500-01-01T00:00:00Z".parse::<Moment>();
        assert!(late.expect_err("too late").contains("2112"));
    }

    #[test]
    fn versions_of_moments() {
        assert_eq!(end_of(1_000_000), Ok((1_000_000 << 12) | 4095));
        let second = Duration::from_secs(1);
        assert_eq!(before(3_000_000, second), end_of(2_000_000));
        assert!(before(999_999, second).is_err());
        assert!(before(5, Duration::MAX).is_err());
    }

    #[test]
    fn clocks_that_differ_are_told() {
        assert_eq!(difference(5_000_000, 5_999_999), None);
        let ahead = difference(5_000_000, 15_500_000).expect("a difference");
        assert_eq!(
            ahead,
            "the node's clock is 10s 500ms ahead of this machine's"
        );
        let behind = difference(15_000_000, 5_000_000).expect("a difference");
        assert_eq!(behind, "the node's clock is 10s behind this machine's");
    }
}
