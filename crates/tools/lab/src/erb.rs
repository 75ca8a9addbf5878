// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `erb` as tools use it: by its command line, its JSON and its exit codes.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use erb_report::{Filled, Status, exit};
use serde::de::DeserializeOwned;

use crate::netns;
use crate::state::LabState;

/// The daemon serves a fraction of a second after the boost.
const SERVING_WAIT: Duration = Duration::from_secs(10);
/// What was being answered is done some milliseconds after the word, and a sweep or two behind it.
const CLOSED_WAIT: Duration = Duration::from_secs(10);
/// Longest wait until SETs are answered.
const OPEN_WAIT: Duration = Duration::from_secs(20);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// The path of a program that lies beside this one.
///
/// # Errors
/// If the path of this program is not known.
pub fn beside(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell the path of this program")?;
    // Tests lie one folder below the programs that they are built with.
    let folder = program
        .ancestors()
        .skip(1)
        .find(|folder| !folder.ends_with("deps"));
    Ok(folder.context("this program is in no folder")?.join(name))
}

/// The command `erb`.
#[derive(Clone, Debug)]
pub struct Erb(PathBuf);

impl Erb {
    /// The one beside this program.
    ///
    /// # Errors
    /// If the path of this program is not known.
    pub fn beside() -> Result<Self> {
        beside("erb").map(Self)
    }

    /// The program at this path.
    pub fn at(program: impl Into<PathBuf>) -> Self {
        Self(program.into())
    }

    /// Its path, if it is there.
    ///
    /// # Errors
    /// With what to do, if it is not.
    pub fn found(&self) -> Result<&Path> {
        let path = &self.0;
        ensure!(
            path.is_file(),
            "{} is not there: build it by `cargo build --release -p erb`, or put it beside erb-lab",
            path.display()
        );
        Ok(path)
    }

    /// The boost with this run directory, of this network namespace.
    #[must_use]
    pub fn boost_in(&self, namespace: &str, run_dir: &Path) -> Boost {
        Boost {
            erb: self.clone(),
            namespace: namespace.to_owned(),
            run_dir: run_dir.to_path_buf(),
        }
    }

    /// The boost of a lab.
    #[must_use]
    pub fn boost_of(&self, lab: &LabState) -> Boost {
        self.boost_in(&lab.server.namespace, &lab.run_dir)
    }
}

/// A boost, begun or not: what is asked of it is asked by `erb`.
#[derive(Clone, Debug)]
pub struct Boost {
    erb: Erb,
    namespace: String,
    run_dir: PathBuf,
}

impl Boost {
    /// Starts `erb` with these words, about this boost.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self, words: &[&str], input: Stdio) -> Result<Child> {
        let program = self.erb.found()?;
        netns::command(&self.namespace, program)?
            .args(words)
            .arg("--run-dir")
            .arg(&self.run_dir)
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))
    }

    fn output(&self, words: &[&str]) -> Result<Output> {
        let child = self.start(words, Stdio::null())?;
        child.wait_with_output().context("cannot wait for erb")
    }

    /// What `erb` prints.
    ///
    /// # Errors
    /// If it fails, with what it said.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        printed(self.output(words)?, words)
    }

    fn json<T: DeserializeOwned>(&self, words: &[&str]) -> Result<T> {
        parsed(&self.run(words)?, words)
    }

    /// Boosts, with these words more; returns when Redis is boosted.
    ///
    /// # Errors
    /// If Redis cannot be boosted.
    pub fn begin(&self, words: &[&str]) -> Result<()> {
        self.run(&[&["boost"], words].concat()).map(drop)
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// If nothing is boosted.
    pub fn status(&self) -> Result<Status> {
        self.json(&["status", "--json"])
    }

    /// The counter of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let count = self.status()?.counter(name);
        count.with_context(|| format!("`erb status` has no counter {name}"))
    }

    /// Waits until ERB answers, new connections included.
    ///
    /// # Errors
    /// If it does not, with what it says of itself.
    pub fn wait_until_serving(&self) -> Result<()> {
        self.wait_until(SERVING_WAIT, "ERB does not serve", |status| {
            status.serving && status.admitting
        })
    }

    /// Waits until SETs are answered. Any client may have shut the gate.
    ///
    /// # Errors
    /// If they are not, with what it says of itself.
    pub fn wait_until_open(&self) -> Result<()> {
        self.wait_until(OPEN_WAIT, "SETs are not answered", |status| {
            status.writes.open
        })
    }

    fn wait_until(
        &self,
        limit: Duration,
        fault: &str,
        good: impl Fn(&Status) -> bool,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            if good(&self.status()?) {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "{fault} after {limit:?}; it says of itself:\n{}",
                self.run(&["status"])?
            );
            thread::sleep(PAUSE);
        }
    }

    /// Puts keys into the cache that hold strings, or hashes.
    ///
    /// # Errors
    /// If the daemon does not fill; keys that find no room are no error.
    pub fn fill(&self, keys: impl Iterator<Item = String>, hashes: bool) -> Result<Filled> {
        let words = if hashes {
            &["fill", "--hashes"][..]
        } else {
            &["fill"]
        };
        let mut erb = self.start(words, Stdio::piped())?;
        let input = erb.stdin.take().context("erb fill reads nothing")?;
        let mut input = BufWriter::new(input);
        let mut keys = keys;
        let told = keys.try_for_each(|key| writeln!(input, "{key}"));
        let told = told.and_then(|()| input.flush());
        // The end of its input.
        drop(input);
        let output = erb.wait_with_output().context("cannot wait for erb fill")?;
        // Its own error says more than that it does not read on.
        let answer = printed(output, words)?;
        told.context("cannot write to erb fill")?;
        parsed(&answer, words)
    }

    /// Turns filling by misses on or off; off also means that misses are no longer recorded.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn set_fills(&self, on: bool) -> Result<()> {
        self.run(&["fills", if on { "on" } else { "off" }])
            .map(drop)
    }

    /// Closes the cache by an operator's word; returns when no packet is looked at any more.
    ///
    /// # Errors
    /// If the daemon does not answer, or it does not come to that, as a connection that was answered
    /// needs translation or Redis is away; with what it says of itself.
    pub fn close_cache(&self) -> Result<()> {
        self.run(&["aside", "3"])?;
        let fault = "ERB's cache is not closed to all";
        self.wait_until(CLOSED_WAIT, fault, Status::is_closed_to_all)
    }

    /// Detaches by force; a boost that never began has nothing to detach.
    ///
    /// # Errors
    /// If it cannot be detached.
    pub fn detach(&self) -> Result<()> {
        let words = ["detach", "--force"];
        let output = self.output(&words)?;
        if output.status.code() == Some(i32::from(exit::NOT_BOOSTED)) {
            return Ok(());
        }
        printed(output, &words).map(drop)
    }
}

/// Standard output of a command that succeeded.
fn printed(output: Output, words: &[&str]) -> Result<String> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "erb {} failed ({}): {}",
            words.join(" "),
            output.status,
            said.trim()
        );
    }
    String::from_utf8(output.stdout).context("erb printed no text")
}

fn parsed<T: DeserializeOwned>(text: &str, words: &[&str]) -> Result<T> {
    serde_json::from_str(text)
        .with_context(|| format!("erb {} printed other JSON", words.join(" ")))
}
