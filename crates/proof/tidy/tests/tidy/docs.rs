// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What documents and comments cite is in the tree; what is read first is short.

use std::collections::{BTreeSet, HashSet};

use erb_watch::declared::{METRICS, Metric};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use regex::Regex;

use crate::assert_none;
use crate::files::{self, File};

/// Words of README: a page and a half.
const README_WORDS_MAX: usize = 700;
/// Words of a sentence in what an operator or a newcomer reads. The aim is 25.
const SENTENCE_WORDS_MAX: usize = 40;
/// Where the traps stand.
const TRAPS: [&str; 2] = ["docs/internals/traps.md", "docs/internals/edges.md"];
/// Where those of the storage node do, with their tests.
const NODE_TRAPS: [&str; 3] = [
    "docs/internals/store.md",
    "docs/internals/node.md",
    "docs/internals/nvme.md",
];
/// They are about the Redis protocol of the storage node, which is not built.
const RESP_TRAPS: [u32; 5] = [48, 49, 50, 51, 72];
/// This crate's files name what they forbid.
const OWN: &str = "crates/proof/tidy/";

/// Begins of files of Linux, Redis and libbpf that comments cite.
const FOREIGN: [&str; 6] = ["include/", "linux/", "net/", "src/", "kernel/", "bpf/bpf"];
/// Files of others, and of a build, without a folder. docs.rs and rustup.rs are sites.
const FOREIGN_FILES: [&str; 5] = [
    "bpf_helpers.h",
    "layout.rs",
    "reasons.rs",
    "docs.rs",
    "rustup.rs",
];

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

fn documents(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.is(&[".md"]))
}

/// The text of a file in which others are cited: of a document all of it, of a source its comments.
fn prose(file: &File) -> Vec<(usize, String)> {
    if file.is(&[".md"]) {
        return file.lines().map(|(n, line)| (n, line.to_owned())).collect();
    }
    if file.is(&[".c", ".h", ".def"]) {
        return c_comments(file);
    }
    let mark = if file.is(&[".rs"]) { "//" } else { "#" };
    let comment = |(n, line): (usize, &str)| Some((n, line_comment(line, mark)?.to_owned()));
    file.lines().filter_map(comment).collect()
}

/// What stands behind the mark, if it is in no string.
fn line_comment<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let found = line.match_indices(mark).find(|(at, _)| {
        let before = &line[..*at];
        before.matches('"').count() % 2 == 0 && !before.ends_with(':')
    });
    found.map(|(at, _)| &line[at..])
}

fn c_comments(file: &File) -> Vec<(usize, String)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        let mut rest = line;
        let mut comment = String::new();
        loop {
            let mark = if inside { "*/" } else { "/*" };
            let Some((before, after)) = rest.split_once(mark) else {
                break;
            };
            if inside {
                comment.push_str(before);
                comment.push(' ');
            }
            inside = !inside;
            rest = after;
        }
        if inside {
            comment.push_str(rest);
        }
        found.push((number, comment));
    }
    found
}

/// Whether a file of the tree has this name, or a path that ends in it.
fn is_there(names: &HashSet<&str>, cited: &str) -> bool {
    names.contains(cited)
        || names
            .iter()
            .any(|name| name.ends_with(&format!("/{cited}")))
}

