// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite itself: Debian's source package of the very redis-server that is installed.
//!
//! apt fetches and verifies it, with a configuration of its own in the work directory (the
//! system's repositories, asked for sources; its keys; none of its lists): /etc/apt is only read.
//! What was unpacked once is used again, without network.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::SuiteArgs;

/// Programs that the suite looks for in its `src`.
const PROGRAMS: [&str; 6] = [
    "redis-server",
    "redis-cli",
    "redis-benchmark",
    "redis-sentinel",
    "redis-check-aof",
    "redis-check-rdb",
];
/// Where the system's repositories are written down.
const APT_SOURCES: &str = "/etc/apt/sources.list";
/// And further ones, file by file.
const APT_SOURCES_DIR: &str = "/etc/apt/sources.list.d";

/// The suite, ready to run.
pub struct Suite {
    /// Root of the unpacked source.
    pub dir: PathBuf,
    /// For people: package and version, or the directory that was named.
    pub origin: String,
    /// Outputs of the suite.
    logs: PathBuf,
}

impl Suite {
    /// Takes the suite from where the arguments say, fetching it if need be.
    pub fn get(args: &SuiteArgs) -> Result<Self> {
        need("tclsh", "tcl")?;
        let workdir = workdir(args)?;
        let logs = workdir.join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let (dir, origin) = match &args.source {
            Some(dir) => (named(dir)?, dir.display().to_string()),
            None => {
                let package = Package::installed()?;
                let dir = package.unpacked(&workdir)?;
                (dir, package.to_string())
            }
        };
        link_programs(&dir)?;
        Ok(Self { dir, origin, logs })
    }

    /// Names of all its files, in its order.
    pub fn units(&self) -> Result<Vec<String>> {
        let mut command = Command::new("./runtest");
        let printed = output(command.arg("--list-tests").current_dir(&self.dir))?;
        let units: Vec<String> = printed.split_whitespace().map(str::to_owned).collect();
        ensure!(
            !units.is_empty(),
            "{}/runtest --list-tests lists nothing",
            self.dir.display()
        );
        Ok(units)
    }

    /// Where the output of a run goes.
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// The directory of all outputs.
    pub fn logs(&self) -> &Path {
        &self.logs
    }
}

/// A source package of an exact version.
struct Package {
    name: String,
    version: String,
}

impl std::fmt::Display for Package {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.name, self.version)
    }
}

impl Package {
    /// That of the installed redis-server.
    fn installed() -> Result<Self> {
        let format = "-f=${source:Package} ${source:Version}";
        let printed = output(Command::new("dpkg-query").args(["-W", format, "redis-server"]))
            .context(
                "redis-server is no package of Debian's or Ubuntu's here: install it, or unpack \
                 the source of yours and name it with --source",
            )?;
        let (name, version) = printed
            .trim()
            .split_once(' ')
            .ok_or_else(|| anyhow!("dpkg-query names no source of redis-server: {printed:?}"))?;
        Ok(Self {
            name: name.to_owned(),
            version: version.to_owned(),
        })
    }

    /// Its unpacked source; fetched unless it is there.
    fn unpacked(&self, workdir: &Path) -> Result<PathBuf> {
        let dir = workdir.join(self.to_string().replace([' ', ':', '/'], "-"));
        if dir.is_dir() {
            return Ok(dir);
        }
        eprintln!("suite: fetching the source of {self}");
        self.fetch(workdir, &dir).with_context(|| {
            format!(
                "cannot get the source package of {self}, whose test suite is to be run. It is \
                 fetched once, through the repositories of {APT_SOURCES}*: look at their reach \
                 and at the message above; if they have only a newer version, upgrade \
                 redis-server; without network unpack the source elsewhere and name it with \
                 --source"
            )
        })?;
        Ok(dir)
    }

    fn fetch(&self, workdir: &Path, dir: &Path) -> Result<()> {
        need("apt-get", "apt")?;
        need("dpkg-source", "dpkg-dev")?;
        let apt = Apt::configure(&workdir.join("apt"))?;
        // A repository without sources, or out of reach, must not keep us from the others: whether
        // the lists suffice shows in the next step.
        if let Err(error) = apt.get(&["update"]) {
            eprintln!("suite: {error:#}");
        }
        let package = format!("{}={}", self.name, self.version);
        apt.get(&["source", "--only-source", "--download-only", &package])?;
        let description = find_description(&apt.dir)?;
        // In two steps: what is half unpacked has no final name.
        let half = workdir.join("unpacking");
        if half.exists() {
            fs::remove_dir_all(&half)?;
        }
        let mut unpack = Command::new("dpkg-source");
        output(unpack.arg("-x").arg(&description).arg(&half))?;
        fs::rename(&half, dir).with_context(|| format!("cannot make {}", dir.display()))
    }
}

/// apt with lists, cache and sources of its own.
struct Apt {
    dir: PathBuf,
}

