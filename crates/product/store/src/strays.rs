// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments of logs that a damaged control log does not name any more: a repair looks for them.
//!
//! Invariants:
//! 1. A segment that begins with a batch of a later use than is known is a log's: the entry that gave it is lost.
//! 2. Its place in that log follows from the number of its first batch: behind what begins with lower numbers, before
//!    what begins with higher ones. Known segments and checkpoints keep their orders.
//! 3. What has no such place is not passed over: then the store is not repaired.
//! 4. A start that went on behind a torn end may be among what is lost. So a segment has no batch whose number a later
//!    one begins with, or a higher one; and of two at one place the one counts that was written by the later start.
//! 5. What stays free gets a use more: whatever was written there by a use whose entry is lost counts no more.

use std::collections::{BTreeMap, VecDeque};

use crate::batch::{BATCH_ALIGN_BYTES, BatchHead};
use crate::entry::{Entry, SegmentState, UsedFor};
use crate::layout::Layout;
use crate::log::Segment;
use crate::open_error::OpenError;
use crate::record::Seat;
use crate::state::State;

/// Most uses of a segment whose entries may all be lost: an area has fewer.
const USES_LOST_MAX: u32 = 4096;

/// A known place of a log.
#[derive(Clone, Copy, Debug)]
struct Known {
    shard: u16,
    /// A batch that begins it, or lies in it.
    lsn: u64,
    order: u64,
}

/// What a segment of a log begins with.
#[derive(Clone, Copy, Debug)]
struct First {
    lsn: u64,
    incarnation: u32,
}

impl First {
    fn of(head: &BatchHead) -> Self {
        let (lsn, incarnation) = (head.lsn, head.incarnation);
        Self { lsn, incarnation }
    }
}

/// From which number on segments have no batches.
#[derive(Debug, Default)]
pub(crate) struct Stops(BTreeMap<u32, u64>);

impl Stops {
    /// That of this one.
    pub(crate) fn of(&self, segment: &Segment) -> u64 {
        self.0.get(&segment.number).copied().unwrap_or(u64::MAX)
    }
}

/// A segment that the control log does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stray {
    shard: u16,
    /// Its first batch.
    lsn: u64,
    number: u32,
    uses: u32,
}

/// A search under way.
#[derive(Debug)]
pub(crate) struct Strays {
    store_id: u64,
    /// Segments that are to be looked at: number, begin, and what is known.
    left: VecDeque<(u32, u64, SegmentState)>,
    known: Vec<Known>,
    found: Vec<Stray>,
    /// By number of a segment that is a log's.
    firsts: BTreeMap<u32, First>,
}

impl Strays {
    pub(crate) fn new(state: &State, layout: &Layout, store_id: u64) -> Self {
        let segments = (0..).zip(&state.segments);
        let left = segments.map(|(number, it)| (number, layout.segment_at(number), *it));
        let checkpoints = (0..).zip(&state.checkpoints);
        let known = checkpoints.flat_map(|(shard, all)| {
            all.iter().map(move |it| Known {
                shard,
                lsn: it.lsn,
                order: it.order,
            })
        });
        Self {
            store_id,
            left: left.collect(),
            known: known.collect(),
            found: Vec::new(),
            firsts: BTreeMap::new(),
        }
    }

    /// The next read; none: all was looked at.
    pub(crate) fn read(&self) -> Option<(u64, usize)> {
        let (_, address, _) = self.left.front()?;
        Some((*address, BATCH_ALIGN_BYTES))
    }

    /// What it has brought; none: it cannot be read.
    pub(crate) fn done(&mut self, bytes: Option<&[u8]>) {
        let Some((number, address, known)) = self.left.pop_front() else {
            return;
        };
        let bytes = bytes.unwrap_or_default();
        let begins = |uses| {
            let head = BatchHead::decode(bytes, Seat { address, uses }).ok();
            let head = head.map(|(head, _)| head);
            head.filter(|head| head.store_id == self.store_id)
        };
        let is_batch = BatchHead::is_like(bytes);
        let mut later = (known.uses + 1..=known.uses.saturating_add(USES_LOST_MAX))
            .filter(|_| is_batch)
            .filter_map(|uses| begins(uses).map(|head| (uses, head)));
        if let Some((uses, head)) = later.next() {
            let (shard, lsn) = (head.shard, head.lsn);
            self.firsts.insert(number, First::of(&head));
            self.found.push(Stray {
                shard,
                lsn,
                number,
                uses,
            });
        } else if let UsedFor::Log { shard, order, end } = known.used_for {
            let first = begins(known.uses).filter(|head| head.shard == shard);
            self.firsts
                .extend(first.iter().map(|head| (number, First::of(head))));
            let within = end.map(|end| end.lsn.saturating_sub(1));
            let lsn = first.map(|head| head.lsn).or(within);
            let known = lsn.map(|lsn| Known { shard, lsn, order });
            self.known.extend(known);
        }
    }

