// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tool that makes labs of a fixed name runs once at a time on a machine.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use nix::fcntl::{Flock, FlockArg};

/// Where the locks lie.
const DIR: &str = "/run/erb";

/// Held while the tool of this name runs, so that a lab of its name that is there is a left-over.
///
/// # Errors
/// If it runs on this machine already.
pub fn only_one(name: &str) -> Result<Flock<File>> {
    fs::create_dir_all(DIR).with_context(|| format!("cannot make {DIR}"))?;
    let path = Path::new(DIR).join(format!("{name}.lock"));
    let path = path.display();
    let file = File::create(path.to_string()).with_context(|| format!("cannot make {path}"))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        anyhow!(
            "`erb check {name}` runs on this machine already ({path}: {errno}); wait for its end"
        )
    })
}
