// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures what one request costs the server's processor.
//!
//! A closed-loop load generator in XDP sits on the client's end of a veth pair; the server (Redis
//! alone, Redis boosted by ERB, or a bare XDP responder) has the other end and a core of its own.
//! User space only opens the connections, starts and stops the loops and reads counters, so that
//! two cores are enough to see what the fast path can do. [`clients`] measures the same servers with
//! ordinary clients.
//!
//! # Layout
//! - [`args`]: command line; [`run`] is its entry.
//! - `capacity`: which servers, which runs in which order; `instance`: one server with namespaces,
//!   connections and pinned threads; `generator`, `echo`: the BPF programs' user-space halves.
//! - `work`: what requests ask for and what must be answered, as checked options and as bytes.
//! - `ordinary`: ordinary clients over `lo` or a veth; `load`: such a client; `ordinary_report`.
//! - `boosted`: ERB, by its command line.
//! - `report`: JSON and table; `stats`: medians.
//!
//! It is not a latency benchmark: with 200 connections in flight the time per request says little.

#![warn(missing_docs)]

pub mod args;
mod boosted;
mod capacity;
pub mod clients;
pub mod cputime;
mod echo;
mod generator;
mod instance;
mod interrupt;
mod load;
mod mirror;
mod netns;
mod ordinary;
mod ordinary_report;
mod packet;
mod redis_server;
mod report;
mod stats;
mod work;

use anyhow::Result;
use erb_lab::Erb;

use crate::args::{BenchArgs, BenchCommand};

pub use crate::report::{CapacityReport, MissWithFills, Run, ServerReport};

/// Runs `erb bench ...` and prints its result; `--server erb` is boosted by `erb`.
///
/// Needs root. Namespaces and processes it makes are gone when it returns, also on error, SIGINT
/// and SIGTERM (while it runs, these two signals only make it return early).
pub fn run(args: &BenchArgs, erb: &Erb) -> Result<()> {
    match &args.command {
        BenchCommand::Capacity(capacity) => {
            let report = measure_capacity(capacity, erb)?;
            if capacity.json {
                println!(
                    "{}",
                    serde_json::to_string_pretty(&report::to_json(&report)?)?
                );
            } else {
                print!("{}", report::to_table(&report));
            }
            Ok(())
        }
        BenchCommand::Clients(clients) => {
            let report = ordinary::measure(clients, erb)?;
            if clients.json {
                println!("{}", serde_json::to_string_pretty(&report)?);
            } else {
                print!("{}", report.to_table());
            }
            Ok(())
        }
    }
}

/// Measures as [`run`] does and returns the numbers instead of printing them.
pub fn measure_capacity(args: &args::CapacityArgs, erb: &Erb) -> Result<CapacityReport> {
    capacity::measure(args, erb)
}
