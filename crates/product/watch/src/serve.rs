// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics and page of the file server: where each is in [`Serve`], a line of `erb serve --json`.

use erb_report::Serve;
use serde_json::{Map, Value};

use crate::board::{self, Board, Chart, Series, Table};
use crate::dashboard::File;
use crate::declared::Kind::{Counter, Gauge, Info};
use crate::declared::Place::{At, Each, Members, Words};
use crate::declared::Unit::{Bytes, Pure};
use crate::declared::{Metric, metric};
use crate::watched::Watched;

/// All metrics of a file server, in the order in which they are written.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    metric("serve", Info, Pure, Words { labels: &[("address", "/address")] },
        "Where files are served"),
    metric("serve_threads", Gauge, Pure, At("/threads"),
        "Threads that serve"),
    metric("serve_connections", Counter, Pure, At("/connections"),
        "Connections that were accepted"),
    metric("serve_connections_refused", Counter, Pure, At("/refused"),
        "Connections that were closed at once because there were too many"),
    metric("serve_answers", Counter, Pure, Members { at: "/answers", label: "status" },
        "Answers by their status"),
    metric("serve_resets", Counter, Pure, Each { label: "why", of: &[("changed", "/reset_changed"), ("slow", "/reset_slow")] },
        "Connections that were reset: the file changed meanwhile, or the client took too long"),
    metric("serve_sent", Counter, Bytes, Each { label: "how", of: &[("zero_copy", "/sent_bytes/zero_copy"), ("sendfile", "/sent_bytes/sendfile"), ("kernel_copied", "/sent_bytes/kernel_copied")] },
        "Bytes that left without a copy of ours: from the file's own memory, from the page cache, or copied by the kernel"),
    metric("serve_copied", Counter, Bytes, Members { at: "/sent_bytes/copied", label: "why" },
        "Bytes that ERB has copied, by why"),
    metric("serve_kernel_copies", Counter, Pure, Members { at: "/kernel_copies", label: "why" },
        "Connections for which the kernel copied, by the likely cause"),
    metric("serve_pinned", Gauge, Bytes, At("/pinned_bytes"),
        "Memory that is pinned until clients acknowledge"),
    metric("serve_pinned_peak", Gauge, Bytes, At("/pinned_bytes_peak"),
        "The most that was ever pinned"),
];

/// What of the report is no metric, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[("/guard", "says which process")];

#[rustfmt::skip]
const BOARD: Board = Board {
    title: "ERB file server",
    about: "erb_serve_info",
    wrong: &[],
    tiles: &[
        Series::rate("Answers a second", "erb_serve_answers_total*"),
        Series::rate("Bytes without a copy, a second", "erb_serve_sent_bytes_total{how=\"zero_copy\"}"),
        Series::rate("from the page cache", "erb_serve_sent_bytes_total{how=\"sendfile\"}"),
        Series::rate("copied by ERB", "erb_serve_copied_bytes_total*"),
        Series::rate("Connections a second", "erb_serve_connections_total"),
        Series::value("Pinned", "erb_serve_pinned_bytes"),
    ],
    charts: &[
        Chart { title: "Answers", unit: "a second", series: &[
            Series::rate("answers", "erb_serve_answers_total*"),
            Series::rate("reset", "erb_serve_resets_total*"),
        ] },
        Chart { title: "Bytes", unit: "bytes a second", series: &[
            Series::rate("zero-copy", "erb_serve_sent_bytes_total{how=\"zero_copy\"}"),
            Series::rate("sendfile", "erb_serve_sent_bytes_total{how=\"sendfile\"}"),
            Series::rate("copied by the kernel", "erb_serve_sent_bytes_total{how=\"kernel_copied\"}"),
            Series::rate("copied by ERB", "erb_serve_copied_bytes_total*"),
        ] },
    ],
    tables: &[
        Table { title: "Answers, resets", metrics: &["erb_serve_answers_total", "erb_serve_resets_total"] },
        Table { title: "How bytes have left", metrics: &["erb_serve_sent_bytes_total", "erb_serve_copied_bytes_total", "erb_serve_kernel_copies_total"] },
        Table { title: "Connections, memory", metrics: &["erb_serve_connections_total", "erb_serve_connections_refused_total", "erb_serve_pinned_bytes", "erb_serve_pinned_peak_bytes"] },
    ],
};

impl Watched for Serve {
    const METRICS: &'static [Metric] = METRICS;
    const FILES: &'static [File] = board::FILES;

    fn declared() -> Map<String, Value> {
        board::declared(&BOARD)
    }
}
