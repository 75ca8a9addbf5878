// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the data path's C is compiled for user space. Used by the build script for the builtin library
//! and at run time for mutants.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Child;

use erb_clang::{clang, finish, start};

/// The objects of the data path; each has private maps of its own.
const OBJECTS: [&str; 3] = ["xdp", "tc", "control"];

/// What names the maps and programs of all of them, and the core of the kernel module that they call.
const OTHERS: [&str; 2] = ["library", "io"];

/// Maps that several objects define and each has for itself: not pinned, so not shared.
const PRIVATE_MAPS: [&str; 1] = ["work_map"];

/// What is built into the C besides itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// As fast as can be.
    Plain,
    /// Compiled as soon as can be, in a fifth of the time: for what is run for a moment.
    #[allow(dead_code, reason = "the build script makes no mutants")]
    Hasty,
    /// AddressSanitizer and UBSan.
    Sanitized,
    /// That, and counters of coverage for libFuzzer.
    Fuzzed,
}

impl Flavour {
    /// Whether the sanitizers are built in.
    fn is_sanitized(self) -> bool {
        matches!(self, Self::Sanitized | Self::Fuzzed)
    }

    /// Of the line tables that backtraces use. Without them a hasty one takes half the time.
    const fn debug(self) -> &'static str {
        match self {
            Self::Hasty => "-g0",
            Self::Plain | Self::Sanitized | Self::Fuzzed => "-g1",
        }
    }

    const fn optimisation(self) -> &'static str {
        match self {
            Self::Plain => "-O2",
            Self::Hasty => "-O0",
            // Instrumented code takes minutes to optimise fully.
            Self::Sanitized | Self::Fuzzed => "-O1",
        }
    }
}

/// Why the C could not be compiled: there is no clang, or its messages.
#[derive(Debug)]
pub struct CompileError(String);

impl From<String> for CompileError {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "the data path does not compile:\n{}", self.0)
    }
}

impl std::error::Error for CompileError {}

/// Names of the objects that a library is made of.
pub fn names() -> impl Iterator<Item = &'static str> {
    OBJECTS.into_iter().chain(OTHERS)
}

/// Compiles these of the sources in `bpf` with the helpers in `shim` to object files in `out`, each beside a list of
/// the files that it was made of, as make reads them.
///
/// # Errors
/// [`CompileError`] if there is no clang or it refuses a source.
pub fn objects(
    bpf: &Path,
    shim: &Path,
    out: &Path,
    flavour: Flavour,
    names: impl IntoIterator<Item = &'static str>,
) -> Result<Vec<PathBuf>, CompileError> {
    let mut running = Vec::new();
    for name in names {
        let object = out.join(format!("{name}.o"));
        if OTHERS.contains(&name) {
            let source = shim.join(format!("{name}.c"));
            let kmod = shim.join("../../../../kmod");
            let folders = [bpf, shim, &kmod];
            running.push((begin(&source, &object, &[], &folders, flavour)?, object));
            continue;
        }
        let mut flags = vec![format!("-DSIM_OBJECT=\"{name}\"")];
        flags.extend(PRIVATE_MAPS.map(|map| format!("-D{map}={map}_{name}")));
        let source = bpf.join(format!("{name}.bpf.c"));
        running.push((
            begin(&source, &object, &flags, &[bpf, shim], flavour)?,
            object,
        ));
    }
    let ended = |(child, object)| finish(child).map(|()| object).map_err(CompileError);
    running.into_iter().map(ended).collect()
}

/// Links object files to a shared library that `Library::load` takes.
///
/// # Errors
/// [`CompileError`] if there is no clang or it cannot link.
#[allow(dead_code, reason = "the build script makes a static library")]
pub fn link(objects: &[PathBuf], library: &Path, flavour: Flavour) -> Result<(), CompileError> {
    let mut command = clang()?;
    if !flavour.is_sanitized() {
        command.arg("-Wl,-z,defs"); // the program has the sanitizers' run-time library
    }
    command.args(["-shared", "-o"]).arg(library).args(objects);
    Ok(finish(start(command)?)?)
}

fn begin(
    source: &Path,
    object: &Path,
    flags: &[String],
    include: &[&Path],
    flavour: Flavour,
) -> Result<Child, String> {
    let mut command = clang()?;
    command.args(["-c", "-MD", flavour.debug(), "-fPIC", "-Wall", "-Werror"]);
    // Violations unwind through C; BPF code reads memory as whatever type it needs.
    command.args(["-fexceptions", "-fno-strict-aliasing", "-fwrapv"]);
    command.arg("-fvisibility=hidden");
    // Relocation of kernel types has no meaning here; any attribute of records will do.
    command.arg("-Dpreserve_access_index=annotate(\"relocated\")");
    // As for the kernel of this machine; the simulator's memory is ordered.
    command.arg("-D__TARGET_ARCH_x86");
    command.arg(flavour.optimisation());
    if flavour == Flavour::Fuzzed {
        command.arg("-fsanitize=fuzzer-no-link");
    }
    if flavour.is_sanitized() {
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        // Unaligned access is allowed to BPF programs on this machine.
        command.args(["-fno-sanitize=alignment", "-fno-omit-frame-pointer"]);
        command.args(["-fsanitize-address-use-after-return=never"]);
    }
    command.args(flags);
    for folder in include {
        command.arg("-I").arg(folder);
    }
    command.arg(source).arg("-o").arg(object);
    start(command)
}