/// A reader who looks for the file that a comment names finds it.
#[test]
fn named_files_exist() {
    let files = files::all();
    let names: HashSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let name = regex(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\.(?:h|rs|md|def)\b");
    let (mut complaints, mut seen) = (Vec::new(), 0);
    for file in files.iter().filter(|file| !file.name.starts_with(OWN)) {
        let sources = [".rs", ".c", ".h", ".def", ".md", ".sh"];
        if !file.is(&sources) && !file.text.starts_with("#!") {
            continue;
        }
        for (number, line) in prose(file) {
            for found in name.find_iter(&line) {
                seen += 1;
                let cited = found
                    .as_str()
                    .trim_start_matches("../")
                    .trim_start_matches("./");
                let cited = cited.rsplit_once("../").map_or(cited, |(_, rest)| rest);
                let foreign = FOREIGN.iter().any(|begin| cited.starts_with(begin))
                    || FOREIGN_FILES.contains(&cited);
                if !is_there(&names, cited) && !foreign {
                    complaints.push(format!("{}:{number}: no file {cited}", file.name));
                }
            }
        }
    }
    assert!(seen > 500, "only {seen} names found");
    assert_none(
        "what a comment or a document names is in the tree",
        &complaints,
    );
}

/// All words of the code, and of what is no document.
fn code_of(files: &[File]) -> HashSet<&str> {
    let code = files
        .iter()
        .filter(|file| !file.is(&[".md"]) && !file.name.starts_with(OWN));
    code.flat_map(|file| {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
        file.text.split(move |letter| !is_word(letter))
    })
    .collect()
}

/// Functions, fields, tests, scenarios and mutations that a document names are in the code.
#[test]
fn names_in_documents_exist() {
    let files = files::all();
    let code = code_of(&files);
    let name = regex(r"^[A-Za-z][a-z0-9A-Z]*(?:[_-][A-Za-z0-9]+)+$");
    // Put together from a name, a unit and a type.
    let metrics = [METRICS, erb_watch::node::METRICS, erb_watch::serve::METRICS].concat();
    let metrics = metrics.iter().map(Metric::full_name).collect::<Vec<_>>();
    let (mut complaints, mut seen) = (Vec::new(), 0);
    for file in documents(&files) {
        for event in Parser::new_ext(&file.text, Options::ENABLE_TABLES) {
            let Event::Code(span) = event else { continue };
            let word = span.trim_end_matches("()");
            let word = word.rsplit(['.', ':']).next().unwrap_or(word);
            if !name.is_match(word) || span.contains(' ') {
                continue;
            }
            seen += 1;
            let generated = ["FAST_KIND_", "STAT_"]
                .iter()
                .any(|begin| word.starts_with(begin));
            if !code.contains(word) && !generated && !metrics.iter().any(|name| name == word) {
                complaints.push(format!("{}: `{span}`", file.name));
            }
        }
    }
    assert!(seen > 300, "only {seen} names found");
    assert_none("what a document names is in the code", &complaints);
}

/// Each trap of the storage node names a test that is there, or a rule whose absence one finds.
#[test]
fn traps_of_the_storage_node_name_their_tests() {
    let files = files::all();
    let row = regex(r"(?m)^\| (\d+(?:(?: to |, )\d+)*) \| (.+) \|$");
    let number = regex(r"(\d+)(?: to (\d+))?");
    let test = regex(r"#\[test\]\s+fn ([a-z0-9_]+)");
    let (name, rule) = (
        regex(r"`([a-z0-9_]+)`"),
        regex(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b"),
    );
    let sources = || files.iter().filter(|file| file.is(&[".rs"]));
    let tests: HashSet<&str> = sources()
        .flat_map(|file| test.captures_iter(&file.text))
        .filter_map(|found| Some(found.get(1)?.as_str()))
        .collect();
    let rules = sources().find(|file| file.name.ends_with("store/src/mistake.rs"));
    let rules = rules.map_or("", |file| &file.text);
    let (mut complaints, mut shown) = (Vec::new(), BTreeSet::new());
    for file in files
        .iter()
        .filter(|it| NODE_TRAPS.contains(&it.name.as_str()))
    {
        for found in row.captures_iter(&file.text) {
            let (numbers, cell) = (&found[1], &found[2]);
            let mut named = name.captures_iter(cell);
            let has_test = named.any(|it| tests.contains(&it[1]));
            let mut left_out = rule.find_iter(cell);
            if !has_test && !left_out.any(|it| rules.contains(&format!("    {},\n", it.as_str()))) {
                complaints.push(format!("{}: trap {numbers}: {cell}", file.name));
            }
            for range in number.captures_iter(numbers) {
                let of = |at: usize| range.get(at).and_then(|it| it.as_str().parse::<u32>().ok());
                let from = of(1).unwrap_or(0);
                shown.extend(from..=of(2).unwrap_or(from));
            }
        }
    }
    let lacks = (1..=80).filter(|it| !shown.contains(it) && !RESP_TRAPS.contains(it));
    complaints.extend(lacks.map(|it| format!("trap {it} has no test")));
    assert_none("each trap of the storage node names a test", &complaints);
}

/// A trap is cited by its name, and stands in the documents.
#[test]
fn cited_traps_exist() {
    let files = files::all();
    let heading = regex(r"(?m)^### ([TCE]-\d+) ");
    let mut known = BTreeSet::new();
    for file in files
        .iter()
        .filter(|file| TRAPS.contains(&file.name.as_str()))
    {
        for found in heading.captures_iter(&file.text) {
            assert!(
                known.insert(found[1].to_owned()),
                "{} stands twice",
                &found[1]
            );
        }
    }
    assert!(known.len() > 100, "only {} traps found", known.len());
    let cited = regex(r"\b[TCE]-\d+\b");
    let old = regex(
        r"(?i)tcp-traps|\b(?:tcp|coherence) traps? \d|\bfindings? \d|fast-path design|the issues?'|see the design",
    );
    let (mut complaints, mut seen) = (Vec::new(), 0);
    for file in files.iter().filter(|file| !file.name.starts_with(OWN)) {
        for (number, line) in file.lines() {
            for found in cited.find_iter(line) {
                seen += 1;
                if !known.contains(found.as_str()) {
                    complaints.push(format!(
                        "{}:{number}: no trap {}",
                        file.name,
                        found.as_str()
                    ));
                }
            }
            if let Some(found) = old.find(line) {
                let found = found.as_str();
                complaints.push(format!("{}:{number}: `{found}` leads nowhere", file.name));
            }
        }
    }
    assert!(seen > 200, "only {seen} citations found");
    assert_none("a cited trap stands in docs/internals", &complaints);
}

/// Who has a minute reads it all.
#[test]
fn readme_is_short() {
    let files = files::all();
    let readme = files
        .iter()
        .find(|file| file.name == "README.md")
        .expect("README.md");
    let words = readme.text.split_whitespace().count();
    assert!(words <= README_WORDS_MAX, "README.md has {words} words");
}

/// Sentences of a document: of paragraphs, list items, headings and cells; code blocks are none.
fn sentences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block = String::new();
    let mut in_code = false;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Text(text) | Event::Code(text) if !in_code => block.push_str(&text),
            Event::SoftBreak | Event::HardBreak => block.push(' '),
            Event::Start(Tag::Paragraph | Tag::Item | Tag::TableCell)
            | Event::End(
                TagEnd::Paragraph | TagEnd::Item | TagEnd::TableCell | TagEnd::Heading(_),
            ) => split(&mut found, &std::mem::take(&mut block)),
            _ => {}
        }
    }
    split(&mut found, &block);
    found
}

