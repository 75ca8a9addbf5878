// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trims, sweeps over all keys, and what a checkpoint saves.
//!
//! Invariants:
//! 1. A version is trimmed only if its successor is at or below the floor, the watermark and every cut in flight,
//!    it is not among the newest min-count, and no snapshot lies within its life. A head is never trimmed alone.
//! 2. A key that has been deleted for keep-deleted loses the hold of min-count. If then nothing but its head is
//!    left its entry goes: it begins anew.
//! 3. What is trimmed leaves a gap: on the version behind it.
//! 4. A trim's record names the epoch up to which its key was resolved. Replay resolves as far first.
//! 5. A sweep resolves every key beyond the rows that were there when it began. Those may go behind it.

use crate::history::Held;
use crate::index::Spot;
use crate::key::Key;
use crate::mistake::{Mistake, Rules};
use crate::place::Place;
use crate::usage::different;
use crate::version::Version;
use crate::versions::{Versions, live_sectors};

/// Most versions that one trim takes: its record is short, and it does not take long.
pub const TRIMMED_MAX: usize = 4096;

/// So many versions fill a slice of a checkpoint: 64 KiB.
pub const SAVED_MAX: usize = 4096;

/// What was taken from a key, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trim {
    /// The key's namespace.
    pub namespace: u16,
    /// The key.
    pub bytes: Vec<u8>,
    /// The last row that the key had been resolved beyond.
    pub epoch: Version,
    /// What was taken, rising. With the head the whole entry has gone.
    pub versions: Vec<Version>,
}

/// What a checkpoint saves of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The key's namespace.
    pub namespace: u16,
    /// The key.
    pub bytes: Vec<u8>,
    /// The last row that its versions have in them.
    pub epoch: Version,
    /// Oldest first, at least one.
    pub versions: Vec<Held>,
    /// Of those that expire: when, milliseconds since 1970.
    pub expiries: Vec<u64>,
}

/// How far a sweep over all keys is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep {
    under_way: Option<Progress>,
}

#[derive(Clone, Debug)]
struct Progress {
    from_hash: u64,
    /// Rows that were there when it began.
    rows_up_to: Version,
    /// The fewest versions of a key among which there is no gap.
    unbroken: u32,
}

/// A finished slice of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// For the log, in this order.
    pub trims: Vec<Trim>,
    /// Keys whose head is over.
    pub expired: Vec<(u16, Vec<u8>)>,
    /// The sweep has met all keys: rows up to this one may go, once that is saved.
    pub done: Option<Version>,
    /// Then counts back below this are good for every key, once all that it has met is durable.
    pub counted: Option<u32>,
}

impl<R: Rules> Versions<R> {
    /// Sweeps a part of the keys, and begins a sweep if none is under way. `below` is the lowest of the watermark
    /// and all cuts in flight.
    pub fn sweep(&mut self, below: Version) -> Swept {
        let rows_up_to = self.rows.newest();
        let progress = self.sweep.under_way.get_or_insert(Progress {
            from_hash: 0,
            rows_up_to,
            unbroken: u32::MAX,
        });
        let (slice, next) = self.index.slice(progress.from_hash);
        let mut swept = Swept::default();
        let mut bytes = Vec::new();
        // Removing a key gives its number to the last of the table, so keys are found anew.
        let keys: Vec<(u16, Vec<u8>)> = slice
            .into_iter()
            .map(|(_, spot)| {
                self.index.key_bytes(spot, &mut bytes);
                (self.index.get(spot).name().namespace, bytes.clone())
            })
            .collect();
        for (namespace, bytes) in keys {
            let key = Key {
                namespace,
                bytes: &bytes,
            };
            swept.trims.extend(self.trim(key, below));
            if let Ok(spot) = self.index.find(key) {
                self.index.settle(spot);
                self.note_gap(spot);
                let head = self.view(spot).last();
                if head.is_some_and(|head| !head.place.is_deleted() && self.is_expired(&head)) {
                    swept.expired.push((namespace, bytes));
                }
            }
        }
        let progress = self.sweep.under_way.as_mut();
        match (next, progress) {
            (Some(hash), Some(progress)) => progress.from_hash = hash,
            _ => (swept.done, swept.counted) = self.finish_sweep().unzip(),
        }
        swept
    }

    fn finish_sweep(&mut self) -> Option<(Version, u32)> {
        let progress = self.sweep.under_way.take()?;
        self.unreserve(progress.rows_up_to);
        Some((progress.rows_up_to, progress.unbroken))
    }

    /// A key with a gap has been seen, or made, while a sweep is under way.
    fn note_gap(&mut self, spot: Spot) {
        let view = self.view(spot);
        let begins_with_gap = view.get(0).is_some_and(|one| one.place.has_gap());
        let unbroken = view.unbroken();
        if unbroken < view.len() || begins_with_gap {
            if let Some(progress) = &mut self.sweep.under_way {
                let unbroken = u32::try_from(unbroken).unwrap_or(u32::MAX);
                progress.unbroken = progress.unbroken.min(unbroken);
            }
        }
    }

    fn is_long_deleted(&self, head: Option<Held>, below: Version) -> bool {
        let floor = self.retention.deleted_floor().min(below);
        head.is_some_and(|head| head.place.is_deleted() && head.version <= floor)
    }

    /// Rows up to this one go: a sweep is done with them, and a checkpoint has saved it.
    pub fn forget_rows(&mut self, up_to: Version) {
        self.rows.forget(up_to);
        self.unreserve(up_to);
    }

