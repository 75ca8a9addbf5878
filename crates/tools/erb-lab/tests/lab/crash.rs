// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failed, killed and half-made labs: nothing of them is left, nothing else is touched.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use erb_lab::{End, Erb, Lab, LabState, Mode, Process, netns};
use erb_steady::wait_until;
use tempfile::TempDir;

use crate::common::{WAIT, assert_gone, config, lab_command, no_erb};

/// The command `erb`, played by a shell script: starts something, tells of it, and fails or not.
struct FakeErb(TempDir);

const FAKE_ERB: &str = r#"#!/bin/sh
here=$(dirname "$0")
case $1 in
boost)
	# Pins must work where the daemon will run.
	grep -q " $(cat "$here/bpf_dir") bpf " /proc/self/mounts || exit 1
	sleep 300 >/dev/null 2>&1 &
	echo $! >>"$here/started"
	# Untold: `down` must find it by its namespace.
	! [ -e "$here/fails" ] || { echo "the daemon did not start" >&2; exit 1; }
	;;
status) sed "s/\"pid\":0/\"pid\":$(cat "$here/started")/" "$here/status" ;;
detach) echo detach >>"$here/undone" ;;
esac
"#;

impl FakeErb {
    fn new(fails: bool, bpf_dir: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let status = serde_json::to_string(&erb_report::Status::default()).unwrap();
        write("status", &status);
        write("bpf_dir", bpf_dir.to_str().unwrap());
        write("erb", FAKE_ERB);
        if fails {
            write("fails", "");
        }
        let executable = fs::Permissions::from_mode(0o700);
        fs::set_permissions(folder.path().join("erb"), executable).unwrap();
        Self(folder)
    }

    fn command(&self) -> Erb {
        Erb::at(self.0.path().join("erb"))
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.path().join(name)).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// What it started.
    fn daemons(&self) -> Vec<u32> {
        let pids = self.lines("started");
        pids.iter().map(|pid| pid.parse().unwrap()).collect()
    }
}

#[test]
fn a_boost_is_undone_and_its_processes_end() {
    for fails in [true, false] {
        let config = config(if fails { "g" } else { "h" }, true, Mode::Read);
        let fake = FakeErb::new(fails, &config.name.run_dir().join("bpf"));
        match Lab::up(&config, &fake.command()) {
            Ok(lab) => {
                assert!(!fails);
                let daemon = Process::describe("erb", fake.daemons()[0]).unwrap();
                assert_eq!(lab.state().process("erb"), Some(&daemon));
                lab.down(&fake.command()).unwrap();
            }
            Err(error) => {
                assert!(fails, "{error:#}");
                assert!(
                    format!("{error:#}").contains("the daemon did not start"),
                    "{error:#}"
                );
            }
        }
        let daemons = fake.daemons();
        assert_eq!(daemons.len(), 1);
        assert_eq!(fake.lines("undone").len(), 1);
        assert_gone(&config.name, &[]);
        let is_left = Process::describe("erb", daemons[0]).is_ok();
        assert!(!is_left, "the daemon still runs");
    }
}

#[test]
fn what_a_crashed_up_left_is_removed() {
    let name = config("k", false, Mode::Off).name;
    fs::create_dir_all(name.run_dir()).unwrap();
    fs::write(name.run_dir().join("state.json"), "{ cut off").unwrap();
    fs::create_dir_all(name.redis_dir().join("appendonlydir")).unwrap();
    let namespace = name.namespace(End::Server);
    netns::create(&namespace).unwrap();
    // As a crash between open and mount leaves it.
    fs::write(netns::path(&name.namespace(End::Client)), "").unwrap();
    let mut child = netns::command(&namespace, "sleep")
        .unwrap()
        .arg("300")
        .spawn()
        .unwrap();
    let process = Process::describe("sleep", child.id()).unwrap();
    wait_until(WAIT, "the process is in its namespace", || {
        netns::inode_of_process(process.pid) == netns::inode(&namespace).ok()
    });

    let error = Lab::open(&name).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
    let report = erb_lab::down(&name, &no_erb()).unwrap();
    assert!(report.was_there);
    assert_eq!(report.ended.len(), 1);
    // Reaped by `down` already, as a child of this process.
    assert!(child.wait().is_err());
    assert_gone(&name, &[process]);
}

#[test]
fn an_up_that_is_killed_half_way_can_be_taken_down() {
    let name = config("m", false, Mode::Off).name;
    // At several moments of the some 70 ms that `up` takes.
    for milliseconds in [0, 5, 10, 20, 30, 45, 60] {
        let mut up = lab_command(&["up", "--name", name.as_str()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(milliseconds));
        up.kill().unwrap();
        up.wait().unwrap();
        let processes = LabState::load(&name)
            .ok()
            .flatten()
            .map(|state| state.processes)
            .unwrap_or_default();
        erb_lab::down(&name, &no_erb()).unwrap();
        assert_gone(&name, &processes);
    }
}

#[test]
fn somebody_elses_namespace_is_left_alone() {
    let config = config("n", true, Mode::Off);
    let namespace = config.name.namespace(End::Server);
    netns::create(&namespace).unwrap();
    let error = Lab::up(&config, &no_erb()).unwrap_err().to_string();
    let still_there: PathBuf = netns::path(&namespace);
    let is_left = still_there.exists();
    netns::remove(&namespace).unwrap();
    assert!(error.contains("is there already"), "{error}");
    assert!(is_left, "a namespace that up did not make was removed");
    assert_gone(&config.name, &[]);
}