fn split(found: &mut Vec<String>, block: &str) {
    let mut sentence = String::new();
    for word in block.split_whitespace() {
        sentence.push_str(word);
        sentence.push(' ');
        if word
            .trim_end_matches([')', '"', '*'])
            .ends_with(['.', '?', '!'])
        {
            found.push(std::mem::take(&mut sentence));
        }
    }
    if !sentence.is_empty() {
        found.push(sentence);
    }
}

/// A tired reader understands a sentence at once, or not at all.
#[test]
fn sentences_are_short() {
    let files = files::all();
    let (mut complaints, mut seen) = (Vec::new(), 0);
    for file in documents(&files) {
        let name = file.name.as_str();
        let root = ["README.md", "ARCHITECTURE.md", "GLOSSARY.md"].contains(&name);
        if !root && !name.starts_with("docs/operating/") {
            continue;
        }
        for sentence in sentences(&file.text) {
            seen += 1;
            let words = sentence.split_whitespace().count();
            if words > SENTENCE_WORDS_MAX {
                complaints.push(format!("{name}: {words} words: {sentence}"));
            }
        }
    }
    assert!(seen > 300, "only {seen} sentences found");
    assert_none("a sentence has forty words at most", &complaints);
}

#[test]
fn sentences_end_where_they_end() {
    let text = "# One\n\nTwo words. Three `a.b` words? Four\n\n- five\n\n```\ncode. code.\n```\n";
    let found = sentences(text);
    assert_eq!(
        found,
        ["One ", "Two words. ", "Three a.b words? ", "Four ", "five "]
    );
}

#[test]
fn comments_are_told_from_code() {
    let file = |name: &str, text: &str| File {
        name: name.to_owned(),
        text: text.to_owned(),
    };
    let c = prose(&file(
        "a.h",
        "#include \"a.h\" /* b.h */\n/* c.h\n * d.h */ int e;\n",
    ));
    let c: String = c.into_iter().map(|line| line.1).collect();
    assert!(!c.contains("a.h") && c.contains("b.h") && c.contains("d.h") && !c.contains("int"));
    let rust = prose(&file("a.rs", "let a = \"x // y\"; // z\nlet b = 1;\n"));
    assert_eq!(rust, [(1, "// z".to_owned())]);
}
