// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A key's versions up to a cut: what a reader may see of them.
//!
//! Invariants:
//! 1. Versions rise; positions count from the oldest.
//! 2. Counting back is one step, unless versions were trimmed from between others; then it looks for the gaps.

use crate::history::Held;
use crate::version::Version;

/// Why something is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// What it asks for may have been there, and was trimmed.
    #[error(
        "that part of the history is not kept any more: ask for something newer, or for a snapshot"
    )]
    Trimmed,
    /// There is no such version.
    #[error("the key has no such version: list its versions")]
    NoSuch,
    /// A roll back or a restore has made that version of what may rest on a record that is lost.
    #[error(
        "what that version had may rest on a record that is lost: list the key's versions, and take one that was written"
    )]
    Uncertain,
    /// The condition is not met: the head is another.
    #[error("the key's head is not the one that the condition names: read it again")]
    Mismatch,
    /// The moment is not over yet, or not visible yet.
    #[error("that moment is in the future: ask for an earlier one")]
    Future,
    /// Index memory has reached its bound.
    #[error(
        "index memory is full of keys and versions: wait until old ones are trimmed, delete keys, or give more memory"
    )]
    Full,
    /// A key's versions have reached their bound.
    #[error("the key has as many versions as writes may make: wait until old ones are trimmed")]
    ManyVersions,
    /// The store is full, most of it of versions that are no key's value any more.
    #[error(
        "the store is full of old versions that retention holds: wait until that ends, hold less, or make the store \
         larger"
    )]
    NoSpace,
    /// The store is full, most of it of keys' present values.
    #[error(
        "the store is full of live values: make it larger, or wait until deleted keys are forgotten"
    )]
    NoSpaceForLive,
    /// Too many roll backs wait for a checkpoint.
    #[error("too many roll backs wait for a checkpoint: repeat it later")]
    Busy,
    /// A batch names a key twice, or a shard that there is not.
    #[error("a batch names a key twice: name it once")]
    Twice,
    /// Recovery is under way.
    #[error("the store is starting: repeat it later")]
    Starting,
    /// Retention is locked.
    #[error("retention is locked: what is kept can grow but not shrink until the lock ends")]
    Locked,
    /// Another key above 16 bytes has the same digest.
    #[error("another long key has the same SHA-256 digest: choose another key")]
    DigestTaken,
}

/// Which version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The newest.
    Head,
    /// The one with this number.
    Version(Version),
    /// So many before the newest.
    Back(u32),
    /// The one that was the head at this moment.
    AsOf(Version),
}

/// A key's versions up to a cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    older: &'a [Held],
    /// None: it lies above the cut.
    head: Option<Held>,
    /// No gap lies above the oldest version.
    is_whole: bool,
}

impl<'a> View<'a> {
    pub(crate) fn new(older: &'a [Held], head: Held, is_whole: bool) -> Self {
        Self {
            older,
            head: Some(head),
            is_whole,
        }
    }

    /// What is visible at a cut.
    pub(crate) fn up_to(self, cut: Version) -> Self {
        if self.head.is_some_and(|head| head.version <= cut) {
            return self;
        }
        let count = self.older.partition_point(|one| one.version <= cut);
        Self {
            older: &self.older[..count],
            head: None,
            ..self
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.older.len() + usize::from(self.head.is_some())
    }

    pub(crate) fn get(&self, position: usize) -> Option<Held> {
        match self.older.get(position) {
            Some(held) => Some(*held),
            None => self.head.filter(|_| position == self.older.len()),
        }
    }

    pub(crate) fn last(&self) -> Option<Held> {
        self.head.or_else(|| self.older.last().copied())
    }

    /// How many versions are at or below this one.
    fn count_up_to(&self, version: Version) -> usize {
        if self.head.is_some_and(|head| head.version <= version) {
            return self.len();
        }
        self.older.partition_point(|one| one.version <= version)
    }

    /// The head at this moment.
    pub(crate) fn at(&self, moment: Version) -> Option<Held> {
        self.count_up_to(moment)
            .checked_sub(1)
            .and_then(|position| self.get(position))
    }

    /// The version with this number.
    pub(crate) fn exactly(&self, version: Version) -> Result<Held, Refused> {
        let count = self.count_up_to(version);
        if let Some(held) = count.checked_sub(1).and_then(|position| self.get(position)) {
            if held.version == version {
                return Ok(held);
            }
        }
        let has_gap = self.get(count).is_some_and(|next| next.place.has_gap());
        Err(if has_gap {
            Refused::Trimmed
        } else {
            Refused::NoSuch
        })
    }

    /// Newest versions among which there is no gap.
    pub(crate) fn unbroken(&self) -> usize {
        let length = self.len();
        let has_gap = |position: &usize| self.get(*position).is_some_and(|one| one.place.has_gap());
        if self.is_whole {
            return length;
        }
        (0..length)
            .rev()
            .find(has_gap)
            .map_or(length, |position| length - position)
    }

    /// The version so many before the last.
    pub(crate) fn back(&self, back: u32) -> Result<Held, Refused> {
        let (back, unbroken) = (back as usize, self.unbroken());
        if back < unbroken {
            let found = self.get(self.len() - 1 - back);
            return found.ok_or(Refused::NoSuch);
        }
        let begins_with_gap = self.get(0).is_some_and(|oldest| oldest.place.has_gap());
        if unbroken < self.len() || begins_with_gap {
            Err(Refused::Trimmed)
        } else {
            Err(Refused::NoSuch)
        }
    }

    /// All, oldest first.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = Held> + 'a {
        self.older.iter().copied().chain(self.head)
    }
}
