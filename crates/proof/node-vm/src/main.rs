// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The storage node in a machine that is emulated, and what its power takes of SETs that ERB has answered in Redis's place.
//!
//! - `linux`, `initiator`: what Linux's own initiator does with it, beside the node's own client (`erb lab vm node`).
//! - `drive`, `power`, `book`, `inside`: cuts of power, with a drive that loses its cache (`erb lab vm power`).
//! - `writes`, `writes_load`, `writes_judge`, `writes_inside`: the same under a boosted Redis and its journal (`erb lab vm writes`).
//! - `guest`: a guest that is told things over its network.

mod book;
mod drive;
mod guest;
mod initiator;
mod inside;
mod linux;
mod power;
mod writes;
mod writes_inside;
mod writes_judge;
mod writes_load;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checks in an emulated machine.
#[derive(Debug, Parser)]
#[command(name = "erb-node-vm")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Checks Linux's own initiator beside the node's own client, as root in the guest.
    Initiator(initiator::Initiator),
    /// Serves the power test, as root in the guest.
    Inside(inside::Inside),
    /// Cuts the power of guests that it boots, under load.
    Power(power::Power),
    /// The same, under a Redis whose SETs are answered in its place.
    Writes(writes::Writes),
    /// Serves that test, as root in the guest.
    WritesInside(writes_inside::WritesInside),
}

fn main() -> ExitCode {
    let ended = match Command::parse().what {
        What::Initiator(args) => initiator::run(&args),
        What::Inside(args) => inside::run(&args),
        What::Power(args) => power::run(args),
        What::Writes(args) => writes::run(&args),
        What::WritesInside(args) => writes_inside::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
