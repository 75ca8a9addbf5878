// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is declared is all that there is, found where it is said to be, and written as Prometheus
//! reads it.

use std::collections::BTreeSet;

use erb_report::Status;
use erb_watch::declared::{Kind, LEFT_OUT, METRICS};
use erb_watch::{Format, text};
use serde_json::Value;

/// A status that is fully filled; erb-report holds it to its types.
const FILLED: &str = include_str!("../../report/tests/status.json");

/// Words of ours or of the machine's owner, never of a client.
const LABELS: [&str; 14] = [
    "build",
    "cpu",
    "device",
    "kind",
    "layout",
    "maxmemory_policy",
    "mode",
    "outcome",
    "path",
    "role",
    "state",
    "to",
    "version",
    "way",
];

fn filled() -> Status {
    serde_json::from_str(FILLED).unwrap()
}

/// Places of all leaves, `*` for the elements of a list, with one value of each.
fn leaves(value: &Value, at: &str, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(value, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                leaves(element, &format!("{at}/*"), found);
            }
        }
        leaf => found.push((at.to_owned(), leaf.clone())),
    }
}

fn all_leaves() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    leaves(&serde_json::from_str(FILLED).unwrap(), "", &mut found);
    found
}

#[test]
fn each_number_of_the_status_is_a_metric_or_left_out_for_a_reason() {
    let numbers = all_leaves();
    let numbers = numbers
        .iter()
        .filter(|(_, leaf)| leaf.is_number() || leaf.is_boolean());
    let numbers: BTreeSet<&str> = numbers.map(|(at, _)| at.as_str()).collect();
    let places: Vec<String> = METRICS.iter().flat_map(|metric| metric.places()).collect();
    let told: BTreeSet<&str> = places.iter().map(String::as_str).collect();
    let left_out: BTreeSet<&str> = LEFT_OUT.iter().map(|(at, _)| *at).collect();
    let missing: Vec<_> = numbers
        .iter()
        .filter(|at| !told.contains(**at) && !left_out.contains(**at))
        .collect();
    assert!(
        missing.is_empty(),
        "declare a metric or a reason: {missing:?}"
    );
    let both: Vec<_> = told.intersection(&left_out).collect();
    assert!(both.is_empty(), "{both:?}");
    let gone: Vec<_> = left_out.difference(&numbers).collect();
    assert!(gone.is_empty(), "nothing of the status is there: {gone:?}");
    assert!(LEFT_OUT.iter().all(|(_, why)| !why.is_empty()));
}

#[test]
fn each_place_is_there() {
    let leaves = all_leaves();
    let leaves: BTreeSet<&str> = leaves.iter().map(|(at, _)| at.as_str()).collect();
    for metric in METRICS {
        for at in metric.places() {
            assert!(leaves.contains(at.as_str()), "{}: {at}", metric.full_name());
        }
    }
}

#[test]
fn names_are_as_prometheus_wants_them() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        let name = metric.full_name();
        let good = |name: &str| {
            name.bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        };
        assert!(good(&name), "{name}");
        assert!(names.insert(name.clone()), "{name} is there twice");
        assert!(
            !metric.name.ends_with("_total") && !metric.name.ends_with("_info"),
            "{name}"
        );
        // A sentence without its full stop, in one line.
        assert!(
            metric.help.len() > 10 && !metric.help.ends_with('.'),
            "{name}"
        );
        assert!(!metric.help.contains(['\n', '\\', '|', '"']), "{name}");
        for label in metric.labels() {
            assert!(
                LABELS.contains(&label),
                "{name}: whose words are in {label}?"
            );
        }
    }
}

