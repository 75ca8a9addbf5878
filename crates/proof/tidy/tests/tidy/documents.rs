// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The documents: links lead somewhere, commands exist.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};

use crate::assert_none;
use crate::files::{self, File};

fn documents() -> Vec<File> {
    let mut files = files::all();
    files.retain(|file| file.is(&[".md"]));
    files
}

#[test]
fn links_lead_somewhere() {
    let (seen, complaints) = complaints(&files::root(), &documents());
    assert!(seen > 5, "only {seen} links found");
    assert_none("every link leads somewhere", &complaints);
}

/// Nothing of what users install leads out of it.
#[test]
fn links_of_packed_documents_lead_somewhere() {
    let packed = tempfile::tempdir().expect("a folder");
    let root = packed.path();
    let units = root.join("usr/lib/systemd/system");
    std::fs::create_dir_all(&units).expect("a folder");
    let here = files::root();
    for unit in std::fs::read_dir(here.join("dist/systemd")).expect("units") {
        let unit = unit.expect("a unit");
        std::fs::copy(unit.path(), units.join(unit.file_name())).expect("a copy");
    }
    let folder = root.join("usr/share/doc/erb");
    let mut command = Command::new(here.join("scripts/documents"));
    let output = command.arg(&folder).output().expect("scripts/documents");
    assert!(output.status.success(), "{output:?}");
    let packed: Vec<File> = files::below(root)
        .into_iter()
        .filter(|file| file.is(&[".md"]))
        .collect();
    let has = |name: &str| {
        let name = format!("usr/share/doc/erb/{name}");
        packed.iter().any(|file| file.name == name)
    };
    assert!(has("README.md") && has("docs/operating/limits.md"));
    assert!(!has("docs/operating/lab-and-checks.md"), "it needs erb-lab");
    let (seen, complaints) = complaints(root, &packed);
    assert!(seen > 50, "only {seen} links found");
    assert_none("every link of a package leads somewhere in it", &complaints);
}

/// How many links these files have, and what is wrong with them.
fn complaints(root: &Path, files: &[File]) -> (usize, Vec<String>) {
    let root = &root.canonicalize().expect("a folder");
    let mut complaints = Vec::new();
    let mut seen = 0;
    for file in files {
        for event in Parser::new(&file.text) {
            let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event
            else {
                continue;
            };
            if dest_url.contains("://") || dest_url.starts_with("mailto:") {
                continue;
            }
            seen += 1;
            if let Some(problem) = follow(root, file, &dest_url) {
                complaints.push(format!("{}: ({dest_url}): {problem}", file.name));
            }
        }
    }
    (seen, complaints)
}

/// What is wrong with a link of `file`, if anything.
fn follow(root: &Path, file: &File, link: &str) -> Option<String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let here = root.join(&file.name);
    let target = if path.is_empty() {
        here
    } else {
        here.parent()?.join(path)
    };
    if !target
        .canonicalize()
        .is_ok_and(|target| target.starts_with(root))
    {
        return Some("no such file".to_owned());
    }
    if anchor.is_empty() {
        return None;
    }
    let text = std::fs::read_to_string(&target).unwrap_or_default();
    let anchors = anchors(&text);
    (!anchors.iter().any(|known| known == anchor)).then(|| "no such heading".to_owned())
}

/// Anchors of headings as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors = Vec::new();
    let mut heading: Option<String> = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(HeadingLevel::H1 | HeadingLevel::H2 | HeadingLevel::H3)) => {
                let heading = heading.take().unwrap_or_default().to_lowercase();
                let kept = heading
                    .chars()
                    .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
                anchors.push(kept.collect::<String>().replace(' ', "-"));
            }
            _ => {}
        }
    }
    anchors
}

/// A document may only name commands and options that the program has.
#[test]
fn documented_commands_exist() {
    let mut erb = Erb::find();
    let mut complaints = Vec::new();
    let mut seen = 0;
    for file in documents() {
        for line in commands(&file.text) {
            seen += 1;
            for problem in erb.problems(&line) {
                complaints.push(format!("{}: `{line}`: {problem}", file.name));
            }
        }
    }
    assert!(seen > 5, "only {seen} commands found");
    assert_none("every documented command exists", &complaints);
}

