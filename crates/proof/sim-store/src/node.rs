// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store on a simulated disk, as an event loop would drive it: messages, writes and recovery in any order.
//!
//! Invariants:
//! 1. From one to another messages keep their order. Everything else comes in any order.
//! 2. Recovery may be cut off anywhere. Nothing is asked of the store before it is open.

use std::collections::BTreeMap;

use erb_sim_disk::{CrashMode, Disk, Faults, WriteId};
use erb_store::control_log::{ControlWrite, ControlWriteOf};
use erb_store::entry::UsedFor;
use erb_store::layout::{Layout, SUPERBLOCKS};
use erb_store::log::WriteOf;
use erb_store::mistake::Broken;
use erb_store::opened::Opened;
use erb_store::opening::{OpenIo, Opening};
use erb_store::shard::{Shard, ShardWriteOf};
use erb_store::superblock::Superblock;
use erb_store::{Key, SCRUB_PERIOD_US, Settings, ShardRead, Version, Wall};
use fastrand::Rng;

use crate::ask::settings;
use crate::rot::Trace;

/// So short that logs have many.
pub(crate) const SEGMENT_BYTES: u64 = 64 << 10;
/// So short that it is left often.
const AREA_BYTES: u64 = 96 << 10;
/// So many that none is used twice.
const SEGMENTS_MANY: u64 = 160;
/// Of each shard, so few that they are collected and used again.
const SEGMENTS_FEW: std::ops::Range<u64> = 11..22;
/// None, some that take few values or many small ones, and one that takes all.
const CACHE_BYTES: [usize; 4] = [0, 4 << 10, 40 << 10, 4 << 20];
const STORE_ID: u64 = 0x5a5a_0102_0304_0506;
/// The wall clock when histories begin.
const WALL_US: u64 = 1_800_000_000_000_000;
/// Most that a wall clock goes back while the node is down.
const BACK_US: u64 = 20_000_000;
/// One of so many reads or writes of a recovery is its last.
const CUT_OFF: u32 = 60;

/// Whose write.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Control(ControlWriteOf),
    Shard(u16, ShardWriteOf),
}

/// What was under way when the node stopped, and may not be what it will be until something is written there.
pub(crate) type Hidden = Vec<(u64, usize)>;

/// A store that runs.
pub(crate) struct Node {
    pub(crate) random: Rng,
    pub(crate) disk: Disk,
    pub(crate) store: Opened<Broken>,
    under_way: BTreeMap<WriteId, (Owner, u64, usize)>,
    /// Batches that were written since the start.
    pub(crate) trace: Trace,
    /// Superblocks do not get to the disk.
    pub(crate) holds_superblocks: bool,
    held: Vec<ControlWrite>,
    /// Messages and writes that were handled.
    done: u64,
    /// Reads for collecting, by shard.
    collecting: BTreeMap<u16, ShardRead>,
    /// Reads for the scrub.
    scrubbing: BTreeMap<u16, ShardRead>,
    wall: Wall,
    wall_us: u64,
    pub(crate) monotonic_us: u64,
    /// What each shard's cache of values has; 0: it has none.
    cache_bytes: usize,
    /// What the index of each shard may have.
    memory_bytes: usize,
    /// What was under way at a crash may be unreadable in the next recovery and readable later.
    pub(crate) hides: bool,
    faults: Faults,
    pub(crate) rules: Broken,
}

pub(crate) fn layout(shards: u16, segments: u64) -> Layout {
    let areas = (256 << 10) + 2 * AREA_BYTES;
    Layout {
        store_bytes: areas + segments * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        area_bytes: AREA_BYTES,
        shards,
    }
}

impl Node {
    /// Formats a store and opens it.
    pub(crate) fn format(
        mut random: Rng,
        shards: u16,
        faults: Faults,
        rules: Broken,
    ) -> Result<Self, String> {
        let segments = match random.u8(..3) {
            0 => SEGMENTS_MANY,
            _ => random.u64(SEGMENTS_FEW) * u64::from(shards),
        };
        let settings = settings(&mut random);
        let mut node = Self::format_with(random, shards, segments, settings, faults, rules)?;
        let cache_bytes = node.random.choice(CACHE_BYTES).unwrap_or(0);
        node.set_value_cache(cache_bytes);
        Ok(node)
    }

