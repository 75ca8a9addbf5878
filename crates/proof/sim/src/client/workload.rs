// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients ask for: an operation is some commands sent together. It follows from seed,
//! connection and number alone, so that leaving others out leaves it as it is.

use fastrand::Rng;

use crate::ConnId;
use crate::client::resp::request;
use crate::client::settings;
use crate::profile::ClientRates;
use crate::time::{MS, START_NS, WALL_START_MS};

/// Mixes numbers into a seed.
#[must_use]
pub fn mix(seed: u64, numbers: &[u64]) -> u64 {
    numbers
        .iter()
        .fold(seed ^ 0x9e37_79b9_7f4a_7c15, |state, number| {
            let mut z = (state ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        })
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Lower-case name, for the coverage.
    pub name: &'static str,
    /// As it is sent.
    pub bytes: Vec<u8>,
    /// Replies that it gets.
    pub replies: u32,
}

/// Commands sent together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// The commands.
    pub commands: Vec<Command>,
    /// From here on messages may arrive.
    pub subscribes: bool,
    /// Redis closes the connection when it has read this.
    pub ends: bool,
    /// Nothing is sent behind it before its reply is there: the model of Redis does not tell when a
    /// command that waited is answered, only when the answer leaves.
    pub alone: bool,
    /// The bytes are no commands.
    pub garbage: bool,
    /// Something in it is of a length around a bound, or beyond all.
    pub beyond: bool,
}

/// Makes operations.
#[derive(Clone, Debug)]
pub struct Workload {
    rates: ClientRates,
    seed: u64,
}

/// Draws for one operation.
pub(super) struct Maker<'a> {
    rates: &'a ClientRates,
    pub(super) random: Rng,
    label: String,
    made: u32,
    beyond: bool,
}

impl Workload {
    /// The workload of a run.
    #[must_use]
    pub const fn new(rates: ClientRates, seed: u64) -> Self {
        Self { rates, seed }
    }

    /// Operation `number` of a connection.
    #[must_use]
    pub fn operation(&self, conn: ConnId, number: u32) -> Operation {
        let mut maker = Maker {
            rates: &self.rates,
            random: Rng::with_seed(mix(self.seed, &[1, u64::from(conn), u64::from(number)])),
            label: format!("{conn}.{number}."),
            made: 0,
            beyond: false,
        };
        if self.rates.frames {
            return crate::echo::operation(&self.rates, &mut maker.random);
        }
        let mut operation = maker.operation();
        operation.beyond = maker.beyond;
        operation
    }

    /// What a client that ERB does not see does next.
    #[must_use]
    pub fn unseen(&self, number: u32) -> Command {
        let mut maker = Maker {
            rates: &self.rates,
            random: Rng::with_seed(mix(self.seed, &[2, u64::from(number)])),
            label: format!("u.{number}."),
            made: 0,
            beyond: false,
        };
        if maker.chance(self.rates.mixed) {
            return maker.mixed_inside();
        }
        if maker.random.u8(0..8) == 0 {
            return maker.odd_on_keys();
        }
        maker.write()
    }
}

pub(super) fn command(name: &'static str, argv: &[&[u8]]) -> Command {
    Command {
        name,
        bytes: request(argv),
        replies: 1,
    }
}

