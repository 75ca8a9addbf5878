// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every metric, declared once: name, type, unit, sentence, and where in `erb status --json` it is
//! found. The text at `/metrics`, the table in docs/operating/metrics.md and the tests come from here.
//!
//! Names follow OpenMetrics and Prometheus: `erb_`, base units at the end, `_total` for what only
//! rises (the encoder adds unit and `_total`). A place is a JSON pointer (RFC 6901) into the status.
//!
//! # Invariants
//! 1. Each number and each yes or no of the status is a metric or stands in [`LEFT_OUT`] with the
//!    reason.
//! 2. Each place exists in a status that is fully filled.
//! 3. No label has values that a client chooses: no keys, no addresses.

/// What kind of value it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises, until the data path is loaded anew.
    Counter,
    /// Rises and falls; of a yes or no 1 and 0.
    Gauge,
    /// Words, as labels of a value that is always 1.
    Info,
    /// How many values were how large.
    Histogram,
}

impl Kind {
    /// As OpenMetrics names it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
            Self::Histogram => "histogram",
        }
    }
}

/// A base unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Pure numbers.
    Pure,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// A share, 0 to 1.
    Ratio,
}

impl Unit {
    /// As it ends a name; empty: it does not.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pure => "",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::Ratio => "ratio",
        }
    }
}

/// Where its values are.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// One value there; nothing if there is none.
    At(&'static str),
    /// One value there, in thousandths of the unit.
    Thousandths(&'static str),
    /// One value for each of these, under a label.
    Each {
        /// The label.
        label: &'static str,
        /// Its values, and where each is.
        of: &'static [(&'static str, &'static str)],
    },
    /// One value for each member of an object, under a label.
    Members {
        /// The object.
        at: &'static str,
        /// The label, whose values are the members' names.
        label: &'static str,
    },
    /// A word there: 1 for the one that it is, 0 for the others that it may be.
    Word {
        /// Where.
        at: &'static str,
        /// The label.
        label: &'static str,
        /// What it may be.
        of: &'static [&'static str],
    },
    /// One value for each element of a list.
    Rows {
        /// The list.
        at: &'static str,
        /// Labels, each with its place within an element.
        labels: &'static [(&'static str, &'static str)],
        /// The value's place within an element.
        value: &'static str,
    },
    /// Several values for each element of a list.
    RowsOfEach {
        /// The list.
        at: &'static str,
        /// A label with its place within an element.
        row: (&'static str, &'static str),
        /// The label that tells the values of an element apart.
        label: &'static str,
        /// Its values, and where each is within an element.
        of: &'static [(&'static str, &'static str)],
    },
    /// A histogram for each element of a list: times in ns.
    Histograms {
        /// The list.
        at: &'static str,
        /// A label with its place within an element.
        row: (&'static str, &'static str),
        /// Where an element has the sum.
        sum: &'static str,
        /// Where an element has its buckets: `below_ns`, none for the last, and `count`.
        buckets: &'static str,
    },
    /// The words of one object.
    Words {
        /// Labels, and where each is.
        labels: &'static [(&'static str, &'static str)],
    },
    /// The words of each element of a list.
    WordsOfRows {
        /// The list.
        at: &'static str,
        /// Labels, each with its place within an element.
        labels: &'static [(&'static str, &'static str)],
    },
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name without `erb_`, unit and `_total`.
    pub name: &'static str,
    /// What kind of value it is.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// What it says, one sentence.
    pub help: &'static str,
    /// Where its values are.
    pub from: Place,
}

pub(crate) const fn metric(
    name: &'static str,
    kind: Kind,
    unit: Unit,
    from: Place,
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind,
        unit,
        help,
        from,
    }
}

use Kind::{Counter, Gauge, Histogram, Info};
use Place::{
    At, Each, Histograms, Members, Rows, RowsOfEach, Thousandths, Word, Words, WordsOfRows,
};
use Unit::{Bytes, Pure, Ratio, Seconds};

