// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packages that are unpacked beside the build and never installed.
//!
//! apt fetches and verifies them, with a configuration of its own (the system's repositories and keys;
//! none of its lists): /etc/apt is only read.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where the system's repositories are written down.
pub const APT_SOURCES: &str = "/etc/apt/sources.list";
/// And further ones, file by file.
const APT_SOURCES_DIR: &str = "/etc/apt/sources.list.d";

/// What a repository is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Programs.
    Binary,
    /// Sources.
    Source,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Binary => "deb",
            Self::Source => "deb-src",
        }
    }
}

/// apt with lists, cache and sources of its own.
pub struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// With the system's own repositories, asked for sources. What was in `dir` is removed.
    ///
    /// # Errors
    /// If the folder cannot be made or the system's configuration not be read.
    pub fn of_system_sources(dir: &Path) -> Result<Self> {
        let apt = Self::empty(dir)?;
        for file in source_files()? {
            let modern = file.extension() == Some(OsStr::new("sources"));
            let name = file.file_name().unwrap_or_default();
            let text = of_sources(&read(&file)?, modern);
            fs::write(apt.dir.join("parts").join(name), text)?;
        }
        Ok(apt)
    }

    /// With the system's repository of Debian, asked for another suite of it. What was in `dir` is removed.
    ///
    /// # Errors
    /// As [`Apt::of_system_sources`], and if the system is no Debian.
    pub fn of_debian(dir: &Path, suite: &str, kind: Kind) -> Result<Self> {
        let apt = Self::empty(dir)?;
        let text = debian_sources(suite, kind)?;
        fs::write(apt.dir.join("parts/debian.sources"), text)?;
        Ok(apt)
    }

    fn empty(dir: &Path) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        for name in ["lists/partial", "cache/archives/partial", "parts", "got"] {
            let path = dir.join(name);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// Where apt-get puts what it downloads.
    pub fn got(&self) -> PathBuf {
        self.dir.join("got")
    }

    /// Runs apt-get.
    ///
    /// # Errors
    /// If it fails, with what it said.
    pub fn get(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new("apt-get");
        for (key, value) in [
            ("Dir::Etc::sourcelist", "-".into()),
            ("Dir::Etc::sourceparts", self.dir.join("parts")),
            ("Dir::State::lists", self.dir.join("lists")),
            ("Dir::Cache", self.dir.join("cache")),
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
        output(command.current_dir(self.got())).map(drop)
    }

    /// Fetches a source package, `NAME` or `NAME=VERSION`, and unpacks it as `dir`.
    ///
    /// # Errors
    /// If that fails.
    pub fn get_source(&self, package: &str, dir: &Path) -> Result<()> {
        self.get(&["source", "--only-source", "--download-only", package])?;
        let got = self.got();
        let description = fs::read_dir(&got)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension() == Some(OsStr::new("dsc")))
            .with_context(|| format!("apt-get left no .dsc in {}", got.display()))?;
        // In two steps: what is half unpacked has no final name.
        let half = self.dir.join("unpacking");
        let mut unpack = Command::new("dpkg-source");
        output(unpack.arg("-x").arg(&description).arg(&half))?;
        fs::rename(&half, dir).with_context(|| format!("cannot make {}", dir.display()))
    }
}