    /// Segments become those of their logs again.
    ///
    /// # Errors
    /// One has no place there.
    pub(crate) fn finish(mut self, state: &mut State, layout: &Layout) -> Result<Stops, OpenError> {
        self.found.sort_unstable();
        for stray in std::mem::take(&mut self.found) {
            let (shard, number) = (stray.shard, stray.number);
            let address = layout.segment_at(number);
            let unordered = OpenError::Unordered { shard, address };
            let order = self.order(&stray, state).ok_or(unordered)?;
            let end = None;
            let used_for = UsedFor::Log { shard, order, end };
            let uses = stray.uses;
            let entry = Entry::Segment(number, SegmentState { uses, used_for });
            state.apply(&entry).map_err(|_| unordered)?;
            let lsn = stray.lsn;
            self.known.push(Known { shard, lsn, order });
        }
        self.free_unwritten(state);
        for (number, it) in (0..).zip(state.segments.clone()) {
            if it.used_for == UsedFor::Nothing {
                let _ = state.apply(&Entry::freed(number, it.uses + 1));
            }
        }
        Ok(self.stops(state))
    }

    /// Segments of logs: shard, order, who has written what each begins with, and its number; in that order.
    fn logs(&self, state: &State) -> Vec<(u16, u64, u32, u32)> {
        let segments = (0..).zip(&state.segments);
        let logs = segments.filter_map(|(number, it)| match it.used_for {
            UsedFor::Log { shard, order, .. } => {
                let first = self.firsts.get(&number);
                let incarnation = first.map_or(0, |first| first.incarnation);
                Some((shard, order, incarnation, number))
            }
            _ => None,
        });
        let mut logs: Vec<_> = logs.collect();
        logs.sort_unstable();
        logs
    }

    /// Of two at one place the later start's counts: it has found that the other had nothing.
    fn free_unwritten(&self, state: &mut State) {
        let logs = self.logs(state);
        for (one, next) in logs.iter().zip(logs.iter().skip(1)) {
            if (one.0, one.1) == (next.0, next.1) {
                let number = one.3;
                let uses = state.segments[number as usize].uses;
                let _ = state.apply(&Entry::freed(number, uses));
            }
        }
    }

    fn stops(&self, state: &State) -> Stops {
        let mut stops = BTreeMap::new();
        let mut behind = (u16::MAX, u64::MAX);
        for (shard, _, _, number) in self.logs(state).into_iter().rev() {
            let stop = if behind.0 == shard {
                behind.1
            } else {
                u64::MAX
            };
            stops.insert(number, stop);
            let first = self.firsts.get(&number).map_or(u64::MAX, |it| it.lsn);
            behind = (shard, stop.min(first));
        }
        Stops(stops)
    }

