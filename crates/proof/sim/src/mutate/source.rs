// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mutant of the data path: a copy of `bpf/` with edits, compiled and loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use erb_sim_kernel::compile::Flavour;
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

/// The root of this tree.
pub(super) fn tree() -> PathBuf {
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

impl Folder {
    fn new(name: &str) -> Self {
        let unique = format!("erb-sim-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(unique))
    }

    /// Copies the sources there: where they are.
    fn sources(&self) -> Result<PathBuf> {
        let bpf = self.0.join("bpf");
        Library::copy_sources(&bpf).with_context(|| format!("could not make {}", bpf.display()))?;
        Ok(bpf)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays behind lies in the system's folder for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An object without edits.
struct Unedited {
    name: &'static str,
    bytes: Vec<u8>,
    /// Files of `bpf/` that it was made of.
    files: Vec<String>,
}

/// The objects of a flavour without edits: made once, as most edits reach only some of them.
fn unedited(flavour: Flavour) -> Result<&'static [Unedited]> {
    static MADE: Mutex<Vec<(Flavour, &'static [Unedited])>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, objects)) = made.iter().find(|(of, _)| *of == flavour) {
        return Ok(objects);
    }
    let folder = Folder::new("unedited");
    let bpf = folder.sources()?;
    let mut objects = Vec::new();
    let paths = compile::objects(&bpf, &shim(), &folder.0, flavour, compile::names())?;
    for (name, path) in compile::names().zip(paths) {
        let needed = fs::read_to_string(path.with_extension("d"))?;
        let needed = needed.split_whitespace().map(Path::new);
        let files = needed.filter_map(|file| file.strip_prefix(&bpf).ok());
        objects.push(Unedited {
            name,
            bytes: fs::read(&path)?,
            files: files.map(|file| file.display().to_string()).collect(),
        });
    }
    // For as long as the process: a flavour's are a megabyte.
    let objects: &'static [Unedited] = Vec::leak(objects);
    made.push((flavour, objects));
    Ok(objects)
}

fn shim() -> PathBuf {
    tree().join("crates/proof/sim-kernel/shim")
}

/// Builds and loads the mutant, in this flavour of C.
///
/// # Errors
/// If the edits do not fit, the result does not compile or cannot be loaded.
pub fn build(name: &str, edits: &[Edit], flavour: Flavour) -> Result<Library> {
    let unedited = unedited(flavour)?;
    let folder = Folder::new(name);
    let bpf = folder.sources()?;
    for (file, text) in edited(edits)? {
        fs::write(bpf.join(file), text)?;
    }
    for edit in edits {
        let mut all = unedited.iter().flat_map(|object| &object.files);
        ensure!(
            all.any(|file| file == edit.file),
            "no object is made of bpf/{}",
            edit.file
        );
    }
    let is_edited = |object: &&Unedited| {
        let mut files = object.files.iter();
        files.any(|file| edits.iter().any(|edit| edit.file == file))
    };
    let (changed, same): (Vec<_>, Vec<_>) = unedited.iter().partition(is_edited);
    let changed = changed.iter().map(|object| object.name);
    let mut objects = compile::objects(&bpf, &shim(), &folder.0, flavour, changed)?;
    for object in same {
        let path = folder.0.join(format!("{}.o", object.name));
        fs::write(&path, &object.bytes)?;
        objects.push(path);
    }
    let library = folder.0.join("mutant.so");
    compile::link(&objects, &library, flavour)?;
    // The file may go once it is mapped.
    Ok(Library::load(&library)?)
}
