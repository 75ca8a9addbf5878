// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the three BPF objects with clang and generates the Rust mirror of their shared header, so
//! that no layout is written down twice.

use anyhow::{Context, Error, Result};

fn main() -> Result<()> {
    // The client's end (generator, kick), the bare responder, and what takes payload untouched.
    let (out, _) =
        erb_clang::build("bpf", &["generator", "echo", "sink"], "v3").map_err(Error::msg)?;
    bindgen::Builder::default()
        .header("bpf/bench.h")
        .clang_args(["-include", "linux/types.h"])
        .allowlist_file(".*bpf/bench\\.h")
        .prepend_enum_name(false)
        .derive_default(true)
        .generate()
        .context("bindgen could not read bench.h (is libclang installed? Debian: libclang1-19)")?
        .write_to_file(out.join("mirror.rs"))
        .context("could not write mirror.rs")
}
