// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The test programs of the workspace: built by cargo, named by what cargo says of them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::child::{Run, in_a_session, session};
use crate::stop::Stop;

/// The crate that `./test` builds only where it is asked for: its dependencies are a sixth of all that is compiled, no
/// other crate uses them, and beside it others are compiled with other features. `--long` builds it, `--changed` if
/// the change reaches it, and `--only` with its name.
pub const BOOK: &str = "book";
/// Its package.
pub const BOOK_PACKAGE: &str = "erb-book";

/// All that one build makes, so that each dependency is compiled once: programs, tests, examples.
const BUILD: [&str; 7] = [
    "build",
    "--workspace",
    "--bins",
    "--tests",
    "--examples",
    "--locked",
    "--message-format=json-render-diagnostics",
];

/// A program that needs longer to list its tests hangs.
const LIST_LIMIT: Duration = Duration::from_secs(600);

/// What the target of a program's own tests begins with.
const OF_BIN: &str = "bin-";

/// A compiled test program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// The crate's folder without its group: `sim`, `e2e`.
    pub package: String,
    /// The test target, `None` of a library's or program's own tests.
    pub target: Option<String>,
    /// The file to run.
    pub path: PathBuf,
    /// Where cargo runs it: the crate's folder.
    pub folder: PathBuf,
}

impl Program {
    /// Short name: `sim`, `sim::lane`.
    pub fn name(&self) -> String {
        match &self.target {
            Some(target) => format!("{}::{target}", self.package),
            None => self.package.clone(),
        }
    }

    /// A command of this program, in the place and with the variables that cargo gives it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        // The harness of a stable compiler tells times and prints JSON only so.
        command.env("RUSTC_BOOTSTRAP", "1");
        command
    }

    /// Names of its tests, in the order of the program.
    ///
    /// # Errors
    /// If it cannot be run, or lists nothing although it is a test target.
    pub fn tests(&self, stop: &Stop) -> Result<Vec<String>> {
        let mut command = self.command();
        command.args(["--list", "--format", "terse"]);
        let run = Run {
            command,
            results: 0,
            idle: false,
            limit: LIST_LIMIT,
        };
        let (said, status) = run.whole(stop)?;
        let text = said.raw.text();
        ensure!(
            status.is_some_and(|it| it.success()) && !said.raw.is_cut(),
            "{} --list: {status:?}: {text}",
            self.path.display()
        );
        let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
        let tests: Vec<String> = tests.map(str::to_owned).collect();
        // A library or a program may have no tests of its own.
        let own = self
            .target
            .as_ref()
            .is_none_or(|target| target.starts_with(OF_BIN));
        ensure!(
            !tests.is_empty() || own,
            "{} lists no test: a list that is empty would pass",
            self.path.display()
        );
        Ok(tests)
    }
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds everything but some packages, and returns the test programs, sorted by name. What the compiler says
/// goes to stderr.
///
/// # Errors
/// If cargo cannot be run, or the build fails.
pub fn build(root: &Path, without: &[&str], stop: &Stop) -> Result<Vec<Program>> {
    let mut command = Command::new("cargo");
    command
        .args(BUILD)
        .args(without.iter().flat_map(|package| ["--exclude", package]))
        .current_dir(root)
        .stdout(Stdio::piped())
        .stdin(Stdio::null());
    in_a_session(&mut command);
    let mut cargo = command.spawn().context("cannot run cargo")?;
    let session = session(&cargo);
    stop.started(session);
    let programs = read(&mut cargo);
    let status = cargo.wait().context("cargo");
    stop.ended(session);
    let status = status?;
    ensure!(status.success(), "cargo {}: {status}", BUILD.join(" "));
    let programs = programs?;
    ensure!(!programs.is_empty(), "cargo has built no test program");
    Ok(programs)
}

/// The test programs, sorted by name, that cargo tells of until it ends.
fn read(cargo: &mut Child) -> Result<Vec<Program>> {
    let output = cargo.stdout.take().context("cargo's output")?;
    let mut programs = Vec::new();
    for line in BufReader::new(output).lines() {
        programs.extend(program(&line.context("cargo's output")?)?);
    }
    programs.sort();
    Ok(programs)
}

/// The test program that a message of cargo's tells of.
fn program(line: &str) -> Result<Option<Program>> {
    let message: Message =
        serde_json::from_str(line).with_context(|| format!("a message of cargo: {line}"))?;
    let is_test = message.profile.is_some_and(|profile| profile.test);
    if message.reason != "compiler-artifact" || !is_test {
        return Ok(None);
    }
    let (Some(manifest), Some(target), Some(path)) =
        (message.manifest_path, message.target, message.executable)
    else {
        return Ok(None);
    };
    let folder = manifest.parent().context("a crate's folder")?.to_owned();
    let package = folder.file_name().context("a crate's folder has a name")?;
    let is_target = target.kind.iter().any(|kind| kind == "test");
    // A program's own tests beside those of its library.
    let of_bin = target.kind.iter().any(|kind| kind == "bin");
    let name = if of_bin {
        format!("{OF_BIN}{}", target.name)
    } else {
        target.name
    };
    Ok(Some(Program {
        package: package.to_string_lossy().into_owned(),
        target: (is_target || of_bin).then_some(name),
        path,
        folder,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = r#"{"reason":"compiler-artifact","package_id":"x","manifest_path":"/r/crates/proof/sim/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"lane","src_path":"/r"},"profile":{"opt_level":"1","test":true},"executable":"/r/target/debug/deps/lane-1","fresh":true}"#;

    #[test]
    fn programs_are_known_by_what_cargo_says() {
        let found = program(TEST).expect("a message").expect("a program");
        assert_eq!(found.name(), "sim::lane");
        assert_eq!(found.folder, Path::new("/r/crates/proof/sim"));
        let unit = TEST.replace(r#"["test"]"#, r#"["lib"]"#);
        let found = program(&unit).expect("a message").expect("a program");
        assert_eq!(found.name(), "sim");
        let other = TEST.replace("\"test\":true", "\"test\":false");
        assert_eq!(program(&other).expect("a message"), None);
        let finished = r#"{"reason":"build-finished","success":true}"#;
        assert_eq!(program(finished).expect("a message"), None);
        assert!(program("warning: unused").is_err());
    }
}
