// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb status`.

use std::process::ExitCode;

use erb_daemon::{
    Error, Request, Result, RunDir, conns_without_daemon, enter_base_mount_namespace, request,
    status_without_daemon,
};
use erb_report::{ConnLine, Status};

use crate::watch_args::StatusArgs;
use crate::{detach, show, show_lists};

/// The daemon's report; without a daemon what can be told of what is at work.
pub fn read(run_dir: &RunDir) -> Result<Status> {
    match request(run_dir, &Request::Status) {
        Err(Error::NotBoosted(_)) => status_without_daemon(run_dir),
        found => found,
    }
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<ExitCode> {
    enter_base_mount_namespace()?;
    let run_dir = detach::run_dir(&args.which)?;
    if args.conns {
        let lines: Vec<ConnLine> = match request(&run_dir, &Request::Conns) {
            Err(Error::NotBoosted(_)) => conns_without_daemon(&run_dir)?,
            found => found?,
        };
        if args.json {
            show::json(&lines)?
        } else {
            show_lists::conns(&lines)
        }
        return Ok(ExitCode::SUCCESS);
    }
    let status = read(&run_dir)?;
    match (args.commands, args.json) {
        (true, true) => show::json(&status.commands)?,
        (true, false) => show_lists::commands(&status.commands),
        (false, true) => show::json(&status)?,
        (false, false) => show::status(&status),
    }
    Ok(ExitCode::SUCCESS)
}
