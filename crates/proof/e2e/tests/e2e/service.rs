// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What systemd hears of a boost that it has started, and that a reload goes on without a connection
//! noticing. This test stands in for systemd.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use erb_e2e::calls::{get, set};
use erb_e2e::lab::{STATE_WAIT, TestLab, erb_bin, wait};
use erb_e2e::process::{Owned, signal};
use erb_lab::End;
use erb_steady::{out_of_patience, patient};
use nix::sys::signal::Signal;

/// Exit code of `erb --help`.
const ALREADY_BOOSTED: i32 = 11;
/// Two beats and some patience.
const BEATS: Duration = Duration::from_millis(2500);

/// systemd's side of sd_notify(3).
struct Manager {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        Self { socket, folder }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("notify")
    }

    /// The next thing that is heard within this time.
    fn hears(&self, within: Duration) -> Option<String> {
        let mut bytes = [0; 256];
        self.socket
            .set_read_timeout(Some(within))
            .expect("a timeout");
        let length = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).trim().to_owned())
    }

    #[track_caller]
    fn must_hear(&self, word: &str) -> String {
        let until = Instant::now() + patient(STATE_WAIT);
        let mut heard = Vec::new();
        while Instant::now() < until {
            let Some(said) = self.hears(patient(STATE_WAIT)) else {
                break;
            };
            if said.starts_with(word) {
                return said;
            }
            heard.push(said);
        }
        out_of_patience(format_args!("{word} is not in {heard:?}"))
    }
}

fn boost(lab: &TestLab, manager: &Path, words: &[&str]) -> Command {
    let mut command = lab.lab().exec(End::Server, erb_bin()).expect("exec");
    let redis = lab.address().to_string();
    command.args(["boost", "--dev", "s0", "--redis", &redis]);
    command.args(["--cache-size", "64M", "--run-dir"]);
    command.arg(lab.run_dir()).args(words);
    command.env("NOTIFY_SOCKET", manager);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn systemd_hears_that_it_is_ready_and_turns_and_who_goes_on_after_a_reload() {
    let mut lab = TestLab::up("service", &["--direct"]);
    lab.use_run_dir("/run/erb/e2e-service");
    let lab = lab;
    let manager = Manager::new();
    let first = Owned::start(&mut boost(&lab, &manager.path(), &["--foreground"]));
    manager.must_hear("READY=1");
    manager.must_hear("WATCHDOG=1");
    lab.wait_admitting();
    lab.never_aside();
    let before = lab.daemon_pid();
    let mut client = lab.client();
    set(&mut client, "key", "value");
    lab.heat(&mut client, "key");

    // Who stands still is not heard.
    signal(before, Signal::SIGSTOP);
    while manager.hears(Duration::from_millis(100)).is_some() {}
    assert_eq!(manager.hears(BEATS), None);
    signal(before, Signal::SIGCONT);
    manager.must_hear("WATCHDOG=1");

    let again = boost(&lab, &manager.path(), &[])
        .status()
        .expect("erb boost");
    assert_eq!(again.code(), Some(ALREADY_BOOSTED));
    let reload = boost(&lab, &manager.path(), &["--take-over"]).status();
    assert!(reload.expect("erb boost").success());
    let said = manager.must_hear("MAINPID=");
    let after = lab.daemon_pid();
    assert_ne!(before, after);
    assert_eq!(said, format!("MAINPID={after}"));
    lab.wait_admitting();
    lab.heat(&mut client, "key");
    assert_eq!(get(&mut client, "key").as_deref(), Some("value"));
    manager.must_hear("WATCHDOG=1");
    drop(first);

    drop(client);
    let detached = lab.erb(&["detach", "--force"]);
    assert!(detached.status.success(), "{detached:?}");
    manager.must_hear("STOPPING=1");
    wait(STATE_WAIT, || match lab.run_dir().exists() {
        true => Err("the run directory is left".to_owned()),
        false => Ok(()),
    });
}
