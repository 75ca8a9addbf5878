// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `erb top` lists beside outcomes, as rows, and how long requests took lately.

use std::collections::VecDeque;

use erb_report::{ConnLine, HotKey, HotKeys, LatencyReport, ProcessorReport};

use crate::top_model::Row;

/// What a look brings beside the status: of what is listed alone.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// Connections.
    pub connections: Vec<ConnLine>,
    /// Keys by heat.
    pub keys: HotKeys,
}

/// Looks over which latencies are told: one alone has few samples.
const LOOKS: usize = 10;

/// Latencies of the last looks.
#[derive(Clone, Debug, Default)]
pub struct Lately(VecDeque<Vec<LatencyReport>>);

impl Lately {
    /// One more look.
    pub fn push(&mut self, latency: &[LatencyReport]) {
        if self.0.len() > LOOKS {
            self.0.pop_front();
        }
        self.0.push_back(latency.to_vec());
    }

    /// What was timed since the first of the last looks, by path.
    #[must_use]
    pub fn paths(&self) -> Vec<LatencyReport> {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else {
            return Vec::new();
        };
        let since = |now: &LatencyReport| {
            let before = first.iter().find(|before| before.path == now.path);
            before.map_or_else(|| now.clone(), |before| now.since(before))
        };
        last.iter().map(since).collect()
    }
}

/// A time with few digits.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "few digits are shown")]
pub fn time(ns: Option<u64>) -> String {
    let Some(ns) = ns else {
        return "-".to_owned();
    };
    let (value, unit) = match ns {
        ..1_000 => (ns as f64, "ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if value < 9.95 && unit != "ns" {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// Half of requests and 99 of 100 took no longer, by path.
#[must_use]
pub fn latencies(paths: &[LatencyReport]) -> String {
    let each = paths.iter().map(|path| match path.p50_ns {
        None => format!("{} -", path.path),
        half => format!("{} {} / {}", path.path, time(half), time(path.p99_ns)),
    });
    let each: Vec<String> = each.collect();
    each.join(", ")
}

/// A connection.
pub fn connection(line: &ConnLine) -> Row {
    Row {
        per_second: None,
        count: u64::from(line.requests),
        kind: line.state.clone(),
        name: line.client.clone(),
        text: format!(
            "{}to {}; {} request bytes and {} reply bytes without Redis, {} unanswered",
            if line.why.is_empty() {
                String::new()
            } else {
                format!("{}; ", line.why)
            },
            line.server,
            line.in_delta,
            line.out_delta,
            line.requests.wrapping_sub(line.replies)
        ),
    }
}

/// A processor; `rate` of what it did, between the last two looks.
pub fn processor(
    of: &ProcessorReport,
    rate: impl Fn(fn(&ProcessorReport) -> u64) -> Option<f64>,
) -> Row {
    let told = |of| rate(of).map_or_else(|| "-".to_owned(), crate::top_view::short);
    Row {
        per_second: rate(|of| of.answered + of.up + of.down),
        count: of.answered + of.up + of.down,
        kind: "cpu".to_owned(),
        name: format!("{:>3}", of.cpu),
        text: format!(
            "a second: {} answered, {} passed up, {} of the kernel's",
            told(|of| of.answered),
            told(|of| of.up),
            told(|of| of.down)
        ),
    }
}

/// A hot key, counted in requests: each sample stands for as many as it is one of.
#[allow(clippy::cast_precision_loss, reason = "a share for people")]
pub fn key(key: &HotKey, now: &HotKeys, before: Option<(&HotKeys, f64)>) -> Row {
    let one_of = u64::from(now.one_of);
    let was = |before: &HotKeys| {
        let same = before
            .keys
            .iter()
            .find(|was| was.key == key.key && was.db == key.db);
        same.map_or(key.error, |was| was.count)
    };
    let per_second = before
        .filter(|(_, seconds)| *seconds > 0.0)
        .map(|(before, seconds)| (key.count.saturating_sub(was(before)) * one_of) as f64 / seconds);
    let share = key.count as f64 / now.samples.max(1) as f64 * 100.0;
    let doubt = match key.error {
        0 => String::new(),
        error => format!(
            "; at least {:.1} %",
            (key.count - error.min(key.count)) as f64 / now.samples.max(1) as f64 * 100.0
        ),
    };
    Row {
        per_second,
        count: key.count * one_of,
        kind: format!("db {}", key.db),
        name: key.key.clone(),
        text: format!(
            "{share:.1} % of {} samples{doubt}; {} bytes",
            now.samples, key.key_bytes
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_few_digits() {
        let told = [
            None,
            Some(0),
            Some(180),
            Some(1_234),
            Some(9_960),
            Some(35_400),
            Some(4_000_000),
            Some(2_500_000_000),
        ];
        let said = [
            "-", "0 ns", "180 ns", "1.2 us", "10 us", "35 us", "4.0 ms", "2.5 s",
        ];
        assert_eq!(told.map(time), said);
    }

    #[test]
    fn a_keys_rate_is_of_the_last_two_looks_and_what_it_took_over_is_not_its_own() {
        let of = |count, error| HotKey {
            key: "k".to_owned(),
            key_bytes: 1,
            db: 2,
            count,
            error,
        };
        let looked = |samples, keys: &[HotKey]| HotKeys {
            one_of: 61,
            samples,
            keys: keys.to_vec(),
        };
        let (before, now) = (looked(100, &[of(10, 0)]), looked(200, &[of(30, 0)]));
        let row = key(&now.keys[0], &now, Some((&before, 2.0)));
        assert_eq!((row.per_second, row.count), (Some(610.0), 30 * 61));
        assert_eq!(
            (row.kind.as_str(), row.text.as_str()),
            ("db 2", "15.0 % of 200 samples; 1 bytes")
        );
        let now = looked(200, &[of(30, 28)]);
        let row = key(&now.keys[0], &now, Some((&looked(100, &[]), 2.0)));
        assert_eq!(row.per_second, Some(61.0));
        assert!(row.text.contains("at least 1.0 %"), "{}", row.text);
        assert_eq!(key(&now.keys[0], &now, None).per_second, None);
    }
}
