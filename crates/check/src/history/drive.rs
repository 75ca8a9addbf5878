// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recording workload: registers, counters and pairs of keys shared by all connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Violation;
use super::linear::{Action, Op};
use crate::net::{Broken, Conn};
use crate::resp::{self, Reply};

/// Reconnects of one connection after timeouts or resets, before it gives up.
const RECONNECTS_MAX: u32 = 20;
/// Largest padding of a value, so that values of several slot classes occur.
const PADDING_MAX: usize = 900;

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
    /// SET, GET, DEL of unique versions.
    Register {
        /// Only one connection writes it.
        single_writer: bool,
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
            0 | 1 => KeyKind::Register {
                single_writer: true,
            },
            2 | 3 => KeyKind::Register {
                single_writer: false,
            },
            4 | 5 => KeyKind::Counter,
            // The last key may lack its partner.
            6 if key + 1 < self.keys => KeyKind::PairFirst,
            6 => KeyKind::Counter,
            _ => KeyKind::PairSecond,
        }
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
    let padding = (version.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % PADDING_MAX;
    // Most values are small: only every eighth is padded.
    let padding = if version % 8 == 0 { padding } else { 0 };
    let mut value = format!("{key}={version};").into_bytes();
    value.resize(value.len() + padding, b'p');
    value
}

/// The version of a value that must be exactly what [`value_bytes`] made.
pub fn version_of(key: &str, value: &[u8]) -> Option<u64> {
    let text = value.strip_prefix(key.as_bytes())?.strip_prefix(b"=")?;
    let end = text.iter().position(|&b| b == b';')?;
    let version = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
    (value_bytes(key, version) == value).then_some(version)
}

/// What one connection recorded.
#[derive(Default)]
pub struct Log {
    pub ops: Vec<(u32, Op)>,
    pub broken: Vec<String>,
    pub violations: Vec<Violation>,
}

/// An operation about to be sent; reply fields are filled in later.
struct Asked {
    key: u32,
    action: Action,
}

/// One connection's run.
pub struct Driver<'a> {
    plan: &'a Plan,
    conn: u32,
    rng: StdRng,
    log: Log,
}

impl<'a> Driver<'a> {
    pub fn new(plan: &'a Plan, conn: u32) -> Self {
        let rng = StdRng::seed_from_u64(plan.seed ^ (u64::from(conn) << 32 | 0x4157));
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
        if plan.keys >= 8 && self.rng.random_ratio(1, 6) {
            let first = self.rng.random_range(0..plan.keys / 8) * 8 + 6;
            if plan.kind(first) == KeyKind::PairFirst {
                return self.pair(first);
            }
        }
        let depth = if self.rng.random() {
            1
        } else {
            self.rng.random_range(1..=plan.pipeline)
        };
        (0..depth).map(|_| self.single()).collect()
    }

    fn pair(&mut self, first: u32) -> Vec<Asked> {
        if self.plan.pair_writer(first) == self.conn && self.rng.random_ratio(1, 2) {
            let version = self.plan.versions[first as usize].fetch_add(1, Ordering::Relaxed) + 1;
            return [first, first + 1]
                .map(|key| Asked {
                    key,
                    action: Action::Set(version),
                })
                .into();
        }
        [first + 1, first]
            .map(|key| Asked {
                key,
                action: Action::Get(None),
            })
            .into()
    }

