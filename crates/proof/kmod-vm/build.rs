// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the programs that push records, and that look at pushes, with clang for BPF, and the checks for this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The checks, as they lie in `guest`.
const CHECKS: [&str; 4] = ["aof", "guest", "main", "wrong"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (out, libbpf) =
        erb_clang::build_handler("bpf", "../../../bpf", &["aof", "push", "wrong"], "v3")?;
    let archive = out.join("liberb_kmod_checks.a");
    if erb_clang::is_for_clippy() {
        return Ok(erb_clang::stand_in(&archive)?);
    }
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let kmod = root.join("../../../kmod");
    for path in [
        &root.join("guest"),
        &kmod.join("core"),
        &kmod.join("erb_io.h"),
    ] {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    let includes = [root.join("bpf"), root.join("../../../bpf"), kmod, libbpf];
    let mut objects = Vec::new();
    for name in CHECKS {
        let object = out.join(format!("{name}.o"));
        compile(
            &root.join("guest").join(format!("{name}.c")),
            &object,
            &includes,
        )?;
        objects.push(object);
    }
    let _ = fs::remove_file(&archive); // ar would keep members of a former build
    let made = Command::new("ar")
        .arg("crs")
        .arg(&archive)
        .args(&objects)
        .status()?;
    if !made.success() {
        return Err("ar could not make the library".into());
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=erb_kmod_checks");
    Ok(())
}

fn compile(source: &Path, object: &Path, includes: &[PathBuf]) -> Result<(), String> {
    let mut clang = erb_clang::clang()?;
    clang.args([
        "-O1",
        "-g",
        "-fPIC",
        "-Wall",
        "-Werror",
        "-D_GNU_SOURCE",
        "-c",
    ]);
    clang.args(
        includes
            .iter()
            .map(|folder| format!("-I{}", folder.display())),
    );
    clang.arg(source).arg("-o").arg(object);
    erb_clang::finish(erb_clang::start(clang)?)
        .map_err(|said| format!("{} does not compile:\n{said}", source.display()))
}
