// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What versions have on the disk, and what of the disk they need. The invariants stand in `crash.rs`.

use std::collections::BTreeMap;

use erb_store::control::Request;
use erb_store::message::What;
use erb_store::record::{Record, Seat, decode_record};
use erb_store::shard::{NotWritten, Writer};
use erb_store::{Came, Condition, Held, Key, Needed, Origin, Place, Reading, Refused};
use erb_store::{RollBack, Target, Version};

use crate::crash::{Asked, Done, KEYS, World, name_of};
use crate::judge::{Judgement, key_of, same};

/// Reads that are under way at once.
const READS_MAX: usize = 4;
/// Steps within which a store must answer that is left alone. Several requests wait in a row, each for writes that are
/// under way, and a write that the disk is slow with takes 200 steps and more. So the disk is slow with no further one:
/// of 3,600 histories one took 4,000 steps then.
const PATIENCE: u32 = 8_000;

/// A read of a value under way.
pub(crate) struct Read {
    name: Vec<u8>,
    source: Option<u64>,
    reading: Reading,
}

impl World {
    /// Notes where the key's writes lie.
    pub(crate) fn learn(&mut self, name: &[u8]) -> Judgement {
        for held in self.listed(name, Version::MAX)? {
            let Some(address) = held.place.address() else {
                continue;
            };
            let there = self.node.seat(address);
            if held.place.origin() == Origin::Written {
                self.sources.insert(there, held.version.number());
            } else if !self.sources.contains_key(&there) {
                // It was moved, and the version that wrote it is not there any more.
                let bytes = self.bytes_of(held.place)?;
                let record = record_of(&bytes, held.place, there);
                let record = record.map_err(|damage| format!("{name:?} {held:?}: {damage}"))?;
                self.sources.insert(there, record.head.version.number());
            }
        }
        Ok(())
    }

    /// Whether a condition is met by what is there now.
    pub(crate) fn is_met(&mut self, name: &[u8], condition: Condition) -> Result<bool, String> {
        self.learn(name)?;
        let head = self.listed(name, Version::MAX)?.last().copied();
        let clock_us = self.node.store.shared.clock().last().micros();
        let now_ms = self.node.now_us().max(clock_us) / 1000;
        let is_over = |held: &Held| {
            let there = held.place.address().map(|it| self.node.seat(it));
            let source = there.and_then(|it| self.sources.get(&it));
            let expiry_ms = source.and_then(|source| self.expiries.get(source));
            expiry_ms.is_some_and(|at_ms| *at_ms <= now_ms)
        };
        let is_absent = head.is_none_or(|head| head.place.is_deleted() || is_over(&head));
        Ok(match condition {
            Condition::Absent => is_absent,
            Condition::Present => !is_absent,
            _ => true,
        })
    }

    /// What a batch has done: a delete of what was over does nothing.
    pub(crate) fn done_of(
        &mut self,
        parts: &[(Vec<u8>, bool)],
        version: u64,
    ) -> Result<Vec<(Vec<u8>, bool)>, String> {
        let mut done = Vec::new();
        for (name, deleted) in parts {
            self.learn(name)?;
            let listed = self.listed(name, Version::MAX)?;
            let before = listed
                .iter()
                .rev()
                .find(|held| held.version.number() < version);
            let place = before.and_then(|held| held.place.address());
            let source = place.and_then(|it| self.sources.get(&self.node.seat(it)));
            let may_be_over = source.is_some_and(|source| self.expiries.contains_key(source));
            let is_there = listed.iter().any(|held| held.version.number() == version);
            if is_there || !deleted || !may_be_over {
                done.push((name.clone(), *deleted));
            }
        }
        Ok(done)
    }

    /// A part of a shard's keys is swept. What is over gets delete markers.
    pub(crate) fn sweep(&mut self) -> Judgement {
        let at = self.random.usize(..self.node.store.shards.len());
        let names = (0..KEYS).map(name_of);
        let names = names.filter(|name| usize::from(self.node.shard_of(key_of(name))) == at);
        let (mut present, mut swept) = (Vec::new(), Vec::new());
        for name in names.collect::<Vec<_>>() {
            let is_over = !self.is_met(&name, Condition::Present)?;
            let head = self.listed(&name, Version::MAX)?.last().copied();
            present.extend(head.map(|head| (name, head, is_over)));
        }
        let watermark = self.node.watermark();
        self.node.store.shards[at].sweep(watermark);
        for (name, before, is_over) in present {
            let head = self.listed(&name, Version::MAX)?.last().copied();
            let Some(head) = head.filter(|head| head.version != before.version) else {
                continue;
            };
            if !is_over || before.place.is_deleted() || !head.place.is_deleted() {
                return Err(format!("{name:?} was swept from {before:?} to {head:?}"));
            }
            swept.push((head.version, name));
        }
        swept.sort();
        for (version, name) in swept {
            self.given(version)?;
            self.learn(&name)?;
            let done = Done::Write {
                name,
                deleted: true,
            };
            self.pending
                .insert(version.number(), (Some(at as u16), done));
        }
        Ok(())
    }

