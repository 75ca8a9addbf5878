// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the BPF objects with clang. libbpf's headers are those of the vendored copy that the
//! loader is linked against, so that programs and loader always agree.

mod clang;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

/// The objects: XDP tier, TC tier with timer and sweep, the daemon's control programs; and what
/// stands in for the first two while somebody traces.
const OBJECTS: [&str; 5] = ["xdp", "tc", "control", "trace_xdp", "trace_tc"];

fn main() -> Result<()> {
    let bpf = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let libbpf = env::var("DEP_BPF_INCLUDE").context("libbpf-sys gave no include folder")?;
    // A file that is added changes the folder.
    println!("cargo:rerun-if-changed={}", bpf.display());
    for entry in fs::read_dir(&bpf).with_context(|| format!("could not list {}", bpf.display()))? {
        println!("cargo:rerun-if-changed={}", entry?.path().display());
    }
    println!("cargo:rerun-if-changed=clang.rs");
    let clang = clang::find_clang().map_err(anyhow::Error::msg)?;
    for object in OBJECTS {
        compile(
            clang,
            &bpf.join(format!("{object}.bpf.c")),
            &out,
            &bpf,
            Path::new(&libbpf),
        )?;
    }
    Ok(())
}

/// The processor that will run the programs, as libbpf's headers name it: `bpf/seam.h` wants to know
/// how strongly it orders loads.
fn target_arch() -> Option<&'static str> {
    match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => Some("-D__TARGET_ARCH_x86"),
        _ => None,
    }
}

fn compile(clang: &str, source: &Path, out: &Path, bpf: &Path, libbpf: &Path) -> Result<()> {
    let stem = source.file_stem().context("source without name")?;
    let object = out.join(stem).with_extension("bpf.o");
    let output = Command::new(clang)
        .args([
            "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-c",
        ])
        .args(target_arch())
        // Keeps paths of the build machine out of the object.
        .arg(format!("-fdebug-prefix-map={}=bpf", bpf.display()))
        .arg("-I")
        .arg(bpf)
        .arg("-isystem")
        .arg(libbpf)
        .arg("-isystem")
        .arg(libbpf.join("bpf"))
        .arg(source)
        .arg("-o")
        .arg(&object)
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
