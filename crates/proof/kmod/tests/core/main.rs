// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The module's core against rules that it must keep whatever threads and disks do, and its bytes against those of the
//! journal's own writer and reader. `core.c` moves it; what it left on its disk is judged here.

mod bytes;
mod disk;
mod mistakes;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use erb_steady::set_up_failed;

/// What clang adds to the program.
#[derive(Clone, Copy)]
enum Sanitizer {
    Address,
    Thread,
}

impl Sanitizer {
    const fn name(self) -> &'static str {
        match self {
            Self::Address => "address,undefined",
            Self::Thread => "thread",
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Builds `core.c` under a name that no other test uses.
fn build(name: &str, sanitizer: Sanitizer) -> PathBuf {
    compiled(name, sanitizer, &root().join("kmod"))
}

/// The same, with the core that is in this folder.
fn compiled(name: &str, sanitizer: Sanitizer, kmod: &Path) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let with = |sanitizer: Option<Sanitizer>| {
        let mut clang = erb_clang::clang().expect("a clang");
        clang
            .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"])
            .arg("-I")
            .arg(kmod)
            .arg("-I")
            .arg(root().join("bpf"));
        if let Some(sanitizer) = sanitizer {
            clang
                .arg(format!("-fsanitize={}", sanitizer.name()))
                .arg("-fno-sanitize-recover=all");
        }
        clang
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/core/core.c"))
            .args(["-lpthread", "-o"])
            .arg(&program);
        erb_clang::start(clang).and_then(erb_clang::finish)
    };
    match with(Some(sanitizer)) {
        Ok(()) => program,
        // That it builds without is looked at all the same: then it is the run-time library that is missing.
        Err(said) => {
            with(None).unwrap_or_else(|said| panic!("{said}"));
            let name = sanitizer.name();
            set_up_failed(format_args!(
                "clang's {name} sanitizer is missing: scripts/setup.sh installs it: {said}"
            ))
        }
    }
}

fn run(program: &Path, arguments: &[&str], folder: &Path) -> Output {
    Command::new(program)
        .args(arguments)
        .arg(folder)
        .output()
        .expect("the program runs")
}
