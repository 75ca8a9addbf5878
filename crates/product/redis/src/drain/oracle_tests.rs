// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The drain against a Redis of a few lines and a log that is simply a list: whatever happens, Redis holds
//! what a prefix of the list makes, in the end all of it, and `drained` never says more than that.

use std::rc::Rc;

use bytes::{Buf as _, BytesMut};
use erb_abi::{self as abi, LogWriter, Logs, Written};
use proptest::prelude::*;

use super::redis_tests::{BAD, Mood, Redis, Store};
use super::*;

/// What the writes of these tests need.
const DATABASES: u16 = 3;

/// Long forms of the properties.
fn cases(short: u32) -> ProptestConfig {
    ProptestConfig::with_cases(erb_steady::scaled(short, short * 50))
}

pub(super) fn settings() -> DrainSettings {
    DrainSettings {
        batch_ns: BATCH_NS,
        secret: abi::hash_secret::of_seed(3),
    }
}

/// A drain whose connection's Redis has so many databases.
pub(super) fn drain_into<L: Log>(logs: L, databases: u16) -> Drain<L> {
    let mut drain = Drain::new(logs, &settings());
    drain.set_databases(databases.into());
    drain
}

impl Log for Rc<Logs> {
    fn count(&self) -> usize {
        (**self).count()
    }
    fn head(&self, ring: usize) -> u64 {
        (**self).head(ring)
    }
    fn tail(&self, ring: usize) -> u64 {
        (**self).tail(ring)
    }
    fn set_tail(&self, ring: usize, at: u64) {
        (**self).set_tail(ring, at);
    }
    fn copy(&self, ring: usize, at: u64, from: usize, to: &mut [u8]) {
        (**self).copy(ring, at, from, to);
    }
    fn lsn(&self) -> u64 {
        (**self).lsn()
    }
    fn drained(&self) -> u64 {
        (**self).drained()
    }
    fn fresh_ns(&self) -> u64 {
        (**self).fresh_ns()
    }
    fn set_drained(&self, lsn: u64, fresh_ns: u64) {
        (**self).set_drained(lsn, fresh_ns);
    }
}

/// A write of the test.
#[derive(Clone)]
struct Write {
    ring: usize,
    db: u16,
    key: Vec<u8>,
    value: Vec<u8>,
    expiry_ms: u64,
}

/// In one line: a history of them is to be read.
impl std::fmt::Debug for Write {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes: &[u8]| match bytes.len() {
            0..=8 => String::from_utf8_lossy(bytes).into_owned(),
            length => format!("{}..{length}", String::from_utf8_lossy(&bytes[..2])),
        };
        let (key, value) = (text(&self.key), text(&self.value));
        let Self { ring, db, .. } = self;
        write!(to, "{ring}: {db}/{key}={value} until {}", self.expiry_ms)
    }
}

fn store_of(writes: &[Write]) -> Store {
    let mut store = Store::new();
    for write in writes.iter().filter(|write| !write.key.starts_with(BAD)) {
        let value = (write.value.clone(), write.expiry_ms);
        store.insert((write.db, write.key.clone()), value);
    }
    store
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Write(Write),
    /// A CPU has an LSN, and puts it into its ring only some steps later.
    Late(Write),
    LateEnds,
    /// The daemon looks, after so long.
    Look(u64),
    /// So many bytes of Redis's replies come, if there are as many.
    Reply(usize),
    Mood(Mood),
    /// A push comes between two replies.
    Push,
    /// The connection ends; all, or nothing, of what was said was executed. The next one may be to another
    /// process, which has so many databases.
    Lost(bool, u16),
    /// The daemon dies, and another one begins.
    Dies,
    /// It dies behind `drained`, before the room is free.
    DiesBeforeTail,
}