/// All metrics of a boost, in the order in which they are written.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    metric("programs", Info, Pure, Words { labels: &[("build", "/programs/build"), ("layout", "/programs/layout"), ("mode", "/mode")] },
        "The programs at work: their build, the layout of what they share, the mode of work"),
    metric("daemon_state", Gauge, Pure, Word { at: "/daemon", label: "state", of: &["running", "detaching", "dead"] },
        "1 for the daemon's state"),
    metric("serving", Gauge, Pure, At("/serving"),
        "1 while answers are given. 0 is meant while erb_aside_level is 3 or erb_daemon_state detaching; why not else is told by erb status"),
    metric("gate_open", Gauge, Pure, At("/gate_open"),
        "0 while a command that may have changed Redis's configuration is looked at"),
    metric("admitting", Gauge, Pure, At("/admitting"),
        "1 while new connections are tracked from their first byte"),
    metric("lease_left", Gauge, Seconds, Thousandths("/lease_left_ms"),
        "Time for which answers may still be given unless Redis renews it; negative: it is over since then; 0: there is none"),
    metric("fence_commands", Gauge, Pure, At("/fence"),
        "Commands on their way whose keys are unknown: nothing is answered meanwhile"),
    metric("programs_whole", Gauge, Pure, At("/programs/whole"),
        "0 after a replacement that was killed half-way: two builds are at work, and both are right"),
    metric("programs_traced", Gauge, Pure, At("/programs/traced"),
        "1 while erb trace is at work, which costs"),
    metric("device", Info, Pure, WordsOfRows { at: "/devices", labels: &[("device", "/device/name"), ("mode", "/mode")] },
        "Boosted devices, and whether packets are answered in XDP (native) or TC alone"),
    metric("device_gone", Gauge, Pure, Rows { at: "/devices", labels: &[("device", "/device/name")], value: "/gone" },
        "1 if the boosted device has gone since"),
    metric("redis", Info, Pure, Words { labels: &[("version", "/redis/version"), ("role", "/redis/role"), ("maxmemory_policy", "/redis/maxmemory_policy")] },
        "Redis as the daemon sees it"),
    metric("redis_feed_up", Gauge, Pure, At("/redis/feed_up"),
        "1 while the daemon's connection to Redis is up"),
    metric("redis_feeds_made", Counter, Pure, At("/redis/feeds_made"),
        "Connections to Redis that the daemon has made since it began"),
    metric("redis_maxmemory", Gauge, Bytes, At("/redis/maxmemory"),
        "Redis's maxmemory; 0: none"),
    metric("redis_timeout", Gauge, Seconds, At("/redis/timeout_s"),
        "Redis's timeout for idle clients; 0: none"),
    metric("connections", Gauge, Pure, Each { label: "state", of: &[("new", "/connections/new"), ("fast", "/connections/fast"), ("bypass", "/connections/bypass"), ("old", "/connections/old")] },
        "Tracked connections by state; only fast ones are answered"),
    metric("connections_tracked", Gauge, Pure, At("/connections/total"),
        "Tracked connections"),
    metric("connections_max", Gauge, Pure, At("/memory/connections_max"),
        "Connections for which there is room"),
    metric("connections_closing", Gauge, Pure, At("/connections/closing"),
        "Tracked connections that have said FIN or RST"),
    metric("connections_translated", Gauge, Pure, At("/connections/translated"),
        "Tracked connections whose TCP numbers are translated; a detach waits for them"),
    metric("connections_unacknowledged", Gauge, Pure, At("/connections/unacked"),
        "Tracked connections that have not acknowledged all answers yet"),
    metric("connections_unseen", Gauge, Pure, At("/connections/unseen"),
        "Connections without room in the table: Redis alone answers them"),
    metric("connections_holding", Gauge, Pure, At("/held/total"),
        "Connections whose command keeps keys from everybody for longer than a second"),
    metric("waiting_connections", Gauge, Pure, At("/waiting/connections"),
        "Connections of which a packet waits until what was answered before it is in Redis"),
    metric("waiting_packets", Gauge, Pure, At("/waiting/packets"),
        "Copies that are kept of such packets"),
    metric("waiting_copies", Gauge, Bytes, At("/waiting/bytes"),
        "Memory of these copies"),
    metric("waiting_longest", Gauge, Seconds, Thousandths("/waiting/longest_ms"),
        "Time for which the packet that has waited longest does"),
    metric("waiting_ended", Counter, Pure, At("/waiting/ended"),
        "Connections reset by this daemon since a packet of theirs had waited longer than --hold-max, or than its own WAIT would"),
    metric("waiting_left_out", Counter, Pure, At("/waiting/left_out"),
        "Copies for which this daemon had no room: their clients send them again"),
    metric("writes_open", Gauge, Pure, At("/writes/open"),
        "Whether SETs are answered in Redis's place (--mode write-back)"),
    metric("writes_opened", Counter, Pure, At("/writes/opened"),
        "How often this daemon began to let SETs be answered"),
    metric("writes_condition_met", Gauge, Pure, Rows { at: "/writes/conditions", labels: &[("condition", "/condition")], value: "/met" },
        "What answering SETs depends on: whether nothing of it speaks against that"),
    metric("writes_waiting", Gauge, Pure, At("/writes/waiting"),
        "SETs that are answered and not in Redis"),
    metric("writes_waiting_longest", Gauge, Seconds, Thousandths("/writes/waiting_ms"),
        "Time for which one of them is, at most"),
    metric("writes_ring", Gauge, Bytes, At("/writes/ring_bytes"),
        "What is taken in the log ring that has the least room"),
    metric("writes_drained", Counter, Pure, At("/writes/drained"),
        "SETs that this daemon has brought to Redis"),
    metric("writes_drained_keys", Counter, Pure, At("/writes/drained_keys"),
        "Keys that it has written for that: of each key in a batch the last value"),
    metric("writes_batches", Counter, Pure, At("/writes/batches"),
        "Batches that these were"),
    metric("writes_refused_batches", Counter, Pure, At("/writes/refused_batches"),
        "Batches that Redis refused, and that were tried again"),
    metric("writes_refused", Counter, Pure, At("/writes/refused_writes"),
        "SETs that were answered and that Redis will never take"),
    metric("writes_journal_sound", Gauge, Pure, At("/writes/journal/sound"),
        "Whether SETs that wait for Redis for long can be kept on a disk (--journal late)"),
    metric("writes_journal_waiting", Gauge, Pure, At("/writes/journal/waiting"),
        "SETs that are answered, not in Redis, and kept there"),
    metric("writes_journal_segments", Gauge, Pure, At("/writes/journal/segments"),
        "Segments in which they are"),
    metric("writes_journal_written", Counter, Pure, At("/writes/journal/written"),
        "Records that this daemon has written to them"),
    metric("writes_journal_failures", Counter, Pure, At("/writes/journal/failures"),
        "Writes, syncs and deletions of them that failed, and of new ones and their folder that could not be had"),
    metric("writes_journal_left", Gauge, Pure, At("/writes/journal/left"),
        "SETs in segments of a boost that is no more: they may not be in Redis"),
    metric("writes_journal_left_segments", Gauge, Pure, At("/writes/journal/left_segments"),
        "These segments"),
    metric("cache_hits", Counter, Pure, At("/cache/hits"),
        "Reads on fast connections that were answered from the cache"),
    metric("cache_misses", Counter, Pure, At("/cache/misses"),
        "Reads on fast connections that the cache could not answer, or was not asked for"),
    metric("cache_entries", Gauge, Pure, At("/cache/entries_estimate"),
        "Keys in the cache, estimated from a sample of its sets"),
    metric("cache_entries_max", Gauge, Pure, At("/cache/entries_max"),
        "Keys that fit into the cache at most"),
    metric("cache_size", Gauge, Bytes, At("/cache/bytes"),
        "Memory of the cache"),
    metric("connections_size", Gauge, Bytes, At("/memory/connections_total_bytes"),
        "Memory of the table of connections"),
    metric("fills_on", Gauge, Pure, At("/cache/fills"),
        "1 if keys that were missed are read into the cache"),
    metric("fills_waiting", Gauge, Pure, At("/cache/fills_waiting"),
        "Keys that wait to be read into the cache"),
    metric("fills_in_flight", Gauge, Pure, At("/cache/fills_in_flight"),
        "Transactions under way that read keys into the cache"),
    metric("fills", Counter, Pure, At("/cache/filled"),
        "Keys that this daemon has read into the cache"),
    metric("commands_to_redis", Counter, Pure, Rows { at: "/commands/rows", labels: &[("command", "/command")], value: "/to_redis" },
        "Commands that Redis executed for others than the daemon, since this daemon began, by names that ERB knows, and other; from INFO commandstats, so scripts' and those of clients that ERB does not see count, too"),
    metric("commands_answered", Counter, Pure, Rows { at: "/commands/rows", labels: &[("command", "/command")], value: "/answered" },
        "Commands that were answered without Redis, in the same time"),
    metric("redis_cpu_saved", Counter, Seconds, Thousandths("/commands/cpu_saved_ms"),
        "Processor time that answers saved Redis since this daemon began, an estimate; 0 until Redis was seen at work"),
    metric("aside_level", Gauge, Pure, At("/aside/level"),
        "0: all is looked up. 1: only a sample. 2: and what was written is not read again. 3: the cache is closed"),
    metric("aside_level_age", Gauge, Seconds, At("/aside/since_s"),
        "Time since the level was entered"),
    metric("aside_sample_hit", Gauge, Ratio, At("/aside/sample_hit_ratio"),
        "Share of the sample's look-ups that found their key"),
    metric("aside_changes", Counter, Pure, Each { label: "to", of: &[("0", "/aside/to_0"), ("1", "/aside/to_1"), ("2", "/aside/to_2"), ("3", "/aside/to_3")] },
        "Changes of that level, by the new one"),
    metric("aside_tries", Counter, Pure, At("/aside/tries"),
        "Short tries of level 0"),
    metric("aside_reports_of_read", Gauge, Pure, At("/aside/reports_of_read"),
        "1 while Redis tells the daemon only of changes of keys that it has read"),
    metric("outcomes", Counter, Pure, Rows { at: "/counters", labels: &[("outcome", "/name"), ("kind", "/kind")], value: "/count" },
        "Outcomes of the data path since it was loaded; each has its sentence in erb status"),
    metric("request_duration", Histogram, Seconds, Histograms { at: "/latency", row: ("path", "/path"), sum: "/sum_ns", buckets: "/buckets" },
        "Time that requests took, by their way; of hit and up one packet of 61 is timed, so counts are of samples"),
    // Last: of many processors these are many series, and the history leaves out what is beyond its bound.
    metric("processor_packets", Counter, Pure, RowsOfEach { at: "/processors", row: ("cpu", "/cpu"), label: "way", of: &[("answered", "/answered"), ("up", "/up"), ("down", "/down")] },
        "Packets by the processor that they met, answered, passed up, or the kernel's on their way out"),
];

