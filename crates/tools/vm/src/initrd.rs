// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first file system of a guest: busybox, its first process, and the modules without which this machine's files
//! cannot be seen.
//!
//! An archive as the kernel reads it: "newc" of cpio(5).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Its first process.
const INIT: &str = include_str!("../guest/init");
/// By which it sees this machine's files, below what it writes.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];
/// Debian's busybox-static.
pub const BUSYBOX: &str = "/bin/busybox";

/// Of a file's mode: what kind it is, and who may do what.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// The archive for a kernel with these modules.
///
/// # Errors
/// If busybox or a module cannot be read.
pub fn of(modules: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "proc", "modules", "lower", "upper", "root"] {
        archive.add(folder, FOLDER, &[])?;
    }
    let busybox = fs::read(BUSYBOX).with_context(|| format!("cannot read {BUSYBOX}"))?;
    archive.add("bin/busybox", PROGRAM, &busybox)?;
    archive.add("init", PROGRAM, INIT.as_bytes())?;
    let list = modules.join("modules.dep");
    let list =
        fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    for (number, file) in in_order(&list, &MODULES).into_iter().enumerate() {
        let name = Path::new(file)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let name = name.trim_end_matches(".xz");
        let bytes = plain(&modules.join(file))?;
        archive.add(
            &format!("modules/{:02}-{name}", number + 10),
            PROGRAM,
            &bytes,
        )?;
    }
    archive.end()
}

/// Whether this program needs no other file: in a guest's first file system it is alone.
#[must_use]
pub fn is_alone(program: &str) -> bool {
    // The name of what links a program at its start stands at its beginning.
    const LINKER: &[u8] = b"/ld-linux";
    let Ok(bytes) = fs::read(program) else {
        return false;
    };
    let head = &bytes[..bytes.len().min(4096)];
    !head.windows(LINKER.len()).any(|window| window == LINKER)
}

/// Files of these modules and of what they need, each behind what it needs. What is not in the list is in the kernel.
fn in_order<'a>(list: &'a str, names: &[&str]) -> Vec<&'a str> {
    let mut files: Vec<&str> = Vec::new();
    for name in names {
        let mut lines = list.lines().filter_map(|line| line.split_once(':'));
        let Some((file, needs)) = lines.find(|(file, _)| name_of(file) == *name) else {
            continue;
        };
        // Each is named before what it needs.
        for file in needs.split_whitespace().rev().chain([file]) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    files
}

/// As the kernel has it: a file's name may have `-` in it.
fn name_of(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    let name = name.split_once(".ko").map_or(name, |(name, _)| name);
    name.replace('-', "_")
}

/// What busybox can insert.
fn plain(file: &PathBuf) -> Result<Vec<u8>> {
    let name = file.to_string_lossy();
    if name.ends_with(".ko") {
        return fs::read(file).with_context(|| format!("cannot read {name}"));
    }
    ensure!(
        name.ends_with(".xz"),
        "{name} is packed in a way that is not known"
    );
    let output = Command::new("xz").arg("-dc").arg(file).output();
    let output = output.context("cannot run xz")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("xz cannot unpack {name}: {}", said.trim());
    }
    Ok(output.stdout)
}

/// An archive that is being written.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        self.files += 1;
        let length = u32::try_from(bytes.len()).with_context(|| format!("{name} is too long"))?;
        let name_length = u32::try_from(name.len() + 1)?;
        // Number, mode, owner, group, links, time, length, four halves of devices, length of the name, sum.
        let fields = [
            self.files,
            mode,
            0,
            0,
            1,
            0,
            length,
            0,
            0,
            0,
            0,
            name_length,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            write!(self.bytes, "{field:08x}")?;
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(bytes);
        self.align();
        Ok(())
    }

    /// Names with their heads, and contents, begin at multiples of four.
    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Result<Vec<u8>> {
        self.add("TRAILER!!!", 0, &[])?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_behind_what_they_need() {
        let list = "\
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n\
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/drivers/virtio/virtio.ko.xz\n\
kernel/net/9p/9pnet.ko.xz:\n\
kernel/drivers/virtio/virtio-ring.ko:\n";
        assert_eq!(
            in_order(list, &["9pnet_virtio", "9p", "overlay", "virtio_ring"]),
            [
                "kernel/drivers/virtio/virtio.ko.xz",
                "kernel/net/9p/9pnet.ko.xz",
                "kernel/net/9p/9pnet_virtio.ko.xz",
                "kernel/fs/netfs/netfs.ko.xz",
                "kernel/fs/9p/9p.ko.xz",
                "kernel/drivers/virtio/virtio-ring.ko",
            ]
        );
    }

    #[test]
    fn an_archive_has_what_was_put_into_it() {
        let mut archive = Archive::default();
        archive.add("a", FOLDER, &[]).unwrap();
        archive.add("a/file", PROGRAM, b"12345").unwrap();
        let bytes = archive.end().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        // Read again by its own lengths.
        let mut at = 0;
        let mut found = Vec::new();
        while at < bytes.len() {
            let field = |number: usize| {
                let from = at + 6 + number * 8;
                let text = std::str::from_utf8(&bytes[from..from + 8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            let (length, name) = (field(6), field(11));
            let content = (at + 110 + name).next_multiple_of(4);
            let name = &bytes[at + 110..at + 110 + name - 1];
            let name = String::from_utf8(name.to_vec()).unwrap();
            found.push((name, bytes[content..content + length].to_vec()));
            at = (content + length).next_multiple_of(4);
        }
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "a/file", "TRAILER!!!"]);
        assert_eq!(found[1].1, b"12345");
    }
}
