// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results kept in a file of the target folder, so that a long run goes on where it was ended. The file's
//! name has what was run and the commit; results of a changed tree are not kept.
//!
//! Invariants: 1. A result is in the file before the next job begins. 2. A line that was cut off is no result.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};

use crate::run::Tested;

/// Results of one kind of run at one commit.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: Mutex<File>,
    /// What the file held when it was opened, by the tests' names.
    before: BTreeMap<String, Vec<Tested>>,
}

/// `git` in the root, its output without the last newline.
///
/// # Errors
/// If git cannot be run or fails.
pub fn git(root: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    // A checkout of another user's is read, too.
    command
        .args(["-c", "safe.directory=*"])
        .args(words)
        .current_dir(root);
    let output = command.output().context("cannot run git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {said}", words.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

/// The commit, if the tree is as committed.
///
/// # Errors
/// If git fails.
pub fn commit(root: &Path) -> Result<Option<String>> {
    let changed = git(root, &["status", "--porcelain"])?;
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    Ok(changed.is_empty().then_some(commit))
}

impl Results {
    /// Opens the results of `kind` at `commit`; without a commit they begin anew.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn open(target: &Path, kind: &str, commit: Option<&str>) -> Result<Self> {
        let folder = target.join("harness");
        fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
        let path = folder.join(format!("{kind}-{}.jsonl", commit.unwrap_or("changed")));
        if commit.is_none() {
            let _ = fs::remove_file(&path);
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut before: BTreeMap<String, Vec<Tested>> = BTreeMap::new();
        for line in text.lines() {
            if let Ok(tested) = serde_json::from_str::<Tested>(line) {
                before.entry(tested.name.clone()).or_default().push(tested);
            }
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("{}", path.display()))?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        Ok(Self {
            path,
            file: Mutex::new(file),
            before,
        })
    }

    /// How often a test has a result from before.
    pub fn times(&self, name: &str) -> usize {
        self.before.get(name).map_or(0, Vec::len)
    }

    /// All results from before.
    pub fn before(&self) -> Vec<Tested> {
        self.before.values().flatten().cloned().collect()
    }

    /// Adds results.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn add(&self, tested: &[Tested]) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        for one in tested {
            let line = serde_json::to_string(one)? + "\n";
            file.write_all(line.as_bytes())
                .with_context(|| format!("{}", self.path.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Ended;

    fn tested(name: &str) -> Tested {
        Tested {
            name: name.to_owned(),
            ended: Ended::Passed,
            seconds: 1.0,
            output: "two\nlines".to_owned(),
        }
    }

    #[test]
    fn results_of_a_commit_are_there_again_and_a_cut_line_is_none() {
        let target = std::env::temp_dir().join(format!("erb-results-{}", std::process::id()));
        let open = |commit| Results::open(&target, "long", commit).expect("a file");
        let results = open(Some("abc"));
        results
            .add(&[tested("a"), tested("b"), tested("a")])
            .expect("written");
        let mut file = OpenOptions::new()
            .append(true)
            .open(&results.path)
            .expect("a file");
        file.write_all(b"{\"name\":\"c\"").expect("written");
        let again = open(Some("abc"));
        assert_eq!(["a", "b", "c"].map(|name| again.times(name)), [2, 1, 0]);
        again.add(&[tested("c")]).expect("written");
        assert_eq!(open(Some("abc")).times("c"), 1);
        assert_eq!(open(Some("def")).times("a"), 0);
        open(None).add(&[tested("a")]).expect("written");
        assert_eq!(open(None).times("a"), 0, "a changed tree");
        fs::remove_dir_all(&target).expect("removed");
    }
}
