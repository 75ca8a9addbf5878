// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command stream of one connection, from a seed alone.

use anyhow::{Result, anyhow, bail};
use fastrand::Rng;

use crate::resp;

/// String keys per connection; the first [`HOT_KEYS`] get most reads, so that a cache gets hits.
const KEYS: u32 = 24;
/// Keys that get three quarters of all reads.
const HOT_KEYS: u32 = 4;
/// Counter keys per connection.
const COUNTERS: u32 = 4;
/// Hashes per connection.
const HASHES: u32 = 4;
/// A day in seconds: an EXPIRE at least this long cannot run out during a run.
const DAY_S: u64 = 86_400;

/// A value that a scanner which does not count bytes takes for protocol.
const PROTOCOL_LIKE: &[u8] = b"\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n$-1\r\n+OK\r\n";

/// Commands of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// GET of a string key or counter.
    Get,
    /// SET, sometimes with EX of at least a day, NX, XX or GET.
    Set,
    /// DEL of one key, seldom of two.
    Del,
    /// INCR of a counter, seldom of any key (then an error is the right reply).
    Incr,
    /// INCRBY of a counter.
    IncrBy,
    /// EXPIRE that is past or cannot run out.
    Expire,
    /// SETEX with at least a day.
    SetEx,
    /// APPEND.
    Append,
    /// GETSET.
    GetSet,
    /// SETRANGE.
    SetRange,
    /// GETRANGE.
    GetRange,
    /// GETDEL.
    GetDel,
    /// PERSIST.
    Persist,
    /// PING with or without a message.
    Ping,
    /// MGET of some keys.
    MGet,
    /// EXISTS.
    Exists,
    /// STRLEN.
    StrLen,
    /// SETNX.
    SetNx,
    /// UNLINK.
    Unlink,
    /// MSET of two keys.
    MSet,
    /// ECHO.
    Echo,
    /// SUBSTR.
    SubStr,
    /// HSET of one to three fields.
    HSet,
    /// HDEL of one field.
    HDel,
    /// HGET.
    HGet,
    /// HMGET of some fields.
    HMGet,
    /// HGETALL.
    HGetAll,
    /// HLEN.
    HLen,
    /// HEXISTS.
    HExists,
    /// HSTRLEN.
    HStrLen,
    /// HKEYS.
    HKeys,
    /// HVALS.
    HVals,
    /// MSETNX of two keys.
    MSetNx,
    /// RENAME.
    Rename,
    /// RENAMENX.
    RenameNx,
    /// COPY, mostly with REPLACE, sometimes to another database.
    Copy,
    /// MOVE to another database.
    Move,
    /// BITOP into a key.
    BitOp,
    /// PFCOUNT, which also writes; of strings an error is the right reply.
    PfCount,
    /// SINTERSTORE of nothing: removes a key.
    SInterStore,
    /// TTL.
    Ttl,
    /// PTTL.
    PTtl,
}

