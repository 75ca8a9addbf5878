// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replay of a shard's log behind a checkpoint, or from its begin.
//!
//! Invariants:
//! 1. Records come in the order of the log, and run the code of live writes.
//! 2. What a checkpoint's slice has is left out: else a put from before a roll back would land behind it.
//! 3. A part of a batch over shards counts when *done* of its batch follows, or the control log has its commit. Until
//!    then nothing else touched its key, so it may be applied there. Without either it is nothing.
//! 4. What is rotten is told: a version whose value is damaged is there, and refused when it is read; so is a restore of
//!    what is lost. Of what has no key the place is told.
//! 5. Behind what is lost no write of the log has a lower version. That says between which versions it was, for roll backs
//!    that may rest on it. A part of a batch over shards may have a lower one than a write before it.
//! 6. Behind a part something is lost that the same start of the node has written: that may have been its *done*. Batches
//!    are committed one after the other, by rising version. So it counts if one that is not older was committed.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::Slices;
use crate::history::Held;
use crate::index::Spot;
use crate::key::Key;
use crate::mistake::{Mistake, Rules, Sound};
use crate::place::{Origin, Place};
use crate::record::{Kind, Record, RecordHead, decode_trimmed};
use crate::salvage::Found;
use crate::scan::FoundAt;
use crate::scrub::{ROTTEN_MAX, Rot};
use crate::sweep::Trim;
use crate::version::Version;
use crate::versions::Versions;
use crate::view::Refused;

/// A part that waits to be known as committed.
#[derive(Debug)]
struct Waiting {
    address: u64,
    head: RecordHead,
    key: Vec<u8>,
    incarnation: Option<u32>,
}

/// A replay under way.
#[derive(Debug)]
pub struct Replay<R = Sound> {
    slices: Slices,
    parts: BTreeMap<Version, Vec<Waiting>>,
    /// The newest batch that was ever committed.
    last_commit: Version,
    newest: Version,
    /// Batches that the control log has, and the log is not known to be done with.
    owing: BTreeSet<Version>,
    /// What is damaged.
    rot: Vec<Rot>,
    /// Something is lost.
    has_lost: bool,
    /// The last put, delete or restore that was found, and that is no part.
    last_write: Version,
    /// What came first that cannot be.
    error: Option<(u64, Refused)>,
    rules: R,
}

impl<R: Rules> Replay<R> {
    /// Behind a checkpoint with these slices; without one: none. And the newest batch over shards that was ever committed.
    #[must_use]
    pub fn new(slices: Slices, last_commit: Version, rules: R) -> Self {
        Self {
            slices,
            parts: BTreeMap::new(),
            last_commit,
            newest: Version::ZERO,
            owing: BTreeSet::new(),
            rot: Vec::new(),
            has_lost: false,
            last_write: Version::ZERO,
            error: None,
            rules,
        }
    }

    /// The same, which notes of these batches whether the log is done with them.
    #[must_use]
    pub fn owing(self, commits: impl Iterator<Item = Version>) -> Self {
        let owing = commits.collect();
        Self { owing, ..self }
    }

    /// Takes what was found next.
    pub fn take(&mut self, versions: &mut Versions<R>, at: FoundAt, found: Found<'_>) {
        match found {
            Found::Record(record) => self.take_record(versions, at, record),
            Found::Rotten(head, key) => {
                // What a trim has lost comes back, and is trimmed again.
                if head.kind == Kind::Trim {
                    return;
                }
                self.tell(at.address, Some(key), 0);
                let value = &[];
                let head = *head;
                self.take_record(versions, at, &Record { head, key, value });
            }
            Found::Lost(bytes) => {
                self.tell(at.address, None, bytes);
                self.has_lost = true;
                versions.losses.add(self.before_lost(at));
                self.take_lost_done(versions, at);
            }
        }
    }

    fn tell(&mut self, address: u64, key: Option<Key<'_>>, bytes: u64) {
        if self.rot.len() < ROTTEN_MAX && !self.rules.makes(Mistake::RotUntold) {
            let key = key.map(|key| (key.namespace, key.bytes.to_vec()));
            self.rot.push(Rot {
                address,
                key,
                bytes,
            });
        }
    }

    /// Whatever is lost there has a version above this one.
    fn before_lost(&self, at: FoundAt) -> Version {
        let may_be_part = self.last_commit > Version::ZERO;
        let before = if may_be_part {
            Version::ZERO
        } else {
            self.last_write
        };
        before.max(at.first_version.before())
    }

    /// A *done* may be among what is lost.
    fn take_lost_done(&mut self, versions: &mut Versions<R>, at: FoundAt) {
        if self.rules.makes(Mistake::DoneLostForgotten) {
            return;
        }
        let is_concerned = |part: &Waiting| match (part.incarnation, at.incarnation) {
            (Some(wrote), Some(lost)) => wrote == lost,
            _ => true,
        };
        let parts = std::mem::take(&mut self.parts);
        for (version, parts) in parts {
            if version <= self.last_commit && parts.iter().any(is_concerned) {
                self.apply(versions, parts, Some(at.lsn));
            } else {
                self.parts.insert(version, parts);
            }
        }
    }

