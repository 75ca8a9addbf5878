// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is shipped for Prometheus and Grafana asks for metrics that there are, with labels that they
//! have and outcomes that are counted.

use std::collections::BTreeSet;
use std::fs;

use erb_watch::declared::{Kind, METRICS, Metric};
use erb_watch::flows::FLOWS;
use erb_watch::{node, serve};
use regex::Regex;

use crate::{assert_none, files};

const SHIPPED: [&str; 3] = [
    "dist/erb-alerts.yml",
    "dist/erb-alerts-test.yml",
    "dist/grafana-dashboard.json",
];

fn read(name: &str) -> String {
    fs::read_to_string(files::root().join(name)).expect(name)
}

fn captured<'a>(pattern: &str, text: &'a str) -> BTreeSet<&'a str> {
    let pattern = Regex::new(pattern).expect("a valid pattern");
    let found = pattern.captures_iter(text);
    found
        .filter_map(|found| found.get(1).map(|word| word.as_str()))
        .collect()
}

#[test]
fn what_is_shipped_for_watching_asks_for_what_there_is() {
    let written = |metric: &Metric| {
        let name = metric.full_name();
        match metric.kind {
            Kind::Histogram => ["bucket", "sum", "count"]
                .map(|end| format!("{name}_{end}"))
                .to_vec(),
            _ => vec![name],
        }
    };
    let all = [METRICS, node::METRICS, serve::METRICS].concat();
    let names: BTreeSet<String> = all.iter().flat_map(written).collect();
    let reasons = read("bpf/base/reasons.def");
    let outcomes = captured(r"(?m)^REASON\((\w+),", &reasons);
    let (mut complaints, mut asked) = (Vec::new(), 0);
    for file in SHIPPED {
        let text = read(file);
        for name in captured(r"\b(erb_\w+)", &text) {
            asked += 1;
            if !names.contains(name) {
                complaints.push(format!("{file}: there is no metric {name}"));
            }
        }
        for outcome in captured(r#"outcome[=:]\s*\\?"?([A-Z][A-Z_]+)"#, &text) {
            if !outcomes.contains(outcome) {
                complaints.push(format!("{file}: there is no outcome {outcome}"));
            }
        }
    }
    assert!(asked > 15, "only {asked} names found");
    assert_none("what is shipped for watching exists", &complaints);
}

#[test]
fn the_dashboard_is_json_with_panels_that_ask() {
    let board: serde_json::Value = serde_json::from_str(&read(SHIPPED[2])).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let numbers: BTreeSet<u64> = panels
        .iter()
        .filter_map(|panel| panel["id"].as_u64())
        .collect();
    assert_eq!(numbers.len(), panels.len(), "two panels have one number");
    for panel in panels {
        let targets = panel["targets"].as_array().expect("targets");
        let asks = |target: &serde_json::Value| {
            target["expr"]
                .as_str()
                .is_some_and(|it| it.contains("erb_"))
        };
        assert!(
            !targets.is_empty() && targets.iter().all(asks),
            "{}",
            panel["title"]
        );
    }
}

/// A packet that is left to Redis is somewhere in the dashboard's picture, and nowhere twice.
#[test]
fn each_refusal_is_on_one_way_of_the_picture() {
    let reasons = read("bpf/base/reasons.def");
    let outcomes = captured(r"(?m)^REASON\((\w+),", &reasons);
    let refused = captured(r"(?m)^REASON\((\w+), refused,", &reasons);
    let (mut complaints, mut drawn) = (Vec::new(), BTreeSet::new());
    for flow in FLOWS {
        for outcome in flow.outcomes {
            if !outcomes.contains(outcome) {
                complaints.push(format!("{}: there is no outcome {outcome}", flow.id));
            }
            if !drawn.insert(*outcome) {
                complaints.push(format!("{outcome} is on two ways"));
            }
        }
    }
    let missing = refused.iter().filter(|name| !drawn.contains(*name));
    complaints.extend(missing.map(|name| format!("{name} is on no way")));
    assert!(refused.len() > 40, "only {} refusals found", refused.len());
    assert_none("the dashboard's picture is whole", &complaints);
}