#[test]
fn values_are_those_of_the_status() {
    let text = text(&filled(), Format::OpenMetrics);
    for line in [
        "erb_programs_info{build=\"b\",layout=\"l\",mode=\"read\"} 1",
        "erb_daemon_state{state=\"running\"} 1",
        "erb_daemon_state{state=\"dead\"} 0",
        "erb_serving 1",
        "erb_lease_left_seconds -0.005",
        "erb_device_info{device=\"eth1\",mode=\"tc\"} 1",
        "erb_device_gone{device=\"lo\"} 0",
        "erb_redis_feeds_made_total 3",
        "erb_redis_maxmemory_bytes 1073741824",
        "erb_connections{state=\"fast\"} 3",
        "erb_cache_hits_total 15",
        "erb_aside_sample_hit_ratio 0.25",
        "erb_aside_changes_total{to=\"2\"} 5",
        "erb_outcomes_total{outcome=\"FAST_GET\",kind=\"answered\"} 14",
        "# UNIT erb_lease_left_seconds seconds",
        "# TYPE erb_outcomes counter",
        "# TYPE erb_redis info",
        "# TYPE erb_request_duration_seconds histogram",
        "# UNIT erb_request_duration_seconds seconds",
        "erb_request_duration_seconds_bucket{le=\"1.28e-7\",path=\"hit\"} 0",
        "erb_request_duration_seconds_bucket{le=\"2.56e-7\",path=\"hit\"} 4",
        "erb_request_duration_seconds_bucket{le=\"5.12e-7\",path=\"hit\"} 6",
        "erb_request_duration_seconds_bucket{le=\"68.719476736\",path=\"hit\"} 6",
        "erb_request_duration_seconds_bucket{le=\"+Inf\",path=\"hit\"} 7",
        "erb_request_duration_seconds_count{path=\"hit\"} 7",
        "erb_request_duration_seconds_sum{path=\"hit\"} 68.719478",
        "erb_processor_packets_total{cpu=\"1\",way=\"answered\"} 2",
        "erb_processor_packets_total{cpu=\"1\",way=\"down\"} 4",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line}\nis not in\n{text}"
        );
    }
    assert!(text.ends_with("# EOF\n"));
}

/// A line with a bound as a number at its end: both texts write it otherwise, and elsewhere among the labels.
fn alike(line: &str) -> String {
    // Not the end of another label's name.
    let found = ["{le=\"", ",le=\""].into_iter().find_map(|it| line.split_once(it));
    let Some((before, rest)) = found else {
        return line.to_owned();
    };
    let before = format!("{before}{{");
    let (bound, after) = rest.split_once('"').unwrap();
    let bound: f64 = bound.parse().unwrap();
    let joined = format!("{before}{after} {bound}");
    joined.replace("{,", "{").replace("{}", "}")
}

#[test]
fn both_texts_have_the_same_values() {
    let values = |format| -> BTreeSet<String> {
        let text = text(&filled(), format);
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(alike)
            .collect()
    };
    assert_eq!(values(Format::OpenMetrics), values(Format::Prometheus));
    assert!(!text(&filled(), Format::Prometheus).contains("# EOF"));
}

#[test]
fn what_is_not_there_is_left_out() {
    let mut status = filled();
    status.aside.sample_hit_ratio = None;
    status.devices.clear();
    status.counters.clear();
    let text = text(&status, Format::OpenMetrics);
    for name in [
        "erb_aside_sample_hit_ratio ",
        "erb_device_info{",
        "erb_outcomes_total{",
    ] {
        assert!(!text.lines().any(|line| line.starts_with(name)), "{name}");
    }
}

#[test]
fn words_of_others_do_not_leave_their_label() {
    let mut status = filled();
    status.redis.version = "7\"} 1\nerb_serving 0\\".to_owned();
    status.devices[0].device.name = "e\u{e9}\"th".to_owned();
    for format in [Format::OpenMetrics, Format::Prometheus] {
        let text = text(&status, format);
        assert!(
            text.contains(r#"version="7\"} 1\nerb_serving 0\\""#),
            "{text}"
        );
        assert!(text.contains("device=\"e\u{e9}\\\"th\""), "{text}");
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("erb_serving"))
                .count(),
            1
        );
    }
}

#[test]
fn counters_are_whole_numbers_however_large() {
    let mut status = filled();
    status.counters[0].count = u64::MAX;
    let text = text(&status, Format::OpenMetrics);
    assert!(
        text.contains("kind=\"answered\"} 18446744073709551615"),
        "{text}"
    );
    assert!(METRICS.iter().any(|metric| metric.kind == Kind::Counter));
}
