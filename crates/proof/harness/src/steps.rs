// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `./test` does beside running tests: formats, the package, the kernel module, other kernels, sanitizers,
//! clippy. Each is a function of `scripts/step`, so that it can be tried by hand: `scripts/step clippy`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use erb_steady::SKIPPED;

use crate::child::Run;
use crate::priority::IDLE;
use crate::stop::Stop;
use crate::tell;

/// What `scripts/step` ends with if the step cannot be done on this system; the reason is in a line that
/// begins with "skipped: ".
const CANNOT: i32 = 77;
/// A step that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(4 * 3600);

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
    tell!("\n== {name}");
    let began = Instant::now();
    let fate = match step() {
        Ok(true) => Fate::Passed,
        Ok(false) => Fate::Failed,
        Err(error) => {
            tell!("error: {error:#}");
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
/// that ends for all. `None` if the run was stopped meanwhile.
pub fn script(root: &Path, name: &str, word: &str, idle: bool, stop: &Stop) -> Option<Step> {
    let began = Instant::now();
    let (fate, said) = match ended(root, word, idle, stop) {
        Ok(ended) => ended,
        Err(error) => (Fate::Failed, format!("error: {error:#}")),
    };
    if stop.is_now() {
        return None;
    }
    let seconds = began.elapsed().as_secs();
    tell!("\n== {name} ({seconds} s)\n{said}");
    Some(Step {
        name: name.to_owned(),
        fate,
        seconds,
    })
}

/// Does a step; how it ended, and what it said.
fn ended(root: &Path, word: &str, idle: bool, stop: &Stop) -> Result<(Fate, String)> {
    let mut command = if idle {
        IDLE.command()
    } else {
        Command::new("env")
    };
    command.args(["bash", "scripts/step", word]);
    command.current_dir(root);
    let run = Run {
        command,
        // It tells none; what it says last is waited for.
        results: 1,
        idle,
        limit: LIMIT,
    };
    let (said, status) = run.whole(stop)?;
    let mut said = said.raw.text();
    if status.is_none() {
        said.push_str(&format!("ended by the harness after {LIMIT:?}\n"));
    }
    Ok((fate(status.and_then(|it| it.code()), &said), said))
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
    use crate::fake;

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
    fn a_step_says_what_it_does_and_leaves_nothing_behind() {
        let root = fake::folder("steps");
        std::fs::create_dir(root.join("scripts")).expect("a folder");
        fake::script(
            &root,
            "scripts/step",
            "(while echo again; do sleep 0.1; done) & echo \"$1\" >&2; exit 3",
        );
        let stop = Stop::default();
        let step = script(&root, "x", "word", false, &stop).expect("not stopped");
        assert_eq!(step.fate, Fate::Failed);
        for idle in [false, true] {
            let (fate, said) = ended(&root, "word", idle, &stop).expect("bash");
            assert_eq!(fate, Fate::Failed);
            assert!(said.contains("word\n"), "{said}");
        }
        stop.now(crate::stop::Why::Error("it is to end".to_owned()));
        assert!(script(&root, "x", "word", false, &stop).is_none());
    }

    #[test]
    fn a_step_that_ends_with_an_error_has_failed() {
        assert_eq!(timed("x", || anyhow::bail!("no")).fate, Fate::Failed);
        assert_eq!(timed("x", || Ok(true)).fate, Fate::Passed);
    }
}
