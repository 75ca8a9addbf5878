// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb detach`.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use erb_daemon::{
    Detached, Error, Request, Result, RunDir, detach_without_daemon, enter_base_mount_namespace,
    request,
};
use erb_report::Status;
use serde::Deserialize;

use crate::args::{DetachArgs, Which};
use crate::exit;
use crate::show::mention;

/// Between looks whether the daemon has left.
const LOOK: Duration = Duration::from_millis(20);

/// A daemon that was told to leave by force has this long.
const FORCE_WAIT: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct Answer {
    translated: u32,
}

/// The run directory that is meant.
pub fn run_dir(which: &Which) -> Result<RunDir> {
    match &which.run_dir {
        Some(path) => Ok(RunDir::new(path)),
        None => {
            let (run_dir, others) = RunDir::meant()?;
            if !others.is_empty() {
                let others: Vec<String> = others
                    .iter()
                    .map(|path| path.display().to_string())
                    .collect();
                eprintln!(
                    "this is {}; boosts of other network namespaces: --run-dir {}",
                    run_dir.path().display(),
                    others.join(", ")
                );
            }
            Ok(run_dir)
        }
    }
}

/// Runs the command.
pub fn run(args: &DetachArgs) -> Result<ExitCode> {
    enter_base_mount_namespace()?;
    let run_dir = run_dir(&args.which)?;
    let until = Instant::now() + if args.force { FORCE_WAIT } else { args.wait };
    let answer = request::<Answer>(&run_dir, &Request::Detach { force: args.force });
    let needed = match answer {
        Ok(answer) => {
            if answer.translated > 0 && !args.force {
                mention(&format!(
                    "no more answers; {} connections still need translation, waiting up to {:?}\n",
                    answer.translated, args.wait
                ));
            }
            wait_for_daemon(&run_dir, until, answer.translated)
        }
        Err(Error::NotBoosted(_)) => {
            match detach_without_daemon(&run_dir, args.force, args.wait)? {
                Detached::Gone => 0,
                Detached::Needed(count) => {
                    eprintln!(
                        "error: the daemon is dead and {count} connections still need translation; \
                         programs stay at work: wait and detach again, or use --force"
                    );
                    return Ok(ExitCode::from(exit::STILL_NEEDED));
                }
            }
        }
        Err(error) => return Err(error),
    };
    if needed == 0 {
        mention("detached\n");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "{needed} connections still need translation; the daemon leaves with the last one \
         (--force resets them)"
    );
    Ok(ExitCode::from(exit::STILL_NEEDED))
}

/// Waits until the daemon has left; returns how many connections keep it.
fn wait_for_daemon(run_dir: &RunDir, until: Instant, mut needed: u32) -> u32 {
    while run_dir.is_locked() {
        if Instant::now() >= until {
            if let Ok(status) = request::<Status>(run_dir, &Request::Status) {
                needed = status.connections.translated;
            }
            // A daemon that is about to leave counts as one that is still there.
            return needed.max(1);
        }
        sleep(LOOK);
    }
    0
}