    /// The same with so many segments, and what it keeps.
    pub(crate) fn format_with(
        random: Rng,
        shards: u16,
        segments: u64,
        settings: Settings,
        faults: Faults,
        rules: Broken,
    ) -> Result<Self, String> {
        let layout = layout(shards, segments);
        Self::format_as(random, layout, usize::MAX, settings, faults, rules)
    }

    /// The same with this layout, and with so much memory for the index of each shard.
    pub(crate) fn format_as(
        mut random: Rng,
        layout: Layout,
        memory_bytes: usize,
        settings: Settings,
        faults: Faults,
        rules: Broken,
    ) -> Result<Self, String> {
        layout.check().map_err(|error| error.to_string())?;
        let mut disk = Disk::new(layout.store_bytes as usize, random.u64(..));
        let block = Superblock::format(layout, STORE_ID, [7, 8]).keeping(settings);
        for copy in 0..SUPERBLOCKS {
            disk.write(Layout::superblock_at(copy) as usize, block.encode(copy));
            let ended = disk.complete_one();
            assert!(ended.is_some_and(|(_, ended)| ended.is_ok()));
        }
        let (mut monotonic_us, mut wall_us) = (0, WALL_US);
        let store = open(
            &mut random,
            &mut disk,
            Hidden::new(),
            (&mut monotonic_us, &mut wall_us),
            memory_bytes,
            (faults, rules),
        )?;
        let wall = wall(&store, wall_us, monotonic_us)?;
        Ok(Self {
            random,
            disk,
            store,
            under_way: BTreeMap::new(),
            trace: Trace::default(),
            holds_superblocks: false,
            held: Vec::new(),
            done: 0,
            collecting: BTreeMap::new(),
            scrubbing: BTreeMap::new(),
            wall,
            wall_us,
            monotonic_us,
            cache_bytes: 0,
            memory_bytes,
            hides: true,
            faults,
            rules,
        })
    }

    /// Each shard keeps values of so many bytes in memory.
    pub(crate) fn set_value_cache(&mut self, cache_bytes: usize) {
        self.cache_bytes = cache_bytes;
        let shards = self.store.shards.iter_mut();
        shards.for_each(|shard| shard.set_value_cache(cache_bytes));
    }

    /// Whether caches are within what they may have.
    pub(crate) fn caches_are_bounded(&self) -> bool {
        let mut shards = self.store.shards.iter();
        shards.all(|shard| shard.value_cache().bytes <= self.cache_bytes as u64)
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.wall.now_us()
    }

    /// The shard of a key.
    pub(crate) fn shard_of(&self, key: Key<'_>) -> u16 {
        self.store.shard_of(key)
    }

    pub(crate) fn shard(&mut self, key: Key<'_>) -> &mut Shard<Broken> {
        let number = self.shard_of(key);
        &mut self.store.shards[usize::from(number)]
    }

    /// To look at.
    pub(crate) fn shard_there(&self, key: Key<'_>) -> &Shard<Broken> {
        &self.store.shards[usize::from(self.shard_of(key))]
    }

    pub(crate) fn watermark(&self) -> Version {
        self.store.shared.watermark()
    }

    /// Time passes.
    pub(crate) fn tick(&mut self) {
        let passed_us = self.random.u64(..400_000);
        self.pass(passed_us);
    }

    /// So many microseconds pass.
    pub(crate) fn pass(&mut self, passed_us: u64) {
        self.monotonic_us += passed_us;
        self.wall_us += passed_us;
        self.wall.tick(self.wall_us, self.monotonic_us);
        let (wall, monotonic_us) = (self.wall, self.monotonic_us);
        self.store.control.tick(&wall, monotonic_us, Version::MAX);
    }

    /// One message arrives.
    pub(crate) fn deliver(&mut self) {
        if self.random.bool() {
            if let Some((shard, message)) = self.store.control.take_message() {
                self.done += 1;
                self.store.shards[usize::from(shard)].message(message);
            }
            return;
        }
        let at = self.random.usize(..self.store.shards.len());
        if let Some(message) = self.store.shards[at].take_message() {
            self.done += 1;
            self.store.control.message(at as u16, message);
        }
    }

