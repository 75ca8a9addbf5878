// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which deliberate mistakes a run judges: those in files that have changed since all were judged last come
//! first, then the others, in an order that each commit draws anew. `judged.txt` in this crate's folder records
//! the files' hashes at the last complete run.
//!
//! Invariants: 1. A mistake counts as judged only after a check has seen it. 2. `judged.txt` is written only
//! after every mistake was judged with the sources that it records.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

use super::source::tree;

/// Stands for the daemon's sources: what a mistake of the daemon changes.
pub const DAEMON: &str = "crates/product/redis/src";
/// What judges: the simulator and its models. If they change, any mistake may be seen no longer.
pub const JUDGES: [&str; 4] = [
    "crates/proof/sim/src",
    "crates/proof/sim-kernel/src",
    "crates/proof/sim-redis/src",
    "crates/proof/sim-tcp/src",
];
/// What mistakes are made in.
const MUTATED: &str = "bpf";
/// The record, from the root.
pub const RECORD: &str = "crates/proof/sim/judged.txt";
/// Digits of a hash that are recorded.
const DIGITS: usize = 16;

/// Hashes by path from the root: of each file of `bpf/`, and of the folders that are taken as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(pub BTreeMap<String, String>);

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            files_below(&path, found)?;
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

fn hex(hash: Sha256) -> String {
    let mut text = String::new();
    for byte in hash.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    text.truncate(DIGITS);
    text
}

impl Sources {
    /// As they are in this tree.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn now() -> Result<Self> {
        let mut all = BTreeMap::new();
        for folder in JUDGES.iter().chain([&DAEMON, &MUTATED]) {
            let mut files = Vec::new();
            files_below(&tree().join(folder), &mut files)?;
            let mut whole = Sha256::new();
            for file in files {
                let bytes = fs::read(&file).with_context(|| format!("{}", file.display()))?;
                let name = file.strip_prefix(tree()).unwrap_or(&file);
                let name = name.to_string_lossy().into_owned();
                if *folder == MUTATED {
                    all.insert(name, hex(Sha256::new_with_prefix(&bytes)));
                } else {
                    whole.update(name.as_bytes());
                    whole.update(&bytes);
                }
            }
            if *folder != MUTATED {
                all.insert((*folder).to_owned(), hex(whole));
            }
        }
        Ok(Self(all))
    }

    /// Those of the last complete run; none if it is not recorded.
    ///
    /// # Errors
    /// If the record cannot be read.
    pub fn recorded() -> Result<Self> {
        let text = fs::read_to_string(tree().join(RECORD)).context(RECORD)?;
        Ok(Self::parsed(&text))
    }

    /// Those of a record.
    #[must_use]
    pub fn parsed(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.split_once("  "));
        Self(
            pairs
                .map(|(hash, name)| (name.to_owned(), hash.to_owned()))
                .collect(),
        )
    }

    /// Records that all mistakes were judged with these sources.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn record(&self, about: &str) -> Result<()> {
        let mut text = format!("# Written by a complete run of all mistakes: {about}\n");
        for (name, hash) in &self.0 {
            let _ = writeln!(text, "{hash}  {name}");
        }
        fs::write(tree().join(RECORD), text).context(RECORD)
    }

    /// One hash for all.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut whole = Sha256::new();
        for (name, hash) in &self.0 {
            whole.update(name.as_bytes());
            whole.update(hash.as_bytes());
        }
        hex(whole)
    }

    fn differs(&self, other: &Self, name: &str) -> bool {
        self.0.get(name) != other.0.get(name)
    }

    /// Whether what judges is not what has judged.
    #[must_use]
    pub fn judges_differ(&self, other: &Self) -> bool {
        JUDGES.iter().any(|name| self.differs(other, name))
    }

    /// Whether one of the files has changed. Of `bpf/` they are named from there.
    #[must_use]
    pub fn any_differs(&self, other: &Self, files: &[&str]) -> bool {
        let mut files = files.iter();
        files.any(|file| {
            if *file == DAEMON {
                self.differs(other, DAEMON)
            } else {
                self.differs(other, &format!("{MUTATED}/{file}"))
            }
        })
    }
}

/// Numbers of the mistakes in the order in which they are judged, and how many of the first have changed files.
/// `files` has those of each.
#[must_use]
pub fn order(
    files: &[Vec<&str>],
    now: &Sources,
    before: &Sources,
    draw: u64,
) -> (Vec<usize>, usize) {
    let mut random = fastrand::Rng::with_seed(draw);
    let mut numbers: Vec<usize> = (0..files.len()).collect();
    random.shuffle(&mut numbers);
    let (mut first, others): (Vec<_>, Vec<_>) = numbers
        .into_iter()
        .partition(|number| now.any_differs(before, &files[*number]));
    let changed = first.len();
    first.extend(others);
    (first, changed)
}

/// A number that each commit draws anew; 0 without git.
#[must_use]
pub fn draw_of_commit() -> u64 {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "rev-parse", "HEAD"]);
    let said = git.current_dir(tree()).output().map(|output| output.stdout);
    let text = String::from_utf8(said.unwrap_or_default()).unwrap_or_default();
    text.get(..DIGITS)
        .map_or(0, |digits| u64::from_str_radix(digits, 16).unwrap_or(0))
}

/// Mistakes that were judged by the parts of a complete run, by name, in a file that goes with the sources.
#[derive(Debug)]
pub struct Progress {
    /// The file.
    pub path: PathBuf,
    done: BTreeSet<String>,
}

impl Progress {
    /// Opens it in this folder.
    #[must_use]
    pub fn open(folder: &Path, sources: &Sources) -> Self {
        let path = folder.join(format!("judged-{}", sources.hash()));
        let text = fs::read_to_string(&path).unwrap_or_default();
        // A line that was cut off is no name.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let done = whole.lines().map(str::to_owned).collect();
        Self { path, done }
    }

    /// Whether a mistake was judged.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.done.contains(name)
    }

    /// A mistake was judged, and seen.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, name: &str) -> Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).append(true).open(&self.path)?;
        file.write_all(format!("{name}\n").as_bytes())?;
        self.done.insert(name.to_owned());
        Ok(())
    }
}
