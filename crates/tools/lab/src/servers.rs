// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other servers than the installed ones: those of Debian 13, unpacked beside the build and never installed.
//!
//! The programs need Debian 13's C library, so that is unpacked as well, and a shell script starts each by its
//! loader. What was unpacked once is used again, without network.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;

use crate::apt::{self, Apt, Kind};
use crate::redis::RedisArg;

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

/// Which server a lab runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerProgram {
    /// The installed redis-server, which is Redis 7 on Debian 12.
    #[default]
    Redis7,
    /// Debian 13's Redis 8.
    Redis8,
    /// Debian 13's Valkey 8.
    Valkey8,
}

/// What a lab serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// A Redis, by this program.
    Redis(ServerProgram),
    /// A storage node.
    Node,
}

/// What of nginx a comparison needs, with its libraries.
const NGINX: [&str; 6] = [
    "nginx",
    "libc6",
    "libcrypt1",
    "libpcre2-8-0",
    "libssl3t64",
    "zlib1g",
];

/// RocksDB's tools, with their libraries.
const ROCKSDB: [&str; 11] = [
    "rocksdb-tools",
    "libbz2-1.0",
    "libc6",
    "libgcc-s1",
    "libgflags2.2",
    "liblz4-1",
    "librocksdb9.10",
    "libsnappy1v5",
    "libstdc++6",
    "libzstd1",
    "zlib1g",
];

/// What Debian 13 has of a server.
struct Package {
    /// Name of the folder here.
    folder: &'static str,
    /// Package with the programs.
    tools: &'static str,
    /// Its source package.
    source: &'static str,
    /// Programs and their files; what one file is follows from the name that it is called by. The first is
    /// the server.
    programs: [(&'static str, &'static str); 3],
}

const REDIS8: Package = Package {
    folder: "redis8",
    tools: "redis-tools",
    source: "redis",
    programs: [
        ("redis-server", "redis-check-rdb"),
        ("redis-cli", "redis-cli"),
        ("redis-benchmark", "redis-benchmark"),
    ],
};

const VALKEY8: Package = Package {
    folder: "valkey8",
    tools: "valkey-tools",
    source: "valkey",
    programs: [
        ("valkey-server", "valkey-check-rdb"),
        ("valkey-cli", "valkey-cli"),
        ("valkey-benchmark", "valkey-benchmark"),
    ],
};

impl ServerProgram {
    const fn package(self) -> Option<&'static Package> {
        match self {
            Self::Redis7 => None,
            Self::Redis8 => Some(&REDIS8),
            Self::Valkey8 => Some(&VALKEY8),
        }
    }

    /// What starts it; fetched unless it is there.
    ///
    /// # Errors
    /// [`CANNOT_BE_HAD`] in its text if there is no such package within reach.
    pub fn program(self) -> Result<PathBuf> {
        Ok(match self.programs()?.into_iter().next() {
            Some(server) => server,
            None => PathBuf::from("redis-server"),
        })
    }

    /// It and its tools, each under its own name; none if it is the installed one. Fetched unless they
    /// are there.
    ///
    /// # Errors
    /// As [`ServerProgram::program`].
    pub fn programs(self) -> Result<Vec<PathBuf>> {
        let Some(package) = self.package() else {
            return Ok(Vec::new());
        };
        let mut packages = vec![package.tools, LIBZSTD];
        packages.extend(LIBRARIES);
        let files = package
            .programs
            .map(|(name, file)| (name, format!("usr/bin/{file}")));
        unpacked(package.folder, &packages, &files, "--version")
    }

    /// Its source, unpacked as `dir`, fetched by an apt in `apt_dir`; none if it is the installed one.
    ///
    /// # Errors
    /// As [`ServerProgram::program`].
    pub fn unpack_source(self, apt_dir: &Path, dir: &Path) -> Result<bool> {
        let Some(package) = self.package() else {
            return Ok(false);
        };
        let fetch = || {
            let apt = Apt::of_debian(apt_dir, SUITE, Kind::Source)?;
            apt.get(&["update"])?;
            apt.get_source(package.source, dir)
        };
        fetch().with_context(|| format!("the source of {} {CANNOT_BE_HAD}", package.folder))?;
        Ok(true)
    }

    /// Name of its folder, if it is not the installed one.
    pub const fn folder(self) -> Option<&'static str> {
        match self.package() {
            None => None,
            Some(package) => Some(package.folder),
        }
    }

    /// Settings by which so many threads read requests and write replies: Redis 7 wants to be told of the
    /// former, the others do both.
    ///
    /// # Errors
    /// None that can happen: the settings are well-formed.
    pub fn thread_settings(self, threads: u8) -> Result<Vec<RedisArg>> {
        let mut all = vec![format!("io-threads={threads}").parse()?];
        if self == Self::Redis7 {
            all.push("io-threads-do-reads=yes".parse()?);
        }
        Ok(all)
    }
}

/// What an error says if a server could not be fetched.
pub const CANNOT_BE_HAD: &str = "cannot be had from Debian's repositories";

