// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a set is drained (`bpf/cache/drained.h`, K1 and K2): `tests/window/window.c` tries every history and
//! every order of steps between the reads, with the function as it is and with mistakes in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use erb_sim_kernel::Library;

/// Number of cases asked, of answers "undrained", of wrong and of needlessly careful ones.
#[derive(Debug)]
struct Counts {
    asked: u64,
    undrained: u64,
    wrong: u64,
    slow: u64,
}

fn run(bpf: &Path, name: &str) -> Counts {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut clang = erb_clang::clang().expect("a clang");
    clang
        .args(["-O2", "-Wall", "-Werror", "-Wno-unused-function"])
        .args(["-fno-strict-aliasing", "-fwrapv", "-D__TARGET_ARCH_x86"])
        .arg("-Dpreserve_access_index=annotate(\"relocated\")")
        .arg("-DSIM_OBJECT=\"window\"")
        .arg("-I")
        .arg(bpf)
        .arg("-I")
        .arg(folder.join("shim"))
        .arg(folder.join("tests/window/window.c"))
        .arg("-o")
        .arg(&program);
    let done = erb_clang::start(clang).and_then(erb_clang::finish);
    done.unwrap_or_else(|said| panic!("{said}"));
    let done = Command::new(&program).output().expect("it runs");
    assert!(done.status.success(), "{:?}", done.status);
    let said = String::from_utf8(done.stdout).expect("text");
    let number = |name: &str| {
        let mut words = said.split_whitespace().skip_while(|word| *word != name);
        let number = words.nth(1).and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("no {name} in: {said}"))
    };
    Counts {
        asked: number("asked"),
        undrained: number("undrained"),
        wrong: number("wrong"),
        slow: number("slow"),
    }
}

/// The sources with texts exchanged, each of which is there once.
fn edited(name: &str, edits: &[(&str, &str)]) -> PathBuf {
    let bpf = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-bpf"));
    Library::copy_sources(&bpf).expect("a copy of the sources");
    let file = bpf.join("cache/drained.h");
    let mut text = fs::read_to_string(&file).expect("a source");
    for (find, replace) in edits {
        assert_eq!(text.matches(find).count(), 1, "{find}");
        text = text.replace(find, replace);
    }
    fs::write(file, text).expect("an edited source");
    bpf
}

#[test]
fn what_is_not_drained_is_never_said_to_be() {
    let counts = run(&Library::sources(), "window");
    assert_eq!((counts.wrong, counts.slow), (0, 0), "{counts:?}");
    assert!(counts.undrained > 1_000_000 && counts.undrained < counts.asked);
}

/// A name, and texts exchanged.
type Mistake = (&'static str, &'static [(&'static str, &'static str)]);

/// The end of the window is read first: a write in between lies outside (W22). By sign: a set that was
/// written long ago turns it round (W7). And the very next LSN is one of them.
const MISTAKES: &[Mistake] = &[
    (
        "window-lsn-first",
        &[
            (
                "\tu32 lsn_low = read_once(set->lsn);\n\tu64 drained;\n",
                "\tu64 lsn = read_once(order->lsn), drained;\n\tu32 lsn_low;\n",
            ),
            (
                "\tdrained = read_once(order->drained);\n",
                "\tlsn_low = read_once(set->lsn);\n\tdrained = read_once(order->drained);\n",
            ),
            ("drained, read_once(order->lsn));", "drained, lsn);"),
        ],
    ),
    (
        "window-by-sign",
        &[(
            "return behind < outstanding;",
            "return (s32)behind >= 0 && outstanding;",
        )],
    ),
    (
        "window-one-short",
        &[("lsn_low - (u32)drained - 1", "lsn_low - (u32)drained - 2")],
    ),
];

#[test]
fn mistakes_in_the_window_are_seen() {
    for (name, edits) in MISTAKES {
        let counts = run(&edited(name, edits), name);
        assert!(counts.wrong + counts.slow > 0, "{name}: {counts:?}");
    }
}
