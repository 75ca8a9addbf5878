// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store on which one thing is done after the other, each to its end: for tests of one thing.

use std::collections::BTreeMap;

use erb_sim_disk::{CrashMode, Faults};
use erb_store::control::{Outcome, Request};
use erb_store::message::{Part, PartWhat, What};
use erb_store::mistake::{Broken, Mistake};
use erb_store::shard::{NotWritten, Shard, Writer, Written};
use erb_store::space::{Account, Space};
use erb_store::{
    Came, Condition, Held, Key, Reading, Refused, RollBack, Rot, SCRUB_PERIOD_US, Scrubbed,
    Selector, Settings, Target, Version,
};
use fastrand::Rng;

use crate::node::Node;

/// Steps after which everything must have come to its end.
pub(crate) const PATIENCE: u32 = 20_000;
/// Steps without anything to do after which nothing is to be done.
const QUIET: u32 = 200;

/// The store.
pub struct Steady {
    pub(crate) node: Node,
    next_ticket: u64,
    /// The scrub's clock.
    scrub_us: u64,
}

/// The key with this name.
#[must_use]
pub fn key(name: &str) -> Key<'_> {
    Key {
        namespace: 1,
        bytes: name.as_bytes(),
    }
}

impl Steady {
    /// A new store with so many segments of 64 KiB, that keeps this.
    ///
    /// # Panics
    /// It cannot be.
    #[must_use]
    pub fn new(shards: u16, segments: u64, settings: Settings) -> Self {
        Self::with_mistake(shards, segments, settings, None)
    }

    /// The same with a mistake.
    ///
    /// # Panics
    /// It cannot be.
    #[must_use]
    pub fn with_mistake(
        shards: u16,
        segments: u64,
        settings: Settings,
        mistake: Option<Mistake>,
    ) -> Self {
        Self::made(7, (shards, segments), settings, Broken(mistake))
    }

    /// The same, in which what is under way comes to its end in another order. Perhaps with a mistake.
    ///
    /// # Panics
    /// It cannot be.
    #[must_use]
    pub fn seeded(
        seed: u64,
        shards: u16,
        segments: u64,
        settings: Settings,
        mistake: Option<Mistake>,
    ) -> Self {
        Self::made(seed, (shards, segments), settings, Broken(mistake))
    }

    fn made(seed: u64, (shards, segments): (u16, u64), settings: Settings, rules: Broken) -> Self {
        let (random, faults) = (Rng::with_seed(seed), Faults::default());
        let node = Node::format_with(random, shards, segments, settings, faults, rules);
        Self::begun(node.expect("a store can be formatted"))
    }

    pub(crate) fn begun(node: Node) -> Self {
        let mut steady = Self {
            node,
            next_ticket: 1,
            scrub_us: 1,
        };
        steady.pass(1_000_000);
        steady
    }

    /// So many microseconds pass.
    pub fn pass(&mut self, passed_us: u64) {
        self.node.pass(passed_us);
        self.settle();
    }

    /// Everything under way comes to its end.
    ///
    /// # Panics
    /// It does not.
    pub fn settle(&mut self) {
        let (mut quiet, mut steps) = (0, 0);
        while quiet < QUIET {
            steps += 1;
            assert!(steps < PATIENCE, "it does not come to its end");
            let before = self.node.progress();
            self.node.deliver();
            self.node.begin_write();
            self.node.end_write();
            self.node.collect();
            quiet = if self.node.progress() == before {
                quiet + 1
            } else {
                0
            };
        }
    }

    /// Writes, as this writer, until that is answered.
    ///
    /// # Errors
    /// It is refused.
    ///
    /// # Panics
    /// It is not answered.
    pub fn write_as(
        &mut self,
        name: &str,
        what: What<'_>,
        may_use_reserve: bool,
    ) -> Result<Option<Version>, Refused> {
        let writer = Writer {
            may_use_reserve,
            ..Writer::default()
        };
        self.write(name, what, Condition::Any, writer)
    }

