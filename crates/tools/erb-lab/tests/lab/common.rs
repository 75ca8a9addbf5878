// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lab per test, gone with the test.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use erb_lab::{
    End, Erb, Lab, LabConfig, LabName, LabState, Mode, Process, ServerProgram, Serves, netns,
};

/// Longest wait for any one thing in these tests.
pub const WAIT: Duration = Duration::from_secs(120);
/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_erb-lab");

/// `erb lab` with these words.
pub fn lab_command(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("lab").args(words);
    command
}

/// For labs that are not boosted.
pub fn no_erb() -> Erb {
    Erb::at("/no/erb")
}

pub fn config(name: &str, direct: bool, mode: Mode) -> LabConfig {
    // The pid keeps test runs side by side apart.
    let name = format!("t{name}{}", std::process::id());
    LabConfig {
        name: name.parse().unwrap(),
        direct,
        mode,
        redis_port: 6379,
        redis_args: vec!["maxmemory=200mb".parse().unwrap()],
        server: Serves::Redis(ServerProgram::Redis7),
    }
}

/// A lab that goes down with the test, whatever becomes of it.
pub struct TestLab(Option<Lab>);

impl TestLab {
    pub fn up(name: &str, direct: bool) -> Self {
        let lab = Lab::up(&config(name, direct, Mode::Off), &no_erb());
        Self(Some(lab.unwrap_or_else(|error| {
            erb_steady::set_up_failed(format_args!("this test needs a lab: {error:#}"))
        })))
    }

    pub fn lab(&self) -> &Lab {
        self.0.as_ref().unwrap()
    }

    pub fn state(&self) -> &LabState {
        self.lab().state()
    }

    pub fn connect(&self, address: IpAddr) -> TcpStream {
        let address = SocketAddr::new(address, self.state().redis_port);
        let stream = netns::run_in(&self.state().client.namespace, || {
            Ok(TcpStream::connect_timeout(&address, WAIT)?)
        });
        let stream = stream.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream.set_write_timeout(Some(WAIT)).unwrap();
        stream
    }

    /// The program's own command line on this lab.
    pub fn cli(&self, words: &[&str]) -> Command {
        let name = ["--name", self.state().name.as_str()];
        lab_command(&[&name, words].concat())
    }

    pub fn down(mut self) {
        let state = self.state().clone();
        let report = self.0.take().unwrap().down(&no_erb()).unwrap();
        assert!(report.was_there);
        assert_eq!(report.ended.len(), state.processes.len());
        assert_gone(&state.name, &state.processes);
        let again = erb_lab::down(&state.name, &no_erb()).unwrap();
        assert!(!again.was_there && again.ended.is_empty());
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        if let Some(lab) = self.0.take() {
            let _ = lab.down(&no_erb());
        }
    }
}

pub fn assert_gone(name: &LabName, processes: &[Process]) {
    for end in [End::Client, End::Server, End::Middle] {
        let path = netns::path(&name.namespace(end));
        assert!(!path.exists(), "{} is left", path.display());
    }
    for path in [name.run_dir(), name.redis_dir()] {
        assert!(!path.exists(), "{} is left", path.display());
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let run_dir = name.run_dir().display().to_string() + "/";
    assert!(!mounts.contains(&run_dir), "a mount is left:\n{mounts}");
    for process in processes {
        assert!(!process.is_alive(), "{process:?} still runs");
    }
}
