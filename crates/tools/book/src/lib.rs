// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The documents as a book. They are written for a reader of plain files, and link to sources. So before mdBook sees
//! them they are copied, and each link to what is no chapter becomes one to a page with that file's text.
//!
//! # Invariants
//! 1. Each document of [`SUMMARY`] is a chapter, at its own path below the book.
//! 2. Each link within the tree leads to a chapter or to a page; what leads to neither is an error that names both ends.
//! 3. Only the folder of the book is written to, and it is replaced as a whole.

mod links;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use mdbook::MDBook;
use mdbook::config::{Config, HtmlConfig};

use links::{Link, normal};
use sources::Tree;

/// The contents, in mdBook's format; its paths are as seen from its own folder.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// What was made.
#[derive(Debug)]
pub struct Made {
    /// Chapters, by their paths in the tree.
    pub chapters: BTreeSet<PathBuf>,
    /// Files and folders that chapters link to, by their paths in the tree.
    pub sources: BTreeSet<PathBuf>,
}

/// Makes the book of the tree at `root` in `book`, where nothing else may be.
///
/// # Errors
/// A link leads nowhere; a file cannot be read or written; mdBook refuses something.
pub fn make(root: &Path, book: &Path) -> Result<Made> {
    let tree = Tree::of(root)?;
    let staged = tempfile::tempdir().context("no folder for copies")?;
    let summary = Path::new(SUMMARY);
    let text = tree.text(summary)?;
    let chapters: BTreeSet<PathBuf> = links::of(&text)
        .iter()
        .filter_map(|link| normal(summary, link.path))
        .collect();
    let mut linked = BTreeSet::new();
    for chapter in &chapters {
        let text = tree.text(chapter)?;
        let text = rewritten(&tree, &chapters, chapter, &text, &mut linked)?;
        write(&staged.path().join(chapter), &text)?;
    }
    // mdBook reads it at the root of what it is given.
    let contents = replaced(&text, &links::of(&text), |link| {
        normal(summary, link.path).map(|path| path.display().to_string())
    });
    write(&staged.path().join("SUMMARY.md"), &contents)?;
    let sources = pages(&tree, linked, staged.path())?;
    if book.exists() {
        ensure!(
            book.join("book.js").exists(),
            "{} is there and is no book: choose another folder",
            book.display()
        );
        fs::remove_dir_all(book).with_context(|| format!("{}", book.display()))?;
    }
    let made = MDBook::load_with_config(staged.path(), config(book)?)?;
    made.build()?;
    Ok(Made { chapters, sources })
}

fn config(book: &Path) -> Result<Config> {
    let mut config = Config::default();
    config.book.title = Some("ERB".to_owned());
    config.book.src = PathBuf::from(".");
    config.build.build_dir = std::path::absolute(book)?;
    config.build.create_missing = false;
    // Links were judged here; nothing else is to be put into chapters.
    config.build.use_default_preprocessors = false;
    let html = HtmlConfig {
        no_section_label: true,
        ..HtmlConfig::default()
    };
    config.set("output.html", html)?;
    Ok(config)
}

/// A chapter with links that the book has; `linked` gets what is no chapter.
fn rewritten(
    tree: &Tree,
    chapters: &BTreeSet<PathBuf>,
    chapter: &Path,
    text: &str,
    linked: &mut BTreeSet<PathBuf>,
) -> Result<String> {
    let found = links::of(text);
    for link in &found {
        let target = normal(chapter, link.path);
        let is_there = target.as_ref().is_some_and(|target| tree.has(target));
        ensure!(is_there, "{}: there is no {}", chapter.display(), link.path);
        linked.extend(target.filter(|target| !chapters.contains(target)));
    }
    Ok(replaced(text, &found, |link| {
        let target = normal(chapter, link.path)?;
        if chapters.contains(&target) {
            return None;
        }
        let up = "../".repeat(chapter.components().count() - 1);
        Some(format!("{up}{}", sources::page(&target).display()))
    }))
}

/// The text with the paths of links replaced for which there is another.
fn replaced(text: &str, links: &[Link], other: impl Fn(&Link) -> Option<String>) -> String {
    let mut text = text.to_owned();
    for link in links.iter().rev() {
        if let Some(path) = other(link) {
            text.replace_range(link.at..link.at + link.path.len(), &path);
        }
    }
    text
}

/// Pages of all that is linked; a folder's page links to its files, so they have pages too.
fn pages(tree: &Tree, linked: BTreeSet<PathBuf>, staged: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut all: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut wanted: Vec<PathBuf> = linked.into_iter().collect();
    while let Some(path) = wanted.pop() {
        if all.contains_key(&path) {
            continue;
        }
        wanted.extend(tree.files_of(&path));
        let page = tree.page(&path)?;
        all.insert(path, page);
    }
    for (path, page) in &all {
        write(&staged.join(sources::page(path)), page)?;
    }
    Ok(all.into_keys().collect())
}

fn write(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    fs::write(path, text).with_context(|| format!("{}", path.display()))
}
