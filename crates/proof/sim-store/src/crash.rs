// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine and its log on a simulated disk, with crashes.
//!
//! Invariants that it checks:
//! 1. What was acknowledged is there after every crash; what is there is a beginning of what was done.
//! 2. After recovery each key has what the oracle has of that beginning, and a crash right behind changes nothing.
//! 3. A read at the watermark sees nothing that a crash takes back.
//! 4. No end of a log is taken for damage.
//!
//! The control log is not there yet: rows, segments, ends and retention are durable at once.

use std::collections::{BTreeMap, HashMap};

use erb_sim_disk::{CrashMode, Disk, WriteId};
use erb_store::log::{Log, Segment, Start};
use erb_store::mistake::{Broken, Mistake};
use erb_store::record::{Change, Kind, Seat, encode_trimmed, record_bytes};
use erb_store::scan::{End, Scan, Scanned};
use erb_store::{
    Condition, Held, KeyHasher, Origin, Place, Retention, RollBack, Selector, Target, Version,
    Versions,
};
use fastrand::Rng;

use crate::judge::{Judgement, key_of, same};
use crate::oracle::{self, NEVER, Oracle};

const DISK_BYTES: usize = 16 << 20;
/// So short that logs have many.
const SEGMENT_BYTES: u64 = 32 << 10;
const KEYS: u32 = 6;
const VALUE_BYTES_MAX: usize = 9000;
const STORE_ID: u64 = 0x5a5a_0102_0304_0506;

const START: Start = Start {
    shard: 3,
    store_id: STORE_ID,
    incarnation: 1,
    lsn: 1,
    crc_before: 0,
};

/// What was done, in its order.
enum Done {
    Write {
        name: Vec<u8>,
        version: u64,
        deleted: bool,
    },
    Restore {
        name: Vec<u8>,
        version: u64,
        from: u64,
    },
    Trim {
        name: Vec<u8>,
        versions: Vec<u64>,
    },
    RollBack(oracle::RollBack),
}

/// When a history ends.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Steps of it.
    pub steps: u32,
    /// A loss of power at this step, before all others that chance brings; none: chance alone.
    pub crash_at: Option<u32>,
    /// Writes of a million that fail.
    pub fails_per_million: u32,
}

struct World {
    random: Rng,
    mistake: Option<Mistake>,
    disk: Disk,
    engine: Versions<Broken>,
    log: Log<Broken>,
    under_way: BTreeMap<WriteId, (u64, u64, usize)>,
    newest: u64,
    /// What was done, with its batch.
    done: Vec<(u64, Done)>,
    /// By address: the write that lies there.
    sources: HashMap<u64, u64>,
    /// Durable, as the control log will have it.
    rows: Vec<RollBack>,
    segments: Vec<Segment>,
    ends: Vec<End>,
    incarnation: u32,
}

/// Plays one history.
///
/// # Errors
/// What a crash has shown.
pub fn crash(seed: u64, plan: &Plan, mistake: Option<Mistake>) -> Result<(), String> {
    let mut disk = Disk::new(DISK_BYTES, seed ^ 0x55);
    disk.set_fails_per_million(plan.fails_per_million);
    let mut world = World {
        random: Rng::with_seed(seed),
        mistake,
        disk,
        engine: engine(Retention::new(2), mistake),
        log: Log::new(START, Broken(mistake)),
        under_way: BTreeMap::new(),
        newest: 0,
        done: Vec::new(),
        sources: HashMap::new(),
        rows: Vec::new(),
        segments: Vec::new(),
        ends: Vec::new(),
        incarnation: 1,
    };
    let mut play = || {
        for step in 0..plan.steps {
            if plan.crash_at == Some(step) {
                world.crash(CrashMode::Power)?;
            }
            world.step()?;
        }
        world.crash(CrashMode::Power)
    };
    play().map_err(|difference| format!("seed {seed}, {plan:?}: {difference}"))
}

fn engine(retention: Retention, mistake: Option<Mistake>) -> Versions<Broken> {
    Versions::new(
        KeyHasher::new([7, 8]),
        retention,
        usize::MAX,
        Broken(mistake),
    )
}

