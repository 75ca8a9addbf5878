// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replacing the programs at work by those of another build, under traffic.
//!
//! Invariants:
//! 1. Every link is updated in place by one system call: each packet meets the old program or the
//!    new one, none meets neither.
//! 2. Programs of two builds meet (old XDP, new TC; on different CPUs) only if their layout is the
//!    same: same maps, same values, same marks in packets. The caller compares
//!    [`erb_abi::LAYOUT`] first.
//! 3. What is killed half-way leaves both builds loaded and each link with one of them; whoever
//!    comes next sees by [`Links::run_pinned`] that it must be done again.

use std::path::{Path, PathBuf};

use erb_abi::COMMANDS;
use libbpf_rs::{MapCore, MapFlags, Program};

use crate::attach::{Hook, Links};
use crate::load::{ABSORPTION, JournalSink, fill_commands, load_objects, open_map, program_pin};
use crate::{Error, Programs, Result, Sizes};

/// Pins of programs that are loaded and not yet at work begin with this.
const STAGED: &str = "next_";

fn staged_pin(root: &Path, name: &str) -> PathBuf {
    root.join(format!("{STAGED}{name}"))
}

/// Loads programs beside those that are pinned in `root`, over the same maps. Nothing of what is at
/// work changes. `sizes` must be those that the maps have.
///
/// # Errors
/// [`Error::Load`] if the kernel refuses them or the maps have another shape.
pub fn stage(root: &Path, sizes: Sizes, sink: JournalSink, programs: &Programs) -> Result<()> {
    unstage(root);
    let staged = load_objects(root, (sizes, sink), programs, staged_pin);
    if staged.is_err() {
        unstage(root);
    }
    staged
}

/// Takes away what [`stage`] left and nobody put to work.
pub fn unstage(root: &Path) {
    for (path, _) in staged(root) {
        let _ = std::fs::remove_file(path);
    }
}

/// Pins of staged programs with the programs' names.
fn staged(root: &Path) -> Vec<(PathBuf, String)> {
    let Ok(entries) = std::fs::read_dir(root) else {
        return Vec::new();
    };
    let pins = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((entry.path(), name.strip_prefix(STAGED)?.to_owned()))
    });
    pins.collect()
}

/// Puts the staged programs to work: each link goes on with its staged program, the pins follow.
///
/// # Errors
/// [`Error::Attach`] if a link cannot be updated. What was updated stays so, see invariant 3.
pub fn promote(root: &Path) -> Result<()> {
    // Egress first, as in a boost: what is answered by the new programs is seen by the new one.
    for hook in [Hook::Egress, Hook::Ingress, Hook::Xdp] {
        let path = staged_pin(root, hook.program());
        let program = Program::fd_from_pinned_path(&path).map_err(|error| Error::Pin {
            what: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Links::new(root).update(hook, &program)?;
    }
    let staged = staged(root);
    for (path, name) in &staged {
        let to = program_pin(root, name);
        std::fs::rename(path, &to).map_err(|reason| Error::System {
            what: format!("could not rename {}", path.display()),
            reason,
        })?;
    }
    // Those that answered writes for another sink: they would hold its module.
    for name in ABSORPTION {
        if !staged.iter().any(|(_, staged)| staged == name) {
            let _ = std::fs::remove_file(program_pin(root, name));
        }
    }
    forget_commands(root)?;
    fill_commands(root)
}

/// Removes the commands that this build does not know any more: they are fenced from now on.
fn forget_commands(root: &Path) -> Result<()> {
    let map = open_map(root, "erb_commands")?;
    for key in map.keys() {
        if !COMMANDS.iter().any(|command| command.key() == key[..]) {
            map.delete(&key)
                .or_else(|error| match map.lookup(&key, MapFlags::ANY) {
                    Ok(None) => Ok(()),
                    _ => Err(error),
                })
                .map_err(|error| Error::map("erb_commands", error))?;
        }
    }
    Ok(())
}
