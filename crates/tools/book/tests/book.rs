// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The book has all documents, and every link in it leads somewhere, in the files that a browser opens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// Documents that are no chapters: they stand beside what they are about.
const NO_CHAPTERS: [&str; 2] = ["crates/tools/check/clients/README.md", erb_book::SUMMARY];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    root.canonicalize().expect("the tree")
}

fn pages(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|end| end == "html") {
            let text = fs::read_to_string(&path).expect("a page");
            found.insert(path, text);
        }
    }
}

/// Links of all pages that lead nowhere.
fn lost(book: &Path) -> Vec<String> {
    let mut all = BTreeMap::new();
    pages(book, &mut all);
    assert!(all.len() > 100, "only {} pages", all.len());
    let link = Regex::new(r#"<a [^>]*href="([^"]+)""#).expect("a pattern");
    let id = Regex::new(r#" id="([^"]+)""#).expect("a pattern");
    let ids: BTreeMap<&Path, BTreeSet<&str>> = all
        .iter()
        .map(|(path, text)| {
            let ids = id.captures_iter(text).filter_map(|it| it.get(1));
            (path.as_path(), ids.map(|it| it.as_str()).collect())
        })
        .collect();
    let (mut lost, mut seen) = (Vec::new(), 0);
    for (path, text) in &all {
        // The page to be printed has the links of all chapters as if it were each of them.
        if path.ends_with("print.html") {
            continue;
        }
        for found in link.captures_iter(text) {
            let to = &found[1];
            if to.contains("://") {
                continue;
            }
            seen += 1;
            let (file, anchor) = to.split_once('#').unwrap_or((to, ""));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.parent().expect("a folder").join(file)
            };
            let Ok(target) = target.canonicalize() else {
                lost.push(format!("{}: {to}", path.display()));
                continue;
            };
            let known = ids.get(target.as_path());
            if !anchor.is_empty() && !known.is_some_and(|ids| ids.contains(anchor)) {
                lost.push(format!("{}: {to}: no such heading", path.display()));
            }
        }
    }
    assert!(seen > 1_000, "only {seen} links");
    lost
}

#[test]
fn all_documents_are_chapters_and_no_link_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let book = folder.path().join("book");
    let made = erb_book::make(&root(), &book).expect("a book");
    let mut missing = Vec::new();
    for entry in ignore::Walk::new(root()) {
        let entry = entry.expect("an entry");
        let path = entry.path().strip_prefix(root()).expect("below it");
        let is_document = path.extension().is_some_and(|end| end == "md");
        let is_left_out = NO_CHAPTERS.iter().any(|of| Path::new(of) == path);
        if is_document && !is_left_out && !made.chapters.contains(path) {
            missing.push(path.to_owned());
        }
    }
    assert!(missing.is_empty(), "{}: add {missing:?}", erb_book::SUMMARY);
    let lost = lost(&book.canonicalize().expect("the book"));
    assert!(lost.is_empty(), "{}", lost.join("\n"));
    let first = fs::read_to_string(book.join("index.html")).expect("the first page");
    assert!(first.contains("unmodified redis-server"), "{first}");
    let source = fs::read_to_string(book.join("sources/bpf/splice/lane.h.html")).expect("a source");
    assert!(
        source.contains("id=\"L1\"") && source.contains("&lt;"),
        "{source}"
    );
}

#[test]
fn a_folder_that_is_no_book_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("mine"), "").expect("a file");
    let refused = erb_book::make(&root(), folder.path()).expect_err("it is somebody's");
    assert!(refused.to_string().contains("no book"), "{refused}");
    assert!(folder.path().join("mine").exists());
}
