// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics and page of the storage node: where each is in [`NodeStatus`].

use erb_report::NodeStatus;
use serde_json::{Map, Value};

use crate::board::{self, Board, Chart, Series, Table};
use crate::dashboard::File;
use crate::declared::Kind::{Counter, Gauge, Info};
use crate::declared::Place::{At, Members, Thousandths, Word, Words};
use crate::declared::Unit::{Bytes, Pure, Seconds};
use crate::declared::{Metric, metric};
use crate::watched::Watched;

/// All metrics of a node, in the order in which they are written.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    metric("node", Info, Pure, Words { labels: &[("version", "/version"), ("nqn", "/nqn"), ("address", "/address")] },
        "The node: its version, the name of its subsystem, where it listens"),
    metric("node_up", Gauge, Seconds, Thousandths("/up_ms"),
        "Time since the node began to serve"),
    metric("node_connections", Gauge, Pure, At("/connections"),
        "Connections, also of hosts that have not proved themselves"),
    metric("node_failed_authentications", Counter, Pure, At("/failed_authentications"),
        "Connections that ended because somebody had not proved himself or is not listed"),
    metric("node_keys", Gauge, Pure, At("/keys"),
        "Keys, with deleted ones that are still kept"),
    metric("node_index_size", Gauge, Bytes, At("/index_bytes"),
        "Memory of the index"),
    metric("node_index_max", Gauge, Bytes, At("/index_max_bytes"),
        "Memory that the index may take; beyond it writers are refused as they are without space"),
    metric("node_space_size", Gauge, Bytes, At("/space/size_bytes"),
        "Bytes of the store that may hold data"),
    metric("node_space_used", Gauge, Bytes, At("/space/used_bytes"),
        "Bytes of the store that do"),
    metric("node_space_level", Gauge, Pure, Word { at: "/space/level", label: "level", of: &["plenty", "low", "short", "full", "reserve", "last"] },
        "1 for how short of space the store is; from full on writers are refused"),
    metric("node_full", Gauge, Pure, At("/space/is_full"),
        "1 while writers are refused for want of space on the disk"),
    metric("node_history", Gauge, Seconds, Thousandths("/history/whole_ms"),
        "Every key can be taken back to any moment of so long; not there: nothing was ever trimmed"),
    metric("node_retention_min_age", Gauge, Seconds, Thousandths("/history/min_age_ms"),
        "A version is kept for so long after it was overwritten"),
    metric("node_retention_keep_deleted", Gauge, Seconds, Thousandths("/history/keep_deleted_ms"),
        "A deleted key is kept for so long"),
    metric("node_retention_min_count", Gauge, Pure, At("/history/min_count"),
        "So many of each key's newest versions are kept, however old they are"),
    metric("node_retention_locked", Gauge, Seconds, Thousandths("/history/locked_ms"),
        "Nobody can have less kept for so long; 0: no lock"),
    metric("node_roll_backs", Gauge, Pure, At("/history/roll_backs"),
        "Roll backs that a start would have to apply again"),
    metric("node_snapshots", Gauge, Pure, At("/history/snapshots"),
        "Moments that snapshots hold"),
    metric("node_cache_size", Gauge, Bytes, At("/cache/bytes"),
        "Values that are kept in memory"),
    metric("node_cache_hits", Counter, Pure, At("/cache/hits"),
        "Gets that needed no disk"),
    metric("node_cache_misses", Counter, Pure, At("/cache/misses"),
        "Gets that needed the disk although values are kept"),
    metric("node_damaged", Counter, Pure, At("/damaged"),
        "How often reads and the scrub have found damage; erb kv damaged names the keys"),
    metric("node_read_only", Gauge, Pure, At("/is_read_only"),
        "1 while writes are refused because the store has failed"),
    metric("node_requests", Counter, Pure, Members { at: "/requests", label: "request" },
        "Requests by what they ask for"),
    metric("node_refused", Counter, Pure, Members { at: "/refused", label: "why" },
        "Requests that were refused, by why; role: the role of who has asked does not allow it"),
];

#[rustfmt::skip]
const BOARD: Board = Board {
    title: "ERB storage node",
    about: "erb_node_info",
    wrong: &[
        ("erb_node_read_only", "The store has failed: writes are refused. Look at the node's log"),
        ("erb_node_full", "The store is full: writers are refused. Grow it, or wait until old versions are trimmed"),
        ("erb_node_damaged_total", "Damage was found: erb kv damaged names the keys"),
    ],
    tiles: &[
        Series::rate("Requests a second", "erb_node_requests_total*"),
        Series::value("Keys", "erb_node_keys"),
        Series::value("Space used", "erb_node_space_used_bytes"),
        Series::value("of", "erb_node_space_size_bytes"),
        Series::value("History is whole for", "erb_node_history_seconds"),
        Series::value("Connections", "erb_node_connections"),
    ],
    charts: &[
        Chart { title: "Requests", unit: "a second", series: &[
            Series::rate("gets", "erb_node_requests_total{request=\"get\"}"),
            Series::rate("writes", "erb_node_requests_total{request=\"write\"}"),
            Series::rate("roll backs", "erb_node_requests_total{request=\"roll_back\"}"),
            Series::rate("refused", "erb_node_refused_total*"),
        ] },
        Chart { title: "Space", unit: "bytes", series: &[
            Series::value("used", "erb_node_space_used_bytes"),
            Series::value("size", "erb_node_space_size_bytes"),
        ] },
        Chart { title: "Keys", unit: "with deleted ones that are kept", series: &[
            Series::value("keys", "erb_node_keys"),
        ] },
        Chart { title: "Values in memory", unit: "gets a second", series: &[
            Series::rate("needed no disk", "erb_node_cache_hits_total"),
            Series::rate("needed the disk", "erb_node_cache_misses_total"),
        ] },
    ],
    tables: &[
        Table { title: "Versions, retention, roll backs", metrics: &[
            "erb_node_history_seconds", "erb_node_retention_min_age_seconds", "erb_node_retention_keep_deleted_seconds",
            "erb_node_retention_min_count", "erb_node_retention_locked_seconds", "erb_node_roll_backs", "erb_node_snapshots",
        ] },
        Table { title: "Space and memory", metrics: &[
            "erb_node_space_size_bytes", "erb_node_space_used_bytes", "erb_node_space_level", "erb_node_full",
            "erb_node_index_size_bytes", "erb_node_index_max_bytes", "erb_node_cache_size_bytes",
        ] },
        Table { title: "Requests", metrics: &["erb_node_requests_total"] },
        Table { title: "Refused, damaged", metrics: &[
            "erb_node_refused_total", "erb_node_damaged_total", "erb_node_read_only", "erb_node_failed_authentications_total",
        ] },
    ],
};

impl Watched for NodeStatus {
    const METRICS: &'static [Metric] = METRICS;
    const FILES: &'static [File] = board::FILES;

    fn declared() -> Map<String, Value> {
        board::declared(&BOARD)
    }
}
