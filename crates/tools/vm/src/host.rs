// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this machine does beside a guest: a peer outside of it, a look at what it has captured, or a program that starts
//! guests itself and cuts their power.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use erb_lab::Stop;
use erb_lab::apt::output;

use crate::boots::Place;
use crate::machine::{Watch, ends_with_us};

/// Where a storage node listens.
const NODE_PORT: &str = "tcp.port==4420,nvme-tcp";
/// A capture of less shows nothing.
const PDUS_MIN: usize = 100;
/// What is wrong with a capture. A keep alive of TCP is a byte that was there already, and no PDU.
const WRONG: &str = "!tcp.analysis.keep_alive && (_ws.malformed || (nvme-tcp && _ws.expert.severity == \"Error\") \
                     || _ws.unreassembled)";
/// So many lines of what is wrong are shown.
const SHOWN: usize = 20;

/// A program with which a guest speaks. It ends with this.
pub struct Peer {
    child: Child,
    /// What ends it.
    input: Option<ChildStdin>,
    /// Where it listens, as it says itself.
    pub ports: String,
}

impl Peer {
    /// Starts it.
    ///
    /// # Errors
    /// If it does not say where it listens.
    pub fn start(program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("peer");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        ends_with_us(&mut command);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let output = child.stdout.take().context("the peer has no output")?;
        let mut peer = Self {
            input: child.stdin.take(),
            child,
            ports: String::new(),
        };
        let mut ports = String::new();
        BufReader::new(output).read_line(&mut ports)?;
        ports.trim_end().clone_into(&mut peer.ports);
        ensure!(!peer.ports.is_empty(), "the peer listens nowhere");
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// What is wrong with the captures in a folder, line by line. Says how much is in each.
///
/// # Errors
/// If one cannot be read.
pub fn look_at_captures(dir: &Path) -> Result<Vec<String>> {
    let mut captures = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "pcap") {
            captures.push(path);
        }
    }
    captures.sort();
    let mut problems = Vec::new();
    if captures.is_empty() {
        problems.push("nothing was captured".to_owned());
    }
    for capture in captures {
        let name = capture.file_name().unwrap_or_default().to_string_lossy();
        let pdus = tshark(
            &capture,
            "nvme-tcp",
            &["-T", "fields", "-e", "nvme-tcp.type"],
        )?;
        // Of several in one segment there is one line.
        let pdus = pdus.split([',', '\n']).filter(|pdu| !pdu.is_empty());
        let count = pdus.count();
        println!("vm: {name}: {count} PDUs");
        if count <= PDUS_MIN {
            problems.push(format!("{name}: {count} PDUs are too few"));
        }
        let wrong = tshark(&capture, WRONG, &[])?;
        let wrong = wrong.lines().take(SHOWN);
        problems.extend(wrong.map(|line| format!("{name}: {line}")));
    }
    Ok(problems)
}

/// What tshark shows of those packets.
fn tshark(capture: &Path, filter: &str, more: &[&str]) -> Result<String> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(capture);
    command.args(["-d", NODE_PORT, "-Y", filter]).args(more);
    output(&mut command)
}

/// A program that starts guests itself.
pub struct Driver<'a> {
    /// The program.
    pub program: &'a Path,
    /// What it does.
    pub verb: &'a str,
    /// Where it finds what it starts.
    pub place: &'a Place,
    /// More of its arguments.
    pub arguments: Vec<String>,
    /// Ends it.
    pub limit: Duration,
    /// So does a signal.
    pub stop: &'a Arc<Stop>,
}

impl Driver<'_> {
    /// Runs it; what it says goes to `say` line by line, and to a file. Whether it ended well.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run(&self, said: &Path, say: &mut dyn FnMut(&str)) -> Result<bool> {
        let mut file = File::create(said)?;
        let mut command = Command::new("/bin/sh");
        // What goes wrong is said in its order too.
        command.args(["-c", "exec \"$@\" 2>&1", "sh"]);
        command.arg(self.program).arg(self.verb);
        command.args(self.place.arguments()).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        ends_with_us(&mut command);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let output = child.stdout.take().context("it has no output")?;
        let watch = Watch::begin(&child, self.limit, self.stop);
        for line in BufReader::new(output).lines() {
            let line = line?;
            writeln!(file, "{line}")?;
            say(&line);
        }
        let is_ended = watch.end();
        let status = child.wait()?;
        Ok(status.success() && !is_ended)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;
    use crate::machine::Accelerator;

    /// A program that does this, in a folder of its own.
    fn program(name: &str, lines: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("erb-vm-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let program = dir.join("program");
        fs::write(&program, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    #[test]
    fn a_peer_says_where_it_listens_and_ends_with_its_guest() {
        let program = program("peer", "echo 1,2,3; cat; touch \"$0.ended\"");
        let peer = Peer::start(&program).unwrap();
        assert_eq!(peer.ports, "1,2,3");
        drop(peer);
        assert!(program.with_extension("ended").exists());
        fs::remove_dir_all(program.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_driver_is_told_what_it_starts_and_all_it_says_is_kept() {
        let program = program("driver", "echo \"$@\"; echo bad >&2; [ \"$1\" = good ]");
        let dir = program.parent().unwrap();
        let stop = Arc::new(Stop::watch().unwrap());
        let place = Place {
            dir: PathBuf::from("/dir"),
            kernel: PathBuf::from("/kernel"),
            memory: 512,
            words: "a=b c".to_owned(),
            accel: Accelerator::Tcg,
        };
        for (verb, ends_well) in [("good", true), ("other", false)] {
            let driver = Driver {
                program: &program,
                verb,
                place: &place,
                arguments: vec!["--seed=7".to_owned()],
                limit: Duration::from_secs(60),
                stop: &stop,
            };
            let mut said = Vec::new();
            let ended = driver.run(&dir.join("said"), &mut |line| said.push(line.to_owned()));
            assert_eq!(ended.unwrap(), ends_well);
            let told =
                format!("{verb} /dir /kernel --memory=512 --words=a=b c --accel=tcg --seed=7");
            assert_eq!(said, [told, "bad".to_owned()]);
            let kept = fs::read_to_string(dir.join("said")).unwrap();
            assert_eq!(kept, said.join("\n") + "\n");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
