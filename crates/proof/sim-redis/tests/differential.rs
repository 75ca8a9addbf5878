// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same seeded streams of commands go to the model and to a real redis-server 7.0; every byte of
//! every reply must agree. Only HELLO's and CLIENT ID's numbers depend on the order of connections,
//! which is the same for both, so nothing is masked.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use erb_sim_redis::{ClientId, Config, Disk, Faults, Peer, Redis};
use erb_steady::{out_of_patience, set_up_failed};
use erb_wire::resp::push_command;

/// Names that are drawn from; what is here twice is drawn twice as often.
const NAMES: &str = "\
    get set set setnx setex psetex mset msetnx mget getset getdel getex append setrange \
    getrange strlen incr incrby decr decrby incrbyfloat setbit getbit del unlink exists touch \
    type expire pexpire expireat pexpireat persist ttl expiretime pexpiretime rename renamenx \
    copy flushdb dbsize swapdb select move lpush rpush lpop rpop rpoplpush lrange llen hset hget hgetall \
    hdel hincrby hlen hrandfield scard sismember srem ping echo multi exec discard watch unwatch hello \
    auth reset client config acl nosuch debug substr flushall exec multi publish subscribe \
    unsubscribe eval";

/// Nothing replies to this before everything before it is answered.
const END: &[u8] = b"*2\r\n$4\r\nECHO\r\n$7\r\nthe-end\r\n";
const END_REPLY: &[u8] = b"$7\r\nthe-end\r\n";

struct Server {
    child: Child,
    directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(words: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket", "s"])
            .args(words)
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|error| {
            set_up_failed(format_args!(
                "redis-server is missing ({error}): scripts/setup.sh installs it"
            ))
        });
        Self { child, directory }
    }

    fn connect(&self) -> UnixStream {
        let path = self.directory.path().join("s");
        for _ in 0..6_000 {
            if let Ok(stream) = UnixStream::connect(Path::new(&path)) {
                let timeout = Some(Duration::from_secs(120));
                stream.set_read_timeout(timeout).unwrap();
                return stream;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        set_up_failed("redis-server does not listen");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

fn model() -> Redis {
    Redis::start(Config::default(), Disk::new(1, Faults::default()), now_ns()).unwrap()
}

fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::new();
    push_command(&mut text, words);
    text
}

/// Replies of the real server up to the end mark and what it says in the same turn, or until it closes.
fn ask(stream: &mut UnixStream, request: &[u8]) -> Vec<u8> {
    stream.write_all(&[request, END].concat()).unwrap();
    let mut reply = Vec::new();
    let mut buffer = [0; 65_536];
    while !reply.windows(END_REPLY.len()).any(|at| at == END_REPLY) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Ok(count) => reply.extend_from_slice(&buffer[..count]),
            Err(error) => panic!("{error}: {:?}", String::from_utf8_lossy(&reply)),
        }
    }
    reply
}

/// Replies of the model to the same bytes.
fn ask_model(redis: &mut Redis, client: ClientId, request: &[u8]) -> Vec<u8> {
    let now = now_ns();
    // As much as Redis reads at once.
    for part in [request, END].concat().chunks(16_384) {
        redis.input(client, part, now);
        while redis.has_work() {
            redis.step(now);
        }
    }
    let mut reply = Vec::new();
    redis.output(client, &mut reply);
    while let Some((id, rest)) = redis.pop_closed() {
        if id == client {
            reply.extend(rest);
        }
    }
    reply
}

struct Words(fastrand::Rng);

