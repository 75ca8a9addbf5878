// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel module, built for a kernel that is not the one that runs.
//!
//! Debian builds a kernel with the compiler of its own release, and the programs that headers bring are linked for that release. So
//! for a kernel of this machine's release this machine's compiler builds, and for any other one a root folder of that release does:
//! compiler, headers, and what both need, found by apt through their dependencies. Nothing is installed, and no script of a package
//! runs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use erb_lab::apt::output;
use nix::unistd::geteuid;

use crate::checks::{self, Case};
use crate::fault::{Missing, Unprivileged};
use crate::kernels::{Kernel, Kernels};
use crate::lists::{Deb, Lists};
use crate::machine::ends_with_us;

/// Debian's releases of which kernels are tried, with their suites.
const RELEASES: [(u32, [&str; 3]); 2] = [
    (12, ["bookworm", "bookworm-security", "bookworm-backports"]),
    (13, ["trixie", "trixie-security", "trixie-backports"]),
];
/// What a build calls beside what headers need: Debian takes most of it for granted.
const TOOLS: [&str; 13] = [
    "base-files",
    "bash",
    "binutils",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "gcc",
    "grep",
    "make",
    "mawk",
    "perl",
    "sed",
];
/// What headers of 6.12 need beside, and no build reads.
const IMAGES: [&str; 2] = ["linux-image-", "linux-modules-"];
/// Links that scripts of packages would make: what is named, and what it is.
const LINKS: [(&str, &str); 2] = [("usr/bin/awk", "mawk"), ("usr/bin/sh", "dash")];
/// Folders that are in `usr` since Debian 12, whatever older packages say.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// What nothing of a build reads.
const LEFT_OUT: [&str; 3] = ["./usr/share/doc", "./usr/share/man", "./usr/share/locale"];
/// What builds for kernels of this machine's release: a program, and its package.
const OWN: [(&str, &str); 5] = [
    ("/usr/bin/gcc", "gcc"),
    ("/usr/bin/make", "make"),
    ("/usr/bin/objdump", "binutils"),
    ("/usr/bin/pahole", "pahole"),
    ("/usr/bin/perl", "perl"),
];
/// What a build must not say. Without a description of its types no program can use the module.
const BAD_WORDS: [&str; 2] = ["warning", "Skipping BTF"];
/// Has the paper's own way built with the module.
const STUDY: &str = "STUDY=1";
/// Where programs lie that build.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// In a namespace of mounts: a root, the sources, words for make.
const INSIDE: &str = "mount -t proc proc \"$1/proc\"; mount --rbind /dev \"$1/dev\"; mount --bind \"$2\" \"$1/mnt\"; \
                      root=$1; shift 2; \
                      exec chroot \"$root\" /usr/bin/env -i PATH=/usr/sbin:/usr/bin LC_ALL=C make -C /mnt \"$@\"";

/// Headers of a kernel that are there, and so what builds with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Headers {
    /// A folder to build in, with this machine's compiler.
    Here(PathBuf),
    /// A folder to build in, as it is named in a root that has the compiler.
    Inside {
        /// The root.
        root: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
}

impl Headers {
    /// Those of a kernel of Debian; downloads what is not there.
    ///
    /// # Errors
    /// [`Missing`] if they cannot be had; if they cannot be unpacked.
    pub fn of(vm: &Path, kernel: &Kernel, kernels: &Kernels, lists: &Lists) -> Result<Self> {
        let version = &kernel.version;
        let name = kernel.headers.as_ref();
        let name = name.with_context(|| format!("{version} has no headers"))?;
        let release = version.release().with_context(|| {
            format!("the name of {version} does not say which release of Debian built it")
        })?;
        if this_release() == Some(release) {
            return Ok(Self::Here(unpacked(vm, name, kernels, lists)?));
        }
        Unprivileged::unless_root(geteuid().is_root(), || {
            format!("the module for {version} is built in a root folder of Debian {release}")
        })?;
        Ok(Self::Inside {
            root: rooted(vm, release, name)?,
            folder: Path::new("/usr/src").join(name),
        })
    }

