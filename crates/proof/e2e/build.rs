// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the data path a second time, for another instruction set: the same sources, other
//! programs, so that tests can replace the ones by the others.

fn main() -> Result<(), String> {
    // The shipped ones are of v3.
    let (out, _) = erb_clang::build("../../../bpf", &["xdp", "tc", "control"], "v4")?;
    println!("cargo:rustc-env=ERB_OTHER_PROGRAMS={}", out.display());
    Ok(())
}
