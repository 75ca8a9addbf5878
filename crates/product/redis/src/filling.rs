// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Misses become fills: the ring is drained, and as much is asked of Redis as may be under way.

use std::io::{Read, Write};

use erb_abi::{self as abi, Again, ValueKind, Wanted};

use crate::admission::Admission;
use crate::aside::{Aside, Seen};
use crate::clock::MS;
use crate::feed::Feed;
use crate::fill::{Batch, Filled, Fills, Fresh, Sizing};
use crate::later::Later;
use crate::outside::{DataPath, Result};
use crate::pace::Pace;
use crate::reading::Asked;
use crate::reports::{Choice, Reports};
use crate::size::{Reading, Size};

/// Between drains while misses flow: a fill then takes about as long as two round trips.
const DRAIN_NS: u64 = 2 * MS;

/// Misses seen within this time count as flowing.
const FLOW_NS: u64 = 20 * MS;

/// A burst of fills is followed by a rest so many times as long: of Redis's time, of which they take
/// less than they are under way, misses get a quarter at most.
const RESTS: u64 = 3;

/// The same of keys that a write has thrown out. Each was read between its last writes, so what it takes
/// is less than what it saves.
const RESTS_AGAIN: u64 = 1;

/// A Redis that was slow to answer once is not taken for slow for longer.
const REST_MAX_NS: u64 = 10 * MS;

/// While ERB steps aside bursts begin so far apart, and the ring is drained at ticks alone: a fill of one key
/// wakes Redis and the daemon twice, and twenty keys wake them no oftener.
const ASIDE_REST_NS: u64 = 20 * MS;

/// What is wanted in the cache, and the ring that says so.
pub(crate) struct Filling {
    fills: Fills,
    /// Written, and answered for a while longer by what their SETs said.
    later: Later,
    admission: Admission,
    aside: Aside,
    reports: Choice,
    pace: Pace,
    pace_again: Pace,
    /// Hashes that were read in this second.
    hashes: u64,
    /// Rounds of forgetting.
    round: u32,
    /// When the burst under way began, and whether it is also of missed keys.
    burst: Option<(u64, bool)>,
    /// When the last one began.
    begun_ns: u64,
    last_miss_ns: u64,
    last_drain_ns: u64,
}

impl Filling {
    /// Nothing is wanted yet; the data path reports what a new daemon wants to know.
    pub(crate) fn new(path: &impl DataPath) -> Self {
        Self {
            fills: Fills::default(),
            later: Later::default(),
            admission: Admission::begin(path),
            aside: Aside::begin(path),
            reports: Choice::default(),
            pace: Pace::new(RESTS, REST_MAX_NS),
            pace_again: Pace::new(RESTS_AGAIN, REST_MAX_NS),
            hashes: 0,
            round: 0,
            burst: None,
            begun_ns: 0,
            last_miss_ns: 0,
            last_drain_ns: 0,
        }
    }

    /// What came of the fills so far.
    pub(crate) const fn fills(&self) -> &Fills {
        &self.fills
    }

    /// What is looked up and filled at all.
    pub(crate) const fn aside(&self) -> &Aside {
        &self.aside
    }

    /// The same, to be set by hand.
    pub(crate) const fn aside_mut(&mut self) -> &mut Aside {
        &mut self.aside
    }

    /// Of which changes Redis is to tell.
    pub(crate) fn reports(&self) -> Reports {
        self.reports.wanted()
    }

    /// The same, to be told of it and set by hand.
    pub(crate) const fn reports_mut(&mut self) -> &mut Choice {
        &mut self.reports
    }

    /// When the ring is drained again, and a burst begun, although it is not time for a tick; none:
    /// misses do not flow, and nothing waits for the end of a rest.
    pub(crate) fn next_drain_ns(&self, now: u64) -> Option<u64> {
        if self.aside.leaves_out() {
            return None;
        }
        let flow = (now < self.last_miss_ns + FLOW_NS).then_some(self.last_drain_ns + DRAIN_NS);
        let waits = self.burst.is_none() && self.fills.waiting() > 0;
        let rests = [self.pace_again.next_ns(), self.pace.next_ns()];
        // Once each: what could not begin after its rest waits for the next drain.
        let due = rests
            .into_iter()
            .filter(|end| waits && *end > self.last_drain_ns);
        due.chain(flow).chain(self.later.next_ns()).min()
    }

