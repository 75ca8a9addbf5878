// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of ordinary clients: redis-benchmark and a client library (redis-rs), for the table that
//! `./run` prints. Both block the calling thread until they are done.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use erb_lab::netns;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::cputime;
use crate::fixed::draw;
use crate::work::{key, value};

/// More threads than this measure the scheduler of the client's machine, nothing else.
const LIBRARY_CONNS_MAX: usize = 256;
/// Latencies are kept to three digits from 1 us on.
const LATENCY_DIGITS: u8 = 3;

/// What one client run showed.
#[derive(Debug, Clone, Serialize)]
pub struct ClientRun {
    /// Requests answered per second.
    pub requests_per_s: f64,
    /// Median time from request to reply, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the same.
    pub p99_ms: f64,
    /// Processor time of the given server processes per request, in nanoseconds. The client's start
    /// and, without threaded NAPI, the server's softirq time are not in it.
    pub server_cpu_ns_per_request: f64,
}

/// Commands that both clients can send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientOp {
    /// GET of `key:%012d`, uniform.
    Get,
    /// SET of the same keys, 100 bytes.
    Set,
}

/// What a client run needs to know.
#[derive(Debug, Clone)]
pub struct ClientLoad<'a> {
    /// Named namespace to run in; none: the caller's.
    pub netns: Option<&'a str>,
    /// The server.
    pub address: SocketAddr,
    /// Command.
    pub op: ClientOp,
    /// Connections.
    pub conns: usize,
    /// Keys, drawn uniformly.
    pub keys: u32,
    /// Processes (or kernel threads) whose time counts as the server's: redis-server, the
    /// device's NAPI thread, ERB's daemon.
    pub server_pids: &'a [u32],
}

/// Runs redis-benchmark with `requests` requests, `pipeline` of them in one go per connection.
pub fn redis_benchmark(load: &ClientLoad<'_>, requests: u64, pipeline: u32) -> Result<ClientRun> {
    ensure!(requests > 0, "redis-benchmark needs at least one request");
    let mut command = match load.netns {
        Some(namespace) => netns::command(namespace, "redis-benchmark")?,
        None => Command::new("redis-benchmark"),
    };
    let test = match load.op {
        ClientOp::Get => "get",
        ClientOp::Set => "set",
    };
    command.args([
        "-h",
        &load.address.ip().to_string(),
        "-p",
        &load.address.port().to_string(),
    ]);
    command.args(["-t", test, "-d", "100", "--csv"]);
    command.args(["-c", &load.conns.to_string(), "-n", &requests.to_string()]);
    command.args(["-P", &pipeline.to_string(), "-r", &load.keys.to_string()]);
    let before = cputime::of_processes(load.server_pids)?;
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("could not run redis-benchmark")?;
    let after = cputime::of_processes(load.server_pids)?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "redis-benchmark failed ({}): {}{text}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let mut run = parse_csv(&text).with_context(|| format!("redis-benchmark said {text:?}"))?;
    run.server_cpu_ns_per_request = after.saturating_sub(before) as f64 / requests as f64;
    Ok(run)
}

/// Runs redis-rs: one thread and connection each, one request at a time, for `time`.
///
/// GETs must be answered with the value that [`crate::clients::load_keys`] set, else it fails.
pub fn redis_rs(load: &ClientLoad<'_>, time: Duration) -> Result<ClientRun> {
    ensure!(
        (1..=LIBRARY_CONNS_MAX).contains(&load.conns),
        "{} connections; redis-rs runs take 1 to {LIBRARY_CONNS_MAX}",
        load.conns
    );
    let mut connections = Vec::new();
    for _ in 0..load.conns {
        connections.push(connect(load)?);
    }
    let before = cputime::of_processes(load.server_pids)?;
    let start = Instant::now();
    let end = start + time;
    let histograms: Vec<Result<Histogram<u64>>> = thread::scope(|scope| {
        let threads: Vec<_> = (1u32..)
            .zip(connections)
            .map(|(seed, connection)| scope.spawn(move || drive(load, connection, seed, end)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("a client panicked")))
            })
            .collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let after = cputime::of_processes(load.server_pids)?;
    let mut all = Histogram::<u64>::new(LATENCY_DIGITS)?;
    for histogram in histograms {
        all.add(histogram?)?;
    }
    ensure!(!all.is_empty(), "no request was answered in {seconds:.1} s");
    Ok(ClientRun {
        requests_per_s: all.len() as f64 / seconds,
        p50_ms: all.value_at_quantile(0.5) as f64 / 1e6,
        p99_ms: all.value_at_quantile(0.99) as f64 / 1e6,
        server_cpu_ns_per_request: after.saturating_sub(before) as f64 / all.len() as f64,
    })
}