/// Ends of the buckets of histograms that are told, powers of two, ns. What lies between is told by the status alone.
pub const BOUNDS_LOG2: std::ops::RangeInclusive<u32> = 6..=36;

/// What of the status is no metric, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("/pid", "says which process, not how it is"),
    ("/devices/*/device/ifindex", "says which device"),
    ("/devices/*/vlan/switched_off", "a flag word for the detach"),
    ("/egress_devices/*", "says which devices"),
    ("/redis/port", "says which port"),
    ("/redis/commands", "does not change but with Redis"),
    ("/held/clients/*/held_ms", "belongs to an address"),
    ("/held/clients/*/all_keys", "belongs to an address"),
    (
        "/commands/since_s",
        "since when the daemon counts: rates need no such time",
    ),
    (
        "/commands/overhead_ns",
        "what the estimate of saved time is made of",
    ),
    (
        "/hit_ratio",
        "of all time: hits and misses give that of any time",
    ),
    ("/cache/sets", "cache_size says the same"),
    ("/cache/set_bytes", "a constant"),
    (
        "/writes/journal/durable_lsn",
        "a number of its own; what waits says the same",
    ),
    (
        "/writes/journal/batches",
        "counts anew with each open folder or inserted module",
    ),
    (
        "/writes/journal/syncs",
        "counts anew with each open folder or inserted module",
    ),
    (
        "/writes/journal/wakes",
        "counts anew with each inserted module",
    ),
    ("/cache/class_bytes/*", "a constant"),
    ("/cache/class_ways/*", "a constant"),
    ("/memory/connection_bytes", "a constant"),
    ("/memory/cache_entry_bytes_mean", "a constant"),
    ("/memory/cache_total_bytes", "cache_size is the same"),
    ("/latency/*/samples", "the count of the histogram"),
    ("/latency/*/p50_ns", "the histogram gives that of any time"),
    ("/latency/*/p99_ns", "the histogram gives that of any time"),
    ("/latency/*/buckets/*/from_ns", "the end of another bucket"),
];

