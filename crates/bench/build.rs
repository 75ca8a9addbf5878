// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the two BPF objects with clang and generates the Rust mirror of their shared header, so
//! that no layout is written down twice.

#[path = "../datapath/clang.rs"]
mod clang;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

/// The objects: the client's end (generator, kick) and the bare responder.
const OBJECTS: [&str; 2] = ["generator", "echo"];

fn main() -> Result<()> {
    let bpf = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let libbpf = env::var("DEP_BPF_INCLUDE").context("libbpf-sys gave no include folder")?;
    for entry in fs::read_dir(&bpf).with_context(|| format!("could not list {}", bpf.display()))? {
        println!("cargo:rerun-if-changed={}", entry?.path().display());
    }
    for object in OBJECTS {
        compile(&bpf, object, &out, Path::new(&libbpf))?;
    }
    bindgen::Builder::default()
        .header(bpf.join("bench.h").display().to_string())
        .clang_args(["-include", "linux/types.h"])
        .allowlist_file(".*/bpf/bench\\.h")
        .prepend_enum_name(false)
        .derive_default(true)
        .generate()
        .context("bindgen could not read bench.h (is libclang installed? Debian: libclang1-19)")?
        .write_to_file(out.join("mirror.rs"))
        .context("could not write mirror.rs")
}

fn compile(bpf: &Path, object: &str, out: &Path, libbpf: &Path) -> Result<()> {
    let source = bpf.join(format!("{object}.bpf.c"));
    let clang = clang::find_clang().map_err(anyhow::Error::msg)?;
    let output = Command::new(clang)
        .args([
            "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-c",
        ])
        // Keeps paths of the build machine out of the object.
        .arg(format!("-fdebug-prefix-map={}=bpf", bpf.display()))
        .arg("-isystem")
        .arg(libbpf)
        .arg(&source)
        .arg("-o")
        .arg(out.join(format!("{object}.bpf.o")))
        .output()
        .with_context(|| format!("could not run {clang}"))?;
    ensure!(
        output.status.success(),
        "{clang} could not compile {}:\n{}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
