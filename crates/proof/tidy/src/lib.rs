// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tests of the sources themselves (`tests/tidy`): style that a compiler does not check, licences,
//! what the documents name. And [`generated`], by which any crate's test compares a table of a
//! document with what it is generated from.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Set to 1: tables are written anew instead of compared.
const RECORD: &str = "ERB_RECORD";

/// The folder with the workspace's Cargo.toml.
#[must_use]
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    fs::canonicalize(&root).unwrap_or(root)
}

/// Compares what stands in `document` (from the root) between `<!-- begin NAME -->` and
/// `<!-- end NAME -->` with `text`; writes it there if `ERB_RECORD=1`.
///
/// # Errors
/// What is wrong and what to do, in a sentence.
pub fn generated(document: &str, name: &str, text: &str) -> Result<(), String> {
    let path = root().join(document);
    let old = fs::read_to_string(&path).map_err(|error| format!("{document}: {error}"))?;
    let new = replaced(&old, name, text)
        .ok_or_else(|| format!("{document} lacks the marks `begin {name}` and `end {name}`"))?;
    if new == old {
        return Ok(());
    }
    if env::var_os(RECORD).is_some_and(|value| value == "1") {
        return fs::write(&path, new).map_err(|error| format!("{document}: {error}"));
    }
    Err(format!(
        "{document}: `{name}` is not what it is generated from: run this test with {RECORD}=1"
    ))
}

fn replaced(old: &str, name: &str, text: &str) -> Option<String> {
    let begin = format!("<!-- begin {name} -->\n");
    let end = format!("<!-- end {name} -->\n");
    let (before, rest) = old.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::replaced;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let old = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n";
        let new = replaced(old, "x", "new\n");
        assert_eq!(
            new.as_deref(),
            Some("a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n")
        );
        assert_eq!(replaced(old, "y", "new\n"), None);
    }
}