/// SETs the keys that both clients read, values of 100 bytes, over one pipelined connection.
pub fn load_keys(load: &ClientLoad<'_>) -> Result<()> {
    let mut connection = connect(load)?;
    for first in (0..load.keys).step_by(1000) {
        let mut pipe = redis::pipe();
        for index in first..load.keys.min(first + 1000) {
            pipe.set(key(index), value(index, 100)).ignore();
        }
        pipe.query::<()>(&mut connection)
            .context("could not load keys")?;
    }
    Ok(())
}

fn connect(load: &ClientLoad<'_>) -> Result<redis::Connection> {
    let open = || {
        let client = redis::Client::open(format!("redis://{}/", load.address))?;
        client
            .get_connection()
            .with_context(|| format!("redis-rs could not connect to {}", load.address))
    };
    match load.netns {
        Some(name) => netns::run_in(name, open),
        None => open(),
    }
}

/// One connection's loop; latencies in nanoseconds.
fn drive(
    load: &ClientLoad<'_>,
    mut connection: redis::Connection,
    seed: u32,
    end: Instant,
) -> Result<Histogram<u64>> {
    let mut histogram = Histogram::new(LATENCY_DIGITS)?;
    let mut random = seed.wrapping_mul(0x9e37_79b9) | 1;
    loop {
        let index = draw(&mut random, load.keys);
        let start = Instant::now();
        if start >= end {
            return Ok(histogram);
        }
        request(load.op, &mut connection, index)?;
        histogram.record(start.elapsed().as_nanos() as u64)?;
    }
}

fn request(op: ClientOp, connection: &mut redis::Connection, index: u32) -> Result<()> {
    match op {
        ClientOp::Get => {
            let got: Option<String> = redis::cmd("GET").arg(key(index)).query(connection)?;
            ensure!(
                got.as_deref() == Some(value(index, 100).as_str()),
                "GET {} gave {got:?}; were the keys loaded?",
                key(index)
            );
        }
        ClientOp::Set => {
            let value = value(index, 100);
            redis::cmd("SET")
                .arg(key(index))
                .arg(value)
                .query::<()>(connection)?;
        }
    }
    Ok(())
}

/// `redis-benchmark --csv`: a line of names, then one line per test; all fields quoted.
fn parse_csv(text: &str) -> Option<ClientRun> {
    let mut lines = text.lines().filter(|line| line.starts_with('"'));
    let names: Vec<&str> = lines
        .next()?
        .split(',')
        .map(|field| field.trim_matches('"'))
        .collect();
    // The test's name may hold commas; the figures do not.
    let fields: Vec<&str> = lines.next()?.rsplitn(names.len(), ',').collect();
    let field = |name: &str| -> Option<f64> {
        let from_end = names
            .iter()
            .rev()
            .position(|candidate| *candidate == name)?;
        fields.get(from_end)?.trim_matches('"').parse().ok()
    };
    Some(ClientRun {
        requests_per_s: field("rps")?,
        p50_ms: field("p50_latency_ms")?,
        p99_ms: field("p99_latency_ms")?,
        server_cpu_ns_per_request: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_of_redis_7() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"GET\",\"131578.95\",\"0.202\",\"0.080\",\"0.199\",\"0.231\",\"0.287\",\"0.847\"\n";
        let run = parse_csv(text).unwrap();
        assert!((run.requests_per_s - 131_578.95).abs() < 0.01);
        assert!((run.p50_ms - 0.199).abs() < 1e-9 && (run.p99_ms - 0.287).abs() < 1e-9);
        assert!(parse_csv("ERROR: no\n").is_none());
    }
}
