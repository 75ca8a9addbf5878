// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb lab`, `bench`, `check` and `demo`: the program `erb-lab`, found beside this one, takes over.
//!
//! What an operator runs and what tests and measures stay two programs that way: `erb` carries no load
//! generator, and the tools know of it what its command line says.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::exit;

/// The other program.
const PROGRAM: &str = "erb-lab";

/// Shown below `erb --help`.
pub const HELP: &str = "\
Tools (of the program erb-lab, which lies beside erb):
  lab     A laboratory in network namespaces
  bench   Measure what a request costs
  check   Check that a Redis address shows what Redis alone could have shown
  demo    Show Redis alone beside Redis boosted";

/// Becomes that program, with the same arguments; returns only if it cannot be had.
pub fn run() -> ExitCode {
    let mut path = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => {
            eprintln!(
                "error: could not find this program's file, beside which {PROGRAM} is: {error}"
            );
            return ExitCode::from(exit::NO_TOOLS);
        }
    };
    path.set_file_name(PROGRAM);
    let error = Command::new(&path).args(std::env::args_os().skip(1)).exec();
    if error.kind() == ErrorKind::NotFound {
        eprintln!(
            "error: {} is not there; lab, bench, check and demo are its: build it by `cargo build \
             --release -p erb-tools`, or put it beside erb",
            path.display()
        );
    } else {
        eprintln!("error: could not start {}: {error}", path.display());
    }
    ExitCode::from(exit::NO_TOOLS)
}
