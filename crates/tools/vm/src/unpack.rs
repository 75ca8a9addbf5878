// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel out of Debian's packages, unpacked and never installed.
//!
//! The image lies in `boot`, from 6.19 on beside the modules. Debian 12 has modules in `/lib`, 13 in `/usr/lib`: here they
//! are always found in both.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use erb_lab::apt::output;

use crate::kernels::{Kernel, Kernels, Package};
use crate::lists::Lists;
use crate::toolchain;

/// It is not in everybody's PATH.
pub(crate) const DEPMOD: &str = "/sbin/depmod";

/// Behind all else that is unpacked.
const DONE: &str = "done";

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// Where all of it is.
    pub dir: PathBuf,
    /// What `uname -r` says in it.
    pub release: String,
    /// Its image.
    pub image: PathBuf,
    /// Its modules: what `/lib/modules/RELEASE` is to a guest.
    pub modules: PathBuf,
}

/// The kernel, below `vm`; downloads it if it is not there.
///
/// # Errors
/// If it cannot be downloaded or unpacked. Then nothing of it is left.
pub fn kernel(vm: &Path, kernels: &Kernels, kernel: &Kernel, lists: &Lists) -> Result<Unpacked> {
    let dir = vm.join(&kernel.image);
    if let Some(unpacked) = whole(&dir) {
        return Ok(unpacked);
    }
    eprintln!("vm: unpacking {}", kernel.image);
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    let made = kernels
        .parts(&kernel.image)
        .into_iter()
        .try_for_each(|package| lists.unpack(package, &dir))
        .and_then(|()| arrange(&dir));
    if let Err(error) = made {
        let _ = fs::remove_dir_all(&dir);
        return Err(error);
    }
    fs::write(dir.join(DONE), "")?;
    found(&dir)
}

/// The kernel that was unpacked to its end, and of which nobody has removed a part since.
fn whole(dir: &Path) -> Option<Unpacked> {
    if !dir.join(DONE).exists() {
        return None;
    }
    let unpacked = found(dir);
    let unpacked = unpacked.inspect_err(|error| eprintln!("vm: {error:#}"));
    unpacked.ok()
}

/// The kernel in a folder that [`kernel`] has made.
///
/// # Errors
/// If there is none.
pub fn found(dir: &Path) -> Result<Unpacked> {
    let all = dir.join("lib/modules");
    let modules = only_entry(&all)?;
    let release = modules.file_name().unwrap_or_default().to_string_lossy();
    let places = [
        dir.join(format!("boot/vmlinuz-{release}")),
        modules.join("vmlinuz"),
    ];
    let image = places.into_iter().find(|place| place.exists());
    Ok(Unpacked {
        dir: dir.to_owned(),
        image: image.with_context(|| format!("no image of a kernel is in {}", dir.display()))?,
        release: release.into_owned(),
        modules,
    })
}

/// The images and headers that are unpacked below `vm` already: all there is where no server answers.
///
/// # Errors
/// If the folder cannot be read.
pub fn kept(vm: &Path) -> Result<Vec<Package>> {
    let mut names = toolchain::kept(vm)?;
    for entry in fs::read_dir(vm).with_context(|| format!("cannot read {}", vm.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("linux-image-") && entry.path().join(DONE).exists() {
            names.push(name);
        }
    }
    let package = |name| Package {
        name,
        version: String::new(),
        suite: "unpacked".to_owned(),
        needs: Vec::new(),
    };
    Ok(names.into_iter().map(package).collect())
}

/// Modules in one place, with the list of what each needs.
fn arrange(dir: &Path) -> Result<()> {
    let modules = dir.join("lib/modules");
    let merged = dir.join("usr/lib/modules");
    if !modules.exists() {
        fs::create_dir_all(dir.join("lib"))?;
        fs::rename(&merged, &modules)
            .with_context(|| format!("no modules are in {}", dir.display()))?;
    }
    fs::create_dir_all(dir.join("usr/lib"))?;
    if !merged.exists() {
        symlink("../../lib/modules", &merged)?;
    }
    let release = only_entry(&modules)?;
    let release = release.file_name().unwrap_or_default();
    output(Command::new(DEPMOD).arg("-b").arg(dir).arg(release)).map(drop)
}

fn only_entry(dir: &Path) -> Result<PathBuf> {
    let mut entries =
        fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let entry = entries.next();
    let entry = entry.with_context(|| format!("{} is empty", dir.display()))?;
    Ok(entry?.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("erb-vm-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn write(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn both_layouts_of_packages_are_understood() {
        let old = folder("old");
        write(&old.join("boot/vmlinuz-6.12.1"));
        write(&old.join("lib/modules/6.12.1/modules.order"));
        let new = folder("new");
        write(&new.join("usr/lib/modules/7.3.4/vmlinuz"));
        for (dir, release, image) in [
            (&old, "6.12.1", "boot/vmlinuz-6.12.1"),
            (&new, "7.3.4", "lib/modules/7.3.4/vmlinuz"),
        ] {
            arrange(dir).unwrap();
            let kernel = found(dir).unwrap();
            assert_eq!(kernel.release, release);
            assert_eq!(kernel.image, dir.join(image));
            assert!(dir.join("usr/lib/modules").join(release).is_dir());
            assert!(whole(dir).is_none(), "its end is not reached");
            write(&dir.join(DONE));
            assert!(whole(dir).is_some());
            fs::remove_file(&kernel.image).unwrap();
            assert!(whole(dir).is_none(), "it is torn");
        }
        fs::remove_dir_all(old).unwrap();
        fs::remove_dir_all(new).unwrap();
    }
}