    /// What builds these sources.
    fn make(&self, sources: &Path) -> Result<Command> {
        match self {
            Self::Here(folder) => own(sources, folder),
            Self::Inside { root, folder } => Ok(inside(root, sources, folder)),
        }
    }
}

/// Builds the module for the guest's kernel, as `kmod/erb_io.ko` in its folder.
///
/// # Errors
/// If there are no sources or headers; if it does not build, or the build warns.
pub fn module(case: &Case<'_>) -> Result<()> {
    build(case, None)
}

/// The same, and `kmod/study/erb_aof.ko` beside it.
///
/// # Errors
/// As [`module`].
pub fn module_for_study(case: &Case<'_>) -> Result<()> {
    build(case, Some(STUDY))
}

fn build(case: &Case<'_>, word: Option<&str>) -> Result<()> {
    let version = &case.kernel.version;
    let root = checks::sources(case.check, "kmod/Makefile")?;
    let to = case.dir.join("kmod");
    let mut copy = plain_make();
    copy.arg("-s").arg("-C").arg(root.join("kmod")).arg("dkms");
    output(copy.arg(format!("TO={}", to.display())).args(word))?;
    let headers = case.kernel.headers.as_ref();
    let mut make = headers.context("the kernel has no headers")?.make(&to)?;
    make.args(word);
    let said = case.dir.join("built");
    ends_with_us(&mut make);
    let done = make.stdin(Stdio::null()).output();
    let done = done.context("cannot start the module's build")?;
    let text = [done.stdout, done.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    fs::write(&said, text.as_bytes())
        .with_context(|| format!("cannot write {}", said.display()))?;
    if !done.status.success() {
        bail!("the module does not build for {version}:\n{text}");
    }
    let bad = bad_lines(&text);
    ensure!(
        bad.is_empty(),
        "the module's build for {version} warns (all it said is in {}):\n{}",
        said.display(),
        bad.join("\n")
    );
    println!("vm: the module is built for {version}");
    Ok(())
}

fn bad_lines(said: &str) -> Vec<&str> {
    let is_bad = |line: &&str| BAD_WORDS.iter().any(|word| line.contains(word));
    said.lines().filter(is_bad).collect()
}

/// The release of Debian that runs, if one does.
fn this_release() -> Option<u32> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let value = |key: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    };
    (value("ID")? == "debian").then_some(())?;
    value("VERSION_ID")?.parse().ok()
}

/// This machine's compiler.
fn own(sources: &Path, headers: &Path) -> Result<Command> {
    let missing = OWN.iter().filter(|(path, _)| !Path::new(path).exists());
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        return Err(Missing::Packages(missing.join(" ")).into());
    }
    let mut make = plain_make();
    make.arg("-C").arg(sources);
    make.arg(format!("KDIR={}", headers.display()));
    Ok(make)
}

/// What the environment says of compilers and processors is about other builds, and a warning is known by its English word.
fn plain_make() -> Command {
    let mut make = Command::new("make");
    make.env_clear().env("PATH", PATH).env("LC_ALL", "C");
    make
}

/// Headers for this machine's compiler: the folder to build in.
fn unpacked(vm: &Path, name: &str, kernels: &Kernels, lists: &Lists) -> Result<PathBuf> {
    let dir = vm.join(name.replacen("linux-headers", "headers", 1));
    let folder = dir.join("usr/src").join(name);
    if dir.join("done").exists() {
        place(&folder, &dir)?;
        return Ok(folder);
    }
    eprintln!("vm: unpacking {name}");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    for part in kernels.parts(name) {
        lists
            .unpack(part, &dir)
            .map_err(|error| gone(name, &error))?;
    }
    place(&folder, &dir)?;
    fs::write(dir.join("done"), "")?;
    Ok(folder)
}