/// Name and default weight of each command: reads dominate, the common writes come next.
const VERBS: [(Verb, &str, u32); 42] = [
    (Verb::Get, "GET", 500),
    (Verb::Set, "SET", 130),
    (Verb::Del, "DEL", 40),
    (Verb::Incr, "INCR", 60),
    (Verb::IncrBy, "INCRBY", 10),
    (Verb::Expire, "EXPIRE", 40),
    (Verb::SetEx, "SETEX", 10),
    (Verb::Append, "APPEND", 15),
    (Verb::GetSet, "GETSET", 10),
    (Verb::SetRange, "SETRANGE", 10),
    (Verb::GetRange, "GETRANGE", 15),
    (Verb::GetDel, "GETDEL", 10),
    (Verb::Persist, "PERSIST", 10),
    (Verb::Ping, "PING", 60),
    (Verb::MGet, "MGET", 40),
    (Verb::Exists, "EXISTS", 20),
    (Verb::StrLen, "STRLEN", 20),
    (Verb::SetNx, "SETNX", 5),
    (Verb::Unlink, "UNLINK", 5),
    (Verb::MSet, "MSET", 5),
    (Verb::Echo, "ECHO", 5),
    (Verb::SubStr, "SUBSTR", 5),
    (Verb::HSet, "HSET", 30),
    (Verb::HDel, "HDEL", 10),
    (Verb::HGet, "HGET", 60),
    (Verb::HMGet, "HMGET", 30),
    (Verb::HGetAll, "HGETALL", 60),
    (Verb::HLen, "HLEN", 10),
    (Verb::HExists, "HEXISTS", 10),
    (Verb::HStrLen, "HSTRLEN", 10),
    (Verb::HKeys, "HKEYS", 10),
    (Verb::HVals, "HVALS", 10),
    (Verb::MSetNx, "MSETNX", 5),
    (Verb::Rename, "RENAME", 10),
    (Verb::RenameNx, "RENAMENX", 5),
    (Verb::Copy, "COPY", 10),
    (Verb::Move, "MOVE", 5),
    (Verb::BitOp, "BITOP", 5),
    (Verb::PfCount, "PFCOUNT", 3),
    (Verb::SInterStore, "SINTERSTORE", 3),
    (Verb::Ttl, "TTL", 10),
    (Verb::PTtl, "PTTL", 10),
];

impl Verb {
    /// Upper-case name.
    #[must_use]
    pub fn name(self) -> &'static str {
        VERBS.iter().find(|v| v.0 == self).map_or("?", |v| v.1)
    }

    /// How much two replies that say how long is left may differ: the target and the shadow are not
    /// asked at one moment. Expiries themselves differ by days.
    #[must_use]
    pub fn slack(self) -> Option<u64> {
        match self {
            Self::Ttl => Some(60),
            Self::PTtl => Some(60_000),
            _ => None,
        }
    }
}

/// Weights of the commands and the largest value.
#[derive(Debug, Clone)]
pub struct Mix {
    weights: [u32; VERBS.len()],
    value_max: usize,
}

impl Mix {
    /// Default weights changed by entries like `get=60`.
    ///
    /// # Errors
    /// If an entry names no command of the workload, has no number, or all weights are 0.
    pub fn parse(changes: &[String], value_max: usize) -> Result<Self> {
        let mut weights = VERBS.map(|v| v.2);
        for change in changes {
            let (name, weight) = change
                .split_once('=')
                .ok_or_else(|| anyhow!("--weights {change:?}: write COMMAND=NUMBER"))?;
            let at = VERBS
                .iter()
                .position(|v| v.1.eq_ignore_ascii_case(name))
                .ok_or_else(|| anyhow!("--weights: {name:?} is no command of this workload"))?;
            weights[at] = weight
                .parse()
                .map_err(|e| anyhow!("--weights {change:?}: {weight:?}: {e}"))?;
        }
        if weights.iter().all(|&w| w == 0) {
            bail!("--weights: all are 0, nothing would be sent");
        }
        Ok(Self { weights, value_max })
    }
}

/// One command, ready to send.
#[derive(Debug, Clone)]
pub struct Generated {
    /// Which command.
    pub verb: Verb,
    /// RESP bytes.
    pub bytes: Vec<u8>,
    /// Largest reply it can have, roughly; bounds what is in flight.
    pub reply_bytes_max: usize,
}

/// The stream of one connection: same seed and connection, same commands.
pub struct Generator {
    rng: Rng,
    prefix: String,
    mix: Mix,
    weight_total: u32,
    last_key: Vec<u8>,
}

