// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Client programs and their libraries, built once into the work directory.
//!
//! The sources are part of this binary; a stamp file holds what was built from, so a second run
//! (in a namespace without network, for one) builds nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Client;

/// redis-py's version.
const REDIS_PY: &str = "redis==8.1.0";
/// Lines of a failed build that are shown.
const SHOWN_LINES: usize = 5;

/// Why a client cannot be tried here.
#[derive(Debug)]
pub struct Unavailable(pub String);

/// How to start a prepared client; host, port and so on are appended.
#[derive(Debug)]
pub struct Program {
    /// Program and first arguments.
    pub argv: Vec<PathBuf>,
}

type Prepared<T> = Result<T, Unavailable>;

/// A file of a client: name and content.
type Source = (&'static str, &'static str);

const PYTHON: [Source; 2] = [
    (
        "client.py",
        include_str!("../../clients/redis-py/client.py"),
    ),
    ("requirements.txt", REDIS_PY),
];
const GO_MOD: &str = include_str!("../../clients/go/go.mod");
const GO: [Source; 5] = [
    ("main.go", include_str!("../../clients/go/main.go")),
    ("go.mod", GO_MOD),
    ("go.sum", include_str!("../../clients/go/go.sum")),
    ("old.mod", include_str!("../../clients/go/old.mod")),
    ("old.sum", include_str!("../../clients/go/old.sum")),
];
const JEDIS: [Source; 2] = [
    (
        "Client.java",
        include_str!("../../clients/jedis/src/main/java/Client.java"),
    ),
    ("pom.xml", include_str!("../../clients/jedis/pom.xml")),
];

/// Builds what the client needs. `None`: it needs no program of ours.
pub fn prepare(client: Client, workdir: &Path) -> Prepared<Option<Program>> {
    match client {
        Client::RedisRs => Ok(None),
        Client::RedisCli => {
            step(Command::new("redis-cli").arg("--version"))?;
            Ok(None)
        }
        Client::RedisPy => redis_py(&workdir.join("redis-py")).map(Some),
        Client::GoRedis => go_redis(&workdir.join("go-redis")).map(Some),
        Client::Jedis => jedis(&workdir.join("jedis")).map(Some),
    }
}

fn redis_py(dir: &Path) -> Prepared<Program> {
    let python = dir.join("venv/bin/python");
    build(dir, &PYTHON, || {
        step(
            Command::new("python3")
                .args(["-m", "venv", "venv"])
                .current_dir(dir),
        )?;
        step(
            Command::new(&python)
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--requirement",
                    "requirements.txt",
                ])
                .current_dir(dir),
        )
        .map(drop)
    })?;
    Ok(Program {
        argv: vec![python, dir.join("client.py")],
    })
}

fn go_redis(dir: &Path) -> Prepared<Program> {
    build(dir, &GO, || {
        let version = step(Command::new("go").arg("version"))?;
        let mut go = Command::new("go");
        // Outside of any repository of the user's: no stamp of version control.
        go.args(["build", "-buildvcs=false", "-o", "client"]);
        if go_minor("go version go1.", &version) < go_minor("go 1.", GO_MOD) {
            go.arg("-modfile=old.mod");
        }
        step(go.arg(".").current_dir(dir)).map(drop)
    })?;
    Ok(Program {
        argv: vec![dir.join("client")],
    })
}

/// The number after `before`, which begins a line: the 19 of "go version go1.19.8 linux/amd64". One that
/// is not a release is newer than any.
fn go_minor(before: &str, text: &str) -> u32 {
    let rest = text.lines().find_map(|line| line.strip_prefix(before));
    let end = |rest: &str| {
        rest.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len())
    };
    rest.and_then(|rest| rest[..end(rest)].parse().ok())
        .unwrap_or(u32::MAX)
}

fn jedis(dir: &Path) -> Prepared<Program> {
    build(dir, &JEDIS, || {
        let copy = [
            "-q",
            "-B",
            "dependency:copy-dependencies",
            "-DoutputDirectory=lib",
        ];
        step(Command::new("mvn").args(copy).current_dir(dir))?;
        let compile = ["-cp", "lib/*", "-d", "classes", "Client.java"];
        step(Command::new("javac").args(compile).current_dir(dir)).map(drop)
    })?;
    let class_path = format!("{0}/lib/*:{0}/classes", dir.display());
    Ok(Program {
        argv: ["java", "-cp", &class_path, "Client"]
            .map(PathBuf::from)
            .into(),
    })
}

/// Writes the sources and builds, unless that was done with the same sources before.
fn build(dir: &Path, sources: &[Source], steps: impl FnOnce() -> Prepared<()>) -> Prepared<()> {
    let stamp = dir.join("stamp");
    let wanted: String = sources
        .iter()
        .map(|(name, text)| format!("--- {name}\n{text}"))
        .collect();
    if fs::read_to_string(&stamp).is_ok_and(|built| built == wanted) {
        return Ok(());
    }
    let io = |e: std::io::Error| Unavailable(format!("cannot write into {}: {e}", dir.display()));
    fs::create_dir_all(dir).map_err(io)?;
    // A half-made build must not pass for a whole one.
    if stamp.exists() {
        fs::remove_file(&stamp).map_err(io)?;
    }
    for (name, text) in sources {
        fs::write(dir.join(name), text).map_err(io)?;
    }
    steps()?;
    fs::write(stamp, wanted).map_err(io)
}

/// Runs one command of a build; what it says on stdout.
fn step(command: &mut Command) -> Prepared<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|e| Unavailable(format!("{name} cannot be started: {e}; install it")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let last: Vec<&str> = said.lines().rev().take(SHOWN_LINES).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(Unavailable(format!(
        "{name} failed ({}): {}",
        output.status,
        last.join(" / ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_go_is_known_by_its_version() {
        let minor = |text| go_minor("go version go1.", text);
        assert_eq!(minor("go version go1.19.8 linux/amd64\n"), 19);
        assert_eq!(minor("go version go1.26 linux/amd64\n"), 26);
        assert_eq!(
            minor("go version devel go1.27-4b5c linux/amd64\n"),
            u32::MAX
        );
        assert!(go_minor("go 1.", GO_MOD) > 19, "go.mod wants a newer one");
        assert!(go_minor("go 1.", GO[3].1) < 19);
    }

    #[test]
    fn a_missing_tool_and_a_failed_build_are_unavailable_and_leave_no_stamp() {
        let missing = step(&mut Command::new("no-such-tool-of-erb")).unwrap_err();
        assert!(missing.0.contains("no-such-tool-of-erb"), "{}", missing.0);
        let dir = tempfile::tempdir().unwrap();
        let failed = build(dir.path(), &GO, || {
            step(&mut Command::new("false")).map(drop)
        });
        assert!(failed.is_err());
        let mut built = 0;
        for _ in 0..2 {
            build(dir.path(), &GO, || {
                built += 1;
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(built, 1, "built again only after the failure");
    }
}
