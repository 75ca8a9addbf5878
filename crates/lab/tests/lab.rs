//! The lab end to end: comes up, misbehaves as told, leaves nothing behind. Needs root.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use erb_lab::packet::{Batch, PacketSocket};
use erb_lab::{
    Booster, End, ForwardCommand, Lab, LabConfig, LabName, LabState, LinkChange, LinkReport, Mode,
    NoBooster, Process, netns, xdp_pass,
};
use libbpf_sys::bpf_insn;

/// Longest wait for any one thing in these tests.
const WAIT: Duration = Duration::from_secs(30);
/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_erb-lab");

fn config(name: &str, direct: bool, mode: Mode) -> LabConfig {
    // The pid keeps test runs side by side apart.
    let name = format!("t{name}{}", std::process::id());
    LabConfig {
        name: name.parse().unwrap(),
        direct,
        mode,
        redis_port: 6379,
        redis_args: vec!["maxmemory=200mb".parse().unwrap()],
        forward: ForwardCommand {
            program: PROGRAM.into(),
            words: vec!["__forward".to_owned()],
        },
    }
}

/// A lab that goes down with the test, whatever becomes of it.
struct TestLab(Option<Lab>);

impl TestLab {
    fn up(name: &str, direct: bool) -> Self {
        let lab = Lab::up(&config(name, direct, Mode::Off), &NoBooster);
        Self(Some(lab.unwrap_or_else(|error| {
            panic!("this test needs a lab: {error:#}")
        })))
    }

    fn lab(&self) -> &Lab {
        self.0.as_ref().unwrap()
    }

    fn state(&self) -> &LabState {
        self.lab().state()
    }