impl Words {
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.0.usize(0..from.len())]
    }

    fn word(&mut self) -> Vec<u8> {
        const KEYS: [&str; 7] = ["a", "b", "c", "list", "hash", "set", "n"];
        const ODD: [&str; 34] = [
            "0",
            "1",
            "-1",
            "7",
            "10",
            "100",
            "9223372036854775807",
            "-9223372036854775808",
            "007",
            "1.5",
            "-0.25",
            "3e2",
            "",
            " ",
            "x y",
            "abc",
            "EX",
            "PX",
            "EXAT",
            "PXAT",
            "NX",
            "XX",
            "GT",
            "LT",
            "KEEPTTL",
            "PERSIST",
            "GET",
            "REPLACE",
            "DB",
            "1000",
            "100000",
            "4000000000",
            "4000000000000",
            "SYNC",
        ];
        if self.0.bool() {
            self.pick(&KEYS).into()
        } else {
            self.pick(&ODD).into()
        }
    }

    fn command(&mut self) -> Vec<Vec<u8>> {
        let names: Vec<&str> = NAMES.split_whitespace().collect();
        let name = self.pick(&names);
        let mut words = vec![name.as_bytes().to_vec()];
        match name {
            "eval" => {
                words.push(b"return redis.call('set',KEYS[1],ARGV[1])".to_vec());
                words.push(b"1".to_vec());
            }
            "client" => {
                let sub = self.pick(&[
                    "id", "getname", "setname", "setinfo", "nosuch", "no-evict", "tracking",
                    "reply",
                ]);
                words.push(sub.into());
                if sub == "tracking" || sub == "reply" {
                    words.push(self.pick(&["ON", "bad"]).into());
                }
            }
            "config" => words.extend([
                b"get".to_vec(),
                self.pick(&["maxmemory", "timeout", "x"]).into(),
            ]),
            "acl" => words.push(self.pick(&["list", "whoami", "x"]).into()),
            "hello" => words.push(self.pick(&["2", "3", "4", "x"]).into()),
            // All of a hash: fewer fields are any.
            "hrandfield" => {
                words.extend([self.pick(&["hash", "a", "list"]).into(), b"100".to_vec()]);
                if self.0.bool() {
                    words.push(b"withValues".to_vec());
                }
            }
            // Without a name, the order is that of a hash table.
            "unsubscribe" => words.push(b"a".to_vec()),
            _ => {}
        }
        let count = match name {
            "set" => self.0.usize(1..6),
            _ => self.0.usize(0..4),
        };
        words.extend((0..count).map(|_| self.word()));
        if matches!(name, "lpush" | "rpush" | "lpop" | "rpop" | "rpoplpush")
            && words.len() > 1
            && self.0.bool()
        {
            words[1] = b"list".to_vec();
        }
        words
    }

    /// One command, rarely an inline one.
    fn request(&mut self) -> Vec<u8> {
        let words = self.command();
        let plain = |word: &Vec<u8>| !word.is_empty() && !word.contains(&b' ');
        if self.0.u8(0..10) == 0 && words.iter().all(plain) {
            return [words.join(&b' '), b"\r\n".to_vec()].concat();
        }
        encode(&words)
    }
}

fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Runs the same stream on both until one of the replies differs; in which round, and what is said then.
fn difference(
    seed: u64,
    connections: usize,
    rounds: usize,
    pipeline: usize,
) -> Option<(usize, String)> {
    let server = Server::start();
    let mut redis = model();
    let mut words = Words(fastrand::Rng::with_seed(seed));
    let mut pairs: Vec<(UnixStream, ClientId)> = Vec::new();
    for _ in 0..connections {
        let mut stream = server.connect();
        let client = redis.accept(Peer::Unix("s".to_owned()), now_ns());
        assert_eq!(ask(&mut stream, b""), ask_model(&mut redis, client, b""));
        pairs.push((stream, client));
    }
    for round in 0..rounds {
        let at = words.0.usize(0..connections);
        let count = words.0.usize(1..=pipeline);
        let request: Vec<u8> = (0..count).flat_map(|_| words.request()).collect();
        // Ends what was begun, so that the end mark is answered as such.
        let request = [&request[..], b"RESET\r\nHELLO 3\r\n"].concat();
        let (stream, client) = &mut pairs[at];
        let real = show(&ask(stream, &request));
        let modelled = show(&ask_model(&mut redis, *client, &request));
        if modelled != real {
            let said = format!(
                "seed {seed}, round {round}, on {}\nmodel: {modelled}\nRedis: {real}",
                show(&request)
            );
            return Some((round, said));
        }
    }
    None
}

/// The model is asked a moment after Redis: a key that expires in between, or a TTL that is rounded
/// the other way then, differs by the clock alone. Such a difference does not come thrice in the same round.
fn run(seed: u64, connections: usize, rounds: usize, pipeline: usize) {
    let mut differences: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for _ in 0..20 {
        let Some((round, said)) = difference(seed, connections, rounds, pipeline) else {
            return;
        };
        let of_round = differences.entry(round).or_default();
        of_round.push(said);
        assert!(
            of_round.len() < 3,
            "model and Redis differ each time:\n{}",
            of_round.join("\n")
        );
    }
    out_of_patience(format_args!(
        "they differ by the clock each time: {differences:#?}"
    ));
}

#[test]
fn single_commands_answer_as_redis_does() {
    run(1, 1, 4000, 1);
}

#[test]
fn pipelines_of_several_connections_answer_as_redis_does() {
    run(2, 4, 1000, 12);
}

