// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check mixed`: one connection, GETs of keys that the run does not write between writes of
//! others, strictly one request after the other.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use fastrand::Rng;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::net::{self, Conn};
use crate::resp;

/// A reply that takes longer counts as stuck.
const STALL: Duration = Duration::from_secs(30);
/// Value of the keys that are read: with its header it fits beside the request on veth.
const VALUE_BYTES: usize = 100;
/// Keys that are written.
const WRITE_KEYS: usize = 16;
/// Wrong replies that are spelled out.
const SHOWN_MAX: usize = 10;

/// Arguments of `check mixed`.
#[derive(Debug, Clone, Args)]
pub struct MixedArgs {
    /// The address under test, HOST:PORT or [IPV6]:PORT.
    #[arg(long)]
    pub target: String,
    /// Requests in the measured part.
    #[arg(long, default_value_t = 20_000)]
    pub requests: u64,
    /// Share of requests that write.
    #[arg(long, default_value_t = 0.1)]
    pub set_share: f64,
    /// Write with INCR instead of SET.
    #[arg(long)]
    pub incr: bool,
    /// Keys that are read.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub keys: u32,
    /// Reads of each key before the measured part, so that a cache holds them.
    #[arg(long, default_value_t = 4)]
    pub warm_up: u32,
    /// Milliseconds between warm-up rounds: a cache is filled beside the data path.
    #[arg(long, default_value_t = 200)]
    pub warm_up_pause_ms: u64,
    /// Seed of the order of requests.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Times of one kind of request, microseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Times {
    /// Requests.
    pub count: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Slowest.
    pub max_us: f64,
}

/// What the run saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Seed of the order of requests.
    pub seed: u64,
    /// Local address of the connection.
    pub local: String,
    /// Reads before the measured part (they are GETs too).
    pub warm_up_gets: u64,
    /// Measured GETs.
    pub get: Times,
    /// Measured SETs or INCRs.
    pub write: Times,
    /// Requests per second of the measured part.
    pub requests_per_s: f64,
    /// Segments this end sent again (`tcpi_total_retrans`): none is wanted.
    pub retransmissions: u32,
    /// How many replies were wrong.
    pub wrong_count: u64,
    /// The first of them.
    pub wrong: Vec<String>,
    /// No reply was wrong.
    pub passed: bool,
}

struct Run {
    conn: Conn,
    report: Report,
}

impl Run {
    /// One request; a wrong reply is noted. Returns how long it took.
    fn ask(&mut self, args: &[&[u8]], want: &[u8]) -> Result<Duration> {
        let request = resp::command(args);
        let began = Instant::now();
        self.conn.send(&request)?;
        self.conn.frame()?;
        let took = began.elapsed();
        let got = self.conn.buffered();
        if got != want {
            self.report.wrong_count += 1;
            if self.report.wrong.len() < SHOWN_MAX {
                self.report.wrong.push(format!(
                    "{}: got {}, expected {}",
                    resp::show(&request, 100),
                    resp::show(got, 200),
                    resp::show(want, 200)
                ));
            }
        }
        // Bytes beyond the frame belong to nobody in a strict exchange and were reported.
        let all = got.len();
        self.conn.consume(all);
        Ok(took)
    }
}

fn read_value(key: u32) -> Vec<u8> {
    let mut value = format!("value of key {key};").into_bytes();
    value.resize(VALUE_BYTES, b'v');
    value
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// Nanoseconds up to the stall limit, three digits.
fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(
        1,
        2 * STALL.as_nanos() as u64,
        3,
    )?)
}

fn times(histogram: &Histogram<u64>) -> Times {
    let us = |ns: u64| ns as f64 / 1e3;
    Times {
        count: histogram.len(),
        p50_us: us(histogram.value_at_quantile(0.5)),
        p99_us: us(histogram.value_at_quantile(0.99)),
        max_us: us(histogram.max()),
    }
}

/// Runs the workload.
///
/// # Errors
/// If an argument is wrong or the connection breaks or stands still.
pub fn execute(args: &MixedArgs) -> Result<Report> {
    if !(0.0..=1.0).contains(&args.set_share) {
        bail!("--set-share {}: must be from 0 to 1", args.set_share);
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let conn = Conn::connect(net::resolve(&args.target)?, STALL)?;
    let local = conn.stream().local_addr()?.to_string();
    let mut run = Run {
        conn,
        report: Report {
            seed,
            local,
            ..Report::default()
        },
    };
    let read_keys: Vec<String> = (0..args.keys).map(|k| format!("m{seed:x}:r{k}")).collect();
    let values: Vec<Vec<u8>> = (0..args.keys).map(read_value).collect();
    for (key, value) in read_keys.iter().zip(&values) {
        run.ask(&[b"SET", key.as_bytes(), value], b"+OK\r\n")?;
    }
    for _ in 0..args.warm_up {
        for (key, value) in read_keys.iter().zip(&values) {
            run.ask(&[b"GET", key.as_bytes()], &bulk(value))?;
            run.report.warm_up_gets += 1;
        }
        std::thread::sleep(Duration::from_millis(args.warm_up_pause_ms));
    }
    measured(args, seed, &mut run, &read_keys, &values)?;
    let mut report = run.report;
    report.retransmissions = run.conn.retransmissions()?;
    report.passed = report.wrong_count == 0;
    Ok(report)
}

fn measured(
    args: &MixedArgs,
    seed: u64,
    run: &mut Run,
    read_keys: &[String],
    values: &[Vec<u8>],
) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    let write_keys: Vec<String> = (0..WRITE_KEYS).map(|k| format!("m{seed:x}:w{k}")).collect();
    let mut counters = [0u64; WRITE_KEYS];
    let (mut gets, mut writes) = (histogram()?, histogram()?);
    let began = Instant::now();
    for request in 0..args.requests {
        if rng.f64() < args.set_share {
            let at = rng.usize(..WRITE_KEYS);
            let key = write_keys[at].as_bytes();
            let took = if args.incr {
                counters[at] += 1;
                run.ask(&[b"INCR", key], format!(":{}\r\n", counters[at]).as_bytes())?
            } else {
                run.ask(&[b"SET", key, request.to_string().as_bytes()], b"+OK\r\n")?
            };
            writes.saturating_record(took.as_nanos() as u64);
        } else {
            let at = rng.usize(..read_keys.len());
            let took = run.ask(&[b"GET", read_keys[at].as_bytes()], &bulk(&values[at]))?;
            gets.saturating_record(took.as_nanos() as u64);
        }
    }
    run.report.requests_per_s = args.requests as f64 / began.elapsed().as_secs_f64();
    run.report.get = times(&gets);
    run.report.write = times(&writes);
    Ok(())
}

/// `check mixed`: prints the report; exit code 0 if every reply was right, else 1.
///
/// # Errors
/// As [`execute`].
pub fn run(args: &MixedArgs) -> Result<ExitCode> {
    let report = execute(args)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        for wrong in &report.wrong {
            println!("WRONG seed {}: {wrong}", report.seed);
        }
        for (name, t) in [("GET", &report.get), ("write", &report.write)] {
            println!(
                "{name:>6}: {} requests, p50 {:.1} us, p99 {:.1} us, max {:.1} us",
                t.count, t.p50_us, t.p99_us, t.max_us
            );
        }
        println!(
            "{}: {:.0} requests/s, {} wrong, {} retransmissions, from {}, seed {}",
            if report.passed { "passed" } else { "FAILED" },
            report.requests_per_s,
            report.wrong_count,
            report.retransmissions,
            report.local,
            report.seed
        );
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
