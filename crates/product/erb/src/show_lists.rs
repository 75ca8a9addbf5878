// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of `erb status` for people: connections, each with why it is not answered, and commands by name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use erb_report::{CommandLine, CommandsReport, ConnLine};

use crate::show::say;

/// Prints the connections.
pub fn conns(lines: &[ConnLine]) {
    say(&conns_text(lines));
}

/// Prints the commands.
pub fn commands(found: &CommandsReport) {
    say(&commands_text(found));
}

fn conns_text(lines: &[ConnLine]) -> String {
    let (client, server, state) = ("client", "server", "state");
    let mut out = format!(
        "{client:<24} {server:<24} {state:<7} in (bytes) out (bytes) requests/replies  why it is not answered\n"
    );
    for line in lines {
        let counts = format!("{}/{}", line.requests, line.replies);
        let text = format!(
            "{:<24} {:<24} {:<7} {:>10} {:>11} {counts:<16}  {}",
            line.client, line.server, line.state, line.in_delta, line.out_delta, line.why
        );
        let _ = writeln!(out, "{}", text.trim_end());
    }
    by_reason(&mut out, lines);
    out
}

/// How many there are of each reason, the most first.
fn by_reason(out: &mut String, lines: &[ConnLine]) {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in lines.iter().filter(|line| !line.reason.is_empty()) {
        *counts.entry((&line.reason, &line.why)).or_default() += 1;
    }
    let slow: usize = counts.values().sum();
    let _ = writeln!(out, "\n{slow} of {} are not answered", lines.len());
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for ((reason, why), count) in counts {
        let _ = writeln!(out, "  {count:>7}  {reason:<13} {why}");
    }
}

fn commands_text(found: &CommandsReport) -> String {
    let since = found.since_s.map(|since| {
        let time = humantime::format_duration(Duration::from_secs(since));
        format!("since {time}, when this daemon began to count")
    });
    let since = since.unwrap_or_else(|| {
        "since the data path was loaded; no daemon has told yet what Redis executed".to_owned()
    });
    let (command, answered, share, to_redis) = ("command", "answered", "share", "to Redis");
    let mut out = format!("{since}\n\n{command:<24} {answered:>14} {share:>8} {to_redis:>14}\n");
    let mut rows: Vec<&CommandLine> = found.rows.iter().collect();
    let all = |row: &CommandLine| row.answered + row.to_redis.unwrap_or(0);
    rows.sort_by(|a, b| all(b).cmp(&all(a)).then_with(|| a.command.cmp(&b.command)));
    for row in rows {
        let share = row.answered_share();
        let _ = writeln!(
            out,
            "{:<24} {:>14} {:>8} {:>14}",
            row.command.to_uppercase(),
            row.answered,
            share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
            row.to_redis
                .map_or_else(|| "-".to_owned(), |count| count.to_string()),
        );
    }
    if found.since_s.is_some() {
        let _ = writeln!(out, "\n{}", saved(found));
    }
    out
}

/// The processor time of Redis that was saved.
pub fn saved(found: &CommandsReport) -> String {
    match found.overhead_ns {
        None => {
            "processor time of Redis saved: not known, as Redis was not seen at work yet".to_owned()
        }
        Some(overhead_ns) => {
            #[allow(clippy::cast_precision_loss, reason = "few digits are shown")]
            let (seconds, overhead_us) =
                (found.cpu_saved_ms as f64 / 1e3, overhead_ns as f64 / 1e3);
            format!(
                "processor time of Redis saved: about {seconds:.1} s, an estimate; a command costs Redis some \
                 {overhead_us:.1} us besides what it runs for"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(client: &str, reason: &str, why: &str) -> ConnLine {
        ConnLine {
            client: client.to_owned(),
            state: if reason.is_empty() { "fast" } else { "bypass" }.to_owned(),
            reason: reason.to_owned(),
            why: why.to_owned(),
            ..ConnLine::default()
        }
    }

    #[test]
    fn connections_say_why_and_are_summed_up_by_reason() {
        let user = "its user may not do everything: app (~app:*)";
        let text = conns_text(&[
            line("10.0.0.2:1", "", ""),
            line("10.0.0.2:2", "multi", "it is in MULTI"),
            line("10.0.0.2:3", "user", user),
            line("10.0.0.2:4", "user", user),
        ]);
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[1].ends_with("0/0"), "{text}");
        assert!(rows[2].ends_with("it is in MULTI"), "{text}");
        assert_eq!(rows[6], "3 of 4 are not answered");
        assert_eq!(rows[7], format!("        2  user          {user}"));
        assert_eq!(rows[8], "        1  multi         it is in MULTI");
        assert!(conns_text(&[]).ends_with("\n0 of 0 are not answered\n"));
    }

    #[test]
    fn commands_are_listed_with_the_share_that_was_answered() {
        let row = |command: &str, answered, to_redis| CommandLine {
            command: command.to_owned(),
            answered,
            to_redis,
        };
        let mut found = CommandsReport {
            since_s: Some(7_380),
            rows: vec![
                row("eval", 0, Some(20)),
                row("get", 980, Some(20)),
                row("other", 0, Some(0)),
            ],
            overhead_ns: Some(6_100),
            cpu_saved_ms: 5_960,
        };
        let text = commands_text(&found);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|row| row.split_whitespace().collect())
            .collect();
        assert!(text.starts_with("since 2h 3m, when"), "{text}");
        assert_eq!(rows[3], ["GET", "980", "98.0", "%", "20"]);
        assert_eq!(rows[4], ["EVAL", "0", "0.0", "%", "20"]);
        assert_eq!(rows[5], ["OTHER", "0", "-", "0"]);
        assert!(
            text.contains("about 6.0 s, an estimate; a command costs Redis some 6.1 us"),
            "{text}"
        );
        found.overhead_ns = None;
        assert!(commands_text(&found).contains("saved: not known"));
        found = CommandsReport {
            rows: vec![row("get", 980, None)],
            ..CommandsReport::default()
        };
        let text = commands_text(&found);
        assert!(text.starts_with("since the data path was loaded"), "{text}");
        assert!(text.ends_with("-              -\n"), "{text}");
    }
}