/// Headers name each other by where they would be installed; or by where they were, if the target folder was moved since.
fn place(folder: &Path, dir: &Path) -> Result<()> {
    let file = folder.join("Makefile");
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let placed = placed(&text, dir);
    if placed != text {
        fs::write(&file, placed).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn placed(text: &str, dir: &Path) -> String {
    const INCLUDE: &str = "include ";
    const SOURCES: &str = "/usr/src/";
    let line = |line: &str| {
        let path = line.strip_prefix(INCLUDE);
        match path.and_then(|path| path.rsplit_once(SOURCES)) {
            Some((_, name)) => format!("{INCLUDE}{}{SOURCES}{name}", dir.display()),
            None => line.to_owned(),
        }
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn gone(headers: &str, error: &anyhow::Error) -> Missing {
    Missing::Headers(headers.to_owned(), format!("{error:#}"))
}

/// A root of that release that has these headers, and what builds with them.
fn rooted(vm: &Path, release: u32, headers: &str) -> Result<PathBuf> {
    let dir = vm.join(format!("toolchain-{release}"));
    let root = dir.join("root");
    let done = dir.join(format!("{headers}.done"));
    let tools = TOOLS.join(" ");
    if fs::read_to_string(&done).is_ok_and(|with| with == tools) {
        return Ok(root);
    }
    let known = RELEASES.iter().find(|(number, _)| *number == release);
    let (_, suites) =
        known.with_context(|| format!("the suites of Debian {release} are not known"))?;
    let lists = Lists::of(&dir.join("apt"), suites)?;
    lists.refresh()?;
    merged(&root)?;
    // The lists may be older than what the servers have.
    let filled = fill(&dir, &root, headers, &lists).or_else(|_| {
        lists.ask()?;
        fill(&dir, &root, headers, &lists)
    });
    filled.map_err(|error| gone(headers, &error))?;
    for (link, to) in LINKS {
        if root.join(link).symlink_metadata().is_err() {
            symlink(to, root.join(link))?;
        }
    }
    for folder in ["dev", "mnt", "proc", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(&done, tools)?;
    Ok(root)
}

/// Unpacks what is not in the root yet.
fn fill(dir: &Path, root: &Path, headers: &str, lists: &Lists) -> Result<()> {
    let all = lists.with_dependencies(TOOLS.iter().copied().chain([headers]))?;
    let had = fs::read_to_string(dir.join("had")).unwrap_or_default();
    let mut had: BTreeSet<String> = had.lines().map(str::to_owned).collect();
    let is_missing = |deb: &&Deb| {
        let is_kernel = IMAGES.iter().any(|begin| deb.name.starts_with(begin));
        !is_kernel && !had.contains(&deb.name_and_version())
    };
    let missing: Vec<&Deb> = all.iter().filter(is_missing).collect();
    eprintln!(
        "vm: unpacking {headers} and what builds with it: {} packages, {} MB",
        missing.len(),
        missing.iter().map(|deb| deb.bytes).sum::<u64>() >> 20
    );
    let files = lists.download(&missing, &dir.join("debs"))?;
    files.iter().try_for_each(|file| extract(file, root))?;
    fs::remove_dir_all(dir.join("debs"))?;
    had.extend(missing.iter().map(|deb| deb.name_and_version()));
    let had: Vec<String> = had.into_iter().collect();
    fs::write(dir.join("had"), had.join("\n")).context("cannot write what was unpacked")
}

fn merged(root: &Path) -> Result<()> {
    for name in MERGED {
        let in_usr = root.join("usr").join(name);
        fs::create_dir_all(&in_usr).with_context(|| format!("cannot make {}", in_usr.display()))?;
        if root.join(name).symlink_metadata().is_err() {
            symlink(Path::new("usr").join(name), root.join(name))?;
        }
    }
    Ok(())
}

/// As dpkg would, but that links to folders stay.
fn extract(file: &Path, root: &Path) -> Result<()> {
    let mut unpack = Command::new("dpkg-deb");
    unpack
        .arg("--fsys-tarfile")
        .arg(file)
        .stdout(Stdio::piped());
    let mut unpack = unpack.spawn().context("cannot run dpkg-deb")?;
    let tar = unpack.stdout.take().context("dpkg-deb has no output")?;
    let mut take = Command::new("tar");
    take.args(["-x", "--keep-directory-symlink", "-C"])
        .arg(root);
    take.args(LEFT_OUT.map(|folder| format!("--exclude={folder}")));
    let taken = take.stdin(tar).status().context("cannot run tar")?;
    let unpacked = unpack.wait().context("cannot wait for dpkg-deb")?;
    ensure!(
        taken.success() && unpacked.success(),
        "{} cannot be unpacked",
        file.display()
    );
    Ok(())
}

/// The compiler of a root, and the headers in it. The mounts go with the command; objtool reads `/proc`.
fn inside(root: &Path, sources: &Path, headers: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.env("PATH", PATH);
    command.args(["--mount", "sh", "-euc", INSIDE, "inside"]);
    command.arg(root).arg(sources);
    command.arg(format!("KDIR={}", headers.display()));
    command
}

/// The headers that are unpacked below `vm` already, by the names of their packages.
///
/// # Errors
/// If a folder cannot be read.
pub fn kept(vm: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(vm).with_context(|| format!("cannot read {}", vm.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(version) = name.strip_prefix("headers-") {
            if entry.path().join("done").exists() {
                found.push(format!("linux-headers-{version}"));
            }
        } else if name.starts_with("toolchain-") {
            for inner in fs::read_dir(entry.path())? {
                let inner = inner?.file_name().to_string_lossy().into_owned();
                found.extend(inner.strip_suffix(".done").map(str::to_owned));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_warns_is_bad() {
        let good = "  CC [M]  main.o\n  BTF [M] erb_io.ko\n";
        assert_eq!(bad_lines(good), Vec::<&str>::new());
        for line in [
            "main.c:1:2: warning: unused variable",
            "Skipping BTF generation for erb_io.ko due to unavailability of vmlinux",
        ] {
            assert_eq!(bad_lines(&format!("{good}{line}\n")), [line]);
        }
    }

    #[test]
    fn headers_name_each_other_where_they_are() {
        let installed = "include /usr/src/linux-headers-6.12.1-common/Makefile\n# /usr/src/\n";
        let here = "include /new place/usr/src/linux-headers-6.12.1-common/Makefile\n# /usr/src/\n";
        let at = |text: &str| placed(text, Path::new("/new place"));
        assert_eq!(at(installed), here);
        assert_eq!(at(&placed(installed, Path::new("/old/usr/src/erb"))), here);
        assert_eq!(at(here), here);
    }

    #[test]
    fn headers_that_are_there_are_known_without_a_server() {
        let vm = std::env::temp_dir().join(format!("erb-vm-kept-{}", std::process::id()));
        for folder in [
            "headers-6.12.1+deb12-amd64",
            "headers-6.12.2+deb12-amd64",
            "toolchain-13",
        ] {
            fs::create_dir_all(vm.join(folder)).unwrap();
        }
        fs::write(vm.join("headers-6.12.1+deb12-amd64/done"), "").unwrap();
        fs::write(
            vm.join("toolchain-13/linux-headers-7.3.4+deb13-amd64.done"),
            "",
        )
        .unwrap();
        let mut found = kept(&vm).unwrap();
        found.sort();
        assert_eq!(
            found,
            [
                "linux-headers-6.12.1+deb12-amd64",
                "linux-headers-7.3.4+deb13-amd64"
            ]
        );
        fs::remove_dir_all(vm).unwrap();
    }
}
