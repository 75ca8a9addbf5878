// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be tried under another kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::device::Device;
use crate::fault::Missing;
use crate::guests::{DAX, NODE, POWER, WRITES};
use crate::kernels::Needed;
use crate::{Given, VmArgs, toolchain};

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// Each BPF program is loaded by itself; then a lab's Redis is boosted, answers, and is traced.
    Load,
    /// Reads and writes of a boosted Redis over virtio-net with native XDP.
    Paths,
    /// The kernel module alone: is each record that was pushed in a file?
    Kmod,
    /// A boost with the kernel module as its journal's sink.
    Sink,
    /// The source paper's own way with the kernel module, and what it breaks.
    Study,
    /// The storage node under Linux's own initiator.
    Node,
    /// The storage node, its power cut.
    Power,
    /// Sends from persistent memory.
    Dax,
    /// SETs answered in Redis's place, the power cut.
    Writes,
}

/// Of a guest's memory.
pub type Megabytes = u32;

/// A program or file of this machine, and its package.
pub type Package = (&'static str, &'static str);

/// A guest, and what it runs.
#[derive(Debug)]
pub struct Guest {
    /// What it runs.
    pub script: &'static str,
    /// Its memory; a kernel that looks for mistakes has twice that, and five times the patience.
    pub memory: Megabytes,
    /// Whether it has two cards with a wire between them.
    pub wire: bool,
    /// Whether a part of what it tries can be asked for (`--only`).
    pub chooses: bool,
    /// Programs of the workspace that it needs beside `erb` and `erb-lab`; each is a package of its name.
    pub programs: &'static [&'static str],
    /// What it needs of this machine beside what each guest needs.
    pub packages: &'static [Package],
    /// What there must be of its kernel.
    pub needed: fn(&VmArgs) -> Needed,
    /// Makes what else it needs, in its folder, before it starts.
    pub prepare: fn(&Case<'_>) -> Result<()>,
    /// What it has beside processors, memory and wire.
    pub devices: &'static [Device],
    /// What this machine does meanwhile.
    pub host: Host,
    /// What its kernel is told beside what each is.
    pub words: &'static str,
    /// Complaints of its kernel that belong to the check.
    pub expected: &'static [&'static str],
    /// Ends it, if nobody has said when.
    pub seconds: u64,
}

/// What this machine does beside a guest.
#[derive(Clone, Copy, Debug)]
pub enum Host {
    /// Nothing.
    Nothing,
    /// This program of the guest's runs here too, as its peer. The guest is told where it listens by `erb_ports=`.
    Peer(&'static str),
    /// It looks at what the guest has captured into this folder of its devices.
    Captures(&'static str),
    /// This program starts guests itself and cuts their power; the word says what it does.
    Driver(&'static str, &'static str),
}

/// What is known of a guest before it starts.
pub struct Case<'a> {
    /// The check's name.
    pub check: &'a str,
    /// All that is kept: lists, kernels, runs.
    pub vm: &'a Path,
    /// The guest's own folder, which it sees as its `erb_work=`.
    pub dir: &'a Path,
    /// What was asked for.
    pub args: &'a VmArgs,
    /// Its kernel.
    pub kernel: &'a Given,
}

impl Guest {
    /// Needs nothing but `erb`, `erb-lab` and the image of a kernel.
    pub(crate) const PLAIN: Self = Self {
        script: "",
        memory: 2048,
        wire: false,
        chooses: false,
        programs: &[],
        packages: &[],
        needed: |_| Needed::Image,
        prepare: |_| Ok(()),
        devices: &[],
        host: Host::Nothing,
        words: "",
        expected: &[],
        seconds: 600,
    };
}

impl Guest {
    /// Whether sockets lie in its folder.
    pub(crate) fn has_sockets(&self) -> bool {
        self.wire || matches!(self.host, Host::Driver(..))
    }
}

static LOAD: Guest = Guest {
    script: include_str!("../guest/load.sh"),
    programs: &["erb-load-vm"],
    packages: &[REDIS],
    ..Guest::PLAIN
};

static PATHS: Guest = Guest {
    script: include_str!("../guest/paths.sh"),
    wire: true,
    chooses: true,
    packages: &[REDIS],
    ..Guest::PLAIN
};

static KMOD: Guest = Guest {
    script: concat!(
        include_str!("../guest/debug.sh"),
        include_str!("../guest/kmod.sh")
    ),
    chooses: true,
    memory: 1024,
    programs: &["erb-kmod-vm"],
    packages: &[MKFS, ("/sbin/dmsetup", "dmsetup")],
    needed: |_| Needed::Headers,
    prepare: toolchain::module,
    ..Guest::PLAIN
};

static SINK: Guest = Guest {
    script: concat!(
        include_str!("../guest/debug.sh"),
        include_str!("../guest/boosted.sh"),
        include_str!("../guest/sink.sh")
    ),
    chooses: true,
    memory: 1500,
    packages: &[MKFS, REDIS, PYTHON],
    needed: |_| Needed::Headers,
    prepare: toolchain::module,
    ..Guest::PLAIN
};

static STUDY: Guest = Guest {
    script: concat!(
        include_str!("../guest/debug.sh"),
        include_str!("../guest/boosted.sh"),
        include_str!("../guest/study.sh")
    ),
    memory: 1500,
    programs: &["erb-kmod-vm"],
    packages: &[REDIS, PYTHON],
    needed: |_| Needed::Headers,
    prepare: toolchain::module_for_study,
    ..Guest::PLAIN
};

const PYTHON: Package = ("/usr/bin/python3", "python3");
pub(crate) const MKFS: Package = ("/sbin/mkfs.ext4", "e2fsprogs");
pub(crate) const REDIS: Package = ("/usr/bin/redis-server", "redis-server");

impl Check {
    /// Those that are made if none is named.
    pub const USUAL: [Self; 2] = [Self::Load, Self::Paths];

    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether a seed says what it does.
    #[must_use]
    pub fn is_random(self) -> bool {
        matches!(self, Self::Dax | Self::Power | Self::Writes)
    }

