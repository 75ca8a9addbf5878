// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links of a document to files of the tree.

use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag};

/// A link to a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// Its path as it is written, without what stands behind `#`.
    pub path: &'a str,
    /// Where that begins in the text, in bytes.
    pub at: usize,
}

/// All of a text but those to sites and within the document itself.
#[must_use]
pub fn of(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event else {
            continue;
        };
        let path = dest_url.split('#').next().unwrap_or_default();
        if path.is_empty() || path.contains("://") {
            continue;
        }
        // Behind the words of the link, which may name the same file.
        let link = &text[range.clone()];
        let Some(begin) = link.rfind("](").map(|at| at + 2) else {
            continue;
        };
        if let Some(written) = link.get(begin..begin + path.len()) {
            found.push(Link {
                path: written,
                at: range.start + begin,
            });
        }
    }
    found
}

/// A link's target as seen from the root; nothing if it is beyond that.
#[must_use]
pub fn normal(document: &Path, link: &str) -> Option<PathBuf> {
    let mut path = document.parent()?.to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_where_they_stand() {
        let text = "# A\n[b.md](b.md#c), `[no](link.md)`, [here](#a), [site](https://a.example/b.md)\n\n\
                    | x |\n| --- |\n| [`d`](../d/e.h) |\n\n```\n[no](code.md)\n```\n";
        let found = of(text);
        let paths: Vec<&str> = found.iter().map(|link| link.path).collect();
        assert_eq!(paths, ["b.md", "../d/e.h"]);
        for link in found {
            assert_eq!(&text[link.at..link.at + link.path.len()], link.path);
            assert_eq!(&text[link.at - 2..link.at], "](");
        }
    }

    #[test]
    fn a_target_is_seen_from_the_root() {
        let document = Path::new("docs/operating/boost.md");
        let from = |link| normal(document, link);
        assert_eq!(from("limits.md"), Some("docs/operating/limits.md".into()));
        assert_eq!(from("../../bpf/a.h"), Some("bpf/a.h".into()));
        assert_eq!(from("../.././x"), Some("x".into()));
        assert_eq!(from("../../../beyond"), None);
        assert_eq!(from("/etc/passwd"), None);
    }
}
