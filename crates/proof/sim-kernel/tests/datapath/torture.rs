// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cache's readers and its writer on real processors at once (`tests/torture/torture.c`): what the
//! simulator, whose memory is ordered, cannot show.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use erb_sim_kernel::Library;

/// What a sound build must stand.
const SECONDS: u32 = 5;

/// What a broken one may take until it shows a torn value: a thousand times what it takes.
const BROKEN_SECONDS: u32 = 60;

/// More than processors, so that some are interrupted in the middle of a set.
const READERS: u32 = 3;

#[derive(Debug)]
struct Counts {
    fills: u64,
    answers: u64,
    torn: u64,
}

fn source_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/torture")
}

fn build(bpf: &Path, name: &str) -> PathBuf {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let order = if cfg!(target_arch = "x86_64") {
        "-D__TARGET_ARCH_x86"
    } else {
        "-D__TARGET_ARCH_arm64"
    };
    let mut clang = erb_clang::clang().expect("a clang");
    clang
        .args(["-O2", "-Wall", "-Werror", "-Wno-unused-function"])
        .args(["-fno-strict-aliasing", "-fwrapv", order])
        .arg("-Dpreserve_access_index=annotate(\"relocated\")")
        .arg("-DSIM_OBJECT=\"torture\"")
        .arg("-I")
        .arg(source_folder())
        .arg("-I")
        .arg(bpf)
        .arg("-I")
        .arg(source_folder().join("../../shim"))
        .arg(source_folder().join("torture.c"))
        .args(["-lpthread", "-o"])
        .arg(&program);
    let done = erb_clang::start(clang).and_then(erb_clang::finish);
    done.unwrap_or_else(|said| panic!("{said}"));
    program
}

fn run(program: &Path, seconds: u32) -> Counts {
    let done = Command::new(program)
        .args([seconds.to_string(), READERS.to_string()])
        .output()
        .expect("the torture runs");
    assert!(done.status.success(), "{:?}", done.status);
    let said = String::from_utf8(done.stdout).expect("text");
    let number = |name: &str| {
        said.split_whitespace()
            .skip_while(|word| *word != name)
            .nth(1)
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in: {said}"))
    };
    Counts {
        fills: number("fills"),
        answers: number("answers"),
        torn: number("torn"),
    }
}

/// The sources with one text exchanged, all times it occurs in the file.
fn edited(name: &str, file: &str, find: &str, replace: &str) -> PathBuf {
    let bpf = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-bpf"));
    Library::copy_sources(&bpf).expect("a copy of the sources");
    let text = fs::read_to_string(bpf.join(file)).expect("a source");
    assert!(text.contains(find), "{find} in {file}");
    fs::write(bpf.join(file), text.replace(find, replace)).expect("an edited source");
    bpf
}

#[test]
fn no_reader_of_a_set_answers_a_torn_value() {
    let counts = run(&build(&Library::sources(), "torture"), SECONDS);
    assert_eq!(counts.torn, 0, "{counts:?}");
    assert!(counts.fills > 1000 && counts.answers > 1000, "{counts:?}");
}

#[test]
fn without_the_readers_look_back_a_value_is_torn() {
    let bpf = edited(
        "torture-unlooked",
        "cache/cache.h",
        "return !(changes & 1) && read_once(set->changes) == changes;",
        "return changes || set;",
    );
    let counts = run(&build(&bpf, "torture-unlooked"), BROKEN_SECONDS);
    assert!(counts.torn > 0, "{counts:?}");
}

#[test]
fn without_the_writers_count_a_value_is_torn() {
    let bpf = edited(
        "torture-uncounted",
        "cache/cache.h",
        "atomic_add32(&set->changes, 1);",
        "",
    );
    let counts = run(&build(&bpf, "torture-uncounted"), BROKEN_SECONDS);
    assert!(counts.torn > 0, "{counts:?}");
}