impl World {
    fn step(&mut self) -> Judgement {
        if self.log.wants_segment() {
            self.add_segment();
        }
        if self.log.has_failed() {
            return self.crash(CrashMode::Process);
        }
        match self.random.u32(..100) {
            0..36 => self.write(),
            36..42 => self.restore(),
            42..46 => self.trim(),
            46..48 => self.roll_back(),
            48..60 => self.begin_io(),
            60..84 => self.end_io(),
            84..97 => self.read(),
            97..98 => self.crash(CrashMode::Process),
            98..99 => self.crash(CrashMode::Power),
            _ => {
                let floor = Version::new(self.watermark().saturating_sub(30));
                self.engine.retention_mut().raise(floor, floor);
                Ok(())
            }
        }
    }

    fn add_segment(&mut self) {
        let address = (self.segments.len() as u64 + 1) * SEGMENT_BYTES;
        // No history is long enough to need more than there is.
        assert!(
            address + SEGMENT_BYTES <= DISK_BYTES as u64,
            "the disk is too small"
        );
        let segment = Segment {
            seat: Seat { address, uses: 1 },
            bytes: SEGMENT_BYTES,
        };
        self.segments.push(segment);
        self.log.give_segment(segment);
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.random.u32(..KEYS);
        let long = if number == 0 {
            ", which is longer than its entry"
        } else {
            ""
        };
        format!("\0\u{1}k{number}{long}").into_bytes()
    }

    /// Adds a record to the log. None: not now.
    fn add(&mut self, change: &Change<'_>) -> Option<(u64, u64)> {
        self.log.add(change).ok()
    }

    fn write(&mut self) -> Judgement {
        let name = self.name();
        let is_delete = self.random.u8(..5) == 0;
        let length = match self.random.u8(..4) {
            _ if is_delete => 0,
            0 => self.random.usize(..VALUE_BYTES_MAX),
            _ => self.random.usize(..100),
        };
        let value = vec![self.random.u8(..); length];
        let key = key_of(&name);
        let prepared = self.engine.prepare(key, Condition::Any);
        prepared.map_err(|refused| format!("{refused:?}"))?;
        self.newest += 1;
        let version = Version::new(self.newest);
        let change = Change {
            kind: if is_delete { Kind::Delete } else { Kind::Put },
            version,
            source: version,
            writer: 1,
            expiry_ms: 0,
            key,
            value: &value,
        };
        let Some((address, lsn)) = self.add(&change) else {
            return Ok(());
        };
        let bytes = record_bytes(key.bytes.len(), value.len());
        let place = Place::written(address, bytes as u64, is_delete);
        let applied = self.engine.apply(key, Held { version, place });
        applied.map_err(|refused| format!("{refused:?}"))?;
        self.sources.insert(address, version.number());
        let (version, deleted) = (version.number(), is_delete);
        self.done.push((
            lsn,
            Done::Write {
                name,
                version,
                deleted,
            },
        ));
        Ok(())
    }

    fn restore(&mut self) -> Judgement {
        let name = self.name();
        let key = key_of(&name);
        let back = Selector::Back(self.random.u32(..3));
        let Ok((place, from)) = self.engine.restorable(key, back) else {
            return Ok(());
        };
        self.newest += 1;
        let version = Version::new(self.newest);
        let change = Change {
            kind: Kind::Restore,
            version,
            source: from,
            writer: 1,
            expiry_ms: 0,
            key,
            value: &[],
        };
        if let Some((_, lsn)) = self.add(&change) {
            let applied = self.engine.apply(key, Held { version, place });
            applied.map_err(|refused| format!("{refused:?}"))?;
            let (version, from) = (version.number(), from.number());
            self.done.push((
                lsn,
                Done::Restore {
                    name,
                    version,
                    from,
                },
            ));
        }
        Ok(())
    }

    fn trim(&mut self) -> Judgement {
        let name = self.name();
        let below = Version::new(self.watermark());
        let Some(trim) = self.engine.trim(key_of(&name), below) else {
            return Ok(());
        };
        let value = encode_trimmed(&trim.versions);
        let change = Change {
            kind: Kind::Trim,
            version: Version::new(self.newest),
            source: trim.epoch,
            writer: 0,
            expiry_ms: 0,
            key: key_of(&name),
            value: &value,
        };
        let mut added = self.add(&change);
        if added.is_none() {
            self.all_durable()?;
            if self.log.wants_segment() {
                self.add_segment();
            }
            added = self.add(&change);
        }
        let Some((_, lsn)) = added else {
            // The log has failed: memory goes with it.
            return self.crash(CrashMode::Process);
        };
        let versions = trim
            .versions
            .iter()
            .map(|version| version.number())
            .collect();
        self.done.push((lsn, Done::Trim { name, versions }));
        Ok(())
    }

