// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the clang that compiles the data path. One file for all that compile it: the build scripts of
//! datapath, bench and sim-path, and sim-path itself.

use std::process::Command;

/// Oldest clang that knows `-mcpu=v3` code generation well enough for these programs.
const CLANG_MAJOR_MIN: u32 = 18;

/// Name of a clang that will do.
///
/// # Errors
/// What to install if there is none.
pub fn find_clang() -> Result<&'static str, String> {
    for name in ["clang-19", "clang"] {
        let Ok(output) = Command::new(name).arg("-dumpversion").output() else {
            continue;
        };
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let major = version
            .split('.')
            .next()
            .and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major >= CLANG_MAJOR_MIN) {
            return Ok(name);
        }
    }
    Err(format!(
        "no clang >= {CLANG_MAJOR_MIN} found; install it (Debian: apt-get install clang-19)"
    ))
}
