// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `./test` does beside running tests: formats, the package, the kernel module, other kernels, sanitizers,
//! clippy. Each is a function of `scripts/step`, so that it can be tried by hand: `scripts/step clippy`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result};
use erb_steady::SKIPPED;
use nix::unistd::Pid;

use crate::priority::IDLE;
use crate::run::in_a_session;

/// What `scripts/step` ends with if the step cannot be done on this system; the reason is in a line that
/// begins with "skipped: ".
const CANNOT: i32 = 77;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// As it should.
    Passed,
    /// It complains.
    Failed,
    /// It cannot be done here, and why.
    Skipped(String),
}

/// A step that was done.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name, for people.
    pub name: String,
    /// How it ended.
    pub fate: Fate,
    /// How long it took.
    pub seconds: u64,
}

/// Does a step that is a function of this process.
pub fn timed(name: &str, step: impl FnOnce() -> Result<bool>) -> Step {
    println!("\n== {name}");
    let began = Instant::now();
    let fate = match step() {
        Ok(true) => Fate::Passed,
        Ok(false) => Fate::Failed,
        Err(error) => {
            eprintln!("{error:#}");
            Fate::Failed
        }
    };
    Step {
        name: name.to_owned(),
        fate,
        seconds: began.elapsed().as_secs(),
    }
}

/// Does `scripts/step WORD` and prints what it says when it has ended. `idle`: at idle priority, until
/// that ends for all.
///
/// # Errors
/// If the shell cannot be started.
pub fn script(root: &Path, name: &str, word: &str, idle: bool) -> Result<Step> {
    let began = Instant::now();
    let mut command = if idle {
        IDLE.command()
    } else {
        Command::new("env")
    };
    command.args(["bash", "scripts/step", word]);
    command.current_dir(root).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    in_a_session(&mut command);
    let child = command.spawn().context("cannot run bash")?;
    let session = Pid::from_raw(i32::try_from(child.id()).context("a process id")?);
    if idle {
        IDLE.started(session);
    }
    let output = child.wait_with_output().context("bash")?;
    IDLE.gone(session);
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    let seconds = began.elapsed().as_secs();
    println!("\n== {name} ({seconds} s)\n{said}");
    Ok(Step {
        name: name.to_owned(),
        fate: fate(output.status.code(), &said),
        seconds,
    })
}

fn fate(code: Option<i32>, said: &str) -> Fate {
    let why = said
        .lines()
        .filter_map(|line| line.strip_prefix(SKIPPED))
        .next_back();
    match (code, why) {
        (Some(0), _) => Fate::Passed,
        // One that gives no reason has failed.
        (Some(CANNOT), Some(why)) => Fate::Skipped(why.to_owned()),
        _ => Fate::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_step_with_a_reason_is_skipped() {
        assert_eq!(fate(Some(0), ""), Fate::Passed);
        assert_eq!(
            fate(Some(77), "a\nskipped: no QEMU\n"),
            Fate::Skipped("no QEMU".to_owned())
        );
        assert_eq!(fate(Some(77), ""), Fate::Failed);
        assert_eq!(fate(Some(1), "skipped: no QEMU"), Fate::Failed);
        assert_eq!(fate(None, ""), Fate::Failed);
    }

    #[test]
    fn a_step_that_ends_with_an_error_has_failed() {
        assert_eq!(timed("x", || anyhow::bail!("no")).fate, Fate::Failed);
        assert_eq!(timed("x", || Ok(true)).fate, Fate::Passed);
    }
}
