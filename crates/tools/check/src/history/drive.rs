// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recording workload: registers, counters and pairs of keys shared by all connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::Violation;
use super::linear::{Action, Op};
use super::read::{self, Form};
use crate::net::{Broken, Conn};
use crate::resp::{self, Reply};

/// Reconnects of one connection after timeouts or resets, before it gives up.
const RECONNECTS_MAX: u32 = 20;
/// Largest padding of a value, so that values of several slot classes occur.
const PADDING_MAX: usize = 900;
/// The same of a field. One of more than 64 bytes makes a hash table of a listpack, until the key is gone.
const FIELD_PADDING_MAX: usize = 300;

/// Everything the connections share.
pub struct Plan {
    pub target: SocketAddr,
    pub timeout: Duration,
    pub conns: u32,
    pub keys: u32,
    pub pipeline: u32,
    pub read_share: f64,
    pub seed: u64,
    pub start: Instant,
    /// Operations left to do.
    pub budget: AtomicU64,
    /// Last version handed out per key.
    pub versions: Vec<AtomicU64>,
    pub stop: AtomicBool,
}

/// What a key is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// Unique versions are written, read and deleted.
    Register {
        /// Only one connection writes it.
        single_writer: bool,
        /// It is a hash.
        hash: bool,
    },
    /// INCR, GET, DEL.
    Counter,
    /// Written by its one writer before the second key of the pair, in one pipeline.
    PairFirst,
    /// Read before the first key of the pair: must not be newer.
    PairSecond,
}

impl Plan {
    /// Four kinds of register, two counters, one pair in every eight keys.
    pub fn kind(&self, key: u32) -> KeyKind {
        match key % 8 {
            at @ 0..=3 => KeyKind::Register {
                single_writer: at < 2,
                hash: at % 2 == 1,
            },
            4 | 5 => KeyKind::Counter,
            // The last key may lack its partner.
            6 if key + 1 < self.keys => KeyKind::PairFirst,
            6 => KeyKind::Counter,
            _ => KeyKind::PairSecond,
        }
    }

    pub fn is_hash(&self, key: u32) -> bool {
        matches!(self.kind(key), KeyKind::Register { hash: true, .. })
    }

    pub fn key_name(&self, key: u32) -> String {
        format!("h{:x}:{key}", self.seed)
    }

    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn is_writer(&self, key: u32, conn: u32) -> bool {
        (key / 8 * 2 + key % 2) % self.conns == conn
    }

    fn pair_writer(&self, first: u32) -> u32 {
        (first / 8) % self.conns
    }
}

/// A value carries key and version, so that any mix-up shows; padding varies with the version.
pub fn value_bytes(key: &str, version: u64) -> Vec<u8> {
    padded(key, version, padding(version))
}

fn padded(key: &str, version: u64, padding: usize) -> Vec<u8> {
    let mut value = format!("{key}={version};").into_bytes();
    value.resize(value.len() + padding, b'p');
    value
}

/// The same for a field of a hash.
pub fn field_bytes(field: &str, version: u64) -> Vec<u8> {
    padded(field, version, field_padding(version))
}

