// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is declared is all that there is, found where it is said to be, and written as Prometheus
//! reads it.

use std::collections::BTreeSet;

use erb_report::{NodeStatus, Serve, Status};
use erb_watch::declared::{Kind, LEFT_OUT, METRICS, Metric};
use erb_watch::{Format, Watched, node, serve, text};
use serde_json::Value;

/// A status that is fully filled; erb-report holds it to its types.
const FILLED: &str = include_str!("../../report/tests/status.json");
const FILLED_NODE: &str = include_str!("../../report/tests/node.json");
const FILLED_SERVE: &str = include_str!("../../report/tests/serve.json");

/// Whoever is watched: a status that is fully filled, its metrics, what is none of them.
type Subject = (
    &'static str,
    &'static [Metric],
    &'static [(&'static str, &'static str)],
);

const SUBJECTS: [Subject; 3] = [
    (FILLED, METRICS, LEFT_OUT),
    (FILLED_NODE, node::METRICS, &[]),
    (FILLED_SERVE, serve::METRICS, serve::LEFT_OUT),
];

/// Words of ours or of the machine's owner, never of a client.
const LABELS: [&str; 23] = [
    "address",
    "build",
    "command",
    "condition",
    "cpu",
    "device",
    "how",
    "kind",
    "layout",
    "level",
    "maxmemory_policy",
    "mode",
    "nqn",
    "outcome",
    "path",
    "request",
    "role",
    "state",
    "status",
    "to",
    "version",
    "way",
    "why",
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

fn all_leaves(filled: &str) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    leaves(&serde_json::from_str(filled).unwrap(), "", &mut found);
    found
}

/// Whether a place, in which `*` is any name, is this one.
fn is_at(place: &str, at: &str) -> bool {
    let (place, at): (Vec<_>, Vec<_>) = (place.split('/').collect(), at.split('/').collect());
    let same = |(wanted, found): (&&str, &&str)| *wanted == "*" || wanted == found;
    place.len() == at.len() && place.iter().zip(&at).all(same)
}

#[test]
fn each_number_of_the_status_is_a_metric_or_left_out_for_a_reason() {
    for (filled, metrics, left_out) in SUBJECTS {
        each_number_is_told(filled, metrics, left_out);
    }
}

fn each_number_is_told(filled: &str, metrics: &[Metric], left_out: &[(&str, &str)]) {
    let numbers = all_leaves(filled);
    let numbers = numbers
        .iter()
        .filter(|(_, leaf)| leaf.is_number() || leaf.is_boolean());
    let numbers: BTreeSet<&str> = numbers.map(|(at, _)| at.as_str()).collect();
    let places: Vec<String> = metrics.iter().flat_map(|metric| metric.places()).collect();
    let told: BTreeSet<&str> = places.iter().map(String::as_str).collect();
    let reasons = left_out;
    let left_out: BTreeSet<&str> = left_out.iter().map(|(at, _)| *at).collect();
    let is_told = |at: &str| told.iter().any(|place| is_at(place, at));
    let missing: Vec<_> = numbers
        .iter()
        .filter(|at| !is_told(at) && !left_out.contains(**at))
        .collect();
    assert!(
        missing.is_empty(),
        "declare a metric or a reason: {missing:?}"
    );
    let both: Vec<_> = told.intersection(&left_out).collect();
    assert!(both.is_empty(), "{both:?}");
    let gone: Vec<_> = left_out.difference(&numbers).collect();
    assert!(gone.is_empty(), "nothing of the status is there: {gone:?}");
    assert!(reasons.iter().all(|(_, why)| !why.is_empty()));
}

#[test]
fn each_place_is_there() {
    for (filled, metrics, _) in SUBJECTS {
        let leaves = all_leaves(filled);
        for metric in metrics {
            for place in metric.places() {
                let is_there = leaves.iter().any(|(at, _)| is_at(&place, at));
                assert!(is_there, "{}: {place}", metric.full_name());
            }
        }
    }
}

#[test]
fn names_are_as_prometheus_wants_them() {
    let mut names = BTreeSet::new();
    for metric in SUBJECTS.iter().flat_map(|(_, metrics, _)| *metrics) {
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
        "# TYPE erb_redis_cpu_saved_seconds counter",
        "erb_redis_cpu_saved_seconds_total 0.005",
        "erb_commands_to_redis_total{command=\"get\"} 3",
        "erb_commands_answered_total{command=\"get\"} 2",
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
    let found = ["{le=\"", ",le=\""]
        .into_iter()
        .find_map(|it| line.split_once(it));
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
fn a_node_and_a_file_server_have_their_own() {
    let status: NodeStatus = serde_json::from_str(FILLED_NODE).unwrap();
    let node = text(&status, Format::OpenMetrics);
    let serve: Serve = serde_json::from_str(FILLED_SERVE).unwrap();
    let serve = text(&serve, Format::OpenMetrics);
    for (text, line) in [
        (
            &node,
            "erb_node_info{version=\"0.1.0\",nqn=\"nqn\",address=\"127.0.0.1:4420\"} 1",
        ),
        (&node, "erb_node_up_seconds 1.5"),
        (&node, "erb_node_space_level{level=\"short\"} 1"),
        (&node, "erb_node_space_level{level=\"plenty\"} 0"),
        (&node, "erb_node_history_seconds 7.0"),
        (&node, "erb_node_requests_total{request=\"get\"} 21"),
        (&node, "erb_node_refused_total{why=\"full\"} 22"),
        (&node, "erb_node_full 1"),
        (&serve, "erb_serve_answers_total{status=\"200\"} 5"),
        (&serve, "erb_serve_sent_bytes_total{how=\"zero_copy\"} 9"),
        (&serve, "erb_serve_copied_bytes_total{why=\"small\"} 12"),
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line}\nis not in\n{text}"
        );
    }
}

/// Series and metrics that a page names are there, however filled it is.
#[test]
fn a_board_shows_what_is_declared() {
    fn shown<W: Watched>(filled: &W) {
        let text = text(filled, Format::OpenMetrics);
        let all = W::declared();
        let board = all["board"].to_string();
        let name = names_in(&board);
        assert!(name.len() > 10, "{board}");
        for name in name {
            let begins = name.trim_end_matches('*');
            let is_there = text.lines().any(|line| line.starts_with(begins));
            assert!(is_there, "{name}");
        }
    }
    shown::<NodeStatus>(&serde_json::from_str(FILLED_NODE).unwrap());
    shown::<Serve>(&serde_json::from_str(FILLED_SERVE).unwrap());
}

/// Words that begin with erb_, as a JSON text has them.
fn names_in(json: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(json).unwrap();
    let mut found = Vec::new();
    leaves(&value, "", &mut found);
    let words = found
        .into_iter()
        .filter_map(|(_, leaf)| leaf.as_str().map(str::to_owned));
    words.filter(|word| word.starts_with("erb_")).collect()
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