    /// The guest in which it is made.
    #[must_use]
    pub fn guest(self) -> &'static Guest {
        match self {
            Self::Load => &LOAD,
            Self::Paths => &PATHS,
            Self::Kmod => &KMOD,
            Self::Sink => &SINK,
            Self::Study => &STUDY,
            Self::Node => &NODE,
            Self::Power => &POWER,
            Self::Dax => &DAX,
            Self::Writes => &WRITES,
        }
    }
}

/// The sources' root: above this program, or the current folder.
///
/// # Errors
/// [`Missing`] if what is wanted of them is at neither place.
pub fn sources(check: &str, wanted: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell the path of this program")?;
    let here = std::env::current_dir().context("cannot tell the current folder")?;
    let mut places = here.ancestors().chain(program.ancestors());
    let root = places.find(|place| place.join(wanted).exists());
    let missing = || Missing::Sources(check.to_owned(), wanted.to_owned());
    Ok(root.map(Path::to_owned).ok_or_else(missing)?)
}

/// Set to 1 by what has just built the whole workspace: the programs beside this one are of the same build.
const BUILT: &str = "ERB_BUILT";

/// Copies a program of the workspace into a folder; builds it first where there are sources, as it is no part of what is
/// installed.
///
/// # Errors
/// If it is not there and cannot be built.
pub fn copy_program(check: &str, name: &str, into: &Path) -> Result<()> {
    let beside = erb_lab::beside(name)?;
    let target = beside.parent().and_then(Path::parent);
    let is_built = std::env::var_os(BUILT).is_some_and(|value| value == "1") && beside.exists();
    match (sources(check, "crates/proof"), target) {
        _ if is_built => {}
        // Cargo leaves a file where it builds. Elsewhere what is built would lie between programs of others.
        (Ok(root), Some(target)) if target.join(".rustc_info.json").exists() => {
            build(&root, name, &beside, target)?;
        }
        (Ok(_) | Err(_), _) if beside.exists() => {}
        (Ok(_), _) => bail!(
            "{name} is not beside this program, which lies in no target folder of cargo's: build both with \
             `cargo build --release -p erb -p erb-tools -p {name}`, and take them from there"
        ),
        (Err(error), _) => return Err(error),
    }
    let to = into.join(name);
    fs::copy(&beside, &to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", beside.display(), to.display()))
}

/// Beside this program, in the same profile.
fn build(root: &Path, name: &str, beside: &Path, target: &Path) -> Result<()> {
    let folder = beside.parent().context("this program is in no folder")?;
    let mut cargo = Command::new("cargo");
    // Beside what is built with them anyway: alone, its dependencies would be built once more, with fewer features.
    let packages = ["erb", "erb-tools", name];
    cargo.args(["build", "--quiet", "--locked"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    cargo.arg("--target-dir").arg(target).current_dir(root);
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.status().context("cannot run cargo")?;
    ensure!(
        status.success(),
        "{name} cannot be built: see cargo's message"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_name_and_what_it_runs() {
        for check in Check::value_variants() {
            assert!(!check.name().is_empty());
            let guest = check.guest();
            let says = guest.script.contains("guest: $failed failed");
            assert_ne!(says, matches!(guest.host, Host::Driver(..)), "{check:?}");
        }
    }
}
