// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may write while space is short: writers keep pace with collecting, and wait as long as it makes room.
//!
//! Invariants:
//! 1. While space is short and a segment is being collected, users write at most a share of what its last piece has
//!    won. The share falls with what is free, to nothing where space is full. So collecting is not outrun, however
//!    little it wins. What they write is what the log grows by: with heads, and with the padding of their batches.
//! 2. A writer is refused for want of space only when no shard makes room. Else it waits.
//! 3. A shard makes room while a segment waits to be free, one is being collected or may be worth it, or no sweep has met
//!    all keys since the floor moved. Each of them ends if users write nothing: collecting leaves less that is
//!    not needed.

use crate::mistake::{Mistake, Rules};
use crate::retention_clock::SAMPLES_WITHIN;
use crate::shard::{NotWritten, Shard};
use crate::space::Space;
use crate::version::Version;
use crate::view::Refused;

/// Thousandths of what collecting wins that users may write where space begins to be short.
pub(crate) const SHARE_MAX: u32 = 2000;
/// Who waits for space waits for versions that may be trimmed so soon.
const SOON_US: u64 = 1_000_000;

/// How fast a shard's users may write.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    /// Bytes of the log that users have written since the last piece was collected.
    written: usize,
    /// The batch that is open has some of them.
    is_in_batch: bool,
    /// What that piece had that nobody needs.
    won: usize,
    /// The sweep that is under way takes what had ended by then.
    sweeping: Option<Version>,
    /// No key has anything that had ended by then and nothing holds.
    swept: Version,
}

impl Pacing {
    /// Users have written a record of so many bytes.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        self.is_in_batch = true;
    }

    /// The batch that was open is written, with so much padding.
    pub(crate) fn padded(&mut self, bytes: usize) {
        if std::mem::take(&mut self.is_in_batch) {
            self.written += bytes;
        }
    }

    /// A piece was collected, of which so many bytes were not needed.
    pub(crate) fn collected(&mut self, won: usize) {
        (self.written, self.won) = (0, won);
    }

    /// A part of a sweep has taken what had ended by then; with it the sweep has met all keys, or not.
    pub(crate) fn swept(&mut self, floor: Version, is_done: bool) {
        let floor = self.sweeping.map_or(floor, |it| it.min(floor));
        self.sweeping = Some(floor).filter(|_| !is_done);
        if is_done {
            self.swept = self.swept.max(floor);
        }
    }
}

impl<R: Rules + Copy> Shard<R> {
    /// Whether this writer is let in, as far as space goes.
    fn has_space_for(&self, may_use_reserve: bool) -> bool {
        match self.shared.space() {
            Space::Plenty | Space::Low | Space::Short => true,
            Space::Full => may_use_reserve,
            Space::Reserve | Space::Last => false,
        }
    }

    /// Why this writer is not let in, as far as space goes: [`Refused::Busy`] while there may be room soon.
    pub(crate) fn refused_for_space(&self, may_use_reserve: bool) -> Option<Refused> {
        if self.has_space_for(may_use_reserve) {
            return None;
        }
        let makes_room = self.makes_room() || self.shared.others_make_room(self.number);
        if makes_room && !self.rules.makes(Mistake::RefusedTooEarly) {
            return Some(Refused::Busy);
        }
        Some(self.versions.no_space())
    }

    /// Whether this writer is let in now, as far as space goes.
    ///
    /// # Errors
    /// It is refused, or waits.
    pub(crate) fn check_space(&self, may_use_reserve: bool) -> Result<(), NotWritten> {
        match self.refused_for_space(may_use_reserve) {
            Some(Refused::Busy) => Err(NotWritten::Busy),
            Some(refused) => Err(NotWritten::Refused(refused, Version::ZERO)),
            None if self.is_slowed() => Err(NotWritten::Busy),
            None => Ok(()),
        }
    }

    /// Whether users wait until another piece has been collected.
    fn is_slowed(&self) -> bool {
        if self.shared.space() < Space::Short || !self.is_collecting() {
            return false;
        }
        let share = u128::from(self.shared.writers_share());
        let may = self.pacing.won as u128 * share / 1000;
        self.pacing.written as u128 > may
    }

    /// Whether something is under way that ends with more free segments.
    fn makes_room(&self) -> bool {
        let is_last = self.shared.space() == Space::Last;
        // Of the last space logs get no segment to go on with, so copies would have no place.
        let has_place = !is_last || !self.log.wants_segment();
        let may_collect = self.is_collecting() || !is_last && !self.is_futile();
        let may_trim = self.has_place_for_trims() && self.may_trim_more();
        self.collector.has_dead() || has_place && may_collect || may_trim
    }

    /// Whether sweeps may find something that nothing holds any more: now, or as soon as the floor has moved.
    fn may_trim_more(&self) -> bool {
        let retention = self.versions.retention();
        let settings = retention.settings();
        // Floors move in steps of that.
        let step_us = settings.min_age_us / SAMPLES_WITHIN;
        let is_soon = settings.min_age_us.saturating_add(step_us) <= SOON_US;
        let is_behind = retention.floor() < self.shared.clock().last();
        retention.floor() > self.pacing.swept || is_soon && is_behind
    }

    /// All shards learn whether this one makes room.
    pub(crate) fn turn_pacing(&self) {
        let is_short = self.shared.space() >= Space::Short;
        let makes_room = is_short && self.makes_room();
        self.shared.set_makes_room(self.number, makes_room);
    }
}
