// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of the repository.

use std::fs;
use std::path::Path;

pub use erb_tidy::root;
use ignore::WalkBuilder;

/// A text file of the repository.
#[derive(Clone)]
pub struct File {
    /// From the root, with slashes.
    pub name: String,
    /// All of it.
    pub text: String,
}

impl File {
    /// Whether its name ends in one of these.
    pub fn is(&self, endings: &[&str]) -> bool {
        endings.iter().any(|ending| self.name.ends_with(ending))
    }

    /// Lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// Every text file that git does not ignore.
pub fn all() -> Vec<File> {
    let files = below(&root());
    assert!(files.len() > 50, "only {} files found", files.len());
    files
}

/// The same of another folder.
pub fn below(root: &Path) -> Vec<File> {
    let mut files = Vec::new();
    let walk = WalkBuilder::new(root)
        .hidden(false)
        .require_git(false)
        .filter_entry(|entry| entry.file_name() != ".git")
        .build();
    for entry in walk {
        let entry = entry.expect("the repository can be read");
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        // What is no UTF-8 is no text of ours.
        let Ok(text) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let name = entry.path().strip_prefix(root).expect("below the root");
        let name = name.to_string_lossy().into_owned();
        files.push(File { name, text });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files
}

/// Those written by hand in a language: Rust, C, shell.
pub fn sources() -> Vec<File> {
    let mut files = all();
    files.retain(|file| is_source(&file.name, &file.text));
    files
}

fn is_source(name: &str, text: &str) -> bool {
    let endings = [".rs", ".c", ".h", ".def", ".sh", ".py", ".go", ".java"];
    endings.iter().any(|ending| name.ends_with(ending)) || text.starts_with("#!")
}
