// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the echo handler with the same splice as Redis's.

fn main() -> Result<(), String> {
    let (out, _) = erb_clang::build_handler("bpf", "../../../bpf", &["xdp", "tc"], "v3")?;
    // The daemon's programs know no handler.
    erb_clang::build("../../../bpf", &["control", "front"], "v3")?;
    println!("cargo:rustc-env=ERB_ECHO_OBJECTS={}", out.display());
    Ok(())
}
