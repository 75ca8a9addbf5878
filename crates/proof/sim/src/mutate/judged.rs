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
const JUDGES: [&str; 4] = [
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
pub struct Sources(BTreeMap<String, String>);

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

    fn parsed(text: &str) -> Self {
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
    path: PathBuf,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(pairs: &[(&str, &str)]) -> Sources {
        let pairs = pairs
            .iter()
            .map(|(name, hash)| ((*name).to_owned(), (*hash).to_owned()));
        Sources(pairs.collect())
    }

    #[test]
    fn mistakes_of_changed_files_come_first_and_all_come() {
        let before = sources(&[("bpf/a.h", "1"), ("bpf/b.h", "1"), (DAEMON, "1")]);
        let now = sources(&[
            ("bpf/a.h", "1"),
            ("bpf/b.h", "2"),
            (DAEMON, "1"),
            ("bpf/c.h", "1"),
        ]);
        let files = [
            vec!["a.h"],
            vec!["a.h", "b.h"],
            vec![DAEMON],
            vec!["c.h"],
            vec!["b.h"],
        ];
        let mut orders = BTreeSet::new();
        for draw in 0..20 {
            let (order, changed) = order(&files, &now, &before, draw);
            assert_eq!(changed, 3);
            let first: BTreeSet<usize> = order[..3].iter().copied().collect();
            assert_eq!(
                first,
                BTreeSet::from([1, 3, 4]),
                "those of b.h and of the new c.h"
            );
            let all: BTreeSet<usize> = order.iter().copied().collect();
            assert_eq!(all.len(), files.len());
            orders.insert(order);
        }
        assert!(orders.len() > 3, "a commit draws its own order");
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let text = "# about\n1234  bpf/a.h\nabcd  crates/proof/sim/src\n";
        let read = Sources::parsed(text);
        assert_eq!(
            read,
            sources(&[("bpf/a.h", "1234"), ("crates/proof/sim/src", "abcd")])
        );
        assert!(read.judges_differ(&sources(&[("bpf/a.h", "1234")])));
        assert!(!read.any_differs(&read.clone(), &["a.h"]));
    }

    #[test]
    fn this_tree_has_all_that_is_recorded() {
        let now = Sources::now().expect("sources");
        for name in JUDGES.iter().chain([&DAEMON, &"bpf/splice/splice.h"]) {
            assert!(now.0.contains_key(*name), "{name}");
        }
        assert_eq!(now, Sources::now().expect("sources"));
    }

    #[test]
    fn progress_goes_on_and_a_cut_name_is_none() {
        let folder = std::env::temp_dir().join(format!("erb-judged-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let now = sources(&[("bpf/a.h", "1")]);
        let mut progress = Progress::open(&folder, &now);
        progress.add("one").expect("written");
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(&progress.path)
            .expect("there");
        file.write_all(b"tw").expect("written");
        let again = Progress::open(&folder, &now);
        assert!(again.has("one") && !again.has("tw") && !again.has("two"));
        let other = Progress::open(&folder, &sources(&[("bpf/a.h", "2")]));
        assert!(!other.has("one"), "other sources");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
