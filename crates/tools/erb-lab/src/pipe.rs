// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reader that has gone (`erb lab down | head`) ends a command quietly, as it ends other tools.
//!
//! `println!` panics then. Not by SIGPIPE, which would end the process where it stands: the panic
//! unwinds, so what a command has made goes with it.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

/// What a shell says of a program that SIGPIPE has ended.
const CLOSED_PIPE: u8 = 128 + 13;

/// How the panic of `println!` begins.
const SAID: &str = "failed printing to stdout: Broken pipe";

/// Runs a command.
pub fn quietly(command: impl FnOnce() -> ExitCode) -> ExitCode {
    let loudly = panic::take_hook();
    panic::set_hook(Box::new(move |about| {
        if !is_closed_pipe(about.payload()) {
            loudly(about);
        }
    }));
    match panic::catch_unwind(AssertUnwindSafe(command)) {
        Ok(code) => code,
        Err(payload) if is_closed_pipe(&*payload) => ExitCode::from(CLOSED_PIPE),
        Err(payload) => panic::resume_unwind(payload),
    }
}

fn is_closed_pipe(payload: &(dyn Any + Send)) -> bool {
    payload
        .downcast_ref::<String>()
        .is_some_and(|text| text.starts_with(SAID))
}
