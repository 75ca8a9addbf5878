// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs in C that ask functions of the data path for all that can be asked, with the sources as they are and
//! with mistakes in them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use erb_sim_kernel::Library;

/// What such a program has counted.
#[derive(Debug)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// # Panics
    /// If it has not counted that.
    pub fn of(&self, name: &str) -> u64 {
        *self
            .0
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

/// How it is compiled. What says "wrong" soon is not worth an optimised build.
#[derive(Clone, Copy)]
pub enum Build {
    Optimised,
    Quick,
}

/// Compiles `tests/NAME/NAME.c` with these sources and runs it. It prints names, each with a number.
pub fn run(name: &str, bpf: &Path, program: &str, build: Build) -> Counts {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(program);
    let mut clang = erb_clang::clang().expect("a clang");
    clang
        .arg(match build {
            Build::Optimised => "-O2",
            Build::Quick => "-O0",
        })
        .args(["-Wall", "-Werror", "-Wno-unused-function"])
        .args(["-fno-strict-aliasing", "-fwrapv", "-D__TARGET_ARCH_x86"])
        .arg("-Dpreserve_access_index=annotate(\"relocated\")")
        .arg(format!("-DSIM_OBJECT=\"{name}\""))
        .arg("-I")
        .arg(bpf)
        .arg("-I")
        .arg(folder.join("shim"))
        .arg(folder.join(format!("tests/{name}/{name}.c")))
        .arg("-o")
        .arg(&program);
    let done = erb_clang::start(clang).and_then(erb_clang::finish);
    done.unwrap_or_else(|said| panic!("{said}"));
    let done = Command::new(&program).output().expect("it runs");
    assert!(done.status.success(), "{:?}", done.status);
    let said = String::from_utf8(done.stdout).expect("text");
    let words: Vec<&str> = said.split_whitespace().collect();
    let pairs = words.chunks_exact(2).map(|pair| {
        let number = pair[1]
            .parse()
            .unwrap_or_else(|_| panic!("no number: {said}"));
        (pair[0].to_owned(), number)
    });
    Counts(pairs.collect())
}

/// A copy of the sources in which texts of a file are exchanged, each of which is there once.
pub fn edited(name: &str, file: &str, edits: &[(&str, &str)]) -> PathBuf {
    let bpf = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-bpf"));
    Library::copy_sources(&bpf).expect("a copy of the sources");
    let file = bpf.join(file);
    let mut text = fs::read_to_string(&file).expect("a source");
    for (find, replace) in edits {
        assert_eq!(text.matches(find).count(), 1, "{name}: {find}");
        text = text.replace(find, replace);
    }
    fs::write(file, text).expect("an edited source");
    bpf
}
