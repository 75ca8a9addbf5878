// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys with all their versions, and roll back of scopes: what one shard knows.
//!
//! The caller gives versions, makes things durable and knows the watermark. A change comes here once its
//! version is taken; replay after a crash comes the same way, and must give the same.
//!
//! Invariants:
//! 1. A key's state after row R is what R's target says of its history before R. If that changes the source,
//!    the key has a version R; if not, nothing.
//! 2. Whatever touches a key resolves it first: all rows above the entry's epoch, in order; then the epoch moves.
//!    A change with a version resolves up to that version, so replay does what was done.
//! 3. A new key has the epoch of the last row before it: it was not there for the others.
//! 4. A row is refused whose target is not known: a moment below the floor that no snapshot holds, a moment not
//!    before the row, a count that may meet a gap, a moment below the floor from which on writes are spared.
//! 5. Counting back never goes over a version that was trimmed. A row leaves such a key alone: only one that
//!    was deleted for keep-deleted can be so.
//! 6. Memory stays below the limit: what rows may still make is reserved, and two versions of each key are kept back
//!    from writes. How much a row reserves stands in `roll_backs.rs`.
//! 7. A read sees nothing above its cut.
//! 8. What a roll back made and is uncertain is refused to those that ask for that version or for an older state. The
//!    newest is given with what is left of the key, and told to be so.

use std::collections::HashMap;

use crate::expiry::EXPIRY_BYTES_BUDGET;
use crate::history::{Held, OLDER_MAX};
use crate::index::{Index, KEY_BYTES_BUDGET, Missing, Spot, VERSION_BYTES_BUDGET};
use crate::key::{INLINE_BYTES_MAX, Key, KeyHasher, Name};
use crate::losses::Losses;
use crate::mistake::{Mistake, Rules, Sound};
use crate::place::{Origin, Place};
use crate::retention::Retention;
use crate::roll_backs::changed;
use crate::rows::Rows;
use crate::sweep::Sweep;
use crate::usage::{Usage, different};
use crate::version::Version;
use crate::view::{Refused, Selector, View};

/// Bytes beyond a long key that its storing takes at most.
const LONG_KEY_SLACK_BYTES: usize = 16;
/// Rows for which memory is kept back from writes: a roll back and its undo.
const ROWS_KEPT_BACK: usize = 2;
/// Most older versions of a key that writes may make: the rest is for roll backs.
const WRITTEN_MAX: usize = OLDER_MAX / 2;

/// What a write asks of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Any,
    /// That it is this version; [`Version::ZERO`]: that there is no value.
    Head(Version),
    /// That there is a value.
    Present,
    /// That there is none.
    Absent,
}

impl Condition {
    fn is_met(self, head: Option<Held>, is_absent: bool) -> bool {
        match self {
            Self::Any => true,
            Self::Head(Version::ZERO) | Self::Absent => is_absent,
            Self::Present => !is_absent,
            Self::Head(version) => {
                // A delete marker has a version that can be named; what is over has none any more.
                let is_over = is_absent && head.is_some_and(|head| !head.place.is_deleted());
                !is_over && head.is_some_and(|head| head.version == version)
            }
        }
    }
}

/// Versions of a key that can be read, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// At most as many as were asked for.
    pub versions: Vec<Held>,
    /// There are older ones.
    pub has_more: bool,
}

/// Keys, by rising hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Bytes of keys that had a value, and their version.
    pub keys: Vec<(Vec<u8>, Held)>,
    /// Where the next page begins; none: this was the last.
    pub next: Option<u64>,
}

/// What is counted, so that memory is known without looking.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) older: usize,
    /// Sectors of heads that are values.
    live_sectors: u64,
    long_key_bytes: usize,
    pub(crate) by_namespace: HashMap<u16, usize>,
    /// Versions that rows may still make: id, and how many.
    pub(crate) reserved: Vec<(Version, usize)>,
}

/// The keys of one shard.
#[derive(Debug)]
pub struct Versions<R = Sound> {
    pub(crate) index: Index,
    pub(crate) rows: Rows,
    /// What the start has not found.
    pub(crate) losses: Losses,
    pub(crate) retention: Retention,
    pub(crate) sweep: Sweep,
    pub(crate) counts: Counts,
    pub(crate) usage: Usage,
    /// The version clock.
    pub(crate) now_ms: u64,
    pub(crate) memory_limit_bytes: usize,
    pub(crate) rules: R,
}