/// Most values are small: only every eighth is padded.
fn padding(version: u64) -> usize {
    let padding = (version.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % PADDING_MAX;
    if version % 8 == 0 { padding } else { 0 }
}

fn field_padding(version: u64) -> usize {
    padding(version) % FIELD_PADDING_MAX
}

/// Bytes of [`padded`], the name having so many.
fn padded_len(name: usize, version: u64, padding: usize) -> usize {
    name + 1 + version.to_string().len() + 1 + padding
}

/// Bytes of [`value_bytes`], the key having so many.
pub fn value_len(key: usize, version: u64) -> usize {
    padded_len(key, version, padding(version))
}

/// Bytes of [`field_bytes`], the field having so many.
pub fn field_len(field: usize, version: u64) -> usize {
    padded_len(field, version, field_padding(version))
}

/// The version of a value that must be exactly what [`value_bytes`] made.
pub fn version_of(key: &str, value: &[u8]) -> Option<u64> {
    named_version(key, value).filter(|version| value_bytes(key, *version) == value)
}

/// The same of [`field_bytes`].
pub fn version_of_field(field: &str, value: &[u8]) -> Option<u64> {
    named_version(field, value).filter(|version| field_bytes(field, *version) == value)
}

fn named_version(key: &str, value: &[u8]) -> Option<u64> {
    let text = value.strip_prefix(key.as_bytes())?.strip_prefix(b"=")?;
    let end = text.iter().position(|&b| b == b';')?;
    std::str::from_utf8(&text[..end]).ok()?.parse().ok()
}

/// What one connection recorded.
#[derive(Default)]
pub struct Log {
    pub ops: Vec<(u32, Op)>,
    pub broken: Vec<String>,
    pub violations: Vec<Violation>,
}

/// A command about to be sent: what it does to each of its keys; reply fields are filled in later.
struct Asked {
    parts: Vec<(u32, Action)>,
    form: Form,
}

impl Asked {
    fn one(key: u32, action: Action, form: Form) -> Self {
        let parts = vec![(key, action)];
        Self { parts, form }
    }
}

/// One connection's run.
pub struct Driver<'a> {
    plan: &'a Plan,
    conn: u32,
    rng: Rng,
    log: Log,
}

impl<'a> Driver<'a> {
    pub fn new(plan: &'a Plan, conn: u32) -> Self {
        let rng = Rng::with_seed(plan.seed ^ (u64::from(conn) << 32 | 0x4157));
        Self {
            plan,
            conn,
            rng,
            log: Log::default(),
        }
    }

    /// Works until the operations are used up.
    pub fn run(mut self) -> Log {
        for _ in 0..=RECONNECTS_MAX {
            match self.session() {
                Ok(()) => return self.log,
                Err(why) => self
                    .log
                    .broken
                    .push(format!("connection {}: {why}", self.conn)),
            }
        }
        self.log
    }