impl Generator {
    /// Keys are `{seed}:{conn}:...`, so runs and connections never share one.
    pub fn new(mix: &Mix, seed: u64, conn: u32) -> Self {
        let rng = Rng::with_seed(seed ^ (u64::from(conn) << 32 | 0x5eed));
        let prefix = format!("s{seed:x}:{conn}:");
        let weight_total = mix.weights.iter().sum();
        Self {
            rng,
            prefix,
            mix: mix.clone(),
            weight_total,
            last_key: Vec::new(),
        }
    }

    /// The random source, for decisions that belong to the same stream (segments, depths).
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// The next command.
    pub fn next(&mut self) -> Generated {
        let mut pick = self.rng.u32(..self.weight_total);
        let mut at = 0;
        while pick >= self.mix.weights[at] {
            pick -= self.mix.weights[at];
            at += 1;
        }
        let verb = VERBS[at].0;
        let mut args = self.args(verb);
        // Redis matches names without case; so must whatever stands before it.
        if self.rng.u32(..20) == 0 {
            args[0].make_ascii_lowercase();
        }
        let reads = matches!(verb, Verb::Get | Verb::GetSet | Verb::GetDel | Verb::Set);
        let reply_bytes_max = match verb {
            Verb::MGet => args.len() * self.mix.value_max,
            _ if reads => self.mix.value_max,
            _ => 0,
        };
        Generated {
            verb,
            bytes: resp::command(&args),
            reply_bytes_max,
        }
    }

    fn args(&mut self, verb: Verb) -> Vec<Vec<u8>> {
        let mut args = vec![verb.name().as_bytes().to_vec()];
        match verb {
            Verb::Get | Verb::Ttl | Verb::PTtl => args.push(self.read_key()),
            Verb::Set => self.set_args(&mut args),
            Verb::Del | Verb::Unlink | Verb::Exists => self.any_keys(verb, &mut args),
            Verb::Incr => args.push(self.counter_key()),
            Verb::IncrBy => {
                let by = self.rng.i64(-1000..1000).to_string();
                args.extend([self.counter_key(), by.into_bytes()]);
            }
            Verb::Expire => {
                let seconds = self.expiry_s();
                args.extend([self.any_key(), seconds.into_bytes()]);
            }
            Verb::SetEx => {
                let seconds = self.rng.u64(DAY_S..100 * DAY_S).to_string();
                args.extend([self.write_key(), seconds.into_bytes(), self.value()]);
            }
            Verb::GetSet | Verb::SetNx => args.extend([self.write_key(), self.value()]),
            Verb::Append => {
                let max = self.mix.value_max.min(300);
                let n = self.rng.usize(..=max);
                args.extend([self.write_key(), self.bytes(n)]);
            }
            Verb::SetRange => {
                let n = self.rng.usize(..=20.min(self.mix.value_max));
                let offset = self.small_size(self.mix.value_max - n);
                args.extend([
                    self.write_key(),
                    offset.to_string().into_bytes(),
                    self.bytes(n),
                ]);
            }
            Verb::GetRange | Verb::SubStr => {
                let from = self.rng.i32(-20..40).to_string();
                let to = self.rng.i32(-20..400).to_string();
                args.extend([self.any_key(), from.into_bytes(), to.into_bytes()]);
            }
            Verb::GetDel | Verb::Persist | Verb::StrLen => args.push(self.any_key()),
            Verb::Ping | Verb::Echo => {
                if verb == Verb::Echo || self.rng.u32(..4) == 0 {
                    let n = self.rng.usize(..60);
                    args.push(self.bytes(n));
                }
            }
            Verb::MGet => {
                let count = self.rng.u32(1..4);
                args.extend((0..count).map(|_| self.read_key()));
            }
            Verb::MSet | Verb::MSetNx => {
                args.extend([
                    self.write_key(),
                    self.value(),
                    self.write_key(),
                    self.value(),
                ]);
            }
            _ if verb.name().starts_with('H') => self.hash_args(verb, &mut args),
            _ => self.keys_args(verb, &mut args),
        }
        args
    }