/// The files in which the system's repositories are written down, that are there.
fn source_files() -> Result<Vec<PathBuf>> {
    let mut files = vec![PathBuf::from(APT_SOURCES)];
    if Path::new(APT_SOURCES_DIR).is_dir() {
        for entry in fs::read_dir(APT_SOURCES_DIR)? {
            files.push(entry?.path());
        }
    }
    let known = |file: &PathBuf| {
        let end = file.extension();
        file.is_file() && (end == Some(OsStr::new("list")) || end == Some(OsStr::new("sources")))
    };
    files.retain(known);
    Ok(files)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
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

/// The system's repository of Debian, asked for `suite`, as in deb822(5).
fn debian_sources(suite: &str, kind: Kind) -> Result<String> {
    let release = read(Path::new("/etc/os-release"))?;
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .filter(|_| release.lines().any(|line| line == "ID=debian"))
        .context("this is no Debian: none of its repositories is known")?;
    for file in source_files()? {
        let text = read(&file)?;
        if let Some(found) = stanza(&text, codename).or_else(|| one_line(&text, codename)) {
            return Ok(found.asked_for(suite, kind));
        }
    }
    bail!("no repository of Debian {codename} is in {APT_SOURCES}*")
}

/// A repository, and the key it is signed with if that is said.
#[derive(Debug, PartialEq, Eq)]
struct Repository {
    uris: String,
    key: Option<String>,
}

impl Repository {
    fn asked_for(&self, suite: &str, kind: Kind) -> String {
        let key = self.key.iter().map(|key| format!("Signed-By: {key}\n"));
        format!(
            "Types: {}\nURIs: {}\nSuites: {suite}\nComponents: main\n{}",
            kind.word(),
            self.uris,
            key.collect::<String>()
        )
    }
}

/// That of the stanza of a deb822 file that has this suite.
fn stanza(text: &str, codename: &str) -> Option<Repository> {
    let value = |stanza: &str, key: &str| {
        let line = stanza.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let found = text.split("\n\n").find(|stanza| {
        value(stanza, "Types").is_some_and(|types| types.contains("deb"))
            && value(stanza, "Suites")
                .is_some_and(|suites| suites.split_whitespace().any(|suite| suite == codename))
    })?;
    Some(Repository {
        uris: value(found, "URIs")?,
        key: value(found, "Signed-By"),
    })
}

/// The same of a line as in sources.list(5).
fn one_line(text: &str, codename: &str) -> Option<Repository> {
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
            .find_map(|option| option.strip_prefix("signed-by="));
        Some(Repository {
            uris: uri.to_owned(),
            key: key.map(str::to_owned),
        })
    })
}

/// Runs a program to its end; what it printed, or an error with what it said.
///
/// # Errors
/// If it cannot be run or fails.
pub fn output(command: &mut Command) -> Result<String> {
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

/// A folder for what is kept beside the build: in the build's target directory if this program lies in
/// one (cargo leaves a file there), else in the user's cache.
///
/// # Errors
/// If neither is known.
pub fn kept_dir(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell the path of this program")?;
    let marked = |dir: &&Path| dir.join(".rustc_info.json").is_file();
    if let Some(dir) = program.ancestors().skip(1).find(marked) {
        return Ok(dir.join(name));
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let dir = cache.or_else(home);
    let dir = dir.with_context(|| format!("no place for {name} is known: set HOME"))?;
    Ok(dir.join("erb").join(name))
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
    fn repositories_are_asked_for_another_suite() {
        let wanted =
            "Types: deb\nURIs: http://a/debian\nSuites: other\nComponents: main\nSigned-By: /k\n";
        let asked = |found: Option<Repository>, kind| Some(found?.asked_for("other", kind));
        let new = "Types: deb\nURIs: http://a/security\nSuites: old-security\n\nTypes: deb\n# c\n\
                   URIs: http://a/debian\nSuites: old old-updates\nComponents: main\nSigned-By: /k\n";
        assert_eq!(
            asked(stanza(new, "old"), Kind::Binary).as_deref(),
            Some(wanted)
        );
        assert_eq!(stanza(new, "another"), None);
        let old =
            "# deb http://b old main\ndeb [arch=amd64 signed-by=/k] http://a/debian old main\n";
        let wanted = wanted.replace("Types: deb", "Types: deb-src");
        assert_eq!(asked(one_line(old, "old"), Kind::Source), Some(wanted));
        assert_eq!(one_line(old, "another"), None);
    }

    #[test]
    fn a_package_that_is_missing_is_named() {
        let dir = std::env::temp_dir().join(format!("erb-apt-{}", std::process::id()));
        let apt = Apt::empty(&dir).unwrap();
        let error = apt
            .get(&["download", "no-such-package-of-erb"])
            .unwrap_err();
        assert!(format!("{error:#}").contains("no-such-package-of-erb"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_failing_program_is_quoted() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(format!("{error:#}").contains("why"), "{error:#}");
    }
}
