// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this crate's tests use: test programs that are shell scripts, folders and repositories.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::programs::Program;
use crate::results::git;
use crate::run::Job;

/// A folder that is removed when this is dropped.
pub struct Folder(PathBuf);

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of it is the system's to remove.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A new folder.
pub fn folder(name: &str) -> Folder {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("erb-harness-{name}-{}-{count}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    Folder(folder)
}

/// Makes `folder/name` a shell script.
pub fn script(folder: &Path, name: &str, words: &str) -> PathBuf {
    let path = folder.join(name);
    // Another process writes it: a descriptor of this one, in a child that another thread forks meanwhile,
    // would keep the file from being run (ETXTBSY).
    let write = "printf '%s\\n' '#!/bin/bash' \"$1\" >\"$2\" && chmod 700 \"$2\"";
    let mut sh = Command::new("sh");
    let written = sh.args(["-c", write, "sh", words]).arg(&path).status();
    assert!(written.expect("sh").success());
    path
}

/// A test program `package::fake` that is this shell script; the test that it is to run is its second word.
pub fn program(folder: &Path, package: &str, words: &str) -> Program {
    Program {
        package: package.to_owned(),
        target: Some("fake".to_owned()),
        path: script(folder, package, words),
        folder: folder.to_owned(),
    }
}

/// A program with this name that tells nothing.
pub fn named(package: &str, target: Option<&str>) -> Program {
    Program {
        package: package.to_owned(),
        target: target.map(str::to_owned),
        path: "/bin/true".into(),
        folder: "/".into(),
    }
}

/// The job of these tests.
pub fn job<'a>(program: &'a Program, tests: &[&str]) -> Job<'a> {
    Job::new(program, tests.iter().map(|it| (*it).to_owned()).collect())
}

/// A folder with an empty repository.
pub fn repository(name: &str) -> Folder {
    let root = folder(name);
    for words in [
        &["init", "--quiet"][..],
        &["config", "user.name", "x"],
        &["config", "user.email", "x@example.org"],
    ] {
        git(&root, words).expect("git");
    }
    root
}
