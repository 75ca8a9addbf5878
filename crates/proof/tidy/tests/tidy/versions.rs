// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ERB needs is said in `scripts/versions`; whoever says it again says the same.

use regex::Regex;

use crate::assert_none;
use crate::files::{self, File};

/// Where a version is said again: its name, the files (by their ending), the words around it. A
/// bracket is a number of it.
const SAID_AGAIN: [(&str, &[&str], &str); 9] = [
    ("ERB_RUST_MIN", &[".md"], r"cargo (\d+)\.(\d+) or\s+newer"),
    ("ERB_KERNEL_MIN", &[".md"], r"Linux (\d+)\.(\d+) or\s+newer"),
    ("ERB_KERNEL_MIN", &[".md"], r"states Linux (\d+)\.(\d+)"),
    (
        "ERB_KERNEL_MIN",
        &[".rs"],
        r"const KERNEL_MIN: \(u32, u32\) = \((\d+), (\d+)\)",
    ),
    (
        "ERB_KERNEL_MIN",
        &["crates/tools/vm/src/lib.rs"],
        r"Wanted::Series\(\((\d+), (\d+)\)\)",
    ),
    ("ERB_KERNEL_MIN", &["scripts/step"], r"oldest=(\d+)\.(\d+)"),
    (
        "ERB_REDIS_MIN",
        &[".md"],
        r"Redis[ |]+(\d+)\.(\d+) or\s+newer",
    ),
    (
        "ERB_REDIS_MIN",
        &[".rs"],
        r"const VERSION_MIN: \(u32, u32\) = \((\d+), (\d+)\)",
    ),
    (
        "ERB_CLANG_TRIED",
        &[
            ".md", ".rs", ".sh", "sanitize", "fuzz", "test", "run", "step",
        ],
        r"\b(?:lib)?clang(?:1|-format|-rt)?-(\d+)\b",
    ),
];

fn version<'a>(versions: &'a File, name: &str) -> &'a str {
    let of = |line: &'a str| line.strip_prefix(name)?.strip_prefix('=');
    let found = versions.text.lines().find_map(of);
    found.unwrap_or_else(|| panic!("{} has no {name}", versions.name))
}

#[test]
fn versions_are_said_alike() {
    let files = files::all();
    let versions = files.iter().find(|file| file.name == "scripts/versions");
    let versions = versions.expect("scripts/versions");
    let mut complaints = Vec::new();
    for (name, endings, words) in SAID_AGAIN {
        let wanted = version(versions, name);
        let words = Regex::new(words).expect("an expression");
        let mut seen = 0;
        for file in files.iter().filter(|file| file.is(endings)) {
            for found in words.captures_iter(&file.text) {
                seen += 1;
                let numbers: Vec<&str> =
                    found.iter().skip(1).flatten().map(|m| m.as_str()).collect();
                if numbers.join(".") != wanted {
                    complaints.push(format!(
                        "{}: {:?}: {name} is {wanted}",
                        file.name, &found[0]
                    ));
                }
            }
        }
        if seen == 0 {
            complaints.push(format!(
                "nobody says {name} as {words} has it: mend this test"
            ));
        }
    }
    assert_none("versions are those of scripts/versions", &complaints);
}