#[test]
fn protocol_errors_answer_and_close_as_redis_does() {
    let server = Server::start();
    let mut redis = model();
    let long = vec![b'x'; 90_000];
    let requests: [&[u8]; 12] = [
        b"*1\r\n:3\r\n",
        b"*x\r\n",
        b"*-1\r\n*0\r\nPING\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$999999999999\r\n",
        b"set \"a\r\n",
        b"set a \"b\"c\r\n",
        b"*2147483648\r\n",
        b"PING\nPING\n\r\n\n",
        b"GET \"a\\x41\"\r\n",
        b"*1\r\n\r\n4\r\nPING\r\n",
        &long,
    ];
    for request in requests {
        let mut stream = server.connect();
        let client = redis.accept(Peer::Unix("s".to_owned()), now_ns());
        let real = ask(&mut stream, request);
        let modelled = ask_model(&mut redis, client, request);
        assert_eq!(
            show(&modelled),
            show(&real),
            "{}",
            show(&request[..request.len().min(99)])
        );
    }
}

/// Ways to be told of changes, each by one transaction.
const TOLD: [&str; 4] = [
    "MULTI;CLIENT TRACKING OFF;CLIENT TRACKING ON BCAST NOLOOP;EXEC",
    "MULTI;CLIENT TRACKING OFF;CLIENT TRACKING ON;EXEC",
    "MULTI;CLIENT TRACKING OFF;CLIENT TRACKING ON NOLOOP;EXEC",
    "CLIENT TRACKING OFF",
];

fn lines(commands: &str) -> Vec<u8> {
    let mut lines = commands.replace(';', "\r\n").into_bytes();
    lines.extend(b"\r\n");
    lines
}

impl Words {
    /// Some commands of these names on few keys.
    fn some(&mut self, names: &[&str]) -> Vec<u8> {
        (0..self.0.usize(1..6))
            .flat_map(|_| {
                let mut line = vec![self.pick(names).as_bytes().to_vec()];
                line.extend((0..self.0.usize(0..4)).map(|_| self.word()));
                encode(&line)
            })
            .collect()
    }

    /// What a fill asks, of one key.
    fn fill(&mut self) -> Vec<u8> {
        let key = self.pick(&["a", "b", "hash", "list", "none", "brief"]);
        lines(&self.pick(&[
            "MULTI;SELECT 0;STRLEN {};EXEC",
            "MULTI;SELECT 0;GETRANGE {} 0 9;PEXPIRETIME {};EXEC",
            "MULTI;TYPE {};HLEN {};HMGET {} f;HRANDFIELD {} 99 WITHVALUES;PEXPIRETIME {};EXEC",
            "MULTI;OBJECT ENCODING none;EXEC",
            "TOUCH {} other",
            "PEXPIRETIME {}",
        ]).replace("{}", key))
    }
}

/// A feed and a writer, of a real server and of the model.
struct Told {
    redis: Redis,
    feed: (UnixStream, ClientId),
    writer: (UnixStream, ClientId),
}

impl Told {
    /// Both say the same to this, and tell the feed the same of it.
    fn ask(&mut self, by_feed: bool, request: &[u8]) {
        let (stream, client) = match by_feed {
            true => &mut self.feed,
            false => &mut self.writer,
        };
        let real = ask(stream, request);
        let modelled = ask_model(&mut self.redis, *client, request);
        assert_eq!(show(&modelled), show(&real), "{}", show(request));
        let real = ask(&mut self.feed.0, b"");
        let modelled = ask_model(&mut self.redis, self.feed.1, b"");
        assert_eq!(show(&modelled), show(&real), "told of {}", show(request));
    }
}

#[test]
fn invalidations_come_as_redis_sends_them() {
    const WRITES: [&str; 11] = [
        "set", "del", "incr", "append", "flushdb", "mset", "persist", "getdel", "rename", "hset",
        "lpush",
    ];
    let server = Server::start_with(&["--enable-debug-command", "local"]);
    let mut redis = model();
    let mut pair = || {
        let client = redis.accept(Peer::Unix("s".to_owned()), now_ns());
        (server.connect(), client)
    };
    let (feed, writer) = (pair(), pair());
    let mut told = Told {
        redis,
        feed,
        writer,
    };
    // Expired keys are found so when they are looked for, by both.
    ask(&mut told.writer.0, &lines("DEBUG SET-ACTIVE-EXPIRE 0"));
    told.ask(true, &lines("HELLO 3"));
    told.ask(true, &lines(TOLD[0]));
    let mut words = Words(fastrand::Rng::with_seed(3));
    for _ in 0..2_000 {
        match words.0.u8(0..20) {
            0 => told.ask(true, &lines(words.pick(&TOLD))),
            1..8 => told.ask(true, &words.fill()),
            8..11 => told.ask(true, &words.some(&WRITES)),
            11 => {
                told.ask(false, &lines("SET brief x PX 20;PEXPIRE a 20"));
                std::thread::sleep(Duration::from_millis(40));
            }
            12 => told.ask(false, &lines("SET none x;DEL none")),
            _ => told.ask(false, &words.some(&WRITES)),
        }
    }
}