    fn session(&mut self) -> Result<(), String> {
        let mut conn =
            Conn::connect(self.plan.target, self.plan.timeout).map_err(|e| format!("{e:#}"))?;
        let local = conn.stream().local_addr().map_err(|e| e.to_string())?;
        loop {
            let batch = self.batch();
            let left = self.plan.budget.load(Ordering::Relaxed);
            if left == 0 || self.plan.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let take = left.min(batch.len() as u64);
            self.plan
                .budget
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |b| {
                    Some(b.saturating_sub(take))
                })
                .ok();
            self.exchange(&mut conn, &batch)
                .map_err(|e| format!("{local}: {e}"))?;
        }
    }

    /// The next pipeline: a pair exchange or some independent operations.
    fn batch(&mut self) -> Vec<Asked> {
        let plan = self.plan;
        if plan.keys >= 8 && self.rng.u32(..6) == 0 {
            let first = self.rng.u32(..plan.keys / 8) * 8 + 6;
            if plan.kind(first) == KeyKind::PairFirst {
                return self.pair(first);
            }
        }
        let depth = if self.rng.bool() {
            1
        } else {
            self.rng.u32(1..=plan.pipeline)
        };
        (0..depth).map(|_| self.single()).collect()
    }

    fn pair(&mut self, first: u32) -> Vec<Asked> {
        if self.plan.pair_writer(first) == self.conn && self.rng.bool() {
            let version = self.plan.versions[first as usize].fetch_add(1, Ordering::Relaxed) + 1;
            return [first, first + 1]
                .map(|key| Asked::one(key, Action::Set(version), Form::Whole))
                .into();
        }
        let keys = [first + 1, first];
        if self.rng.bool() {
            // One command, one moment.
            return vec![Self::mget(keys)];
        }
        keys.map(|key| Asked::one(key, Action::Get(None), Form::Whole))
            .into()
    }

    fn mget(keys: impl IntoIterator<Item = u32>) -> Asked {
        Asked {
            parts: keys
                .into_iter()
                .map(|key| (key, Action::Get(None)))
                .collect(),
            form: Form::Mget,
        }
    }

    /// A register or counter.
    fn key(&mut self) -> u32 {
        let plan = self.plan;
        loop {
            // A quarter of the operations on the first eight keys: overlap and cache hits.
            let range = if self.rng.u32(..4) == 0 { 8 } else { plan.keys };
            let key = self.rng.u32(..range);
            if !matches!(plan.kind(key), KeyKind::PairFirst | KeyKind::PairSecond) {
                return key;
            }
        }
    }

    /// Some keys for one MGET, `first` among them; hashes are nothing to it.
    fn with_others(&mut self, first: u32) -> Vec<u32> {
        let mut keys = vec![first];
        for _ in 0..self.rng.u32(..3) {
            let other = self.key();
            if !self.plan.is_hash(other) && !keys.contains(&other) {
                keys.push(other);
            }
        }
        keys
    }

    fn single(&mut self) -> Asked {
        let plan = self.plan;
        let key = self.key();
        let may_write = match plan.kind(key) {
            KeyKind::Register {
                single_writer: true,
                ..
            } => plan.is_writer(key, self.conn),
            _ => true,
        };
        // A single writer writes its own keys more often, or they would hardly change.
        let single = matches!(
            plan.kind(key),
            KeyKind::Register {
                single_writer: true,
                ..
            }
        );
        let read_share = if single {
            plan.read_share / 2.0
        } else {
            plan.read_share
        };
        let action = if !may_write || self.rng.f64() < read_share {
            Action::Get(None)
        } else if self.rng.u32(..8) == 0 {
            Action::Del(None)
        } else if plan.kind(key) == KeyKind::Counter {
            Action::Incr(None)
        } else {
            Action::Set(plan.versions[key as usize].fetch_add(1, Ordering::Relaxed) + 1)
        };
        let hash = plan.is_hash(key);
        if action != Action::Get(None) {
            return Asked::one(key, action, Form::Whole);
        }
        if !hash && self.rng.u32(..6) == 0 {
            let keys = self.with_others(key);
            return Self::mget(keys);
        }
        Asked::one(key, action, Form::draw(&mut self.rng, hash))
    }

    /// Sends the batch and records every operation, answered or not.
    fn exchange(&mut self, conn: &mut Conn, batch: &[Asked]) -> Result<(), String> {
        let mut bytes = Vec::new();
        for asked in batch {
            self.encode(asked, &mut bytes);
        }
        let invoked = self.plan.now_ns();
        let mut failed = conn.send(&bytes).err();
        let mut seen = Vec::with_capacity(batch.len());
        for asked in batch {
            let mut actions: Vec<Action> = asked.parts.iter().map(|part| part.1).collect();
            let mut answered = None;
            if failed.is_none() {
                match self.take_reply(conn, asked) {
                    Ok(said) => {
                        actions = said;
                        answered = Some(self.plan.now_ns());
                    }
                    Err(broken) => failed = Some(broken),
                }
            }
            for ((key, _), action) in asked.parts.iter().zip(actions) {
                let op = Op {
                    conn: self.conn,
                    invoked,
                    answered,
                    action,
                };
                seen.push((*key, action));
                self.log.ops.push((*key, op));
            }
        }
        match failed {
            Some(broken) => Err(broken.to_string()),
            None => {
                self.pair_check(&seen);
                Ok(())
            }
        }
    }

    fn encode(&self, asked: &Asked, out: &mut Vec<u8>) {
        let (number, action) = asked.parts[0];
        let (key, hash) = (self.plan.key_name(number), self.plan.is_hash(number));
        match action {
            Action::Get(_) | Action::Exists(_) | Action::Length(..) => {
                let keys = asked.parts.iter().map(|part| self.plan.key_name(part.0));
                let keys: Vec<String> = keys.collect();
                resp::encode(&asked.form.command(&keys, hash), out);
            }
            // Half of the hashes go by their fields.
            Action::Del(_) if hash && number % 16 < 8 => resp::encode(&read::hdel(&key), out),
            Action::Del(_) => resp::encode(&["DEL", &key], out),
            Action::Incr(_) => resp::encode(&["INCR", &key], out),
            Action::Set(version) if hash => resp::encode(&read::hset(&key, version), out),
            Action::Set(v) => {
                resp::encode(&[b"SET", key.as_bytes(), &value_bytes(&key, v)], out);
            }
        }
    }

    /// What the reply says of each key of the command.
    fn take_reply(&mut self, conn: &mut Conn, asked: &Asked) -> Result<Vec<Action>, Broken> {
        let reply = conn.reply()?;
        let said = if asked.form == Form::Mget {
            self.said_of_many(asked, &reply)
        } else {
            self.said_of_one(asked, &reply).map(|action| vec![action])
        };
        if let Some(said) = said {
            return Ok(said);
        }
        let shown = resp::show(&reply, 200);
        self.log.violations.push(Violation {
            key: self.plan.key_name(asked.parts[0].0),
            what: format!("{:?} cannot be answered with {shown}", asked.parts),
            context: Vec::new(),
        });
        Err(Broken::Garbage(shown))
    }

    fn said_of_many(&self, asked: &Asked, reply: &[u8]) -> Option<Vec<Action>> {
        let elements = resp::elements(reply).filter(|all| all.len() == asked.parts.len())?;
        let said = elements
            .into_iter()
            .zip(&asked.parts)
            .map(|(element, part)| {
                let counter = self.plan.kind(part.0) == KeyKind::Counter;
                Form::Whole.action(&self.plan.key_name(part.0), counter, false, element)
            });
        said.collect()
    }

    fn said_of_one(&self, asked: &Asked, reply: &[u8]) -> Option<Action> {
        let (number, action) = asked.parts[0];
        let key = self.plan.key_name(number);
        let counter = self.plan.kind(number) == KeyKind::Counter;
        let hash = self.plan.is_hash(number);
        match (action, Reply::parse(reply)) {
            (Action::Set(v), Reply::Simple(b"OK")) if !hash => Some(Action::Set(v)),
            // How many fields are new: none, or the hash was not there.
            (Action::Set(v), Reply::Int(0 | 2)) if hash => Some(Action::Set(v)),
            (Action::Del(_), Reply::Int(n @ 0..=1)) => Some(Action::Del(Some(n == 1))),
            (Action::Del(_), Reply::Int(2)) if hash => Some(Action::Del(Some(true))),
            (Action::Incr(_), Reply::Int(n)) => {
                u64::try_from(n).ok().map(|n| Action::Incr(Some(n)))
            }
            (Action::Get(_), _) => asked.form.action(&key, counter, hash, reply),
            _ => None,
        }
    }

    /// Second key of a pair read before the first: its version must not be newer.
    fn pair_check(&mut self, seen: &[(u32, Action)]) {
        let [(second, Action::Get(b)), (first, Action::Get(a))] = seen else {
            return;
        };
        if self.plan.kind(*second) != KeyKind::PairSecond || b <= a {
            return;
        }
        let what = format!(
            "{} read as version {b:?}, then {} (written before it) as {a:?}",
            self.plan.key_name(*second),
            self.plan.key_name(*first)
        );
        let key = self.plan.key_name(*first);
        self.log.violations.push(Violation {
            key,
            what,
            context: Vec::new(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_exact_or_nothing() {
        for version in [1, 7, 8, 16, 800, u64::MAX] {
            let value = value_bytes("h1:2", version);
            assert_eq!(version_of("h1:2", &value), Some(version));
            assert_eq!(value_len(4, version), value.len());
            let field = field_bytes("f", version);
            assert_eq!(version_of_field("f", &field), Some(version));
            assert_eq!(field_len(1, version), field.len());
            assert_eq!(version_of("h1:3", &value), None);
            assert_eq!(version_of("h1:2", &value[..value.len() - 1]), None);
            assert_eq!(version_of("h1:2", &[&value[..], b"p"].concat()), None);
        }
    }
}
