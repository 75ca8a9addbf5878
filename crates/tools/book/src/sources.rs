// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files and folders of the tree, and their pages in the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Where pages of sources lie in the book.
const FOLDER: &str = "sources";
/// Bytes of a file that a page shows; all of ours are shorter.
const SHOWN_MAX: usize = 1 << 20;

/// What belongs to the tree: not what a build has made.
pub struct Tree {
    root: PathBuf,
    files: BTreeSet<PathBuf>,
    /// By folder: what is in it.
    folders: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
}

impl Tree {
    /// Reads it.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn of(root: &Path) -> Result<Self> {
        let mut tree = Self {
            root: root.to_owned(),
            files: BTreeSet::new(),
            folders: BTreeMap::new(),
        };
        for entry in ignore::WalkBuilder::new(root).require_git(false).build() {
            let entry = entry?;
            let path = entry.path().strip_prefix(root)?.to_owned();
            if let Some(folder) = path.parent() {
                let of = tree.folders.entry(folder.to_owned()).or_default();
                of.insert(path.clone());
            }
            if entry.file_type().is_some_and(|kind| kind.is_file()) {
                tree.files.insert(path);
            }
        }
        Ok(tree)
    }

    /// Whether it is a file or a folder of the tree.
    pub fn has(&self, path: &Path) -> bool {
        self.files.contains(path) || self.folders.contains_key(path)
    }

    /// Files of a folder, not those below it.
    pub fn files_of(&self, folder: &Path) -> impl Iterator<Item = PathBuf> {
        let all = self.folders.get(folder).into_iter().flatten();
        all.filter(|path| self.files.contains(*path)).cloned()
    }

    /// A file's text.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn text(&self, path: &Path) -> Result<String> {
        let at = self.root.join(path);
        let bytes = fs::read(&at).with_context(|| format!("{}", at.display()))?;
        let shown = &bytes[..bytes.len().min(SHOWN_MAX)];
        Ok(String::from_utf8_lossy(shown).into_owned())
    }

    /// The page of a file or folder.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn page(&self, path: &Path) -> Result<String> {
        let mut body = String::new();
        if self.files.contains(path) {
            for (number, line) in self.text(path)?.lines().enumerate() {
                let number = number + 1;
                // Only a writer can fail, and a String does not.
                let _ = writeln!(body, "<span id=\"L{number}\">{}</span>", escaped(line));
            }
        } else {
            let folder = path.file_name().unwrap_or_default().to_string_lossy();
            for entry in self.folders.get(path).into_iter().flatten() {
                let name = entry.file_name().unwrap_or_default().to_string_lossy();
                // What lies below a folder in it has no pages.
                let _ = if self.files.contains(entry) {
                    let link = escaped(&format!("{folder}/{name}.html"));
                    writeln!(body, "<a href=\"{link}\">{}</a>", escaped(&name))
                } else {
                    writeln!(body, "{}/", escaped(&name))
                };
            }
        }
        let title = escaped(&path.display().to_string());
        Ok(format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <style>:root{{color-scheme:light dark}}body{{margin:1em auto;max-width:110ch}}\
             pre{{white-space:pre-wrap;overflow-wrap:anywhere;tab-size:4}}:target{{outline:1px solid}}</style></head>\n\
             <body><h1><code>{title}</code></h1>\n<pre>{body}</pre></body></html>\n"
        ))
    }
}

/// Where the page of a file or folder lies.
#[must_use]
pub fn page(path: &Path) -> PathBuf {
    Path::new(FOLDER).join(format!("{}.html", path.display()))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