    fn bytes_of(&mut self, place: Place) -> Result<Vec<u8>, String> {
        let first = place.address().unwrap_or(0) / 512 * 512;
        let bytes = (place.sectors() * 512) as usize;
        let bytes = self.node.disk.read(first as usize, bytes);
        bytes.map_err(|_| "a read has failed".to_string())
    }

    /// Begins to read a durable value.
    pub(crate) fn begin_read(&mut self) -> Judgement {
        let (name, cut) = (
            name_of(self.random.u32(..KEYS)),
            Version::new(self.known_to),
        );
        self.learn(&name)?;
        let listed = self.listed(&name, cut)?;
        let Some(held) = self.random.choice(listed) else {
            return Ok(());
        };
        self.check_value(&name, &held)?;
        if self.check_cached(&name, &held)? {
            return Ok(());
        }
        if self.reads.len() >= READS_MAX {
            return Ok(());
        }
        let address = held.place.address();
        let source = address.map(|it| self.sources.get(&self.node.seat(it)).copied());
        let reading = self.node.shard(key_of(&name)).begin_read(&held);
        self.reads.extend(reading.map(|reading| Read {
            name,
            source: source.flatten(),
            reading,
        }));
        Ok(())
    }

    /// One of the reads ends.
    pub(crate) fn end_read(&mut self) -> Judgement {
        if self.reads.is_empty() {
            return Ok(());
        }
        let at = self.random.usize(..self.reads.len());
        let Read {
            name,
            source,
            reading,
        } = self.reads.swap_remove(at);
        let bytes = self.node.disk.read(reading.address as usize, reading.bytes);
        let bytes = bytes.map_err(|_| "a read has failed")?;
        let shard = self.node.shard(key_of(&name));
        let came = shard.end_read(reading, key_of(&name), Some(&bytes));
        match came {
            Came::Record(record) => self.check_record(&name, source, &record),
            other => Err(format!("{name:?} came to {other:?}")),
        }
    }

    pub(crate) fn check_value(&mut self, name: &[u8], held: &Held) -> Judgement {
        let Some(address) = held.place.address() else {
            return Ok(());
        };
        let bytes = self.bytes_of(held.place)?;
        let there = self.node.seat(address);
        let record = record_of(&bytes, held.place, there);
        let record = record.map_err(|damage| format!("{name:?} {held:?}: {damage}"))?;
        let source = self.sources.get(&there).copied();
        self.check_record(name, source, &record)
    }

    /// What the cache has of a version is what was written; false: it does not have it.
    fn check_cached(&mut self, name: &[u8], held: &Held) -> Result<bool, String> {
        let address = held.place.address();
        let source = address.and_then(|it| self.sources.get(&self.node.seat(it)).copied());
        let shard = self.node.shard(key_of(name));
        let Some(cached) = shard.cached(held) else {
            return Ok(false);
        };
        let found = Some(cached.version.number());
        let (value, expiry_ms) = (cached.value.to_vec(), cached.expiry_ms);
        self.met.cached += 1;
        same("the version of a cached value", &found, &source)?;
        let source = source.unwrap_or_default();
        let wanted_ms = self.expiries.get(&source).copied().unwrap_or(0);
        same("when a cached value expires", &expiry_ms, &wanted_ms)?;
        // Values of batches are not noted.
        if let Some(wanted) = self.values.get(&source) {
            same("a cached value", &&value, &wanted)?;
        }
        Ok(true)
    }

    fn check_record(&self, name: &[u8], source: Option<u64>, record: &Record<'_>) -> Judgement {
        same("the key of a record", &record.key, &key_of(name))?;
        same("its version", &Some(record.head.version.number()), &source)?;
        let wanted = source.and_then(|source| self.values.get(&source));
        match wanted {
            Some(value) if record.head.kind.has_value() => {
                same("a value", &record.value, &&value[..])
            }
            _ => Ok(()),
        }
    }

