// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the demonstration found: as text for people, as JSON for programs.

use erb_bench::{Machine, Quartiles};
use serde::Serialize;

use crate::plot::{Load, plot};
use crate::row::{Figure, Row};

/// Before what belongs to a heading.
pub const INDENT: &str = "  ";
/// Columns of a row: its label, then figures, then how many times better, then how steadily.
const LABEL: usize = 46;
/// See [`LABEL`].
const FIGURE: usize = 14;
/// See [`LABEL`].
const TIMES: usize = 10;
/// See [`LABEL`].
const QUARTILES: usize = 14;
/// Others who take more than this share of the processors are told of.
const FOREIGN_TOLD: f64 = 0.05;
/// Times from here on are shown in milliseconds.
const MILLISECONDS_FROM_US: f64 = 100.0;

/// Rows with a heading.
#[derive(Debug, Serialize)]
pub struct Group {
    /// What clients do.
    pub heading: String,
    /// Figures.
    pub rows: Vec<Row>,
}

/// The whole result.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Kernel, processor, Redis.
    pub machine: Machine,
    /// What the figures of ordinary clients have in common, in sentences.
    pub setting: [String; 3],
    /// What a user gets.
    pub gets: Vec<Group>,
    /// Latencies by offered load.
    pub loads: Vec<Load>,
    /// What the server's processor can do.
    pub capacity: Vec<Row>,
    /// Requests per second of a processor by a bare XDP responder.
    pub limit: f64,
    /// What does not gain.
    pub no_gain: Vec<Group>,
    /// Largest share of the processors' time that others took.
    pub foreign_share: f64,
    /// Options of `erb bench` that repeat it.
    pub again: String,
}

impl Report {
    /// For people.
    pub fn to_text(&self) -> String {
        let mut text = self.preamble();
        text += &head("1. WHAT YOU GET");
        text += &groups(&self.gets);
        text += &format!("\n2. {PLOT}\n\n{}{PLOT_NOTE}", plot(&self.loads));
        text += &head("3. WHAT THE SERVER CAN DO");
        text += &format!("{INDENT}{CAPACITY}\n");
        text += &lines(&self.capacity);
        text += &columns(RESPONDER, "", &grouped(self.limit), ["", ""]);
        text += &head("4. WHAT DOES NOT GAIN");
        text += &groups(&self.no_gain);
        text + &format!(
            "\n5. HOW TO GO ON (erb is target/release/erb)\n{NEXT}    erb bench {}\n",
            self.again
        )
    }

    fn preamble(&self) -> String {
        let machine = &self.machine;
        let mut words = machine.redis.split_whitespace();
        let redis = words.find_map(|word| word.strip_prefix("v="));
        let [clients, keys, runs] = &self.setting;
        let mut text = format!(
            "\nRedis alone, and the same Redis boosted by ERB, on this machine\n\
             {}, {} processors, Linux {}, Redis {}\n{clients}\n{keys} {runs}\n",
            machine.processor,
            machine.cores,
            machine.kernel,
            redis.unwrap_or(&machine.redis),
        );
        if self.foreign_share > FOREIGN_TOLD {
            text += &format!(
                "Other programs took up to {:.0} % of the processors meanwhile: quiet ones give \
                 steadier figures.\n",
                self.foreign_share * 100.0
            );
        }
        text
    }
}

const PLOT: &str =
    "HOW LONG A GET TAKES (5 % writes; █ median to 99th percentile, ░ to the 99.9th)";
const PLOT_NOTE: &str = "  The shares are of what Redis alone can do. At all of it its queue grows, and with it the time.\n";
const CAPACITY: &str = "A processor of its own and 200 connections that always ask, 100,000 keys";
const RESPONDER: &str = "a bare XDP responder: nothing can do more";
const NEXT: &str = "  Your own Redis:
    sudo erb doctor --dev eth0 --dev lo --redis 127.0.0.1:6379   what hinders or slows a boost; changes nothing
    sudo erb boost --dev eth0 --dev lo --redis 127.0.0.1:6379    boosts it
    sudo erb status                                              who was answered, and why others were not
    sudo erb detach                                              ends it and leaves nothing
  A lab of your own, boosted; `erb lab down` removes it:
    erb lab up --mode read
    erb lab exec client -- redis-cli -h 10.77.0.2
  Traffic like your own (docs/operating/lab-and-checks.md):
";

/// A section's title, and the names of its columns.
fn head(title: &str) -> String {
    let label = LABEL + 2 * INDENT.len();
    format!(
        "\n{title:<label$}{:>FIGURE$}{:>FIGURE$}{:>TIMES$}{:>QUARTILES$}\n",
        "Redis alone", "ERB", "better", "half of runs"
    )
}

