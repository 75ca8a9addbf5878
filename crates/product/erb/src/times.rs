// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Times as arguments.

use std::time::Duration;

/// Deadlines: from 100 ms to 30 s.
pub fn parse_deadline(text: &str) -> Result<Duration, String> {
    let deadline = parse_wait(text)?;
    let possible = Duration::from_millis(100)..=Duration::from_secs(30);
    possible
        .contains(&deadline)
        .then_some(deadline)
        .ok_or_else(|| "between 100ms and 30s".to_owned())
}

/// Intervals: 100 ms and more.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_wait(text)?;
    (interval >= Duration::from_millis(100))
        .then_some(interval)
        .ok_or_else(|| "100ms or more".to_owned())
}

/// What a decision for hours may wait for.
pub fn parse_patience(text: &str) -> Result<Duration, String> {
    let patience = parse_wait(text)?;
    (Duration::from_secs(10)..=Duration::from_secs(24 * 3600))
        .contains(&patience)
        .then_some(patience)
        .ok_or_else(|| "10s to 24h".to_owned())
}

/// A bare number is seconds.
pub fn parse_wait(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 500ms, 10s or 2m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits() {
        for (text, ms) in [
            ("10s", 10_000),
            ("10", 10_000),
            ("0", 0),
            ("500ms", 500),
            ("2m", 120_000),
            ("1m 1.5s", 61_500),
        ] {
            assert_eq!(parse_wait(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "1x", "ten"] {
            let error = parse_wait(text).unwrap_err();
            assert!(
                error.ends_with("; write 500ms, 10s or 2m"),
                "{text}: {error}"
            );
        }
    }
}