    /// One write begins.
    pub(crate) fn begin_write(&mut self) {
        let at = self.random.usize(..=self.store.shards.len());
        let begun = match self.store.shards.get_mut(at) {
            Some(shard) => {
                let retention_us = self.store.control.run_us();
                let write = shard.take_write(retention_us);
                write.map(|it| (Owner::Shard(at as u16, it.of), it.address, it.bytes))
            }
            None => {
                let write = self.control_write();
                write.map(|it| (Owner::Control(it.of), it.address, it.bytes))
            }
        };
        if let Some((owner, address, bytes)) = begun {
            self.done += 1;
            let length = bytes.len();
            if let Owner::Shard(at, ShardWriteOf::Log(WriteOf::Batch(lsn))) = owner {
                self.trace.begun(at, lsn, address, &bytes);
            }
            let id = self.disk.write(address as usize, bytes);
            self.under_way.insert(id, (owner, address, length));
        }
    }

    /// What the control log writes next, as far as it gets to the disk.
    fn control_write(&mut self) -> Option<ControlWrite> {
        if !self.holds_superblocks && !self.held.is_empty() {
            return self.held.pop();
        }
        let write = self.store.control.take_write()?;
        if self.holds_superblocks && write.of == ControlWriteOf::Superblock {
            self.held.push(write);
            return None;
        }
        Some(write)
    }

    /// One write ends.
    pub(crate) fn end_write(&mut self) {
        let Some((id, ended)) = self.disk.complete_one() else {
            return;
        };
        match self.under_way.remove(&id) {
            Some((Owner::Shard(at, of), ..)) => {
                if let (ShardWriteOf::Log(WriteOf::Batch(lsn)), true) = (of, ended.is_ok()) {
                    self.trace.ended(at, lsn);
                }
                self.store.shards[usize::from(at)].written(of, ended.is_ok());
            }
            Some((Owner::Control(of), ..)) => self.store.control.written(of, ended.is_ok()),
            None => unreachable!("every write has an owner"),
        }
    }

    /// A read for collecting begins or ends.
    pub(crate) fn collect(&mut self) {
        let at = self.random.u16(..self.store.layout().shards);
        let watermark = self.watermark();
        let shard = &mut self.store.shards[usize::from(at)];
        match self.collecting.remove(&at) {
            Some(read) => {
                let bytes = self.disk.read(read.address as usize, read.bytes);
                shard.read_done(bytes.ok().as_deref(), watermark);
            }
            None => {
                let read = shard.take_read();
                self.collecting.extend(read.map(|read| (at, read)));
            }
        }
    }

    /// A read for the scrub begins or ends, by a clock on which this shard has run so long.
    pub(crate) fn scrub(&mut self, at: u16, run_us: u64) -> Option<ShardRead> {
        let shard = &mut self.store.shards[usize::from(at)];
        if let Some(read) = self.scrubbing.remove(&at) {
            let bytes = self.disk.read(read.address as usize, read.bytes);
            shard.scrub_done(bytes.ok().as_deref());
        }
        let read = shard.take_scrub(run_us);
        self.scrubbing.extend(read.map(|read| (at, read)));
        read
    }

    /// The same on a clock that is so fast that a history has several periods. Nothing that was written has rotted.
    pub(crate) fn scrub_fast(&mut self) -> Result<(), String> {
        let at = self.random.u16(..self.store.layout().shards);
        let run_us = self.store.control.run_us() * (SCRUB_PERIOD_US / 10_000_000);
        self.scrub(at, run_us);
        let shard = &self.store.shards[usize::from(at)];
        match shard.rotten().next() {
            Some(rot) => Err(format!("scrub has found {rot:?}")),
            None => Ok(()),
        }
    }

    /// The disk takes no longer with some writes than with others, until the next start.
    pub(crate) fn quicken(&mut self) {
        self.disk.set_faults(Faults {
            writes_slow: 0,
            reads_fail: 0,
            ..self.faults
        });
    }