fn groups(groups: &[Group]) -> String {
    let text = |group: &Group| format!("{INDENT}{}\n{}", group.heading, lines(&group.rows));
    groups.iter().map(text).collect()
}

/// Rows, and below each why it is worse, if it is.
fn lines(rows: &[Row]) -> String {
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        text += &line(row);
        let before = index.checked_sub(1).and_then(|it| rows[it].why.as_ref());
        if let Some(why) = &row.why {
            let why = if before == Some(why) { "as above" } else { why };
            text += &format!("{INDENT}{INDENT}{INDENT}worse: {why}\n");
        }
    }
    text
}

fn line(row: &Row) -> String {
    let like = row.redis.median.max(row.erb.median);
    let of = |number| figure(row.figure, number, like);
    let (redis, erb) = (of(row.redis.median), of(row.erb.median));
    let [better, half] = times(row.times_better);
    columns(&row.label, &redis, &erb, [&better, &half])
}

fn columns(label: &str, redis: &str, erb: &str, [better, half]: [&str; 2]) -> String {
    let label = format!("{INDENT}{INDENT}{label:<LABEL$}");
    let text = format!("{label}{redis:>FIGURE$}{erb:>FIGURE$}{better:>TIMES$}{half:>QUARTILES$}");
    text.trim_end().to_owned() + "\n"
}

/// How many times better, and within what the middle half of the runs lies; of what is worse another digit.
fn times(better: Quartiles) -> [String; 2] {
    let digits = if better.low < 0.995 { 2 } else { 1 };
    let number = |number: f64| format!("{number:.digits$}");
    let half = format!("{} - {}", number(better.low), number(better.high));
    [number(better.median) + " x", half]
}

/// A figure with its unit, which is that of the figures `like` it beside it.
pub fn figure(figure: Figure, number: f64, like: f64) -> String {
    if figure.is_time() {
        time(number, like)
    } else {
        grouped(number)
    }
}

/// Microseconds by three digits.
fn time(us: f64, like: f64) -> String {
    let (number, unit) = if like < MILLISECONDS_FROM_US {
        (us, "us")
    } else {
        (us / 1e3, "ms")
    };
    let digits = match number {
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{number:.digits$} {unit}")
}

/// A whole number, thousands apart.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Facts;

    fn row(label: &str, figure: Figure, both: [f64; 2]) -> Row {
        let [redis, erb] = both.map(|median| [median; 3]);
        let facts = Facts {
            hits: 1.0,
            ..Facts::default()
        };
        Row::new(label, figure, [&redis, &erb], &facts).unwrap()
    }

    #[test]
    fn figures_stand_below_their_heading_with_a_unit() {
        let head = head("1. WHAT YOU GET");
        for (row, cells) in [
            (
                row(
                    "requests per second",
                    Figure::PerSecond,
                    [85_712.3, 176_471.8],
                ),
                ["85,712", "176,472", "2.1 x", "2.1 - 2.1"],
            ),
            (
                row("GET, median", Figure::GetMedian, [482.0, 99.0]),
                ["0.48 ms", "0.10 ms", "4.9 x", "4.9 - 4.9"],
            ),
            (
                row("SET, 99th percentile", Figure::SetP99, [99.9, 9.99]),
                ["99.9 us", "9.99 us", "10.0 x", "10.0 - 10.0"],
            ),
        ] {
            let line = line(&row);
            assert_eq!(line.lines().count(), 1, "{line}");
            let names = ["Redis alone", "ERB", "better", "half of runs"];
            for (name, cell) in names.into_iter().zip(cells) {
                let end = |text: &str, part: &str| text.find(part).map(|at| at + part.len());
                assert_eq!(end(&head[1..], name), end(&line, cell), "{head}{line}");
            }
        }
    }

    #[test]
    fn what_is_worse_says_why_below_it() {
        let worse = row("GET", Figure::GetP99, [1000.0, 250_000.0]);
        let text = lines(&[row("GET", Figure::GetP99, [2.0, 1.0]), worse.clone(), worse]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        let (first, why) = (lines[1], lines[2]);
        assert!(
            first.contains("1.00 ms") && first.contains("250 ms"),
            "{text}"
        );
        assert!(first.ends_with("0.00 x   0.00 - 0.00"), "{text}");
        assert!(why.starts_with("      worse: what was counted"), "{text}");
        assert_eq!(lines[4], "      worse: as above");
    }

    #[test]
    fn thousands_stand_apart() {
        let numbers = [0.4, 999.0, 1000.0, 28_570.9, 1_234_567.0].map(grouped);
        assert_eq!(numbers, ["0", "999", "1,000", "28,571", "1,234,567"]);
    }
}