/// `erb ...` from code blocks and code spans, without `sudo` and comments.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_block = false;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_block = true,
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Code(code) => found.extend(command(&code)),
            Event::Text(code) if in_block => found.extend(code.lines().filter_map(command)),
            _ => {}
        }
    }
    found
}

fn command(line: &str) -> Option<String> {
    let line = line.split(" # ").next()?.trim();
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    let line = line.strip_prefix("target/release/").unwrap_or(line);
    line.strip_prefix("erb ").map(|rest| rest.trim().to_owned())
}

/// The program, and the help texts that were asked for.
struct Erb {
    program: PathBuf,
    help: HashMap<Vec<String>, String>,
}

impl Erb {
    /// The newest build beside this test's.
    fn find() -> Self {
        let test = std::env::current_exe().expect("the test has a path");
        // target/PROFILE/deps/tidy-HASH
        let target = test.ancestors().nth(3).expect("a target folder");
        let built = |profile: &&str| {
            let program = target.join(profile).join("erb");
            let time = program.metadata().ok()?.modified().ok()?;
            Some((time, program))
        };
        let newest = ["debug", "release"].iter().filter_map(built).max();
        let (_, program) =
            newest.expect("erb is not built: run `cargo build -p erb -p erb-tools` first");
        Self {
            program,
            help: HashMap::new(),
        }
    }

    fn help(&mut self, words: &[String]) -> &str {
        let program = &self.program;
        self.help.entry(words.to_vec()).or_insert_with(|| {
            let output = Command::new(program).args(words).arg("--help").output();
            let output = output.expect("erb can be run");
            assert!(output.status.success(), "erb {words:?} --help fails");
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }

    /// Words and options of a command line that the help does not know.
    fn problems(&mut self, line: &str) -> Vec<String> {
        let mut path: Vec<String> = Vec::new();
        let mut problems = Vec::new();
        for word in line.split_whitespace() {
            let word = word.trim_matches(|letter| "[]|;,".contains(letter));
            if word == "--" || word == "..." {
                break;
            }
            if let Some(option) = word.strip_prefix("--") {
                let name = format!("--{}", option.split('=').next().unwrap_or_default());
                if !mentions(self.help(&path), &name) {
                    problems.push(format!("`erb {}` has no {name}", path.join(" ")));
                }
            } else if lists(self.help(&path), word) {
                path.push(word.to_owned());
            } else if path.is_empty() {
                problems.push(format!("there is no `erb {word}`"));
            }
        }
        problems
    }
}

/// Whether a help text has the option as a word of its own.
fn mentions(help: &str, option: &str) -> bool {
    help.split(|letter: char| !(letter.is_alphanumeric() || letter == '-'))
        .any(|word| word == option)
}

/// Whether a help text lists the word among its commands or tools.
fn lists(help: &str, word: &str) -> bool {
    ["Commands:", "Tools ("].into_iter().any(|heading| {
        let listed = help.lines().skip_while(|line| !line.starts_with(heading));
        let mut listed = listed.skip(1).take_while(|line| line.starts_with("  "));
        listed.any(|line| line.split_whitespace().next() == Some(word))
    })
}

#[test]
fn commands_are_found_in_documents() {
    let text = "Run `erb status --json`.\n\n```\nsudo erb boost --dev eth0 # why\nls\n```\n";
    assert_eq!(commands(text), ["status --json", "boost --dev eth0"]);
}

#[test]
fn headings_become_anchors() {
    let text = "# One packet's life\n\n## `erb` and *more*, 2\n";
    assert_eq!(anchors(text), ["one-packets-life", "erb-and-more-2"]);
}

#[test]
fn help_texts_are_read() {
    let help =
        "Usage: x\n\nCommands:\n  up    Make\n  down  End\n\nOptions:\n      --json  Print\n";
    assert!(lists(help, "up") && lists(help, "down"));
    assert!(!lists(help, "--json") && !lists(help, "Make"));
    assert!(mentions(help, "--json") && !mentions(help, "--js"));
}