    /// Everything that goes on by itself goes on.
    pub(crate) fn settle_step(&mut self) {
        match self.random.u8(..16) {
            0..5 => self.deliver(),
            5..9 => self.begin_write(),
            9..13 => self.end_write(),
            13..15 => self.collect(),
            _ => self.tick(),
        }
    }

    /// The segment of an address.
    pub(crate) fn segment_of(&self, address: u64) -> u32 {
        let segment = self.store.layout().segment_of(address);
        segment.expect("places lie in segments")
    }

    /// An address in the present use of its segment.
    pub(crate) fn seat(&self, address: u64) -> (u64, u32) {
        let state = self.store.control.state();
        let segment = self.segment_of(address) as usize;
        (address, state.segments[segment].uses)
    }

    /// A write has failed: the node has to open its store again.
    pub(crate) fn has_failed(&self) -> bool {
        self.store.has_failed()
    }

    /// What changes when anything is done.
    pub(crate) fn progress(&self) -> (u64, usize, usize) {
        (self.done, self.under_way.len(), self.collecting.len())
    }

    /// Nothing that was under way ends any more.
    pub(crate) fn halt(&mut self, mode: CrashMode) {
        self.under_way.clear();
        self.held.clear();
        self.holds_superblocks = false;
        self.collecting.clear();
        self.scrubbing.clear();
        self.disk.crash(mode);
    }

    /// The same without damage, and without a clock that goes back.
    pub(crate) fn crash_sound(&mut self, mode: CrashMode) -> Result<(), String> {
        self.halt(mode);
        self.open_again(Hidden::new())
    }

    /// Process or machine stop, and the store is opened again. What is damaged by then is what can be lost.
    pub(crate) fn crash(&mut self, mode: CrashMode) -> Result<(), String> {
        let mut hidden = Hidden::new();
        if self.hides && self.random.u8(..4) == 0 {
            let unknown = self.under_way.values();
            hidden = unknown
                .map(|(_, address, bytes)| (*address, *bytes))
                .collect();
        }
        self.halt(mode);
        self.rot();
        self.wall_us -= self.random.u64(..BACK_US);
        self.open_again(hidden)
    }

    pub(crate) fn open_again(&mut self, hidden: Hidden) -> Result<(), String> {
        let store = open(
            &mut self.random,
            &mut self.disk,
            hidden,
            (&mut self.monotonic_us, &mut self.wall_us),
            self.memory_bytes,
            (self.faults, self.rules),
        )?;
        self.go_on(store)
    }

    /// It was opened again.
    pub(crate) fn go_on(&mut self, store: Opened<Broken>) -> Result<(), String> {
        self.wall = wall(&store, self.wall_us, self.monotonic_us)?;
        self.store = store;
        self.set_value_cache(self.cache_bytes);
        Ok(())
    }

    /// Damages what the store must do without: a superblock, the newer of two checkpoints, a directory.
    fn rot(&mut self) {
        let (state, layout) = (self.store.control.state(), self.store.layout());
        // Whether the sector may be unreadable. In a segment it would stay so until it is written, and an open log with
        // such a sector does not open: its end may lie there.
        let mut places: Vec<(u64, bool)> = Vec::new();
        if self.random.u8(..6) == 0 {
            places.push((
                Layout::superblock_at(self.random.usize(..SUPERBLOCKS)),
                true,
            ));
        }
        for (shard, all) in (0..).zip(&state.checkpoints) {
            if let ([_, newest], 0) = (&all[..], self.random.u8(..4)) {
                let segments = state.checkpoint_segments(&layout, shard, newest.number);
                places.extend(
                    segments
                        .first()
                        .map(|segment| (segment.seat.address, false)),
                );
            }
        }
        for (number, segment) in (0..).zip(&state.segments) {
            if let UsedFor::Log { end: Some(end), .. } = segment.used_for {
                if end.directory.is_some() && self.random.u8(..8) == 0 {
                    places.push((layout.segment_at(number) + end.bytes, false));
                }
            }
        }
        for (place, may_be_unreadable) in places {
            let at = place as usize + self.random.usize(..20);
            match self.random.u8(..3) {
                0 if may_be_unreadable => self.disk.set_unreadable(at),
                _ => self.disk.rot(at, 1 << self.random.u8(..8)),
            }
        }
    }
}

