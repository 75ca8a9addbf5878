// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `erb node` and `erb kv` as they are typed, and a node that is killed under load.

mod attackers;
mod clocks;
mod hosts;
mod keep;
mod kills;
mod rot;
mod starts;
mod transfer;
mod undo;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use erb_kv::{Change, Client, Condition, Selector, Status, Write as KvWrite};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use kills::Kills;

/// Kills of a node under load, unless `ERB_KILLS` says otherwise.
const KILLS: u64 = 20;
/// Restarts, more than the store has segments.
const RESTARTS: usize = 40;
/// A node that is busy has collected what short lives have left by then.
const COLLECTED_WAIT: Duration = Duration::from_secs(30);

fn erb(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_erb"));
    command.args(words).stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    erb(words).output().expect("erb runs")
}

/// What a command prints that ends well.
fn said(words: &[&str]) -> String {
    let output = run(words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

/// The exit code of a command, and what it says of it.
fn refused(words: &[&str]) -> (i32, String) {
    let output = run(words);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("a code"), error)
}

/// A folder on a disk: the one of the build.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn formatted(folder: &TempDir, size: &str, shards: &str) -> PathBuf {
    let path = folder.path().join("store");
    let file = path.to_str().expect("text");
    said(&["node", "format", file, "--size", size, "--shards", shards]);
    path
}

/// A command that may have so many files open.
fn limited(command: &mut Command, most: u64) -> &mut Command {
    let limit = move || {
        let limited = setrlimit(Resource::RLIMIT_NOFILE, most, most);
        limited.map_err(std::io::Error::from)
    };
    // SAFETY: between fork and exec it calls setrlimit(2) alone, which is a system call and allocates nothing.
    unsafe { command.pre_exec(limit) }
}

/// A node that runs, and is killed when it goes.
struct Node {
    process: Child,
    url: String,
}

impl Node {
    fn start(path: &Path) -> Self {
        Self::start_with(path, &["--listen", "127.0.0.1:0"])
    }

    fn start_with(path: &Path, words: &[&str]) -> Self {
        let file = path.to_str().expect("text");
        let start = ["node", "start", file, "--json"];
        Self::ready(erb(&[&start[..], words].concat()))
    }

    fn ready(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("a node");
        let out = process.stdout.take().expect("it is piped");
        let mut line = String::new();
        let read = BufReader::new(out).read_line(&mut line);
        read.expect("a line, or the end");
        let ready: serde_json::Value = serde_json::from_str(&line).expect("it is ready");
        let url = ready["url"].as_str().expect("an address").to_owned();
        Self { process, url }
    }

    /// With so few descriptors that clients can use them up.
    fn start_with_descriptors(path: &Path, most: u64) -> Self {
        let file = path.to_str().expect("text");
        let mut command = erb(&["node", "start", file, "--listen", "127.0.0.1:0", "--json"]);
        limited(&mut command, most);
        Self::ready(command)
    }

    fn client(&self) -> Client {
        Client::connect(&self.url.parse().expect("an address")).expect("it answers")
    }

