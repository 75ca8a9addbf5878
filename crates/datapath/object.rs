// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a BPF object is compiled. One file for the build script and for the test of the objects.

use std::path::Path;
use std::process::Command;

/// The objects: XDP tier, TC tier with timer and sweep, the daemon's control programs; and what
/// stands in for the first two while somebody traces.
pub const OBJECTS: [&str; 5] = ["xdp", "tc", "control", "trace_xdp", "trace_tc"];

/// Where sources and headers are, and who compiles.
pub struct Tools<'a> {
    /// Name of the compiler.
    pub clang: &'a str,
    /// Folder of the sources.
    pub bpf: &'a Path,
    /// Folder in which libbpf's headers are `bpf/...`.
    pub libbpf: &'a Path,
}

/// The processor that will run the programs, as libbpf's headers name it: `bpf/seam.h` wants to know
/// how strongly it orders memory.
///
/// # Errors
/// Why ERB is not built for it.
pub fn target_macro(arch: &str) -> Result<&'static str, String> {
    match arch {
        "x86_64" => Ok("-D__TARGET_ARCH_x86"),
        _ => Err(format!(
            "ERB is built for x86_64 only, not for {arch}: its order of memory accesses is proved on \
             paper elsewhere, but nobody has run it there (docs/EDGES.md, finding 4)"
        )),
    }
}

/// Compiles `source` to `object` for a processor named as [`target_macro`] does.
///
/// # Errors
/// What clang said.
pub fn compile(
    tools: &Tools,
    target_macro: &str,
    source: &Path,
    object: &Path,
) -> Result<(), String> {
    let output = Command::new(tools.clang)
        .args([
            "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-c",
        ])
        .arg(target_macro)
        // Keeps paths of the build machine out of the object.
        .arg(format!("-fdebug-prefix-map={}=bpf", tools.bpf.display()))
        .arg("-I")
        .arg(tools.bpf)
        .arg("-isystem")
        .arg(tools.libbpf)
        .arg("-isystem")
        .arg(tools.libbpf.join("bpf"))
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| format!("could not run {}: {error}", tools.clang))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{} could not compile {}:\n{}",
        tools.clang,
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    ))
}
