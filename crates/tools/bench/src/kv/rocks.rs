// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RocksDB's own benchmark, on the same disk.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use erb_lab::servers;

/// Looked for if nothing else is said.
const PROGRAM: &str = "db_bench";
const OF_DEBIAN: &str = "debian";
const NONE: &str = "none";

/// db_bench, or why there is none.
pub struct Rocks {
    found: std::result::Result<PathBuf, String>,
    folder: PathBuf,
}

fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // It ends with 0 or 1, but it has run.
    command.status().is_ok()
}

fn find(wanted: Option<&str>) -> std::result::Result<PathBuf, String> {
    match wanted {
        Some(NONE) => Err("left out by --db-bench none".to_owned()),
        Some(OF_DEBIAN) => servers::db_bench().map_err(|error| format!("{error:#}")),
        Some(program) if runs(program) => Ok(program.into()),
        Some(program) => Err(format!("{program} cannot be run")),
        None if runs(PROGRAM) => Ok(PROGRAM.into()),
        None => find(Some(OF_DEBIAN)),
    }
}

impl Rocks {
    pub fn find(wanted: &Option<String>, folder: &Path) -> Self {
        Self {
            found: find(wanted.as_deref()),
            folder: folder.join("rocksdb"),
        }
    }

    /// What is said of it: its version, or why there is none.
    pub fn told(&self) -> String {
        let program = match &self.found {
            Ok(program) => program,
            Err(why) => return format!("none: {why}"),
        };
        let output = Command::new(program).arg("--version").output();
        let text = output.map_or(String::new(), |it| {
            String::from_utf8_lossy(&it.stdout).into_owned()
        });
        text.lines().next().unwrap_or("db_bench").trim().to_owned()
    }

    /// Durable puts of so many threads, keys in order: puts a second. None: there is no db_bench.
    pub fn puts(&self, threads: u64, each: u64, value_bytes: usize) -> Result<Option<f64>> {
        self.run(&[
            "--benchmarks=fillseq",
            "--sync=1",
            "--key_size=4",
            &format!("--threads={threads}"),
            &format!("--num={each}"),
            &format!("--value_size={value_bytes}"),
        ])
    }

    /// Makes keys to be read, and leaves them to [`gets`](Self::gets).
    pub fn fill(&self, keys: u64, value_bytes: usize) -> Result<()> {
        self.run(&[
            "--benchmarks=fillseq,compact",
            "--key_size=8",
            &format!("--num={keys}"),
            &format!("--value_size={value_bytes}"),
        ])?;
        Ok(())
    }

    /// Gets of any of these keys, past the system's cache and with next to none of its own: gets a second.
    pub fn gets(
        &self,
        keys: u64,
        threads: u64,
        each: u64,
        value_bytes: usize,
    ) -> Result<Option<f64>> {
        self.run(&[
            "--benchmarks=readrandom",
            "--use_existing_db=1",
            "--use_direct_reads=1",
            "--cache_size=1048576",
            "--key_size=8",
            &format!("--threads={threads}"),
            &format!("--num={keys}"),
            &format!("--reads={each}"),
            &format!("--value_size={value_bytes}"),
        ])
    }

    fn run(&self, words: &[&str]) -> Result<Option<f64>> {
        let Ok(program) = &self.found else {
            return Ok(None);
        };
        let mut command = Command::new(program);
        command.arg(format!("--db={}", self.folder.display()));
        command.args(["--compression_type=none", "--verify_checksum=1"]);
        let output = command
            .args(words)
            .output()
            .context("cannot run db_bench")?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("db_bench failed ({}): {}", output.status, error.trim());
        }
        let name = words[0].trim_start_matches("--benchmarks=");
        let name = name.split(',').next().unwrap_or(name);
        let rate = rate_of(&said, name);
        rate.with_context(|| format!("db_bench says nothing of {name}:\n{said}"))
            .map(Some)
    }
}

/// What its line of a benchmark says: operations a second.
fn rate_of(said: &str, name: &str) -> Option<f64> {
    let line = said.lines().find(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.trim_start().starts_with(':'))
    })?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "ops/sec")?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_lines_are_understood() {
        let said = "Keys: 4 bytes\nfillseq      :      42.475 micros/op 23543 ops/sec 1.359 seconds 32000 operations;    2.3 MB/s\n";
        assert_eq!(rate_of(said, "fillseq"), Some(23543.0));
        assert_eq!(rate_of(said, "readrandom"), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let rocks = Rocks::find(&Some("no-such-db_bench".to_owned()), Path::new("/"));
        assert!(rocks.told().starts_with("none: "));
        assert_eq!(rocks.puts(1, 1, 1).expect("it is left out"), None);
    }
}
