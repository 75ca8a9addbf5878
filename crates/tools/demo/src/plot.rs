// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Latencies as bars on a logarithmic axis. Fifty lines of our own: a library for plots in terminals
//! draws curves on linear axes, and brings more code than this.

use anyhow::{Context, Result};
use erb_bench::workload::{WorkloadReport, WorkloadServerReport};
use serde::Serialize;

use crate::report::INDENT;
use crate::row::{pair, rate};

/// Columns that bars may take.
const WIDTH: usize = 66;
/// Columns before them.
const LABEL: usize = 25;

/// What a load's reads took, microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    p50: f64,
    p99: f64,
    p999: f64,
}

/// Reads at one offered load.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    /// Share of what Redis alone can do at most, in words.
    share: String,
    /// Requests per second.
    rate: f64,
    /// Of Redis alone.
    redis: Times,
    /// Of Redis boosted.
    erb: Times,
}

impl Load {
    /// Medians of the runs.
    pub fn of(share: &str, report: &WorkloadReport) -> Result<Self> {
        let [redis, erb] = pair(report)?;
        Ok(Self {
            share: share.to_owned(),
            rate: rate(report)?,
            redis: Times::of(redis)?,
            erb: Times::of(erb)?,
        })
    }
}

impl Times {
    fn of(server: &WorkloadServerReport) -> Result<Self> {
        let mut operations = server.operations.iter();
        let reads = operations.find(|operation| operation.command == "GET");
        let reads = reads.context("there were no reads")?;
        Ok(Self {
            p50: reads.p50_us.median,
            p99: reads.p99_us.median,
            p999: reads.p999_us.median,
        })
    }
}

/// Decades of microseconds from the shortest to the longest time.
struct Axis {
    first: i32,
    decades: usize,
    /// Columns of a decade.
    columns: usize,
}

impl Axis {
    fn of(loads: &[Load]) -> Self {
        let all = || loads.iter().flat_map(|load| [load.redis, load.erb]);
        let first = all().map(|times| times.p50).fold(f64::INFINITY, f64::min);
        let last = all().map(|times| times.p999).fold(1.0, f64::max);
        let first = first.clamp(1.0, last).log10().floor() as i32;
        let decades = (last.log10().ceil() as i32 - first).max(1) as usize;
        Self {
            first,
            decades,
            columns: WIDTH / decades,
        }
    }

    fn column(&self, us: f64) -> usize {
        let decades = us.max(1.0).log10() - f64::from(self.first);
        (decades * self.columns as f64).round().max(0.0) as usize
    }

    fn heads(&self) -> String {
        let mut line = " ".repeat(LABEL);
        for decade in 0..=self.decades {
            let us = 10f64.powi(self.first + decade as i32);
            line += &format!("{:<1$}", round(us), self.columns);
        }
        line.trim_end().to_owned()
    }

    /// From the median to the 99th percentile, and on to the 99.9th.
    fn bar(&self, times: Times) -> String {
        let [from, to, end] = [times.p50, times.p99, times.p999].map(|us| self.column(us));
        let cell = |column| match column {
            _ if column >= from && column <= to => '█',
            _ if column > to && column <= end => '░',
            _ if column % self.columns == 0 => '·',
            _ => ' ',
        };
        (0..=self.decades * self.columns).map(cell).collect()
    }
}

/// A power of ten of microseconds.
fn round(us: f64) -> String {
    match us {
        ..100.0 => format!("{us} us"),
        ..1e6 => format!("{} ms", us / 1e3),
        _ => format!("{} s", us / 1e6),
    }
}

/// Lines of the plot.
pub fn plot(loads: &[Load]) -> String {
    let axis = Axis::of(loads);
    let mut text = axis.heads() + "\n";
    for load in loads {
        let share = &load.share;
        for (share, server, times) in [
            (share.as_str(), "Redis alone", load.redis),
            ("", "ERB", load.erb),
        ] {
            let label = format!("{INDENT}{share:<11}{server:<11}");
            text += &format!("{label:<LABEL$}{}\n", axis.bar(times));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(p50: f64, p99: f64, p999: f64) -> Times {
        Times { p50, p99, p999 }
    }

    fn load(redis: Times, erb: Times) -> Load {
        Load {
            share: "a third".to_owned(),
            rate: 1000.0,
            redis,
            erb,
        }
    }

    #[test]
    fn a_bar_begins_at_the_median_and_ends_at_the_longest() {
        let text = plot(&[load(
            times(1000.0, 10_000.0, 100_000.0),
            times(100.0, 1000.0, 2000.0),
        )]);
        let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        let count = |line: usize, one| lines[line].iter().filter(|&&it| it == one).count();
        // Three decades of 22 columns, both ends of a bar included.
        assert_eq!([count(1, '█'), count(1, '░')], [23, 22]);
        assert_eq!([count(2, '█'), count(2, '░')], [23, 7]);
        assert_eq!(lines[2][LABEL], '█', "{text}");
        assert_eq!(lines[1][LABEL + 22], '█', "{text}");
        let heads = text
            .lines()
            .next()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>();
        assert_eq!(heads, ["0.1", "ms", "1", "ms", "10", "ms", "100", "ms"]);
    }

    #[test]
    fn times_of_one_decade_and_none_at_all_are_drawn() {
        let short = plot(&[load(times(20.0, 30.0, 40.0), times(0.0, 11.0, 12.0))]);
        assert_eq!(short.lines().count(), 3, "{short}");
        assert_eq!(plot(&[]).lines().count(), 1);
    }
}