    /// Freezes: everything that was accepted becomes durable, then the row is.
    fn roll_back(&mut self) -> Judgement {
        self.all_durable()?;
        if self.log.has_failed() {
            return Ok(());
        }
        self.newest += 1;
        let moment = self.newest - 1 - self.random.u64(..self.newest.min(20));
        let prefix: &[u8] = [&b""[..], b"k", b"k1"][self.random.usize(..3)];
        let row = RollBack {
            id: Version::new(self.newest),
            namespace: 1,
            prefix: prefix.to_vec(),
            target: Target::Moment(Version::new(moment)),
            unless_written_since: None,
        };
        if self.engine.prepare_roll_back(&row).is_ok() {
            let oracle = oracle::RollBack {
                id: row.id.number(),
                prefix: [b"\0\x01", prefix].concat(),
                target: oracle::Target::Moment(moment),
                unless_written_since: None,
            };
            self.done.push((0, Done::RollBack(oracle)));
            self.rows.push(row.clone());
            self.engine.roll_back(row);
        }
        Ok(())
    }

    fn begin_io(&mut self) -> Judgement {
        if let Some(write) = self.log.write(self.newest) {
            let (address, bytes) = (write.address, write.bytes.len());
            let id = self.disk.write(address as usize, write.bytes);
            self.under_way.insert(id, (write.lsn, address, bytes));
        }
        Ok(())
    }

    fn end_io(&mut self) -> Judgement {
        if let Some((id, ended)) = self.disk.complete_one() {
            let (lsn, ..) = self.under_way.remove(&id).ok_or("an unknown write")?;
            self.log.written(lsn, ended.is_ok());
        }
        Ok(())
    }

    fn all_durable(&mut self) -> Judgement {
        loop {
            self.begin_io()?;
            if self.under_way.is_empty() {
                return Ok(());
            }
            self.end_io()?;
        }
    }

    /// The last version up to which everything is durable.
    fn watermark(&self) -> u64 {
        let durable = self.log.durable_lsn();
        let kept = self.done.iter().take_while(|(lsn, _)| *lsn < durable);
        kept.filter_map(|(_, done)| match done {
            Done::Write { version, .. } | Done::Restore { version, .. } => Some(*version),
            Done::RollBack(row) => Some(row.id),
            Done::Trim { .. } => None,
        })
        .max()
        .unwrap_or(0)
    }

    /// What is true of everything up to a batch.
    fn oracle(&self, end_lsn: u64) -> Result<Oracle, String> {
        let mut oracle = Oracle::default();
        for (_, done) in self.done.iter().filter(|(lsn, _)| *lsn < end_lsn) {
            match done {
                Done::Write {
                    name,
                    version,
                    deleted,
                } => oracle.write(name, *version, *deleted),
                Done::Restore {
                    name,
                    version,
                    from,
                } => {
                    same("a restore", &oracle.restore(name, *version, *from), &true)?;
                }
                Done::RollBack(row) => oracle.roll_back(row),
                Done::Trim { name, versions } => {
                    let is_head = versions.last() == oracle.past(name).last().map(|it| &it.version);
                    if is_head {
                        oracle.forget(name);
                    } else {
                        for version in versions {
                            same("a trim", &oracle.trim(name, *version), &true)?;
                        }
                    }
                }
            }
        }
        Ok(oracle)
    }