    fn write(
        &mut self,
        name: &str,
        what: What<'_>,
        condition: Condition,
        writer: Writer,
    ) -> Result<Option<Version>, Refused> {
        for _ in 0..PATIENCE {
            let now_us = self.node.now_us();
            let shard = self.node.shard(key(name));
            let written = shard.write(key(name), what, condition, writer, now_us);
            match written {
                Ok(Written::Version(version)) => {
                    self.settle();
                    assert!(self.node.watermark() >= version);
                    return Ok(Some(version));
                }
                Ok(Written::Absent(_)) => return Ok(None),
                Err(NotWritten::Refused(refused, _)) => return Err(refused),
                Err(NotWritten::Failed) => panic!("a write has failed"),
                Err(NotWritten::Busy | NotWritten::Frozen) => self.wait_step(),
            }
        }
        panic!("a write is not answered");
    }

    /// Puts a value.
    ///
    /// # Errors
    /// It is refused.
    ///
    /// # Panics
    /// It made no version.
    pub fn put(&mut self, name: &str, value: &[u8]) -> Result<Version, Refused> {
        let put = self.write_as(name, What::Put(value), false)?;
        Ok(put.expect("a put makes a version"))
    }

    /// Puts a value on a condition.
    ///
    /// # Errors
    /// It is refused.
    pub fn put_if(
        &mut self,
        name: &str,
        value: &[u8],
        condition: Condition,
    ) -> Result<Option<Version>, Refused> {
        self.write(name, What::Put(value), condition, Writer::default())
    }

    /// Puts a value that is over at this time.
    ///
    /// # Panics
    /// It is refused.
    pub fn put_expiring(&mut self, name: &str, value: &[u8], expiry_ms: u64) -> Version {
        let writer = Writer {
            expiry_ms,
            ..Writer::default()
        };
        let put = self.write(name, What::Put(value), Condition::Any, writer);
        put.expect("there is room").expect("a put makes a version")
    }

    /// When a key's head is over.
    ///
    /// # Panics
    /// There is none.
    pub fn expiry_ms(&mut self, name: &str) -> u64 {
        let held = self.look_up(name, Selector::Head);
        let held = held.expect("the key is there").expect("it has a head");
        self.node.shard_there(key(name)).versions().expiry_ms(&held)
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.node.now_us() / 1000
    }

    /// A write that nobody waits for: it is not durable.
    pub fn put_unwaited(&mut self, name: &str, value: &[u8]) {
        let written = self.put_if_unwaited(name, value, Condition::Any);
        assert!(written.is_ok(), "{written:?}");
    }

    /// The same on a condition.
    ///
    /// # Errors
    /// It is refused, which may not be said yet.
    pub fn put_if_unwaited(
        &mut self,
        name: &str,
        value: &[u8],
        condition: Condition,
    ) -> Result<Written, NotWritten> {
        let now_us = self.node.now_us();
        let shard = self.node.shard(key(name));
        let writer = Writer::default();
        shard.write(key(name), What::Put(value), condition, writer, now_us)
    }

    /// A message arrives, a write begins, one ends: any of them, if there is one.
    pub fn step(&mut self) {
        self.node.deliver();
        self.node.begin_write();
        self.node.end_write();
    }

    /// The version up to which everything is durable.
    #[must_use]
    pub fn watermark(&self) -> Version {
        self.node.watermark()
    }

    /// The shard of a key.
    #[must_use]
    pub fn shard_of(&self, name: &str) -> u16 {
        self.node.shard_of(key(name))
    }

    /// Asks for something that concerns all shards, and waits for the answer.
    ///
    /// # Errors
    /// It is refused.
    ///
    /// # Panics
    /// It is not answered.
    pub fn request(&mut self, request: Request) -> Outcome {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        assert!(self.node.store.control.request(ticket, request));
        for _ in 0..PATIENCE {
            self.node.settle_step();
            if let Some((answered, outcome)) = self.node.store.control.take_answer() {
                assert_eq!(answered, ticket);
                self.settle();
                return outcome;
            }
        }
        let failed = self.node.store.control.failed();
        panic!("a request is not answered: {failed:?}");
    }

    /// What is kept.
    #[must_use]
    pub fn kept(&self) -> Settings {
        self.node.store.control.state().settings()
    }

    /// How many snapshots hold a moment.
    #[must_use]
    pub fn holding(&self, moment: Version) -> usize {
        let mut counts = self.node.store.control.state().retention.counts();
        counts
            .find(|it| it.0 == moment)
            .map_or(0, |it| it.1 as usize)
    }

