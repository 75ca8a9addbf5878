// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's packages as a private apt knows them: nothing of the system's but where its packages come from.
//!
//! So kernels of other releases can be had, and the system's lists stay as they are. All lies in one folder. Lists are kept for
//! a day.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use erb_lab::apt::output;

use crate::fault::Missing;
use crate::kernels::{self, Kernels, Package};
use crate::machine::ends_with_us;

/// Where the kernels are that are tried.
const SUITES: [&str; 5] = [
    "bookworm",
    "bookworm-security",
    "bookworm-backports",
    "trixie-security",
    "trixie-backports",
];
/// What Debian signs its lists with.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// What changes within days need not be asked for twice a day.
const LISTS_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Addresses of servers, if not those of this machine's apt.
const SERVER: &str = "ERB_DEBIAN";
const SECURITY: &str = "ERB_DEBIAN_SECURITY";

/// A package that apt would install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deb {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Bytes of its file.
    pub bytes: u64,
}

impl Deb {
    /// As apt is asked for it.
    #[must_use]
    pub fn name_and_version(&self) -> String {
        format!("{}={}", self.name, self.version)
    }

    /// Of a line that says where its file is: `'ADDRESS' NAME_VERSION_PROCESSOR.deb BYTES SUM`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix('\'')?.split(' ').skip(1);
        let (file, bytes) = (words.next()?, words.next()?);
        let mut parts = file.strip_suffix(".deb")?.split('_');
        Some(Self {
            name: parts.next()?.to_owned(),
            version: parts.next()?.replace("%3a", ":"),
            bytes: bytes.parse().ok()?,
        })
    }
}

/// An apt of its own.
#[derive(Clone, Debug)]
pub struct Lists {
    dir: PathBuf,
    /// `deb ...` lines.
    sources: String,
}

impl Lists {
    /// Of all kernels, in this folder, which is made; asks nobody yet.
    ///
    /// # Errors
    /// [`Missing`] if no server of Debian's packages is known, or Debian's keys are not there.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::of(dir, &SUITES)
    }

    /// Of these suites.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of(dir: &Path, suites: &[&str]) -> Result<Self> {
        for name in ["lists/partial", "cache/archives/partial"] {
            let path = dir.join(name);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        if !Path::new(KEYS).exists() {
            return Err(Missing::Keys.into());
        }
        let known = servers().unwrap_or_else(|error| {
            eprintln!("vm: {error:#}");
            String::new()
        });
        let server = |variable, label| {
            let given = env::var(variable).ok().filter(|given| !given.is_empty());
            given.or_else(|| server_of(&known, label))
        };
        let main = server(SERVER, "Debian").ok_or(Missing::Server)?;
        let security = server(SECURITY, "Debian-Security");
        Ok(Self {
            dir: dir.to_owned(),
            sources: sources(suites, &main, security.as_deref()),
        })
    }

    /// Asks the servers, if the lists are older than a day or of other servers.
    ///
    /// # Errors
    /// If the folder cannot be written. That the servers do not answer is said and no error; they are asked again the next time.
    pub fn refresh(&self) -> Result<()> {
        let asked = self.dir.join("sources.read");
        let age = fs::metadata(&asked).and_then(|found| found.modified());
        let young = age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < LISTS_AGE_MAX));
        if young && fs::read_to_string(&asked).is_ok_and(|was| was == self.sources) {
            return Ok(());
        }
        self.ask()
    }

    /// Asks the servers.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub fn ask(&self) -> Result<()> {
        let list = self.dir.join("sources.list");
        let asked = self.dir.join("sources.read");
        let written = |path: &Path| format!("cannot write {}", path.display());
        fs::write(&list, &self.sources).with_context(|| written(&list))?;
        eprintln!("vm: asking Debian's servers for their kernels");
        // A server that does not answer is no error to apt, if it is not told.
        let words = ["-qq", "-oAPT::Update::Error-Mode=any", "update"];
        if let Err(error) = output(self.apt("apt-get").args(words)) {
            eprintln!("vm: going on with the lists that are there: {error:#}");
            let _ = fs::remove_file(&asked);
            return Ok(());
        }
        fs::write(&asked, &self.sources).with_context(|| written(&asked))
    }

    /// All kernels of the lists.
    ///
    /// # Errors
    /// If apt does not say where they are, or one cannot be read.
    pub fn kernels(&self) -> Result<Kernels> {
        let mut packages = Vec::new();
        let format = "$(CODENAME)|$(FILENAME)";
        let indices = output(self.apt("apt-get").args([
            "indextargets",
            "--format",
            format,
            "Created-By: Packages",
        ]))?;
        for line in indices.lines() {
            let Some((suite, file)) = line.split_once('|') else {
                continue;
            };
            let mut read = Command::new("/usr/lib/apt/apt-helper");
            let text = output(read.args(["cat-file", file]))?;
            packages.extend(kernels::packages(&text, suite));
        }
        Ok(Kernels::new(packages))
    }

    /// Downloads a package into a folder, and unpacks it there.
    ///
    /// # Errors
    /// If the servers do not have it (any more), or it cannot be unpacked.
    pub fn unpack(&self, package: &Package, into: &Path) -> Result<()> {
        let got = into.join("deb");
        fs::create_dir_all(&got).with_context(|| format!("cannot make {}", got.display()))?;
        let name = format!("{}={}", package.name, package.version);
        let mut get = self.apt("apt-get");
        output(get.args(["-qq", "download", &name]).current_dir(&got))?;
        for entry in fs::read_dir(&got)? {
            let file = entry?.path();
            let mut unpack = Command::new("dpkg");
            ends_with_us(&mut unpack);
            output(unpack.arg("-x").arg(&file).arg(into))?;
        }
        fs::remove_dir_all(&got).with_context(|| format!("cannot remove {}", got.display()))
    }

    /// These packages and all that they need, as for a machine that has none.
    ///
    /// # Errors
    /// If one is not in the lists, or needs what is not.
    pub fn with_dependencies<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<Vec<Deb>> {
        let none = self.dir.join("none");
        fs::write(&none, "")?;
        let mut install = self.apt("apt-get");
        install.arg(format!("-oDir::State::status={}", none.display()));
        install.args(["-qq", "--yes", "--print-uris", "--no-install-recommends"]);
        let lines = output(install.arg("install").args(names))?;
        Ok(lines.lines().filter_map(Deb::parse).collect())
    }

    /// Downloads packages into a folder, which has nothing else then; their files.
    ///
    /// # Errors
    /// If the servers do not have one (any more).
    pub fn download(&self, packages: &[&Deb], into: &Path) -> Result<Vec<PathBuf>> {
        let _ = fs::remove_dir_all(into);
        fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
        let mut get = self.apt("apt-get");
        get.args(["-qq", "download"]);
        get.args(packages.iter().map(|package| package.name_and_version()));
        if !packages.is_empty() {
            output(get.current_dir(into))?;
        }
        let mut files = Vec::new();
        for entry in fs::read_dir(into)? {
            files.push(entry?.path());
        }
        Ok(files)
    }

    /// apt with the folder's settings.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        ends_with_us(&mut command);
        for (key, name) in [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            command.arg(format!("-o{key}={}", self.dir.join(name).display()));
        }
        command.args([
            "-oDir::Etc::sourceparts=-",
            // What is pinned in the system is not meant here.
            "-oDir::Etc::preferencesparts=-",
            "-oDir::Etc::preferences=-",
            // The folder need not be open to apt's own user.
            "-oAPT::Sandbox::User=root",
            "-oAcquire::Languages=none",
            "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
            "-oAcquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false",
        ]);
        command
    }
}