    /// Mostly one key, UNLINK sometimes of more than are marked one by one.
    fn any_keys(&mut self, verb: Verb, args: &mut Vec<Vec<u8>>) {
        let most = if verb == Verb::Unlink { 40 } else { 2 };
        let many = self.rng.u32(..8) == 0;
        let count = if many { self.rng.u32(2..=most) } else { 1 };
        args.extend((0..count).map(|_| self.any_key()));
    }

    fn hash_args(&mut self, verb: Verb, args: &mut Vec<Vec<u8>>) {
        args.push(self.hash_key());
        match verb {
            Verb::HSet => {
                for _ in 0..self.rng.u32(1..4) {
                    let n = self.rng.usize(..40);
                    args.extend([self.field(), self.bytes(n)]);
                }
            }
            Verb::HDel | Verb::HGet | Verb::HExists | Verb::HStrLen => args.push(self.field()),
            Verb::HMGet => {
                let count = self.rng.u32(1..5);
                args.extend((0..count).map(|_| self.field()));
            }
            _ => {}
        }
    }

    /// Commands that write other keys than their first.
    fn keys_args(&mut self, verb: Verb, args: &mut Vec<Vec<u8>>) {
        match verb {
            Verb::Rename | Verb::RenameNx => args.extend([self.any_key(), self.write_key()]),
            Verb::Copy => {
                args.extend([self.any_key(), self.write_key()]);
                if self.rng.u32(..5) == 0 {
                    args.extend([b"DB".to_vec(), b"1".to_vec()]);
                }
                if self.rng.u32(..5) < 4 {
                    args.push(b"REPLACE".to_vec());
                }
            }
            Verb::Move => args.extend([self.write_key(), b"1".to_vec()]),
            Verb::BitOp => {
                let how = [&b"AND"[..], b"OR", b"XOR"][self.rng.usize(..3)].to_vec();
                args.extend([how, self.write_key(), self.any_key(), self.any_key()]);
            }
            Verb::PfCount => args.extend([self.any_key(), self.any_key()]),
            Verb::SInterStore => args.extend([self.write_key(), self.named('x', 1)]),
            other => unreachable!("{other:?} has its own arguments"),
        }
    }

    fn set_args(&mut self, args: &mut Vec<Vec<u8>>) {
        if self.rng.u32(..10) == 0 {
            let n = self.rng.i64(-5..1_000_000).to_string();
            args.extend([self.counter_key(), n.into_bytes()]);
            return;
        }
        args.extend([self.write_key(), self.value()]);
        let day_ms = DAY_S * 1000;
        match self.rng.u32(..20) {
            0 => args.extend([b"EX".to_vec(), self.long(DAY_S).into_bytes()]),
            1 => args.extend([b"PX".to_vec(), self.long(day_ms).into_bytes()]),
            2 => args.push(b"NX".to_vec()),
            3 => args.push(b"XX".to_vec()),
            4 => args.push(b"KEEPTTL".to_vec()),
            5 => args.push(b"GET".to_vec()),
            _ => {}
        }
    }

    fn long(&mut self, unit: u64) -> String {
        self.rng.u64(unit..unit * 50).to_string()
    }

    fn expiry_s(&mut self) -> String {
        match self.rng.u32(..4) {
            0 => "0".to_string(),
            1 => format!("-{}", self.rng.u32(1..10_000)),
            _ => self.long(DAY_S),
        }
    }

    fn named(&mut self, kind: char, number: u32) -> Vec<u8> {
        // A few key lengths around 100 B and one at the fast path's limit of 256 B.
        let mut key = format!("{}{kind}{number}", self.prefix).into_bytes();
        match number {
            5 => key.resize(100, b'.'),
            6 => key.resize(256, b'.'),
            7 => key.resize(257, b'.'),
            _ => {}
        }
        self.last_key.clone_from(&key);
        key
    }

    fn write_key(&mut self) -> Vec<u8> {
        let number = self.rng.u32(..KEYS);
        self.named('k', number)
    }

