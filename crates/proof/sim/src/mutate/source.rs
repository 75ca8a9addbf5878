// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mutant of the data path: a copy of `bpf/` with edits, compiled and loaded.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use erb_sim_kernel::{Library, compile};

/// A text in a file of `bpf/` and what takes its place. The text must be there exactly once.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// File in `bpf/`.
    pub file: &'static str,
    /// The text.
    pub find: &'static str,
    /// What takes its place.
    pub replace: &'static str,
}

/// The sources of this tree.
fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The edited content of all files that `edits` name.
///
/// # Errors
/// If a file cannot be read or a text is not there exactly once: the mutation must be written anew.
pub fn edited(edits: &[Edit]) -> Result<Vec<(&'static str, String)>> {
    let mut files: Vec<(&'static str, String)> = Vec::new();
    for edit in edits {
        if !files.iter().any(|(name, _)| *name == edit.file) {
            let path = tree().join("bpf").join(edit.file);
            let text = fs::read_to_string(&path)
                .with_context(|| format!("could not read {}", path.display()))?;
            files.push((edit.file, text));
        }
        let file = files.iter_mut().find(|(name, _)| *name == edit.file);
        let (name, text) = file.context("the file was just read")?;
        let found = text.matches(edit.find).count();
        ensure!(
            found == 1,
            "bpf/{name} has {found} times, not once:\n{}",
            edit.find
        );
        *text = text.replacen(edit.find, edit.replace, 1);
    }
    Ok(files)
}

/// A folder that goes when this does.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays behind lies in the system's folder for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Builds and loads the mutant, in this flavour of C.
///
/// # Errors
/// If the edits do not fit, the result does not compile or cannot be loaded.
pub fn build(name: &str, edits: &[Edit], flavour: compile::Flavour) -> Result<Library> {
    let unique = format!("erb-sim-{}-{name}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(unique));
    let bpf = folder.0.join("bpf");
    Library::copy_sources(&bpf).with_context(|| format!("could not make {}", bpf.display()))?;
    for (file, text) in edited(edits)? {
        fs::write(bpf.join(file), text)?;
    }
    let shim = tree().join("crates/proof/sim-kernel/shim");
    let library = folder.0.join("mutant.so");
    let objects = compile::objects(&bpf, &shim, &folder.0, flavour)?;
    compile::link(&objects, &library, flavour)?;
    // The file may go once it is mapped.
    Ok(Library::load(&library)?)
}
