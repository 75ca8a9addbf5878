// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A boosted lab that a test has for itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use erb_check::net::Conn;
use erb_lab::{End, Lab, LabName, LinkChange, netns};
use erb_report::{ConnLine, Status};
use erb_steady::{ask, set_up_failed};
pub use erb_steady::{long, scaled, wait};
use nix::unistd::Pid;

use crate::carrier;
use crate::process::{Owned, run};
use crate::status::Counters;
use crate::turn::Turn;

/// Longest silence of a connection before a test calls it stuck: a guard that no slow machine meets.
pub const STALL: Duration = Duration::from_secs(120);
/// The same for a check's command line.
const STALL_S: &str = "120";
/// Longest wait for the daemon to serve, to refuse, or to settle its marks.
pub const STATE_WAIT: Duration = Duration::from_secs(15);
/// Port of the plain Redis in the client's namespace.
const PLAIN_PORT: u16 = 6390;
/// Of the daemon's log, when a test fails.
const LOG_LINES_TOLD: usize = 40;

/// The program under test: `$ERB_BIN`, else the one that was built beside this test, in the same profile.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn erb_bin() -> PathBuf {
    if let Some(path) = std::env::var_os("ERB_BIN") {
        return path.into();
    }
    let exe = std::env::current_exe().expect("path of this test");
    let profile = exe
        .ancestors()
        .nth(2)
        .expect("tests lie in target/PROFILE/deps");
    let path = profile.join("erb");
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --bins` first, or set ERB_BIN",
        path.display()
    );
    path
}

/// Parses clap arguments of a check as its command line would; without a word about it nothing counts as stuck
/// before [`STALL`].
///
/// # Panics
/// If the words are not arguments of `A`.
#[must_use]
pub fn arguments<A: clap::Args>(words: &str) -> A {
    let mut command = A::augment_args(clap::Command::new("check").no_binary_name(true));
    for name in ["stall_timeout", "timeout"] {
        if command.get_arguments().any(|one| one.get_id() == name) {
            command = command.mut_arg(name, |one| one.default_value(STALL_S));
        }
    }
    let matches = command
        .try_get_matches_from(words.split_whitespace())
        .unwrap_or_else(|error| panic!("{words:?}: {error}"));
    A::from_arg_matches(&matches).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Looks until a server that the test needs beside ERB answers.
///
/// # Panics
/// As a failed set-up, with the last `Err`, if it does not.
pub fn until_there<T>(what: &str, there: impl FnMut() -> Result<T, String>) -> T {
    ask(STATE_WAIT, there)
        .unwrap_or_else(|why| set_up_failed(format_args!("{what} does not answer {why}")))
}

/// `erb lab up` or `down`.
fn lab_command(word: &str, name: &str, words: &[&str]) {
    let mut command = Command::new(erb_bin());
    command.args(["lab", word, "--name", name]).args(words);
    let output = command.output().expect("start erb");
    if !output.status.success() {
        let said = [&output.stdout[..], &output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        set_up_failed(format_args!("{command:?}: {}: {said}", output.status));
    }
}

/// A lab with an ERB of its own; removed when dropped, also by a panic.
#[derive(Debug)]
pub struct TestLab {
    lab: Lab,
    run_dir: PathBuf,
    plain: Option<Owned>,
    _turn: Turn,
}

impl TestLab {
    /// A boosted lab that serves and never steps aside.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn boosted(name: &str) -> Self {
        Self::boosted_with(name, &[])
    }

    /// A boosted lab with more words for `erb lab up`; it never steps aside.
    ///
    /// # Panics
    /// If it does not come up and serve.
    #[must_use]
    pub fn boosted_with(name: &str, words: &[&str]) -> Self {
        Self::boosted_in(Turn::beside(), name, words)
    }

    /// The same while no other test is at work: for what measures pace.
    ///
    /// # Panics
    /// If it does not come up and serve.
    #[must_use]
    pub fn boosted_alone(name: &str, words: &[&str]) -> Self {
        Self::boosted_in(Turn::alone(), name, words)
    }

    /// A boosted lab whose ERB decides itself when to step aside.
    ///
    /// # Panics
    /// If it does not come up and serve.
    #[must_use]
    pub fn boosted_as_users_do(name: &str, words: &[&str]) -> Self {
        let lab = Self::up(name, &[&["--mode", "read"], words].concat());
        lab.wait_admitting();
        lab
    }

    fn boosted_in(turn: Turn, name: &str, words: &[&str]) -> Self {
        let lab = Self::up_in(turn, name, &[&["--mode", "read"], words].concat());
        lab.wait_admitting();
        lab.never_aside();
        lab
    }

    /// A lab, boosted only if the words say so.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn up(name: &str, words: &[&str]) -> Self {
        Self::up_in(Turn::beside(), name, words)
    }

    /// As [`TestLab::up`], with a turn of one's own choice.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn up_in(turn: Turn, name: &str, words: &[&str]) -> Self {
        let name = format!("e2e-{name}");
        // What a test that was killed left behind; nothing otherwise.
        lab_command("down", &name, &[]);
        lab_command("up", &name, words);
        let name: LabName = name.parse().expect("lab name");
        let lab = Lab::open(&name).expect("lab that was just made");
        Self {
            run_dir: lab.state().run_dir.clone(),
            lab,
            plain: None,
            _turn: turn,
        }
    }

    /// The lab itself.
    #[must_use]
    pub const fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Redis's address as clients use it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let state = self.lab.state();
        (state.server.ipv4, state.redis_port).into()
    }

    /// The same over IPv6.
    #[must_use]
    pub fn address6(&self) -> SocketAddr {
        let state = self.lab.state();
        (state.server.ipv6, state.redis_port).into()
    }

    /// ERB's run directory.
    #[must_use]
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// From now on boosts are made and looked for in this run directory.
    pub fn use_run_dir(&mut self, dir: impl Into<PathBuf>) {
        self.run_dir = dir.into();
    }

    /// Runs `work` on a thread inside a namespace; threads that it starts are there too.
    pub fn inside<T: Send>(&self, end: End, work: impl FnOnce() -> T + Send) -> T {
        let namespace = self
            .lab
            .state()
            .namespace(end)
            .expect("namespace")
            .to_owned();
        netns::run_in(&namespace, || Ok(work())).expect("enter a namespace")
    }

    /// A client connection through ERB.
    #[must_use]
    pub fn client(&self) -> Conn {
        self.client_to(self.address())
    }

    /// A client connection to one of the server's addresses.
    #[must_use]
    pub fn client_to(&self, to: SocketAddr) -> Conn {
        self.inside(End::Client, || Conn::connect(to, STALL).expect("connect"))
    }

    /// A connection to Redis that no boosted device shows.
    #[must_use]
    pub fn unseen(&self) -> Conn {
        self.unseen_on(self.lab.state().redis_port)
    }

    /// The same to another Redis on the server's end.
    ///
    /// # Panics
    /// If it cannot be reached.
    #[must_use]
    pub fn unseen_on(&self, port: u16) -> Conn {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        self.inside(End::Server, || Conn::connect(to, STALL).expect("connect"))
    }

    /// An address in the client's namespace from which everything is carried to Redis's loopback,
    /// past all boosted devices.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn unseen_address(&self) -> SocketAddr {
        self.unseen_address_of(self.lab.state().redis_port)
    }

    /// The same to another Redis on the server's end.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn unseen_address_of(&self, port: u16) -> SocketAddr {
        let redis = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let server = self.lab.state().server.namespace.clone();
        let listener = self.inside(End::Client, || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("listen");
        let address = listener.local_addr().expect("address");
        carrier::serve(listener, move || {
            netns::run_in(&server, || Ok(TcpStream::connect(redis)?)).expect("redis")
        });
        address
    }

    /// A plain Redis on the client's loopback, for comparison; its address.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn plain_redis(&mut self) -> SocketAddr {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PLAIN_PORT));
        if self.plain.is_none() {
            let mut command = self.redis(End::Client, PLAIN_PORT);
            self.plain = Some(Owned::start(command.args(["--bind", "127.0.0.1"])));
            let to = address;
            self.inside(End::Client, || {
                until_there("the plain Redis", || {
                    let mut conn = Conn::connect(to, STALL).map_err(|e| format!("{e:#}"))?;
                    conn.call(&["PING"]).map_err(|e| e.to_string())
                })
            });
        }
        address
    }

    /// Sets what the middle box does, like `loss=1% delay=2ms`.
    ///
    /// # Panics
    /// If the middle box refuses.
    pub fn link(&self, words: &str) {
        let words: Vec<&str> = words.split_whitespace().collect();
        let change = LinkChange::parse(&words).expect("link settings");
        self.lab.link(change).expect("middle box");
    }

    /// Takes all faults away.
    ///
    /// # Panics
    /// If the middle box does not answer.
    pub fn link_reset(&self) {
        self.lab.link_reset().expect("middle box");
    }

    /// Runs `erb` inside the server's namespace, for this lab's boost.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn erb(&self, words: &[&str]) -> Output {
        let mut command = self.lab.exec(End::Server, erb_bin()).expect("exec");
        command.args(words).arg("--run-dir").arg(self.run_dir());
        command.output().expect("run erb")
    }

    /// Keeps ERB at looking every read up: for a test of what is answered, on a machine so slow that
    /// a cold cache, or a crowd of writers, may seem not to pay.
    ///
    /// # Panics
    /// If `erb aside` fails.
    pub fn never_aside(&self) {
        let output = self.erb(&["aside", "0"]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Boosts the lab's Redis again, with more words.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn boost(&self, words: &[&str]) -> Output {
        let redis = self.address().to_string();
        let usual = ["boost", "--redis", &redis, "--cache-size", "64M"];
        self.erb(&[&usual, words].concat())
    }

    /// ERB's status.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn status(&self) -> Status {
        self.try_status().unwrap_or_else(|why| panic!("{why}"))
    }

    /// ERB's status, or what `erb status` said.
    ///
    /// # Errors
    /// The text of `erb status`.
    pub fn try_status(&self) -> Result<Status, String> {
        let output = self.erb(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).map_err(|e| {
            format!(
                "erb status: {} ({e})",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// The tracked connections.
    ///
    /// # Panics
    /// If `erb status` fails.
    #[must_use]
    pub fn conns(&self) -> Vec<ConnLine> {
        let output = self.erb(&["status", "--conns", "--json"]);
        serde_json::from_slice(&output.stdout).expect("connections")
    }

    /// All counters by name.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters::of(&self.status())
    }

    /// Process id of ERB's daemon.
    #[must_use]
    pub fn daemon_pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.status().pid).expect("pids are positive"))
    }

    /// Process id of the lab's first redis-server.
    ///
    /// # Panics
    /// If the lab has none.
    #[must_use]
    pub fn redis_pid(&self) -> Pid {
        let process = self.lab.state().process("redis-server");
        Pid::from_raw(process.expect("redis-server").pid)
    }

    /// The command of a further server, the same program, as replies may be compared byte by byte. Its files
    /// (a replica writes one) lie in the lab's folder and go with it.
    ///
    /// # Panics
    /// If the namespace cannot be entered.
    #[must_use]
    pub fn redis(&self, end: End, port: u16) -> Command {
        let state = self.lab.state();
        let mut command = self.lab.exec(end, &state.redis_program).expect("exec");
        command.args(["--port", &port.to_string(), "--protected-mode", "no"]);
        command.args(["--save", "", "--dir"]).arg(&state.run_dir);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Starts a redis-server on the lab's port with data of its own, in place of an ended one.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn redis_again(&self) -> Owned {
        self.redis_on(self.lab.state().redis_port)
    }

    /// Starts a further redis-server on the server's end, seen by no boosted device.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn redis_on(&self, port: u16) -> Owned {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let redis = Owned::start(&mut self.redis(End::Server, port));
        until_there("redis-server", || {
            self.inside(End::Server, || Conn::connect(to, STALL).map(drop))
                .map_err(|e| format!("{e:#}"))
        });
        redis
    }

    /// Runs a program in a namespace.
    ///
    /// # Panics
    /// If it fails.
    pub fn exec(&self, end: End, words: &[&str]) -> String {
        run(self
            .lab
            .exec(end, words[0])
            .expect("exec")
            .args(&words[1..]))
    }

    /// A kernel counter of a namespace, from /proc/net/snmp or /proc/net/netstat.
    ///
    /// # Panics
    /// If there is no such counter.
    #[must_use]
    pub fn kernel_counter(&self, end: End, group: &str, field: &str) -> i64 {
        let text = self.inside(end, || {
            ["snmp", "netstat"]
                .map(|file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")))
                .map(|text| text.expect("kernel counters"))
                .concat()
        });
        let mut lines = text
            .lines()
            .filter(|line| line.starts_with(&format!("{group}:")));
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let at = names.split_whitespace().position(|name| name == field);
            if let Some(value) = at.and_then(|at| values.split_whitespace().nth(at)) {
                return value.parse().expect("a number");
            }
        }
        panic!("no kernel counter {group}.{field}")
    }

    /// Gives the client's device another address.
    pub fn add_client_address(&self, address: IpAddr) {
        let device = &self.lab.state().client.device;
        let text = if address.is_ipv4() {
            format!("{address}/24")
        } else {
            format!("{address}/64")
        };
        self.exec(End::Client, &["ip", "addr", "add", &text, "dev", device]);
    }
}

impl TestLab {
    /// The end of what the daemon has logged goes away with the lab, and may say why the test fails.
    fn tell_log(&self) {
        let path = self.run_dir().join("log");
        let text = std::fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let skipped = text.lines().count().saturating_sub(LOG_LINES_TOLD);
        println!("the last lines of {}:", path.display());
        for line in text.lines().skip(skipped) {
            println!("  {line}");
        }
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        self.plain = None;
        if self.run_dir != self.lab.state().run_dir {
            // Nothing is boosted there if all went well.
            self.erb(&["detach", "--force"]);
        }
        if std::thread::panicking() {
            self.tell_log();
        }
        let name = self.lab.state().name.as_str();
        let words = ["lab", "down", "--name", name];
        let output = Command::new(erb_bin()).args(words).output();
        let gone = output.as_ref().is_ok_and(|output| output.status.success());
        if !gone && !std::thread::panicking() {
            set_up_failed(format_args!("erb lab down --name {name}: {output:?}"));
        }
    }
}
