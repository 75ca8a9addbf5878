// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results kept in a file of the target folder, so that a long run goes on where it was ended. The file's
//! name has what was run and the commit; results of a changed tree are not kept.
//!
//! Invariants: 1. A result is in the file before the next job begins. 2. A line that was cut off is no result, unless it
//! still tells of a failure: that is red. 3. One process at a time has the file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::fcntl::{Flock, FlockArg};

use crate::run::Tested;

/// Results of one kind of run at one commit.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: Mutex<Flock<File>>,
    /// What the file held when it was opened, in its order.
    before: Vec<Tested>,
    /// Rounds of each test in it.
    times: BTreeMap<String, usize>,
}

/// What a result begins with, as it is written, up to its name.
const NAME: &str = "{\"name\":\"";
/// What follows the name of a test that has failed.
const FAILED: &str = "\",\"ended\":\"Failed\"";

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
    // Whatever the user has configured: a new file is a change.
    let changed = git(root, &["status", "--porcelain", "--untracked-files=normal"])?;
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
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("{}", path.display()))?;
        let mut file =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
                anyhow!(
                    "{}: {error}: another ./test of this kind is at work",
                    path.display()
                )
            })?;
        if commit.is_none() {
            file.set_len(0)
                .with_context(|| format!("{}", path.display()))?;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .with_context(|| format!("{}", path.display()))?;
        if !bytes.is_empty() && !bytes.ends_with(b"\n") {
            file.write_all(b"\n")
                .with_context(|| format!("{}", path.display()))?;
        }
        let lines = bytes
            .split(|byte| *byte == b'\n')
            .map(String::from_utf8_lossy);
        let before: Vec<Tested> = lines.filter_map(|line| result(&line)).collect();
        let mut times = BTreeMap::new();
        for tested in before.iter().filter(|it| !it.repeats) {
            *times.entry(tested.name.clone()).or_default() += 1;
        }
        Ok(Self {
            path,
            file: Mutex::new(file),
            before,
            times,
        })
    }

    /// How many rounds of a test have a result from before.
    pub fn times(&self, name: &str) -> usize {
        self.times.get(name).copied().unwrap_or(0)
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All results from before.
    pub fn before(&self) -> &[Tested] {
        &self.before
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

/// The result that a line holds. One that was cut off still tells of a failure if it has its name and how it ended.
fn result(line: &str) -> Option<Tested> {
    if let Ok(tested) = serde_json::from_str(line) {
        return Some(tested);
    }
    let name = line.strip_prefix(NAME)?.split_once(FAILED)?.0;
    Some(Tested {
        name: name.to_owned(),
        output: "its result was cut off\n".to_owned(),
        crashed: true,
        ..Tested::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use crate::run::Ended;

    fn tested(name: &str) -> Tested {
        Tested {
            name: name.to_owned(),
            ended: Ended::Passed,
            seconds: 1.0,
            output: "two\nlines".to_owned(),
            ..Tested::default()
        }
    }

    impl Results {
        /// None from before, on a disk without room.
        pub fn full() -> Self {
            let path = PathBuf::from("/dev/full");
            let file = OpenOptions::new()
                .write(true)
                .open(&path)
                .expect("a device");
            let file = Flock::lock(file, FlockArg::LockShared).expect("a lock");
            Self {
                path,
                file: Mutex::new(file),
                before: Vec::new(),
                times: BTreeMap::new(),
            }
        }
    }

    fn open(target: &Path, commit: Option<&str>) -> Results {
        Results::open(target, "long", commit).expect("a file")
    }

    /// Adds bytes to the file as they are.
    fn write(target: &Path, bytes: &[u8]) {
        let path = open(target, Some("abc")).path;
        let mut options = OpenOptions::new();
        let mut file = options.append(true).open(path).expect("a file");
        file.write_all(bytes).expect("written");
    }

    #[test]
    fn results_of_a_commit_are_there_again_and_a_cut_line_is_none() {
        let target = fake::folder("results");
        let results = open(&target, Some("abc"));
        results
            .add(&[tested("a"), tested("b"), tested("a")])
            .expect("written");
        drop(results);
        write(&target, b"{\"name\":\"c\"");
        let again = open(&target, Some("abc"));
        assert_eq!(["a", "b", "c"].map(|name| again.times(name)), [2, 1, 0]);
        again.add(&[tested("c")]).expect("written");
        drop(again);
        assert_eq!(open(&target, Some("abc")).times("c"), 1);
        assert_eq!(open(&target, Some("def")).times("a"), 0);
        open(&target, None).add(&[tested("a")]).expect("written");
        assert_eq!(open(&target, None).times("a"), 0, "a changed tree");
    }

    #[test]
    fn a_repetition_is_no_round() {
        let target = fake::folder("rounds");
        let results = open(&target, Some("abc"));
        let repeats = Tested {
            repeats: true,
            ..tested("a")
        };
        results.add(&[tested("a"), repeats]).expect("written");
        drop(results);
        let again = open(&target, Some("abc"));
        assert_eq!((again.times("a"), again.before().len()), (1, 2));
    }

    #[test]
    fn a_failure_is_kept_beside_bytes_that_are_no_text_and_when_it_is_cut_off() {
        let target = fake::folder("bytes");
        let failed = Tested {
            ended: Ended::Failed,
            ..tested("a")
        };
        let line = serde_json::to_vec(&failed).expect("JSON");
        write(&target, b"\xff\n");
        write(&target, &line);
        write(&target, &line[..line.len() / 2]);
        let again = open(&target, Some("abc"));
        let failed = |it: &&Tested| it.ended == Ended::Failed;
        assert_eq!(again.before().iter().filter(failed).count(), 2);
        assert!(again.before()[1].crashed, "it is never excused");
    }

    #[test]
    fn one_process_has_the_file() {
        let target = fake::folder("lock");
        for commit in [Some("abc"), None] {
            let _first = open(&target, commit);
            let second = Results::open(&target, "long", commit);
            let error = second.expect_err("it is locked").to_string();
            assert!(error.contains("another ./test"), "{error}");
        }
    }

    #[test]
    fn results_that_cannot_be_written_are_an_error() {
        let results = Results::full();
        let error = results.add(&[tested("a")]).expect_err("no room");
        assert!(format!("{error:#}").contains("No space left"), "{error:#}");
    }

    #[test]
    fn a_new_file_changes_the_tree_whatever_git_is_configured_to_show() {
        let root = fake::repository("tree");
        let git = |words: &[&str]| git(&root, words).expect("git");
        git(&["config", "status.showUntrackedFiles", "no"]);
        git(&["commit", "--quiet", "--allow-empty", "-m", "x"]);
        assert!(commit(&root).expect("git").is_some());
        fs::write(root.join("new"), "").expect("written");
        assert_eq!(commit(&root).expect("git"), None);
    }
}