    fn read(&mut self) -> Judgement {
        let (name, cut) = (self.name(), self.watermark());
        let found = self
            .engine
            .read(key_of(&name), Selector::Head, Version::new(cut));
        let found = found.map_err(|refused| format!("{refused:?}"))?;
        let oracle = self.oracle(self.log.durable_lsn())?;
        // A deleted key whose entry has gone is as deleted as before, though its trim is not durable yet.
        let wanted = oracle.at(&name, cut).filter(|past| !past.deleted);
        let wanted = wanted.map(|past| past.version);
        let found = found.filter(|held| !held.place.is_deleted());
        let found = found.map(|held| held.version.number());
        same(&format!("{name:?} at the watermark {cut}"), &found, &wanted)
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn crash(&mut self, mode: CrashMode) -> Judgement {
        let acknowledged = self.log.durable_lsn();
        // A batch that nobody was told of may be unreadable in one recovery and readable in the next.
        let mut hidden: Vec<(u64, usize)> = Vec::new();
        if self.random.u8(..4) == 0 {
            let unknown = self
                .under_way
                .values()
                .filter(|(lsn, ..)| *lsn >= acknowledged);
            hidden = unknown
                .map(|(_, address, bytes)| (*address, *bytes))
                .collect();
        }
        self.under_way.clear();
        self.disk.crash(mode);
        let mut scanned = self.recover(&hidden)?;
        // Recovery too may be cut off, before its end is recorded.
        while self.random.u8(..4) == 0 {
            self.disk.crash(CrashMode::Power);
            scanned = self.recover(&hidden)?;
        }
        if !self.makes(Mistake::NotFlushed) {
            self.disk.flush();
        }
        if scanned.lsn < acknowledged {
            return Err(format!(
                "{acknowledged} was acknowledged, found {scanned:?}"
            ));
        }
        self.done.retain(|(lsn, _)| *lsn < scanned.lsn);
        self.ends.push(End {
            incarnation: self.incarnation,
            lsn: scanned.lsn,
        });
        self.incarnation += 1;
        let start = Start {
            incarnation: self.incarnation,
            lsn: scanned.lsn,
            crc_before: scanned.crc_before,
            ..START
        };
        self.log = Log::new(start, Broken(self.mistake));
        self.as_the_oracle(scanned.lsn)
    }

    fn recover(&mut self, hidden: &[(u64, usize)]) -> Result<Scanned, String> {
        let retention = self.engine.retention().clone();
        self.engine = engine(retention, self.mistake);
        for row in &self.rows {
            self.engine.roll_back(row.clone());
        }
        let mut scanned = self.replay(hidden)?;
        if self.random.u8(..4) == 0 {
            // Twice is once.
            scanned = self.replay(hidden)?;
        }
        self.engine.recovered();
        same("damage", &scanned.is_damaged, &false)?;
        Ok(scanned)
    }

    fn replay(&mut self, hidden: &[(u64, usize)]) -> Result<Scanned, String> {
        let (segments, ends) = (self.segments.clone(), self.ends.clone());
        let mut scan = Scan::new(START, segments, ends, Broken(self.mistake));
        let mut result = Ok(());
        while let Some(read) = scan.read() {
            let mut bytes = self.disk.read(read.address as usize, read.bytes as usize);
            for (address, length) in hidden {
                let at = address.checked_sub(read.address);
                if let Some(at) = at.filter(|at| *at < read.bytes) {
                    bytes[at as usize..][..*length].fill(0);
                }
            }
            scan.take(&bytes, |address, record| {
                if result.is_ok() {
                    result = self.engine.replay(address, record);
                }
            });
        }
        result.map_err(|refused| format!("replay: {refused:?}"))?;
        Ok(scan.finish())
    }

    fn as_the_oracle(&mut self, end_lsn: u64) -> Judgement {
        let oracle = self.oracle(end_lsn)?;
        let count = oracle.keys().count();
        same("keys", &self.engine.keys_len(), &count)?;
        for (name, past) in oracle.keys() {
            let listed = self
                .engine
                .list(key_of(name), Version::MAX, Version::MAX, usize::MAX);
            let listed = listed.map_err(|refused| format!("{refused:?}"))?.versions;
            let of = |held: &Held| {
                let address = held.place.address();
                let source = address.map_or(Some(NEVER), |it| self.sources.get(&it).copied());
                let is_row = held.place.origin() == Origin::RolledBack;
                (
                    held.version.number(),
                    source,
                    held.place.is_deleted(),
                    is_row,
                )
            };
            let found: Vec<_> = listed.iter().rev().map(of).collect();
            let kept = past.iter().filter(|one| !one.trimmed);
            let wanted: Vec<_> = kept
                .map(|one| {
                    let is_row = one.origin == oracle::Origin::RolledBack;
                    (one.version, Some(one.source), one.deleted, is_row)
                })
                .collect();
            same(&format!("{name:?} after a crash"), &found, &wanted)?;
        }
        Ok(())
    }
}
