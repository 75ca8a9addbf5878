// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the data path a second time, for another instruction set: the same sources, other
//! programs, so that tests can replace the ones by the others.

#[path = "../datapath/clang.rs"]
mod clang;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

const OBJECTS: [&str; 3] = ["xdp", "tc", "control"];

fn main() -> Result<()> {
    let bpf = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let libbpf = env::var("DEP_BPF_INCLUDE").context("libbpf-sys gave no include folder")?;
    println!("cargo:rerun-if-changed={}", bpf.display());
    for entry in fs::read_dir(&bpf).with_context(|| format!("could not list {}", bpf.display()))? {
        println!("cargo:rerun-if-changed={}", entry?.path().display());
    }
    for object in OBJECTS {
        compile(&bpf, object, &out, Path::new(&libbpf))?;
    }
    println!("cargo:rustc-env=ERB_OTHER_PROGRAMS={}", out.display());
    Ok(())
}

fn compile(bpf: &Path, object: &str, out: &Path, libbpf: &Path) -> Result<()> {
    let source = bpf.join(format!("{object}.bpf.c"));
    let clang = clang::find_clang().map_err(anyhow::Error::msg)?;
    let mut command = Command::new(clang);
    // The shipped ones are of v3.
    command.args(["-target", "bpf", "-mcpu=v4", "-O2", "-g", "-c"]);
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        command.arg("-D__TARGET_ARCH_x86");
    }
    let output = command
        .arg("-I")
        .arg(bpf)
        .arg("-isystem")
        .arg(libbpf)
        .arg("-isystem")
        .arg(libbpf.join("bpf"))
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
