// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures what one request costs the server's processor.
//!
//! A closed-loop load generator in XDP sits on the client's end of a veth pair; the server (Redis
//! alone, Redis boosted by ERB, or a bare XDP responder) has the other end and a core of its own.
//! User space only opens the connections, starts and stops the loops and reads counters, so that
//! two cores are enough to see what the fast path can do.
//!
//! # Layout
//! - [`args`]: command line; [`run`] is its entry.
//! - `capacity`: which servers, which runs in which order; `instance`: one server with namespaces,
//!   connections and pinned threads; `generator`, `echo`: the BPF programs' user-space halves.
//! - `work`: what requests ask for and what must be answered, as checked options and as bytes.
//! - `ordinary`: ordinary clients over `lo` or a veth, all hits; `fixed`: what they ask;
//!   `ordinary_report`.
//! - `journal`: SETs that are answered and kept on a disk, by who writes them there.
//! - `drain`: made-up writes brought to a Redis, beside SETs by ordinary clients.
//! - `send`: what sending a file's bytes costs, by way; `send/sink`: a far end that copies nothing.
//! - `kv`: the storage node beside RocksDB and the disk, its folder has the parts.
//! - `serve`: `erb serve` beside nginx, its folder has the parts.
//! - `workload`: the same clients with a user's own traffic, its folder has the parts.
//! - Of both: `stage`: a server that ordinary clients reach; `load`: such a client; `crew`: several
//!   of them; `pace`: when they ask; `tally`: what they saw.
//! - `boosted`: ERB, by its command line.
//! - `watched`: who watches ERB meanwhile.
//! - `report`: JSON and table; `stats`: medians.
//!
//! Only `workload` at a fixed rate is a latency benchmark: with so many requests in flight as there are
//! connections, the time of one says little.

#![warn(missing_docs)]

pub mod args;
mod boosted;
mod capacity;
mod cputime;
mod crew;
pub mod drain;
mod echo;
mod fixed;
mod generator;
mod instance;
mod interrupt;
pub mod journal;
pub mod kv;
mod load;
mod mirror;
mod netns;
mod ordinary;
mod ordinary_report;
mod pace;
mod packet;
mod redis_server;
mod report;
mod send;
mod serve;
mod stage;
mod stats;
mod tally;
mod watched;
mod work;
pub mod workload;

use anyhow::Result;
use erb_lab::Erb;
use serde::Serialize;

use crate::args::{BenchArgs, BenchCommand};

pub use crate::report::{CapacityReport, Machine, MissWithFills, Run, ServerReport};
pub use crate::stats::{Quartiles, Spread};
pub use crate::work::CACHED_BYTES_MAX;

/// The compiled BPF objects, by name.
#[must_use]
pub fn objects() -> [(&'static str, &'static [u8]); 2] {
    [("echo", echo::object()), ("generator", generator::object())]
}

/// Runs `erb bench ...` and prints its result; `--server erb` is boosted by `erb`.
///
/// Needs root. Namespaces and processes it makes are gone when it returns, also on error, SIGINT
/// and SIGTERM (while it runs, these two signals only make it return early).
pub fn run(args: &BenchArgs, erb: &Erb) -> Result<()> {
    let text = match &args.command {
        BenchCommand::Capacity(capacity) => {
            let report = measure_capacity(capacity, erb)?;
            if capacity.json {
                pretty(&report::to_json(&report)?)?
            } else {
                report::to_table(&report)
            }
        }
        BenchCommand::Clients(clients) => {
            let report = ordinary::measure(clients, erb)?;
            if clients.json {
                pretty(&report)?
            } else {
                report.to_table()
            }
        }
        BenchCommand::Send(send) => {
            let report = send::measure(send)?;
            if send.json {
                pretty(&report)?
            } else {
                report.to_table()
            }
        }
        BenchCommand::Serve(serve) => {
            let report = serve::measure(serve, erb)?;
            if serve.json {
                pretty(&report)?
            } else {
                report.to_table()
            }
        }
        BenchCommand::Workload(workload) => {
            let report = workload::measure(workload, erb)?;
            if workload.json {
                pretty(&report)?
            } else {
                report.to_table()
            }
        }
        BenchCommand::Drain(drain) => {
            let report = drain::measure(drain, erb)?;
            if drain.json {
                pretty(&report)?
            } else {
                report.to_table()
            }
        }
        BenchCommand::Journal(journal) => {
            let report = journal::measure(journal, erb)?;
            if journal.json {
                pretty(&report)?
            } else {
                report.to_table()
            }
        }
        BenchCommand::Kv(args) => {
            let report = kv::measure(args)?;
            if args.json {
                pretty(&report)?
            } else {
                report.to_table()
            }
        }
    };
    print!("{text}");
    Ok(())
}

fn pretty(report: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// Measures as [`run`] does and returns the numbers instead of printing them.
pub fn measure_capacity(args: &args::CapacityArgs, erb: &Erb) -> Result<CapacityReport> {
    capacity::measure(args, erb)
}
