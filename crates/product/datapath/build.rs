// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the BPF objects with clang.

fn main() -> Result<(), String> {
    let (_, libbpf) = erb_clang::build("../../../bpf", &erb_clang::OBJECTS, "v3")?;
    // For the test that compiles them for other processors.
    println!("cargo:rustc-env=ERB_LIBBPF_INCLUDE={}", libbpf.display());
    Ok(())
}