impl<R: Rules> Versions<R> {
    /// No keys, no rows.
    #[must_use]
    pub fn new(
        hasher: KeyHasher,
        retention: Retention,
        memory_limit_bytes: usize,
        rules: R,
    ) -> Self {
        Self {
            index: Index::new(hasher),
            rows: Rows::default(),
            losses: Losses::default(),
            retention,
            sweep: Sweep::default(),
            counts: Counts::default(),
            usage: Usage::default(),
            now_ms: 0,
            memory_limit_bytes,
            rules,
        }
    }

    /// What holds versions.
    #[must_use]
    pub fn retention(&self) -> &Retention {
        &self.retention
    }

    /// The hash by which keys are listed, and dealt out to shards.
    #[must_use]
    pub fn hash_of(&self, key: Key<'_>) -> u64 {
        self.index.hash_of(key)
    }

    /// The last roll back that it was given.
    #[must_use]
    pub fn newest_row(&self) -> Version {
        self.rows.newest()
    }

    /// To change it: durably first.
    pub fn retention_mut(&mut self) -> &mut Retention {
        &mut self.retention
    }

    /// Keys that have an entry, deleted ones too.
    #[must_use]
    pub fn keys_len(&self) -> usize {
        self.index.len()
    }

    /// Memory that the index has allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.index.bytes() + self.usage.expiries().bytes()
    }

    /// What that is at most, by the budgets.
    #[must_use]
    pub fn budget_bytes(&self) -> usize {
        self.index.len() * KEY_BYTES_BUDGET
            + self.counts.older * VERSION_BYTES_BUDGET
            + self.counts.long_key_bytes
            + self.usage.expiries().len() * EXPIRY_BYTES_BUDGET
    }

    /// Resolves a key: what rows up to `until` do to it, once.
    pub(crate) fn resolve(&mut self, spot: Spot, bytes: &[u8], until: Version) {
        let entry = self.index.get(spot);
        let (epoch, namespace) = (entry.epoch, entry.name().namespace);
        let newest = self.rows.newest_up_to(until);
        if epoch >= newest {
            return;
        }
        let until = if self.rules.makes(Mistake::ReplayAll) {
            Version::MAX
        } else {
            until
        };
        for at in self.rows.of(Key { namespace, bytes }, epoch, until) {
            let row = self.rows.get(at);
            let missed = row.prefix.len() == bytes.len() && !bytes.is_empty();
            if missed && self.rules.makes(Mistake::WholeKeyMissed) {
                continue;
            }
            if let Some(held) = changed(&self.view(spot), row, &self.losses, &self.rules) {
                self.push(spot, held);
            }
        }
        if !self.rules.makes(Mistake::EpochStays) {
            self.index.get_mut(spot).epoch = newest;
        }
    }

    pub(crate) fn push(&mut self, spot: Spot, held: Held) {
        let before = live_sectors(self.index.get(spot).head());
        self.count_live(before, live_sectors(held));
        self.index.push(spot, held);
        self.counts.older += 1;
    }

    /// A head has become another, or its record has moved: sectors of values before and now.
    pub(crate) fn count_live(&mut self, before: u64, now: u64) {
        self.counts.live_sectors += now;
        self.counts.live_sectors -= before;
    }

    /// Why there is no space: what takes most of it is live, or what retention holds.
    pub(crate) fn no_space(&self) -> Refused {
        let live = self.counts.live_sectors;
        if live > self.usage.sectors() / 2 {
            return Refused::NoSpaceForLive;
        }
        Refused::NoSpace
    }

    pub(crate) fn view(&self, spot: Spot) -> View<'_> {
        let entry = self.index.get(spot);
        View::new(self.index.older(spot), entry.head(), entry.is_whole())
    }

    /// The key's entry, resolved; none if it has no version.
    pub(crate) fn touch(&mut self, key: Key<'_>, until: Version) -> Result<Option<Spot>, Refused> {
        match self.index.find(key) {
            Ok(spot) => {
                self.resolve(spot, key.bytes, until);
                Ok(Some(spot))
            }
            Err(Missing::Absent) => Ok(None),
            Err(Missing::DigestTaken) => Err(Refused::DigestTaken),
        }
    }

    /// A write is about to be made: the head of all, if the condition is met and there is room. The answer may be
    /// given once the watermark has passed that head.
    ///
    /// # Errors
    /// [`Refused::Mismatch`], [`Refused::Full`], [`Refused::ManyVersions`], [`Refused::DigestTaken`].
    pub fn prepare(&mut self, key: Key<'_>, condition: Condition) -> Result<Option<Held>, Refused> {
        let spot = if self.rules.makes(Mistake::WriteUnresolved) {
            self.index.find(key).ok()
        } else {
            self.touch(key, Version::MAX)?
        };
        let head = spot.map(|spot| self.index.get(spot).head());
        if !condition.is_met(head, self.is_absent(head)) {
            return Err(Refused::Mismatch);
        }
        let older = spot.map_or(0, |spot| self.index.older(spot).len());
        let bytes = match spot {
            Some(_) => VERSION_BYTES_BUDGET,
            None => KEY_BYTES_BUDGET + long_bytes(key.bytes.len()),
        };
        let kept_back = ROWS_KEPT_BACK * VERSION_BYTES_BUDGET * (self.index.len() + 1);
        let wanted = self.budget_bytes() + self.reserved_bytes() + kept_back + bytes;
        if older >= WRITTEN_MAX {
            return Err(Refused::ManyVersions);
        }
        if wanted > self.memory_limit_bytes {
            return Err(Refused::Full);
        }
        Ok(head)
    }

    /// A put, a delete or a restore, whose version is above all that the key has.
    ///
    /// # Errors
    /// [`Refused::DigestTaken`]; [`Refused::NoSuch`] of a version that is not above. Nothing else, so that replay cannot fail otherwise.
    pub fn apply(&mut self, key: Key<'_>, held: Held) -> Result<(), Refused> {
        self.apply_expiring(key, held, 0)
    }

    /// The same of a put that says when it expires: milliseconds since 1970; 0: it does not.
    ///
    /// # Errors
    /// As [`Versions::apply`].
    pub fn apply_expiring(
        &mut self,
        key: Key<'_>,
        mut held: Held,
        expiry_ms: u64,
    ) -> Result<(), Refused> {
        let until = if self.rules.makes(Mistake::WriteUnresolved) {
            Version::ZERO
        } else {
            held.version
        };
        let found = self.touch(key, until)?;
        self.check_rises(found, held.version)?;
        if held.place.origin() == Origin::Written {
            held.place = held.place.with_expiry(expiry_ms > 0);
            self.usage.add(held.place, expiry_ms);
        }
        if let Some(spot) = found {
            self.push(spot, held);
            return Ok(());
        }
        let epoch = if self.rules.makes(Mistake::NewKeyUnresolved) {
            Version::ZERO
        } else {
            self.rows.newest_up_to(held.version)
        };
        self.add_key(key, held, epoch);
        Ok(())
    }

    pub(crate) fn add_key(&mut self, key: Key<'_>, head: Held, epoch: Version) -> Spot {
        self.count_live(0, live_sectors(head));
        self.counts.long_key_bytes += long_bytes(key.bytes.len());
        *self.counts.by_namespace.entry(key.namespace).or_default() += 1;
        self.index.insert(key, head, epoch)
    }

    pub(crate) fn remove_key(&mut self, spot: Spot, key: Key<'_>) {
        let places = different(self.view(spot).all().map(|held| held.place));
        self.cease(places.into_iter(), std::iter::empty());
        self.count_live(live_sectors(self.index.get(spot).head()), 0);
        self.counts.older -= self.index.older(spot).len();
        self.counts.long_key_bytes -= long_bytes(key.bytes.len());
        if let Some(count) = self.counts.by_namespace.get_mut(&key.namespace) {
            *count -= 1;
        }
        self.index.remove(spot);
    }

    /// What a restore takes: the place of the version that it makes, and the version whose content that is.
    ///
    /// # Errors
    /// As [`Versions::read`], also of the head; [`Refused::NoSuch`] if the key was not there at that moment.
    pub fn restorable(
        &mut self,
        key: Key<'_>,
        from: Selector,
    ) -> Result<(Place, Version), Refused> {
        let found = self.read(key, from, Version::MAX)?.ok_or(Refused::NoSuch)?;
        if found.place.is_uncertain() {
            return Err(Refused::Uncertain);
        }
        Ok((found.place.again(Origin::Restored), found.version))
    }

    /// Reads a key at a cut: the watermark, or a cut of many keys. None: it was not there.
    ///
    /// # Errors
    /// [`Refused::Trimmed`], [`Refused::NoSuch`], [`Refused::Future`], [`Refused::DigestTaken`], [`Refused::Uncertain`].
    pub fn read(
        &mut self,
        key: Key<'_>,
        selector: Selector,
        cut: Version,
    ) -> Result<Option<Held>, Refused> {
        if let Selector::AsOf(moment) = selector {
            self.check_moment(moment, cut)?;
        }
        let Some(spot) = self.touch(key, Version::MAX)? else {
            return match selector {
                Selector::Head | Selector::AsOf(_) => Ok(None),
                Selector::Version(_) | Selector::Back(_) => Err(Refused::NoSuch),
            };
        };
        let view = self.view_at(spot, cut);
        let found = match selector {
            Selector::Head => return Ok(view.last()),
            Selector::AsOf(moment) => view.at(moment),
            Selector::Version(version) => Some(view.exactly(version)?),
            Selector::Back(back) => Some(view.back(back)?),
        };
        if found.is_some_and(|held| held.place.is_uncertain()) {
            return Err(Refused::Uncertain);
        }
        Ok(found)
    }

    pub(crate) fn view_at(&self, spot: Spot, cut: Version) -> View<'_> {
        if self.rules.makes(Mistake::CutPassed) {
            return self.view(spot);
        }
        self.view(spot).up_to(cut)
    }

    fn check_moment(&self, moment: Version, cut: Version) -> Result<(), Refused> {
        if moment > cut {
            return Err(Refused::Future);
        }
        if !self.retention.knows(moment) && !self.rules.makes(Mistake::FloorIgnored) {
            return Err(Refused::Trimmed);
        }
        Ok(())
    }

    /// The head of the long key with this digest, the first 16 bytes of its SHA-256, and the key.
    pub fn read_digest(
        &mut self,
        namespace: u16,
        digest: [u8; INLINE_BYTES_MAX],
        cut: Version,
    ) -> Option<(Vec<u8>, Held)> {
        let spot = self.index.find_name(&Name::of_digest(namespace, digest))?;
        let mut bytes = Vec::new();
        self.index.key_bytes(spot, &mut bytes);
        self.resolve(spot, &bytes, Version::MAX);
        let held = self.view_at(spot, cut).last()?;
        Some((bytes, held))
    }

    /// Lists a key's versions below one, newest first, at most so many.
    ///
    /// # Errors
    /// [`Refused::DigestTaken`].
    pub fn list(
        &mut self,
        key: Key<'_>,
        below: Version,
        cut: Version,
        most: usize,
    ) -> Result<Listed, Refused> {
        let Some(spot) = self.touch(key, Version::MAX)? else {
            return Ok(Listed::default());
        };
        let view = self.view_at(spot, cut.min(below.before()));
        Ok(Listed {
            versions: view.all().rev().take(most).collect(),
            has_more: view.len() > most,
        })
    }

    /// Keys of a namespace with a prefix that had a value at a moment, from a hash on; also those that were deleted
    /// after `deleted_since`. A page may be empty and not the last. It has some more than `most` only if they share a
    /// hash.
    ///
    /// # Errors
    /// [`Refused::Trimmed`], also if a key that was deleted since may be forgotten already; [`Refused::Future`].
    pub fn keys(
        &mut self,
        scope: Key<'_>,
        from_hash: u64,
        moment: Version,
        deleted_since: Option<Version>,
        cut: Version,
        most: usize,
    ) -> Result<Page, Refused> {
        self.check_moment(moment, cut)?;
        let is_known = deleted_since.is_none_or(|since| since >= self.retention.deleted_floor());
        if !is_known && !self.rules.makes(Mistake::ForgottenDeletes) {
            return Err(Refused::Trimmed);
        }
        let shows = |held: &Held| {
            !held.place.is_deleted() || deleted_since.is_some_and(|since| held.version > since)
        };
        let (slice, next) = self.index.slice(from_hash);
        let mut page = Page {
            next,
            ..Page::default()
        };
        let (mut bytes, mut last_hash) = (Vec::new(), None);
        for (hash, spot) in slice {
            if page.keys.len() >= most && last_hash != Some(hash) {
                page.next = Some(hash);
                break;
            }
            last_hash = Some(hash);
            self.index.key_bytes(spot, &mut bytes);
            let namespace = self.index.get(spot).name().namespace;
            if namespace != scope.namespace || !bytes.starts_with(scope.bytes) {
                continue;
            }
            self.resolve(spot, &bytes, Version::MAX);
            let found = self.view_at(spot, moment).last();
            if let Some(held) = found.filter(shows) {
                page.keys.push((bytes.clone(), held));
            }
        }
        Ok(page)
    }
}

/// Sectors of a head that is a value.
pub(crate) fn live_sectors(head: Held) -> u64 {
    if head.place.is_deleted() {
        return 0;
    }
    head.place.sectors()
}

/// What a key above 16 bytes takes beyond its entry.
fn long_bytes(length: usize) -> usize {
    if length <= INLINE_BYTES_MAX {
        return 0;
    }
    length + LONG_KEY_SLACK_BYTES
}
