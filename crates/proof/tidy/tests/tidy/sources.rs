// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules for single lines of source.

use regex::Regex;

use crate::assert_none;
use crate::files::{self, File};

const SPDX: &str = "SPDX-License-Identifier: ";
/// Lines above an `unsafe` in which its reason may begin.
const SAFETY_LINES: usize = 12;
/// This crate's files name what they forbid.
const OWN: &str = "crates/proof/tidy/";

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

/// Complaints about all lines that match.
fn lines_with(files: &[File], pattern: &Regex, instead: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| !file.name.starts_with(OWN)) {
        for (number, line) in file.lines() {
            if let Some(found) = pattern.find(line) {
                let found = found.as_str();
                complaints.push(format!("{}:{number}: `{found}`: {instead}", file.name));
            }
        }
    }
    complaints
}

/// A reader of one file can tell under which terms it may be used.
#[test]
fn every_source_names_its_licence() {
    let mut complaints = Vec::new();
    for file in files::sources() {
        // A shell script begins with its interpreter.
        let head: Vec<&str> = file.text.lines().take(2).collect();
        let Some(found) = head.iter().find_map(|line| line.split_once(SPDX)) else {
            complaints.push(format!("{}:1: no `{SPDX}` line", file.name));
            continue;
        };
        let licence = found.1.trim_end_matches("*/").trim();
        let in_kernel = ["bpf/", "kmod/"]
            .iter()
            .any(|begin| file.name.starts_with(begin));
        let wanted: &[&str] = if in_kernel || file.name.contains("/bpf/") {
            &["GPL-2.0", "GPL-2.0 OR Apache-2.0"]
        } else {
            &["Apache-2.0 OR MIT"]
        };
        if !wanted.contains(&licence) {
            complaints.push(format!("{}:1: {licence}, not {wanted:?}", file.name));
        }
    }
    assert_none("a source says its licence at its head", &complaints);
}

/// What is left to do is an issue, not a comment; what is switched off is removed.
#[test]
fn nothing_is_left_over() {
    let files = files::all();
    let words = regex(r"\b(TODO|FIXME|XXX|HACK)\b");
    let mut complaints = lines_with(&files, &words, "finish it or open an issue");
    let sources = files::sources();
    let calls = regex(r"\b(todo|unimplemented|dbg)!\s*\(|#\[ignore\b");
    complaints.extend(lines_with(
        &sources,
        &calls,
        "does not belong into the tree",
    ));
    assert_none("nothing is left over", &complaints);
}

/// The repository builds everywhere or nowhere.
#[test]
fn no_path_of_somebodys_machine() {
    let paths = regex(r"/(home|Users|work|workspace)/[A-Za-z0-9_.-]+|/root/\.");
    let complaints = lines_with(&files::all(), &paths, "a path of one machine");
    assert_none("no file names a path of one machine", &complaints);
}

/// clippy checks blocks; this holds for `unsafe impl` and `unsafe fn` too.
#[test]
fn every_unsafe_has_its_reason() {
    let unsafe_use = regex(r"\bunsafe\s+(impl|fn|extern)\b|\bunsafe\s*\{");
    let reason = regex(r"SAFETY:|# Safety");
    let mut complaints = Vec::new();
    let mut seen = 0;
    for file in files::sources() {
        if !file.is(&[".rs"]) || file.name.starts_with(OWN) {
            continue;
        }
        let lines: Vec<&str> = file.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !unsafe_use.is_match(code) {
                continue;
            }
            seen += 1;
            let from = index.saturating_sub(SAFETY_LINES);
            if !lines[from..=index].iter().any(|line| reason.is_match(line)) {
                complaints.push(format!("{}:{}: no SAFETY line", file.name, index + 1));
            }
        }
    }
    assert!(seen > 0, "no unsafe found: the pattern is wrong");
    assert_none("every unsafe says why it is sound", &complaints);
}

/// What a map holds, who writes it and what happens when it is full is part of the design.
#[test]
fn every_map_has_a_comment() {
    let (mut complaints, mut seen) = (Vec::new(), 0);
    for file in files::sources() {
        if !file.name.starts_with("bpf/") || !file.is(&["/maps.h"]) {
            continue;
        }
        // Maps of one purpose may stand below one comment, without an empty line.
        for paragraph in file.text.split("\n\n") {
            let count = paragraph.matches("SEC(\".maps\")").count();
            seen += count;
            if count > 0 && !paragraph.trim_start().starts_with("/*") {
                let name = paragraph.lines().last().unwrap_or_default();
                complaints.push(format!("{}: no comment above `{name}`", file.name));
            }
        }
    }
    assert!(seen > 5, "only {seen} maps found");
    assert_none("every shared map has a comment", &complaints);
}

