// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite itself: Debian's source package of the very server that is tested.
//!
//! apt fetches and verifies it ([`erb_lab::apt`]). What was unpacked once is used again, without
//! network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use erb_lab::ServerProgram;
use erb_lab::apt::{APT_SOURCES, Apt, kept_dir, output};

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
        let (dir, origin) = match (&args.source, args.server.folder()) {
            (Some(dir), _) => (named(dir, args.server)?, dir.display().to_string()),
            (None, Some(folder)) => {
                let dir = workdir.join(folder);
                if !dir.is_dir() {
                    tools_to_fetch()?;
                    eprintln!("suite: fetching the source of {folder}");
                    args.server.unpack_source(&workdir.join("apt"), &dir)?;
                }
                let origin = format!("{folder}, version {}", source_version(&dir)?);
                (named(&dir, args.server)?, origin)
            }
            (None, None) => {
                let package = Package::installed()?;
                let dir = package.unpacked(&workdir)?;
                (dir, package.to_string())
            }
        };
        link_programs(&dir, args.server)?;
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
        tools_to_fetch()?;
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
        let apt = Apt::of_system_sources(&workdir.join("apt"))?;
        // A repository without sources, or out of reach, must not keep us from the others: whether
        // the lists suffice shows in the next step.
        if let Err(error) = apt.get(&["update"]) {
            eprintln!("suite: {error:#}");
        }
        apt.get_source(&format!("{}={}", self.name, self.version), dir)
    }
}

fn tools_to_fetch() -> Result<()> {
    need("apt-get", "apt")?;
    need("dpkg-source", "dpkg-dev")
}

/// The version that a source tree is of.
fn source_version(dir: &Path) -> Result<String> {
    let file = dir.join("src/version.h");
    let text = fs::read_to_string(&file).with_context(|| {
        format!(
            "{} cannot be read: --source wants the root of the server's source",
            file.display()
        )
    })?;
    // Valkey says in REDIS_VERSION which Redis it claims to be.
    let of = |name: &str| {
        let line = text.lines().find(|line| line.contains(name))?;
        line.split('"').nth(1).map(str::to_owned)
    };
    of(" VALKEY_VERSION ")
        .or_else(|| of(" REDIS_VERSION "))
        .with_context(|| format!("{} names no version", file.display()))
}

/// A source tree whose version must be the server's.
fn named(dir: &Path, server: ServerProgram) -> Result<PathBuf> {
    let of_source = source_version(dir)?;
    let said = output(Command::new(server.program()?).arg("--version"))?;
    let of_server = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))
        .unwrap_or_default();
    ensure!(
        of_source == of_server,
        "{} is the source of version {of_source}, but the server is of {of_server}: the suite must be \
         of the same",
        dir.display()
    );
    fs::canonicalize(dir).with_context(|| format!("cannot find {}", dir.display()))
}

/// The suite calls programs in `src`, where a build would have put them: those of the server.
fn link_programs(dir: &Path, server: ServerProgram) -> Result<()> {
    let mut programs = server.programs()?;
    if programs.is_empty() {
        programs = PROGRAMS.iter().filter_map(|name| which(name)).collect();
    }
    for program in programs {
        let link = dir
            .join("src")
            .join(program.file_name().unwrap_or_default());
        if !link.exists() {
            std::os::unix::fs::symlink(&program, &link)
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
        None => kept_dir("suite").context("name another place with --workdir")?,
    };
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    fs::canonicalize(&dir).with_context(|| format!("cannot find {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_of_another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let named = || named(dir.path(), ServerProgram::Redis7).unwrap_err();
        let error = format!("{:#}", named());
        assert!(error.contains("--source wants"), "{error}");
        fs::create_dir(dir.path().join("src")).unwrap();
        let version = "#define REDIS_VERSION \"0.0.1\"\n";
        fs::write(dir.path().join("src/version.h"), version).unwrap();
        let error = format!("{:#}", named());
        assert!(error.contains("source of version 0.0.1"), "{error}");
        let version = "#define VALKEY_VERSION \"0.0.2\"\n#define REDIS_VERSION \"0.0.1\"\n";
        fs::write(dir.path().join("src/version.h"), version).unwrap();
        assert_eq!(source_version(dir.path()).unwrap(), "0.0.2");
    }

    #[test]
    fn a_program_that_is_missing_is_named_with_its_package() {
        let error = need("no-such-program-of-erb", "some-package").unwrap_err();
        assert!(format!("{error:#}").contains("some-package"), "{error:#}");
    }
}