    fn counter_key(&mut self) -> Vec<u8> {
        if self.rng.u32(..50) == 0 {
            return self.write_key();
        }
        let number = self.rng.u32(..COUNTERS);
        self.named('n', number)
    }

    /// Mostly a hash: no field or value is longer than a listpack takes, so that its order is the
    /// same in every Redis.
    fn hash_key(&mut self) -> Vec<u8> {
        if self.rng.u32(..60) == 0 {
            return self.write_key();
        }
        let number = self.rng.u32(..HASHES);
        self.named('h', number)
    }

    fn field(&mut self) -> Vec<u8> {
        format!("field-{}", self.rng.u32(..8)).into_bytes()
    }

    fn any_key(&mut self) -> Vec<u8> {
        match self.rng.u32(..20) {
            0 | 1 => self.named('x', 0), // Never set: always absent.
            2..=5 => self.counter_key(),
            6 => self.hash_key(),
            _ => self.write_key(),
        }
    }

    /// Reads go to the key used last (a cache must follow the write) or to few hot keys.
    fn read_key(&mut self) -> Vec<u8> {
        match self.rng.u32(..8) {
            0 | 1 if !self.last_key.is_empty() => self.last_key.clone(),
            0..=5 => {
                let number = self.rng.u32(..HOT_KEYS);
                self.named('k', number)
            }
            _ => self.any_key(),
        }
    }

    /// Sizes are skewed: half up to 32 B, most below 1.4 kB (one segment), some up to `max`.
    fn small_size(&mut self, max: usize) -> usize {
        let below = match self.rng.u32(..100) {
            0..50 => 32,
            50..80 => 300,
            80..93 => 1_500,
            93..98 => 10_000,
            _ => usize::MAX,
        };
        self.rng.usize(..=max.min(below))
    }

    fn value(&mut self) -> Vec<u8> {
        let max = self.mix.value_max;
        match self.rng.u32(..200) {
            0 => self.bytes(max),
            1..4 => Vec::new(),
            4..8 => PROTOCOL_LIKE[..PROTOCOL_LIKE.len().min(max)].to_vec(),
            _ => {
                let n = self.small_size(max);
                self.bytes(n)
            }
        }
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.rng.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_commands_and_keys_never_shared() {
        let mix = Mix::parse(&[], 65_536).unwrap();
        let stream = |seed, conn| {
            let mut g = Generator::new(&mix, seed, conn);
            (0..500).map(|_| g.next().bytes).collect::<Vec<_>>()
        };
        assert_eq!(stream(7, 3), stream(7, 3));
        assert_ne!(stream(7, 3), stream(7, 4));
        assert_ne!(
            Generator::new(&mix, 7, 1).prefix,
            Generator::new(&mix, 7, 11).prefix
        );
    }

    #[test]
    fn every_command_and_both_ends_of_the_sizes_occur() {
        let mix = Mix::parse(&[], 65_536).unwrap();
        let mut g = Generator::new(&mix, 1, 0);
        let all: Vec<Generated> = (0..20_000).map(|_| g.next()).collect();
        for (verb, name, _) in VERBS {
            assert!(all.iter().any(|c| c.verb == verb), "{name} never occurs");
        }
        assert!(all.iter().any(|c| c.bytes.len() > 65_536));
        assert!(all.iter().all(|c| c.bytes.len() < 4 * 65_536));
    }

    #[test]
    fn weights_are_checked() {
        assert!(Mix::parse(&["get=1".into(), "SET=0".into()], 10).is_ok());
        assert!(Mix::parse(&["flushall=1".into()], 10).is_err());
        assert!(Mix::parse(&["get".into()], 10).is_err());
        let zero: Vec<String> = VERBS.iter().map(|v| format!("{}=0", v.1)).collect();
        assert!(Mix::parse(&zero, 10).is_err());
    }
}