impl Metric {
    /// Its whole name, as it is written and asked for.
    #[must_use]
    pub fn full_name(&self) -> String {
        let unit = match self.unit {
            Pure => String::new(),
            unit => format!("_{}", unit.word()),
        };
        let end = match self.kind {
            Counter => "_total",
            Gauge | Histogram => "",
            Info => "_info",
        };
        format!("erb_{}{unit}{end}", self.name)
    }

    /// All places of its values, with `*` for the elements of a list.
    #[must_use]
    pub fn places(&self) -> Vec<String> {
        let in_rows = |at: &str, of: &[&str]| of.iter().map(|of| format!("{at}/*{of}")).collect();
        let second = |of: &'static [(&str, &'static str)]| of.iter().map(|(_, at)| *at);
        match self.from {
            At(at) | Thousandths(at) | Word { at, .. } => vec![at.to_owned()],
            Members { at, .. } => vec![format!("{at}/*")],
            Each { of: labels, .. } | Words { labels } => {
                second(labels).map(str::to_owned).collect()
            }
            Rows { at, labels, value } => {
                in_rows(at, &second(labels).chain([value]).collect::<Vec<_>>())
            }
            WordsOfRows { at, labels } => in_rows(at, &second(labels).collect::<Vec<_>>()),
            RowsOfEach { at, row, of, .. } => in_rows(
                at,
                &[row.1].into_iter().chain(second(of)).collect::<Vec<_>>(),
            ),
            Histograms {
                at,
                row,
                sum,
                buckets,
            } => {
                let [below, count] = ["below_ns", "count"].map(|of| format!("{buckets}/*/{of}"));
                in_rows(at, &[row.1, sum, &below, &count])
            }
        }
    }

    /// Its labels.
    #[must_use]
    pub fn labels(&self) -> Vec<&'static str> {
        let first =
            |of: &'static [(&'static str, &str)]| of.iter().map(|(label, _)| *label).collect();
        match self.from {
            At(_) | Thousandths(_) => Vec::new(),
            Each { label, .. } | Members { label, .. } | Word { label, .. } => vec![label],
            RowsOfEach { row, label, .. } => vec![row.0, label],
            Histograms { row, .. } => vec![row.0],
            Rows { labels, .. } | Words { labels } | WordsOfRows { labels, .. } => first(labels),
        }
    }
}

/// The table of metrics for the documents, in Markdown; `json`: the command whose JSON has their places.
#[must_use]
pub fn table(metrics: &[Metric], json: &str) -> String {
    let mut text = format!(
        "| metric | type | labels | what it says | in {json} |\n\
         | --- | --- | --- | --- | --- |\n"
    );
    for metric in metrics {
        let ticked = |words: Vec<String>| {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            words.join(", ")
        };
        let labels = metric.labels().into_iter().map(str::to_owned).collect();
        text += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            metric.full_name(),
            metric.kind.word(),
            ticked(labels),
            metric.help,
            ticked(metric.places()),
        );
    }
    text
}
