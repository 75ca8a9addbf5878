// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How C is compiled for ERB: which clang, which flags. For build scripts, and for the tests that
//! compile the data path anew. It depends on nothing, because every build begins with it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

/// What ERB needs, in one place for the build, `scripts/setup.sh` and the documents.
const VERSIONS: &str = include_str!("../../../../scripts/versions");

/// The objects of the data path: XDP tier, TC tier with timer and sweep, the daemon's control
/// programs; what stands in for the first two while somebody traces; what chooses among handlers; and
/// what tunes the feed's connection.
pub const OBJECTS: [&str; 7] = [
    "xdp",
    "tc",
    "control",
    "trace_xdp",
    "trace_tc",
    "front",
    "nagle",
];

/// A version of `scripts/versions`, by its name.
///
/// # Panics
/// If the file has no such line.
#[must_use]
pub fn version(name: &str) -> &'static str {
    let of = |line: &'static str| line.strip_prefix(name)?.strip_prefix('=');
    let found = VERSIONS.lines().find_map(of);
    found.unwrap_or_else(|| panic!("scripts/versions has no {name}"))
}

/// A clang that will do, with its messages kept for [`finish`].
///
/// # Errors
/// What to install if there is none.
pub fn clang() -> Result<Command, String> {
    let (oldest, tried) = (version("ERB_CLANG_MIN"), version("ERB_CLANG_TRIED"));
    for name in [&format!("clang-{tried}"), "clang"] {
        let Ok(output) = Command::new(name).arg("-dumpversion").output() else {
            continue;
        };
        let found = String::from_utf8_lossy(&output.stdout);
        let major = |text: &str| text.trim().split('.').next()?.parse::<u32>().ok();
        if major(&found) >= major(oldest) {
            let mut command = Command::new(name);
            command.stderr(Stdio::piped());
            return Ok(command);
        }
    }
    Err(format!(
        "no clang >= {oldest} found; install it (Debian: apt-get install clang-{tried})"
    ))
}

/// Starts a compiler.
///
/// # Errors
/// If it does not run.
pub fn start(mut command: Command) -> Result<Child, String> {
    let child = command.spawn();
    child.map_err(|error| format!("{command:?} could not be run: {error}"))
}

/// Waits for a compiler.
///
/// # Errors
/// What it said.
pub fn finish(child: Child) -> Result<(), String> {
    let output = child.wait_with_output();
    let output = output.map_err(|error| format!("clang could not be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Whether cargo builds for clippy. It reads Rust alone, and nothing that its build scripts compile is ever run: see
/// [`stand_in`].
#[must_use]
pub fn is_for_clippy() -> bool {
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER");
    wrapper.is_some_and(|it| Path::new(&it).file_stem() == Some("clippy-driver".as_ref()))
}

/// For a build script that [runs for clippy](is_for_clippy): an empty file in place of what it would compile, which no
/// change of the sources makes anew.
///
/// # Errors
/// It cannot be written.
pub fn stand_in(object: &Path) -> Result<(), String> {
    println!("cargo:rerun-if-changed=build.rs");
    let written = if object.exists() {
        Ok(())
    } else {
        fs::write(object, [])
    };
    written.map_err(|error| format!("{}: {error}", object.display()))
}

/// The processor that will run the programs, as libbpf's headers name it: `bpf/base/seam.h` wants to
/// know how strongly it orders memory.
///
/// # Errors
/// Why ERB is not built for it.
pub fn target_macro(arch: &str) -> Result<&'static str, String> {
    match arch {
        "x86_64" => Ok("-D__TARGET_ARCH_x86"),
        _ => Err(format!(
            "ERB is built for x86_64 only, not for {arch}: its order of memory accesses is proved on \
             paper elsewhere, but nobody has run it there (docs/internals/edges.md, E-4)"
        )),
    }
}

/// How BPF programs are compiled.
pub struct Bpf<'a> {
    /// Folder of the sources.
    pub sources: &'a Path,
    /// Another folder of headers: the splice's, for a handler that lies elsewhere.
    pub splice: Option<&'a Path>,
    /// Folder in which libbpf's headers are `bpf/...`.
    pub libbpf: &'a Path,
    /// The instruction set; `v3` is what ERB ships.
    pub cpu: &'a str,
    /// The processor that will run them, see [`target_macro`].
    pub target: &'a str,
}

impl Bpf<'_> {
    /// Compiles `source` to `object`.
    ///
    /// # Errors
    /// What clang said.
    pub fn compile(&self, source: &Path, object: &Path) -> Result<(), String> {
        let mut command = clang()?;
        command
            .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-c"])
            .arg(format!("-mcpu={}", self.cpu))
            .arg(self.target)
            // Keeps paths of the build machine out of the object.
            .arg(format!("-fdebug-prefix-map={}=bpf", self.sources.display()))
            .arg("-I")
            .arg(self.sources)
            .args(self.splice.map(|splice| format!("-I{}", splice.display())))
            .arg("-isystem")
            .arg(self.libbpf)
            .arg("-isystem")
            .arg(self.libbpf.join("bpf"))
            .arg(source)
            .arg("-o")
            .arg(object);
        finish(start(command)?)
            .map_err(|said| format!("{} does not compile:\n{said}", source.display()))
    }
}

/// For a build script: compiles `NAME.bpf.c` of the folder `sources`, which is named relative to the
/// package, to `NAME.bpf.o` in `OUT_DIR`. Returns that and the folder of libbpf's headers: those of
/// the vendored copy that the loader is linked against, so that programs and loader always agree.
///
/// # Errors
/// What clang said, or what Cargo did not.
pub fn build(sources: &str, names: &[&str], cpu: &str) -> Result<(PathBuf, PathBuf), String> {
    build_handler(sources, sources, names, cpu)
}

/// The same for a handler whose sources lie beside those of the splice.
///
/// # Errors
/// As there.
pub fn build_handler(
    sources: &str,
    splice: &str,
    names: &[&str],
    cpu: &str,
) -> Result<(PathBuf, PathBuf), String> {
    let var = |name: &str| env::var(name).map_err(|_| format!("Cargo gives no {name}"));
    let package = PathBuf::from(var("CARGO_MANIFEST_DIR")?);
    let (sources, splice) = (package.join(sources), package.join(splice));
    let [out, libbpf] = [var("OUT_DIR")?, var("DEP_BPF_INCLUDE")?].map(PathBuf::from);
    let object = |name: &str| out.join(format!("{name}.bpf.o"));
    if is_for_clippy() {
        names.iter().try_for_each(|name| stand_in(&object(name)))?;
        return Ok((out, libbpf));
    }
    // Cargo looks at everything below.
    println!("cargo:rerun-if-changed={}", sources.display());
    println!("cargo:rerun-if-changed={}", splice.display());
    let bpf = Bpf {
        sources: &sources,
        splice: (splice != sources).then_some(&splice),
        libbpf: &libbpf,
        cpu,
        target: target_macro(&var("CARGO_CFG_TARGET_ARCH")?)?,
    };
    for name in names {
        let source = sources.join(format!("{name}.bpf.c"));
        bpf.compile(&source, &object(name))?;
    }
    Ok((out, libbpf))
}