fn wall(store: &Opened<Broken>, wall_us: u64, monotonic_us: u64) -> Result<Wall, String> {
    let wall = store.wall(wall_us, monotonic_us, false);
    wall.map_err(|doubt| doubt.to_string())
}

/// Opens a store, with crashes in between.
fn open(
    random: &mut Rng,
    disk: &mut Disk,
    mut hidden: Hidden,
    (monotonic_us, wall_us): (&mut u64, &mut u64),
    memory_bytes: usize,
    (faults, rules): (Faults, Broken),
) -> Result<Opened<Broken>, String> {
    let mut faults = faults;
    loop {
        disk.set_faults(faults);
        let opening = Opening::new(memory_bytes, rules);
        match open_once(random, disk, &mut hidden, *monotonic_us, opening, false) {
            Ok(Some(store)) => {
                disk.set_faults(Faults {
                    reads_fail: 0,
                    ..faults
                });
                return Ok(store);
            }
            Ok(None) => disk.crash(CrashMode::Power),
            Err(error) if faults.reads_fail == 0 && faults.flushes_fail == 0 => {
                return Err(format!("the store does not open: {error}"));
            }
            Err(_) => {
                // It may be right to give up then: once more, on a device that works.
                disk.crash(CrashMode::Power);
                (faults.reads_fail, faults.flushes_fail) = (0, 0);
            }
        }
        *wall_us += 1000;
        *monotonic_us += 1000;
    }
}

/// None: it was cut off.
pub(crate) fn open_once(
    random: &mut Rng,
    disk: &mut Disk,
    hidden: &mut Hidden,
    monotonic_us: u64,
    mut opening: Opening<Broken>,
    is_repairing: bool,
) -> Result<Option<Opened<Broken>>, String> {
    if is_repairing {
        opening = opening.repairing();
    }
    let said = |error: erb_store::opening::OpenError| error.to_string();
    while let Some(io) = opening.io().map_err(said)? {
        if !is_repairing && random.u32(..CUT_OFF) == 0 {
            return Ok(None);
        }
        match io {
            OpenIo::Flush => {
                let flushed = disk.flush();
                let nothing: &[u8] = &[];
                opening.done(flushed.ok().map(|()| nothing)).map_err(said)?;
            }
            OpenIo::Read { address, bytes } => {
                let mut read = disk.read(address as usize, bytes).ok();
                if let Some(read) = &mut read {
                    hide(read, address, hidden);
                }
                opening.done(read.as_deref()).map_err(said)?;
            }
        }
    }
    let mut store = opening.finish(monotonic_us).map_err(said)?;
    let mut under_way = BTreeMap::new();
    while !store.shared.is_open() {
        let is_cut_off = !is_repairing && random.u32(..CUT_OFF) == 0;
        if is_cut_off || store.control.failed().is_some() {
            return Ok(None);
        }
        if let Some(write) = store.control.take_write() {
            let (begin, end) = (write.address, write.address + write.bytes.len() as u64);
            hidden.retain(|(address, bytes)| end <= *address || begin >= address + *bytes as u64);
            let id = disk.write(write.address as usize, write.bytes);
            under_way.insert(id, write.of);
        }
        if random.bool() {
            if let Some((id, ended)) = disk.complete_one() {
                let of = under_way.remove(&id).ok_or("an unknown write")?;
                store.control.written(of, ended.is_ok());
            }
        }
    }
    // What is still under way ends before anything else begins.
    while disk.in_flight() > 0 {
        if let Some((id, ended)) = disk.complete_one() {
            let of = under_way.remove(&id).ok_or("an unknown write")?;
            store.control.written(of, ended.is_ok());
        }
    }
    Ok(Some(store))
}

/// A write that nobody was told of may be unreadable in one recovery and readable in the next.
fn hide(read: &mut [u8], address: u64, hidden: &[(u64, usize)]) {
    for (place, length) in hidden {
        let Some(at) = place.checked_sub(address) else {
            continue;
        };
        if let Some(bytes) = read.get_mut(at as usize..) {
            let end = (*length).min(bytes.len());
            bytes[..end].fill(0);
        }
    }
}