    /// The place of a segment in its log; none: there is none between those of others.
    fn order(&self, stray: &Stray, state: &State) -> Option<u64> {
        let is_taken = |wanted: u64| {
            let mut segments = (0..).zip(&state.segments);
            segments.any(|(number, it)| match it.used_for {
                UsedFor::Log { shard, order, .. } => {
                    number != stray.number && shard == stray.shard && order == wanted
                }
                _ => false,
            })
        };
        let known = || self.known.iter().filter(|it| it.shard == stray.shard);
        if let Some(same) = known().find(|it| it.lsn == stray.lsn) {
            return Some(same.order).filter(|order| !is_taken(*order));
        }
        let before = known().filter(|it| it.lsn < stray.lsn).map(|it| it.order);
        let behind = known().filter(|it| it.lsn > stray.lsn).map(|it| it.order);
        // Only a log that is whole has its first order.
        let first = u64::from(stray.lsn > 1);
        let from = before.max().map_or(first, |order| order + 1);
        let to = behind.min().unwrap_or(u64::MAX);
        (from..to).find(|order| !is_taken(*order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogEnd;
    use crate::retention::Settings;
    use crate::version::Version;

    const STORE_ID: u64 = 77;

    fn layout() -> Layout {
        Layout {
            store_bytes: 4 << 20,
            segment_bytes: 64 << 10,
            area_bytes: 64 << 10,
            shards: 2,
        }
    }

    /// What a segment has at its begin: number, uses, shard, batch, incarnation.
    type There = (u32, u32, u16, u64, u32);

    fn log(shard: u16, order: u64, lsn: Option<u64>) -> UsedFor {
        let end = lsn.map(|lsn| LogEnd {
            bytes: 4096,
            lsn,
            crc: 1,
            sectors: 0,
            loose_bytes: None,
            directory: None,
        });
        UsedFor::Log { shard, order, end }
    }

    fn state(known: &[(u32, u32, UsedFor)]) -> State {
        let mut state = State::new(&layout(), Settings::NEW);
        for (number, uses, used_for) in known.iter().copied() {
            let entry = Entry::Segment(number, SegmentState { uses, used_for });
            state.apply(&entry).unwrap();
        }
        state
    }

    fn looked(state: &mut State, store_id: u64, there: &[There]) -> Result<Stops, OpenError> {
        let layout = layout();
        let mut strays = Strays::new(state, &layout, STORE_ID);
        while let Some((address, bytes)) = strays.read() {
            let number = layout.segment_of(address).unwrap();
            let found = there.iter().find(|it| it.0 == number);
            let mut read = vec![0; bytes];
            if let Some((_, uses, shard, lsn, incarnation)) = found.copied() {
                let head = BatchHead {
                    shard,
                    records: 0,
                    bytes: 4096,
                    crc_before: 0,
                    store_id,
                    lsn,
                    incarnation,
                    content_crc: crc32c::crc32c(&read[64..]),
                    first_version: Version::MAX,
                    retention_us: 0,
                    under_way: 0,
                };
                read[..64].copy_from_slice(&head.encode(Seat { address, uses }));
            }
            strays.done(Some(&read));
        }
        strays.finish(state, &layout)
    }

    fn found(state: &mut State, there: &[There]) -> Result<Stops, OpenError> {
        looked(state, STORE_ID, there)
    }

    fn of(state: &State, number: u32) -> (u32, UsedFor) {
        let it = state.segments[number as usize];
        (it.uses, it.used_for)
    }

    #[test]
    fn what_no_entry_names_gets_its_place_by_the_number_of_its_first_batch() {
        let known = [(0, 1, log(0, 4, None)), (1, 1, log(0, 7, None))];
        let mut state = state(&known);
        let there = [
            (0, 1, 0, 100, 1),
            (1, 1, 0, 200, 1),
            (2, 3, 0, 150, 1),
            (3, 1, 0, 300, 1),
            (4, 1, 1, 1, 1),
            (5, 2, 1, 40, 1),
        ];
        found(&mut state, &there).unwrap();
        assert_eq!(of(&state, 2), (3, log(0, 5, None)));
        assert_eq!(of(&state, 3), (1, log(0, 8, None)));
        // A log of which nothing is known: the first batch is the first order's, and only that.
        assert_eq!(of(&state, 4), (1, log(1, 0, None)));
        assert_eq!(of(&state, 5), (2, log(1, 1, None)));
        assert_eq!(
            (of(&state, 0), of(&state, 1)),
            ((1, known[0].2), (1, known[1].2))
        );
    }

    #[test]
    fn a_log_that_is_not_whole_does_not_begin_where_a_whole_one_does() {
        let mut state = state(&[]);
        found(&mut state, &[(2, 1, 0, 9, 1)]).unwrap();
        assert_eq!(of(&state, 2).1, log(0, 1, None));
    }

    #[test]
    fn what_has_no_place_between_others_is_not_passed_over() {
        let refused = |known: &[(u32, u32, UsedFor)], there: &[There]| {
            let error = found(&mut state(known), there).map(|_| ()).unwrap_err();
            let OpenError::Unordered { shard, address } = error else {
                panic!("{error:?}");
            };
            (shard, layout().segment_of(address).unwrap())
        };
        // Between orders that follow each other.
        let known = [(0, 1, log(1, 4, None)), (1, 1, log(1, 5, None))];
        let there = [(0, 1, 1, 100, 1), (1, 1, 1, 200, 1), (6, 1, 1, 150, 1)];
        assert_eq!(refused(&known, &there), (1, 6));
        // Before the first.
        let there = [(0, 1, 1, 100, 1), (6, 1, 1, 50, 1)];
        let known = [(0, 1, log(1, 1, None))];
        assert_eq!(refused(&known, &there), (1, 6));
    }

    #[test]
    fn a_known_segment_that_cannot_be_read_is_placed_by_its_end() {
        let known = [(0, 1, log(0, 3, Some(100))), (1, 1, log(0, 6, Some(200)))];
        let mut state = state(&known);
        // Its batches are below 200, so what begins with 199 lies before or in it.
        let error = found(&mut state, &[(2, 1, 0, 199, 1)]);
        assert!(error.is_err());
        found(&mut state, &[(2, 1, 0, 150, 1)]).unwrap();
        assert_eq!(of(&state, 2).1, log(0, 4, None));
    }

    #[test]
    fn only_a_later_use_of_this_store_is_found_and_what_stays_free_gets_a_use_more() {
        let mut all = state(&[(0, 5, UsedFor::Nothing), (1, 5, UsedFor::Nothing)]);
        // What a former use has left, and what another store has.
        found(&mut all, &[(0, 5, 0, 1, 1), (1, 4, 0, 1, 1)]).unwrap();
        assert_eq!(of(&all, 0), (6, UsedFor::Nothing));
        assert_eq!(of(&all, 1), (6, UsedFor::Nothing));
        looked(&mut all, STORE_ID + 1, &[(0, 9, 0, 1, 1)]).unwrap();
        assert_eq!(of(&all, 0), (7, UsedFor::Nothing));
        // The last use that may be lost, and one more.
        let most = 7 + USES_LOST_MAX;
        let mut other = all.clone();
        found(&mut other, &[(0, most, 0, 1, 1)]).unwrap();
        assert_eq!(of(&other, 0), (most, log(0, 0, None)));
        found(&mut all, &[(0, most + 1, 0, 1, 1)]).unwrap();
        assert_eq!(of(&all, 0), (8, UsedFor::Nothing));
    }

    #[test]
    fn of_two_at_one_place_the_later_starts_counts() {
        let checkpoint = crate::entry::Checkpoint {
            number: 1,
            order: 6,
            lsn: 100,
            crc_before: 0,
            incarnation: 1,
            keys: 0,
            chunks: 1,
            rows_up_to: Version::ZERO,
        };
        let mut state = state(&[(0, 1, log(0, 6, None))]);
        let named = Entry::Checkpoint(0, checkpoint);
        state.apply(&named).unwrap();
        // The entry that has freed segment 0 is lost, and so is the one that gave 3 its place.
        let there = [(3, 2, 0, 100, 4)];
        let stops = found(&mut state, &there);
        // Its place is taken by one that may have batches: nobody can tell.
        assert!(stops.is_err());
        let mut strays = Strays::new(&state, &layout(), STORE_ID);
        strays.firsts.insert(
            0,
            First {
                lsn: 100,
                incarnation: 3,
            },
        );
        strays.firsts.insert(
            3,
            First {
                lsn: 100,
                incarnation: 4,
            },
        );
        let again = Entry::Segment(
            3,
            SegmentState {
                uses: 2,
                used_for: log(0, 6, None),
            },
        );
        state.apply(&again).unwrap();
        strays.free_unwritten(&mut state);
        assert_eq!(of(&state, 0), (1, UsedFor::Nothing));
        assert_eq!(of(&state, 3), (2, log(0, 6, None)));
    }

    #[test]
    fn a_segment_stops_where_a_later_one_of_its_log_begins() {
        let known = [
            (0, 1, log(0, 1, None)),
            (1, 1, log(0, 2, None)),
            (2, 1, log(0, 3, None)),
            (3, 1, log(1, 1, None)),
        ];
        let mut state = state(&known);
        // The second begins with what the third has again: a start went on behind a torn end.
        let there = [
            (0, 1, 0, 10, 1),
            (1, 1, 0, 40, 1),
            (2, 1, 0, 30, 2),
            (3, 1, 1, 5, 1),
        ];
        let stops = found(&mut state, &there).unwrap();
        let layout = layout();
        let stop = |number| {
            let uses = state.segments[number as usize].uses;
            stops.of(&crate::state::segment(&layout, number, uses, 0))
        };
        assert_eq!([0, 1, 2, 3].map(stop), [30, 30, u64::MAX, u64::MAX]);
    }
}