/// Where this machine's apt gets packages, a line each: origin, label, component, address.
fn servers() -> Result<String> {
    let format = "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)";
    output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        format,
        "Created-By: Packages",
    ]))
}

/// The first with this label, whatever suite it has.
fn server_of(known: &str, label: &str) -> Option<String> {
    known.lines().find_map(|line| {
        let words: Vec<&str> = line.split('|').collect();
        match words.as_slice() {
            ["Debian", of, "main", address] if *of == label => Some((*address).to_owned()),
            _ => None,
        }
    })
}

/// What only the archive of security updates has is left out where there is none.
fn sources(suites: &[&str], main: &str, security: Option<&str>) -> String {
    let line = |suite: &&str| {
        let server = if suite.ends_with("-security") {
            security?
        } else {
            main
        };
        Some(format!(
            "deb [arch=amd64 signed-by={KEYS}] {server} {suite} main\n"
        ))
    };
    suites.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "\
Other|Debian|main|http://other/\n\
Debian|Debian-Security|main|http://security/\n\
Debian|Debian|contrib|http://contrib/\n\
Debian|Debian|main|http://main/\n";

    #[test]
    fn the_systems_servers_are_asked_for_all_suites() {
        assert_eq!(server_of(KNOWN, "Debian").as_deref(), Some("http://main/"));
        let security = server_of(KNOWN, "Debian-Security");
        assert_eq!(security.as_deref(), Some("http://security/"));
        assert_eq!(server_of("", "Debian"), None);
        let text = sources(&SUITES, "http://main/", security.as_deref());
        assert_eq!(text.lines().count(), SUITES.len());
        assert!(
            text.contains("] http://security/ trixie-security main\n"),
            "{text}"
        );
        assert!(
            text.contains("] http://main/ trixie-backports main\n"),
            "{text}"
        );
        assert!(!sources(&SUITES, "http://main/", None).contains("security"));
    }
    #[test]
    fn a_package_is_known_by_where_its_file_is() {
        let line = "'http://main/pool/z/zlib1g_1.3.1-1%2bdeb13u1_amd64.deb' zlib1g_1%3a1.3.1-1+deb13u1_amd64.deb 88720 SHA256:ab";
        let deb = Deb::parse(line).unwrap();
        assert_eq!(deb.name_and_version(), "zlib1g=1:1.3.1-1+deb13u1");
        assert_eq!(deb.bytes, 88720);
        assert_eq!(Deb::parse("NOTE: This is only a simulation!"), None);
    }

    #[test]
    fn servers_that_do_not_answer_are_asked_again() {
        let dir = std::env::temp_dir().join(format!("erb-vm-lists-{}", std::process::id()));
        for name in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        // Nobody listens there.
        let sources = sources(&["bookworm"], "http://127.0.0.1:1/", None);
        let lists = Lists {
            dir: dir.clone(),
            sources: sources.clone(),
        };
        fs::write(dir.join("sources.read"), "of others").unwrap();
        lists.refresh().unwrap();
        assert!(!dir.join("sources.read").exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