    fn kill(mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("it has ended");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn commands_do_what_they_say_and_end_with_their_codes() {
    let folder = folder();
    let path = formatted(&folder, "160M", "2");
    let file = path.to_str().expect("text");
    assert_eq!(refused(&["node", "format", file, "--size", "160M"]).0, 2);
    let mut node = Node::start(&path);
    let url = node.url.clone();
    let kv = |words: &[&str]| -> Vec<String> {
        let mut all = vec!["kv".to_owned(), words[0].to_owned(), url.clone()];
        all.extend(words[1..].iter().map(|&word| word.to_owned()));
        all
    };
    let says = |words: &[&str]| {
        let all = kv(words);
        said(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let code = |words: &[&str]| {
        let all = kv(words);
        refused(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    says(&["put", "conf/a", "good"]);
    let moment = says(&["put", "conf/b", "good"]);
    let moment = moment.trim();
    says(&["put", "other", "stays"]);
    says(&["put", "conf/a", "bad"]);
    says(&["del", "conf/b"]);
    assert_eq!(says(&["get", "conf/a"]), "bad");
    assert_eq!(says(&["get", "conf/a", "--back", "1"]), "good");
    assert_eq!(code(&["get", "conf/b"]).0, 24);
    assert_eq!(code(&["put", "conf/a", "x", "--if-version", "1"]).0, 25);
    let dry = says(&["rollback", "conf/", "--to", moment, "--dry-run"]);
    assert_eq!(dry, "keys that would change: 2\n");
    let (unasked, why) = code(&["rollback", "conf/", "--to", moment]);
    assert_eq!(unasked, 2, "{why}");
    assert!(why.contains("--yes"), "{why}");
    let rolled = says(&["rollback", "conf/", "--to", moment, "--yes", "--json"]);
    let rolled: serde_json::Value = serde_json::from_str(&rolled).expect("JSON");
    let id = rolled["id"].as_str().expect("an id, as text");
    assert_eq!(says(&["get", "conf/b"]), "good");
    assert_eq!(says(&["ls", "conf/"]).lines().count(), 2);
    says(&["undo", id, "conf/", "--yes"]);
    assert_eq!(
        (code(&["get", "conf/b"]).0, says(&["get", "conf/a"])),
        (24, "bad".to_owned())
    );
    assert_eq!(says(&["get", "other"]), "stays");
    assert_eq!(says(&["versions", "conf/a"]).lines().count(), 4);
    assert_eq!(
        code(&["get", "conf/a", "--as-of", "9999999999999999999"]).0,
        26
    );
    let status = said(&["node", "status", &url, "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["keys"], 3);
    let (taken, who) = refused(&["node", "start", file, "--listen", "127.0.0.1:0"]);
    assert_eq!(taken, 20, "{who}");
    assert!(
        who.contains(&format!("process {}", node.process.id())),
        "{who}"
    );
    assert_eq!(refused(&["node", "check", file]).0, 20);
    ends(&mut node, &path);
}

/// A block device over a file. It goes with this.
struct Loop(String);

impl Loop {
    /// None, which is told: only root gets one, and not in every container.
    fn of(file: &Path) -> Option<Self> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--direct-io=on"]);
        let why = match command.arg(file).output() {
            Ok(output) if output.status.success() => {
                let device = String::from_utf8(output.stdout).expect("a path");
                return Some(Self(device.trim().to_owned()));
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        erb_steady::skipped(format_args!("no loop device is to be had: {why}"));
        None
    }

    /// It has the size of its file again.
    fn follow(&self) {
        let mut resize = Command::new("losetup");
        let resized = resize.args(["--set-capacity", &self.0]).status();
        assert!(resized.expect("losetup runs").success());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // Nothing is left to do if it does not go.
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_holds_a_store_although_its_name_lies_in_memory() {
    let folder = folder();
    let file = folder.path().join("disk");
    let disk = File::create(&file).expect("a file");
    disk.set_len(128 << 20).expect("a size");
    let Some(device) = Loop::of(&file) else {
        return;
    };
    let path = Path::new(&device.0);
    said(&["node", "format", &device.0]);
    let node = Node::start(path);
    said(&["kv", "put", &node.url, "k", "v"]);
    let second = ["node", "start", &device.0, "--listen", "127.0.0.1:0"];
    assert_eq!(refused(&second).0, 20);
    node.kill();
    let mut node = Node::start(path);
    assert_eq!(said(&["kv", "get", &node.url, "k"]), "v");
    said(&["node", "stop", &device.0]);
    assert!(node.process.wait().expect("it has ended").success());
    assert_eq!(refused(&["node", "format", &device.0]).0, 2, "there is one");
}

#[test]
fn what_cannot_be_printed_is_an_error_and_who_has_read_enough_is_not() {
    let folder = folder();
    let path = formatted(&folder, "160M", "1");
    let node = Node::start(&path);
    said(&["kv", "put", &node.url, "k", "v"]);
    let listed = |out: Stdio| {
        let mut command = erb(&["kv", "ls", &node.url]);
        command.stdout(out).status().expect("it starts").code()
    };
    let full = File::options().write(true).open("/dev/full");
    assert_eq!(listed(full.expect("it is there").into()), Some(1));
    let (unread, out) = UnixStream::pair().expect("a pair");
    drop(unread);
    assert_eq!(listed(OwnedFd::from(out).into()), Some(0));
}

#[test]
fn retention_that_shrinks_says_that_it_waits() {
    let folder = folder();
    let path = formatted(&folder, "160M", "1");
    let node = Node::start(&path);
    let asked = said(&["kv", "retention", &node.url, "--min-age", "1h"]);
    assert!(asked.contains("has run for 7days"), "{asked}");
    let longer = said(&["kv", "retention", &node.url, "--min-age", "8d"]);
    assert!(
        longer.contains("8days") && !longer.contains("has run for"),
        "{longer}"
    );
}

/// A node with three keys is stopped, and its store then spoilt.
fn ends(node: &mut Node, path: &Path) {
    let file = path.to_str().expect("text");
    said(&["node", "stop", file]);
    let ended = node.process.wait().expect("it has ended");
    assert!(ended.success(), "{ended}");
    assert_eq!(refused(&["node", "stop", file]).0, 22);
    assert_eq!(refused(&["kv", "get", &node.url, "other"]).0, 23);
    assert!(said(&["node", "check", file]).contains("3 keys"));
    std::fs::write(path, vec![0; 1 << 20]).expect("overwritten");
    let start = ["node", "start", file, "--listen", "127.0.0.1:0"];
    assert_eq!(refused(&start).0, 21);
}

#[test]
fn a_node_that_is_told_to_end_answers_what_it_was_asked() {
    let folder = folder();
    let path = formatted(&folder, "160M", "1");
    let mut node = Node::start(&path);
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = node.client();
            for number in 1.. {
                if client.put(b"k", &u64::to_le_bytes(number), None).is_err() {
                    break;
                }
                acknowledged.store(number, Ordering::SeqCst);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        erb_steady::wait_until(Duration::from_secs(60), "it writes", || {
            acknowledged.load(Ordering::SeqCst) >= 20
        });
        let process = Pid::from_raw(node.process.id() as i32);
        kill(process, Signal::SIGTERM).expect("told");
    });
    assert!(is_over.load(Ordering::SeqCst));
    assert!(node.process.wait().expect("it has ended").success());
    let node = Node::start(&path);
    let found = node
        .client()
        .get(b"k", Selector::Head)
        .expect("a value")
        .value;
    let found = u64::from_le_bytes(found.try_into().expect("eight bytes"));
    let acknowledged = acknowledged.load(Ordering::SeqCst);
    assert!(
        (acknowledged..=acknowledged + 1).contains(&found),
        "{found} of {acknowledged}"
    );
}

/// What is known of a key: numbers of values that were tried, acknowledged and seen.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    tried: u64,
    acknowledged: u64,
    seen: u64,
}

/// So many that batches wait for others: what was acknowledged too early would be lost with them.
const WRITERS: u64 = 24;
const KEYS: u64 = 6;

fn key_of(writer: u64, number: u64) -> Vec<u8> {
    format!("w{writer}-{number}").into_bytes()
}

/// The value with a number: its bytes tell whether all of it is of one write.
fn value_of(number: u64) -> Vec<u8> {
    let words = 1 + (number * 37 % 700) as usize;
    number.to_le_bytes().repeat(words)
}

fn number_of(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().expect("eight bytes"));
    assert_eq!(value, value_of(number), "a value is of one write");
    number
}

type Book = Mutex<BTreeMap<(u64, u64), Known>>;

/// Writes until the node is gone. Keys 0 and 1 change together, over shards.
fn write_until_killed(client: &mut Client, writer: u64, number: &mut u64, book: &Book, log: &Log) {
    loop {
        *number += 1;
        let key = *number % KEYS;
        let keys: &[u64] = if key < 2 { &[0, 1] } else { &[key] };
        for key in keys {
            book.lock()
                .expect("a book")
                .entry((writer, *key))
                .or_default()
                .tried = *number;
        }
        let value = value_of(*number);
        let done = if key < 2 {
            let writes: Vec<KvWrite> = keys
                .iter()
                .map(|key| KvWrite {
                    key: erb_kv::plain(&key_of(writer, *key)),
                    change: Change::Put(value.clone()),
                    condition: Condition::Any,
                })
                .collect();
            client.batch(&writes)
        } else {
            client.put(&key_of(writer, key), &value, None)
        };
        let version = match done {
            Ok(version) => version,
            Err(error) if error.status() == Some(Status::CAPACITY) => panic!("{error}"),
            Err(_) => return,
        };
        for key in keys {
            let mut book = book.lock().expect("a book");
            book.entry((writer, *key)).or_default().acknowledged = *number;
            log.lock()
                .expect("a log")
                .push((writer, *key, version, *number));
        }
    }
}

/// Every write that was acknowledged: writer, key, version, number.
type Log = Mutex<Vec<(u64, u64, u64, u64)>>;

fn read_until_killed(client: &mut Client, book: &Book) {
    for round in 0_u64.. {
        let (writer, key) = (round % WRITERS, round / WRITERS % KEYS);
        match client.get(&key_of(writer, key), Selector::Head) {
            Ok(found) => {
                let number = number_of(&found.value);
                let mut book = book.lock().expect("a book");
                let known = book.entry((writer, key)).or_default();
                known.seen = known.seen.max(number);
            }
            Err(error) if error.status() == Some(Status::ABSENT) => {}
            Err(_) => return,
        }
    }
}

fn check_what_is_there(client: &mut Client, book: &Book, log: &Log) {
    for ((writer, key), known) in book.lock().expect("a book").iter_mut() {
        let found = match client.get(&key_of(*writer, *key), Selector::Head) {
            Ok(found) => number_of(&found.value),
            Err(error) if error.status() == Some(Status::ABSENT) => 0,
            Err(error) => panic!("{error}"),
        };
        assert!(
            found >= known.acknowledged,
            "acknowledged and lost: {writer} {key} {known:?} {found}"
        );
        assert!(
            found >= known.seen,
            "read and taken back: {writer} {key} {known:?} {found}"
        );
        assert!(
            found <= known.tried,
            "never written: {writer} {key} {known:?} {found}"
        );
        // What is read now may not be taken back either.
        known.seen = found;
    }
    for writer in 0..WRITERS {
        let both = [0, 1].map(|key| client.get(&key_of(writer, key), Selector::Head));
        let both = both.map(|found| found.ok().map(|found| number_of(&found.value)));
        assert_eq!(both[0], both[1], "half of a batch");
    }
    let log = log.lock().expect("a log");
    for (writer, key, version, number) in log.iter().rev().take(30).chain(log.iter().take(10)) {
        let found = client.get(&key_of(*writer, *key), Selector::Version(*version));
        let found = found.expect("history is kept").value;
        assert_eq!(number_of(&found), *number);
    }
}

#[test]
fn a_node_that_is_killed_under_load_loses_nothing_and_takes_nothing_back() {
    let folder = folder();
    let kills = std::env::var("ERB_KILLS").ok();
    let kills = kills.map_or(KILLS, |text| text.parse().expect("a number"));
    let size = if kills > KILLS { "6G" } else { "1G" };
    let path = formatted(&folder, size, "2");
    let (book, log) = (Book::default(), Log::default());
    let mut numbers = [0; WRITERS as usize];
    let (mut counted, mut counted_writes) = (Kills::read(), 0);
    let before = counted.done;
    for round in before..kills {
        let node = Node::start(&path);
        check_what_is_there(&mut node.client(), &book, &log);
        if round > before {
            let written = log.lock().expect("a log").len() as u64;
            counted.count(written - counted_writes);
            counted_writes = written;
        }
        thread::scope(|scope| {
            for (writer, number) in (0..).zip(&mut numbers) {
                let (mut client, book, log) = (node.client(), &book, &log);
                scope.spawn(move || write_until_killed(&mut client, writer, number, book, log));
            }
            for _ in 0..2 {
                let (mut client, book) = (node.client(), &book);
                scope.spawn(move || read_until_killed(&mut client, book));
            }
            // At another moment each time; how much was written by then does not matter.
            thread::sleep(Duration::from_millis(60 + round * 83 % 240));
            node.kill();
        });
    }
    let node = Node::start(&path);
    check_what_is_there(&mut node.client(), &book, &log);
    let written = log.lock().expect("a log").len() as u64;
    if before < kills {
        counted.count(written - counted_writes);
    }
    println!(
        "{written} acknowledged writes, {} kills",
        kills - before.min(kills)
    );
    println!("of all runs: {} in {} kills", counted.writes, counted.done);
    if written < kills - before.min(kills) {
        erb_steady::out_of_patience("the node was not under load");
    }
}

/// Ticks of processor time that a process has used.
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("as proc(5) says");
    let fields: Vec<&str> = fields.split(' ').collect();
    let both = [fields[11], fields[12]].map(|it| it.parse::<u64>().expect("a number"));
    both.iter().sum()
}

#[test]
fn clients_that_use_up_its_descriptors_neither_end_it_nor_make_it_spin() {
    let folder = folder();
    let path = formatted(&folder, "128M", "1");
    let node = Node::start_with_descriptors(&path, 64);
    let address = node.url.trim_start_matches("nvme://");
    let crowd: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(address).expect("the kernel takes them"))
        .collect();
    // When it has taken those that it has room for, it rests.
    erb_steady::wait(Duration::from_secs(30), || {
        let before = ticks(node.process.id());
        thread::sleep(Duration::from_secs(1));
        // Of 100: one that spins uses all that it is given.
        let used = ticks(node.process.id()) - before;
        let rests = used < 15;
        rests
            .then_some(())
            .ok_or_else(|| format!("{used} hundredths of a second"))
    });
    drop(crowd);
    let mut client = node.client();
    client.put(b"k", b"v", None).expect("put");
    assert_eq!(
        client.get(b"k", Selector::Head).expect("a value").value,
        b"v"
    );
}

#[test]
fn restarts_without_end_do_not_fill_the_store() {
    let folder = folder();
    let path = formatted(&folder, "128M", "1");
    let value = vec![7; 64 << 10];
    for round in 0..RESTARTS {
        let node = Node::start(&path);
        let mut client = node.client();
        let key = format!("k{round}");
        // A life too short for it leaves collecting to the next one.
        erb_steady::wait(COLLECTED_WAIT, || {
            client.put(key.as_bytes(), &value, None).map_err(|error| {
                let is_full = error.status() == Some(Status::CAPACITY);
                assert!(is_full, "restart {round}: {error}");
                format!("restart {round}: {error}")
            })
        });
        node.kill();
    }
    let node = Node::start(&path);
    let mut client = node.client();
    for round in 0..RESTARTS {
        let found = client.get(format!("k{round}").as_bytes(), Selector::Head);
        assert_eq!(found.expect("a value").value, value);
    }
    assert!(!client.health().expect("health").is_full);
}