    fn single(&mut self) -> Asked {
        let plan = self.plan;
        let key = loop {
            // A quarter of the operations on the first eight keys: overlap and cache hits.
            let range = if self.rng.random_ratio(1, 4) {
                8
            } else {
                plan.keys
            };
            let key = self.rng.random_range(0..range);
            if !matches!(plan.kind(key), KeyKind::PairFirst | KeyKind::PairSecond) {
                break key;
            }
        };
        let may_write = match plan.kind(key) {
            KeyKind::Register {
                single_writer: true,
            } => plan.is_writer(key, self.conn),
            _ => true,
        };
        // A single writer writes its own keys more often, or they would hardly change.
        let single = matches!(
            plan.kind(key),
            KeyKind::Register {
                single_writer: true
            }
        );
        let read_share = if single {
            plan.read_share / 2.0
        } else {
            plan.read_share
        };
        let action = if !may_write || self.rng.random_bool(read_share) {
            Action::Get(None)
        } else if self.rng.random_ratio(1, 8) {
            Action::Del(None)
        } else if plan.kind(key) == KeyKind::Counter {
            Action::Incr(None)
        } else {
            Action::Set(plan.versions[key as usize].fetch_add(1, Ordering::Relaxed) + 1)
        };
        Asked { key, action }
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
            let mut op = Op {
                conn: self.conn,
                invoked,
                answered: None,
                action: asked.action,
            };
            if failed.is_none() {
                match self.take_reply(conn, asked) {
                    Ok(action) => {
                        op.action = action;
                        op.answered = Some(self.plan.now_ns());
                    }
                    Err(broken) => failed = Some(broken),
                }
            }
            seen.push(op.action);
            self.log.ops.push((asked.key, op));
        }
        match failed {
            Some(broken) => Err(broken.to_string()),
            None => {
                self.pair_check(batch, &seen);
                Ok(())
            }
        }
    }

    fn encode(&self, asked: &Asked, out: &mut Vec<u8>) {
        let key = self.plan.key_name(asked.key);
        match asked.action {
            Action::Get(_) => resp::encode(&["GET", &key], out),
            Action::Del(_) => resp::encode(&["DEL", &key], out),
            Action::Incr(_) => resp::encode(&["INCR", &key], out),
            Action::Set(v) => {
                resp::encode(&[b"SET", key.as_bytes(), &value_bytes(&key, v)], out);
            }
        }
    }

    fn take_reply(&mut self, conn: &mut Conn, asked: &Asked) -> Result<Action, Broken> {
        let reply = conn.reply()?;
        let key = self.plan.key_name(asked.key);
        let counter = self.plan.kind(asked.key) == KeyKind::Counter;
        let number = |v: &[u8]| std::str::from_utf8(v).ok().and_then(|t| t.parse().ok());
        let action = match (asked.action, Reply::parse(&reply)) {
            (Action::Get(_), Reply::Nil) => Some(Action::Get(None)),
            (Action::Get(_), Reply::Bulk(v)) if counter => number(v).map(|n| Action::Get(Some(n))),
            (Action::Get(_), Reply::Bulk(v)) => {
                version_of(&key, v).map(|version| Action::Get(Some(version)))
            }
            (Action::Set(v), Reply::Simple(b"OK")) => Some(Action::Set(v)),
            (Action::Del(_), Reply::Int(n @ 0..=1)) => Some(Action::Del(Some(n == 1))),
            (Action::Incr(_), Reply::Int(n)) => {
                u64::try_from(n).ok().map(|n| Action::Incr(Some(n)))
            }
            _ => None,
        };
        if let Some(action) = action {
            return Ok(action);
        }
        let shown = resp::show(&reply, 200);
        self.log.violations.push(Violation {
            key,
            what: format!("{:?} cannot be answered with {shown}", asked.action),
            context: Vec::new(),
        });
        Err(Broken::Garbage(shown))
    }

    /// Second key of a pair read before the first: its version must not be newer.
    fn pair_check(&mut self, batch: &[Asked], seen: &[Action]) {
        let [second, first] = batch else { return };
        if self.plan.kind(second.key) != KeyKind::PairSecond {
            return;
        }
        if let [Action::Get(b), Action::Get(a)] = seen {
            if b > a {
                let what = format!(
                    "{} read as version {b:?}, then {} (written before it) as {a:?}",
                    self.plan.key_name(second.key),
                    self.plan.key_name(first.key)
                );
                let key = self.plan.key_name(first.key);
                self.log.violations.push(Violation {
                    key,
                    what,
                    context: Vec::new(),
                });
            }
        }
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
            assert_eq!(version_of("h1:3", &value), None);
            assert_eq!(version_of("h1:2", &value[..value.len() - 1]), None);
            assert_eq!(version_of("h1:2", &[&value[..], b"p"].concat()), None);
        }
    }
}
