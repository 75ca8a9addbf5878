// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb check`, with ERB's daemon in the labs of the checks that make some.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use erb_datapath::Consumption;

use crate::args::Check;
use crate::lab;

/// Of a check that could not be carried out, which is neither passed nor failed.
const NOT_CARRIED_OUT: u8 = 2;

/// The words that lead to the lab's forwarder.
const FORWARD_WORDS: &[&str] = &["lab", "__forward"];

/// The table of connections of a lab's boost.
struct Entries(Consumption);

impl erb_suite::Witness for Entries {
    fn look(&self, client: SocketAddr, server: SocketAddr) -> Option<erb_suite::Look> {
        let entry = self.0.of(client, server).ok().flatten()?;
        Some(erb_suite::Look {
            consumed: entry.bytes,
            bypass: entry.bypass,
        })
    }
}

/// Runs `erb check ...`.
pub fn run(check: &Check) -> ExitCode {
    let done = match check {
        Check::Address(check) => erb_check::run(check),
        Check::Suite(args) => {
            let host = erb_suite::Host {
                witness: &|lab| Ok(Arc::new(Entries(Consumption::open(&lab.bpf_dir)?))),
                booster: &lab::DaemonBooster,
                forward_words: FORWARD_WORDS,
            };
            erb_suite::run(args, &host)
        }
        Check::Hostile(args) => {
            let host = erb_hostile::Host {
                booster: &lab::DaemonBooster,
                forward_words: FORWARD_WORDS,
            };
            erb_hostile::run(args, &host)
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("erb check: {error:#}");
        ExitCode::from(NOT_CARRIED_OUT)
    })
}
