// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a set is drained (`bpf/cache/drained.h`, K1 and K2): `tests/window/window.c` tries every history and
//! every order of steps between the reads, with the function as it is and with mistakes in it.

use std::path::Path;

use erb_sim_kernel::Library;

use crate::programs::{self, Build, Counts};

fn run(bpf: &Path, name: &str) -> Counts {
    programs::run("window", bpf, name, Build::Optimised)
}

#[test]
fn what_is_not_drained_is_never_said_to_be() {
    let counts = run(&Library::sources(), "window");
    assert_eq!(
        (counts.of("wrong"), counts.of("slow")),
        (0, 0),
        "{counts:?}"
    );
    let undrained = counts.of("undrained");
    assert!(undrained > 1_000_000 && undrained < counts.of("asked"));
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
        let counts = run(&programs::edited(name, "cache/drained.h", edits), name);
        assert!(
            counts.of("wrong") + counts.of("slow") > 0,
            "{name}: {counts:?}"
        );
    }
}
