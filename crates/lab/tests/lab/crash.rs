// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failed, killed and half-made labs: nothing of them is left, nothing else is touched.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use erb_lab::{Booster, End, Lab, LabState, Mode, NoBooster, Process, netns};

use crate::common::{PROGRAM, WAIT, assert_gone, config};

/// Starts something, tells of it, and fails or not.
struct TestBooster {
    fails: bool,
    started: std::cell::RefCell<Vec<Process>>,
    undone: std::cell::Cell<u32>,
}

impl TestBooster {
    fn new(fails: bool) -> Self {
        Self {
            fails,
            started: Default::default(),
            undone: Default::default(),
        }
    }
}

impl Booster for TestBooster {
    fn boost(&self, lab: &LabState) -> anyhow::Result<Vec<Process>> {
        // Pins must work where the daemon will run.
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        assert!(
            mounts.contains(&format!("{} bpf ", lab.bpf_dir.display())),
            "{mounts}"
        );
        let child = netns::command(&lab.server.namespace, "sleep")?
            .arg("300")
            .spawn()?;
        let process = Process::describe("daemon", child.id())?;
        self.started.borrow_mut().push(process.clone());
        if self.fails {
            // Untold: `down` must find it by its namespace.
            anyhow::bail!("the daemon did not start")
        }
        Ok(vec![process])
    }

    fn unboost(&self, _: &LabState) -> anyhow::Result<()> {
        self.undone.set(self.undone.get() + 1);
        Ok(())
    }
}

#[test]
fn a_boost_is_undone_and_its_processes_end() {
    for fails in [true, false] {
        let booster = TestBooster::new(fails);
        let config = config(if fails { "g" } else { "h" }, true, Mode::Read);
        match Lab::up(&config, &booster) {
            Ok(lab) => {
                assert!(!fails);
                assert_eq!(
                    lab.state().process("daemon"),
                    booster.started.borrow().first()
                );
                lab.down(&booster).unwrap();
            }
            Err(error) => {
                assert!(fails, "{error:#}");
                assert!(
                    format!("{error:#}").contains("the daemon did not start"),
                    "{error:#}"
                );
            }
        }
        assert_eq!(booster.started.borrow().len(), 1);
        assert_eq!(booster.undone.get(), 1);
        assert_gone(&config.name, &booster.started.borrow());
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
    wait_until(|| netns::inode_of_process(process.pid) == netns::inode(&namespace).ok());

    let error = Lab::open(&name).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
    let report = erb_lab::down(&name, &NoBooster).unwrap();
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
        let mut up = Command::new(PROGRAM)
            .args(["up", "--name", name.as_str()])
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
        erb_lab::down(&name, &NoBooster).unwrap();
        assert_gone(&name, &processes);
    }
}

#[test]
fn somebody_elses_namespace_is_left_alone() {
    let config = config("n", true, Mode::Off);
    let namespace = config.name.namespace(End::Server);
    netns::create(&namespace).unwrap();
    let error = Lab::up(&config, &NoBooster).unwrap_err().to_string();
    let still_there: PathBuf = netns::path(&namespace);
    let is_left = still_there.exists();
    netns::remove(&namespace).unwrap();
    assert!(error.contains("is there already"), "{error}");
    assert!(is_left, "a namespace that up did not make was removed");
    assert_gone(&config.name, &[]);
}

fn wait_until(condition: impl Fn() -> bool) {
    let end = Instant::now() + WAIT;
    while !condition() {
        assert!(Instant::now() < end, "waited {WAIT:?} in vain");
        thread::sleep(Duration::from_millis(5));
    }
}
