// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the demonstration found: as text for people, as JSON for programs.

use comfy_table::{CellAlignment, Table, presets};
use erb_bench::ServerReport;
use erb_bench::clients::ClientRun;
use serde::Serialize;
use serde_json::Value;

/// Label of the rows that `erb bench capacity` gives.
const CAPACITY: &str = "capacity: generator in XDP, 200 connections";

/// One client against one server.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Client program and its settings.
    pub client: String,
    /// What answered.
    pub server: String,
    /// Observed.
    pub requests_per_s: f64,
    /// Median latency, milliseconds; none for the generator.
    pub p50_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// Receive thread, Redis and ERB's daemon together.
    pub server_cpu_ns_per_request: f64,
    /// Server time of Redis alone under the same client by this row's; set by [`Report::new`].
    pub per_core_by_redis: Option<f64>,
    /// Share of the GETs that Redis did not see; none without ERB.
    pub hit_ratio: Option<f64>,
}

impl Row {
    /// A client's run.
    pub fn of_client(client: &str, server: &str, run: &ClientRun, hit_ratio: Option<f64>) -> Self {
        Self {
            client: client.to_owned(),
            server: server.to_owned(),
            requests_per_s: run.requests_per_s,
            p50_ms: Some(run.p50_ms),
            p99_ms: Some(run.p99_ms),
            server_cpu_ns_per_request: run.server_cpu_ns_per_request,
            per_core_by_redis: None,
            hit_ratio,
        }
    }

    /// A server of the capacity measurement.
    pub fn of_capacity(report: &ServerReport) -> Self {
        let server = match report.server {
            "redis" => "Redis alone",
            "erb" => "boosted",
            _ => "bare XDP responder (the machine's limit)",
        };
        Self {
            client: CAPACITY.to_owned(),
            server: server.to_owned(),
            requests_per_s: report.requests_per_s,
            p50_ms: None,
            p99_ms: None,
            server_cpu_ns_per_request: report.server_cpu_ns_per_request,
            per_core_by_redis: None,
            hit_ratio: report.hit_ratio,
        }
    }
}

/// The whole result.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Kernel, processor, Redis.
    pub machine: Value,
    /// Rows of one client follow each other, Redis alone first.
    pub rows: Vec<Row>,
}

impl Report {
    /// Compares the rows of each client with its first.
    pub fn new(machine: impl Serialize, mut rows: Vec<Row>) -> Self {
        let mut alone: Option<(String, f64)> = None;
        for row in &mut rows {
            let time = row.server_cpu_ns_per_request;
            match &alone {
                Some((client, redis)) if *client == row.client => {
                    row.per_core_by_redis = Some(redis / time);
                }
                _ => alone = Some((row.client.clone(), time)),
            }
        }
        Self {
            machine: serde_json::to_value(machine).unwrap_or_default(),
            rows,
        }
    }

    /// The table, what its columns mean, and what to do next.
    pub fn to_text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "GET of 100 bytes",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "server ns/request",
            "per core",
            "hit ratio",
        ]);
        let mut client = "";
        for row in &self.rows {
            if row.client != client {
                client = &row.client;
                table.add_row([client]);
            }
            table.add_row(cells(row));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let fact = |name: &str| self.machine.get(name).map_or_else(String::new, text);
        format!(
            "{table}\n{}, {} processors, Linux {}\n{}\n\n{LEGEND}\n{NEXT}",
            fact("processor"),
            fact("cores"),
            fact("kernel"),
            fact("redis"),
        )
    }
}

const LEGEND: &str = "\
server ns/request: processor time of the receive thread, Redis and ERB's daemon. per core: that of
Redis alone by that of this row. hit ratio: share of the GETs that Redis did not see.
Server and clients have one processor each. Ordinary clients are slower than the server: between
their packets it sleeps, and waking up is part of its time. Under the generator it is busy: that is
the comparison of servers.
";

const NEXT: &str = "\
How to go on:
  erb lab up --mode read                                a lab of your own, boosted
  erb lab exec client -- redis-cli -h 10.77.0.2         speak to it; erb lab down removes it
  erb bench capacity --server redis,erb,echo            the full comparison, seven runs each
  sudo erb boost --dev eth0 --redis 127.0.0.1:6379      boost your own Redis; then erb status and
                                                        erb detach (README, Boost your own Redis)
(erb is target/release/erb)
";

/// A JSON string without its quotes, anything else as it is.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn cells(row: &Row) -> [String; 7] {
    let or_dash = |number: Option<f64>, digits: usize| {
        number.map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
    };
    let per_core = row
        .per_core_by_redis
        .map_or_else(|| "1 x".to_owned(), |ratio| format!("{ratio:.1} x"));
    [
        format!("  {}", row.server),
        format!("{:.0}", row.requests_per_s),
        or_dash(row.p50_ms, 3),
        or_dash(row.p99_ms, 3),
        format!("{:.0}", row.server_cpu_ns_per_request),
        per_core,
        or_dash(row.hit_ratio, 4),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(client: &str, server: &str, time: f64, hit_ratio: Option<f64>) -> Row {
        let run = ClientRun {
            requests_per_s: 123_456.7,
            p50_ms: 0.25,
            p99_ms: 0.5,
            server_cpu_ns_per_request: time,
        };
        Row::of_client(client, server, &run, hit_ratio)
    }

    #[test]
    fn rows_are_compared_with_redis_under_the_same_client() {
        let rows = vec![
            row("a", "Redis alone", 6000.0, None),
            row("a", "boosted", 500.0, Some(0.999)),
            row("b", "Redis alone", 1000.0, None),
            row("b", "boosted", 250.0, Some(1.0)),
        ];
        let report = Report::new(serde_json::json!({ "processor": "some", "cores": 2 }), rows);
        let ratios: Vec<_> = report
            .rows
            .iter()
            .map(|row| row.per_core_by_redis)
            .collect();
        assert_eq!(ratios, [None, Some(12.0), None, Some(4.0)]);
        let text = report.to_text();
        for expected in ["123457", "0.250", "12.0 x", "0.9990", "some, 2 processors"] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
    }
}