    /// Rolls all keys with a prefix back to a moment.
    ///
    /// # Errors
    /// It is refused.
    pub fn roll_back(&mut self, prefix: &str, moment: Version) -> Outcome {
        self.request(Request::RollBack(RollBack {
            id: Version::ZERO,
            namespace: 1,
            prefix: prefix.as_bytes().to_vec(),
            target: Target::Moment(moment),
            unless_written_since: None,
        }))
    }

    /// Sweeps every key once, with this as the lowest cut in flight.
    pub fn sweep(&mut self, below: Version) {
        for at in 0..self.node.store.shards.len() {
            self.node.store.shards[at].sweep(below);
            self.settle();
        }
    }

    /// Two checkpoints of every shard: what is unneeded becomes free.
    ///
    /// # Panics
    /// They are refused.
    pub fn checkpoints(&mut self) {
        for _ in 0..2 {
            assert!(self.request(Request::Checkpoint).is_ok());
            self.settle();
        }
    }

    /// What a version of a key is; none: it was not there.
    ///
    /// # Errors
    /// It is refused.
    pub fn look_up(&mut self, name: &str, selector: Selector) -> Result<Option<Held>, Refused> {
        let cut = self.node.watermark();
        self.node.shard(key(name)).read(key(name), selector, cut)
    }

    /// Its value, from the disk; none: it has none.
    ///
    /// # Panics
    /// It is refused, or damaged.
    pub fn value(&mut self, name: &str, selector: Selector) -> Option<Vec<u8>> {
        let held = self.look_up(name, selector);
        let held = held.expect("the version is there")?;
        if held.place.is_deleted() {
            return None;
        }
        if let Some(cached) = self.node.shard(key(name)).cached(&held) {
            return Some(cached.value.to_vec());
        }
        let reading = self.node.shard(key(name)).begin_read(&held)?;
        let value = self.end(name, reading);
        Some(value.expect("what is read is right"))
    }

    /// Keeps values of so many bytes in memory, for each shard.
    pub fn set_value_cache(&mut self, cache_bytes: usize) {
        self.node.set_value_cache(cache_bytes);
    }

    /// What the caches of values have done: values, hits, misses.
    #[must_use]
    pub fn value_cache(&self) -> (u64, u64, u64) {
        let all = self.node.store.shards.iter().map(Shard::value_cache);
        all.fold((0, 0, 0), |sum, it| {
            (sum.0 + it.values, sum.1 + it.hits, sum.2 + it.misses)
        })
    }

    /// Begins to read a key's head.
    ///
    /// # Panics
    /// There is nothing.
    pub fn begin(&mut self, name: &str) -> Reading {
        let held = self.look_up(name, Selector::Head);
        let held = held.expect("the key is there").expect("it has a head");
        let reading = self.node.shard(key(name)).begin_read(&held);
        reading.expect("it has a record")
    }

    /// Ends to read it; none: it is not what it was.
    pub fn end(&mut self, name: &str, reading: Reading) -> Option<Vec<u8>> {
        let bytes = self.node.disk.read(reading.address as usize, reading.bytes);
        let shard = self.node.shard(key(name));
        match shard.end_read(reading, key(name), bytes.ok().as_deref()) {
            Came::Record(record) => Some(record.value.to_vec()),
            Came::Again(reading) => self.end(name, reading),
            Came::Damaged => None,
        }
    }

    /// Whether a key's head cannot be read.
    pub fn is_damaged(&mut self, name: &str) -> bool {
        let reading = self.begin(name);
        self.end(name, reading).is_none()
    }

    /// Scrubs everything once, and says what is rotten: addresses with keys.
    ///
    /// # Panics
    /// It does not come to its end.
    pub fn scrub(&mut self) -> Vec<Rot> {
        let before: Vec<u64> = self.scrubbed().map(|it| it.segments).collect();
        for at in 0..self.node.store.layout().shards {
            for run_us in [0, SCRUB_PERIOD_US] {
                for _ in 0..PATIENCE {
                    self.node.scrub(at, self.scrub_us + run_us);
                }
            }
        }
        self.scrub_us += SCRUB_PERIOD_US;
        let mut after = self.scrubbed().zip(before);
        assert!(
            after.all(|(now, before)| now.segments > before),
            "all shards have some"
        );
        let shards = self.node.store.shards.iter();
        shards.flat_map(|shard| shard.rotten().cloned()).collect()
    }

