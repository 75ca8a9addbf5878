// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes one at a time, or many: each time the next ones wait until all are durable. And roll backs where memory is full.

use erb_sim_disk::{CrashMode, Faults};
use erb_store::control::{Outcome, Request};
use erb_store::layout::Layout;
use erb_store::message::What;
use erb_store::mistake::{Broken, Mistake};
use erb_store::shard::{NotWritten, Shard, Writer, Written};
use erb_store::{Condition, Refused, RollBack, Settings, Target, Version};
use fastrand::Rng;

use crate::node::{Node, SEGMENT_BYTES, layout};
use crate::steady::{PATIENCE, Steady, key};

/// So long that a few batches leave little of one.
const LONG_SEGMENT_BYTES: u64 = 1 << 20;

fn roll_back(prefix: &str, moment: Version, id: Version) -> RollBack {
    RollBack {
        id,
        namespace: 1,
        prefix: prefix.as_bytes().to_vec(),
        target: Target::Moment(moment),
        unless_written_since: None,
    }
}

impl Steady {
    /// A new store of one shard with so many segments of a mebibyte, that keeps this. Perhaps with a mistake.
    ///
    /// # Panics
    /// It cannot be.
    #[must_use]
    pub fn with_long_segments(segments: u64, settings: Settings, mistake: Option<Mistake>) -> Self {
        Self::with_memory(usize::MAX, segments, settings, mistake)
    }

    /// The same with so much memory for its index.
    ///
    /// # Panics
    /// It cannot be.
    #[must_use]
    pub fn with_memory(
        memory_bytes: usize,
        segments: u64,
        settings: Settings,
        mistake: Option<Mistake>,
    ) -> Self {
        let short = layout(1, segments);
        let layout = Layout {
            segment_bytes: LONG_SEGMENT_BYTES,
            store_bytes: short.store_bytes + segments * (LONG_SEGMENT_BYTES - SEGMENT_BYTES),
            ..short
        };
        let (random, faults) = (Rng::with_seed(7), Faults::default());
        let node = Node::format_as(
            random,
            layout,
            memory_bytes,
            settings,
            faults,
            Broken(mistake),
        );
        Self::begun(node.expect("a store can be formatted"))
    }

    /// Puts a value under each of these names, at once, and waits until all that is durable.
    ///
    /// # Errors
    /// One is refused.
    ///
    /// # Panics
    /// One is not answered.
    pub fn put_together(&mut self, names: &[String], value: &[u8]) -> Result<(), Refused> {
        self.write_together(names, What::Put(value))
    }

    /// The same of another change.
    ///
    /// # Errors
    /// One is refused.
    ///
    /// # Panics
    /// One is not answered.
    pub fn write_together(&mut self, names: &[String], what: What<'_>) -> Result<(), Refused> {
        let mut last = Version::ZERO;
        for name in names {
            let mut steps = 0;
            last = loop {
                let now_us = self.node.now_us();
                let shard = self.node.shard(key(name));
                let writer = Writer::default();
                match shard.write(key(name), what, Condition::Any, writer, now_us) {
                    Ok(Written::Version(version) | Written::Absent(version)) => break version,
                    Err(NotWritten::Refused(refused, _)) => return Err(refused),
                    Err(NotWritten::Failed) => panic!("a write has failed"),
                    Err(NotWritten::Busy | NotWritten::Frozen) => self.wait_step(),
                }
                steps += 1;
                assert!(steps < 20 * PATIENCE, "a write is not answered");
            };
        }
        let mut steps = 0;
        while self.watermark() < last {
            self.wait_step();
            steps += 1;
            assert!(steps < PATIENCE, "a write does not become durable");
        }
        Ok(())
    }

    /// How many keys with a prefix a roll back to a moment would change.
    ///
    /// # Errors
    /// It is refused.
    pub fn dry_run(&mut self, prefix: &str, moment: Version) -> Result<u64, Refused> {
        let id = Version::new(self.node.store.shared.clock().last().number() + 1);
        let row = roll_back(prefix, moment, id);
        let (cut, mut count) = (self.watermark(), 0);
        for shard in &mut self.node.store.shards {
            shard.versions().check_roll_back(&row)?;
            let mut from = Some(0);
            while let Some(hash) = from {
                let (changes, next) = shard.versions_mut().would_change(&row, hash, cut);
                count += changes;
                from = next;
            }
        }
        Ok(count)
    }

    /// A roll back is asked for, until a shard counts what it changes.
    ///
    /// # Panics
    /// None does.
    pub fn begin_roll_back(&mut self, prefix: &str, moment: Version) {
        let row = roll_back(prefix, moment, Version::ZERO);
        let request = Request::RollBack(row);
        assert!(self.node.store.control.request(u64::MAX, request));
        let found = (0..PATIENCE).any(|_| {
            self.step();
            self.is_counting()
        });
        assert!(found, "a shard has to count");
    }

    /// It is counted what that would change.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        let mut shards = self.node.store.shards.iter();
        shards.any(Shard::is_counting)
    }

    /// It comes to its end.
    ///
    /// # Errors
    /// It is refused.
    ///
    /// # Panics
    /// It is not answered.
    pub fn end_roll_back(&mut self) -> Outcome {
        for _ in 0..PATIENCE {
            self.node.settle_step();
            if let Some((_, outcome)) = self.node.store.control.take_answer() {
                self.settle();
                return outcome;
            }
        }
        panic!("a roll back is not answered");
    }

    /// The node stops, as it should, and the store is opened again.
    ///
    /// # Panics
    /// It does not stop, or does not open.
    pub fn stop(&mut self) {
        let has_stopped = self.node.stop().expect("no write fails");
        assert!(has_stopped, "it comes to its end");
        self.crash(CrashMode::Process);
    }
}
