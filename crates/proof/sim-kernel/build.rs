// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the data path's C for this machine, with the helpers of `shim/`, into a static library.
//! With `ERB_SIM_SANITIZE` set the C is built with AddressSanitizer and UBSan; the shell script
//! `sanitize` then links their run-time library (`fuzz`: also libFuzzer's counters; see `fuzz/fuzz`).

#[path = "src/compile.rs"]
mod compile;

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// The library that the crate is linked with.
const ARCHIVE: &str = "liberb_sim_path_c.a";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let bpf = root.join("../../../bpf");
    let shim = root.join("shim");
    let kmod = root.join("../../../kmod");
    if erb_clang::is_for_clippy() {
        return Ok(erb_clang::stand_in(&out.join(ARCHIVE))?);
    }
    for path in [&bpf, &shim, &kmod.join("core"), &kmod.join("erb_io.h")] {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    println!("cargo:rerun-if-env-changed=ERB_SIM_SANITIZE");
    let flavour = match env::var("ERB_SIM_SANITIZE").as_deref() {
        Err(_) => compile::Flavour::Plain,
        Ok("fuzz") => compile::Flavour::Fuzzed,
        Ok(_) => compile::Flavour::Sanitized,
    };
    let objects = compile::objects(&bpf, &shim, &out, flavour, compile::names())?;
    let archive = out.join(ARCHIVE);
    let _ = fs::remove_file(&archive); // ar would keep members of a former build
    let done = Command::new("ar")
        .arg("crs")
        .arg(&archive)
        .args(&objects)
        .status()?;
    if !done.success() {
        return Err("ar could not make the library".into());
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=erb_sim_path_c");
    Ok(())
}
