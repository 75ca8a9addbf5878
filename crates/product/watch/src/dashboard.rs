// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dashboard: the files of a boost's, and the JSON that all read.
//!
//! # Invariants
//! 1. The files hold nothing of this machine: who has no token gets them, and nothing else.
//! 2. No key, value or address of a client is in this JSON, as in no label of a metric. What may be told of them, to whom
//!    it is allowed, [`details`](crate::details) tells.

use erb_report::Status;
use serde_json::{Map, Value, json};

use crate::declared::{Kind, METRICS, Metric};
use crate::flows::{self, FLOWS};
use crate::history::History;
use crate::values::{infos, named};
use crate::watched::Watched;

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

pub(crate) const fn file(
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
) -> File {
    File {
        path,
        content_type,
        text,
    }
}

/// A page: what each has, with a script and a middle of its own.
macro_rules! page {
    ($script:literal, $middle:literal) => {
        concat!(
            include_str!("page/head.html"),
            "<script type=\"module\" src=\"",
            $script,
            "\"></script>\n",
            include_str!("page/top.html"),
            include_str!($middle),
            include_str!("page/foot.html"),
        )
    };
}
pub(crate) use page;

pub(crate) const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All of a boost's.
pub const FILES: &[File] = &[
    file(
        "/",
        "text/html; charset=utf-8",
        page!("dashboard.js", "page/index.html"),
    ),
    file(
        "/dashboard.css",
        "text/css; charset=utf-8",
        include_str!("page/dashboard.css"),
    ),
    file("/dashboard.js", SCRIPT, include_str!("page/dashboard.js")),
    file("/look.js", SCRIPT, include_str!("page/look.js")),
    file("/chart.js", SCRIPT, include_str!("page/chart.js")),
    file("/details.js", SCRIPT, include_str!("page/details.js")),
    file("/reason.js", SCRIPT, include_str!("page/reason.js")),
    file("/words.js", SCRIPT, include_str!("page/words.js")),
    file("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// The file at this path, compared as a whole: nothing is looked for on a disk.
#[must_use]
pub fn file_at<W: Watched>(path: &str) -> Option<&'static File> {
    W::FILES.iter().find(|file| file.path == path)
}

/// What does not change: the metrics with their sentences, what the page shows, and whether details are served.
#[must_use]
pub fn declared<W: Watched>(details: bool) -> String {
    let metrics = W::METRICS.iter().map(|metric| {
        let (name, kind, unit) = (metric.full_name(), metric.kind.word(), metric.unit.word());
        json!({ "name": name, "kind": kind, "unit": unit, "help": metric.help })
    });
    let mut all = W::declared();
    all.insert("metrics".to_owned(), metrics.collect());
    all.insert("details".to_owned(), details.into());
    Value::from(all).to_string()
}

/// What is now, `at_ms` after `run` began.
#[must_use]
pub fn now<W: Watched>(status: &W, run: &str, at_ms: u64) -> String {
    // A status is numbers, words, lists and objects with names.
    let found = serde_json::to_value(status).unwrap_or_default();
    let values: Map<String, Value> = named(W::METRICS, &found)
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .collect();
    let words = W::METRICS.iter().filter(|it| it.kind == Kind::Info);
    let words: Map<String, Value> = words
        .map(|metric| {
            let rows = infos(metric, &found).into_iter().map(|labels| {
                let of = labels.into_iter();
                of.map(|(label, word)| (label.to_owned(), Value::from(word)))
                    .collect::<Value>()
            });
            (metric.full_name(), rows.collect())
        })
        .collect();
    let mut all = status.told();
    let beside = [
        ("run", Value::from(run)),
        ("at_ms", at_ms.into()),
        ("values", values.into()),
        ("words", words.into()),
    ];
    all.extend(beside.map(|(name, value)| (name.to_owned(), value)));
    Value::from(all).to_string()
}

impl Watched for Status {
    const METRICS: &'static [Metric] = METRICS;
    const FILES: &'static [File] = FILES;

    fn declared() -> Map<String, Value> {
        let flows = FLOWS
            .iter()
            .map(|flow| json!({ "id": flow.id, "text": flow.text, "outcomes": flow.outcomes }));
        [("flows".to_owned(), flows.collect())]
            .into_iter()
            .collect()
    }

    fn told(&self) -> Map<String, Value> {
        let flows: Map<String, Value> = flows::counts(&self.counters)
            .into_iter()
            .map(|(id, count)| (id.to_owned(), count.into()))
            .collect();
        let held =
            self.held.clients.iter().map(
                |line| json!({ "ms": line.held_ms, "all_keys": line.all_keys, "why": line.why }),
            );
        let told = [
            ("flows", flows.into()),
            ("outcomes", json!(self.counters)),
            ("not_serving", json!(self.not_serving)),
            ("aside_why", json!(self.aside.why)),
            ("held", held.collect()),
            ("latency", json!(self.latency)),
            ("processors", json!(self.processors)),
            ("notes", self.notes.len().into()),
        ];
        told.into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// One sample of the history.
pub(crate) fn push<W: Watched>(history: &mut History, at_ms: u64, status: &W) {
    let found = serde_json::to_value(status).unwrap_or_default();
    history.push(at_ms, named(W::METRICS, &found));
}