    /// Trims what nothing holds of a key. None: nothing is taken.
    pub fn trim(&mut self, key: Key<'_>, below: Version) -> Option<Trim> {
        let spot = self.index.find(key).ok()?;
        if !self.rules.makes(Mistake::TrimUnresolved) {
            self.resolve(spot, key.bytes, Version::MAX);
        }
        let trimmed = self.trimmable(spot, below);
        if trimmed.is_empty() {
            return None;
        }
        let trim = Trim {
            namespace: key.namespace,
            bytes: key.bytes.to_vec(),
            epoch: self.index.get(spot).epoch,
            versions: trimmed,
        };
        self.take_away(spot, key, &trim.versions);
        Some(trim)
    }

    fn trimmable(&self, spot: Spot, below: Version) -> Vec<Version> {
        let view = self.view(spot);
        let below = if self.rules.makes(Mistake::CutsIgnored) {
            Version::MAX
        } else {
            below
        };
        let floor = if self.rules.makes(Mistake::FloorLate) {
            Version::new(self.retention.floor().number() + 3)
        } else {
            self.retention.floor()
        };
        let floor = floor.min(below);
        let is_long_deleted = self.is_long_deleted(view.last(), below);
        let held_count = if is_long_deleted {
            1
        } else {
            self.retention.min_count() as usize
        };
        let ignores_snapshots = self.rules.makes(Mistake::SnapshotsIgnored);
        let from_birth = self.rules.makes(Mistake::AgeFromBirth);
        let ended = view.all().skip(1);
        let candidates = view
            .all()
            .zip(ended)
            .take(view.len().saturating_sub(held_count));
        let mut trimmed: Vec<Version> = candidates
            .take_while(|(one, next)| next.version <= floor || from_birth && one.version <= floor)
            .filter(|(one, next)| {
                ignores_snapshots || !self.retention.holds(one.version, next.version)
            })
            .map(|(one, _)| one.version)
            .take(TRIMMED_MAX)
            .collect();
        let is_rest = trimmed.len() + 1 == view.len();
        if is_long_deleted && (is_rest || self.rules.makes(Mistake::EntryGoesEarly)) {
            trimmed.extend(view.last().map(|head| head.version));
        }
        trimmed
    }

    /// Takes versions from a key; with its head the entry goes.
    fn take_away(&mut self, spot: Spot, key: Key<'_>, versions: &[Version]) {
        let view = self.view(spot);
        if versions.last() == view.last().map(|head| head.version).as_ref() {
            self.remove_key(spot, key);
            return;
        }
        let mut trimmed = versions.iter().copied().peekable();
        let (mut kept, mut has_gap) = (Vec::with_capacity(view.len()), false);
        for one in view.all() {
            while trimmed.next_if(|version| *version < one.version).is_some() {}
            if trimmed.next_if_eq(&one.version).is_some() {
                has_gap = true;
                continue;
            }
            let place = one.place.with_gap(has_gap || one.place.has_gap());
            kept.push(Held { place, ..one });
            has_gap = false;
        }
        let length = view.len();
        let gone = different(view.all().map(|held| held.place));
        let rest: Vec<Place> = kept.iter().map(|held| held.place).collect();
        self.cease(gone.into_iter(), rest.into_iter());
        if let Some(head) = kept.pop() {
            self.counts.older -= length - 1 - kept.len();
            let before = live_sectors(self.index.get(spot).head());
            self.count_live(before, live_sectors(head));
            self.index.replace(spot, &kept, head);
            self.note_gap(spot);
        }
    }

    /// A trim in the log, replayed. What it names and is not there had gone before.
    pub fn replay_trim(&mut self, trim: &Trim) {
        let key = Key {
            namespace: trim.namespace,
            bytes: &trim.bytes,
        };
        if let Ok(spot) = self.index.find(key) {
            if !self.rules.makes(Mistake::ReplayTrimUnresolved) {
                self.resolve(spot, key.bytes, trim.epoch);
            }
            self.take_away(spot, key, &trim.versions);
        }
    }

    /// Keys of a slice, resolved, as a checkpoint saves them; and where the next slice begins. Versions of a slice are
    /// at most [`SAVED_MAX`] and those of one hash.
    pub fn save(&mut self, from_hash: u64) -> (Vec<Saved>, Option<u64>) {
        let (slice, mut next) = self.index.slice(from_hash);
        let mut saved = Vec::with_capacity(slice.len());
        let (mut versions, mut last_hash) = (0, None);
        for (hash, spot) in slice {
            if versions >= SAVED_MAX && last_hash != Some(hash) {
                next = Some(hash);
                break;
            }
            last_hash = Some(hash);
            versions += 1 + self.index.older(spot).len();
            let mut bytes = Vec::new();
            self.index.key_bytes(spot, &mut bytes);
            if !self.rules.makes(Mistake::RowsForgottenEarly) {
                self.resolve(spot, &bytes, Version::MAX);
            }
            let entry = self.index.get(spot);
            let versions: Vec<Held> = self.view(spot).all().collect();
            saved.push(Saved {
                namespace: entry.name().namespace,
                bytes,
                epoch: entry.epoch,
                expiries: self.expiries_of(&versions),
                versions,
            });
        }
        (saved, next)
    }

    /// A key as a checkpoint had it, before anything else of it is known.
    pub fn load(&mut self, saved: &Saved) {
        let key = Key {
            namespace: saved.namespace,
            bytes: &saved.bytes,
        };
        let Some((head, older)) = saved.versions.split_last() else {
            return;
        };
        self.count_saved(saved);
        let spot = self.add_key(key, *head, saved.epoch);
        self.index.replace(spot, older, *head);
        self.counts.older += older.len();
    }
}