/// Limits live in one place, each with its reason.
#[test]
fn every_limit_has_a_reason() {
    let limits = files::sources();
    let limits = limits.iter().find(|file| file.name == "bpf/base/limits.h");
    let limits = limits.expect("bpf/base/limits.h is there");
    let mut complaints = Vec::new();
    for (number, line) in limits.lines() {
        // The size classes and ways share the comment above them.
        let shared = line.contains("CLASS") || line.contains("WAYS") || line.ends_with('\\');
        if line.starts_with("#define") && !shared && !line.contains("/*") {
            complaints.push(format!(
                "bpf/base/limits.h:{number}: no reason beside {line:?}"
            ));
        }
    }
    assert_none("every limit has its reason beside it", &complaints);
}

/// Sections of a manifest, by heading, that say this, as cargo reads it: spaces and comments do not count.
fn sections_with<'a>(manifest: &'a str, said: &str) -> Vec<&'a str> {
    let mut heading = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        let content = line.split('#').next().unwrap_or_default();
        let content: String = content.split_whitespace().collect();
        if content.starts_with('[') {
            heading = line.trim();
        } else if content == said {
            found.push(heading);
        }
    }
    found
}

/// Of each crate whose manifest says this: the folder of its sources, the section that says it, and the sources.
fn crates_with(said: &str) -> Vec<(String, String, Vec<files::File>)> {
    let sources = files::sources();
    let mut found = Vec::new();
    for file in files::all() {
        let Some(folder) = file.name.strip_suffix("Cargo.toml") else {
            continue;
        };
        let folder = format!("{folder}src/");
        for heading in sections_with(&file.text, said) {
            let inside = sources.iter().filter(|it| it.name.starts_with(&folder));
            found.push((
                folder.clone(),
                heading.to_owned(),
                inside.cloned().collect(),
            ));
        }
    }
    found
}

/// A unit test in a crate that builds no program of unit tests would never run.
#[test]
fn every_unit_test_has_a_program() {
    let mut complaints = Vec::new();
    for (folder, heading, sources) in crates_with("test=false") {
        let is = |it: &files::File, name: &str| it.name == format!("{folder}{name}");
        let has_lib = sources.iter().any(|it| is(it, "lib.rs"));
        let has_test = sources.iter().find(|it| {
            let of_bin = !has_lib || is(it, "main.rs");
            of_bin == (heading == "[[bin]]") && it.text.contains("#[test]")
        });
        complaints.extend(has_test.map(|it| format!("{}: {heading} has test = false", it.name)));
    }
    assert_none("every unit test has a program", &complaints);
}

/// What marks a block of code in a comment as Rust, besides nothing (rustdoc: "attributes").
const MARKS_OF_RUST: [&str; 5] = ["rust", "no_run", "should_panic", "compile_fail", "edition"];

/// Lines on which an example in a comment begins: a block of code that rustdoc would compile.
fn examples(source: &str) -> Vec<usize> {
    let (mut inside, mut found) = (None, Vec::new());
    for (at, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let mut marks = ["//!", "///", "/**", "/*!", "*"].into_iter();
        let Some(text) = marks.find_map(|it| line.strip_prefix(it)) else {
            continue;
        };
        let text = text.trim_start().trim_start_matches(['-', '>', ' ']);
        let fence = ["```", "~~~"].into_iter().find(|it| text.starts_with(it));
        match (inside, fence) {
            (None, Some(fence)) => {
                let mark = text[fence.len()..].trim();
                let is_rust = |word: &str| MARKS_OF_RUST.iter().any(|it| word.starts_with(it));
                if mark
                    .split([',', ' '])
                    .all(|word| word.is_empty() || is_rust(word))
                {
                    found.push(at + 1);
                }
                inside = Some(fence);
            }
            (Some(opened), Some(fence)) if opened == fence => inside = None,
            _ => (),
        }
    }
    found
}

/// An example in a comment of a crate whose comments are not tested would never be compiled.
#[test]
fn every_example_is_compiled() {
    let mut complaints = Vec::new();
    let crates = crates_with("doctest=false");
    for source in crates.iter().flat_map(|(.., sources)| sources) {
        let said = |line| format!("{}:{line}: its crate has doctest = false", source.name);
        complaints.extend(examples(&source.text).into_iter().map(said));
    }
    assert_none("every example in a comment is compiled", &complaints);
}

#[test]
fn sections_and_examples_are_found() {
    let both = "[lib]\ntest = false\n[[bin]]\nname = \"a\"\ntest=false # why\n";
    assert_eq!(sections_with(both, "test=false"), ["[lib]", "[[bin]]"]);
    assert_eq!(
        sections_with("[lib]\ndoctest = false\n", "test=false"),
        [""; 0]
    );
    let source = "//! ```text\n//! a\n//! ```\n  /// ```no_run\n/// f();\n/// ```\n/// ```\n/// ```\n\
        /// - ~~~rust,edition2021\n/// ```\n/// ~~~\n/** ``` text\n * ```\n/// ```json\n/// ```\n";
    assert_eq!(examples(source), [4, 7, 9]);
}