impl Apt {
    fn configure(dir: &Path) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        for name in ["lists/partial", "cache/archives/partial", "sources.list.d"] {
            let path = dir.join(name);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let list = dir.join("sources.list");
        fs::write(list, of_sources(&read(Path::new(APT_SOURCES))?, false))?;
        let further = Path::new(APT_SOURCES_DIR);
        if further.is_dir() {
            for entry in fs::read_dir(further)? {
                let from = entry?.path();
                let modern = from.extension() == Some(OsStr::new("sources"));
                let known = modern || from.extension() == Some(OsStr::new("list"));
                if let (true, Some(name)) = (known, from.file_name()) {
                    let text = of_sources(&read(&from)?, modern);
                    fs::write(dir.join("sources.list.d").join(name), text)?;
                }
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    fn get(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new("apt-get");
        for (key, name) in [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::Etc::sourceparts", "sources.list.d"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            let value = self.dir.join(name);
            command.arg(format!("-o{key}={}", value.display()));
        }
        // The work directory need not be open to apt's own user.
        command
            .args(["-q", "-oAPT::Sandbox::User=root"])
            .args(words);
        output(command.current_dir(&self.dir)).map(drop)
    }
}

/// A file that may be missing.
fn read(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The same repositories, asked for sources; `modern` as in deb822(5), else as in sources.list(5).
fn of_sources(text: &str, modern: bool) -> String {
    text.lines()
        .map(|line| {
            let changed = if modern {
                let types = line
                    .get(..6)
                    .is_some_and(|w| w.eq_ignore_ascii_case("types:"));
                types.then(|| "Types: deb-src".to_owned())
            } else {
                line.trim_start()
                    .strip_prefix("deb")
                    .filter(|rest| rest.starts_with([' ', '\t', '[']))
                    .map(|rest| format!("deb-src{rest}"))
            };
            changed.unwrap_or_else(|| line.to_owned()) + "\n"
        })
        .collect()
}

/// The `.dsc` that apt put there.
fn find_description(dir: &Path) -> Result<PathBuf> {
    fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension() == Some(OsStr::new("dsc")))
        .ok_or_else(|| anyhow!("apt-get left no .dsc in {}", dir.display()))
}

/// A source tree that the user named; its version must be the server's.
fn named(dir: &Path) -> Result<PathBuf> {
    let file = dir.join("src/version.h");
    let text = fs::read_to_string(&file).with_context(|| {
        format!(
            "{} cannot be read: --source wants the root of Redis's source",
            file.display()
        )
    })?;
    let of_source = text.split('"').nth(1).unwrap_or_default();
    let server = output(Command::new("redis-server").arg("--version"))?;
    let of_server = server
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))
        .unwrap_or_default();
    ensure!(
        of_source == of_server,
        "{} is the source of Redis {of_source}, but redis-server is {of_server}: the suite must \
         be of the same version",
        dir.display()
    );
    fs::canonicalize(dir).with_context(|| format!("cannot find {}", dir.display()))
}

/// The suite calls programs in `src`, where a build would have put them: the installed ones.
fn link_programs(dir: &Path) -> Result<()> {
    for program in PROGRAMS {
        let link = dir.join("src").join(program);
        if link.exists() {
            continue;
        }
        if let Some(path) = which(program) {
            std::os::unix::fs::symlink(&path, &link)
                .with_context(|| format!("cannot make {}", link.display()))?;
        }
    }
    Ok(())
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

fn need(program: &str, package: &str) -> Result<()> {
    ensure!(
        which(program).is_some(),
        "{program} is missing: run `apt-get install {package}`"
    );
    Ok(())
}

/// Where things are kept: see [`SuiteArgs::workdir`].
fn workdir(args: &SuiteArgs) -> Result<PathBuf> {
    let dir = match &args.workdir {
        Some(dir) => dir.clone(),
        None => target_dir()
            .or_else(cache_dir)
            .map(|dir| dir.join("suite"))
            .context("no place for the suite's source is known: name one with --workdir")?,
    };
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    fs::canonicalize(&dir).with_context(|| format!("cannot find {}", dir.display()))
}

/// The build's target directory, if this program lies in one: cargo leaves this file there.
fn target_dir() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let marked = |dir: &&Path| dir.join(".rustc_info.json").is_file();
    program.ancestors().skip(1).find(marked).map(Path::to_owned)
}

fn cache_dir() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    Some(cache.or_else(home)?.join("erb"))
}

/// Runs a program to its end; what it printed, or an error with what it said.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(File::open("/dev/null")?)
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed ({}): {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_asked_for_sources() {
        let old = "# deb\ndeb [signed-by=/k.gpg] http://a b main\n deb-src http://a b main\n";
        let wanted =
            "# deb\ndeb-src [signed-by=/k.gpg] http://a b main\n deb-src http://a b main\n";
        assert_eq!(of_sources(old, false), wanted);
        let new = "Types: deb deb-src\nURIs: http://a/b\n\ntypes: deb\n";
        let wanted = "Types: deb-src\nURIs: http://a/b\n\nTypes: deb-src\n";
        assert_eq!(of_sources(new, true), wanted);
    }

    #[test]
    fn a_source_of_another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", named(dir.path()).unwrap_err());
        assert!(error.contains("--source wants"), "{error}");
        fs::create_dir(dir.path().join("src")).unwrap();
        let version = "#define REDIS_VERSION \"0.0.1\"\n";
        fs::write(dir.path().join("src/version.h"), version).unwrap();
        let error = format!("{:#}", named(dir.path()).unwrap_err());
        assert!(error.contains("source of Redis 0.0.1"), "{error}");
    }

    #[test]
    fn a_failing_program_is_quoted() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(format!("{error:#}").contains("why"), "{error:#}");
        let error = need("no-such-program-of-erb", "some-package").unwrap_err();
        assert!(format!("{error:#}").contains("some-package"), "{error:#}");
    }
}
