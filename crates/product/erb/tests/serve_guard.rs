// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb serve` and its guard, as processes. What the guard is for is shown on persistent memory
//! (`erb lab vm dax`); here, that it holds what clients are sent and outlives the server that is killed.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use erb_report::Serve;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// More than a socket takes from a client that does not read.
const FILE_BYTES: usize = 32 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

struct Served {
    child: Child,
    folder: tempfile::TempDir,
    report: Serve,
}

impl Served {
    fn begin(words: &[&str]) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        fs::write(folder.path().join("file"), vec![b'e'; FILE_BYTES]).expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_erb"))
            .arg("serve")
            .arg(folder.path())
            .args(["--listen", "127.0.0.1:0", "--threads", "1", "--json"])
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .expect("erb serve");
        let mut line = String::new();
        let said = child.stdout.take().expect("piped");
        BufReader::new(said).read_line(&mut line).expect("a line");
        let report = serde_json::from_str(&line).expect("a report");
        Self {
            child,
            folder,
            report,
        }
    }

    /// A client that has seen the beginning of the file and reads no further.
    fn client(&self) -> TcpStream {
        let address: SocketAddr = self.report.address.parse().expect("an address");
        let mut client = TcpStream::connect(address).expect("connected");
        let patient = erb_steady::patient(PATIENCE);
        client.set_read_timeout(Some(patient)).expect("an option");
        client
            .write_all(b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n")
            .expect("asked");
        let mut head = [0; 1024];
        client.read_exact(&mut head).expect("an answer");
        assert!(head.starts_with(b"HTTP/1.1 200"));
        client
    }

    fn maps(&self, process: u32) -> bool {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        maps.contains(&*self.folder.path().to_string_lossy())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn within(what: &str, is: impl FnMut() -> bool) {
    erb_steady::wait_until(PATIENCE, what, is);
}

/// Whether the process has ended; what nobody has waited for yet counts.
fn is_gone(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

const ALWAYS: [&str; 4] = ["--guard", "always", "--page-cache", "zero-copy"];

#[test]
fn a_killed_server_leaves_its_clients_to_the_guard_which_resets_them_and_ends() {
    let mut served = Served::begin(&ALWAYS);
    let guard = served.report.guard.expect("a guard");
    let mut client = served.client();
    within("the guard holds the file", || served.maps(guard));
    served.child.kill().expect("killed");
    served.child.wait().expect("ended");
    let error = client
        .read_to_end(&mut Vec::new())
        .expect_err("no whole body");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    within("the guard ends", || is_gone(guard));
}

#[test]
fn a_server_that_is_told_to_stop_takes_its_guard_with_it() {
    let mut served = Served::begin(&ALWAYS);
    let guard = served.report.guard.expect("a guard");
    let mut client = served.client();
    let number = i32::try_from(served.child.id()).expect("a number");
    let reader = std::thread::spawn(move || {
        // It began, so it is served to its end.
        let mut rest = vec![0; FILE_BYTES - 1024];
        client.read_exact(&mut rest).map(|()| rest)
    });
    kill(Pid::from_raw(number), Signal::SIGTERM).expect("told");
    let rest = reader.join().expect("no panic").expect("a whole body");
    assert!(rest[1024..].iter().all(|byte| *byte == b'e'));
    assert!(served.child.wait().expect("ended").success());
    within("the guard ends", || is_gone(guard));
}

#[test]
fn there_is_a_guard_where_the_kernel_needs_it_and_where_it_is_asked_for() {
    let needed = dax_send::Guard::is_needed();
    assert_eq!(Served::begin(&[]).report.guard.is_some(), needed);
    assert!(Served::begin(&["--guard", "always"]).report.guard.is_some());
    assert!(Served::begin(&["--guard", "never"]).report.guard.is_none());
}
