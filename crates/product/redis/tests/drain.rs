// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The drain with a real redis-server: what it replies to batches, and each way in which it refuses one.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use erb_abi::{LogWriter, Logs, VALUE_BYTES_MAX, Written, hash_secret};
use erb_redis::drain::{BATCH_NS, Drain, DrainSettings, Log, Next};
use erb_redis::resp::{Frame, RespStream, error, text};
use tempfile::TempDir;

/// For anything: a loaded machine takes its time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Ends a test that has waited since then for too long.
fn assert_patient(since: Instant, why: impl Fn() -> String) {
    if since.elapsed() > erb_steady::patient(PATIENCE) {
        erb_steady::out_of_patience(why());
    }
}

/// A connection to a server that is about to listen.
fn connected(socket: &Path) -> UnixStream {
    erb_steady::wait(PATIENCE, || {
        let stream = UnixStream::connect(socket);
        stream.map_err(|error| format!("redis-server did not start: {error}"))
    })
}

/// A redis-server of the test, on a unix socket alone; gone when dropped.
struct Server {
    child: Child,
    dir: TempDir,
}

impl Server {
    fn start(settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command
            .args(["--port", "0", "--unixsocket", "sock", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            .args(settings)
            .current_dir(dir.path())
            .stdout(Stdio::null())
            // A group of its own: Ctrl-C ends the test first.
            .process_group(0);
        let child = command.spawn().unwrap_or_else(|error| {
            erb_steady::set_up_failed(format_args!("redis-server (scripts/setup.sh): {error}"))
        });
        let server = Self { child, dir };
        drop(connected(&server.dir.path().join("sock")));
        server
    }

    fn client(&self) -> Client {
        let stream = UnixStream::connect(self.dir.path().join("sock")).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut client = Client(RespStream::new(stream));
        client.ask(&["HELLO", "3"]);
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection of the test's own.
struct Client(RespStream<UnixStream>);

impl Client {
    fn ask(&mut self, words: &[&str]) -> Frame {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.0.push(&words);
        let began = Instant::now();
        loop {
            self.0.flush().unwrap();
            self.0.fill().unwrap();
            if let Some(frame) = self.0.next_frame().unwrap() {
                if !matches!(frame, Frame::Push { .. }) {
                    return frame;
                }
            }
            assert_patient(began, || format!("no answer to {words:?}"));
        }
    }

    fn get(&mut self, key: &str) -> Option<String> {
        text(&self.ask(&["GET", key])).map(|text| String::from_utf8_lossy(text).into_owned())
    }

    fn ok(&mut self, words: &[&str]) {
        let reply = self.ask(words);
        assert_eq!(error(&reply), None, "{words:?}");
    }
}

/// A log, and its drain on the feed's kind of connection.
struct Bench {
    logs: Rc<Logs>,
    drain: Drain<Shared>,
    stream: RespStream<UnixStream>,
    began: Instant,
    pushes: usize,
}

struct Shared(Rc<Logs>);

impl Log for Shared {
    fn count(&self) -> usize {
        self.0.count()
    }
    fn head(&self, ring: usize) -> u64 {
        self.0.head(ring)
    }
    fn tail(&self, ring: usize) -> u64 {
        self.0.tail(ring)
    }
    fn set_tail(&self, ring: usize, at: u64) {
        self.0.set_tail(ring, at);
    }
    fn copy(&self, ring: usize, at: u64, from: usize, to: &mut [u8]) {
        self.0.copy(ring, at, from, to);
    }
    fn lsn(&self) -> u64 {
        self.0.lsn()
    }
    fn drained(&self) -> u64 {
        self.0.drained()
    }
    fn fresh_ns(&self) -> u64 {
        self.0.fresh_ns()
    }
    fn set_drained(&self, lsn: u64, fresh_ns: u64) {
        self.0.set_drained(lsn, fresh_ns);
    }
}

impl Bench {
    fn new(server: &Server) -> Self {
        let logs = Rc::new(Logs::zeros(2));
        Self {
            drain: drain(&logs),
            logs,
            stream: feed(server),
            began: Instant::now(),
            pushes: 0,
        }
    }

    fn put(&self, ring: usize, key: &str, value: &[u8], (db, expiry_ms): (u16, u64)) {
        let mut writer = LogWriter::new(&self.logs, ring);
        let lsn = writer.next_lsn();
        writer.put(&Written {
            lsn,
            db,
            key: key.as_bytes(),
            value,
            expiry_ms,
        });
    }

    fn set(&self, key: &str, value: &str) {
        self.put(0, key, value.as_bytes(), (0, 0));
    }

    /// One look, and what came.
    fn turn(&mut self) {
        let now = self.began.elapsed().as_nanos() as u64 + 1;
        self.drain.begin(now, self.stream.output()).unwrap();
        self.stream.flush().unwrap();
        self.stream.fill().unwrap();
        loop {
            let (taken, next) = self.drain.take(self.stream.input(), now).unwrap();
            self.stream.take_input(taken);
            if next == Next::More || self.stream.input().is_empty() {
                return;
            }
            self.pushes += usize::from(self.stream.next_frame().unwrap().is_some());
        }
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert_patient(began, || format!("{what}: {:?}", self.drain.refusal()));
            self.turn();
        }
    }

    fn until_drained(&mut self) {
        self.until("it is not drained", |bench| {
            bench.logs.drained() == bench.logs.lsn()
        });
        assert_eq!(self.drain.refusal(), None);
    }

    /// Until Redis refuses with such a text, and then some more.
    fn until_refused(&mut self, word: &str) {
        self.until(word, |bench| {
            let refusal = bench.drain.refusal();
            refusal.is_some_and(|refusal| refusal.text.contains(word) && refusal.tries > 2)
        });
        assert_ne!(self.logs.drained(), self.logs.lsn());
    }
}

fn drain(logs: &Rc<Logs>) -> Drain<Shared> {
    let settings = DrainSettings {
        batch_ns: BATCH_NS,
        secret: hash_secret::of_seed(5),
    };
    let mut drain = Drain::new(Shared(Rc::clone(logs)), &settings);
    drain.set_databases(16);
    drain
}

fn feed(server: &Server) -> RespStream<UnixStream> {
    let mut client = server.client();
    client.ok(&["CLIENT", "TRACKING", "ON", "BCAST", "NOLOOP"]);
    client.0
}

#[test]
fn all_kinds_of_writes_arrive_and_the_last_of_a_key_wins() {
    let server = Server::start(&[]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    client.ok(&["LPUSH", "was a list", "x"]);
    client.ok(&["SET", "had expiry", "x", "EX", "100"]);
    let value = vec![0xff; VALUE_BYTES_MAX as usize];
    for number in 0..1000 {
        let ring = number % 2;
        bench.put(ring, &format!("key{}", number % 300), b"old", (0, 0));
        let text = format!("value {number}");
        let key = format!("key{}", number % 300);
        bench.put(ring, &key, text.as_bytes(), (0, 0));
    }
    bench.set("was a list", "string");
    bench.set("had expiry", "none");
    bench.put(1, "long", &value, (0, 0));
    bench.put(1, "", b"empty key", (0, 0));
    bench.put(0, "crlf\r\n\0", b"\r\n$3\r\n", (0, 0));
    bench.put(0, "other", b"3", (3, 0));
    bench.put(0, "expires", b"later", (3, 4_000_000_000_000));
    bench.put(0, "expired", b"x", (0, 1));
    bench.until_drained();
    for number in 0..300 {
        let last = (0..1000).rev().find(|n| n % 300 == number).unwrap();
        let value = client.get(&format!("key{number}"));
        assert_eq!(value, Some(format!("value {last}")));
    }
    assert_eq!(client.get("was a list").as_deref(), Some("string"));
    assert!(matches!(
        client.ask(&["TTL", "had expiry"]),
        Frame::Number { data: -1, .. }
    ));
    assert_eq!(client.get("").as_deref(), Some("empty key"));
    assert_eq!(client.get("crlf\r\n\0").as_deref(), Some("\r\n$3\r\n"));
    assert_eq!(client.get("expired"), None);
    let Frame::Number { data, .. } = client.ask(&["STRLEN", "long"]) else {
        panic!("no length")
    };
    assert_eq!(data, i64::from(VALUE_BYTES_MAX));
    client.ok(&["SELECT", "3"]);
    assert_eq!(client.get("other").as_deref(), Some("3"));
    let Frame::Number { data, .. } = client.ask(&["PEXPIRETIME", "expires"]) else {
        panic!("no time")
    };
    assert_eq!(data, 4_000_000_000_000);
    let done = bench.drain.done();
    assert!(done.keys < done.records && done.records == bench.logs.lsn());
    let others = 2;
    assert!(bench.pushes <= others, "NOLOOP: its own are not reported");
}

#[test]
fn reports_of_others_writes_come_between_and_disturb_nothing() {
    let server = Server::start(&[]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    for round in 0..200 {
        bench.set(&format!("a{round}"), "1");
        client.ok(&["SET", &format!("b{round}"), "1"]);
        bench.turn();
    }
    bench.until_drained();
    bench.until("all is reported", |bench| bench.pushes >= 100);
    assert!(matches!(
        client.ask(&["DBSIZE"]),
        Frame::Number { data: 400, .. }
    ));
}

#[test]
fn a_full_memory_takes_what_was_promised_by_script() {
    let server = Server::start(&["--maxmemory", "1"]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    let refused = client.ask(&["SET", "x", "y"]);
    assert!(error(&refused).is_some_and(|text| text.starts_with("OOM")));
    bench.set("a", "1");
    bench.put(0, "b", b"2", (5, 4_000_000_000_000));
    bench.put(0, "bad", b"3", (0, u64::MAX));
    bench.until_drained();
    assert_eq!(bench.drain.done().refused, 1, "it was told at first");
    assert_eq!(client.get("a").as_deref(), Some("1"));
    let writes = bench.drain.take_refused_writes();
    assert_eq!((writes.len(), writes[0].key.as_slice()), (1, &b"bad"[..]));
    client.ok(&["SELECT", "5"]);
    assert_eq!(client.get("b").as_deref(), Some("2"));
}

#[test]
fn a_write_that_can_never_be_is_told_and_the_others_go_on() {
    let server = Server::start(&[]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    bench.set("a", "1");
    bench.put(0, "bad", b"2", (0, u64::MAX));
    bench.set("b", "3");
    bench.until_drained();
    let writes = bench.drain.take_refused_writes();
    assert_eq!(writes.len(), 1);
    assert_eq!((writes[0].lsn, writes[0].db), (2, 0));
    assert!(writes[0].why.starts_with("ERR"), "{}", writes[0].why);
    assert_eq!(client.get("a").as_deref(), Some("1"));
    assert_eq!(client.get("b").as_deref(), Some("3"));
}

#[test]
fn a_replica_refuses_until_it_is_a_master_again() {
    let server = Server::start(&[
        "--replicaof",
        "127.0.0.1 1",
        "--repl-diskless-load",
        "disabled",
    ]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    bench.set("a", "1");
    bench.until_refused("READONLY");
    client.ok(&["REPLICAOF", "NO", "ONE"]);
    bench.until_drained();
    assert_eq!(client.get("a").as_deref(), Some("1"));
}

#[test]
fn too_few_replicas_refuse_until_there_are_enough() {
    let server = Server::start(&["--min-replicas-to-write", "1"]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    bench.set("a", "1");
    bench.until_refused("NOREPLICAS");
    client.ok(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    bench.until_drained();
    assert_eq!(client.get("a").as_deref(), Some("1"));
}

#[test]
fn a_failed_snapshot_refuses_until_one_succeeds() {
    let server = Server::start(&["--save", "3600 1000000", "--dbfilename", "snapshot"]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    // A folder of the snapshot's name: it cannot be written, by root neither.
    std::fs::create_dir(server.dir.path().join("snapshot")).unwrap();
    client.ok(&["BGSAVE"]);
    bench.set("a", "1");
    erb_steady::wait_until(PATIENCE, "the snapshot fails", || {
        text(&client.ask(&["INFO", "persistence"]))
            .is_some_and(|info| String::from_utf8_lossy(info).contains("last_bgsave_status:err"))
    });
    bench.until_refused("MISCONF");
    client.ok(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    bench.until_drained();
    assert_eq!(client.get("a").as_deref(), Some("1"));
}

#[test]
fn a_user_who_may_not_is_refused_until_he_may() {
    let server = Server::start(&[]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    for (rule, word) in [
        ("-mset", "NOPERM"),
        ("resetkeys", "NOPERM"),
        ("-multi", "NOPERM"),
    ] {
        client.ok(&["ACL", "SETUSER", "default", rule]);
        bench.set("a", rule);
        bench.set("b", rule);
        bench.until_refused(word);
        client.ok(&["ACL", "SETUSER", "default", "+@all", "~*"]);
        bench.until_drained();
        assert_eq!(client.get("a").as_deref(), Some(rule));
    }
}

#[test]
fn a_connection_that_is_not_authenticated_is_refused() {
    let server = Server::start(&[]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    client.ok(&["ACL", "SETUSER", "default", "resetpass", ">secret"]);
    bench.stream = RespStream::new({
        let stream = UnixStream::connect(server.dir.path().join("sock")).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    });
    bench.set("a", "1");
    bench.until_refused("NOAUTH");
    client.ok(&["ACL", "SETUSER", "default", "nopass"]);
    bench.drain.lost();
    bench.drain.set_databases(16);
    bench.stream = feed(&server);
    bench.until_drained();
}

#[test]
fn a_script_that_does_not_end_refuses_until_it_is_killed() {
    let server = Server::start(&["--busy-reply-threshold", "50"]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    let mut busy = server.client();
    busy.0.push(&[b"EVAL", b"while true do end", b"0"]);
    busy.0.flush().unwrap();
    erb_steady::wait_until(PATIENCE, "the script is at work", || {
        error(&client.ask(&["PING"])).is_some_and(|text| text.starts_with("BUSY"))
    });
    bench.set("a", "1");
    bench.until_refused("BUSY");
    client.ok(&["SCRIPT", "KILL"]);
    bench.until_drained();
    assert_eq!(client.get("a").as_deref(), Some("1"));
}

#[test]
fn a_pause_of_writes_makes_it_wait() {
    let server = Server::start(&[]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    // It begins later than that, so it is not over earlier.
    let before = Instant::now();
    client.ok(&["CLIENT", "PAUSE", "300", "WRITE"]);
    bench.set("a", "1");
    bench.until_drained();
    assert!(before.elapsed() > Duration::from_millis(250));
    assert_eq!(client.get("a").as_deref(), Some("1"));
}

/// A batch is under way, Redis or the connection goes, another drain goes on from what the log says.
#[test]
fn what_was_under_way_is_drained_again_by_the_next_one() {
    let server = Server::start(&[]);
    let (mut bench, mut client) = (Bench::new(&server), server.client());
    for round in 0..50u32 {
        for number in 0..20 {
            bench.set(&format!("key{number}"), &format!("{round}"));
        }
        bench.drain.hurry();
        let now = bench.began.elapsed().as_nanos() as u64 + 1;
        let said = bench.drain.begin(now, bench.stream.output()).unwrap();
        if round % 2 == 0 {
            bench.stream.flush().unwrap();
        }
        assert!(said && bench.drain.is_under_way());
        bench.stream = feed(&server);
        if round % 3 == 0 {
            bench.drain.lost();
            bench.drain.set_databases(16);
        } else {
            bench.drain = drain(&bench.logs);
        }
        bench.until_drained();
        assert_eq!(client.get("key7"), Some(round.to_string()));
    }
    for ring in 0..2 {
        assert_eq!(bench.logs.tail(ring), bench.logs.head(ring));
    }
}

/// Redis's log has batches whole, and a Redis that reads it has all of them. With `everysec` it replies
/// up to two seconds before it writes, while the disk is busy (`flushAppendOnlyFile`).
#[test]
fn redis_s_own_log_has_what_was_drained() {
    let mut server = Server::start(&["--appendfsync", "always"]);
    let mut bench = Bench::new(&server);
    for number in 0..5000 {
        bench.set(&format!("key{}", number % 700), &format!("{number}"));
    }
    bench.until_drained();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    std::fs::remove_file(server.dir.path().join("sock")).unwrap();
    let again = Server {
        child: Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "sock", "--appendonly", "yes"])
            .current_dir(server.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
        dir: tempfile::tempdir().unwrap(),
    };
    let stream = connected(&server.dir.path().join("sock"));
    stream.set_nonblocking(true).unwrap();
    let mut client = Client(RespStream::new(stream));
    erb_steady::wait_until(PATIENCE, "it has loaded", || {
        error(&client.ask(&["PING"])).is_none()
    });
    assert_eq!(client.get("key99").as_deref(), Some("4999"));
    assert!(matches!(
        client.ask(&["DBSIZE"]),
        Frame::Number { data: 700, .. }
    ));
    drop(again);
}