impl Maker<'_> {
    fn chance(&mut self, rate: u32) -> bool {
        rate > 0 && self.random.u32(0..1_000_000) < rate
    }

    fn operation(&mut self) -> Operation {
        if self.chance(self.rates.garbage) {
            return self.garbage();
        }
        if self.chance(self.rates.mixed) {
            return self.mixed();
        }
        if self.chance(self.rates.odd_commands) {
            return self.odd();
        }
        let count = if self.chance(self.rates.pipelines) {
            self.random.u32(2..=self.rates.pipeline_max.max(2))
        } else {
            1
        };
        Operation {
            commands: (0..count).map(|_| self.one()).collect(),
            ..Operation::default()
        }
    }

    pub(super) fn one(&mut self) -> Command {
        if self.chance(self.rates.reads) {
            self.read()
        } else {
            self.write()
        }
    }

    /// A key: few are asked for often, some have an odd form.
    pub(super) fn key(&mut self) -> Vec<u8> {
        let keys = self.rates.keys.max(1);
        let first = self.random.u32(0..keys);
        let number = first.min(self.random.u32(0..keys));
        match self.random.u16(0..400) {
            0 => Vec::new(),
            1 => vec![b'K'; 256],
            2 => vec![b'L'; 257],
            3 => b"\r\n\0\xff".to_vec(),
            4 => vec![b'm'; 248 + (number as usize & 7)],
            5 | 6 => format!("hash:{}", number & 3).into_bytes(),
            _ => format!("key:{number}").into_bytes(),
        }
    }

    /// A value that was never written before.
    fn value(&mut self) -> Vec<u8> {
        self.made += 1;
        let mut value = format!("{}{}", self.label, self.made).into_bytes();
        let max = self.rates.value_bytes_max.max(32) as usize;
        let len = if self.chance(self.rates.beyond) {
            self.length_beyond()
        } else if self.chance(self.rates.big_values) {
            self.random.usize(0..=max)
        } else {
            self.random.usize(0..=max.min(100))
        };
        if self.random.u8(0..60) == 0 {
            value.clear();
        } else if value.len() < len {
            value.push(b'/');
            while value.len() < len {
                value.push(b'a' + (value.len() % 23) as u8);
            }
        }
        value
    }

    /// A length around the bound of something: a slot, an answer, a fill; or beyond all.
    fn length_beyond(&mut self) -> usize {
        self.beyond = true;
        let bound = match self.random.u8(0..40) {
            0 => 1 << 20,
            1 | 2 => 64 << 10,
            3..=6 => 16 << 10,
            7..=10 => erb_abi::REPLAY_BYTES,
            11..=14 => erb_abi::REPLY_BYTES_MAX,
            15..=18 => erb_abi::VALUE_BYTES_MAX,
            number => 128 << (number % 5),
        };
        let over = self.random.u32(0..40);
        (bound + over).saturating_sub(30) as usize
    }

    fn read(&mut self) -> Command {
        if self.chance(self.rates.plain_reads) {
            let keys = self.rates.keys.max(1);
            let number = self.random.u32(0..keys).min(self.random.u32(0..keys));
            return command("get", &[b"GET", format!("key:{number}").as_bytes()]);
        }
        let key = self.key();
        match self.random.u8(0..80) {
            0 | 11..=13 => self.many("mget", b"MGET", key),
            1 | 14 => self.many("exists", b"EXISTS", key),
            2 | 15 => command("strlen", &[b"STRLEN", &key]),
            3 | 16 => command("pttl", &[b"PTTL", &key]),
            17 => command("ttl", &[b"ttl", &key]),
            4 | 18 => {
                let (start, end) = (self.index(), self.index());
                command("getrange", &[b"GETRANGE", &key, &start, &end])
            }
            19 => command("substr", &[b"substr", &key, b"1", b"-2"]),
            20..=39 => self.read_hash(),
            5 => command("type", &[b"TYPE", &key]),
            6 | 7 => command("ping", &[b"PING"]),
            8 => command("ping", &[b"PING", b"hello"]),
            9 => command("echo", &[b"ECHO", b"hello"]),
            10 => command("get", &[b"get", &key]),
            _ => command("get", &[b"GET", &key]),
        }
    }

    /// A key that is mostly a hash.
    fn hash_key(&mut self) -> Vec<u8> {
        match self.random.u8(0..12) {
            0 => self.key(),
            number => format!("hash:{}", number & 3).into_bytes(),
        }
    }

    fn field(&mut self) -> Vec<u8> {
        match self.random.u8(0..40) {
            0 => Vec::new(),
            1 => vec![b'F'; 200],
            2 => b"\r\n\0".to_vec(),
            number => format!("field-{}", number & 7).into_bytes(),
        }
    }

    fn read_hash(&mut self) -> Command {
        let (key, field) = (self.hash_key(), self.field());
        match self.random.u8(0..12) {
            0..=2 => command("hgetall", &[b"HGETALL", &key]),
            3..=5 => command("hget", &[b"HGET", &key, &field]),
            6 | 7 => command("hmget", &[b"HMGET", &key, &field, &self.field()]),
            8 => command("hlen", &[b"HLEN", &key]),
            9 => command("hexists", &[b"HEXISTS", &key, &field]),
            10 => command("hstrlen", &[b"hstrlen", &key, &field]),
            _ if self.random.bool() => command("hkeys", &[b"HKEYS", &key]),
            _ => command("hvals", &[b"HVALS", &key]),
        }
    }

    fn write_hash(&mut self) -> Command {
        let (key, field) = (self.hash_key(), self.field());
        self.made += 1;
        let value = format!("{}{}", self.label, self.made).into_bytes();
        match self.random.u8(0..10) {
            0 => command("hdel", &[b"HDEL", &key, &field]),
            1 => command("hset", &[b"HSET", &key, &field, &self.value()]),
            2 => command(
                "hset",
                &[
                    b"HSET",
                    &key,
                    &field,
                    &value,
                    &self.field(),
                    b"",
                    b"n",
                    b"1",
                ],
            ),
            3 => command("hincrby", &[b"HINCRBY", &key, b"n", b"7"]),
            4 => command("del", &[b"DEL", &key]),
            _ => command("hset", &[b"HSET", &key, &field, &value]),
        }
    }

    /// A command on some keys, perhaps the same ones.
    fn many(&mut self, name: &'static str, word: &[u8], key: Vec<u8>) -> Command {
        let mut argv = vec![word.to_vec(), key];
        for _ in 0..self.random.u8(0..5) {
            argv.push(self.key());
        }
        let argv: Vec<&[u8]> = argv.iter().map(Vec::as_slice).collect();
        command(name, &argv)
    }

    /// An index into a string, sometimes one that Redis refuses.
    fn index(&mut self) -> Vec<u8> {
        match self.random.u8(0..12) {
            0 => b"-0".to_vec(),
            1 => b"12345678901".to_vec(),
            2 => b"-100000".to_vec(),
            _ => self.random.i8(-12..12).to_string().into_bytes(),
        }
    }

    fn ms(&mut self) -> Vec<u8> {
        let ms = match self.random.u8(0..4) {
            0 => self.random.u32(1..12),
            1 => self.random.u32(12..200),
            _ => self.random.u32(200..5_000),
        };
        ms.to_string().into_bytes()
    }

    fn expiring(&mut self) -> Command {
        let key = self.key();
        let ms = self.ms();
        match self.random.u8(0..7) {
            0 => command("pexpire", &[b"PEXPIRE", &key, &ms]),
            1 => command("psetex", &[b"PSETEX", &key, &ms, &self.value()]),
            2 => command("set", &[b"SET", &key, &self.value(), b"PX", &ms]),
            3 => command("getex", &[b"GETEX", &key, b"PX", &ms]),
            4 => command("persist", &[b"PERSIST", &key]),
            5 => command("set", &[b"SET", &key, &self.value(), b"KEEPTTL"]),
            _ => command("expire", &[b"EXPIRE", &key, b"1"]),
        }
    }

    /// A SET that says when its key expires, or says it wrongly.
    fn timed_set(&mut self) -> Command {
        let (key, value) = (self.key(), self.value());
        let ms = self.random.u64(1..3_000);
        let now_ms = WALL_START_MS as u64 + START_NS / MS;
        let (option, number) = match self.random.u8(..8) {
            0 => ("EX", (1 + ms / 1_000).to_string()),
            1 => ("ex", "0".to_owned()),
            2 => ("EXAT", ((now_ms + ms) / 1_000 + 1).to_string()),
            3 => ("pxat", (now_ms + ms).to_string()),
            4 => ("PX", format!("0{ms}")),
            _ => ("PX", ms.to_string()),
        };
        let words: [&[u8]; 5] = [b"SET", &key, &value, option.as_bytes(), number.as_bytes()];
        command("set", &words)
    }

    fn write(&mut self) -> Command {
        if self.rates.timed > 0 && self.chance(self.rates.timed) {
            return self.timed_set();
        }
        if self.chance(self.rates.expiry) {
            return self.expiring();
        }
        let key = self.key();
        match self.random.u8(0..44) {
            40..=43 => self.many_keys(key),
            0 => command("del", &[b"DEL", &key]),
            1 => command("hset", &[b"HSET", &key, b"f", &self.value()]),
            2 => command("hdel", &[b"HDEL", &key, b"f"]),
            3 => command("unlink", &[b"UNLINK", &key]),
            4 => command("append", &[b"APPEND", &key, b"+"]),
            5 => command("setrange", &[b"SETRANGE", &key, b"2", b"zz"]),
            6 => command("getset", &[b"GETSET", &key, &self.value()]),
            7 => command("getdel", &[b"GETDEL", &key]),
            8 => command("setnx", &[b"SETNX", &key, &self.value()]),
            9 => command("incr", &[b"INCR", b"counter"]),
            10 => command("set", &[b"SET", &key, &self.value(), b"GET"]),
            11 => command("set", &[b"SET", &key, &self.value(), b"XX"]),
            12 => command("incr", &[b"INCR", &key]),
            13..=18 => self.write_hash(),
            _ => command("set", &[b"SET", &key, &self.value()]),
        }
    }

    /// Writes of several keys, as many as are marked and more.
    fn many_keys(&mut self, one: Vec<u8>) -> Command {
        let two = self.key();
        match self.random.u8(0..8) {
            0 => command("rename", &[b"RENAME", &one, &two]),
            1 => command("copy", &[b"COPY", &one, &two, b"REPLACE"]),
            2 => command("move", &[b"MOVE", &one, b"1"]),
            3 => self.very_many_keys(one),
            4 | 5 => command("del", &[b"DEL", &one, &two]),
            _ => command("mset", &[b"MSET", &one, &self.value(), &two, &self.value()]),
        }
    }

    fn very_many_keys(&mut self, one: Vec<u8>) -> Command {
        let most = erb_abi::KEYS_MARKED_MAX;
        let count = match self.random.u8(0..4) {
            0 => most + self.random.u32(0..3),
            _ => self.random.u32(1..12),
        };
        let mut keys = vec![one];
        keys.extend((1..count).map(|_| self.key()));
        let mut argv: Vec<&[u8]> = vec![b"UNLINK"];
        argv.extend(keys.iter().map(Vec::as_slice));
        command("unlink", &argv)
    }

    /// Commands whose keys ERB does not know, or that touch several.
    fn odd_on_keys(&mut self) -> Command {
        let (one, two) = (self.key(), self.key());
        match self.random.u8(0..10) {
            0 => command("flushall", &[b"FLUSHALL"]),
            1 => command("mset", &[b"MSET", &one, &self.value(), &two, &self.value()]),
            2 => command("rename", &[b"RENAME", &one, &two]),
            3 => command("copy", &[b"COPY", &one, &two, b"REPLACE"]),
            4 => command("del", &[b"DEL", &one, &two]),
            5 => command("flushdb", &[b"FLUSHDB"]),
            6 => command("swapdb", &[b"SWAPDB", b"0", b"1"]),
            7 => command(
                "msetnx",
                &[b"MSETNX", &one, &self.value(), &two, &self.value()],
            ),
            8 => command("move", &[b"MOVE", &one, b"1"]),
            _ => command("hset", &[b"HSET", &one, b"f", b"v"]),
        }
    }

    fn transaction(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        if self.random.bool() {
            commands.push(command("watch", &[b"WATCH", &self.key()]));
        }
        commands.push(command("multi", &[b"MULTI"]));
        for _ in 0..self.random.u8(1..4) {
            commands.push(self.one());
        }
        commands.push(if self.random.u8(0..5) == 0 {
            command("discard", &[b"DISCARD"])
        } else {
            command("exec", &[b"EXEC"])
        });
        commands
    }

    fn script(&mut self) -> Command {
        let key = self.key();
        match self.random.u8(0..3) {
            0 => {
                let text = b"return redis.call('set',KEYS[1],ARGV[1])";
                command("eval", &[b"EVAL", text, b"1", &key, &self.value()])
            }
            1 => {
                let text = b"return redis.call('incr',KEYS[1])";
                command("eval", &[b"EVAL", text, b"1", &key])
            }
            _ => {
                let text = b"return redis.call('get',KEYS[1])";
                command("eval", &[b"EVAL", text, b"1", &key])
            }
        }
    }

    /// A short time as a replica, in which reads go on.
    fn as_replica(&mut self) -> Vec<Command> {
        vec![
            command("replicaof", &[b"REPLICAOF", b"10.0.0.99", b"6379"]),
            self.one(),
            self.read(),
            command("replicaof", &[b"REPLICAOF", b"NO", b"ONE"]),
            self.read(),
        ]
    }

    fn inline(&mut self) -> Vec<Command> {
        let number = self.random.u32(0..self.rates.keys.max(1));
        let line = |name, text: String, replies| Command {
            name,
            bytes: text.into_bytes(),
            replies,
        };
        match self.random.u8(0..5) {
            0 => vec![line("ping", "PING\r\n".to_owned(), 1)],
            1 => vec![line("get", format!("GET key:{number}\r\n"), 1)],
            2 => vec![line("get", format!("get   \"key:{number}\"\n"), 1)],
            3 => vec![line("nothing", "\r\n".to_owned(), 0), self.one()],
            _ => vec![line("nothing", "*0\r\n".to_owned(), 0), self.one()],
        }
    }

    fn odd(&mut self) -> Operation {
        let mut operation = Operation::default();
        let channel: &[u8] = b"news";
        operation.commands = match self.random.u8(0..30) {
            0..=3 => self.transaction(),
            4..=7 => vec![self.odd_on_keys()],
            8 | 9 => self.inline(),
            10 => {
                operation.subscribes = true;
                vec![command("subscribe", &[b"SUBSCRIBE", channel])]
            }
            11 => vec![command("publish", &[b"PUBLISH", channel, &self.value()])],
            12 => vec![command("hello", &[b"HELLO", b"3"])],
            13 => vec![
                command("select", &[b"SELECT", b"1"]),
                self.one(),
                command("select", &[b"SELECT", b"0"]),
            ],
            14 => vec![command("client|setname", &[b"CLIENT", b"SETNAME", b"me"])],
            15 => vec![command(
                "config|set",
                &[b"CONFIG", b"SET", b"timeout", b"0"],
            )],
            16 => vec![command("unknown", &[b"NOSUCHCOMMAND", b"x"])],
            17 => vec![command("get", &[b"GET"])],
            18 => vec![command("dbsize", &[b"DBSIZE"])],
            19 => vec![command("client|list", &[b"CLIENT", b"LIST"])],
            20 => vec![command("acl|list", &[b"ACL", b"LIST"])],
            21 => vec![command("info", &[b"INFO"])],
            22 => vec![command("select", &[b"SELECT", b"0"])],
            23 => vec![self.script()],
            24 => {
                operation.alone = true;
                vec![command("blpop", &[b"BLPOP", b"list", b"0.1"])]
            }
            25 => vec![self.made_a_list()],
            26 => {
                operation.subscribes = true;
                vec![command("monitor", &[b"MONITOR"])]
            }
            27 => vec![Command {
                name: "settings",
                bytes: settings::draw(&mut self.random),
                replies: 1,
            }],
            28 => self.as_replica(),
            _ => {
                operation.ends = true;
                vec![command("quit", &[b"QUIT"])]
            }
        };
        operation
    }

    /// A key that is perhaps absent, or a string, becomes a list if it may.
    fn made_a_list(&mut self) -> Command {
        let (key, value) = (self.key(), self.value());
        match self.random.u8(0..4) {
            0 => command("rpush", &[b"RPUSH", b"list", &value]),
            1 => command("rpoplpush", &[b"RPOPLPUSH", b"list", &key]),
            2 => command("sadd", &[b"SADD", &key, &value]),
            _ => command("lpush", &[b"LPUSH", &key, &value]),
        }
    }

    fn garbage(&mut self) -> Operation {
        let bytes = match self.random.u8(0..4) {
            0 => b"*2\r\n$3\r\nGET\r\nkey\r\n".to_vec(),
            1 => b"*1\r\n$-5\r\n".to_vec(),
            2 => b"*99999999999\r\n".to_vec(),
            _ => b"*1\r\n$x\r\n".to_vec(),
        };
        Operation {
            commands: vec![Command {
                name: "garbage",
                bytes,
                replies: 1,
            }],
            ends: true,
            garbage: true,
            ..Operation::default()
        }
    }
}

/// A pause around `mean`.
#[must_use]
pub fn pause(random: &mut Rng, mean: u64) -> u64 {
    match random.u8(0..20) {
        0 => mean * 10 + random.u64(0..=50 * MS),
        1..=8 => 0,
        _ => random.u64(0..=2 * mean),
    }
}