    /// Whether an answer is awaited: it is read at once, as a rest is measured by how long it took.
    pub(crate) const fn is_under_way(&self) -> bool {
        self.burst.is_some()
    }

    /// Takes the misses out of the ring, for fills if `may_fill`; false if there are none.
    pub(crate) fn drain(
        &mut self,
        path: &mut impl DataPath,
        now: u64,
        may_fill: bool,
    ) -> Result<bool> {
        self.last_drain_ns = now;
        self.take_due(path, now)?;
        let keys = path.drain_misses();
        if keys.is_empty() {
            return Ok(false);
        }
        self.last_miss_ns = now;
        if may_fill {
            let admission = &mut self.admission;
            for key in keys.into_iter().filter(|key| admission.takes(key)) {
                self.fills.missed(key);
            }
        }
        Ok(true)
    }

    /// Keys whose SETs will not be answered for much longer are wanted again.
    fn take_due(&mut self, path: &impl DataPath, now: u64) -> Result<()> {
        for batch in self.later.take(now).chunks(abi::FILL_BATCH as usize) {
            let keys: Vec<&[u8]> = batch.iter().map(|(wanted, _)| &wanted.key[..]).collect();
            for ((wanted, if_read), token) in batch.iter().zip(path.fill_begin(&keys)?) {
                match token.status {
                    abi::FILL_WRITTEN => self.later.note(wanted.clone(), *if_read, now),
                    abi::FILL_UNREAD if *if_read => {}
                    _ => self.fills.written_again(wanted.clone()),
                }
            }
        }
        Ok(())
    }

    /// Each tick, before anything is filled.
    pub(crate) fn tick(&mut self, path: &impl DataPath, now: u64) -> Result<()> {
        self.aside.tick(path, now)
    }

    /// Once a second: it is learned which fills pay; old misses are forgotten, and keys that could not be
    /// filled forgiven.
    pub(crate) fn second(&mut self, path: &impl DataPath, now: u64) -> Result<()> {
        self.fills.forgive(now);
        let seen = Seen {
            reported: self.reports.heard(),
            hashes: std::mem::take(&mut self.hashes),
        };
        self.aside.second(path, seen, now)?;
        self.reports.second(self.aside.state().level);
        // Reported or not: a key whose reports came to nothing is reported again.
        if self.admission.learn(path)? {
            path.fade_interests(self.round);
            self.round = self.round.wrapping_add(1);
        }
        Ok(())
    }

