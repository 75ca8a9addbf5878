// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other servers than the installed redis-server: those of Debian 13, unpacked beside the build and
//! never installed.
//!
//! apt fetches and verifies the packages with lists, cache and sources of its own: the system's
//! repositories of Debian, asked for another suite. The programs need Debian 13's C library, so that
//! is unpacked as well, and a script starts them by its loader. What was unpacked once is used again,
//! without network.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use nix::fcntl::{Flock, FlockArg};

/// The suite of Debian that has them.
const SUITE: &str = "trixie";
/// Libraries of all these servers, with what those need.
const LIBRARIES: [&str; 10] = [
    "libc6",
    "libatomic1",
    "libcap2",
    "libgcc-s1",
    "libjemalloc2",
    "liblzf1",
    "libssl3t64",
    "libstdc++6",
    "libsystemd0",
    "zlib1g",
];
/// zstd, which libssl of Debian 13 is linked to.
const LIBZSTD: &str = "libzstd1";
/// Where Debian puts libraries.
const LIBRARY_DIR: &str = "usr/lib/x86_64-linux-gnu";
/// Where the system's repositories are written down.
const APT_SOURCES: [&str; 2] = ["/etc/apt/sources.list", "/etc/apt/sources.list.d"];

/// Which server a lab runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ServerProgram {
    /// The installed redis-server, which is Redis 7 on Debian 12.
    #[default]
    Redis7,
    /// Debian 13's Redis 8.
    Redis8,
    /// Debian 13's Valkey 8.
    Valkey8,
}

impl ServerProgram {
    /// Package that holds the program, and its name there.
    const fn package(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Redis7 => None,
            // redis-server is a link to this; what it is follows from the name it is called by.
            Self::Redis8 => Some(("redis-tools", "redis-check-rdb")),
            Self::Valkey8 => Some(("valkey-tools", "valkey-check-rdb")),
        }
    }

    /// Name of the folder, and what it is called by itself.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Redis7 => ("redis7", "redis-server"),
            Self::Redis8 => ("redis8", "redis-server"),
            Self::Valkey8 => ("valkey8", "valkey-server"),
        }
    }

    /// What starts it; fetched unless it is there.
    ///
    /// # Errors
    /// [`CANNOT_BE_HAD`] in its text if there is no such package within reach.
    pub fn program(self) -> Result<PathBuf> {
        let (folder, name) = self.names();
        let Some((package, binary)) = self.package() else {
            return Ok(PathBuf::from(name));
        };
        let dir = work_dir()?.join(folder);
        let program = dir.join("bin").join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let lock = File::create(dir.join("lock")).context("cannot make a lock")?;
        let _lock = Flock::lock(lock, FlockArg::LockExclusive)
            .map_err(|(_, error)| error)
            .context("cannot lock the folder of servers")?;
        if !program.exists() {
            unpack(&dir, package, binary, name)
                .with_context(|| format!("{folder} {CANNOT_BE_HAD}"))?;
        }
        Ok(program)
    }
}

/// What an error says if a server could not be fetched.
pub const CANNOT_BE_HAD: &str = "cannot be had from Debian's repositories";

fn unpack(dir: &Path, package: &str, binary: &str, name: &str) -> Result<()> {
    let apt = dir.join("apt");
    let sources = debian_sources()?;
    for name in ["lists/partial", "cache/archives/partial", "deb"] {
        fs::create_dir_all(apt.join(name))?;
    }
    fs::write(apt.join("debian.sources"), sources)?;
    apt_get(&apt, &["update"])?;
    let mut words = vec!["download", package, LIBZSTD];
    words.extend(LIBRARIES);
    apt_get(&apt, &words)?;
    let root = dir.join("root");
    for entry in fs::read_dir(apt.join("deb"))? {
        run(Command::new("dpkg-deb")
            .arg("-x")
            .arg(entry?.path())
            .arg(&root))?;
    }
    fs::remove_dir_all(&apt)?;
    // In two steps: what does not run has no final name.
    let half = dir.join("bin-half").join(name);
    let program = dir.join("bin").join(name);
    fs::create_dir_all(dir.join("bin-half"))?;
    let libraries = root.join(LIBRARY_DIR);
    let text = format!(
        "#!/bin/sh\nexec {}/ld-linux-x86-64.so.2 --argv0 {} --library-path {} {}/usr/bin/{binary} \"$@\"\n",
        libraries.display(),
        program.display(),
        libraries.display(),
        root.display(),
    );
    fs::write(&half, text)?;
    fs::set_permissions(&half, fs::Permissions::from_mode(0o755))?;
    run(Command::new(&half).arg("--version"))?;
    fs::rename(dir.join("bin-half"), dir.join("bin")).context("cannot name what was unpacked")
}

