// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the BPF objects with clang. libbpf's headers are those of the vendored copy that the
//! loader is linked against, so that programs and loader always agree.

mod clang;
mod object;

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Error, Result};

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
    println!("cargo:rerun-if-changed=object.rs");
    // For the test that compiles them for other processors.
    println!("cargo:rustc-env=ERB_LIBBPF_INCLUDE={libbpf}");
    let target = object::target_macro(&env::var("CARGO_CFG_TARGET_ARCH")?).map_err(Error::msg)?;
    let tools = object::Tools {
        clang: clang::find_clang().map_err(Error::msg)?,
        bpf: &bpf,
        libbpf: Path::new(&libbpf),
    };
    for name in object::OBJECTS {
        let source = bpf.join(format!("{name}.bpf.c"));
        let made = out.join(format!("{name}.bpf.o"));
        object::compile(&tools, target, &source, &made).map_err(Error::msg)?;
    }
    Ok(())
}