fn write() -> impl Strategy<Value = Write> {
    let key = prop_oneof![
        8 => (0u8..12).prop_map(|key| format!("k{key}").into_bytes()),
        1 => Just(Vec::new()),
        1 => "bad[0-3]".prop_map(String::into_bytes),
        1 => "[a-z]{200,256}".prop_map(String::into_bytes),
    ];
    let value = prop_oneof![
        6 => "[a-z]{0,120}".prop_map(String::into_bytes),
        1 => Just(vec![b'v'; abi::VALUE_BYTES_MAX as usize]),
    ];
    let expiry_ms = prop_oneof![3 => Just(0), 1 => 1u64..1 << 50];
    (0usize..3, 0..DATABASES, key, value, expiry_ms).prop_map(
        |(ring, db, key, value, expiry_ms)| Write {
            ring,
            db,
            key,
            value,
            expiry_ms,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let moods = prop::sample::select(vec![
        Mood::Well,
        Mood::Well,
        Mood::RefusesQueued("MISCONF disk"),
        Mood::RefusesQueued("READONLY replica"),
        Mood::RefusesExec("NOREPLICAS few"),
        Mood::RefusesExec("OOM no memory"),
        Mood::Full,
        Mood::FullForAll,
    ]);
    prop_oneof![
        20 => write().prop_map(Step::Write),
        2 => write().prop_map(Step::Late),
        2 => Just(Step::LateEnds),
        8 => (0u64..3_000_000).prop_map(Step::Look),
        8 => prop_oneof![1usize..9, 9usize..400].prop_map(Step::Reply),
        2 => moods.prop_map(Step::Mood),
        2 => Just(Step::Push),
        1 => (any::<bool>(), 1..=DATABASES).prop_map(|(executed, databases)| Step::Lost(executed, databases)),
        1 => Just(Step::Dies),
        1 => Just(Step::DiesBeforeTail),
    ]
}

/// A log, its list, a Redis, and a daemon between.
struct World {
    logs: Rc<Logs>,
    /// Position behind what a ring has.
    heads: Vec<u64>,
    base: u64,
    writes: Vec<Write>,
    late: VecDeque<(u64, Write)>,
    drain: Drain<Rc<Logs>>,
    redis: Redis,
    mood: Mood,
    now_ns: u64,
    said: BytesMut,
    pushes: u32,
    pushed: u32,
    refused: Vec<RefusedWrite>,
}

impl World {
    fn new(base: u64, at: u64) -> Self {
        let logs = Rc::new(Logs::zeros(3));
        let at = at / 64 * 64;
        for ring in 0..3 {
            LogWriter::new(&logs, ring).begin_at(at);
        }
        LogWriter::new(&logs, 0).begin_behind(base);
        let drain = drain_into(Rc::clone(&logs), DATABASES);
        Self {
            heads: vec![at; 3],
            base,
            writes: Vec::new(),
            late: VecDeque::new(),
            drain,
            redis: Redis::new(DATABASES),
            mood: Mood::Well,
            now_ns: 1,
            said: BytesMut::new(),
            pushes: 0,
            pushed: 0,
            refused: Vec::new(),
            logs,
        }
    }

    fn put(&mut self, lsn: u64, write: &Write) {
        let mut writer = LogWriter::new(&self.logs, write.ring);
        assert!(writer.room() > 4096);
        writer.put(&Written {
            lsn,
            db: write.db,
            key: &write.key,
            value: &write.value,
            expiry_ms: write.expiry_ms,
        });
        self.heads[write.ring] = self.logs.head(write.ring);
    }

    /// A CPU does one thing at a time: who is late holds its ring.
    fn is_late(&self, ring: usize) -> bool {
        self.late.iter().any(|(_, write)| write.ring == ring)
    }

    fn lsn(&self) -> u64 {
        LogWriter::new(&self.logs, 0).next_lsn()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(write) if !self.is_late(write.ring) => {
                let lsn = self.lsn();
                self.put(lsn, &write);
                self.writes.push(write);
            }
            Step::Late(write) if !self.is_late(write.ring) => {
                let lsn = self.lsn();
                self.writes.push(write.clone());
                self.late.push_back((lsn, write));
            }
            Step::Write(_) | Step::Late(_) => {}
            Step::LateEnds => {
                if let Some((lsn, write)) = self.late.pop_front() {
                    self.put(lsn, &write);
                }
            }
            Step::Look(after_ns) => {
                self.now_ns += after_ns;
                self.look();
            }
            Step::Reply(bytes) => self.reply(bytes),
            Step::Mood(mood) => self.mood = mood,
            Step::Push => self.pushes += 1,
            Step::Lost(executed, databases) => {
                if executed {
                    self.serve();
                }
                self.restart(databases);
            }
            Step::Dies => {
                self.cut_line();
                self.drain = drain_into(Rc::clone(&self.logs), self.redis.databases);
            }
            Step::DiesBeforeTail => {
                let tails: Vec<u64> = (0..3).map(|ring| self.logs.tail(ring)).collect();
                self.reply(usize::MAX);
                self.cut_line();
                for (ring, tail) in tails.into_iter().enumerate() {
                    self.logs.set_tail(ring, tail);
                }
                self.drain = drain_into(Rc::clone(&self.logs), self.redis.databases);
            }
        }
        self.check();
    }

    fn look(&mut self) {
        let before = self.said.len();
        let began = self.drain.begin(self.now_ns, &mut self.said).unwrap();
        assert_eq!(began, self.said.len() > before);
        assert!(!began || self.drain.is_under_way());
    }

    /// Redis reads all that was said.
    fn serve(&mut self) {
        let said = self.said.split();
        self.redis.hear(&said, self.mood);
    }

    /// The connection is gone, with what is on it.
    fn cut_line(&mut self) {
        self.said.clear();
        let redis = &mut self.redis;
        redis.input.clear();
        redis.output.clear();
        redis.queue = None;
        redis.db = 0;
    }

    /// The next connection is to a process with so many databases.
    fn restart(&mut self, databases: u16) {
        self.cut_line();
        self.drain.lost();
        assert_eq!(self.drain.next_ns(), None, "it is not known yet");
        self.redis.databases = databases;
        self.drain.set_databases(databases.into());
    }

    fn reply(&mut self, bytes: usize) {
        if !self.said.is_empty() {
            self.serve();
        }
        let mut left = bytes.min(self.redis.output.len());
        loop {
            self.now_ns += 1000;
            // All that has come is shown to it again and again, as far as it is not taken.
            let shown = self.redis.output[..left].to_vec();
            let shown = match self.pushes > self.pushed && self.at_boundary() {
                true => [b">1\r\n+hello\r\n", &shown[..]].concat(),
                false => shown,
            };
            let (taken, next) = self.drain.take(&shown, self.now_ns).unwrap();
            if next == Next::Push {
                assert_eq!(taken, 0);
                self.pushed += 1;
                continue;
            }
            if shown.len() > left && taken == 0 && next == Next::Done {
                self.pushed += 1;
                return;
            }
            self.redis.output.drain(..taken);
            left -= taken;
            if next == Next::More || taken == 0 {
                break;
            }
        }
        self.refused.extend(self.drain.take_refused_writes());
    }

    /// Redis says pushes between replies alone: here before the first one.
    fn at_boundary(&self) -> bool {
        self.redis.output.starts_with(b"+OK\r\n+QUEUED") || self.redis.output.starts_with(b"$")
    }

    fn check(&self) {
        let drained = self.logs.drained();
        let count = (drained - self.base) as usize;
        assert!(count <= self.writes.len(), "drained what is not written");
        // Redis is at `drained`, or at a later cut whose reply was not seen; but for an MSET that was
        // refused by itself and is not asked for singly yet.
        let prefix = (count..=self.writes.len())
            .find(|end| store_of(&self.writes[..*end]) == self.redis.store);
        assert!(
            prefix.is_some() || self.redis.torn,
            "Redis holds what no prefix makes"
        );
        for ring in 0..3 {
            assert!(self.logs.tail(ring) <= self.heads[ring]);
        }
        if drained == self.logs.lsn() && !self.drain.is_under_way() {
            assert_eq!(self.drain.backlog(self.now_ns).records, 0);
        }
    }

    /// Everything gets well, and everything is drained.
    fn finish(&mut self) {
        self.mood = Mood::Well;
        if self.redis.databases < DATABASES {
            self.restart(DATABASES);
        }
        while !self.late.is_empty() {
            self.step(Step::LateEnds);
        }
        let mut rounds = 0;
        while self.logs.drained() != self.logs.lsn() || self.drain.is_under_way() {
            rounds += 1;
            assert!(rounds < 10_000, "it comes to no end");
            self.reply(usize::MAX);
            self.now_ns += 1_000_000;
            self.look();
            self.check();
        }
        assert_eq!(self.redis.store, store_of(&self.writes));
        for ring in 0..3 {
            // Room of records that an earlier daemon drained is free with the next batch.
            let free = self.logs.tail(ring) == self.heads[ring];
            assert!(free || self.logs.lsn() == self.logs.drained());
        }
        let told: Vec<u64> = self.refused.iter().map(|write| write.lsn).collect();
        for write in &self.refused {
            assert!(write.key.starts_with(BAD) && write.why.starts_with("ERR"));
        }
        assert!(told.is_sorted_by(|a, b| a != b));
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn redis_always_holds_a_prefix_and_in_the_end_everything(
        steps in prop::collection::vec(step(), 1..150),
        base in prop_oneof![Just(0), Just((1u64 << 32) - 20), Just(u64::MAX / 2)],
        at in prop_oneof![Just(0u64), (1u64 << 22) - 4096..(1 << 22), (1u64 << 32) - 4096..(1 << 32)],
    ) {
        let mut world = World::new(base, at);
        for step in steps {
            world.step(step);
        }
        world.finish();
    }
}

fn plain(ring: usize, key: &str, value: &str) -> Write {
    Write {
        ring,
        db: 0,
        key: key.into(),
        value: value.into(),
        expiry_ms: 0,
    }
}

#[test]
fn of_a_key_the_last_record_of_the_batch_is_said_and_no_other() {
    let mut world = World::new(0, 0);
    for (ring, value) in [(0, "first"), (1, "second"), (0, "third"), (2, "last")] {
        world.step(Step::Write(plain(ring, "key", value)));
    }
    world.step(Step::Look(1_000_000));
    let said = String::from_utf8_lossy(&world.said).into_owned();
    assert_eq!(
        said,
        "*1\r\n$5\r\nMULTI\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n\
         *3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$4\r\nlast\r\n*1\r\n$4\r\nEXEC\r\n"
    );
    world.finish();
    let done = world.drain.done();
    assert_eq!((done.batches, done.records, done.keys), (1, 4, 1));
}

#[test]
fn a_missing_number_is_waited_for_and_told() {
    let mut world = World::new(0, 0);
    world.step(Step::Late(plain(0, "a", "1")));
    world.step(Step::Write(plain(1, "b", "2")));
    world.step(Step::Look(1_000_000));
    assert!(world.said.is_empty());
    assert_eq!(world.drain.backlog(2_000_000).missing, Some(1));
    world.step(Step::LateEnds);
    world.step(Step::Look(1_000_000));
    assert!(!world.said.is_empty());
    world.finish();
    assert_eq!(world.drain.backlog(3_000_000).missing, None);
}

/// The rings' records take more room than there is for a batch, and the first number is in the last ring.
#[test]
fn what_is_missing_is_found_behind_much_else() {
    let mut world = World::new(0, 0);
    world.step(Step::Late(plain(2, "first", "1")));
    let value = vec![b'v'; abi::VALUE_BYTES_MAX as usize];
    for number in 0..3000 {
        let write = Write {
            value: value.clone(),
            ..plain(number % 2, &format!("key{number}"), "")
        };
        let lsn = world.lsn();
        world.put(lsn, &write);
        world.writes.push(write);
    }
    world.step(Step::LateEnds);
    world.drain.pacing = Pacing::new(u64::MAX);
    world.finish();
}

#[test]
fn out_of_memory_makes_a_script_of_the_same_writes() {
    let mut world = World::new(0, 0);
    world.mood = Mood::Full;
    let expiring = Write {
        expiry_ms: 77,
        ..plain(0, "b", "2")
    };
    world.step(Step::Write(plain(0, "a", "1")));
    world.step(Step::Write(expiring));
    world.step(Step::Write(plain(0, "bad", "3")));
    world.step(Step::Look(1_000_000));
    world.step(Step::Reply(usize::MAX));
    let refusal = world.drain.refusal().cloned().unwrap();
    assert_eq!((refusal.text.as_str(), refusal.tries), ("OOM no memory", 1));
    assert_eq!(world.logs.drained(), 0);
    world.step(Step::Look(0));
    assert!(world.said.starts_with(b"*15\r\n$4\r\nEVAL\r\n"));
    world.step(Step::Reply(usize::MAX));
    assert_eq!(world.logs.drained(), 3);
    assert!(world.drain.refusal().is_none());
    assert_eq!(world.refused.len(), 1);
    world.finish();
}

#[test]
fn what_refuses_all_is_tried_again_and_nothing_is_given_up() {
    for why in [
        "MISCONF x",
        "READONLY x",
        "NOREPLICAS x",
        "BUSY x",
        "LOADING x",
        "NOPERM x",
        "NOAUTH x",
        "MASTERDOWN x",
        "WHATEVER x",
    ] {
        for mood in [Mood::RefusesQueued(why), Mood::RefusesExec(why)] {
            let mut world = World::new(0, 0);
            world.mood = mood;
            world.step(Step::Write(plain(0, "a", "1")));
            for _ in 0..5 {
                world.step(Step::Look(20_000_000));
                world.step(Step::Reply(usize::MAX));
                assert_eq!(world.logs.drained(), 0);
            }
            let refusal = world.drain.refusal().cloned().unwrap();
            assert_eq!((refusal.text.as_str(), refusal.tries), (why, 5));
            assert!(refusal.since_ns < 30_000_000);
            let due = world.drain.next_ns().unwrap();
            assert!(due > world.now_ns + 9_000_000, "in 10 ms");
            assert_eq!(world.redis.executed, 0);
            world.finish();
            assert!(world.refused.is_empty());
        }
    }
}

/// Who of an MSET is at fault shows when each is asked for alone.
#[test]
fn a_write_that_fails_by_itself_is_told_and_the_others_go_on() {
    let mut world = World::new(0, 0);
    for key in ["a", "bad1", "b", "bad2", "c"] {
        world.step(Step::Write(plain(0, key, "1")));
    }
    world.finish();
    let told: Vec<&[u8]> = world
        .refused
        .iter()
        .map(|write| write.key.as_slice())
        .collect();
    assert_eq!(told, [b"bad1".as_slice(), b"bad2"]);
    assert_eq!(world.redis.executed, 2);
    assert_eq!(world.drain.done().refused_writes, 2);
    assert!(world.drain.refusal().is_none());
}

/// The time up to which all is in Redis is one at which the last number was read, before it was drained.
#[test]
fn what_is_fresh_is_what_was_read_before_it_was_drained() {
    let mut world = World::new(0, 0);
    world.look();
    assert_eq!(world.logs.fresh_ns(), 1, "nothing waits");
    world.step(Step::Write(plain(0, "a", "1")));
    world.step(Step::Look(1_000_000));
    let began = world.now_ns;
    world.step(Step::Write(plain(0, "b", "2")));
    world.now_ns += 500;
    world.look();
    assert_eq!(world.drain.backlog(world.now_ns).records, 2);
    world.step(Step::Reply(usize::MAX));
    assert_eq!((world.logs.drained(), world.logs.fresh_ns()), (1, began));
    world.step(Step::Look(1_000_000));
    world.step(Step::Reply(usize::MAX));
    assert_eq!(world.logs.drained(), 2);
    assert!(world.logs.fresh_ns() > began);
}

#[test]
fn who_waits_is_served_before_the_next_look() {
    let mut world = World::new(0, 0);
    world.step(Step::Write(plain(0, "a", "1")));
    world.step(Step::Look(1_000_000));
    world.step(Step::Reply(usize::MAX));
    world.step(Step::Write(plain(0, "b", "2")));
    world.step(Step::Look(0));
    assert!(world.said.is_empty(), "it is not time");
    world.drain.hurry();
    world.step(Step::Look(0));
    assert!(world.said.has_remaining());
}
