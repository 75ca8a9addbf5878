// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dashboard: its files, and the JSON that they read.
//!
//! # Invariants
//! 1. The files hold nothing of this machine: who has no token gets them, and nothing else.
//! 2. No key, value or address of a client is in this JSON, as in no label of a metric. What may be told of them, to whom
//!    it is allowed, [`details`](crate::details) tells.

use erb_report::Status;
use serde_json::{Value, json};

use crate::declared::{Kind, METRICS};
use crate::flows::{self, FLOWS};
use crate::history::History;
use crate::values::{infos, named};

/// What the page may do: read from here, run what is served here, and nothing else. Text never
/// becomes markup: whoever tried would get an error of the browser's (Trusted Types).
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the page.
#[derive(Debug)]
pub struct File {
    /// Where it is served.
    pub path: &'static str,
    /// As the answer names it.
    pub content_type: &'static str,
    /// What is in it.
    pub text: &'static str,
}

const fn file(path: &'static str, content_type: &'static str, text: &'static str) -> File {
    File {
        path,
        content_type,
        text,
    }
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All of them.
pub const FILES: &[File] = &[
    file(
        "/",
        "text/html; charset=utf-8",
        include_str!("page/index.html"),
    ),
    file(
        "/dashboard.css",
        "text/css; charset=utf-8",
        include_str!("page/dashboard.css"),
    ),
    file("/dashboard.js", SCRIPT, include_str!("page/dashboard.js")),
    file("/chart.js", SCRIPT, include_str!("page/chart.js")),
    file("/details.js", SCRIPT, include_str!("page/details.js")),
    file("/words.js", SCRIPT, include_str!("page/words.js")),
    file("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// The file at this path, compared as a whole: nothing is looked for on a disk.
#[must_use]
pub fn file_at(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

/// What does not change: the metrics and the ways with their sentences, and whether details are served.
#[must_use]
pub fn declared(details: bool) -> String {
    let metrics = METRICS.iter().map(|metric| {
        let (name, kind, unit) = (metric.full_name(), metric.kind.word(), metric.unit.word());
        json!({ "name": name, "kind": kind, "unit": unit, "help": metric.help })
    });
    let flows = FLOWS
        .iter()
        .map(|flow| json!({ "id": flow.id, "text": flow.text, "outcomes": flow.outcomes }));
    let (metrics, flows): (Value, Value) = (metrics.collect(), flows.collect());
    let all = json!({ "metrics": metrics, "flows": flows, "details": details });
    all.to_string()
}

/// What is now, `at_ms` after `run` began.
#[must_use]
pub fn now(status: &Status, run: &str, at_ms: u64) -> String {
    // A status is numbers, words, lists and objects with names.
    let found = serde_json::to_value(status).unwrap_or_default();
    let values: serde_json::Map<String, Value> = named(&found)
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .collect();
    let words = METRICS.iter().filter(|metric| metric.kind == Kind::Info);
    let words: serde_json::Map<String, Value> = words
        .map(|metric| {
            let rows = infos(metric, &found).into_iter().map(|labels| {
                let of = labels.into_iter();
                of.map(|(label, word)| (label.to_owned(), Value::from(word)))
                    .collect::<Value>()
            });
            (metric.full_name(), rows.collect())
        })
        .collect();
    let flows: serde_json::Map<String, Value> = flows::counts(&status.counters)
        .into_iter()
        .map(|(id, count)| (id.to_owned(), count.into()))
        .collect();
    let held = status
        .held
        .clients
        .iter()
        .map(|line| json!({ "ms": line.held_ms, "all_keys": line.all_keys, "why": line.why }));
    let all = json!({
        "run": run,
        "at_ms": at_ms,
        "values": values,
        "words": words,
        "flows": flows,
        "outcomes": status.counters,
        "not_serving": status.not_serving,
        "aside_why": status.aside.why,
        "held": held.collect::<Value>(),
        "latency": status.latency,
        "processors": status.processors,
        "notes": status.notes.len(),
    });
    all.to_string()
}

/// One sample of the history.
pub(crate) fn push(history: &mut History, at_ms: u64, status: &Status) {
    history.push(
        at_ms,
        named(&serde_json::to_value(status).unwrap_or_default()),
    );
}
