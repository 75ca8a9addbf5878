// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb lab`, with ERB's daemon for `--mode read`.

use std::process::{Command, ExitCode, Output};

use anyhow::{Context, Result, bail};
use erb_lab::{LabArgs, LabState, Process};

use crate::exit;

/// Cache of a lab: small enough to be filled in a test.
const CACHE_SIZE: &str = "64M";
/// Connections of a lab, whatever its Redis is set to.
const CONNECTIONS: &str = "16384";

/// Runs `erb lab ...`.
pub fn run(args: LabArgs) -> ExitCode {
    let json = args.json();
    match erb_lab::run(args, &DaemonBooster, &["lab", "__forward"]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if json {
                println!("{}", serde_json::json!({ "error": format!("{error:#}") }));
            }
            eprintln!("error: {error:#}");
            ExitCode::from(exit::FAILED)
        }
    }
}

/// Boosts a lab by this very program, as a user would.
pub struct DaemonBooster;

impl erb_lab::Booster for DaemonBooster {
    fn boost(&self, lab: &LabState) -> Result<Vec<Process>> {
        let redis = format!("{}:{}", lab.server.ipv4, lab.redis_port);
        let run_dir = lab.run_dir.display().to_string();
        let output = erb_in(
            &lab.server.namespace,
            &[
                "boost",
                "--dev",
                &lab.server.device,
                "--redis",
                &redis,
                "--run-dir",
                &run_dir,
                "--cache-size",
                CACHE_SIZE,
                "--connections",
                CONNECTIONS,
            ],
        )?;
        check(&output, "boost")?;
        let status = erb_in(
            &lab.server.namespace,
            &["status", "--json", "--run-dir", &run_dir],
        )?;
        check(&status, "status")?;
        let status: erb_daemon::Status =
            serde_json::from_slice(&status.stdout).context("`erb status` printed no status")?;
        Ok(vec![Process::describe("erb", status.pid)?])
    }

    fn unboost(&self, lab: &LabState) -> Result<()> {
        let run_dir = lab.run_dir.display().to_string();
        let output = erb_in(
            &lab.server.namespace,
            &["detach", "--force", "--run-dir", &run_dir],
        )?;
        // A boost that never began has nothing to detach.
        let nothing = i32::from(exit::code(&erb_daemon::Error::NotBoosted(
            lab.run_dir.clone(),
        )));
        if output.status.code() == Some(nothing) {
            Ok(())
        } else {
            check(&output, "detach")
        }
    }
}

/// Runs this program in a named network namespace.
pub fn erb_in(namespace: &str, arguments: &[&str]) -> Result<Output> {
    let program = std::env::current_exe().context("cannot tell the path of this program")?;
    Command::new("ip")
        .args(["netns", "exec", namespace])
        .arg(program)
        .args(arguments)
        .output()
        .context("cannot run `ip netns exec`")
}

/// An error with what the program said, unless it succeeded.
pub fn check(output: &Output, what: &str) -> Result<()> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("erb {what} failed ({}): {}", output.status, said.trim());
    }
    Ok(())
}
