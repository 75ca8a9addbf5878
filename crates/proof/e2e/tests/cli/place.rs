// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pair of namespaces with a Redis in one, for the tests of the command line. Needs root.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use erb_e2e::lab::{STALL, STATE_WAIT, erb_bin, until_there};
use erb_steady::{set_up_failed, wait_until};
use nix::sys::signal::{Signal, kill};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Longest silence of a connection.
pub const PATIENCE: Duration = STALL;

/// Two namespaces joined by a veth pair; everything goes when it is dropped.
pub struct Place {
    name: String,
    /// A folder of its own for files.
    pub folder: PathBuf,
    redis: Option<Child>,
}

impl Place {
    /// Makes the namespaces; the server's device is `NAMEs`, its address 10.98.0.1.
    pub fn new() -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests make namespaces: run them as root"
        );
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Device names have 15 bytes.
        let name = format!("e{:x}x{number}", std::process::id() & 0xf_ffff);
        let folder = std::env::temp_dir().join(format!("erb-cli-{name}"));
        fs::create_dir_all(&folder).unwrap();
        let place = Self {
            name,
            folder,
            redis: None,
        };
        let (server, client) = (place.server(), place.client());
        ip(&["netns", "add", &server]);
        ip(&["netns", "add", &client]);
        let (device, peer) = (place.device(), place.peer());
        ip(&[
            "link", "add", &device, "netns", &server, "type", "veth", "peer", "name", &peer,
            "netns", &client,
        ]);
        for (namespace, device, address) in [
            (&server, &device, "10.98.0.1/24"),
            (&client, &peer, "10.98.0.2/24"),
        ] {
            ip(&["-n", namespace, "addr", "add", address, "dev", device]);
            ip(&["-n", namespace, "link", "set", device, "up"]);
            ip(&["-n", namespace, "link", "set", "lo", "up"]);
        }
        erb_lab::xdp_pass::attach(&client, &peer).unwrap();
        place
    }

    /// With a redis-server.
    pub fn with_redis() -> Self {
        let mut place = Self::new();
        place.start_redis();
        place
    }

    /// Name of Redis's namespace.
    pub fn server(&self) -> String {
        format!("erb-{}-s", self.name)
    }

    /// Name of the client's namespace.
    pub fn client(&self) -> String {
        format!("erb-{}-c", self.name)
    }

    /// The device to boost, in the server's namespace.
    pub fn device(&self) -> String {
        format!("{}s", self.name)
    }

    fn peer(&self) -> String {
        format!("{}c", self.name)
    }

    /// Run directory of every boost here.
    pub fn run_dir(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Starts redis-server on all addresses.
    pub fn start_redis(&mut self) {
        self.start_redis_with(&[]);
    }

    /// The same with further arguments.
    pub fn start_redis_with(&mut self, arguments: &[&str]) {
        let child = Command::new("ip")
            .args([
                "netns",
                "exec",
                &self.server(),
                "redis-server",
                "--bind",
                "0.0.0.0",
            ])
            .args(["--protected-mode", "no", "--save", "", "--dir"])
            .arg(&self.folder)
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.redis = Some(child);
        until_there("redis-server", || {
            let said = self.redis(&["PING"]);
            (said == "PONG").then_some(()).ok_or(said)
        });
    }

    /// Kills redis-server.
    pub fn stop_redis(&mut self) {
        if let Some(mut redis) = self.redis.take() {
            redis.kill().unwrap();
            redis.wait().unwrap();
        }
    }

    /// A further device in the server's namespace, or the boosted one again.
    pub fn add_device(&self, device: &str) {
        let server = self.server();
        ip(&["-n", &server, "link", "add", device, "type", "veth"]);
        ip(&["-n", &server, "link", "set", device, "up"]);
    }

    /// Takes the boosted device away.
    pub fn delete_device(&self) {
        ip(&["-n", &self.server(), "link", "del", &self.device()]);
    }

    /// Stops redis-server without ending it, or lets it go on.
    pub fn freeze_redis(&self, freeze: bool) {
        let pid = self.redis.as_ref().expect("it was started").id();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
        let signal = if freeze {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        };
        kill(pid, signal).unwrap();
    }

    /// redis-cli on the server's loopback: ERB does not see it.
    pub fn redis(&self, arguments: &[&str]) -> String {
        self.redis_cli(&self.server(), "127.0.0.1", arguments)
    }

    /// redis-cli from the client's namespace: through ERB.
    pub fn redis_outside(&self, arguments: &[&str]) -> String {
        self.redis_cli(&self.client(), "10.98.0.1", arguments)
    }

    fn redis_cli(&self, namespace: &str, host: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace, "redis-cli", "-h", host])
            .args(arguments);
        String::from_utf8(command.output().unwrap().stdout)
            .unwrap()
            .trim()
            .to_owned()
    }

    /// Runs erb in the server's namespace.
    pub fn erb(&self, arguments: &[&str]) -> Output {
        self.erb_by(&[], arguments)
    }

    /// Runs erb in the server's namespace by another program.
    pub fn erb_by(&self, by: &[&str], arguments: &[&str]) -> Output {
        self.erb_at(&self.server(), &self.run_dir(), by, arguments)
    }

    /// Runs erb anywhere.
    pub fn erb_at(&self, netns: &str, run_dir: &Path, by: &[&str], arguments: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns]).args(by);
        command.arg(erb_bin()).args(arguments);
        command.arg("--run-dir").arg(run_dir);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Runs erb in the server's namespace without `--run-dir`.
    pub fn erb_by_default(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.server()]);
        command.arg(erb_bin()).args(arguments);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Boosts with a small cache.
    pub fn boost(&self) -> Output {
        self.erb(&[
            "boost",
            "--dev",
            &self.device(),
            "--redis",
            "127.0.0.1:6379",
            "--cache-size",
            "4M",
        ])
    }

    /// Boosts and waits until it serves.
    pub fn boosted(&self) {
        let output = self.boost();
        assert!(output.status.success(), "{output:?}");
        wait_for("serving", || {
            self.status()["serving"] == true && self.status()["admitting"] == true
        });
    }

    /// What `erb status --json` says.
    pub fn status(&self) -> serde_json::Value {
        let output = self.erb(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// Kills the daemon as a crash would.
    pub fn crash(&self) {
        let pid = self.status()["pid"].as_i64().unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
        kill(pid, Signal::SIGKILL).unwrap();
        let run_dir = erb_daemon::RunDir::new(&self.run_dir());
        wait_for("the daemon's end", || !run_dir.is_locked());
        assert_eq!(self.status()["daemon"], "dead");
    }

    /// The erb programs attached in the server's namespace, as bpftool lists them.
    fn attached(&self) -> String {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.server(), "bpftool", "net"]);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        text.lines()
            .filter(|line| line.contains("erb_"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Asserts that nothing of ERB is here.
    #[track_caller]
    pub fn assert_untouched(&self) {
        assert_eq!(self.attached(), "", "programs are attached");
        assert!(!self.run_dir().exists(), "the run directory is there");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !mounts.contains(&self.run_dir().display().to_string()),
            "the bpffs is mounted"
        );
    }

    /// A server on a unix socket that answers every command line by the same bytes, once.
    pub fn fake_redis(&self, reply: &'static [u8]) -> String {
        let path = self.folder.join("fake.sock");
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let Ok((mut stream, _)) = listener.accept() else {
                return;
            };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(reply);
            // Kept open until the other end has read it.
            let _ = stream.read(&mut [0; 16]);
        });
        format!("unix:{}", path.display())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.erb(&["detach", "--force"]);
        if let Some(mut redis) = self.redis.take() {
            let _ = redis.kill();
            let _ = redis.wait();
        }
        for namespace in [self.server(), self.client()] {
            let _ = Command::new("ip")
                .args(["netns", "del", &namespace])
                .status();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    if !output.status.success() {
        set_up_failed(format_args!("ip {arguments:?}: {output:?}"));
    }
}

/// Waits until the condition holds.
#[track_caller]
pub fn wait_for(what: &str, done: impl FnMut() -> bool) {
    wait_until(STATE_WAIT, what, done);
}

/// Asserts an exit code and that the message has the words.
#[track_caller]
pub fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert_eq!(
        said.lines()
            .filter(|line| line.starts_with("error: "))
            .count(),
        1,
        "{said}"
    );
}