/// The system's repositories of Debian, asked for [`SUITE`], as in deb822(5).
fn debian_sources() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .filter(|_| release.lines().any(|line| line == "ID=debian"))
        .context("this is no Debian: none of its repositories is known")?;
    let mut texts = vec![fs::read_to_string(APT_SOURCES[0]).unwrap_or_default()];
    for entry in fs::read_dir(APT_SOURCES[1]).into_iter().flatten() {
        texts.push(fs::read_to_string(entry?.path()).unwrap_or_default());
    }
    texts
        .iter()
        .find_map(|text| stanza(text, codename).or_else(|| one_line(text, codename)))
        .with_context(|| {
            format!(
                "no repository of Debian {codename} is in {}*",
                APT_SOURCES[0]
            )
        })
}

/// The stanza of a deb822 file that has the suite itself, with another suite in its place.
fn stanza(text: &str, codename: &str) -> Option<String> {
    let value = |stanza: &str, key: &str| {
        let line = stanza.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let found = text.split("\n\n").find(|stanza| {
        value(stanza, "Types").is_some_and(|types| types.contains("deb"))
            && value(stanza, "Suites")
                .is_some_and(|suites| suites.split_whitespace().any(|suite| suite == codename))
    })?;
    let key = value(found, "Signed-By").map_or_else(String::new, |k| format!("Signed-By: {k}\n"));
    let uris = value(found, "URIs")?;
    Some(format!(
        "Types: deb\nURIs: {uris}\nSuites: {SUITE}\nComponents: main\n{key}"
    ))
}

/// The same of a line as in sources.list(5).
fn one_line(text: &str, codename: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let uri = words.next()?;
        if words.next()? != codename {
            return None;
        }
        let key = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .map_or_else(String::new, |key| format!("Signed-By: {key}\n"));
        Some(format!(
            "Types: deb\nURIs: {uri}\nSuites: {SUITE}\nComponents: main\n{key}"
        ))
    })
}

fn apt_get(dir: &Path, words: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    for (key, value) in [
        ("Dir::Etc::sourcelist", dir.join("debian.sources")),
        ("Dir::Etc::sourceparts", "-".into()),
        ("Dir::State::lists", dir.join("lists")),
        ("Dir::Cache", dir.join("cache")),
    ] {
        command.arg(format!("-o{key}={}", value.display()));
    }
    // The folder need not be open to apt's own user. What is pinned in the system is not meant here.
    command
        .args([
            "-q",
            "-oAPT::Sandbox::User=root",
            "-oDir::Etc::preferencesparts=-",
        ])
        .args(words);
    run(command.current_dir(dir.join("deb")))
}

/// Runs a program to its end; an error says what it said.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(File::open("/dev/null")?)
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed ({}): {}", output.status, said.trim());
    }
    Ok(())
}

/// The build's target directory, if this program lies in one (cargo leaves a file there), else the
/// user's cache.
fn work_dir() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell the path of this program")?;
    let marked = |dir: &&Path| dir.join(".rustc_info.json").is_file();
    if let Some(dir) = program.ancestors().skip(1).find(marked) {
        return Ok(dir.join("servers"));
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let dir = cache.or_else(home);
    ensure!(dir.is_some(), "no place for servers is known: set HOME");
    Ok(dir.unwrap_or_default().join("erb/servers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_asked_for_another_suite() {
        let wanted =
            "Types: deb\nURIs: http://a/debian\nSuites: trixie\nComponents: main\nSigned-By: /k\n";
        let new = "Types: deb\nURIs: http://a/security\nSuites: old-security\n\nTypes: deb\n# c\n\
                   URIs: http://a/debian\nSuites: old old-updates\nComponents: main\nSigned-By: /k\n";
        assert_eq!(stanza(new, "old").as_deref(), Some(wanted));
        assert_eq!(stanza(new, "other"), None);
        let old =
            "# deb http://b old main\ndeb [arch=amd64 signed-by=/k] http://a/debian old main\n";
        assert_eq!(one_line(old, "old").as_deref(), Some(wanted));
        assert_eq!(one_line(old, "other"), None);
    }

    #[test]
    fn a_package_that_is_missing_is_named() {
        let dir = std::env::temp_dir().join(format!("erb-servers-{}", std::process::id()));
        fs::create_dir_all(dir.join("deb")).unwrap();
        fs::write(dir.join("debian.sources"), "").unwrap();
        let error = apt_get(&dir, &["download", "no-such-package-of-erb"]).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-package-of-erb"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_installed_server_is_found_by_its_name() {
        let program = ServerProgram::Redis7.program().unwrap();
        assert_eq!(program, Path::new("redis-server"));
    }
}