    fn scrubbed(&self) -> impl Iterator<Item = Scrubbed> + '_ {
        self.node.store.shards.iter().map(Shard::scrubbed)
    }

    /// A piece of the scrub is handed in and the next one begun, so many periods on: where that lies.
    pub fn scrub_step(&mut self, periods: u64) -> Option<u64> {
        let run_us = self.scrub_us + periods * SCRUB_PERIOD_US;
        self.node.scrub(0, run_us).map(|read| read.address)
    }

    /// What lies there cannot be read.
    pub fn set_unreadable(&mut self, address: u64) {
        self.node.disk.set_unreadable(address as usize);
    }

    /// A bit of the disk turns over.
    pub fn rot(&mut self, address: u64) {
        self.node.disk.rot(address as usize, 1);
    }

    /// A bit of each shard's newest checkpoint turns over.
    pub fn rot_newest_checkpoint(&mut self) {
        let (state, layout) = (self.node.store.control.state(), self.node.store.layout());
        let mut places = Vec::new();
        for (shard, all) in (0..).zip(&state.checkpoints) {
            let segments = all
                .last()
                .map(|newest| state.checkpoint_segments(&layout, shard, newest.number));
            let first = segments.and_then(|all| all.first().copied());
            places.extend(first.map(|segment| segment.seat.address));
        }
        assert!(!places.is_empty(), "there are checkpoints");
        places.into_iter().for_each(|at| self.rot(at + 9));
    }

    /// Sweeps every key once, and nothing becomes durable.
    pub fn sweep_unsettled(&mut self) {
        for shard in &mut self.node.store.shards {
            shard.sweep(Version::MAX);
        }
    }

    /// The process or the machine stops, and the store is opened again.
    ///
    /// # Panics
    /// It does not open.
    pub fn crash(&mut self, mode: CrashMode) {
        self.node.crash_sound(mode).expect("the store opens");
        self.pass(1_000_000);
    }

    /// The machine stops, the store gets so many segments more, and is opened again. The machine stops once more behind
    /// so many writes of the growth. True: that was behind its end.
    ///
    /// # Panics
    /// It does not open.
    pub fn grow(&mut self, segments: u64, cut_off: u32) -> bool {
        let is_over = self.node.grow(segments, Some(cut_off));
        let is_over = is_over.expect("the store opens");
        self.pass(1_000_000);
        is_over
    }

    /// The store begins to get so many segments more while it runs. False: it grows already.
    pub fn grow_running(&mut self, segments: u64) -> bool {
        self.node.grow_running(segments)
    }

    /// From now on superblocks get to the disk, or do not. The next start brings them there again.
    pub fn hold_superblocks(&mut self, holds: bool) {
        self.node.holds_superblocks = holds;
    }

    /// The same as [`crash`](Self::crash), where it may not open.
    ///
    /// # Errors
    /// It does not.
    pub fn try_crash(&mut self, mode: CrashMode) -> Result<(), String> {
        self.node.crash_sound(mode)
    }

    /// Gives keys a value, all or none.
    ///
    /// # Errors
    /// It is refused.
    pub fn batch(&mut self, names: &[&str], value: &[u8]) -> Outcome {
        let mut by_shard: BTreeMap<u16, Vec<Part>> = BTreeMap::new();
        for name in names {
            let shard = self.node.shard_of(key(name));
            by_shard.entry(shard).or_default().push(Part {
                namespace: key(name).namespace,
                key: name.as_bytes().to_vec(),
                what: PartWhat::Put(value.to_vec()),
                condition: Condition::Any,
                writer: 0,
                expiry_ms: 0,
                may_use_reserve: false,
            });
        }
        self.request(Request::Batch(by_shard.into_iter().collect()))
    }

    /// Batches over shards that the control log still has.
    #[must_use]
    pub fn commits(&self) -> usize {
        self.node.store.control.state().commits.len()
    }

    /// How much is free.
    #[must_use]
    pub fn space(&self) -> Space {
        self.node.store.shared.space()
    }

    /// What segments are for.
    #[must_use]
    pub fn account(&self) -> Account {
        self.node.store.control.state().account()
    }

    /// How often the segment of an address was used.
    #[must_use]
    pub fn uses(&self, address: u64) -> u32 {
        self.node.seat(address).1
    }

    /// Bytes that collecting has copied since the start.
    #[must_use]
    pub fn copied(&self) -> u64 {
        let shards = self.node.store.shards.iter();
        shards.map(|shard| shard.collected().0).sum()
    }
}