    /// Segments are free or somebody's, and what shards need of them is what their keys need.
    pub(crate) fn accounts_balance(&mut self) -> Judgement {
        let state = self.node.store.control.state();
        let (all, account) = (state.segments.len(), state.account());
        let sum = account.free + account.logs + account.checkpoints;
        same("caches are bounded", &self.node.caches_are_bounded(), &true)?;
        same("segments", &(sum as usize), &all)?;
        let mut wanted: BTreeMap<(u16, u32), Needed> = BTreeMap::new();
        for number in 0..KEYS {
            let name = name_of(number);
            let shard = self.node.shard_of(key_of(&name));
            let listed = self.listed(&name, Version::MAX)?;
            let mut places: Vec<Place> = listed.iter().map(|it| it.place.as_written()).collect();
            places.sort_by_key(|place| place.address());
            places.dedup();
            for place in places {
                let segment = place.address().map(|it| self.node.segment_of(it));
                if let Some(segment) = segment {
                    let needed = wanted.entry((shard, segment)).or_default();
                    needed.records += 1;
                    needed.sectors += place.sectors() as u32;
                }
            }
        }
        for (shard, store) in (0..).zip(&self.node.store.shards) {
            for segment in 0..all as u32 {
                let found = store.versions().needed(segment);
                let wanted = wanted.get(&(shard, segment)).copied().unwrap_or_default();
                let what = format!("what shard {shard} needs of segment {segment}");
                same(&what, &found, &wanted)?;
            }
        }
        Ok(())
    }

    /// One should have ended by itself.
    fn has_due_snapshot(&self) -> bool {
        let control = &self.node.store.control;
        let (state, run_us) = (control.state(), control.run_us());
        let first = state.endings().next();
        run_us >= state.locked_until_us && first.is_some_and(|(at_us, ..)| at_us <= run_us)
    }

    /// Whoever writes is answered in the end, and a roll back is done.
    pub(crate) fn is_not_stuck(&mut self) -> Judgement {
        // What reads of it hold is not free before they end.
        while !self.reads.is_empty() {
            self.end_read()?;
        }
        self.node.quicken();
        let name = name_of(0);
        let writer = Writer {
            may_use_reserve: true,
            ..Writer::default()
        };
        let row = RollBack {
            id: Version::ZERO,
            namespace: 1,
            prefix: b"no key".to_vec(),
            target: Target::Moment(Version::new(self.known_to)),
            unless_written_since: None,
        };
        let (mut is_written, mut has_asked, mut steps) = (false, false, 0);
        while !is_written || !has_asked || !self.asked.is_empty() || self.has_due_snapshot() {
            steps += 1;
            if self.node.has_failed() {
                return Ok(());
            }
            if steps > PATIENCE {
                let space = self.node.store.shared.space();
                return Err(format!(
                    "it is stuck: written {is_written}, asked {:?}, {space:?}",
                    self.asked
                ));
            }
            if !is_written {
                let key: Key<'_> = key_of(&name);
                let now_us = self.node.now_us();
                let shard = self.node.shard(key);
                let written = shard.write(key, What::Put(b""), Condition::Any, writer, now_us);
                is_written = match written {
                    Ok(erb_store::shard::Written::Version(version)) => {
                        self.written(&name, version, Vec::new())?;
                        true
                    }
                    Err(NotWritten::Refused(Refused::NoSpace | Refused::NoSpaceForLive, _)) => true,
                    _ => false,
                };
            }
            if !has_asked {
                let request = Request::RollBack(row.clone());
                let ticket = self.next_ticket;
                has_asked = self.node.store.control.request(ticket, request);
                if has_asked {
                    self.next_ticket += 1;
                    self.asked.insert(ticket, Asked::RollBack(row.clone()));
                }
            }
            self.node.settle_step();
            self.sweep()?;
            self.node.scrub_fast()?;
            self.advance()?;
        }
        Ok(())
    }
}

fn record_of<'a>(
    bytes: &'a [u8],
    place: Place,
    (address, uses): (u64, u32),
) -> Result<Record<'a>, erb_store::record::Damage> {
    let at = (address - place.address().unwrap_or(0) / 512 * 512) as usize;
    decode_record(&bytes[at..], Seat { address, uses })
}