    fn take_record(&mut self, versions: &mut Versions<R>, found: FoundAt, record: &Record<'_>) {
        let head = &record.head;
        self.newest = self.newest.max(head.version);
        let is_write = matches!(head.kind, Kind::Put | Kind::Delete | Kind::Restore);
        if is_write && !head.is_part {
            self.last_write = self.last_write.max(head.version);
            versions.losses.found(head.version);
        }
        if head.kind == Kind::Done {
            self.owing.remove(&head.version);
            let parts = self.parts.remove(&head.version).unwrap_or_default();
            self.apply(versions, parts, Some(found.lsn));
        } else if head.is_part && !self.rules.makes(Mistake::PartsWithoutCommit) {
            let waiting = Waiting {
                address: found.address,
                head: *head,
                key: record.key.bytes.to_vec(),
                incarnation: found.incarnation,
            };
            self.parts.entry(head.version).or_default().push(waiting);
        } else if !self.is_saved(versions, record.key, found.lsn) {
            self.replay(versions, found.address, record);
        }
    }

    fn is_saved(&self, versions: &Versions<R>, key: Key<'_>, lsn: u64) -> bool {
        let is_saved = self.slices.has(versions.hash_of(key), lsn);
        is_saved && !self.rules.makes(Mistake::SlicesIgnored)
    }

    fn replay(&mut self, versions: &mut Versions<R>, address: u64, record: &Record<'_>) {
        let Err(mut refused) = versions.replay(address, record) else {
            return;
        };
        if self.has_lost && record.head.kind == Kind::Restore {
            // What it has taken is lost. No value lies where it lies itself, so it is refused when it is read.
            self.tell(address, Some(record.key), 0);
            let place = Place::written(address, record.head.bytes() as u64, false);
            let version = record.head.version;
            match versions.apply_expiring(record.key, Held { version, place }, 0) {
                Ok(()) => return,
                Err(other) => refused = other,
            }
        }
        self.error = self.error.or(Some((address, refused)));
    }

    fn apply(&mut self, versions: &mut Versions<R>, parts: Vec<Waiting>, lsn: Option<u64>) {
        for part in parts {
            let key = Key {
                namespace: part.head.namespace,
                bytes: &part.key,
            };
            if lsn.is_some_and(|lsn| self.is_saved(versions, key, lsn)) {
                continue;
            }
            let record = Record {
                head: part.head,
                key,
                value: &[],
            };
            self.replay(versions, part.address, &record);
        }
    }

    /// All has come: the newest version, and what is damaged. `commits` has the batches that this shard is not known to be done with.
    /// `lacks_commits`: others may have been lost, so what waits for one is told.
    ///
    /// # Errors
    /// The address of a record that cannot be, and why.
    pub fn finish(
        &mut self,
        versions: &mut Versions<R>,
        commits: &[Version],
        lacks_commits: bool,
    ) -> Result<(Version, Vec<Rot>), (u64, Refused)> {
        for version in commits {
            let parts = self.parts.remove(version).unwrap_or_default();
            if !self.rules.makes(Mistake::CommitsForgotten) {
                self.apply(versions, parts, None);
            }
        }
        if lacks_commits {
            for part in std::mem::take(&mut self.parts).into_values().flatten() {
                let (namespace, bytes) = (part.head.namespace, &part.key);
                self.tell(part.address, Some(Key { namespace, bytes }), 0);
            }
        }
        versions.recovered();
        let rot = std::mem::take(&mut self.rot);
        self.error.map_or(Ok((self.newest, rot)), Err)
    }

    /// Whether the log is not known to be done with this batch.
    #[must_use]
    pub fn is_owing(&self, version: Version) -> bool {
        self.owing.contains(&version)
    }
}

impl<R: Rules> Versions<R> {
    /// Live writes take a version above all. A log may have any: whoever writes to the disk can make checksums right.
    pub(crate) fn check_rises(&self, spot: Option<Spot>, version: Version) -> Result<(), Refused> {
        let rises = spot.is_none_or(|spot| self.index.get(spot).head().version < version);
        rises.then_some(()).ok_or(Refused::NoSuch)
    }

    /// A replayed restore: the version whose content it takes.
    ///
    /// # Errors
    /// [`Refused::NoSuch`] or [`Refused::Trimmed`]: the log lacks what was before.
    pub fn replay_restore(
        &mut self,
        key: Key<'_>,
        version: Version,
        from: Version,
    ) -> Result<(), Refused> {
        let spot = self.touch(key, version)?.ok_or(Refused::NoSuch)?;
        self.check_rises(Some(spot), version)?;
        let place = self.view(spot).exactly(from)?.place;
        let place = place
            .again(Origin::Restored)
            .uncertain_if(place.is_uncertain());
        self.push(spot, Held { version, place });
        Ok(())
    }

    /// A record of the log, replayed. Those before it were, from a checkpoint on, and it was not.
    ///
    /// # Errors
    /// As [`Versions::replay_restore`]; [`Refused::DigestTaken`].
    pub fn replay(&mut self, address: u64, record: &Record<'_>) -> Result<(), Refused> {
        let (head, key) = (&record.head, record.key);
        match head.kind {
            Kind::Put | Kind::Delete => {
                let is_delete = head.kind == Kind::Delete;
                let place = Place::written(address, head.bytes() as u64, is_delete);
                let version = head.version;
                self.apply_expiring(key, Held { version, place }, head.expiry_ms)
            }
            Kind::Restore => self.replay_restore(key, head.version, head.source),
            Kind::MovedPut | Kind::MovedDelete => {
                let is_delete = head.kind == Kind::MovedDelete;
                let to = Place::written(address, head.bytes() as u64, is_delete);
                self.move_place(key, head.source.number(), to);
                Ok(())
            }
            Kind::Done | Kind::Control => Ok(()),
            Kind::Trim => {
                self.replay_trim(&Trim {
                    namespace: key.namespace,
                    bytes: key.bytes.to_vec(),
                    epoch: head.source,
                    versions: decode_trimmed(record.value).collect(),
                });
                Ok(())
            }
        }
    }
}
