// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb detach`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use erb_daemon::{
    Detached, Error, Losses, Request, Result, RunDir, detach_without_daemon,
    enter_base_mount_namespace, request, save_undrained,
};
use erb_report::Status;
use serde::Deserialize;

use crate::args::{Which, absolute};
use crate::exit;
use crate::show::mention;
use crate::times::parse_wait;

/// Between looks whether the daemon has left.
const LOOK: Duration = Duration::from_millis(20);

/// A daemon that was told to leave by force has this long.
const FORCE_WAIT: Duration = Duration::from_secs(10);

/// Arguments of `erb detach`.
#[derive(Clone, Debug, Args)]
pub struct DetachArgs {
    /// Which boost.
    #[command(flatten)]
    pub which: Which,
    /// Reset connections that still need translation and leave now.
    #[arg(long)]
    pub force: bool,
    /// Leave although SETs were answered (--mode write-back) that are not in Redis: they are lost.
    #[arg(long)]
    pub discard_undrained: bool,
    /// The same, but they are written to this new file before; `erb journal` shows and applies it. What reaches
    /// Redis within a second is not.
    #[arg(long, value_name = "FILE", value_parser = absolute(), conflicts_with = "discard_undrained")]
    pub undrained_to: Option<PathBuf>,
    /// How long to wait for the last connection, in seconds or as 500ms, 10s, 2m.
    #[arg(long, default_value = "10s", value_parser = parse_wait, value_name = "TIME")]
    pub wait: Duration,
}

#[derive(Deserialize)]
struct Answer {
    translated: u32,
    #[serde(default)]
    undrained: u64,
}

/// What keeps a daemon.
#[derive(Clone, Copy)]
struct Keeps {
    translated: u32,
    undrained: u64,
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
    let force = args.force;
    let discard = args.discard_undrained || is_kept(&run_dir, args)?;
    let answer = request::<Answer>(&run_dir, &Request::Detach { force, discard });
    let keeps = match answer {
        Ok(answer) => {
            if answer.translated > 0 && !args.force {
                mention(&format!(
                    "no more answers; {} connections still need translation, waiting up to {:?}\n",
                    answer.translated, args.wait
                ));
            }
            let keeps = Keeps {
                translated: answer.translated,
                undrained: answer.undrained,
            };
            wait_for_daemon(&run_dir, until, keeps)
        }
        Err(Error::NotBoosted(_)) => {
            let losses = Losses {
                force,
                discard,
                keep_in: args.undrained_to.as_deref(),
            };
            if let Some(code) = run_without_daemon(&run_dir, losses, args)? {
                return Ok(code);
            }
            None
        }
        Err(error) => return Err(error),
    };
    let Some(keeps) = keeps else {
        mention("detached\n");
        return Ok(ExitCode::SUCCESS);
    };
    if keeps.undrained > 0 {
        eprintln!(
            "{} SETs that were answered are not in Redis yet; the daemon leaves when they are \
             (`erb status` says what keeps them, --undrained-to FILE keeps them in a file, --discard-undrained loses \
             them)",
            keeps.undrained
        );
    } else {
        // A daemon that is about to leave counts as one that is still there.
        eprintln!(
            "{} connections still need translation; the daemon leaves with the last one \
             (--force resets them)",
            keeps.translated.max(1)
        );
    }
    Ok(ExitCode::from(exit::STILL_NEEDED))
}

/// The daemon is dead: with which code that ends, if not all is gone now.
fn run_without_daemon(
    run_dir: &RunDir,
    losses: Losses<'_>,
    args: &DetachArgs,
) -> Result<Option<ExitCode>> {
    match detach_without_daemon(run_dir, losses, args.wait)? {
        Detached::Gone { kept } => {
            tell_kept(args, kept);
            return Ok(None);
        }
        Detached::Undrained(count) => eprintln!(
            "error: the daemon is dead and {count} SETs that were answered are not in Redis; \
             programs stay at work: `erb boost` with the same arguments brings them there, \
             --undrained-to FILE keeps them in a file, --discard-undrained loses them"
        ),
        Detached::Needed(count) => eprintln!(
            "error: the daemon is dead and {count} connections still need translation; \
             programs stay at work: wait and detach again, or use --force"
        ),
    }
    Ok(Some(ExitCode::from(exit::STILL_NEEDED)))
}

/// Whether what is not in Redis is in a file by now, as was asked for, and may go.
fn is_kept(run_dir: &RunDir, args: &DetachArgs) -> Result<bool> {
    let Some(path) = &args.undrained_to else {
        return Ok(false);
    };
    if path.exists() {
        let there = format!("{} is there already", path.display());
        return Err(Error::Usage(there));
    }
    // From here on nothing is answered.
    let (force, discard) = (args.force, false);
    match request::<Answer>(run_dir, &Request::Detach { force, discard }) {
        Ok(_) => {}
        // It has left already, or is dead: then the file is made once nothing else is in the way.
        Err(Error::NotBoosted(_)) => return Ok(false),
        Err(error) => return Err(error),
    }
    let count = match save_undrained(run_dir, path) {
        // It has left already: all was in Redis.
        Err(Error::NotBoosted(_)) if !run_dir.is_locked() => return Ok(false),
        saved => saved?,
    };
    tell_kept(args, count);
    Ok(count > 0)
}

/// What became of what was to be kept, if it was to be.
fn tell_kept(args: &DetachArgs, count: u64) {
    let Some(path) = &args.undrained_to else {
        return;
    };
    match count {
        0 => mention("all that was answered is in Redis: there is no file\n"),
        count => mention(&format!(
            "{count} SETs that are not in Redis are in {}: `erb journal apply` brings them there\n",
            path.display()
        )),
    }
}

/// Waits until the daemon has left; none: it has, else what keeps it.
fn wait_for_daemon(run_dir: &RunDir, until: Instant, mut keeps: Keeps) -> Option<Keeps> {
    while run_dir.is_locked() {
        if Instant::now() >= until {
            if let Ok(status) = request::<Status>(run_dir, &Request::Status) {
                keeps = Keeps {
                    translated: status.connections.translated,
                    undrained: status.writes.waiting,
                };
            }
            return Some(keeps);
        }
        sleep(LOOK);
    }
    None
}
