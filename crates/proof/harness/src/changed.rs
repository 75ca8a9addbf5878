// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which crates' tests a change can reach, for `./test --changed`. It errs to the side of too many: a changed
//! crate's tests run, and those of all crates that use it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::results::git;

/// Files outside the crates, by how they begin, and the crates that take them: as sources, or to read them.
/// `tidy`, which reads all files, is always among the reached.
const OUTSIDE: [(&str, &[&str]); 5] = [
    (
        "bpf/",
        &[
            "abi",
            "datapath",
            "sim-kernel",
            "echo",
            "bench",
            "executed",
            "sim",
        ],
    ),
    ("kmod/", &["kmod", "kmod-vm"]),
    ("docs/", &["book"]),
    ("dist/", &["watch"]),
    // Compilers are found, and packages made, by them.
    ("scripts/", &["clang", "e2e"]),
];
/// What a crate's tests start as programs, which no manifest says.
const STARTS: [(&str, &[&str]); 2] = [("e2e", &["erb", "erb-lab"]), ("erb-lab", &["erb"])];
/// Files from the root that reach everything.
const EVERYTHING: [&str; 4] = ["Cargo.toml", "Cargo.lock", "test", "rustfmt.toml"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

/// Which crates each crate uses, by their folders.
#[derive(Debug, Default)]
pub struct Uses(BTreeMap<String, BTreeSet<String>>);

impl Uses {
    /// As the manifests say.
    ///
    /// # Errors
    /// If cargo fails.
    pub fn of(root: &Path) -> Result<Self> {
        let mut cargo = Command::new("cargo");
        cargo.args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ]);
        let output = cargo
            .current_dir(root)
            .output()
            .context("cannot run cargo")?;
        ensure!(output.status.success(), "cargo metadata: {}", output.status);
        let metadata: Metadata =
            serde_json::from_slice(&output.stdout).context("cargo metadata")?;
        let folder = |package: &Package| {
            let folder = Path::new(&package.manifest_path).parent()?.file_name()?;
            Some(folder.to_string_lossy().into_owned())
        };
        let folders: BTreeMap<&str, String> = metadata
            .packages
            .iter()
            .filter_map(|package| Some((package.name.as_str(), folder(package)?)))
            .collect();
        let mut uses = Self::default();
        for package in &metadata.packages {
            let used = package
                .dependencies
                .iter()
                .filter_map(|it| folders.get(it.name.as_str()));
            let name = folders[package.name.as_str()].clone();
            let starts = STARTS.iter().filter(|(crate_name, _)| *crate_name == name);
            let started = starts.flat_map(|(_, started)| started.iter().map(|it| (*it).to_owned()));
            uses.0
                .insert(name.clone(), used.cloned().chain(started).collect());
        }
        Ok(uses)
    }

    /// The crates with tests that these files can reach; `None` if that is all of them.
    pub fn reached<'a>(
        &self,
        files: impl IntoIterator<Item = &'a str>,
    ) -> Option<BTreeSet<String>> {
        let mut reached = BTreeSet::new();
        for file in files {
            if EVERYTHING.contains(&file) {
                return None;
            }
            let mut parts = file.split('/');
            let place = (parts.next(), parts.next(), parts.next());
            if let (Some("crates"), Some(_), Some(name)) = place {
                reached.insert(name.to_owned());
                continue;
            }
            let outside = OUTSIDE.iter().filter(|(begin, _)| file.starts_with(begin));
            reached
                .extend(outside.flat_map(|(_, crates)| crates.iter().map(|it| (*it).to_owned())));
            if file.ends_with(".md") {
                reached.insert("book".to_owned());
            }
        }
        loop {
            let users = self
                .0
                .iter()
                .filter(|(_, used)| !used.is_disjoint(&reached));
            let users: Vec<String> = users.map(|(name, _)| name.clone()).collect();
            let before = reached.len();
            reached.extend(users);
            if reached.len() == before {
                break;
            }
        }
        // Every change may break a rule of the sources.
        reached.insert("tidy".to_owned());
        Some(reached)
    }
}

/// Files that differ from `base`, committed or not, and new ones.
///
/// # Errors
/// If git fails: no such commit, no repository.
pub fn files(root: &Path, base: &str) -> Result<Vec<String>> {
    let since = git(root, &["merge-base", base, "HEAD"])?;
    // Git quotes names of other letters in lines.
    let changed = git(root, &["diff", "--name-only", "--no-renames", "-z", &since])?;
    let new = git(root, &["ls-files", "--others", "--exclude-standard", "-z"])?;
    let all = changed.split('\0').chain(new.split('\0'));
    Ok(all
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    fn uses() -> Uses {
        let pairs = [
            ("erb", "store"),
            ("node", "store"),
            ("e2e", "erb"),
            ("store", ""),
        ];
        let set = |used: &str| {
            [used.to_owned()]
                .into_iter()
                .filter(|it| !it.is_empty())
                .collect()
        };
        Uses(
            pairs
                .map(|(name, used)| (name.to_owned(), set(used)))
                .into(),
        )
    }

    fn reached(files: &[&str]) -> Vec<String> {
        let reached = uses().reached(files.iter().copied());
        reached.expect("not everything").into_iter().collect()
    }

    #[test]
    fn a_change_reaches_its_crate_and_all_that_use_it() {
        assert_eq!(
            reached(&["crates/product/erb/src/main.rs"]),
            ["e2e", "erb", "tidy"]
        );
        let all = ["e2e", "erb", "node", "store", "tidy"];
        assert_eq!(reached(&["crates/product/store/src/lib.rs"]), all);
        assert_eq!(reached(&["docs/measured.md"]), ["book", "tidy"]);
        assert_eq!(reached(&["README.md"]), ["book", "tidy"]);
        assert!(reached(&["bpf/net/packet.h"]).contains(&"sim-kernel".to_owned()));
    }

    #[test]
    fn names_of_all_letters_and_new_files_are_seen() {
        let root = fake::repository("changed");
        let git = |words: &[&str]| git(&root, words).expect("git");
        std::fs::write(root.join("\u{e9} \"quoted\""), "").expect("written");
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", "x"]);
        assert_eq!(files(&root, "HEAD").expect("git"), [""; 0]);
        std::fs::write(root.join("\u{e9} \"quoted\""), "changed").expect("written");
        std::fs::write(root.join("new\nline"), "").expect("written");
        let found = files(&root, "HEAD").expect("git");
        assert_eq!(found, ["\u{e9} \"quoted\"", "new\nline"]);
    }

    #[test]
    fn what_all_are_built_with_reaches_everything() {
        assert_eq!(uses().reached(["docs/measured.md", "Cargo.lock"]), None);
    }

    #[test]
    fn the_manifests_of_this_tree_are_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let uses = Uses::of(&root).expect("metadata");
        let reached = uses
            .reached(["crates/product/abi/src/lib.rs"])
            .expect("not everything");
        for name in ["abi", "datapath", "daemon", "erb", "e2e", "sim"] {
            assert!(reached.contains(name), "{name}: {reached:?}");
        }
    }
}