    /// Asks for as many sizes and values as may be under way; for new ones only after a rest.
    pub(crate) fn begin<S: Read + Write>(
        &mut self,
        path: &impl DataPath,
        feed: &mut Feed<S>,
        now: u64,
    ) -> Result<()> {
        let is_over = !feed.is_filling() && !self.fills.has_begun();
        if let Some((began, missed)) = self.burst.take_if(|_| is_over) {
            self.pace_again.ran(began, now);
            if missed {
                self.pace.ran(began, now);
            }
        }
        let rests = self.aside.leaves_out() && now < self.begun_ns + ASIDE_REST_NS;
        let fresh = Fresh {
            missed: self.burst.is_none() && !rests && self.pace.may(now),
            again: self.burst.is_none() && !rests && self.pace_again.may(now),
        };
        while let Some(room) = feed.fill_room()
            && let Some(batch) = self.fills.next(room, fresh)
        {
            let (began, missed) = self.burst.get_or_insert((now, false));
            self.begun_ns = *began;
            *missed |= matches!(
                batch,
                Batch::Sizes {
                    of: Sizing::Missed,
                    ..
                }
            );
            match batch {
                Batch::Sizes { keys, bytes, of } => feed.ask_sizes(keys, bytes, of),
                Batch::Values(keys, bytes) => {
                    if !self.ask_values(path, feed, (keys, bytes), now)? {
                        // What must be tried again waits for the next drain, or this loop would spin.
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Asks for these values, but for those of which the data path wants nothing now; false if there are
    /// such.
    fn ask_values<S: Read + Write>(
        &mut self,
        path: &impl DataPath,
        feed: &mut Feed<S>,
        (keys, bytes): (Vec<(Wanted, Reading)>, usize),
        now: u64,
    ) -> Result<bool> {
        let borrowed: Vec<&[u8]> = keys.iter().map(|(wanted, _)| &wanted.key[..]).collect();
        let tokens = path.fill_begin(&borrowed)?;
        let (mut asked, mut all) = (Vec::new(), true);
        for ((wanted, reading), token) in keys.into_iter().zip(tokens) {
            if matches!(token.status, abi::FILL_OK | abi::FILL_UNREAD) {
                asked.push(Asked {
                    wanted,
                    reading,
                    token,
                });
            } else if token.status == abi::FILL_WRITTEN {
                self.fills.leave(&wanted);
                self.later.note(wanted, false, now);
            } else {
                all = false;
                // Later: the time matters only for what is never filled.
                self.fills.ended(wanted, Filled::Later, 0);
            }
        }
        if !asked.is_empty() {
            feed.ask_fill(asked, bytes);
        }
        Ok(all)
    }

    /// Keys are asked for by name.
    pub(crate) fn ask(&mut self, kind: ValueKind, keys: impl IntoIterator<Item = Vec<u8>>) {
        for key in keys {
            self.fills.ask(Wanted { db: 0, kind, key });
        }
    }

    /// Absent keys may be cached, which could not before.
    pub(crate) fn forgive_all(&mut self) {
        self.fills.forgive(u64::MAX);
    }

    /// Redis has said how large values are; none: it could not be asked.
    pub(crate) fn take_sizes(
        &mut self,
        path: &impl DataPath,
        sizes: Vec<(Wanted, Option<Size>)>,
        now: u64,
    ) {
        for (key, size) in sizes {
            match size {
                // To look for it once more might tell somebody.
                Some(Size::Absent) if path.absent() == 0 => {
                    self.fills.sized(key, Size::None, now);
                }
                Some(size) => self.fills.sized(key, size, now),
                None => self.fills.ended(key, Filled::Later, now),
            }
        }
    }

    /// Fills have ended.
    pub(crate) fn take_ends(&mut self, ends: Vec<(Wanted, Filled)>, now: u64) {
        for (key, end) in ends {
            self.hashes += u64::from(key.kind == ValueKind::Hash);
            self.fills.ended(key, end, now);
        }
    }

    /// Keys were written; those that are read between their writes are wanted again.
    pub(crate) fn take_writes(&mut self, keys: &[impl AsRef<[u8]>], again: Again, now: u64) {
        self.reports.hear(keys.len());
        for key in keys {
            self.fills.written(key.as_ref());
        }
        for key in again.now {
            self.fills.written_again(key);
        }
        for key in again.later {
            self.written_through(key, false, now);
        }
        for key in again.if_read {
            self.written_through(key, true, now);
        }
    }

    /// The feed is gone: what was under way is not coming.
    pub(crate) fn forget_all(&mut self) {
        self.fills.forget_all();
        self.later = Later::default();
        self.burst = None;
    }

    /// A key was written, and what its SET said is answered a while longer.
    fn written_through(&mut self, key: Wanted, if_read: bool, now: u64) {
        if self.fills.knows(&key) {
            self.fills.written_again(key); // its fill will find out
        } else {
            self.later.note(key, if_read, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doubles::Recorder;

    #[test]
    fn misses_flow_for_a_while_and_are_kept_only_if_they_may_be_filled() {
        let mut path = Recorder::default();
        let mut filling = Filling::new(&path);
        let now = 1000 * MS;
        assert!(!filling.drain(&mut path, now, true).unwrap());
        assert_eq!(filling.next_drain_ns(now), None);
        for (may_fill, waiting) in [(false, 0), (true, 1)] {
            path.misses.replace(vec![Wanted::string(b"k".to_vec())]);
            assert!(filling.drain(&mut path, now, may_fill).unwrap());
            assert_eq!(filling.fills().waiting(), waiting);
        }
        assert_eq!(filling.next_drain_ns(now + 19 * MS), Some(now + 2 * MS));
        assert_eq!(filling.next_drain_ns(now + 20 * MS), None);
        filling.forget_all();
        assert_eq!(filling.fills().waiting(), 0);
    }
}
