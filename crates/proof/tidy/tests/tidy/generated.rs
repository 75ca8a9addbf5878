// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of the documents that are generated from declarations of `bpf/`. `ERB_RECORD=1` writes them
//! anew.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;

use erb_watch::{declared, node, serve};
use regex::Regex;

use crate::files;

fn source(name: &str) -> String {
    fs::read_to_string(files::root().join(name)).expect(name)
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

fn same(document: &str, name: &str, text: &str) {
    if let Err(problem) = erb_tidy::generated(document, name, text) {
        panic!("{problem}");
    }
}

/// Bounds as they are declared: name, value, reason.
fn limits() -> Vec<(String, String, String)> {
    let line = regex(r"(?m)^#define[ \t]+(\w+)[ \t]+(\S.*?)[ \t]*/\* (.+) \*/$");
    let text = source("bpf/base/limits.h");
    let found = line.captures_iter(&text);
    let part = |capture: &regex::Captures, at: usize| capture[at].to_owned();
    found
        .map(|row| (part(&row, 1), part(&row, 2), part(&row, 3)))
        .collect()
}

#[test]
fn the_metrics_are_those_that_are_declared() {
    let page = "docs/operating/metrics.md";
    let table = |metrics, json| erb_watch::declared::table(metrics, json);
    same(
        page,
        "metrics",
        &table(declared::METRICS, "`erb status --json`"),
    );
    same(
        page,
        "metrics of a node",
        &table(node::METRICS, "what the node says of itself"),
    );
    same(
        page,
        "metrics of a file server",
        &table(serve::METRICS, "`erb serve --json`"),
    );
}

/// As `erb --help` shows them.
#[test]
fn the_exit_codes_are_those_that_are_declared() {
    let text = source("crates/product/report/src/exit.rs");
    let help = text.split_once("HELP: &str = \"\\\n").expect("HELP").1;
    let help = help.split_once("\";").expect("its end").0;
    let mut rows: Vec<(&str, String)> = Vec::new();
    for line in help.lines().skip(1) {
        match line.trim_start().split_once(' ') {
            Some((number, words)) if line.starts_with("  ") && !line.starts_with("   ") => {
                // Or a number to which another is added.
                let first = number.trim_end_matches("+N");
                assert!(first.parse::<u8>().is_ok(), "{number}");
                rows.push((number, words.trim_start().to_owned()));
            }
            _ => {
                let row = rows.last_mut().expect("a row before");
                row.1 = format!("{} {}", row.1, line.trim_start());
            }
        }
    }
    assert!(rows.len() > 20, "{rows:?}");
    let mut table = String::from("| code | meaning |\n| ---: | --- |\n");
    for (number, words) in rows {
        writeln!(table, "| {number} | {words} |").expect("a string");
    }
    same("docs/operating/troubleshooting.md", "exit codes", &table);
}

/// An operator looks for a counter's sentence, not for its declaration.
#[test]
fn the_counters_are_those_that_are_declared() {
    let row = regex(r#"(?m)^REASON\((\w+), (\w+), "(.*)"\)$"#);
    let text = source("bpf/base/reasons.def");
    let mut table = String::from("| counter | kind | what it counts |\n| --- | --- | --- |\n");
    for found in row.captures_iter(&text) {
        writeln!(table, "| {} | {} | {} |", &found[1], &found[2], &found[3]).expect("a string");
    }
    assert_eq!(
        table.lines().count() - 2,
        text.lines()
            .filter(|line| line.starts_with("REASON("))
            .count(),
        "a row of reasons.def has another form"
    );
    same("docs/operating/status-and-trace.md", "reasons", &table);
}

#[test]
fn why_a_connection_is_not_answered_is_as_declared() {
    let row = regex(r#"(?m)^SLOW(?:_COMMAND)?\(\w+, "(\w+)", "(.*)"\)$"#);
    let text = source("bpf/redis/slow.def");
    let mut table = String::from("| reason | what it says |\n| --- | --- |\n");
    for found in row.captures_iter(&text) {
        writeln!(table, "| `{}` | {} |", &found[1], &found[2]).expect("a string");
    }
    let declared = text.lines().filter(|line| line.starts_with("SLOW"));
    assert_eq!(table.lines().count() - 2, declared.count());
    same("docs/operating/status-and-trace.md", "slow", &table);
}

#[test]
fn the_ways_that_are_timed_are_those_that_are_declared() {
    let row = regex(r#"(?m)^LATENCY\(\w+, "(.*)", "(.*)"\)$"#);
    let text = source("bpf/base/latency.def");
    let mut table = String::from("| way | timed |\n| --- | --- |\n");
    for found in row.captures_iter(&text) {
        writeln!(table, "| `{}` | {} |", &found[1], &found[2]).expect("a string");
    }
    same("docs/operating/metrics.md", "latencies", &table);
}

/// Each bound that a user can meet stands in the documents with its reason.
#[test]
fn the_bounds_are_those_that_are_declared() {
    let limits = limits();
    assert!(limits.len() > 40, "only {} bounds found", limits.len());
    let mut table = String::from("| bound | value | why |\n| --- | --- | --- |\n");
    for (name, value, reason) in limits {
        let reason = reason.replace('|', "\\|");
        writeln!(table, "| `{name}` | {value} | {reason} |").expect("a string");
    }
    same("docs/operating/limits.md", "limits", &table);
}

#[test]
fn the_answered_commands_are_those_that_are_declared() {
    let limits: HashMap<_, _> = limits().into_iter().map(|row| (row.0, row.1)).collect();
    let row = regex(r#"(?m)^FAST\(\w+, "(\w+)", (\d+), (\w+)\)$"#);
    let text = source("bpf/redis/fast.def");
    let mut table = String::from("| command | arguments behind the name |\n| --- | --- |\n");
    for found in row.captures_iter(&text) {
        let (least, most) = (&found[2], &found[3]);
        let most = limits.get(most).map_or(most, String::as_str);
        let name = found[1].to_uppercase();
        if least == most {
            writeln!(table, "| `{name}` | {least} |").expect("a string");
        } else {
            writeln!(table, "| `{name}` | {least} to {most} |").expect("a string");
        }
    }
    assert!(table.lines().count() > 10, "{table}");
    same("docs/operating/limits.md", "fast", &table);
}

/// A reader sees at once which headers may be used elsewhere.
#[test]
fn the_shared_headers_are_those_that_say_so() {
    let mut list = String::new();
    for file in files::sources() {
        let first = file.text.lines().next().unwrap_or_default();
        if first.contains("GPL-2.0 OR Apache-2.0") {
            writeln!(list, "- `{}`", file.name).expect("a string");
        }
    }
    assert!(list.lines().count() > 5, "{list}");
    same("LICENSES/README.md", "shared", &list);
}
