// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The protocols of `litmus` on arm64: what each file calls bad must be impossible, and possible in
//! its broken twins, which show that the test can see it. A small machine of our own decides; where
//! herd7 (herdtools7, with Arm's own model) is installed, it must agree.

mod machine;
mod parse;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use machine::bad_is_possible;
use parse::Litmus;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("litmus")
}

/// All files: name without ending, text.
fn files() -> Vec<(String, String)> {
    let mut files: Vec<_> = fs::read_dir(folder())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy();
            (
                name.into_owned(),
                fs::read_to_string(&path).expect("a file"),
            )
        })
        .collect();
    files.sort();
    files
}

fn is_broken(name: &str) -> bool {
    name.contains(".broken-")
}

#[test]
fn each_protocol_holds_and_its_broken_twins_do_not() {
    for (name, text) in files() {
        let litmus = Litmus::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(litmus.name, name);
        assert_eq!(bad_is_possible(&litmus), is_broken(&name), "{name}");
    }
}

#[test]
fn each_protocol_has_a_twin_about_the_same() {
    let files = files();
    let condition = |text: &str| text.lines().last().map(str::to_owned);
    for (name, text) in files.iter().filter(|(name, _)| !is_broken(name)) {
        let twins: Vec<_> = files
            .iter()
            .filter(|(twin, _)| twin.starts_with(&format!("{name}.broken-")))
            .collect();
        assert!(!twins.is_empty(), "{name} has no twin");
        for (twin, of_twin) in twins {
            assert_eq!(condition(of_twin), condition(text), "{twin}");
        }
    }
    assert!(files.iter().filter(|(name, _)| !is_broken(name)).count() >= 8);
}

#[test]
fn herd7_agrees() {
    let Ok(version) = Command::new("herd7").arg("-version").output() else {
        erb_steady::skipped("herd7 (herdtools7) is not installed, nor has Debian a package of it");
        return;
    };
    println!("herd7 {}", String::from_utf8_lossy(&version.stdout).trim());
    for (name, _) in files() {
        let done = Command::new("herd7")
            .arg(folder().join(format!("{name}.litmus")))
            .output()
            .expect("herd7 runs");
        let said = String::from_utf8_lossy(&done.stdout);
        let verdict = if is_broken(&name) {
            "Sometimes"
        } else {
            "Never"
        };
        assert!(
            said.contains(&format!("Observation {name} {verdict} ")),
            "{name}: {said}{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}