    fn connect(&self, address: IpAddr) -> TcpStream {
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
    fn cli(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(["--name", self.state().name.as_str()])
            .args(words);
        command
    }

    fn down(mut self) {
        let state = self.state().clone();
        let report = self.0.take().unwrap().down(&NoBooster).unwrap();
        assert!(report.was_there);
        assert_eq!(report.ended.len(), state.processes.len());
        assert_gone(&state.name, &state.processes);
        let again = erb_lab::down(&state.name, &NoBooster).unwrap();
        assert!(!again.was_there && again.ended.is_empty());
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        if let Some(lab) = self.0.take() {
            let _ = lab.down(&NoBooster);
        }
    }
}

fn assert_gone(name: &LabName, processes: &[Process]) {
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

fn set(stream: &mut TcpStream, key: &str, value: &[u8]) {
    let head = format!(
        "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n",
        key.len(),
        value.len()
    );
    stream
        .write_all(&[head.as_bytes(), value, b"\r\n"].concat())
        .unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

fn get(stream: &mut TcpStream, key: &str) -> Vec<u8> {
    stream
        .write_all(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).as_bytes())
        .unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head).unwrap();
    let length: usize = head.trim_end().strip_prefix('$').unwrap().parse().unwrap();
    let mut value = vec![0; length + 2];
    reader.read_exact(&mut value).unwrap();
    assert!(value.ends_with(b"\r\n"));
    value.truncate(length);
    value
}

/// Bytes without a pattern that a shifted or repeated segment could hide in.
fn noise(length: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A counter of /proc/net/snmp in namespace `namespace`.
fn snmp(namespace: &str, group: &str, field: &str) -> u64 {
    // Of the reading thread's namespace: /proc/net would be the process's.
    let read = || Ok(fs::read_to_string("/proc/thread-self/net/snmp")?);
    let text = netns::run_in(namespace, read).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs
        .find(|(name, _)| *name == field)
        .unwrap()
        .1
        .parse()
        .unwrap()
}

#[test]
fn a_bad_link_shows_in_the_counters_and_never_in_the_bytes() {
    let test = TestLab::up("f", false);
    let state = test.state().clone();
    for address in [IpAddr::V4(state.server.ipv4), IpAddr::V6(state.server.ipv6)] {
        let mut stream = test.connect(address);
        stream.write_all(b"PING\r\n").unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n", "{address}");
    }
    let words = [
        "loss=1%",
        "dup=0.5%",
        "reorder=2%",
        "corrupt=0.5%",
        "delay=2ms",
        "seed=7",
    ];
    let change = LinkChange::parse(&words).unwrap();
    let report = test.lab().link(change).unwrap();
    assert_eq!(
        (report.settings.loss_ppm, report.settings.delay_us),
        (10_000, 2_000)
    );

    // Bounded twice: rounds, and every single wait.
    let end = Instant::now() + WAIT;
    let mut rounds = 0;
    while rounds < 10
        || (!all_faults_seen(&test.lab().link_report().unwrap()) && Instant::now() < end)
    {
        let address = if rounds % 2 == 0 {
            state.server.ipv4.into()
        } else {
            state.server.ipv6.into()
        };
        let mut stream = test.connect(address);
        let value = noise(65_536, rounds);
        set(&mut stream, "k", &value);
        assert!(
            get(&mut stream, "k") == value,
            "round {rounds}: other bytes came back"
        );
        rounds += 1;
    }
    let report = test.lab().link_report().unwrap();
    assert!(
        all_faults_seen(&report),
        "after {rounds} rounds: {report:?}"
    );
    for counters in [report.to_server, report.to_client] {
        assert_eq!((counters.failed, counters.missed), (0, 0), "{counters:?}");
        assert!(counters.forwarded <= counters.received - counters.lost + counters.duplicated);
    }
    // Checksums on the wire are real: the kernel sees the flipped bits.
    let namespaces = [&state.client.namespace, &state.server.namespace];
    let seen: u64 = namespaces
        .iter()
        .map(|namespace| snmp(namespace, "Tcp:", "InCsumErrors"))
        .sum();
    assert!(seen > 0, "corrupted segments were taken for good ones");

    refuses_bad_settings(&test);
    let clean = test.lab().link_reset().unwrap();
    assert!(clean.settings.is_clean());
    assert_eq!(clean.to_server, Default::default());
    test.down();
}

fn all_faults_seen(report: &LinkReport) -> bool {
    [report.to_server, report.to_client].iter().all(|counters| {
        let seen = [
            counters.lost,
            counters.duplicated,
            counters.reordered,
            counters.corrupted,
            counters.delayed,
        ];
        seen.iter().all(|count| *count > 0)
    })
}

fn refuses_bad_settings(test: &TestLab) {
    let before = test.lab().link_report().unwrap().settings;
    for words in [["loss=1"], ["loss=101%"], ["delay=11s"], ["lag=1ms"]] {
        let output = test.cli(&["link"]).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(output.stderr.starts_with(b"error: "), "{words:?}");
    }
    let far = LinkChange {
        loss_ppm: Some(2_000_000),
        ..LinkChange::default()
    };
    let error = test.lab().link(far).unwrap_err().to_string();
    assert!(error.contains("loss is out of range"), "{error}");
    assert_eq!(test.lab().link_report().unwrap().settings, before);
}

#[test]
fn a_clean_link_loses_nothing() {
    let test = TestLab::up("c", false);
    let mut stream = test.connect(test.state().server.ipv4.into());
    for round in 0..50 {
        let value = noise(65_536, round);
        set(&mut stream, "k", &value);
        assert!(get(&mut stream, "k") == value);
    }
    let report = test.lab().link_report().unwrap();
    for counters in [report.to_server, report.to_client] {
        assert!(
            counters.received > 2_000,
            "64 kB values make more frames: {counters:?}"
        );
        assert_eq!(counters.received, counters.forwarded, "{counters:?}");
        assert_eq!((counters.failed, counters.missed), (0, 0), "{counters:?}");
    }
    test.down();
}

/// Ethernet type for local experiments (IEEE 802.1, 0x88b5): no stack takes it up.
const TYPE_EXPERIMENT: [u8; 2] = [0x88, 0xb5];

fn frame(tag: &[u8], number: u8) -> Vec<u8> {
    let addresses = [0x02, 0xe4, 0xb0, 0, 0, 2, 0x02, 0xe4, 0xb0, 0, 0, 1];
    [&addresses[..], tag, &TYPE_EXPERIMENT[..], &[number; 60][..]].concat()
}

/// Sends `frames` by one socket and collects what another one sees of them, until all are there.
fn carry(from: &PacketSocket, to: &PacketSocket, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(
        from.send(&slices, 1_000, || thread::sleep(Duration::from_millis(1))),
        0
    );
    let mut batch = Batch::new();
    let mut seen: Vec<Vec<u8>> = Vec::new();
    let end = Instant::now() + Duration::from_secs(3);
    while seen.len() < frames.len() && Instant::now() < end {
        to.receive(&mut batch).unwrap();
        let is_ours = |frame: &&[u8]| frame.windows(2).take(20).any(|two| two == TYPE_EXPERIMENT);
        seen.extend(batch.frames().filter(is_ours).map(<[u8]>::to_vec));
        thread::sleep(Duration::from_millis(1));
    }
    seen
}

fn open(namespace: &str, device: &str) -> PacketSocket {
    netns::run_in(namespace, || PacketSocket::open(device)).unwrap()
}

#[test]
fn frames_arrive_as_sent_with_their_vlan_tags_and_in_order() {
    let test = TestLab::up("v", false);
    let state = test.state();
    let client = open(&state.client.namespace, &state.client.device);
    let server = open(&state.server.namespace, &state.server.device);
    let frames: Vec<Vec<u8>> = (0..100)
        .map(|number| {
            frame(
                if number % 2 == 0 {
                    &[]
                } else {
                    &[0x81, 0, 0x60, 100]
                },
                number,
            )
        })
        .collect();
    assert_eq!(carry(&client, &server, &frames), frames);
    assert_eq!(carry(&server, &client, &frames), frames);
    test.down();
}

/// Sends frames of the experimental type back by XDP_TX, passes all others.
fn bounce() -> Vec<bpf_insn> {
    let instruction = |code: u32, to: u8, from: u8, offset: i16, value: i32| {
        let mut instruction = bpf_insn {
            code: code as u8,
            off: offset,
            imm: value,
            ..Default::default()
        };
        instruction.set_dst_reg(to);
        instruction.set_src_reg(from);
        instruction
    };
    use libbpf_sys::*;
    let seen = i32::from(u16::from_ne_bytes(TYPE_EXPERIMENT));
    vec![
        instruction(BPF_LDX | BPF_MEM | BPF_W, 2, 1, 0, 0), // r2 = ctx->data
        instruction(BPF_LDX | BPF_MEM | BPF_W, 3, 1, 4, 0), // r3 = ctx->data_end
        instruction(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS as i32),
        instruction(BPF_ALU64 | BPF_MOV | BPF_X, 4, 2, 0, 0),
        instruction(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, 14),
        instruction(BPF_JMP | BPF_JGT | BPF_X, 4, 3, 3, 0), // shorter than a header: out
        instruction(BPF_LDX | BPF_MEM | BPF_H, 5, 2, 12, 0),
        instruction(BPF_JMP | BPF_JNE | BPF_K, 5, 0, 1, seen), // another type: out
        instruction(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_TX as i32),
        instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    ]
}

/// The property that all of ERB stands on: what XDP sends back at the server reaches the client.
#[test]
fn xdp_tx_at_the_server_reaches_the_client() {
    for (name, direct) in [("x", false), ("d", true)] {
        let test = TestLab::up(name, direct);
        let state = test.state();
        xdp_pass::attach_instructions(&state.server.namespace, &state.server.device, &bounce())
            .unwrap();
        let client = open(&state.client.namespace, &state.client.device);
        for round in 0..50 {
            // One at a time: no other traffic may be needed to wake the receiver.
            let frames = [frame(&[], round)];
            assert_eq!(
                carry(&client, &client, &frames),
                frames,
                "direct {direct}, {round}"
            );
        }
        test.down();
    }
}

#[test]
fn the_command_line_passes_exit_codes_and_prints_one_object() {
    let test = TestLab::up("e", true);
    for end in ["client", "server"] {
        let status = test
            .cli(&["exec", end, "--", "sh", "-c", "exit 7"])
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(7), "{end}");
    }
    let error = |words: &[&str]| {
        // The lab at hand, unless the words name another.
        let mut command = if words.contains(&"--name") {
            Command::new(PROGRAM)
        } else {
            test.cli(&[])
        };
        let output = command.args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error(&["exec", "middle", "--", "true"]).contains("no middle box"));
    assert!(error(&["link"]).contains("no middle box"));
    assert!(error(&["exec", "client", "--", "no-such-command"]).contains("no such command"));
    assert!(error(&["up"]).contains("is up already"));
    assert!(error(&["--name", "none", "status"]).contains("no lab `none`"));
    assert!(error(&["--name", "none", "up", "--mode", "read"]).contains("no ERB daemon"));
    assert_gone(&"none".parse().unwrap(), &[]);

    let output = test.cli(&["status", "--json"]).output().unwrap();
    let status: erb_lab::LabStatus = serde_json::from_slice(&output.stdout).unwrap();
    assert!(status.redis_answers && status.dead.is_empty());
    assert_eq!(&status.lab, test.state());
    let ping = [
        "exec",
        "client",
        "--",
        "redis-cli",
        "-h",
        "10.77.0.2",
        "ping",
    ];
    assert_eq!(test.cli(&ping).output().unwrap().stdout, b"PONG\n");
    // The settings that were asked for have reached Redis.
    let ask = [&ping[..6], &["config", "get", "maxmemory"][..]].concat();
    assert_eq!(
        test.cli(&ask).output().unwrap().stdout,
        b"maxmemory\n209715200\n"
    );
    test.down();
}

#[test]
fn two_labs_stand_side_by_side() {
    let (first, second) = (TestLab::up("a", false), TestLab::up("b", false));
    let address = first.state().server.ipv4.into();
    assert_eq!(address, IpAddr::V4(second.state().server.ipv4));
    let (mut one, mut two) = (first.connect(address), second.connect(address));
    set(&mut one, "k", b"first");
    set(&mut two, "k", b"second");
    assert_eq!(get(&mut one, "k"), b"first");
    first.down();
    assert_eq!(get(&mut two, "k"), b"second");
    second.down();
}

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