/// Debian 13's nginx; fetched unless it is there.
///
/// # Errors
/// As [`ServerProgram::program`].
pub fn nginx() -> Result<PathBuf> {
    let mut packages = vec![LIBZSTD];
    packages.extend(NGINX);
    let files = [("nginx", "usr/sbin/nginx".to_owned())];
    let programs = unpacked("nginx", &packages, &files, "-v")?;
    programs.into_iter().next().context("nginx has a program")
}

/// Debian 13's db_bench, RocksDB's own benchmark; fetched unless it is there.
///
/// # Errors
/// As [`ServerProgram::program`].
pub fn db_bench() -> Result<PathBuf> {
    let files = [("db_bench", "usr/bin/db_bench".to_owned())];
    let programs = unpacked("rocksdb", &ROCKSDB, &files, "--version")?;
    programs.into_iter().next().context("db_bench is a program")
}

/// Debian 13's Prometheus and its promtool; fetched unless they are there.
///
/// # Errors
/// As [`ServerProgram::program`].
pub fn prometheus() -> Result<[PathBuf; 2]> {
    let files = ["prometheus", "promtool"].map(|name| (name, format!("usr/bin/{name}")));
    let programs = unpacked(
        "prometheus",
        &["prometheus", "promtool", "libc6"],
        &files,
        "--version",
    )?;
    let programs = <[PathBuf; 2]>::try_from(programs);
    programs.map_err(|_| anyhow!("two programs"))
}

/// What starts these files of the packages, by their names; `version` is a word that makes the first tell its
/// version.
fn unpacked(
    folder: &str,
    packages: &[&str],
    files: &[(&str, String)],
    version: &str,
) -> Result<Vec<PathBuf>> {
    let dir = apt::kept_dir("servers")?.join(folder);
    fs::create_dir_all(dir.join("bin"))
        .with_context(|| format!("cannot make {}", dir.display()))?;
    let lock = File::create(dir.join("lock")).context("cannot make a lock")?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .context("cannot lock the folder of servers")?;
    if !dir.join("root").exists() {
        unpack(&dir, packages, &files[0], version)
            .with_context(|| format!("{folder} {CANNOT_BE_HAD}"))?;
    }
    let starter = |(name, file): &(&str, String)| starter(&dir, name, file);
    files.iter().map(starter).collect()
}

fn unpack(
    dir: &Path,
    packages: &[&str],
    (name, file): &(&str, String),
    version: &str,
) -> Result<()> {
    let apt_dir = dir.join("apt");
    let apt = Apt::of_debian(&apt_dir, SUITE, Kind::Binary)?;
    apt.get(&["update"])?;
    apt.get(&[&["download"], packages].concat())?;
    // In two steps: what is half unpacked, or does not run, has no final name.
    let half = dir.join("root-half");
    for entry in fs::read_dir(apt.got())? {
        let file = entry?.path();
        apt::output(Command::new("dpkg-deb").arg("-x").arg(file).arg(&half))?;
    }
    fs::remove_dir_all(&apt_dir)?;
    let starter = dir.join("bin").join(format!("{name}-half"));
    write_starter(&starter, &half.join(file), &half)?;
    apt::output(Command::new(&starter).arg(version))?;
    fs::remove_file(starter)?;
    fs::rename(half, dir.join("root")).context("cannot name what was unpacked")
}

/// The shell script that starts a program of what was unpacked; made unless it is there.
fn starter(dir: &Path, name: &str, file: &str) -> Result<PathBuf> {
    let starter = dir.join("bin").join(name);
    if !starter.exists() {
        let root = dir.join("root");
        write_starter(&starter, &root.join(file), &root)?;
    }
    Ok(starter)
}

fn write_starter(starter: &Path, program: &Path, root: &Path) -> Result<()> {
    let libraries = root.join(LIBRARY_DIR);
    let text = format!(
        "#!/bin/sh\nexec {}/ld-linux-x86-64.so.2 --argv0 {} --library-path {} {} \"$@\"\n",
        libraries.display(),
        starter.display(),
        libraries.display(),
        program.display(),
    );
    let half = starter.with_extension("half");
    fs::write(&half, text)?;
    fs::set_permissions(&half, fs::Permissions::from_mode(0o755))?;
    fs::rename(&half, starter).with_context(|| format!("cannot make {}", starter.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_server_is_found_by_its_name() {
        let program = ServerProgram::Redis7.program().unwrap();
        assert_eq!(program, Path::new("redis-server"));
    }

    #[test]
    fn a_program_is_started_by_its_own_loader_and_name() {
        let dir = std::env::temp_dir().join(format!("erb-servers-{}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).unwrap();
        let starter = starter(&dir, "redis-cli", "usr/bin/tool").unwrap();
        let text = fs::read_to_string(&starter).unwrap();
        let root = dir.join("root");
        let loader = format!("exec {}/{LIBRARY_DIR}/ld-linux-x86-64.so.2", root.display());
        assert!(text.contains(&loader), "{text}");
        assert!(
            text.contains(&format!("--argv0 {} ", starter.display())),
            "{text}"
        );
        assert!(text.contains(&format!("{}/usr/bin/tool \"$@\"", root.display())));
        fs::remove_dir_all(dir).unwrap();
    }
}
